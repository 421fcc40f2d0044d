//! Which of the two planes a node is told of by, and how people speak there.
//!
//! Words only. What a state means is the same on both.

use model::live::LiveNode;

/// Who places work on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// Slurm's controller.
    Slurm,
    /// A Kubernetes scheduler.
    Kubernetes,
}

impl Plane {
    /// The one that told of this node.
    pub fn of(node: &LiveNode) -> Self {
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
    pub fn work(self) -> &'static str {
        match self {
            Self::Slurm => "jobs",
            Self::Kubernetes => "pods",
        }
    }
}
