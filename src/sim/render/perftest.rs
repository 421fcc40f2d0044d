//! `ib_write_bw` and `ib_read_bw` of one NIC: a table of message sizes.

use super::SimToolOutput;
use crate::invocation::ToolInvocation;
use crate::network;
use crate::noise::NoiseKey;

/// Default number of messages of each size.
pub const ITERATIONS: u64 = 5000;

/// A run between two nodes, or between one node's NIC and a healthy partner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimPerftestRun {
    /// Index of the NIC's rail, from 0.
    pub rail: usize,
    /// The partner's index in the fabric.
    pub peer: Option<usize>,
    /// Whether rates are in Gb/sec instead of MB/sec of 2^20 bytes.
    pub gbits: bool,
    /// Whether the data comes from the partner (`ib_read_bw`).
    pub reads: bool,
    /// Whether both directions run concurrently; their rates are added up.
    pub bidirectional: bool,
    /// Number of queue pairs (`-q`).
    pub pairs: u32,
    /// Binary logarithms of the smallest and the largest message.
    pub sizes: [u32; 2],
    /// Messages of each size, if no time is given.
    pub iterations: u64,
    /// Duration in seconds, which replaces the message count (`-D`).
    pub seconds: Option<u32>,
}

impl SimPerftestRun {
    /// A run over a rail with every size from 2 B to 8 MiB.
    pub fn all_sizes(rail: usize) -> Self {
        Self {
            rail,
            peer: None,
            gbits: true,
            reads: false,
            bidirectional: false,
            pairs: 4,
            sizes: [1, 23],
            iterations: ITERATIONS,
            seconds: None,
        }
    }
}

/// Output of a server before its client connects.
pub fn waiting_text() -> String {
    let stars = "*".repeat(36);
    format!("\n{stars}\n* Waiting for client to connect... *\n{stars}\n")
}

/// Output for a NIC without a link.
pub fn link_down() -> SimToolOutput {
    let why = " Port number 1 state is Down\n Couldn't set the link layer\n \
               Couldn't get context for the device\n";
    SimToolOutput::with_exit_code(String::new(), why.to_owned(), 1)
}

/// Rate in GB/s of messages of this size over a line. `end` is part of the noise key.
pub fn average_rate(
    bench: &ToolInvocation<'_>,
    line: f64,
    key: NoiseKey,
    bytes: u64,
    end: u64,
) -> f64 {
    // Small messages are limited by 4.5 million messages per second, with a sharp knee: 64 KiB
    // messages fill the line (perftest's default).
    let messages = bytes as f64 * 4.5e-3;
    let truth = line / (1.0 + (line / messages).powi(4)).sqrt().sqrt();
    // No GPU is involved, so dips and drift do not apply.
    truth * bench.scenario.noise.factor(key.with_part(bytes).with_part(end).with_part(end))
}

/// Messages of this size that a timed run counts at a rate in GB/s: a quarter of the time, in whole
/// seconds, is excluded at either end.
pub fn messages_sent(rate: f64, seconds: u32, bytes: u64) -> f64 {
    let counted = f64::from(seconds - seconds / 4 * 2);
    (rate * 1e9 * counted / bytes as f64).floor()
}

/// Output of a client whose server is missing.
pub fn server_not_found(peer: &str, port: u16) -> SimToolOutput {
    let why = format!(
        "Couldn't connect to {peer}:{port}\nUnable to open file descriptor for socket connection \
         Unable to init the socket connection\n"
    );
    SimToolOutput::with_exit_code(String::new(), why, 1)
}

/// Renders the output of a bandwidth test with one row per message size.
pub fn render_bandwidth(bench: &ToolInvocation<'_>, run: &SimPerftestRun) -> SimToolOutput {
    let rule = "-".repeat(87);
    let (fabric, first) = (bench.fabric, bench.gpus().first().copied());
    let node = first.map(|gpu| fabric.gpus[gpu].node).or_else(|| fabric.node(bench.scope).ok());
    let known = node.filter(|node| run.rail < fabric.network.rail_count(*node));
    let Some(node) = known else {
        return SimToolOutput::with_exit_code(String::new(), "IB device not found\n".to_owned(), 1);
    };
    let end = first.unwrap_or(0) as u64;
    // Runs without a rail use the first rail's key.
    let mut key = bench.key(if run.reads { "ib_read_bw" } else { "ib_write_bw" });
    if run.rail != 0 {
        key = key.with_part(run.rail as u64);
    }
    if let Some(peer) = run.peer {
        key = key.with_part(peer as u64);
    }
    let power = |node: usize| fabric.nodes[node].power;
    let network = &fabric.network;
    let mut line = match run.peer {
        None => network.rdma_rate_alone(node, run.rail) * power(node),
        Some(peer) => {
            let (from, to) = if run.reads { (peer, node) } else { (node, peer) };
            network.rdma_rate(from, to, run.rail) * power(node).min(power(peer))
        }
    };
    let own = line;
    if let Some(peer) = run.peer.filter(|_| run.bidirectional) {
        let (from, to) = if run.reads { (node, peer) } else { (peer, node) };
        line += network.rdma_rate(from, to, run.rail) * power(node).min(power(peer));
    }
    let device = network::device_name(run.rail);
    let gbits = run.gbits;
    let unit = if gbits { "Gb/sec" } else { "MB/sec" };
    let verb = if run.reads { "RDMA_Read" } else { "RDMA_Write" };
    let title = if run.bidirectional { "Bidirectional BW Test" } else { "BW Test" };
    let mut out = format!("{rule}\n                    {verb} {title}\n");
    out.push_str(&format!(" Dual-port       : OFF\t\tDevice         : {device}\n"));
    out.push_str(&format!(" Number of qps   : {}\t\tTransport type : IB\n", run.pairs));
    out.push_str(" Connection type : RC\t\tUsing SRQ      : OFF\n");
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
    for power in run.sizes[0]..=run.sizes[1] {
        let bytes = 1_u64 << power;
        let size = f64::from(1_u32 << power);
        let average = average_rate(bench, line, key, bytes, end);
        // A timed run does not report its fastest message.
        let peak = if run.seconds.is_some() { 0.0 } else { average * 1.002 };
        let sent = match run.seconds {
            Some(seconds) => {
                let rate = if line == 0.0 { 0.0 } else { average * own / line };
                format!("{:.0}", messages_sent(rate, seconds, bytes))
            }
            None => run.iterations.to_string(),
        };
        let show = |rate: f64| if gbits { rate * 8.0 } else { rate * 1e9 / 1_048_576.0 };
        let messages = average * 1e3 / size;
        out.push_str(&format!(
            " {bytes:<10} {sent:<10}       {:<7.2}            {:<7.2}\t\t     {messages:.6}\n",
            show(peak),
            show(average)
        ));
    }
    out.push_str(&format!("{rule}\n"));
    SimToolOutput::success(out)
}
