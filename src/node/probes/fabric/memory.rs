//! Memory that is shared over the fabric: made here or imported, behind
//! addresses, and given back when it is dropped.
//!
//! Whoever imported memory must drop it before its owner does: NVIDIA's guide
//! has IMEX keep references of importers until they come back. So owners wait
//! for a barrier first.

use super::trouble::Step;
use crate::ffi::cuda::Address;
use crate::ffi::cuda::Allocation;
use crate::ffi::cuda::Cuda;
use crate::ffi::cuda::CudaError;
use crate::ffi::cuda::Device;
use crate::ffi::cuda::FABRIC_HANDLE_BYTES;

/// An error, and the step at which it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) step: Step,
    pub(crate) error: CudaError,
}

/// Names the step of an error.
pub(crate) fn at(step: Step) -> impl Fn(CudaError) -> Failure {
    move |error| Failure { step, error }
}

/// Physical memory, not behind any address yet.
#[derive(Debug)]
pub(crate) struct FabricMemory<'c> {
    cuda: &'c Cuda,
    allocation: Allocation,
    /// How much it is.
    pub(crate) bytes: usize,
}

impl<'c> FabricMemory<'c> {
    /// At least this much on a GPU, in whole units of the driver.
    pub(crate) fn create(cuda: &'c Cuda, device: Device, bytes: usize) -> Result<Self, Failure> {
        let unit = cuda.granularity(device).map_err(at(Step::Create))?.max(1);
        let bytes = bytes.max(1).checked_next_multiple_of(unit).unwrap_or(usize::MAX);
        let allocation = cuda.create(device, bytes).map_err(at(Step::Create))?;
        Ok(Self { cuda, allocation, bytes })
    }

    /// Memory of another process, or of this one (`step` says which), of which its
    /// owner said how much it is.
    pub(crate) fn import(
        cuda: &'c Cuda,
        handle: [u8; FABRIC_HANDLE_BYTES],
        bytes: usize,
        step: Step,
    ) -> Result<Self, Failure> {
        let allocation = cuda.import(handle).map_err(at(step))?;
        Ok(Self { cuda, allocation, bytes })
    }

    /// The handle by which others import it.
    pub(crate) fn export(&self) -> Result<[u8; FABRIC_HANDLE_BYTES], Failure> {
        self.cuda.export(self.allocation).map_err(at(Step::Export))
    }

    /// Puts it behind addresses. No GPU may use them yet.
    pub(crate) fn map(self) -> Result<Mapped<'c>, Failure> {
        let address = self.cuda.reserve(self.bytes, 0).map_err(at(Step::Map))?;
        if let Err(error) = self.cuda.map(address, self.bytes, self.allocation) {
            let _ = self.cuda.unreserve(address, self.bytes);
            return Err(Failure { step: Step::Map, error });
        }
        Ok(Mapped { memory: self, address })
    }
}

impl Drop for FabricMemory<'_> {
    fn drop(&mut self) {
        // Nobody could do anything about it; the process ends soon.
        let _ = self.cuda.release_memory(self.allocation);
    }
}

/// Memory behind addresses.
#[derive(Debug)]
pub(crate) struct Mapped<'c> {
    memory: FabricMemory<'c>,
    /// Where it begins.
    pub(crate) address: Address,
}

impl Mapped<'_> {
    /// The memory.
    pub(crate) fn memory(&self) -> &FabricMemory<'_> {
        &self.memory
    }

    /// Lets a GPU of this process use it.
    pub(crate) fn allow(&self, device: Device) -> Result<(), Failure> {
        self.memory.cuda.allow(self.address, self.memory.bytes, device).map_err(at(Step::Map))
    }
}

impl Drop for Mapped<'_> {
    fn drop(&mut self) {
        let (cuda, bytes) = (self.memory.cuda, self.memory.bytes);
        let _ = cuda.unmap(self.address, bytes);
        let _ = cuda.unreserve(self.address, bytes);
    }
}
