//! The verified map of one run: measured domains, members with their outcome, cliques, rails and
//! leaves. Every export uses only this map.
//!
//! Unmeasured parts appear as claimed and are marked ([`DomainBasis::Claimed`],
//! [`MapMember::reach`]); each export reports or omits them. Nothing here judges: outcomes and
//! findings come from the judge.

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

/// The input of a map.
#[derive(Clone, Copy, Debug)]
pub struct MapInput<'a> {
    /// The judged run.
    pub run: &'a Run,
    /// Whether every step of its plan was tried.
    pub is_complete: bool,
    /// Whether a simulated fabric produced the outputs.
    pub is_simulated: bool,
    /// Machine reports from workers.
    pub machines: &'a [MachineRecord],
    /// The outputs that were read, for driver facts.
    pub recordings: &'a [ToolRecording],
    /// The expectations in force: they define which platforms span nodes.
    pub catalogue: &'a PlatformCatalogue,
}

/// The verified map of a run.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct VerifiedMap {
    /// The run behind it.
    pub run: MapOrigin,
    /// The worst outcome of its parts.
    pub outcome: Outcome,
    /// NVLink domains, ordered by name.
    pub domains: Vec<MapDomain>,
    /// Every node in the run's claims, in order.
    pub members: BTreeMap<NodeName, MapMember>,
    /// The claimed or measured rails, by name.
    pub rails: BTreeMap<String, MapRail>,
    /// Claimed leaves of the scale-out network, with their nodes. Leaves are claims: a sweep blames
    /// uplinks and does not find switches.
    pub leaves: BTreeMap<String, Vec<NodeName>>,
    /// The connection strength between any two GPUs.
    #[serde(skip)]
    pub matrix: StrengthMatrix,
    /// Topologies that Slurm's partitions name, by partition; absent if no source reports them.
    #[serde(skip)]
    pub partitions: Option<BTreeMap<String, String>>,
    /// Sizes of all levels of Slurm's blocks, the base size first; empty for a single level.
    #[serde(skip)]
    pub block_sizes: Vec<usize>,
}

/// The run behind a map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MapOrigin {
    /// The run ID.
    pub id: String,
    /// Creation time, RFC 3339.
    pub created: String,
    /// The profile of the run.
    pub profile: String,
    /// Version of fabricgate that measured.
    pub version: String,
    /// Digest of the expectations used for the verdicts.
    pub thresholds_digest: String,
    /// Whether the run completed.
    pub is_complete: bool,
    /// Whether a simulated fabric produced the outputs.
    pub is_simulated: bool,
}

/// The evidence for a domain's membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DomainBasis {
    /// Its nodes were measured to reach each other at NVLink speed.
    Measured,
    /// A claim: no two of its nodes were measured against each other.
    Claimed,
}

/// An NVLink domain: nodes that reach each other at NVLink speed.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MapDomain {
    /// Its name: the claimed one. If measurements split the claimed domain, the part with most of
    /// its nodes keeps the name and the others are `NAME.part2` and so on. Without a majority,
    /// every part gets a suffix.
    pub name: String,
    /// The claimed domain that contains it.
    pub claimed: DomainName,
    /// The evidence for its membership.
    pub basis: DomainBasis,
    /// The nodes measured to be in it, in order. Empty with [`DomainBasis::Claimed`].
    pub measured: BTreeSet<NodeName>,
    /// Its claimed nodes that were not measured against others, in order.
    pub unmeasured: BTreeSet<NodeName>,
    /// The platform, if known.
    pub platform: Option<String>,
    /// Required GPUs per node, if claimed.
    pub gpus_per_node: Option<u32>,
    /// NVLinks of each GPU of its platform, if known.
    pub nvlinks: Option<u32>,
}

impl MapDomain {
    /// All its nodes, measured or claimed, in order.
    pub fn nodes(&self) -> BTreeSet<&NodeName> {
        self.measured.iter().chain(&self.unmeasured).collect()
    }
}

/// The extent of a node's measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MeasuredReach {
    /// No measurement.
    Nothing,
    /// Its internal links only.
    Inside,
    /// Against other nodes of its domain as well. For a node that is its own domain, the internal
    /// links suffice.
    Across,
}

/// One node of the map.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MapMember {
    /// Its claimed domain.
    pub claimed: Option<DomainName>,
    /// The name of its [`MapDomain`] in the map.
    pub domain: Option<String>,
    /// The extent of its measurement.
    pub reach: MeasuredReach,
    /// It was measured in another domain than its claimed one: `claimed` holds the claimed domain,
    /// `domain` the measured one.
    pub is_misplaced: bool,
    /// It does not reach its claimed domain, and its real domain is unknown.
    pub is_apart: bool,
    /// Its verdict.
    pub outcome: Outcome,
    /// The reason, in one sentence.
    pub reason: String,
    /// IDs of the findings about it or a part of it.
    pub findings: Vec<String>,
    /// Classes of these findings, without duplicates, in order.
    pub classes: BTreeSet<FindingClass>,
    /// The worst share of the expected link rate, over the best reading of each cell within its
    /// domain.
    pub worst: Option<f64>,
    /// The smallest relative degradation that the run could detect on it.
    pub detectable: Option<f64>,
    /// `<ClusterUUID>.<CliqueId>` as its drivers report it, one per different value among its GPUs;
    /// empty if not read or if no fabric is attached.
    pub cliques: BTreeSet<String>,
    /// Its GPUs by index, as seen by the run.
    pub gpus: BTreeMap<u32, MapGpu>,
    /// Its ends of rails, by the rail's name.
    pub rails: BTreeMap<String, MapRailEnd>,
    /// Its claimed leaf.
    pub leaf: Option<String>,
    /// Boot ID, if a worker reported it.
    pub boot_id: Option<String>,
    /// The one GPU that is faulty instead of the node, by index and UUID; or why the node is blamed
    /// (`act::device`).
    #[serde(skip)]
    pub device: Result<Option<(u32, String)>, String>,
}

impl MapMember {
    /// Whether all required measurements of the node exist and are as expected.
    pub fn is_verified(&self) -> bool {
        self.outcome == Outcome::Pass && self.reach != MeasuredReach::Nothing
    }

    /// The clique that all its GPUs share; `None` if they differ or report none.
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
    /// Its UUID, if known.
    pub uuid: Option<String>,
    /// The worst outcome of findings that blame it; absent without findings. A slow pair blames
    /// neither of its ends and appears in `classes` only.
    pub outcome: Option<Outcome>,
    /// The classes of those findings.
    pub classes: BTreeSet<FindingClass>,
    /// The worst share of the expected link rate, over the best reading of each cell within its
    /// domain.
    pub worst: Option<f64>,
    /// A second measurement confirmed a degraded or failed finding that blames this GPU alone.
    pub is_confirmed: bool,
}

/// One rail over all nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct MapRail {
    /// The RDMA device of every node on it, if claimed.
    pub rdma: Option<String>,
    /// The network device of every node on it, if claimed.
    pub device: Option<String>,
    /// Classes of findings about the whole rail or about single ends.
    pub classes: BTreeSet<FindingClass>,
}

/// A node's end of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MapRailEnd {
    /// Pass: it was measured and has no finding. Unknown: not measured, or without a reference.
    pub outcome: Outcome,
}

impl VerifiedMap {
    /// The map of a run.
    pub fn from_run(source: &MapInput<'_>) -> Self {
        builder::build_map(source)
    }

    /// The domain of this name.
    pub fn domain(&self, name: &str) -> Option<&MapDomain> {
        // Ordered by name, unless another program wrote the map.
        let at = self.domains.binary_search_by(|domain| domain.name.as_str().cmp(name));
        let there = at.ok().and_then(|at| self.domains.get(at));
        there.or_else(|| self.domains.iter().find(|domain| domain.name == name))
    }

    /// The domain of a node, measured or claimed.
    pub fn domain_of(&self, node: &NodeName) -> Option<&MapDomain> {
        self.domain(self.members.get(node)?.domain.as_deref()?)
    }

    /// The header of an export: the tool version, the run, and warnings before use. One line each,
    /// without comment signs.
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
            lines.push("PARTIAL: the run did not complete".to_owned());
        }
        lines
    }

    /// [`Self::header_lines`] as comment lines, each with `sign` and a space in front.
    pub fn comment_lines(&self, sign: &str) -> String {
        self.header_lines().into_iter().map(|line| format!("{sign} {line}\n")).collect()
    }
}
