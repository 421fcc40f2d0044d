//! Calls into C libraries that no safe crate wraps, and what is done between fork and
//! exec. The only unsafe code.
//!
//! Every block says why it is sound. Nothing here decides what an answer means;
//! `facts` and `probe` do.

pub mod cuda;
pub mod dynamic_library;
pub mod nccl;
pub mod nvml;
pub mod process_limits;
