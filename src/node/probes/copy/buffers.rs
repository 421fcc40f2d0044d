//! The memory that is copied: taken once per test, filled, stamped, cleared and
//! compared.
//!
//! Everything here runs in the GPU's own stream and is waited for; nothing of it
//! is timed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::path::PathBuf;

use super::cases::Place;
use super::devices::Gpu;
use super::owned::GpuMemory;
use super::pattern;
use super::pattern::Difference;
use super::pattern::Pattern;
use super::pattern::WORD;
use super::trouble::Step;
use crate::ffi::cuda::Address;
use crate::ffi::cuda::Cuda;
use crate::ffi::cuda::CudaError;
use crate::ffi::cuda::HostMemory;

/// Bytes that are compared at a time.
const STAGE: usize = 64 << 20;

/// How much larger than a GPU's second-level cache the bytes are that copies go
/// round in, so that no copy finds its data there.
const ROUND: u64 = 4;

/// A failed call, and what was being done.
#[derive(Debug)]
pub(crate) struct Trouble {
    /// What the driver said.
    pub(crate) error: CudaError,
    /// The kind of work.
    pub(crate) step: Step,
    /// What a person would call it.
    pub(crate) doing: String,
    /// The GPU, by its place.
    pub(crate) gpu: usize,
}

/// How copies lie in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Layout {
    /// Bytes of one copy.
    pub(crate) bytes: usize,
    /// Places that copies go round in.
    pub(crate) slots: usize,
}

impl Layout {
    /// The layout of this many copies of this size past a cache.
    pub(crate) fn past(cache_bytes: u64, bytes: usize, copies: usize) -> Self {
        let cache = usize::try_from(cache_bytes.saturating_mul(ROUND)).unwrap_or(usize::MAX);
        // No more places than there are copies: all of them are compared.
        let slots = cache.div_ceil(bytes.max(1)).clamp(1, copies.max(1));
        Self { bytes, slots }
    }

    /// Bytes of the buffer.
    pub(crate) fn total(self) -> usize {
        self.bytes.saturating_mul(self.slots)
    }

    /// Where a copy begins.
    pub(crate) fn offset(self, copy: usize) -> u64 {
        u64::try_from(copy % self.slots * self.bytes).expect("a size fits 64 bits")
    }
}

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// It is copied from.
    Source,
    /// It is copied to.
    Destination,
}

/// Which buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// Where it is.
    pub(crate) place: Place,
    /// What it is for.
    pub(crate) role: Role,
    /// Which of those, where several copies need one.
    pub(crate) nth: usize,
    /// Its layout.
    pub(crate) layout: Layout,
}

/// What was found where data should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// How it differs.
    pub(crate) difference: Difference,
    /// A second look found it as well. Where it did not, the data is right and
    /// came back to the host wrong.
    pub(crate) again: bool,
}

#[derive(Debug)]
enum Memory<'c> {
    Gpu(GpuMemory<'c>),
    Host(HostMemory<'c>),
}

/// The buffers of a test.
#[derive(Debug)]
pub(crate) struct Buffers<'c> {
    cuda: &'c Cuda,
    node: String,
    root: PathBuf,
    held: BTreeMap<Key, Memory<'c>>,
    /// Sources that were filled, and whether they hold what the host put there.
    filled: BTreeMap<Key, bool>,
    stage: Option<HostMemory<'c>>,
}

impl<'c> Buffers<'c> {
    /// None yet. The node's name goes into the patterns; proc is below the root.
    pub(crate) fn new(cuda: &'c Cuda, node: &str, root: &Path) -> Self {
        let (node, root) = (node.to_owned(), root.to_owned());
        let (held, filled) = (BTreeMap::new(), BTreeMap::new());
        Self { cuda, node, root, held, filled, stage: None }
    }

    /// Gives all of them back.
    pub(crate) fn clear(&mut self) {
        self.held.clear();
        self.filled.clear();
    }

    /// Whether a source holds what the host put there. If not, what is copied from
    /// it says nothing of the copy.
    pub(crate) fn is_sound(&self, source: Key) -> bool {
        self.filled.get(&source).copied().unwrap_or(false)
    }

    /// Has a source there, filled, and looks once whether it holds what it was
    /// filled with: a host link that spoils data must not be blamed on the fabric.
    pub(crate) fn have_source(
        &mut self,
        key: Key,
        gpus: &[Gpu<'c>],
    ) -> Result<(Address, Option<Wrong>), Trouble> {
        let (Place::Host(at) | Place::Gpu(at)) = key.place;
        let address = self.have(key, gpus)?;
        // A call that fails half way leaves it to be filled again.
        if self.filled.contains_key(&key) {
            return Ok((address, None));
        }
        let pattern = self.pattern(key, 0);
        self.fill(key, at, &gpus[at], &pattern)?;
        let wrong = self.compare(key, &pattern, gpus)?;
        self.filled.insert(key, wrong.is_none());
        Ok((address, wrong))
    }

    /// Has a buffer there. Answers where GPUs see it.
    pub(crate) fn have(&mut self, key: Key, gpus: &[Gpu<'c>]) -> Result<Address, Trouble> {
        let (Place::Host(at) | Place::Gpu(at)) = key.place;
        if !self.held.contains_key(&key) {
            let memory = self.take(key, at, &gpus[at])?;
            self.held.insert(key, memory);
        }
        match &self.held[&key] {
            Memory::Gpu(memory) => Ok(memory.address),
            Memory::Host(memory) => memory.address().map_err(|error| Trouble {
                error,
                step: Step::HostMemory,
                doing: format!("asking where {} is", name(key.place, gpus)),
                gpu: at,
            }),
        }
    }

    /// What a source holds when it is copied under this stamp.
    pub(crate) fn pattern(&self, source: Key, stamp: u32) -> Pattern {
        let Key { place, nth, layout, .. } = source;
        let seed = pattern::name(&[&self.node, &format!("{place:?} {nth}")]);
        Pattern { seed, stamp, bytes: layout.total() }
    }

    fn take(&self, key: Key, at: usize, gpu: &Gpu<'c>) -> Result<Memory<'c>, Trouble> {
        let (cuda, bytes, index) = (self.cuda, key.layout.total(), gpu.index());
        let mib = bytes.div_ceil(1 << 20);
        match key.place {
            Place::Gpu(_) => {
                let taken = GpuMemory::of(cuda, gpu.context(), bytes);
                taken.map(Memory::Gpu).map_err(|error| {
                    let free = cuda.memory_info().map_or(String::new(), |(free, total)| {
                        format!(" ({} of {} MiB are free)", free >> 20, total >> 20)
                    });
                    let doing = format!("taking {mib} MiB on GPU {index}{free}");
                    Trouble { error, step: Step::GpuMemory, doing, gpu: at }
                })
            }
            Place::Host(_) => {
                let _moved = gpu.near.as_ref().and_then(|near| near.go().ok());
                let taken = cuda.enter(gpu.context()).and_then(|()| cuda.host_memory(bytes));
                taken.map(Memory::Host).map_err(|error| {
                    let free = self.host_free();
                    let doing = format!("taking {mib} MiB of host memory near GPU {index}{free}");
                    Trouble { error, step: Step::HostMemory, doing, gpu: at }
                })
            }
        }
    }

    /// What the kernel says of memory that could be had.
    fn host_free(&self) -> String {
        let text = fs::read_to_string(self.root.join("proc/meminfo")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.map_or(String::new(), |kib| format!(" ({} MiB are available)", kib >> 10))
    }

    /// Host memory that data of GPUs is compared in, enough for these bytes.
    fn stage(&mut self, bytes: usize, at: usize, gpu: &Gpu<'c>) -> Result<(), Trouble> {
        let bytes = bytes.min(STAGE);
        if self.stage.as_ref().is_none_or(|stage| stage.bytes() < bytes) {
            self.stage = None;
            let taken = self.cuda.enter(gpu.context()).and_then(|()| self.cuda.host_memory(bytes));
            let trouble = |error| {
                let (mib, free) = (bytes.div_ceil(1 << 20), self.host_free());
                let doing = format!("taking {mib} MiB of host memory to compare in{free}");
                Trouble { error, step: Step::HostMemory, doing, gpu: at }
            };
            self.stage = Some(taken.map_err(trouble)?);
        }
        Ok(())
    }

    fn fill(
        &mut self,
        key: Key,
        at: usize,
        gpu: &Gpu<'c>,
        pattern: &Pattern,
    ) -> Result<(), Trouble> {
        if let Some(Memory::Host(memory)) = self.held.get_mut(&key) {
            pattern.write(0, memory.write());
            return Ok(());
        }
        self.stage(pattern.bytes, at, gpu)?;
        let (Some(Memory::Gpu(memory)), Some(stage)) = (self.held.get(&key), &mut self.stage)
        else {
            return Ok(());
        };
        let mut fill = || {
            self.cuda.enter(gpu.context())?;
            for (from, bytes) in pieces(pattern.bytes) {
                pattern.write(from, &mut stage.write()[..bytes]);
                let to = memory.address.offset(wide(from));
                self.cuda.copy_to_device(to, stage, bytes, gpu.stream())?;
                gpu.wait()?;
            }
            Ok(())
        };
        let doing = format!("filling {} MiB on GPU {}", pattern.bytes >> 20, gpu.index());
        fill().map_err(|error| Trouble { error, step: Step::Copy, doing, gpu: at })
    }

    /// Stamps a source, and clears the place its data goes to.
    pub(crate) fn prepare(
        &mut self,
        (source, destination): (Key, Key),
        pattern: &Pattern,
        gpus: &[Gpu<'c>],
    ) -> Result<(), Trouble> {
        self.touch(source, gpus, "stamping", |cuda, memory, gpu| match memory {
            Memory::Host(memory) => {
                pattern.write_stamps(memory.write());
                Ok(())
            }
            Memory::Gpu(memory) => pattern.stamps().try_for_each(|at| {
                let place = memory.address.offset(wide(at));
                cuda.fill(place, pattern.stamp, 1, gpu.stream())
            }),
        })?;
        self.touch(destination, gpus, "clearing", |cuda, memory, gpu| match memory {
            Memory::Host(memory) => {
                pattern.clear(memory.write());
                Ok(())
            }
            Memory::Gpu(memory) => {
                cuda.fill(memory.address, pattern.poison(), memory.bytes / WORD, gpu.stream())
            }
        })
    }

    fn touch(
        &mut self,
        key: Key,
        gpus: &[Gpu<'c>],
        verb: &str,
        work: impl FnOnce(&Cuda, &mut Memory<'c>, &Gpu<'c>) -> Result<(), CudaError>,
    ) -> Result<(), Trouble> {
        let (Place::Host(at) | Place::Gpu(at)) = key.place;
        let (cuda, gpu) = (self.cuda, &gpus[at]);
        let memory = self.held.get_mut(&key).expect("a buffer that was made before");
        let done = cuda
            .enter(gpu.context())
            .and_then(|()| work(cuda, memory, gpu))
            .and_then(|()| gpu.wait());
        done.map_err(|error| {
            let doing = format!("{verb} {}", name(key.place, gpus));
            Trouble { error, step: Step::Copy, doing, gpu: at }
        })
    }

    /// Holds what arrived against what was sent.
    pub(crate) fn compare(
        &mut self,
        destination: Key,
        pattern: &Pattern,
        gpus: &[Gpu<'c>],
    ) -> Result<Option<Wrong>, Trouble> {
        let (Place::Host(at) | Place::Gpu(at)) = destination.place;
        if let Some(Memory::Host(memory)) = self.held.get(&destination) {
            let difference = pattern.compare(0, memory.read());
            return Ok(difference.map(|difference| Wrong { difference, again: true }));
        }
        self.stage(pattern.bytes, at, &gpus[at])?;
        let look = || {
            self.look(destination, pattern, &gpus[at]).map_err(|error| {
                let doing = format!("reading back what arrived on GPU {}", gpus[at].index());
                Trouble { error, step: Step::Copy, doing, gpu: at }
            })
        };
        let Some(difference) = look()? else { return Ok(None) };
        Ok(Some(Wrong { difference, again: look()?.is_some() }))
    }

    /// Reads memory of a GPU back, piece by piece, and compares it.
    fn look(
        &self,
        key: Key,
        pattern: &Pattern,
        gpu: &Gpu<'c>,
    ) -> Result<Option<Difference>, CudaError> {
        let (Some(Memory::Gpu(memory)), Some(stage)) = (self.held.get(&key), &self.stage) else {
            return Ok(None);
        };
        self.cuda.enter(gpu.context())?;
        let mut difference: Option<Difference> = None;
        for (from, bytes) in pieces(pattern.bytes) {
            let there = memory.address.offset(wide(from));
            self.cuda.copy_to_host(stage, there, bytes, gpu.stream())?;
            gpu.wait()?;
            let here = pattern.compare(from, &stage.read()[..bytes]);
            difference = difference.into_iter().chain(here).reduce(Difference::and);
        }
        Ok(difference)
    }
}

/// What people call a place.
pub(crate) fn name(place: Place, gpus: &[Gpu<'_>]) -> String {
    match place {
        Place::Host(at) => format!("host memory near GPU {}", gpus[at].index()),
        Place::Gpu(at) => format!("GPU {}", gpus[at].index()),
    }
}

/// The pieces that a buffer is compared in: where each begins, and its size.
fn pieces(bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..bytes).step_by(STAGE).map(move |from| (from, STAGE.min(bytes - from)))
}

fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).expect("a size fits 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_larger_than_caches_has_one_place_and_small_ones_go_round() {
        let l2 = 50 << 20;
        assert_eq!(Layout::past(l2, 512 << 20, 20).slots, 1);
        let small = Layout::past(l2, 64 << 20, 20);
        assert_eq!((small.slots, small.total()), (4, 256 << 20));
        assert_eq!([0, 1, 3, 4].map(|copy| small.offset(copy) >> 20), [0, 64, 192, 0]);
        // Never more places than copies, so that nothing is compared that was not copied.
        assert_eq!(Layout::past(l2, 1 << 20, 20).slots, 20);
        assert_eq!(Layout::past(0, 512, 20).slots, 1);
    }

    #[test]
    fn pieces_are_all_of_a_buffer() {
        let all: Vec<_> = pieces(2 * STAGE + 12).collect();
        assert_eq!(all, [(0, STAGE), (STAGE, STAGE), (2 * STAGE, 12)]);
    }
}
