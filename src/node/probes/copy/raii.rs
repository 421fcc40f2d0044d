//! Owners of the driver's resources, which release them on drop: contexts, memory, streams, events.
//!
//! Each keeps the data needed for the release, so that nothing leaks when a call fails halfway.
//! Errors on release are ignored: they are not actionable, and the process ends soon.

use crate::ffi::cuda::{
    CudaCallError, CudaContext, CudaDevice, CudaEvent, CudaLibrary, CudaStream, DevicePointer,
};

#[derive(Debug)]
pub(crate) struct PrimaryContext<'c> {
    cuda: &'c CudaLibrary,
    device: CudaDevice,
    pub(crate) context: CudaContext,
}

impl<'c> PrimaryContext<'c> {
    /// Retains it, and makes it current on this thread.
    pub(crate) fn retain(cuda: &'c CudaLibrary, device: CudaDevice) -> Result<Self, CudaCallError> {
        let context = cuda.retain_primary_context(device)?;
        let primary = Self { cuda, device, context };
        cuda.set_current_context(context)?;
        Ok(primary)
    }
}

impl Drop for PrimaryContext<'_> {
    fn drop(&mut self) {
        let _ = self.cuda.release_primary_context(self.device);
    }
}

#[derive(Debug)]
pub(crate) struct GpuMemory<'c> {
    cuda: &'c CudaLibrary,
    context: CudaContext,
    pub(crate) address: DevicePointer,
    pub(crate) bytes: usize,
}

impl<'c> GpuMemory<'c> {
    /// Allocates this much on the GPU of the context.
    pub(crate) fn allocate(
        cuda: &'c CudaLibrary,
        context: CudaContext,
        bytes: usize,
    ) -> Result<Self, CudaCallError> {
        cuda.set_current_context(context)?;
        let address = cuda.alloc(bytes)?;
        Ok(Self { cuda, context, address, bytes })
    }
}

impl Drop for GpuMemory<'_> {
    fn drop(&mut self) {
        let _ = self.cuda.set_current_context(self.context);
        let _ = self.cuda.free(self.address);
    }
}

#[derive(Debug)]
pub(crate) struct OwnedStream<'c> {
    cuda: &'c CudaLibrary,
    context: CudaContext,
    pub(crate) stream: CudaStream,
}

impl<'c> OwnedStream<'c> {
    /// Creates a stream in the context.
    pub(crate) fn new(cuda: &'c CudaLibrary, context: CudaContext) -> Result<Self, CudaCallError> {
        cuda.set_current_context(context)?;
        Ok(Self { cuda, context, stream: cuda.create_stream()? })
    }

    /// Waits until all its work is done.
    pub(crate) fn wait(&self) -> Result<(), CudaCallError> {
        self.cuda.set_current_context(self.context)?;
        self.cuda.wait_stream(self.stream)
    }
}

impl Drop for OwnedStream<'_> {
    fn drop(&mut self) {
        // Its copies must end first, because their memory may be freed next.
        let _ = self.wait();
        let _ = self.cuda.destroy_stream(self.stream);
    }
}

/// An event that records a time.
#[derive(Debug)]
pub(crate) struct OwnedEvent<'c> {
    cuda: &'c CudaLibrary,
    context: CudaContext,
    pub(crate) event: CudaEvent,
}

impl<'c> OwnedEvent<'c> {
    /// Creates an event in the context.
    pub(crate) fn new(cuda: &'c CudaLibrary, context: CudaContext) -> Result<Self, CudaCallError> {
        cuda.set_current_context(context)?;
        Ok(Self { cuda, context, event: cuda.create_event()? })
    }
}

impl Drop for OwnedEvent<'_> {
    fn drop(&mut self) {
        let _ = self.cuda.set_current_context(self.context);
        let _ = self.cuda.destroy_event(self.event);
    }
}
