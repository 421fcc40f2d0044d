//! What was taken from the driver and is given back when it is dropped:
//! contexts, memory, streams, events.
//!
//! Each keeps what it needs to be given back, so that nothing leaks when a call
//! fails half way. Errors while giving back are passed over: nobody could do
//! anything about them, and the process ends soon.

use crate::ffi::cuda::{
    CudaCallError, CudaContext, CudaDevice, CudaEvent, CudaLibrary, CudaStream, DevicePointer,
};

/// A GPU's primary context.
#[derive(Debug)]
pub(crate) struct PrimaryContext<'c> {
    cuda: &'c CudaLibrary,
    device: CudaDevice,
    /// The context.
    pub(crate) context: CudaContext,
}

impl<'c> PrimaryContext<'c> {
    /// Retains it, and makes it that of this thread.
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

/// Memory on a GPU.
#[derive(Debug)]
pub(crate) struct GpuMemory<'c> {
    cuda: &'c CudaLibrary,
    context: CudaContext,
    /// Where it begins.
    pub(crate) address: DevicePointer,
    /// How much it is.
    pub(crate) bytes: usize,
}

impl<'c> GpuMemory<'c> {
    /// Takes this much on the GPU of the context.
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

/// A stream.
#[derive(Debug)]
pub(crate) struct OwnedStream<'c> {
    cuda: &'c CudaLibrary,
    context: CudaContext,
    /// The stream.
    pub(crate) stream: CudaStream,
}

impl<'c> OwnedStream<'c> {
    /// A new stream of the context.
    pub(crate) fn new(cuda: &'c CudaLibrary, context: CudaContext) -> Result<Self, CudaCallError> {
        cuda.set_current_context(context)?;
        Ok(Self { cuda, context, stream: cuda.create_stream()? })
    }

    /// Waits until everything in it is done.
    pub(crate) fn wait(&self) -> Result<(), CudaCallError> {
        self.cuda.set_current_context(self.context)?;
        self.cuda.wait_stream(self.stream)
    }
}

impl Drop for OwnedStream<'_> {
    fn drop(&mut self) {
        // Memory that its copies use may go next, so they end first.
        let _ = self.wait();
        let _ = self.cuda.destroy_stream(self.stream);
    }
}

/// An event with a time.
#[derive(Debug)]
pub(crate) struct OwnedEvent<'c> {
    cuda: &'c CudaLibrary,
    context: CudaContext,
    /// The event.
    pub(crate) event: CudaEvent,
}

impl<'c> OwnedEvent<'c> {
    /// A new event of the context.
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
