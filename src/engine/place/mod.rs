//! Where to place work: the best-connected GPUs or nodes, by what was measured.
//!
//! Pure: a map in, a choice with its bound out. What was not measured connects
//! nobody; nothing here reserves or starts anything.

pub mod choose;
pub mod map;
pub mod matrix;
mod placement;

pub use placement::Asked;
pub use placement::Choice;
pub use placement::Excluded;
pub use placement::Level;
pub use placement::Next;
pub use placement::PLACEMENT_FORMAT;
pub use placement::Pair;
pub use placement::Part;
pub use placement::Placement;
pub use placement::Unplaced;
pub use placement::Way;
pub use placement::place;
