//! Writes one change on many nodes, each by itself: read, compare with what was
//! seen, patch, and our condition last.
//!
//! What moved underneath is read anew where it does not matter, and where it does
//! nothing is written. Nothing is sent but patches of nodes that are there.

use std::cell::RefCell;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::hash::Hasher;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio::time::sleep;

use super::Fence;
use super::desk;
use super::desk::Desk;
use super::desk::Refused;
use super::look;
use super::moved;
use super::patch::Edits;
use crate::act::reason;
use crate::gate::scheduler::SchedulerError;
use crate::gate::stamp;
use crate::inventory::kubernetes::live::Pods;
use crate::model::change::StateChange;
use crate::model::id::NodeName;
use crate::model::live::Live;
use crate::model::live::LiveNode;
use crate::model::said::ProblemKind;
use crate::model::text::clean;

/// How often one node is tried, whatever others write there meanwhile.
const ATTEMPTS: u32 = 40;

/// The first pause after a conflict and the longest, before chance is added. A
/// node that eight others write to all the time is free within milliseconds.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// How many nodes an error names.
const NAMED: usize = 3;

/// One change on many nodes.
pub(super) struct Order {
    pub(super) nodes: Vec<NodeName>,
    pub(super) edits: Edits,
    pub(super) state: Option<StateChange>,
    /// The nodes as whoever decided had read them; without that, as they are when
    /// they are read first here.
    pub(super) seen: Option<Live>,
    pub(super) fence: Option<Arc<dyn Fence>>,
}

/// Makes the change; an error tells of how many nodes it failed on and why.
pub(super) async fn write(desk: Rc<Desk>, order: Order) -> Result<(), SchedulerError> {
    let order = Rc::new(order);
    let away: Rc<RefCell<Option<String>>> = Rc::default();
    let mut writing = JoinSet::new();
    for name in order.nodes.clone() {
        let (desk, order, away) = (desk.clone(), order.clone(), away.clone());
        writing.spawn_local(async move {
            let _turn = desk.turn().await;
            let gone = away.borrow().clone();
            if let Some(why) = gone {
                let message = format!("not tried, the server did not answer before: {why}");
                return Err((name, SchedulerError::new(ProblemKind::Unreachable, message)));
            }
            let one = Writing { desk: &desk, order: &order, name: &name };
            let done = one.write().await;
            done.map_err(|error| {
                if error.kind == ProblemKind::Unreachable {
                    away.borrow_mut().get_or_insert_with(|| error.message.clone());
                }
                (name.clone(), error)
            })
        });
    }
    let mut failed = Vec::new();
    while let Some(written) = writing.join_next().await {
        match written {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => failed.push(failure),
            Err(error) => return Err(look::ended(&error)),
        }
    }
    failed.sort_by(|a, b| a.0.cmp(&b.0));
    summed(&failed, order.nodes.len())
}

/// One error of all. Where any node may still be written, all count as unknown.
fn summed(failed: &[(NodeName, SchedulerError)], of: usize) -> Result<(), SchedulerError> {
    let Some((_, first)) = failed.first() else { return Ok(()) };
    let late = failed.iter().find(|(_, error)| error.kind == ProblemKind::Unreachable);
    let kind = late.map_or(first.kind, |(_, error)| error.kind);
    let told = |(name, error): &(NodeName, SchedulerError)| format!("{name}: {}", error.message);
    let named: Vec<String> = failed.iter().take(NAMED).map(told).collect();
    let mut message = match failed.len() {
        1 if of == 1 => first.message.clone(),
        some => format!("{some} of {of} nodes: {}", named.join("; ")),
    };
    if NAMED < failed.len() {
        message.push_str(&format!("; and {} more", failed.len() - NAMED));
    }
    Err(SchedulerError::new(kind, clean(&message)))
}

/// Why an attempt did not succeed.
enum Stop {
    /// It is over.
    For(SchedulerError),
    /// Another attempt may help.
    Again(Refused),
}

impl Stop {
    fn because(kind: ProblemKind, message: impl Into<String>) -> Self {
        Self::For(SchedulerError::new(kind, message))
    }

    /// What a refusal of the server means for further attempts.
    fn of(refused: Refused) -> Self {
        match refused.status {
            Some(404) => Self::because(ProblemKind::Missing, GONE),
            // A conflict, too many requests, or trouble that may pass.
            Some(409 | 429 | 500..=599) => Self::Again(refused),
            None if refused.kind == ProblemKind::Unreachable => Self::Again(refused),
            _ => Self::For(refused.into()),
        }
    }
}

const GONE: &str = "the cluster has no such node; none is created";

/// One node that is written.
struct Writing<'a> {
    desk: &'a Desk,
    order: &'a Order,
    name: &'a NodeName,
}

impl Writing<'_> {
    /// Writes all of it.
    async fn write(&self) -> Result<(), SchedulerError> {
        let mut seen = match &self.order.seen {
            None => None,
            Some(live) => match live.nodes.get(self.name) {
                Some(node) => Some(node.clone()),
                None => {
                    let message = "it was not read before; nothing was written";
                    return Err(SchedulerError::new(ProblemKind::Missing, message));
                }
            },
        };
        let deadline = Instant::now() + self.desk.limit();
        let mut pauses = Pauses::new(deadline);
        let mut node = loop {
            match self.marked(&mut seen).await {
                Ok(node) => break node,
                Err(Stop::For(error)) => return Err(error),
                Err(Stop::Again(refused)) => pauses.pause(refused).await?,
            }
        };
        loop {
            let stop = match self.told(&node).await {
                Ok(()) => return Ok(()),
                Err(stop) => stop,
            };
            match stop {
                Stop::Again(refused) => pauses.pause(refused).await.map_err(but)?,
                // An object of another uid is refused as one that is not valid (422).
                Stop::For(error) if error.kind != ProblemKind::Malformed => return Err(but(error)),
                Stop::For(error) => {
                    let is_same = self.again(&node).await.map_err(but)?.is_some();
                    return Err(but(if is_same { error } else { another() }));
                }
            }
            node = self.again(&node).await.map_err(but)?.ok_or_else(|| but(another()))?;
        }
    }

    /// The same node as it is now; `None` where another has its name.
    async fn again(&self, node: &Value) -> Result<Option<Value>, SchedulerError> {
        let now = self.desk.node(self.name.as_str()).await?;
        let now = now.ok_or_else(|| SchedulerError::new(ProblemKind::Missing, GONE))?;
        Ok(Some(now).filter(|now| now["metadata"]["uid"] == node["metadata"]["uid"]))
    }

    /// One attempt at metadata and taints; the node as it is then.
    async fn marked(&self, seen: &mut Option<LiveNode>) -> Result<Value, Stop> {
        let name = self.name.as_str();
        let object = self.desk.node(name).await.map_err(Stop::of)?;
        let object = object.ok_or_else(|| Stop::because(ProblemKind::Missing, GONE))?;
        let malformed = |why| Stop::because(ProblemKind::Malformed, why);
        let now = look::node(object.clone(), Pods::Unknown).map_err(malformed)?;
        let seen = &*seen.get_or_insert_with(|| now.clone());
        let nothing = |why: String| {
            Stop::because(ProblemKind::Contradictory, format!("{why}; nothing was written"))
        };
        if let Some(why) = moved::is_another(seen, &now) {
            return Err(nothing(why));
        }
        if let Some(why) = forbidden(&self.order.state, &now) {
            return Err(nothing(why));
        }
        let patch = self.order.edits.patch(&object);
        let patch = patch.map_err(|why| malformed(format!("{why}; nothing was written")))?;
        // An earlier attempt that was not answered may have been made.
        let Some(patch) = patch else { return Ok(object) };
        if let Some(why) = moved::moved(seen, &now) {
            return Err(nothing(format!("it is not as it was when this was decided: {why}")));
        }
        self.fenced().await?;
        let stored = self.desk.patch(name, &patch).await.map_err(Stop::of)?;
        match self.order.edits.altered(&stored) {
            Some(what) => Err(self.take_back(&object, &patch, &stored, what).await),
            None => Ok(stored),
        }
    }

    /// A drain that is not stored as it was sent would be nobody's: no gate knows it as its
    /// own, and none would ever give the node back. It is taken back in the same moment.
    async fn take_back(&self, before: &Value, patch: &Value, stored: &Value, what: &str) -> Stop {
        let back = match Edits::back(before, patch, stored) {
            Ok(back) => self.desk.patch(self.name.as_str(), &back).await.map(drop),
            Err(why) => Err(desk::odd(why)),
        };
        let then = match back {
            Ok(()) => "so it was taken back".to_owned(),
            Err(refused) => format!("and it could not be taken back: {}", refused.message),
        };
        let message = format!(
            "the cluster stored our {what} otherwise than it was sent, as an admission policy or \
             webhook does, {then}"
        );
        Stop::because(ProblemKind::Contradictory, message)
    }

    /// One attempt at our condition.
    async fn told(&self, node: &Value) -> Result<(), Stop> {
        let now = stamp::stamp().at;
        let Some(patch) = self.order.edits.status_patch(node, &now) else { return Ok(()) };
        self.fenced().await?;
        let told = self.desk.patch_status(self.name.as_str(), &patch).await;
        told.map(drop).map_err(Stop::of)
    }

    /// Whether it is still ours to write at all.
    async fn fenced(&self) -> Result<(), Stop> {
        match &self.order.fence {
            None => Ok(()),
            Some(fence) => fence.holds().await.map_err(|error| {
                let message = format!("nothing was written: {error}");
                Stop::For(SchedulerError::new(error.kind, message))
            }),
        }
    }
}

fn another() -> SchedulerError {
    SchedulerError::new(ProblemKind::Contradictory, "another node has its name now")
}

/// The rest is written, the condition is not.
fn but(error: SchedulerError) -> SchedulerError {
    let SchedulerError { kind, message } = error;
    SchedulerError::new(kind, format!("its condition is not written, all else is: {message}"))
}

/// Why this change of state must not be made on a node as it is.
fn forbidden(state: &Option<StateChange>, now: &LiveNode) -> Option<String> {
    if now.is("DELETING") {
        return Some("it is being deleted".to_owned());
    }
    if !now.is("DRAIN") {
        return None;
    }
    let is = now.reason.as_deref().map_or_else(|| "no reason".to_owned(), clean);
    let is_ours = now.reason.as_deref().and_then(reason::read).is_some();
    match state {
        Some(StateChange::Drain { reason }) if now.reason.as_deref() != Some(reason) => {
            Some(format!("it is drained already ({is})"))
        }
        Some(StateChange::Resume) if !is_ours => {
            Some(format!("its drain has no reason of ours ({is})"))
        }
        _ => None,
    }
}

/// Pauses between attempts at one node: longer each time, with chance in them so
/// that writers who met once do not meet again, and as the server asks.
struct Pauses {
    deadline: Instant,
    attempt: u32,
    next: Duration,
}

impl Pauses {
    fn new(deadline: Instant) -> Self {
        Self { deadline, attempt: 1, next: PAUSES.0 }
    }

    /// Waits, or says that it is over.
    async fn pause(&mut self, refused: Refused) -> Result<(), SchedulerError> {
        let pause = refused.wait.unwrap_or_else(|| chance(self.next));
        if self.attempt == ATTEMPTS || self.deadline < Instant::now() + pause {
            let message = format!("{} (attempt {})", refused.message, self.attempt);
            return Err(SchedulerError::new(refused.kind, message));
        }
        sleep(pause).await;
        self.attempt += 1;
        self.next = (2 * self.next).min(PAUSES.1);
        Ok(())
    }
}

/// Between half of this and one and a half.
fn chance(pause: Duration) -> Duration {
    // The one source of chance that the standard library has: keys of hashers.
    let drawn = RandomState::new().build_hasher().finish() % 1000;
    let share = u32::try_from(drawn).unwrap_or_default();
    pause / 2 + pause * share / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(name: &str, kind: ProblemKind, why: &str) -> (NodeName, SchedulerError) {
        (name.into(), SchedulerError::new(kind, why))
    }

    #[test]
    fn an_error_says_of_how_many_nodes_and_is_unknown_where_any_is() {
        assert_eq!(summed(&[], 3), Ok(()));
        let one = [failure("n1", ProblemKind::Denied, "no right")];
        assert_eq!(summed(&one, 1).expect_err("failed").message, "no right");
        let mut many: Vec<_> =
            (1..=5).map(|i| failure(&format!("n{i}"), ProblemKind::Denied, "no\u{1b}")).collect();
        let error = summed(&many, 9).expect_err("failed");
        assert_eq!(error.kind, ProblemKind::Denied);
        assert_eq!(error.message, "5 of 9 nodes: n1: no; n2: no; n3: no; and 2 more");
        many[4].1.kind = ProblemKind::Unreachable;
        assert_eq!(summed(&many, 9).expect_err("failed").kind, ProblemKind::Unreachable);
    }

    #[test]
    fn pauses_grow_and_are_never_alike() {
        for pause in [PAUSES.0, PAUSES.1] {
            let drawn: Vec<Duration> = (0..50).map(|_| chance(pause)).collect();
            assert!(drawn.iter().all(|it| pause / 2 <= *it && *it < pause * 3 / 2), "{drawn:?}");
            assert!(drawn.iter().any(|it| *it != drawn[0]));
        }
    }

    #[test]
    fn a_drain_of_somebody_else_is_neither_overwritten_nor_lifted() {
        let drained = |reason: Option<&str>| LiveNode {
            reason: reason.map(str::to_owned),
            ..LiveNode::new("n1", &["IDLE", "DRAIN"])
        };
        let ours = "fabricgate:nvlink-low:r1 e1";
        let drain = Some(StateChange::Drain { reason: ours.to_owned() });
        let resume = Some(StateChange::Resume);
        assert_eq!(forbidden(&drain, &LiveNode::new("n1", &["IDLE"])), None);
        assert_eq!(forbidden(&drain, &drained(Some(ours))), None);
        assert_eq!(forbidden(&resume, &drained(Some(ours))), None);
        for reason in [None, Some("psu"), Some("fabricgate:nvlink-low:r2 e2")] {
            assert!(forbidden(&drain, &drained(reason)).is_some(), "{reason:?}");
        }
        for reason in [None, Some("psu")] {
            assert!(forbidden(&resume, &drained(reason)).is_some(), "{reason:?}");
        }
        assert!(forbidden(&None, &LiveNode::new("n1", &["DELETING"])).is_some());
    }
}
