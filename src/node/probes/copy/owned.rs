//! What was taken from the driver and is given back when it is dropped:
//! contexts, memory, streams, events.
//!
//! Each keeps what it needs to be given back, so that nothing leaks when a call
//! fails half way. Errors while giving back are passed over: nobody could do
//! anything about them, and the process ends soon.

use crate::ffi::cuda::Address;
use crate::ffi::cuda::Context;
use crate::ffi::cuda::Cuda;
use crate::ffi::cuda::CudaError;
use crate::ffi::cuda::Device;
use crate::ffi::cuda::Event;
use crate::ffi::cuda::Stream;

/// A GPU's primary context.
#[derive(Debug)]
pub(crate) struct Primary<'c> {
    cuda: &'c Cuda,
    device: Device,
    /// The context.
    pub(crate) context: Context,
}

impl<'c> Primary<'c> {
    /// Retains it, and makes it that of this thread.
    pub(crate) fn of(cuda: &'c Cuda, device: Device) -> Result<Self, CudaError> {
        let context = cuda.retain(device)?;
        let primary = Self { cuda, device, context };
        cuda.enter(context)?;
        Ok(primary)
    }
}

impl Drop for Primary<'_> {
    fn drop(&mut self) {
        let _ = self.cuda.release(self.device);
    }
}

/// Memory on a GPU.
#[derive(Debug)]
pub(crate) struct GpuMemory<'c> {
    cuda: &'c Cuda,
    context: Context,
    /// Where it begins.
    pub(crate) address: Address,
    /// How much it is.
    pub(crate) bytes: usize,
}

impl<'c> GpuMemory<'c> {
    /// Takes this much on the GPU of the context.
    pub(crate) fn of(cuda: &'c Cuda, context: Context, bytes: usize) -> Result<Self, CudaError> {
        cuda.enter(context)?;
        let address = cuda.alloc(bytes)?;
        Ok(Self { cuda, context, address, bytes })
    }
}

impl Drop for GpuMemory<'_> {
    fn drop(&mut self) {
        let _ = self.cuda.enter(self.context);
        let _ = self.cuda.free(self.address);
    }
}

/// A stream.
#[derive(Debug)]
pub(crate) struct OwnStream<'c> {
    cuda: &'c Cuda,
    context: Context,
    /// The stream.
    pub(crate) stream: Stream,
}

impl<'c> OwnStream<'c> {
    /// A new stream of the context.
    pub(crate) fn of(cuda: &'c Cuda, context: Context) -> Result<Self, CudaError> {
        cuda.enter(context)?;
        Ok(Self { cuda, context, stream: cuda.stream()? })
    }

    /// Waits until everything in it is done.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        self.cuda.enter(self.context)?;
        self.cuda.wait_stream(self.stream)
    }
}

impl Drop for OwnStream<'_> {
    fn drop(&mut self) {
        // Memory that its copies use may go next, so they end first.
        let _ = self.wait();
        let _ = self.cuda.destroy_stream(self.stream);
    }
}

/// An event with a time.
#[derive(Debug)]
pub(crate) struct OwnEvent<'c> {
    cuda: &'c Cuda,
    context: Context,
    /// The event.
    pub(crate) event: Event,
}

impl<'c> OwnEvent<'c> {
    /// A new event of the context.
    pub(crate) fn of(cuda: &'c Cuda, context: Context) -> Result<Self, CudaError> {
        cuda.enter(context)?;
        Ok(Self { cuda, context, event: cuda.event()? })
    }
}

impl Drop for OwnEvent<'_> {
    fn drop(&mut self) {
        let _ = self.cuda.enter(self.context);
        let _ = self.cuda.destroy_event(self.event);
    }
}
