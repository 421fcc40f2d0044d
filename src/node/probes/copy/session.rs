//! One process's work: tests one after the other, each run reading by reading,
//! everything said as soon as it is known.
//!
//! A call that fails costs the run it was made for. A GPU that answers no more
//! costs the runs it takes part in; the others go on.

use std::collections::BTreeSet;
use std::io;

use super::buffers::Buffers;
use super::buffers::Trouble;
use super::cases;
use super::cases::Place;
use super::cases::Refusal;
use super::cases::Run;
use super::devices::Gpu;
use super::peers::Peers;
use super::task::Task;
use super::timing;
use super::timing::Gate;
use super::trouble;
use super::trouble::Step;
use crate::ffi::cuda::Cuda;
use crate::ffi::cuda::CudaError;
use crate::probes::said::Line;
use crate::probes::said::Mouth;
use model::parsed::ProblemKind;
use model::probed::ProbeProblem;

/// GPUs, buffers and what was said of them.
#[derive(Debug)]
pub(super) struct Session<'c, 't> {
    pub(super) cuda: &'c Cuda,
    pub(super) task: &'t Task,
    // Buffers and the gate go before the GPUs whose contexts they are of.
    pub(super) buffers: Buffers<'c>,
    pub(super) gate: Option<Gate<'c>>,
    pub(super) gpus: Vec<Gpu<'c>>,
    peers: Option<Peers>,
    lost: BTreeSet<usize>,
    said: BTreeSet<(String, Option<u32>, Option<String>)>,
    // Some GPUs that are asked for are not here.
    is_short: bool,
    failed: bool,
}

impl<'c, 't> Session<'c, 't> {
    /// A session with these GPUs. Whether others are missing was said already.
    pub(super) fn new(cuda: &'c Cuda, task: &'t Task, gpus: Vec<Gpu<'c>>, is_short: bool) -> Self {
        Self {
            cuda,
            task,
            buffers: Buffers::new(cuda, &task.node, &task.root),
            gate: None,
            gpus,
            peers: None,
            lost: BTreeSet::new(),
            said: BTreeSet::new(),
            is_short,
            failed: is_short,
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
            if self.peers.as_ref().is_some_and(Peers::was_refused) {
                // Said when it was refused.
                return Ok(());
            }
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
            Refusal::NeedsPairs if self.is_short => {
                let what = "this test is about pairs of GPUs, and only one could be opened";
                ProbeProblem::new(ProblemKind::Error, "one-gpu", what)
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
            if problem.class.as_str() == "gpu-lost" {
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
    pub(super) fn say(&mut self, problem: ProbeProblem, mouth: &mut Mouth<'_>) -> io::Result<()> {
        self.failed |= problem.kind == ProblemKind::Error;
        // Pairs share a class; their sentence tells them apart.
        let what = problem.testcase.clone().or_else(|| Some(problem.detail.clone()));
        if !self.said.insert((problem.class.clone(), problem.gpu, what)) {
            return Ok(());
        }
        mouth.say(&Line::Problem(problem))
    }
}

/// A number of copies.
pub(super) fn count(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
