//! Carrying plans out: the only part that changes a cluster, and it does so
//! through [`scheduler::Scheduler`] alone.
//!
//! A shell: it locks, asks, writes down, acts, looks again. Whether something
//! may be done is `act`'s to say, and what is done was in an action plan that
//! a person or a policy could have read first.

pub mod carry;
pub mod certificates;
#[cfg(test)]
mod fixture;
pub mod hold;
pub mod journal;
pub mod kubernetes;
pub mod lease;
pub mod pace;
pub mod pods;
pub mod reassert;
pub mod recover;
pub mod remake;
pub mod scheduler;
pub mod scontrol;
pub mod shown;
mod sight;
pub mod slurmrestd;
pub mod stamp;
mod strict;
pub mod turn;
pub mod watch;

mod bounds;
