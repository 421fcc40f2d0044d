//! Score of a year: correct and wrong drains, and the delays of actions and reports.

use std::collections::BTreeMap;

use super::fault::YearFaultClass;

/// Why a drain was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WrongDrainCause {
    /// Noise alone.
    Noise,
    /// A transient on the node: heat, a stray process, a switch tray reboot.
    Transient,
    /// The measuring host had a transient fault.
    Host,
    /// A part that the whole rack shares was faulty.
    Shared,
}

impl WrongDrainCause {
    /// All causes in table order.
    pub const ALL: [Self; 4] = [Self::Noise, Self::Transient, Self::Host, Self::Shared];

    /// The name in tables and documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Noise => "noise",
            Self::Transient => "passing",
            Self::Host => "measuring host",
            Self::Shared => "shared part",
        }
    }
}

/// Score of one class of faults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct YearClassScore {
    /// Number of faults.
    pub faults: u64,
    /// Days until each action: its node was drained, or a report named the rack that shares the
    /// faulty part.
    pub acted_on: Vec<f64>,
    /// Days until each first report, with or without an action.
    pub reported: Vec<f64>,
    /// Days until each drift alarm, if drift charts are tracked.
    pub drift_alarms: Vec<f64>,
    /// Faults without an action for two weeks or more.
    pub missed: u64,
    /// Faults without an action, in the last two weeks of the year.
    pub open: u64,
}

/// Score of one rule over a year.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct YearScore {
    /// Simulated days of all worlds together.
    pub days: u64,
    /// GPUs times days.
    pub gpu_days: u64,
    /// Nodes that audits measured.
    pub measured: u64,
    /// Nodes that were drained.
    pub drains: u64,
    /// Drains of nodes without a permanent fault, by cause.
    pub wrong_by_cause: BTreeMap<WrongDrainCause, u64>,
    /// Drains of nodes without a permanent fault, by the class of the finding.
    pub wrong_by_class: BTreeMap<String, u64>,
    /// Hours of these drains.
    pub wrong_hours: f64,
    /// Hours of all drains.
    pub hours: f64,
    /// Maximum number of nodes drained at the same time.
    pub most_out: u64,
    /// Audits without drains because of a common cause.
    pub frozen: u64,
    /// Freezes by the gate's reason, without its numbers.
    pub frozen_by: BTreeMap<String, u64>,
    /// Number of times that the breaker tripped.
    pub tripped: u64,
    /// Racks without drains because of a common cause, and drains that a budget prevented.
    pub stopped: u64,
    /// Number of times that operators set new levels, because everything was low by the same share.
    pub level_updates: u64,
    /// Low nodes that the second measurement did not confirm.
    pub unconfirmed: u64,
    /// Number of times that a node stayed in service until another run confirms it.
    pub deferred: u64,
    /// Drift alarms for a decrease, and those of them without a permanent fault.
    pub drift_alarms: [u64; 2],
    /// Scores by class of faults.
    pub by_class: BTreeMap<YearFaultClass, YearClassScore>,
}

impl YearScore {
    /// Adds the score of another world.
    pub fn add(&mut self, other: &Self) {
        self.days += other.days;
        self.gpu_days += other.gpu_days;
        self.measured += other.measured;
        self.drains += other.drains;
        for (cause, count) in &other.wrong_by_cause {
            *self.wrong_by_cause.entry(*cause).or_default() += count;
        }
        for (class, count) in &other.wrong_by_class {
            *self.wrong_by_class.entry(class.clone()).or_default() += count;
        }
        self.wrong_hours += other.wrong_hours;
        self.hours += other.hours;
        self.most_out = self.most_out.max(other.most_out);
        self.frozen += other.frozen;
        for (why, count) in &other.frozen_by {
            *self.frozen_by.entry(why.clone()).or_default() += count;
        }
        self.tripped += other.tripped;
        self.stopped += other.stopped;
        self.level_updates += other.level_updates;
        self.unconfirmed += other.unconfirmed;
        self.deferred += other.deferred;
        self.drift_alarms = [
            self.drift_alarms[0] + other.drift_alarms[0],
            self.drift_alarms[1] + other.drift_alarms[1],
        ];
        for (class, found) in &other.by_class {
            let sum = self.by_class.entry(*class).or_default();
            sum.faults += found.faults;
            sum.acted_on.extend(&found.acted_on);
            sum.reported.extend(&found.reported);
            sum.drift_alarms.extend(&found.drift_alarms);
            sum.missed += found.missed;
            sum.open += found.open;
        }
    }

    /// Counts an audit without drains, by the gate's reason.
    pub(super) fn count_freeze(&mut self, why: &str) {
        self.frozen += 1;
        *self.frozen_by.entry(freeze_kind(why)).or_default() += 1;
    }

    /// Wrong drains of all causes.
    pub fn wrong_drains(&self) -> u64 {
        self.wrong_by_cause.values().sum()
    }

    /// A count scaled to a year of a thousand GPUs.
    pub fn per_year(&self, count: f64) -> f64 {
        count / (self.gpu_days as f64).max(1.0) * 365.0 * 1_000.0
    }
}

/// The gate's reason without numbers and names, so that equal reasons are added up.
fn freeze_kind(why: &str) -> String {
    let mut kind = String::with_capacity(why.len());
    for letter in why.chars() {
        match letter {
            '0'..='9' if kind.ends_with('#') => {}
            '0'..='9' => kind.push('#'),
            other => kind.push(other),
        }
    }
    kind
}

/// Median and 95th percentile of some days.
pub fn median_and_p95(days: &[f64]) -> Option<[f64; 2]> {
    let mut sorted = days.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a place in a list"
        )]
        let place = ((sorted.len() as f64 * share).ceil() as usize).max(1);
        sorted.get(place - 1).copied()
    };
    Some([at(0.5)?, at(0.95)?])
}

/// 95 % confidence limits of the mean of a count: exact limits of a Poisson count (Garwood 1936),
/// in the approximation of Wilson and Hilferty (1931), which is within 2 % from a count of 2 on.
pub fn poisson_limits(count: u64) -> [f64; 2] {
    const Z_95: f64 = 1.959_964;
    let chi = |k: f64, z: f64| {
        let part = 1.0 - 1.0 / (9.0 * k) + z / (3.0 * k.sqrt());
        (k * part.powi(3)).max(0.0)
    };
    let count = count as f64;
    // For a count of zero, minus the logarithm of 2.5 %.
    let high = if count < 0.5 { 3.688_9 } else { chi(count + 1.0, Z_95) };
    // For a count of one, minus the logarithm of 97.5 %.
    let low = match count {
        none if none < 0.5 => 0.0,
        one if one < 1.5 => 0.025_3,
        more => chi(more, -Z_95),
    };
    [low, high]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_counts_are_those_of_the_tables() {
        // Garwood's table: 0, 1, 5, 10, 100.
        let table = [
            (0, 0.0, 3.69),
            (1, 0.03, 5.57),
            (5, 1.62, 11.67),
            (10, 4.80, 18.39),
            (100, 81.4, 121.6),
        ];
        for (count, low, high) in table {
            let [a, b] = poisson_limits(count);
            assert!((a - low).abs() < 0.03 + low * 0.01, "{count}: {a}");
            assert!((b - high).abs() < 0.03 + high * 0.01, "{count}: {b}");
        }
    }

    #[test]
    fn the_late_one_is_that_which_one_in_twenty_exceeds() {
        let days: Vec<f64> = (1..=20).map(f64::from).collect();
        assert_eq!(median_and_p95(&days), Some([10.0, 19.0]));
        assert_eq!(median_and_p95(&[]), None);
    }
}
