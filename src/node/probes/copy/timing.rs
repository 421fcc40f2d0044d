//! Copies that begin together, timed by events in their own streams.
//!
//! Streams wait for a word in host memory until everything is enqueued, so that
//! the time it takes to enqueue is in no number. Warm-up copies run behind the
//! word and before the first event. That is the order of nvbandwidth, which has
//! a small kernel wait where we have the driver do it.

use std::cell::Cell;

use super::buffers::BufferLayout;
use super::devices::OpenGpu;
use super::error_class;
use super::raii::{OwnedEvent, OwnedStream};
use crate::ffi::cuda::{
    CudaCallError, CudaContext, CudaLibrary, CudaStream, DevicePointer, HostMemory,
};

/// What a held stream is given at most. A channel of the driver has room for
/// about a thousand; beyond, enqueuing waits for what is held and never ends.
const MAX_HELD: usize = 400;

/// Bytes of host memory for a word: less is not to be had.
const PAGE_BYTES: usize = 4096;

/// The word that streams wait for.
#[derive(Debug)]
pub(crate) struct StreamGate<'c> {
    cuda: &'c CudaLibrary,
    word: HostMemory<'c>,
    address: DevicePointer,
    // Only ever grows, so that no stream of an earlier reading waits again.
    value: Cell<u32>,
}

impl<'c> StreamGate<'c> {
    /// A gate whose word is near this GPU.
    pub(crate) fn new(cuda: &'c CudaLibrary, gpu: &OpenGpu<'c>) -> Result<Self, CudaCallError> {
        cuda.set_current_context(gpu.context())?;
        let word = cuda.host_memory(PAGE_BYTES)?;
        let address = word.address()?;
        Ok(Self { cuda, word, address, value: Cell::new(0) })
    }

    /// Whether a GPU can wait at it. An error is the GPU's.
    pub(crate) fn can_hold(&self, gpu: &OpenGpu<'c>) -> Result<bool, CudaCallError> {
        let shut = self.close();
        self.cuda.set_current_context(gpu.context())?;
        match shut.hold(gpu.stream()) {
            Err(error) if error_class::is_unsupported(&error) => return Ok(false),
            other => other?,
        }
        drop(shut);
        gpu.wait()?;
        Ok(true)
    }

    /// Shuts it until the answer is dropped.
    pub(crate) fn close(&self) -> ClosedStreamGate<'_, 'c> {
        self.value.set(self.value.get() + 1);
        ClosedStreamGate { gate: self }
    }
}

/// A gate that is shut. It opens when this is dropped, so that no stream waits
/// for ever, whatever fails.
#[derive(Debug)]
pub(crate) struct ClosedStreamGate<'g, 'c> {
    gate: &'g StreamGate<'c>,
}

impl ClosedStreamGate<'_, '_> {
    /// Has a stream wait until it opens.
    pub(crate) fn hold(&self, stream: CudaStream) -> Result<(), CudaCallError> {
        self.gate.cuda.wait_value(stream, self.gate.address, self.gate.value.get())
    }
}

impl Drop for ClosedStreamGate<'_, '_> {
    fn drop(&mut self) {
        self.gate.word.set_word(self.gate.value.get());
    }
}

/// A stream of copies.
#[derive(Debug)]
pub(crate) struct CopyLane<'c> {
    context: CudaContext,
    from: DevicePointer,
    to: DevicePointer,
    layout: BufferLayout,
    stream: OwnedStream<'c>,
    begin: OwnedEvent<'c>,
    end: OwnedEvent<'c>,
    // When this lane and all others are done; used in the first lane.
    all_done: OwnedEvent<'c>,
}

/// A call that failed, and the lane it was made for.
#[derive(Debug)]
pub(crate) struct LaneError {
    /// The lane.
    pub(crate) lane: usize,
    /// What the driver said.
    pub(crate) error: CudaCallError,
}

/// How long copies took, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LaneTimes {
    /// Each lane, from its own beginning to its own end.
    pub(crate) each: Vec<f64>,
    /// From the first beginning until all are done.
    pub(crate) all: f64,
}

impl<'c> CopyLane<'c> {
    /// A lane whose copies are issued by the GPU of this context.
    pub(crate) fn new(
        cuda: &'c CudaLibrary,
        context: CudaContext,
        (from, to): (DevicePointer, DevicePointer),
        layout: BufferLayout,
    ) -> Result<Self, CudaCallError> {
        Ok(Self {
            context,
            from,
            to,
            layout,
            stream: OwnedStream::new(cuda, context)?,
            begin: OwnedEvent::new(cuda, context)?,
            end: OwnedEvent::new(cuda, context)?,
            all_done: OwnedEvent::new(cuda, context)?,
        })
    }

    /// Enqueues copies, of which the first is the `nth` of its reading.
    fn enqueue_copies(
        &self,
        cuda: &CudaLibrary,
        nth: usize,
        copies: usize,
    ) -> Result<(), CudaCallError> {
        for copy in nth..nth + copies {
            let at = self.layout.offset(copy);
            let (to, from) = (self.to.offset(at), self.from.offset(at));
            cuda.copy(to, from, self.layout.bytes, self.stream.stream)?;
        }
        Ok(())
    }
}

/// Copies once, so that what the driver does at a first copy (code it loads,
/// memory it maps) does not meet streams that are held.
pub(crate) fn prime_lanes(cuda: &CudaLibrary, lanes: &[CopyLane<'_>]) -> Result<(), LaneError> {
    for (nth, lane) in lanes.iter().enumerate() {
        let once = cuda
            .set_current_context(lane.context)
            .and_then(|()| lane.enqueue_copies(cuda, 0, 1))
            .and_then(|()| lane.stream.wait());
        once.map_err(|error| LaneError { lane: nth, error })?;
    }
    Ok(())
}

/// Whether this many operations can be held back at once.
pub(crate) fn can_be_held(warmup: usize, copies: usize) -> bool {
    warmup.saturating_add(copies) <= MAX_HELD
}

/// Runs all lanes at the same time, this many copies each.
pub(crate) fn time_lanes(
    cuda: &CudaLibrary,
    lanes: &[CopyLane<'_>],
    gate: Option<&StreamGate<'_>>,
    (warmup, copies): (usize, usize),
) -> Result<LaneTimes, LaneError> {
    let of = |lane: usize| move |error: CudaCallError| LaneError { lane, error };
    let shut = gate.filter(|_| can_be_held(warmup, copies)).map(StreamGate::close);
    for (nth, lane) in lanes.iter().enumerate() {
        let enqueue = || {
            cuda.set_current_context(lane.context)?;
            shut.as_ref().map_or(Ok(()), |shut| shut.hold(lane.stream.stream))?;
            lane.enqueue_copies(cuda, 0, warmup)
        };
        enqueue().map_err(of(nth))?;
    }
    let Some(first) = lanes.first() else { return Ok(LaneTimes { each: Vec::new(), all: 0.0 }) };
    for (nth, lane) in lanes.iter().enumerate() {
        let enqueue = || {
            cuda.set_current_context(lane.context)?;
            if 0 < nth {
                // All begin when the first does, whoever is warm earlier.
                cuda.wait_event(lane.stream.stream, first.begin.event)?;
            }
            cuda.record_event(lane.begin.event, lane.stream.stream)
        };
        enqueue().map_err(of(nth))?;
    }
    for (nth, lane) in lanes.iter().enumerate() {
        let enqueue = || {
            cuda.set_current_context(lane.context)?;
            lane.enqueue_copies(cuda, warmup, copies)?;
            cuda.record_event(lane.end.event, lane.stream.stream)?;
            if 0 < nth {
                cuda.set_current_context(first.context)?;
                cuda.wait_event(first.stream.stream, lane.end.event)?;
            }
            Ok(())
        };
        enqueue().map_err(of(nth))?;
    }
    let ended = cuda
        .set_current_context(first.context)
        .and_then(|()| cuda.record_event(first.all_done.event, first.stream.stream));
    ended.map_err(of(0))?;
    drop(shut);
    for (nth, lane) in lanes.iter().enumerate() {
        lane.stream.wait().map_err(of(nth))?;
    }
    let seconds = |lane: &CopyLane<'_>, end: &OwnedEvent<'_>| {
        cuda.set_current_context(lane.context)?;
        Ok(f64::from(cuda.elapsed_ms(lane.begin.event, end.event)?) / 1e3)
    };
    let each =
        lanes.iter().enumerate().map(|(nth, lane)| seconds(lane, &lane.end).map_err(of(nth)));
    let each = each.collect::<Result<_, _>>()?;
    let all = seconds(first, &first.all_done).map_err(of(0))?;
    Ok(LaneTimes { each, all })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_a_channel_takes_is_not_held() {
        assert!(can_be_held(4, 16) && can_be_held(100, 300));
        assert!(!can_be_held(4, 1000) && !can_be_held(usize::MAX, 1));
    }
}
