//! Copies between GPUs of several nodes of one NVLink domain, over memory that
//! is shared by fabric handles.
//!
//! One process per node with all its GPUs. The order is NVIDIA's for shared
//! memory: create, export, tell, import, map, copy, unmap everywhere, wait for
//! all, release. Everything is told through exchanges, in which all processes
//! stay in step: whatever one of them decides follows from what all were
//! answered (`party`), so that nobody needs a leader. Who is gone costs its own
//! pairs and no others.
//!
//! A round, each line an exchange that all wait for:
//!
//! 1. warm up, and tell when the last window will close (`window`);
//! 2. stamp sources and clear destinations; two exchanges, the second to time how
//!    far apart all begin to copy;
//! 3. copy, and tell when copies ran; a bisection whose windows were not covered
//!    by the copies of all others is repeated;
//! 4. compare what arrived, and tell. Who copied says the number.
//!
//! Never run on hardware with more than one node.

pub(crate) mod data;
mod hall;
mod pairs;
mod party;
mod roll;
mod round;
mod told;
mod window;

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::io;
use std::mem::ManuallyDrop;
use std::time::Instant;

use super::devices::Gpu;
use super::task::Across;
use super::task::Task;
use super::trouble;
use crate::ffi::cuda::Cuda;
use crate::probes::fabric::channel;
use crate::probes::said::Ended;
use crate::probes::said::Line;
use crate::probes::said::Mouth;
use crate::probes::said::Shape;
use hall::Hall;
use hall::Unreached;
use model::parsed::ProblemKind;
use model::probed::ProbeProblem;
use pairs::Flow;
use pairs::Kind;
use party::News;
use party::Party;
use told::Hello;
use told::Word;

/// How long others are waited for at first, in seconds: eight GPUs without the
/// persistence daemon take half a minute to open.
const HELLO_S: f64 = 180.0;

/// How long others are waited for at any later exchange, in seconds.
const STEP_S: f64 = 120.0;

/// Exchanges that are timed before the first round.
const PACED: u32 = 3;

/// A sweep over several nodes.
struct Sweep<'s, 'c, 'm> {
    task: &'s Task,
    across: Across,
    bytes: usize,
    mouth: &'s mut Mouth<'m>,
    party: Party,
    hall: Hall<'c>,
    /// Ranks of this process that were lost, and why.
    lost: BTreeMap<u32, String>,
    /// How long the last exchange took, in milliseconds.
    waited_ms: f64,
    /// How far apart nodes may begin, as all agreed, in milliseconds.
    skew_ms: f64,
    /// A copy never ended: what it uses must not be given back.
    stuck: bool,
    /// Nothing is missing so far.
    whole: bool,
}

/// Measures, and says what comes of it. An error is that nobody listens.
pub(super) fn measure(task: &Task, across: Across, mouth: &mut Mouth<'_>) -> io::Result<()> {
    match sweep(task, across, mouth) {
        Ok(true) => mouth.say(&Line::End),
        Ok(false) => Ok(()),
        Err(Ended::Unheard(error)) => Err(error),
        Err(Ended::Alone(error)) => {
            let what = format!("the exchange with the other nodes ended: {error}");
            mouth.say(&Line::Problem(ProbeProblem::new(ProblemKind::Error, "left-alone", what)))
        }
    }
}

fn sweep(task: &Task, across: Across, mouth: &mut Mouth<'_>) -> Result<bool, Ended> {
    mouth.begin("loading the driver's library");
    let loaded = Cuda::load(task.cuda.as_deref());
    // It is never unloaded: a copy that never ended may still be under way.
    let cuda = match loaded.map(ManuallyDrop::new) {
        Ok(cuda) => cuda,
        Err(error) => {
            let problem = trouble::unloadable(&error);
            let why = problem.detail.clone();
            mouth.say(&Line::Problem(problem))?;
            return refuse(task, &why, mouth);
        }
    };
    let Some((gpus, failed)) = super::open(&cuda, &task.root, &task.gpus, mouth)? else {
        return refuse(task, "none of its GPUs can be used: see its own problems", mouth);
    };
    let (bytes, problem) = bytes(task);
    if let Some(problem) = problem {
        let why = problem.detail.clone();
        mouth.say(&Line::Problem(problem))?;
        return refuse(task, &why, mouth);
    }
    let mut sweep = Sweep::begin(&cuda, task, (across, bytes), (gpus, failed), mouth)?;
    let result = sweep.run();
    let Sweep { hall, stuck, .. } = sweep;
    if stuck {
        let _never = ManuallyDrop::new(hall);
    }
    result
}

/// Tells the others that nothing can be measured here, so that they do not wait.
fn refuse(task: &Task, why: &str, mouth: &mut Mouth<'_>) -> Result<bool, Ended> {
    mouth.exchange(Hello::refusal(task, why).value(), HELLO_S)?;
    Ok(false)
}

/// The longest that anybody told an exchange took, in milliseconds.
fn slowest(news: &News) -> f64 {
    news.words.values().filter_map(|word| word.exchange_ms).fold(0.0, f64::max)
}

/// Bytes of a copy, in whole words.
fn bytes(task: &Task) -> (usize, Option<ProbeProblem>) {
    let whole = usize::try_from(task.buffer_bytes).unwrap_or(0) / WORD * WORD;
    let tells = || {
        let what = format!("{} bytes cannot be copied", task.buffer_bytes);
        ProbeProblem::new(ProblemKind::Error, "no-size", what)
    };
    (whole, (whole == 0).then(tells))
}

/// Data is compared in words.
const WORD: usize = super::pattern::WORD;

impl<'s, 'c, 'm> Sweep<'s, 'c, 'm> {
    /// Shares the memory of all GPUs, and meets the others.
    fn begin(
        cuda: &'c Cuda,
        task: &'s Task,
        (across, bytes): (Across, usize),
        (gpus, failed): (Vec<Gpu<'c>>, bool),
        mouth: &'s mut Mouth<'m>,
    ) -> Result<Self, Ended> {
        let channels = channel::look(&task.root);
        let (hall, hello, problems) = Hall::open(cuda, gpus, bytes, channels, mouth);
        let whole = problems.is_empty() && !failed;
        for problem in problems {
            mouth.say(&Line::Problem(problem))?;
        }
        mouth.begin("waiting for the other nodes");
        let answer = mouth.exchange(Hello::new(task, hello).value(), HELLO_S)?;
        let party = Party::of(&answer, task);
        let mut sweep = Self {
            task,
            across,
            bytes,
            mouth,
            party,
            hall,
            lost: BTreeMap::new(),
            waited_ms: 0.0,
            skew_ms: window::skew(0.0),
            stuck: false,
            whole,
        };
        sweep.introduce()?;
        Ok(sweep)
    }

    /// Says who is there, and who is not.
    fn introduce(&mut self) -> Result<(), Ended> {
        self.hall.seat(&self.party);
        for rank in &self.party.ranks {
            self.mouth.say(&Line::Rank(rank.clone()))?;
        }
        let gone: Vec<(usize, String)> =
            self.party.gone().iter().map(|(member, why)| (*member, why.clone())).collect();
        for (member, why) in gone {
            self.tell_gone(member, &why)?;
        }
        let others = self.party.ranks.iter().filter(|rank| !self.party.is_mine(rank.rank));
        let lost = others.filter_map(|rank| {
            let why = self.party.gpu(rank.rank)?.memory.as_ref().err()?;
            Some((rank.rank, why.clone()))
        });
        let lost: Vec<(u32, String)> = lost.collect();
        for (rank, why) in lost {
            self.tell_lost(rank, &why)?;
        }
        Ok(())
    }

    fn run(&mut self) -> Result<bool, Ended> {
        let mut tests = Vec::new();
        for testcase in &self.task.tests {
            match Kind::of(testcase) {
                Some(kind) => tests.push((testcase.clone(), kind)),
                None => {
                    let what = format!("{testcase} is no test that runs across nodes");
                    let problem = ProbeProblem::new(ProblemKind::Error, "unknown-test", what);
                    self.say_problem(problem)?;
                }
            }
        }
        if self.across == Across::Lane {
            self.tell_without_counterpart()?;
        }
        let rounds: Vec<Vec<Vec<Flow>>> =
            tests.iter().map(|(_, kind)| self.rounds(*kind)).collect();
        let flows: BTreeSet<Flow> = rounds.iter().flatten().flatten().copied().collect();
        self.reach(&flows)?;
        self.fill()?;
        self.pace()?;
        for ((testcase, kind), rounds) in tests.iter().zip(&rounds) {
            self.test(testcase, *kind, rounds)?;
        }
        self.end()?;
        Ok(self.whole)
    }

    fn rounds(&self, kind: Kind) -> Vec<Vec<Flow>> {
        let of = |rank| self.party.member(rank).expect("a rank belongs to a member");
        pairs::rounds(kind, self.across, &self.party.ranks, of)
    }

    /// Imports what is needed, and tells what cannot be had.
    fn reach(&mut self, flows: &BTreeSet<Flow>) -> Result<(), Ended> {
        let unreached = self.hall.reach(flows, &self.party, self.mouth);
        let pairs = unreached.iter().map(|it| (it.by, it.whose)).collect();
        for problem in self.summary(&unreached) {
            self.say_problem(problem)?;
        }
        self.meet("memory was imported", Word { unreached: pairs, ..Word::default() })?;
        Ok(())
    }

    /// Agrees on how far apart nodes may begin.
    fn pace(&mut self) -> Result<(), Ended> {
        self.meet("memory was filled", Word::default())?;
        let mut exchange_ms: f64 = 0.0;
        for _ in 0..PACED {
            self.meet("exchanges are timed", Word::default())?;
            exchange_ms = exchange_ms.max(self.waited_ms);
        }
        let word = Word { exchange_ms: Some(exchange_ms), ..Word::default() };
        let news = self.meet("exchanges were timed", word)?;
        self.skew_ms = window::skew(slowest(&news));
        Ok(())
    }

    /// One problem for each other node and class, not one for each pair.
    fn summary(&self, unreached: &[Unreached]) -> Vec<ProbeProblem> {
        let mut groups: BTreeMap<(Option<usize>, String), Vec<&Unreached>> = BTreeMap::new();
        for one in unreached {
            let key = (self.party.member(one.whose), one.problem.class.clone());
            groups.entry(key).or_default().push(one);
        }
        let problem = |((member, _), group): (&(Option<usize>, String), &Vec<&Unreached>)| {
            let mut problem = group[0].problem.clone();
            if let Some(more) = group.len().checked_sub(1).filter(|more| 0 < *more) {
                problem.detail = format!("{}; {more} more pairs likewise", problem.detail);
            }
            problem.node = member.map(|it| self.party.name(it).to_owned());
            problem
        };
        groups.iter().map(problem).collect()
    }

    /// Fills what is copied from.
    fn fill(&mut self) -> Result<(), Ended> {
        let mine: Vec<u32> = self.party.mine().map(|rank| rank.rank).collect();
        for rank in mine {
            if !self.party.is_left(rank) {
                continue;
            }
            let doing = format!("filling the memory of {}", self.party.place(rank));
            self.mouth.begin(&doing);
            let pattern = data::pattern(&self.party.place(rank), "", self.bytes);
            let filled = self.hall.fill(rank, &pattern);
            let checked = filled.and_then(|()| self.hall.check_source(rank, &pattern));
            match checked {
                Ok(None) => {}
                Ok(Some(difference)) => {
                    let how = round::describe(&difference, &pattern);
                    let what = format!(
                        "{} does not hold what the host wrote there, before any copy: {how}",
                        self.party.place(rank)
                    );
                    self.lost.insert(rank, what.clone());
                    self.tell_spoiled(None, rank, what)?;
                }
                Err(error) => self.lose(rank, &error, &doing)?,
            }
        }
        Ok(())
    }

    fn test(&mut self, testcase: &str, kind: Kind, rounds: &[Vec<Flow>]) -> Result<(), Ended> {
        let mine: Vec<String> = self.party.mine().map(|rank| rank.rank.to_string()).collect();
        let (rows, cols) = match kind {
            Kind::Write | Kind::Read => {
                let all = self.party.ranks.iter().map(|rank| rank.rank.to_string());
                (mine, all.collect())
            }
            Kind::Bisect => {
                let flows = rounds.iter().flatten().filter(|it| self.party.is_mine(it.issuer));
                (flows.map(|flow| flow.labels(kind).0).collect(), vec!["0".to_owned()])
            }
        };
        let (testcase, unit) = (testcase.to_owned(), "GB/s".to_owned());
        self.mouth.say(&Line::Test(Shape { testcase: testcase.clone(), unit, rows, cols }))?;
        for reading in 0..self.task.readings {
            for (nth, flows) in rounds.iter().enumerate() {
                let name =
                    format!("{testcase}, reading {reading}, round {} of {}", nth + 1, rounds.len());
                self.play(&round::Round { testcase: &testcase, kind, reading, flows, name })?;
            }
        }
        Ok(())
    }

    /// Unmaps everywhere, then releases.
    fn end(&mut self) -> Result<(), Ended> {
        if !self.stuck {
            self.mouth.begin("giving back the memory of others");
            self.hall.forget_others();
        }
        self.meet("memory of others was given back", Word::default())?;
        self.mouth.begin("giving back memory");
        Ok(())
    }

    /// Tells the others something and hears what they tell.
    fn meet(&mut self, what: &str, word: Word) -> Result<News, Ended> {
        self.mouth.begin(&format!("waiting for the other nodes: {what}"));
        let word = Word { lost: self.lost.clone(), ..word };
        let asked = Instant::now();
        let answer = self.mouth.exchange(word.value(), STEP_S)?;
        self.waited_ms = asked.elapsed().as_secs_f64() * 1e3;
        let news = self.party.hear(&answer);
        for (member, why) in &news.gone {
            self.tell_gone(*member, why)?;
        }
        for (rank, why) in &news.lost {
            self.tell_lost(*rank, why)?;
        }
        Ok(news)
    }

    fn say_problem(&mut self, problem: ProbeProblem) -> Result<(), Ended> {
        self.whole = false;
        Ok(self.mouth.say(&Line::Problem(problem))?)
    }

    fn tell_gone(&mut self, member: usize, why: &str) -> Result<(), Ended> {
        let name = self.party.name(member).to_owned();
        let what = format!("{name} takes no part any more, so its pairs are not measured: {why}");
        let mut problem = ProbeProblem::new(ProblemKind::Error, "peer-gone", what);
        problem.node = Some(name);
        self.say_problem(problem)
    }

    fn tell_lost(&mut self, rank: u32, why: &str) -> Result<(), Ended> {
        let place = self.party.place(rank);
        let what = format!("{place} takes no part, so its pairs are not measured: {why}");
        let mut problem = ProbeProblem::new(ProblemKind::Error, "peer-lost", what);
        let known = self.party.ranks.iter().find(|it| it.rank == rank);
        (problem.node, problem.gpu) = known.map(|it| (it.node.clone(), it.gpu)).unzip();
        self.say_problem(problem)
    }

    fn tell_without_counterpart(&mut self) -> Result<(), Ended> {
        let of = |rank| self.party.member(rank).expect("a rank belongs to a member");
        let alone = pairs::without_counterpart(&self.party.ranks, of);
        let alone: Vec<u32> = alone.iter().map(|it| it.rank).collect();
        for rank in alone {
            if !self.party.is_mine(rank) {
                continue;
            }
            let place = self.party.place(rank);
            let what = format!("no other node has a GPU of the number of {place} to copy with");
            let mut problem = ProbeProblem::new(ProblemKind::Error, "no-counterpart", what);
            problem.gpu = self.party.mine().find(|it| it.rank == rank).map(|it| it.gpu);
            self.say_problem(problem)?;
        }
        Ok(())
    }

    /// A rank of this process cannot be measured any more.
    fn lose(
        &mut self,
        rank: u32,
        error: &crate::ffi::cuda::CudaError,
        doing: &str,
    ) -> Result<(), Ended> {
        let problem = self.hall.problem(rank, error, doing);
        self.lost.entry(rank).or_insert_with(|| problem.detail.clone());
        self.say_problem(problem)
    }
}
