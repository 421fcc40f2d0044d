//! The fleet of the year: racks, what is wrong with each today, and what the
//! tools would print there without noise.
//!
//! Each rack is a simulated fabric of its own, made again when its faults change.
//! What a tool prints is asked of the simulated tool once and kept: noise is put
//! on the numbers afterwards (`meter`).

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;

use engine::plan::Step;
use model::claims::Claims;
use model::id::DomainName;
use model::id::NodeName;
use model::parsed::Parsed;
use readers::claims::claims_file;
use readers::outputs;
use sim::bench::Bench;
use sim::fabric::Fabric;
use sim::fault::Fault;
use sim::noise::Noise;
use sim::render::address;
use sim::scenario::Scenario;
use sim::tool;

/// Nodes of a rack.
pub(super) const NODES: usize = 18;
/// GPUs of a node.
pub(super) const GPUS: usize = 4;

/// One node, by rack and place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spot {
    pub(super) rack: usize,
    pub(super) node: usize,
}

impl Spot {
    /// Its number in the fleet.
    pub(super) fn number(self) -> u64 {
        (self.rack * NODES + self.node) as u64
    }

    /// Its name.
    pub(super) fn name(self) -> String {
        format!("r{:03}n{:02}", self.rack, self.node)
    }

    /// The node of this name.
    pub(super) fn of(name: &NodeName) -> Self {
        let number = |from: usize, to: usize| name.as_str()[from..to].parse().ok();
        let spot = number(1, 4).zip(number(5, 7)).map(|(rack, node)| Self { rack, node });
        spot.expect("every name of the fleet is made here")
    }
}

/// One rack.
#[derive(Debug)]
struct Rack {
    scenario: Scenario,
    fabric: Fabric,
    /// What tools print, by probe and nodes.
    shapes: BTreeMap<(String, Vec<NodeName>), Parsed>,
}

impl Rack {
    fn of(at: usize, faults: Vec<Fault>) -> Self {
        let text = format!(
            "title = \"rack\"\n[[domain]]\nname = \"r{at:03}\"\nnodes = \"r{at:03}n[00-{:02}]\"\n\
             platform = \"gb200-nvl72\"\n",
            NODES - 1
        );
        let mut scenario = Scenario::read(&text).expect("a scenario of the study is good");
        // Noise is put on by the meter, with what the day does.
        scenario.noise = Noise { sigma: 0.0, dip_rate: 0.0, ..Noise::default() };
        scenario.faults = faults;
        let fabric = Fabric::build(&scenario).expect("a scenario of the study can be built");
        Self { scenario, fabric, shapes: BTreeMap::new() }
    }
}

/// All racks.
#[derive(Debug)]
pub(super) struct Fleet {
    pub(super) claims: Claims,
    pub(super) across: BTreeSet<DomainName>,
    racks: Vec<Rack>,
    /// A rack without faults: what every number would be.
    sound: Rack,
}

impl Fleet {
    pub(super) fn of(racks: usize) -> Self {
        let mut text = String::new();
        for at in 0..racks {
            let written = write!(
                text,
                "[[domain]]\nname = \"r{at:03}\"\nnodes = \"r{at:03}n[00-{:02}]\"\n\
                 platform = \"gb200-nvl72\"\ngpus_per_node = {GPUS}\n",
                NODES - 1
            );
            debug_assert!(written.is_ok(), "writing to a string does not fail");
        }
        let mut claims = claims_file::parse("study", &text).expect("claims of the study are good");
        // A scheduler tells its nodes' addresses, and IMEX knows them by nothing else.
        for node in claims.domains.iter().flat_map(|domain| &domain.nodes) {
            let said = claims.nodes.entry(node.clone()).or_default();
            said.aliases.push(address(Spot::of(node).node));
        }
        let across = claims.domains.iter().map(|domain| domain.name.clone()).collect();
        let racks = (0..racks).map(|at| Rack::of(at, Vec::new())).collect();
        Self { claims, across, racks, sound: Rack::of(0, Vec::new()) }
    }

    pub(super) fn racks(&self) -> usize {
        self.racks.len()
    }

    /// All nodes.
    pub(super) fn spots(&self) -> impl Iterator<Item = Spot> + use<> {
        let racks = self.racks.len();
        (0..racks).flat_map(|rack| (0..NODES).map(move |node| Spot { rack, node }))
    }

    /// What is wrong with a rack from now on.
    pub(super) fn set(&mut self, rack: usize, faults: Vec<Fault>) {
        if self.racks[rack].scenario.faults != faults {
            self.racks[rack] = Rack::of(rack, faults);
        }
    }

    /// What a step's tool prints, without noise.
    pub(super) fn output(&mut self, step: &Step) -> Parsed {
        let rack = Spot::of(&step.nodes[0]).rack;
        asked(&mut self.racks[rack], step, &step.nodes)
    }

    /// What it would print in a rack without faults.
    pub(super) fn sound(&mut self, step: &Step) -> Parsed {
        let mut step = step.clone();
        for node in &mut step.nodes {
            *node = Spot { rack: 0, ..Spot::of(node) }.name().into();
        }
        // Sound nodes are all alike, so that a few stand for all.
        step.nodes.sort();
        let alike: Vec<NodeName> =
            (0..step.nodes.len()).map(|node| Spot { rack: 0, node }.name().into()).collect();
        for word in Arc::make_mut(&mut step.argv) {
            if word.starts_with("r0") && word.contains(':') {
                *word = alike.iter().map(|n| format!("{n}:4")).collect::<Vec<_>>().join(",");
            }
        }
        step.nodes.clone_from(&alike);
        asked(&mut self.sound, &step, &alike)
    }
}

/// What the simulated tool prints in this rack, parsed; asked once.
fn asked(rack: &mut Rack, step: &Step, nodes: &[NodeName]) -> Parsed {
    let key = (step.probe.clone(), nodes.to_vec());
    if let Some(known) = rack.shapes.get(&key) {
        return known.clone();
    }
    let bench = Bench {
        scenario: &rack.scenario,
        fabric: &rack.fabric,
        scope: nodes[0].as_str(),
        across: false,
        seed: rack.scenario.seed,
        reading: 0,
        before: 0,
        job: None,
    };
    let (_, argv) = tool::environment(&step.argv);
    let answer = tool::run(&bench, &argv[0], &argv[1..]).expect("the tool is simulated");
    let parsed = outputs::read_streams(answer.stdout.as_bytes(), answer.stderr.as_bytes());
    rack.shapes.insert(key, parsed.clone());
    parsed
}
