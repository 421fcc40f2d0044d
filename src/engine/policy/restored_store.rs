//! Whether a cluster's store is an older copy than the one with fabricgate's drain.
//!
//! Pure. A user who removes a drain leaves fabricgate's other entries in place and increases the
//! node's version. A restored etcd has the node as it was before.

use super::journal_state::{JournalState, OwnDrain};
use super::{node_state, slurm_extra_field};
use model::kubernetes_node::{CERTIFICATE, KubernetesNode};
use model::node_update::NodeUpdate;
use model::scheduler_snapshot::SchedulerNode;

/// Whether the node is in its state before this drain. Another node of the same name does not
/// count, and neither does one that still carries the reason: a user who removes a taint may leave
/// the reason.
pub(super) fn is_before_drain(
    now: &SchedulerNode,
    drain: &OwnDrain,
    ledger: &JournalState,
) -> bool {
    let both = drain.before.kubernetes.as_deref().zip(now.kubernetes.as_deref());
    let Some((was, is)) = both.filter(|(was, is)| was.uid == is.uid) else { return false };
    !node_state::has_drain_reason(now, drain)
        && (is_older(was, is) || has_marks_before_drain(was, is, drain, ledger))
}

/// The version of an object only increases within one store.
fn is_older(was: &KubernetesNode, is: &KubernetesNode) -> bool {
    let version = |node: &KubernetesNode| node.version.parse::<u64>().ok();
    version(was).zip(version(is)).is_some_and(|(was, is)| is <= was)
}

/// Whether the entries written with the drain's taint are as they were before. If there were
/// none, a user may have removed them; the condition then stays, because no tool removes it.
/// Entries that were never written are no evidence.
fn has_marks_before_drain(
    was: &KubernetesNode,
    is: &KubernetesNode,
    drain: &OwnDrain,
    ledger: &JournalState,
) -> bool {
    let Some(mark) = &drain.action.mark else { return false };
    let Some(under) = ledger.drain_details.get(&drain.action.node) else { return false };
    let certificate = |node: &KubernetesNode| node.annotations.get(CERTIFICATE).cloned();
    let is_of_drain = |text: &String| slurm_extra_field::is_entry_of(text, mark);
    match certificate(was) {
        Some(text) => {
            under.certificate && !is_of_drain(&text) && certificate(is).as_ref() == Some(&text)
        }
        None => {
            let was_none = was.condition.is_none() && under.condition;
            was_none && certificate(is).is_none() && is.condition.is_none()
        }
    }
}

/// The change to repeat a drain that the store lost, without entries that would hide the loss.
pub(super) fn without_traces(
    change: NodeUpdate,
    now: &SchedulerNode,
    ledger: &JournalState,
) -> NodeUpdate {
    let Some(drain) =
        ledger.drains.get(&now.name).filter(|drain| is_before_drain(now, drain, ledger))
    else {
        return change;
    };
    let was = drain.before.kubernetes.as_ref();
    if !was.is_some_and(|was| was.annotations.contains_key(CERTIFICATE)) {
        return NodeUpdate::default();
    }
    let mut change = change;
    if let Some(marks) = &mut change.kubernetes {
        marks.annotations.remove(CERTIFICATE);
        if *marks == Default::default() {
            change.kubernetes = None;
        }
    }
    change
}

#[cfg(test)]
#[path = "restored_store_tests.rs"]
mod tests;
