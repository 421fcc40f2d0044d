//! Pinned host memory that GPUs copy to and from at full speed.
//!
//! Dropping it frees it; the owner must first wait for the copies that use it.

#![expect(unsafe_code, reason = "the driver hands out plain pointers")]

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{CudaCallError, CudaHandle, CudaLibrary, CudaStream, DevicePointer, call};

/// `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTALLOC_DEVICEMAP`: pinned for all contexts, and mapped
/// into the address space of the GPUs.
const PORTABLE_AND_MAPPED: u32 = 0b11;

/// Pinned host memory from the driver. It is allocated on the NUMA node of the calling thread, so
/// pin the thread first.
#[derive(Debug)]
pub struct HostMemory<'c> {
    cuda: &'c CudaLibrary,
    pointer: NonNull<u8>,
    bytes: usize,
}

impl CudaLibrary {
    /// Allocates pinned host memory, zeroed.
    pub fn host_memory(&self, bytes: usize) -> Result<HostMemory<'_>, CudaCallError> {
        let mut place = null_mut();
        call!(self.host_alloc = "cuMemHostAlloc"(&raw mut place, bytes, PORTABLE_AND_MAPPED))?;
        let Some(place) = NonNull::new(place.cast::<u8>()) else {
            let name = super::code::result_name(super::code::OUT_OF_MEMORY);
            let (call, code) = ("cuMemHostAlloc", super::code::OUT_OF_MEMORY);
            return Err(CudaCallError::Failed { call, code, name });
        };
        // SAFETY: the driver allocated this many bytes at this address.
        unsafe { place.as_ptr().write_bytes(0, bytes) };
        Ok(HostMemory { cuda: self, pointer: place, bytes })
    }

    /// Copies the start of host memory to a GPU.
    pub fn copy_to_device(
        &self,
        to: DevicePointer,
        from: &HostMemory<'_>,
        bytes: usize,
        stream: CudaStream,
    ) -> Result<(), CudaCallError> {
        assert!(bytes <= from.bytes, "a copy stays inside the memory it reads");
        let from = from.pointer.as_ptr().cast_const().cast();
        call!(
            self.copy_to_device = "cuMemcpyHtoDAsync_v2"(to.0, from, bytes, stream.0 as CudaHandle)
        )
    }

    /// Copies from a GPU to the start of host memory.
    pub fn copy_to_host(
        &self,
        to: &HostMemory<'_>,
        from: DevicePointer,
        bytes: usize,
        stream: CudaStream,
    ) -> Result<(), CudaCallError> {
        assert!(bytes <= to.bytes, "a copy stays inside the memory it writes");
        let to = to.pointer.as_ptr().cast();
        call!(self.copy_to_host = "cuMemcpyDtoHAsync_v2"(to, from.0, bytes, stream.0 as CudaHandle))
    }
}

impl HostMemory<'_> {
    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The contents. No copy into it may be in flight.
    pub fn read(&self) -> &[u8] {
        // SAFETY: the memory has this many bytes, all initialized; the caller has waited for copies
        // into it.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.bytes) }
    }

    /// The bytes for writing. No copy from or to it may be in flight.
    pub fn write(&mut self) -> &mut [u8] {
        // SAFETY: as in `read`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.bytes) }
    }

    /// The address for GPUs.
    pub fn address(&self) -> Result<DevicePointer, CudaCallError> {
        let (cuda, mut address) = (self.cuda, 0);
        let place = self.pointer.as_ptr().cast();
        call!(cuda.host_address = "cuMemHostGetDevicePointer_v2"(&raw mut address, place, 0))?;
        Ok(DevicePointer(address))
    }

    /// Sets the first word while streams wait for it (see `wait_value`).
    pub fn set_word(&self, value: u32) {
        assert!(size_of::<u32>() <= self.bytes, "there is a word");
        // SAFETY: the memory is page-aligned, has at least one word, and is only accessed
        // atomically while streams wait for it.
        let word = unsafe { AtomicU32::from_ptr(self.pointer.as_ptr().cast()) };
        word.store(value, Ordering::Release);
    }
}

impl Drop for HostMemory<'_> {
    fn drop(&mut self) {
        let (cuda, place) = (self.cuda, self.pointer.as_ptr());
        let freed = || call!(cuda.host_free = "cuMemFreeHost"(place.cast()));
        // The error is not actionable; the process ends soon.
        let _: Result<(), CudaCallError> = freed();
    }
}
