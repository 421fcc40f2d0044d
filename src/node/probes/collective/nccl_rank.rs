//! A connected rank: its GPU, stream, buffers and communicator.
//!
//! Every wait has a time limit. A communicator is destroyed in order or, after a failure, aborted
//! from a separate thread, because an abort can hang too.

use std::mem::ManuallyDrop;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use super::failure::NcclProbeFailure;
use super::formula::{CollectiveCounts, ELEMENT_BYTES, NcclCollective};
use super::nccl_library::NcclSearchRoots;
use super::pattern::CollectiveCheck;
use super::rank_list::RankList;
use super::{nccl_library, pattern};
use crate::facts;
use crate::ffi::cuda::{CudaDevice, CudaLibrary, CudaStream, DevicePointer, HostMemory};
use crate::ffi::nccl::{
    Communicator, NcclCallState, NcclError, NcclLibrary, NcclOperation, NcclUniqueId, NcclVersion,
};
use crate::probes::copy::devices;
use crate::probes::copy::devices::DetectedGpu;
use crate::probes::driver_error::DriverCallStep;
use crate::probes::protocol::ProbeEmitter;
use crate::probes::task::CollectiveTask;
use model::probe_report::ProbedGpu;

/// How long a wait spins: shorter operations are timed to the microsecond; for longer ones
/// [`PAUSE`] is less than one percent.
const SPIN: Duration = Duration::from_millis(20);
/// Polling interval after that.
const PAUSE: Duration = Duration::from_micros(100);
/// Interval of progress reports while waiting.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Time limit of an abort; after that, it is left to the end of the process.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum bandwidth to wait for, in bytes per second: a tenth of a single TCP stream over an old
/// network.
const MIN_BYTES_PER_S: f64 = 1e8;
/// One part in this many of the free memory is left to NCCL and other processes.
const RESERVED_PART: u64 = 8;
const BARRIER_ELEMENTS: usize = 1;

/// The loaded libraries and this rank's GPU.
#[derive(Debug)]
pub(super) struct NcclRankDevice {
    pub(super) cuda: CudaLibrary,
    pub(super) nccl: Arc<NcclLibrary>,
    pub(super) version: NcclVersion,
    pub(super) gpu: ProbedGpu,
    device: CudaDevice,
}

pub(super) fn load_driver(task: &CollectiveTask) -> Result<CudaLibrary, NcclProbeFailure> {
    let cuda = CudaLibrary::load(task.cuda.as_deref()).map_err(NcclProbeFailure::Driver)?;
    Ok(cuda)
}

/// Initializes the driver.
pub(super) fn init_driver(
    task: &CollectiveTask,
    cuda: &CudaLibrary,
) -> Result<(), NcclProbeFailure> {
    let step = DriverCallStep::Start { is_module_loaded: facts::is_driver_loaded(&task.root) };
    cuda.init().map_err(|error| NcclProbeFailure::Cuda { error, step })
}

impl NcclRankDevice {
    /// Finds NCCL and the GPU of this rank.
    pub(super) fn find(task: &CollectiveTask, cuda: CudaLibrary) -> Result<Self, NcclProbeFailure> {
        let nccl = nccl_library::load_nccl(task.nccl.as_deref(), &NcclSearchRoots::from_env())?;
        let version = nccl.version()?;
        let found = devices::find_gpus(&cuda, &task.root).map_err(NcclProbeFailure::Gpus)?;
        let seen = found.len();
        let found = found.into_iter().find(|gpu| gpu.probed.index == task.gpu);
        let DetectedGpu { device, probed: gpu } =
            found.ok_or(NcclProbeFailure::NoGpu { asked: task.gpu, seen })?;
        Ok(Self { cuda, nccl: Arc::new(nccl), version, gpu, device })
    }

    /// Makes the GPU current on this thread and creates a stream; also returns the largest message
    /// size of which two buffers fit into its free memory.
    pub(super) fn activate(&self) -> Result<(CudaStream, u64), NcclProbeFailure> {
        let at_opening = |error| NcclProbeFailure::Cuda { error, step: DriverCallStep::Open(None) };
        let context = self.cuda.retain_primary_context(self.device).map_err(at_opening)?;
        self.cuda.set_current_context(context)?;
        let stream = self.cuda.create_stream()?;
        let (free, _) = self.cuda.memory_info()?;
        Ok((stream, (free - free / RESERVED_PART) / 2))
    }
}

/// A deadline that reports long waits regularly, because the supervisor treats a silent process as
/// hung.
pub(super) struct ReportingDeadline<'w, 'm> {
    emitter: &'w mut ProbeEmitter<'m>,
    from: Instant,
    within: Duration,
    last_report: Instant,
}

impl<'w, 'm> ReportingDeadline<'w, 'm> {
    pub(super) fn new(emitter: &'w mut ProbeEmitter<'m>, within: Duration) -> Self {
        let now = Instant::now();
        Self { emitter, from: now, within, last_report: now }
    }

    /// Yields the processor; returns an error after the deadline.
    fn pause(&mut self, what: &str) -> Result<(), NcclProbeFailure> {
        let passed = self.from.elapsed();
        if self.within <= passed {
            return Err(NcclProbeFailure::Timeout { what: what.to_owned(), waited: self.within });
        }
        if HEARTBEAT <= self.last_report.elapsed() {
            self.last_report = Instant::now();
            self.emitter
                .announce_step(&format!("{what}, waiting for {:.0} s", passed.as_secs_f64()));
        }
        if passed < SPIN {
            std::thread::yield_now();
        } else {
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct CollectiveBuffers<'c> {
    send: DevicePointer,
    receive: DevicePointer,
    /// Send and receive buffer of the barrier.
    barrier: [DevicePointer; 2],
    // Freed at the end of the process: the driver frees it only when all streams are idle, and
    // after a failure they may never be.
    host: ManuallyDrop<HostMemory<'c>>,
    /// Bytes of each of the two.
    bytes: u64,
}

impl<'c> CollectiveBuffers<'c> {
    /// Allocates the buffers and fills the send buffer with this rank's pattern.
    pub(super) fn new(
        cuda: &'c CudaLibrary,
        stream: CudaStream,
        rank: u32,
        bytes: u64,
        deadline: &mut ReportingDeadline<'_, '_>,
    ) -> Result<Self, NcclProbeFailure> {
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        let (send, receive) = (cuda.alloc(size)?, cuda.alloc(size)?);
        // Allocations are aligned to 256 bytes anyway.
        let small = [cuda.alloc(256)?, cuda.alloc(256)?];
        cuda.fill(small[0], 0, 64, stream)?;
        let period = usize::try_from(pattern::PERIOD * ELEMENT_BYTES).expect("some MiB");
        let block = period.min(size);
        let mut host = cuda.host_memory(block.max(pattern::largest_window_bytes()))?;
        pattern::fill_elements(rank, &mut host.write()[..block]);
        cuda.copy_to_device(send, &host, block, stream)?;
        // The pattern repeats after the block: each copy doubles the filled part.
        let mut filled = block as u64;
        while filled < bytes {
            let next = filled.min(bytes - filled);
            let to = send.offset(filled);
            cuda.copy(to, send, usize::try_from(next).expect("part of a buffer"), stream)?;
            filled += next;
        }
        let host = ManuallyDrop::new(host);
        let buffers = Self { send, receive, barrier: small, host, bytes };
        wait_until_idle(cuda, stream, "filling buffers", deadline)?;
        Ok(buffers)
    }
}

/// Waits until a stream has no work left.
fn wait_until_idle(
    cuda: &CudaLibrary,
    stream: CudaStream,
    what: &str,
    deadline: &mut ReportingDeadline<'_, '_>,
) -> Result<(), NcclProbeFailure> {
    while !cuda.is_idle(stream)? {
        deadline.pause(what)?;
    }
    Ok(())
}

#[derive(Debug)]
pub(super) struct NcclRank<'c> {
    cuda: &'c CudaLibrary,
    nccl: Arc<NcclLibrary>,
    stream: CudaStream,
    buffers: CollectiveBuffers<'c>,
    comm: Option<Communicator>,
    rank: u32,
    ranks: u32,
    timeout: Duration,
}

impl<'c> NcclRank<'c> {
    pub(super) fn new(
        machine: &'c NcclRankDevice,
        stream: CudaStream,
        buffers: CollectiveBuffers<'c>,
        roll: &RankList,
        timeout: Duration,
    ) -> Self {
        Self {
            cuda: &machine.cuda,
            nccl: Arc::clone(&machine.nccl),
            stream,
            buffers,
            comm: None,
            rank: roll.me,
            ranks: roll.count(),
            timeout,
        }
    }

    /// Creates the communicator together with all other ranks. NCCL before 2.14 blocks here, so the
    /// supervisor must end the process if it hangs.
    pub(super) fn connect(
        &mut self,
        id: NcclUniqueId,
        emitter: &mut ProbeEmitter<'_>,
    ) -> Result<(), NcclProbeFailure> {
        let (ranks, rank) = (to_c_int(self.ranks), to_c_int(self.rank));
        if !self.nccl.supports_nonblocking() {
            self.comm = Some(self.nccl.init(ranks, id, rank)?);
            return Ok(());
        }
        let mut deadline = ReportingDeadline::new(emitter, self.timeout);
        let (comm, state) = self.nccl.begin_init(ranks, id, rank)?;
        self.comm = Some(comm);
        self.wait_until_enqueued(state, "ncclCommInitRankConfig", &mut deadline)
    }

    /// The communicator's number of ranks, if it differs from the expected one.
    pub(super) fn mismatched_rank_count(&self) -> Option<i32> {
        let comm = self.comm?;
        self.nccl.ranks(comm).ok().filter(|ranks| *ranks != to_c_int(self.ranks))
    }

    fn comm(&self) -> Communicator {
        self.comm.expect("nothing is measured before ranks are connected")
    }

    /// Waits until the last call is enqueued.
    fn wait_until_enqueued(
        &self,
        state: NcclCallState,
        what: &str,
        deadline: &mut ReportingDeadline<'_, '_>,
    ) -> Result<(), NcclProbeFailure> {
        let mut state = state;
        while state == NcclCallState::InProgress {
            state = self.nccl.state(self.comm())?;
            if state == NcclCallState::InProgress {
                deadline.pause(what)?;
            }
        }
        Ok(())
    }

    /// Waits for the stream, and returns errors of background operations.
    fn wait_for_stream(
        &self,
        what: &str,
        deadline: &mut ReportingDeadline<'_, '_>,
    ) -> Result<(), NcclProbeFailure> {
        while !self.cuda.is_idle(self.stream)? {
            self.nccl.state(self.comm())?;
            deadline.pause(what)?;
        }
        self.nccl.state(self.comm())?;
        Ok(())
    }

    /// Barrier: returns only after all ranks have entered it.
    fn barrier(
        &self,
        what: &str,
        deadline: &mut ReportingDeadline<'_, '_>,
    ) -> Result<(), NcclProbeFailure> {
        let [from, to] = self.buffers.barrier;
        let (comm, stream) = (self.comm(), self.stream);
        let operation = NcclOperation { comm, stream, count: BARRIER_ELEMENTS };
        let state = self.nccl.all_reduce(from, to, operation)?;
        self.wait_until_enqueued(state, what, deadline)?;
        self.wait_for_stream(what, deadline)
    }

    /// Starts an operation at this offset in the buffers, in bytes.
    fn start(
        &self,
        collective: NcclCollective,
        counts: CollectiveCounts,
        shift: u64,
        deadline: &mut ReportingDeadline<'_, '_>,
    ) -> Result<(), NcclProbeFailure> {
        let count = usize::try_from(counts.call).expect("part of a buffer");
        let operation = NcclOperation { comm: self.comm(), stream: self.stream, count };
        let from = self.buffers.send.offset(shift);
        let to = self.buffers.receive.offset(shift);
        let nccl = &self.nccl;
        let state = match collective {
            NcclCollective::AllReduce => nccl.all_reduce(from, to, operation)?,
            NcclCollective::AllGather => nccl.all_gather(from, to, operation)?,
            NcclCollective::ReduceScatter => nccl.reduce_scatter(from, to, operation)?,
            NcclCollective::Broadcast => nccl.broadcast(from, to, 0, operation)?,
            NcclCollective::SendReceive => self.run_grouped(|| {
                nccl.send(from, to_c_int((self.rank + 1) % self.ranks), operation)?;
                let before = (self.rank + self.ranks - 1) % self.ranks;
                nccl.receive(to, to_c_int(before), operation)
            })?,
            NcclCollective::AllToAll => self.run_grouped(|| {
                let part = counts.call * ELEMENT_BYTES;
                let mut state = NcclCallState::Ready;
                for peer in 0..self.ranks {
                    let place = u64::from(peer) * part;
                    nccl.send(from.offset(place), to_c_int(peer), operation)?;
                    state = nccl.receive(to.offset(place), to_c_int(peer), operation)?;
                }
                Ok(state)
            })?,
        };
        self.wait_until_enqueued(state, collective.name(), deadline)
    }

    /// Runs grouped calls. The group is ended even if a call fails, so that later calls do not
    /// become part of it.
    fn run_grouped(
        &self,
        calls: impl FnOnce() -> Result<NcclCallState, NcclError>,
    ) -> Result<NcclCallState, NcclError> {
        self.nccl.begin_group()?;
        let called = calls();
        let ended = self.nccl.end_group();
        called.and(ended)
    }

    /// Times operations of one size, like nccl-tests: the clock runs from the barrier until the
    /// stream is idle, and successive operations use different parts of the buffers, so that small
    /// ones do not stay in caches.
    pub(super) fn time_operations(
        &self,
        collective: NcclCollective,
        counts: CollectiveCounts,
        (warmup, iterations): (u32, u32),
        emitter: &mut ProbeEmitter<'_>,
    ) -> Result<f64, NcclProbeFailure> {
        let bytes = counts.bytes();
        let steps = (self.buffers.bytes / bytes).max(1);
        let what = format!("{} of {bytes} bytes", collective.name());
        let one = self.timeout + max_duration(bytes);
        let mut longest = Duration::ZERO;
        // At least one warm-up: the first operation of a size creates connections.
        for step in 0..u64::from(warmup.max(1)) {
            let mut deadline = ReportingDeadline::new(emitter, one);
            self.start(collective, counts, bytes * (step % steps), &mut deadline)?;
            self.wait_for_stream(&what, &mut deadline)?;
            longest = longest.max(deadline.from.elapsed());
        }
        self.barrier(&what, &mut ReportingDeadline::new(emitter, self.timeout))?;
        let iterations = iterations.max(1);
        let mut deadline =
            ReportingDeadline::new(emitter, one + longest.saturating_mul(iterations));
        let begun = Instant::now();
        for step in 0..u64::from(iterations) {
            self.start(collective, counts, bytes * (step % steps), &mut deadline)?;
        }
        self.wait_for_stream(&what, &mut deadline)?;
        Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(iterations))
    }

    /// Runs one operation into cleared buffers, and compares the received data with the expected
    /// data.
    pub(super) fn check_result(
        &self,
        collective: NcclCollective,
        counts: CollectiveCounts,
        emitter: &mut ProbeEmitter<'_>,
    ) -> Result<CollectiveCheck, NcclProbeFailure> {
        let (cuda, stream) = (self.cuda, self.stream);
        let what = format!("checking {} of {} bytes", collective.name(), counts.bytes());
        let mut deadline =
            ReportingDeadline::new(emitter, self.timeout + max_duration(counts.bytes()));
        let words = usize::try_from(counts.receive).expect("part of a buffer");
        cuda.fill(self.buffers.receive, pattern::UNWRITTEN, words, stream)?;
        self.start(collective, counts, 0, &mut deadline)?;
        self.wait_for_stream(&what, &mut deadline)?;
        let mut checked = CollectiveCheck::default();
        for window in pattern::check_windows(collective, counts) {
            let bytes = usize::try_from(window.elements * ELEMENT_BYTES).expect("a window");
            let from = self.buffers.receive.offset(window.from * ELEMENT_BYTES);
            cuda.copy_to_host(&self.buffers.host, from, bytes, stream)?;
            wait_until_idle(cuda, stream, &what, &mut deadline)?;
            checked.compare_window(window, &self.buffers.host.read()[..bytes], |place| {
                pattern::expected_element(collective, counts, self.ranks, self.rank, place)
            });
        }
        Ok(checked)
    }

    /// Destroys the communicator in order; every rank does it.
    pub(super) fn disconnect(
        &mut self,
        emitter: &mut ProbeEmitter<'_>,
    ) -> Result<(), NcclProbeFailure> {
        let Some(comm) = self.comm else { return Ok(()) };
        if self.nccl.supports_nonblocking() {
            let mut deadline = ReportingDeadline::new(emitter, self.timeout);
            let state = self.nccl.finalize(comm)?;
            self.wait_until_enqueued(state, "ncclCommFinalize", &mut deadline)?;
        }
        self.comm = None;
        Ok(self.nccl.destroy(comm)?)
    }
}

impl Drop for NcclRank<'_> {
    fn drop(&mut self) {
        let Some(comm) = self.comm.take() else { return };
        let (done, ended) = mpsc::channel();
        let nccl = Arc::clone(&self.nccl);
        std::thread::spawn(move || {
            // The result is irrelevant: the process ends.
            let _ = nccl.abort(comm);
            let _ = done.send(());
        });
        let _ = ended.recv_timeout(ABORT_TIMEOUT);
    }
}

/// Time limit of an operation over this many bytes at the minimum bandwidth.
pub(super) fn max_duration(bytes: u64) -> Duration {
    #[expect(clippy::cast_precision_loss, reason = "bytes of a buffer are below 2^53")]
    Duration::from_secs_f64(bytes as f64 / MIN_BYTES_PER_S)
}

fn to_c_int(rank: u32) -> i32 {
    i32::try_from(rank).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_names_the_awaited_operation() {
        let (mut out, mut progress, mut input) = (Vec::new(), Vec::new(), &b""[..]);
        let mut emitter = ProbeEmitter::new(&mut out, &mut progress, &mut input);
        let failure =
            ReportingDeadline::new(&mut emitter, Duration::ZERO).pause("ncclCommInitRankConfig");
        let failure = failure.expect_err("time is up");
        assert!(failure.is_timeout());
        assert!(failure.to_string().starts_with("ncclCommInitRankConfig did not end"));
        let mut deadline = ReportingDeadline::new(&mut emitter, Duration::from_secs(3_600));
        deadline.pause("x").expect("there is time");
        deadline.last_report -= HEARTBEAT;
        deadline.pause("a long wait").expect("there is time");
        let steps = String::from_utf8(progress).expect("text");
        assert!(steps.contains("a long wait, waiting for 0 s"), "{steps}");
        assert_eq!(steps.lines().count(), 1, "{steps}");
    }
}
