//! The events of a plan's execution that concern several nodes: equal ones are merged.
//!
//! Pure.

use std::collections::BTreeMap;

use super::UpdateGroup;
use crate::gate::gate_event::{GateEvent, StartedUpdate};
use model::action::ActionKind;
use model::id::NodeName;
use model::node_update::NodeStateChange;
use model::{hostlist, text};

/// The updates that begin, each with all its nodes.
pub(super) fn started_updates(groups: &[UpdateGroup<'_>]) -> Vec<GateEvent> {
    let mut started: BTreeMap<StartedUpdate, Vec<&str>> = BTreeMap::new();
    for group in groups {
        let update = match &group.change.state {
            Some(NodeStateChange::Drain { reason }) => {
                StartedUpdate::Drain { reason: text::clean(reason) }
            }
            Some(NodeStateChange::Resume) => StartedUpdate::Release,
            None => StartedUpdate::Mark,
        };
        let nodes = group.ready.iter().map(|it| it.item.action.node.as_str());
        started.entry(update).or_default().extend(nodes);
    }
    let event = |(update, nodes)| GateEvent::UpdateStarted { update, nodes: fold_clean(nodes) };
    started.into_iter().map(event).collect()
}

/// The changes without a journaled outcome.
pub(super) fn unjournaled_outcomes(nodes: &BTreeMap<NodeName, ActionKind>) -> Vec<GateEvent> {
    let mut by_kind: BTreeMap<ActionKind, Vec<&str>> = BTreeMap::new();
    for (node, kind) in nodes {
        by_kind.entry(*kind).or_default().push(node.as_str());
    }
    let event = |(kind, nodes)| GateEvent::OutcomeUnjournaled { kind, nodes: fold_clean(nodes) };
    by_kind.into_iter().map(event).collect()
}

fn fold_clean(nodes: Vec<&str>) -> String {
    text::clean(&hostlist::fold(nodes))
}
