//! The verified map of one run: domains as they were measured, members with their
//! outcome, cliques, rails and leaves. Every export is written from this and from
//! nothing else.
//!
//! What nobody measured is in it as claimed and marked so ([`Basis::Claimed`],
//! [`Member::reach`]); it is for each export to say so or to leave it out. Nothing
//! here judges: outcomes and findings are the judge's.

mod builder;
mod run_index;

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;

use crate::place::strength_matrix::StrengthMatrix;
use crate::thresholds::PlatformCatalogue;
use model::finding_class::FindingClass;
use model::id::{DomainName, NodeName};
use model::run::{Run, simulation_notice};
use model::tool_recording::ToolRecording;
use model::verdict::Outcome;
use model::worker_protocol::MachineRecord;

/// What a map is made of.
#[derive(Clone, Copy, Debug)]
pub struct MapInput<'a> {
    /// The run as it was judged.
    pub run: &'a Run,
    /// Every step of its plan was tried.
    pub is_complete: bool,
    /// A simulated fabric answered.
    pub is_simulated: bool,
    /// What workers said of their machines.
    pub machines: &'a [MachineRecord],
    /// The outputs that were read, for what drivers say of themselves.
    pub recordings: &'a [ToolRecording],
    /// The expectations in force: which platforms span nodes.
    pub catalogue: &'a PlatformCatalogue,
}

/// The verified map of a run.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct VerifiedMap {
    /// The run it came from.
    pub run: MapOrigin,
    /// The worst of its parts.
    pub outcome: Outcome,
    /// NVLink domains, in order of name.
    pub domains: Vec<MapDomain>,
    /// Every node that the run's claims name, in order.
    pub members: BTreeMap<NodeName, MapMember>,
    /// The rails that were claimed or measured, by name.
    pub rails: BTreeMap<String, MapRail>,
    /// Claimed leaves of the scale-out network, with their nodes. A leaf is
    /// claimed: a sweep blames uplinks and does not find switches.
    pub leaves: BTreeMap<String, Vec<NodeName>>,
    /// How strongly any two GPUs are connected.
    #[serde(skip)]
    pub matrix: StrengthMatrix,
    /// Topologies that Slurm's partitions name, by partition; absent where they were not read.
    #[serde(skip)]
    pub partitions: Option<BTreeMap<String, String>>,
    /// Sizes of all levels of Slurm's blocks, the base size first; none where it has one level.
    #[serde(skip)]
    pub block_sizes: Vec<usize>,
}

/// The run that a map came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MapOrigin {
    /// Its id.
    pub id: String,
    /// When it was made, RFC 3339.
    pub created: String,
    /// Its profile.
    pub profile: String,
    /// Version of fabricgate that measured.
    pub version: String,
    /// Digest of the expectations it was judged by.
    pub thresholds_digest: String,
    /// It came to its end.
    pub is_complete: bool,
    /// A simulated fabric answered.
    pub is_simulated: bool,
}

/// How it is known that nodes belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DomainBasis {
    /// They were measured to reach each other at NVLink speed.
    Measured,
    /// Somebody claims it and no two of them were measured against each other.
    Claimed,
}

/// An NVLink domain: nodes that reach each other at NVLink speed.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MapDomain {
    /// Its name: the claimed one; where the claim fell into parts, the part that
    /// holds most of its nodes keeps the name and others are `NAME.part2`. Where
    /// none holds most, all are parts.
    pub name: String,
    /// The claimed domain it is in.
    pub claimed: DomainName,
    /// How it is known.
    pub basis: DomainBasis,
    /// The nodes that were measured to be in it, in order. With
    /// [`Basis::Claimed`], nobody.
    pub measured: BTreeSet<NodeName>,
    /// The nodes that are claimed for it and were measured against nobody, in order.
    pub unmeasured: BTreeSet<NodeName>,
    /// The platform, where one is known.
    pub platform: Option<String>,
    /// GPUs that each node must show, where that is claimed.
    pub gpus_per_node: Option<u32>,
    /// NVLinks of each GPU of its platform, where one is known.
    pub nvlinks: Option<u32>,
}

impl MapDomain {
    /// Everybody in it, measured or claimed, in order.
    pub fn nodes(&self) -> BTreeSet<&NodeName> {
        self.measured.iter().chain(&self.unmeasured).collect()
    }
}

/// How far a node was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MeasuredReach {
    /// Not at all.
    Nothing,
    /// Its own links.
    Inside,
    /// Against other nodes of its domain as well. A node that is a domain of its own
    /// has nobody else: its own links are all.
    Across,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MapMember {
    /// The domain it is claimed for.
    pub claimed: Option<DomainName>,
    /// The name of the [`Domain`] it is in.
    pub domain: Option<String>,
    /// How far it was measured.
    pub reach: MeasuredReach,
    /// It was measured to be in another domain than it is claimed for: the claimed
    /// one is in `claimed`, the other in `domain`.
    pub is_misplaced: bool,
    /// It is claimed for a domain that it was measured not to reach; where it
    /// belongs is not known.
    pub is_apart: bool,
    /// Its verdict.
    pub outcome: Outcome,
    /// Why, in one sentence.
    pub reason: String,
    /// Ids of the findings about it or a part of it.
    pub findings: Vec<String>,
    /// Classes of these findings, each once, in order.
    pub classes: BTreeSet<FindingClass>,
    /// The worst share of what its links must deliver, of the best reading of each
    /// cell within its domain.
    pub worst: Option<f64>,
    /// The smallest relative degradation that the run could have seen in it.
    pub detectable: Option<f64>,
    /// `<ClusterUUID>.<CliqueId>` as its drivers report it, one per different answer
    /// of its GPUs; empty where nobody asked or no fabric is attached.
    pub cliques: BTreeSet<String>,
    /// Its GPUs, by index, as far as the run saw them.
    pub gpus: BTreeMap<u32, MapGpu>,
    /// Its ends of rails, by the rail's name.
    pub rails: BTreeMap<String, MapRailEnd>,
    /// The leaf it is claimed for.
    pub leaf: Option<String>,
    /// Boot id, where a worker said it.
    pub boot_id: Option<String>,
    /// The one GPU that is to blame instead of the node, by index and UUID, or why it is
    /// the node (`act::device`).
    #[serde(skip)]
    pub device: Result<Option<(u32, String)>, String>,
}

impl MapMember {
    /// Whether everything that had to be measured of it was, and is as expected.
    pub fn is_verified(&self) -> bool {
        self.outcome == Outcome::Pass && self.reach != MeasuredReach::Nothing
    }

    /// The one clique of all its GPUs; nothing where they differ or nobody said.
    pub fn clique(&self) -> Option<&str> {
        match Vec::from_iter(&self.cliques).as_slice() {
            [one] => Some(one),
            _ => None,
        }
    }
}

/// One GPU of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct MapGpu {
    /// Its UUID, where somebody said it.
    pub uuid: Option<String>,
    /// The worst outcome of findings that blame it; absent where there are none. A slow
    /// pair blames neither of its ends and is among `classes` only.
    pub outcome: Option<Outcome>,
    /// The classes of those findings.
    pub classes: BTreeSet<FindingClass>,
    /// The worst share of what its links must deliver, of the best reading of each
    /// cell within its domain.
    pub worst: Option<f64>,
    /// A finding that blames it and nothing else was confirmed by a second measurement,
    /// and is degraded or failed.
    pub is_confirmed: bool,
}

/// One rail over all nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct MapRail {
    /// The RDMA device of every node on it, where one is claimed.
    pub rdma: Option<String>,
    /// The network device of every node on it, where one is claimed.
    pub device: Option<String>,
    /// Classes of findings about it as a whole or about single ends.
    pub classes: BTreeSet<FindingClass>,
}

/// A node's end of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MapRailEnd {
    /// Pass: something was measured over it and nothing is said against it. Unknown:
    /// nothing was measured, or it could not be compared.
    pub outcome: Outcome,
}

impl VerifiedMap {
    /// The map of a run.
    pub fn from_run(source: &MapInput<'_>) -> Self {
        builder::build_map(source)
    }

    /// The domain of this name.
    pub fn domain(&self, name: &str) -> Option<&MapDomain> {
        // They are in order of name, unless somebody else wrote the map.
        let at = self.domains.binary_search_by(|domain| domain.name.as_str().cmp(name));
        let there = at.ok().and_then(|at| self.domains.get(at));
        there.or_else(|| self.domains.iter().find(|domain| domain.name == name))
    }

    /// The domain that a node is in, measured or claimed.
    pub fn domain_of(&self, node: &NodeName) -> Option<&MapDomain> {
        self.domain(self.members.get(node)?.domain.as_deref()?)
    }

    /// What an export says first of all: who made it from which run, and what of
    /// that must be known before it is used. One line each, without comment signs.
    pub fn header_lines(&self) -> Vec<String> {
        let run = &self.run;
        let mut lines = vec![format!(
            "made by fabricgate {} from run {} (created {}), thresholds {}",
            env!("CARGO_PKG_VERSION"),
            model::text::clean(&run.id),
            model::text::clean(&run.created),
            model::text::clean(&run.thresholds_digest),
        )];
        lines.extend(simulation_notice(run.is_simulated).map(str::to_owned));
        if !run.is_complete {
            lines.push("PARTIAL: the run did not come to its end".to_owned());
        }
        lines
    }

    /// The same as comment lines, each behind `sign` and a space.
    pub fn comment_lines(&self, sign: &str) -> String {
        self.header_lines().into_iter().map(|line| format!("{sign} {line}\n")).collect()
    }
}
