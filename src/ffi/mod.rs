//! Calls into C libraries that no safe crate wraps. The only unsafe code.
//!
//! Every block says why it is sound. Nothing here decides what an answer means;
//! `facts` does.

pub mod nvml;
