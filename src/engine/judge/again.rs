//! The levels of a judgement, and what a second measurement reads of the same paths
//! relative to them.
//!
//! A suspect is never part of what it is held against here: the levels are those of the
//! first measurement, which were taken without what was blamed.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::Case;
use super::arrange;
use super::fabric::Fabric;
use super::island;
use super::island::GroupKey;
use super::island::Island;
use super::peel;
use super::rails;
use super::rails::Group;
use super::rails::Rail;
use model::id::DomainName;
use model::id::NodeName;
use model::verdict::Direction;
use model::verdict::Finding;
use model::verdict::Locus;
use model::verdict::LocusKind;

/// Fewer partners than this do not tell a slow end from a slow path.
const FEWEST_PARTNERS: usize = 2;

/// The levels that readings of a case were compared with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Levels {
    fabric: BTreeMap<(DomainName, Option<NodeName>, GroupKey), f64>,
    network: BTreeMap<RailKey, f64>,
}

/// Readings of a rail that may be compared: the rail, the test, its settings, whether the
/// ends sit under different leaves, and the class of NIC.
type RailKey = (Option<String>, String, String, bool, Option<String>);

fn key_of(rail: &Rail<'_>, group: &Group<'_>) -> RailKey {
    let (test, nic) = (group.testcase.to_string(), group.nic.map(|nic| nic.name.clone()));
    (rail.name.clone(), test, group.settings.clone(), group.crosses, nic)
}

impl Levels {
    /// Adds those of an island.
    pub(super) fn of_island(&mut self, island: &Island<'_>, fabric: &Fabric) {
        for levels in [&fabric.peeled.levels, &fabric.both_ways.levels] {
            let known = island.groups.iter().zip(levels).filter(|(_, level)| level.is_finite());
            for (group, level) in known {
                let key = (island.domain.clone(), island.node.clone(), group.clone());
                self.fabric.entry(key).or_insert(*level);
            }
        }
    }

    /// Adds those of a rail, by group.
    pub(super) fn of_rail(&mut self, rail: &Rail<'_>, levels: &[f64]) {
        for (group, level) in rail.groups.iter().zip(levels).filter(|(_, l)| l.is_finite()) {
            self.network.insert(key_of(rail, group), *level);
        }
    }

    /// Whether a test reads pairs of nodes (true), or pairs inside one (false).
    fn sides(&self, domain: Option<&DomainName>, testcases: &BTreeSet<&str>) -> BTreeSet<bool> {
        let here = self.fabric.keys().filter(|(name, ..)| Some(name) == domain);
        let read = here.filter(|(_, _, group)| testcases.contains(&*group.testcase));
        read.map(|(_, _, group)| group.between_nodes).collect()
    }
}

/// One end of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct End {
    node: NodeName,
    gpu: Option<u32>,
}

impl End {
    /// Whether it is this node, or this GPU of it.
    fn is(&self, node: &NodeName, gpu: Option<u32>) -> bool {
        self.node == *node && (gpu.is_none() || self.gpu == gpu)
    }
}

/// One number of the second measurement.
#[derive(Clone, Debug)]
struct Read {
    ends: [End; 2],
    testcase: String,
    network: bool,
    rail: Option<String>,
    /// It holds both directions.
    both_ways: bool,
    value: f64,
    level: f64,
    file: String,
}

impl Read {
    fn share(&self) -> f64 {
        self.value / self.level
    }
}

/// What became of the paths of a finding.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reread {
    /// None of them was read again.
    Not,
    /// They are as low as before.
    Low(Lowest),
    /// They are as the others were.
    Fine,
    /// Less low than before, or read with too few partners.
    Open(Lowest),
}

/// The reading that tells.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Lowest {
    pub(super) value: f64,
    pub(super) level: f64,
    pub(super) testcase: String,
    pub(super) file: String,
}

/// The readings of a second measurement.
#[derive(Debug)]
pub(super) struct Again<'l> {
    levels: &'l Levels,
    all: Vec<Read>,
    of: BTreeMap<NodeName, Vec<usize>>,
    /// Nodes and GPUs that are suspected themselves, over the network or not, by rail.
    bad: BTreeSet<(bool, Option<String>, NodeName, Option<u32>)>,
}

impl<'l> Again<'l> {
    /// What the recordings of a case show of pairs of which `levels` says what they should
    /// be, beside these suspects.
    pub(super) fn of<'f>(
        case: &Case<'_>,
        levels: &'l Levels,
        suspects: impl Iterator<Item = (bool, &'f Finding)>,
    ) -> Self {
        let mut all = Vec::new();
        let (domains, claims) = arrange::arrange(case);
        for island in domains.iter().flat_map(island::islands) {
            fabric(&island, levels, &mut all);
        }
        for rail in &rails::rails(&domains, &claims, case.recordings) {
            network(rail, levels, &mut all);
        }
        let mut of: BTreeMap<NodeName, Vec<usize>> = BTreeMap::new();
        for (at, read) in all.iter().enumerate() {
            let nodes: BTreeSet<&NodeName> = read.ends.iter().map(|end| &end.node).collect();
            nodes.into_iter().for_each(|node| of.entry(node.clone()).or_default().push(at));
        }
        let bad = suspects.flat_map(|(network, found)| {
            let own = found.locus.node.clone().map(|node| End { node, gpu: found.locus.gpu });
            let ends = own.into_iter().chain(far_end(&found.locus));
            ends.map(move |end| (network, found.locus.rail.clone(), end.node, end.gpu))
        });
        Self { levels, all, of, bad: bad.collect() }
    }

    /// What became of the paths of a finding that was seen over the network or not.
    pub(super) fn read(&self, finding: &Finding, network: bool) -> Reread {
        let (Some(node), Some(ratio)) = (&finding.locus.node, finding.share()) else {
            return Reread::Not;
        };
        let reads: Vec<&Read> =
            self.of.get(node).into_iter().flatten().map(|at| &self.all[*at]).collect();
        let of_kind = |read: &&&Read| {
            let one_way = finding.locus.direction.is_some();
            read.network == network
                && (!network || read.rail == finding.locus.rail)
                && !(one_way && read.both_ways)
        };
        let reads: Vec<&Read> = reads.iter().filter(of_kind).copied().collect();
        match finding.locus.kind {
            LocusKind::Pair => pair(finding, ratio, &reads),
            _ => self.part(finding, ratio, &reads, network),
        }
    }

    /// The same of one end, over its partners that are not suspected.
    fn part(&self, finding: &Finding, ratio: f64, reads: &[&Read], network: bool) -> Reread {
        let locus = &finding.locus;
        let Some(node) = &locus.node else { return Reread::Not };
        let is_bad = |other: &End| {
            let of = |gpu| (network, locus.rail.clone(), other.node.clone(), gpu);
            let gpu = other.gpu.filter(|_| other.node != *node || locus.gpu.is_some());
            (other.node != *node && self.bad.contains(&of(None)))
                || gpu.is_some_and(|gpu| self.bad.contains(&of(Some(gpu))))
        };
        // By direction and test, what each partner shows.
        let mut met: BTreeMap<(bool, &str, bool), BTreeMap<&End, Vec<&Read>>> = BTreeMap::new();
        for &read in reads {
            let [src, dst] = &read.ends;
            for (sends, mine, other) in [(true, src, dst), (false, dst, src)] {
                let wanted = match locus.direction {
                    Some(Direction::Tx) => sends,
                    Some(Direction::Rx) => !sends,
                    _ => true,
                };
                if wanted && mine.is(node, locus.gpu) && !is_bad(other) {
                    let between = src.node != dst.node;
                    let partners = met.entry((sends, &read.testcase, between)).or_default();
                    partners.entry(other).or_default().push(read);
                }
            }
        }
        // A part that was read between nodes is read again by what is between nodes.
        let tests = finding.evidence.iter().filter_map(|e| e.testcase.as_deref()).collect();
        let sides = self.levels.sides(locus.domain.as_ref(), &tests);
        let is_same_side = |between: bool| network || sides.is_empty() || sides.contains(&between);
        met.retain(|(_, _, between), _| is_same_side(*between));
        let is_whole =
            network || !sides.contains(&true) || met.keys().any(|(.., between)| *between);
        let shown = met.into_iter().filter_map(|((.., between), partners)| {
            // All GPUs of one other node are one partner.
            let nodes: BTreeSet<&NodeName> = partners.keys().map(|end| &end.node).collect();
            let count = if between { nodes.len() } else { partners.len() };
            let mut own: BTreeMap<(&NodeName, Option<u32>), Vec<&Read>> = BTreeMap::new();
            for (end, reads) in partners {
                let partner = (&end.node, end.gpu.filter(|_| !between));
                own.entry(partner).or_default().extend(middle(reads));
            }
            let mut middles: Vec<&Read> = own.into_values().filter_map(middle).collect();
            middles.sort_by(|a, b| a.share().total_cmp(&b.share()));
            // Of two partners one good reading clears, as in peeling.
            let at = if middles.len() == 2 { 1 } else { middles.len().saturating_sub(1) / 2 };
            Some((count, *middles.get(at)?))
        });
        let lowest = shown.min_by(|a, b| a.1.share().total_cmp(&b.1.share()));
        let Some((partners, lowest)) = lowest else { return Reread::Not };
        match compared(lowest.share(), ratio) {
            Word::Low if FEWEST_PARTNERS <= partners => Reread::Low(lowest.into()),
            Word::Fine if is_whole => Reread::Fine,
            Word::Fine => Reread::Not,
            _ => Reread::Open(lowest.into()),
        }
    }

    /// Whether a node was fine with others than these: all it read with them.
    pub(super) fn is_fine_with_others(
        &self,
        (node, gpu): (&NodeName, Option<u32>),
        but: &NodeName,
        (network, rail): (bool, Option<&String>),
    ) -> bool {
        let reads = self.of.get(node).into_iter().flatten().map(|at| &self.all[*at]);
        let here = reads.filter(|r| r.network == network && (!network || r.rail.as_ref() == rail));
        let with = here.filter(|r| r.ends.iter().all(|end| end.node != *but));
        let mut own = with.filter(|r| r.ends.iter().any(|end| end.is(node, gpu))).peekable();
        own.peek().is_some() && own.all(|r| 1.0 - peel::LINE <= r.share())
    }
}

impl From<&Read> for Lowest {
    fn from(read: &Read) -> Self {
        Self {
            value: read.value,
            level: read.level,
            testcase: read.testcase.clone(),
            file: read.file.clone(),
        }
    }
}

/// How a share of the level stands to the one of the first measurement.
enum Word {
    Low,
    Fine,
    Open,
}

/// Low is what has lost at least half as much again; fine what a healthy part shows.
fn compared(share: f64, first: f64) -> Word {
    let half = f64::midpoint(1.0, first);
    match 1.0 - peel::LINE <= share {
        false if share <= half => Word::Low,
        true if half < share => Word::Fine,
        _ => Word::Open,
    }
}

/// What became of a path between two ends: low where all its readings are, fine where
/// the middle of them is.
fn pair(finding: &Finding, ratio: f64, reads: &[&Read]) -> Reread {
    let locus = &finding.locus;
    let (Some(node), Some(far)) = (&locus.node, far_end(locus)) else { return Reread::Not };
    let between = |read: &&&Read| {
        let [src, dst] = &read.ends;
        let from = |a: &End, b: &End| a.is(node, locus.gpu) && b.is(&far.node, far.gpu);
        from(src, dst) || (locus.direction.is_none() && from(dst, src))
    };
    let mut here: Vec<&Read> = reads.iter().filter(between).copied().collect();
    here.sort_by(|a, b| a.share().total_cmp(&b.share()));
    let (Some(highest), Some(middle)) = (here.last(), middle(here.clone())) else {
        return Reread::Not;
    };
    match (compared(highest.share(), ratio), compared(middle.share(), ratio)) {
        (Word::Low, _) => Reread::Low(middle.into()),
        (_, Word::Fine) => Reread::Fine,
        _ => Reread::Open(middle.into()),
    }
}

/// The far end of a pair.
fn far_end(locus: &Locus) -> Option<End> {
    let peer = locus.peer.as_deref().filter(|_| locus.kind == LocusKind::Pair)?;
    Some(match locus.gpu.and_then(|_| peer.rsplit_once(':')) {
        Some((node, gpu)) => End { node: node.into(), gpu: gpu.parse().ok() },
        None => End { node: peer.into(), gpu: None },
    })
}

/// The reading in the middle; the lower one of two.
fn middle(mut reads: Vec<&Read>) -> Option<&Read> {
    reads.sort_by(|a, b| a.share().total_cmp(&b.share()));
    reads.get(reads.len().saturating_sub(1) / 2).copied()
}

/// Adds what GPUs of an island read from each other.
fn fabric(island: &Island<'_>, levels: &Levels, all: &mut Vec<Read>) {
    // A test that was not run before has no level but what the platform must show.
    let of = |(at, group): (usize, &GroupKey)| {
        let key = (island.domain.clone(), island.node.clone(), group.clone());
        let expected = || island.expected_level(at).map(|(value, _)| value);
        levels.fabric.get(&key).copied().or_else(expected)
    };
    let known: Vec<Option<f64>> = island.groups.iter().enumerate().map(of).collect();
    let end = |gpu: usize| {
        let id = &island.gpus[gpu];
        End { node: id.node.clone(), gpu: Some(id.gpu) }
    };
    let directed = island.directed.iter().map(|r| (false, r));
    for (both_ways, r) in directed.chain(island.both_ways.iter().map(|r| (true, r))) {
        let Some(level) = known[r.group] else { continue };
        let ends = [end(r.src), end(r.dst)];
        let testcase = &island.groups[r.group].testcase;
        let is_of = |source: &&island::Source| ends.iter().all(|end| source.is_of(&end.node));
        let file = island.files.get(testcase).into_iter().flatten().find(is_of);
        all.push(Read {
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

/// Adds what nodes of a rail read from each other.
fn network(rail: &Rail<'_>, levels: &Levels, all: &mut Vec<Read>) {
    for r in &rail.readings {
        let group = &rail.groups[r.group];
        let Some(level) = levels.network.get(&key_of(rail, group)) else { continue };
        let end = |at: usize| End { node: rail.nodes[at].clone(), gpu: None };
        let file = rail.files_of(r.src, r.dst).first();
        all.push(Read {
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
