//! A stub `libnccl.so.2` for tests: the calls that `src/node/ffi/nccl.rs` makes. Ranks are
//! processes that find each other through a folder named in the unique id. Their computations are
//! real: in the memory, and in the order of the streams, of the driver's stub.
//!
//! Lines of the machine's description, in addition to those of the driver's stub. `RANK` is a
//! number or `all`; operations are counted from 1, a group being one.
//!
//! - `nccl version = 22803`: the version that it reports.
//! - `nccl init RANK = hang | die | CODE`: the result of creating a communicator.
//! - `nccl wrong RANK = N`: from the n-th operation on, one bit of its received data.
//! - `nccl stall RANK = N`: the n-th operation is never sent.
//! - `nccl die RANK = N`: the process ends in the n-th operation.
//! - `nccl async RANK = CODE at N`: the n-th operation fails asynchronously.
//! - `nccl deaf = yes`: the death of another rank is not noticed.
//! - `nccl abort = hang`: an abort does not return.
//! - `nccl transport = NET/IB/0`, `nccl algorithm = RING`: the ones that it reports.
//!
//! The stub contains no code of NVIDIA's and has no dependency: `rustc` alone builds it.

mod calls;
mod communicator;
#[path = "../libcuda/description.rs"]
mod description;
mod driver;
mod meeting;
mod operation;
mod words;
