//! The control plane that a node belongs to, and its terms.
//!
//! Names only. The meaning of a state is the same on both.

use model::scheduler_snapshot::SchedulerNode;

/// The scheduler that places work on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulerKind {
    /// Slurm's controller.
    Slurm,
    /// A Kubernetes scheduler.
    Kubernetes,
}

impl SchedulerKind {
    /// The kind of the scheduler that reported this node.
    pub fn from_node(node: &SchedulerNode) -> Self {
        if node.kubernetes.is_some() { Self::Kubernetes } else { Self::Slurm }
    }

    /// Its display name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slurm => "Slurm",
            Self::Kubernetes => "Kubernetes",
        }
    }

    /// The display name of its workloads.
    pub fn workload_name(self) -> &'static str {
        match self {
            Self::Slurm => "jobs",
            Self::Kubernetes => "pods",
        }
    }
}
