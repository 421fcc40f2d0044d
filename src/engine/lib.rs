//! The pure stages: functions without I/O, clock or processes.
//!
//! [`thresholds`] and [`plan`] come before a measurement; [`judge`], [`policy`], [`report`],
//! [`export`] and [`place`] after it.

#![forbid(unsafe_code)]

pub mod export;
pub mod judge;
pub mod place;
pub mod plan;
pub mod policy;
pub mod report;
pub mod thresholds;
