//! Where to place work: the best-connected GPUs or nodes, by what was measured.
//!
//! Pure: a map in, a choice with its bound out. What was not measured connects
//! nobody; nothing here reserves or starts anything.

pub mod best_subset;
pub mod map;
pub mod strength_matrix;
mod placement;

pub use placement::PlacementRequest;
pub use placement::PlacementChoice;
pub use placement::ExcludedPart;
pub use placement::PlacementLevel;
pub use placement::NextBestSet;
pub use placement::PLACEMENT_FORMAT;
pub use placement::PlacementPair;
pub use placement::PlacementPart;
pub use placement::Placement;
pub use placement::PlacementError;
pub use placement::PlacementRule;
pub use placement::choose_placement;
