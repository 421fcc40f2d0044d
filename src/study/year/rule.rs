//! Whom a year drains by which rule: the scheme as a whole with its settings, or
//! a simpler rule on one reading of everything.
//!
//! The simpler rules are given the best they can have: the median of all that was
//! read of a part, the rate of a sound part exactly, and operators who test what
//! they return. They have no budget, as the tools that use them have none.

use std::collections::{BTreeMap, BTreeSet};

use super::fleet::FleetPosition;
use super::meter::{FleetGpu, ReadingRatio};
use super::transients::ReadingPath;
use crate::sweep::CONFIRM_AFTER_S;
use engine::policy::action_policy::Policy;
use model::stats;

/// A rule.
#[derive(Clone, Debug, PartialEq)]
pub enum YearRule {
    /// The scheme as a whole.
    Scheme(Box<SchemeSettings>),
    /// A part is at fault below this share of what it must deliver.
    Floor(f64),
    /// The same, where a second test with a partner that passed says so again.
    Retest(f64),
    /// A part is at fault this share below the median of its kind.
    BelowMedian(f64),
}

/// The scheme with its settings.
#[derive(Clone, Debug, PartialEq)]
pub struct SchemeSettings {
    /// What is not as it is by default, for people.
    pub name: String,
    /// The policy of the gate.
    pub policy: Policy,
    /// Seconds until suspects are measured again.
    pub confirm_after_s: f64,
    /// Readings of a step: always, and at most.
    pub readings: [u32; 2],
    /// Earlier runs are among the references.
    pub history: bool,
    /// Seconds after an audit until whom it was the first to find slow is measured
    /// again; with the next audits only, where absent.
    pub repeat_after_s: Option<f64>,
    /// The drift charts are followed too.
    pub drift: bool,
    /// People state new levels where everything is low alike and stays so.
    pub restates_levels: bool,
}

impl Default for SchemeSettings {
    fn default() -> Self {
        Self {
            name: "fabricgate".to_owned(),
            policy: Policy::default(),
            confirm_after_s: CONFIRM_AFTER_S,
            readings: super::super::READINGS,
            history: false,
            repeat_after_s: None,
            drift: false,
            restates_levels: true,
        }
    }
}

impl YearRule {
    /// The name in tables and documents.
    pub fn name(&self) -> String {
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        match self {
            Self::Scheme(ours) => ours.name.clone(),
            Self::Floor(least) => format!("floor {}", percent(*least)),
            Self::Retest(least) => format!("retest {}", percent(*least)),
            Self::BelowMedian(by) => format!("median - {}", percent(*by)),
        }
    }

    /// Whom a simple rule accuses, by what was seen.
    pub(super) fn accused_nodes(&self, seen: &[ReadingRatio]) -> BTreeSet<FleetPosition> {
        let mut all: BTreeMap<(FleetGpu, ReadingPath), Vec<f64>> = BTreeMap::new();
        for one in seen {
            let [a, b] = one.ends;
            all.entry((a, one.path)).or_default().push(one.ratio);
            if a != b {
                all.entry((b, one.path)).or_default().push(one.ratio);
            }
        }
        let parts: BTreeMap<(FleetGpu, ReadingPath), f64> = all
            .into_iter()
            .filter_map(|(part, mut ratios)| Some((part, stats::median(&mut ratios)?)))
            .collect();
        let lines: BTreeMap<ReadingPath, f64> =
            [ReadingPath::Link, ReadingPath::Host, ReadingPath::Collective]
                .into_iter()
                .map(|path| (path, self.threshold(path, &parts)))
                .collect();
        let low = parts.iter().filter(|((_, path), ratio)| **ratio < lines[path]);
        low.map(|(((spot, _), _), _)| *spot).collect()
    }

    /// Below which share a part is at fault.
    fn threshold(&self, path: ReadingPath, parts: &BTreeMap<(FleetGpu, ReadingPath), f64>) -> f64 {
        match self {
            Self::Scheme(_) => 0.0,
            Self::Floor(least) | Self::Retest(least) => *least,
            Self::BelowMedian(by) => {
                let of_path = parts.iter().filter(|((_, own), _)| *own == path);
                let mut ratios: Vec<f64> = of_path.map(|(_, ratio)| *ratio).collect();
                stats::median(&mut ratios).unwrap_or(1.0) * (1.0 - by)
            }
        }
    }
}
