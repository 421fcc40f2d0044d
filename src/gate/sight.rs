//! What a node shows of a change that was tried on it.
//!
//! Pure: a node as it is, as it was, and what was written. An error of the call
//! that wrote it plays no part: only what shows counts.

use std::collections::BTreeSet;

use crate::act::standing;
use crate::measure::text;
use crate::model::change::Change;
use crate::model::change::StateChange;
use crate::model::live::LiveNode;

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
    let marks = |shown: String| match unwritten(node, change) {
        None => Sight::Shows(shown),
        Some(what) => Sight::Shows(format!("{shown}; {what} not as written")),
    };
    match &change.state {
        Some(StateChange::Drain { reason })
            if standing::has_drain(node) && carries(node, reason) =>
        {
            let jobs = if standing::is_drained(node) { "" } else { ", draining: jobs still run" };
            marks(format!("{now}{jobs}"))
        }
        Some(StateChange::Drain { .. }) => match &node.reason {
            Some(_) if node.reason != before.reason => Sight::Foreign(now),
            _ => Sight::NotThere(now),
        },
        Some(StateChange::Resume) if !standing::has_drain(node) => marks(now),
        Some(StateChange::Resume) => match &before.reason {
            Some(reason) if carries(node, reason) => Sight::NotThere(now),
            _ => Sight::Foreign(now),
        },
        None => match unwritten(node, change) {
            None => Sight::Shows("it says so".to_owned()),
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
    unwritten(node, change).is_none()
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
    let place = node.topology.as_deref().unwrap_or_default();
    (!is(&change.topology, place)).then_some("its place in the topology is")
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
        topology: change.topology.as_ref().map(|_| before.topology.clone().unwrap_or_default()),
        kubernetes: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "fabricgate:r1:nvlink-low e1";

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
}
