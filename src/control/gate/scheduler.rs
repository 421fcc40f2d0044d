//! A scheduler as the gate sees it: it can be asked what it says of nodes, and
//! be told to say something else.
//!
//! A change that came back with an error may have been made, in whole or in
//! part: Slurm sorts a list and goes through it up to the first node that it does
//! not know, and a controller that hangs carries out later what it was told. So an error here
//! is never taken for "not done"; whoever changes something looks again.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use model::id::NodeName;
use model::node_update::NodeUpdate;
use model::scheduler_snapshot::SchedulerSnapshot;
use model::source_report::SourceProblemKind;

/// What a scheduler promises to answer.
pub type SchedulerFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, SchedulerError>> + 'a>>;

/// A scheduler.
pub trait Scheduler: fmt::Debug {
    /// What it is and how it is reached, for people.
    fn name(&self) -> String;

    /// What it says of these nodes, or of all where none is named. Nodes that it
    /// does not know are absent.
    fn read_nodes<'a>(&'a self, nodes: &'a [NodeName]) -> SchedulerFuture<'a, SchedulerSnapshot>;

    /// When the controller that answers started, in its own words; `None` where it does
    /// not say. Only whether it is another than before means something.
    fn read_start_time(&self) -> SchedulerFuture<'_, Option<String>> {
        Box::pin(async { Ok(None) })
    }

    /// Makes one change on all of these nodes, in as few calls as it takes.
    fn update_nodes<'a>(
        &'a self,
        nodes: &'a [NodeName],
        change: &'a NodeUpdate,
    ) -> SchedulerFuture<'a, ()>;

    /// The same, for nodes as whoever decided had read them. Who can compare and
    /// set refuses where a node has become another since; the others write.
    fn update_nodes_if_unchanged<'a>(
        &'a self,
        nodes: &'a [NodeName],
        change: &'a NodeUpdate,
        _seen: &'a SchedulerSnapshot,
    ) -> SchedulerFuture<'a, ()> {
        self.update_nodes(nodes, change)
    }

    /// Whether each node is written by itself, and only as it was seen. Then
    /// nothing is gained by putting nodes into one call, and nothing lost by
    /// making many changes at once.
    fn has_conditional_writes(&self) -> bool {
        false
    }

    /// What `change` would do, as commands that a person could type.
    fn command_lines(&self, nodes: &[NodeName], change: &NodeUpdate) -> Vec<Vec<String>>;
}

/// Why a scheduler did not answer as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SchedulerError {
    /// What kind of trouble it is.
    pub kind: SourceProblemKind,
    /// What it said, and what to do about it.
    pub message: String,
}

impl SchedulerError {
    /// Trouble of this kind.
    pub fn new(kind: SourceProblemKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}
