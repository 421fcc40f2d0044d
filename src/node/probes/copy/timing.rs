//! Copies that start together, timed by events in their own streams.
//!
//! Streams wait for a word in host memory until everything is enqueued, so that the enqueue time is
//! not part of any number. Warm-up copies run after the word and before the first event. This is
//! the order of nvbandwidth, which waits with a small kernel; fabricgate uses a wait operation of
//! the driver.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::buffers::BufferLayout;
use super::devices::OpenGpu;
use super::raii::{OwnedEvent, OwnedStream};
use crate::ffi::cuda::{
    CudaCallError, CudaContext, CudaLibrary, CudaStream, DevicePointer, HostMemory,
};
use crate::probes::driver_error;

/// Maximum operations of a held stream. A channel of the driver takes about a thousand; beyond
/// that, enqueuing blocks on the held operations and never ends.
const MAX_HELD: usize = 400;

/// Bytes of host memory for the word: the minimum allocation.
const PAGE_BYTES: usize = 4096;

/// The word that streams wait for.
#[derive(Debug)]
pub(crate) struct StreamGate<'c> {
    cuda: &'c CudaLibrary,
    word: HostMemory<'c>,
    address: DevicePointer,
    // Only grows, so that no stream waits for the word of an earlier reading.
    value: Cell<u32>,
}

impl<'c> StreamGate<'c> {
    /// Creates a gate whose word is near this GPU.
    pub(crate) fn new(cuda: &'c CudaLibrary, gpu: &OpenGpu<'c>) -> Result<Self, CudaCallError> {
        cuda.set_current_context(gpu.context())?;
        let _pin = gpu.numa.as_ref().and_then(|near| near.pin_thread().ok());
        let word = cuda.host_memory(PAGE_BYTES)?;
        let address = word.address()?;
        Ok(Self { cuda, word, address, value: Cell::new(0) })
    }

    /// True if a GPU can wait at the gate. An error comes from the GPU.
    pub(crate) fn can_hold(&self, gpu: &OpenGpu<'c>) -> Result<bool, CudaCallError> {
        let shut = self.close();
        self.cuda.set_current_context(gpu.context())?;
        match shut.hold(gpu.stream()) {
            Err(error) if driver_error::is_unsupported(&error) => return Ok(false),
            other => other?,
        }
        drop(shut);
        gpu.wait()?;
        Ok(true)
    }

    /// Closes the gate until the returned guard is dropped.
    pub(crate) fn close(&self) -> ClosedStreamGate<'_, 'c> {
        self.value.set(self.value.get() + 1);
        ClosedStreamGate { gate: self }
    }
}

/// A closed gate. It opens on drop, so that no stream waits forever after a failure.
#[derive(Debug)]
pub(crate) struct ClosedStreamGate<'g, 'c> {
    gate: &'g StreamGate<'c>,
}

impl ClosedStreamGate<'_, '_> {
    /// Makes a stream wait until the gate opens.
    pub(crate) fn hold(&self, stream: CudaStream) -> Result<(), CudaCallError> {
        self.gate.cuda.wait_value(stream, self.gate.address, self.gate.value.get())
    }
}

impl Drop for ClosedStreamGate<'_, '_> {
    fn drop(&mut self) {
        self.gate.word.set_word(self.gate.value.get());
    }
}

#[derive(Debug)]
pub(crate) struct CopyLane<'c> {
    context: CudaContext,
    from: DevicePointer,
    to: DevicePointer,
    layout: BufferLayout,
    stream: OwnedStream<'c>,
    begin: OwnedEvent<'c>,
    end: OwnedEvent<'c>,
    // Reached when this lane and all others are done; used in the first lane.
    all_done: OwnedEvent<'c>,
}

/// A failed call and its lane.
#[derive(Debug)]
pub(crate) struct LaneError {
    pub(crate) lane: usize,
    pub(crate) error: CudaCallError,
}

/// Durations of copies in seconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LaneTimes {
    /// Each lane, from its own start to its own end.
    pub(crate) each: Vec<f64>,
    /// From the first start until all are done.
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

    /// Enqueues copies; the first is the `nth` of its reading.
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

/// Copies on all lanes until this time has passed, at least once.
///
/// An idle GPU lowers its clocks and needs some milliseconds to raise them; nvbandwidth runs
/// kernels around each reading. And the driver's work at a first copy (loading code, mapping
/// memory) must not fall into a held stream.
pub(crate) fn warm_up_lanes(
    cuda: &CudaLibrary,
    lanes: &[CopyLane<'_>],
    least: Duration,
) -> Result<(), LaneError> {
    let of = |lane: usize| move |error: CudaCallError| LaneError { lane, error };
    let start = Instant::now();
    loop {
        for (nth, lane) in lanes.iter().enumerate() {
            let enqueued = cuda
                .set_current_context(lane.context)
                .and_then(|()| lane.enqueue_copies(cuda, 0, 1));
            enqueued.map_err(of(nth))?;
        }
        for (nth, lane) in lanes.iter().enumerate() {
            lane.stream.wait().map_err(of(nth))?;
        }
        if least <= start.elapsed() {
            return Ok(());
        }
    }
}

/// True if this many operations can be held together.
pub(crate) fn can_be_held(warmup: usize, copies: usize) -> bool {
    warmup.saturating_add(copies) <= MAX_HELD
}

/// Runs all lanes concurrently, this many copies each.
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
                // All lanes start with the first, even if their warm-up ends earlier.
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
    fn more_operations_than_a_channel_takes_are_not_held() {
        assert!(can_be_held(4, 16) && can_be_held(100, 300));
        assert!(!can_be_held(4, 1000) && !can_be_held(usize::MAX, 1));
    }
}
