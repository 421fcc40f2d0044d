//! What of an action may still be done to a node as it is now, and what is written
//! for it.
//!
//! Pure. The decision was made on an earlier reading; what is refused here is left
//! to the next turn.

use crate::act::ledger::Ledger;
use crate::act::reason;
use crate::act::standing;
use crate::act::standing::Owner;
use crate::gate::sight::carries;
use crate::gate::sight::words;
use crate::model::action::Action;
use crate::model::action::ActionKind;
use crate::model::action::ActionResult;
use crate::model::action::Mark;
use crate::model::change::Change;
use crate::model::change::StateChange;
use crate::model::kubernetes_node::GATE;
use crate::model::live::LiveNode;

/// The change of state that an action takes now, or why it is not carried out.
pub(super) fn state(
    action: &Action,
    node: &LiveNode,
    ledger: &Ledger,
    run: &str,
    epoch: u64,
) -> Result<Option<StateChange>, (ActionResult, String)> {
    let own = ledger.drains.get(&action.node);
    let is_ours = own
        .is_some_and(|it| standing::has_drain(node) && carries(node, &it.action.reason))
        && !standing::is_of_another_gate(node, ledger);
    // Whatever else is wrong with a node: what others wrote there is theirs.
    let refuse = |why: String| match standing::owner(node, ledger) {
        Owner::Other(_) => (ActionResult::Superseded, why),
        _ => (ActionResult::Refused, why),
    };
    let superseded = || (ActionResult::Superseded, format!("it is another's: {}", words(node)));
    if let Some(why) = action.mark.as_ref().and_then(|mark| has_booted(node, mark)) {
        return Err(refuse(why));
    }
    match action.kind {
        // As an earlier version proposed it: the node itself is not to be drained.
        ActionKind::Drain if action.device.is_some() => {
            let why = "no single GPU is taken out any more".to_owned();
            Err((ActionResult::Refused, why))
        }
        ActionKind::Drain => {
            if is_ours && own.is_some_and(|drain| drain.run == run) {
                // Its record has the reason that stands there, and the runs that
                // it passed since: a second one would lose both.
                return Err((ActionResult::Already, words(node)));
            }
            if let Some(why) = standing::may_not_drain(node, ledger) {
                return Err(refuse(why));
            }
            if standing::has_drain(node) || node.reason.as_deref().is_some_and(is_foreign) {
                return Err(superseded());
            }
            // A drain that the controller lost is made again as it was: it is the same one.
            let same = own.filter(|own| own.run == run && own.action.reason == action.reason);
            let reason = match same.filter(|_| reason::read(&action.reason).is_some()) {
                Some(own) => own.action.reason.clone(),
                None => reason::write(run, &class(action), epoch),
            };
            Ok(Some(StateChange::Drain { reason }))
        }
        ActionKind::Relabel => match standing::may_not_drain(node, ledger) {
            Some(why) => Err(refuse(why)),
            None => Ok(None),
        },
        ActionKind::Certify => match standing::may_not_certify(node) {
            Some(why) => Err(refuse(why)),
            None => Ok(None),
        },
        ActionKind::Release => {
            if own.is_none() {
                let why = "the journal knows of no drain of ours that could be ended".to_owned();
                return Err((ActionResult::Refused, why));
            }
            if !standing::has_drain(node) {
                return Err((ActionResult::Already, words(node)));
            }
            if !is_ours {
                return Err(superseded());
            }
            match standing::may_not_release(node, ledger) {
                Some(why) => Err(refuse(why)),
                None => Ok(Some(StateChange::Resume)),
            }
        }
    }
}

/// Why what was measured is of no use any more: the node has booted since the
/// decision. Where nobody names boots, the decision alone has looked at that.
fn has_booted(node: &LiveNode, mark: &Mark) -> Option<String> {
    let (then, now) = (mark.boot_id.as_ref()?, node.boot_id.as_ref()?);
    (then != now).then(|| "it has booted since it was measured".to_owned())
}

/// Says on a node of Kubernetes which gate drains it, and takes that back with the
/// drain. What of a drain is written on Slurm is its reason alone.
pub(super) fn sign(change: &mut Change, node: &LiveNode, ledger: &Ledger) {
    let Some(seen) = &node.kubernetes else { return };
    let gate = match &change.state {
        Some(StateChange::Drain { .. }) => Some(ledger.gate.clone()),
        Some(StateChange::Resume) if seen.annotations.contains_key(GATE) => None,
        Some(StateChange::Resume) | None => return,
    };
    change.kubernetes.get_or_insert_default().annotations.insert(GATE.to_owned(), gate);
}

fn is_foreign(reason: &str) -> bool {
    !reason.trim().is_empty() && !reason::is_ours(reason)
}

/// The class that a drain's reason names.
fn class(action: &Action) -> String {
    let of_mark =
        action.mark.as_ref().and_then(|mark| mark.class.as_ref()).map(ToString::to_string);
    let of_reason = || reason::read(&action.reason).map(|own| own.class);
    of_mark.or_else(of_reason).unwrap_or_else(|| "fault".to_owned())
}
