//! `ib_write_bw` between a node's first NIC and another's, sizes 2 B to 8 MiB.

use super::Answer;
use crate::sim::bench::Bench;

/// The whole output; with `gbits` in Gb/sec, else in MB/sec of 2^20 bytes.
pub fn write_bandwidth(bench: &Bench<'_>, gbits: bool) -> Answer {
    let rule = "-".repeat(87);
    let (key, number) = (bench.key("ib_write_bw"), bench.gpus().first().copied());
    let Some(first) = number else {
        return Answer::ended(String::new(), "Couldn't get device\n".to_owned(), 1);
    };
    let node = bench.fabric.home(first);
    let unit = if gbits { "Gb/sec" } else { "MB/sec" };
    let mut out = format!("{rule}\n                    RDMA_Write BW Test\n");
    for (left, right) in [
        ("Dual-port       : OFF", "Device         : mlx5_0"),
        ("Number of qps   : 4", "Transport type : IB"),
        ("Connection type : RC", "Using SRQ      : OFF"),
    ] {
        out.push_str(&format!(" {left}\t\t{right}\n"));
    }
    for option in [
        "PCIe relax order: ON",
        "ibv_wr* API     : ON",
        "TX depth        : 128",
        "CQ Moderation   : 100",
        "Mtu             : 4096[B]",
        "Link type       : IB",
        "Max inline data : 0[B]",
        "rdma_cm QPs     : OFF",
        "Data ex. method : Ethernet",
    ] {
        out.push_str(&format!(" {option}\n"));
    }
    let id = key.value();
    out.push_str(&format!("{rule}\n"));
    for side in ["local", "remote"] {
        let qp = id & 0xffff;
        out.push_str(&format!(
            " {side} address: LID 0x{:02x} QPN {qp:#06x} PSN {:#08x} RKey {:#08x} VAddr 0x007f{:012x}\n",
            id & 0xff,
            (id >> 16) & 0x00ff_ffff,
            (id >> 24) & 0x00ff_ffff,
            id & 0xffff_ffff
        ));
    }
    out.push_str(&format!(
        "{rule}\n #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]\n"
    ));
    for power in 1..=23_u32 {
        let bytes = 1_u64 << power;
        let size = f64::from(1_u32 << power);
        // Small messages are limited by 4.5 million messages a second.
        let line = node.hardware.nic * node.power;
        let truth = line * (size / (size + line * 1e3 / 4.5));
        let average = bench.read(truth, key.with(bytes), [first, first]);
        let peak = average * 1.002;
        let show = |rate: f64| if gbits { rate * 8.0 } else { rate * 1e9 / 1_048_576.0 };
        let messages = average * 1e3 / size;
        out.push_str(&format!(
            " {bytes:<10} {:<10}       {:<7.2}            {:<7.2}\t\t     {messages:.6}\n",
            5000,
            show(peak),
            show(average)
        ));
    }
    out.push_str(&format!("{rule}\n"));
    Answer::of(out)
}
