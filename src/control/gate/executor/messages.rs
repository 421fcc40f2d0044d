//! Progress messages of a plan's execution.
//!
//! Pure.

use std::collections::BTreeMap;

use super::UpdateGroup;
use model::action::ActionKind;
use model::id::NodeName;
use model::node_update::NodeStateChange;
use model::{hostlist, text};

/// Messages about the actions that begin, one per distinct text with all its nodes.
pub(super) fn describe_start(groups: &[UpdateGroup<'_>]) -> Vec<String> {
    let mut messages: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for group in groups {
        let words = match &group.change.state {
            Some(NodeStateChange::Drain { reason }) => {
                format!("draining {{}}: {}", text::clean(reason))
            }
            Some(NodeStateChange::Resume) => "releasing {}".to_owned(),
            None => "marking {}".to_owned(),
        };
        let nodes = group.ready.iter().map(|it| it.item.action.node.as_str());
        messages.entry(words).or_default().extend(nodes);
    }
    let list = |nodes: Vec<&str>| text::clean(&hostlist::fold(nodes));
    messages.into_iter().map(|(words, nodes)| words.replacen("{}", &list(nodes), 1)).collect()
}

/// Messages about changes without a journaled outcome, for example because the disk is
/// full.
pub(super) fn describe_unjournaled(nodes: &BTreeMap<NodeName, ActionKind>) -> Vec<String> {
    let mut by_kind: BTreeMap<ActionKind, Vec<&str>> = BTreeMap::new();
    for (node, kind) in nodes {
        by_kind.entry(*kind).or_default().push(node.as_str());
    }
    let describe = |(kind, nodes): (ActionKind, Vec<&str>)| {
        let done = match kind {
            ActionKind::Drain => "drain requested",
            ActionKind::Release => "released",
            ActionKind::Relabel | ActionKind::Certify => "marked",
        };
        let list = text::clean(&hostlist::fold(nodes));
        format!("{list}: {done}, but the outcome could not be journaled; the next turn checks")
    };
    by_kind.into_iter().map(describe).collect()
}
