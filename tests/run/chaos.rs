//! Dozens of episodes with injected faults: the real program over a simulated fleet and a
//! stand-in for slurmrestd, with faults drawn from a seed.
//!
//! The invariants are not here: `support/storm/model.rs` checks them for every history.

mod controller;
mod model_tests;
#[path = "../support/storm/mod.rs"]
mod storm;

use controller::Controller;
use sim::fabric::SimFabric;
use sim::scenario::Scenario;
use storm::episode::Episode;
use storm::model::Fields;
use storm::world::{Domains, World};

/// Episodes of the ordinary test command.
const RUNS: u64 = 6;

/// Concurrent episodes: they mostly wait.
const AT_ONCE: usize = 4;

/// Two domains of four nodes.
fn domains() -> Domains {
    let domain = |name: &str, prefix: &str| {
        (name.to_owned(), (1..=4).map(|at| format!("{prefix}{at}")).collect::<Vec<String>>())
    };
    vec![domain("d1", "a"), domain("d2", "b")]
}

/// Faults with a stand-in for slurmrestd.
fn episode(seed: u64) -> Episode {
    let domains = domains();
    // A feature of the site's own on every node.
    let plain = ["available/gb200", "active/gb200"].map(|key| (key.to_owned(), String::new()));
    let names = domains.iter().flat_map(|(_, nodes)| nodes).cloned();
    let nodes = names.map(|name| (name, Fields::from(plain.clone()))).collect();
    Episode::new(seed, domains, |folder, site| {
        Box::new(Controller::start(folder, site, nodes)) as Box<dyn World>
    })
}

#[test]
fn under_every_fault_the_gate_keeps_its_invariants() {
    storm::play("cargo test --test run chaos", RUNS, AT_ONCE, episode);
}

#[test]
fn the_program_reads_every_scenario_of_faults() {
    for text in storm::site::all_wrong(&domains()) {
        let scenario = Scenario::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        SimFabric::build(&scenario).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
}
