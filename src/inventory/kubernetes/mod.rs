//! What Kubernetes says: node objects, ComputeDomains, topology objects.
//!
//! JSON in, [`Said`](crate::model::said::Said) out; the same for what a file
//! holds and what an API server answers.

pub mod compute_domains;
pub mod nodes;
pub mod topologies;
