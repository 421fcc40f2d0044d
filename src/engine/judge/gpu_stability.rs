//! Spread and trend inside fabrics, separate from level: a GPU whose readings scatter far more than
//! those of the others is unstable; one whose readings fall steadily drifts. Neither makes it slow,
//! and neither triggers an action.
//!
//! Needs several readings of the same pairs, in the order they were taken.

use std::collections::BTreeMap;

use super::fabric::FabricJudgement;
use super::fabric_group::FabricGroup;
use super::finding::{gpu_locus, new_finding, round};
use super::finding_set::FindingSet;
use super::level::SMALLEST_FLEET;
use super::{fabric, peel};
use model::finding_class::FindingClass;
use model::finding_rule::RuleKind;
use model::id::NodeName;
use model::stats;
use model::text::format_percent;
use model::verdict::{Finding, Locus, LocusKind, Outcome};

/// The maximum number of evidence entries in a finding of this kind.
pub(super) const MAX_EVIDENCE: usize = 6;

/// With two readings, neither trend nor spread is meaningful.
const FEWEST_READINGS: usize = 3;

/// With fewer partners, the scatter may belong to one of the partners.
const FEWEST_PARTNERS: usize = 3;

/// A spread this many times the usual one belongs to the GPU.
const SPREAD_FACTOR: f64 = 4.0;

/// Spreads below this are those of quiet instruments and are ignored.
pub(super) const NOTEWORTHY: f64 = 0.02;

/// If all pairs scatter this much, the instrument is not quiet: copy engines repeat within 0.1 to 1
/// %.
const NOISY_SPREAD: f64 = 0.08;

/// The text for a level that was present before anything warmed up.
const FROM_THE_FIRST: &str = "it was so from the first reading on";

/// All readings of one pair in one test, in order, relative to their median.
struct StabilityCell {
    ends: [usize; 2],
    shares: Vec<f64>,
    /// Its best reading divided by the level of its group.
    best: f64,
}

struct GpuStability {
    gpu: usize,
    spread: f64,
    /// The best readings of its pairs, relative to the level.
    peak: f64,
    /// Median of each reading over all partners, relative to that of all cells.
    trend: Vec<f64>,
    partners: usize,
}

/// Judges the stability of islands, and of the GPUs in each.
pub(super) fn judge(judged: &[Vec<(FabricGroup<'_>, FabricJudgement)>], ledger: &mut FindingSet) {
    let mut usual: Vec<(&FabricGroup<'_>, f64)> = Vec::new();
    for (island, fabric) in judged.iter().flatten() {
        usual.extend(judge_gpus(island, fabric, ledger).map(|usual| (island, usual)));
    }
    report_noisy(&usual, ledger);
}

/// Judges the GPUs of one island; returns the usual spread of its readings.
fn judge_gpus(
    island: &FabricGroup<'_>,
    fabric: &FabricJudgement,
    ledger: &mut FindingSet,
) -> Option<f64> {
    let cells = collect_cells(fabric);
    let shown: Vec<GpuStability> =
        (0..island.gpus.len()).filter_map(|gpu| summarize_gpu(gpu, &cells)).collect();
    let mut spreads: Vec<f64> = shown.iter().map(|s| s.spread).collect();
    let usual = stats::median(&mut spreads).map(|s| s.max(peel::LEAST_SIGMA))?;
    let mut falls: Vec<f64> = shown.iter().map(|s| relative_fall(&s.trend)).collect();
    // A change in all GPUs comes from the instrument or the environment.
    let common = stats::median(&mut falls).unwrap_or(0.0);
    for shown in &shown {
        #[expect(clippy::cast_precision_loss, reason = "a count of partners")]
        let error = std::f64::consts::SQRT_2 * usual / (shown.partners as f64).sqrt();
        let limits = StabilityLimits {
            common,
            fall: peel::MIN_EFFECT.max(peel::SIGNIFICANCE_Z * error),
            fall_before_last: None,
            noise: error,
            spread: NOTEWORTHY.max(SPREAD_FACTOR * usual),
        };
        match limits.classify(&shown.trend, shown.spread) {
            Some(Instability::Falls) => report_drift(island, shown, &limits, ledger),
            Some(Instability::Scatters) => report_unstable(island, shown, usual, ledger),
            None => note_first_reading(island, shown, ledger),
        }
    }
    Some(usual)
}

/// Reports islands whose readings scatter as a whole: caused by the instrument, other work, or
/// clocks, not by one part.
fn report_noisy(usual: &[(&FabricGroup<'_>, f64)], ledger: &mut FindingSet) {
    let mut platforms: BTreeMap<&str, Vec<(&FabricGroup<'_>, f64)>> = BTreeMap::new();
    for (island, spread) in usual {
        let platform = island.platform.map_or("", |platform| platform.name.as_str());
        platforms.entry(platform).or_default().push((island, *spread));
    }
    for (platform, islands) in platforms {
        let mut spreads: Vec<f64> = islands.iter().map(|(_, spread)| *spread).collect();
        let fleet = stats::median(&mut spreads).filter(|_| SMALLEST_FLEET <= islands.len());
        let is_noisy = |spread: f64| {
            NOISY_SPREAD < spread
                || fleet.is_some_and(|f| NOTEWORTHY.max(SPREAD_FACTOR * f) < spread)
        };
        let noisy: Vec<_> = islands.iter().filter(|(_, spread)| is_noisy(*spread)).collect();
        let Some((first, spread)) = noisy.first() else { continue };
        let rule = RuleKind::Spread.with_terms(format!(
            "the median range of all pairs is more than {SPREAD_FACTOR} times that of other \
             islands of the platform, or {}",
            format_percent(NOISY_SPREAD)
        ));
        let explanation = "this alone is not a fault: the cause may be other work on the GPUs, \
                           changing clocks, or the tool; repeat the test on idle nodes, or with \
                           another tool";
        if SMALLEST_FLEET <= noisy.len() && noisy.len() * 4 >= islands.len() * 3 {
            let summary = format!(
                "readings of one pair lie {} apart in {} of {} islands of {platform}, for every \
                 GPU: {explanation}",
                format_percent(*spread),
                noisy.len(),
                islands.len()
            );
            let locus =
                Locus { peer: Some(platform.to_owned()), ..Locus::new(LocusKind::Instrument) };
            let found = new_finding(Outcome::Unknown, FindingClass::NoisyEverywhere, locus, &rule)
                .with_summary(summary);
            ledger.add(fabric::add_evidence(first, found));
            continue;
        }
        for (island, spread) in &noisy {
            let what = island.node.as_ref().map_or(island.domain.to_string(), ToString::to_string);
            let summary = format!(
                "readings of one pair lie {} apart throughout {what}, for every GPU: {explanation}",
                format_percent(*spread)
            );
            let locus = Locus {
                node: island.node.clone(),
                ..super::finding::domain_locus(LocusKind::Instrument, &island.domain)
            };
            let found = new_finding(Outcome::Unknown, FindingClass::NoisyEverywhere, locus, &rule)
                .with_summary(summary);
            ledger.add(fabric::add_evidence(island, found));
        }
    }
}

/// Notes that a low and steady level was present from the first reading on.
fn note_first_reading(island: &FabricGroup<'_>, stability: &GpuStability, ledger: &mut FindingSet) {
    let id = &island.gpus[stability.gpu];
    let is_level = |f: &Finding| {
        let single = matches!(f.locus.kind, LocusKind::Gpu | LocusKind::Direction);
        let own = f.locus.node.as_ref() == Some(&id.node) && f.locus.gpu == Some(id.gpu);
        f.class == FindingClass::NvlinkLow && single && own && f.measured.is_some()
    };
    ledger.update_of_node(&id.node, |found| {
        if is_level(found) {
            add_from_first_reading(found);
        }
    });
}

/// Notes that the finding holds from the first reading on.
pub(super) fn add_from_first_reading(found: &mut Finding) {
    if !found.from_first_reading {
        found.from_first_reading = true;
        found.summary.push_str("; ");
        found.summary.push_str(FROM_THE_FIRST);
    }
}

/// The relative drop from the first to the last reading.
pub(super) fn relative_fall(trend: &[f64]) -> f64 {
    match trend {
        [first, .., last] if 0.0 < *first => 1.0 - last / first,
        _ => 0.0,
    }
}

/// A problem of a part other than its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instability {
    Scatters,
    Falls,
}

/// The thresholds from which readings of one part exceed noise.
pub(super) struct StabilityLimits {
    /// The fall that all parts have in common.
    pub(super) common: f64,
    /// The fall beyond `common` that is a drift.
    pub(super) fall: f64,
    /// The fall that must be reached before the last reading, if one is needed.
    pub(super) fall_before_last: Option<f64>,
    /// The standard deviation of one step of the trend.
    pub(super) noise: f64,
    /// The spread that is instability.
    pub(super) spread: f64,
}

impl StabilityLimits {
    /// Classifies a part by its trend (its readings in order, relative to their median) and spread.
    pub(super) fn classify(&self, trend: &[f64], spread: f64) -> Option<Instability> {
        let own = |trend: &[f64]| relative_fall(trend) - self.common;
        let before = trend.split_last().map_or(0.0, |(_, before)| own(before));
        let is_drift = self.fall < own(trend)
            && self.fall_before_last.is_none_or(|least| least < before)
            // No reading exceeds the previous one by more than noise.
            && trend.windows(2).all(|two| two[1] <= two[0] + 2.0 * self.noise);
        if is_drift {
            return Some(Instability::Falls);
        }
        (self.spread < spread).then_some(Instability::Scatters)
    }
}

/// Pairs with enough readings, between ends that take part.
fn collect_cells(fabric: &FabricJudgement) -> Vec<StabilityCell> {
    let mut values: BTreeMap<(usize, usize, usize), Vec<f64>> = BTreeMap::new();
    for r in fabric.directed.iter().filter(|r| fabric.active[r.src] && fabric.active[r.dst]) {
        values.entry((r.group, r.src, r.dst)).or_default().push(r.value);
    }
    let often = values.into_iter().filter(|(_, values)| FEWEST_READINGS <= values.len());
    let cell = |((group, src, dst), values): ((usize, usize, usize), Vec<f64>)| {
        let middle = stats::median(&mut values.clone()).filter(|m| 0.0 < *m)?;
        let level = fabric.peeled.levels.get(group).filter(|l| l.is_finite() && 0.0 < **l)?;
        let best = values.iter().copied().fold(f64::NEG_INFINITY, f64::max) / level;
        let shares = values.into_iter().map(|v| v / middle).collect();
        Some(StabilityCell { ends: [src, dst], shares, best })
    };
    often.filter_map(cell).collect()
}

/// Summarises the cells of a GPU; `None` if it has too few partners.
fn summarize_gpu(gpu: usize, cells: &[StabilityCell]) -> Option<GpuStability> {
    let own: Vec<&StabilityCell> = cells.iter().filter(|c| c.ends.contains(&gpu)).collect();
    let mut partners: Vec<usize> =
        own.iter().flat_map(|c| c.ends).filter(|end| *end != gpu).collect();
    partners.sort_unstable();
    partners.dedup();
    let readings = own.iter().map(|c| c.shares.len()).min()?;
    if partners.len() < FEWEST_PARTNERS {
        return None;
    }
    let at = |k: usize| stats::median(&mut own.iter().map(|c| c.shares[k]).collect::<Vec<_>>());
    // The spread of a cell is the distance between its extreme readings; one bad partner does not
    // move the median over cells.
    let range = |c: &&StabilityCell| {
        let high = c.shares.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        high - c.shares.iter().copied().fold(f64::INFINITY, f64::min)
    };
    let spread = stats::median(&mut own.iter().map(range).collect::<Vec<_>>())?;
    let peak = stats::median(&mut own.iter().map(|c| c.best).collect::<Vec<_>>())?;
    Some(GpuStability {
        gpu,
        spread,
        peak,
        trend: (0..readings).filter_map(at).collect(),
        partners: partners.len(),
    })
}

fn report_drift(
    island: &FabricGroup<'_>,
    stability: &GpuStability,
    limits: &StabilityLimits,
    ledger: &mut FindingSet,
) {
    let own = relative_fall(&stability.trend) - limits.common;
    let id = &island.gpus[stability.gpu];
    let steps: Vec<String> = stability.trend.iter().take(8).map(|t| format!("{t:.3}")).collect();
    let summary = format!(
        "GPU {id} fell by {} from its first to its last of {} readings, with {} partners that did \
         not: it drifts, possibly because of heat or a power limit; its level is not yet \
         conclusive",
        format_percent(own),
        stability.trend.len(),
        stability.partners
    );
    let rule = RuleKind::Trend.with_terms(format!(
        "the median over partners falls from the first reading to the last by more than {} beyond \
         what all others do, and never rises between",
        format_percent(limits.fall)
    ));
    let found =
        new_finding(Outcome::Unknown, FindingClass::Drifting, gpu_locus(&island.domain, id), &rule)
            .with_summary(summary);
    let found = Finding { ratio_to_own: Some(round(1.0 - own)), ..found };
    add_finding(
        island,
        stability,
        found,
        format!("readings over their middle: {}", steps.join(", ")),
        ledger,
    );
}

fn report_unstable(
    island: &FabricGroup<'_>,
    stability: &GpuStability,
    usual: f64,
    ledger: &mut FindingSet,
) {
    let id = &island.gpus[stability.gpu];
    let summary = format!(
        "GPU {id} is unstable: its readings of one pair lie {} apart with {} partners, {} is usual \
         here; this concerns spread, not level",
        format_percent(stability.spread),
        stability.partners,
        format_percent(usual)
    );
    let rule = RuleKind::Spread.with_terms(format!(
        "the median range of its pairs is more than {SPREAD_FACTOR} times that of the other GPUs, \
         and {}",
        format_percent(NOTEWORTHY)
    ));
    let found =
        new_finding(Outcome::Unknown, FindingClass::Unstable, gpu_locus(&island.domain, id), &rule)
            .with_summary(summary);
    let detail = format!("median range over {} partners", stability.partners);
    add_finding(island, stability, found, detail, ledger);
}

/// Absorbs findings of low rates on a node that unsteady readings explain (`explained`): they
/// remain as evidence.
pub(super) fn absorb_explained(
    found: &mut Finding,
    node: &NodeName,
    explained: impl Fn(&Finding) -> bool,
    ledger: &mut FindingSet,
) {
    let levels = ledger.take_of_node(node, explained);
    if !levels.is_empty() {
        found.summary.push_str("; low over all readings, normal in its best ones");
    }
    found.evidence.extend(levels.into_iter().flat_map(|level| level.evidence));
}

/// Enters a finding that limits its node to unknown. If the GPU's best readings are normal, the
/// finding also explains a low level.
fn add_finding(
    island: &FabricGroup<'_>,
    stability: &GpuStability,
    mut found: Finding,
    detail: String,
    ledger: &mut FindingSet,
) {
    let (gpu, id) = (stability.gpu, &island.gpus[stability.gpu]);
    let groups = 0..island.reading_groups.len();
    let of =
        |group| Some((island.file_of(group, gpu)?, island.reading_groups[group].testcase.clone()));
    if let Some((file, testcase)) = groups.filter_map(of).next() {
        found = found.with_evidence(file, Some(&testcase), detail);
    }
    let explained = |f: &Finding| {
        let own = f.locus.node.as_ref() == Some(&id.node) && f.locus.gpu == Some(id.gpu);
        let peer = f.locus.peer.as_deref() == Some(id.to_string().as_str());
        let single = matches!(f.locus.kind, LocusKind::Gpu | LocusKind::Direction);
        let pair = f.locus.kind == LocusKind::Pair;
        f.class == FindingClass::NvlinkLow && ((own && (single || pair)) || (peer && pair))
    };
    if 1.0 - peel::MIN_EFFECT <= stability.peak {
        absorb_explained(&mut found, &id.node, explained, ledger);
    }
    found.evidence.truncate(MAX_EVIDENCE);
    ledger.add_doubt(&id.node, found.summary.clone());
    ledger.add(found);
}
