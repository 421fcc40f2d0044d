//! Claims from Slurm: its topology files, its controller, its nodes.
//!
//! Text in, [`SourceReport`](model::source_report::SourceReport) out. Unreadable parts are
//! problems in the report and leave the rest usable.

pub mod accounting;
pub mod block_spans;
pub mod config;
pub mod live_nodes;
pub mod nodes;
pub mod partitions;
pub mod show_topology;
pub mod sinfo;
pub mod topology_conf;
pub mod topology_yaml;

mod blocks;
mod json_response;

pub use blocks::BLOCK_SIZES;

mod gres;
mod host_list_budget;
mod key_value;
mod node_states;
mod switch_tree;
mod yaml_tree;

#[cfg(test)]
mod recorded_output_tests;
