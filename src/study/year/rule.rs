//! Whom a year drains by which rule: the scheme as a whole with its settings, or
//! a simpler rule on one reading of everything.
//!
//! The simpler rules are given the best they can have: the median of all that was
//! read of a part, the rate of a sound part exactly, and operators who test what
//! they return. They have no budget, as the tools that use them have none.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::fleet::Spot;
use super::meter::End;
use super::meter::Seen;
use super::weather::Path;
use crate::sweep::CONFIRM_AFTER_S;
use engine::policy::policy::Policy;
use model::stats;

/// A rule.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// The scheme as a whole.
    Ours(Box<Ours>),
    /// A part is at fault below this share of what it must deliver.
    Floor(f64),
    /// The same, where a second test with a partner that passed says so again.
    Retest(f64),
    /// A part is at fault this share below the median of its kind.
    Below(f64),
}

/// The scheme with its settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Ours {
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
    pub again_after_s: Option<f64>,
    /// The drift charts are followed too.
    pub drift: bool,
    /// People state new levels where everything is low alike and stays so.
    pub states: bool,
}

impl Default for Ours {
    fn default() -> Self {
        Self {
            name: "fabricgate".to_owned(),
            policy: Policy::default(),
            confirm_after_s: CONFIRM_AFTER_S,
            readings: super::super::READINGS,
            history: false,
            again_after_s: None,
            drift: false,
            states: true,
        }
    }
}

impl Rule {
    /// The name in tables and documents.
    pub fn name(&self) -> String {
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        match self {
            Self::Ours(ours) => ours.name.clone(),
            Self::Floor(least) => format!("floor {}", percent(*least)),
            Self::Retest(least) => format!("retest {}", percent(*least)),
            Self::Below(by) => format!("median - {}", percent(*by)),
        }
    }

    /// Whom a simple rule accuses, by what was seen.
    pub(super) fn accuses(&self, seen: &[Seen]) -> BTreeSet<Spot> {
        let mut all: BTreeMap<(End, Path), Vec<f64>> = BTreeMap::new();
        for one in seen {
            let [a, b] = one.ends;
            all.entry((a, one.path)).or_default().push(one.ratio);
            if a != b {
                all.entry((b, one.path)).or_default().push(one.ratio);
            }
        }
        let parts: BTreeMap<(End, Path), f64> = all
            .into_iter()
            .filter_map(|(part, mut ratios)| Some((part, stats::median(&mut ratios)?)))
            .collect();
        let lines: BTreeMap<Path, f64> = [Path::Link, Path::Host, Path::Together]
            .into_iter()
            .map(|path| (path, self.line(path, &parts)))
            .collect();
        let low = parts.iter().filter(|((_, path), ratio)| **ratio < lines[path]);
        low.map(|(((spot, _), _), _)| *spot).collect()
    }

    /// Below which share a part is at fault.
    fn line(&self, path: Path, parts: &BTreeMap<(End, Path), f64>) -> f64 {
        match self {
            Self::Ours(_) => 0.0,
            Self::Floor(least) | Self::Retest(least) => *least,
            Self::Below(by) => {
                let of_path = parts.iter().filter(|((_, own), _)| *own == path);
                let mut ratios: Vec<f64> = of_path.map(|(_, ratio)| *ratio).collect();
                stats::median(&mut ratios).unwrap_or(1.0) * (1.0 - by)
            }
        }
    }
}
