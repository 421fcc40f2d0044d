//! Claims from Kubernetes: node objects, ComputeDomains, topology objects.
//!
//! Text in, [`SourceReport`](model::source_report::SourceReport) out, for files as well as for
//! answers of an API server.

pub mod compute_domains;
mod gpu_labels;
mod kind_cluster;
mod kubectl_tables;
pub mod live_node;
pub mod node_marks;
pub mod nodes;
mod objects;
pub mod pods;
pub mod topologies;
mod topology_labels;

#[cfg(test)]
mod tests;
