//! Whether a whole island is fast enough: compared with similar islands, if any, and with the
//! platform's expectation.
//!
//! Inside an island every comparison is relative, so a fault that affects all cells equally (a
//! switch plane, clocks, a power cap) appears only here.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::fabric_group::{FabricGroup, PairReadingGroup};
use super::finding::{RateReference, domain_locus, new_finding, node_locus};
use super::peel::PeelResult;
use super::{fabric, peel};
use crate::thresholds::Expectation;
use model::finding_class::FindingClass;
use model::finding_rule::RuleKind;
use model::stats;
use model::text::format_percent;
use model::unit::Unit;
use model::verdict::{Finding, LocusKind, Outcome};

/// Fewer islands do not form a fleet.
pub(super) const SMALLEST_FLEET: usize = 3;

/// The level of comparable islands: platform and group to the median over them, if there are
/// enough.
#[derive(Debug, Default)]
pub(super) struct FleetLevels {
    levels: BTreeMap<(Arc<str>, PairReadingGroup), f64>,
}

impl FleetLevels {
    /// The median over all islands, where each contributes its median reading per group.
    pub(super) fn from_groups<'i>(islands: impl Iterator<Item = &'i FabricGroup<'i>>) -> Self {
        let mut all: BTreeMap<(Arc<str>, PairReadingGroup), Vec<f64>> = BTreeMap::new();
        for island in islands {
            let Some(platform) = island.platform else { continue };
            let platform: Arc<str> = Arc::from(platform.name.as_str());
            let mut values: Vec<Vec<f64>> = vec![Vec::new(); island.reading_groups.len()];
            for reading in &island.directed {
                values[reading.group].push(reading.value);
            }
            for (key, mut values) in island.reading_groups.iter().zip(values) {
                if let Some(level) = stats::median(&mut values) {
                    all.entry((platform.clone(), key.clone())).or_default().push(level);
                }
            }
        }
        let enough = all.into_iter().filter(|(_, levels)| SMALLEST_FLEET <= levels.len());
        let levels = enough.filter_map(|(key, mut all)| Some((key, stats::median(&mut all)?)));
        Self { levels: levels.collect() }
    }

    fn reference(&self, island: &FabricGroup<'_>, group: usize) -> Option<f64> {
        let platform: Arc<str> = Arc::from(island.platform?.name.as_str());
        self.levels.get(&(platform, island.reading_groups[group].clone())).copied()
    }
}

/// An island's level and its reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FabricLevel {
    /// Level divided by reference, the median over all groups with a reference.
    pub(super) ratio: f64,
    /// Compared with an expectation, not only with other islands.
    pub(super) absolute: bool,
    /// Low enough for a finding.
    pub(super) low: bool,
    /// Within the tolerance of the expectation.
    pub(super) meets: bool,
    /// The smallest loss of the whole island that the expectation would detect.
    pub(super) detectable_overall: Option<f64>,
}

/// Judges an island's level; adds findings and notes.
pub(super) fn judge(
    island: &FabricGroup<'_>,
    peeled: &PeelResult,
    both_ways: &PeelResult,
    fleet: &FleetLevels,
    findings: &mut Vec<Finding>,
    (notes, doubts): (&mut Vec<String>, &mut Vec<String>),
) -> Option<FabricLevel> {
    let levels = || {
        let groups = peeled.levels.iter().copied().enumerate().filter(|(_, l)| l.is_finite());
        groups
            .map(|(g, level)| (g, if island.is_uniform() { level } else { best_level(island, g) }))
    };
    let expected: Vec<(usize, f64, f64, &Expectation)> = levels()
        .filter_map(|(g, level)| island.expected_level(g).map(|(value, e)| (g, level, value, e)))
        .collect();
    let compared: Vec<(usize, f64, f64)> = levels()
        .filter_map(|(g, level)| fleet.reference(island, g).map(|r| (g, level, r)))
        .collect();

    let mut ratios: Vec<f64> = expected.iter().map(|(_, level, value, _)| level / value).collect();
    let absolute = stats::median(&mut ratios);
    let mut ratios: Vec<f64> =
        compared.iter().map(|(_, level, reference)| level / reference).collect();
    let relative = stats::median(&mut ratios);

    // Each test has its own tolerance; most of them must agree.
    let line = |g: usize, e: &Expectation| 1.0 - island.tolerance(g, e).max(peel::MIN_EFFECT);
    let mut shares: Vec<f64> =
        expected.iter().map(|(g, level, value, e)| level / value / line(*g, e)).collect();
    let below_fleet = relative.is_some_and(|r| r < 1.0 - peel::MIN_EFFECT);
    let below_expected = stats::median(&mut shares).is_some_and(|share| share < 1.0);
    // Bidirectional tests have a floor only: their combined rate depends on the version of the
    // tool.
    let at_once: Vec<(usize, f64, f64, &Expectation)> = both_ways
        .levels
        .iter()
        .enumerate()
        .filter(|(_, level)| island.is_uniform() && level.is_finite())
        .filter_map(|(g, level)| island.expected_level(g).map(|(value, e)| (g, *level, value, e)))
        .collect();
    let is_under = |(_, level, _, e): &&(usize, f64, f64, &Expectation)| {
        e.floor.is_some_and(|floor| *level < floor)
    };
    let under_floor = expected.iter().chain(&at_once).find(is_under);

    if below_fleet && let Some((group, level, reference)) = nearest_group(&compared, relative) {
        findings.push(low_level_finding(
            island,
            group,
            level,
            RateReference::Peers {
                level: reference,
                expected: island.expected_level(group).map(|(value, _)| value),
            },
            "the median of the other islands of its platform",
        ));
    } else if (below_expected || under_floor.is_some())
        && let Some((group, level, value, e)) = under_floor
            .or_else(|| expected.iter().min_by(|a, b| (a.1 / a.2).total_cmp(&(b.1 / b.2))))
    {
        let against = format!(
            "the expectation ({}, tolerance {}; {})",
            e.derivation,
            format_percent(island.tolerance(*group, e)),
            e.source
        );
        findings.push(low_level_finding(
            island,
            *group,
            *level,
            RateReference::Expected(*value),
            &against,
        ));
    }
    let line_of = |group: usize, e: &Expectation| least_value(line(group, e), e);
    if !below_fleet && !below_expected && under_floor.is_none() {
        doubts.extend(explain_fallen_test(island, &expected, &line_of));
    }
    // A loss common to all parts can be detected by one test.
    let seen = expected.iter().map(|(g, level, _, e)| 1.0 - line_of(*g, e) / level);
    let together = seen.map(|least| least.max(peel::MIN_EFFECT)).reduce(f64::min);
    report_too_fast(island, &expected, findings, notes);
    let mut ratios: Vec<f64> = at_once.iter().map(|(_, level, value, _)| level / value).collect();
    let absolute = absolute.or(stats::median(&mut ratios));
    let ratio = relative.or(absolute)?;
    Some(FabricLevel {
        ratio,
        absolute: absolute.is_some(),
        low: below_fleet || below_expected || under_floor.is_some(),
        meets: absolute.is_some() && !below_expected && under_floor.is_none(),
        detectable_overall: together,
    })
}

/// The minimum rate of the test, in GB/s.
fn least_value(line: f64, expectation: &Expectation) -> f64 {
    expectation.value.unwrap_or(0.0) * line
}

/// A test whose level is below its own threshold while the other tests are as expected: a common
/// loss may appear in that test alone.
fn explain_fallen_test(
    island: &FabricGroup<'_>,
    expected: &[(usize, f64, f64, &Expectation)],
    line_of: &impl Fn(usize, &Expectation) -> f64,
) -> Option<String> {
    // Only a test that can detect one lost link of a GPU, and was read more than once, can
    // contradict the others.
    let links = island.platform?.nvlink.as_ref()?.links;
    let one_link = 1.0 / f64::from(links.max(1));
    let below = expected.iter().filter(|(g, level, _, e)| {
        *level < line_of(*g, e)
            && island.tolerance(*g, e) < one_link
            && 1.0 < island.readings_per_cell(*g)
    });
    let (group, level, value, e) =
        below.min_by(|a, b| (a.1 / a.2).total_cmp(&(b.1 / b.2))).copied()?;
    let place = island.node.as_ref().map_or(island.domain.to_string(), ToString::to_string);
    Some(format!(
        "{} reads {level:.1} of {value:.1} GB/s for all pairs of {place}, {} low where {} are \
         allowed, while the other tests are as expected: either this expectation is wrong here, or \
         all parts lost as much; check the links of every \
         GPU (nvidia-smi nvlink -s) and clocks under load, or use another tool",
        island.reading_groups[group].testcase,
        format_percent(1.0 - level / value),
        format_percent(island.tolerance(group, e)),
    ))
}

/// If path classes differ, the level is each GPU's rate with its best partner, the median over
/// GPUs.
fn best_level(island: &FabricGroup<'_>, group: usize) -> f64 {
    let mut best = vec![0.0_f64; island.gpus.len()];
    for reading in island.directed.iter().filter(|r| r.group == group) {
        best[reading.src] = best[reading.src].max(reading.value);
    }
    best.retain(|b| 0.0 < *b);
    stats::median(&mut best).unwrap_or(0.0)
}

fn nearest_group(compared: &[(usize, f64, f64)], ratio: Option<f64>) -> Option<(usize, f64, f64)> {
    let ratio = ratio?;
    let distance = |c: &(usize, f64, f64)| (c.1 / c.2 - ratio).abs();
    compared.iter().copied().min_by(|a, b| distance(a).total_cmp(&distance(b)))
}

fn low_level_finding(
    island: &FabricGroup<'_>,
    group: usize,
    level: f64,
    held: RateReference,
    against: &str,
) -> Finding {
    let reference = held.value();
    let ratio = level / reference;
    let links = fabric::missing_links_of_group(island, ratio);
    let (locus, what) = match &island.node {
        Some(node) => (node_locus(&island.domain, node), format!("all pairs of {node}")),
        None if links.is_some() => (
            domain_locus(LocusKind::Plane, &island.domain),
            format!("all pairs of {}", island.domain),
        ),
        None => (
            domain_locus(LocusKind::Domain, &island.domain),
            format!("all pairs of {}", island.domain),
        ),
    };
    let class = match (&island.node, &links) {
        (Some(_), _) => FindingClass::NvlinkLow,
        (None, Some(_)) => FindingClass::PlaneLow,
        (None, None) => FindingClass::DomainLow,
    };
    let hint = match links {
        Some(links) => format!(
            "; that fits {links} missing everywhere: a switch plane is out, or clocks are lower \
             by the same share: check the links of every GPU (nvidia-smi nvlink -s)"
        ),
        None => "; no whole number of links fits, so the cause may be clocks, a power limit, or a \
                 wrong expectation: check clocks and power under load (nvidia-smi -q), and use \
                 another tool"
            .to_owned(),
    };
    let summary = format!(
        "{what} are {} low: {level:.1} of {reference:.1} GB/s{hint}",
        format_percent(1.0 - ratio)
    );
    let rule = RuleKind::Level.with_terms(against.to_owned());
    let found = new_finding(Outcome::Degraded, class, locus, rule)
        .with_reference(level, held)
        .with_summary(summary);
    with_group_files(island, group, level, found)
}

/// The same finding with the files behind a group's level.
fn with_group_files(
    island: &FabricGroup<'_>,
    group: usize,
    level: f64,
    mut found: Finding,
) -> Finding {
    let testcase = &island.reading_groups[group].testcase;
    for file in island.files.get(testcase).into_iter().flatten().take(4) {
        let detail = format!("median of all pairs {level:.2} GB/s");
        found = found.with_evidence(&file.file, Some(testcase), detail);
    }
    found
}

/// A level above the capacity of the links is not a sign of health: either the platform or the
/// numbers are wrong.
fn report_too_fast(
    island: &FabricGroup<'_>,
    expected: &[(usize, f64, f64, &Expectation)],
    findings: &mut Vec<Finding>,
    notes: &mut Vec<String>,
) {
    const NOTEWORTHY: f64 = 1.1;
    const ROUNDING: f64 = 1.02;
    let nominal =
        island.platform.and_then(|p| p.nvlink.as_ref()).map(|n| f64::from(n.links) * n.rate);
    let Some((group, level, value, e)) =
        expected.iter().max_by(|a, b| (a.1 / a.2).total_cmp(&(b.1 / b.2)))
    else {
        return;
    };
    let testcase = &island.reading_groups[*group].testcase;
    let platform = island.platform.map_or("", |p| p.name.as_str());
    if let Some(nominal) =
        nominal.filter(|n| n * ROUNDING < *level && e.path == crate::thresholds::TestPath::Nvlink)
    {
        let locus = domain_locus(LocusKind::Instrument, &island.domain);
        let summary = format!(
            "{testcase} reads {level:.1} GB/s in {}, more than the {nominal:.0} GB/s that the \
             links of {platform} carry: the platform or the numbers are wrong: check the products \
             that nvidia-smi -q lists",
            island.domain
        );
        let rule = RuleKind::Ceiling.with_terms("no copy is faster than links x rate");
        let found = new_finding(Outcome::Unknown, FindingClass::AboveNominal, locus, rule)
            .with_numbers(*level, nominal, Unit::GigabytesPerSecond)
            .with_summary(summary);
        findings.push(with_group_files(island, *group, *level, found));
    } else if value * NOTEWORTHY < *level {
        notes.push(format!(
            "{testcase} in {} reads {level:.1} GB/s, {} above the expectation of {platform} \
             ({value:.1})",
            island.domain,
            format_percent(level / value - 1.0)
        ));
    }
}
