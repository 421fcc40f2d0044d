//! A `libnccl.so.2` of our own for tests: the calls that `src/node/ffi/nccl.rs` makes.
//! Ranks are processes that find each other through a folder named in the unique
//! id, and what they compute is computed: in the memory, and in the order of the
//! streams, of the driver's stub.
//!
//! Lines of the machine's description, beside those of the driver's stub. `RANK`
//! is a number or `all`; operations are counted from 1, a group being one.
//!
//! - `nccl version = 22803`: what it says it is.
//! - `nccl init RANK = hang | die | CODE`: what becomes of making a communicator.
//! - `nccl wrong RANK = N`: from the n-th operation on, one bit of what it receives.
//! - `nccl stall RANK = N`: the n-th operation is never sent.
//! - `nccl die RANK = N`: the process ends in the n-th operation.
//! - `nccl async RANK = CODE at N`: the n-th operation fails behind the scenes.
//! - `nccl deaf = yes`: the death of another rank is not noticed.
//! - `nccl abort = hang`: an abort does not come back.
//! - `nccl transport = NET/IB/0`, `nccl algorithm = RING`: what it says it uses.
//!
//! No code of NVIDIA's, and no dependency: `rustc` alone builds it.

mod calls;
mod communicator;
#[path = "../libcuda/description.rs"]
mod description;
mod driver;
mod meeting;
mod operation;
mod words;
