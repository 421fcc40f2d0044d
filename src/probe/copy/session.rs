//! One process's work: tests one after the other, each run reading by reading,
//! everything said as soon as it is known.
//!
//! A call that fails costs the run it was made for. A GPU that answers no more
//! costs the runs it takes part in; the others go on.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::io;

use super::buffers;
use super::buffers::Buffers;
use super::buffers::Key;
use super::buffers::Layout;
use super::buffers::Role;
use super::buffers::Trouble;
use super::cases;
use super::cases::Case;
use super::cases::Measure;
use super::cases::Number;
use super::cases::Of;
use super::cases::Place;
use super::cases::Refusal;
use super::cases::Run;
use super::devices::Gpu;
use super::pattern;
use super::pattern::Difference;
use super::pattern::Pattern;
use super::pattern::WORD;
use super::peers::Peers;
use super::task::Task;
use super::timing;
use super::timing::Gate;
use super::timing::Lane;
use super::timing::LaneError;
use super::timing::Times;
use super::trouble;
use super::trouble::Step;
use crate::ffi::cuda::Cuda;
use crate::ffi::cuda::CudaError;
use crate::model::parsed::ProblemKind;
use crate::model::probed::ProbeProblem;
use crate::probe::said::Cell;
use crate::probe::said::Line;
use crate::probe::said::Mouth;

/// A small copy, and how many of them a latency is taken over: those of
/// p2pBandwidthLatencyTest, so that the two can be compared.
const SMALL_BYTES: usize = 16;
const SMALL_COPIES: usize = 100;

/// GPUs, buffers and what was said of them.
#[derive(Debug)]
pub(super) struct Session<'c, 't> {
    cuda: &'c Cuda,
    task: &'t Task,
    // Buffers and the gate go before the GPUs whose contexts they are of.
    buffers: Buffers<'c>,
    gate: Option<Gate<'c>>,
    gpus: Vec<Gpu<'c>>,
    peers: Option<Peers>,
    lost: BTreeSet<usize>,
    said: BTreeSet<(String, Option<u32>, Option<String>)>,
    failed: bool,
}

/// A copy of a run, made ready.
struct Ready {
    source: Key,
    destination: Key,
    pattern: Pattern,
}

impl<'c, 't> Session<'c, 't> {
    /// A session with these GPUs. What went wrong before is said already.
    pub(super) fn new(cuda: &'c Cuda, task: &'t Task, gpus: Vec<Gpu<'c>>, failed: bool) -> Self {
        Self {
            cuda,
            task,
            buffers: Buffers::new(cuda, &task.node, &task.root),
            gate: None,
            gpus,
            peers: None,
            lost: BTreeSet::new(),
            said: BTreeSet::new(),
            failed,
        }
    }

    /// Runs all tests. Answers whether everything was measured that was asked for.
    pub(super) fn run(&mut self, mouth: &mut Mouth<'_>) -> io::Result<bool> {
        self.prepare_gate(mouth)?;
        for name in &self.task.tests {
            self.test(name, mouth)?;
            self.buffers.clear();
        }
        Ok(!self.failed)
    }

    fn prepare_gate(&mut self, mouth: &mut Mouth<'_>) -> io::Result<()> {
        mouth.begin("trying whether streams can wait for a word");
        let gate = self.gpus.first().map(|gpu| Gate::near(self.cuda, gpu));
        let mut why = match &gate {
            Some(Err(error)) => Some(error.to_string()),
            _ => None,
        };
        if let Some(Ok(gate)) = gate {
            for at in 0..self.gpus.len() {
                match gate.holds(&self.gpus[at]) {
                    Ok(true) => {}
                    Ok(false) => why = Some("the driver cannot hold streams here".to_owned()),
                    Err(error) => {
                        let doing = format!("having GPU {} wait", self.gpus[at].index());
                        self.lose(at, &error, &doing, mouth)?;
                    }
                }
            }
            self.gate = why.is_none().then_some(gate);
        }
        let (warmup, copies) = (count(self.task.warmup), count(self.task.copies));
        if !timing::can_be_held(warmup, copies) {
            why.get_or_insert("these are too many copies to hold back".to_owned());
        }
        let Some(why) = why else { return Ok(()) };
        let value = format!("copies start as they are enqueued: {why}");
        mouth.say(&Line::Note { name: "start".to_owned(), value })
    }

    /// A GPU is not used any more.
    fn lose(
        &mut self,
        at: usize,
        error: &CudaError,
        doing: &str,
        mouth: &mut Mouth<'_>,
    ) -> io::Result<()> {
        self.lost.insert(at);
        let mut problem = trouble::problem(error, Step::Copy, doing);
        problem.gpu = Some(self.gpus[at].index());
        self.say(problem, mouth)
    }

    fn test(&mut self, name: &str, mouth: &mut Mouth<'_>) -> io::Result<()> {
        let labels: Vec<String> = self.gpus.iter().map(|gpu| gpu.index().to_string()).collect();
        let nobody = |_: usize, _: usize| false;
        // What needs no pairs is not to wait for them.
        if cases::needs_pairs(name) && 1 < labels.len() {
            self.join(mouth)?;
        }
        let case = match &self.peers {
            Some(peers) => cases::case(name, &labels, &|a, b| peers.reach(a, b)),
            None => cases::case(name, &labels, &nobody),
        };
        let case = match case {
            Ok(case) => case,
            Err(refusal) => return self.refuse(refusal, name, mouth),
        };
        for shape in &case.shapes {
            mouth.say(&Line::Test(shape.clone()))?;
        }
        if case.runs.is_empty() {
            let what = "no two of these GPUs reach each other's memory";
            let mut problem = ProbeProblem::new(ProblemKind::Waived, "no-peer-access", what);
            problem.testcase = Some(name.to_owned());
            return self.say(problem, mouth);
        }
        for run in &case.runs {
            if self.ends(run).any(|gpu| self.lost.contains(&gpu)) {
                continue;
            }
            if let Err(trouble) = self.readings(name, &case, run, mouth)? {
                self.explain(name, run, trouble, mouth)?;
            }
        }
        Ok(())
    }

    fn join(&mut self, mouth: &mut Mouth<'_>) -> io::Result<()> {
        if self.peers.is_some() {
            return Ok(());
        }
        mouth.begin("letting GPUs reach each other");
        let (peers, problems) = Peers::join(self.cuda, &self.gpus);
        // Where nobody reaches anybody, each test says so once.
        let nobody = peers.is_empty();
        self.peers = Some(peers);
        for problem in problems {
            if !(nobody && problem.kind == ProblemKind::Waived) {
                self.say(problem, mouth)?;
            }
        }
        Ok(())
    }

    fn refuse(&mut self, refusal: Refusal, name: &str, mouth: &mut Mouth<'_>) -> io::Result<()> {
        let mut problem = match refusal {
            Refusal::Unknown => {
                let what = format!("there is no test {name:?}");
                ProbeProblem::new(ProblemKind::Error, "unknown-test", what)
            }
            Refusal::NeedsPairs => {
                let what = "this test is about pairs of GPUs, and there is one";
                ProbeProblem::new(ProblemKind::Waived, "one-gpu", what)
            }
        };
        problem.testcase = Some(name.to_owned());
        self.say(problem, mouth)
    }

    /// The GPUs that a run uses.
    fn ends(&self, run: &Run) -> impl Iterator<Item = usize> {
        let all = run.copies.iter().flat_map(|copy| [copy.from, copy.to]);
        let all: BTreeSet<usize> = all.map(|(Place::Host(at) | Place::Gpu(at))| at).collect();
        all.into_iter()
    }

    /// All readings of a run. The outer error is that nobody listens.
    fn readings(
        &mut self,
        name: &str,
        case: &Case,
        run: &Run,
        mouth: &mut Mouth<'_>,
    ) -> io::Result<Result<(), Trouble>> {
        let (bytes, copies) = match case.measure {
            Measure::Bandwidth => {
                (count_wide(self.task.buffer_bytes) / WORD * WORD, count(self.task.copies))
            }
            Measure::Latency => (SMALL_BYTES, SMALL_COPIES),
        };
        let (warmup, copies) = (count(self.task.warmup), copies.max(1));
        let what = self.describe(run);
        mouth.begin(&format!("{name}: {what}: taking memory"));
        let (mut ready, lanes) = match self.ready(run, bytes.max(WORD), warmup + copies) {
            Ok(made) => made,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let failed = |run: &Run, LaneError { lane, error }, when: &str| {
            let doing = format!("copying, {name}: {what}, {when}");
            let gpu = run.copies.get(lane).map_or(0, |copy| copy.by);
            Trouble { error, step: Step::Copy, doing, gpu }
        };
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
                if !(counts || reading + 1 == readings) {
                    continue;
                }
                let difference = self.buffers.compare(copy.destination, &copy.pattern, &self.gpus);
                match difference {
                    Ok(Some(difference)) if wrong.insert(nth) => {
                        let problem = self.wrong_data(name, run, nth, reading, difference);
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
        bytes: usize,
        copies: usize,
    ) -> Result<(Vec<Ready>, Vec<Lane<'c>>), Trouble> {
        let (mut ready, mut lanes) = (Vec::new(), Vec::new());
        let mut used: BTreeMap<(Place, Role), usize> = BTreeMap::new();
        for copy in &run.copies {
            let gpu = &self.gpus[copy.by];
            let layout = Layout::past(gpu.cache_bytes, bytes.saturating_mul(copy.times), copies);
            // A latency is that of a place that was used just before.
            let layout = if bytes == SMALL_BYTES { Layout { slots: 1, ..layout } } else { layout };
            let mut next = |place, role| {
                let nth = used.entry((place, role)).or_default();
                *nth += 1;
                Key { place, role, nth: *nth - 1, layout }
            };
            let source = next(copy.from, Role::Source);
            let destination = next(copy.to, Role::Destination);
            let from = self.buffers.have(source, &self.gpus)?;
            let to = self.buffers.have(destination, &self.gpus)?;
            let lane = Lane::of(self.cuda, gpu.context(), (from, to), layout);
            lanes.push(lane.map_err(|error| {
                let doing = format!("making a stream on GPU {}", gpu.index());
                Trouble { error, step: Step::Copy, doing, gpu: copy.by }
            })?);
            ready.push(Ready { source, destination, pattern: self.buffers.pattern(source, 0) });
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
            let Some(value) = value(case.measure, number.of, copies, &bytes, times) else {
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
        run: &Run,
        nth: usize,
        reading: u32,
        difference: Difference,
    ) -> ProbeProblem {
        let copy = run.copies[nth];
        let Difference { words, first, found, expected } = difference;
        let what = format!(
            "{words} words arrived wrong in reading {reading} from {} at {} (first at byte {first}: \
             {found:#010x} for {expected:#010x}), copied by GPU {}",
            buffers::name(copy.from, &self.gpus),
            buffers::name(copy.to, &self.gpus),
            self.gpus[copy.by].index(),
        );
        let mut problem = ProbeProblem::new(ProblemKind::Corrupt, "wrong-data", what);
        problem.testcase = Some(name.to_owned());
        problem.gpu = Some(self.gpus[copy.by].index());
        problem
    }

    /// Says why a run came to nothing, and finds out who answers no more.
    fn explain(
        &mut self,
        name: &str,
        run: &Run,
        trouble: Trouble,
        mouth: &mut Mouth<'_>,
    ) -> io::Result<()> {
        let Trouble { error, step, doing, gpu } = trouble;
        let mut gone = Vec::new();
        if trouble::is_lasting(&error) {
            for at in self.ends(run) {
                let gpu = &self.gpus[at];
                mouth.begin(&format!("asking whether GPU {} still answers", gpu.index()));
                let asked = self.cuda.enter(gpu.context()).and_then(|()| self.cuda.synchronize());
                if let Err(error) = asked {
                    gone.push((at, error));
                }
            }
        }
        if gone.is_empty() {
            let mut problem = trouble::problem(&error, step, &doing);
            if problem.class == "gpu-lost" {
                // It was asked, and it is not.
                "cuda-error".clone_into(&mut problem.class);
                problem.detail = format!("the driver refused, once ({error}, while {doing})");
            }
            problem.gpu = self.gpus.get(gpu).map(Gpu::index);
            problem.testcase = Some(name.to_owned());
            return self.say(problem, mouth);
        }
        gone.iter().try_for_each(|(at, error)| self.lose(*at, error, &doing, mouth))
    }

    /// Says a problem, once per class, GPU and test.
    fn say(&mut self, problem: ProbeProblem, mouth: &mut Mouth<'_>) -> io::Result<()> {
        self.failed |= problem.kind == ProblemKind::Error;
        // Pairs share a class; their sentence tells them apart.
        let what = problem.testcase.clone().or_else(|| Some(problem.detail.clone()));
        if !self.said.insert((problem.class.clone(), problem.gpu, what)) {
            return Ok(());
        }
        mouth.say(&Line::Problem(problem))
    }
}

/// The number that is taken of copies; nothing where they took no time.
fn value(measure: Measure, of: Of, copies: usize, bytes: &[usize], times: &Times) -> Option<f64> {
    let rate = |bytes: usize, seconds: f64| {
        let moved = bytes as f64 * copies as f64;
        (0.0 < seconds).then(|| moved / seconds / 1e9)
    };
    let one = |nth: usize| rate(*bytes.get(nth)?, *times.each.get(nth)?);
    match (measure, of) {
        (Measure::Latency, _) => {
            let seconds = *times.each.first()?;
            (0.0 < seconds).then(|| seconds / copies as f64 * 1e6)
        }
        (Measure::Bandwidth, Of::One(nth)) => one(nth),
        (Measure::Bandwidth, Of::FirstTwo) => Some(one(0)? + one(1)?),
        (Measure::Bandwidth, Of::All) => rate(bytes.iter().sum(), times.all),
    }
}

fn count(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn count_wide(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(each: &[f64], all: f64) -> Times {
        Times { each: each.to_vec(), all }
    }

    #[test]
    fn bandwidth_is_bytes_copied_once_in_decimal_gigabytes() {
        // 16 copies of 512 MiB in a tenth of a second; a local copy is counted once too.
        let bytes = [512 << 20];
        let got = value(Measure::Bandwidth, Of::One(0), 16, &bytes, &times(&[0.1], 0.1));
        assert!((got.expect("a number") - 85.899_345_92).abs() < 1e-9);
    }

    #[test]
    fn a_total_is_over_the_time_of_the_slowest_and_a_sum_is_of_each_its_own() {
        let bytes = [1_000_000_000, 1_000_000_000];
        let times = times(&[0.5, 1.0], 1.0);
        let of = |of| value(Measure::Bandwidth, of, 1, &bytes, &times).expect("a number");
        assert!((of(Of::All) - 2.0).abs() < 1e-12);
        assert!((of(Of::FirstTwo) - 3.0).abs() < 1e-12);
        assert!((of(Of::One(1)) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_latency_is_that_of_one_copy_in_microseconds() {
        let got = value(Measure::Latency, Of::One(0), 100, &[16], &times(&[0.000_25], 0.0));
        assert!((got.expect("a number") - 2.5).abs() < 1e-12);
    }

    #[test]
    fn no_time_is_no_number() {
        let nothing = times(&[0.0], 0.0);
        for of in [Of::One(0), Of::All, Of::FirstTwo] {
            assert_eq!(value(Measure::Bandwidth, of, 1, &[8], &nothing), None);
        }
        assert_eq!(value(Measure::Latency, Of::One(0), 1, &[8], &nothing), None);
    }
}
