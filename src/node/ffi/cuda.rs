//! Run-time binding of the CUDA driver API, `libcuda.so.1`: only the calls that the copy-engine
//! probe and the NCCL probe make.
//!
//! Each method makes one call and returns its plain answer or its error code. Every symbol may be
//! absent; only the call that needs it then fails. `probes::copy` decides what an error means for a
//! node. Signatures are those of `cuda.h`; symbols with a suffix `_v2` are the targets of the
//! header's macros.
//!
//! Handles are plain numbers. The driver answers a stale handle with an error code or ends the
//! process, which is why only a child process calls it.

#![expect(unsafe_code, reason = "CUDA is a C library")]

mod shared_memory;

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use super::dynamic_library;
use super::dynamic_library::{LibraryLoadError, symbols};

pub mod code;
mod host_memory;

pub use host_memory::HostMemory;

/// The soname, as the driver installs it.
pub const LIBRARY: &str = "libcuda.so.1";

/// Why a call returned no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaCallError {
    /// This driver does not have the call.
    #[error("this driver has no {call}: it is older than the call")]
    Missing {
        /// The missing symbol.
        call: &'static str,
    },
    /// The driver returned an error.
    #[error("{call}: {name} ({code})")]
    Failed {
        /// The symbol that was called.
        call: &'static str,
        /// The `CUresult`, see [`code`].
        code: i32,
        /// Name of the code from the driver or the header.
        name: String,
    },
}

impl CudaCallError {
    /// The `CUresult`, if the call returned one.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Missing { .. } => None,
            Self::Failed { code, .. } => Some(*code),
        }
    }

    /// Name of the call.
    pub fn call(&self) -> &'static str {
        match self {
            Self::Missing { call } | Self::Failed { call, .. } => call,
        }
    }
}

/// A GPU, by the driver's index (`CUdevice`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaDevice(pub i32);

/// A context (`CUcontext`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaContext(usize);

/// A stream (`CUstream`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaStream(usize);

impl CudaStream {
    /// The raw handle for other libraries of the driver.
    pub fn raw(self) -> usize {
        self.0
    }
}

/// An event (`CUevent`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaEvent(usize);

/// An address on a GPU, or of host memory as a GPU sees it (`CUdeviceptr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DevicePointer(pub u64);

impl DevicePointer {
    /// The address `bytes` further.
    pub fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// Physical memory that is not mapped yet (`CUmemGenericAllocationHandle`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaAllocation(u64);

/// A handle that a process on another node can import (`CUmemFabricHandle`).
pub const FABRIC_HANDLE_BYTES: usize = 64;

/// A handle that another process on this node can open (`CUipcMemHandle`).
pub const IPC_HANDLE_BYTES: usize = 64;

type CudaHandle = *mut c_void;

/// `CUipcMemHandle`, passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IpcHandle([c_uchar; IPC_HANDLE_BYTES]);

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MemLocation {
    pub(super) kind: c_int,
    pub(super) id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AllocationProp {
    pub(super) kind: c_int,
    pub(super) handle_types: c_int,
    pub(super) location: MemLocation,
    pub(super) win32: *mut c_void,
    pub(super) flags: [c_uchar; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MemAccessDesc {
    pub(super) location: MemLocation,
    pub(super) flags: c_int,
}

// cuda.h: CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE,
// CU_MEM_HANDLE_TYPE_FABRIC, CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
pub(super) const PINNED: c_int = 1;
pub(super) const ON_DEVICE: c_int = 1;
pub(super) const FABRIC: c_int = 8;
pub(super) const READ_WRITE: c_int = 3;

/// `CU_STREAM_NON_BLOCKING`.
pub(super) const NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_WAIT_VALUE_GEQ`.
pub(super) const AT_LEAST: c_uint = 0;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
pub(super) const LAZY_PEER_ACCESS: c_uint = 1;

symbols! {
    /// The symbols of the driver API in use.
    CudaSymbols {
        init = "cuInit" (c_uint);
        driver_version = "cuDriverGetVersion" (*mut c_int);
        error_name = "cuGetErrorName" (c_int, *mut *const c_char);
        device_count = "cuDeviceGetCount" (*mut c_int);
        device_get = "cuDeviceGet" (*mut c_int, c_int);
        device_name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
        device_uuid = "cuDeviceGetUuid_v2" (*mut [c_uchar; 16], c_int);
        device_uuid_old = "cuDeviceGetUuid" (*mut [c_uchar; 16], c_int);
        device_bus_id = "cuDeviceGetPCIBusId" (*mut c_char, c_int, c_int);
        device_memory = "cuDeviceTotalMem_v2" (*mut usize, c_int);
        attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
        can_access_peer = "cuDeviceCanAccessPeer" (*mut c_int, c_int, c_int);
        primary_retain = "cuDevicePrimaryCtxRetain" (*mut CudaHandle, c_int);
        primary_release = "cuDevicePrimaryCtxRelease_v2" (c_int);
        set_current = "cuCtxSetCurrent" (CudaHandle);
        enable_peer = "cuCtxEnablePeerAccess" (CudaHandle, c_uint);
        synchronize = "cuCtxSynchronize" ();
        memory_info = "cuMemGetInfo_v2" (*mut usize, *mut usize);
        alloc = "cuMemAlloc_v2" (*mut c_ulonglong, usize);
        free = "cuMemFree_v2" (c_ulonglong);
        host_alloc = "cuMemHostAlloc" (*mut CudaHandle, usize, c_uint);
        host_free = "cuMemFreeHost" (CudaHandle);
        host_address = "cuMemHostGetDevicePointer_v2" (*mut c_ulonglong, CudaHandle, c_uint);
        fill32 = "cuMemsetD32Async" (c_ulonglong, c_uint, usize, CudaHandle);
        copy = "cuMemcpyAsync" (c_ulonglong, c_ulonglong, usize, CudaHandle);
        copy_to_device = "cuMemcpyHtoDAsync_v2" (c_ulonglong, *const c_void, usize, CudaHandle);
        copy_to_host = "cuMemcpyDtoHAsync_v2" (*mut c_void, c_ulonglong, usize, CudaHandle);
        stream_create = "cuStreamCreate" (*mut CudaHandle, c_uint);
        stream_destroy = "cuStreamDestroy_v2" (CudaHandle);
        stream_synchronize = "cuStreamSynchronize" (CudaHandle);
        stream_query = "cuStreamQuery" (CudaHandle);
        stream_wait_event = "cuStreamWaitEvent" (CudaHandle, CudaHandle, c_uint);
        stream_wait_value = "cuStreamWaitValue32_v2" (CudaHandle, c_ulonglong, c_uint, c_uint);
        event_create = "cuEventCreate" (*mut CudaHandle, c_uint);
        event_destroy = "cuEventDestroy_v2" (CudaHandle);
        event_record = "cuEventRecord" (CudaHandle, CudaHandle);
        event_query = "cuEventQuery" (CudaHandle);
        event_elapsed = "cuEventElapsedTime" (*mut f32, CudaHandle, CudaHandle);
        ipc_get = "cuIpcGetMemHandle" (*mut IpcHandle, c_ulonglong);
        ipc_open = "cuIpcOpenMemHandle_v2" (*mut c_ulonglong, IpcHandle, c_uint);
        ipc_close = "cuIpcCloseMemHandle" (c_ulonglong);
        granularity = "cuMemGetAllocationGranularity" (*mut usize, *const AllocationProp, c_int);
        create = "cuMemCreate" (*mut c_ulonglong, usize, *const AllocationProp, c_ulonglong);
        release = "cuMemRelease" (c_ulonglong);
        reserve = "cuMemAddressReserve" (*mut c_ulonglong, usize, usize, c_ulonglong, c_ulonglong);
        unreserve = "cuMemAddressFree" (c_ulonglong, usize);
        map = "cuMemMap" (c_ulonglong, usize, usize, c_ulonglong, c_ulonglong);
        unmap = "cuMemUnmap" (c_ulonglong, usize);
        set_access = "cuMemSetAccess" (c_ulonglong, usize, *const MemAccessDesc, usize);
        export = "cuMemExportToShareableHandle" (*mut c_void, c_ulonglong, c_int, c_ulonglong);
        import = "cuMemImportFromShareableHandle" (*mut c_ulonglong, *mut c_void, c_int);
    }
}

/// The driver API, loaded.
#[derive(Debug)]
pub struct CudaLibrary {
    symbols: CudaSymbols,
    path: PathBuf,
}

/// Calls a symbol that may be absent, and converts its error.
macro_rules! call {
    ($self:ident.$field:ident = $symbol:literal ($($arg:expr),*)) => {{
        let found = $self.symbols.$field.ok_or(CudaCallError::Missing { call: $symbol })?;
        // SAFETY: the symbol has this signature in cuda.h; every pointer is to a place
        // that outlives the call, and sizes are those of what they point to.
        $self.check($symbol, unsafe { found($($arg),*) })
    }};
}

use call;

impl CudaLibrary {
    /// Loads the library at this path, or the driver's.
    pub fn load(path: Option<&Path>) -> Result<Self, LibraryLoadError> {
        let opened = dynamic_library::open_library(path, &[LIBRARY])?;
        let symbols = CudaSymbols::load(&opened.library);
        if symbols.init.is_none() {
            let symbol = "cuInit".to_owned();
            return Err(LibraryLoadError::WrongLibrary { path: opened.path, symbol });
        }
        Ok(Self { symbols, path: opened.path })
    }

    /// The path that was opened, as requested.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The calls that this driver lacks.
    pub fn missing_symbols(&self) -> Vec<&'static str> {
        self.symbols.missing()
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaCallError> {
        if code == code::SUCCESS {
            return Ok(());
        }
        Err(CudaCallError::Failed { call, code, name: self.error_name(code) })
    }

    /// The driver's name of an error code; the built-in list if it has none.
    fn error_name(&self, code: c_int) -> String {
        let mut text: *const c_char = std::ptr::null();
        if let Some(name) = self.symbols.error_name
            // SAFETY: as in `call`; the answer is a text that lives as long as the library.
            && unsafe { name(code, &raw mut text) } == code::SUCCESS
            && !text.is_null()
        {
            // SAFETY: a text of the driver that ends with a zero byte.
            return unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        }
        code::result_name(code)
    }

    /// Initializes the driver. Must be the first call.
    pub fn init(&self) -> Result<(), CudaCallError> {
        call!(self.init = "cuInit"(0))
    }

    /// The CUDA version of the driver: major and minor.
    pub fn driver_version(&self) -> Result<(i32, i32), CudaCallError> {
        let mut version = 0;
        call!(self.driver_version = "cuDriverGetVersion"(&raw mut version))?;
        Ok((version / 1000, version % 1000 / 10))
    }

    /// All GPUs visible to this process, in the driver's order.
    pub fn devices(&self) -> Result<Vec<CudaDevice>, CudaCallError> {
        let mut count = 0;
        call!(self.device_count = "cuDeviceGetCount"(&raw mut count))?;
        (0..count)
            .map(|ordinal| {
                let mut device = 0;
                call!(self.device_get = "cuDeviceGet"(&raw mut device, ordinal))?;
                Ok(CudaDevice(device))
            })
            .collect()
    }

    /// Product name of a GPU.
    pub fn name(&self, device: CudaDevice) -> Result<String, CudaCallError> {
        let mut text = [0 as c_char; 256];
        call!(self.device_name = "cuDeviceGetName"(text.as_mut_ptr(), 256, device.0))?;
        Ok(text_from_c(&text))
    }

    /// UUID of a GPU, without the `GPU-` prefix.
    pub fn uuid(&self, device: CudaDevice) -> Result<[u8; 16], CudaCallError> {
        let mut uuid = [0; 16];
        match self.symbols.device_uuid {
            Some(_) => call!(self.device_uuid = "cuDeviceGetUuid_v2"(&raw mut uuid, device.0))?,
            None => call!(self.device_uuid_old = "cuDeviceGetUuid"(&raw mut uuid, device.0))?,
        }
        Ok(uuid)
    }

    /// PCI address of a GPU, as `0000:3b:00.0`.
    pub fn bus_id(&self, device: CudaDevice) -> Result<String, CudaCallError> {
        let mut text = [0 as c_char; 64];
        call!(self.device_bus_id = "cuDeviceGetPCIBusId"(text.as_mut_ptr(), 64, device.0))?;
        Ok(text_from_c(&text).to_ascii_lowercase())
    }

    /// Total memory of a GPU in bytes.
    pub fn total_memory(&self, device: CudaDevice) -> Result<u64, CudaCallError> {
        let mut bytes = 0;
        call!(self.device_memory = "cuDeviceTotalMem_v2"(&raw mut bytes, device.0))?;
        Ok(bytes as u64)
    }

    /// A `CU_DEVICE_ATTRIBUTE_*`, see [`code::attribute`].
    pub fn attribute(&self, device: CudaDevice, attribute: i32) -> Result<i32, CudaCallError> {
        let mut value = 0;
        call!(self.attribute = "cuDeviceGetAttribute"(&raw mut value, attribute, device.0))?;
        Ok(value)
    }

    /// True if a GPU can access the memory of another without the host.
    pub fn can_access_peer(
        &self,
        device: CudaDevice,
        peer: CudaDevice,
    ) -> Result<bool, CudaCallError> {
        let mut can = 0;
        call!(self.can_access_peer = "cuDeviceCanAccessPeer"(&raw mut can, device.0, peer.0))?;
        Ok(can != 0)
    }

    /// Retains the GPU's primary context until [`Self::release_primary_context`].
    pub fn retain_primary_context(&self, device: CudaDevice) -> Result<CudaContext, CudaCallError> {
        let mut context = null_mut();
        call!(self.primary_retain = "cuDevicePrimaryCtxRetain"(&raw mut context, device.0))?;
        Ok(CudaContext(context as usize))
    }

    /// Releases a primary context.
    pub fn release_primary_context(&self, device: CudaDevice) -> Result<(), CudaCallError> {
        call!(self.primary_release = "cuDevicePrimaryCtxRelease_v2"(device.0))
    }

    /// Makes a context current on this thread. The calls below use the current context.
    pub fn set_current_context(&self, context: CudaContext) -> Result<(), CudaCallError> {
        call!(self.set_current = "cuCtxSetCurrent"(context.0 as CudaHandle))
    }

    /// Lets the current context access the memory of another.
    pub fn enable_peer_access(&self, peer: CudaContext) -> Result<(), CudaCallError> {
        call!(self.enable_peer = "cuCtxEnablePeerAccess"(peer.0 as CudaHandle, 0))
    }

    /// Waits for all work in the current context.
    pub fn synchronize(&self) -> Result<(), CudaCallError> {
        call!(self.synchronize = "cuCtxSynchronize"())
    }

    /// Free and total bytes on the GPU of the current context.
    pub fn memory_info(&self) -> Result<(u64, u64), CudaCallError> {
        let (mut free, mut total) = (0usize, 0usize);
        call!(self.memory_info = "cuMemGetInfo_v2"(&raw mut free, &raw mut total))?;
        Ok((free as u64, total as u64))
    }

    /// Allocates memory on the GPU of the current context.
    pub fn alloc(&self, bytes: usize) -> Result<DevicePointer, CudaCallError> {
        let mut address = 0;
        call!(self.alloc = "cuMemAlloc_v2"(&raw mut address, bytes))?;
        Ok(DevicePointer(address))
    }

    /// Frees memory.
    pub fn free(&self, address: DevicePointer) -> Result<(), CudaCallError> {
        call!(self.free = "cuMemFree_v2"(address.0))
    }

    /// Fills memory with a 32-bit word, in stream order.
    pub fn fill(
        &self,
        address: DevicePointer,
        word: u32,
        words: usize,
        stream: CudaStream,
    ) -> Result<(), CudaCallError> {
        let stream = stream.0 as CudaHandle;
        call!(self.fill32 = "cuMemsetD32Async"(address.0, word, words, stream))
    }

    /// Copies between any two addresses accessible from the current context, in stream order.
    pub fn copy(
        &self,
        to: DevicePointer,
        from: DevicePointer,
        bytes: usize,
        stream: CudaStream,
    ) -> Result<(), CudaCallError> {
        call!(self.copy = "cuMemcpyAsync"(to.0, from.0, bytes, stream.0 as CudaHandle))
    }

    /// Creates a stream of the current context that does not synchronize with the default stream.
    pub fn create_stream(&self) -> Result<CudaStream, CudaCallError> {
        let mut stream = null_mut();
        call!(self.stream_create = "cuStreamCreate"(&raw mut stream, NON_BLOCKING))?;
        Ok(CudaStream(stream as usize))
    }

    /// Destroys a stream.
    pub fn destroy_stream(&self, stream: CudaStream) -> Result<(), CudaCallError> {
        call!(self.stream_destroy = "cuStreamDestroy_v2"(stream.0 as CudaHandle))
    }

    /// Waits for a stream.
    pub fn wait_stream(&self, stream: CudaStream) -> Result<(), CudaCallError> {
        call!(self.stream_synchronize = "cuStreamSynchronize"(stream.0 as CudaHandle))
    }

    /// True if all work of a stream is done.
    pub fn is_idle(&self, stream: CudaStream) -> Result<bool, CudaCallError> {
        match call!(self.stream_query = "cuStreamQuery"(stream.0 as CudaHandle)) {
            Err(CudaCallError::Failed { code: code::NOT_READY, .. }) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Makes a stream wait for an event of another stream.
    pub fn wait_event(&self, stream: CudaStream, event: CudaEvent) -> Result<(), CudaCallError> {
        let stream = stream.0 as CudaHandle;
        call!(self.stream_wait_event = "cuStreamWaitEvent"(stream, event.0 as CudaHandle, 0))
    }

    /// Makes a stream wait until the word at an address is at least this value.
    pub fn wait_value(
        &self,
        stream: CudaStream,
        word: DevicePointer,
        value: u32,
    ) -> Result<(), CudaCallError> {
        let stream = stream.0 as CudaHandle;
        call!(self.stream_wait_value = "cuStreamWaitValue32_v2"(stream, word.0, value, AT_LEAST))
    }

    /// Creates an event that records a time.
    pub fn create_event(&self) -> Result<CudaEvent, CudaCallError> {
        let mut event = null_mut();
        call!(self.event_create = "cuEventCreate"(&raw mut event, 0))?;
        Ok(CudaEvent(event as usize))
    }

    /// Destroys an event.
    pub fn destroy_event(&self, event: CudaEvent) -> Result<(), CudaCallError> {
        call!(self.event_destroy = "cuEventDestroy_v2"(event.0 as CudaHandle))
    }

    /// Records an event in a stream.
    pub fn record_event(&self, event: CudaEvent, stream: CudaStream) -> Result<(), CudaCallError> {
        call!(self.event_record = "cuEventRecord"(event.0 as CudaHandle, stream.0 as CudaHandle))
    }

    /// True if a recorded event was reached.
    pub fn is_event_done(&self, event: CudaEvent) -> Result<bool, CudaCallError> {
        match call!(self.event_query = "cuEventQuery"(event.0 as CudaHandle)) {
            Err(CudaCallError::Failed { code: code::NOT_READY, .. }) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Milliseconds between two reached events (resolution about half a microsecond, according to
    /// the API's manual).
    pub fn elapsed_ms(&self, from: CudaEvent, to: CudaEvent) -> Result<f32, CudaCallError> {
        let mut ms = 0.0;
        let (from, to) = (from.0 as CudaHandle, to.0 as CudaHandle);
        call!(self.event_elapsed = "cuEventElapsedTime"(&raw mut ms, from, to))?;
        Ok(ms)
    }
}

/// The text before the zero byte.
fn text_from_c(text: &[c_char]) -> String {
    let bytes: Vec<u8> =
        text.iter().take_while(|c| **c != 0).map(|c| u8::from_ne_bytes(c.to_ne_bytes())).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_header() {
        assert_eq!(size_of::<AllocationProp>(), 32);
        assert_eq!(size_of::<MemAccessDesc>(), 12);
        assert_eq!(size_of::<IpcHandle>(), 64);
    }

    #[test]
    fn another_library_is_refused() {
        let error = CudaLibrary::load(Some(Path::new("libc.so.6"))).expect_err("no CUDA there");
        assert!(error.to_string().contains("has no cuInit"), "{error}");
    }
}
