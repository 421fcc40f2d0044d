//! Carrying plans out: the only part that changes a cluster, and it does so
//! through [`scheduler::Scheduler`] alone.
//!
//! A shell: it locks, asks, writes down, acts, looks again. Whether something
//! may be done is `act`'s to say, and what is done was in an action plan that
//! a person or a policy could have read first.

pub mod executor;
pub mod certificates;
#[cfg(test)]
mod fixture;
pub mod slurm_allocation;
pub mod journal;
pub mod kubernetes;
pub mod lease;
pub mod timeouts;
pub mod pod_allocation;
pub mod mark_reassertion;
pub mod recovery;
pub mod drain_restore;
pub mod scheduler;
pub mod scontrol;
pub mod metrics_source;
mod verification;
pub mod slurmrestd;
pub mod clock;
mod file_permissions;
pub mod reconciler;
pub mod watch;

mod request_validation;
