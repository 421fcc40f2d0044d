//! What Slurm says: its topology files, its controller, its nodes.
//!
//! Text in, [`Said`](crate::model::said::Said) out. What cannot be read is a
//! problem in the answer and leaves the rest usable.

pub mod accounting;
pub mod block_places;
pub mod config;
pub mod live;
pub mod nodes;
pub mod partitions;
pub mod show_topology;
pub mod sinfo;
pub mod topology_conf;
pub mod topology_yaml;

mod answer;
mod blocks;

pub use blocks::BLOCK_SIZES;

mod entries;
mod gres;
mod listed;
mod states;
mod tree;
mod yaml;

#[cfg(test)]
mod recorded_tests;
