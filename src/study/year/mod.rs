//! A year of daily audits of a fleet of racks under one rule: who is drained, and
//! whether anything was wrong with it.
//!
//! Plan, judge and gate are those of live runs (`plan::stalest`, `plan::sweep`,
//! `judge`, `act`); only the world is simulated: fabric, weather, what breaks, and
//! the people who repair it. A seed decides everything but the rule, so that all
//! rules meet the same year.

mod document;
mod drift;
mod fleet;
mod gate;
mod meter;
mod rule;
mod score;
mod table;
#[cfg(test)]
mod tests;
mod trouble;
mod weather;
mod world;

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

pub use document::YEAR_FORMAT;
pub use document::YearDocument;
pub use document::json;
pub use rule::Ours;
pub use rule::Rule;
pub use score::Cause;
pub use score::Found;
pub use score::Score;
pub use score::limits;
pub use score::middle_and_late;
pub use table::csv;
pub use table::svg;
pub use table::text;
pub use trouble::Class;
pub use weather::Climate;

/// What is simulated, whatever the rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
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
    pub troubles: f64,
    /// What passes.
    pub climate: Climate,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            racks: 100,
            days: 365,
            worlds: 1,
            seed: 1,
            share_of_domain: Some(0.25),
            busy: 0.3,
            troubles: 1.0,
            climate: Climate::USUAL,
        }
    }
}

/// The years of these rules, in their order, on so many threads; `say` is told of
/// each world that ended.
pub fn years(
    setting: &Setting,
    rules: &[Rule],
    threads: usize,
    say: &(dyn Fn(&str) + Sync),
) -> Vec<(Rule, Score)> {
    let jobs: Vec<(usize, usize)> = (0..setting.worlds)
        .flat_map(|world| (0..rules.len()).map(move |rule| (rule, world)))
        .collect();
    let next = AtomicUsize::new(0);
    let scores = Mutex::new(vec![Vec::new(); rules.len()]);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some((rule, world)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let score = world::year(setting, &rules[*rule], *world);
                    say(&format!(
                        "{}, world {} of {}: {} drains, {} of them wrong",
                        rules[*rule].name(),
                        world + 1,
                        setting.worlds,
                        score.drains,
                        score.wrong()
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
            let mut sum = Score::default();
            worlds.iter().for_each(|(_, score)| sum.add(score));
            (rule.clone(), sum)
        })
        .collect()
}
