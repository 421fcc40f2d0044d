//! Applies one change to many nodes, each separately: read, compare with the earlier
//! reading, patch, and write the condition last.
//!
//! After a version conflict the node is read again; a relevant change in between stops
//! the write. The only requests sent are patches of existing nodes.

use std::cell::RefCell;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::client::{ApiRequestFailure, KubernetesApiClient};
use super::patch::NodePatchEdits;
use super::{WriteFence, client, node_conflict, node_reader};
use crate::gate::clock;
use crate::gate::scheduler::SchedulerError;
use engine::policy::drain_reason;
use model::id::NodeName;
use model::node_update::NodeStateChange;
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::source_report::SourceProblemKind;
use model::text::clean;
use readers::claims::kubernetes::live_node::PodsByNode;

/// Attempts per node, however often other writers change it meanwhile.
const MAX_WRITE_ATTEMPTS: u32 = 40;

/// First and longest pause after a conflict, before jitter. A node with eight constant
/// writers is free within milliseconds.
const PAUSE_RANGE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// Nodes named in one error.
const MAX_NAMED_NODES: usize = 3;

/// One change for many nodes.
pub(super) struct NodeWriteRequest {
    pub(super) nodes: Vec<NodeName>,
    pub(super) edits: NodePatchEdits,
    pub(super) state: Option<NodeStateChange>,
    /// The nodes as they were when the change was decided; `None` compares with the first
    /// reading here.
    pub(super) seen: Option<SchedulerSnapshot>,
    pub(super) fence: Option<Arc<dyn WriteFence>>,
}

/// Applies the change. The error gives the number of failed nodes and the reasons.
pub(super) async fn write_nodes(
    client: Rc<KubernetesApiClient>,
    order: NodeWriteRequest,
) -> Result<(), SchedulerError> {
    let order = Rc::new(order);
    let away: Rc<RefCell<Option<String>>> = Rc::default();
    let mut writing = JoinSet::new();
    for name in order.nodes.clone() {
        let (client, order, away) = (client.clone(), order.clone(), away.clone());
        writing.spawn_local(async move {
            let _turn = client.node_permit().await;
            let gone = away.borrow().clone();
            if let Some(why) = gone {
                let message = format!("not tried, the server stopped answering: {why}");
                return Err((name, SchedulerError::new(SourceProblemKind::Unreachable, message)));
            }
            let one = NodeWriter { client: &client, request: &order, name: &name };
            let done = one.write_node().await;
            done.map_err(|error| {
                if error.kind == SourceProblemKind::Unreachable {
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
            Err(error) => return Err(node_reader::join_failure(&error)),
        }
    }
    failed.sort_by(|a, b| a.0.cmp(&b.0));
    combine_failures(&failed, order.nodes.len())
}

/// Combines the errors. If any node may still be written, the whole result is unknown.
fn combine_failures(
    failed: &[(NodeName, SchedulerError)],
    of: usize,
) -> Result<(), SchedulerError> {
    let Some((_, first)) = failed.first() else { return Ok(()) };
    let late = failed.iter().find(|(_, error)| error.kind == SourceProblemKind::Unreachable);
    let kind = late.map_or(first.kind, |(_, error)| error.kind);
    let describe =
        |(name, error): &(NodeName, SchedulerError)| format!("{name}: {}", error.message);
    let named: Vec<String> = failed.iter().take(MAX_NAMED_NODES).map(describe).collect();
    let mut message = match failed.len() {
        1 if of == 1 => first.message.clone(),
        some => format!("{some} of {of} nodes: {}", named.join("; ")),
    };
    if MAX_NAMED_NODES < failed.len() {
        message.push_str(&format!("; and {} more", failed.len() - MAX_NAMED_NODES));
    }
    Err(SchedulerError::new(kind, clean(&message)))
}

enum WriteAttemptFailure {
    /// Further attempts are useless.
    Final(SchedulerError),
    /// Another attempt may succeed.
    Retry(ApiRequestFailure),
}

impl WriteAttemptFailure {
    fn new_final(kind: SourceProblemKind, message: impl Into<String>) -> Self {
        Self::Final(SchedulerError::new(kind, message))
    }

    fn from_failure(refused: ApiRequestFailure) -> Self {
        match refused.status {
            Some(404) => Self::new_final(SourceProblemKind::Missing, NO_SUCH_NODE),
            // A conflict, too many requests, or a transient problem.
            Some(409 | 429 | 500..=599) => Self::Retry(refused),
            None if refused.kind == SourceProblemKind::Unreachable => Self::Retry(refused),
            _ => Self::Final(refused.into()),
        }
    }
}

const NO_SUCH_NODE: &str = "the cluster has no such node, and none is created";

struct NodeWriter<'a> {
    client: &'a KubernetesApiClient,
    request: &'a NodeWriteRequest,
    name: &'a NodeName,
}

impl NodeWriter<'_> {
    /// Writes marks and condition, with retries.
    async fn write_node(&self) -> Result<(), SchedulerError> {
        let mut seen = match &self.request.seen {
            None => None,
            Some(live) => match live.nodes.get(self.name) {
                Some(node) => Some(node.clone()),
                None => {
                    let message = "it was missing from the earlier reading; nothing was written";
                    return Err(SchedulerError::new(SourceProblemKind::Missing, message));
                }
            },
        };
        let deadline = Instant::now() + self.client.limit();
        let mut pauses = RetryPauses::new(deadline);
        let mut node = loop {
            match self.write_marks(&mut seen).await {
                Ok(node) => break node,
                Err(WriteAttemptFailure::Final(error)) => return Err(error),
                Err(WriteAttemptFailure::Retry(refused)) => pauses.pause(refused).await?,
            }
        };
        loop {
            let stop = match self.write_condition(&node).await {
                Ok(()) => return Ok(()),
                Err(stop) => stop,
            };
            match stop {
                WriteAttemptFailure::Retry(refused) => {
                    pauses.pause(refused).await.map_err(condition_error)?;
                }
                // The server rejects another uid as invalid (422).
                WriteAttemptFailure::Final(error) if error.kind != SourceProblemKind::Malformed => {
                    return Err(condition_error(error));
                }
                WriteAttemptFailure::Final(error) => {
                    let is_same = self.reread_node(&node).await.map_err(condition_error)?.is_some();
                    return Err(condition_error(if is_same {
                        error
                    } else {
                        replaced_node_error()
                    }));
                }
            }
            node = self
                .reread_node(&node)
                .await
                .map_err(condition_error)?
                .ok_or_else(|| condition_error(replaced_node_error()))?;
        }
    }

    /// Reads the same node again; `None` if another node has its name.
    async fn reread_node(&self, node: &Value) -> Result<Option<Value>, SchedulerError> {
        let now = self.client.read_node(self.name.as_str()).await?;
        let now =
            now.ok_or_else(|| SchedulerError::new(SourceProblemKind::Missing, NO_SUCH_NODE))?;
        Ok(Some(now).filter(|now| now["metadata"]["uid"] == node["metadata"]["uid"]))
    }

    /// One attempt at metadata and taints; returns the node as stored.
    async fn write_marks(
        &self,
        seen: &mut Option<SchedulerNode>,
    ) -> Result<Value, WriteAttemptFailure> {
        let name = self.name.as_str();
        let object =
            self.client.read_node(name).await.map_err(WriteAttemptFailure::from_failure)?;
        let object = object.ok_or_else(|| {
            WriteAttemptFailure::new_final(SourceProblemKind::Missing, NO_SUCH_NODE)
        })?;
        let malformed = |why| WriteAttemptFailure::new_final(SourceProblemKind::Malformed, why);
        let now =
            node_reader::parse_node(object.clone(), PodsByNode::Unknown).map_err(malformed)?;
        let seen = &*seen.get_or_insert_with(|| now.clone());
        let nothing = |why: String| {
            WriteAttemptFailure::new_final(
                SourceProblemKind::Contradictory,
                format!("{why}; nothing was written"),
            )
        };
        if let Some(why) = node_conflict::explain_replacement(seen, &now) {
            return Err(nothing(why));
        }
        if let Some(why) = explain_forbidden(&self.request.state, &now) {
            return Err(nothing(why));
        }
        let patch = self.request.edits.build_patch(&object);
        let patch = patch.map_err(|why| malformed(format!("{why}; nothing was written")))?;
        // An earlier attempt without an answer may have succeeded.
        let Some(patch) = patch else { return Ok(object) };
        if let Some(why) = node_conflict::explain_conflict(seen, &now) {
            return Err(nothing(format!("it changed after this was decided: {why}")));
        }
        self.check_fence().await?;
        let stored = self
            .client
            .patch_node(name, &patch)
            .await
            .map_err(WriteAttemptFailure::from_failure)?;
        match self.request.edits.find_altered_field(&stored) {
            Some(what) => Err(self.revert_marks(&object, &patch, &stored, what).await),
            None => Ok(stored),
        }
    }

    /// Reverts a drain that the server stored differently from the request. No gate would
    /// recognize it as its own or ever release it.
    async fn revert_marks(
        &self,
        before: &Value,
        patch: &Value,
        stored: &Value,
        what: &str,
    ) -> WriteAttemptFailure {
        let back = match NodePatchEdits::build_revert_patch(before, patch, stored) {
            Ok(back) => self.client.patch_node(self.name.as_str(), &back).await.map(drop),
            Err(why) => Err(client::malformed_failure(why)),
        };
        let then = match back {
            Ok(()) => "so it was reverted".to_owned(),
            Err(refused) => format!("and it could not be reverted: {}", refused.message),
        };
        let message = format!(
            "the cluster stored fabricgate's {what} differently than sent, as an admission \
             policy or webhook does, {then}"
        );
        WriteAttemptFailure::new_final(SourceProblemKind::Contradictory, message)
    }

    /// One attempt at fabricgate's condition.
    async fn write_condition(&self, node: &Value) -> Result<(), WriteAttemptFailure> {
        let now = clock::now().at;
        let Some(patch) = self.request.edits.build_status_patch(node, &now) else { return Ok(()) };
        self.check_fence().await?;
        let result = self.client.patch_node_status(self.name.as_str(), &patch).await;
        result.map(drop).map_err(WriteAttemptFailure::from_failure)
    }

    /// Checks that this instance may still write.
    async fn check_fence(&self) -> Result<(), WriteAttemptFailure> {
        match &self.request.fence {
            None => Ok(()),
            Some(fence) => fence.check().await.map_err(|error| {
                let message = format!("nothing was written: {error}");
                WriteAttemptFailure::Final(SchedulerError::new(error.kind, message))
            }),
        }
    }
}

fn replaced_node_error() -> SchedulerError {
    SchedulerError::new(SourceProblemKind::Contradictory, "another node has its name")
}

/// An error for a write that succeeded except for the condition.
fn condition_error(error: SchedulerError) -> SchedulerError {
    let SchedulerError { kind, message } = error;
    SchedulerError::new(kind, format!("its condition is not written, all else is: {message}"))
}

/// Why the state change is not allowed on the node as it is now.
fn explain_forbidden(state: &Option<NodeStateChange>, now: &SchedulerNode) -> Option<String> {
    if now.has_state("DELETING") {
        return Some("it is being deleted".to_owned());
    }
    if !now.has_state("DRAIN") {
        return None;
    }
    let is = now.reason.as_deref().map_or_else(|| "no reason".to_owned(), clean);
    let is_ours = now.reason.as_deref().and_then(drain_reason::parse_reason).is_some();
    match state {
        Some(NodeStateChange::Drain { reason }) if now.reason.as_deref() != Some(reason) => {
            Some(format!("it is drained already ({is})"))
        }
        Some(NodeStateChange::Resume) if !is_ours => {
            Some(format!("its drain does not have a fabricgate reason ({is})"))
        }
        _ => None,
    }
}

/// Pauses between attempts on one node: as the server requests, otherwise growing, with
/// jitter so that colliding writers do not collide again.
struct RetryPauses {
    deadline: Instant,
    attempt: u32,
    next: Duration,
}

impl RetryPauses {
    fn new(deadline: Instant) -> Self {
        Self { deadline, attempt: 1, next: PAUSE_RANGE.0 }
    }

    /// Waits, or returns the error after the last attempt.
    async fn pause(&mut self, refused: ApiRequestFailure) -> Result<(), SchedulerError> {
        let pause = refused.retry_after.unwrap_or_else(|| add_jitter(self.next));
        if self.attempt == MAX_WRITE_ATTEMPTS || self.deadline < Instant::now() + pause {
            let message = format!("{} (attempt {})", refused.message, self.attempt);
            return Err(SchedulerError::new(refused.kind, message));
        }
        sleep(pause).await;
        self.attempt += 1;
        self.next = (2 * self.next).min(PAUSE_RANGE.1);
        Ok(())
    }
}

/// A random duration between 0.5 and 1.5 times the pause.
fn add_jitter(pause: Duration) -> Duration {
    // The standard library's only source of randomness: hasher keys.
    let drawn = RandomState::new().build_hasher().finish() % 1000;
    let share = u32::try_from(drawn).unwrap_or_default();
    pause / 2 + pause * share / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(name: &str, kind: SourceProblemKind, why: &str) -> (NodeName, SchedulerError) {
        (name.into(), SchedulerError::new(kind, why))
    }

    #[test]
    fn an_error_counts_the_failed_nodes_and_is_unknown_if_any_is() {
        assert_eq!(combine_failures(&[], 3), Ok(()));
        let one = [failure("n1", SourceProblemKind::Denied, "no right")];
        assert_eq!(combine_failures(&one, 1).expect_err("failed").message, "no right");
        let mut many: Vec<_> = (1..=5)
            .map(|i| failure(&format!("n{i}"), SourceProblemKind::Denied, "no\u{1b}"))
            .collect();
        let error = combine_failures(&many, 9).expect_err("failed");
        assert_eq!(error.kind, SourceProblemKind::Denied);
        assert_eq!(error.message, "5 of 9 nodes: n1: no; n2: no; n3: no; and 2 more");
        many[4].1.kind = SourceProblemKind::Unreachable;
        assert_eq!(
            combine_failures(&many, 9).expect_err("failed").kind,
            SourceProblemKind::Unreachable
        );
    }

    #[test]
    fn pauses_grow_and_differ() {
        for pause in [PAUSE_RANGE.0, PAUSE_RANGE.1] {
            let drawn: Vec<Duration> = (0..50).map(|_| add_jitter(pause)).collect();
            assert!(drawn.iter().all(|it| pause / 2 <= *it && *it < pause * 3 / 2), "{drawn:?}");
            assert!(drawn.iter().any(|it| *it != drawn[0]));
        }
    }

    #[test]
    fn a_drain_of_another_owner_is_neither_overwritten_nor_lifted() {
        let drained = |reason: Option<&str>| SchedulerNode {
            reason: reason.map(str::to_owned),
            ..SchedulerNode::new("n1", &["IDLE", "DRAIN"])
        };
        let ours = "fabricgate:nvlink-low:r1 e1";
        let drain = Some(NodeStateChange::Drain { reason: ours.to_owned() });
        let resume = Some(NodeStateChange::Resume);
        assert_eq!(explain_forbidden(&drain, &SchedulerNode::new("n1", &["IDLE"])), None);
        assert_eq!(explain_forbidden(&drain, &drained(Some(ours))), None);
        assert_eq!(explain_forbidden(&resume, &drained(Some(ours))), None);
        for reason in [None, Some("psu"), Some("fabricgate:nvlink-low:r2 e2")] {
            assert!(explain_forbidden(&drain, &drained(reason)).is_some(), "{reason:?}");
        }
        for reason in [None, Some("psu")] {
            assert!(explain_forbidden(&resume, &drained(reason)).is_some(), "{reason:?}");
        }
        assert!(explain_forbidden(&None, &SchedulerNode::new("n1", &["DELETING"])).is_some());
    }
}
