//! A real Kubernetes, read and changed by the library and by the program.
//!
//! `ci/lab-kubernetes test` starts one and names it in a variable; without it these tests print
//! that they are skipped and check nothing.

mod carry;
mod changes;
mod chaos;
mod claims;
mod daemons;
mod deploy;
mod export;
mod faults;
mod gate;
mod killed;
mod lab;
mod meanwhile;
mod nodes;
mod outage;
mod pods;
mod policy;
#[path = "../support/proposals.rs"]
mod proposals;
mod proxy;
mod relist;
mod rights;
#[path = "../support/storm/mod.rs"]
mod storm;
mod turns;
mod watch;
