//! A year of daily audits of a fleet of racks under one rule: who is drained, and
//! whether anything was wrong with it.
//!
//! Plan, judge and gate are those of live runs (`plan::stalest`, `plan::sweep`,
//! `judge`, `act`); only the world is simulated: fabric, weather, what breaks, and
//! the people who repair it. A seed decides everything but the rule, so that all
//! rules meet the same year.

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

/// What is simulated, whatever the rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct YearSetting {
    /// Racks of 18 nodes of 4 GPUs.
    pub racks: usize,
    /// Days.
    pub days: usize,
    /// Worlds of that size, each with a year of its own.
    pub worlds: usize,
    /// Decides everything but the rule.
    pub seed: u64,
    /// Most of the nodes of a rack that one audit measures.
    pub share_of_domain: Option<f64>,
    /// Share of nodes that run jobs when an audit begins.
    pub busy: f64,
    /// How often things break, in multiples of what is assumed.
    pub fault_factor: f64,
    /// What passes.
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

/// The years of these rules, in their order, on so many threads; `say` is told of
/// each world that ended.
pub fn run_years(
    setting: &YearSetting,
    rules: &[YearRule],
    threads: usize,
    say: &(dyn Fn(&str) + Sync),
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
                    say(&format!(
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
            // Sums of hours depend on their order in the last digit.
            worlds.sort_by_key(|(world, _)| *world);
            let mut sum = YearScore::default();
            worlds.iter().for_each(|(_, score)| sum.add(score));
            (rule.clone(), sum)
        })
        .collect()
}
