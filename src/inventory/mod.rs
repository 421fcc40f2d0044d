//! What each source claims about the fabric.
//!
//! Pure: text in, values out. The files are opened by the shell. Claims are
//! what is tested later, never what a test relies on.

pub mod claims_file;
pub mod hostlist;
pub mod recorded;
