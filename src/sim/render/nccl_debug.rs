//! NCCL's log of its paths with `NCCL_DEBUG=INFO`.

use super::cluster_key;
use crate::collective::{SimCollective, SimCollectiveRun, SimCollectiveTransport};
use crate::fabric::GpuIndex;
use crate::invocation::ToolInvocation;

/// The variables that NCCL logs, in its order.
const LOGGED_VARIABLES: [&str; 6] = [
    "NCCL_DEBUG_SUBSYS",
    "NCCL_IB_DISABLE",
    "NCCL_MNNVL_ENABLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_ALGO",
    "NCCL_PROTO",
];

/// The log of all ranks, concatenated; empty unless the debug variable is set. The text is that of
/// NCCL 2.26 (`src/init.cc`, `src/mnnvl.cc`, `src/transport/*.cc`, `src/enqueue.cc`).
pub fn render_records(bench: &ToolInvocation<'_>, run: &SimCollectiveRun) -> String {
    let is_logged =
        bench.nccl_variable("NCCL_DEBUG").is_some_and(|level| level.eq_ignore_ascii_case("INFO"));
    if !is_logged || run.gpus.is_empty() {
        return String::new();
    }
    let (fabric, ranks) = (bench.fabric, run.gpus.len());
    let wires = bench.transport(&run.gpus);
    let nodes = bench.node_names(&run.gpus).len();
    let as_one = 1 < nodes && wires == SimCollectiveTransport::NvLink;
    let mut out = String::new();
    let processes = run.processes(fabric);
    for (rank, (gpu, (process, place))) in run.gpus.iter().zip(processes).enumerate() {
        let (node, device) = (fabric.node_of(*gpu), fabric.cuda_index(*gpu));
        // A separate thread initializes every GPU of a process.
        let thread = process + 90 + place;
        let mut emit = |text: &str| {
            let name = &node.name;
            out.push_str(&format!("{name}:{process}:{thread} [{device}] NCCL INFO {text}\n"));
        };
        if rank == 0 {
            for name in LOGGED_VARIABLES {
                if let Some(value) = bench.nccl_variable(name) {
                    emit(&format!("{name} set by environment to {value}."));
                }
            }
        }
        emit(match wires {
            SimCollectiveTransport::Socket => "Using network Socket",
            _ => "Using network IB",
        });
        if as_one {
            // The ClusterUUID of nvidia-smi as two native integers, lowest byte first, followed by
            // the CliqueId. Ranks with the same two values are in one clique.
            let key = cluster_key(bench, node);
            let [high, low] = [key, key.with_part(1)].map(|half| half.value().swap_bytes());
            let clique = |gpu: &GpuIndex| fabric.node_of(*gpu).clique == node.clique;
            let size = run.gpus.iter().filter(|gpu| clique(gpu)).count();
            let before = run.gpus.iter().take(rank).filter(|gpu| clique(gpu)).count();
            emit(&format!(
                "MNNVL busId 0x{:x} fabric UUID {high:x}.{low:x} cliqueId 0x7ffe state 3 healthMask 0xaa",
                0x1000 * (device + 1)
            ));
            emit(&format!("MNNVL 1 cliqueId 7ffe cliqueSize {size} cliqueRank {before}"));
        }
        if bench.can_reduce(&run.gpus) {
            emit(&format!(
                "NVLS multicast support is available on dev {device} (NVLS_NCHANNELS 16)"
            ));
        }
        // NCCL treats nodes joined by NVLink as one.
        let local = if as_one { ranks } else { ranks.div_ceil(nodes) };
        emit(&format!(
            "comm 0x{:x} rank {rank} nRanks {ranks} nNodes {} localRanks {local} localRank {} MNNVL {}",
            0x5570_0000 + 0x1000 * rank,
            ranks.div_ceil(local),
            rank % local,
            u8::from(as_one)
        ));
        let next = (rank + 1) % ranks;
        if next == rank {
            continue;
        }
        let (peer, there) = (run.gpus[next], fabric.cuda_index(run.gpus[next]));
        let leaves = fabric.gpus[peer].node != fabric.gpus[*gpu].node;
        let rail =
            fabric.gpus[*gpu].slot as usize % fabric.network.rail_count(fabric.gpus[*gpu].node);
        let (end, via) = match (leaves, wires) {
            (true, SimCollectiveTransport::NvLink) => ("", "P2P/MNNVL".to_owned()),
            (true, SimCollectiveTransport::Socket) => (" [send]", format!("NET/Socket/{rail}")),
            (true, _) => (" [send]", format!("NET/IB/{rail}/GDRDMA")),
            (false, SimCollectiveTransport::Pcie) => ("", "SHM/direct/direct".to_owned()),
            (false, _) => ("", "P2P/CUMEM".to_owned()),
        };
        if rank == 0
            && bench.nccl_variable("NCCL_DEBUG_SUBSYS").is_some_and(|s| s.contains("TUNING"))
        {
            for line in tuning_lines(run, wires, bench.uses_switch_reduction(&run.gpus)) {
                emit(&line);
            }
        }
        emit(&format!("Channel 00/0 : {rank}[{device}] -> {next}[{there}]{end} via {via}"));
    }
    out
}

/// The algorithm for every size. Send and receive use none.
fn tuning_lines(
    run: &SimCollectiveRun,
    wires: SimCollectiveTransport,
    reduces: bool,
) -> Vec<String> {
    let name = match run.collective {
        SimCollective::AllReduce => "AllReduce",
        SimCollective::AllGather => "AllGather",
        SimCollective::ReduceScatter => "ReduceScatter",
        SimCollective::Broadcast => "Broadcast",
        SimCollective::Reduce => "Reduce",
        SimCollective::AllToAll | SimCollective::SendRecv => return Vec::new(),
    };
    let switch =
        reduces && !matches!(run.collective, SimCollective::Broadcast | SimCollective::Reduce);
    let algorithm = if switch { "NVLS" } else { "RING" };
    let channels = if wires == SimCollectiveTransport::NvLink { 15 } else { 7 };
    let line = |bytes| {
        format!(
            "{name}: {bytes} Bytes -> Algo {algorithm} proto SIMPLE channel{{Lo..Hi}}={{0..{channels}}}"
        )
    };
    run.rows.iter().map(|row| line(row.bytes)).collect()
}
