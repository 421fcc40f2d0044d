//! Bad days, by the dozen: the real program over a simulated fleet and a stand-in
//! for slurmrestd, with what can go wrong going wrong, from a seed.
//!
//! What must hold is not written here: `support/storm/model.rs` says so for every history.

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

/// Episodes at a time: they wait more than they work.
const AT_ONCE: usize = 4;

/// Two domains of four nodes.
fn domains() -> Domains {
    let domain = |name: &str, prefix: &str| {
        (name.to_owned(), (1..=4).map(|at| format!("{prefix}{at}")).collect::<Vec<String>>())
    };
    vec![domain("d1", "a"), domain("d2", "b")]
}

/// Those before a stand-in for slurmrestd.
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
fn whatever_befalls_it_the_gate_keeps_its_promises() {
    storm::play("cargo test --test run chaos", RUNS, AT_ONCE, episode);
}

#[test]
fn what_is_wrong_with_a_fleet_is_said_so_that_it_can_be_read() {
    for text in storm::site::all_wrong(&domains()) {
        let scenario = Scenario::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        SimFabric::build(&scenario).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
}
