//! Where to place work: the best-connected GPUs or nodes, by what was measured.
//!
//! Pure: a matrix in, a choice with its bound out. What was not measured connects
//! nobody; nothing here reserves or starts anything.

pub mod matrix;
