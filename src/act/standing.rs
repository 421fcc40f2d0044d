//! What a node's state with its scheduler means for us: whether it is in use,
//! whose a drain is, and what may be done to it.
//!
//! Pure. A word that is not known here is a reason to leave the node alone.

use super::ledger::Ledger;
use super::ledger::OwnDrain;
use crate::model::live::LiveNode;

/// Whose a drain is.
#[derive(Clone, Debug, PartialEq)]
pub enum Owner<'a> {
    /// Nobody drained it.
    Nobody,
    /// We did, and our journal knows it.
    Us(&'a OwnDrain),
    /// It carries our prefix, and our journal does not know it: another gate's,
    /// or one whose record was lost.
    Unrecorded,
    /// Somebody else.
    Other(String),
}

/// Whose the drain of this node is.
pub fn owner<'a>(node: &LiveNode, ledger: &'a Ledger) -> Owner<'a> {
    let _ = (node, ledger);
    Owner::Nobody
}

/// Why this node must not be drained or relabelled now; `None` where it may be.
pub fn may_not_drain(node: &LiveNode, ledger: &Ledger) -> Option<String> {
    let _ = (node, ledger);
    None
}

/// Why this node must not be given back now, although we drained it; `None`
/// where it may be.
pub fn may_not_release(node: &LiveNode, ledger: &Ledger) -> Option<String> {
    let _ = (node, ledger);
    None
}

/// Whether a drain of this node has come to its end: `DRAIN` alone does not say
/// so, jobs may still run.
pub fn is_drained(node: &LiveNode) -> bool {
    let _ = node;
    false
}

/// Why this node cannot be measured now as it is; `None` where it is idle and
/// in service.
pub fn may_not_measure(node: &LiveNode) -> Option<String> {
    let _ = node;
    None
}
