//! Takes the readings of the year: the simulated tool's output for today's fabric, with noise, dips
//! and transients of the moment.

use std::collections::BTreeMap;

use super::fleet::{FleetPosition, GPUS, YearFleet};
use super::transients::{ReadingPath, TransientSchedule, day_of};
use crate::instrument::PairSample;
use crate::sweep::StepReader;
use control::sweep::step_outputs;
use engine::plan::PlanStep;
use model::measurement::{Measurement, MeasurementMatrix, MeasurementSeries};
use model::parse_output::{OutputProblemKind, ParseOutput};
use model::tool_recording::ToolRecording;
use model::unit::Unit;
use sim::noise::NoiseKey;

pub(super) type FleetGpu = (FleetPosition, usize);

/// State of parts in addition to the faults of the fabric.
#[derive(Clone, Debug, Default)]
pub(super) struct YearPartState {
    /// Remaining share of a GPU's link rate, if it drifts.
    pub(super) drifted: BTreeMap<FleetGpu, f64>,
    /// Number of replacements of a GPU.
    pub(super) replacements: BTreeMap<FleetGpu, u64>,
}

/// One number as a share of a healthy part's number, the only input of the simple rules. A test
/// without a number counts as 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ReadingRatio {
    pub(super) ends: [FleetGpu; 2],
    pub(super) path: ReadingPath,
    pub(super) ratio: f64,
}

#[derive(Debug)]
pub(super) struct YearMeter<'y> {
    pub(super) fleet: &'y mut YearFleet,
    pub(super) transients: &'y TransientSchedule,
    pub(super) parts: &'y YearPartState,
    /// Key of the noise of this run.
    pub(super) key: NoiseKey,
    /// Time in seconds since the start of the year.
    pub(super) at_s: f64,
    /// Collected numbers, if requested.
    pub(super) ratios: Option<Vec<ReadingRatio>>,
}

impl StepReader for YearMeter<'_> {
    fn read(&mut self, step: &PlanStep, reading: u32) -> (ToolRecording, Vec<PairSample>) {
        let mut parsed = self.fleet.tool_output(step);
        if let Some(driver) = &mut parsed.facts.driver {
            let spot = FleetPosition::from_name(&step.nodes[0]);
            *driver = driver_version(self.transients.driver_count(spot, day_of(self.at_s)));
        }
        let sound = self.ratios.is_some().then(|| self.fleet.healthy_output(step));
        // The key contains nodes and not the step's number, so it is the same in every plan.
        let key = step.nodes.iter().fold(self.key, |key, node| key.with_name(node.as_str()));
        let key = key
            .with_name(&step.probe)
            .with_part(u64::from(step.stage))
            .with_part(u64::from(reading));
        self.apply_to_output(step, &mut parsed, key);
        if let Some(sound) = sound {
            self.record_ratios(step, &parsed, &sound);
        }
        let scope = step_outputs::recording_scope(step).expect("a planned step has a scope");
        let place = match (&step.nodes[..], &step.domain) {
            ([node], _) => format!("nodes/{node}"),
            (_, Some(domain)) => format!("domains/{domain}"),
            _ => "steps".to_owned(),
        };
        let recording = ToolRecording {
            scope,
            file: format!("raw/{place}/{}.{}-{reading}.txt", step.probe, step.step),
            rail: step.rail.clone(),
            stage: Some(step.stage),
            nodes: step.nodes.clone(),
            parsed,
        };
        (recording, Vec::new())
    }

    fn advance_time(&mut self, seconds: f64) {
        self.at_s += seconds;
    }
}

/// The version of the driver after this many updates.
pub(super) fn driver_version(drivers: usize) -> String {
    format!("580.{}.00", 65 + drivers)
}

impl YearMeter<'_> {
    /// Applies the effects of this moment to every number.
    fn apply_to_output(&self, step: &PlanStep, parsed: &mut ParseOutput, key: NoiseKey) {
        for (at, measurement) in parsed.measurements.iter_mut().enumerate() {
            let key = key.with_part(at as u64);
            match measurement {
                Measurement::Matrix(matrix) => self.apply_to_matrix(step, matrix, key),
                Measurement::Series(series) => self.apply_to_series(step, series, key),
                Measurement::Scalar(_) => {}
            }
        }
    }

    fn apply_to_matrix(&self, step: &PlanStep, matrix: &mut MeasurementMatrix, key: NoiseKey) {
        let (path, up) = (matrix_path(matrix), matrix.unit.is_none_or(Unit::is_bandwidth));
        let shape = (matrix.cells.len(), matrix.cells.first().map_or(0, Vec::len));
        let mut sum = 0.0;
        for (row, cells) in matrix.cells.iter_mut().enumerate() {
            for (column, cell) in cells.iter_mut().enumerate() {
                let Some(value) = cell else { continue };
                let ends = cell_ends(step, shape, [row, column]);
                let key = key.with_part(row as u64).with_part(column as u64);
                let factor = self.path_factor(ends, path)
                    * self.transients.noise_factor(path, key, self.at_s);
                *value = round_as_printed(if up { *value * factor } else { *value / factor });
                sum += *value;
            }
        }
        if matrix.sum.is_some() {
            matrix.sum = Some(round_as_printed(sum));
        }
    }

    fn apply_to_series(&self, step: &PlanStep, series: &mut MeasurementSeries, key: NoiseKey) {
        let ends = step.nodes.iter().flat_map(|node| {
            let spot = FleetPosition::from_name(node);
            (0..GPUS).map(move |gpu| (spot, gpu))
        });
        // A collective is as fast as its slowest member.
        let least = ends
            .map(|end| self.end_factor(end, ReadingPath::Collective))
            .fold(f64::INFINITY, f64::min);
        for (at, point) in series.points.iter_mut().enumerate() {
            let noise = self.transients.noise_factor(
                ReadingPath::Collective,
                key.with_part(at as u64),
                self.at_s,
            );
            let factor = least * noise;
            for rate in [&mut point.algbw, &mut point.busbw].into_iter().flatten() {
                *rate = round_as_printed(*rate * factor);
            }
            if let Some(time) = &mut point.time_us {
                *time = round_as_printed(*time / factor);
            }
        }
        series.average_busbw =
            series.average_busbw.map(|average| round_as_printed(average * least));
    }

    fn end_factor(&self, end: FleetGpu, path: ReadingPath) -> f64 {
        let generation = self.parts.replacements.get(&end).copied().unwrap_or(0);
        let drifted = match path {
            ReadingPath::Host => 1.0,
            ReadingPath::Link | ReadingPath::Collective => {
                self.parts.drifted.get(&end).copied().unwrap_or(1.0)
            }
        };
        self.transients.end_factor(end, path, self.at_s, generation) * drifted
    }

    fn path_factor(&self, [a, b]: [FleetGpu; 2], path: ReadingPath) -> f64 {
        let first = self.end_factor(a, path);
        if a == b { first } else { first.min(self.end_factor(b, path)) }
    }

    /// Records every number as a share of a healthy part's number.
    fn record_ratios(&mut self, step: &PlanStep, parsed: &ParseOutput, sound: &ParseOutput) {
        let Some(seen) = &mut self.ratios else { return };
        let is_ill = parsed.has_problem(OutputProblemKind::Error)
            || parsed.has_problem(OutputProblemKind::Corrupt);
        if is_ill || parsed.measurements.len() < sound.measurements.len() {
            for node in &step.nodes {
                let end = (FleetPosition::from_name(node), 0);
                seen.push(ReadingRatio {
                    ends: [end, end],
                    path: ReadingPath::Collective,
                    ratio: 0.0,
                });
            }
            return;
        }
        for (is, must) in parsed.measurements.iter().zip(&sound.measurements) {
            match (is, must) {
                (Measurement::Matrix(is), Measurement::Matrix(must)) => {
                    let shape = (is.cells.len(), is.cells.first().map_or(0, Vec::len));
                    for ((row, column, value), (_, _, sound)) in is.numbers().zip(must.numbers()) {
                        let ends = cell_ends(step, shape, [row, column]);
                        seen.push(ReadingRatio {
                            ends,
                            path: matrix_path(is),
                            ratio: value / sound,
                        });
                    }
                }
                (Measurement::Series(is), Measurement::Series(must)) => {
                    let best = |series: &MeasurementSeries| {
                        series.points.iter().filter_map(|p| p.busbw).fold(0.0, f64::max)
                    };
                    let ratio = best(is) / best(must);
                    for node in &step.nodes {
                        let end = (FleetPosition::from_name(node), 0);
                        seen.push(ReadingRatio {
                            ends: [end, end],
                            path: ReadingPath::Collective,
                            ratio,
                        });
                    }
                }
                _ => {}
            }
        }
    }
}

/// The path that a matrix measured.
fn matrix_path(matrix: &MeasurementMatrix) -> ReadingPath {
    let is_host = matrix.testcase.as_deref().is_some_and(|name| name.contains("host"));
    if is_host { ReadingPath::Host } else { ReadingPath::Link }
}

/// The ends of a cell: ranks count through the nodes of a step.
fn cell_ends(
    step: &PlanStep,
    (rows, columns): (usize, usize),
    [row, column]: [usize; 2],
) -> [FleetGpu; 2] {
    let ranks = step.nodes.len() * GPUS;
    let end = |rank: usize| {
        (FleetPosition::from_name(&step.nodes[(rank / GPUS) % step.nodes.len()]), rank % GPUS)
    };
    if rows == ranks && columns == ranks {
        return [end(row), end(column)];
    }
    let rank = row * columns + column;
    // In a bisection, the partner is half the ranks away; a single GPU's number is its own.
    let other = if 1 < step.nodes.len() { rank + ranks / 2 } else { rank };
    [end(rank), end(other)]
}

/// A number rounded as tools print it.
fn round_as_printed(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
