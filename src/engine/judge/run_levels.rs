//! Levels of runs: a factor that all cells of one run share is not a difference between parts.
//!
//! A disturbed run, or lower clocks during a run, scale all its cells by one factor. Inside an
//! island only differences between cells count, so that factor is removed before spread, trend and
//! blame.

use std::collections::{BTreeMap, BTreeSet};

use super::fabric_group::{FabricGroup, PairReading};
use model::stats;

/// A run defines its own level if it covers this share of the cells of its test.
const MIN_COVERED_SHARE: f64 = 0.5;

/// With fewer cells, the level of a run would be the level of its parts.
const FEWEST_CELLS: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RunLevel {
    /// Index into [`FabricGroup::run_files`].
    pub(super) run: usize,
    /// Relative to the median of all runs of the test.
    pub(super) share: f64,
}

type RunCell = (usize, usize);

/// The values of one test, run by run.
type ValuesByRun = BTreeMap<usize, Vec<(RunCell, f64)>>;

/// The directed readings normalised by the level of each run, and the levels.
pub(super) fn remove_run_levels(island: &FabricGroup<'_>) -> (Vec<PairReading>, Vec<RunLevel>) {
    let mut by_group: Vec<ValuesByRun> = vec![ValuesByRun::new(); island.reading_groups.len()];
    for (reading, run) in island.directed.iter().zip(&island.directed_runs) {
        let value = ((reading.src, reading.dst), reading.value);
        by_group[reading.group].entry(*run).or_default().push(value);
    }
    let by_group: Vec<BTreeMap<usize, f64>> =
        by_group.into_iter().map(estimate_run_levels).collect();
    let mut readings = island.directed.clone();
    for (reading, run) in readings.iter_mut().zip(&island.directed_runs) {
        reading.value /= by_group[reading.group].get(run).copied().unwrap_or(1.0);
    }
    let levels = by_group.into_iter().flatten();
    (readings, levels.map(|(run, share)| RunLevel { run, share }).collect())
}

/// The levels of the runs of one test, if at least two runs cover most of its cells.
fn estimate_run_levels(mut by_run: ValuesByRun) -> BTreeMap<usize, f64> {
    if by_run.len() < 2 {
        return BTreeMap::new();
    }
    let all: BTreeSet<RunCell> = by_run.values().flatten().map(|(cell, _)| *cell).collect();
    #[expect(clippy::cast_precision_loss, reason = "a count of cells")]
    let most = (all.len() as f64 * MIN_COVERED_SHARE).max(FEWEST_CELLS as f64);
    #[expect(clippy::cast_precision_loss, reason = "a count of cells")]
    by_run.retain(|_, cells| most <= cells.len() as f64);
    if by_run.len() < 2 {
        return BTreeMap::new();
    }
    let mut values: BTreeMap<RunCell, Vec<f64>> = BTreeMap::new();
    for (cell, value) in by_run.values().flatten() {
        values.entry(*cell).or_default().push(*value);
    }
    // A cell that only one run has carries no information about that run's level.
    let middles: BTreeMap<RunCell, f64> = values
        .into_iter()
        .filter(|(_, values)| 1 < values.len())
        .filter_map(|(cell, mut values)| Some((cell, stats::median(&mut values)?)))
        .filter(|(_, middle)| 0.0 < *middle)
        .collect();
    let share = |cells: &Vec<(RunCell, f64)>| {
        let shares = cells.iter().filter_map(|(cell, v)| Some(v / middles.get(cell)?));
        stats::median(&mut shares.collect::<Vec<_>>()).filter(|share| 0.0 < *share)
    };
    let mut levels: BTreeMap<usize, f64> =
        by_run.iter().filter_map(|(run, cells)| Some((*run, share(cells)?))).collect();
    let mut middle: Vec<f64> = levels.values().copied().collect();
    let Some(middle) = stats::median(&mut middle) else { return levels };
    levels.values_mut().for_each(|share| *share /= middle);
    levels
}
