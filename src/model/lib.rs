//! The shared data model: the values that the stages exchange.
//!
//! Plain serialisable values with public fields. Nothing here does I/O, reads a clock, or depends
//! on a stage.

#![forbid(unsafe_code)]

pub mod acceptance;
pub mod action;
pub mod certificate;
pub mod checkup;
pub mod claim_index;
pub mod claims;
pub mod collective;
pub mod comparison;
pub mod copy;
pub mod cuda_error;
pub mod disagreement;
pub mod disagreement_class;
pub mod eviction;
pub mod exchange;
pub mod fabric_probe;
pub mod finding;
pub mod finding_class;
pub mod finding_rule;
pub mod gpu_facts;
pub mod hostlist;
pub mod id;
pub mod journal;
pub mod kubernetes_node;
pub mod limits;
pub mod measured_cell;
pub mod measurement;
pub mod node_facts;
pub mod node_update;
pub mod parse_output;
pub mod part_history;
pub mod probe;
pub mod probe_problem_class;
pub mod probe_report;
pub mod profile;
pub mod raw_result;
pub mod renamed_keys;
pub mod run;
pub mod scheduler_snapshot;
pub mod seeded_rng;
pub mod shell_quote;
pub mod signature;
pub mod source_report;
pub mod stats;
pub mod tcp;
pub mod text;
pub mod text_error;
pub mod throttle_reason;
pub mod time_format;
pub mod tool_call;
pub mod tool_facts;
pub mod tool_recording;
pub mod tournament;
pub mod trend;
pub mod unit;
pub mod unknown_subject;
pub mod verdict;
pub mod watch;
pub mod worker_protocol;
