//! The copies of one process in a round: all its streams run concurrently, and each number covers
//! the stream's window.
//!
//! No gate holds the streams at the start: enqueuing alternates between them, and its cost falls
//! before the windows. Waits poll with a time limit, because a copy to memory of a lost node may
//! never end.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::super::raii::{OwnedEvent, OwnedStream};
use super::pairs::GpuFlow;
use super::window::{CopySpan, WindowPlan};
use crate::ffi::cuda::{CudaCallError, CudaContext, CudaEvent, CudaLibrary, DevicePointer};

/// Polling interval of a stream.
const POLL: Duration = Duration::from_micros(200);

/// Copies after the warm-up that measure the rate, from which the round's length follows.
const RATE_COPIES: u32 = 2;

/// Streams and events of a GPU.
#[derive(Debug)]
pub(super) struct BatchEngine<'c> {
    cuda: &'c CudaLibrary,
    context: CudaContext,
    stream: OwnedStream<'c>,
    began: OwnedEvent<'c>,
    opened: OwnedEvent<'c>,
    closed: OwnedEvent<'c>,
    stopped: OwnedEvent<'c>,
}

/// A copy and its addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchLane {
    pub(super) flow: GpuFlow,
    pub(super) from: DevicePointer,
    pub(super) to: DevicePointer,
    pub(super) bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BatchFailure {
    /// The driver returned an error.
    Refused(CudaCallError),
    /// The copy did not end in time. Its resources must no longer be used.
    Stuck(Duration),
}

/// Results of a process's copies: milliseconds of one copy, or the failure.
pub(super) type BatchOutcome = BTreeMap<GpuFlow, Result<f64, BatchFailure>>;

impl<'c> BatchEngine<'c> {
    /// Creates an engine in this context.
    pub(super) fn new(cuda: &'c CudaLibrary, context: CudaContext) -> Result<Self, CudaCallError> {
        Ok(Self {
            cuda,
            context,
            stream: OwnedStream::new(cuda, context)?,
            began: OwnedEvent::new(cuda, context)?,
            opened: OwnedEvent::new(cuda, context)?,
            closed: OwnedEvent::new(cuda, context)?,
            stopped: OwnedEvent::new(cuda, context)?,
        })
    }

    fn enqueue_copy(&self, lane: &BatchLane) -> Result<(), CudaCallError> {
        self.cuda.set_current_context(self.context)?;
        self.cuda.copy(lane.to, lane.from, lane.bytes, self.stream.stream)
    }

    fn record_event(&self, event: &OwnedEvent<'_>) -> Result<(), CudaCallError> {
        self.cuda.set_current_context(self.context)?;
        self.cuda.record_event(event.event, self.stream.stream)
    }

    /// Waits until the last event is reached.
    fn wait_until_stopped(&self, until: Instant, limit: Duration) -> Result<(), BatchFailure> {
        self.cuda.set_current_context(self.context).map_err(BatchFailure::Refused)?;
        loop {
            if self.cuda.is_event_done(self.stopped.event).map_err(BatchFailure::Refused)? {
                return Ok(());
            }
            if until <= Instant::now() {
                return Err(BatchFailure::Stuck(limit));
            }
            sleep(POLL);
        }
    }

    fn elapsed_ms(&self, from: CudaEvent, to: CudaEvent) -> Result<f64, BatchFailure> {
        self.cuda.set_current_context(self.context).map_err(BatchFailure::Refused)?;
        self.cuda.elapsed_ms(from, to).map(f64::from).map_err(BatchFailure::Refused)
    }

    /// Milliseconds of one copy in a warm-up.
    fn measure_rate(
        &self,
        lane: &BatchLane,
        warmup: u32,
        limit: Duration,
    ) -> Result<f64, BatchFailure> {
        let enqueue = || {
            (0..warmup).try_for_each(|_| self.enqueue_copy(lane))?;
            self.record_event(&self.opened)?;
            (0..RATE_COPIES).try_for_each(|_| self.enqueue_copy(lane))?;
            self.record_event(&self.stopped)
        };
        enqueue().map_err(BatchFailure::Refused)?;
        self.wait_until_stopped(Instant::now() + limit, limit)?;
        Ok(self.elapsed_ms(self.opened.event, self.stopped.event)? / f64::from(RATE_COPIES))
    }

    /// Enqueues the nth copy of a round with its events.
    fn enqueue_step(
        &self,
        lane: &BatchLane,
        plan: WindowPlan,
        nth: u32,
    ) -> Result<(), CudaCallError> {
        if nth == plan.before {
            self.record_event(&self.opened)?;
        }
        self.enqueue_copy(lane)?;
        if nth + 1 == plan.before + plan.window {
            self.record_event(&self.closed)?;
        }
        if nth + 1 == total_copies(plan) {
            self.record_event(&self.stopped)?;
        }
        Ok(())
    }

    /// Reads the result of a round that started this many milliseconds after the start signal.
    fn read_result(&self, starts: f64, plan: WindowPlan) -> Result<(f64, CopySpan), BatchFailure> {
        let began = self.began.event;
        let span = CopySpan {
            starts,
            opens: starts + self.elapsed_ms(began, self.opened.event)?,
            closes: starts + self.elapsed_ms(began, self.closed.event)?,
            stops: starts + self.elapsed_ms(began, self.stopped.event)?,
        };
        let window = self.elapsed_ms(self.opened.event, self.closed.event)?;
        Ok((window / f64::from(plan.window), span))
    }
}

fn total_copies(plan: WindowPlan) -> u32 {
    plan.before + plan.window + plan.after
}

/// Warms up all lanes, one after the other. Returns the milliseconds of one copy of each.
pub(super) fn warm_up_lanes(
    lanes: &[(BatchLane, &BatchEngine<'_>)],
    warmup: u32,
    limit: Duration,
) -> BatchOutcome {
    lanes
        .iter()
        .map(|(lane, engine)| (lane.flow, engine.measure_rate(lane, warmup, limit)))
        .collect()
}

/// Runs all lanes concurrently. Returns the time of one copy in each window, and the time span of
/// the copies, if any ran.
pub(super) fn run_batch(
    lanes: &[(BatchLane, &BatchEngine<'_>, WindowPlan)],
    limit: Duration,
) -> (BatchOutcome, Option<CopySpan>) {
    let start_signal = Instant::now();
    let mut failed: BTreeMap<GpuFlow, BatchFailure> = BTreeMap::new();
    let mut starts = BTreeMap::new();
    for (lane, engine, _) in lanes {
        let begun = engine.record_event(&engine.began);
        starts.insert(lane.flow, start_signal.elapsed().as_secs_f64() * 1e3);
        if let Err(error) = begun {
            failed.insert(lane.flow, BatchFailure::Refused(error));
        }
    }
    let most = lanes.iter().map(|(_, _, plan)| total_copies(*plan)).max().unwrap_or(0);
    for nth in 0..most {
        for (lane, engine, plan) in lanes {
            if total_copies(*plan) <= nth || failed.contains_key(&lane.flow) {
                continue;
            }
            if let Err(error) = engine.enqueue_step(lane, *plan, nth) {
                failed.insert(lane.flow, BatchFailure::Refused(error));
            }
        }
    }
    let until = Instant::now() + limit;
    let mut span: Option<CopySpan> = None;
    let mut outcome = BatchOutcome::new();
    for (lane, engine, plan) in lanes {
        let result = match failed.remove(&lane.flow) {
            Some(failure) => Err(failure),
            None => engine
                .wait_until_stopped(until, limit)
                .and_then(|()| engine.read_result(starts[&lane.flow], *plan)),
        };
        if let Ok((_, own)) = &result {
            span = Some(span.map_or(*own, |all| all.merge(*own)));
        }
        outcome.insert(lane.flow, result.map(|(ms, _)| ms));
    }
    (outcome, span)
}
