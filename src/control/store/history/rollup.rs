//! The value of each part in a run, rolled up from the judge's cells.
//!
//! A path has the median of its readings; a GPU and an end of a rail the median over partners, per
//! direction; a node the value of its lowest GPU; a domain the median over its GPUs. A collective
//! counts for the node or domain that it ran on. Outcomes come from the run's verdicts. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::judge::{collective, run_summary};
use model::id::{DomainName, NodeName};
use model::measured_cell::MeasuredCell;
use model::stats;
use model::tool_recording::{CONFIRM_STAGE, RecordingScope, ToolRecording};
use model::trend::{FabricPart, FabricPartKind};
use model::unit::Unit;
use model::verdict::{Direction, Finding, LocusKind, Outcome, Verdicts};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct RollupValue {
    pub(super) part: FabricPart,
    pub(super) testcase: Arc<str>,
    pub(super) unit: Unit,
    pub(super) value: f64,
    pub(super) error: Option<f64>,
    pub(super) expected: Option<f64>,
    pub(super) outcome: Option<Outcome>,
}

/// The paths of one test: source, destination, and the median of the readings.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RollupPaths {
    pub(super) testcase: Arc<str>,
    pub(super) unit: Unit,
    pub(super) rail: Option<String>,
    pub(super) ends: Vec<(String, String)>,
    pub(super) readings: Vec<f64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RunRollup {
    pub(super) values: Vec<RollupValue>,
    pub(super) paths: Vec<RollupPaths>,
    /// The lowest ratio to the expectation over the parts of each node.
    pub(super) worst: BTreeMap<NodeName, f64>,
}

/// A test whose readings are comparable.
type RollupTestKey = (Arc<str>, Unit, Option<String>);

/// An end of a path: a node, and a GPU where it is not the node as a whole.
type RollupPathEnd = (NodeName, Option<u32>);

/// The readings of one part in one test.
#[derive(Default)]
struct PartnerReadings {
    /// By partner.
    partners: BTreeMap<RollupPathEnd, Vec<f64>>,
    expected: Option<f64>,
}

impl PartnerReadings {
    fn add(&mut self, partner: RollupPathEnd, value: f64, expected: Option<f64>) {
        self.partners.entry(partner).or_default().push(value);
        self.expected = self.expected.or(expected);
    }

    /// The median over partners of the median of the readings with each, and its relative standard
    /// error.
    fn median(&self, sigma: Option<f64>) -> Option<(f64, Option<f64>)> {
        let (mut medians, readings) = run_summary::partner_medians(&self.partners);
        let value = stats::median(&mut medians)?;
        Some((value, sigma.map(|sigma| stats::median_error(sigma, readings))))
    }
}

/// Rolls up the cells and the collectives of a run.
pub(super) fn roll_up_run(
    cells: &[MeasuredCell],
    recordings: &[ToolRecording],
    verdicts: &Verdicts,
) -> RunRollup {
    let mut rolled = RunRollup::default();
    let mut tests: BTreeMap<RollupTestKey, Vec<&MeasuredCell>> = BTreeMap::new();
    for cell in cells.iter().filter(|c| c.value.is_some_and(f64::is_finite)) {
        let test = (cell.testcase.clone(), cell.unit, cell.rail.clone());
        tests.entry(test).or_default().push(cell);
        if let Some(ratio) = cell.ratio {
            // A low path between two nodes is no evidence about one of them.
            if cell.src_node == cell.dst_node
                && let Some(node) = &cell.src_node
            {
                let worst = rolled.worst.entry(node.clone()).or_insert(ratio);
                *worst = worst.min(ratio);
            }
        }
    }
    // Over all rails of a test: a node has the value of its lowest end on any rail.
    let mut by_test: BTreeMap<(Arc<str>, Unit), Vec<RollupValue>> = BTreeMap::new();
    for (test, cells) in &tests {
        let values = roll_up_test(test, cells, &mut rolled);
        by_test.entry((test.0.clone(), test.1)).or_default().extend(values);
    }
    for mut of_test in by_test.into_values() {
        let least = worst_per_node(&of_test);
        let middle = median_per_domain(&of_test);
        of_test.extend(least);
        of_test.extend(middle);
        rolled.values.append(&mut of_test);
    }
    rolled.values.extend(roll_up_collectives(recordings));
    let accusers = FindingsByPart::new(verdicts);
    for value in &mut rolled.values {
        value.outcome = part_outcome(&value.part, verdicts, &accusers);
        if let (Some(node), Some(expected)) = (&value.part.node, value.expected)
            && 0.0 < expected
            && 0.0 < value.value
        {
            let ratio = match value.unit.is_bandwidth() {
                true => value.value / expected,
                false => expected / value.value,
            };
            let worst = rolled.worst.entry(node.clone()).or_insert(ratio);
            *worst = worst.min(ratio);
        }
    }
    rolled
}

/// GPUs and ends of rails in one test; its paths go to `rolled`.
fn roll_up_test(
    (testcase, unit, rail): &RollupTestKey,
    cells: &[&MeasuredCell],
    rolled: &mut RunRollup,
) -> Vec<RollupValue> {
    let mut paths: BTreeMap<(RollupPathEnd, RollupPathEnd), Vec<f64>> = BTreeMap::new();
    let mut ends: BTreeMap<(RollupPathEnd, Direction), PartnerReadings> = BTreeMap::new();
    let mut homes: BTreeMap<NodeName, Option<DomainName>> = BTreeMap::new();
    for cell in cells {
        let (Some(value), Some(from), Some(to)) = (cell.value, &cell.src_node, &cell.dst_node)
        else {
            continue;
        };
        let (src, dst) = ((from.clone(), cell.src_gpu), (to.clone(), cell.dst_gpu));
        // A path between two domains belongs to neither.
        for node in [from, to] {
            homes.entry(node.clone()).or_insert_with(|| cell.domain.clone());
        }
        let mut end = |of: &RollupPathEnd, partner: &RollupPathEnd, direction: Direction| {
            let read = ends.entry((of.clone(), direction)).or_default();
            read.add(partner.clone(), value, cell.expected);
        };
        match (cell.src_gpu, cell.dst_gpu) {
            (None, Some(_)) if from == to => end(&dst, &src, Direction::H2d),
            (Some(_), None) if from == to => end(&src, &dst, Direction::D2h),
            (a, b) if a.is_some() == b.is_some() && src != dst => {
                end(&src, &dst, Direction::Tx);
                end(&dst, &src, Direction::Rx);
                paths.entry((src, dst)).or_default().push(value);
            }
            _ => {}
        }
    }
    let sigma = stats::repeat_sigma(paths.values().map(Vec::as_slice)).or_else(|| {
        stats::repeat_sigma(ends.values().flat_map(|r| r.partners.values()).map(Vec::as_slice))
    });
    if !paths.is_empty() {
        let (ends, readings) = paths
            .into_iter()
            .filter_map(|((src, dst), mut values)| {
                Some(((format_path_end(&src), format_path_end(&dst)), stats::median(&mut values)?))
            })
            .unzip();
        let (testcase, rail) = (testcase.clone(), rail.clone());
        rolled.paths.push(RollupPaths { testcase, unit: *unit, rail, ends, readings });
    }
    let values = ends.into_iter().filter_map(|(((node, gpu), direction), read)| {
        let is_host = matches!(direction, Direction::H2d | Direction::D2h);
        // A single partner does not define an end's level, as in the judge.
        let enough = is_host || 1 < read.partners.len();
        let (value, error) = read.median(sigma).filter(|_| enough)?;
        let part = FabricPart {
            kind: if gpu.is_some() { FabricPartKind::Gpu } else { FabricPartKind::Rail },
            domain: homes.get(&node).cloned().flatten(),
            node: Some(node),
            gpu,
            peer: None,
            rail: rail.clone(),
            direction: Some(direction),
        };
        let (testcase, unit, expected) = (testcase.clone(), *unit, read.expected);
        Some(RollupValue { part, testcase, unit, value, error, expected, outcome: None })
    });
    values.collect()
}

/// Every node's worst part in one test: the lowest rate, the highest latency.
fn worst_per_node(values: &[RollupValue]) -> Vec<RollupValue> {
    let mut nodes: BTreeMap<&NodeName, &RollupValue> = BTreeMap::new();
    for value in values {
        let Some(node) = &value.part.node else { continue };
        let least = nodes.entry(node).or_insert(value);
        let (is, was) = (value.value, least.value);
        if if value.unit.is_bandwidth() { is < was } else { was < is } {
            *least = value;
        }
    }
    let node = |(node, value): (&NodeName, &RollupValue)| {
        let domain = value.part.domain.clone();
        let part =
            FabricPart { node: Some(node.clone()), ..new_part(FabricPartKind::Node, domain) };
        RollupValue { part, ..value.clone() }
    };
    nodes.into_iter().map(node).collect()
}

/// Every domain's level in one test: the median over its parts.
fn median_per_domain(values: &[RollupValue]) -> Vec<RollupValue> {
    let mut domains: BTreeMap<&DomainName, Vec<&RollupValue>> = BTreeMap::new();
    for value in values {
        if let Some(domain) = &value.part.domain {
            domains.entry(domain).or_default().push(value);
        }
    }
    let level = |(domain, values): (&DomainName, Vec<&RollupValue>)| {
        let level = stats::median(&mut values.iter().map(|v| v.value).collect::<Vec<f64>>())?;
        let part = new_part(FabricPartKind::Domain, Some(domain.clone()));
        Some(RollupValue { part, value: level, error: None, ..(*values.first()?).clone() })
    };
    domains.into_iter().filter_map(level).collect()
}

/// The best reading of each collective, as in the judge. Each number of ranks, size and path is a
/// separate series.
fn roll_up_collectives(recordings: &[ToolRecording]) -> Vec<RollupValue> {
    let mut best: BTreeMap<(FabricPart, String, Unit), f64> = BTreeMap::new();
    for recording in recordings.iter().filter(|it| it.stage != Some(CONFIRM_STAGE)) {
        let part = match &recording.scope {
            RecordingScope::Node(node) => {
                FabricPart { node: Some(node.clone()), ..new_part(FabricPartKind::Node, None) }
            }
            RecordingScope::Domain(domain) => {
                new_part(FabricPartKind::Domain, Some(domain.clone()))
            }
            RecordingScope::Pair(..) => continue,
        };
        for it in collective::collect_results(recording) {
            if !it.unit.is_bandwidth() || !it.busbw.is_finite() {
                continue;
            }
            let ranks = it.ranks.map_or_else(|| "?".to_owned(), |ranks| ranks.to_string());
            let path = it.path.map(|path| format!(", {path}")).unwrap_or_default();
            let name = format!("{}, {ranks} ranks, {} MiB{path}", it.testcase, it.bytes >> 20);
            let known = best.entry((part.clone(), name, it.unit)).or_insert(it.busbw);
            *known = it.busbw.max(*known);
        }
    }
    let value = |((part, testcase, unit), value): ((FabricPart, String, Unit), f64)| {
        let testcase = Arc::from(testcase);
        RollupValue { part, testcase, unit, value, error: None, expected: None, outcome: None }
    };
    best.into_iter().map(value).collect()
}

fn new_part(kind: FabricPartKind, domain: Option<DomainName>) -> FabricPart {
    FabricPart { kind, domain, node: None, gpu: None, peer: None, rail: None, direction: None }
}

/// `node:gpu`, or `node`.
fn format_path_end((node, gpu): &RollupPathEnd) -> String {
    match gpu {
        Some(gpu) => format!("{node}:{gpu}"),
        None => node.to_string(),
    }
}

/// Findings by node and domain: every node of a large fleet may have findings, and several hundred
/// parts.
struct FindingsByPart<'v> {
    of_nodes: BTreeMap<&'v NodeName, Vec<&'v Finding>>,
    /// Findings without a node.
    of_domains: BTreeMap<&'v DomainName, Vec<&'v Finding>>,
}

impl<'v> FindingsByPart<'v> {
    fn new(verdicts: &'v Verdicts) -> Self {
        let mut of_domains: BTreeMap<&DomainName, Vec<&Finding>> = BTreeMap::new();
        for found in verdicts.findings.iter().filter(|found| found.locus.node.is_none()) {
            if let Some(domain) = &found.locus.domain {
                of_domains.entry(domain).or_default().push(found);
            }
        }
        Self { of_nodes: verdicts.findings_by_node(), of_domains }
    }

    /// All findings that can concern a part with one end.
    fn findings_about(&self, part: &FabricPart) -> impl Iterator<Item = &'v Finding> {
        let of_node = part.node.as_ref().and_then(|node| self.of_nodes.get(node));
        let of_domain = part.domain.as_ref().and_then(|domain| self.of_domains.get(domain));
        of_node.into_iter().chain(of_domain).flatten().copied()
    }
}

/// The outcome of a part: the worst of its findings, or else that of its node, unless another part
/// caused it.
fn part_outcome(
    part: &FabricPart,
    verdicts: &Verdicts,
    accusers: &FindingsByPart<'_>,
) -> Option<Outcome> {
    let found =
        accusers.findings_about(part).filter(|found| is_against(found, part)).map(|f| f.outcome);
    let node = part.node.as_ref().and_then(|node| {
        let at = verdicts.nodes.binary_search_by(|v| v.node.cmp(node)).ok()?;
        let outcome = verdicts.nodes[at].outcome;
        match (part.kind, outcome) {
            (FabricPartKind::Node, outcome) => Some(outcome),
            (_, Outcome::Unknown) => Some(Outcome::Unknown),
            _ => Some(Outcome::Pass),
        }
    });
    found.chain(node).max()
}

/// Whether a finding concerns the value of a part.
pub(super) fn is_against(found: &Finding, part: &FabricPart) -> bool {
    let locus = &found.locus;
    let direction =
        locus.direction.is_none() || part.direction.is_none() || locus.direction == part.direction;
    let rail = locus.rail.is_none() || part.rail.is_none() || locus.rail == part.rail;
    if !direction || !rail {
        return false;
    }
    match (&locus.node, locus.kind) {
        // A path is neither a GPU nor a node.
        (_, LocusKind::Pair) => {
            part.kind == FabricPartKind::Link && locus.node == part.node && locus.peer == part.peer
        }
        (_, LocusKind::Instrument) => false,
        (Some(node), _) => {
            let is_gpu = locus.gpu.is_none() || part.gpu.is_none() || locus.gpu == part.gpu;
            let peer = part.peer.as_deref().is_some_and(|peer| match locus.gpu {
                Some(gpu) => peer == format!("{node}:{gpu}"),
                None => peer.split(':').next() == Some(node.as_str()),
            });
            (part.node.as_ref() == Some(node) && is_gpu) || peer
        }
        (None, _) => locus.domain.is_some() && locus.domain == part.domain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::finding_class::FindingClass;
    use model::verdict::Locus;

    fn new_finding(node: Option<&str>, domain: &str, outcome: Outcome) -> Finding {
        let kind = if node.is_some() { LocusKind::Node } else { LocusKind::Domain };
        let locus = Locus {
            node: node.map(NodeName::from),
            domain: Some(domain.into()),
            ..Locus::new(kind)
        };
        Finding::new(format!("{node:?}"), outcome, FindingClass::NvlinkLow, locus)
    }

    #[test]
    fn only_findings_that_can_concern_a_part_are_checked() {
        let names: Vec<String> = (0..500).map(|n| format!("n{n}")).collect();
        let mut verdicts = Verdicts::empty(Outcome::Failed);
        verdicts.findings =
            names.iter().map(|name| new_finding(Some(name), "d1", Outcome::Degraded)).collect();
        verdicts.findings.push(new_finding(None, "d1", Outcome::Unknown));
        verdicts.findings.push(new_finding(None, "d2", Outcome::Failed));
        let accusers = FindingsByPart::new(&verdicts);
        let node = FabricPart {
            node: Some("n7".into()),
            ..new_part(FabricPartKind::Node, Some("d1".into()))
        };
        assert_eq!(accusers.findings_about(&node).count(), 2);
        assert_eq!(part_outcome(&node, &verdicts, &accusers), Some(Outcome::Degraded));
        let domain = new_part(FabricPartKind::Domain, Some("d1".into()));
        assert_eq!(accusers.findings_about(&domain).count(), 1);
        assert_eq!(part_outcome(&domain, &verdicts, &accusers), Some(Outcome::Unknown));
        let other =
            FabricPart { node: Some("other".into()), ..new_part(FabricPartKind::Node, None) };
        assert_eq!(part_outcome(&other, &verdicts, &accusers), None);
    }
}
