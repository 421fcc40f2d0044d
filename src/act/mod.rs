//! What the scheduler should be told, and whether it may be told now.
//!
//! Pure: verdicts, the scheduler's state, our own record and a policy in, an
//! action plan out. Nothing here changes a cluster, asks one, or reads a clock;
//! `gate` carries plans out.

pub mod acceptance;
pub mod again;
pub mod budget;
pub mod capacity;
pub mod certificate;
pub mod clean;
pub mod device;
pub mod due;
pub mod identity;
pub mod instrument;
pub mod label;
pub mod ledger;
pub mod marks;
pub mod notice;
pub mod older;
pub mod overview;
pub mod pause;
pub mod plane;
pub mod policy;
pub mod reason;
pub mod release;
pub mod repair;
pub mod situation;
pub mod standing;
pub mod stops;
pub mod topology;
pub mod vanished;
pub mod words;

mod classes;
mod desk;
mod extra;
#[cfg(test)]
mod fixture;
mod grounds;
mod places;
mod put_back;
mod suspects;
mod worth;
