//! The work of one process: runs the tests in order, each run reading by reading, and reports every
//! result immediately.
//!
//! A failed call ends its run. If a GPU stops answering, the runs that use it are dropped; the
//! others continue.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Instant;

use super::buffers::{CopyBuffers, CopyCallFailure};
use super::cases::{BufferPlace, CaseRefusal, CopyRun};
use super::devices::OpenGpu;
use super::peer_access::PeerAccess;
use super::timing::StreamGate;
use super::{cases, timing};
use crate::ffi::cuda::{CudaCallError, CudaLibrary};
use crate::probes::driver_error;
use crate::probes::driver_error::DriverCallStep;
use crate::probes::protocol::{ProbeEmitter, ProbeMessage};
use crate::probes::task::CopyTask;
use model::parse_output::OutputProblemKind;
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::ProbeProblem;

/// The GPUs, their buffers, and the problems reported.
#[derive(Debug)]
pub(super) struct CopySession<'c, 't> {
    pub(super) cuda: &'c CudaLibrary,
    pub(super) task: &'t CopyTask,
    // Buffers and the gate must be dropped before the GPUs that own their contexts.
    pub(super) buffers: CopyBuffers<'c>,
    pub(super) gate: Option<StreamGate<'c>>,
    pub(super) gpus: Vec<OpenGpu<'c>>,
    peers: Option<PeerAccess>,
    lost_gpus: BTreeSet<usize>,
    /// The end of the last copies of each GPU.
    pub(super) last_copy: BTreeMap<usize, Instant>,
    emitted: BTreeSet<(ProbeProblemClass, Option<u32>, Option<String>)>,
    // Some requested GPUs are missing.
    is_incomplete: bool,
    failed: bool,
}

impl<'c, 't> CopySession<'c, 't> {
    /// Starts a session with these GPUs. The caller has already reported missing GPUs.
    pub(super) fn new(
        cuda: &'c CudaLibrary,
        task: &'t CopyTask,
        gpus: Vec<OpenGpu<'c>>,
        is_incomplete: bool,
    ) -> Self {
        Self {
            cuda,
            task,
            buffers: CopyBuffers::new(cuda, &task.node, &task.root),
            gate: None,
            gpus,
            peers: None,
            lost_gpus: BTreeSet::new(),
            last_copy: BTreeMap::new(),
            emitted: BTreeSet::new(),
            is_incomplete,
            failed: is_incomplete,
        }
    }

    /// Runs all tests. Returns whether everything requested was measured.
    pub(super) fn run_tests(&mut self, emitter: &mut ProbeEmitter<'_>) -> io::Result<bool> {
        self.prepare_gate(emitter)?;
        for name in &self.task.tests {
            self.run_test(name, emitter)?;
            self.buffers.clear();
        }
        Ok(!self.failed)
    }

    fn prepare_gate(&mut self, emitter: &mut ProbeEmitter<'_>) -> io::Result<()> {
        emitter.announce_step("testing whether streams can wait for a memory word");
        let gate = self.gpus.first().map(|gpu| StreamGate::new(self.cuda, gpu));
        let mut why = match &gate {
            Some(Err(error)) => Some(error.to_string()),
            _ => None,
        };
        if let Some(Ok(gate)) = gate {
            for at in 0..self.gpus.len() {
                match gate.can_hold(&self.gpus[at]) {
                    Ok(true) => {}
                    Ok(false) => {
                        why = Some("the driver does not support stream waits here".to_owned());
                    }
                    Err(error) => {
                        let doing = format!("making GPU {} wait", self.gpus[at].index());
                        self.drop_gpu(at, &error, &doing, emitter)?;
                    }
                }
            }
            self.gate = why.is_none().then_some(gate);
        }
        let (warmup, copies) = (to_usize(self.task.warmup), to_usize(self.task.copies));
        if !timing::can_be_held(warmup, copies) {
            why.get_or_insert(
                "there are too many copies to enqueue while the streams wait".to_owned(),
            );
        }
        let Some(why) = why else { return Ok(()) };
        let value = format!("copies start as they are enqueued: {why}");
        emitter.emit(&ProbeMessage::Note { name: "start".to_owned(), value })
    }

    fn drop_gpu(
        &mut self,
        at: usize,
        error: &CudaCallError,
        doing: &str,
        emitter: &mut ProbeEmitter<'_>,
    ) -> io::Result<()> {
        self.lost_gpus.insert(at);
        let mut problem = driver_error::classify_error(error, DriverCallStep::Copy, doing);
        problem.gpu = Some(self.gpus[at].index());
        self.emit_once(problem, emitter)
    }

    fn run_test(&mut self, name: &str, emitter: &mut ProbeEmitter<'_>) -> io::Result<()> {
        let labels: Vec<String> = self.gpus.iter().map(|gpu| gpu.index().to_string()).collect();
        let no_peers = |_: usize, _: usize| false;
        // Tests without pairs do not wait for peer access.
        if cases::needs_pairs(name) && 1 < labels.len() {
            self.enable_peers(emitter)?;
        }
        let case = match &self.peers {
            Some(peers) => cases::build_case(name, &labels, &|a, b| peers.can_reach(a, b)),
            None => cases::build_case(name, &labels, &no_peers),
        };
        let case = match case {
            Ok(case) => case,
            Err(refusal) => return self.report_refusal(refusal, name, emitter),
        };
        for shape in &case.shapes {
            emitter.emit(&ProbeMessage::Test(shape.clone()))?;
        }
        if case.runs.is_empty() {
            if self.peers.as_ref().is_some_and(PeerAccess::was_refused) {
                // The refusal was reported before.
                return Ok(());
            }
            let what = "no two of these GPUs have peer access";
            let mut problem =
                ProbeProblem::new(OutputProblemKind::Waived, ProbeProblemClass::NoPeerAccess, what);
            problem.testcase = Some(name.to_owned());
            return self.emit_once(problem, emitter);
        }
        for run in &case.runs {
            if self.gpus_of(run).any(|gpu| self.lost_gpus.contains(&gpu)) {
                continue;
            }
            if let Err(trouble) = self.take_readings(name, &case, run, emitter)? {
                self.report_failure(name, run, trouble, emitter)?;
            }
        }
        Ok(())
    }

    fn enable_peers(&mut self, emitter: &mut ProbeEmitter<'_>) -> io::Result<()> {
        if self.peers.is_some() {
            return Ok(());
        }
        emitter.announce_step("enabling peer access");
        let (peers, problems) = PeerAccess::enable(self.cuda, &self.gpus);
        // Without any peer access, each test reports that once.
        let is_unreachable = peers.is_empty();
        self.peers = Some(peers);
        for problem in problems {
            if !(is_unreachable && problem.kind == OutputProblemKind::Waived) {
                self.emit_once(problem, emitter)?;
            }
        }
        Ok(())
    }

    fn report_refusal(
        &mut self,
        refusal: CaseRefusal,
        name: &str,
        emitter: &mut ProbeEmitter<'_>,
    ) -> io::Result<()> {
        let mut problem = match refusal {
            CaseRefusal::Unknown => {
                let what = format!("no test has the name {name:?}");
                ProbeProblem::new(OutputProblemKind::Error, ProbeProblemClass::UnknownTest, what)
            }
            CaseRefusal::NeedsPairs if self.is_incomplete => {
                let what = "this test needs a pair of GPUs, but only one could be opened";
                ProbeProblem::new(OutputProblemKind::Error, ProbeProblemClass::OneGpu, what)
            }
            CaseRefusal::NeedsPairs => {
                let what = "this test needs a pair of GPUs, but only one exists";
                ProbeProblem::new(OutputProblemKind::Waived, ProbeProblemClass::OneGpu, what)
            }
        };
        problem.testcase = Some(name.to_owned());
        self.emit_once(problem, emitter)
    }

    /// The GPUs that a run uses.
    fn gpus_of(&self, run: &CopyRun) -> impl Iterator<Item = usize> {
        let all = run.copies.iter().flat_map(|copy| [copy.from, copy.to]);
        let all: BTreeSet<usize> =
            all.map(|(BufferPlace::Host(at) | BufferPlace::Gpu(at))| at).collect();
        all.into_iter()
    }

    /// Reports why a run failed, and finds the GPUs that no longer answer.
    fn report_failure(
        &mut self,
        name: &str,
        run: &CopyRun,
        trouble: CopyCallFailure,
        emitter: &mut ProbeEmitter<'_>,
    ) -> io::Result<()> {
        let CopyCallFailure { error, step, action: doing, gpu } = trouble;
        let mut gone = Vec::new();
        if driver_error::is_sticky(&error) {
            for at in self.gpus_of(run) {
                let gpu = &self.gpus[at];
                emitter
                    .announce_step(&format!("checking whether GPU {} still answers", gpu.index()));
                let answer = self
                    .cuda
                    .set_current_context(gpu.context())
                    .and_then(|()| self.cuda.synchronize());
                if let Err(error) = answer {
                    gone.push((at, error));
                }
            }
        }
        if gone.is_empty() {
            let mut problem = driver_error::classify_error(&error, step, &doing);
            if problem.class == ProbeProblemClass::GpuLost {
                // The GPU still answers, so it is not lost.
                problem.class = ProbeProblemClass::CudaError;
                problem.detail = format!("the driver failed, once ({error}, while {doing})");
            }
            problem.gpu = self.gpus.get(gpu).map(OpenGpu::index);
            problem.testcase = Some(name.to_owned());
            return self.emit_once(problem, emitter);
        }
        gone.iter().try_for_each(|(at, error)| self.drop_gpu(*at, error, &doing, emitter))
    }

    /// Reports a problem once per class, GPU and test.
    pub(super) fn emit_once(
        &mut self,
        problem: ProbeProblem,
        emitter: &mut ProbeEmitter<'_>,
    ) -> io::Result<()> {
        self.failed |= problem.kind == OutputProblemKind::Error;
        // Pairs share a class; only the sentence distinguishes them.
        let what = problem.testcase.clone().or_else(|| Some(problem.detail.clone()));
        if !self.emitted.insert((problem.class.clone(), problem.gpu, what)) {
            return Ok(());
        }
        emitter.emit(&ProbeMessage::Problem(problem))
    }
}

pub(super) fn to_usize(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
