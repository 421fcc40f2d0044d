//! A Kubernetes cluster behind the gate's trait: nodes are read with the pods that
//! hold their GPUs, and written with taints, labels, annotations and a condition
//! of ours.
//!
//! What a change means, `act` has said; whether the node is still the one it was
//! said of is compared here, right before each write. Never creates a node, never
//! cordons one, never writes a key of somebody else but one entry of HAMi's list of
//! cordoned GPUs, where the policy asks for it.

mod desk;
pub mod events;
mod line;
mod look;
mod moved;
mod patch;
mod write;

use std::fmt;
use std::sync::Arc;

use super::bounds;
use super::scheduler::Answer;
use super::scheduler::Scheduler;
use super::scheduler::SchedulerError;
use crate::act::words;
use crate::model::change::Change;
use crate::model::id::NodeName;
use crate::model::live::Live;
use crate::model::said::ProblemKind;
use crate::model::text::clean;
use crate::sources::kubernetes::Kubernetes as Server;
use line::Line;
use patch::Edits;
use write::Order;

/// Says whether whoever writes may still write: one of several instances holds
/// the right to. Asked right before every write.
pub trait Fence: fmt::Debug + Send + Sync {
    /// An error means that nothing is written.
    fn holds<'a>(&'a self) -> Answer<'a, ()>;
}

/// A Kubernetes cluster, as its nodes are gated.
#[derive(Debug)]
pub struct Kubernetes {
    server: Server,
    fence: Option<Arc<dyn Fence>>,
    line: Line,
}

impl Kubernetes {
    /// The cluster that this leads to. Nothing is asked yet. The limit holds for
    /// every request, and for how long one node is tried.
    pub fn new(server: Server) -> Self {
        Self { line: Line::new(server.clone()), server, fence: None }
    }

    /// The same, where nothing is written unless this holds.
    #[must_use]
    pub fn fenced(self, fence: Arc<dyn Fence>) -> Self {
        Self { fence: Some(fence), ..self }
    }

    async fn write(
        &self,
        nodes: &[NodeName],
        change: &Change,
        seen: Option<Live>,
    ) -> Result<(), SchedulerError> {
        bounds::change(change)?;
        if let Some(name) = nodes.iter().find(|name| !look::is_name(name)) {
            let name = clean(name.as_str());
            return Err(refused(format!("{name:?} is not the name of a node")));
        }
        let edits = Edits::of(change).map_err(refused)?;
        if nodes.is_empty() || edits == Edits::default() {
            return Ok(());
        }
        let order = Order {
            nodes: nodes.to_vec(),
            edits,
            state: change.state.clone(),
            seen,
            fence: self.fence.clone(),
        };
        self.line.ask(move |desk| write::write(desk, order)).await
    }
}

fn refused(mut why: String) -> SchedulerError {
    why.insert_str(0, "nothing was sent: ");
    SchedulerError::new(ProblemKind::Malformed, why)
}

impl Scheduler for Kubernetes {
    fn name(&self) -> String {
        let file = self.server.kubeconfig.as_ref().map(|file| format!(" {}", file.display()));
        let context = self.server.context.as_ref().map(|it| format!(", context {}", clean(it)));
        let of = file.unwrap_or_default();
        format!("Kubernetes{of}{}", context.unwrap_or_default())
    }

    fn read<'a>(&'a self, nodes: &'a [NodeName]) -> Answer<'a, Live> {
        let nodes = nodes.to_vec();
        Box::pin(self.line.ask(move |desk| async move { look::look(desk, &nodes).await }))
    }

    fn change<'a>(&'a self, nodes: &'a [NodeName], change: &'a Change) -> Answer<'a, ()> {
        Box::pin(self.write(nodes, change, None))
    }

    fn change_as_seen<'a>(
        &'a self,
        nodes: &'a [NodeName],
        change: &'a Change,
        seen: &'a Live,
    ) -> Answer<'a, ()> {
        Box::pin(self.write(nodes, change, Some(seen.clone())))
    }

    fn writes_as_seen(&self) -> bool {
        true
    }

    fn words(&self, nodes: &[NodeName], change: &Change) -> Vec<Vec<String>> {
        if Edits::of(change).is_err() {
            return Vec::new();
        }
        let mut options = Vec::new();
        if let Some(file) = &self.server.kubeconfig {
            options.extend(["--kubeconfig".to_owned(), file.display().to_string()]);
        }
        if let Some(context) = &self.server.context {
            options.extend(["--context".to_owned(), context.clone()]);
        }
        words::kubectl(nodes, change, &options)
    }
}

#[cfg(test)]
mod tests;
