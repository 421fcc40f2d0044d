//! Opens the sources of claims: files, commands, servers. The text is parsed by `readers::claims`;
//! nothing is decided here.
//!
//! A source that does not answer is a problem in its
//! [`SourceReport`](model::source_report::SourceReport), never an error of the whole: the others
//! stay usable.

pub mod files;
pub mod http;
pub mod input_file;
pub mod kubernetes;
pub mod nodes;
pub mod ray;
pub mod slurm;
pub mod slurmrestd;
pub mod tls;
