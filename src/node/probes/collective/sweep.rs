//! The sequence of the probe on one rank: gather ranks, connect, run every test at every size, and
//! report.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::failure::{NcclProbeFailure, clean};
use super::formula::{CollectiveCounts, NcclCollective};
use super::nccl_rank::{CollectiveBuffers, NcclRank, NcclRankDevice, ReportingDeadline};
use super::rank_list::{
    AbsentRank, RankFailures, RankIntroduction, RankList, RankReport, join_first,
};
use super::{RankStop, formula, nccl_rank, rank_problem};
use crate::ffi::nccl::{NcclUniqueId, UNIQUE_ID_BYTES};
use crate::probes::copy::devices;
use crate::probes::protocol::{ProbeEmitter, ProbeMessage};
use crate::probes::task::CollectiveTask;
use model::collective::CollectivePoint;
use model::parse_output::OutputProblemKind;
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::ProbeProblem;

/// Ranks wait for each other this many times longer than for one of their own operations: if one
/// rank fails immediately, the others notice only when their own time limit expires.
const PEER_WAIT_FACTOR: u32 = 2;

/// A rank's result for one size.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct CollectiveSample {
    time_us: f64,
    checked: u64,
    wrong: u64,
}

/// Runs the whole sequence. Returns whether everything requested was measured.
pub(super) fn run_sweep(
    task: &CollectiveTask,
    emitter: &mut ProbeEmitter<'_>,
) -> Result<bool, RankStop> {
    let mut introduction = RankIntroduction {
        node: task.node.clone(),
        gpu: task.gpu,
        process: std::process::id(),
        bus_id: None,
        name: None,
        nccl: (0, 0, 0),
        largest: 0,
        failed: None,
    };
    let machine = match load_libraries(task, emitter)? {
        Ok(machine) => machine,
        Err(failure) => return report_refusal(task, emitter, introduction, &failure),
    };
    let (stream, largest) = match machine.activate() {
        Ok(entered) => entered,
        Err(failure) => return report_refusal(task, emitter, introduction, &failure),
    };
    let version = machine.version;
    introduction.nccl = (version.major, version.minor, version.patch);
    introduction.bus_id.clone_from(&machine.gpu.bus_id);
    introduction.name = machine.gpu.name.as_deref().map(clean);
    introduction.largest = largest;
    let Some((rank_list, complete)) = gather_ranks(task, emitter, &introduction)? else {
        return Ok(false);
    };
    let largest = rank_list.largest_message().0.min(task.most_bytes);
    let sizes = formula::sweep_sizes(task.least_bytes, largest, task.factor);
    let Some(bytes) = sizes.last().copied() else {
        let detail = format!(
            "no message from {} to {} bytes can be measured: {largest} bytes fit into every GPU",
            task.least_bytes, task.most_bytes
        );
        if rank_list.me == 0 {
            emitter.emit(&ProbeMessage::Problem(ProbeProblem::new(
                OutputProblemKind::Error,
                ProbeProblemClass::NoSizes,
                detail,
            )))?;
        }
        return Ok(false);
    };
    let patience = Duration::from_secs(task.patience_s.max(1));
    let mut rank = RankSweep { task, emitter, ranks: rank_list, complete, timeout: patience };
    rank.emitter.announce_step(&format!("allocating two buffers of {bytes} bytes"));
    let mut deadline = ReportingDeadline::new(rank.emitter, patience);
    let buffers =
        CollectiveBuffers::new(&machine.cuda, stream, rank.ranks.me, bytes, &mut deadline);
    let made = match &buffers {
        Ok(_) if rank.ranks.me == 0 => {
            machine.nccl.unique_id().map_err(NcclProbeFailure::from).map(encode_id)
        }
        Ok(_) => Ok(Value::Null),
        Err(failure) => Err(failure.clone()),
    };
    let values = rank.share_outcome(made, None, patience)?;
    let (Ok(buffers), Some(id)) = (buffers, values.first().and_then(decode_id)) else {
        let detail = "the first rank sent no readable unique ID".to_owned();
        return rank.abort(ProbeProblem::new(
            OutputProblemKind::Error,
            ProbeProblemClass::NoUniqueId,
            detail,
        ));
    };
    let mut nccl_rank = NcclRank::new(&machine, stream, buffers, &rank.ranks, patience);
    rank.connect(&machine, &mut nccl_rank, id)?;
    for name in &task.tests {
        rank.run_test(&machine, &nccl_rank, name, &sizes)?;
    }
    rank.emitter.announce_step("releasing the communicator");
    if let Err(failure) = nccl_rank.disconnect(rank.emitter) {
        // All measurements are done.
        rank.emitter.emit(&ProbeMessage::Problem(rank_problem(task, &failure)))?;
    }
    Ok(rank.complete)
}

/// Loads the libraries and reports their versions.
fn load_libraries(
    task: &CollectiveTask,
    emitter: &mut ProbeEmitter<'_>,
) -> Result<Result<NcclRankDevice, NcclProbeFailure>, RankStop> {
    emitter.announce_step("initializing the driver");
    let cuda = match nccl_rank::load_driver(task) {
        Ok(cuda) => cuda,
        Err(failure) => return Ok(Err(failure)),
    };
    devices::emit_driver_version(&cuda, emitter)?;
    if let Err(failure) = nccl_rank::init_driver(task, &cuda) {
        return Ok(Err(failure));
    }
    emitter.announce_step("loading NCCL");
    let machine = match NcclRankDevice::find(task, cuda) {
        Ok(machine) => machine,
        Err(failure) => return Ok(Err(failure)),
    };
    let library = machine.nccl.path().display().to_string();
    emitter.emit(&ProbeMessage::Nccl { version: machine.version.to_string(), library })?;
    emitter.emit(&ProbeMessage::Gpu(machine.gpu.clone()))?;
    emitter.announce_step(&format!("creating a context on GPU {}", task.gpu));
    Ok(Ok(machine))
}

/// Reports to the supervisor and the other ranks why this process cannot be a rank.
fn report_refusal(
    task: &CollectiveTask,
    emitter: &mut ProbeEmitter<'_>,
    introduction: RankIntroduction,
    failure: &NcclProbeFailure,
) -> Result<bool, RankStop> {
    emitter.emit(&ProbeMessage::Problem(rank_problem(task, failure)))?;
    let failed = Some(clean(&failure.to_string()));
    let value = serde_json::to_value(RankIntroduction { failed, ..introduction });
    emitter.exchange(value.expect("plain data"), whole_seconds(task.patience_s))?;
    Ok(false)
}

/// Runs the first exchange: the participants. Returns `None`, and reports the reason, if they
/// cannot measure together.
fn gather_ranks(
    task: &CollectiveTask,
    emitter: &mut ProbeEmitter<'_>,
    introduction: &RankIntroduction,
) -> Result<Option<(RankList, bool)>, RankStop> {
    emitter.announce_step("waiting for the other ranks");
    let value = serde_json::to_value(introduction).expect("plain data");
    let answer = emitter.exchange(value, whole_seconds(task.patience_s))?;
    let Some(rank_list) = RankList::from_answer(&answer, introduction) else {
        let detail = "this rank is missing from the list of ranks".to_owned();
        let problem =
            ProbeProblem::new(OutputProblemKind::Error, ProbeProblemClass::NotCounted, detail);
        emitter.emit(&ProbeMessage::Problem(ProbeProblem { gpu: Some(task.gpu), ..problem }))?;
        return Ok(None);
    };
    for rank in rank_list.probed_ranks() {
        emitter.emit(&ProbeMessage::Rank(rank))?;
    }
    if let Some(detail) = rank_list.version_mismatch().map(|versions| {
        format!("ranks have different NCCL versions: {versions}; nothing was measured")
    }) {
        let problem = ProbeProblem::new(
            OutputProblemKind::Error,
            ProbeProblemClass::NcclVersionsDiffer,
            detail,
        );
        if rank_list.is_node_leader() {
            emitter.emit(&ProbeMessage::Problem(problem))?;
        }
        return Ok(None);
    }
    if let Some(twice) = rank_list.duplicate_gpu() {
        let detail = format!("{twice} is used by two ranks: every rank needs a separate GPU");
        if rank_list.is_node_leader() {
            let problem =
                ProbeProblem::new(OutputProblemKind::Error, ProbeProblemClass::GpuTwice, detail);
            emitter.emit(&ProbeMessage::Problem(problem))?;
        }
        return Ok(None);
    }
    if rank_list.me == 0 {
        for problem in rank_list
            .absent
            .iter()
            .map(|absent| missing_rank_problem(absent, rank_list.ranks.len()))
        {
            emitter.emit(&ProbeMessage::Problem(problem))?;
        }
        if rank_list.count() == 1 {
            let detail = "only one rank: this exercises calls and data but no link, and \
                          busbw is 0";
            let problem =
                ProbeProblem::new(OutputProblemKind::Waived, ProbeProblemClass::OneRank, detail);
            emitter.emit(&ProbeMessage::Problem(problem))?;
        }
    }
    let mut complete = rank_list.absent.is_empty();
    let (largest, limiting) = rank_list.largest_message();
    if largest < task.most_bytes {
        complete = false;
        if limiting == rank_list.me {
            let detail = format!(
                "messages above {largest} bytes were not measured: two of {} do not fit into the \
                 free memory of GPU {}",
                task.most_bytes, task.gpu
            );
            let problem =
                ProbeProblem::new(OutputProblemKind::Error, ProbeProblemClass::NoMemory, detail);
            emitter
                .emit(&ProbeMessage::Problem(ProbeProblem { gpu: Some(task.gpu), ..problem }))?;
        }
    }
    Ok(Some((rank_list, complete)))
}

fn missing_rank_problem(absent: &AbsentRank, ranks: usize) -> ProbeProblem {
    let gpu = absent.gpu.map_or(String::new(), |gpu| format!(", GPU {gpu},"));
    let others = match ranks {
        1 => "the other rank".to_owned(),
        several => format!("the {several} others"),
    };
    let detail = clean(&format!(
        "{}{gpu} does not participate: {}; {others} measured without it",
        absent.node, absent.why
    ));
    let mut problem =
        ProbeProblem::new(OutputProblemKind::Error, ProbeProblemClass::RankMissing, detail);
    (problem.node, problem.gpu) = (Some(absent.node.clone()), absent.gpu);
    problem
}

/// A connected rank with the list of all ranks.
struct RankSweep<'t, 'm, 'o> {
    task: &'t CollectiveTask,
    emitter: &'m mut ProbeEmitter<'o>,
    ranks: RankList,
    complete: bool,
    timeout: Duration,
}

impl RankSweep<'_, '_, '_> {
    /// Shares this rank's outcome and returns the outcomes of all ranks. A failure on any rank is
    /// reported and ends the sweep everywhere: a communicator is unusable without one of its ranks.
    fn share_outcome(
        &mut self,
        outcome: Result<Value, NcclProbeFailure>,
        test: Option<&str>,
        within: Duration,
    ) -> Result<Vec<Value>, RankStop> {
        let rank = self.ranks.me;
        let failure = outcome.as_ref().err().cloned();
        if let Some(failure) = failure.as_ref().filter(|failure| !failure.is_timeout()) {
            // Reported before the exchange, which may never return.
            self.emit_problem(rank_problem(self.task, failure), test)?;
        }
        let report = match outcome {
            Ok(value) => RankReport { rank, value, failed: None, waited: false },
            Err(failure) => RankReport {
                rank,
                value: Value::Null,
                failed: Some(clean(&failure.to_string())),
                waited: failure.is_timeout(),
            },
        };
        let value = serde_json::to_value(report).expect("plain data");
        let answer = self.emitter.exchange(value, (within * PEER_WAIT_FACTOR).as_secs_f64())?;
        let trouble = match self.ranks.read_reports(&answer) {
            Ok(values) => return Ok(values),
            Err(trouble) => trouble,
        };
        let is_reported = failure.as_ref().is_some_and(|failure| !failure.is_timeout());
        if !is_reported && let Some(problem) = self.remote_problem(&trouble, failure.as_ref()) {
            self.emit_problem(problem, test)?;
        }
        Err(RankStop::Reported)
    }

    fn emit_problem(&mut self, problem: ProbeProblem, test: Option<&str>) -> Result<(), RankStop> {
        let testcase = test.map(str::to_owned).or(problem.testcase.clone());
        Ok(self.emitter.emit(&ProbeMessage::Problem(ProbeProblem { testcase, ..problem }))?)
    }

    /// This process's report of other ranks' failures: the first process of a node reports them,
    /// once, and omits failures that a rank of its node has reported itself.
    fn remote_problem(
        &self,
        trouble: &RankFailures,
        mine: Option<&NcclProbeFailure>,
    ) -> Option<ProbeProblem> {
        if !self.ranks.is_node_leader() {
            return None;
        }
        let node_of = |rank: u32| self.ranks.ranks[rank as usize].node.as_str();
        let named = |list: &[(u32, String)]| {
            let reasons: Vec<String> = list
                .iter()
                .map(|(rank, why)| format!("{}: {why}", self.ranks.rank_name(*rank)))
                .collect();
            join_first(reasons.iter().map(String::as_str))
        };
        let (class, list, text) = if !trouble.failed.is_empty() {
            let mut elsewhere = trouble.failed.clone();
            elsewhere.retain(|(rank, _)| node_of(*rank) != self.task.node);
            if elsewhere.is_empty() {
                return None;
            }
            let text = format!("could not continue: {}", named(&elsewhere));
            (ProbeProblemClass::RankFailed, elsewhere, text)
        } else if !trouble.gone.is_empty() {
            let text = format!("ended during the measurement: {}", named(&trouble.gone));
            (ProbeProblemClass::RankGone, trouble.gone.clone(), text)
        } else {
            let waited = &trouble.timed_out;
            let count = self.ranks.count();
            let text = format!("{} of {count} ranks timed out: {}", waited.len(), named(waited));
            (ProbeProblemClass::TimeOut, waited.clone(), text)
        };
        let mut problem = ProbeProblem::new(OutputProblemKind::Error, class, clean(&text));
        if problem.class == ProbeProblemClass::TimeOut
            && let Some(mine) = mine
        {
            let ProbeProblem { class, code, .. } = mine.to_problem();
            (problem.class, problem.code) = (class, code);
        }
        if let [(rank, _)] = list.as_slice()
            && let Some(it) = self.ranks.ranks.get(*rank as usize)
        {
            (problem.node, problem.gpu) = (Some(it.node.clone()), Some(it.gpu));
        }
        Some(problem)
    }

    /// Reports a problem that ends the sweep on all ranks.
    fn abort(&mut self, problem: ProbeProblem) -> Result<bool, RankStop> {
        self.emitter.emit(&ProbeMessage::Problem(problem))?;
        Err(RankStop::Reported)
    }

    fn connect(
        &mut self,
        machine: &NcclRankDevice,
        nccl_rank: &mut NcclRank<'_>,
        id: NcclUniqueId,
    ) -> Result<(), RankStop> {
        let call = if machine.nccl.supports_nonblocking() {
            "ncclCommInitRankConfig"
        } else {
            let value = "ncclCommInitRank: this NCCL has no nonblocking communicators";
            let note = ProbeMessage::Note { name: "blocking".to_owned(), value: value.to_owned() };
            self.emitter.emit(&note)?;
            "ncclCommInitRank"
        };
        self.emitter.announce_step(&format!("{call}: connecting {} ranks", self.ranks.count()));
        let connected = nccl_rank.connect(id, self.emitter).map(|()| Value::Null);
        self.share_outcome(connected, None, self.timeout)?;
        if let Some(other) = nccl_rank.mismatched_rank_count() {
            let count = self.ranks.count();
            let detail = format!("NCCL reports {other} ranks, but {count} joined");
            let kind = OutputProblemKind::Inconsistent;
            self.abort(ProbeProblem::new(kind, ProbeProblemClass::NcclRanks, detail))?;
        }
        Ok(())
    }

    fn run_test(
        &mut self,
        machine: &NcclRankDevice,
        nccl_rank: &NcclRank<'_>,
        name: &str,
        sizes: &[u64],
    ) -> Result<(), RankStop> {
        let Some(collective) = NcclCollective::from_name(name) else {
            return self.skip_test(name, ProbeProblemClass::UnknownTest, "no test has this name");
        };
        let missing = machine.nccl.missing_symbols();
        if let Some(call) = collective.calls().iter().find(|call| missing.contains(call)) {
            let why = format!("NCCL {} has no {call}", machine.version);
            return self.skip_test(name, ProbeProblemClass::NcclTooOld, &why);
        }
        for reading in 0..self.task.readings {
            let mut measured = 0;
            for size in sizes {
                let Some(counts) = collective.counts(*size, self.ranks.count()) else { continue };
                measured += 1;
                self.measure_size(nccl_rank, collective, counts, reading)?;
            }
            if measured == 0 {
                return self.skip_test(
                    name,
                    ProbeProblemClass::NoSizes,
                    "no message is large enough for a part per rank",
                );
            }
        }
        Ok(())
    }

    /// Reports that a test is skipped. All ranks reach the same decision, and the first one reports
    /// it.
    fn skip_test(
        &mut self,
        name: &str,
        class: ProbeProblemClass,
        why: &str,
    ) -> Result<(), RankStop> {
        self.complete = false;
        if self.ranks.me != 0 {
            return Ok(());
        }
        let problem = ProbeProblem::new(OutputProblemKind::Waived, class, format!("{name}: {why}"));
        self.emit_problem(problem, Some(name))
    }

    /// Measures one size of one test: times, checks, shares, and reports on the first rank.
    fn measure_size(
        &mut self,
        nccl_rank: &NcclRank<'_>,
        collective: NcclCollective,
        counts: CollectiveCounts,
        reading: u32,
    ) -> Result<(), RankStop> {
        let (name, bytes) = (collective.name(), counts.bytes());
        self.emitter.announce_step(&format!("{name} of {bytes} bytes, reading {reading}"));
        let (warmup, iterations) = (self.task.warmup, self.task.iterations.max(1));
        let begun = Instant::now();
        let measured = nccl_rank
            .time_operations(collective, counts, (warmup, iterations), self.emitter)
            .and_then(|time_us| {
                Ok((time_us, nccl_rank.check_result(collective, counts, self.emitter)?))
            });
        if let Ok((_, checked)) = &measured
            && let Some((place, found, wanted)) = checked.first
        {
            let me = self.ranks.rank_name(self.ranks.me);
            let detail = format!(
                "{me} received {} wrong elements of {} checked, in {name} of {bytes} bytes; \
                 the first is element {place}: {found} instead of {wanted}",
                checked.wrong, checked.elements
            );
            let problem =
                ProbeProblem::new(OutputProblemKind::Corrupt, ProbeProblemClass::WrongData, detail);
            let gpu = Some(self.task.gpu);
            self.emit_problem(ProbeProblem { gpu, ..problem }, Some(name))?;
        }
        let outcome = measured.map(|(time_us, checked)| {
            let (checked, wrong) = (checked.elements, checked.wrong);
            serde_json::to_value(CollectiveSample { time_us, checked, wrong }).expect("plain data")
        });
        let within = self.timeout + nccl_rank::max_duration(bytes) + begun.elapsed();
        let values = self.share_outcome(outcome, Some(name), within)?;
        if self.ranks.me != 0 {
            return Ok(());
        }
        let outcomes: Vec<CollectiveSample> =
            values.into_iter().filter_map(|value| serde_json::from_value(value).ok()).collect();
        let Some(point) =
            combine_samples(collective, counts, iterations, &outcomes, self.ranks.count())
        else {
            let detail = format!("the ranks' results for {name} of {bytes} bytes do not match");
            let problem = ProbeProblem::new(
                OutputProblemKind::Inconsistent,
                ProbeProblemClass::NoTime,
                detail,
            );
            self.complete = false;
            return self.emit_problem(problem, Some(name));
        };
        let (testcase, rank) = (name.to_owned(), self.ranks.me);
        Ok(self.emitter.emit(&ProbeMessage::Point { testcase, reading, rank, point })?)
    }
}

/// Combines the results of all ranks for a size; `None` if one is missing or has an invalid time.
fn combine_samples(
    collective: NcclCollective,
    counts: CollectiveCounts,
    iterations: u32,
    outcomes: &[CollectiveSample],
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

/// Encodes the ID for the other ranks. It is passed on and never stored or printed.
fn encode_id(id: NcclUniqueId) -> Value {
    Value::String(BASE64_STANDARD.encode(id.as_bytes()))
}

fn decode_id(value: &Value) -> Option<NcclUniqueId> {
    let bytes = BASE64_STANDARD.decode(value.as_str()?).ok()?;
    let bytes: [u8; UNIQUE_ID_BYTES] = bytes.try_into().ok()?;
    Some(NcclUniqueId::from_bytes(bytes))
}

fn whole_seconds(seconds: u64) -> f64 {
    Duration::from_secs(seconds.max(1)).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(time_us: f64, wrong: u64) -> CollectiveSample {
        CollectiveSample { time_us, checked: 100, wrong }
    }

    #[test]
    fn a_point_is_the_mean_of_all_ranks_and_names_the_slowest() {
        let counts = NcclCollective::AllReduce.counts(1_000_000, 2).expect("enough");
        let outcomes = [outcome(10.0, 0), outcome(30.0, 3)];
        let point = combine_samples(NcclCollective::AllReduce, counts, 20, &outcomes, 2)
            .expect("all ranks reported");
        assert_eq!((point.time_us, point.slowest_us), (20.0, 30.0));
        assert!((point.algbw - 50.0).abs() < 1e-9 && (point.busbw - 50.0).abs() < 1e-9);
        assert_eq!((point.wrong, point.checked), (Some(3), 200));
    }

    #[test]
    fn a_missing_rank_or_no_time_gives_no_point() {
        let counts = NcclCollective::Broadcast.counts(1_000, 2).expect("enough");
        let point = |outcomes: &[CollectiveSample]| {
            combine_samples(NcclCollective::Broadcast, counts, 1, outcomes, 2)
        };
        assert_eq!(point(&[outcome(10.0, 0)]), None);
        assert_eq!(point(&[outcome(0.0, 0), outcome(0.0, 0)]), None);
        let unchecked = CollectiveSample { time_us: 1.0, checked: 0, wrong: 0 };
        assert_eq!(point(&[unchecked, unchecked]).expect("timed").wrong, None);
    }

    #[test]
    fn an_id_survives_the_encoding() {
        let id = NcclUniqueId::from_bytes(std::array::from_fn(|at| u8::try_from(at).unwrap_or(0)));
        assert_eq!(decode_id(&encode_id(id)), Some(id));
        assert_eq!(decode_id(&Value::Null), None);
        assert_eq!(decode_id(&Value::String("AAAA".to_owned())), None, "too short");
    }
}
