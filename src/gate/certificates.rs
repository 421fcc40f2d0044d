//! Certificates on disk: one file a node in the gate's state folder, written
//! whole or not at all.

/// The folder inside the gate's state folder.
pub const FOLDER: &str = "certificates";
