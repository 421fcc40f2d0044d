//! Copies between GPUs of several nodes of one NVLink domain, over memory shared by fabric handles.
//!
//! One process per node handles all GPUs of the node. The order is NVIDIA's for shared memory:
//! create, export, send the handle, import, map, copy, unmap everywhere, wait for all, release. All
//! communication goes through exchanges, which keep all processes in step: every process derives
//! every decision from the same answer (`membership`), so no leader is needed. If a member is lost,
//! only its own pairs are dropped.
//!
//! A round; each line is an exchange in which all processes wait for each other:
//!
//! 1. warm up, and report when the last window will close (`window`);
//! 2. stamp sources and clear destinations; two exchanges, the second to time the skew between the
//!    starts;
//! 3. copy, and report the time span of the copies; a bisection is repeated if its windows were not
//!    covered by the copies of all others;
//! 4. compare the received data, and report it. The issuer of a copy reports the number.
//!
//! Not yet run on hardware with more than one node.

mod batch;
pub(crate) mod data;
mod handshake;
mod membership;
mod pairs;
mod peer_memory;
mod round;
mod window;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::ManuallyDrop;
use std::time::Instant;

use super::devices::OpenGpu;
use crate::ffi::cuda::CudaLibrary;
use crate::probes::copy::devices::ProcessesPerGpu;
use crate::probes::driver_error;
use crate::probes::fabric::imex_channel;
use crate::probes::protocol::{ProbeAbort, ProbeEmitter, ProbeMatrixShape, ProbeMessage};
use crate::probes::task::{CopyTask, CrossNodePairs};
use handshake::{PeerHello, PeerReport};
use membership::{MembershipUpdate, ProbeMembership};
use model::parse_output::OutputProblemKind;
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::ProbeProblem;
use pairs::{CrossNodeTest, GpuFlow};
use peer_memory::{PeerMemory, UnreachableMemory};

/// How long to wait for the others at first, in seconds: eight GPUs without the persistence daemon
/// take half a minute to open.
const HELLO_S: f64 = 180.0;

/// How long to wait for the others at any later exchange, in seconds.
const STEP_S: f64 = 120.0;

/// Exchanges to time before the first round.
const SKEW_EXCHANGES: u32 = 3;

struct CrossNodeSweep<'s, 'c, 'm> {
    task: &'s CopyTask,
    across: CrossNodePairs,
    bytes: usize,
    emitter: &'s mut ProbeEmitter<'m>,
    membership: ProbeMembership,
    memory: PeerMemory<'c>,
    /// Lost ranks of this process, with the reason.
    lost: BTreeMap<u32, String>,
    /// Duration of the last exchange in milliseconds.
    last_exchange_ms: f64,
    /// Agreed upper bound of the skew between nodes, in milliseconds.
    skew_ms: f64,
    /// A copy never ended: its resources must not be released.
    is_stuck: bool,
    /// No number is missing yet.
    is_complete: bool,
}

/// Measures and reports the results. Returns an error if the output is closed.
pub(super) fn measure(
    task: &CopyTask,
    across: CrossNodePairs,
    emitter: &mut ProbeEmitter<'_>,
) -> io::Result<()> {
    match run_sweep(task, across, emitter) {
        Ok(true) => emitter.emit(&ProbeMessage::End),
        Ok(false) => Ok(()),
        Err(ProbeAbort::OutputClosed(error)) => Err(error),
        Err(ProbeAbort::ExchangeFailed(error)) => {
            let what = format!("the exchange with the other nodes ended: {error}");
            emitter.emit(&ProbeMessage::Problem(ProbeProblem::new(
                OutputProblemKind::Error,
                ProbeProblemClass::LeftAlone,
                what,
            )))
        }
    }
}

fn run_sweep(
    task: &CopyTask,
    across: CrossNodePairs,
    emitter: &mut ProbeEmitter<'_>,
) -> Result<bool, ProbeAbort> {
    emitter.announce_step("loading the driver's library");
    let loaded = CudaLibrary::load(task.cuda.as_deref());
    // Never unloaded: a copy that never ended may still be in flight.
    let cuda = match loaded.map(ManuallyDrop::new) {
        Ok(cuda) => cuda,
        Err(error) => {
            let problem = driver_error::classify_load_error(&error);
            let why = problem.detail.clone();
            emitter.emit(&ProbeMessage::Problem(problem))?;
            return send_refusal(task, &why, emitter);
        }
    };
    let Some((gpus, failed)) =
        super::open_gpus(&cuda, &task.root, &task.gpus, ProcessesPerGpu::One, emitter)?
    else {
        return send_refusal(task, "none of its GPUs can be used: see its problems", emitter);
    };
    let (bytes, problem) = copy_bytes(task);
    if let Some(problem) = problem {
        let why = problem.detail.clone();
        emitter.emit(&ProbeMessage::Problem(problem))?;
        return send_refusal(task, &why, emitter);
    }
    let mut sweep = CrossNodeSweep::start(&cuda, task, (across, bytes), (gpus, failed), emitter)?;
    let result = sweep.run_tests();
    let CrossNodeSweep { memory, is_stuck: stuck, .. } = sweep;
    if stuck {
        let _never = ManuallyDrop::new(memory);
    }
    result
}

/// Informs the other processes that this one measures nothing, so that they do not wait for it.
fn send_refusal(
    task: &CopyTask,
    why: &str,
    emitter: &mut ProbeEmitter<'_>,
) -> Result<bool, ProbeAbort> {
    emitter.exchange(PeerHello::new_refusal(task, why).to_value(), HELLO_S)?;
    Ok(false)
}

/// The longest exchange duration that any process reported, in milliseconds.
fn slowest_exchange_ms(news: &MembershipUpdate) -> f64 {
    news.reports.values().filter_map(|report| report.exchange_ms).fold(0.0, f64::max)
}

/// Bytes of a copy, in whole words.
fn copy_bytes(task: &CopyTask) -> (usize, Option<ProbeProblem>) {
    let whole = usize::try_from(task.buffer_bytes).unwrap_or(0) / WORD * WORD;
    let problem = || {
        let what = format!("{} bytes cannot be copied", task.buffer_bytes);
        ProbeProblem::new(OutputProblemKind::Error, ProbeProblemClass::NoSize, what)
    };
    (whole, (whole == 0).then(problem))
}

/// Data is compared in words.
const WORD: usize = super::pattern::WORD;

impl<'s, 'c, 'm> CrossNodeSweep<'s, 'c, 'm> {
    /// Shares the memory of all GPUs, and collects the members.
    fn start(
        cuda: &'c CudaLibrary,
        task: &'s CopyTask,
        (across, bytes): (CrossNodePairs, usize),
        (gpus, failed): (Vec<OpenGpu<'c>>, bool),
        emitter: &'s mut ProbeEmitter<'m>,
    ) -> Result<Self, ProbeAbort> {
        let channels = imex_channel::read_channels(&task.root);
        let (memory, hello, problems) = PeerMemory::open(cuda, gpus, bytes, channels, emitter);
        let whole = problems.is_empty() && !failed;
        for problem in problems {
            emitter.emit(&ProbeMessage::Problem(problem))?;
        }
        emitter.announce_step("waiting for the other nodes");
        let answer = emitter.exchange(PeerHello::new(task, hello).to_value(), HELLO_S)?;
        let membership = ProbeMembership::from_answer(&answer, task);
        let mut sweep = Self {
            task,
            across,
            bytes,
            emitter,
            membership,
            memory,
            lost: BTreeMap::new(),
            last_exchange_ms: 0.0,
            skew_ms: window::plan_skew(0.0),
            is_stuck: false,
            is_complete: whole,
        };
        sweep.emit_ranks()?;
        Ok(sweep)
    }

    /// Reports all ranks and the missing members.
    fn emit_ranks(&mut self) -> Result<(), ProbeAbort> {
        self.memory.assign_ranks(&self.membership);
        for rank in &self.membership.ranks {
            self.emitter.emit(&ProbeMessage::Rank(rank.clone()))?;
        }
        let gone: Vec<(usize, String)> = self
            .membership
            .gone_members()
            .iter()
            .map(|(member, why)| (*member, why.clone()))
            .collect();
        for (member, why) in gone {
            self.emit_gone(member, &why)?;
        }
        let others =
            self.membership.ranks.iter().filter(|rank| !self.membership.is_local(rank.rank));
        let lost = others.filter_map(|rank| {
            let why = self.membership.gpu_of(rank.rank)?.memory.as_ref().err()?;
            Some((rank.rank, why.clone()))
        });
        let lost: Vec<(u32, String)> = lost.collect();
        for (rank, why) in lost {
            self.emit_lost(rank, &why)?;
        }
        Ok(())
    }

    fn run_tests(&mut self) -> Result<bool, ProbeAbort> {
        let mut tests = Vec::new();
        for testcase in &self.task.tests {
            match CrossNodeTest::from_testcase(testcase) {
                Some(kind) => tests.push((testcase.clone(), kind)),
                None => {
                    let what = format!("{testcase} is not a test that runs across nodes");
                    let problem = ProbeProblem::new(
                        OutputProblemKind::Error,
                        ProbeProblemClass::UnknownTest,
                        what,
                    );
                    self.emit_problem(problem)?;
                }
            }
        }
        if self.across == CrossNodePairs::Lane {
            self.emit_unpaired()?;
        }
        let rounds: Vec<Vec<Vec<GpuFlow>>> =
            tests.iter().map(|(_, kind)| self.plan_rounds(*kind)).collect();
        let flows: BTreeSet<GpuFlow> = rounds.iter().flatten().flatten().copied().collect();
        self.import_memory(&flows)?;
        self.fill_sources()?;
        self.agree_on_skew()?;
        for ((testcase, kind), rounds) in tests.iter().zip(&rounds) {
            self.run_test(testcase, *kind, rounds)?;
        }
        self.finish()?;
        Ok(self.is_complete)
    }

    fn plan_rounds(&self, kind: CrossNodeTest) -> Vec<Vec<GpuFlow>> {
        let of = |rank| self.membership.member_of(rank).expect("a rank belongs to a member");
        pairs::plan_rounds(kind, self.across, &self.membership.ranks, of)
    }

    /// Imports the needed memory, and reports failures.
    fn import_memory(&mut self, flows: &BTreeSet<GpuFlow>) -> Result<(), ProbeAbort> {
        let unreached = self.memory.import_peers(flows, &self.membership, self.emitter);
        let pairs = unreached.iter().map(|it| (it.importer, it.owner)).collect();
        for problem in self.summarize_unreachable(&unreached) {
            self.emit_problem(problem)?;
        }
        self.exchange_reports(
            "memory was imported",
            PeerReport { unreached: pairs, ..PeerReport::default() },
        )?;
        Ok(())
    }

    /// Agrees on the maximum skew between nodes.
    fn agree_on_skew(&mut self) -> Result<(), ProbeAbort> {
        self.exchange_reports("memory was filled", PeerReport::default())?;
        let mut exchange_ms: f64 = 0.0;
        for _ in 0..SKEW_EXCHANGES {
            self.exchange_reports("exchanges are timed", PeerReport::default())?;
            exchange_ms = exchange_ms.max(self.last_exchange_ms);
        }
        let report = PeerReport { exchange_ms: Some(exchange_ms), ..PeerReport::default() };
        let update = self.exchange_reports("exchanges were timed", report)?;
        self.skew_ms = window::plan_skew(slowest_exchange_ms(&update));
        Ok(())
    }

    /// Reports one problem per other node and class, not one per pair.
    fn summarize_unreachable(&self, unreached: &[UnreachableMemory]) -> Vec<ProbeProblem> {
        let mut groups: BTreeMap<(Option<usize>, ProbeProblemClass), Vec<&UnreachableMemory>> =
            BTreeMap::new();
        for one in unreached {
            let key = (self.membership.member_of(one.owner), one.problem.class.clone());
            groups.entry(key).or_default().push(one);
        }
        let problem = |((member, _), group): (
            &(Option<usize>, ProbeProblemClass),
            &Vec<&UnreachableMemory>,
        )| {
            let mut problem = group[0].problem.clone();
            if let Some(more) = group.len().checked_sub(1).filter(|more| 0 < *more) {
                problem.detail = format!("{}; the same for {more} more pairs", problem.detail);
            }
            problem.node = member.map(|it| self.membership.member_name(it).to_owned());
            problem
        };
        groups.iter().map(problem).collect()
    }

    fn fill_sources(&mut self) -> Result<(), ProbeAbort> {
        let mine: Vec<u32> = self.membership.local_ranks().map(|rank| rank.rank).collect();
        for rank in mine {
            if !self.membership.is_active(rank) {
                continue;
            }
            let doing = format!("filling the memory of {}", self.membership.rank_label(rank));
            self.emitter.announce_step(&doing);
            let pattern = data::new_pattern(&self.membership.rank_label(rank), "", self.bytes);
            let filled = self.memory.fill(rank, &pattern);
            let checked = filled.and_then(|()| self.memory.check_source(rank, &pattern));
            match checked {
                Ok(None) => {}
                Ok(Some(difference)) => {
                    let how = round::describe_difference(&difference, &pattern);
                    let what = format!(
                        "{} differs from the data that the host wrote, before any copy: {how}",
                        self.membership.rank_label(rank)
                    );
                    self.lost.insert(rank, what.clone());
                    self.emit_spoiled(None, rank, what)?;
                }
                Err(error) => self.drop_rank(rank, &error, &doing)?,
            }
        }
        Ok(())
    }

    fn run_test(
        &mut self,
        testcase: &str,
        kind: CrossNodeTest,
        rounds: &[Vec<GpuFlow>],
    ) -> Result<(), ProbeAbort> {
        let mine: Vec<String> =
            self.membership.local_ranks().map(|rank| rank.rank.to_string()).collect();
        let (rows, cols) = match kind {
            CrossNodeTest::Write | CrossNodeTest::Read => {
                let all = self.membership.ranks.iter().map(|rank| rank.rank.to_string());
                (mine, all.collect())
            }
            CrossNodeTest::Bisect => {
                let flows =
                    rounds.iter().flatten().filter(|it| self.membership.is_local(it.issuer));
                (flows.map(|flow| flow.labels(kind).0).collect(), vec!["0".to_owned()])
            }
        };
        let (testcase, unit) = (testcase.to_owned(), "GB/s".to_owned());
        self.emitter.emit(&ProbeMessage::Test(ProbeMatrixShape {
            testcase: testcase.clone(),
            unit,
            rows,
            cols,
        }))?;
        for reading in 0..self.task.readings {
            for (nth, flows) in rounds.iter().enumerate() {
                let name =
                    format!("{testcase}, reading {reading}, round {} of {}", nth + 1, rounds.len());
                self.run_round(&round::CopyRound {
                    testcase: &testcase,
                    kind,
                    reading,
                    flows,
                    name,
                })?;
            }
        }
        Ok(())
    }

    /// Unmaps the memory of other processes, waits until all processes have done so, and releases
    /// the local memory.
    fn finish(&mut self) -> Result<(), ProbeAbort> {
        if !self.is_stuck {
            self.emitter.announce_step("unmapping the memory of others");
            self.memory.release_imports();
        }
        self.exchange_reports("memory of others was unmapped", PeerReport::default())?;
        self.emitter.announce_step("releasing memory");
        Ok(())
    }

    /// Sends a report to the others and returns their reports.
    fn exchange_reports(
        &mut self,
        step: &str,
        report: PeerReport,
    ) -> Result<MembershipUpdate, ProbeAbort> {
        self.emitter.announce_step(&format!("waiting for the other nodes: {step}"));
        let report = PeerReport { lost: self.lost.clone(), ..report };
        let started = Instant::now();
        let answer = self.emitter.exchange(report.to_value(), STEP_S)?;
        self.last_exchange_ms = started.elapsed().as_secs_f64() * 1e3;
        let update = self.membership.apply_answer(&answer);
        for (member, why) in &update.gone {
            self.emit_gone(*member, why)?;
        }
        for (rank, why) in &update.lost {
            self.emit_lost(*rank, why)?;
        }
        Ok(update)
    }

    fn emit_problem(&mut self, problem: ProbeProblem) -> Result<(), ProbeAbort> {
        self.is_complete = false;
        Ok(self.emitter.emit(&ProbeMessage::Problem(problem))?)
    }

    fn emit_gone(&mut self, member: usize, why: &str) -> Result<(), ProbeAbort> {
        let name = self.membership.member_name(member).to_owned();
        let what = format!("{name} dropped out, so its pairs are not measured: {why}");
        let mut problem =
            ProbeProblem::new(OutputProblemKind::Error, ProbeProblemClass::PeerGone, what);
        problem.node = Some(name);
        self.emit_problem(problem)
    }

    fn emit_lost(&mut self, rank: u32, why: &str) -> Result<(), ProbeAbort> {
        let place = self.membership.rank_label(rank);
        let what = format!("{place} does not participate, so its pairs are not measured: {why}");
        let mut problem =
            ProbeProblem::new(OutputProblemKind::Error, ProbeProblemClass::PeerLost, what);
        let known = self.membership.ranks.iter().find(|it| it.rank == rank);
        (problem.node, problem.gpu) = known.map(|it| (it.node.clone(), it.gpu)).unzip();
        self.emit_problem(problem)
    }

    fn emit_unpaired(&mut self) -> Result<(), ProbeAbort> {
        let of = |rank| self.membership.member_of(rank).expect("a rank belongs to a member");
        let alone = pairs::unpaired_gpus(&self.membership.ranks, of);
        let alone: Vec<u32> = alone.iter().map(|it| it.rank).collect();
        for rank in alone {
            if !self.membership.is_local(rank) {
                continue;
            }
            let place = self.membership.rank_label(rank);
            let what = format!("no other node has a GPU with the index of {place} to copy with");
            let mut problem =
                ProbeProblem::new(OutputProblemKind::Error, ProbeProblemClass::NoCounterpart, what);
            problem.gpu = self.membership.local_ranks().find(|it| it.rank == rank).map(|it| it.gpu);
            self.emit_problem(problem)?;
        }
        Ok(())
    }

    /// Removes a rank of this process that can no longer be measured.
    fn drop_rank(
        &mut self,
        rank: u32,
        error: &crate::ffi::cuda::CudaCallError,
        doing: &str,
    ) -> Result<(), ProbeAbort> {
        let problem = self.memory.problem(rank, error, doing);
        self.lost.entry(rank).or_insert_with(|| problem.detail.clone());
        self.emit_problem(problem)
    }
}
