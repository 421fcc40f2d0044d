//! Calls into C libraries without a safe wrapper crate, and code between fork and exec. This is the
//! only unsafe code.
//!
//! Every unsafe block states why it is sound. `facts` and `probes` interpret the answers.

pub mod cuda;
pub mod dynamic_library;
#[cfg(test)]
pub(crate) mod header_tests;
pub mod nccl;
pub mod nvml;
pub mod process_limits;
