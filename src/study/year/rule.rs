//! Rules that drain nodes: the whole scheme with its settings, or a simpler rule on one reading of
//! everything.
//!
//! The simpler rules get the best possible input: the median of all readings of a part, the exact
//! rate of a healthy part, and operators who test a node before they return it. They have no
//! budget, because the tools that use them have none.

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
    /// The whole scheme.
    Scheme(Box<SchemeSettings>),
    /// A part is faulty below this share of its expected rate.
    Floor(f64),
    /// Like `Floor`, if a second test with a partner that passed confirms it.
    Retest(f64),
    /// A part is faulty if it is this share below the median of its kind.
    BelowMedian(f64),
}

/// Settings of the scheme.
#[derive(Clone, Debug, PartialEq)]
pub struct SchemeSettings {
    /// Name of the difference from the defaults.
    pub name: String,
    /// The policy of the gate.
    pub policy: Policy,
    /// Seconds until suspects are measured again.
    pub confirm_after_s: f64,
    /// Readings of a step: minimum and maximum.
    pub readings: [u32; 2],
    /// Use earlier runs as references.
    pub history: bool,
    /// Seconds from an audit to a repeated measurement of its newly slow nodes; if absent, only the
    /// next audits measure them.
    pub repeat_after_s: Option<f64>,
    /// Also track drift charts.
    pub drift: bool,
    /// Operators set new levels if everything stays low by the same share.
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
            Self::Scheme(scheme) => scheme.name.clone(),
            Self::Floor(least) => format!("floor {}", percent(*least)),
            Self::Retest(least) => format!("retest {}", percent(*least)),
            Self::BelowMedian(by) => format!("median - {}", percent(*by)),
        }
    }

    /// The nodes that a simple rule blames.
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

    /// The share below which a part is faulty.
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
