//! Tests of all readers of Kubernetes objects, against objects written here.
