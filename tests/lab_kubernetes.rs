//! A real Kubernetes, asked and changed by the library and by the program.
//!
//! `ci/lab-kubernetes test` starts one and names it in a variable; without it
//! these tests say so and check nothing.

#[path = "lab_kubernetes/carry.rs"]
mod carry;
#[path = "lab_kubernetes/changes.rs"]
mod changes;
#[path = "lab_kubernetes/chaos.rs"]
mod chaos;
#[path = "lab_kubernetes/claims.rs"]
mod claims;
#[path = "lab_kubernetes/daemons.rs"]
mod daemons;
#[path = "lab_kubernetes/deploy.rs"]
mod deploy;
#[path = "lab_kubernetes/export.rs"]
mod export;
#[path = "lab_kubernetes/gate.rs"]
mod gate;
#[path = "lab_kubernetes/killed.rs"]
mod killed;
#[path = "lab_kubernetes/lab.rs"]
mod lab;
#[path = "lab_kubernetes/meanwhile.rs"]
mod meanwhile;
#[path = "lab_kubernetes/nodes.rs"]
mod nodes;
#[path = "lab_kubernetes/outage.rs"]
mod outage;
#[path = "lab_kubernetes/pods.rs"]
mod pods;
#[path = "lab_kubernetes/policy.rs"]
mod policy;
#[path = "lab/proposals.rs"]
mod proposals;
#[path = "lab_kubernetes/proxy.rs"]
mod proxy;
#[path = "lab_kubernetes/relist.rs"]
mod relist;
#[path = "lab_kubernetes/rights.rs"]
mod rights;
#[path = "chaos/storm.rs"]
mod storm;
#[path = "lab_kubernetes/turns.rs"]
mod turns;
#[path = "lab_kubernetes/watch.rs"]
mod watch;
#[path = "lab_kubernetes/weather.rs"]
mod weather;
