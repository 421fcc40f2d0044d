//! Which of our own drains may be taken back, and which nodes are certified.
//!
//! Pure. A release needs clean runs that were made after the drain, a node that
//! is as we left it, and nothing else; a tripped breaker never blocks one.

use super::policy::Policy;
use super::situation::Situation;
use crate::model::action::Action;
use crate::model::action::Withheld;

/// Releases and certificates that this situation asks for, and what is withheld.
pub fn propose(situation: &Situation<'_>, policy: &Policy) -> (Vec<Action>, Vec<Withheld>) {
    let _ = (situation, policy);
    (Vec::new(), Vec::new())
}
