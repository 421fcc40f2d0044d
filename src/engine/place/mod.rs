//! Where to place work: the best-connected GPUs or nodes, by what was measured.
//!
//! Pure: a map in, a choice with its bound out. What was not measured connects
//! nobody; nothing here reserves or starts anything.

pub mod best_subset;
pub mod map;
mod placement;
pub mod strength_matrix;

pub use placement::{
    ExcludedPart, NextBestSet, PLACEMENT_FORMAT, Placement, PlacementChoice, PlacementError,
    PlacementLevel, PlacementPair, PlacementPart, PlacementRequest, PlacementRule,
    choose_placement,
};
