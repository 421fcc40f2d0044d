//! Decides which part of an action is still allowed on a node in its current state, and
//! the change for it.
//!
//! Pure. The plan is based on an earlier reading; an action refused here is left to the
//! next turn.

use crate::gate::verification::{describe_node, has_reason};
use engine::policy::journal_state::JournalState;
use engine::policy::node_state::DrainOwner;
use engine::policy::{drain_reason, node_state};
use model::action::{Action, ActionKind, ActionResult, VerdictMark};
use model::kubernetes_node::GATE;
use model::node_update::{NodeStateChange, NodeUpdate};
use model::scheduler_snapshot::SchedulerNode;

/// The state change of an action on the node as it is now, or why the action is not
/// carried out.
pub(super) fn permit_state_change(
    action: &Action,
    node: &SchedulerNode,
    ledger: &JournalState,
    run: &str,
    epoch: u64,
) -> Result<Option<NodeStateChange>, (ActionResult, String)> {
    let own = ledger.drains.get(&action.node);
    let is_ours = own
        .is_some_and(|it| node_state::has_drain(node) && has_reason(node, &it.action.reason))
        && !node_state::is_of_another_gate(node, ledger);
    // Another writer's drain stays theirs, whatever else is wrong with the node.
    let refuse = |why: String| match node_state::drain_owner(node, ledger) {
        DrainOwner::Other(_) => (ActionResult::Superseded, why),
        _ => (ActionResult::Refused, why),
    };
    let superseded =
        || (ActionResult::Superseded, format!("another owner's drain: {}", describe_node(node)));
    if let Some(why) = action.mark.as_ref().and_then(|mark| explain_reboot(node, mark)) {
        return Err(refuse(why));
    }
    match action.kind {
        // Proposed by an earlier version for one GPU: the whole node must not be drained
        // for it.
        ActionKind::Drain if action.device.is_some() => {
            let why = "this version does not take out single GPUs".to_owned();
            Err((ActionResult::Refused, why))
        }
        ActionKind::Drain => {
            if is_ours && own.is_some_and(|drain| drain.run == run) {
                // The existing drain has its reason and the runs passed since on record:
                // a second one would lose both.
                return Err((ActionResult::Already, describe_node(node)));
            }
            if let Some(why) = node_state::explain_no_drain(node, ledger) {
                return Err(refuse(why));
            }
            if node_state::has_drain(node) || node.reason.as_deref().is_some_and(is_foreign) {
                return Err(superseded());
            }
            // A drain that the controller lost is restored with the same reason: it is
            // the same drain.
            let same = own.filter(|own| own.run == run && own.action.reason == action.reason);
            let reason = match same.filter(|_| drain_reason::parse_reason(&action.reason).is_some())
            {
                Some(own) => own.action.reason.clone(),
                None => drain_reason::format_reason(run, &drain_class(action), epoch),
            };
            Ok(Some(NodeStateChange::Drain { reason }))
        }
        ActionKind::Relabel => match node_state::explain_no_drain(node, ledger) {
            Some(why) => Err(refuse(why)),
            None => Ok(None),
        },
        ActionKind::Certify => match node_state::explain_no_certificate(node) {
            Some(why) => Err(refuse(why)),
            None => Ok(None),
        },
        ActionKind::Release => {
            if own.is_none() {
                let why = "the journal has no fabricgate drain of this node to end".to_owned();
                return Err((ActionResult::Refused, why));
            }
            if !node_state::has_drain(node) {
                return Err((ActionResult::Already, describe_node(node)));
            }
            if !is_ours {
                return Err(superseded());
            }
            match node_state::explain_no_release(node, ledger) {
                Some(why) => Err(refuse(why)),
                None => Ok(Some(NodeStateChange::Resume)),
            }
        }
    }
}

/// Why the measurement is outdated: the node has booted since. Without boot ids, only the
/// decision has checked this.
fn explain_reboot(node: &SchedulerNode, mark: &VerdictMark) -> Option<String> {
    let (then, now) = (mark.boot_id.as_ref()?, node.boot_id.as_ref()?);
    (then != now).then(|| "it has booted since it was measured".to_owned())
}

/// Adds or removes the annotation that names the draining gate on a Kubernetes node. On
/// Slurm a drain consists of its reason only.
pub(super) fn add_gate_annotation(
    change: &mut NodeUpdate,
    node: &SchedulerNode,
    ledger: &JournalState,
) {
    let Some(seen) = &node.kubernetes else { return };
    let gate = match &change.state {
        Some(NodeStateChange::Drain { .. }) => Some(ledger.gate.clone()),
        Some(NodeStateChange::Resume) if seen.annotations.contains_key(GATE) => None,
        Some(NodeStateChange::Resume) | None => return,
    };
    change.kubernetes.get_or_insert_default().annotations.insert(GATE.to_owned(), gate);
}

fn is_foreign(reason: &str) -> bool {
    !reason.trim().is_empty() && !drain_reason::is_ours(reason)
}

/// The class in a drain's reason.
fn drain_class(action: &Action) -> String {
    let of_mark =
        action.mark.as_ref().and_then(|mark| mark.class.as_ref()).map(ToString::to_string);
    let of_reason = || drain_reason::parse_reason(&action.reason).map(|own| own.class);
    of_mark.or_else(of_reason).unwrap_or_else(|| "fault".to_owned())
}
