//! What a node shows of a change that was tried on it.
//!
//! Pure: a node as it is, as it was, and what was written. An error of the call
//! that wrote it plays no part: only what shows counts.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use crate::act::plane::Plane;
use crate::act::standing;
use crate::model::change::Change;
use crate::model::change::StateChange;
use crate::model::kubernetes_node::Condition;
use crate::model::kubernetes_node::GATE;
use crate::model::kubernetes_node::KubernetesMarks;
use crate::model::kubernetes_node::KubernetesNode;
use crate::model::kubernetes_node::Taint;
use crate::model::kubernetes_node::TaintEdit;
use crate::model::live::LiveNode;
use crate::model::text;

/// What a node shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// What was written, in these words.
    Shows(String),
    /// It is not there; the node looks like this.
    NotThere(String),
    /// Somebody else's hand: they wrote this.
    Foreign(String),
}

/// What this node shows of a change.
pub(super) fn sight(node: &LiveNode, before: &LiveNode, change: &Change) -> Sight {
    let now = words(node);
    if is_another(node, before) {
        return Sight::Foreign(format!("another node has its name now: {now}"));
    }
    let marks = |shown: String| match unwritten(node, change).or_else(|| untold(node, change)) {
        None => Sight::Shows(shown),
        Some(what) => Sight::Shows(format!("{shown}; {what} not as written")),
    };
    match &change.state {
        Some(StateChange::Drain { reason })
            if standing::has_drain(node)
                && carries(node, reason)
                && !is_of_another_gate(node, change) =>
        {
            match standing::is_drained(node) {
                true => marks(now),
                false => marks(format!("{now}, draining: {} still run", Plane::of(node).work())),
            }
        }
        Some(StateChange::Drain { .. }) => match &node.reason {
            Some(_) if node.reason != before.reason => Sight::Foreign(now),
            // A taint of our key that somebody set by hand has no reason of ours.
            None if node.kubernetes.is_some()
                && standing::has_drain(node)
                && !standing::has_drain(before) =>
            {
                Sight::Foreign(now)
            }
            _ => Sight::NotThere(now),
        },
        Some(StateChange::Resume) if !standing::has_drain(node) => marks(now),
        Some(StateChange::Resume) => match &before.reason {
            Some(reason) if carries(node, reason) => Sight::NotThere(now),
            _ => Sight::Foreign(now),
        },
        None => match unwritten(node, change) {
            None => match untold(node, change) {
                None => Sight::Shows("it says so".to_owned()),
                // It is written last and by itself, and a gate may lack that right.
                Some(what) if !writes_only_a_condition(change) => {
                    Sight::Shows(format!("it says so; {what} not as written"))
                }
                Some(_) if condition(node) != condition(before) => {
                    Sight::Foreign(format!("somebody else wrote other words on it: {now}"))
                }
                Some(what) => Sight::NotThere(format!("{what} not as written")),
            },
            Some(_) if unwritten(node, &as_it_was(before, change)).is_some() => {
                Sight::Foreign(format!("somebody else wrote other words on it: {now}"))
            }
            Some(what) => Sight::NotThere(format!("{what} not as written")),
        },
    }
}

/// Whether the node's reason is this one, or this one with words that Slurm
/// appended. `e1` is not the beginning of `e12`.
pub(super) fn carries(node: &LiveNode, reason: &str) -> bool {
    let rest = node.reason.as_deref().and_then(|own| own.strip_prefix(reason));
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
}

/// Whether another gate wrote the same reason: of the same run, in a turn of its
/// own with the same number.
fn is_of_another_gate(node: &LiveNode, change: &Change) -> bool {
    let gate = change.kubernetes.as_ref().and_then(|it| it.annotations.get(GATE));
    let is = node.kubernetes.as_ref().and_then(|it| it.annotations.get(GATE));
    gate.is_some_and(|gate| gate.as_ref() != is)
}

/// A node's state and reason, for people.
pub(super) fn words(node: &LiveNode) -> String {
    let state = node.state.join("+");
    match &node.reason {
        Some(reason) => {
            let by = node.reason_by.as_deref().map(|by| format!(" by {by}")).unwrap_or_default();
            text::clean(&format!("{state}, {reason:?}{by}"))
        }
        None => text::clean(&state),
    }
}

/// Whether the node shows all of a change but its state, which is not looked at.
pub(super) fn says(node: &LiveNode, change: &Change) -> bool {
    unwritten(node, change).is_none() && untold(node, change).is_none()
}

/// Whether it is another node of the same name.
fn is_another(node: &LiveNode, before: &LiveNode) -> bool {
    let uid = |node: &LiveNode| node.kubernetes.as_ref().map(|it| it.uid.clone());
    uid(before).is_some_and(|before| uid(node) != Some(before))
}

fn condition(node: &LiveNode) -> Option<&Condition> {
    node.kubernetes.as_ref()?.condition.as_ref()
}

/// The same, for whoever notes it.
pub(super) fn is_untold(node: &LiveNode, change: &Change) -> bool {
    untold(node, change).is_some()
}

/// Whether the node does not show the condition that a change writes.
fn untold(node: &LiveNode, change: &Change) -> Option<&'static str> {
    let wanted = change.kubernetes.as_ref()?.condition.as_ref()?;
    (condition(node) != Some(wanted)).then_some("its condition is")
}

fn writes_only_a_condition(change: &Change) -> bool {
    let condition = change.kubernetes.as_ref().and_then(|it| it.condition.clone());
    let only = KubernetesMarks { condition, ..KubernetesMarks::default() };
    *change == Change { kubernetes: Some(only), ..Change::default() }
}

/// What of a change, besides the state, the node does not show.
fn unwritten(node: &LiveNode, change: &Change) -> Option<&'static str> {
    let same = |wanted: &Option<Vec<String>>, is: &[String]| {
        // Slurm keeps features in an order of its own.
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
        return Some("its field for programs is");
    }
    if !is(&change.comment, &node.comment) {
        return Some("its comment is");
    }
    unmarked(node, change.kubernetes.as_ref()?)
}

/// What of these marks a node does not show; its condition is not looked at.
fn unmarked(node: &LiveNode, wanted: &KubernetesMarks) -> Option<&'static str> {
    let nothing = KubernetesNode::default();
    let is = node.kubernetes.as_deref().unwrap_or(&nothing);
    let shows = |wanted: &BTreeMap<String, Option<String>>, is: &BTreeMap<String, String>| {
        wanted.iter().all(|(key, value)| is.get(key) == value.as_ref())
    };
    if !wanted.taints.iter().all(|edit| taint(is, edit).as_ref() == edit.value.as_ref()) {
        return Some("its taints are");
    }
    if !shows(&wanted.labels, &is.labels) {
        return Some("its labels are");
    }
    (!shows(&wanted.annotations, &is.annotations)).then_some("its annotations are")
}

/// The value of the taint that an edit concerns.
fn taint(node: &KubernetesNode, edit: &TaintEdit) -> Option<String> {
    let is_it = |taint: &&Taint| taint.key == edit.key && taint.effect == edit.effect;
    node.taints.iter().find(is_it).map(|taint| taint.value.clone())
}

/// What would put back the marks that these write, but for the condition.
fn marks_as_they_were(before: &LiveNode, wanted: &KubernetesMarks) -> KubernetesMarks {
    let nothing = KubernetesNode::default();
    let was = before.kubernetes.as_deref().unwrap_or(&nothing);
    let words = |wanted: &BTreeMap<String, Option<String>>, was: &BTreeMap<String, String>| {
        wanted.keys().map(|key| (key.clone(), was.get(key).cloned())).collect()
    };
    let edit = |edit: &TaintEdit| TaintEdit { value: taint(was, edit), ..edit.clone() };
    KubernetesMarks {
        taints: wanted.taints.iter().map(edit).collect(),
        labels: words(&wanted.labels, &was.labels),
        annotations: words(&wanted.annotations, &was.annotations),
        condition: None,
    }
}

/// What would put back the fields that a change writes, besides the state.
fn as_it_was(before: &LiveNode, change: &Change) -> Change {
    Change {
        state: None,
        available_features: change
            .available_features
            .as_ref()
            .map(|_| before.available_features.clone()),
        active_features: change.active_features.as_ref().map(|_| before.active_features.clone()),
        extra: change.extra.as_ref().map(|_| before.extra.clone()),
        comment: change.comment.as_ref().map(|_| before.comment.clone()),
        kubernetes: change.kubernetes.as_ref().map(|it| marks_as_they_were(before, it)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "fabricgate:nvlink-low:r1 e1";

    fn drain() -> Change {
        let state = Some(StateChange::Drain { reason: OURS.to_owned() });
        Change { state, ..Change::default() }
    }

    fn node(state: &[&str], reason: Option<&str>) -> LiveNode {
        LiveNode { reason: reason.map(str::to_owned), ..LiveNode::new("n1", state) }
    }

    #[test]
    fn a_reason_that_slurm_edited_is_still_ours_and_a_longer_one_is_not() {
        for (reason, ours) in [
            (OURS.to_owned(), true),
            (format!("{OURS} : Not responding"), true),
            (format!("{OURS}2"), false),
            (format!("x{OURS}"), false),
            (String::new(), false),
        ] {
            assert_eq!(carries(&node(&["IDLE", "DRAIN"], Some(&reason)), OURS), ours, "{reason}");
        }
    }

    #[test]
    fn a_drain_shows_with_its_reason_and_not_by_its_state_alone() {
        let before = node(&["IDLE"], None);
        let see = |now: &LiveNode| sight(now, &before, &drain());
        assert!(matches!(see(&node(&["IDLE", "DRAIN"], Some(OURS))), Sight::Shows(_)));
        assert!(matches!(see(&node(&["MIXED", "DRAIN"], Some(OURS))), Sight::Shows(_)));
        assert!(matches!(see(&node(&["IDLE"], None)), Sight::NotThere(_)));
        assert!(matches!(see(&node(&["IDLE", "DRAIN"], Some("psu"))), Sight::Foreign(_)));
        assert!(matches!(see(&node(&["IDLE"], Some(OURS))), Sight::Foreign(_)));
    }

    #[test]
    fn a_release_shows_when_no_drain_is_left() {
        let before = node(&["IDLE", "DRAIN"], Some(OURS));
        let change = Change { state: Some(StateChange::Resume), ..Change::default() };
        let see = |now: &LiveNode| sight(now, &before, &change);
        assert!(matches!(see(&node(&["IDLE", "NOT_RESPONDING"], None)), Sight::Shows(_)));
        assert!(matches!(see(&before), Sight::NotThere(_)));
        assert!(matches!(see(&node(&["IDLE", "DRAIN"], Some("psu"))), Sight::Foreign(_)));
    }

    #[test]
    fn words_on_a_node_show_whole_or_not() {
        let before = node(&["IDLE"], None);
        let list = |words: &[&str]| words.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let change = Change {
            available_features: Some(list(&["a", "b"])),
            extra: Some("x".to_owned()),
            ..Change::default()
        };
        let mut now = before.clone();
        assert!(matches!(sight(&now, &before, &change), Sight::NotThere(_)));
        now.available_features = list(&["b", "a"]);
        assert!(matches!(sight(&now, &before, &change), Sight::Foreign(_)), "only a part of it");
        now.extra = "x".to_owned();
        assert!(matches!(sight(&now, &before, &change), Sight::Shows(_)));
        now.extra = "hers".to_owned();
        assert!(matches!(sight(&now, &before, &change), Sight::Foreign(_)));
    }

    fn of_cluster(uid: &str, change: impl FnOnce(&mut KubernetesNode)) -> LiveNode {
        let mut kubernetes = KubernetesNode { uid: uid.to_owned(), ..KubernetesNode::default() };
        change(&mut kubernetes);
        LiveNode { kubernetes: Some(Box::new(kubernetes)), ..node(&["IDLE"], None) }
    }

    fn marked(status: Option<&str>) -> Change {
        let condition = status.map(|status| Condition {
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
        let marks = KubernetesMarks {
            taints: vec![edit],
            labels: [(key, Some("pass".to_owned()))].into(),
            condition,
            ..KubernetesMarks::default()
        };
        Change { kubernetes: Some(marks), ..Change::default() }
    }

    #[test]
    fn marks_on_a_kubernetes_node_show_whole_or_are_not_there() {
        let unverified = Taint {
            key: "fabricgate.io/unverified".to_owned(),
            value: String::new(),
            effect: "NoSchedule".to_owned(),
        };
        let before = of_cluster("u1", |it| it.taints.push(unverified.clone()));
        let see = |now: &LiveNode, change: &Change| sight(now, &before, change);
        assert!(matches!(see(&before, &marked(None)), Sight::NotThere(_)));
        let label = |it: &mut KubernetesNode, value: &str| {
            it.labels.insert("fabricgate.io/verdict".to_owned(), value.to_owned());
        };
        let done = of_cluster("u1", |it| label(it, "pass"));
        assert_eq!(see(&done, &marked(None)), Sight::Shows("it says so".to_owned()));
        // No right to the condition: the rest is done, and that is said.
        let Sight::Shows(words) = see(&done, &marked(Some("True"))) else { panic!("shows") };
        assert!(words.contains("its condition is not as written"), "{words}");
        let hers = of_cluster("u1", |it| {
            label(it, "hers");
            it.taints.push(unverified.clone());
        });
        assert!(matches!(see(&hers, &marked(None)), Sight::Foreign(_)));
        let cordoned = LiveNode { state: vec!["IDLE".into(), "CORDONED".into()], ..done.clone() };
        assert!(matches!(see(&cordoned, &marked(None)), Sight::Shows(_)));
        let another = of_cluster("u2", |it| label(it, "pass"));
        assert!(matches!(see(&another, &marked(None)), Sight::Foreign(_)));
    }

    #[test]
    fn a_condition_alone_shows_or_does_not() {
        let written = |status: &str| {
            let mut change = marked(Some(status));
            let marks = change.kubernetes.as_mut().expect("marks");
            (marks.taints, marks.labels) = (Vec::new(), BTreeMap::new());
            change
        };
        let change = written("True");
        let wanted = change.kubernetes.clone().expect("marks").condition;
        let other = written("False").kubernetes.expect("marks").condition;
        let before = of_cluster("u1", |_| {});
        let see = |condition: Option<Condition>| {
            sight(&of_cluster("u1", |it| it.condition = condition), &before, &change)
        };
        assert!(matches!(see(wanted), Sight::Shows(_)));
        assert!(matches!(see(None), Sight::NotThere(_)));
        assert!(matches!(see(other), Sight::Foreign(_)));
    }

    #[test]
    fn a_cordon_beside_our_drain_plays_no_part_and_a_taint_set_by_hand_does() {
        let before = of_cluster("u1", |_| {});
        let with = |state: &[&str], reason: Option<&str>| LiveNode {
            kubernetes: before.kubernetes.clone(),
            ..node(state, reason)
        };
        let see = |now: &LiveNode| sight(now, &before, &drain());
        assert!(matches!(see(&with(&["IDLE", "DRAIN", "CORDONED"], Some(OURS))), Sight::Shows(_)));
        assert!(matches!(see(&with(&["IDLE", "CORDONED"], None)), Sight::NotThere(_)));
        assert!(matches!(see(&with(&["IDLE", "DRAIN"], None)), Sight::Foreign(_)));
    }
}
