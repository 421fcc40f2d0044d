//! What the study sweeps: a rack whose GPUs are joined across nodes, and a
//! fleet of nodes that meet over a network of leaves.

use std::collections::BTreeSet;
use std::fmt::Write;

use model::claims::Claims;
use model::id::DomainName;
use readers::claims::claims_file;
use sim::fabric::Engine;
use sim::fabric::Fabric;
use sim::fault::Fault;
use sim::fault::Way;
use sim::noise::Key;
use sim::noise::Noise;
use sim::scenario::Scenario;

/// Share of readings that dip, and how deep: the left tail.
pub(super) const DIPS: (f64, [f64; 2]) = (0.005, [0.05, 0.40]);

/// Nodes of a rack, and GPUs of each.
const RACK: (usize, usize) = (18, 4);
/// Nodes of a fleet, and of each of its leaves.
const FLEET: (usize, usize) = (1024, 32);

/// What is swept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum World {
    /// 18 nodes of 4 GPUs, all joined by NVLink; a fault is one GPU's.
    Domain,
    /// 1,024 nodes behind 32 leaves, one NIC each; a fault is one NIC's.
    Fleet,
}

impl World {
    /// The name used on the command line and in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Domain => "domain",
            Self::Fleet => "fleet",
        }
    }

    /// Parts that can be faulty.
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

/// One point of the study.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// What is swept.
    pub world: World,
    /// Relative standard deviation of one reading.
    pub sigma: f64,
    /// What a faulty part has lost of its rate.
    pub loss: f64,
    /// How many parts are faulty; none in healthy sweeps.
    pub faults: usize,
}

/// A world without its faults: what all trials share.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) world: World,
    pub(super) claims: Claims,
    pub(super) across: BTreeSet<DomainName>,
    /// What a healthy pair reads, in GB/s.
    pub(super) expected: f64,
    healthy: Scenario,
}

impl Ground {
    pub(super) fn of(world: World) -> Self {
        let (scenario, claims) = match world {
            World::Domain => rack(),
            World::Fleet => fleet(),
        };
        let healthy = Scenario::read(&scenario).expect("a scenario of the study is good");
        let claims = claims_file::parse("study", &claims).expect("claims of the study are good");
        let fabric = Fabric::build(&healthy).expect("a scenario of the study can be built");
        let expected = match world {
            World::Domain => fabric.copy(0, RACK.1, Engine::Copy),
            World::Fleet => fabric.network.rdma(0, 1, 0),
        };
        let across = claims.domains.iter().map(|domain| domain.name.clone());
        let across = across.filter(|_| world == World::Domain).collect();
        Self { world, claims, across, expected, healthy }
    }

    /// The faulty parts of a trial: each other ones, in an order of chance.
    pub(super) fn guilty(&self, setting: &Setting, key: Key) -> BTreeSet<usize> {
        let units = self.world.units();
        let mut guilty = BTreeSet::new();
        let mut number = 0;
        while guilty.len() < setting.faults.min(units) {
            let pick = (key.named("guilty").with(number).fraction() * units as f64).floor();
            guilty.extend((0..units).find(|unit| *unit as f64 >= pick));
            number += 1;
        }
        guilty
    }

    /// The scenario of a trial.
    pub(super) fn scenario(
        &self,
        setting: &Setting,
        key: Key,
        guilty: &BTreeSet<usize>,
    ) -> Scenario {
        let (dip_rate, dip_depth) = DIPS;
        let share = 1.0 - setting.loss;
        let faults = match self.world {
            World::Domain => guilty.iter().flat_map(|gpu| slow_gpu(*gpu, share)).collect(),
            World::Fleet => guilty.iter().map(|node| slow_nic(*node, share)).collect(),
        };
        Scenario {
            seed: key.value(),
            noise: Noise { sigma: setting.sigma, dip_rate, dip_depth },
            faults,
            ..self.healthy.clone()
        }
    }
}

fn rack() -> (String, String) {
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

/// Nothing but NICs is measured there, so no GPUs are claimed.
fn fleet() -> (String, String) {
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

/// A GPU that is slow with every other one, both ways. Faults of links come in
/// eighteenths; these do not, and two of them meet at the rate of one.
fn slow_gpu(gpu: usize, share: f64) -> impl Iterator<Item = Fault> {
    let name = |gpu: usize| format!("n{:02}:{}", gpu / RACK.1 + 1, gpu % RACK.1);
    (0..World::Domain.units())
        .filter(move |other| *other != gpu)
        .map(move |other| Fault::SlowPair { a: name(gpu), b: name(other), share, one_way: false })
}

fn slow_nic(node: usize, share: f64) -> Fault {
    let node = format!("n{:04}", node + 1);
    Fault::RailRate { node, rail: 0, share, direction: Way::Both }
}
