//! One round: who copies, what comes of it, and whether it counts.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::Duration;

use super::Sweep;
use super::data;
use super::hall::Arrived;
use super::pairs::Flow;
use super::pairs::Kind;
use super::party::News;
use super::roll;
use super::roll::Failure;
use super::roll::Outcome;
use super::slowest;
use super::told::Word;
use super::window;
use super::window::Span;
use crate::probes::copy::pattern::Difference;
use crate::probes::copy::pattern::Pattern;
use crate::probes::copy::pattern::WORD;
use crate::probes::said::Cell;
use crate::probes::said::Ended;
use crate::probes::said::Line;
use model::parsed::ProblemKind;
use model::probed::ProbeProblem;

/// How often a bisection is tried whose windows are not covered.
const ATTEMPTS: u32 = 4;

/// The slowest copy that is waited for, in bytes a second: a hundredth of what
/// PCIe gives. What is slower is stuck.
const SLOWEST: f64 = 0.5e9;

/// What a round is.
pub(super) struct Round<'r> {
    pub(super) testcase: &'r str,
    pub(super) kind: Kind,
    pub(super) reading: u32,
    pub(super) flows: &'r [Flow],
    /// What it is called while it runs.
    pub(super) name: String,
}

impl Sweep<'_, '_, '_> {
    /// Measures the pairs of a round, as far as they are left.
    pub(super) fn play(&mut self, round: &Round<'_>) -> Result<(), Ended> {
        let mut rates: Option<BTreeMap<Flow, f64>> = None;
        for attempt in 1..=ATTEMPTS {
            if self.left(round).is_empty() {
                break;
            }
            let known = match rates.take() {
                Some(known) => known,
                None => self.warm_up(round)?,
            };
            let last_closes = self.agree(round, &known)?;
            let stamp = format!("{} attempt {attempt}", round.name);
            self.prepare(round, &stamp)?;
            let (took, news) = self.copy(round, &known, last_closes)?;
            if round.kind == Kind::Bisect && !self.is_covered(round, &news) {
                if attempt < ATTEMPTS {
                    // What the round itself took is better than what came before it.
                    self.skew_ms = self.skew_ms.max(window::skew(slowest(&news)));
                    rates = Some(known.into_iter().chain(took).collect());
                    continue;
                }
                self.check(round, &stamp, None)?;
                let what = format!(
                    "nodes did not copy at the same time for long enough, {ATTEMPTS} times over \
                     (the last exchange took {:.0} ms): larger buffers make copies that last \
                     longer",
                    slowest(&news)
                );
                self.tell(round, ProbeProblem::new(ProblemKind::Error, "uneven-round", what))?;
                break;
            }
            return self.check(round, &stamp, Some(&took));
        }
        self.whole &= !round.flows.iter().any(|flow| self.party.is_mine(flow.issuer));
        Ok(())
    }

    /// The copies of a round that can be measured.
    fn left(&self, round: &Round<'_>) -> Vec<Flow> {
        round.flows.iter().filter(|flow| self.party.can(flow)).copied().collect()
    }

    /// How long one copy takes, of those that this process does.
    fn warm_up(&mut self, round: &Round<'_>) -> Result<BTreeMap<Flow, f64>, Ended> {
        let left = self.left(round);
        self.mouth.begin(&format!("{}: warming up {}", round.name, self.ends(&left)));
        let lanes: Vec<_> =
            left.iter().filter_map(|flow| self.hall.lane(*flow, self.bytes, &self.party)).collect();
        let limit = self.limit(self.task.warmup.saturating_add(2));
        let outcome = roll::warm_up(&lanes, self.task.warmup, limit);
        self.keep(round, outcome)
    }

    /// Tells when the last window here will close; answers when the last of all
    /// will.
    fn agree(&mut self, round: &Round<'_>, known: &BTreeMap<Flow, f64>) -> Result<f64, Ended> {
        let own = known.values().map(|ms| window::closes(*ms, self.task.copies, self.skew_ms));
        let closes_ms = own.reduce(f64::max);
        let what = format!("{}, warm", round.name);
        let news = self.meet(&what, Word { closes_ms, ..Word::default() })?;
        Ok(news.words.values().filter_map(|word| word.closes_ms).fold(0.0, f64::max))
    }

    /// Makes what is copied the data of this round, and clears where it goes.
    fn prepare(&mut self, round: &Round<'_>, stamp: &str) -> Result<(), Ended> {
        for flow in self.left(round) {
            let pattern = self.pattern(flow, stamp);
            let doing = format!("preparing {} for {}", self.ends(&[flow]), round.name);
            self.mouth.begin(&doing);
            let stamped = self.hall.stamp(flow.from, &pattern);
            if let Err(error) = stamped {
                self.lose(flow.from, &error, &doing)?;
            }
            if let Err(error) = self.hall.clear(flow.to, &pattern) {
                self.lose(flow.to, &error, &doing)?;
            }
        }
        self.meet(&format!("{}, ready", round.name), Word::default())?;
        self.meet(&format!("{}, begin", round.name), Word::default())?;
        Ok(())
    }

    /// Copies: how long one copy took, of those that this process does, and what
    /// the others tell.
    fn copy(
        &mut self,
        round: &Round<'_>,
        known: &BTreeMap<Flow, f64>,
        last_closes: f64,
    ) -> Result<(BTreeMap<Flow, f64>, News), Ended> {
        let (left, began_ms) = (self.left(round), self.waited_ms);
        let lanes: Vec<_> = left
            .iter()
            .filter_map(|flow| {
                let ms = *known.get(flow)?;
                let plan = window::plan(ms, self.task.copies, last_closes, self.skew_ms);
                let (lane, engine) = self.hall.lane(*flow, self.bytes, &self.party)?;
                Some((lane, engine, plan))
            })
            .collect();
        let most = lanes.iter().map(|(_, _, plan)| plan.before + plan.window + plan.after).max();
        let limit = self.limit(most.unwrap_or(0));
        self.mouth.begin(&format!("{}: copying {}", round.name, self.ends(&left)));
        let (outcome, span) = roll::roll(&lanes, limit);
        // Problems are told afterwards: all wait for nobody between the answer and the
        // first copy.
        let took = self.keep(round, outcome)?;
        let word = Word { span, exchange_ms: Some(began_ms), ..Word::default() };
        let news = self.meet(&format!("{}, copied", round.name), word)?;
        Ok((took, news))
    }

    /// Whether every window was covered by the copies of all others.
    fn is_covered(&self, round: &Round<'_>, news: &News) -> bool {
        let left = self.left(round);
        let members: BTreeSet<usize> =
            left.iter().filter_map(|flow| self.party.member(flow.issuer)).collect();
        let spans = members.iter().map(|member| news.words.get(member)?.span);
        let spans: Option<Vec<Span>> = spans.collect();
        // Who left in the middle of it took a part of the load away.
        news.gone.is_empty() && spans.is_some_and(|spans| window::covered(&spans, slowest(news)))
    }

    /// Compares what arrived here, hears what arrived elsewhere, and says numbers
    /// of copies whose data was right.
    fn check(
        &mut self,
        round: &Round<'_>,
        stamp: &str,
        took: Option<&BTreeMap<Flow, f64>>,
    ) -> Result<(), Ended> {
        let mut word = Word::default();
        for flow in self.left(round) {
            let pattern = self.pattern(flow, stamp);
            let doing = format!("comparing what {} brought", self.ends(&[flow]));
            self.mouth.begin(&doing);
            match self.hall.compare(flow.to, &pattern) {
                Ok(None) => {}
                Ok(Some(Arrived::Right)) => word.right.push((flow.from, flow.to)),
                Ok(Some(Arrived::Wrong(difference))) => {
                    word.wrong.push((flow.from, flow.to, describe(&difference, &pattern)));
                }
                Ok(Some(Arrived::SpoiledHere(difference))) => {
                    word.right.push((flow.from, flow.to));
                    let how = describe(&difference, &pattern);
                    let what = format!(
                        "what {} brought was spoiled on its way to the host, which compares it: \
                         {how}; a second look found all of it right",
                        self.ends(&[flow])
                    );
                    self.tell_spoiled(Some(round.testcase), flow.to, what)?;
                }
                Err(error) => self.lose(flow.to, &error, &doing)?,
            }
        }
        let news = self.meet(&format!("{}, compared", round.name), word)?;
        let mine = round.flows.iter().filter(|flow| self.party.is_mine(flow.issuer));
        for flow in mine.copied().collect::<Vec<_>>() {
            let there = self.party.member(flow.to).and_then(|member| news.words.get(&member));
            let wrong = there.and_then(|word| {
                word.wrong.iter().find(|(from, to, _)| (*from, *to) == (flow.from, flow.to))
            });
            if let Some((_, _, how)) = wrong {
                self.tell_wrong(round, flow, how)?;
                continue;
            }
            let right = there.is_some_and(|word| word.right.contains(&(flow.from, flow.to)));
            let took = took.and_then(|took| took.get(&flow)).filter(|_| right);
            match took {
                Some(ms) => self.say_number(round, flow, *ms)?,
                None => self.whole = false,
            }
        }
        Ok(())
    }

    fn say_number(&mut self, round: &Round<'_>, flow: Flow, ms: f64) -> Result<(), Ended> {
        let value = self.bytes as f64 / (ms * 1e6);
        if !value.is_finite() || ms <= 0.0 {
            let what = format!("{} took no time at all", self.ends(&[flow]));
            return self.tell(round, ProbeProblem::new(ProblemKind::Inconsistent, "no-time", what));
        }
        let (row, col) = flow.labels(round.kind);
        let (testcase, reading) = (round.testcase.to_owned(), round.reading);
        Ok(self.mouth.say(&Line::Cell(Cell { testcase, row, col, reading, value }))?)
    }

    fn tell_wrong(&mut self, round: &Round<'_>, flow: Flow, how: &str) -> Result<(), Ended> {
        let what = format!("what {} copied is wrong: {how}", self.ends(&[flow]));
        let mut problem = ProbeProblem::new(ProblemKind::Corrupt, "wrong-data", what);
        problem.gpu = self.party.mine().find(|it| it.rank == flow.issuer).map(|it| it.gpu);
        self.tell(round, problem)
    }

    /// Data of a GPU of this process was spoiled between it and the host.
    pub(super) fn tell_spoiled(
        &mut self,
        testcase: Option<&str>,
        rank: u32,
        what: String,
    ) -> Result<(), Ended> {
        let mut problem = ProbeProblem::new(ProblemKind::Corrupt, "wrong-data", what);
        problem.gpu = self.party.mine().find(|it| it.rank == rank).map(|it| it.gpu);
        problem.testcase = testcase.map(str::to_owned);
        self.say_problem(problem)
    }

    fn tell(&mut self, round: &Round<'_>, problem: ProbeProblem) -> Result<(), Ended> {
        self.say_problem(ProbeProblem { testcase: Some(round.testcase.to_owned()), ..problem })
    }

    /// Keeps what was measured, and loses those ranks whose copies came to nothing.
    fn keep(&mut self, round: &Round<'_>, outcome: Outcome) -> Result<BTreeMap<Flow, f64>, Ended> {
        let mut kept = BTreeMap::new();
        for (flow, result) in outcome {
            match result {
                Ok(ms) => {
                    kept.insert(flow, ms);
                }
                Err(Failure::Refused(error)) => {
                    let doing = format!("copying {}", self.ends(&[flow]));
                    self.lose(flow.issuer, &error, &doing)?;
                }
                Err(Failure::Stuck(limit)) => {
                    self.stuck = true;
                    let what = format!(
                        "copying {} did not end within {:.0} s: the other node, its IMEX daemon \
                         or the NVLink between them may be gone",
                        self.ends(&[flow]),
                        limit.as_secs_f64()
                    );
                    self.lost.insert(flow.issuer, what.clone());
                    let mut problem = ProbeProblem::new(ProblemKind::Error, "copy-stuck", what);
                    let mine = self.party.mine().find(|it| it.rank == flow.issuer);
                    problem.gpu = mine.map(|it| it.gpu);
                    self.tell(round, problem)?;
                }
            }
        }
        Ok(kept)
    }

    /// What a copy carries.
    fn pattern(&self, flow: Flow, stamp: &str) -> Pattern {
        let copy = format!("{stamp} {}->{}", flow.from, flow.to);
        data::pattern(&self.party.place(flow.from), &copy, self.bytes)
    }

    /// Flows for people.
    fn ends(&self, flows: &[Flow]) -> String {
        let one = |flow: &Flow| {
            format!("{} -> {}", self.party.place(flow.from), self.party.place(flow.to))
        };
        flows.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    /// How long this many copies may take.
    fn limit(&self, copies: u32) -> Duration {
        let slowest = self.bytes as f64 / SLOWEST * f64::from(copies);
        Duration::from_secs_f64(slowest.clamp(5.0, 30.0))
    }
}

pub(super) fn describe(difference: &Difference, pattern: &Pattern) -> String {
    format!(
        "{} of {} words differ, the first at byte {} ({:#010x} instead of {:#010x})",
        difference.words,
        pattern.bytes / WORD,
        difference.first,
        difference.found,
        difference.expected
    )
}
