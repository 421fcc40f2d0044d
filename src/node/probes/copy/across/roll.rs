//! The copies of one process in a round: all its streams at once, each with a
//! number taken over its window.
//!
//! Nothing is held back at the start: enqueuing is interleaved, and what it
//! costs lies before the windows. Waiting is polling with a limit, because a
//! copy to memory of a node that is gone may never end.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;
use std::time::Instant;

use super::super::owned::OwnEvent;
use super::super::owned::OwnStream;
use super::pairs::Flow;
use super::window::Plan;
use super::window::Span;
use crate::ffi::cuda::Address;
use crate::ffi::cuda::Context;
use crate::ffi::cuda::Cuda;
use crate::ffi::cuda::CudaError;
use crate::ffi::cuda::Event;

/// How often a stream is asked whether it is done.
const ASK_AGAIN: Duration = Duration::from_micros(200);

/// Copies whose rate says how long the round is, after those of the warm-up.
const RATED: u32 = 2;

/// What a GPU copies with.
#[derive(Debug)]
pub(super) struct Engine<'c> {
    cuda: &'c Cuda,
    context: Context,
    stream: OwnStream<'c>,
    began: OwnEvent<'c>,
    opened: OwnEvent<'c>,
    closed: OwnEvent<'c>,
    stopped: OwnEvent<'c>,
}

/// A copy, and where its ends are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub(super) flow: Flow,
    pub(super) from: Address,
    pub(super) to: Address,
    pub(super) bytes: usize,
}

/// Why a copy came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The driver refused.
    Refused(CudaError),
    /// It did not end in time. What it uses must not be touched any more.
    Stuck(Duration),
}

/// What the copies of a process gave: milliseconds of one copy, or why there is
/// none.
pub(super) type Outcome = BTreeMap<Flow, Result<f64, Failure>>;

impl<'c> Engine<'c> {
    /// An engine in this context.
    pub(super) fn of(cuda: &'c Cuda, context: Context) -> Result<Self, CudaError> {
        Ok(Self {
            cuda,
            context,
            stream: OwnStream::of(cuda, context)?,
            began: OwnEvent::of(cuda, context)?,
            opened: OwnEvent::of(cuda, context)?,
            closed: OwnEvent::of(cuda, context)?,
            stopped: OwnEvent::of(cuda, context)?,
        })
    }

    fn copy(&self, lane: &Lane) -> Result<(), CudaError> {
        self.cuda.enter(self.context)?;
        self.cuda.copy(lane.to, lane.from, lane.bytes, self.stream.stream)
    }

    fn mark(&self, event: &OwnEvent<'_>) -> Result<(), CudaError> {
        self.cuda.enter(self.context)?;
        self.cuda.record(event.event, self.stream.stream)
    }

    /// Waits until its last event is reached.
    fn wait(&self, until: Instant, limit: Duration) -> Result<(), Failure> {
        self.cuda.enter(self.context).map_err(Failure::Refused)?;
        loop {
            if self.cuda.was_reached(self.stopped.event).map_err(Failure::Refused)? {
                return Ok(());
            }
            if until <= Instant::now() {
                return Err(Failure::Stuck(limit));
            }
            sleep(ASK_AGAIN);
        }
    }

    fn between(&self, from: Event, to: Event) -> Result<f64, Failure> {
        self.cuda.enter(self.context).map_err(Failure::Refused)?;
        self.cuda.elapsed_ms(from, to).map(f64::from).map_err(Failure::Refused)
    }

    /// How long one copy of a warm-up took, in milliseconds.
    fn rate(&self, lane: &Lane, warmup: u32, limit: Duration) -> Result<f64, Failure> {
        let enqueue = || {
            (0..warmup).try_for_each(|_| self.copy(lane))?;
            self.mark(&self.opened)?;
            (0..RATED).try_for_each(|_| self.copy(lane))?;
            self.mark(&self.stopped)
        };
        enqueue().map_err(Failure::Refused)?;
        self.wait(Instant::now() + limit, limit)?;
        Ok(self.between(self.opened.event, self.stopped.event)? / f64::from(RATED))
    }

    /// The nth copy of a round, with the events that belong there.
    fn step(&self, lane: &Lane, plan: Plan, nth: u32) -> Result<(), CudaError> {
        if nth == plan.before {
            self.mark(&self.opened)?;
        }
        self.copy(lane)?;
        if nth + 1 == plan.before + plan.window {
            self.mark(&self.closed)?;
        }
        if nth + 1 == total(plan) {
            self.mark(&self.stopped)?;
        }
        Ok(())
    }

    /// What a round gave that began this many milliseconds after it was told to.
    fn result(&self, starts: f64, plan: Plan) -> Result<(f64, Span), Failure> {
        let began = self.began.event;
        let span = Span {
            starts,
            opens: starts + self.between(began, self.opened.event)?,
            closes: starts + self.between(began, self.closed.event)?,
            stops: starts + self.between(began, self.stopped.event)?,
        };
        let window = self.between(self.opened.event, self.closed.event)?;
        Ok((window / f64::from(plan.window), span))
    }
}

fn total(plan: Plan) -> u32 {
    plan.before + plan.window + plan.after
}

/// Warms all lanes up, one after the other: how long one copy of each takes, in
/// milliseconds.
pub(super) fn warm_up(lanes: &[(Lane, &Engine<'_>)], warmup: u32, limit: Duration) -> Outcome {
    lanes.iter().map(|(lane, engine)| (lane.flow, engine.rate(lane, warmup, limit))).collect()
}

/// Runs all lanes at once. Answers how long one copy of each window took, and
/// when copies ran, where any did.
pub(super) fn roll(
    lanes: &[(Lane, &Engine<'_>, Plan)],
    limit: Duration,
) -> (Outcome, Option<Span>) {
    let told = Instant::now();
    let mut failed: BTreeMap<Flow, Failure> = BTreeMap::new();
    let mut starts = BTreeMap::new();
    for (lane, engine, _) in lanes {
        let begun = engine.mark(&engine.began);
        starts.insert(lane.flow, told.elapsed().as_secs_f64() * 1e3);
        if let Err(error) = begun {
            failed.insert(lane.flow, Failure::Refused(error));
        }
    }
    let most = lanes.iter().map(|(_, _, plan)| total(*plan)).max().unwrap_or(0);
    for nth in 0..most {
        for (lane, engine, plan) in lanes {
            if total(*plan) <= nth || failed.contains_key(&lane.flow) {
                continue;
            }
            if let Err(error) = engine.step(lane, *plan, nth) {
                failed.insert(lane.flow, Failure::Refused(error));
            }
        }
    }
    let until = Instant::now() + limit;
    let mut span: Option<Span> = None;
    let mut outcome = Outcome::new();
    for (lane, engine, plan) in lanes {
        let result = match failed.remove(&lane.flow) {
            Some(failure) => Err(failure),
            None => {
                engine.wait(until, limit).and_then(|()| engine.result(starts[&lane.flow], *plan))
            }
        };
        if let Ok((_, own)) = &result {
            span = Some(span.map_or(*own, |all| all.and(*own)));
        }
        outcome.insert(lane.flow, result.map(|(ms, _)| ms));
    }
    (outcome, span)
}
