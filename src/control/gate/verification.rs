//! Checks whether a node shows an attempted change.
//!
//! Pure: compares the node now, the node before, and the change. An error of the call
//! that made the change is irrelevant: only the node's state counts.

use std::collections::{BTreeMap, BTreeSet};

use engine::policy::node_state;
use engine::policy::situation::SchedulerKind;
use model::kubernetes_node::{
    FabricNodeCondition, GATE, KubernetesNode, KubernetesNodeUpdate, Taint, TaintEdit,
};
use model::node_update::{NodeStateChange, NodeUpdate};
use model::scheduler_snapshot::SchedulerNode;
use model::text;

/// Result of comparing a node with an attempted change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChangeObservation {
    /// The change is visible; the text describes the node.
    Applied(String),
    /// The change is not visible; the text describes the node.
    Missing(String),
    /// Another writer changed the node since; the text describes the node.
    Overwritten(String),
}

/// Compares a node with the change that was attempted on it.
pub(super) fn verify_change(
    node: &SchedulerNode,
    before: &SchedulerNode,
    change: &NodeUpdate,
) -> ChangeObservation {
    let now = describe_node(node);
    if is_replaced(node, before) {
        return ChangeObservation::Overwritten(format!("another node has its name: {now}"));
    }
    let marks = |shown: String| match missing_field(node, change)
        .or_else(|| missing_condition(node, change))
    {
        None => ChangeObservation::Applied(shown),
        Some(what) => ChangeObservation::Applied(format!("{shown}; {what} not as written")),
    };
    match &change.state {
        Some(NodeStateChange::Drain { reason })
            if node_state::has_drain(node)
                && has_reason(node, reason)
                && !is_of_another_gate(node, change) =>
        {
            match node_state::is_drained(node) {
                true => marks(now),
                false => marks(format!(
                    "{now}, draining: {} still run",
                    SchedulerKind::from_node(node).workload_name()
                )),
            }
        }
        Some(NodeStateChange::Drain { .. }) => match &node.reason {
            Some(_) if node.reason != before.reason => ChangeObservation::Overwritten(now),
            // A taint with fabricgate's key that was set manually has no fabricgate
            // reason.
            None if node.kubernetes.is_some()
                && node_state::has_drain(node)
                && !node_state::has_drain(before) =>
            {
                ChangeObservation::Overwritten(now)
            }
            _ => ChangeObservation::Missing(now),
        },
        Some(NodeStateChange::Resume) if !node_state::has_drain(node) => marks(now),
        Some(NodeStateChange::Resume) => match &before.reason {
            Some(reason) if has_reason(node, reason) => ChangeObservation::Missing(now),
            _ => ChangeObservation::Overwritten(now),
        },
        None => match missing_field(node, change) {
            None => match missing_condition(node, change) {
                None => ChangeObservation::Applied("as written".to_owned()),
                // The condition is written last, in a separate request, and the gate may
                // lack the permission for it.
                Some(what) if !is_condition_only(change) => {
                    ChangeObservation::Applied(format!("written, but {what} not as written"))
                }
                Some(_) if fabric_condition(node) != fabric_condition(before) => {
                    ChangeObservation::Overwritten(format!(
                        "another writer changed these fields since: {now}"
                    ))
                }
                Some(what) => ChangeObservation::Missing(format!("{what} not as written")),
            },
            Some(_) if missing_field(node, &restore_fields(before, change)).is_some() => {
                ChangeObservation::Overwritten(format!(
                    "another writer changed these fields since: {now}"
                ))
            }
            Some(what) => ChangeObservation::Missing(format!("{what} not as written")),
        },
    }
}

/// Whether the node's reason is this one, with or without a suffix added by Slurm. `e1`
/// is not a prefix match for `e12`.
pub(super) fn has_reason(node: &SchedulerNode, reason: &str) -> bool {
    let rest = node.reason.as_deref().and_then(|own| own.strip_prefix(reason));
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
}

/// Whether another gate wrote the same reason: for the same run, in a turn with the same
/// number.
fn is_of_another_gate(node: &SchedulerNode, change: &NodeUpdate) -> bool {
    let gate = change.kubernetes.as_ref().and_then(|it| it.annotations.get(GATE));
    let is = node.kubernetes.as_ref().and_then(|it| it.annotations.get(GATE));
    gate.is_some_and(|gate| gate.as_ref() != is)
}

/// A node's state and reason, for messages.
pub(super) fn describe_node(node: &SchedulerNode) -> String {
    let state = node.state.join("+");
    match &node.reason {
        Some(reason) => {
            let by = node.reason_by.as_deref().map(|by| format!(" by {by}")).unwrap_or_default();
            text::clean(&format!("{state}, {reason:?}{by}"))
        }
        None => text::clean(&state),
    }
}

/// Whether the node shows the whole change; the scheduler state is not compared.
pub(super) fn has_change(node: &SchedulerNode, change: &NodeUpdate) -> bool {
    missing_field(node, change).is_none() && missing_condition(node, change).is_none()
}

/// Whether a different node now has the same name.
fn is_replaced(node: &SchedulerNode, before: &SchedulerNode) -> bool {
    let uid = |node: &SchedulerNode| node.kubernetes.as_ref().map(|it| it.uid.clone());
    uid(before).is_some_and(|before| uid(node) != Some(before))
}

fn fabric_condition(node: &SchedulerNode) -> Option<&FabricNodeCondition> {
    node.kubernetes.as_ref()?.condition.as_ref()
}

/// Like `missing_condition`, as a flag for the journal.
pub(super) fn is_condition_missing(node: &SchedulerNode, change: &NodeUpdate) -> bool {
    missing_condition(node, change).is_some()
}

/// The condition of the change, if the node does not show it.
fn missing_condition(node: &SchedulerNode, change: &NodeUpdate) -> Option<&'static str> {
    let wanted = change.kubernetes.as_ref()?.condition.as_ref()?;
    (fabric_condition(node) != Some(wanted)).then_some("its condition is")
}

fn is_condition_only(change: &NodeUpdate) -> bool {
    let condition = change.kubernetes.as_ref().and_then(|it| it.condition.clone());
    let only = KubernetesNodeUpdate { condition, ..KubernetesNodeUpdate::default() };
    *change == NodeUpdate { kubernetes: Some(only), ..NodeUpdate::default() }
}

/// The first field of the change, other than the state, that the node does not show.
fn missing_field(node: &SchedulerNode, change: &NodeUpdate) -> Option<&'static str> {
    let same = |wanted: &Option<Vec<String>>, is: &[String]| {
        // Slurm reorders features.
        let set = |words: &[String]| words.iter().cloned().collect::<BTreeSet<String>>();
        wanted.as_deref().is_none_or(|wanted| set(wanted) == set(is))
    };
    let is = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|it| it == is);
    if !same(&change.available_features, &node.available_features)
        || !same(&change.active_features, &node.active_features)
    {
        return Some("its features are");
    }
    if !is(&change.extra, &node.extra) {
        return Some("its extra field is");
    }
    if !is(&change.comment, &node.comment) {
        return Some("its comment is");
    }
    missing_mark(node, change.kubernetes.as_ref()?)
}

/// The first of these marks that the node does not show. The condition is not compared.
fn missing_mark(node: &SchedulerNode, wanted: &KubernetesNodeUpdate) -> Option<&'static str> {
    let nothing = KubernetesNode::default();
    let is = node.kubernetes.as_deref().unwrap_or(&nothing);
    let shows = |wanted: &BTreeMap<String, Option<String>>, is: &BTreeMap<String, String>| {
        wanted.iter().all(|(key, value)| is.get(key) == value.as_ref())
    };
    if !wanted.taints.iter().all(|edit| taint_value(is, edit).as_ref() == edit.value.as_ref()) {
        return Some("its taints are");
    }
    if !shows(&wanted.labels, &is.labels) {
        return Some("its labels are");
    }
    (!shows(&wanted.annotations, &is.annotations)).then_some("its annotations are")
}

/// The value of the taint that the edit targets.
fn taint_value(node: &KubernetesNode, edit: &TaintEdit) -> Option<String> {
    let is_it = |taint: &&Taint| taint.key == edit.key && taint.effect == edit.effect;
    node.taints.iter().find(is_it).map(|taint| taint.value.clone())
}

/// The update that restores the marks written by `wanted`, except the condition.
fn restore_marks(before: &SchedulerNode, wanted: &KubernetesNodeUpdate) -> KubernetesNodeUpdate {
    let nothing = KubernetesNode::default();
    let was = before.kubernetes.as_deref().unwrap_or(&nothing);
    let words = |wanted: &BTreeMap<String, Option<String>>, was: &BTreeMap<String, String>| {
        wanted.keys().map(|key| (key.clone(), was.get(key).cloned())).collect()
    };
    let edit = |edit: &TaintEdit| TaintEdit { value: taint_value(was, edit), ..edit.clone() };
    KubernetesNodeUpdate {
        taints: wanted.taints.iter().map(edit).collect(),
        labels: words(&wanted.labels, &was.labels),
        annotations: words(&wanted.annotations, &was.annotations),
        condition: None,
    }
}

/// The update that restores the fields written by `change`, except the state.
fn restore_fields(before: &SchedulerNode, change: &NodeUpdate) -> NodeUpdate {
    NodeUpdate {
        state: None,
        available_features: change
            .available_features
            .as_ref()
            .map(|_| before.available_features.clone()),
        active_features: change.active_features.as_ref().map(|_| before.active_features.clone()),
        extra: change.extra.as_ref().map(|_| before.extra.clone()),
        comment: change.comment.as_ref().map(|_| before.comment.clone()),
        kubernetes: change.kubernetes.as_ref().map(|it| restore_marks(before, it)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "fabricgate:nvlink-low:r1 e1";

    fn drain() -> NodeUpdate {
        let state = Some(NodeStateChange::Drain { reason: OURS.to_owned() });
        NodeUpdate { state, ..NodeUpdate::default() }
    }

    fn node(state: &[&str], reason: Option<&str>) -> SchedulerNode {
        SchedulerNode { reason: reason.map(str::to_owned), ..SchedulerNode::new("n1", state) }
    }

    #[test]
    fn a_reason_that_slurm_extended_still_matches_and_a_longer_one_does_not() {
        for (reason, ours) in [
            (OURS.to_owned(), true),
            (format!("{OURS} : Not responding"), true),
            (format!("{OURS}2"), false),
            (format!("x{OURS}"), false),
            (String::new(), false),
        ] {
            assert_eq!(
                has_reason(&node(&["IDLE", "DRAIN"], Some(&reason)), OURS),
                ours,
                "{reason}"
            );
        }
    }

    #[test]
    fn a_drain_is_visible_by_its_reason_and_not_by_its_state_alone() {
        let before = node(&["IDLE"], None);
        let see = |now: &SchedulerNode| verify_change(now, &before, &drain());
        assert!(matches!(
            see(&node(&["IDLE", "DRAIN"], Some(OURS))),
            ChangeObservation::Applied(_)
        ));
        assert!(matches!(
            see(&node(&["MIXED", "DRAIN"], Some(OURS))),
            ChangeObservation::Applied(_)
        ));
        assert!(matches!(see(&node(&["IDLE"], None)), ChangeObservation::Missing(_)));
        assert!(matches!(
            see(&node(&["IDLE", "DRAIN"], Some("psu"))),
            ChangeObservation::Overwritten(_)
        ));
        assert!(matches!(see(&node(&["IDLE"], Some(OURS))), ChangeObservation::Overwritten(_)));
    }

    #[test]
    fn a_release_is_visible_when_no_drain_is_left() {
        let before = node(&["IDLE", "DRAIN"], Some(OURS));
        let change = NodeUpdate { state: Some(NodeStateChange::Resume), ..NodeUpdate::default() };
        let see = |now: &SchedulerNode| verify_change(now, &before, &change);
        assert!(matches!(
            see(&node(&["IDLE", "NOT_RESPONDING"], None)),
            ChangeObservation::Applied(_)
        ));
        assert!(matches!(see(&before), ChangeObservation::Missing(_)));
        assert!(matches!(
            see(&node(&["IDLE", "DRAIN"], Some("psu"))),
            ChangeObservation::Overwritten(_)
        ));
    }

    #[test]
    fn texts_on_a_node_count_only_if_complete() {
        let before = node(&["IDLE"], None);
        let list = |words: &[&str]| words.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let change = NodeUpdate {
            available_features: Some(list(&["a", "b"])),
            extra: Some("x".to_owned()),
            ..NodeUpdate::default()
        };
        let mut now = before.clone();
        assert!(matches!(verify_change(&now, &before, &change), ChangeObservation::Missing(_)));
        now.available_features = list(&["b", "a"]);
        assert!(
            matches!(verify_change(&now, &before, &change), ChangeObservation::Overwritten(_)),
            "only a part of it"
        );
        now.extra = "x".to_owned();
        assert!(matches!(verify_change(&now, &before, &change), ChangeObservation::Applied(_)));
        now.extra = "hers".to_owned();
        assert!(matches!(verify_change(&now, &before, &change), ChangeObservation::Overwritten(_)));
    }

    fn kubernetes_node(uid: &str, change: impl FnOnce(&mut KubernetesNode)) -> SchedulerNode {
        let mut kubernetes = KubernetesNode { uid: uid.to_owned(), ..KubernetesNode::default() };
        change(&mut kubernetes);
        SchedulerNode { kubernetes: Some(Box::new(kubernetes)), ..node(&["IDLE"], None) }
    }

    fn marked_update(status: Option<&str>) -> NodeUpdate {
        let condition = status.map(|status| FabricNodeCondition {
            status: status.to_owned(),
            reason: "Measured".to_owned(),
            message: String::new(),
        });
        let key = "fabricgate.io/verdict".to_owned();
        let edit = TaintEdit {
            key: "fabricgate.io/unverified".to_owned(),
            effect: "NoSchedule".to_owned(),
            value: None,
        };
        let marks = KubernetesNodeUpdate {
            taints: vec![edit],
            labels: [(key, Some("pass".to_owned()))].into(),
            condition,
            ..KubernetesNodeUpdate::default()
        };
        NodeUpdate { kubernetes: Some(marks), ..NodeUpdate::default() }
    }

    #[test]
    fn marks_on_a_kubernetes_node_count_only_if_complete() {
        let unverified = Taint {
            key: "fabricgate.io/unverified".to_owned(),
            value: String::new(),
            effect: "NoSchedule".to_owned(),
        };
        let before = kubernetes_node("u1", |it| it.taints.push(unverified.clone()));
        let see = |now: &SchedulerNode, change: &NodeUpdate| verify_change(now, &before, change);
        assert!(matches!(see(&before, &marked_update(None)), ChangeObservation::Missing(_)));
        let label = |it: &mut KubernetesNode, value: &str| {
            it.labels.insert("fabricgate.io/verdict".to_owned(), value.to_owned());
        };
        let done = kubernetes_node("u1", |it| label(it, "pass"));
        assert_eq!(
            see(&done, &marked_update(None)),
            ChangeObservation::Applied("as written".to_owned())
        );
        // Without permission for the condition, the rest is done, and the detail reports
        // it.
        let ChangeObservation::Applied(words) = see(&done, &marked_update(Some("True"))) else {
            panic!("shows")
        };
        assert!(words.contains("its condition is not as written"), "{words}");
        let hers = kubernetes_node("u1", |it| {
            label(it, "hers");
            it.taints.push(unverified.clone());
        });
        assert!(matches!(see(&hers, &marked_update(None)), ChangeObservation::Overwritten(_)));
        let cordoned =
            SchedulerNode { state: vec!["IDLE".into(), "CORDONED".into()], ..done.clone() };
        assert!(matches!(see(&cordoned, &marked_update(None)), ChangeObservation::Applied(_)));
        let another = kubernetes_node("u2", |it| label(it, "pass"));
        assert!(matches!(see(&another, &marked_update(None)), ChangeObservation::Overwritten(_)));
    }

    #[test]
    fn a_condition_alone_is_visible_or_missing() {
        let written = |status: &str| {
            let mut change = marked_update(Some(status));
            let marks = change.kubernetes.as_mut().expect("marks");
            (marks.taints, marks.labels) = (Vec::new(), BTreeMap::new());
            change
        };
        let change = written("True");
        let wanted = change.kubernetes.clone().expect("marks").condition;
        let other = written("False").kubernetes.expect("marks").condition;
        let before = kubernetes_node("u1", |_| {});
        let see = |condition: Option<FabricNodeCondition>| {
            verify_change(&kubernetes_node("u1", |it| it.condition = condition), &before, &change)
        };
        assert!(matches!(see(wanted), ChangeObservation::Applied(_)));
        assert!(matches!(see(None), ChangeObservation::Missing(_)));
        assert!(matches!(see(other), ChangeObservation::Overwritten(_)));
    }

    #[test]
    fn a_cordon_next_to_a_fabricgate_drain_is_ignored_and_a_manual_taint_is_not() {
        let before = kubernetes_node("u1", |_| {});
        let with = |state: &[&str], reason: Option<&str>| SchedulerNode {
            kubernetes: before.kubernetes.clone(),
            ..node(state, reason)
        };
        let see = |now: &SchedulerNode| verify_change(now, &before, &drain());
        assert!(matches!(
            see(&with(&["IDLE", "DRAIN", "CORDONED"], Some(OURS))),
            ChangeObservation::Applied(_)
        ));
        assert!(matches!(see(&with(&["IDLE", "CORDONED"], None)), ChangeObservation::Missing(_)));
        assert!(matches!(see(&with(&["IDLE", "DRAIN"], None)), ChangeObservation::Overwritten(_)));
    }
}
