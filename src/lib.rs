//! fabricgate measures the GPU fabric of a cluster before anybody trusts it.
//!
//! The crate is one pipeline, `inventory -> plan -> probe -> measure -> judge
//! -> act -> report`, and every stage is a folder of its own. A stage takes
//! values and returns a value; what flows between them lives in [`model`].
//! `ARCHITECTURE.md` holds the map and the invariants, and `tests/tidy/main.rs`
//! enforces them. Nothing in this file does work.

pub mod cli;
pub mod config;
pub mod exit;
