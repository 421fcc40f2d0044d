//! Opens what makes claims: files, commands, servers. Hands their text to
//! `inventory`, which reads it, and decides nothing.
//!
//! A source that does not answer is a problem in its [`Said`](model::said::Said),
//! never an error of the whole: the others stay usable.

pub mod files;
pub mod http;
pub mod input_file;
pub mod kubernetes;
pub mod nodes;
pub mod ray;
pub mod slurm;
pub mod slurmrestd;
pub mod tls;
