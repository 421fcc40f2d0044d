//! The rank order of a job over a measured allocation: domain after domain, so that adjacent ranks
//! share NVLink, with warnings if a parallel layout does not fit the domains.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;

use super::allocation::JobAllocation;
use super::{
    ExportFile, ExportOptions, ExportOutput, ExportRefusal, ExportTarget, allocation, refuse,
};
use crate::place::map::{MapOrigin, VerifiedMap};
use model::id::NodeName;
use model::text::clean;

pub(super) const TARGET: ExportTarget = ExportTarget {
    name: "ranks",
    about: "the order of a job's ranks: JSON, a Slurm or an Open MPI host file",
    takes: &["form", "nodes", "domain", "tp", "pp", "gpus-per-node"],
    write,
};

/// The format of the JSON form.
pub const RANKS_FORMAT: &str = "fabricgate.ranks/1";

/// The rank order of a job (`fabricgate.ranks/1`).
#[derive(Debug, Serialize, JsonSchema)]
pub struct RanksDocument<'a> {
    /// `fabricgate.ranks/1`.
    format: &'static str,
    /// The tool version and run behind it, and warnings before use.
    note: Vec<String>,
    /// The run behind it.
    run: &'a MapOrigin,
    /// Total number of ranks.
    world_size: u32,
    /// Number of ranks on each node.
    gpus_per_node: u32,
    /// Requested tensor-parallel size.
    #[serde(skip_serializing_if = "Option::is_none")]
    tp: Option<u32>,
    /// Requested pipeline-parallel size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pp: Option<u32>,
    /// Mismatches between the layout and the measured domains.
    warnings: &'a [String],
    /// The torchrun arguments for each node.
    torchrun: TorchrunArgs<'a>,
    /// The domains, in rank order.
    domains: Vec<RankDomain<'a>>,
    /// Every rank, in order.
    ranks: Vec<RankPlacement<'a>>,
}

/// Arguments for torchrun.
#[derive(Debug, Serialize, JsonSchema)]
struct TorchrunArgs<'a> {
    /// `--nnodes`.
    nnodes: usize,
    /// `--nproc-per-node`.
    nproc_per_node: u32,
    /// The node of rank 0, used as rendezvous.
    master_addr: &'a NodeName,
    /// By index: `--node-rank`.
    node_ranks: Vec<&'a NodeName>,
}

/// The ranks of one domain.
#[derive(Debug, Serialize, JsonSchema)]
struct RankDomain<'a> {
    /// Name of the domain.
    domain: &'a str,
    /// Whether its nodes were measured to reach each other at NVLink speed.
    measured: bool,
    /// Its first rank.
    first_rank: u32,
    /// Number of its ranks.
    ranks: u32,
}

/// One rank and its GPU.
#[derive(Debug, Serialize, JsonSchema)]
struct RankPlacement<'a> {
    /// Global rank.
    rank: u32,
    /// Its node.
    node: &'a NodeName,
    /// Rank on the node.
    local_rank: u32,
    /// The GPU by its index on the node.
    gpu: u32,
    /// UUID of the GPU, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<&'a str>,
    /// Its NVLink domain.
    domain: &'a str,
}

fn write(map: &VerifiedMap, options: &ExportOptions) -> Result<ExportOutput, ExportRefusal> {
    let form = options.form.as_deref().unwrap_or("json");
    let layout = |name: &str, value: Option<u32>| match value {
        Some(0) => refuse(format!("--{name} 0: expected 1 or more")),
        other => Ok(other),
    };
    let (tp, pp) = (layout("tp", options.tp)?, layout("pp", options.pp)?);
    let allocation = JobAllocation::from_options(map, options)?;
    let mut remarks = allocation.remarks.clone();
    let mut ranks: Vec<RankPlacement<'_>> = Vec::new();
    let mut pieces: Vec<RankDomain<'_>> = Vec::new();
    let mut doubtful: Vec<String> = Vec::new();
    for piece in &allocation.pieces {
        let first_rank = to_u32(ranks.len());
        for (node, member) in &piece.nodes {
            let (gpus, why) = allocation::choose_gpus(map, node, member, allocation.gpus_per_node);
            doubtful.extend(why);
            for (local_rank, gpu) in (0..).zip(gpus) {
                let uuid = member.gpus.get(&gpu).and_then(|gpu| gpu.uuid.as_deref());
                let rank = to_u32(ranks.len());
                ranks.push(RankPlacement {
                    rank,
                    node,
                    local_rank,
                    gpu,
                    uuid,
                    domain: &piece.domain,
                });
            }
        }
        pieces.push(RankDomain {
            domain: &piece.domain,
            measured: piece.is_measured,
            first_rank,
            ranks: to_u32(ranks.len()) - first_rank,
        });
    }
    let mut warnings =
        layout_warnings(&pieces, to_u32(ranks.len()), allocation.gpus_per_node, tp, pp);
    warnings.extend(doubtful);
    remarks.extend(warnings.iter().cloned());
    let nodes: Vec<&NodeName> = allocation.nodes().map(|(_, node, _)| node).collect();
    if let Some(strange) = nodes.iter().find(|node| !node.is_one_node()) {
        return refuse(format!("{} is not the name of one node", clean(strange.as_str())));
    }
    let file = match form {
        "json" => {
            let document = RanksDocument {
                format: RANKS_FORMAT,
                note: map.header_lines(),
                run: &map.run,
                world_size: to_u32(ranks.len()),
                gpus_per_node: allocation.gpus_per_node,
                tp,
                pp,
                warnings: &warnings,
                torchrun: TorchrunArgs {
                    nnodes: nodes.len(),
                    nproc_per_node: allocation.gpus_per_node,
                    master_addr: nodes
                        .first()
                        .copied()
                        .ok_or_else(|| ExportRefusal("no node".to_owned()))?,
                    node_ranks: nodes,
                },
                domains: pieces,
                ranks,
            };
            let mut bytes =
                serde_json::to_vec_pretty(&document).expect("values of the map are plain data");
            bytes.push(b'\n');
            ExportFile { name: "ranks.json".to_owned(), bytes }
        }
        // SLURM_HOSTFILE has no comment syntax: every line is a host.
        "slurm" => {
            let lines = ranks.iter().map(|rank| format!("{}\n", rank.node));
            ExportFile::text("slurm.hosts", lines.collect::<String>())
        }
        "openmpi" => {
            let mut text = map.comment_lines("#");
            for warning in &warnings {
                let _ = writeln!(text, "# {}", clean(warning));
            }
            for node in nodes {
                let _ = writeln!(text, "{node} slots={}", allocation.gpus_per_node);
            }
            ExportFile::text("openmpi.hosts", text)
        }
        other => {
            return refuse(format!("--form {}: expected json, slurm or openmpi", clean(other)));
        }
    };
    if form == "slurm" {
        remarks.extend(map.header_lines());
    }
    Ok(ExportOutput { files: vec![file], remarks })
}

fn to_u32(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Mismatches between a layout and the measured pieces. Tensor-parallel ranks are consecutive, as
/// in Megatron-LM's order (tp first).
fn layout_warnings(
    pieces: &[RankDomain<'_>],
    world: u32,
    per_node: u32,
    tp: Option<u32>,
    pp: Option<u32>,
) -> Vec<String> {
    let mut warnings = Vec::new();
    for piece in pieces.iter().filter(|piece| !piece.measured) {
        warnings.push(format!(
            "{} was not measured against other nodes: its NVLink to them is unknown",
            clean(piece.domain)
        ));
    }
    let size = tp.unwrap_or(1).saturating_mul(pp.unwrap_or(1));
    if let Some(tp) = tp.filter(|tp| 1 < *tp) {
        for piece in pieces.iter().skip(1).filter(|piece| !piece.first_rank.is_multiple_of(tp)) {
            let first = piece.first_rank / tp * tp;
            warnings.push(format!(
                "the tensor-parallel group of ranks {first} to {} reaches from another domain into \
                 {}: TP {tp} does not run inside one NVLink domain",
                first + tp - 1,
                clean(piece.domain)
            ));
        }
        if !world.is_multiple_of(tp) {
            warnings.push(format!("TP {tp} does not divide {world} ranks"));
        }
    }
    if 1 < size {
        for piece in pieces.iter().filter(|piece| !piece.ranks.is_multiple_of(size)) {
            let whole = piece.ranks / size * size;
            let nodes = whole / per_node.max(1);
            let fit = if 0 < whole && whole.is_multiple_of(per_node.max(1)) {
                format!("; {nodes} of its nodes hold {} whole replicas", whole / size)
            } else {
                String::new()
            };
            warnings.push(format!(
                "TP x PP = {size} does not divide the {} GPUs in {}{fit}",
                piece.ranks,
                clean(piece.domain)
            ));
        }
    }
    warnings
}
