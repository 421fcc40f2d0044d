//! The readings of one run: prepares buffers, times copies, reports numbers, compares data.
//!
//! A number is reported before its data is compared, so that a call that hangs there does not lose
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use super::buffers::{BufferKey, BufferLayout, BufferRole, CopyCallFailure, DataMismatch};
use super::cases::{
    BufferPlace, CopyCase, CopyMeasure, CopyNumber, CopyOperation, CopyRun, NumberBasis,
};
use super::pattern::{CopyPattern, DataDifference, WORD};
use super::session::{CopySession, to_usize};
use super::timing::{CopyLane, LaneError, LaneTimes};
use super::{buffers, pattern, timing};
use crate::probes::driver_error::DriverCallStep;
use crate::probes::protocol::{ProbeEmitter, ProbeMatrixCell, ProbeMessage};
use model::parse_output::OutputProblemKind;
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::ProbeProblem;

/// Size of a latency copy and copies per latency: those of p2pBandwidthLatencyTest (cuda-samples),
/// so that the results are comparable.
const SMALL_BYTES: usize = 16;
const SMALL_COPIES: usize = 100;

/// A prepared copy of a run.
struct PreparedCopy {
    source: BufferKey,
    destination: BufferKey,
    pattern: CopyPattern,
    /// Mismatch that already existed in the source.
    source_mismatch: Option<DataMismatch>,
}

/// A GPU without work for this time may have lowered its clocks. An estimate: the driver does not
/// document it.
const IDLE_AFTER: Duration = Duration::from_millis(20);

impl<'c> CopySession<'c, '_> {
    /// Takes all readings of a run. The outer error means that the output is closed.
    pub(super) fn take_readings(
        &mut self,
        name: &str,
        case: &CopyCase,
        run: &CopyRun,
        emitter: &mut ProbeEmitter<'_>,
    ) -> io::Result<Result<(), CopyCallFailure>> {
        let (bytes, copies) = match case.measure {
            CopyMeasure::Bandwidth => (
                usize::try_from(self.task.buffer_bytes).unwrap_or(usize::MAX) / WORD * WORD,
                to_usize(self.task.copies),
            ),
            CopyMeasure::Latency => (SMALL_BYTES, SMALL_COPIES),
        };
        let (warmup, copies) = (to_usize(self.task.warmup), copies.max(1));
        let what = self.describe_run(run);
        emitter.announce_step(&format!("{name}: {what}: allocating memory"));
        let (mut ready, lanes) =
            match self.prepare_run(run, case.measure, bytes.max(WORD), warmup + copies) {
                Ok(made) => made,
                Err(trouble) => return Ok(Err(trouble)),
            };
        let failed = |run: &CopyRun, LaneError { lane, error }, when: &str| {
            let doing = format!("copying, {name}: {what}, {when}");
            let gpu = run.copies.get(lane).map_or(0, |copy| copy.issuer);
            CopyCallFailure { error, step: DriverCallStep::Copy, action: doing, gpu }
        };
        for (copy, ready) in run.copies.iter().zip(&ready) {
            if let Some(wrong) = ready.source_mismatch {
                let problem = self.wrong_source_problem(name, copy, wrong);
                self.emit_once(problem, emitter)?;
            }
        }
        let gpus: BTreeSet<usize> = run.copies.iter().flat_map(CopyOperation::gpus).collect();
        let readings = self.task.readings.max(1);
        let mut wrong = BTreeSet::new();
        for reading in 0..readings {
            emitter.announce_step(&format!("{name}: {what}: reading {reading}"));
            let stamp = pattern::hash_parts(&[name, &what, &reading.to_string()]);
            for (nth, copy) in ready.iter_mut().enumerate() {
                copy.pattern.stamp = stamp.wrapping_add(u32::try_from(nth).unwrap_or(u32::MAX));
                let keys = (copy.source, copy.destination);
                if let Err(trouble) = self.buffers.prepare(keys, &copy.pattern, &self.gpus) {
                    return Ok(Err(trouble));
                }
            }
            emitter.announce_step(&format!("{name}: {what}: warming up, reading {reading}"));
            // A GPU does not lower its clocks at once: small copies are compared faster than that.
            let is_idle =
                |gpu| self.last_copy.get(gpu).is_none_or(|last| IDLE_AFTER <= last.elapsed());
            let least = if gpus.iter().any(is_idle) { self.task.warmup_ms } else { 0 };
            let least = Duration::from_millis(least.into());
            if let Err(error) = timing::warm_up_lanes(self.cuda, &lanes, least) {
                return Ok(Err(failed(run, error, "warming up")));
            }
            emitter.announce_step(&format!("{name}: {what}: reading {reading}"));
            let times = timing::time_lanes(self.cuda, &lanes, self.gate.as_ref(), (warmup, copies));
            let now = Instant::now();
            self.last_copy.extend(gpus.iter().map(|gpu| (*gpu, now)));
            let times = match times {
                Ok(times) => times,
                Err(error) => return Ok(Err(failed(run, error, &format!("reading {reading}")))),
            };
            self.emit_numbers(case, run, (reading, copies), (&ready, &times), emitter)?;
            emitter.announce_step(&format!("{name}: {what}: comparing reading {reading}"));
            for (nth, copy) in ready.iter().enumerate() {
                // Copies that only generate load are compared once.
                let counts = run.numbers.iter().any(|number| number.basis.includes(nth));
                let is_sound = self.buffers.is_source_intact(copy.source);
                if !(is_sound && (counts || reading + 1 == readings)) {
                    continue;
                }
                let difference = self.buffers.compare(copy.destination, &copy.pattern, &self.gpus);
                match difference {
                    Ok(Some(found)) if wrong.insert(nth) => {
                        let problem =
                            self.wrong_data_problem(name, run.copies[nth], reading, found);
                        emitter.emit(&ProbeMessage::Problem(problem))?;
                    }
                    Ok(_) => {}
                    Err(trouble) => return Ok(Err(trouble)),
                }
            }
        }
        Ok(Ok(()))
    }

    /// Prepares buffers and lanes of a run.
    fn prepare_run(
        &mut self,
        run: &CopyRun,
        measure: CopyMeasure,
        bytes: usize,
        copies: usize,
    ) -> Result<(Vec<PreparedCopy>, Vec<CopyLane<'c>>), CopyCallFailure> {
        let (mut ready, mut lanes) = (Vec::new(), Vec::new());
        let mut used: BTreeMap<(BufferPlace, BufferRole), usize> = BTreeMap::new();
        for copy in &run.copies {
            let gpu = &self.gpus[copy.issuer];
            let bytes = bytes.saturating_mul(copy.size_factor);
            let layout = match measure {
                CopyMeasure::Bandwidth => {
                    BufferLayout::beyond_cache(gpu.cache_bytes, bytes, copies)
                }
                // A latency is measured on a slot that was just used.
                CopyMeasure::Latency => BufferLayout { bytes, slots: 1 },
            };
            let mut next = |place, role| {
                let nth = used.entry((place, role)).or_default();
                *nth += 1;
                BufferKey { place, role, nth: *nth - 1, layout }
            };
            let source = next(copy.from, BufferRole::Source);
            let destination = next(copy.to, BufferRole::Destination);
            let (from, before) = self.buffers.ensure_source(source, &self.gpus)?;
            let to = self.buffers.ensure_buffer(destination, &self.gpus)?;
            let lane = CopyLane::new(self.cuda, gpu.context(), (from, to), layout);
            lanes.push(lane.map_err(|error| {
                let doing = format!("creating a stream on GPU {}", gpu.index());
                CopyCallFailure {
                    error,
                    step: DriverCallStep::Copy,
                    action: doing,
                    gpu: copy.issuer,
                }
            })?);
            let pattern = self.buffers.pattern(source, 0);
            ready.push(PreparedCopy { source, destination, pattern, source_mismatch: before });
        }
        Ok((ready, lanes))
    }

    fn emit_numbers(
        &mut self,
        case: &CopyCase,
        run: &CopyRun,
        (reading, copies): (u32, usize),
        (ready, times): (&[PreparedCopy], &LaneTimes),
        emitter: &mut ProbeEmitter<'_>,
    ) -> io::Result<()> {
        let bytes: Vec<usize> = ready.iter().map(|copy| copy.source.layout.bytes).collect();
        for number in &run.numbers {
            let Some(value) = compute_number(case.measure, number.basis, copies, &bytes, times)
            else {
                let what = "the driver reports a copy time of zero";
                let mut problem =
                    ProbeProblem::new(OutputProblemKind::Error, ProbeProblemClass::NoTime, what);
                problem.testcase = Some(number.testcase.clone());
                self.emit_once(problem, emitter)?;
                continue;
            };
            let cell = self.new_cell(case, number, reading, value);
            emitter.emit(&ProbeMessage::Cell(cell))?;
        }
        Ok(())
    }

    fn new_cell(
        &self,
        case: &CopyCase,
        number: &CopyNumber,
        reading: u32,
        value: f64,
    ) -> ProbeMatrixCell {
        let shape = case.shapes.iter().find(|shape| shape.testcase == number.testcase);
        let shape = shape.expect("a number is of a shape of its test");
        let (row, col) = number.cell;
        ProbeMatrixCell {
            testcase: number.testcase.clone(),
            row: shape.rows[row].clone(),
            col: shape.cols[col].clone(),
            reading,
            value,
        }
    }

    fn describe_run(&self, run: &CopyRun) -> String {
        let one = |copy: &CopyOperation| {
            let from = buffers::place_name(copy.from, &self.gpus);
            format!("{from} to {}", buffers::place_name(copy.to, &self.gpus))
        };
        match run.copies.as_slice() {
            [] => String::new(),
            [only] => one(only),
            [first, rest @ ..] => format!("{} and {} more", one(first), rest.len()),
        }
    }

    fn wrong_data_problem(
        &self,
        name: &str,
        copy: CopyOperation,
        reading: u32,
        wrong: DataMismatch,
    ) -> ProbeProblem {
        let (BufferPlace::Host(to) | BufferPlace::Gpu(to)) = copy.to;
        let (from, there) =
            (buffers::place_name(copy.from, &self.gpus), buffers::place_name(copy.to, &self.gpus));
        let how = describe_difference(wrong.difference);
        let (what, at) = if wrong.is_repeatable {
            let by = self.gpus[copy.issuer].index();
            let what =
                format!("{how} in reading {reading} from {from} to {there}, copied by GPU {by}");
            (what, copy.issuer)
        } else {
            let what = format!(
                "{how} when reading {reading} from {from} to {there} was read back by the host; a \
                 second reading was correct"
            );
            (what, to)
        };
        self.corrupt_problem(name, at, what)
    }

    /// The problem of a source that differs from the data that the host wrote.
    fn wrong_source_problem(
        &self,
        name: &str,
        copy: &CopyOperation,
        wrong: DataMismatch,
    ) -> ProbeProblem {
        let (BufferPlace::Host(at) | BufferPlace::Gpu(at)) = copy.from;
        let (how, from) =
            (describe_difference(wrong.difference), buffers::place_name(copy.from, &self.gpus));
        let what = format!(
            "{how} in {from} after the host wrote and read it, before any test; copies from there \
             are timed and not compared"
        );
        self.corrupt_problem(name, at, what)
    }

    fn corrupt_problem(&self, name: &str, at: usize, what: String) -> ProbeProblem {
        let mut problem =
            ProbeProblem::new(OutputProblemKind::Corrupt, ProbeProblemClass::WrongData, what);
        problem.testcase = Some(name.to_owned());
        problem.gpu = Some(self.gpus[at].index());
        problem
    }
}

fn describe_difference(difference: DataDifference) -> String {
    let DataDifference { words, first, found, expected } = difference;
    let words = if words == 1 { "1 word was".to_owned() } else { format!("{words} words were") };
    format!("{words} wrong (first at byte {first}: {found:#010x} for {expected:#010x})")
}

/// The number of these copies; `None` if their time is zero.
pub(crate) fn compute_number(
    measure: CopyMeasure,
    of: NumberBasis,
    copies: usize,
    bytes: &[usize],
    times: &LaneTimes,
) -> Option<f64> {
    let rate = |bytes: usize, seconds: f64| {
        let moved = bytes as f64 * copies as f64;
        (0.0 < seconds).then(|| moved / seconds / 1e9)
    };
    let one = |nth: usize| rate(*bytes.get(nth)?, *times.each.get(nth)?);
    match (measure, of) {
        (CopyMeasure::Latency, _) => {
            let seconds = *times.each.first()?;
            (0.0 < seconds).then(|| seconds / copies as f64 * 1e6)
        }
        (CopyMeasure::Bandwidth, NumberBasis::One(nth)) => one(nth),
        (CopyMeasure::Bandwidth, NumberBasis::FirstTwo) => Some(one(0)? + one(1)?),
        (CopyMeasure::Bandwidth, NumberBasis::All) => rate(bytes.iter().sum(), times.all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(each: &[f64], all: f64) -> LaneTimes {
        LaneTimes { each: each.to_vec(), all }
    }

    #[test]
    fn bandwidth_is_bytes_copied_once_in_decimal_gigabytes() {
        // 16 copies of 512 MiB in a tenth of a second; a local copy is counted once too.
        let bytes = [512 << 20];
        let got = compute_number(
            CopyMeasure::Bandwidth,
            NumberBasis::One(0),
            16,
            &bytes,
            &times(&[0.1], 0.1),
        );
        assert!((got.expect("a number") - 85.899_345_92).abs() < 1e-9);
    }

    #[test]
    fn a_total_uses_the_overall_time_and_a_sum_the_time_of_each_copy() {
        let bytes = [1_000_000_000, 1_000_000_000];
        let times = times(&[0.5, 1.0], 1.0);
        let of =
            |of| compute_number(CopyMeasure::Bandwidth, of, 1, &bytes, &times).expect("a number");
        assert!((of(NumberBasis::All) - 2.0).abs() < 1e-12);
        assert!((of(NumberBasis::FirstTwo) - 3.0).abs() < 1e-12);
        assert!((of(NumberBasis::One(1)) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_latency_is_the_time_of_one_copy_in_microseconds() {
        let got = compute_number(
            CopyMeasure::Latency,
            NumberBasis::One(0),
            100,
            &[16],
            &times(&[0.000_25], 0.0),
        );
        assert!((got.expect("a number") - 2.5).abs() < 1e-12);
    }

    #[test]
    fn a_time_of_zero_gives_no_number() {
        let nothing = times(&[0.0], 0.0);
        for of in [NumberBasis::One(0), NumberBasis::All, NumberBasis::FirstTwo] {
            assert_eq!(compute_number(CopyMeasure::Bandwidth, of, 1, &[8], &nothing), None);
        }
        assert_eq!(
            compute_number(CopyMeasure::Latency, NumberBasis::One(0), 1, &[8], &nothing),
            None
        );
    }
}
