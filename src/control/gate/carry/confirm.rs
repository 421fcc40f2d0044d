//! Looking at what was changed: until it shows, and once more when it can no
//! longer be lost.
//!
//! What a node shows, [`sight`] says; what the scheduler acknowledged plays no
//! part in that.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::{Begun, Turn, state};
use crate::gate::journal::JournalError;
use crate::gate::scheduler::SchedulerError;
use crate::gate::sight;
use crate::gate::sight::{Sight, sight};
use engine::policy::node_state;
use model::action::ActionResult;
use model::id::NodeName;
use model::journal::JournalEvent;
use model::node_update::{NodeStateChange, NodeUpdate};
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::source_report::SourceProblemKind;
use model::{hostlist, text};

/// How often a node is looked at, at first and at last.
const GLANCES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

impl<'p> Turn<'_, 'p> {
    /// Looks at nodes until each shows what was written, or something else, or
    /// the time is over.
    pub(super) async fn observe(
        &self,
        begun: &[Begun<'p>],
        patience: Duration,
        until: Until,
    ) -> Seen {
        let deadline = Instant::now() + patience;
        let mut seen = Seen::default();
        let mut pause = GLANCES.0;
        loop {
            let is_open = |begun: &&Begun<'_>| match seen.nodes.get(&begun.item.action.node) {
                Some((Sight::NotThere(_), node)) => {
                    until == Until::Shown || node_state::is_transient(node)
                }
                Some(_) => false,
                None => true,
            };
            let open: Vec<&Begun<'p>> = begun.iter().filter(is_open).collect();
            if open.is_empty() {
                break;
            }
            let nodes: Vec<NodeName> = open.iter().map(|it| it.item.action.node.clone()).collect();
            match self.carrier.scheduler.read(&nodes).await {
                Ok(live) => {
                    seen.silent = None;
                    seen.unread = live.troubles.first().cloned();
                    for begun in open {
                        let name = &begun.item.action.node;
                        match live.nodes.get(name) {
                            Some(node) => {
                                let sight = sight(node, &begun.before, &begun.change);
                                seen.nodes.insert(name.clone(), (sight, node.clone()));
                            }
                            None => {
                                seen.nodes.remove(name);
                            }
                        }
                    }
                }
                Err(error) => seen.silent = Some(error),
            }
            if deadline <= Instant::now() {
                break;
            }
            sleep(pause.min(deadline - Instant::now())).await;
            pause = (2 * pause).min(GLANCES.1);
        }
        seen
    }

    /// Looks once more at changes of state when they can no longer be lost; one
    /// that was is made again, once.
    pub(super) async fn confirm(&mut self) -> Result<(), JournalError> {
        // What the scheduler said to whatever was made again.
        let mut again: BTreeMap<String, Result<(), SchedulerError>> = BTreeMap::new();
        loop {
            let pending = std::mem::take(&mut self.pending);
            if pending.is_empty() {
                return Ok(());
            }
            if !self.kept.is_zero() {
                (self.carrier.say)("waiting until what was changed is kept");
            }
            sleep_until(self.changed + self.kept).await;
            let seen = self.observe(&pending, self.carrier.settle, Until::Known).await;
            let is_lost = |begun: &Begun<'_>| matches!(seen.of(begun), Some(Sight::NotThere(_)));
            let controller = match pending.iter().any(is_lost) {
                true => self.started().await?,
                false => None,
            };
            let mut undone = Vec::new();
            let mut concluded = Vec::new();
            let mut lost: BTreeMap<NodeUpdate, Vec<Begun<'p>>> = BTreeMap::new();
            for begun in pending {
                let second = again.get(&begun.id);
                let (result, detail) = match seen.of(&begun) {
                    _ if seen.silent.is_some() => {
                        let last = not_there(None, &Ok(()), &seen);
                        (ActionResult::Unknown, last.1)
                    }
                    Some(Sight::Shows(detail)) if second.is_some() => {
                        (ActionResult::Done, format!("{detail}; done twice, it was lost once"))
                    }
                    Some(Sight::Shows(detail)) => (ActionResult::Done, detail),
                    Some(Sight::Foreign(detail)) => (ActionResult::Superseded, detail),
                    Some(Sight::NotThere(detail))
                        if self.was_undone(&begun, &seen, controller.as_ref()) =>
                    {
                        undone.push((begun, detail));
                        continue;
                    }
                    Some(Sight::NotThere(detail)) => match (second, self.refusal(&begun, &seen)) {
                        (Some(Ok(())), _) => (
                            ActionResult::Failed,
                            format!("acknowledged twice and not there: {detail}"),
                        ),
                        // Whoever did not answer in time may still do it.
                        (Some(said), _) => not_there(Some(&Sight::NotThere(detail)), said, &seen),
                        (None, Some(why)) => {
                            (ActionResult::Failed, format!("lost, {detail}: {why}"))
                        }
                        (None, None) => {
                            lost.entry(begun.change.clone()).or_default().push(begun);
                            continue;
                        }
                    },
                    None => (ActionResult::Unknown, "the scheduler no longer knows it".to_owned()),
                };
                concluded.push((begun, result, detail));
            }
            self.conclude(concluded, &seen)?;
            self.respect(undone)?;
            for (change, lost) in lost {
                let nodes: Vec<NodeName> =
                    lost.iter().map(|it| it.item.action.node.clone()).collect();
                let list = hostlist::fold(nodes.iter().map(NodeName::as_str));
                (self.carrier.say)(&format!("{list}: it was acknowledged and lost; once more"));
                // Its intent is open in the journal all the while.
                let now = seen.live(&nodes);
                let said = self.carrier.scheduler.change_as_seen(&nodes, &change, &now).await;
                again.extend(lost.iter().map(|it| (it.id.clone(), said.clone())));
                self.changed = Instant::now();
                self.pending.extend(lost);
            }
        }
    }

    /// Whether a person took away the drain that was made a moment ago: the controller
    /// loses nothing without a start, and a person's RESUME leaves our words in Extra.
    fn was_undone(&self, begun: &Begun<'_>, seen: &Seen, controller: Option<&String>) -> bool {
        let is_drain = matches!(begun.change.state, Some(NodeStateChange::Drain { .. }));
        let Some((_, node)) = seen.nodes.get(&begun.item.action.node).filter(|_| is_drain) else {
            return false;
        };
        let extra = begun.change.extra.as_ref();
        if extra.is_some_and(|extra| *extra == node.extra) {
            return true;
        }
        let is_same = self.controller.as_ref().zip(controller).map(|(then, now)| then == now);
        begun.was_shown && is_same.unwrap_or(extra.is_none())
    }

    /// Writes down what a person undid right after we did it: it was there, and it is
    /// respected like any other undo.
    fn respect(&mut self, undone: Vec<(Begun<'p>, String)>) -> Result<(), JournalError> {
        let mut events = Vec::new();
        for (begun, now) in &undone {
            let detail = format!("it was there, and somebody took it away: {now}");
            let (node, id) = (begun.item.action.node.clone(), begun.id.clone());
            let (result, said) = (ActionResult::Done, text::clean(&detail));
            events.push(JournalEvent::Outcome { id: id.clone(), result, detail: said.clone() });
            events.push(JournalEvent::Undone { node, id, detail: said });
        }
        self.carrier.journal.write_all(events)?;
        for (begun, now) in undone {
            self.unwritten.remove(&begun.item.action.node);
            let detail = format!("undone by hand within moments, and that is respected: {now}");
            self.settle(begun.item, ActionResult::Superseded, &detail);
        }
        Ok(())
    }

    /// Why a change that was lost must not be made again.
    fn refusal(&self, begun: &Begun<'_>, seen: &Seen) -> Option<String> {
        let (_, node) = seen.nodes.get(&begun.item.action.node)?;
        let journal = &*self.carrier.journal;
        let state = state(begun.item.action, node, journal.ledger(), self.run, journal.epoch());
        match state {
            Ok(state) if state == begun.change.state => None,
            Ok(_) => Some("the node is another than it was".to_owned()),
            Err((_, why)) => Some(why),
        }
    }
}

/// How long nodes are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// What was written may still come.
    Shown,
    /// It is there by now or was lost; after a restart of the controller it
    /// takes seconds until a node's state says anything.
    Known,
}

/// What was seen of nodes at last.
#[derive(Debug, Default)]
pub(super) struct Seen {
    nodes: BTreeMap<NodeName, (Sight, SchedulerNode)>,
    /// The scheduler did not answer at last.
    pub(super) silent: Option<SchedulerError>,
    /// What of its last answer could not be read: who is missing there may be
    /// known to it all the same.
    unread: Option<String>,
}

impl Seen {
    /// These nodes as they were seen last.
    fn live(&self, nodes: &[NodeName]) -> SchedulerSnapshot {
        let node = |name: &NodeName| Some((name.clone(), self.nodes.get(name)?.1.clone()));
        SchedulerSnapshot { nodes: nodes.iter().filter_map(node).collect(), troubles: Vec::new() }
    }

    /// Whether the server did not take the condition that goes with it.
    pub(super) fn is_untold(&self, begun: &Begun<'_>) -> bool {
        let seen = self.nodes.get(&begun.item.action.node);
        seen.is_some_and(|(_, node)| sight::is_untold(node, &begun.change))
    }

    pub(super) fn of(&self, begun: &Begun<'_>) -> Option<Sight> {
        self.nodes.get(&begun.item.action.node).map(|(sight, _)| sight.clone())
    }
}

/// How an action ended whose change does not show.
pub(super) fn not_there(
    last: Option<&Sight>,
    said: &Result<(), SchedulerError>,
    seen: &Seen,
) -> (ActionResult, String) {
    let now = match last {
        Some(Sight::NotThere(now)) => now.as_str(),
        _ => "the scheduler does not know the node",
    };
    match (said, seen.silent.as_ref()) {
        (Err(told), Some(error)) => {
            (ActionResult::Unknown, format!("{told}; then it could not be looked at: {error}"))
        }
        (Ok(()), Some(error)) => (
            ActionResult::Unknown,
            format!("acknowledged; then it could not be looked at: {error}"),
        ),
        // Whatever did not answer in time may still do as it was told.
        (Err(told), None) if told.kind == SourceProblemKind::Unreachable => {
            (ActionResult::Unknown, format!("{told}; it does not show yet: {now}"))
        }
        (Err(told), None) => match &seen.unread {
            Some(unread) if last.is_none() => {
                (ActionResult::Unknown, format!("{told}; then it could not be read: {unread}"))
            }
            _ => (ActionResult::Failed, format!("{told}; it does not show: {now}")),
        },
        (Ok(()), None) if last.is_none() => (ActionResult::Unknown, now.to_owned()),
        (Ok(()), None) => (ActionResult::Failed, format!("acknowledged and not there: {now}")),
    }
}
