//! The gate's view of a scheduler: it reads nodes and changes them, within timeouts.
//!
//! A call that returns an error may still have changed nodes, in whole or in part. Slurm
//! sorts a node list and applies the change up to the first unknown node, and a
//! controller that hangs applies a request later. So an error never means "not done"; the
//! caller reads the nodes again after every change.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use model::id::NodeName;
use model::node_update::NodeUpdate;
use model::scheduler_snapshot::SchedulerSnapshot;
use model::source_report::SourceProblemKind;

/// The boxed future that scheduler methods return.
pub type SchedulerFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, SchedulerError>> + 'a>>;

/// A workload manager that the gate can read and change.
pub trait Scheduler: fmt::Debug {
    /// The scheduler's kind and address, for messages.
    fn name(&self) -> String;

    /// Reads these nodes, or all nodes if the list is empty. Nodes unknown to the
    /// scheduler are absent from the result.
    fn read_nodes<'a>(&'a self, nodes: &'a [NodeName]) -> SchedulerFuture<'a, SchedulerSnapshot>;

    /// The start time of the answering controller as an opaque string; `None` if the
    /// scheduler does not report one. Compare it for equality only.
    fn read_start_time(&self) -> SchedulerFuture<'_, Option<String>> {
        Box::pin(async { Ok(None) })
    }

    /// Applies one change to all of these nodes, in as few calls as possible.
    fn update_nodes<'a>(
        &'a self,
        nodes: &'a [NodeName],
        change: &'a NodeUpdate,
    ) -> SchedulerFuture<'a, ()>;

    /// Like `update_nodes`, but based on an earlier reading. A scheduler with
    /// compare-and-set refuses nodes that changed since; other schedulers write
    /// unconditionally.
    fn update_nodes_if_unchanged<'a>(
        &'a self,
        nodes: &'a [NodeName],
        change: &'a NodeUpdate,
        _seen: &'a SchedulerSnapshot,
    ) -> SchedulerFuture<'a, ()> {
        self.update_nodes(nodes, change)
    }

    /// Whether each node is written on its own and only if unchanged. Then batching nodes
    /// into one call has no benefit, and concurrent changes are safe.
    fn has_conditional_writes(&self) -> bool {
        false
    }

    /// Shell commands with the same effect as `change`, for an operator to run.
    fn command_lines(&self, nodes: &[NodeName], change: &NodeUpdate) -> Vec<Vec<String>>;
}

/// A scheduler call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SchedulerError {
    /// The class of problem.
    pub kind: SourceProblemKind,
    /// The scheduler's message and the remedy.
    pub message: String,
}

impl SchedulerError {
    /// An error of this class.
    pub fn new(kind: SourceProblemKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// Timeouts for scheduler calls and for the changes they make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerTimeouts {
    /// For one call.
    pub limit: Duration,
    /// Until a change becomes visible.
    pub settle: Duration,
    /// Until a visible change is persisted, for Slurm in the controller's state files.
    pub persist: Duration,
    /// How long the scheduler may still apply a change after its sender is gone.
    pub in_flight: Duration,
}
