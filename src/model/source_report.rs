//! What one source says about the fabric, before it is held against others.
//!
//! Types only: a source, the groups and nodes it names, and what of it could
//! not be read. Reading is `inventory`'s work, opening `sources`', and holding
//! one against another `inventory::reconcile`'s.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::claims::ClaimedRail;
use super::id::NodeName;
use super::limits;

/// Everything one source says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SourceReport {
    /// Who says it.
    pub source: ClaimSource,
    /// Sets of nodes it says belong together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<NodeGroup>,
    /// What it says of single nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<NodeName, NodeReport>,
    /// Rails that every node has one end of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rails: Vec<ClaimedRail>,
    /// What jobs or frameworks take for granted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beliefs: Vec<JobAssumption>,
    /// Settings of the system behind it, by its own names for them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Remarks: what was skipped on purpose, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What of it could not be read or used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<SourceProblem>,
}

impl SourceReport {
    /// A source that has said nothing yet.
    pub fn new(kind: SourceKind, place: impl Into<String>) -> Self {
        Self {
            source: ClaimSource { kind, place: place.into(), read_at: None },
            groups: Vec::new(),
            nodes: BTreeMap::new(),
            rails: Vec::new(),
            beliefs: Vec::new(),
            settings: BTreeMap::new(),
            notes: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// Adds a problem.
    pub fn push_problem(
        &mut self,
        kind: SourceProblemKind,
        at: impl Into<Option<String>>,
        message: impl Into<String>,
    ) {
        self.problems.push(SourceProblem { kind, at: at.into(), message: message.into() });
    }

    /// What it says of this node, to be added to.
    pub fn node_mut(&mut self, node: &NodeName) -> &mut NodeReport {
        self.nodes.entry(node.clone()).or_default()
    }
}

/// Who says something.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct ClaimSource {
    /// What kind of source.
    pub kind: SourceKind,
    /// Where it is: a file, a command, an address.
    pub place: String,
    /// When it was read, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_at: Option<String>,
}

impl fmt::Display for ClaimSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.kind.label(), self.place)
    }
}

/// Kinds of sources.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum SourceKind {
    /// Our own `claims.toml`, written by a person.
    ClaimsFile,
    /// A simulated scenario.
    Scenario,
    /// What a stored run measured.
    MeasuredRun,
    /// A file or folder of which nobody knows what it is.
    Unrecognised,
    /// Slurm's `topology.yaml`.
    SlurmTopologyYaml,
    /// Slurm's `topology.conf`.
    SlurmTopologyConf,
    /// What the controller answers to `scontrol show topology`.
    SlurmTopology,
    /// Slurm's nodes: `scontrol show node`, or slurmrestd's.
    SlurmNodes,
    /// Slurm's partitions.
    SlurmPartitions,
    /// `scontrol show config`.
    SlurmConfig,
    /// `sinfo`.
    Sinfo,
    /// Node objects with their labels, annotations, taints and conditions.
    KubernetesNodes,
    /// `ComputeDomain` objects.
    ComputeDomains,
    /// Kueue or KAI `Topology` objects.
    KubernetesTopologies,
    /// What nodes say of themselves (`fabricgate node facts`).
    NodeFacts,
    /// An operator's cabling or asset file.
    Cabling,
    /// LLDP or InfiniBand neighbours.
    Neighbours,
    /// Resources of a Ray cluster.
    Ray,
    /// An NCCL topology XML.
    NcclTopology,
    /// The environment of a job.
    Job,
}

impl SourceKind {
    /// What people call it.
    pub fn label(self) -> &'static str {
        match self {
            Self::ClaimsFile => "claims file",
            Self::Scenario => "scenario",
            Self::MeasuredRun => "measured run",
            Self::Unrecognised => "file",
            Self::SlurmTopologyYaml => "Slurm topology.yaml",
            Self::SlurmTopologyConf => "Slurm topology.conf",
            Self::SlurmTopology => "Slurm topology in force",
            Self::SlurmNodes => "Slurm nodes",
            Self::SlurmPartitions => "Slurm partitions",
            Self::SlurmConfig => "Slurm configuration",
            Self::Sinfo => "sinfo",
            Self::KubernetesNodes => "Kubernetes nodes",
            Self::ComputeDomains => "ComputeDomains",
            Self::KubernetesTopologies => "Kubernetes topologies",
            Self::NodeFacts => "node facts",
            Self::Cabling => "cabling file",
            Self::Neighbours => "network neighbours",
            Self::Ray => "Ray",
            Self::NcclTopology => "NCCL topology",
            Self::Job => "job description",
        }
    }

    /// The family it belongs to.
    pub fn family(self) -> SourceFamily {
        match self {
            Self::ClaimsFile | Self::Scenario | Self::Unrecognised => SourceFamily::File,
            Self::SlurmTopologyYaml
            | Self::SlurmTopologyConf
            | Self::SlurmTopology
            | Self::SlurmNodes
            | Self::SlurmPartitions
            | Self::SlurmConfig
            | Self::Sinfo => SourceFamily::Slurm,
            Self::KubernetesNodes | Self::ComputeDomains | Self::KubernetesTopologies => {
                SourceFamily::Kubernetes
            }
            Self::MeasuredRun | Self::NodeFacts | Self::Neighbours => SourceFamily::Nodes,
            Self::Cabling => SourceFamily::Cabling,
            Self::Ray | Self::NcclTopology | Self::Job => SourceFamily::Frameworks,
        }
    }
}

/// Families of sources, as people choose among them.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum SourceFamily {
    /// Files of our own: claims, scenarios, stored runs.
    File,
    /// Everything of Slurm.
    Slurm,
    /// Everything of Kubernetes.
    Kubernetes,
    /// The nodes themselves.
    Nodes,
    /// Cabling and asset files.
    Cabling,
    /// Ray, NCCL, job descriptions.
    Frameworks,
}

impl SourceFamily {
    /// All of them, in the order in which they decide what is measured.
    pub const ALL: [Self; 6] =
        [Self::File, Self::Slurm, Self::Kubernetes, Self::Nodes, Self::Cabling, Self::Frameworks];

    /// Its name on command lines and in files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Slurm => "slurm",
            Self::Kubernetes => "kubernetes",
            Self::Nodes => "nodes",
            Self::Cabling => "cabling",
            Self::Frameworks => "frameworks",
        }
    }
}

/// What nodes of a group share, as claimed.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum NodeGroupKind {
    /// One NVLink domain: a base block, a clique, a domain of a claims file.
    Domain,
    /// One IMEX domain (a `ComputeDomain`): a part of an NVLink domain, or all.
    Imex,
    /// One leaf switch.
    Leaf,
    /// A switch above leaves; its nodes are those below it.
    Switch,
    /// One rack or cabinet.
    Rack,
    /// A partition or node pool: no claim about the fabric.
    Partition,
}

/// A set of nodes that a source says belong together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeGroup {
    /// What they share.
    pub kind: NodeGroupKind,
    /// Its name there: `block01`, `<ClusterUUID>.<CliqueId>`.
    pub name: String,
    /// What the source calls such a group: `block`, `clique`, `switch`,
    /// `ComputeDomain`, `nvlink_domain`, `gce-topology-block`.
    pub scheme: String,
    /// The topology or object it is part of, where the source has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    /// Whether it is in force: the topology that is not the cluster's default
    /// is only an alternative.
    #[serde(default = "default_in_force", skip_serializing_if = "is_in_force")]
    pub in_force: bool,
    /// Its nodes, in the order of the source. None is possible: an empty block.
    pub nodes: Vec<NodeName>,
    /// How many nodes it should have, where the source says.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "limits::deserialize_members"
    )]
    pub size: Option<u32>,
    /// The switches (or levels) right above it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<String>,
    /// The rail that a leaf serves, where it serves one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<String>,
    /// The platform, a name in `thresholds/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// GPUs each of its nodes must show.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "limits::deserialize_gpus"
    )]
    pub gpus_per_node: Option<u32>,
    /// The class of its nodes' NICs, a name in `thresholds/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<String>,
    /// How the source knows.
    pub basis: ClaimBasis,
    /// Since when it says so, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Where in the source: `topology.yaml:7:9`, `label nvidia.com/gpu.clique`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

fn default_in_force() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_in_force(value: &bool) -> bool {
    *value
}

impl NodeGroup {
    /// A group of this kind and name, asserted, with nothing else said.
    pub fn new(
        kind: NodeGroupKind,
        scheme: &str,
        name: impl Into<String>,
        nodes: Vec<NodeName>,
    ) -> Self {
        Self {
            kind,
            name: name.into(),
            scheme: scheme.to_owned(),
            topology: None,
            in_force: true,
            nodes,
            size: None,
            above: Vec::new(),
            rail: None,
            platform: None,
            gpus_per_node: None,
            nic: None,
            basis: ClaimBasis::Asserted,
            since: None,
            at: None,
        }
    }
}

/// How a source knows what it says.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(tag = "how", rename_all = "kebab-case")]
pub enum ClaimBasis {
    /// A person or a program wrote it down.
    Asserted,
    /// It was taken over from another source, which it does not corroborate.
    Copied {
        /// From whom: the source, the label, the driver.
        from: String,
    },
    /// Hardware or its driver says so of itself.
    Reported,
    /// A run measured it.
    Measured,
}

/// What a source says of one node. What it does not say is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodeReport {
    /// How many GPUs it has.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "limits::deserialize_gpus"
    )]
    pub gpus: Option<u32>,
    /// Their product, as the source spells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// Driver version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Fabric identity per GPU, or once for the node (`gpu` absent).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fabric: Vec<FabricReport>,
    /// Network interfaces of the compute network.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NicReport>,
    /// Rack or chassis.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
    /// Slot or tray in the rack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<String>,
    /// Position for rank order (`topo_rank`), as written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topo_rank: Option<String>,
    /// Another name of the machine: hostname, address, provider id.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// Words of the scheduler's state, such as `IDLE`, `DRAIN`, `Ready`,
    /// `SchedulingDisabled`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub state: Vec<String>,
    /// Why it is in that state, where the scheduler says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Something runs on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy: Option<bool>,
    /// Somebody asks that it be left alone: what, and by which mark.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub opt_out: Vec<String>,
    /// Marks of other tools: labels, annotations, taints, conditions.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub marks: BTreeMap<String, String>,
    /// Boot id, so that a replaced machine is noticed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
}

/// Fabric identity of one GPU, or of a node as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FabricReport {
    /// The GPU's index; absent where the source speaks for the whole node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// ClusterUUID, lower case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_uuid: Option<String>,
    /// CliqueId, decimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clique_id: Option<String>,
    /// `completed`, `in progress`, `not started`, `not supported`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// What is wrong with its health, in words; empty is healthy or not said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unhealthy: Vec<String>,
    /// How the source knows; a label is asserted, a driver reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basis: Option<ClaimBasis>,
    /// Where in the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

impl FabricReport {
    /// `<ClusterUUID>.<CliqueId>`, where both are said.
    pub fn clique(&self) -> Option<String> {
        Some(format!("{}.{}", self.cluster_uuid.as_deref()?, self.clique_id.as_deref()?))
    }
}

/// One network interface of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NicReport {
    /// Device name: `mlx5_0`, `eth1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Its rail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rail: Option<String>,
    /// The leaf switch it is cabled to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaf: Option<String>,
    /// The port of that switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Port GUID or MAC address, lower case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guid: Option<String>,
    /// `active`, `down`, ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Line rate in Mbit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_mbit_s: Option<u64>,
    /// How the source knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basis: Option<ClaimBasis>,
    /// Where in the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

/// What a job or a framework takes for granted about a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobAssumption {
    /// The framework or setting: `HybridEP`, `Ray nvlink_domain`.
    pub who: String,
    /// GPUs (ranks) it takes to be in one NVLink domain.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "limits::deserialize_members"
    )]
    pub ranks_per_domain: Option<u32>,
    /// Whether it takes multi-node NVLink for usable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multi_node_nvlink: Option<bool>,
    /// The nodes of the job, where they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeName>,
    /// Where it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// In words, with the setting as it is written.
    pub says: String,
}

/// Something of a source that could not be read or used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SourceProblem {
    /// What kind of problem.
    pub kind: SourceProblemKind,
    /// Where: `topology.conf:12:5`, a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// What is wrong, and what was expected.
    pub message: String,
}

impl fmt::Display for SourceProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            Some(at) => write!(f, "{at}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// Kinds of problems with a source.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum SourceProblemKind {
    /// It is not there: no file, no such kind of object. Often no fault.
    Missing,
    /// It could not be reached or did not answer in time.
    Unreachable,
    /// It refused.
    Denied,
    /// It cannot be read as what it should be.
    Malformed,
    /// It contradicts itself.
    Contradictory,
    /// It is of a kind that is not read.
    Unsupported,
    /// It stops early, or a part is missing.
    Incomplete,
    /// It states a count beyond what is taken in (`model::limits`); the count is left out.
    TooLarge,
}

impl SourceProblemKind {
    /// Its name in words.
    pub fn label(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Unreachable => "unreachable",
            Self::Denied => "denied",
            Self::Malformed => "malformed",
            Self::Contradictory => "contradicts itself",
            Self::Unsupported => "not supported",
            Self::Incomplete => "incomplete",
            Self::TooLarge => "too large",
        }
    }
}
