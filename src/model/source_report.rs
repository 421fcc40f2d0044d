//! The claims of one source about the fabric, before they are compared with other sources.
//!
//! Types only: a source, its groups and nodes, and the parts that could not be read. `sources`
//! opens it, `inventory` parses it, and `inventory::reconcile` compares it with others.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::claims::ClaimedRail;
use super::id::NodeName;
use super::limits;

/// All claims of one source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SourceReport {
    /// Identity of the source.
    pub source: ClaimSource,
    /// Groups of nodes that belong together according to the source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<NodeGroup>,
    /// Its claims about single nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<NodeName, NodeReport>,
    /// Rails to which every node has one link.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rails: Vec<ClaimedRail>,
    /// Assumptions of jobs or frameworks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beliefs: Vec<JobAssumption>,
    /// Settings of the system behind the source, under that system's names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Parts that were skipped on purpose, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Parts that could not be read or used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<SourceProblem>,
}

impl SourceReport {
    /// A report without any claims.
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

    /// Adds a problem of this source.
    pub fn push_problem(
        &mut self,
        kind: SourceProblemKind,
        at: impl Into<Option<String>>,
        message: impl Into<String>,
    ) {
        self.problems.push(SourceProblem { kind, at: at.into(), message: message.into() });
    }

    /// The report about this node, created if missing.
    pub fn node_mut(&mut self, node: &NodeName) -> &mut NodeReport {
        self.nodes.entry(node.clone()).or_default()
    }
}

/// Identity of a source.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct ClaimSource {
    /// Kind of the source.
    pub kind: SourceKind,
    /// Its location: a file, a command, an address.
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

/// The kinds of sources.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum SourceKind {
    /// Fabricgate's `claims.toml`, written by an operator.
    ClaimsFile,
    /// A scenario of the simulator.
    Scenario,
    /// The measurements of a stored run.
    MeasuredRun,
    /// A file or folder in an unknown format.
    Unrecognised,
    /// Slurm's `topology.yaml`.
    SlurmTopologyYaml,
    /// Slurm's `topology.conf`.
    SlurmTopologyConf,
    /// The output of `scontrol show topology`.
    SlurmTopology,
    /// Slurm's nodes, from `scontrol show node` or slurmrestd.
    SlurmNodes,
    /// Slurm's partitions, from `scontrol show partition` or slurmrestd.
    SlurmPartitions,
    /// `scontrol show config`.
    SlurmConfig,
    /// `sinfo`.
    Sinfo,
    /// Kubernetes nodes with their labels, annotations, taints and conditions.
    KubernetesNodes,
    /// `ComputeDomain` objects.
    ComputeDomains,
    /// Kueue or KAI `Topology` objects.
    KubernetesTopologies,
    /// Facts collected on the nodes (`fabricgate node facts`).
    NodeFacts,
    /// An operator's cabling or asset file.
    Cabling,
    /// Neighbours from LLDP or InfiniBand.
    Neighbours,
    /// Resources of a Ray cluster.
    Ray,
    /// An NCCL topology XML.
    NcclTopology,
    /// The environment of a job.
    Job,
}

impl SourceKind {
    /// The name in text output.
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

    /// The family of the kind.
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

/// The families of sources, by which a user selects them.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum SourceFamily {
    /// Fabricgate's files: claims, scenarios, stored runs.
    File,
    /// All sources in Slurm.
    Slurm,
    /// All sources in Kubernetes.
    Kubernetes,
    /// The nodes themselves.
    Nodes,
    /// Cabling and asset files.
    Cabling,
    /// Ray, NCCL, job descriptions.
    Frameworks,
}

impl SourceFamily {
    /// All families, in decreasing priority for what is measured.
    pub const ALL: [Self; 6] =
        [Self::File, Self::Slurm, Self::Kubernetes, Self::Nodes, Self::Cabling, Self::Frameworks];

    /// The name on command lines and in files.
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

/// The kinds of groups: what the nodes of a group share.
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
    /// A switch above leaves, with all nodes below it.
    Switch,
    /// One rack or cabinet.
    Rack,
    /// A partition or node pool, which makes no claim about the fabric.
    Partition,
}

/// A group of nodes that belong together according to a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeGroup {
    /// Kind of the group.
    pub kind: NodeGroupKind,
    /// Its name in the source: `block01`, `<ClusterUUID>.<CliqueId>`.
    pub name: String,
    /// The source's term for the group: `block`, `clique`, `switch`, `ComputeDomain`,
    /// `nvlink_domain`, `gce-topology-block`.
    pub scheme: String,
    /// The topology or object it is part of, where the source has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    /// Whether the claim is in force: a topology other than the cluster's default is only an
    /// alternative.
    #[serde(default = "default_in_force", skip_serializing_if = "is_in_force")]
    pub in_force: bool,
    /// Its nodes, in the order of the source. May be empty: an empty block.
    pub nodes: Vec<NodeName>,
    /// The claimed number of nodes.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "limits::deserialize_members"
    )]
    pub size: Option<u32>,
    /// The parent switches (or levels).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<String>,
    /// The rail of a leaf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<String>,
    /// The platform, a name in `thresholds/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// GPUs that each of its nodes must have.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "limits::deserialize_gpus"
    )]
    pub gpus_per_node: Option<u32>,
    /// The class of its nodes' NICs, a name in `thresholds/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<String>,
    /// Basis of the claim.
    pub basis: ClaimBasis,
    /// Start of validity, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Location within the source: `topology.yaml:7:9`, `label nvidia.com/gpu.clique`.
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
    /// An asserted group of this kind and name, with no other field set.
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

/// The basis of a source's claim.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(tag = "how", rename_all = "kebab-case")]
pub enum ClaimBasis {
    /// Written down by a user or a program.
    Asserted,
    /// Copied from another source, and therefore no confirmation of it.
    Copied {
        /// The origin: the source, the label, the driver.
        from: String,
    },
    /// Reported by the hardware or its driver.
    Reported,
    /// Measured in a run.
    Measured,
}

/// A source's claims about one node. Unclaimed fields are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodeReport {
    /// Number of GPUs.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "limits::deserialize_gpus"
    )]
    pub gpus: Option<u32>,
    /// GPU product, in the source's spelling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// Version of the driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Fabric identity per GPU, or once for the node (`gpu` absent).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fabric: Vec<FabricReport>,
    /// Network interfaces of the compute network.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NicReport>,
    /// Its rack or chassis.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
    /// Slot or tray in the rack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<String>,
    /// Position for rank order (`topo_rank`), as written in the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topo_rank: Option<String>,
    /// Another name of the machine: hostname, address, provider id.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// Flags of the scheduler's state, such as `IDLE`, `DRAIN`, `Ready`, `SchedulingDisabled`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub state: Vec<String>,
    /// The scheduler's reason for the state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether a workload runs on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy: Option<bool>,
    /// Requests to leave the node alone, each with the mark that states it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub opt_out: Vec<String>,
    /// Marks of other tools: labels, annotations, taints, conditions.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub marks: BTreeMap<String, String>,
    /// Kernel boot id, which reveals a replaced machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
}

/// Fabric identity of one GPU, or of a node as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FabricReport {
    /// Index of the GPU; absent where the claim covers the whole node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// ClusterUUID, in lower case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_uuid: Option<String>,
    /// CliqueId, as decimal text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clique_id: Option<String>,
    /// `completed`, `in progress`, `not started`, `not supported`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Health problems as text; empty if the GPU is healthy or reports no health.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unhealthy: Vec<String>,
    /// Basis of the claim: a label is asserted, a driver reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basis: Option<ClaimBasis>,
    /// Location within the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

impl FabricReport {
    /// `<ClusterUUID>.<CliqueId>`, where both are known.
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
    /// The rail it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rail: Option<String>,
    /// The leaf switch it is cabled to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaf: Option<String>,
    /// The port of that switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Port GUID or MAC address, in lower case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guid: Option<String>,
    /// Link state: `active`, `down`, ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Line rate in Mbit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_mbit_s: Option<u64>,
    /// Basis of the claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basis: Option<ClaimBasis>,
    /// Location within the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

/// An assumption of a job or a framework about a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobAssumption {
    /// The framework or setting: `HybridEP`, `Ray nvlink_domain`.
    #[serde(rename = "who")]
    pub subject: String,
    /// GPUs (ranks) that it expects in one NVLink domain.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "limits::deserialize_members"
    )]
    pub ranks_per_domain: Option<u32>,
    /// Whether it expects multi-node NVLink to be usable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multi_node_nvlink: Option<bool>,
    /// The nodes of the job, where known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeName>,
    /// Location within the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// The assumption as text, with the setting as written.
    #[serde(rename = "says")]
    pub text: String,
}

/// A part of a source that could not be read or used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SourceProblem {
    /// Kind of the problem.
    pub kind: SourceProblemKind,
    /// Location: `topology.conf:12:5`, a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// The problem, and what was expected.
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

/// The kinds of problems with a source.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum SourceProblemKind {
    /// It does not exist: no file, no such kind of object. Often not a fault.
    Missing,
    /// It was unreachable or did not answer in time.
    Unreachable,
    /// Access was denied.
    Denied,
    /// It does not parse in its expected format.
    Malformed,
    /// It contradicts itself.
    Contradictory,
    /// Its kind is not supported.
    Unsupported,
    /// It ends early, or a part is missing.
    Incomplete,
    /// It contains a count above the limit (`model::limits`); the count is ignored.
    TooLarge,
}

impl SourceProblemKind {
    /// The name in text output.
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
