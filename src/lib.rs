//! fabricgate measures the GPU fabric of a cluster before anybody trusts it.
//!
//! The crate is one pipeline, `inventory -> plan -> probe -> measure -> judge
//! -> act -> report`, and every stage is a folder of its own. A stage takes
//! values and returns a value; what flows between them lives in [`model`].
//! `ARCHITECTURE.md` holds the map and the invariants, and `tests/tidy.rs`
//! enforces them. Nothing in this file does work.

pub mod act;
pub mod cli;
pub mod coordinator;
pub mod doctor;
pub mod exec;
pub mod export;
pub mod facts;
pub mod ffi;
pub mod gate;
pub mod inventory;
pub mod judge;
pub mod launch;
pub mod measure;
pub mod model;
pub mod notify;
pub mod place;
pub mod plan;
pub mod probe;
pub mod record;
pub mod report;
pub mod sim;
pub mod sources;
pub mod study;
pub mod thresholds;
