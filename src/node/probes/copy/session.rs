//! One process's work: tests one after the other, each run reading by reading,
//! everything said as soon as it is known.
//!
//! A call that fails costs the run it was made for. A GPU that answers no more
//! costs the runs it takes part in; the others go on.

use std::collections::BTreeSet;
use std::io;

use super::buffers::{CopyBuffers, CopyCallFailure};
use super::cases::{BufferPlace, CaseRefusal, CopyRun};
use super::devices::OpenGpu;
use super::error_class::CopyCallStep;
use super::peer_access::PeerAccess;
use super::task::CopyTask;
use super::timing::StreamGate;
use super::{cases, error_class, timing};
use crate::ffi::cuda::{CudaCallError, CudaLibrary};
use crate::probes::protocol::{ProbeEmitter, ProbeMessage};
use model::parse_output::OutputProblemKind;
use model::probe_report::ProbeProblem;

/// GPUs, buffers and what was said of them.
#[derive(Debug)]
pub(super) struct CopySession<'c, 't> {
    pub(super) cuda: &'c CudaLibrary,
    pub(super) task: &'t CopyTask,
    // Buffers and the gate go before the GPUs whose contexts they are of.
    pub(super) buffers: CopyBuffers<'c>,
    pub(super) gate: Option<StreamGate<'c>>,
    pub(super) gpus: Vec<OpenGpu<'c>>,
    peers: Option<PeerAccess>,
    lost_gpus: BTreeSet<usize>,
    emitted: BTreeSet<(String, Option<u32>, Option<String>)>,
    // Some GPUs that are asked for are not here.
    is_incomplete: bool,
    failed: bool,
}

impl<'c, 't> CopySession<'c, 't> {
    /// A session with these GPUs. Whether others are missing was said already.
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
            emitted: BTreeSet::new(),
            is_incomplete,
            failed: is_incomplete,
        }
    }

    /// Runs all tests. Answers whether everything was measured that was asked for.
    pub(super) fn run_tests(&mut self, mouth: &mut ProbeEmitter<'_>) -> io::Result<bool> {
        self.prepare_gate(mouth)?;
        for name in &self.task.tests {
            self.run_test(name, mouth)?;
            self.buffers.clear();
        }
        Ok(!self.failed)
    }

    fn prepare_gate(&mut self, mouth: &mut ProbeEmitter<'_>) -> io::Result<()> {
        mouth.announce_step("trying whether streams can wait for a word");
        let gate = self.gpus.first().map(|gpu| StreamGate::new(self.cuda, gpu));
        let mut why = match &gate {
            Some(Err(error)) => Some(error.to_string()),
            _ => None,
        };
        if let Some(Ok(gate)) = gate {
            for at in 0..self.gpus.len() {
                match gate.can_hold(&self.gpus[at]) {
                    Ok(true) => {}
                    Ok(false) => why = Some("the driver cannot hold streams here".to_owned()),
                    Err(error) => {
                        let doing = format!("having GPU {} wait", self.gpus[at].index());
                        self.drop_gpu(at, &error, &doing, mouth)?;
                    }
                }
            }
            self.gate = why.is_none().then_some(gate);
        }
        let (warmup, copies) = (to_usize(self.task.warmup), to_usize(self.task.copies));
        if !timing::can_be_held(warmup, copies) {
            why.get_or_insert("these are too many copies to hold back".to_owned());
        }
        let Some(why) = why else { return Ok(()) };
        let value = format!("copies start as they are enqueued: {why}");
        mouth.emit(&ProbeMessage::Note { name: "start".to_owned(), value })
    }

    /// A GPU is not used any more.
    fn drop_gpu(
        &mut self,
        at: usize,
        error: &CudaCallError,
        doing: &str,
        mouth: &mut ProbeEmitter<'_>,
    ) -> io::Result<()> {
        self.lost_gpus.insert(at);
        let mut problem = error_class::classify_error(error, CopyCallStep::Copy, doing);
        problem.gpu = Some(self.gpus[at].index());
        self.emit_once(problem, mouth)
    }

    fn run_test(&mut self, name: &str, mouth: &mut ProbeEmitter<'_>) -> io::Result<()> {
        let labels: Vec<String> = self.gpus.iter().map(|gpu| gpu.index().to_string()).collect();
        let nobody = |_: usize, _: usize| false;
        // What needs no pairs is not to wait for them.
        if cases::needs_pairs(name) && 1 < labels.len() {
            self.enable_peers(mouth)?;
        }
        let case = match &self.peers {
            Some(peers) => cases::build_case(name, &labels, &|a, b| peers.can_reach(a, b)),
            None => cases::build_case(name, &labels, &nobody),
        };
        let case = match case {
            Ok(case) => case,
            Err(refusal) => return self.report_refusal(refusal, name, mouth),
        };
        for shape in &case.shapes {
            mouth.emit(&ProbeMessage::Test(shape.clone()))?;
        }
        if case.runs.is_empty() {
            if self.peers.as_ref().is_some_and(PeerAccess::was_refused) {
                // Said when it was refused.
                return Ok(());
            }
            let what = "no two of these GPUs reach each other's memory";
            let mut problem = ProbeProblem::new(OutputProblemKind::Waived, "no-peer-access", what);
            problem.testcase = Some(name.to_owned());
            return self.emit_once(problem, mouth);
        }
        for run in &case.runs {
            if self.gpus_of(run).any(|gpu| self.lost_gpus.contains(&gpu)) {
                continue;
            }
            if let Err(trouble) = self.take_readings(name, &case, run, mouth)? {
                self.report_failure(name, run, trouble, mouth)?;
            }
        }
        Ok(())
    }

    fn enable_peers(&mut self, mouth: &mut ProbeEmitter<'_>) -> io::Result<()> {
        if self.peers.is_some() {
            return Ok(());
        }
        mouth.announce_step("letting GPUs reach each other");
        let (peers, problems) = PeerAccess::enable(self.cuda, &self.gpus);
        // Where nobody reaches anybody, each test says so once.
        let nobody = peers.is_empty();
        self.peers = Some(peers);
        for problem in problems {
            if !(nobody && problem.kind == OutputProblemKind::Waived) {
                self.emit_once(problem, mouth)?;
            }
        }
        Ok(())
    }

    fn report_refusal(
        &mut self,
        refusal: CaseRefusal,
        name: &str,
        mouth: &mut ProbeEmitter<'_>,
    ) -> io::Result<()> {
        let mut problem = match refusal {
            CaseRefusal::Unknown => {
                let what = format!("there is no test {name:?}");
                ProbeProblem::new(OutputProblemKind::Error, "unknown-test", what)
            }
            CaseRefusal::NeedsPairs if self.is_incomplete => {
                let what = "this test is about pairs of GPUs, and only one could be opened";
                ProbeProblem::new(OutputProblemKind::Error, "one-gpu", what)
            }
            CaseRefusal::NeedsPairs => {
                let what = "this test is about pairs of GPUs, and there is one";
                ProbeProblem::new(OutputProblemKind::Waived, "one-gpu", what)
            }
        };
        problem.testcase = Some(name.to_owned());
        self.emit_once(problem, mouth)
    }

    /// The GPUs that a run uses.
    fn gpus_of(&self, run: &CopyRun) -> impl Iterator<Item = usize> {
        let all = run.copies.iter().flat_map(|copy| [copy.from, copy.to]);
        let all: BTreeSet<usize> =
            all.map(|(BufferPlace::Host(at) | BufferPlace::Gpu(at))| at).collect();
        all.into_iter()
    }

    /// Says why a run came to nothing, and finds out who answers no more.
    fn report_failure(
        &mut self,
        name: &str,
        run: &CopyRun,
        trouble: CopyCallFailure,
        mouth: &mut ProbeEmitter<'_>,
    ) -> io::Result<()> {
        let CopyCallFailure { error, step, action: doing, gpu } = trouble;
        let mut gone = Vec::new();
        if error_class::is_sticky(&error) {
            for at in self.gpus_of(run) {
                let gpu = &self.gpus[at];
                mouth.announce_step(&format!("asking whether GPU {} still answers", gpu.index()));
                let asked = self
                    .cuda
                    .set_current_context(gpu.context())
                    .and_then(|()| self.cuda.synchronize());
                if let Err(error) = asked {
                    gone.push((at, error));
                }
            }
        }
        if gone.is_empty() {
            let mut problem = error_class::classify_error(&error, step, &doing);
            if problem.class.as_str() == "gpu-lost" {
                // It was asked, and it is not.
                "cuda-error".clone_into(&mut problem.class);
                problem.detail = format!("the driver refused, once ({error}, while {doing})");
            }
            problem.gpu = self.gpus.get(gpu).map(OpenGpu::index);
            problem.testcase = Some(name.to_owned());
            return self.emit_once(problem, mouth);
        }
        gone.iter().try_for_each(|(at, error)| self.drop_gpu(*at, error, &doing, mouth))
    }

    /// Says a problem, once per class, GPU and test.
    pub(super) fn emit_once(
        &mut self,
        problem: ProbeProblem,
        mouth: &mut ProbeEmitter<'_>,
    ) -> io::Result<()> {
        self.failed |= problem.kind == OutputProblemKind::Error;
        // Pairs share a class; their sentence tells them apart.
        let what = problem.testcase.clone().or_else(|| Some(problem.detail.clone()));
        if !self.emitted.insert((problem.class.clone(), problem.gpu, what)) {
            return Ok(());
        }
        mouth.emit(&ProbeMessage::Problem(problem))
    }
}

/// A number of copies.
pub(super) fn to_usize(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
