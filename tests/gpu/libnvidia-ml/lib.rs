//! A stub `libnvidia-ml.so.1` for tests: the calls that `src/node/facts/nvml.rs` makes, answered
//! by the machine that the description of all stubs describes.
//!
//! GPUs are those of the CUDA stub: same names, addresses, UUIDs. The stub contains no code of
//! NVIDIA's and has no dependency: `rustc` alone builds it.

mod calls_device;
mod calls_link;
mod calls_machine;
#[path = "../libcuda/description.rs"]
mod description;
#[path = "../libcuda/faults.rs"]
mod faults;
mod machine;
