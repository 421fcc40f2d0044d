//! A stub `libcuda.so.1` for tests: the calls that `src/node/ffi/cuda.rs` makes, answered by a
//! machine that a small text file describes.
//!
//! Memory is real: copied data arrives, also in another process. Time is simulated: copies take
//! the time that the description's rates give, share resources, and events report that time,
//! exactly and the same on every machine. Copies of other processes are not part of this
//! process's time: two processes that use the same link concurrently do not slow each other down
//! here.
//!
//! Lines of the machine's description. GPUs are numbered in the driver's order; a GPU of another
//! node is `node:number`. Rates are in GB/s. A line about `gpu N` precedes the same line about
//! `gpu`, which applies to all.
//!
//! - `gpus = 1`, `node = node0`, `cuda = 13000`.
//! - `gpu N name | bus | memory | used | cache | compute-mode = ...`, in bytes where
//!   it is a size; `gpu N busy`, `gpu N mig`.
//! - `gpu N up = 55`, `gpu N down = 55`: to and from the host; `gpu N root = NAME` and
//!   `root NAME = 60`: a root port that several share, in each direction.
//! - `pair = 390`, `pair A B = 350` (data from A to B), `port = 450`, `port N = 450` (in
//!   and out each), `switch = 1000` (all pairs together), `local = 1500`,
//!   `host-memory = 100`.
//!   A rate of 0 carries nothing: such a copy never ends.
//! - `latency = 2`: microseconds that a copy takes at least.
//! - `no-peer A B`: the first has no access to the second.
//! - `clique = 1`, `imex = no`, `fabric = no`, `stream-memory = no`.
//! - `wrong-data A B`: one bit of what is copied that way, where either may be `host`.
//! - `fail CALL = CODE`, `fail CALL = CODE at N`, `fail CALL = CODE from N`,
//!   `hang CALL = N`, `die CALL = N`: its n-th call in a process, from 1.
//! - `lost N = CODE after M`: after so many calls in its context it answers this only.
//! - `calls = FILE`: every call is kept there, with its process.
//!
//! `CUDA_VISIBLE_DEVICES` (numbers) and `CUDA_DEVICE_ORDER` have the driver's meaning. The stub
//! contains no code of NVIDIA's and has no dependency: `rustc` alone builds it.

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
