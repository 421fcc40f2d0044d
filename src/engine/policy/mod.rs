//! Decides which changes to propose to the scheduler, and whether they may be made now.
//!
//! Pure: verdicts, the scheduler's state, the journal and a policy in, an action plan out.
//! Nothing here changes or queries a cluster, or reads a clock; `gate` carries plans out.

pub mod acceptance;
pub mod action_policy;
pub mod budget;
pub mod burn_in_termination;
pub mod capacity;
pub mod certificate;
pub mod clean;
pub mod command_line;
pub mod device;
pub mod drain_overview;
pub mod drain_reason;
pub mod freeze;
pub mod identity;
pub mod journal_events;
pub mod journal_state;
pub mod kubernetes_label;
pub mod lost_drains;
pub mod marks;
pub mod node_state;
pub mod pause;
pub mod release;
pub mod repair_summary;
pub mod repeat_confirmation;
pub mod schedule;
pub mod situation;
pub mod stale_journal;
pub mod topology_proposal;

mod class_actions;
mod drain;
mod drain_cost;
mod evidence_checks;
#[cfg(test)]
mod fixture;
mod restored_store;
mod slurm_extra_field;
mod suspects;
