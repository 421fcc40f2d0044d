//! Whether a node may be measured now, by how it stands with its scheduler.
//!
//! Pure. What is not known here is a reason to leave the node alone.

use crate::policy::journal_state::JournalState;
use crate::policy::node_state;
use crate::policy::node_state::DrainOwner;
use model::kubernetes_node::{Taint, UNVERIFIED};
use model::scheduler_snapshot::SchedulerNode;
use model::text::clean;

/// Words of nodes that others keep, or that are going: whatever else is said of
/// them, they are not measured.
const KEPT_BY_OTHERS: &[(&str, &str)] = &[
    (node_state::CORDONED, "somebody cordoned it (spec.unschedulable)"),
    ("TAINTED", "somebody's taint keeps pods away from it"),
    ("DELETING", "it is being deleted"),
    ("NOT_READY", "it is not ready"),
    ("TESTING", "somebody else is measuring it"),
];

/// Whether nothing is known of it yet, as the taint with which it joined says.
pub(super) fn is_unverified(node: &SchedulerNode) -> bool {
    let tainted = |taints: &[Taint]| taints.iter().any(|taint| taint.key == UNVERIFIED);
    node.has_state(node_state::UNVERIFIED)
        || node.kubernetes.as_ref().is_some_and(|it| tainted(&it.taints))
}

/// Why it is not measured now; `None` where it may be.
pub(super) fn explain_ineligible(node: &SchedulerNode, ledger: &JournalState) -> Option<String> {
    if let Some(why) = explain_kept(node) {
        return Some(why);
    }
    if !node_state::has_drain(node) {
        return node_state::explain_no_measurement(&without_startup_taint(node));
    }
    match node_state::drain_owner(node, ledger) {
        DrainOwner::ThisGate(_) => {}
        // Its words name whoever drained it.
        _ => return node_state::explain_no_measurement(&without_startup_taint(node)),
    }
    if let Some(why) = node_state::appended_text(node) {
        return Some(why);
    }
    let node = without_startup_taint(node);
    if node_state::is_transient(&node) {
        return Some("its state is one of a moment".to_owned());
    }
    (!node_state::is_drained(&node)).then(|| "its jobs have not ended".to_owned())
}

/// Whether it is idle and in service, so that it can be measured beside others.
pub(super) fn is_idle_in_service(node: &SchedulerNode) -> bool {
    explain_kept(node).is_none() && node_state::explain_no_measurement(node).is_none()
}

/// Why somebody would mind.
fn explain_kept(node: &SchedulerNode) -> Option<String> {
    if let Some(marks) = node.kubernetes.as_ref().filter(|it| !it.left_alone.is_empty()) {
        let marks: Vec<String> = marks.left_alone.iter().map(|mark| clean(mark)).collect();
        return Some(format!("it is left alone: {}", marks.join(", ")));
    }
    if node.kubernetes.as_ref().is_some_and(|it| it.cordoned) {
        return Some(KEPT_BY_OTHERS[0].1.to_owned());
    }
    KEPT_BY_OTHERS.iter().find(|(word, _)| node.has_state(word)).map(|(_, why)| (*why).to_owned())
}

/// The node as if its start-up taint were gone: it keeps jobs away, and nobody
/// who measures.
fn without_startup_taint(node: &SchedulerNode) -> SchedulerNode {
    let mut node = node.clone();
    if node.has_state(node_state::UNVERIFIED) {
        node.state.retain(|word| word != node_state::UNVERIFIED);
        if node.state.is_empty() {
            node.state.push("IDLE".to_owned());
        }
    }
    node
}
