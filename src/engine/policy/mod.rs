//! What the scheduler should be told, and whether it may be told now.
//!
//! Pure: verdicts, the scheduler's state, our own record and a policy in, an
//! action plan out. Nothing here changes a cluster, asks one, or reads a clock;
//! `gate` carries plans out.

pub mod acceptance;
pub mod repeat_confirmation;
pub mod budget;
pub mod capacity;
pub mod certificate;
pub mod clean;
pub mod device;
pub mod schedule;
pub mod evict;
pub mod identity;
pub mod freeze;
pub mod kubernetes_label;
pub mod journal_state;
pub mod marks;
pub mod journal_events;
pub mod stale_journal;
pub mod drain_overview;
pub mod pause;
pub mod plane;
pub mod action_policy;
pub mod drain_reason;
pub mod release;
pub mod repair_summary;
pub mod situation;
pub mod node_state;
pub mod burn_in_termination;
pub mod topology_proposal;
pub mod lost_drains;
pub mod command_line;

mod class_actions;
mod drain;
mod slurm_extra_field;
#[cfg(test)]
mod fixture;
mod evidence_checks;
mod claim_index;
mod restored_store;
mod suspects;
mod drain_cost;
