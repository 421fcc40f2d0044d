//! What the scheduler should be told, and whether it may be told now.
//!
//! The decisions are pure: verdicts and a policy in, an action plan out. In
//! this version nothing carries a plan out; it is shown.

pub mod policy;
