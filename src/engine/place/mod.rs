//! Selects where to place work: the best-connected GPUs or nodes, by measurement.
//!
//! Pure: takes a map, returns a choice with its bound. Parts without a reading are not connected;
//! nothing here reserves or starts anything.

pub mod best_subset;
pub mod map;
mod placement;
pub mod strength_matrix;

pub use placement::{
    ExcludedPart, NextBestSet, PLACEMENT_FORMAT, Placement, PlacementChoice, PlacementError,
    PlacementLevel, PlacementPair, PlacementPart, PlacementRequest, PlacementRule,
    choose_placement,
};
