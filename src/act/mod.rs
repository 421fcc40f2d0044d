//! What the scheduler should be told, and whether it may be told now.
//!
//! Pure: verdicts, the scheduler's state, our own record and a policy in, an
//! action plan out. Nothing here changes a cluster, asks one, or reads a clock;
//! `gate` carries plans out.

pub mod budget;
pub mod capacity;
mod classes;
mod desk;
#[cfg(test)]
mod fixture;
mod grounds;
pub mod instrument;
pub mod ledger;
pub mod marks;
pub mod notice;
pub mod policy;
pub mod reason;
pub mod release;
pub mod situation;
pub mod standing;
mod suspects;
pub mod topology;
mod worth;
