//! Numbers of `cuda.h` that the stub answers with, and their names.

use std::ffi::CStr;

pub const INVALID_VALUE: i32 = 1;
pub const OUT_OF_MEMORY: i32 = 2;
pub const NOT_INITIALIZED: i32 = 3;
pub const DEVICE_UNAVAILABLE: i32 = 46;
pub const NO_DEVICE: i32 = 100;
pub const INVALID_DEVICE: i32 = 101;
pub const INVALID_CONTEXT: i32 = 201;
pub const PEER_ACCESS_UNSUPPORTED: i32 = 217;
pub const INVALID_HANDLE: i32 = 400;
pub const NOT_READY: i32 = 600;
pub const ILLEGAL_ADDRESS: i32 = 700;
pub const PEER_ACCESS_ALREADY_ENABLED: i32 = 704;
pub const NOT_PERMITTED: i32 = 800;
pub const NOT_SUPPORTED: i32 = 801;

/// Those that a driver names; for all others `cuGetErrorName` refuses, as the
/// driver does with numbers it does not know.
const NAMES: &[(i32, &CStr)] = &[
    (0, c"CUDA_SUCCESS"),
    (INVALID_VALUE, c"CUDA_ERROR_INVALID_VALUE"),
    (OUT_OF_MEMORY, c"CUDA_ERROR_OUT_OF_MEMORY"),
    (NOT_INITIALIZED, c"CUDA_ERROR_NOT_INITIALIZED"),
    (34, c"CUDA_ERROR_STUB_LIBRARY"),
    (DEVICE_UNAVAILABLE, c"CUDA_ERROR_DEVICE_UNAVAILABLE"),
    (NO_DEVICE, c"CUDA_ERROR_NO_DEVICE"),
    (INVALID_DEVICE, c"CUDA_ERROR_INVALID_DEVICE"),
    (INVALID_CONTEXT, c"CUDA_ERROR_INVALID_CONTEXT"),
    (214, c"CUDA_ERROR_ECC_UNCORRECTABLE"),
    (PEER_ACCESS_UNSUPPORTED, c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"),
    (220, c"CUDA_ERROR_NVLINK_UNCORRECTABLE"),
    (INVALID_HANDLE, c"CUDA_ERROR_INVALID_HANDLE"),
    (NOT_READY, c"CUDA_ERROR_NOT_READY"),
    (ILLEGAL_ADDRESS, c"CUDA_ERROR_ILLEGAL_ADDRESS"),
    (PEER_ACCESS_ALREADY_ENABLED, c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"),
    (719, c"CUDA_ERROR_LAUNCH_FAILED"),
    (NOT_PERMITTED, c"CUDA_ERROR_NOT_PERMITTED"),
    (NOT_SUPPORTED, c"CUDA_ERROR_NOT_SUPPORTED"),
    (802, c"CUDA_ERROR_SYSTEM_NOT_READY"),
    (803, c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    (999, c"CUDA_ERROR_UNKNOWN"),
];

pub fn name(code: i32) -> Option<&'static CStr> {
    NAMES.iter().find(|(number, _)| *number == code).map(|(_, name)| *name)
}
