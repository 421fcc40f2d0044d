//! The buffers of copy tests: allocated once per test, filled, stamped, cleared and compared.
//!
//! All work here runs in the GPU's own stream and is complete when a call returns; none of it is
//! timed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::cases::BufferPlace;
use super::devices::OpenGpu;
use super::pattern;
use super::pattern::{CopyPattern, DataDifference, WORD};
use super::raii::GpuMemory;
use crate::ffi::cuda::{CudaCallError, CudaLibrary, DevicePointer, HostMemory};
use crate::probes::driver_error::DriverCallStep;

/// Bytes per comparison step.
const STAGE_BYTES: usize = 64 << 20;

/// Minimum ratio of a buffer's copy slots to the GPU's second-level cache, so that no copy finds
/// its data in the cache.
const CACHE_FACTOR: u64 = 4;

/// A failed call, and the step in which it failed.
#[derive(Debug)]
pub(crate) struct CopyCallFailure {
    pub(crate) error: CudaCallError,
    pub(crate) step: DriverCallStep,
    /// Description of the step for messages.
    pub(crate) action: String,
    /// The GPU, by its index in the session.
    pub(crate) gpu: usize,
}

/// Placement of copies in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BufferLayout {
    pub(crate) bytes: usize,
    pub(crate) slots: usize,
}

impl BufferLayout {
    /// The layout for this many copies of this size that exceeds a cache.
    pub(crate) fn beyond_cache(cache_bytes: u64, bytes: usize, copies: usize) -> Self {
        let cache = usize::try_from(cache_bytes.saturating_mul(CACHE_FACTOR)).unwrap_or(usize::MAX);
        // No more slots than copies, so that every slot is compared.
        let slots = cache.div_ceil(bytes.max(1)).clamp(1, copies.max(1));
        Self { bytes, slots }
    }

    /// Size of the buffer in bytes.
    pub(crate) fn total(self) -> usize {
        self.bytes.saturating_mul(self.slots)
    }

    pub(crate) fn offset(self, copy: usize) -> u64 {
        u64::try_from(copy % self.slots * self.bytes).expect("a size fits 64 bits")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BufferRole {
    Source,
    Destination,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BufferKey {
    pub(crate) place: BufferPlace,
    pub(crate) role: BufferRole,
    /// Number among buffers with the same location and role.
    pub(crate) nth: usize,
    pub(crate) layout: BufferLayout,
}

/// A mismatch between data found and data expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataMismatch {
    pub(crate) difference: DataDifference,
    /// A second comparison found the mismatch too. If not, the data on the GPU is correct and was
    /// corrupted on the way to the host.
    pub(crate) is_repeatable: bool,
}

#[derive(Debug)]
enum BufferMemory<'c> {
    Gpu(GpuMemory<'c>),
    Host(HostMemory<'c>),
}

#[derive(Debug)]
pub(crate) struct CopyBuffers<'c> {
    cuda: &'c CudaLibrary,
    node: String,
    root: PathBuf,
    allocated: BTreeMap<BufferKey, BufferMemory<'c>>,
    /// Filled sources, and whether they have the data that the host wrote.
    filled: BTreeMap<BufferKey, bool>,
    stage: Option<HostMemory<'c>>,
}

impl<'c> CopyBuffers<'c> {
    /// Creates an empty set. The node's name is part of the patterns; `root` contains `proc`.
    pub(crate) fn new(cuda: &'c CudaLibrary, node: &str, root: &Path) -> Self {
        let (node, root) = (node.to_owned(), root.to_owned());
        let (allocated, filled) = (BTreeMap::new(), BTreeMap::new());
        Self { cuda, node, root, allocated, filled, stage: None }
    }

    pub(crate) fn clear(&mut self) {
        self.allocated.clear();
        self.filled.clear();
    }

    /// True if a source has the data that the host wrote. If not, data copied from it cannot prove
    /// a copy wrong.
    pub(crate) fn is_source_intact(&self, source: BufferKey) -> bool {
        self.filled.get(&source).copied().unwrap_or(false)
    }

    /// Allocates and fills a source, and checks once that it has the data written: a host link that
    /// corrupts data must not be blamed on the fabric.
    pub(crate) fn ensure_source(
        &mut self,
        key: BufferKey,
        gpus: &[OpenGpu<'c>],
    ) -> Result<(DevicePointer, Option<DataMismatch>), CopyCallFailure> {
        let (BufferPlace::Host(at) | BufferPlace::Gpu(at)) = key.place;
        let address = self.ensure_buffer(key, gpus)?;
        // If a call fails halfway, the source is filled again next time.
        if self.filled.contains_key(&key) {
            return Ok((address, None));
        }
        let pattern = self.pattern(key, 0);
        self.fill(key, at, &gpus[at], &pattern)?;
        let wrong = self.compare(key, &pattern, gpus)?;
        self.filled.insert(key, wrong.is_none());
        Ok((address, wrong))
    }

    /// Allocates a buffer. Returns its address for GPUs.
    pub(crate) fn ensure_buffer(
        &mut self,
        key: BufferKey,
        gpus: &[OpenGpu<'c>],
    ) -> Result<DevicePointer, CopyCallFailure> {
        let (BufferPlace::Host(at) | BufferPlace::Gpu(at)) = key.place;
        if !self.allocated.contains_key(&key) {
            let memory = self.allocate(key, at, &gpus[at])?;
            self.allocated.insert(key, memory);
        }
        match &self.allocated[&key] {
            BufferMemory::Gpu(memory) => Ok(memory.address),
            BufferMemory::Host(memory) => memory.address().map_err(|error| CopyCallFailure {
                error,
                step: DriverCallStep::HostMemory,
                action: format!("getting the address of {}", place_name(key.place, gpus)),
                gpu: at,
            }),
        }
    }

    /// The contents of a source when it is copied under this stamp.
    pub(crate) fn pattern(&self, source: BufferKey, stamp: u32) -> CopyPattern {
        let BufferKey { place, nth, layout, .. } = source;
        let seed = pattern::hash_parts(&[&self.node, &format!("{place:?} {nth}")]);
        CopyPattern { seed, stamp, bytes: layout.total() }
    }

    fn allocate(
        &self,
        key: BufferKey,
        at: usize,
        gpu: &OpenGpu<'c>,
    ) -> Result<BufferMemory<'c>, CopyCallFailure> {
        let (cuda, bytes, index) = (self.cuda, key.layout.total(), gpu.index());
        let mib = bytes.div_ceil(1 << 20);
        match key.place {
            BufferPlace::Gpu(_) => {
                let taken = GpuMemory::allocate(cuda, gpu.context(), bytes);
                taken.map(BufferMemory::Gpu).map_err(|error| {
                    let free = cuda.memory_info().map_or(String::new(), |(free, total)| {
                        format!(" ({} of {} MiB are free)", free >> 20, total >> 20)
                    });
                    let doing = format!("allocating {mib} MiB on GPU {index}{free}");
                    CopyCallFailure {
                        error,
                        step: DriverCallStep::GpuMemory,
                        action: doing,
                        gpu: at,
                    }
                })
            }
            BufferPlace::Host(_) => {
                let _moved = gpu.numa.as_ref().and_then(|near| near.pin_thread().ok());
                let taken =
                    cuda.set_current_context(gpu.context()).and_then(|()| cuda.host_memory(bytes));
                taken.map(BufferMemory::Host).map_err(|error| {
                    let free = self.host_free_text();
                    let doing = format!("allocating {mib} MiB host memory near GPU {index}{free}");
                    CopyCallFailure {
                        error,
                        step: DriverCallStep::HostMemory,
                        action: doing,
                        gpu: at,
                    }
                })
            }
        }
    }

    /// The kernel's estimate of available memory, as text.
    fn host_free_text(&self) -> String {
        let text = fs::read_to_string(self.root.join("proc/meminfo")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.map_or(String::new(), |kib| format!(" ({} MiB are available)", kib >> 10))
    }

    /// Allocates host memory, large enough to compare this many bytes of GPU data.
    fn ensure_stage(
        &mut self,
        bytes: usize,
        at: usize,
        gpu: &OpenGpu<'c>,
    ) -> Result<(), CopyCallFailure> {
        let bytes = bytes.min(STAGE_BYTES);
        if self.stage.as_ref().is_none_or(|stage| stage.bytes() < bytes) {
            self.stage = None;
            let taken = self
                .cuda
                .set_current_context(gpu.context())
                .and_then(|()| self.cuda.host_memory(bytes));
            let trouble = |error| {
                let (mib, free) = (bytes.div_ceil(1 << 20), self.host_free_text());
                let doing = format!("allocating {mib} MiB of host memory for comparison{free}");
                CopyCallFailure { error, step: DriverCallStep::HostMemory, action: doing, gpu: at }
            };
            self.stage = Some(taken.map_err(trouble)?);
        }
        Ok(())
    }

    fn fill(
        &mut self,
        key: BufferKey,
        at: usize,
        gpu: &OpenGpu<'c>,
        pattern: &CopyPattern,
    ) -> Result<(), CopyCallFailure> {
        if let Some(BufferMemory::Host(memory)) = self.allocated.get_mut(&key) {
            pattern.write(0, memory.write());
            return Ok(());
        }
        self.ensure_stage(pattern.bytes, at, gpu)?;
        let (Some(BufferMemory::Gpu(memory)), Some(stage)) =
            (self.allocated.get(&key), &mut self.stage)
        else {
            return Ok(());
        };
        let mut fill = || {
            self.cuda.set_current_context(gpu.context())?;
            for (from, bytes) in pieces(pattern.bytes) {
                pattern.write(from, &mut stage.write()[..bytes]);
                let to = memory.address.offset(to_u64(from));
                self.cuda.copy_to_device(to, stage, bytes, gpu.stream())?;
                gpu.wait()?;
            }
            Ok(())
        };
        let doing = format!("filling {} MiB on GPU {}", pattern.bytes >> 20, gpu.index());
        fill().map_err(|error| CopyCallFailure {
            error,
            step: DriverCallStep::Copy,
            action: doing,
            gpu: at,
        })
    }

    /// Stamps a source and clears its destination.
    pub(crate) fn prepare(
        &mut self,
        (source, destination): (BufferKey, BufferKey),
        pattern: &CopyPattern,
        gpus: &[OpenGpu<'c>],
    ) -> Result<(), CopyCallFailure> {
        self.modify(source, gpus, "stamping", |cuda, memory, gpu| match memory {
            BufferMemory::Host(memory) => {
                pattern.write_stamps(memory.write());
                Ok(())
            }
            BufferMemory::Gpu(memory) => pattern.stamps().try_for_each(|at| {
                let place = memory.address.offset(to_u64(at));
                cuda.fill(place, pattern.stamp, 1, gpu.stream())
            }),
        })?;
        self.modify(destination, gpus, "clearing", |cuda, memory, gpu| match memory {
            BufferMemory::Host(memory) => {
                pattern.clear(memory.write());
                Ok(())
            }
            BufferMemory::Gpu(memory) => {
                cuda.fill(memory.address, pattern.poison(), memory.bytes / WORD, gpu.stream())
            }
        })
    }

    fn modify(
        &mut self,
        key: BufferKey,
        gpus: &[OpenGpu<'c>],
        verb: &str,
        work: impl FnOnce(
            &CudaLibrary,
            &mut BufferMemory<'c>,
            &OpenGpu<'c>,
        ) -> Result<(), CudaCallError>,
    ) -> Result<(), CopyCallFailure> {
        let (BufferPlace::Host(at) | BufferPlace::Gpu(at)) = key.place;
        let (cuda, gpu) = (self.cuda, &gpus[at]);
        let memory = self.allocated.get_mut(&key).expect("a buffer that was made before");
        let done = cuda
            .set_current_context(gpu.context())
            .and_then(|()| work(cuda, memory, gpu))
            .and_then(|()| gpu.wait());
        done.map_err(|error| {
            let doing = format!("{verb} {}", place_name(key.place, gpus));
            CopyCallFailure { error, step: DriverCallStep::Copy, action: doing, gpu: at }
        })
    }

    /// Compares received data with sent data.
    pub(crate) fn compare(
        &mut self,
        destination: BufferKey,
        pattern: &CopyPattern,
        gpus: &[OpenGpu<'c>],
    ) -> Result<Option<DataMismatch>, CopyCallFailure> {
        let (BufferPlace::Host(at) | BufferPlace::Gpu(at)) = destination.place;
        if let Some(BufferMemory::Host(memory)) = self.allocated.get(&destination) {
            let difference = pattern.compare(0, memory.read());
            return Ok(
                difference.map(|difference| DataMismatch { difference, is_repeatable: true })
            );
        }
        self.ensure_stage(pattern.bytes, at, &gpus[at])?;
        let compare_once = || {
            self.read_back(destination, pattern, &gpus[at]).map_err(|error| {
                let doing = format!("reading back the data received on GPU {}", gpus[at].index());
                CopyCallFailure { error, step: DriverCallStep::Copy, action: doing, gpu: at }
            })
        };
        let Some(difference) = compare_once()? else { return Ok(None) };
        Ok(Some(DataMismatch { difference, is_repeatable: compare_once()?.is_some() }))
    }

    /// Reads GPU memory back in pieces, and compares it.
    fn read_back(
        &self,
        key: BufferKey,
        pattern: &CopyPattern,
        gpu: &OpenGpu<'c>,
    ) -> Result<Option<DataDifference>, CudaCallError> {
        let (Some(BufferMemory::Gpu(memory)), Some(stage)) =
            (self.allocated.get(&key), &self.stage)
        else {
            return Ok(None);
        };
        self.cuda.set_current_context(gpu.context())?;
        let mut difference: Option<DataDifference> = None;
        for (from, bytes) in pieces(pattern.bytes) {
            let there = memory.address.offset(to_u64(from));
            self.cuda.copy_to_host(stage, there, bytes, gpu.stream())?;
            gpu.wait()?;
            let here = pattern.compare(from, &stage.read()[..bytes]);
            difference = difference.into_iter().chain(here).reduce(DataDifference::merge);
        }
        Ok(difference)
    }
}

/// Name of a location in messages.
pub(crate) fn place_name(place: BufferPlace, gpus: &[OpenGpu<'_>]) -> String {
    match place {
        BufferPlace::Host(at) => format!("host memory near GPU {}", gpus[at].index()),
        BufferPlace::Gpu(at) => format!("GPU {}", gpus[at].index()),
    }
}

/// The pieces for comparison: offset and size.
fn pieces(bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..bytes).step_by(STAGE_BYTES).map(move |from| (from, STAGE_BYTES.min(bytes - from)))
}

fn to_u64(bytes: usize) -> u64 {
    u64::try_from(bytes).expect("a size fits 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_larger_than_the_cache_has_one_slot_and_small_copies_rotate() {
        let l2 = 50 << 20;
        assert_eq!(BufferLayout::beyond_cache(l2, 512 << 20, 20).slots, 1);
        let small = BufferLayout::beyond_cache(l2, 64 << 20, 20);
        assert_eq!((small.slots, small.total()), (4, 256 << 20));
        assert_eq!([0, 1, 3, 4].map(|copy| small.offset(copy) >> 20), [0, 64, 192, 0]);
        // No more slots than copies, so that all compared data was copied.
        assert_eq!(BufferLayout::beyond_cache(l2, 1 << 20, 20).slots, 20);
        assert_eq!(BufferLayout::beyond_cache(0, 512, 20).slots, 1);
    }

    #[test]
    fn pieces_cover_the_whole_buffer() {
        let all: Vec<_> = pieces(2 * STAGE_BYTES + 12).collect();
        assert_eq!(all, [(0, STAGE_BYTES), (STAGE_BYTES, STAGE_BYTES), (2 * STAGE_BYTES, 12)]);
    }
}
