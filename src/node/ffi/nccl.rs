//! Run-time binding of NCCL, `libnccl.so.2`: only the calls that the native NCCL probe makes.
//!
//! Each method makes one call and returns its plain answer or its error code. Every symbol may be
//! absent; only the call that needs it then fails. `probes::collective` decides what an error
//! means. Signatures are those of `nccl.h`.
//!
//! Calls on a nonblocking communicator return immediately and continue in the background: until
//! [`NcclLibrary::state`] returns [`NcclCallState::Ready`], the only other call allowed on it is
//! [`NcclLibrary::abort`].

#![expect(unsafe_code, reason = "NCCL is a C library")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use super::cuda::{CudaStream, DevicePointer};
use super::dynamic_library;
use super::dynamic_library::{LibraryLoadError, symbols};

pub mod code;

/// The soname of every NCCL 2 release.
pub const LIBRARY: &str = "libnccl.so.2";

/// Bytes of an [`NcclUniqueId`] (`NCCL_UNIQUE_ID_BYTES`).
pub const UNIQUE_ID_BYTES: usize = 128;

/// Why a call returned no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NcclError {
    /// This NCCL does not have the call.
    #[error("this NCCL has no {call}: it is older than the call")]
    Missing {
        /// The missing symbol.
        call: &'static str,
    },
    /// NCCL returned an error, or a background operation failed.
    #[error("{call}: {name} ({code}){}{message}", if message.is_empty() { "" } else { ": " })]
    Failed {
        /// The symbol that was called.
        call: &'static str,
        /// The `ncclResult_t`, see [`code`].
        code: i32,
        /// Its name in the header.
        name: String,
        /// Text of NCCL's last error, verbatim.
        message: String,
    },
}

impl NcclError {
    /// The `ncclResult_t`, if the call returned one.
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

/// A version of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NcclVersion {
    /// Major version, for example 2.
    pub major: u32,
    /// Minor version, for example 28.
    pub minor: u32,
    /// Patch version, for example 3.
    pub patch: u32,
}

impl NcclVersion {
    /// Decodes `NCCL_VERSION_CODE`: 22803 is 2.28.3; up to 2.8 the code had one digit less, so 2708
    /// is 2.7.8.
    pub fn from_code(code: u32) -> Self {
        let major = if code < 10_000 { 1_000 } else { 10_000 };
        Self { major: code / major, minor: code % major / 100, patch: code % 100 }
    }
}

impl std::fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The ID by which the ranks of a communicator connect. Every process that has it can join, so it
/// is a secret of the run, and `Debug` does not print it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NcclUniqueId([u8; UNIQUE_ID_BYTES]);

impl NcclUniqueId {
    /// Wraps the bytes received from another rank.
    pub fn from_bytes(bytes: [u8; UNIQUE_ID_BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes for the other ranks.
    pub fn as_bytes(&self) -> &[u8; UNIQUE_ID_BYTES] {
        &self.0
    }
}

impl std::fmt::Debug for NcclUniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UniqueId(..)")
    }
}

/// A communicator (`ncclComm_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Communicator(usize);

/// State of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NcclCallState {
    /// The call is done, or enqueued in its stream.
    Ready,
    /// The call continues in the background (`ncclInProgress`).
    InProgress,
}

type NcclHandle = *mut c_void;

/// `ncclConfig_t` as of NCCL 2.14. A later library copies only `size` bytes, fills the rest with
/// its defaults, and applies defaults for fields that `version` did not have, so this layout works
/// with all of them.
#[repr(C)]
pub(super) struct NcclConfig {
    pub(super) size: usize,
    pub(super) magic: c_uint,
    pub(super) version: c_uint,
    pub(super) blocking: c_int,
    /// Fields added in 2.17 occupy this version's padding.
    later: c_int,
}

/// `NCCL_API_MAGIC`.
const MAGIC: c_uint = 0xcafe_beef;
/// `NCCL_CONFIG_UNDEF_INT`.
pub(super) const UNDEFINED: c_int = c_int::MIN;
/// `NCCL_VERSION(2, 14, 0)`.
pub(super) const CONFIG_VERSION: c_uint = 21_400;

// nccl.h: ncclFloat32, ncclSum.
pub(super) const FLOAT32: c_int = 7;
pub(super) const SUM: c_int = 0;

type NcclSendBuffer = *const c_void;

symbols! {
    /// The NCCL symbols in use.
    NcclSymbols {
        version = "ncclGetVersion" (*mut c_int);
        unique_id = "ncclGetUniqueId" (*mut NcclUniqueId);
        init = "ncclCommInitRank" (*mut NcclHandle, c_int, NcclUniqueId, c_int);
        begin_init = "ncclCommInitRankConfig" (*mut NcclHandle, c_int, NcclUniqueId, c_int, *const NcclConfig);
        async_error = "ncclCommGetAsyncError" (NcclHandle, *mut c_int);
        finalize = "ncclCommFinalize" (NcclHandle);
        destroy = "ncclCommDestroy" (NcclHandle);
        abort = "ncclCommAbort" (NcclHandle);
        count = "ncclCommCount" (NcclHandle, *mut c_int);
        all_reduce = "ncclAllReduce" (NcclSendBuffer, NcclHandle, usize, c_int, c_int, NcclHandle, NcclHandle);
        all_gather = "ncclAllGather" (NcclSendBuffer, NcclHandle, usize, c_int, NcclHandle, NcclHandle);
        reduce_scatter = "ncclReduceScatter" (NcclSendBuffer, NcclHandle, usize, c_int, c_int, NcclHandle, NcclHandle);
        broadcast = "ncclBroadcast" (NcclSendBuffer, NcclHandle, usize, c_int, c_int, NcclHandle, NcclHandle);
        send = "ncclSend" (NcclSendBuffer, usize, c_int, c_int, NcclHandle, NcclHandle);
        recv = "ncclRecv" (NcclHandle, usize, c_int, c_int, NcclHandle, NcclHandle);
        group_start = "ncclGroupStart" ();
        group_end = "ncclGroupEnd" ();
    }
}

type NcclLastErrorFn = unsafe extern "C" fn(NcclHandle) -> *const c_char;
type NcclErrorStringFn = unsafe extern "C" fn(c_int) -> *const c_char;

/// NCCL, loaded.
#[derive(Debug)]
pub struct NcclLibrary {
    symbols: NcclSymbols,
    last_error: Option<NcclLastErrorFn>,
    error_string: Option<NcclErrorStringFn>,
    path: PathBuf,
}

/// Calls a symbol that may be absent, and converts its error.
macro_rules! call {
    ($self:ident.$field:ident = $symbol:literal ($($arg:expr),*), $comm:expr) => {{
        let found = $self.symbols.$field.ok_or(NcclError::Missing { call: $symbol })?;
        // SAFETY: the symbol has this signature in nccl.h; every pointer is to a place that
        // outlives the call, and GPU addresses are only passed on.
        $self.check($symbol, unsafe { found($($arg),*) }, $comm)
    }};
}

/// Parameters that all operations share.
#[derive(Clone, Copy, Debug)]
pub struct NcclOperation {
    /// The communicator.
    pub comm: Communicator,
    /// The stream in whose order it runs.
    pub stream: CudaStream,
    /// Elements, as the call counts them.
    pub count: usize,
}

impl NcclOperation {
    /// Raw communicator and stream handles.
    fn handles(self) -> (NcclHandle, NcclHandle) {
        (self.comm.0 as NcclHandle, self.stream.raw() as NcclHandle)
    }
}

impl NcclLibrary {
    /// Loads the library at this path, or the one that the loader finds.
    pub fn load(path: Option<&Path>) -> Result<Self, LibraryLoadError> {
        let opened = dynamic_library::open_library(path, &[LIBRARY])?;
        let symbols = NcclSymbols::load(&opened.library);
        if symbols.version.is_none() {
            let symbol = "ncclGetVersion".to_owned();
            return Err(LibraryLoadError::WrongLibrary { path: opened.path, symbol });
        }
        // SAFETY: the types are the declarations of these names in nccl.h; the library they point
        // into is never unloaded.
        let (last_error, error_string) = unsafe {
            (
                opened.library.get::<NcclLastErrorFn>(b"ncclGetLastError\0").ok().map(|it| *it),
                opened.library.get::<NcclErrorStringFn>(b"ncclGetErrorString\0").ok().map(|it| *it),
            )
        };
        let path = opened.path;
        Ok(Self { symbols, last_error, error_string, path })
    }

    /// The path that was opened, as requested.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The calls that this NCCL lacks.
    pub fn missing_symbols(&self) -> Vec<&'static str> {
        let mut missing = self.symbols.missing();
        let texts = [
            ("ncclGetLastError", self.last_error.is_none()),
            ("ncclGetErrorString", self.error_string.is_none()),
        ];
        missing.extend(texts.iter().filter(|(_, lacks)| *lacks).map(|(symbol, _)| *symbol));
        missing
    }

    fn check(
        &self,
        call: &'static str,
        code: c_int,
        comm: Option<Communicator>,
    ) -> Result<NcclCallState, NcclError> {
        match code {
            code::SUCCESS => Ok(NcclCallState::Ready),
            code::IN_PROGRESS => Ok(NcclCallState::InProgress),
            code => {
                let name = code::result_name(code);
                Err(NcclError::Failed { call, code, name, message: self.error_message(code, comm) })
            }
        }
    }

    /// NCCL's text for its last error, or else its text for this code.
    fn error_message(&self, code: c_int, comm: Option<Communicator>) -> String {
        let comm = comm.map_or(0, |comm| comm.0) as NcclHandle;
        // SAFETY: nccl.h: the communicator may be null; the answer is null or a text
        // that ends with a zero byte and lives as long as the library.
        let last = self.last_error.map(|last_error| unsafe { text_at(last_error(comm)) });
        last.filter(|text| !text.is_empty())
            // SAFETY: as above, for any number.
            .or_else(|| self.error_string.map(|text| unsafe { text_at(text(code)) }))
            .unwrap_or_default()
    }

    /// The version.
    pub fn version(&self) -> Result<NcclVersion, NcclError> {
        let mut version = 0;
        call!(self.version = "ncclGetVersion"(&raw mut version), None)?;
        Ok(NcclVersion::from_code(u32::try_from(version).unwrap_or(0)))
    }

    /// True if NCCL supports nonblocking communicators (since 2.14).
    pub fn supports_nonblocking(&self) -> bool {
        self.symbols.begin_init.is_some() && self.symbols.async_error.is_some()
    }

    /// Creates a unique ID; one rank passes it to the others.
    pub fn unique_id(&self) -> Result<NcclUniqueId, NcclError> {
        let mut id = NcclUniqueId([0; UNIQUE_ID_BYTES]);
        call!(self.unique_id = "ncclGetUniqueId"(&raw mut id), None)?;
        Ok(id)
    }

    /// Starts creating a communicator for the GPU of the current context, without waiting for the
    /// other ranks.
    pub fn begin_init(
        &self,
        ranks: i32,
        id: NcclUniqueId,
        rank: i32,
    ) -> Result<(Communicator, NcclCallState), NcclError> {
        let config = NcclConfig {
            size: size_of::<NcclConfig>(),
            magic: MAGIC,
            version: CONFIG_VERSION,
            blocking: 0,
            later: UNDEFINED,
        };
        let mut comm = null_mut();
        let state = call!(
            self.begin_init =
                "ncclCommInitRankConfig"(&raw mut comm, ranks, id, rank, &raw const config),
            None
        )?;
        Ok((Communicator(comm as usize), state))
    }

    /// Creates a communicator and blocks until all other ranks have joined.
    pub fn init(&self, ranks: i32, id: NcclUniqueId, rank: i32) -> Result<Communicator, NcclError> {
        let mut comm = null_mut();
        call!(self.init = "ncclCommInitRank"(&raw mut comm, ranks, id, rank), None)?;
        Ok(Communicator(comm as usize))
    }

    /// State of the last call, or the error of a background operation. Libraries before 2.4 have no
    /// such call and no background operations.
    pub fn state(&self, comm: Communicator) -> Result<NcclCallState, NcclError> {
        if self.symbols.async_error.is_none() {
            return Ok(NcclCallState::Ready);
        }
        let mut code = code::SUCCESS;
        call!(
            self.async_error = "ncclCommGetAsyncError"(comm.0 as NcclHandle, &raw mut code),
            Some(comm)
        )?;
        self.check("ncclCommGetAsyncError", code, Some(comm))
    }

    /// Starts the orderly shutdown of a communicator (since 2.14).
    pub fn finalize(&self, comm: Communicator) -> Result<NcclCallState, NcclError> {
        call!(self.finalize = "ncclCommFinalize"(comm.0 as NcclHandle), Some(comm))
    }

    /// Destroys a communicator.
    pub fn destroy(&self, comm: Communicator) -> Result<(), NcclError> {
        call!(self.destroy = "ncclCommDestroy"(comm.0 as NcclHandle), Some(comm)).map(|_| ())
    }

    /// Aborts a communicator and its running operations. Can hang.
    pub fn abort(&self, comm: Communicator) -> Result<(), NcclError> {
        // The handle is invalid afterwards, even if the call fails.
        call!(self.abort = "ncclCommAbort"(comm.0 as NcclHandle), None).map(|_| ())
    }

    /// Number of ranks in the communicator.
    pub fn ranks(&self, comm: Communicator) -> Result<i32, NcclError> {
        let mut count = 0;
        call!(self.count = "ncclCommCount"(comm.0 as NcclHandle, &raw mut count), Some(comm))?;
        Ok(count)
    }

    /// Sums `count` elements over all ranks; every rank receives the sum.
    pub fn all_reduce(
        &self,
        from: DevicePointer,
        to: DevicePointer,
        operation: NcclOperation,
    ) -> Result<NcclCallState, NcclError> {
        let (comm, count) = (operation.comm, operation.count);
        let (from, to) = (from.0 as NcclSendBuffer, to.0 as NcclHandle);
        let (handle, stream) = operation.handles();
        call!(
            self.all_reduce = "ncclAllReduce"(from, to, count, FLOAT32, SUM, handle, stream),
            Some(comm)
        )
    }

    /// Gathers `count` elements from every rank, in rank order, on every rank.
    pub fn all_gather(
        &self,
        from: DevicePointer,
        to: DevicePointer,
        operation: NcclOperation,
    ) -> Result<NcclCallState, NcclError> {
        let (comm, count) = (operation.comm, operation.count);
        let (from, to) = (from.0 as NcclSendBuffer, to.0 as NcclHandle);
        let (handle, stream) = operation.handles();
        call!(
            self.all_gather = "ncclAllGather"(from, to, count, FLOAT32, handle, stream),
            Some(comm)
        )
    }

    /// Sums over all ranks; each rank receives its `count` elements of the sum.
    pub fn reduce_scatter(
        &self,
        from: DevicePointer,
        to: DevicePointer,
        operation: NcclOperation,
    ) -> Result<NcclCallState, NcclError> {
        let (comm, count) = (operation.comm, operation.count);
        let (from, to) = (from.0 as NcclSendBuffer, to.0 as NcclHandle);
        let (handle, stream) = operation.handles();
        call!(
            self.reduce_scatter =
                "ncclReduceScatter"(from, to, count, FLOAT32, SUM, handle, stream),
            Some(comm)
        )
    }

    /// Copies the elements of `root` to every rank.
    pub fn broadcast(
        &self,
        from: DevicePointer,
        to: DevicePointer,
        root: i32,
        operation: NcclOperation,
    ) -> Result<NcclCallState, NcclError> {
        let (comm, count) = (operation.comm, operation.count);
        let (from, to) = (from.0 as NcclSendBuffer, to.0 as NcclHandle);
        let (handle, stream) = operation.handles();
        call!(
            self.broadcast = "ncclBroadcast"(from, to, count, FLOAT32, root, handle, stream),
            Some(comm)
        )
    }

    /// Sends elements to a rank. Must be grouped with its counterpart.
    pub fn send(
        &self,
        from: DevicePointer,
        to: i32,
        operation: NcclOperation,
    ) -> Result<NcclCallState, NcclError> {
        let (comm, count) = (operation.comm, operation.count);
        let (handle, stream) = operation.handles();
        let from = from.0 as NcclSendBuffer;
        call!(self.send = "ncclSend"(from, count, FLOAT32, to, handle, stream), Some(comm))
    }

    /// Receives elements from a rank. Must be grouped with its counterpart.
    pub fn receive(
        &self,
        to: DevicePointer,
        from: i32,
        operation: NcclOperation,
    ) -> Result<NcclCallState, NcclError> {
        let (comm, count) = (operation.comm, operation.count);
        let (handle, stream) = operation.handles();
        let to = to.0 as NcclHandle;
        call!(self.recv = "ncclRecv"(to, count, FLOAT32, from, handle, stream), Some(comm))
    }

    /// Starts a group of calls.
    pub fn begin_group(&self) -> Result<(), NcclError> {
        call!(self.group_start = "ncclGroupStart"(), None).map(|_| ())
    }

    /// Ends a group and starts its operations.
    pub fn end_group(&self) -> Result<NcclCallState, NcclError> {
        call!(self.group_end = "ncclGroupEnd"(), None)
    }
}

/// The text at this address; empty if it is null.
///
/// # Safety
///
/// The pointer is null or points to a text that ends with a zero byte.
unsafe fn text_at(place: *const c_char) -> String {
    if place.is_null() {
        return String::new();
    }
    // SAFETY: the contract of this function.
    unsafe { CStr::from_ptr(place) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_header() {
        assert_eq!(size_of::<NcclConfig>(), 24, "NCCL 2.14's, padding included");
        assert_eq!(size_of::<NcclUniqueId>(), 128);
    }

    #[test]
    fn another_library_is_refused() {
        let error = NcclLibrary::load(Some(Path::new("libc.so.6"))).expect_err("no NCCL there");
        assert!(error.to_string().contains("has no ncclGetVersion"), "{error}");
    }

    #[test]
    fn version_codes_of_both_kinds_are_read() {
        let text = |code| NcclVersion::from_code(code).to_string();
        assert_eq!((text(22_803), text(21_403)), ("2.28.3".to_owned(), "2.14.3".to_owned()));
        assert_eq!((text(2_708), text(2_804)), ("2.7.8".to_owned(), "2.8.4".to_owned()));
        assert_eq!(text(20_908), "2.9.8");
    }

    #[test]
    fn an_id_is_not_printed() {
        let id = NcclUniqueId::from_bytes([65; UNIQUE_ID_BYTES]);
        assert_eq!(format!("{id:?}"), "UniqueId(..)");
    }
}
