//! Copies that begin together, timed by events in their own streams.
//!
//! Streams wait for a word in host memory until everything is enqueued, so that
//! the time it takes to enqueue is in no number. Warm-up copies run behind the
//! word and before the first event. That is the order of nvbandwidth, which has
//! a small kernel wait where we have the driver do it.

use std::cell::Cell;

use super::buffers::Layout;
use super::devices::Gpu;
use super::owned::OwnEvent;
use super::owned::OwnStream;
use super::trouble;
use crate::ffi::cuda::Address;
use crate::ffi::cuda::Context;
use crate::ffi::cuda::Cuda;
use crate::ffi::cuda::CudaError;
use crate::ffi::cuda::HostMemory;
use crate::ffi::cuda::Stream;

/// What a held stream is given at most. A channel of the driver has room for
/// about a thousand; beyond, enqueuing waits for what is held and never ends.
const MOST_HELD: usize = 400;

/// Bytes of host memory for a word: less is not to be had.
const PAGE: usize = 4096;

/// The word that streams wait for.
#[derive(Debug)]
pub(crate) struct Gate<'c> {
    cuda: &'c Cuda,
    word: HostMemory<'c>,
    address: Address,
    // Only ever grows, so that no stream of an earlier reading waits again.
    value: Cell<u32>,
}

impl<'c> Gate<'c> {
    /// A gate whose word is near this GPU.
    pub(crate) fn near(cuda: &'c Cuda, gpu: &Gpu<'c>) -> Result<Self, CudaError> {
        cuda.enter(gpu.context())?;
        let word = cuda.host_memory(PAGE)?;
        let address = word.address()?;
        Ok(Self { cuda, word, address, value: Cell::new(0) })
    }

    /// Whether a GPU can wait at it. An error is the GPU's.
    pub(crate) fn holds(&self, gpu: &Gpu<'c>) -> Result<bool, CudaError> {
        let shut = self.shut();
        self.cuda.enter(gpu.context())?;
        match shut.hold(gpu.stream()) {
            Err(error) if trouble::is_unsupported(&error) => return Ok(false),
            other => other?,
        }
        drop(shut);
        gpu.wait()?;
        Ok(true)
    }

    /// Shuts it until the answer is dropped.
    pub(crate) fn shut(&self) -> Shut<'_, 'c> {
        self.value.set(self.value.get() + 1);
        Shut { gate: self }
    }
}

/// A gate that is shut. It opens when this is dropped, so that no stream waits
/// for ever, whatever fails.
#[derive(Debug)]
pub(crate) struct Shut<'g, 'c> {
    gate: &'g Gate<'c>,
}

impl Shut<'_, '_> {
    /// Has a stream wait until it opens.
    pub(crate) fn hold(&self, stream: Stream) -> Result<(), CudaError> {
        self.gate.cuda.hold(stream, self.gate.address, self.gate.value.get())
    }
}

impl Drop for Shut<'_, '_> {
    fn drop(&mut self) {
        self.gate.word.set_word(self.gate.value.get());
    }
}

/// A stream of copies.
#[derive(Debug)]
pub(crate) struct Lane<'c> {
    context: Context,
    from: Address,
    to: Address,
    layout: Layout,
    stream: OwnStream<'c>,
    begin: OwnEvent<'c>,
    end: OwnEvent<'c>,
    // When this lane and all others are done; used in the first lane.
    all: OwnEvent<'c>,
}

/// A call that failed, and the lane it was made for.
#[derive(Debug)]
pub(crate) struct LaneError {
    /// The lane.
    pub(crate) lane: usize,
    /// What the driver said.
    pub(crate) error: CudaError,
}

/// How long copies took, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Times {
    /// Each lane, from its own beginning to its own end.
    pub(crate) each: Vec<f64>,
    /// From the first beginning until all are done.
    pub(crate) all: f64,
}

impl<'c> Lane<'c> {
    /// A lane whose copies are issued by the GPU of this context.
    pub(crate) fn of(
        cuda: &'c Cuda,
        context: Context,
        (from, to): (Address, Address),
        layout: Layout,
    ) -> Result<Self, CudaError> {
        Ok(Self {
            context,
            from,
            to,
            layout,
            stream: OwnStream::of(cuda, context)?,
            begin: OwnEvent::of(cuda, context)?,
            end: OwnEvent::of(cuda, context)?,
            all: OwnEvent::of(cuda, context)?,
        })
    }

    /// Enqueues copies, of which the first is the `nth` of its reading.
    fn copy(&self, cuda: &Cuda, nth: usize, copies: usize) -> Result<(), CudaError> {
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
pub(crate) fn prime(cuda: &Cuda, lanes: &[Lane<'_>]) -> Result<(), LaneError> {
    for (nth, lane) in lanes.iter().enumerate() {
        let once = cuda
            .enter(lane.context)
            .and_then(|()| lane.copy(cuda, 0, 1))
            .and_then(|()| lane.stream.wait());
        once.map_err(|error| LaneError { lane: nth, error })?;
    }
    Ok(())
}

/// Whether this many operations can be held back at once.
pub(crate) fn can_be_held(warmup: usize, copies: usize) -> bool {
    warmup.saturating_add(copies) <= MOST_HELD
}

/// Runs all lanes at the same time, this many copies each.
pub(crate) fn time(
    cuda: &Cuda,
    lanes: &[Lane<'_>],
    gate: Option<&Gate<'_>>,
    (warmup, copies): (usize, usize),
) -> Result<Times, LaneError> {
    let of = |lane: usize| move |error: CudaError| LaneError { lane, error };
    let shut = gate.filter(|_| can_be_held(warmup, copies)).map(Gate::shut);
    for (nth, lane) in lanes.iter().enumerate() {
        let enqueue = || {
            cuda.enter(lane.context)?;
            shut.as_ref().map_or(Ok(()), |shut| shut.hold(lane.stream.stream))?;
            lane.copy(cuda, 0, warmup)
        };
        enqueue().map_err(of(nth))?;
    }
    let Some(first) = lanes.first() else { return Ok(Times { each: Vec::new(), all: 0.0 }) };
    for (nth, lane) in lanes.iter().enumerate() {
        let enqueue = || {
            cuda.enter(lane.context)?;
            if 0 < nth {
                // All begin when the first does, whoever is warm earlier.
                cuda.wait_for(lane.stream.stream, first.begin.event)?;
            }
            cuda.record(lane.begin.event, lane.stream.stream)
        };
        enqueue().map_err(of(nth))?;
    }
    for (nth, lane) in lanes.iter().enumerate() {
        let enqueue = || {
            cuda.enter(lane.context)?;
            lane.copy(cuda, warmup, copies)?;
            cuda.record(lane.end.event, lane.stream.stream)?;
            if 0 < nth {
                cuda.enter(first.context)?;
                cuda.wait_for(first.stream.stream, lane.end.event)?;
            }
            Ok(())
        };
        enqueue().map_err(of(nth))?;
    }
    let ended =
        cuda.enter(first.context).and_then(|()| cuda.record(first.all.event, first.stream.stream));
    ended.map_err(of(0))?;
    drop(shut);
    for (nth, lane) in lanes.iter().enumerate() {
        lane.stream.wait().map_err(of(nth))?;
    }
    let seconds = |lane: &Lane<'_>, end: &OwnEvent<'_>| {
        cuda.enter(lane.context)?;
        Ok(f64::from(cuda.elapsed_ms(lane.begin.event, end.event)?) / 1e3)
    };
    let each =
        lanes.iter().enumerate().map(|(nth, lane)| seconds(lane, &lane.end).map_err(of(nth)));
    let each = each.collect::<Result<_, _>>()?;
    let all = seconds(first, &first.all).map_err(of(0))?;
    Ok(Times { each, all })
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
