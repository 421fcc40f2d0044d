//! Certificates on disk: one file a node in the gate's state folder, written
//! whole or not at all.
