//! The readings of one run: buffers made ready, copies timed, numbers said, data
//! compared.
//!
//! A number is said before the data behind it is compared, so that a call that
//! hangs there does not cost it.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::io;

use super::buffers;
use super::buffers::Key;
use super::buffers::Layout;
use super::buffers::Role;
use super::buffers::Trouble;
use super::buffers::Wrong;
use super::cases;
use super::cases::Case;
use super::cases::Measure;
use super::cases::Number;
use super::cases::Place;
use super::cases::Run;
use super::numbers;
use super::pattern;
use super::pattern::Difference;
use super::pattern::Pattern;
use super::pattern::WORD;
use super::session::Session;
use super::session::count;
use super::timing;
use super::timing::Lane;
use super::timing::LaneError;
use super::timing::Times;
use super::trouble::Step;
use crate::probes::said::Cell;
use crate::probes::said::Line;
use crate::probes::said::Mouth;
use model::parsed::ProblemKind;
use model::probed::ProbeProblem;

/// A small copy, and how many of them a latency is taken over: those of
/// p2pBandwidthLatencyTest (cuda-samples), so that the two can be compared.
const SMALL_BYTES: usize = 16;
const SMALL_COPIES: usize = 100;

/// A copy of a run, made ready.
struct Ready {
    source: Key,
    destination: Key,
    pattern: Pattern,
    /// What was wrong already where it was copied from.
    before: Option<Wrong>,
}

impl<'c> Session<'c, '_> {
    /// All readings of a run. The outer error is that nobody listens.
    pub(super) fn readings(
        &mut self,
        name: &str,
        case: &Case,
        run: &Run,
        mouth: &mut Mouth<'_>,
    ) -> io::Result<Result<(), Trouble>> {
        let (bytes, copies) = match case.measure {
            Measure::Bandwidth => (
                usize::try_from(self.task.buffer_bytes).unwrap_or(usize::MAX) / WORD * WORD,
                count(self.task.copies),
            ),
            Measure::Latency => (SMALL_BYTES, SMALL_COPIES),
        };
        let (warmup, copies) = (count(self.task.warmup), copies.max(1));
        let what = self.describe(run);
        mouth.begin(&format!("{name}: {what}: taking memory"));
        let (mut ready, lanes) =
            match self.ready(run, case.measure, bytes.max(WORD), warmup + copies) {
                Ok(made) => made,
                Err(trouble) => return Ok(Err(trouble)),
            };
        let failed = |run: &Run, LaneError { lane, error }, when: &str| {
            let doing = format!("copying, {name}: {what}, {when}");
            let gpu = run.copies.get(lane).map_or(0, |copy| copy.by);
            Trouble { error, step: Step::Copy, doing, gpu }
        };
        for (copy, ready) in run.copies.iter().zip(&ready) {
            if let Some(wrong) = ready.before {
                let problem = self.wrong_before(name, copy, wrong);
                self.say(problem, mouth)?;
            }
        }
        mouth.begin(&format!("{name}: {what}: first copy"));
        if let Err(error) = timing::prime(self.cuda, &lanes) {
            return Ok(Err(failed(run, error, "for the first time")));
        }
        let readings = self.task.readings.max(1);
        let mut wrong = BTreeSet::new();
        for reading in 0..readings {
            mouth.begin(&format!("{name}: {what}: reading {reading}"));
            let stamp = pattern::name(&[name, &what, &reading.to_string()]);
            for (nth, copy) in ready.iter_mut().enumerate() {
                copy.pattern.stamp = stamp.wrapping_add(u32::try_from(nth).unwrap_or(u32::MAX));
                let keys = (copy.source, copy.destination);
                if let Err(trouble) = self.buffers.prepare(keys, &copy.pattern, &self.gpus) {
                    return Ok(Err(trouble));
                }
            }
            let times = timing::time(self.cuda, &lanes, self.gate.as_ref(), (warmup, copies));
            let times = match times {
                Ok(times) => times,
                Err(error) => return Ok(Err(failed(run, error, &format!("reading {reading}")))),
            };
            self.say_numbers(case, run, (reading, copies), (&ready, &times), mouth)?;
            mouth.begin(&format!("{name}: {what}: comparing reading {reading}"));
            for (nth, copy) in ready.iter().enumerate() {
                // What only disturbs is compared once.
                let counts = run.numbers.iter().any(|number| number.of.includes(nth));
                let is_sound = self.buffers.is_sound(copy.source);
                if !(is_sound && (counts || reading + 1 == readings)) {
                    continue;
                }
                let difference = self.buffers.compare(copy.destination, &copy.pattern, &self.gpus);
                match difference {
                    Ok(Some(found)) if wrong.insert(nth) => {
                        let problem = self.wrong_data(name, run.copies[nth], reading, found);
                        mouth.say(&Line::Problem(problem))?;
                    }
                    Ok(_) => {}
                    Err(trouble) => return Ok(Err(trouble)),
                }
            }
        }
        Ok(Ok(()))
    }

    /// Buffers and lanes of a run.
    fn ready(
        &mut self,
        run: &Run,
        measure: Measure,
        bytes: usize,
        copies: usize,
    ) -> Result<(Vec<Ready>, Vec<Lane<'c>>), Trouble> {
        let (mut ready, mut lanes) = (Vec::new(), Vec::new());
        let mut used: BTreeMap<(Place, Role), usize> = BTreeMap::new();
        for copy in &run.copies {
            let gpu = &self.gpus[copy.by];
            let bytes = bytes.saturating_mul(copy.times);
            let layout = match measure {
                Measure::Bandwidth => Layout::past(gpu.cache_bytes, bytes, copies),
                // A latency is that of a place that was used just before.
                Measure::Latency => Layout { bytes, slots: 1 },
            };
            let mut next = |place, role| {
                let nth = used.entry((place, role)).or_default();
                *nth += 1;
                Key { place, role, nth: *nth - 1, layout }
            };
            let source = next(copy.from, Role::Source);
            let destination = next(copy.to, Role::Destination);
            let (from, before) = self.buffers.have_source(source, &self.gpus)?;
            let to = self.buffers.have(destination, &self.gpus)?;
            let lane = Lane::of(self.cuda, gpu.context(), (from, to), layout);
            lanes.push(lane.map_err(|error| {
                let doing = format!("making a stream on GPU {}", gpu.index());
                Trouble { error, step: Step::Copy, doing, gpu: copy.by }
            })?);
            let pattern = self.buffers.pattern(source, 0);
            ready.push(Ready { source, destination, pattern, before });
        }
        Ok((ready, lanes))
    }

    fn say_numbers(
        &mut self,
        case: &Case,
        run: &Run,
        (reading, copies): (u32, usize),
        (ready, times): (&[Ready], &Times),
        mouth: &mut Mouth<'_>,
    ) -> io::Result<()> {
        let bytes: Vec<usize> = ready.iter().map(|copy| copy.source.layout.bytes).collect();
        for number in &run.numbers {
            let Some(value) = numbers::value(case.measure, number.of, copies, &bytes, times) else {
                let what = "the driver says that copies took no time";
                let mut problem = ProbeProblem::new(ProblemKind::Error, "no-time", what);
                problem.testcase = Some(number.testcase.clone());
                self.say(problem, mouth)?;
                continue;
            };
            let cell = self.cell(case, number, reading, value);
            mouth.say(&Line::Cell(cell))?;
        }
        Ok(())
    }

    fn cell(&self, case: &Case, number: &Number, reading: u32, value: f64) -> Cell {
        let shape = case.shapes.iter().find(|shape| shape.testcase == number.testcase);
        let shape = shape.expect("a number is of a shape of its test");
        let (row, col) = number.at;
        Cell {
            testcase: number.testcase.clone(),
            row: shape.rows[row].clone(),
            col: shape.cols[col].clone(),
            reading,
            value,
        }
    }

    fn describe(&self, run: &Run) -> String {
        let one = |copy: &cases::Copy| {
            let from = buffers::name(copy.from, &self.gpus);
            format!("{from} to {}", buffers::name(copy.to, &self.gpus))
        };
        match run.copies.as_slice() {
            [] => String::new(),
            [only] => one(only),
            [first, rest @ ..] => format!("{} and {} more", one(first), rest.len()),
        }
    }

    fn wrong_data(
        &self,
        name: &str,
        copy: cases::Copy,
        reading: u32,
        wrong: Wrong,
    ) -> ProbeProblem {
        let (Place::Host(to) | Place::Gpu(to)) = copy.to;
        let (from, there) =
            (buffers::name(copy.from, &self.gpus), buffers::name(copy.to, &self.gpus));
        let how = tell(wrong.difference);
        let (what, at) = if wrong.again {
            let by = self.gpus[copy.by].index();
            let what = format!(
                "{how} in reading {reading} from {from} to {there}, where GPU {by} copied it"
            );
            (what, copy.by)
        } else {
            let what = format!(
                "{how} when reading {reading} from {from} to {there} was read back by the host; a \
                 second look found all of it right"
            );
            (what, to)
        };
        self.corrupt(name, at, what)
    }

    /// A source that does not hold what the host put there.
    fn wrong_before(&self, name: &str, copy: &cases::Copy, wrong: Wrong) -> ProbeProblem {
        let (Place::Host(at) | Place::Gpu(at)) = copy.from;
        let (how, from) = (tell(wrong.difference), buffers::name(copy.from, &self.gpus));
        let what = format!(
            "{how} in {from} after the host wrote and read it, before any test; copies from there \
             are timed and not compared"
        );
        self.corrupt(name, at, what)
    }

    fn corrupt(&self, name: &str, at: usize, what: String) -> ProbeProblem {
        let mut problem = ProbeProblem::new(ProblemKind::Corrupt, "wrong-data", what);
        problem.testcase = Some(name.to_owned());
        problem.gpu = Some(self.gpus[at].index());
        problem
    }
}

/// How data differs, in words.
fn tell(difference: Difference) -> String {
    let Difference { words, first, found, expected } = difference;
    let words = if words == 1 { "1 word was".to_owned() } else { format!("{words} words were") };
    format!("{words} wrong (first at byte {first}: {found:#010x} for {expected:#010x})")
}
