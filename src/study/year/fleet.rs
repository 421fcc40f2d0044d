//! The fleet of the year: racks, their faults of the day, and the tools' noise-free output.
//!
//! Each rack is a separate simulated fabric, rebuilt when its faults change. The simulated tool
//! renders each output once, and the result is cached: `meter` adds noise to the numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use engine::plan::PlanStep;
use model::claims::Claims;
use model::id::{DomainName, NodeName};
use model::parse_output::ParseOutput;
use readers::claims::claims_file;
use readers::outputs;
use sim::fabric::SimFabric;
use sim::fault::SimFault;
use sim::invocation::ToolInvocation;
use sim::noise::SimNoise;
use sim::render::node_address;
use sim::scenario::Scenario;
use sim::tool_dispatch;

pub(super) const NODES: usize = 18;
pub(super) const GPUS: usize = 4;

/// Position of a node: its rack, and its index in the rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FleetPosition {
    pub(super) rack: usize,
    pub(super) node: usize,
}

impl FleetPosition {
    /// Index of the node in the fleet.
    pub(super) fn number(self) -> u64 {
        (self.rack * NODES + self.node) as u64
    }

    pub(super) fn name(self) -> String {
        format!("r{:03}n{:02}", self.rack, self.node)
    }

    pub(super) fn from_name(name: &NodeName) -> Self {
        let number = |from: usize, to: usize| name.as_str()[from..to].parse().ok();
        let spot = number(1, 4).zip(number(5, 7)).map(|(rack, node)| Self { rack, node });
        spot.expect("every name of the fleet is made here")
    }
}

#[derive(Debug)]
struct YearRack {
    scenario: Scenario,
    fabric: SimFabric,
    /// Cached outputs by probe and nodes.
    shapes: BTreeMap<(String, Vec<NodeName>), ParseOutput>,
}

impl YearRack {
    fn new(at: usize, faults: Vec<SimFault>) -> Self {
        let text = format!(
            "title = \"rack\"\n[[domain]]\nname = \"r{at:03}\"\nnodes = \"r{at:03}n[00-{:02}]\"\n\
             platform = \"gb200-nvl72\"\n",
            NODES - 1
        );
        let mut scenario = Scenario::parse(&text).expect("a scenario of the study is good");
        // The meter adds noise, and the effects of the day.
        scenario.noise = SimNoise { sigma: 0.0, dip_rate: 0.0, ..SimNoise::default() };
        scenario.faults = faults;
        let fabric = SimFabric::build(&scenario).expect("a scenario of the study can be built");
        Self { scenario, fabric, shapes: BTreeMap::new() }
    }
}

#[derive(Debug)]
pub(super) struct YearFleet {
    pub(super) claims: Claims,
    pub(super) nvlink_domains: BTreeSet<DomainName>,
    racks: Vec<YearRack>,
    /// A rack without faults, for the expected numbers.
    healthy: YearRack,
}

impl YearFleet {
    pub(super) fn new(racks: usize) -> Self {
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
        // A scheduler reports its nodes' addresses, by which alone IMEX identifies them.
        for node in claims.domains.iter().flat_map(|domain| &domain.nodes) {
            let report = claims.nodes.entry(node.clone()).or_default();
            report.aliases.push(node_address(FleetPosition::from_name(node).node));
        }
        let nvlink_domains = claims.domains.iter().map(|domain| domain.name.clone()).collect();
        let racks = (0..racks).map(|at| YearRack::new(at, Vec::new())).collect();
        Self { claims, nvlink_domains, racks, healthy: YearRack::new(0, Vec::new()) }
    }

    pub(super) fn rack_count(&self) -> usize {
        self.racks.len()
    }

    pub(super) fn positions(&self) -> impl Iterator<Item = FleetPosition> + use<> {
        let racks = self.racks.len();
        (0..racks).flat_map(|rack| (0..NODES).map(move |node| FleetPosition { rack, node }))
    }

    /// Sets the faults of a rack from now on.
    pub(super) fn set_faults(&mut self, rack: usize, faults: Vec<SimFault>) {
        if self.racks[rack].scenario.faults != faults {
            self.racks[rack] = YearRack::new(rack, faults);
        }
    }

    /// Noise-free output of a step's tool.
    pub(super) fn tool_output(&mut self, step: &PlanStep) -> ParseOutput {
        let rack = FleetPosition::from_name(&step.nodes[0]).rack;
        render_and_parse(&mut self.racks[rack], step, &step.nodes)
    }

    /// Noise-free output in a rack without faults.
    pub(super) fn healthy_output(&mut self, step: &PlanStep) -> ParseOutput {
        let mut step = step.clone();
        for node in &mut step.nodes {
            *node = FleetPosition { rack: 0, ..FleetPosition::from_name(node) }.name().into();
        }
        // Healthy nodes are all alike, so a few represent all.
        step.nodes.sort();
        let alike: Vec<NodeName> = (0..step.nodes.len())
            .map(|node| FleetPosition { rack: 0, node }.name().into())
            .collect();
        for word in Arc::make_mut(&mut step.argv) {
            if word.starts_with("r0") && word.contains(':') {
                *word = alike.iter().map(|n| format!("{n}:4")).collect::<Vec<_>>().join(",");
            }
        }
        step.nodes.clone_from(&alike);
        render_and_parse(&mut self.healthy, &step, &alike)
    }
}

/// The rendered output of the simulated tool in this rack, parsed and cached.
fn render_and_parse(rack: &mut YearRack, step: &PlanStep, nodes: &[NodeName]) -> ParseOutput {
    let key = (step.probe.clone(), nodes.to_vec());
    if let Some(known) = rack.shapes.get(&key) {
        return known.clone();
    }
    let bench = ToolInvocation {
        scenario: &rack.scenario,
        fabric: &rack.fabric,
        scope: nodes[0].as_str(),
        spans_domain: false,
        seed: rack.scenario.seed,
        reading: 0,
        prior_readings: 0,
        job: None,
    };
    let (_, argv) = tool_dispatch::split_environment(&step.argv);
    let output =
        tool_dispatch::run_tool(&bench, &argv[0], &argv[1..]).expect("the tool is simulated");
    let parsed = outputs::parse_streams(output.stdout.as_bytes(), output.stderr.as_bytes());
    rack.shapes.insert(key, parsed.clone());
    parsed
}
