//! Running rounds: the steps of a round side by side, a barrier, the next.
//!
//! Every reading is handed to the disk before the next one of its step is
//! taken. What decides whether another reading is needed is the judge's
//! (`judge::sequential`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::fleet::Fleet;
use super::keep::{Ended, Keeper};
use super::measured::Measured;
use super::otherwise::Lacking;
use super::progress::Progress;
use super::replay::Stored;
use super::room::Room;
use super::step::Reading;
use super::worker::Outcome;
use super::{answered, outputs, step};
use engine::judge::sequential_test;
use engine::plan::{Plan, PlanRound, PlanStep};
use model::claims::{ClaimedRail, Claims};
use model::parse_output::ParseOutput;
use model::raw_result::{ProcessEnding, RawResult};
use model::tool_call::ToolBackend;
use node::exec::CAPTURE;

/// The first port that serving sides are given. Below the range from which
/// Linux takes ports for clients (32768 and up).
const FIRST_PORT: u16 = 20_000;
/// How many ports are gone through before the first is used again, so that a
/// port is not asked for while its last connection is still closing.
const PORTS: usize = 10_000;

/// Bytes of output, of both streams, that may be in memory at the same time, when every
/// tool of a round prints without end.
const MEMORY: usize = 1 << 30;
/// Bytes of output that are kept in any case: several times what nvbandwidth
/// prints in a rack, some ten matrices of 72 by 72 cells of ten characters.
const LEAST_CAPTURE: usize = 4 << 20;

/// Who answers.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// Workers on the nodes.
    Live(Arc<Fleet>),
    /// A stored run.
    Stored(Arc<Stored>),
    /// Tools in this process.
    Tools(Arc<dyn ToolBackend>),
}

impl Source {
    /// A stored run answers.
    pub(super) fn stored(run: Stored) -> Self {
        Self::Stored(Arc::new(run))
    }
}

/// What rounds are run with.
#[derive(Debug)]
pub(super) struct Runner<'a> {
    pub(super) source: Source,
    pub(super) claims: &'a Claims,
    pub(super) keeper: &'a Keeper,
    pub(super) progress: &'a Progress,
    pub(super) stop: watch::Receiver<bool>,
    pub(super) ports: AtomicUsize,
    pub(super) lacking: Arc<Lacking>,
    /// What of the outputs is kept.
    pub(super) room: Mutex<Room>,
}

/// How the rounds of a plan went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ran {
    /// Every reading was tried.
    Whole,
    /// Somebody ended it, or the disk refused.
    Ended,
}

/// How one round went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Went {
    /// Nothing was left to do.
    WasDone,
    /// Something was tried.
    Through,
    /// The disk refuses.
    Refused,
}

impl Runner<'_> {
    /// Runs the rounds of a plan, without those readings that were taken
    /// before. Ends early when told to stop or when the disk refuses.
    pub(super) async fn run(&self, plan: &Plan, measured: &mut Measured) -> Ran {
        let taken = measured.taken();
        let hung = measured.hung();
        let places = Arc::new(Semaphore::new(plan.parallel.max(1)));
        self.progress.plan(plan);
        for round in &plan.rounds {
            let start = Instant::now();
            let went = self.round(round, &places, &taken, &hung, measured).await;
            match went {
                Went::Refused => return Ran::Ended,
                _ if *self.stop.borrow() => return Ran::Ended,
                Went::WasDone => self.progress.round_was_done(round, plan.parallel),
                Went::Through => self.progress.round(round, plan.parallel, start.elapsed()),
            }
        }
        Ran::Whole
    }

    /// One round.
    async fn round(
        &self,
        round: &PlanRound,
        places: &Arc<Semaphore>,
        taken: &BTreeSet<(usize, u32)>,
        hung: &BTreeMap<usize, u32>,
        measured: &mut Measured,
    ) -> Went {
        let most = round.steps.iter().map(|s| s.most_readings.max(s.readings)).max().unwrap_or(0);
        // A tool that hangs once hangs again, for as long.
        let mut hung = hung.clone();
        let capture = capture(round.steps.len().min(places.available_permits()));
        let mut went = Went::WasDone;
        for reading in 0..most {
            let more = self.undecided(round, reading, measured);
            let wanted = round.steps.iter().filter(|s| {
                let planned = reading < s.readings;
                (planned || more.contains(&s.step)) && !taken.contains(&(s.step, reading))
            });
            let mut tasks = JoinSet::new();
            for step in wanted {
                if let Some(first) = hung.get(&step.step).filter(|first| **first < reading) {
                    if reading < step.readings {
                        let why = format!("not tried: reading {} hung", first + 1);
                        let result = RawResult {
                            ending: ProcessEnding::not_started(why.clone()),
                            ..step::blank(step, reading, step.argv.to_vec())
                        };
                        went = Went::Through;
                        if !self.keep(step, result, Outcome::not_started(why), measured).await {
                            return Went::Refused;
                        }
                    }
                    continue;
                }
                went = Went::Through;
                let rail = step.rail.as_ref().and_then(|name| self.rail(name));
                let offset = self.ports.fetch_add(1, Ordering::Relaxed) % PORTS;
                let port = FIRST_PORT + u16::try_from(offset).unwrap_or(0);
                let (step, source) = (step.clone(), self.source.clone());
                let (places, mut stop) = (Arc::clone(places), self.stop.clone());
                let lacking = Arc::clone(&self.lacking);
                tasks.spawn(async move {
                    let Ok(place) = places.acquire_owned().await else { return None };
                    if *stop.borrow() {
                        return None;
                    }
                    let rail = rail.as_ref();
                    let what = Reading { step: &step, reading, rail, port, capture };
                    let (result, outcome, instead) = match &source {
                        Source::Live(fleet) => step::take(&what, fleet, &lacking, &mut stop).await,
                        Source::Stored(stored) => {
                            let (result, outcome) = stored.answer(&step, reading);
                            (result, outcome, None)
                        }
                        Source::Tools(tools) => {
                            let (result, outcome) = answered::take(&what, tools.as_ref());
                            (result, outcome, None)
                        }
                    };
                    // Its place is free when its output is on its way to the
                    // disk: what waits for a slow one is no more than this.
                    Some((step, result, outcome, instead, place))
                });
            }
            while let Some(ended) = tasks.join_next().await {
                let (step, result, outcome, instead, _place) = match ended {
                    Ok(Some(ended)) => ended,
                    Ok(None) => continue,
                    Err(error) => match error.try_into_panic() {
                        Ok(panic) => std::panic::resume_unwind(panic),
                        Err(_) => continue,
                    },
                };
                if let Some(why) = instead
                    && self.lacking.is_news(&step.probe)
                {
                    self.progress.instead(&step, &why);
                }
                if result.ending == ProcessEnding::TimedOut {
                    hung.entry(step.step).or_insert(reading);
                }
                if !self.keep(&step, result, outcome, measured).await {
                    return Went::Refused;
                }
            }
            if *self.stop.borrow() {
                break;
            }
        }
        went
    }

    /// The steps whose readings before this one do not decide.
    fn undecided(&self, round: &PlanRound, reading: u32, measured: &Measured) -> BTreeSet<usize> {
        let open: Vec<&PlanStep> = round
            .steps
            .iter()
            .filter(|s| s.readings <= reading && reading < s.most_readings && 0 < reading)
            .collect();
        if open.is_empty() {
            return BTreeSet::new();
        }
        let paths: Vec<_> = round
            .steps
            .iter()
            .flat_map(|step| {
                // A run that is resumed has later ones too, and must decide as
                // it did then.
                let read = measured.read_before(step, reading);
                let read: Vec<&ParseOutput> = read.into_iter().map(|r| &r.parsed).collect();
                sequential_test::collect_paths(step.step, &read)
            })
            .collect();
        let undecided: BTreeSet<usize> =
            sequential_test::undecided_steps(&paths).into_iter().collect();
        open.into_iter().map(|s| s.step).filter(|s| undecided.contains(s)).collect()
    }

    fn rail(&self, name: &str) -> Option<ClaimedRail> {
        self.claims.rails.iter().find(|rail| rail.name == name).cloned()
    }

    /// Reads an output, remembers it, and hands it to the disk.
    async fn keep(
        &self,
        step: &PlanStep,
        mut result: RawResult,
        mut outcome: Outcome,
        measured: &mut Measured,
    ) -> bool {
        outputs::name(step, &mut result, &outcome);
        let (recording, say) = {
            let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
            room.read(step, &mut result, &mut outcome)
        };
        if let Some(say) = say {
            self.progress.say(&say);
        }
        self.progress.reading(&result, recording.as_ref());
        measured.put(result.clone(), recording.clone());
        let (stdout, stderr) = (outcome.stdout, outcome.stderr);
        self.keeper.keep(Ended { result, stdout, stderr, recording }).await
    }
}

/// Bytes of each output that are kept where so many steps run at once.
fn capture(at_once: usize) -> usize {
    (MEMORY / 2 / at_once.max(1)).clamp(LEAST_CAPTURE, CAPTURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_kept_whole_and_memory_does_not_grow_with_the_number_of_nodes() {
        assert_eq!((capture(0), capture(1), capture(8)), (CAPTURE, CAPTURE, CAPTURE));
        assert_eq!((capture(16), capture(64)), (32 << 20, 8 << 20));
        assert_eq!(capture(5_000), LEAST_CAPTURE);
    }
}
