//! What is copied across nodes, and whether it arrived: filling, stamping,
//! clearing and comparing the memory of this process' GPUs.
//!
//! Every GPU looks only at its own memory, so that what is compared is what
//! arrived, and no way back is part of it.

use super::super::devices::Gpu;
use super::super::pattern;
use super::super::pattern::Difference;
use super::super::pattern::Pattern;
use super::super::pattern::WORD;
use crate::ffi::cuda::Address;
use crate::ffi::cuda::Cuda;
use crate::ffi::cuda::CudaError;
use crate::ffi::cuda::HostMemory;

/// Bytes of the pinned memory that data passes through.
const STAGE: usize = 32 << 20;

/// Whose data it is, and of which copy.
pub(crate) fn pattern(place: &str, copy: &str, bytes: usize) -> Pattern {
    Pattern { seed: pattern::name(&[place]), stamp: pattern::name(&[copy]), bytes }
}

/// Fills memory of a GPU with the pattern.
pub(crate) fn fill(
    cuda: &Cuda,
    gpu: &Gpu<'_>,
    to: Address,
    pattern: &Pattern,
    stage: &mut HostMemory<'_>,
) -> Result<(), CudaError> {
    cuda.enter(gpu.context())?;
    for (from, bytes) in pieces(pattern.bytes, stage.bytes()) {
        pattern.write(from, &mut stage.write()[..bytes]);
        cuda.copy_to_device(to.offset(wide(from)), stage, bytes, gpu.stream())?;
        gpu.wait()?;
    }
    Ok(())
}

/// Makes what was filled before the data of this copy.
pub(crate) fn stamp(
    cuda: &Cuda,
    gpu: &Gpu<'_>,
    memory: Address,
    pattern: &Pattern,
) -> Result<(), CudaError> {
    cuda.enter(gpu.context())?;
    for at in pattern.stamps() {
        cuda.fill(memory.offset(wide(at)), pattern.stamp, 1, gpu.stream())?;
    }
    gpu.wait()
}

/// Clears where this is copied to.
pub(crate) fn clear(
    cuda: &Cuda,
    gpu: &Gpu<'_>,
    memory: Address,
    pattern: &Pattern,
) -> Result<(), CudaError> {
    cuda.enter(gpu.context())?;
    cuda.fill(memory, pattern.poison(), pattern.bytes / WORD, gpu.stream())?;
    gpu.wait()
}

/// Holds memory of a GPU against what was sent.
pub(crate) fn compare(
    cuda: &Cuda,
    gpu: &Gpu<'_>,
    memory: Address,
    pattern: &Pattern,
    stage: &HostMemory<'_>,
) -> Result<Option<Difference>, CudaError> {
    cuda.enter(gpu.context())?;
    let mut difference: Option<Difference> = None;
    for (from, bytes) in pieces(pattern.bytes, stage.bytes()) {
        cuda.copy_to_host(stage, memory.offset(wide(from)), bytes, gpu.stream())?;
        gpu.wait()?;
        let here = pattern.compare(from, &stage.read()[..bytes]);
        difference = difference.into_iter().chain(here).reduce(Difference::and);
    }
    Ok(difference)
}

/// Bytes that are staged for data of this size.
pub(crate) fn stage_bytes(bytes: usize) -> usize {
    bytes.clamp(WORD, STAGE)
}

/// The pieces that data passes in: where each begins, and its size.
fn pieces(bytes: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..bytes).step_by(most).map(move |from| (from, most.min(bytes - from)))
}

fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).expect("a size fits 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_all_of_the_data_in_whole_words() {
        let all: Vec<_> = pieces(2 * STAGE + 12, stage_bytes(2 * STAGE + 12)).collect();
        assert_eq!(all, [(0, STAGE), (STAGE, STAGE), (2 * STAGE, 12)]);
        assert_eq!(pieces(64, stage_bytes(64)).collect::<Vec<_>>(), [(0, 64)]);
    }
}
