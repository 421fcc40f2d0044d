//! A Kubernetes cluster behind the gate's trait: nodes are read with the pods that
//! hold their GPUs, and written with taints, labels, annotations and a condition
//! of ours.
//!
//! What a change means, `act` has said; whether the node is still the one it was
//! said of is compared here, right before each write. Never creates a node, never
//! cordons one, never writes a key of somebody else but one entry of HAMi's list of
//! cordoned GPUs, where the policy asks for it.

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

/// Says whether whoever writes may still write: one of several instances holds
/// the right to. Asked right before every write.
pub trait WriteFence: fmt::Debug + Send + Sync {
    /// An error means that nothing is written.
    fn check<'a>(&'a self) -> SchedulerFuture<'a, ()>;
}

/// A Kubernetes cluster, as its nodes are gated.
#[derive(Debug)]
pub struct KubernetesScheduler {
    server: Server,
    fence: Option<Arc<dyn WriteFence>>,
    client_thread: ClientThread,
}

impl KubernetesScheduler {
    /// The cluster that this leads to. Nothing is asked yet. The limit holds for
    /// every request, and for how long one node is tried.
    pub fn new(server: Server) -> Self {
        Self { client_thread: ClientThread::new(server.clone()), server, fence: None }
    }

    /// The same, where nothing is written unless this holds.
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
        self.client_thread.submit(move |desk| node_writer::write_nodes(desk, order)).await
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
                .submit(move |desk| async move { node_reader::read_nodes(desk, &nodes).await }),
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
