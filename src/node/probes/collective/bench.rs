//! One rank at work: its GPU, its stream, its buffers, its communicator.
//!
//! Every wait has an end. A communicator is given back in order or, after a
//! failure, aborted from a thread of its own, because that can hang as well.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use std::time::Instant;

use super::failure::Failure;
use super::formula::Collective;
use super::formula::Counts;
use super::formula::ELEMENT_BYTES;
use super::library;
use super::library::Places;
use super::pattern;
use super::pattern::Checked;
use super::roll::Roll;
use super::task::Task;
use crate::ffi::cuda::Address;
use crate::ffi::cuda::Cuda;
use crate::ffi::cuda::Device;
use crate::ffi::cuda::HostMemory;
use crate::ffi::cuda::Stream;
use crate::ffi::nccl::Communicator;
use crate::ffi::nccl::Nccl;
use crate::ffi::nccl::NcclError;
use crate::ffi::nccl::Operation;
use crate::ffi::nccl::State;
use crate::ffi::nccl::UniqueId;
use crate::ffi::nccl::Version;
use crate::probes::copy::devices;
use crate::probes::copy::devices::Found;
use crate::probes::said::Mouth;
use model::probed::ProbedGpu;

/// For how long a wait keeps the processor: what ends sooner is timed to the
/// microsecond, of what ends later [`PAUSE`] is less than one percent.
const SPIN: Duration = Duration::from_millis(20);
/// Between two looks after that.
const PAUSE: Duration = Duration::from_micros(100);
/// Below it the driver lists the GPUs of the machine.
const ROOT: &str = "/";
/// How often somebody who waits says so.
const BEAT: Duration = Duration::from_secs(5);
/// What an abort may take before it is left to the end of the process.
const ABORT: Duration = Duration::from_secs(5);
/// Slower than this (bytes a second) nothing is worth waiting for: a tenth of
/// what a single TCP stream over an old network brings.
const SLOWEST: f64 = 1e8;
/// The part of free memory that is left to NCCL and to others.
const LEFT: u64 = 8;
/// Elements of the operation that brings ranks together: one.
const TOGETHER: usize = 1;

/// The libraries, loaded, and the GPU, found.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) cuda: Cuda,
    pub(super) nccl: Arc<Nccl>,
    pub(super) version: Version,
    pub(super) gpu: ProbedGpu,
    device: Device,
}

/// The driver, brought up.
pub(super) fn driver(task: &Task) -> Result<Cuda, Failure> {
    let cuda = Cuda::load(task.cuda.as_deref()).map_err(Failure::Driver)?;
    cuda.init()?;
    Ok(cuda)
}

impl Machine {
    /// Finds NCCL and the GPU of this rank.
    pub(super) fn find(task: &Task, cuda: Cuda) -> Result<Self, Failure> {
        let nccl = library::load(task.nccl.as_deref(), &Places::of_this_process())?;
        let version = nccl.version()?;
        let found = devices::find(&cuda, Path::new(ROOT)).map_err(Failure::Gpus)?;
        let seen = found.len();
        let found = found.into_iter().find(|gpu| gpu.probed.index == task.gpu);
        let Found { device, probed: gpu } =
            found.ok_or(Failure::NoGpu { asked: task.gpu, seen })?;
        Ok(Self { cuda, nccl: Arc::new(nccl), version, gpu, device })
    }

    /// Makes the GPU that of this thread, with a stream; and the largest message
    /// of which two fit into its free memory.
    pub(super) fn enter(&self) -> Result<(Stream, u64), Failure> {
        let context = self.cuda.retain(self.device)?;
        self.cuda.enter(context)?;
        let stream = self.cuda.stream()?;
        let (free, _) = self.cuda.memory_info()?;
        Ok((stream, (free - free / LEFT) / 2))
    }
}

/// A moment by which something must have ended. Whoever waits long says so now
/// and then, since a process that is silent is taken for one that hangs.
pub(super) struct Deadline<'w, 'm> {
    mouth: &'w mut Mouth<'m>,
    from: Instant,
    within: Duration,
    spoke: Instant,
}

impl<'w, 'm> Deadline<'w, 'm> {
    pub(super) fn within(mouth: &'w mut Mouth<'m>, within: Duration) -> Self {
        let now = Instant::now();
        Self { mouth, from: now, within, spoke: now }
    }

    /// Lets others work; an error where time is up.
    fn pause(&mut self, what: &str) -> Result<(), Failure> {
        let passed = self.from.elapsed();
        if self.within <= passed {
            return Err(Failure::Late { what: what.to_owned(), waited: self.within });
        }
        if BEAT <= self.spoke.elapsed() {
            self.spoke = Instant::now();
            self.mouth.begin(&format!("{what}, waiting for {:.0} s", passed.as_secs_f64()));
        }
        if passed < SPIN {
            std::thread::yield_now();
        } else {
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

/// The buffers of a rank.
#[derive(Debug)]
pub(super) struct Buffers<'c> {
    send: Address,
    receive: Address,
    /// Of the operation that brings ranks together: to send, and to receive.
    small: [Address; 2],
    // It goes with the process: the driver frees it only when all streams are idle,
    // and after a failure they may never be.
    host: ManuallyDrop<HostMemory<'c>>,
    /// Bytes of each of the two.
    bytes: u64,
}

impl<'c> Buffers<'c> {
    /// Allocates them, and fills what is sent with this rank's pattern.
    pub(super) fn new(
        cuda: &'c Cuda,
        stream: Stream,
        rank: u32,
        bytes: u64,
        deadline: &mut Deadline<'_, '_>,
    ) -> Result<Self, Failure> {
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        let (send, receive) = (cuda.alloc(size)?, cuda.alloc(size)?);
        // 256 bytes are what allocations are aligned to anyway.
        let small = [cuda.alloc(256)?, cuda.alloc(256)?];
        cuda.fill(small[0], 0, 64, stream)?;
        let period = usize::try_from(pattern::PERIOD * ELEMENT_BYTES).expect("some MiB");
        let block = period.min(size);
        let mut host = cuda.host_memory(block.max(pattern::largest_window_bytes()))?;
        pattern::fill(rank, &mut host.write()[..block]);
        cuda.copy_to_device(send, &host, block, stream)?;
        // The pattern repeats after the block: each copy doubles what there is.
        let mut filled = block as u64;
        while filled < bytes {
            let next = filled.min(bytes - filled);
            let to = send.offset(filled);
            cuda.copy(to, send, usize::try_from(next).expect("part of a buffer"), stream)?;
            filled += next;
        }
        let host = ManuallyDrop::new(host);
        let buffers = Self { send, receive, small, host, bytes };
        idle(cuda, stream, "filling buffers", deadline)?;
        Ok(buffers)
    }
}

/// Waits until a stream has nothing left to do.
fn idle(
    cuda: &Cuda,
    stream: Stream,
    what: &str,
    deadline: &mut Deadline<'_, '_>,
) -> Result<(), Failure> {
    while !cuda.is_idle(stream)? {
        deadline.pause(what)?;
    }
    Ok(())
}

/// A rank at work.
#[derive(Debug)]
pub(super) struct Bench<'c> {
    cuda: &'c Cuda,
    nccl: Arc<Nccl>,
    stream: Stream,
    buffers: Buffers<'c>,
    comm: Option<Communicator>,
    rank: u32,
    ranks: u32,
    patience: Duration,
}

impl<'c> Bench<'c> {
    pub(super) fn new(
        machine: &'c Machine,
        stream: Stream,
        buffers: Buffers<'c>,
        roll: &Roll,
        patience: Duration,
    ) -> Self {
        Self {
            cuda: &machine.cuda,
            nccl: Arc::clone(&machine.nccl),
            stream,
            buffers,
            comm: None,
            rank: roll.me,
            ranks: roll.count(),
            patience,
        }
    }

    /// Makes the communicator, together with all other ranks. Where NCCL cannot
    /// but wait (before 2.14), whoever attends this process must end it.
    pub(super) fn connect(&mut self, id: UniqueId, mouth: &mut Mouth<'_>) -> Result<(), Failure> {
        let (ranks, rank) = (number(self.ranks), number(self.rank));
        if !self.nccl.can_wait() {
            self.comm = Some(self.nccl.init(ranks, id, rank)?);
            return Ok(());
        }
        let mut deadline = Deadline::within(mouth, self.patience);
        let (comm, state) = self.nccl.begin_init(ranks, id, rank)?;
        self.comm = Some(comm);
        self.settle(state, "ncclCommInitRankConfig", &mut deadline)
    }

    /// What the communicator says of itself, where it is not what was asked for.
    pub(super) fn other_ranks(&self) -> Option<i32> {
        let comm = self.comm?;
        self.nccl.ranks(comm).ok().filter(|ranks| *ranks != number(self.ranks))
    }

    fn comm(&self) -> Communicator {
        self.comm.expect("nothing is measured before ranks are connected")
    }

    /// Waits until the last call is on its way.
    fn settle(
        &self,
        state: State,
        what: &str,
        deadline: &mut Deadline<'_, '_>,
    ) -> Result<(), Failure> {
        let mut state = state;
        while state == State::InProgress {
            state = self.nccl.state(self.comm())?;
            if state == State::InProgress {
                deadline.pause(what)?;
            }
        }
        Ok(())
    }

    /// Waits for the stream, and hears of what fails meanwhile.
    fn wait(&self, what: &str, deadline: &mut Deadline<'_, '_>) -> Result<(), Failure> {
        while !self.cuda.is_idle(self.stream)? {
            self.nccl.state(self.comm())?;
            deadline.pause(what)?;
        }
        self.nccl.state(self.comm())?;
        Ok(())
    }

    /// Brings all ranks together: nobody comes back before everybody is there.
    fn together(&self, what: &str, deadline: &mut Deadline<'_, '_>) -> Result<(), Failure> {
        let [from, to] = self.buffers.small;
        let (comm, stream) = (self.comm(), self.stream);
        let operation = Operation { comm, stream, count: TOGETHER };
        let state = self.nccl.all_reduce(from, to, operation)?;
        self.settle(state, what, deadline)?;
        self.wait(what, deadline)
    }

    /// Starts an operation whose buffers begin this many bytes further.
    fn start(
        &self,
        collective: Collective,
        counts: Counts,
        shift: u64,
        deadline: &mut Deadline<'_, '_>,
    ) -> Result<(), Failure> {
        let count = usize::try_from(counts.call).expect("part of a buffer");
        let operation = Operation { comm: self.comm(), stream: self.stream, count };
        let from = self.buffers.send.offset(shift);
        let to = self.buffers.receive.offset(shift);
        let nccl = &self.nccl;
        let state = match collective {
            Collective::AllReduce => nccl.all_reduce(from, to, operation)?,
            Collective::AllGather => nccl.all_gather(from, to, operation)?,
            Collective::ReduceScatter => nccl.reduce_scatter(from, to, operation)?,
            Collective::Broadcast => nccl.broadcast(from, to, 0, operation)?,
            Collective::SendReceive => self.grouped(|| {
                nccl.send(from, number((self.rank + 1) % self.ranks), operation)?;
                let before = (self.rank + self.ranks - 1) % self.ranks;
                nccl.receive(to, number(before), operation)
            })?,
            Collective::AllToAll => self.grouped(|| {
                let part = counts.call * ELEMENT_BYTES;
                let mut state = State::Ready;
                for peer in 0..self.ranks {
                    let place = u64::from(peer) * part;
                    nccl.send(from.offset(place), number(peer), operation)?;
                    state = nccl.receive(to.offset(place), number(peer), operation)?;
                }
                Ok(state)
            })?,
        };
        self.settle(state, collective.name(), deadline)
    }

    /// Calls that belong together. The group is ended also where one of them
    /// fails, so that what follows is not taken for part of it.
    fn grouped(
        &self,
        calls: impl FnOnce() -> Result<State, NcclError>,
    ) -> Result<State, NcclError> {
        self.nccl.begin_group()?;
        let called = calls();
        let ended = self.nccl.end_group();
        called.and(ended)
    }

    /// Times operations of one size, the way nccl-tests does: the clock runs from
    /// when all ranks are there until the stream is idle, and successive
    /// operations use different parts of the buffers, so that small ones do not
    /// stay in caches.
    pub(super) fn time(
        &self,
        collective: Collective,
        counts: Counts,
        (warmup, iterations): (u32, u32),
        mouth: &mut Mouth<'_>,
    ) -> Result<f64, Failure> {
        let bytes = counts.bytes();
        let steps = (self.buffers.bytes / bytes).max(1);
        let what = format!("{} of {bytes} bytes", collective.name());
        let one = self.patience + slowest(bytes);
        let mut longest = Duration::ZERO;
        // One at least: the first of a size makes connections.
        for step in 0..u64::from(warmup.max(1)) {
            let mut deadline = Deadline::within(mouth, one);
            self.start(collective, counts, bytes * (step % steps), &mut deadline)?;
            self.wait(&what, &mut deadline)?;
            longest = longest.max(deadline.from.elapsed());
        }
        self.together(&what, &mut Deadline::within(mouth, self.patience))?;
        let iterations = iterations.max(1);
        let mut deadline = Deadline::within(mouth, one + longest.saturating_mul(iterations));
        let begun = Instant::now();
        for step in 0..u64::from(iterations) {
            self.start(collective, counts, bytes * (step % steps), &mut deadline)?;
        }
        self.wait(&what, &mut deadline)?;
        Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(iterations))
    }

    /// Runs one operation into buffers that hold nothing, and compares what came
    /// with what must come.
    pub(super) fn check(
        &self,
        collective: Collective,
        counts: Counts,
        mouth: &mut Mouth<'_>,
    ) -> Result<Checked, Failure> {
        let (cuda, stream) = (self.cuda, self.stream);
        let what = format!("checking {} of {} bytes", collective.name(), counts.bytes());
        let mut deadline = Deadline::within(mouth, self.patience + slowest(counts.bytes()));
        let words = usize::try_from(counts.receive).expect("part of a buffer");
        cuda.fill(self.buffers.receive, pattern::NOTHING, words, stream)?;
        self.start(collective, counts, 0, &mut deadline)?;
        self.wait(&what, &mut deadline)?;
        let mut checked = Checked::default();
        for window in pattern::windows(collective, counts) {
            let bytes = usize::try_from(window.elements * ELEMENT_BYTES).expect("a window");
            let from = self.buffers.receive.offset(window.from * ELEMENT_BYTES);
            cuda.copy_to_host(&self.buffers.host, from, bytes, stream)?;
            idle(cuda, stream, &what, &mut deadline)?;
            checked.window(window, &self.buffers.host.read()[..bytes], |place| {
                pattern::expected(collective, counts, self.ranks, self.rank, place)
            });
        }
        Ok(checked)
    }

    /// Gives the communicator back in order; every rank does it.
    pub(super) fn disconnect(&mut self, mouth: &mut Mouth<'_>) -> Result<(), Failure> {
        let Some(comm) = self.comm else { return Ok(()) };
        if self.nccl.can_wait() {
            let mut deadline = Deadline::within(mouth, self.patience);
            let state = self.nccl.finalize(comm)?;
            self.settle(state, "ncclCommFinalize", &mut deadline)?;
        }
        self.comm = None;
        Ok(self.nccl.destroy(comm)?)
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        let Some(comm) = self.comm.take() else { return };
        let (done, ended) = mpsc::channel();
        let nccl = Arc::clone(&self.nccl);
        std::thread::spawn(move || {
            // Whether it went well changes nothing: the process ends.
            let _ = nccl.abort(comm);
            let _ = done.send(());
        });
        let _ = ended.recv_timeout(ABORT);
    }
}

/// What an operation over this many bytes may take where it is very slow.
pub(super) fn slowest(bytes: u64) -> Duration {
    #[expect(clippy::cast_precision_loss, reason = "bytes of a buffer are below 2^53")]
    Duration::from_secs_f64(bytes as f64 / SLOWEST)
}

fn number(rank: u32) -> i32 {
    i32::try_from(rank).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_end_is_late_and_says_for_what_it_was_waited() {
        let (mut out, mut progress, mut input) = (Vec::new(), Vec::new(), &b""[..]);
        let mut mouth = Mouth::new(&mut out, &mut progress, &mut input);
        let failure = Deadline::within(&mut mouth, Duration::ZERO).pause("ncclCommInitRankConfig");
        let failure = failure.expect_err("time is up");
        assert!(failure.waited());
        assert!(failure.to_string().starts_with("ncclCommInitRankConfig did not end"));
        let mut deadline = Deadline::within(&mut mouth, Duration::from_secs(3_600));
        deadline.pause("x").expect("there is time");
        deadline.spoke -= BEAT;
        deadline.pause("a long wait").expect("there is time");
        let said = String::from_utf8(progress).expect("text");
        assert!(said.contains("a long wait, waiting for 0 s"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
