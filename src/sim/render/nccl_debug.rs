//! What NCCL says about its paths where `NCCL_DEBUG=INFO` is set.

use super::hyphenated;
use crate::sim::bench::Bench;
use crate::sim::collective::Collective;
use crate::sim::collective::CollectiveRun;
use crate::sim::collective::Wires;
use crate::sim::fabric::Node;
use crate::sim::noise::Key;

/// The records of all ranks, one after the other; empty where nobody asked.
pub fn records(bench: &Bench<'_>, run: &CollectiveRun) -> String {
    let Some(job) = bench.job.filter(|job| job.says("NCCL_DEBUG", "INFO")) else {
        return String::new();
    };
    let (fabric, ranks) = (bench.fabric, run.gpus.len());
    let Some(first) = run.gpus.first() else { return String::new() };
    let wires = bench.wires(&run.gpus);
    let several = run.gpus.iter().any(|g| fabric.gpus[*g].node != fabric.gpus[*first].node);
    let mut out = String::new();
    for (rank, gpu) in run.gpus.iter().enumerate() {
        let (node, device) = (fabric.home(*gpu), fabric.device(*gpu));
        let process = 21_000 + device * 3;
        let mut say = |text: &str| {
            let name = &node.name;
            out.push_str(&format!(
                "{name}:{process}:{} [{device}] NCCL INFO {text}\n",
                process + 90
            ));
        };
        if rank == 0 {
            for (name, value) in job.environment.iter().filter(|(n, _)| n.starts_with("NCCL_")) {
                say(&format!("{name} set by environment to {value}."));
            }
        }
        say(match wires {
            Wires::Socket => "Using network Socket",
            _ => "Using network IB",
        });
        if several && wires == Wires::NvLink {
            let uuid = hyphenated(Key::of(bench.seed).named("cluster").with(node.domain as u64));
            say(&format!("MNNVL 1 cliqueId 7ffe uuid {uuid} cliqueSize {ranks} cliqueRank {rank}"));
        }
        if reduces(node, wires, ranks) {
            say(&format!(
                "NVLS multicast support is available on dev {device} (NVLS_NCHANNELS 16)"
            ));
        }
        let next = (rank + 1) % ranks;
        if next == rank {
            continue;
        }
        let (peer, there) = (run.gpus[next], fabric.device(run.gpus[next]));
        let leaves = fabric.gpus[peer].node != fabric.gpus[*gpu].node;
        let rail = fabric.gpus[*gpu].slot as usize % fabric.network.rails(fabric.gpus[*gpu].node);
        let (end, via) = match (leaves, wires) {
            (true, Wires::NvLink) => ("", "P2P/MNNVL".to_owned()),
            (true, Wires::Socket) => (" [send]", format!("NET/Socket/{rail}")),
            (true, _) => (" [send]", format!("NET/IB/{rail}/GDRDMA")),
            (false, Wires::Pcie) => ("", "SHM/direct/direct".to_owned()),
            (false, _) => ("", "P2P/CUMEM".to_owned()),
        };
        if rank == 0
            && job.environment.get("NCCL_DEBUG_SUBSYS").is_some_and(|s| s.contains("TUNING"))
        {
            for line in tuning(run, wires, reduces(node, wires, ranks)) {
                say(&line);
            }
        }
        say(&format!("Channel 00/0 : {rank}[{device}] -> {next}[{there}]{end} via {via}"));
    }
    out
}

/// Whether the switch reduces: four GPUs are served by a ring, and that of an
/// A100 board reduces nothing.
fn reduces(node: &Node, wires: Wires, ranks: usize) -> bool {
    wires == Wires::NvLink && 4 < ranks && node.hardware.platform != "hgx-a100"
}

/// Which algorithm is taken for every size. Sends and receives take none.
fn tuning(run: &CollectiveRun, wires: Wires, reduces: bool) -> Vec<String> {
    let name = match run.collective {
        Collective::AllReduce => "AllReduce",
        Collective::AllGather => "AllGather",
        Collective::ReduceScatter => "ReduceScatter",
        Collective::Broadcast => "Broadcast",
        Collective::Reduce => "Reduce",
        Collective::AllToAll | Collective::SendRecv => return Vec::new(),
    };
    let switch = reduces && !matches!(run.collective, Collective::Broadcast | Collective::Reduce);
    let algorithm = if switch { "NVLS" } else { "RING" };
    let channels = if wires == Wires::NvLink { 15 } else { 7 };
    let line = |bytes| {
        format!(
            "{name}: {bytes} Bytes -> Algo {algorithm} proto SIMPLE channel{{Lo..Hi}}={{0..{channels}}}"
        )
    };
    run.rows.iter().map(|row| line(row.bytes)).collect()
}
