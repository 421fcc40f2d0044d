//! A `libcuda.so.1` of our own for tests: the calls that `src/ffi/cuda.rs` makes,
//! answered by a machine that a small text file describes.
//!
//! Memory is real: what is copied arrives, also in another process. Time is
//! simulated: copies take what the description's rates say, share what they
//! share, and events tell that time, exactly and the same on every machine.
//! No code of NVIDIA's, and no dependency: `rustc` alone builds it.

mod calls_device;
mod calls_memory;
mod calls_stream;
mod codes;
mod description;
mod driver;
mod faults;
mod fluid;
mod memory;
mod rates;
mod streams;
