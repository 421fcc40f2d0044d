//! `nvidia-smi`: one file per subcommand that is read.

pub mod nvlink;
pub mod query;
pub mod topo;
