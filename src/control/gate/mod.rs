//! Executes action plans. This is the only part that changes a cluster, and it does so
//! only through [`scheduler::Scheduler`].
//!
//! The modules here do I/O only: lock the state folder, read the scheduler, write the
//! journal, apply a change, read again. The engine's policy decides if an action is
//! allowed, and every action comes from a plan that an operator or a policy could review
//! first.

pub mod allocation;
pub mod certificates;
pub mod clock;
pub mod drain_restore;
pub mod executor;
mod file_permissions;
#[cfg(test)]
mod fixture;
pub mod gate_event;
pub mod journal;
pub mod kubernetes;
pub mod lease;
pub mod mark_reassertion;
pub mod metrics_source;
pub mod pod_allocation;
pub mod reconciler;
pub mod recovery;
pub mod scheduler;
pub mod scontrol;
pub mod slurm_allocation;
pub mod slurmrestd;
mod verification;
pub mod watch;

mod request_validation;
