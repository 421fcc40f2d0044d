//! Data of cross-node copies: fills, stamps, clears and compares the memory of this process's GPUs.
//!
//! Every GPU only reads its own memory, so the comparison covers the received data and no return
//! path.

use super::super::devices::OpenGpu;
use super::super::pattern;
use super::super::pattern::{CopyPattern, DataDifference, WORD};
use crate::ffi::cuda::{CudaCallError, CudaLibrary, DevicePointer, HostMemory};

/// Bytes of the pinned staging memory.
const STAGE_BYTES: usize = 32 << 20;

/// The pattern of this place's data for this copy.
pub(crate) fn new_pattern(place: &str, copy: &str, bytes: usize) -> CopyPattern {
    CopyPattern { seed: pattern::hash_parts(&[place]), stamp: pattern::hash_parts(&[copy]), bytes }
}

/// Fills GPU memory with the pattern.
pub(crate) fn fill_memory(
    cuda: &CudaLibrary,
    gpu: &OpenGpu<'_>,
    to: DevicePointer,
    pattern: &CopyPattern,
    stage: &mut HostMemory<'_>,
) -> Result<(), CudaCallError> {
    cuda.set_current_context(gpu.context())?;
    for (from, bytes) in pieces(pattern.bytes, stage.bytes()) {
        pattern.write(from, &mut stage.write()[..bytes]);
        cuda.copy_to_device(to.offset(to_u64(from)), stage, bytes, gpu.stream())?;
        gpu.wait()?;
    }
    Ok(())
}

/// Turns the filled memory into the data of this copy.
pub(crate) fn stamp_memory(
    cuda: &CudaLibrary,
    gpu: &OpenGpu<'_>,
    memory: DevicePointer,
    pattern: &CopyPattern,
) -> Result<(), CudaCallError> {
    cuda.set_current_context(gpu.context())?;
    for at in pattern.stamps() {
        cuda.fill(memory.offset(to_u64(at)), pattern.stamp, 1, gpu.stream())?;
    }
    gpu.wait()
}

/// Clears the destination of a copy.
pub(crate) fn clear_memory(
    cuda: &CudaLibrary,
    gpu: &OpenGpu<'_>,
    memory: DevicePointer,
    pattern: &CopyPattern,
) -> Result<(), CudaCallError> {
    cuda.set_current_context(gpu.context())?;
    cuda.fill(memory, pattern.poison(), pattern.bytes / WORD, gpu.stream())?;
    gpu.wait()
}

/// Compares GPU memory with the sent data.
pub(crate) fn compare_memory(
    cuda: &CudaLibrary,
    gpu: &OpenGpu<'_>,
    memory: DevicePointer,
    pattern: &CopyPattern,
    stage: &HostMemory<'_>,
) -> Result<Option<DataDifference>, CudaCallError> {
    cuda.set_current_context(gpu.context())?;
    let mut difference: Option<DataDifference> = None;
    for (from, bytes) in pieces(pattern.bytes, stage.bytes()) {
        cuda.copy_to_host(stage, memory.offset(to_u64(from)), bytes, gpu.stream())?;
        gpu.wait()?;
        let here = pattern.compare(from, &stage.read()[..bytes]);
        difference = difference.into_iter().chain(here).reduce(DataDifference::merge);
    }
    Ok(difference)
}

/// Bytes of staging memory for data of this size.
pub(crate) fn stage_bytes(bytes: usize) -> usize {
    bytes.clamp(WORD, STAGE_BYTES)
}

/// The pieces for staging: offset and size.
fn pieces(bytes: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..bytes).step_by(most).map(move |from| (from, most.min(bytes - from)))
}

fn to_u64(bytes: usize) -> u64 {
    u64::try_from(bytes).expect("a size fits 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_data_in_whole_words() {
        let all: Vec<_> = pieces(2 * STAGE_BYTES + 12, stage_bytes(2 * STAGE_BYTES + 12)).collect();
        assert_eq!(all, [(0, STAGE_BYTES), (STAGE_BYTES, STAGE_BYTES), (2 * STAGE_BYTES, 12)]);
        assert_eq!(pieces(64, stage_bytes(64)).collect::<Vec<_>>(), [(0, 64)]);
    }
}
