//! The Kubernetes implementation of [`Scheduler`]: reads nodes with the pods that hold
//! their GPUs, and writes fabricgate's taints, labels, annotations and condition.
//!
//! The caller decides the change. This module checks right before each write that the
//! node is still in the state that the decision was based on. It never creates or cordons
//! a node, and never writes a key of another owner.

mod client;
mod client_thread;
pub mod events;
mod node_conflict;
mod node_reader;
mod node_writer;
mod patch;

use std::fmt;
use std::sync::Arc;

use super::request_validation;
use super::scheduler::{Scheduler, SchedulerError, SchedulerFuture};
use crate::sources::kubernetes::KubernetesClientConfig as Server;
use client_thread::ClientThread;
use engine::policy::command_line;
use model::id::NodeName;
use model::node_update::NodeUpdate;
use model::scheduler_snapshot::SchedulerSnapshot;
use model::source_report::SourceProblemKind;
use model::text::clean;
use node_writer::NodeWriteRequest;
use patch::NodePatchEdits;

/// Permission to write, held by one of several instances. Checked right before every
/// write.
pub trait WriteFence: fmt::Debug + Send + Sync {
    /// Returns an error if writing is not allowed.
    fn check<'a>(&'a self) -> SchedulerFuture<'a, ()>;
}

/// A Kubernetes cluster as a [`Scheduler`].
#[derive(Debug)]
pub struct KubernetesScheduler {
    server: Server,
    fence: Option<Arc<dyn WriteFence>>,
    client_thread: ClientThread,
}

impl KubernetesScheduler {
    /// Prepares access to the cluster without connecting. The limit applies to every
    /// request and to all attempts on one node.
    pub fn new(server: Server) -> Self {
        Self { client_thread: ClientThread::new(server.clone()), server, fence: None }
    }

    /// Adds a fence: every write requires its permission.
    #[must_use]
    pub fn with_fence(self, fence: Arc<dyn WriteFence>) -> Self {
        Self { fence: Some(fence), ..self }
    }

    async fn write_nodes(
        &self,
        nodes: &[NodeName],
        change: &NodeUpdate,
        seen: Option<SchedulerSnapshot>,
    ) -> Result<(), SchedulerError> {
        request_validation::check_update(change)?;
        if let Some(name) = nodes.iter().find(|name| !node_reader::is_object_name(name)) {
            let name = clean(name.as_str());
            return Err(refusal_error(format!("{name:?} is not the name of a node")));
        }
        let edits = NodePatchEdits::from_update(change).map_err(refusal_error)?;
        if nodes.is_empty() || edits == NodePatchEdits::default() {
            return Ok(());
        }
        let order = NodeWriteRequest {
            nodes: nodes.to_vec(),
            edits,
            state: change.state.clone(),
            seen,
            fence: self.fence.clone(),
        };
        self.client_thread.submit(move |client| node_writer::write_nodes(client, order)).await
    }
}

fn refusal_error(mut why: String) -> SchedulerError {
    why.insert_str(0, "nothing was sent: ");
    SchedulerError::new(SourceProblemKind::Malformed, why)
}

impl Scheduler for KubernetesScheduler {
    fn name(&self) -> String {
        let file = self.server.kubeconfig.as_ref().map(|file| format!(" {}", file.display()));
        let context = self.server.context.as_ref().map(|it| format!(", context {}", clean(it)));
        let of = file.unwrap_or_default();
        format!("Kubernetes{of}{}", context.unwrap_or_default())
    }

    fn read_nodes<'a>(&'a self, nodes: &'a [NodeName]) -> SchedulerFuture<'a, SchedulerSnapshot> {
        let nodes = nodes.to_vec();
        Box::pin(
            self.client_thread
                .submit(move |client| async move { node_reader::read_nodes(client, &nodes).await }),
        )
    }

    fn update_nodes<'a>(
        &'a self,
        nodes: &'a [NodeName],
        change: &'a NodeUpdate,
    ) -> SchedulerFuture<'a, ()> {
        Box::pin(self.write_nodes(nodes, change, None))
    }

    fn update_nodes_if_unchanged<'a>(
        &'a self,
        nodes: &'a [NodeName],
        change: &'a NodeUpdate,
        seen: &'a SchedulerSnapshot,
    ) -> SchedulerFuture<'a, ()> {
        Box::pin(self.write_nodes(nodes, change, Some(seen.clone())))
    }

    fn has_conditional_writes(&self) -> bool {
        true
    }

    fn command_lines(&self, nodes: &[NodeName], change: &NodeUpdate) -> Vec<Vec<String>> {
        if NodePatchEdits::from_update(change).is_err() {
            return Vec::new();
        }
        let mut options = Vec::new();
        if let Some(file) = &self.server.kubeconfig {
            options.extend(["--kubeconfig".to_owned(), file.display().to_string()]);
        }
        if let Some(context) = &self.server.context {
            options.extend(["--context".to_owned(), context.clone()]);
        }
        command_line::kubectl_commands(nodes, change, &options)
    }
}

#[cfg(test)]
mod tests;
