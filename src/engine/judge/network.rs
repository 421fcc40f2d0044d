//! The scale-out network: ends of a rail that are slow with every partner, pairs that are slow only
//! with each other, and rails that are slow everywhere.
//!
//! A reading is `min(tx, rx, path)` here as inside a fabric, so the same peeling identifies slow
//! ends. If a node has only one partner, a low pair blames neither end: it is a finding about the
//! pair until other partners are measured. A loss of a whole leaf or network never counts against
//! its nodes.

mod implausible_rates;
mod intermittent_paths;
mod low_rails;
mod noise_tail;
mod rail_levels;
mod rail_pairs;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::domain_recordings::DomainRecordings;
use super::fabric_group::PairReading;
use super::finding::{format_rate, new_finding, round};
use super::finding_set::FindingSet;
use super::peel::{PairClassification, PairReadings, PartnerStatistic, PeelResult};
use super::rail_readings::{RailGroup, RailReadings, ReadingsByEnd, order_pair};
use super::{leaf_uplinks, nic, path_stability, peel, rail_readings};
use model::stats;
use model::text::format_percent;
use noise_tail::NoiseTail;
use rail_levels::{RailLevels, SiblingLevels};
use rail_pairs::{RailPairCell, RailPairs, count_good_partners};

use model::claims::Claims;
use model::finding_class::FindingClass;
use model::finding_rule::RuleKind;
use model::hostlist;
use model::id::NodeName;
use model::tool_recording::ToolRecording;
use model::verdict::{Direction, Finding, Locus, LocusKind, Outcome};

/// Routes and buffers make healthy pairs differ, in addition to noise: the accepted probability
/// that any healthy pair looks low.
const FAMILY_ERROR: f64 = 1e-3;

/// With fewer directed pairs than this, most of them may be bad.
const FEW_CELLS: usize = 24;

/// A port has four lanes (or eight): if noise hides the loss of one lane of four, no node passes.
const ONE_LANE: f64 = 0.25;

/// Fewer good cells do not define a spread.
const FEWEST_CELLS: usize = 6;

struct NodeDomains<'d> {
    domains: BTreeMap<&'d NodeName, &'d DomainRecordings<'d>>,
}

impl NodeDomains<'_> {
    fn locus_at(&self, kind: LocusKind, node: &NodeName, rail: &RailReadings<'_>) -> Locus {
        let domain = self.domains.get(node).map(|d| d.name.clone());
        Locus { domain, node: Some(node.clone()), rail: rail.name.clone(), ..Locus::new(kind) }
    }

    /// A network locus between these nodes: in their domain if they share one.
    fn locus_between(
        &self,
        kind: LocusKind,
        nodes: &[&NodeName],
        rail: &RailReadings<'_>,
    ) -> Locus {
        let names: BTreeSet<_> =
            nodes.iter().map(|n| self.domains.get(*n).map(|d| d.name.clone())).collect();
        let only = names.into_iter().reduce(|_, _| None).flatten();
        Locus { domain: only, rail: rail.name.clone(), ..Locus::new(kind) }
    }

    /// Whether the claim gives this node no GPU: then only its network is measured.
    fn has_no_gpu(&self, node: &NodeName) -> bool {
        self.domains.get(node).is_some_and(|d| d.gpus_per_node == Some(0))
    }
}

/// Judges the measurements over the network.
pub(super) fn judge(
    domains: &[DomainRecordings<'_>],
    claims: &Claims,
    recordings: &[ToolRecording],
    ledger: &mut FindingSet,
) {
    let node_domains = NodeDomains {
        domains: domains.iter().flat_map(|d| d.nodes.iter().map(move |n| (n, d))).collect(),
    };
    let mut rails = rail_readings::collect_rails(domains, claims, recordings);
    let failures = rails.iter().flat_map(|rail| &rail.failures);
    ledger.unusable.extend(failures.map(|failure| failure.file.to_owned()));
    for rail in &mut rails {
        for above in implausible_rates::remove_implausible(rail) {
            ledger.add_doubt(&rail.nodes[above.end], explain_too_high(rail, &above));
        }
    }
    let levels = rail_levels::estimate_levels(&rails);
    let many = rails.iter().map(|rail| rail.cells().len()).sum();
    let sweep = NetworkTotals {
        cells: many,
        dips: intermittent_paths::DipRate::from_rails(&rails, &levels),
    };
    let reached: BTreeSet<NodeName> =
        rails.iter().flat_map(RailReadings::reached_nodes).cloned().collect();
    record_measured_partners(&rails, ledger);
    for (rail, levels) in rails.iter_mut().zip(levels) {
        super::unreached_pairs::judge(
            rail,
            &reached,
            |kind, node, rail| node_domains.locus_at(kind, node, rail),
            ledger,
        );
        judge_rail(&node_domains, claims, rail, (levels, &sweep), ledger);
        super::latency_outliers::judge(rail, ledger);
    }
    report_unmeasured_rails(&node_domains, claims, ledger);
}

/// Why an end is not judged by rates that its partners do not reach with each other.
fn explain_too_high(rail: &RailReadings<'_>, above: &implausible_rates::ImplausibleEnd) -> String {
    let partners = above.partners.iter().map(|end| rail.nodes[*end].as_str());
    format!(
        "reads {} GB/s{} with {}, which do not reach that rate with each other (usual: {} GB/s): \
         not counted",
        format_rate(above.rate),
        rail.sentence_suffix(),
        hostlist::fold(partners),
        format_rate(above.usual)
    )
}

/// Records which nodes were measured together, and over which rails.
fn record_measured_partners(rails: &[RailReadings<'_>], ledger: &mut FindingSet) {
    for rail in rails {
        for reading in &rail.readings {
            let ends = [reading.src, reading.dst].map(|end| &rail.nodes[end]);
            for (node, other) in [(ends[0], ends[1]), (ends[1], ends[0])] {
                let crossed = ledger.measured_boundaries.entry(node.clone()).or_default();
                if !crossed.network.contains(other) {
                    crossed.network.insert(other.clone());
                }
                if let Some(name) = rail.name.as_ref().filter(|it| !crossed.rails.contains(*it)) {
                    crossed.rails.insert(name.clone());
                }
            }
        }
    }
}

/// Nodes that were not measured over all claimed rails: a rail asserts that every node reaches the
/// others over it.
fn report_unmeasured_rails(
    node_domains: &NodeDomains<'_>,
    claims: &Claims,
    ledger: &mut FindingSet,
) {
    if claims.count_all_claimed_nodes() < 2 {
        return;
    }
    for node in node_domains.domains.keys() {
        let crossed = ledger.measured_boundaries.get(*node);
        let read = |rail: &str| crossed.is_some_and(|crossed| crossed.rails.contains(rail));
        // An end without a connection already has this reason.
        let is_reported = |rail: &str| {
            let open = |f: &Finding| {
                f.class == FindingClass::NicUnreachable && f.locus.rail.as_deref() == Some(rail)
            };
            ledger.doubts.contains_key(*node) && ledger.findings_of_node(node).any(open)
        };
        let names = claims.rails.iter().map(|it| it.name.as_str());
        let missing: Vec<&str> = names.filter(|rail| !read(rail) && !is_reported(rail)).collect();
        if !missing.is_empty() {
            let rails = hostlist::fold(missing);
            ledger.add_doubt(node, format!("{rails} was not measured between it and another node"));
        }
    }
}

/// Totals over all rails of a sweep.
struct NetworkTotals {
    /// The number of cells: all rails share one family error.
    cells: usize,
    dips: intermittent_paths::DipRate,
}

/// Judges the measurements over one rail.
fn judge_rail(
    node_domains: &NodeDomains<'_>,
    claims: &Claims,
    rail: &mut RailReadings<'_>,
    (levels, sweep): (RailLevels, &NetworkTotals),
    ledger: &mut FindingSet,
) {
    if rail.readings.is_empty() {
        return;
    }
    let RailLevels { by_group: start, repeat_sigma: repeated, siblings, .. } = levels;
    let shared = leaf_uplinks::judge(rail, claims, &start);
    for found in shared.findings {
        ledger.add(found);
    }
    for (node, why) in shared.doubts {
        ledger.add_doubt(&node, why);
    }
    report_no_reference(rail, &siblings, ledger);
    let met: BTreeSet<usize> = rail.readings.iter().flat_map(|r| [r.src, r.dst]).collect();
    rail.readings.retain(|r| !shared.explained.contains(&order_pair(r.src, r.dst)));
    let (peeled, pairs, noise) = peel_rail(rail, &start, repeated, sweep.cells);
    let sigma = pairs.sigma;
    let by_end = rail.by_end();
    ledger.levels.add_rail(rail, &pairs.levels);
    report_blames(node_domains, (rail, &by_end), &peeled, ledger);
    report_low_pairs(node_domains, (rail, &by_end), &pairs, ledger);
    let at = |kind, node: &NodeName| node_domains.locus_at(kind, node, rail);
    path_stability::judge(rail, &pairs.levels, (sigma, repeated.is_some()), at, ledger);
    intermittent_paths::judge(rail, &sweep.dips, sigma, at, ledger);
    let low = low_rails::judge(node_domains, (rail, &by_end), &pairs.levels, &siblings, ledger);
    for end in met {
        let node = &rail.nodes[end];
        ledger.mark_measured(node);
        let known = by_end[end].iter().any(|r| expected_rate(&rail.groups[r.group]).is_some());
        if known && node_domains.has_no_gpu(node) {
            ledger.mark_compared(node);
        }
        let own = by_end[end].iter().filter(|r| r.src == end).count();
        let other = by_end[end].iter().filter(|r| r.dst == end).count();
        let fewest = [own, other].into_iter().filter(|n| 0 < *n).min().unwrap_or(1);
        let alone = || peel::smallest_detectable(stats::median_error(sigma, fewest));
        let partners: BTreeSet<usize> = by_end[end].iter().flat_map(|r| [r.src, r.dst]).collect();
        // None if a leaf explains all its readings.
        let partners = partners.len().saturating_sub(1);
        let deepest = match partners {
            0 | 1 => noise.deepest_cell(fewest),
            several => noise.deepest_end(several, fewest / several),
        };
        let seen = peeled.detectable[end].unwrap_or_else(alone);
        let detectable = seen.max(deepest + peel::POWER_Z * stats::median_error(sigma, fewest));
        ledger.record_detectable_over_rail(node, rail.name.as_deref(), detectable);
        if ONE_LANE < detectable {
            let seen = format_percent(detectable);
            let why = format!(
                "too noisy{}: a loss of less than {seen} of its NIC's rate could not be detected; \
                 take more readings of every pair",
                rail.sentence_suffix()
            );
            ledger.add_doubt(node, why);
        }
    }
    if let Some(why) = low {
        for end in &rail.nodes {
            ledger.add_doubt(end, why.clone());
        }
    }
}

/// Attributes low readings: to ends, and to pairs of ends that are not blamed.
fn peel_rail(
    rail: &RailReadings<'_>,
    start: &[f64],
    repeated: Option<f64>,
    many: usize,
) -> (PeelResult, RailPairs, NoiseTail) {
    let field = PairReadings {
        ends: rail.nodes.len(),
        nodes: rail.nodes.len(),
        classes: &rail
            .groups
            .iter()
            .map(|group| u8::from(group.crosses_leaves))
            .collect::<Vec<_>>(),
        readings: &rail.readings,
        active: &vec![true; rail.nodes.len()],
        start_levels: Some(start),
    };
    let mut peeled = peel::peel_readings(&field, PartnerStatistic::Median);
    // Only readings with unblamed partners count against an end.
    let sigma = repeated.unwrap_or(peeled.sigma);
    let cells = rail.cells();
    let noise = NoiseTail::new(&cells, sigma, many);
    // The cells of each end and direction, with their readings.
    let mut read: BTreeMap<(usize, Direction), (usize, usize)> = BTreeMap::new();
    for ((src, dst, _), values) in &cells {
        for own in [(*src, Direction::Tx), (*dst, Direction::Rx)] {
            let (count, all) = read.entry(own).or_default();
            (*count, *all) = (*count + 1, *all + values.len());
        }
    }
    peeled.blames.retain(|blame| {
        let (count, all) = read.get(&(blame.gpu, blame.direction)).copied().unwrap_or((1, 1));
        let deepest = noise.deepest_end(blame.partners, all / count);
        blame.ratio < 1.0 - peel::MIN_EFFECT.max(deepest)
    });
    let pairs = RailPairs::new(rail, &peeled, start, sigma, &noise);
    (peeled, pairs, noise)
}

/// Without an expectation for the NIC, pairs serve as references for each other, and so do rails of
/// one kind. A single pair has no reference but itself: its level stays unknown.
fn report_no_reference(
    rail: &RailReadings<'_>,
    siblings: &[SiblingLevels],
    ledger: &mut FindingSet,
) {
    let mut alone: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let mut compared: BTreeSet<usize> = BTreeSet::new();
    for (at, group) in rail.groups.iter().enumerate() {
        let here = || rail.readings.iter().filter(move |r| r.group == at);
        let met: BTreeSet<_> = here().map(|r| order_pair(r.src, r.dst)).collect();
        let mut values: Vec<f64> = here().map(|r| r.value).collect();
        let Some((value, (a, b))) = stats::median(&mut values).zip(met.first().copied()) else {
            continue;
        };
        // The same test between and inside leaves.
        let others =
            rail.groups.iter().enumerate().any(|(n, it)| n != at && it.is_same_kind(group));
        let agrees = siblings[at].confirms(value);
        if expected_rate(group).is_some() || 1 < met.len() || others || agrees {
            compared.extend(met.iter().flat_map(|(a, b)| [*a, *b]));
            continue;
        }
        let on = rail.name.as_ref().map_or(String::new(), |name| format!(", {name}"));
        let but = match siblings[at].levels.as_slice() {
            [] => "no other pair was read".to_owned(),
            [other] => format!("another rail reads {}", format_rate(*other)),
            // A slow pair, which already has a finding.
            _ => continue,
        };
        let why = format!(
            "{} and {}{on}: {} at {} GB/s, without a reference: {but}, and no expectation \
             is stated for its NICs",
            rail.nodes[a],
            rail.nodes[b],
            group.testcase,
            format_rate(value)
        );
        ledger.notes.push(why.clone());
        for end in [a, b] {
            alone.entry(end).or_default().push(why.clone());
        }
    }
    for (end, reasons) in alone.into_iter().filter(|(end, _)| !compared.contains(end)) {
        reasons.into_iter().for_each(|why| ledger.add_doubt(&rail.nodes[end], why));
    }
}

/// The expected rate of the NIC class here, in GB/s, and its tolerance.
fn expected_rate(group: &RailGroup<'_>) -> Option<(f64, f64)> {
    nic::expected_rate(group.nic?, &group.conditions())
}

/// The largest loss below the class expectation that is not a fault.
fn min_effect(tolerance: f64) -> f64 {
    tolerance.max(peel::MIN_EFFECT)
}

/// Relative standard deviation of one reading, if enough readings were repeated.
pub(super) fn repeat_sigma(rail: &RailReadings<'_>) -> Option<f64> {
    let sigma = stats::repeat_sigma(rail.cells().values().map(Vec::as_slice));
    sigma.map(|sigma| sigma.max(peel::LEAST_SIGMA))
}

/// Ends of the rail that are low with every partner.
fn report_blames(
    node_domains: &NodeDomains<'_>,
    (rail, by_end): (&RailReadings<'_>, &ReadingsByEnd<'_>),
    peeled: &PeelResult,
    ledger: &mut FindingSet,
) {
    let ends: BTreeSet<usize> = peeled.blames.iter().map(|b| b.gpu).collect();
    for end in ends {
        let node = &rail.nodes[end];
        let both = [Direction::Tx, Direction::Rx];
        let [tx, rx] = both.map(|d| peeled.is_blamed(end, d));
        let read = |direction| end_readings(by_end, peeled, end, direction).next().is_some();
        let one_way = (tx != rx && both.iter().all(|d| read(*d))).then(|| both[usize::from(rx)]);
        let blame = peeled
            .blames
            .iter()
            .filter(|b| b.gpu == end)
            .min_by(|a, b| a.ratio.total_cmp(&b.ratio))
            .expect("a blamed end has a blame");
        let mut by_group: BTreeMap<usize, usize> = BTreeMap::new();
        for (group, _) in end_readings(by_end, peeled, end, blame.direction) {
            *by_group.entry(group).or_default() += 1;
        }
        let decisive = by_group.iter().max_by_key(|(g, count)| (**count, std::cmp::Reverse(**g)));
        let Some((group, _)) = decisive else { continue };
        // The reading that decided, not merely one close to it.
        let level = peeled.levels[*group];
        let measured = level * blame.ratio;
        let what = match one_way {
            Some(Direction::Tx) => "its transmit rate",
            Some(_) => "its receive rate",
            None => "its rate",
        };
        let testcase = &rail.groups[*group].testcase;
        let summary = format!(
            "{node}{}: {what} is {} of {} GB/s ({testcase}), {} low with {} partners that are \
             normal with each other",
            rail.sentence_suffix(),
            format_rate(measured),
            format_rate(level),
            format_percent(1.0 - blame.ratio),
            blame.partners
        );
        let rule = RuleKind::Endpoint.with_terms(format!(
            "the median over {} partners that are not blamed lies more than max({}, 5 robust \
             standard errors) below the level of its rail",
            blame.partners,
            format_percent(peel::MIN_EFFECT)
        ));
        let locus =
            Locus { direction: one_way, ..node_domains.locus_at(LocusKind::Rail, node, rail) };
        let mut found = new_finding(Outcome::Degraded, FindingClass::NicLow, locus, &rule)
            .with_peer_level(
                measured,
                level,
                expected_rate(&rail.groups[*group]).map(|(value, _)| value),
            )
            .with_summary(summary);
        found.detectable = Some(round(blame.detectable));
        let partners: BTreeSet<usize> =
            by_end[end].iter().map(|r| if r.src == end { r.dst } else { r.src }).collect();
        for partner in partners {
            found = with_files(found, (rail, by_end), (end, partner), testcase);
        }
        ledger.add(found);
    }
}

/// Adds the files in which two ends were measured together.
fn with_files(
    mut found: Finding,
    (rail, by_end): (&RailReadings<'_>, &ReadingsByEnd<'_>),
    (a, b): (usize, usize),
    testcase: &str,
) -> Finding {
    const MOST_FILES: usize = 6;
    for file in rail.files_of(a, b) {
        if found.evidence.len() < MOST_FILES {
            let between = |r: &&&PairReading| {
                order_pair(r.src, r.dst) == order_pair(a, b)
                    && *rail.groups[r.group].testcase == *testcase
            };
            let mut values: Vec<f64> = by_end[a].iter().filter(between).map(|r| r.value).collect();
            let middle = stats::median(&mut values).unwrap_or(0.0);
            let detail = format!(
                "{} and {}: {} GB/s (median)",
                rail.nodes[a],
                rail.nodes[b],
                format_rate(middle)
            );
            found = found.with_evidence(file, Some(testcase), detail);
        }
    }
    found
}

/// Readings of an end in one direction, with unblamed partners.
fn end_readings<'r>(
    by_end: &'r ReadingsByEnd<'_>,
    peeled: &'r PeelResult,
    end: usize,
    direction: Direction,
) -> impl Iterator<Item = (usize, f64)> + 'r {
    let mine = move |r: &&&PairReading| match direction {
        Direction::Rx => r.dst == end && !peeled.is_blamed(r.src, Direction::Tx),
        _ => r.src == end && !peeled.is_blamed(r.dst, Direction::Rx),
    };
    by_end[end].iter().filter(mine).map(|r| (r.group, r.value))
}

/// Pairs that are low while neither end is blamed.
fn report_low_pairs(
    node_domains: &NodeDomains<'_>,
    (rail, by_end): (&RailReadings<'_>, &ReadingsByEnd<'_>),
    pairs: &RailPairs,
    ledger: &mut FindingSet,
) {
    let mut low: BTreeMap<(usize, usize), Vec<&RailPairCell>> = BTreeMap::new();
    let of_end = pairs.by_end();
    for cell in pairs.cells.iter().filter(|c| c.low) {
        low.entry(order_pair(cell.src, cell.dst)).or_default().push(cell);
    }
    for ((a, b), cells) in low {
        let lowest = cells.iter().min_by(|x, y| x.median.total_cmp(&y.median));
        let lowest = lowest.expect("a low pair has a cell");
        let group = &rail.groups[lowest.group];
        let level = pairs.levels[lowest.group];
        let mut readings: Vec<f64> =
            cells.iter().flat_map(|c| c.readings.iter().copied()).collect();
        let good = [count_good_partners(&of_end, a, b), count_good_partners(&of_end, b, a)];
        let ends_clear = good.iter().all(|partners| 0 < *partners);
        let (from, to) = (&rail.nodes[lowest.src], &rail.nodes[lowest.dst]);
        let over = rail.sentence_suffix();
        let share = format_percent(1.0 - lowest.median);
        let span = peel::span(&mut readings);
        let classification = peel::classify_pair(readings.len(), span, lowest.median, pairs.sigma);
        if ends_clear && classification == PairClassification::Dip {
            ledger.notes.push(format!(
                "{from} to {to}{over} read {share} low once and was not read again; both are \
                 normal with others"
            ));
            continue;
        }
        let ways: BTreeSet<usize> = cells.iter().map(|c| c.src).collect();
        let back = (lowest.dst, lowest.src);
        let measured_back =
            of_end.get(&a).is_some_and(|all| all.iter().any(|c| (c.src, c.dst) == back));
        let one_way = (ways.len() == 1 && measured_back).then_some(Direction::Tx);
        // A pair that is low both ways has one name, independent of which direction is lower.
        let (from, to) = if one_way.is_none() && to < from { (to, from) } else { (from, to) };
        let mut outcome = Outcome::Degraded;
        let (summary, rule) = if ends_clear && classification == PairClassification::Doubt {
            outcome = Outcome::Unknown;
            let count = readings.len();
            (
                format!(
                    "{from} and {to} read {share} low with each other{over} in all {count} \
                     readings and normal with others: a slow path or dips, {count} readings cannot \
                     decide; read this pair \
                     again"
                ),
                peel::DOUBTFUL_PAIR_RULE,
            )
        } else if ends_clear {
            (
                match one_way {
                    Some(_) => format!(
                        "the rate from {from} to {to}{over} is {share} low; in reverse, and with \
                         others, both are normal"
                    ),
                    None => format!(
                        "{from} and {to} are {share} low with each other{over} and normal with \
                         others"
                    ),
                },
                RuleKind::Path.with_terms(format!(
                    "all {} readings lie below the level by more than max({}, the noise of any \
                     path in one of 1,000 sweeps), while both ends are normal with others",
                    readings.len(),
                    format_percent(peel::MIN_EFFECT)
                )),
            )
        } else {
            (
                format!(
                    "{from} and {to} are {share} low with each other{over}; the cause is one of \
                     them or the path: run each with another partner"
                ),
                RuleKind::Suspicion.with_terms(
                    "a low pair alone blames neither end, and at least one end was not \
                     normal with other partners",
                ),
            )
        };
        let locus = Locus {
            peer: Some(to.to_string()),
            direction: one_way,
            ..node_domains.locus_at(LocusKind::Pair, from, rail)
        };
        let found = new_finding(outcome, FindingClass::PathLow, locus, &rule)
            .with_peer_level(
                level * lowest.median,
                level,
                expected_rate(group).map(|(value, _)| value),
            )
            .with_summary(summary);
        ledger.add(with_files(found, (rail, by_end), (a, b), &group.testcase));
    }
}
