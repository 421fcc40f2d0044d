//! The coordinator: starts workers, runs sweeps, stores runs, queries sources, and changes the
//! cluster through the gate. No other crate changes anything.

#![forbid(unsafe_code)]

pub mod gate;
pub mod launch;
pub mod notify;
pub mod sources;
pub mod store;
pub mod sweep;
