//! Scores: found faults, and healthy parts that were blamed.

use std::collections::BTreeSet;

use super::world::{StudySetting, StudyWorld};
use schemars::JsonSchema;
use serde::Serialize;

use model::id::NodeName;
use model::verdict::{Finding, LocusKind, Outcome, Verdicts};
use sim::fabric::SimFabric;

/// Totals of many sweeps, as integers, so that their order makes no difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StudyTally {
    /// Number of sweeps.
    pub sweeps: u64,
    /// Number of faulty parts.
    pub faults: u64,
    /// Faulty parts that were blamed.
    pub found: u64,
    /// Faulty parts that were only reported as one end of a pair.
    pub in_pair: u64,
    /// Faulty parts that were not reported, where the verdict states that so small a loss is not
    /// detectable.
    pub beyond: u64,
    /// Faulty parts that were not reported, although the verdict states that their loss is
    /// detectable.
    pub missed: u64,
    /// Healthy parts (or pairs of them) that were blamed.
    pub false_blames: u64,
    /// Sweeps in which a healthy part was blamed.
    pub false_sweeps: u64,
    /// False blames before the second measurement.
    pub false_suspicions: u64,
    /// False blames that the second measurement confirmed.
    pub false_confirmed: u64,
    /// Passes of rounds.
    pub rounds: u64,
    /// Readings of pairs of nodes.
    pub readings: u64,
}

impl StudyTally {
    /// Adds the totals of other sweeps.
    pub fn add(&mut self, other: &Self) {
        self.sweeps += other.sweeps;
        self.faults += other.faults;
        self.found += other.found;
        self.in_pair += other.in_pair;
        self.beyond += other.beyond;
        self.missed += other.missed;
        self.false_blames += other.false_blames;
        self.false_sweeps += other.false_sweeps;
        self.false_suspicions += other.false_suspicions;
        self.false_confirmed += other.false_confirmed;
        self.rounds += other.rounds;
        self.readings += other.readings;
    }

    /// The score of one sweep in which a simple rule blamed these parts.
    pub(super) fn from_accused(blamed: &BTreeSet<usize>, faulty: &BTreeSet<usize>) -> Self {
        let found = blamed.intersection(faulty).count() as u64;
        let healthy = blamed.difference(faulty).count() as u64;
        Self {
            sweeps: 1,
            faults: faulty.len() as u64,
            found,
            missed: faulty.len() as u64 - found,
            false_blames: healthy,
            false_sweeps: u64::from(0 < healthy),
            ..Self::default()
        }
    }

    /// The score of one sweep from its first and its final verdicts.
    pub(super) fn from_verdicts(
        setting: &StudySetting,
        fabric: &SimFabric,
        [first, last]: [&Verdicts; 2],
        faulty: &BTreeSet<usize>,
    ) -> Self {
        let world = setting.world;
        let blamed = StudyBlame::from_findings(world, fabric, last.findings.iter(), faulty);
        let before = StudyBlame::from_findings(world, fabric, first.findings.iter(), faulty);
        let confirmed = last.findings.iter().filter(|finding| finding.confirmed);
        let confirmed = StudyBlame::from_findings(world, fabric, confirmed, faulty);
        let mut tally = Self {
            sweeps: 1,
            faults: faulty.len() as u64,
            found: blamed.found.len() as u64,
            false_blames: blamed.healthy_parts,
            false_sweeps: u64::from(0 < blamed.healthy_parts),
            false_suspicions: before.healthy_parts,
            false_confirmed: confirmed.healthy_parts,
            ..Self::default()
        };
        for unit in faulty.difference(&blamed.found) {
            let node = NodeName::from(fabric.nodes[node_of(world, fabric, *unit)].name.as_str());
            let verdict = last.nodes.iter().find(|n| n.node == node);
            let detectable = verdict.and_then(|n| n.detectable);
            if blamed.in_pair.contains(unit) {
                tally.in_pair += 1;
            } else if detectable.is_some_and(|least| least <= setting.loss) {
                tally.missed += 1;
            } else {
                tally.beyond += 1;
            }
        }
        tally
    }
}

fn node_of(world: StudyWorld, fabric: &SimFabric, unit: usize) -> usize {
    match world {
        StudyWorld::Domain => fabric.gpus[unit].node,
        StudyWorld::Fleet => unit,
    }
}

/// The blamed parts, compared with the truth.
#[derive(Debug, Default)]
struct StudyBlame {
    found: BTreeSet<usize>,
    in_pair: BTreeSet<usize>,
    healthy_parts: u64,
}

impl StudyBlame {
    fn from_findings<'f>(
        world: StudyWorld,
        fabric: &SimFabric,
        findings: impl Iterator<Item = &'f Finding>,
        faulty: &BTreeSet<usize>,
    ) -> Self {
        let mut blamed = Self::default();
        let mut healthy: BTreeSet<String> = BTreeSet::new();
        for finding in findings.filter(|finding| Outcome::Unknown < finding.outcome) {
            let locus = &finding.locus;
            let own = parts_of_locus(world, fabric, locus.node.as_ref(), locus.gpu);
            let mut faulty_parts: BTreeSet<usize> = own.intersection(faulty).copied().collect();
            if locus.kind == LocusKind::Pair {
                let peer = locus.peer.as_deref().unwrap_or_default();
                let gpu = peer.rsplit_once(':').and_then(|(n, g)| Some((n, g.parse().ok()?)));
                let (node, gpu) = gpu.map_or((peer, None), |(node, gpu)| (node, Some(gpu)));
                let peer = parts_of_locus(world, fabric, Some(&NodeName::from(node)), gpu);
                faulty_parts.extend(peer.intersection(faulty));
                blamed.in_pair.extend(&faulty_parts);
            } else {
                blamed.found.extend(&faulty_parts);
            }
            if faulty_parts.is_empty() {
                // Two findings about one part count as one blame.
                healthy.insert(locus.to_string().replace(" tx", "").replace(" rx", ""));
            }
        }
        blamed.healthy_parts = healthy.len() as u64;
        blamed
    }
}

/// The parts at a finding's locus: a GPU, all GPUs of a node, a node; empty for anything larger.
fn parts_of_locus(
    world: StudyWorld,
    fabric: &SimFabric,
    node: Option<&NodeName>,
    gpu: Option<u32>,
) -> BTreeSet<usize> {
    let Some(node) = node.and_then(|node| fabric.node(node.as_str()).ok()) else {
        return BTreeSet::new();
    };
    match world {
        StudyWorld::Fleet => BTreeSet::from([node]),
        StudyWorld::Domain => {
            let own = fabric.nodes[node].gpus.iter().copied();
            own.filter(|at| gpu.is_none_or(|gpu| fabric.gpus[*at].slot == gpu)).collect()
        }
    }
}
