//! The claims of each source about the fabric, and their disagreements.
//!
//! Pure: text in, values out. `sources` opens files, queries servers and runs commands. Claims
//! are the hypothesis under test, never an input the test relies on.

pub mod cabling;
pub mod claims_file;
pub mod cluster_uuids;
pub mod format_detection;
pub mod job;
pub mod kubernetes;
pub mod nccl_topology;
pub mod neighbours;
pub mod node_facts;
pub mod nvlink_reach;
pub mod outages_file;
pub mod output_layout;
pub mod ray;
mod reader_util;
pub mod reconcile;
pub mod single_node_domains;
pub mod slurm;
