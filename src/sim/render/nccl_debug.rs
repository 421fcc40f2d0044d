//! What NCCL says about its paths where `NCCL_DEBUG=INFO` is set.

use super::hyphenated;
use crate::sim::bench::Bench;
use crate::sim::collective::CollectiveRun;
use crate::sim::collective::Wires;
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
        // Four GPUs are served by a ring; the switch of an A100 board reduces nothing.
        if wires == Wires::NvLink && 4 < ranks && node.hardware.platform != "hgx-a100" {
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
        say(&format!("Channel 00/0 : {rank}[{device}] -> {next}[{there}]{end} via {via}"));
    }
    out
}
