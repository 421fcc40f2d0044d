//! Runs rounds: all steps of a round concurrently, a barrier, the next round.
//!
//! The writer gets every reading before the next one of its step is taken.
//! `judge::sequential_test` decides whether a step needs another reading.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::fallback::MissingTools;
use super::output_budget::OutputBudget;
use super::progress::{SweepEvent, SweepProgress};
use super::readings::RunReadings;
use super::replay::ReplayedRun;
use super::run_writer::{FinishedReading, RunWriter};
use super::step::ReadingRequest;
use super::worker::OrderOutcome;
use super::worker_pool::WorkerPool;
use super::{local_tools, step, step_outputs};
use engine::judge::sequential_test;
use engine::plan::{Plan, PlanRound, PlanStep};
use model::claims::Claims;
use model::parse_output::ParseOutput;
use model::raw_result::{ProcessEnding, RawResult};
use model::seeded_rng::SeededRng;
use model::tool_call::ToolBackend;
use node::exec::CAPTURE;

/// The first port for servers. Below the range of Linux's ephemeral ports (32768 and up).
const FIRST_PORT: u16 = 20_000;
/// The number of ports used in turn, so that a port is not reused while its last connection is
/// still closing.
const PORT_COUNT: usize = 10_000;

/// The first port of a run: two runs that share a node use different ones.
pub(super) fn first_port_offset(run_folder: &Path) -> usize {
    let run = run_folder.file_name().unwrap_or_default().to_string_lossy();
    let number = SeededRng::new(0, &run).next_u64() % PORT_COUNT as u64;
    usize::try_from(number).unwrap_or(0)
}

/// Bytes of output, of both streams, that may be in memory at the same time when every tool of a
/// round prints without end.
const MAX_OUTPUT_MEMORY: usize = 1 << 30;
/// Bytes of output that are kept in any case: several times the output of nvbandwidth for a rack,
/// some ten matrices of 72 by 72 cells of ten characters.
const MIN_CAPTURE_BYTES: usize = 4 << 20;

#[derive(Clone, Debug)]
pub(super) enum ReadingBackend {
    /// Workers on the nodes.
    Live(Arc<WorkerPool>),
    /// A stored run.
    Stored(Arc<ReplayedRun>),
    /// Tools in this process.
    Tools(Arc<dyn ToolBackend>),
}

impl ReadingBackend {
    pub(super) fn from_stored_run(run: ReplayedRun) -> Self {
        Self::Stored(Arc::new(run))
    }
}

/// The parameters of all rounds.
#[derive(Debug)]
pub(super) struct RoundRunner<'a> {
    pub(super) source: ReadingBackend,
    pub(super) claims: &'a Claims,
    pub(super) writer: &'a RunWriter,
    pub(super) progress: &'a SweepProgress,
    pub(super) stop: watch::Receiver<bool>,
    pub(super) ports: AtomicUsize,
    pub(super) missing_tools: Arc<MissingTools>,
    /// The limits of the kept outputs.
    pub(super) output_budget: Mutex<OutputBudget>,
}

/// How the rounds of a plan ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundsEnd {
    /// Every reading was attempted.
    Complete,
    /// A signal stopped it, or writing failed.
    Interrupted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundEnd {
    /// No reading was left.
    AlreadyDone,
    /// At least one reading was attempted.
    Done,
    /// Writing to the run folder failed.
    WriteFailed,
}

impl RoundRunner<'_> {
    /// Runs the rounds of a plan, without the readings that exist already. Ends early on a stop
    /// request or when writing fails.
    pub(super) async fn run_plan(&self, plan: &Plan, measured: &mut RunReadings) -> RoundsEnd {
        let taken = measured.finished_readings();
        let hung = measured.hung_steps();
        let parallel = plan.parallel;
        let permits = Arc::new(Semaphore::new(parallel.max(1)));
        self.progress.report(SweepEvent::PlanStarted(plan));
        for round in &plan.rounds {
            let start = Instant::now();
            let end = self.run_round(round, &permits, &taken, &hung, measured).await;
            match end {
                RoundEnd::WriteFailed => return RoundsEnd::Interrupted,
                _ if *self.stop.borrow() => return RoundsEnd::Interrupted,
                RoundEnd::AlreadyDone => {
                    self.progress.report(SweepEvent::RoundSkipped { round, parallel });
                }
                RoundEnd::Done => {
                    let took = start.elapsed();
                    self.progress.report(SweepEvent::RoundEnded { round, parallel, took });
                }
            }
        }
        RoundsEnd::Complete
    }

    async fn run_round(
        &self,
        round: &PlanRound,
        permits: &Arc<Semaphore>,
        taken: &BTreeSet<(usize, u32)>,
        hung: &BTreeMap<usize, u32>,
        measured: &mut RunReadings,
    ) -> RoundEnd {
        let most = round.steps.iter().map(|s| s.most_readings.max(s.readings)).max().unwrap_or(0);
        // A tool that hangs once hangs again, for as long.
        let mut hung = hung.clone();
        let capture = capture_limit(round.steps.len().min(permits.available_permits()));
        let mut end = RoundEnd::AlreadyDone;
        for reading in 0..most {
            let more = self.undecided_steps(round, reading, measured);
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
                            ..step::blank_result(step, reading, step.argv.to_vec())
                        };
                        end = RoundEnd::Done;
                        if !self
                            .store_reading(step, result, OrderOutcome::not_started(why), measured)
                            .await
                        {
                            return RoundEnd::WriteFailed;
                        }
                    }
                    continue;
                }
                end = RoundEnd::Done;
                let rail = step.rail.as_ref();
                let rail =
                    rail.and_then(|name| self.claims.rails.iter().find(|it| it.name == *name));
                let rail = rail.cloned();
                let offset = self.ports.fetch_add(1, Ordering::Relaxed) % PORT_COUNT;
                let port = FIRST_PORT + u16::try_from(offset).unwrap_or(0);
                let (step, source) = (step.clone(), self.source.clone());
                let (permits, mut stop) = (Arc::clone(permits), self.stop.clone());
                let missing_tools = Arc::clone(&self.missing_tools);
                tasks.spawn(async move {
                    let Ok(permit) = permits.acquire_owned().await else { return None };
                    if *stop.borrow() {
                        return None;
                    }
                    let rail = rail.as_ref();
                    let request = ReadingRequest { step: &step, reading, rail, port, capture };
                    let (result, outcome, missing) = match &source {
                        ReadingBackend::Live(workers) => {
                            step::take_reading(&request, workers, &missing_tools, &mut stop).await
                        }
                        ReadingBackend::Stored(stored) => {
                            let (result, outcome) = stored.replay_reading(&step, reading);
                            (result, outcome, None)
                        }
                        ReadingBackend::Tools(tools) => {
                            let (result, outcome) =
                                local_tools::take_local_reading(&request, tools.as_ref());
                            (result, outcome, None)
                        }
                    };
                    // The permit is released once the output is queued for the disk: that bounds
                    // the outputs that wait for a slow disk.
                    Some((step, result, outcome, missing, permit))
                });
            }
            while let Some(ended) = tasks.join_next().await {
                let (step, result, outcome, missing, _permit) = match ended {
                    Ok(Some(ended)) => ended,
                    Ok(None) => continue,
                    Err(error) => match error.try_into_panic() {
                        Ok(panic) => std::panic::resume_unwind(panic),
                        Err(_) => continue,
                    },
                };
                if let Some(why) = missing
                    && self.missing_tools.mark_reported(&step.probe)
                {
                    self.progress.report(SweepEvent::ToolMissing { step: &step, why: &why });
                }
                if result.ending == ProcessEnding::TimedOut {
                    hung.entry(step.step).or_insert(reading);
                }
                if !self.store_reading(&step, result, outcome, measured).await {
                    return RoundEnd::WriteFailed;
                }
            }
            if *self.stop.borrow() {
                break;
            }
        }
        end
    }

    /// The steps that the earlier readings leave undecided.
    fn undecided_steps(
        &self,
        round: &PlanRound,
        reading: u32,
        measured: &RunReadings,
    ) -> BTreeSet<usize> {
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
                // A resumed run also has later readings, and must decide as it did
                // before.
                let read = measured.recordings_before(step, reading);
                let read: Vec<&ParseOutput> = read.into_iter().map(|r| &r.parsed).collect();
                sequential_test::collect_paths(step.step, &read)
            })
            .collect();
        let undecided: BTreeSet<usize> =
            sequential_test::undecided_steps(&paths).into_iter().collect();
        open.into_iter().map(|s| s.step).filter(|s| undecided.contains(s)).collect()
    }

    /// Parses an output, keeps the result, and submits both to the writer.
    async fn store_reading(
        &self,
        step: &PlanStep,
        mut result: RawResult,
        mut outcome: OrderOutcome,
        measured: &mut RunReadings,
    ) -> bool {
        step_outputs::set_file_names(step, &mut result, &outcome);
        let (recording, disk_full) = {
            let mut budget = self.output_budget.lock().unwrap_or_else(PoisonError::into_inner);
            budget.read_output(step, &mut result, &mut outcome)
        };
        if let Some(why) = &disk_full {
            self.progress.report(SweepEvent::DiskFull { why });
        }
        let recording_ref = recording.as_ref();
        self.progress
            .report(SweepEvent::ReadingEnded { result: &result, recording: recording_ref });
        measured.insert(result.clone(), recording.clone());
        let (stdout, stderr) = (outcome.stdout, outcome.stderr);
        self.writer.submit(FinishedReading { result, stdout, stderr, recording }).await
    }
}

/// Bytes of each output that are kept if this number of steps runs concurrently.
fn capture_limit(steps: usize) -> usize {
    (MAX_OUTPUT_MEMORY / 2 / steps.max(1)).clamp(MIN_CAPTURE_BYTES, CAPTURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_stay_whole_and_memory_does_not_grow_with_the_fleet() {
        assert_eq!(
            (capture_limit(0), capture_limit(1), capture_limit(8)),
            (CAPTURE, CAPTURE, CAPTURE)
        );
        assert_eq!((capture_limit(16), capture_limit(64)), (32 << 20, 8 << 20));
        assert_eq!(capture_limit(5_000), MIN_CAPTURE_BYTES);
    }
}
