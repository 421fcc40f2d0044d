//! Which of the two planes a node is told of by, and how people speak there.
//!
//! Words only. What a state means is the same on both.

use model::scheduler_snapshot::SchedulerNode;

/// Who places work on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulerKind {
    /// Slurm's controller.
    Slurm,
    /// A Kubernetes scheduler.
    Kubernetes,
}

impl SchedulerKind {
    /// The one that told of this node.
    pub fn from_node(node: &SchedulerNode) -> Self {
        if node.kubernetes.is_some() { Self::Kubernetes } else { Self::Slurm }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slurm => "Slurm",
            Self::Kubernetes => "Kubernetes",
        }
    }

    /// What it places.
    pub fn workload_name(self) -> &'static str {
        match self {
            Self::Slurm => "jobs",
            Self::Kubernetes => "pods",
        }
    }
}
