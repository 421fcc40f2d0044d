//! Everything that runs on a node: child processes, the driver's libraries, facts about the
//! machine, the worker, and the native probes. The only crate with `unsafe` code.

pub mod doctor;
pub mod exec;
pub mod facts;
pub mod ffi;
pub mod probes;
pub mod worker;
