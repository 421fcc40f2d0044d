//! Whether a node may be measured now, by its scheduler state.
//!
//! Pure. An unknown state is a reason to leave the node alone.

use crate::policy::journal_state::JournalState;
use crate::policy::node_state;
use crate::policy::node_state::DrainOwner;
use model::kubernetes_node::{Taint, UNVERIFIED};
use model::scheduler_snapshot::SchedulerNode;
use model::text::clean;

/// Flags of nodes that others reserve or that are being removed: such nodes are never measured.
const KEPT_BY_OTHERS: &[(&str, &str)] = &[
    (node_state::CORDONED, "it is cordoned (spec.unschedulable)"),
    ("TAINTED", "a taint of others keeps pods away from it"),
    ("DELETING", "it is being deleted"),
    ("NOT_READY", "it is not ready"),
    ("TESTING", "another program is measuring it"),
];

/// Whether it still carries the taint with which it joined.
pub(super) fn is_unverified(node: &SchedulerNode) -> bool {
    let tainted = |taints: &[Taint]| taints.iter().any(|taint| taint.key == UNVERIFIED);
    node.has_state(node_state::UNVERIFIED)
        || node.kubernetes.as_ref().is_some_and(|it| tainted(&it.taints))
}

/// Why it is not measured now; `None` if it may be.
pub(super) fn explain_ineligible(node: &SchedulerNode, ledger: &JournalState) -> Option<String> {
    if let Some(why) = explain_kept(node) {
        return Some(why);
    }
    if !node_state::has_drain(node) {
        return node_state::explain_no_measurement(&without_startup_taint(node));
    }
    match node_state::drain_owner(node, ledger) {
        DrainOwner::ThisGate(_) => {}
        // The explanation names the drain's author.
        _ => return node_state::explain_no_measurement(&without_startup_taint(node)),
    }
    if let Some(why) = node_state::appended_text(node) {
        return Some(why);
    }
    let node = without_startup_taint(node);
    if node_state::is_transient(&node) {
        return Some("its state is transient".to_owned());
    }
    (!node_state::is_drained(&node)).then(|| "its jobs have not ended".to_owned())
}

/// Whether it is idle and in service, so that it can be measured with others.
pub(super) fn is_idle_in_service(node: &SchedulerNode) -> bool {
    explain_kept(node).is_none() && node_state::explain_no_measurement(node).is_none()
}

/// Why a measurement would disturb others.
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

/// The node without its start-up taint, which keeps jobs away but not measurements.
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
