//! The simulated worlds: a rack whose GPUs share NVLink across nodes, and a fleet of nodes on a
//! network with leaves.

use std::collections::BTreeSet;
use std::fmt::Write;

use model::claims::Claims;
use model::id::DomainName;
use readers::claims::claims_file;
use sim::fabric::{SimCopyEngine, SimFabric};
use sim::fault::{SimFault, SimLinkDirection};
use sim::noise::{NoiseKey, SimNoise};
use sim::scenario::Scenario;

/// Share of readings that dip, and the smallest and largest dip: the low tail.
pub(super) const DIPS: (f64, [f64; 2]) = (0.005, [0.05, 0.40]);

/// Nodes of a rack, and GPUs per node.
const RACK: (usize, usize) = (18, 4);
/// Nodes of a fleet, and nodes per leaf.
const FLEET: (usize, usize) = (1024, 32);

/// Kind of fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StudyWorld {
    /// 18 nodes of 4 GPUs, all joined by NVLink; faulty parts are GPUs.
    Domain,
    /// 1,024 nodes behind 32 leaves, one NIC each; faulty parts are NICs.
    Fleet,
}

impl StudyWorld {
    /// The name on the command line and in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Domain => "domain",
            Self::Fleet => "fleet",
        }
    }

    /// Number of parts that can be faulty.
    pub fn units(self) -> usize {
        match self {
            Self::Domain => RACK.0 * RACK.1,
            Self::Fleet => FLEET.0,
        }
    }

    /// The probes of the fast stage.
    pub(super) fn probes(self) -> &'static [&'static str] {
        match self {
            Self::Domain => &["nvbandwidth-lane"],
            Self::Fleet => &["ib-write-bw", "ib-read-bw"],
        }
    }
}

/// Setting of one point of the study.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StudySetting {
    /// Kind of fabric.
    pub world: StudyWorld,
    /// Relative standard deviation of one reading.
    pub sigma: f64,
    /// Share of its rate that a faulty part has lost.
    pub loss: f64,
    /// Number of faulty parts; 0 in healthy sweeps.
    pub faults: usize,
}

/// A world without faults, shared by all trials.
#[derive(Debug)]
pub(super) struct StudyGround {
    pub(super) world: StudyWorld,
    pub(super) claims: Claims,
    pub(super) nvlink_domains: BTreeSet<DomainName>,
    /// Rate of a healthy pair in GB/s.
    pub(super) expected: f64,
    healthy: Scenario,
}

impl StudyGround {
    pub(super) fn new(world: StudyWorld) -> Self {
        let (scenario, claims) = match world {
            StudyWorld::Domain => rack_sections(),
            StudyWorld::Fleet => fleet_sections(),
        };
        let healthy = Scenario::parse(&scenario).expect("a scenario of the study is good");
        let claims = claims_file::parse("study", &claims).expect("claims of the study are good");
        let fabric = SimFabric::build(&healthy).expect("a scenario of the study can be built");
        let expected = match world {
            StudyWorld::Domain => fabric.copy_rate(0, RACK.1, SimCopyEngine::Copy),
            StudyWorld::Fleet => fabric.network.rdma_rate(0, 1, 0),
        };
        let across = claims.domains.iter().map(|domain| domain.name.clone());
        let nvlink_domains = across.filter(|_| world == StudyWorld::Domain).collect();
        Self { world, claims, nvlink_domains, expected, healthy }
    }

    /// The faulty parts of a trial: distinct, in random order.
    pub(super) fn draw_faulty_parts(
        &self,
        setting: &StudySetting,
        key: NoiseKey,
    ) -> BTreeSet<usize> {
        let units = self.world.units();
        let mut faulty = BTreeSet::new();
        let mut number = 0;
        while faulty.len() < setting.faults.min(units) {
            let pick =
                (key.with_name("guilty").with_part(number).fraction() * units as f64).floor();
            faulty.extend((0..units).find(|unit| *unit as f64 >= pick));
            number += 1;
        }
        faulty
    }

    pub(super) fn build_scenario(
        &self,
        setting: &StudySetting,
        key: NoiseKey,
        faulty: &BTreeSet<usize>,
    ) -> Scenario {
        let (dip_rate, dip_depth) = DIPS;
        let share = 1.0 - setting.loss;
        let faults = match self.world {
            StudyWorld::Domain => faulty.iter().flat_map(|gpu| slow_gpu(*gpu, share)).collect(),
            StudyWorld::Fleet => faulty.iter().map(|node| slow_nic(*node, share)).collect(),
        };
        Scenario {
            seed: key.value(),
            noise: SimNoise { sigma: setting.sigma, dip_rate, dip_depth },
            faults,
            ..self.healthy.clone()
        }
    }
}

fn rack_sections() -> (String, String) {
    let nodes = format!("n[01-{}]", RACK.0);
    let scenario = format!(
        "title = \"rack\"\n[[domain]]\nname = \"rack\"\nnodes = {nodes:?}\nplatform = \"gb200-nvl72\"\n"
    );
    let claims = format!(
        "[[domain]]\nname = \"rack\"\nnodes = {nodes:?}\nplatform = \"gb200-nvl72\"\ngpus_per_node = {}\n",
        RACK.1
    );
    (scenario, claims)
}

/// Only NICs are measured there, so no GPUs are claimed.
fn fleet_sections() -> (String, String) {
    let (all, leaf) = FLEET;
    let nodes = format!("n[0001-{all:04}]");
    let scenario = format!(
        "title = \"fleet\"\n[network]\nrails = 1\nleaf_nodes = {leaf}\n\
         [[domain]]\nname = \"fleet\"\nnodes = {nodes:?}\nplatform = \"hgx-h100\"\ngpus_per_node = 1\n"
    );
    let mut claims = format!(
        "[[domain]]\nname = \"fleet\"\nnodes = {nodes:?}\ngpus_per_node = 0\nnic = \"nic-ndr-400\"\n\
         [[rail]]\nname = \"rail0\"\nrdma = \"mlx5_0\"\n"
    );
    for at in 0..all / leaf {
        let (first, last) = (at * leaf + 1, (at + 1) * leaf);
        let nodes = format!("n[{first:04}-{last:04}]");
        let written = write!(claims, "[[leaf]]\nname = \"leaf{at}\"\nnodes = {nodes:?}\n");
        debug_assert!(written.is_ok(), "writing to a string does not fail");
    }
    (scenario, claims)
}

/// A GPU that is slow with every other one, in both directions. Link faults come in eighteenths;
/// these do not, and a pair of two of them runs at the rate of one.
fn slow_gpu(gpu: usize, share: f64) -> impl Iterator<Item = SimFault> {
    let name = |gpu: usize| format!("n{:02}:{}", gpu / RACK.1 + 1, gpu % RACK.1);
    (0..StudyWorld::Domain.units()).filter(move |other| *other != gpu).map(move |other| {
        SimFault::SlowPair { a: name(gpu), b: name(other), share, one_way: false }
    })
}

fn slow_nic(node: usize, share: f64) -> SimFault {
    let node = format!("n{:04}", node + 1);
    SimFault::RailRate { node, rail: 0, share, direction: SimLinkDirection::Both }
}
