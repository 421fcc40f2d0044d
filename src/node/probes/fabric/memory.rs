//! Memory shared over the fabric: allocated here or imported, mapped, and released on drop.
//!
//! An importer must drop memory before its owner does: according to NVIDIA's guide, IMEX keeps the
//! importers' references until they are released. Owners therefore wait for a barrier first.

use super::sharing_error::FabricCallStep;
use crate::ffi::cuda::{
    CudaAllocation, CudaCallError, CudaDevice, CudaLibrary, DevicePointer, FABRIC_HANDLE_BYTES,
};

/// An error and its step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FabricStepFailure {
    pub(crate) step: FabricCallStep,
    pub(crate) error: CudaCallError,
}

/// Adds the step to an error.
pub(crate) fn with_step(step: FabricCallStep) -> impl Fn(CudaCallError) -> FabricStepFailure {
    move |error| FabricStepFailure { step, error }
}

/// An allocation without a mapping.
#[derive(Debug)]
pub(crate) struct FabricMemory<'c> {
    cuda: &'c CudaLibrary,
    allocation: CudaAllocation,
    pub(crate) bytes: usize,
}

impl<'c> FabricMemory<'c> {
    /// Allocates at least this much on a GPU, in whole units of the driver.
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

    /// Imports memory of another process, or of this one (depending on `step`), with the size
    /// reported by its owner.
    pub(crate) fn import(
        cuda: &'c CudaLibrary,
        handle: [u8; FABRIC_HANDLE_BYTES],
        bytes: usize,
        step: FabricCallStep,
    ) -> Result<Self, FabricStepFailure> {
        let allocation = cuda.import_fabric_handle(handle).map_err(with_step(step))?;
        Ok(Self { cuda, allocation, bytes })
    }

    pub(crate) fn export(&self) -> Result<[u8; FABRIC_HANDLE_BYTES], FabricStepFailure> {
        self.cuda.export_fabric_handle(self.allocation).map_err(with_step(FabricCallStep::Export))
    }

    /// Maps it. No GPU may access it yet.
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
        // The error is not actionable; the process ends soon.
        let _ = self.cuda.release_allocation(self.allocation);
    }
}

#[derive(Debug)]
pub(crate) struct MappedFabricMemory<'c> {
    memory: FabricMemory<'c>,
    pub(crate) address: DevicePointer,
}

impl MappedFabricMemory<'_> {
    pub(crate) fn memory(&self) -> &FabricMemory<'_> {
        &self.memory
    }

    /// Gives a GPU of this process access.
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
