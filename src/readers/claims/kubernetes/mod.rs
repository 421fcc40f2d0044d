//! What Kubernetes says: node objects, ComputeDomains, topology objects.
//!
//! Text in, [`Said`](model::said::Said) out; the same for what a file
//! holds and what an API server answers.

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
