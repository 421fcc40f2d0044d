//! Memory that is shared over the fabric: made here or imported, behind
//! addresses, and given back when it is dropped.
//!
//! Whoever imported memory must drop it before its owner does: NVIDIA's guide
//! has IMEX keep references of importers until they come back. So owners wait
//! for a barrier first.

use super::error_class::FabricCallStep;
use crate::ffi::cuda::{
    CudaAllocation, CudaCallError, CudaDevice, CudaLibrary, DevicePointer, FABRIC_HANDLE_BYTES,
};

/// An error, and the step at which it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FabricStepFailure {
    pub(crate) step: FabricCallStep,
    pub(crate) error: CudaCallError,
}

/// Names the step of an error.
pub(crate) fn with_step(step: FabricCallStep) -> impl Fn(CudaCallError) -> FabricStepFailure {
    move |error| FabricStepFailure { step, error }
}

/// Physical memory, not behind any address yet.
#[derive(Debug)]
pub(crate) struct FabricMemory<'c> {
    cuda: &'c CudaLibrary,
    allocation: CudaAllocation,
    /// How much it is.
    pub(crate) bytes: usize,
}

impl<'c> FabricMemory<'c> {
    /// At least this much on a GPU, in whole units of the driver.
    pub(crate) fn create(
        cuda: &'c CudaLibrary,
        device: CudaDevice,
        bytes: usize,
    ) -> Result<Self, FabricStepFailure> {
        let unit = cuda.granularity(device).map_err(with_step(FabricCallStep::Create))?.max(1);
        let bytes = bytes.max(1).checked_next_multiple_of(unit).unwrap_or(usize::MAX);
        let allocation =
            cuda.create_allocation(device, bytes).map_err(with_step(FabricCallStep::Create))?;
        Ok(Self { cuda, allocation, bytes })
    }

    /// Memory of another process, or of this one (`step` says which), of which its
    /// owner said how much it is.
    pub(crate) fn import(
        cuda: &'c CudaLibrary,
        handle: [u8; FABRIC_HANDLE_BYTES],
        bytes: usize,
        step: FabricCallStep,
    ) -> Result<Self, FabricStepFailure> {
        let allocation = cuda.import_fabric_handle(handle).map_err(with_step(step))?;
        Ok(Self { cuda, allocation, bytes })
    }

    /// The handle by which others import it.
    pub(crate) fn export(&self) -> Result<[u8; FABRIC_HANDLE_BYTES], FabricStepFailure> {
        self.cuda.export_fabric_handle(self.allocation).map_err(with_step(FabricCallStep::Export))
    }

    /// Puts it behind addresses. No GPU may use them yet.
    pub(crate) fn map(self) -> Result<MappedFabricMemory<'c>, FabricStepFailure> {
        let address =
            self.cuda.reserve_addresses(self.bytes, 0).map_err(with_step(FabricCallStep::Map))?;
        if let Err(error) = self.cuda.map_allocation(address, self.bytes, self.allocation) {
            let _ = self.cuda.free_addresses(address, self.bytes);
            return Err(FabricStepFailure { step: FabricCallStep::Map, error });
        }
        Ok(MappedFabricMemory { memory: self, address })
    }
}

impl Drop for FabricMemory<'_> {
    fn drop(&mut self) {
        // Nobody could do anything about it; the process ends soon.
        let _ = self.cuda.release_allocation(self.allocation);
    }
}

/// Memory behind addresses.
#[derive(Debug)]
pub(crate) struct MappedFabricMemory<'c> {
    memory: FabricMemory<'c>,
    /// Where it begins.
    pub(crate) address: DevicePointer,
}

impl MappedFabricMemory<'_> {
    /// The memory.
    pub(crate) fn memory(&self) -> &FabricMemory<'_> {
        &self.memory
    }

    /// Lets a GPU of this process use it.
    pub(crate) fn allow(&self, device: CudaDevice) -> Result<(), FabricStepFailure> {
        self.memory
            .cuda
            .set_access(self.address, self.memory.bytes, device)
            .map_err(with_step(FabricCallStep::Map))
    }
}

impl Drop for MappedFabricMemory<'_> {
    fn drop(&mut self) {
        let (cuda, bytes) = (self.memory.cuda, self.memory.bytes);
        let _ = cuda.unmap_addresses(self.address, bytes);
        let _ = cuda.free_addresses(self.address, bytes);
    }
}
