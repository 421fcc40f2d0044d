//! Jobs that wait and need a block as it is: a topology that no longer has room
//! for them holds them for good.

use std::collections::BTreeSet;

use super::{TopologyBlocks, TopologyProposal};
use model::hostlist;
use model::id::NodeName;
use readers::claims::slurm::pending_jobs::PendingJob;

/// The jobs that fit into the blocks of today and not into those proposed: by
/// the nodes they want in one piece, or by the nodes they name. A job above the
/// base size takes several blocks and needs none as it is.
pub fn needing(jobs: &[PendingJob], proposal: &TopologyProposal) -> Vec<PendingJob> {
    let (before, after) = (&proposal.blocks_before, &proposal.blocks);
    let largest =
        |blocks: &TopologyBlocks| blocks.values().map(BTreeSet::len).max().unwrap_or(0) as u64;
    let (had, has) = (largest(before), largest(after));
    let base = proposal.base.map_or(u64::MAX, |base| base as u64);
    let needs = |job: &&PendingJob| {
        let piece = job.segment.or(job.nodes).unwrap_or(0);
        let is_too_large = has < piece && piece <= had;
        let is_torn = !fits(&job.required, after) && fits(&job.required, before);
        piece <= base && (is_too_large || is_torn)
    };
    jobs.iter().filter(needs).cloned().collect()
}

/// Whether one block has all of these nodes. A list that cannot be read, or
/// names none, says nothing.
fn fits(required: &str, blocks: &TopologyBlocks) -> bool {
    let names = hostlist::expand(required).unwrap_or_default();
    let names: Vec<NodeName> = names.into_iter().map(NodeName::from).collect();
    names.is_empty() || blocks.values().any(|nodes| names.iter().all(|name| nodes.contains(name)))
}

/// The jobs that no topology of today lets run: they stay held even when it
/// does again.
pub fn held(jobs: &[PendingJob]) -> Vec<PendingJob> {
    let is_held = |job: &&PendingJob| job.reason == "BadConstraints" && job.priority == Some(0);
    jobs.iter().filter(is_held).cloned().collect()
}

/// The command that gives them back; empty where there are none.
pub fn release(jobs: &[PendingJob]) -> Vec<String> {
    if jobs.is_empty() {
        return Vec::new();
    }
    let ids: Vec<String> = jobs.iter().map(|job| job.id.to_string()).collect();
    vec!["scontrol".to_owned(), "release".to_owned(), ids.join(",")]
}
