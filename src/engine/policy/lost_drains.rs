//! fabricgate's drains that are missing from nodes: removed by a user, lost by a controller
//! that forgot its state, or lost by a restored Kubernetes store.
//!
//! Pure. A user who resumes a node leaves fabricgate's entry in `Extra`. A controller that
//! starts without its state, and a node that is removed and created again, lose the entry with
//! the drain.

use std::collections::{BTreeMap, BTreeSet};

use super::journal_state::{JournalState, OwnDrain};
use super::marks::MarkNames;
use super::situation::SchedulerKind;
use super::{node_state, restored_store, slurm_extra_field};
use model::hostlist;
use model::id::NodeName;
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::text::clean;

/// Fewest drains missing in one observation that are significant.
const FEWEST: usize = 2;

/// Slurm's reason for a node that does not respond.
const NOT_RESPONDING: &str = "Not responding";

/// Drains that no user removed, as far as that can be determined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostDrains {
    /// Lost by the scheduler, with the evidence for it.
    pub lost: BTreeMap<NodeName, String>,
    /// All drains in force disappeared when the controller restarted, and no other evidence
    /// shows the cause.
    pub unclear: BTreeSet<NodeName>,
}

impl LostDrains {
    /// Why the breaker trips.
    pub fn explain_trip(&self) -> Option<String> {
        (!self.unclear.is_empty()).then(|| {
            let nodes = hostlist::fold(self.unclear.iter().map(NodeName::as_str));
            format!(
                "the drains of {} disappeared together and the controller has restarted since: \
                 it may have lost its state, and the nodes show no evidence either way",
                clean(&nodes)
            )
        })
    }
}

/// The node, if it does not carry this drain although its state is usable. Excluded: a node
/// that reboots, that has not registered, that fabricgate holds, or with an open action.
pub(super) fn find_undrained<'l>(
    live: &'l SchedulerSnapshot,
    ledger: &JournalState,
    node: &NodeName,
    drain: &OwnDrain,
) -> Option<&'l SchedulerNode> {
    let live = live.nodes.get(node)?;
    let is_held =
        ledger.allocations.values().any(|hold| hold.drained.iter().any(|(n, _)| n == node));
    let is_open = ledger.open_intents.iter().any(|open| open.action.node == *node);
    let is_noted = ledger.undone_drains.get(node).is_some_and(|undone| undone.drain.id == drain.id);
    if node_state::is_transient(live) || is_held || is_open || is_noted {
        return None;
    }
    let stands = node_state::has_drain(live) && node_state::has_own_drain(live, drain, ledger);
    (!stands).then_some(live)
}

/// Whether a drain is gone on any node of Slurm.
pub fn has_undrained(live: &SchedulerSnapshot, ledger: &JournalState) -> bool {
    let is_gone = |(node, drain)| {
        find_undrained(live, ledger, node, drain).is_some_and(|it| is_free(it, drain, ledger))
    };
    ledger.drains.iter().any(is_gone)
}

/// Whether no other drain replaced fabricgate's. Kubernetes keeps accepted changes, unless its
/// store was restored; a node that others keep pods away from waits.
fn is_free(node: &SchedulerNode, drain: &OwnDrain, ledger: &JournalState) -> bool {
    let is_taken = node_state::has_drain(node) || has_foreign_reason(node);
    !is_taken
        && match SchedulerKind::from_node(node) {
            SchedulerKind::Slurm => true,
            SchedulerKind::Kubernetes => {
                restored_store::is_before_drain(node, drain, ledger)
                    && node_state::explain_no_drain(node, ledger).is_none()
            }
        }
}

/// Whether a user wrote its reason. A reason that Slurm wrote itself does not count: a
/// controller without its state may never have contacted the node.
fn has_foreign_reason(node: &SchedulerNode) -> bool {
    let reason = node.reason.as_deref().map(str::trim).unwrap_or_default();
    !reason.is_empty()
        && !reason.starts_with(NOT_RESPONDING)
        && node_state::own_reason(node).is_none()
}

/// Classifies fabricgate's drains that are missing from nodes.
pub fn find_lost_drains(
    live: &SchedulerSnapshot,
    ledger: &JournalState,
    names: &MarkNames,
) -> LostDrains {
    let mut vanished = LostDrains::default();
    let mut shown = 0;
    for (name, drain) in &ledger.drains {
        if !live.nodes.contains_key(name) {
            continue;
        }
        shown += 1;
        let node = find_undrained(live, ledger, name, drain);
        let Some(node) = node.filter(|node| is_free(node, drain, ledger)) else { continue };
        if SchedulerKind::from_node(node) == SchedulerKind::Kubernetes {
            let how = "the node is as it was before the drain: the cluster's store was restored";
            vanished.lost.insert(name.clone(), how.to_owned());
            continue;
        }
        match (extra_entry_state(node, ledger, drain), has_controller_restarted(ledger, name)) {
            (ExtraEntryState::Gone, Some(true)) => {
                let how = "the controller has restarted since, and fabricgate's Extra is gone too";
                vanished.lost.insert(name.clone(), how.to_owned());
            }
            (ExtraEntryState::Gone, None) => {
                let how = "fabricgate's entry in Extra, which a RESUME keeps, is gone with it";
                vanished.lost.insert(name.clone(), how.to_owned());
            }
            (ExtraEntryState::Gone, Some(false)) if names.features && !has_feature(node, names) => {
                let how = "fabricgate's marks are all gone: the node was removed and added again";
                vanished.lost.insert(name.clone(), how.to_owned());
            }
            (ExtraEntryState::Unknown, Some(true)) => {
                vanished.unclear.insert(name.clone());
            }
            _ => {}
        }
    }
    // A user removes a single drain, or some of many.
    let is_all = vanished.unclear.len() + vanished.lost.len() == shown;
    if vanished.unclear.len() < FEWEST || !is_all {
        vanished.unclear.clear();
    }
    vanished
}

/// Whether the controller has restarted since it had this drain.
fn has_controller_restarted(ledger: &JournalState, node: &NodeName) -> Option<bool> {
    let then = ledger.drain_details.get(node)?.controller.as_ref()?;
    Some(then != ledger.controller.as_ref()?)
}

/// The state of fabricgate's entry in `Extra`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExtraEntryState {
    /// It equals fabricgate's last entry.
    Intact,
    /// It is gone, or as it was before the drain.
    Gone,
    /// It was not written, or another program wrote the field.
    Unknown,
}

fn extra_entry_state(
    node: &SchedulerNode,
    ledger: &JournalState,
    drain: &OwnDrain,
) -> ExtraEntryState {
    let recorded = ledger.marks.get(&node.name);
    let is_there = slurm_extra_field::has_entry(&node.extra);
    let was_written =
        ledger.drain_details.get(&node.name).is_some_and(|under| under.extra.is_some())
            || slurm_extra_field::has_entry(&drain.before.extra);
    match slurm_extra_field::read_mark(&node.extra) {
        Some(now) => match recorded {
            Some(recorded) if now.run == recorded.run && now.outcome == recorded.outcome => {
                ExtraEntryState::Intact
            }
            _ if was_written && node.extra == drain.before.extra => ExtraEntryState::Gone,
            _ => ExtraEntryState::Unknown,
        },
        // A user wrote the other text in its place.
        None if is_there
            || slurm_extra_field::parse_keys(&node.extra).is_none()
            || !was_written =>
        {
            ExtraEntryState::Unknown
        }
        None => ExtraEntryState::Gone,
    }
}

fn has_feature(node: &SchedulerNode, names: &MarkNames) -> bool {
    let mut all = node.available_features.iter().chain(&node.active_features);
    all.any(|it| *it == names.verified || *it == names.degraded)
}

#[cfg(test)]
#[path = "lost_drains_tests.rs"]
mod tests;
