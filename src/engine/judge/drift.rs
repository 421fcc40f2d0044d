//! The usual value of a part over runs, and where the part left it: cumulative sums over
//! standardised readings (Page 1954), which detect a step immediately and a drift after some runs.
//!
//! An alarm is a note. It blames no part, changes no outcome and justifies no action: actions
//! follow from a run's own verdict, confirmed in that run.
//!
//! A baseline is never known, only estimated, and a chart that treats an estimate as exact raises
//! many more alarms than its tables state. So readings are standardised as in self-starting charts
//! (Hawkins 1987, Self-starting cusum charts for location and scale, The Statistician 36): each one
//! against those before it, through Student's t. The results are standard normal and independent
//! even for few readings, so the false alarm rate is that of a chart with a known baseline.

use std::collections::BTreeSet;

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

use model::stats;
use model::stats::Cusum;
use model::trend::{
    FabricPartKind, RunChange, RunChangeKind, Trend, TrendAlarm, TrendBaseline, TrendPoint,
};
use model::verdict::Outcome;

/// Fewer points do not form a baseline.
pub const FEWEST: usize = 8;

/// The smallest scatter between runs of a healthy part, as a share. Within one run a tool scatters
/// less (0.064 % in nvbandwidth's own example), and its tail carries no information.
pub const FLOOR: f64 = 0.005;

/// One false alarm per this many runs, over all charts that watch one series for a decrease.
pub const FALSE_ALARM_INTERVAL: f64 = 43_400.0;

/// A larger deviation enters the baseline as if it were this large: one disturbed run must not
/// desensitise the chart.
const CLIP_DEVIATION: f64 = 3.0;

/// An alarm ends after this many consecutive readings that lie closer to the usual value than to
/// the changed one.
const READINGS_TO_RECOVER: u32 = 3;

/// The normal quantile of the smallest probability that rounding leaves.
const MAX_QUANTILE: f64 = 8.0;

/// Share of points left out at each end of the reported mean.
const TRIM_SHARE: f64 = 0.1;

/// The learnt baseline of a part, from its points without a finding.
#[derive(Clone, Debug, Default)]
struct DriftReference {
    since: String,
    values: Vec<f64>,
    count: f64,
    mean: f64,
    squares: f64,
}

impl DriftReference {
    fn starting_at(run: &str) -> Self {
        Self { since: run.to_owned(), ..Self::default() }
    }

    fn has_enough(&self) -> bool {
        FEWEST <= self.values.len()
    }

    /// The standard deviation of the next reading from the mean of these, with its degrees of
    /// freedom.
    fn scale(&self) -> Option<(f64, f64)> {
        let freedom = self.count - 1.0;
        if freedom < 1.0 {
            return None;
        }
        let deviation = (self.squares / freedom).sqrt().max(FLOOR * self.mean.abs());
        let scale = deviation * ((self.count + 1.0) / self.count).sqrt();
        (0.0 < scale).then_some((scale, freedom))
    }

    /// A reading in standard deviations from the usual value.
    fn standardize(&self, value: f64) -> Option<f64> {
        let (scale, freedom) = self.scale()?;
        let t = (value - self.mean) / scale;
        let student = StudentsT::new(0.0, 1.0, freedom).ok()?;
        // The lower tail keeps more digits.
        let out = standard_normal().inverse_cdf(student.cdf(-t.abs())).abs().min(MAX_QUANTILE);
        Some(out.copysign(t))
    }

    /// Learns a reading; clips outliers.
    fn learn(&mut self, value: f64) {
        self.values.push(value);
        let far = |(scale, freedom): (f64, f64)| {
            let student = StudentsT::new(0.0, 1.0, freedom).ok()?;
            Some(scale * student.inverse_cdf(standard_normal().cdf(CLIP_DEVIATION)))
        };
        let value = match self.scale().filter(|_| self.has_enough()).and_then(far) {
            Some(far) => value.clamp(self.mean - far, self.mean + far),
            None => value,
        };
        // Welford 1962.
        self.count += 1.0;
        let off = value - self.mean;
        self.mean += off / self.count;
        self.squares += off * (value - self.mean);
    }

    fn baseline(&self) -> Option<TrendBaseline> {
        let mean = trimmed_mean(&self.values).filter(|_| self.has_enough())?;
        let shares: Vec<f64> = self.values.iter().map(|value| value / mean).collect();
        let spread = stats::spread(&shares, 1.0).filter(|spread| spread.is_finite())?;
        Some(TrendBaseline { mean, spread, count: self.values.len(), since: self.since.clone() })
    }
}

fn standard_normal() -> Normal {
    Normal::standard()
}

/// The mean without the highest and the lowest tenth.
fn trimmed_mean(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of a length"
    )]
    let out = (sorted.len() as f64 * TRIM_SHARE) as usize;
    let kept = &sorted[out..sorted.len() - out];
    #[expect(clippy::cast_precision_loss, reason = "a count of points")]
    let count = kept.len() as f64;
    (!kept.is_empty()).then(|| kept.iter().sum::<f64>() / count)
}

/// The sign of a chart that detects a decrease.
const LESS: f64 = 1.0;
/// The sign of a chart that detects an increase.
const MORE: f64 = -1.0;

#[derive(Clone, Debug)]
struct CusumChart {
    name: &'static str,
    /// The direction it detects.
    sign: f64,
    fresh: Cusum,
    cusum: Cusum,
}

impl CusumChart {
    fn all() -> [Self; 4] {
        let chart = |name, sign, fresh| Self { name, sign, fresh, cusum: fresh };
        [
            chart("fast", LESS, Cusum::STEPS),
            chart("fast", MORE, Cusum::STEPS),
            chart("slow", LESS, Cusum::DRIFTS),
            chart("slow", MORE, Cusum::DRIFTS),
        ]
    }

    fn add(&mut self, deviation: f64) -> bool {
        self.cusum.add(self.sign * deviation)
    }
}

/// The index from which readings deviate together in direction `sign`: the most likely place of a
/// step (maximum likelihood over all places).
fn locate_step(deviations: &[(usize, f64)], sign: f64) -> usize {
    let (mut best, mut most) = (0, f64::NEG_INFINITY);
    let (mut sum, mut count) = (0.0, 0.0);
    for (at, deviation) in deviations.iter().rev() {
        sum -= sign * deviation;
        count += 1.0;
        // The log-likelihood of the best-fitting step size.
        let likely = sum.max(0.0) * sum / count;
        if most < likely {
            (best, most) = (*at, likely);
        }
    }
    best
}

/// The state of monitoring one series.
struct SeriesMonitor<'p> {
    points: &'p [TrendPoint],
    /// The baseline that readings are compared with.
    reference: Option<DriftReference>,
    /// The baseline being learnt to replace it, after a change or an alarm.
    next: Option<DriftReference>,
    /// A change started the new baseline: the old usual value no longer applies, even if readings
    /// still match it.
    is_renewing: bool,
    charts: [CusumChart; 4],
    /// The deviation of each point since the charts restarted, with its index.
    deviations: Vec<(usize, f64)>,
    /// Set while the series is out of its usual range: how many consecutive readings since then
    /// matched it again.
    readings_back: Option<u32>,
    alarms: Vec<TrendAlarm>,
}

/// Fills in the usual value of a series and where it left that value, from its points and the
/// changes between runs.
pub fn assess(trend: &mut Trend) {
    assess_since(trend, i64::MIN);
}

/// The same, given that alarms before `from_unix` (seconds since 1970) are already on record:
/// points were thinned since, and carry less information than at the time.
pub fn assess_since(trend: &mut Trend, from_unix: i64) {
    let mut known = std::mem::take(&mut trend.alarms);
    // By time: the run that first shows a change may not have measured this part.
    let renewed: BTreeSet<&str> = trend
        .changes
        .iter()
        .filter(|changed| renews_baseline(changed, trend.part.kind))
        .map(|changed| changed.at.as_str())
        .collect();
    let mut following = SeriesMonitor {
        points: &trend.points,
        reference: None,
        next: None,
        is_renewing: false,
        charts: CusumChart::all(),
        deviations: Vec::new(),
        readings_back: None,
        alarms: Vec::new(),
    };
    let mut before: Option<&str> = None;
    for (at, point) in trend.points.iter().enumerate() {
        let is_between = |changed: &&str| before.is_some_and(|before| before < *changed);
        let mut until = renewed.range(..=point.at.as_str());
        if until.any(is_between) {
            following.next = Some(DriftReference::starting_at(&point.run));
            following.is_renewing = true;
            following.restart_charts();
        }
        following.follow(at);
        before = Some(&point.at);
    }
    let SeriesMonitor { reference, is_renewing: renewing, mut alarms, readings_back: left, .. } =
        following;
    let is_new = |alarm: &TrendAlarm| {
        let point = trend.points.iter().find(|point| point.run == alarm.run);
        point.is_some_and(|point| from_unix <= point.at_unix)
    };
    alarms.retain(is_new);
    known.append(&mut alarms);
    // A recorded alarm may have been active when it was written; later readings ended it.
    known.iter_mut().for_each(|alarm| alarm.stands = false);
    if let Some(last) = known.last_mut() {
        last.stands = left.is_some();
    }
    // The usual value from before a change is no longer reported.
    trend.baseline = reference.filter(|_| !renewing).and_then(|reference| reference.baseline());
    trend.alarms = known;
}

/// Whether a change invalidates a part's earlier readings as a baseline.
pub fn renews_baseline(changed: &RunChange, kind: FabricPartKind) -> bool {
    match changed.kind {
        RunChangeKind::Driver | RunChangeKind::Firmware => true,
        // A domain's level is its median: one GPU with another serial does not move it.
        RunChangeKind::Hardware => kind != FabricPartKind::Domain,
        // fabricgate only starts the tools that measure.
        RunChangeKind::Tool => changed.what != OWN_TOOL,
        RunChangeKind::Slot
        | RunChangeKind::Neighbour
        | RunChangeKind::Boot
        | RunChangeKind::Claim
        | RunChangeKind::Thresholds => false,
    }
}

/// fabricgate's own name in the list of tool versions.
pub const OWN_TOOL: &str = "fabricgate";

/// Whether a run had a finding against a part.
fn had_finding(point: &TrendPoint) -> bool {
    point.outcome.is_some_and(|outcome| Outcome::Unknown < outcome)
}

impl SeriesMonitor<'_> {
    fn follow(&mut self, at: usize) {
        let point = &self.points[at];
        if !point.value.is_finite() {
            return;
        }
        let reference = self.reference.as_ref().filter(|reference| reference.has_enough());
        let deviation = reference.and_then(|reference| reference.standardize(point.value));
        let is_learned = deviation.is_some_and(|deviation| self.update_charts(at, deviation));
        if is_learned || had_finding(point) {
            return;
        }
        match &mut self.next {
            Some(next) => {
                next.learn(point.value);
                if next.has_enough() {
                    self.reference = self.next.take();
                    self.is_renewing = false;
                    self.restart_charts();
                }
            }
            None => {
                let reference = &mut self.reference;
                let since = || DriftReference::starting_at(&point.run);
                reference.get_or_insert_with(since).learn(point.value);
            }
        }
    }

    /// Compares a reading with the baseline. Returns whether the next baseline already includes it.
    fn update_charts(&mut self, at: usize, deviation: f64) -> bool {
        if let Some(usual) = &mut self.readings_back {
            let reference = self.reference.as_ref().map_or(f64::NAN, |reference| reference.mean);
            let shift = self.alarms.last().map_or(f64::NAN, |alarm| alarm.shift);
            let way = (self.points[at].value / reference - 1.0) / shift;
            *usual = if way < 0.5 { *usual + 1 } else { 0 };
            if READINGS_TO_RECOVER <= *usual {
                // The series recovered: readings learnt meanwhile are not the usual value.
                self.next = self.next.take().filter(|_| self.is_renewing);
                self.restart_charts();
            }
            return false;
        }
        self.deviations.push((at, deviation));
        let over_limit: Vec<usize> =
            (0..self.charts.len()).filter(|chart| self.charts[*chart].add(deviation)).collect();
        // The fast charts come first: a change that both detect is a step.
        let Some(chart) = over_limit.first().map(|chart| &self.charts[*chart]) else {
            return false;
        };
        let usual = self.reference.as_ref().map(|reference| reference.mean);
        let Some(usual) = usual else { return false };
        // Points without a number lie in between, and belong to no level.
        let since: Vec<&TrendPoint> = self.points[locate_step(&self.deviations, chart.sign)..=at]
            .iter()
            .filter(|point| point.value.is_finite())
            .collect();
        #[expect(clippy::cast_precision_loss, reason = "a count of points")]
        let mean = since.iter().map(|point| point.value).sum::<f64>() / since.len() as f64;
        let point = &self.points[at];
        self.alarms.push(TrendAlarm {
            run: point.run.clone(),
            at: point.at.clone(),
            since: since[0].run.clone(),
            shift: mean / usual - 1.0,
            statistic: chart.cusum.sum(),
            chart: chart.name.to_owned(),
            stands: false,
        });
        self.readings_back = Some(0);
        let begins = self.next.is_none();
        if begins {
            let mut next = DriftReference::starting_at(&since[0].run);
            since.iter().filter(|p| !had_finding(p)).for_each(|p| next.learn(p.value));
            self.next = Some(next);
        }
        begins
    }

    fn restart_charts(&mut self) {
        self.readings_back = None;
        self.deviations.clear();
        for chart in &mut self.charts {
            chart.cusum = chart.fresh;
        }
    }
}

#[cfg(test)]
#[path = "drift_tests.rs"]
mod tests;
