//! The gate's hand in a Kubernetes cluster.
//!
//! What is decided, `act` decides; nothing but what carries our prefix is
//! written.

pub mod evict;
