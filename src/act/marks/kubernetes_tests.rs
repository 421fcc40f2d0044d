//! What is said on a node of Kubernetes.
