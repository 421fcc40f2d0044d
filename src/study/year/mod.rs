//! A year of daily audits of a fleet of racks under one rule: which nodes are drained, and which of
//! them are faulty.
//!
//! Plan, judge and gate are those of live runs (`plan::audit_selection`, `plan::sweep`, `judge`,
//! `policy`); only the world is simulated: fabric, transients, faults, and operators who repair
//! them. A seed determines everything except the rule, so all rules see the same year.

mod document;
mod drift;
mod fault;
mod fleet;
mod gate;
mod meter;
mod rule;
mod score;
mod table;
#[cfg(test)]
mod tests;
mod transients;
mod world;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

pub use document::{YEAR_FORMAT, YearDocument, build_document};
pub use fault::YearFaultClass;
pub use rule::{SchemeSettings, YearRule};
pub use score::{WrongDrainCause, YearClassScore, YearScore, median_and_p95, poisson_limits};
pub use table::{render_csv, render_svg, render_text};
pub use transients::TransientRates;

/// The setting, independent of the rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct YearSetting {
    /// Number of racks with 18 nodes of 4 GPUs.
    pub racks: usize,
    /// Number of days.
    pub days: usize,
    /// Number of independent worlds of that size, each with a year.
    pub worlds: usize,
    /// Seed of everything except the rule.
    pub seed: u64,
    /// Maximum share of a rack's nodes that one audit measures.
    pub share_of_domain: Option<f64>,
    /// Share of nodes that run jobs when an audit begins.
    pub busy: f64,
    /// Frequency of faults, as a multiple of the assumed rates.
    pub fault_factor: f64,
    /// Rates of transients.
    pub transient_rates: TransientRates,
}

impl Default for YearSetting {
    fn default() -> Self {
        Self {
            racks: 100,
            days: 365,
            worlds: 1,
            seed: 1,
            share_of_domain: Some(0.25),
            busy: 0.3,
            fault_factor: 1.0,
            transient_rates: TransientRates::USUAL,
        }
    }
}

/// Simulates the years of these rules, in order, on this many threads; `say` receives a message for
/// each finished world.
pub fn run_years(
    setting: &YearSetting,
    rules: &[YearRule],
    threads: usize,
    note: &(dyn Fn(&str) + Sync),
) -> Vec<(YearRule, YearScore)> {
    let jobs: Vec<(usize, usize)> = (0..setting.worlds)
        .flat_map(|world| (0..rules.len()).map(move |rule| (rule, world)))
        .collect();
    let next = AtomicUsize::new(0);
    let scores = Mutex::new(vec![Vec::new(); rules.len()]);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some((rule, world)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let score = world::run_year(setting, &rules[*rule], *world);
                    note(&format!(
                        "{}, world {} of {}: {} drains, {} of them wrong",
                        rules[*rule].name(),
                        world + 1,
                        setting.worlds,
                        score.drains,
                        score.wrong_drains()
                    ));
                    let mut scores = scores.lock().unwrap_or_else(PoisonError::into_inner);
                    scores[*rule].push((*world, score));
                }
            });
        }
    });
    let scores = scores.into_inner().unwrap_or_else(PoisonError::into_inner);
    rules
        .iter()
        .zip(scores)
        .map(|(rule, mut worlds)| {
            // The last digit of a sum of hours depends on its order.
            worlds.sort_by_key(|(world, _)| *world);
            let mut sum = YearScore::default();
            worlds.iter().for_each(|(_, score)| sum.add(score));
            (rule.clone(), sum)
        })
        .collect()
}
