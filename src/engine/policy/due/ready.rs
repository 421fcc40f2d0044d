//! Whether a node may be measured now, by how it stands with its scheduler.
//!
//! Pure. What is not known here is a reason to leave the node alone.

use crate::policy::ledger::Ledger;
use crate::policy::standing;
use crate::policy::standing::Owner;
use model::kubernetes_node::Taint;
use model::kubernetes_node::UNVERIFIED;
use model::live::LiveNode;
use model::text::clean;

/// Words of nodes that others keep, or that are going: whatever else is said of
/// them, they are not measured.
const NOT_OURS: &[(&str, &str)] = &[
    (standing::CORDONED, "somebody cordoned it (spec.unschedulable)"),
    ("TAINTED", "somebody's taint keeps pods away from it"),
    ("DELETING", "it is being deleted"),
    ("NOT_READY", "it is not ready"),
    ("TESTING", "somebody else is measuring it"),
];

/// Whether nothing is known of it yet, as the taint with which it joined says.
pub(super) fn is_unverified(node: &LiveNode) -> bool {
    let tainted = |taints: &[Taint]| taints.iter().any(|taint| taint.key == UNVERIFIED);
    node.is(standing::UNVERIFIED) || node.kubernetes.as_ref().is_some_and(|it| tainted(&it.taints))
}

/// Why it is not measured now; `None` where it may be.
pub(super) fn may_not(node: &LiveNode, ledger: &Ledger) -> Option<String> {
    if let Some(why) = kept(node) {
        return Some(why);
    }
    if !standing::has_drain(node) {
        return standing::may_not_measure(&without_startup(node));
    }
    match standing::owner(node, ledger) {
        Owner::Us(_) => {}
        // Its words name whoever drained it.
        _ => return standing::may_not_measure(&without_startup(node)),
    }
    if let Some(why) = standing::was_added_to(node) {
        return Some(why);
    }
    let node = without_startup(node);
    if standing::is_passing(&node) {
        return Some("its state is one of a moment".to_owned());
    }
    (!standing::is_drained(&node)).then(|| "its jobs have not ended".to_owned())
}

/// Whether it is idle and in service, so that it can be measured beside others.
pub(super) fn is_idle_in_service(node: &LiveNode) -> bool {
    kept(node).is_none() && standing::may_not_measure(node).is_none()
}

/// Why somebody would mind.
fn kept(node: &LiveNode) -> Option<String> {
    if let Some(marks) = node.kubernetes.as_ref().filter(|it| !it.left_alone.is_empty()) {
        let marks: Vec<String> = marks.left_alone.iter().map(|mark| clean(mark)).collect();
        return Some(format!("it is left alone: {}", marks.join(", ")));
    }
    if node.kubernetes.as_ref().is_some_and(|it| it.cordoned) {
        return Some(NOT_OURS[0].1.to_owned());
    }
    NOT_OURS.iter().find(|(word, _)| node.is(word)).map(|(_, why)| (*why).to_owned())
}

/// The node as if its start-up taint were gone: it keeps jobs away, and nobody
/// who measures.
fn without_startup(node: &LiveNode) -> LiveNode {
    let mut node = node.clone();
    if node.is(standing::UNVERIFIED) {
        node.state.retain(|word| word != standing::UNVERIFIED);
        if node.state.is_empty() {
            node.state.push("IDLE".to_owned());
        }
    }
    node
}
