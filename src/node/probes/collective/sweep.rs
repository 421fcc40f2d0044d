//! A rank's way through the probe: who is there, connected, every test at every
//! size, and what is said of it.

use std::time::Duration;
use std::time::Instant;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde::Serialize;
use serde_json::Value;

use super::Stop;
use super::bench;
use super::bench::Bench;
use super::bench::Buffers;
use super::bench::Deadline;
use super::bench::Machine;
use super::failure::Failure;
use super::failure::clean;
use super::formula;
use super::formula::Collective;
use super::formula::Counts;
use super::own;
use super::roll::Absent;
use super::roll::Introduction;
use super::roll::Roll;
use super::roll::Told;
use super::roll::Trouble;
use super::roll::listed;
use super::task::Task;
use crate::ffi::nccl::UNIQUE_ID_BYTES;
use crate::ffi::nccl::UniqueId;
use crate::probes::said::Line;
use crate::probes::said::Mouth;
use model::collective::CollectivePoint;
use model::parsed::ProblemKind;
use model::probed::ProbeProblem;

/// How many times as long as a rank may wait for one thing the others are waited
/// for: where one fails at once, the others find out when their own time is up.
const OTHERS: u32 = 2;

/// What a rank tells of a size.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Outcome {
    time_us: f64,
    checked: u64,
    wrong: u64,
}

/// Goes all the way. The answer is whether everything that was asked for was
/// measured.
pub(super) fn run(task: &Task, mouth: &mut Mouth<'_>) -> Result<bool, Stop> {
    let mut introduction = Introduction {
        node: task.node.clone(),
        gpu: task.gpu,
        process: std::process::id(),
        bus_id: None,
        name: None,
        nccl: (0, 0, 0),
        largest: 0,
        failed: None,
    };
    let machine = match find(task, mouth)? {
        Ok(machine) => machine,
        Err(failure) => return refuse(task, mouth, introduction, &failure),
    };
    let (stream, largest) = match machine.enter() {
        Ok(entered) => entered,
        Err(failure) => return refuse(task, mouth, introduction, &failure),
    };
    let version = machine.version;
    introduction.nccl = (version.major, version.minor, version.patch);
    introduction.bus_id.clone_from(&machine.gpu.bus_id);
    introduction.name = machine.gpu.name.as_deref().map(clean);
    introduction.largest = largest;
    let Some((roll, complete)) = meet(task, mouth, &introduction)? else { return Ok(false) };
    let largest = roll.largest().0.min(task.most_bytes);
    let sizes = formula::sizes(task.least_bytes, largest, task.factor);
    let Some(bytes) = sizes.last().copied() else {
        let detail = format!(
            "no message from {} to {} bytes can be measured: {largest} bytes fit into every GPU",
            task.least_bytes, task.most_bytes
        );
        if roll.me == 0 {
            mouth.say(&Line::Problem(ProbeProblem::new(ProblemKind::Error, "no-sizes", detail)))?;
        }
        return Ok(false);
    };
    let patience = Duration::from_secs(task.patience_s.max(1));
    let mut rank = Rank { task, mouth, roll, complete, patience };
    rank.mouth.begin(&format!("allocating two buffers of {bytes} bytes"));
    let mut deadline = Deadline::within(rank.mouth, patience);
    let buffers = Buffers::new(&machine.cuda, stream, rank.roll.me, bytes, &mut deadline);
    let made = match &buffers {
        Ok(_) if rank.roll.me == 0 => machine.nccl.unique_id().map_err(Failure::from).map(written),
        Ok(_) => Ok(Value::Null),
        Err(failure) => Err(failure.clone()),
    };
    let values = rank.share(made, None, patience)?;
    let (Ok(buffers), Some(id)) = (buffers, values.first().and_then(read)) else {
        let detail = "the first rank gave no unique id that can be read".to_owned();
        return rank.stop(ProbeProblem::new(ProblemKind::Error, "no-unique-id", detail));
    };
    let mut bench = Bench::new(&machine, stream, buffers, &rank.roll, patience);
    rank.connect(&machine, &mut bench, id)?;
    for name in &task.tests {
        rank.test(&machine, &bench, name, &sizes)?;
    }
    rank.mouth.begin("giving the communicator back");
    if let Err(failure) = bench.disconnect(rank.mouth) {
        // Everything is measured by now.
        rank.mouth.say(&Line::Problem(own(task, &failure)))?;
    }
    Ok(rank.complete)
}

/// Loads what is needed, and says what it is.
fn find(task: &Task, mouth: &mut Mouth<'_>) -> Result<Result<Machine, Failure>, Stop> {
    mouth.begin("bringing up the driver");
    let cuda = match bench::driver(task) {
        Ok(cuda) => cuda,
        Err(failure) => return Ok(Err(failure)),
    };
    if let Ok((major, minor)) = cuda.driver_version() {
        mouth.say(&Line::Driver { cuda: format!("{major}.{minor}") })?;
    }
    mouth.begin("loading NCCL");
    let machine = match Machine::find(task, cuda) {
        Ok(machine) => machine,
        Err(failure) => return Ok(Err(failure)),
    };
    let library = machine.nccl.path().display().to_string();
    mouth.say(&Line::Nccl { version: machine.version.to_string(), library })?;
    mouth.say(&Line::Gpu(machine.gpu.clone()))?;
    mouth.begin(&format!("making a context on GPU {}", task.gpu));
    Ok(Ok(machine))
}

/// Says why this process cannot be a rank, to whoever listens and to the others.
fn refuse(
    task: &Task,
    mouth: &mut Mouth<'_>,
    introduction: Introduction,
    failure: &Failure,
) -> Result<bool, Stop> {
    mouth.say(&Line::Problem(own(task, failure)))?;
    let failed = Some(clean(&failure.to_string()));
    let value = serde_json::to_value(Introduction { failed, ..introduction });
    mouth.exchange(value.expect("plain data"), whole_seconds(task.patience_s))?;
    Ok(false)
}

/// The first exchange: who is there. Nothing where they cannot measure together,
/// which is said.
fn meet(
    task: &Task,
    mouth: &mut Mouth<'_>,
    introduction: &Introduction,
) -> Result<Option<(Roll, bool)>, Stop> {
    mouth.begin("waiting for the other ranks to come");
    let value = serde_json::to_value(introduction).expect("plain data");
    let answer = mouth.exchange(value, whole_seconds(task.patience_s))?;
    let Some(roll) = Roll::of(&answer, introduction) else {
        let detail = "this rank is not among those who were counted".to_owned();
        let problem = ProbeProblem::new(ProblemKind::Error, "not-counted", detail);
        mouth.say(&Line::Problem(ProbeProblem { gpu: Some(task.gpu), ..problem }))?;
        return Ok(None);
    };
    for rank in roll.probed() {
        mouth.say(&Line::Rank(rank))?;
    }
    if let Some(detail) = roll.versions().map(|versions| {
        format!("NCCL is not the same everywhere: {versions}; nothing was measured")
    }) {
        let problem = ProbeProblem::new(ProblemKind::Error, "nccl-versions-differ", detail);
        if roll.speaks() {
            mouth.say(&Line::Problem(problem))?;
        }
        return Ok(None);
    }
    if let Some(twice) = roll.twice() {
        let detail = format!("{twice} is there twice: every rank needs a GPU of its own");
        if roll.speaks() {
            let problem = ProbeProblem::new(ProblemKind::Error, "gpu-twice", detail);
            mouth.say(&Line::Problem(problem))?;
        }
        return Ok(None);
    }
    if roll.me == 0 {
        for problem in roll.absent.iter().map(|absent| missing(absent, roll.ranks.len())) {
            mouth.say(&Line::Problem(problem))?;
        }
        if roll.count() == 1 {
            let detail = "there is one rank only: calls and data were exercised, no link was, and \
                          busbw is 0";
            let problem = ProbeProblem::new(ProblemKind::Waived, "one-rank", detail);
            mouth.say(&Line::Problem(problem))?;
        }
    }
    let mut complete = roll.absent.is_empty();
    let (largest, scarce) = roll.largest();
    if largest < task.most_bytes {
        complete = false;
        if scarce == roll.me {
            let detail = format!(
                "messages above {largest} bytes were not measured: two of {} do not fit into what \
                 is free of the memory of GPU {}",
                task.most_bytes, task.gpu
            );
            let problem = ProbeProblem::new(ProblemKind::Error, "out-of-memory", detail);
            mouth.say(&Line::Problem(ProbeProblem { gpu: Some(task.gpu), ..problem }))?;
        }
    }
    Ok(Some((roll, complete)))
}

fn missing(absent: &Absent, ranks: usize) -> ProbeProblem {
    let gpu = absent.gpu.map_or(String::new(), |gpu| format!(", GPU {gpu},"));
    let others = match ranks {
        1 => "the other rank".to_owned(),
        several => format!("the {several} others"),
    };
    let detail = clean(&format!(
        "{}{gpu} takes no part: {}; {others} measured without it",
        absent.node, absent.why
    ));
    let mut problem = ProbeProblem::new(ProblemKind::Error, "rank-missing", detail);
    (problem.node, problem.gpu) = (Some(absent.node.clone()), absent.gpu);
    problem
}

/// A rank among ranks.
struct Rank<'t, 'm, 'o> {
    task: &'t Task,
    mouth: &'m mut Mouth<'o>,
    roll: Roll,
    complete: bool,
    patience: Duration,
}

impl Rank<'_, '_, '_> {
    /// Tells the others how it went here and hears how it went there. Where it
    /// went wrong anywhere that is said, and everybody stops: a communicator
    /// without one of its ranks is of no use.
    fn share(
        &mut self,
        outcome: Result<Value, Failure>,
        test: Option<&str>,
        within: Duration,
    ) -> Result<Vec<Value>, Stop> {
        let rank = self.roll.me;
        let failure = outcome.as_ref().err().cloned();
        if let Some(failure) = failure.as_ref().filter(|failure| !failure.waited()) {
            // Said at once: the exchange may not come back.
            self.say_problem(own(self.task, failure), test)?;
        }
        let told = match outcome {
            Ok(value) => Told { rank, value, failed: None, waited: false },
            Err(failure) => Told {
                rank,
                value: Value::Null,
                failed: Some(clean(&failure.to_string())),
                waited: failure.waited(),
            },
        };
        let value = serde_json::to_value(told).expect("plain data");
        let answer = self.mouth.exchange(value, (within * OTHERS).as_secs_f64())?;
        let trouble = match self.roll.heard(&answer) {
            Ok(values) => return Ok(values),
            Err(trouble) => trouble,
        };
        let is_told = failure.as_ref().is_some_and(|failure| !failure.waited());
        if !is_told && let Some(problem) = self.elsewhere(&trouble, failure.as_ref()) {
            self.say_problem(problem, test)?;
        }
        Err(Stop::Said)
    }

    fn say_problem(&mut self, problem: ProbeProblem, test: Option<&str>) -> Result<(), Stop> {
        let testcase = test.map(str::to_owned).or(problem.testcase.clone());
        Ok(self.mouth.say(&Line::Problem(ProbeProblem { testcase, ..problem }))?)
    }

    /// What this process says of others' trouble: the first of a node, once, and
    /// nothing of what another rank of its node has said itself.
    fn elsewhere(&self, trouble: &Trouble, mine: Option<&Failure>) -> Option<ProbeProblem> {
        if !self.roll.speaks() {
            return None;
        }
        let node_of = |rank: u32| self.roll.ranks[rank as usize].node.as_str();
        let named = |list: &[(u32, String)]| {
            let said: Vec<String> = list
                .iter()
                .map(|(rank, why)| format!("{}: {why}", self.roll.name(*rank)))
                .collect();
            listed(said.iter().map(String::as_str))
        };
        let (class, list, words) = if !trouble.failed.is_empty() {
            let mut elsewhere = trouble.failed.clone();
            elsewhere.retain(|(rank, _)| node_of(*rank) != self.task.node);
            if elsewhere.is_empty() {
                return None;
            }
            let words = format!("could not go on: {}", named(&elsewhere));
            ("rank-failed", elsewhere, words)
        } else if !trouble.gone.is_empty() {
            let words = format!("gone in the middle: {}", named(&trouble.gone));
            ("rank-gone", trouble.gone.clone(), words)
        } else {
            let waited = &trouble.waited;
            let count = self.roll.count();
            let words =
                format!("{} of {count} ranks waited in vain: {}", waited.len(), named(waited));
            ("time-out", waited.clone(), words)
        };
        let mut problem = ProbeProblem::new(ProblemKind::Error, class, clean(&words));
        if class == "time-out"
            && let Some(mine) = mine
        {
            let ProbeProblem { class, code, .. } = mine.problem();
            (problem.class, problem.code) = (class, code);
        }
        if let [(rank, _)] = list.as_slice()
            && let Some(it) = self.roll.ranks.get(*rank as usize)
        {
            (problem.node, problem.gpu) = (Some(it.node.clone()), Some(it.gpu));
        }
        Some(problem)
    }

    /// Says a problem that ends it for everybody.
    fn stop(&mut self, problem: ProbeProblem) -> Result<bool, Stop> {
        self.mouth.say(&Line::Problem(problem))?;
        Err(Stop::Said)
    }

    fn connect(
        &mut self,
        machine: &Machine,
        bench: &mut Bench<'_>,
        id: UniqueId,
    ) -> Result<(), Stop> {
        let call = if machine.nccl.can_wait() {
            "ncclCommInitRankConfig"
        } else {
            let value = "ncclCommInitRank: this NCCL has no communicators that do not block";
            let note = Line::Note { name: "blocking".to_owned(), value: value.to_owned() };
            self.mouth.say(&note)?;
            "ncclCommInitRank"
        };
        self.mouth.begin(&format!("{call}: connecting {} ranks", self.roll.count()));
        let connected = bench.connect(id, self.mouth).map(|()| Value::Null);
        self.share(connected, None, self.patience)?;
        if let Some(other) = bench.other_ranks() {
            let count = self.roll.count();
            let detail = format!("NCCL says that there are {other} ranks, and {count} are there");
            let kind = ProblemKind::Inconsistent;
            self.stop(ProbeProblem::new(kind, "nccl-ranks", detail))?;
        }
        Ok(())
    }

    fn test(
        &mut self,
        machine: &Machine,
        bench: &Bench<'_>,
        name: &str,
        sizes: &[u64],
    ) -> Result<(), Stop> {
        let Some(collective) = Collective::of_name(name) else {
            return self.skip(name, "unknown-test", "it is none of the tests that there are");
        };
        let missing = machine.nccl.missing();
        if let Some(call) = collective.calls().iter().find(|call| missing.contains(call)) {
            let why = format!("NCCL {} has no {call}", machine.version);
            return self.skip(name, "nccl-too-old", &why);
        }
        for reading in 0..self.task.readings {
            let mut measured = 0;
            for size in sizes {
                let Some(counts) = collective.counts(*size, self.roll.count()) else { continue };
                measured += 1;
                self.point(bench, collective, counts, reading)?;
            }
            if measured == 0 {
                return self.skip(
                    name,
                    "no-sizes",
                    "no message is large enough for a part per rank",
                );
            }
        }
        Ok(())
    }

    /// Tells that a test is not measured. Everybody comes to the same decision,
    /// and the first rank says it.
    fn skip(&mut self, name: &str, class: &str, why: &str) -> Result<(), Stop> {
        self.complete = false;
        if self.roll.me != 0 {
            return Ok(());
        }
        let problem = ProbeProblem::new(ProblemKind::Waived, class, format!("{name}: {why}"));
        self.say_problem(problem, Some(name))
    }

    /// One size of one test: timed, checked, shared, and said by the first rank.
    fn point(
        &mut self,
        bench: &Bench<'_>,
        collective: Collective,
        counts: Counts,
        reading: u32,
    ) -> Result<(), Stop> {
        let (name, bytes) = (collective.name(), counts.bytes());
        self.mouth.begin(&format!("{name} of {bytes} bytes, reading {reading}"));
        let (warmup, iterations) = (self.task.warmup, self.task.iterations.max(1));
        let begun = Instant::now();
        let measured = bench
            .time(collective, counts, (warmup, iterations), self.mouth)
            .and_then(|time_us| Ok((time_us, bench.check(collective, counts, self.mouth)?)));
        if let Ok((_, checked)) = &measured
            && let Some((place, found, wanted)) = checked.first
        {
            let me = self.roll.name(self.roll.me);
            let detail = format!(
                "{me} received {} wrong elements of {} that were checked, of {name} of {bytes} bytes; \
                 the first is element {place}: {found} in the place of {wanted}",
                checked.wrong, checked.elements
            );
            let problem = ProbeProblem::new(ProblemKind::Corrupt, "wrong-data", detail);
            let gpu = Some(self.task.gpu);
            self.say_problem(ProbeProblem { gpu, ..problem }, Some(name))?;
        }
        let outcome = measured.map(|(time_us, checked)| {
            let (checked, wrong) = (checked.elements, checked.wrong);
            serde_json::to_value(Outcome { time_us, checked, wrong }).expect("plain data")
        });
        let within = self.patience + bench::slowest(bytes) + begun.elapsed();
        let values = self.share(outcome, Some(name), within)?;
        if self.roll.me != 0 {
            return Ok(());
        }
        let outcomes: Vec<Outcome> =
            values.into_iter().filter_map(|value| serde_json::from_value(value).ok()).collect();
        let Some(point) = summed(collective, counts, iterations, &outcomes, self.roll.count())
        else {
            let detail = format!("what ranks tell of {name} of {bytes} bytes cannot be added up");
            let problem = ProbeProblem::new(ProblemKind::Inconsistent, "no-time", detail);
            self.complete = false;
            return self.say_problem(problem, Some(name));
        };
        let (testcase, rank) = (name.to_owned(), self.roll.me);
        Ok(self.mouth.say(&Line::Point { testcase, reading, rank, point })?)
    }
}

/// The point of a size, from what all ranks tell; nothing where one is missing
/// or its time is no time.
fn summed(
    collective: Collective,
    counts: Counts,
    iterations: u32,
    outcomes: &[Outcome],
    ranks: u32,
) -> Option<CollectivePoint> {
    if u32::try_from(outcomes.len()) != Ok(ranks) || ranks == 0 {
        return None;
    }
    let sum: f64 = outcomes.iter().map(|it| it.time_us).sum();
    let time_us = sum / f64::from(ranks);
    let slowest_us = outcomes.iter().map(|it| it.time_us).fold(0.0, f64::max);
    let bytes = counts.bytes();
    let (algbw, busbw) = collective.bandwidths(bytes, time_us, ranks)?;
    let checked = outcomes.iter().map(|it| it.checked).sum();
    let wrong = outcomes.iter().map(|it| it.wrong).sum();
    let wrong = (0 < checked).then_some(wrong);
    Some(CollectivePoint { bytes, iterations, time_us, slowest_us, algbw, busbw, wrong, checked })
}

/// The id for the others. It is passed on and never kept or shown.
fn written(id: UniqueId) -> Value {
    Value::String(BASE64_STANDARD.encode(id.bytes()))
}

fn read(value: &Value) -> Option<UniqueId> {
    let bytes = BASE64_STANDARD.decode(value.as_str()?).ok()?;
    let bytes: [u8; UNIQUE_ID_BYTES] = bytes.try_into().ok()?;
    Some(UniqueId::of_bytes(bytes))
}

fn whole_seconds(seconds: u64) -> f64 {
    Duration::from_secs(seconds.max(1)).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(time_us: f64, wrong: u64) -> Outcome {
        Outcome { time_us, checked: 100, wrong }
    }

    #[test]
    fn a_point_is_the_mean_of_all_ranks_and_names_the_slowest() {
        let counts = Collective::AllReduce.counts(1_000_000, 2).expect("enough");
        let outcomes = [outcome(10.0, 0), outcome(30.0, 3)];
        let point = summed(Collective::AllReduce, counts, 20, &outcomes, 2).expect("all told");
        assert_eq!((point.time_us, point.slowest_us), (20.0, 30.0));
        assert!((point.algbw - 50.0).abs() < 1e-9 && (point.busbw - 50.0).abs() < 1e-9);
        assert_eq!((point.wrong, point.checked), (Some(3), 200));
    }

    #[test]
    fn a_missing_rank_or_no_time_gives_no_point() {
        let counts = Collective::Broadcast.counts(1_000, 2).expect("enough");
        let point = |outcomes: &[Outcome]| summed(Collective::Broadcast, counts, 1, outcomes, 2);
        assert_eq!(point(&[outcome(10.0, 0)]), None);
        assert_eq!(point(&[outcome(0.0, 0), outcome(0.0, 0)]), None);
        let unchecked = Outcome { time_us: 1.0, checked: 0, wrong: 0 };
        assert_eq!(point(&[unchecked, unchecked]).expect("timed").wrong, None);
    }

    #[test]
    fn an_id_comes_over_whole() {
        let id = UniqueId::of_bytes(std::array::from_fn(|at| u8::try_from(at).unwrap_or(0)));
        assert_eq!(read(&written(id)), Some(id));
        assert_eq!(read(&Value::Null), None);
        assert_eq!(read(&Value::String("AAAA".to_owned())), None, "too short");
    }
}
