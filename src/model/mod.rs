//! The vocabulary: what the stages hand to each other.
//!
//! Plain serialisable values with public fields. Nothing here does I/O, reads
//! a clock, or knows of a stage.

pub mod acceptance;
pub mod action;
pub mod cell;
pub mod certificate;
pub mod change;
pub mod checkup;
pub mod claims;
pub mod collective;
pub mod comparison;
pub mod copy;
pub mod cuda_error;
pub mod disagreement;
pub mod eviction;
pub mod exchange;
pub mod fabric_probe;
pub mod facts;
pub mod gpu_facts;
pub mod history;
pub mod id;
pub mod journal;
pub mod kubernetes_node;
pub mod limits;
pub mod live;
pub mod measurement;
pub mod moment;
pub mod node_facts;
pub mod parsed;
pub mod probe;
pub mod probed;
pub mod profile;
pub mod raw;
pub mod recording;
pub mod rule;
pub mod run;
pub mod said;
pub mod signature;
pub mod span;
pub mod subject;
pub mod tcp;
pub mod throttle;
pub mod trend;
pub mod unit;
pub mod verdict;
pub mod watch;
pub mod words;
pub mod worker;
