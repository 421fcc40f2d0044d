//! Result codes of `nccl.h`.

/// `ncclSuccess`.
pub const SUCCESS: i32 = 0;
/// `ncclUnhandledCudaError`: a CUDA call failed.
pub const UNHANDLED_CUDA_ERROR: i32 = 1;
/// `ncclSystemError`: a system call failed (sockets, devices, memory).
pub const SYSTEM_ERROR: i32 = 2;
/// `ncclInternalError`: a bug or failure in NCCL or a library it uses.
pub const INTERNAL_ERROR: i32 = 3;
/// `ncclInvalidArgument`.
pub const INVALID_ARGUMENT: i32 = 4;
/// `ncclInvalidUsage`: also if versions differ between ranks, or two ranks use one GPU.
pub const INVALID_USAGE: i32 = 5;
/// `ncclRemoteError`: another rank has ended, or the network to it failed.
pub const REMOTE_ERROR: i32 = 6;
/// `ncclInProgress`: not an error.
pub const IN_PROGRESS: i32 = 7;
/// `ncclTimeout`.
pub const TIMEOUT: i32 = 8;

/// The header's name of a result.
pub fn result_name(code: i32) -> String {
    let known = match code {
        SUCCESS => "ncclSuccess",
        UNHANDLED_CUDA_ERROR => "ncclUnhandledCudaError",
        SYSTEM_ERROR => "ncclSystemError",
        INTERNAL_ERROR => "ncclInternalError",
        INVALID_ARGUMENT => "ncclInvalidArgument",
        INVALID_USAGE => "ncclInvalidUsage",
        REMOTE_ERROR => "ncclRemoteError",
        IN_PROGRESS => "ncclInProgress",
        TIMEOUT => "ncclTimeout",
        _ => return format!("NCCL error {code}"),
    };
    known.to_owned()
}
