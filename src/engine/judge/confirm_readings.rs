//! The levels of a judgement, and the readings of a second measurement relative to them.
//!
//! The levels here never include a suspect: they come from the first measurement, computed without
//! blamed parts.

use std::collections::{BTreeMap, BTreeSet};

use super::fabric::FabricJudgement;
use super::fabric_group::{FabricGroup, PairReadingGroup};
use super::rail_readings::{RailGroup, RailReadings};
use super::{JudgeInput, domain_recordings, fabric_group, peel, rail_readings};
use model::id::{DomainName, NodeName};
use model::verdict::{Direction, Finding, Locus, LocusKind};

/// With fewer partners, a slow end and a slow path look the same.
const FEWEST_PARTNERS: usize = 2;

/// The levels that a case's readings were compared with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReferenceLevels {
    fabric: BTreeMap<(DomainName, Option<NodeName>, PairReadingGroup), f64>,
    network: BTreeMap<RailLevelKey, f64>,
}

/// Identifies comparable readings of a rail: the rail, the test, its settings, whether the ends sit
/// under different leaves, and the NIC class.
type RailLevelKey = (Option<String>, String, String, bool, Option<String>);

fn rail_level_key(rail: &RailReadings<'_>, group: &RailGroup<'_>) -> RailLevelKey {
    let (test, nic) = (group.testcase.to_string(), group.nic.map(|nic| nic.name.clone()));
    (rail.name.clone(), test, group.settings.clone(), group.crosses_leaves, nic)
}

impl ReferenceLevels {
    /// Adds the levels of an island.
    pub(super) fn add_fabric_group(&mut self, island: &FabricGroup<'_>, fabric: &FabricJudgement) {
        for levels in [&fabric.peeled.levels, &fabric.both_ways.levels] {
            let known =
                island.reading_groups.iter().zip(levels).filter(|(_, level)| level.is_finite());
            for (group, level) in known {
                let key = (island.domain.clone(), island.node.clone(), group.clone());
                self.fabric.entry(key).or_insert(*level);
            }
        }
    }

    /// Adds the levels of a rail, by group.
    pub(super) fn add_rail(&mut self, rail: &RailReadings<'_>, levels: &[f64]) {
        for (group, level) in rail.groups.iter().zip(levels).filter(|(_, l)| l.is_finite()) {
            self.network.insert(rail_level_key(rail, group), *level);
        }
    }

    /// Whether a test reads pairs of nodes (true), or pairs inside one node (false).
    fn find_path_kinds(
        &self,
        domain: Option<&DomainName>,
        testcases: &BTreeSet<&str>,
    ) -> BTreeSet<bool> {
        let here = self.fabric.keys().filter(|(name, ..)| Some(name) == domain);
        let read = here.filter(|(_, _, group)| testcases.contains(&*group.testcase));
        read.map(|(_, _, group)| group.between_nodes).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PathEnd {
    node: NodeName,
    gpu: Option<u32>,
}

impl PathEnd {
    /// Whether it is this node, or this GPU of it.
    fn matches(&self, node: &NodeName, gpu: Option<u32>) -> bool {
        self.node == *node && (gpu.is_none() || self.gpu == gpu)
    }
}

#[derive(Clone, Debug)]
struct RelativeReading {
    ends: [PathEnd; 2],
    testcase: String,
    network: bool,
    rail: Option<String>,
    /// The value sums both directions.
    both_ways: bool,
    value: f64,
    level: f64,
    file: String,
}

impl RelativeReading {
    fn share(&self) -> f64 {
        self.value / self.level
    }
}

/// The result for the paths of a finding.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ConfirmResult {
    NotRead,
    /// As low as before.
    Low(LowestReading),
    /// At the level of the others.
    Healthy,
    /// Less low than before, or read with too few partners.
    Inconclusive(LowestReading),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct LowestReading {
    pub(super) value: f64,
    pub(super) level: f64,
    pub(super) testcase: String,
    pub(super) file: String,
}

#[derive(Debug)]
pub(super) struct ConfirmReadings<'l> {
    levels: &'l ReferenceLevels,
    readings: Vec<RelativeReading>,
    by_node: BTreeMap<NodeName, Vec<usize>>,
    /// Suspect nodes and GPUs, over the network or not, by rail.
    suspects: BTreeSet<(bool, Option<String>, NodeName, Option<u32>)>,
}

impl<'l> ConfirmReadings<'l> {
    /// The readings of a case for pairs that `levels` covers, given these suspects.
    pub(super) fn new<'f>(
        case: &JudgeInput<'_>,
        levels: &'l ReferenceLevels,
        suspects: impl Iterator<Item = (bool, &'f Finding)>,
    ) -> Self {
        let mut readings = Vec::new();
        let (domains, claims) = domain_recordings::group_by_domain(case);
        for island in domains.iter().flat_map(fabric_group::fabric_groups) {
            add_fabric_readings(&island, levels, &mut readings);
        }
        for rail in &rail_readings::collect_rails(&domains, &claims, case.recordings) {
            add_network_readings(rail, levels, &mut readings);
        }
        let mut by_node: BTreeMap<NodeName, Vec<usize>> = BTreeMap::new();
        for (at, read) in readings.iter().enumerate() {
            let nodes: BTreeSet<&NodeName> = read.ends.iter().map(|end| &end.node).collect();
            nodes.into_iter().for_each(|node| by_node.entry(node.clone()).or_default().push(at));
        }
        let bad = suspects.flat_map(|(network, found)| {
            let own = found.locus.node.clone().map(|node| PathEnd { node, gpu: found.locus.gpu });
            let ends = own.into_iter().chain(far_end(&found.locus));
            ends.map(move |end| (network, found.locus.rail.clone(), end.node, end.gpu))
        });
        Self { levels, readings, by_node, suspects: bad.collect() }
    }

    /// The result for the paths of a finding from the network, or from inside a domain.
    pub(super) fn assess(&self, finding: &Finding, network: bool) -> ConfirmResult {
        let (Some(node), Some(ratio)) = (&finding.locus.node, finding.deciding_share()) else {
            return ConfirmResult::NotRead;
        };
        let reads: Vec<&RelativeReading> =
            self.by_node.get(node).into_iter().flatten().map(|at| &self.readings[*at]).collect();
        let of_kind = |read: &&&RelativeReading| {
            let one_way = finding.locus.direction.is_some();
            read.network == network
                && (!network || read.rail == finding.locus.rail)
                && !(one_way && read.both_ways)
        };
        let reads: Vec<&RelativeReading> = reads.iter().filter(of_kind).copied().collect();
        match finding.locus.kind {
            LocusKind::Pair => assess_pair(finding, ratio, &reads),
            _ => self.assess_end(finding, ratio, &reads, network),
        }
    }

    /// The same for one end, over its unsuspected partners.
    fn assess_end(
        &self,
        finding: &Finding,
        ratio: f64,
        reads: &[&RelativeReading],
        network: bool,
    ) -> ConfirmResult {
        let locus = &finding.locus;
        let Some(node) = &locus.node else { return ConfirmResult::NotRead };
        let is_bad = |other: &PathEnd| {
            let of = |gpu| (network, locus.rail.clone(), other.node.clone(), gpu);
            let gpu = other.gpu.filter(|_| other.node != *node || locus.gpu.is_some());
            (other.node != *node && self.suspects.contains(&of(None)))
                || gpu.is_some_and(|gpu| self.suspects.contains(&of(Some(gpu))))
        };
        // Each partner's readings by direction and test.
        let mut met: BTreeMap<(bool, &str, bool), BTreeMap<&PathEnd, Vec<&RelativeReading>>> =
            BTreeMap::new();
        for &read in reads {
            let [src, dst] = &read.ends;
            for (sends, mine, other) in [(true, src, dst), (false, dst, src)] {
                let wanted = match locus.direction {
                    Some(Direction::Tx) => sends,
                    Some(Direction::Rx) => !sends,
                    _ => true,
                };
                if wanted && mine.matches(node, locus.gpu) && !is_bad(other) {
                    let between = src.node != dst.node;
                    let partners = met.entry((sends, &read.testcase, between)).or_default();
                    partners.entry(other).or_default().push(read);
                }
            }
        }
        // A part that was read between nodes needs a second reading between nodes.
        let tests = finding.evidence.iter().filter_map(|e| e.testcase.as_deref()).collect();
        let sides = self.levels.find_path_kinds(locus.domain.as_ref(), &tests);
        let is_same_side = |between: bool| network || sides.is_empty() || sides.contains(&between);
        met.retain(|(_, _, between), _| is_same_side(*between));
        let is_whole =
            network || !sides.contains(&true) || met.keys().any(|(.., between)| *between);
        let shown = met.into_iter().filter_map(|((.., between), partners)| {
            // All GPUs of one other node count as one partner.
            let nodes: BTreeSet<&NodeName> = partners.keys().map(|end| &end.node).collect();
            let count = if between { nodes.len() } else { partners.len() };
            let mut own: BTreeMap<(&NodeName, Option<u32>), Vec<&RelativeReading>> =
                BTreeMap::new();
            for (end, reads) in partners {
                let partner = (&end.node, end.gpu.filter(|_| !between));
                own.entry(partner).or_default().extend(median_reading(reads));
            }
            let mut middles: Vec<&RelativeReading> =
                own.into_values().filter_map(median_reading).collect();
            middles.sort_by(|a, b| a.share().total_cmp(&b.share()));
            // With two partners, one good reading clears, as in peeling.
            let at = if middles.len() == 2 { 1 } else { middles.len().saturating_sub(1) / 2 };
            Some((count, *middles.get(at)?))
        });
        let lowest = shown.min_by(|a, b| a.1.share().total_cmp(&b.1.share()));
        let Some((partners, lowest)) = lowest else { return ConfirmResult::NotRead };
        match compare_shares(lowest.share(), ratio) {
            LossComparison::Low if FEWEST_PARTNERS <= partners => ConfirmResult::Low(lowest.into()),
            LossComparison::Healthy if is_whole => ConfirmResult::Healthy,
            LossComparison::Healthy => ConfirmResult::NotRead,
            _ => ConfirmResult::Inconclusive(lowest.into()),
        }
    }

    /// Whether a node read normally with every partner outside these.
    pub(super) fn is_healthy_with_others(
        &self,
        (node, gpu): (&NodeName, Option<u32>),
        but: &NodeName,
        (network, rail): (bool, Option<&String>),
    ) -> bool {
        let reads = self.by_node.get(node).into_iter().flatten().map(|at| &self.readings[*at]);
        let here = reads.filter(|r| r.network == network && (!network || r.rail.as_ref() == rail));
        let with = here.filter(|r| r.ends.iter().all(|end| end.node != *but));
        let mut own = with.filter(|r| r.ends.iter().any(|end| end.matches(node, gpu))).peekable();
        own.peek().is_some() && own.all(|r| 1.0 - peel::MIN_EFFECT <= r.share())
    }
}

impl From<&RelativeReading> for LowestReading {
    fn from(read: &RelativeReading) -> Self {
        Self {
            value: read.value,
            level: read.level,
            testcase: read.testcase.clone(),
            file: read.file.clone(),
        }
    }
}

/// How a share of the level compares with the first measurement.
enum LossComparison {
    Low,
    Healthy,
    Inconclusive,
}

/// Low: at least half of the first loss again. Healthy: within the range of healthy parts.
fn compare_shares(share: f64, first: f64) -> LossComparison {
    let half = f64::midpoint(1.0, first);
    match 1.0 - peel::MIN_EFFECT <= share {
        false if share <= half => LossComparison::Low,
        true if half < share => LossComparison::Healthy,
        _ => LossComparison::Inconclusive,
    }
}

/// The result for a path between two ends: low if all its readings are, healthy if their median is.
fn assess_pair(finding: &Finding, ratio: f64, reads: &[&RelativeReading]) -> ConfirmResult {
    let locus = &finding.locus;
    let (Some(node), Some(far)) = (&locus.node, far_end(locus)) else {
        return ConfirmResult::NotRead;
    };
    let between = |read: &&&RelativeReading| {
        let [src, dst] = &read.ends;
        let from =
            |a: &PathEnd, b: &PathEnd| a.matches(node, locus.gpu) && b.matches(&far.node, far.gpu);
        from(src, dst) || (locus.direction.is_none() && from(dst, src))
    };
    let mut here: Vec<&RelativeReading> = reads.iter().filter(between).copied().collect();
    here.sort_by(|a, b| a.share().total_cmp(&b.share()));
    let (Some(highest), Some(middle)) = (here.last(), median_reading(here.clone())) else {
        return ConfirmResult::NotRead;
    };
    match (compare_shares(highest.share(), ratio), compare_shares(middle.share(), ratio)) {
        (LossComparison::Low, _) => ConfirmResult::Low(middle.into()),
        (_, LossComparison::Healthy) => ConfirmResult::Healthy,
        _ => ConfirmResult::Inconclusive(middle.into()),
    }
}

fn far_end(locus: &Locus) -> Option<PathEnd> {
    let peer = locus.peer.as_deref().filter(|_| locus.kind == LocusKind::Pair)?;
    Some(match locus.gpu.and_then(|_| peer.rsplit_once(':')) {
        Some((node, gpu)) => PathEnd { node: node.into(), gpu: gpu.parse().ok() },
        None => PathEnd { node: peer.into(), gpu: None },
    })
}

/// The median reading; the lower of two.
fn median_reading(mut reads: Vec<&RelativeReading>) -> Option<&RelativeReading> {
    reads.sort_by(|a, b| a.share().total_cmp(&b.share()));
    reads.get(reads.len().saturating_sub(1) / 2).copied()
}

/// Adds the GPU-to-GPU readings of an island.
fn add_fabric_readings(
    island: &FabricGroup<'_>,
    levels: &ReferenceLevels,
    all: &mut Vec<RelativeReading>,
) {
    // A test that the first measurement lacked has only the platform's expectation as a level.
    let of = |(at, group): (usize, &PairReadingGroup)| {
        let key = (island.domain.clone(), island.node.clone(), group.clone());
        let expected = || island.expected_level(at).map(|(value, _)| value);
        levels.fabric.get(&key).copied().or_else(expected)
    };
    let known: Vec<Option<f64>> = island.reading_groups.iter().enumerate().map(of).collect();
    let end = |gpu: usize| {
        let id = &island.gpus[gpu];
        PathEnd { node: id.node.clone(), gpu: Some(id.gpu) }
    };
    let directed = island.directed.iter().map(|r| (false, r));
    for (both_ways, r) in directed.chain(island.both_ways.iter().map(|r| (true, r))) {
        let Some(level) = known[r.group] else { continue };
        let ends = [end(r.src), end(r.dst)];
        let testcase = &island.reading_groups[r.group].testcase;
        let is_of = |source: &&fabric_group::ReadingSource| {
            ends.iter().all(|end| source.involves(&end.node))
        };
        let file = island.files.get(testcase).into_iter().flatten().find(is_of);
        all.push(RelativeReading {
            testcase: testcase.to_string(),
            network: false,
            rail: None,
            both_ways,
            value: r.value,
            level,
            file: file.map_or(String::new(), |source| source.file.clone()),
            ends,
        });
    }
}

/// Adds the node-to-node readings of a rail.
fn add_network_readings(
    rail: &RailReadings<'_>,
    levels: &ReferenceLevels,
    all: &mut Vec<RelativeReading>,
) {
    for r in &rail.readings {
        let group = &rail.groups[r.group];
        let Some(level) = levels.network.get(&rail_level_key(rail, group)) else { continue };
        let end = |at: usize| PathEnd { node: rail.nodes[at].clone(), gpu: None };
        let file = rail.files_of(r.src, r.dst).first();
        all.push(RelativeReading {
            ends: [end(r.src), end(r.dst)],
            testcase: group.testcase.to_string(),
            network: true,
            rail: rail.name.clone(),
            both_ways: group.testcase.contains("_bidirectional"),
            value: r.value,
            level: *level,
            file: file.map_or(String::new(), |file| (*file).to_owned()),
        });
    }
}
