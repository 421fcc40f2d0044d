//! Carrying plans out: the only part that changes a cluster, and it does so
//! through [`scheduler::Scheduler`] alone.
//!
//! A shell: it locks, asks, writes down, acts, looks again. Whether something
//! may be done is `act`'s to say, and what is done was in an action plan that
//! a person or a policy could have read first.

pub mod allocation;
pub mod certificates;
pub mod clock;
pub mod drain_restore;
pub mod executor;
mod file_permissions;
#[cfg(test)]
mod fixture;
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
pub mod timeouts;
mod verification;
pub mod watch;

mod request_validation;
