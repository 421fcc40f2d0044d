//! The coordinator's side: it starts workers, drives a sweep, keeps runs, asks sources,
//! and changes the cluster through the gate. The only crate that changes anything.

#![forbid(unsafe_code)]

pub mod gate;
pub mod launch;
pub mod notify;
pub mod sources;
pub mod store;
pub mod sweep;
