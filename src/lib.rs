//! fabricgate measures the GPU fabric of a cluster before jobs rely on it.
//!
//! The crate is one pipeline, `inventory -> plan -> probe -> measure -> judge -> act -> report`,
//! with one folder per stage. A stage takes values and returns a value; [`model`] defines the
//! values between the stages. `ARCHITECTURE.md` holds the map and the invariants, and
//! `tests/tidy/main.rs` enforces them. This file has no logic.

pub mod cli;
pub mod config;
pub mod exit;
