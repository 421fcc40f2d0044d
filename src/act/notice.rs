//! What the scheduler and a run show about our own earlier actions: a drain
//! that a person took away, a drained node that passed.
//!
//! Pure: it says what should be written into the journal; `gate` writes it.

use super::situation::Situation;
use crate::model::journal::Event;

/// What should be noted before anything is decided, each once.
pub fn events(situation: &Situation<'_>) -> Vec<Event> {
    let _ = situation;
    Vec::new()
}
