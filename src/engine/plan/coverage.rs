//! The pairs of GPUs that the tests of a plan read.
//!
//! A domain with some of its pairs read is sampled on purpose, and the other pairs are not a gap. A
//! domain with no reading across it is not sampled: the missing measurement between its nodes stays
//! a gap.

use std::collections::{BTreeMap, BTreeSet};

use super::{PlanRequest, PlanRound, PlanStep};
use model::claims::ClaimedDomain;
use model::id::{DomainName, NodeName};
use model::probe::{PairCoverage, Probe, ProbeGranularity, ProbeScope};

/// Two nodes, ordered by name.
pub(super) type NodePair<'a> = (&'a NodeName, &'a NodeName);

/// The two nodes of a step, ordered by name, if it has two.
pub(super) fn node_pair(step: &PlanStep) -> Option<NodePair<'_>> {
    match step.nodes.as_slice() {
        [a, b] if b < a => Some((b, a)),
        [a, b] => Some((a, b)),
        _ => None,
    }
}

/// Whether the plan reads only a part of the pairs of a domain that NVLink joins.
pub(super) fn is_sampled(request: &PlanRequest<'_>, rounds: &[PlanRound]) -> bool {
    let spans = |domain: &&ClaimedDomain| {
        1 < domain.nodes.len() && request.nvlink_across.contains(&domain.name)
    };
    let mut across = request.claims.domains.iter().filter(spans).peekable();
    if across.peek().is_none() {
        return false;
    }
    let mut steps: BTreeMap<&DomainName, BTreeMap<&str, Vec<&PlanStep>>> = BTreeMap::new();
    for step in rounds.iter().flat_map(|round| &round.steps) {
        if let Some(domain) = &step.domain {
            steps.entry(domain).or_default().entry(&step.probe).or_default().push(step);
        }
    }
    across.any(|domain| {
        let Some(here) = steps.get(&domain.name) else { return false };
        let of = |probe: &Probe| here.get(probe.name.as_str());
        let reads = || request.probes.iter().filter(|p| of(p).is_some());
        let is_read = reads().any(|probe| {
            let is_between = matches!(probe.scope, ProbeScope::Pair | ProbeScope::Domain);
            is_between
                && (probe.covers != PairCoverage::None || probe.grain == ProbeGranularity::Gpu)
        });
        let inside = domain.gpus_per_node == Some(1)
            || reads().any(|p| p.scope == ProbeScope::Node && p.covers == PairCoverage::All);
        is_read
            && !reads()
                .any(|probe| reads_all(probe, domain, of(probe).map_or(&[], Vec::as_slice), inside))
    })
}

/// Whether one execution of a probe reads the path between two GPUs, by their indices on its first
/// and second node, or on the single node it runs on.
pub(super) fn reads_pair(
    probe: &Probe,
    lane: Option<u32>,
    gpus_per_node: Option<u32>,
    (near, far): (u32, u32),
) -> bool {
    match (probe.scope, probe.grain, probe.covers) {
        (ProbeScope::Rail, ..) => false,
        (ProbeScope::Pair, ProbeGranularity::Gpu, _) => {
            let gpus = gpus_per_node.filter(|gpus| 0 < *gpus);
            lane.zip(gpus).is_some_and(|(lane, gpus)| (near + lane) % gpus == far % gpus)
        }
        (_, _, PairCoverage::All) => true,
        (_, _, PairCoverage::Lane) => near == far,
        (_, _, PairCoverage::None) => false,
    }
}

/// Whether the steps of this probe read every pair of GPUs of a domain, given whether other probes
/// read the pairs `inside` its nodes.
fn reads_all(probe: &Probe, domain: &ClaimedDomain, steps: &[&PlanStep], inside: bool) -> bool {
    let is_single = domain.gpus_per_node == Some(1);
    match (probe.scope, probe.grain, probe.covers) {
        (ProbeScope::Domain, _, PairCoverage::All) => true,
        (ProbeScope::Pair, ProbeGranularity::Node, PairCoverage::All) => {
            has_all_pairs(domain, steps, None)
        }
        // With one GPU per node there is one lane.
        (ProbeScope::Pair, ProbeGranularity::Node, PairCoverage::Lane) if is_single => {
            has_all_pairs(domain, steps, None)
        }
        (ProbeScope::Pair, ProbeGranularity::Gpu, _) => {
            let Some(gpus) = domain.gpus_per_node else { return false };
            inside && (0..gpus).all(|lane| has_all_pairs(domain, steps, Some(lane)))
        }
        _ => false,
    }
}

/// Whether every two nodes of a domain have a step in this lane.
fn has_all_pairs(domain: &ClaimedDomain, steps: &[&PlanStep], lane: Option<u32>) -> bool {
    let met: BTreeSet<NodePair<'_>> =
        steps.iter().filter(|step| step.lane == lane).filter_map(|step| node_pair(step)).collect();
    let n = domain.nodes.len();
    met.len() == n * (n - 1) / 2
}
