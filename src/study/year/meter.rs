//! Takes the readings of the year: what the simulated tool prints for the fabric
//! as it is today, with the noise, the dips and the weather of the moment.

use std::collections::BTreeMap;

use super::fleet::Fleet;
use super::fleet::GPUS;
use super::fleet::Spot;
use super::weather::Path;
use super::weather::Weather;
use super::weather::day_of;
use crate::instrument::Sample;
use crate::sweep::Reader;
use control::sweep::outputs;
use engine::plan::Step;
use model::measurement::Matrix;
use model::measurement::Measurement;
use model::measurement::Series;
use model::parsed::Parsed;
use model::parsed::ProblemKind;
use model::recording::Recording;
use model::unit::Unit;
use sim::noise::Key;

/// One GPU of the fleet.
pub(super) type End = (Spot, usize);

/// What parts show besides the faults that the fabric knows.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    /// What is left of a GPU's links, where it drifts.
    pub(super) drifted: BTreeMap<End, f64>,
    /// How many GPUs were put in a place.
    pub(super) generation: BTreeMap<End, u64>,
}

/// One number as a share of what a sound part shows, for rules that look at
/// nothing else. A test that gives no number gives 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) ends: [End; 2],
    pub(super) path: Path,
    pub(super) ratio: f64,
}

/// Takes readings, while time goes on.
#[derive(Debug)]
pub(super) struct Meter<'y> {
    pub(super) fleet: &'y mut Fleet,
    pub(super) weather: &'y Weather,
    pub(super) parts: &'y Parts,
    /// Of the noise of this run.
    pub(super) key: Key,
    /// The moment, in seconds since the year began.
    pub(super) at_s: f64,
    /// What was seen, where somebody wants it.
    pub(super) seen: Option<Vec<Seen>>,
}

impl Reader for Meter<'_> {
    fn read(&mut self, step: &Step, reading: u32) -> (Recording, Vec<Sample>) {
        let mut parsed = self.fleet.output(step);
        if let Some(driver) = &mut parsed.facts.driver {
            let spot = Spot::of(&step.nodes[0]);
            *driver = version(self.weather.drivers(spot, day_of(self.at_s)));
        }
        let sound = self.seen.is_some().then(|| self.fleet.sound(step));
        // Nodes and not the number of the step: the same in every plan.
        let key = step.nodes.iter().fold(self.key, |key, node| key.named(node.as_str()));
        let key = key.named(&step.probe).with(u64::from(step.stage)).with(u64::from(reading));
        self.put(step, &mut parsed, key);
        if let Some(sound) = sound {
            self.compare(step, &parsed, &sound);
        }
        let scope = outputs::scope(step).expect("a planned step has a scope");
        let place = match (&step.nodes[..], &step.domain) {
            ([node], _) => format!("nodes/{node}"),
            (_, Some(domain)) => format!("domains/{domain}"),
            _ => "steps".to_owned(),
        };
        let recording = Recording {
            scope,
            file: format!("raw/{place}/{}.{}-{reading}.txt", step.probe, step.step),
            rail: step.rail.clone(),
            stage: Some(step.stage),
            nodes: step.nodes.clone(),
            parsed,
        };
        (recording, Vec::new())
    }

    fn passed(&mut self, seconds: f64) {
        self.at_s += seconds;
    }
}

/// The version of the driver after so many new ones.
pub(super) fn version(drivers: usize) -> String {
    format!("580.{}.00", 65 + drivers)
}

impl Meter<'_> {
    /// Puts what happens at this moment on every number.
    fn put(&self, step: &Step, parsed: &mut Parsed, key: Key) {
        for (at, measurement) in parsed.measurements.iter_mut().enumerate() {
            let key = key.with(at as u64);
            match measurement {
                Measurement::Matrix(matrix) => self.put_matrix(step, matrix, key),
                Measurement::Series(series) => self.put_series(step, series, key),
                Measurement::Scalar(_) => {}
            }
        }
    }

    fn put_matrix(&self, step: &Step, matrix: &mut Matrix, key: Key) {
        let (path, up) = (path(matrix), matrix.unit.is_none_or(Unit::is_bandwidth));
        let shape = (matrix.cells.len(), matrix.cells.first().map_or(0, Vec::len));
        let mut sum = 0.0;
        for (row, cells) in matrix.cells.iter_mut().enumerate() {
            for (column, cell) in cells.iter_mut().enumerate() {
                let Some(value) = cell else { continue };
                let ends = ends(step, shape, [row, column]);
                let key = key.with(row as u64).with(column as u64);
                let factor = self.of_ends(ends, path) * self.weather.noise(path, key, self.at_s);
                *value = printed(if up { *value * factor } else { *value / factor });
                sum += *value;
            }
        }
        if matrix.sum.is_some() {
            matrix.sum = Some(printed(sum));
        }
    }

    fn put_series(&self, step: &Step, series: &mut Series, key: Key) {
        let ends = step.nodes.iter().flat_map(|node| {
            let spot = Spot::of(node);
            (0..GPUS).map(move |gpu| (spot, gpu))
        });
        // A collective is as fast as its slowest member.
        let least = ends.map(|end| self.of_end(end, Path::Together)).fold(f64::INFINITY, f64::min);
        for (at, point) in series.points.iter_mut().enumerate() {
            let noise = self.weather.noise(Path::Together, key.with(at as u64), self.at_s);
            let factor = least * noise;
            for rate in [&mut point.algbw, &mut point.busbw].into_iter().flatten() {
                *rate = printed(*rate * factor);
            }
            if let Some(time) = &mut point.time_us {
                *time = printed(*time / factor);
            }
        }
        series.average_busbw = series.average_busbw.map(|average| printed(average * least));
    }

    fn of_end(&self, end: End, path: Path) -> f64 {
        let generation = self.parts.generation.get(&end).copied().unwrap_or(0);
        let drifted = match path {
            Path::Host => 1.0,
            Path::Link | Path::Together => self.parts.drifted.get(&end).copied().unwrap_or(1.0),
        };
        self.weather.end(end, path, self.at_s, generation) * drifted
    }

    fn of_ends(&self, [a, b]: [End; 2], path: Path) -> f64 {
        let first = self.of_end(a, path);
        if a == b { first } else { first.min(self.of_end(b, path)) }
    }

    /// Every number as a share of what a sound part shows.
    fn compare(&mut self, step: &Step, parsed: &Parsed, sound: &Parsed) {
        let Some(seen) = &mut self.seen else { return };
        let is_ill = parsed.has(ProblemKind::Error) || parsed.has(ProblemKind::Corrupt);
        if is_ill || parsed.measurements.len() < sound.measurements.len() {
            for node in &step.nodes {
                let end = (Spot::of(node), 0);
                seen.push(Seen { ends: [end, end], path: Path::Together, ratio: 0.0 });
            }
            return;
        }
        for (is, must) in parsed.measurements.iter().zip(&sound.measurements) {
            match (is, must) {
                (Measurement::Matrix(is), Measurement::Matrix(must)) => {
                    let shape = (is.cells.len(), is.cells.first().map_or(0, Vec::len));
                    for ((row, column, value), (_, _, sound)) in is.numbers().zip(must.numbers()) {
                        let ends = ends(step, shape, [row, column]);
                        seen.push(Seen { ends, path: path(is), ratio: value / sound });
                    }
                }
                (Measurement::Series(is), Measurement::Series(must)) => {
                    let best = |series: &Series| {
                        series.points.iter().filter_map(|p| p.busbw).fold(0.0, f64::max)
                    };
                    let ratio = best(is) / best(must);
                    for node in &step.nodes {
                        let end = (Spot::of(node), 0);
                        seen.push(Seen { ends: [end, end], path: Path::Together, ratio });
                    }
                }
                _ => {}
            }
        }
    }
}

/// What a matrix was read over.
fn path(matrix: &Matrix) -> Path {
    let is_host = matrix.testcase.as_deref().is_some_and(|name| name.contains("host"));
    if is_host { Path::Host } else { Path::Link }
}

/// Between whom a cell is: ranks count through the nodes of a step.
fn ends(step: &Step, (rows, columns): (usize, usize), [row, column]: [usize; 2]) -> [End; 2] {
    let ranks = step.nodes.len() * GPUS;
    let end = |rank: usize| (Spot::of(&step.nodes[(rank / GPUS) % step.nodes.len()]), rank % GPUS);
    if rows == ranks && columns == ranks {
        return [end(row), end(column)];
    }
    let rank = row * columns + column;
    // In a bisection each has its partner half the ranks away; one number of a
    // GPU alone is its own.
    let other = if 1 < step.nodes.len() { rank + ranks / 2 } else { rank };
    [end(rank), end(other)]
}

/// A number as tools print it.
fn printed(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
