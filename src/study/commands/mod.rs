//! The commands of the development program.

pub(crate) mod sweeps;
pub(crate) mod year;
