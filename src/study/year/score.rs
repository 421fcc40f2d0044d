//! What a year came to: who was drained, rightly or not, what was found and when.

use std::collections::BTreeMap;

use super::fault::YearFaultClass;

/// Why a drain was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WrongDrainCause {
    /// Nothing was the matter: noise.
    Noise,
    /// Something passed over it: heat, a stray process, a tray that was rebooted.
    Transient,
    /// The measuring host had a bad day.
    Host,
    /// A part that all of its rack share was at fault.
    Shared,
}

impl WrongDrainCause {
    /// All, in the order of tables.
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

/// What became of the faults of one class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct YearClassScore {
    /// How many there were.
    pub faults: u64,
    /// Days until each was acted on: its node drained, or, of a part that a rack
    /// shares, its rack told of.
    pub acted_on: Vec<f64>,
    /// Days until each was first told of, acted on or not.
    pub reported: Vec<f64>,
    /// Days until a drift chart rang for each, where they were followed.
    pub drift_alarms: Vec<f64>,
    /// Not acted on in two weeks or more.
    pub missed: u64,
    /// Not acted on, in the last two weeks of the year.
    pub open: u64,
}

/// What a year of one rule came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct YearScore {
    /// Days simulated, of all worlds together.
    pub days: u64,
    /// Days of GPUs.
    pub gpu_days: u64,
    /// Nodes that audits measured.
    pub measured: u64,
    /// Nodes that were drained.
    pub drains: u64,
    /// Those that nothing was permanently wrong with, by cause.
    pub wrong_by_cause: BTreeMap<WrongDrainCause, u64>,
    /// The same by the class of what they were drained for.
    pub wrong_by_class: BTreeMap<String, u64>,
    /// Hours for which those were out.
    pub wrong_hours: f64,
    /// Hours for which any were.
    pub hours: f64,
    /// Most that were out at once.
    pub most_out: u64,
    /// Audits that drained nobody because of a common cause.
    pub frozen: u64,
    /// The same by what the gate said, numbers left out.
    pub frozen_by: BTreeMap<String, u64>,
    /// Times that the breaker tripped.
    pub tripped: u64,
    /// Racks in which nobody was drained for a common cause, and drains that a
    /// budget forbade.
    pub stopped: u64,
    /// Times that people stated new levels, since everything was low alike.
    pub level_updates: u64,
    /// Nodes that were low and not confirmed by the second look.
    pub unconfirmed: u64,
    /// Times that a node was left in service until another run says the same.
    pub deferred: u64,
    /// Alarms of drift charts for less, and those of them that nothing permanent was
    /// behind.
    pub drift_alarms: [u64; 2],
    /// By class.
    pub by_class: BTreeMap<YearFaultClass, YearClassScore>,
}

impl YearScore {
    /// Adds another world.
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

    /// Counts an audit that drained nobody, by what the gate said of it.
    pub(super) fn count_freeze(&mut self, why: &str) {
        self.frozen += 1;
        *self.frozen_by.entry(freeze_kind(why)).or_default() += 1;
    }

    /// Wrong drains of all causes.
    pub fn wrong_drains(&self) -> u64 {
        self.wrong_by_cause.values().sum()
    }

    /// A count as a year of a thousand GPUs has it.
    pub fn per_year(&self, count: f64) -> f64 {
        count / (self.gpu_days as f64).max(1.0) * 365.0 * 1_000.0
    }
}

/// What the gate said, without its numbers and names: counts of the same are added.
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

/// The middle of some days, and what one in twenty exceeds.
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

/// Between which numbers the mean of a count lies, with 95 % confidence: exact
/// limits of a Poisson count (Garwood 1936), in the approximation of Wilson and
/// Hilferty (1931), which is within 2 % from a count of 2 on.
pub fn poisson_limits(count: u64) -> [f64; 2] {
    const Z_95: f64 = 1.959_964;
    let chi = |k: f64, z: f64| {
        let part = 1.0 - 1.0 / (9.0 * k) + z / (3.0 * k.sqrt());
        (k * part.powi(3)).max(0.0)
    };
    let count = count as f64;
    // Of none, minus the logarithm of 2.5 %.
    let high = if count < 0.5 { 3.688_9 } else { chi(count + 1.0, Z_95) };
    // Of one, minus the logarithm of 97.5 %.
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
