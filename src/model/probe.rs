//! A probe: a tool, its command line, and its cost.
//!
//! Plans are made of probes, and launchers run them. The catalog reads probe files
//! (`probe::catalog`); the plan fills in the commands.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::parse_output::Tool;

/// The extent of one execution of a probe.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ProbeScope {
    /// One node by itself.
    Node,
    /// Two nodes of one domain, over their shared fabric.
    Pair,
    /// Two nodes over one rail of the scale-out network.
    Rail,
    /// All nodes of a domain concurrently.
    Domain,
}

impl ProbeScope {
    /// The name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Pair => "pair",
            Self::Rail => "rail",
            Self::Domain => "domain",
        }
    }
}

/// The granularity of a pair probe.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ProbeGranularity {
    /// One execution covers all GPUs of the two nodes.
    #[default]
    Node,
    /// One execution covers one lane: GPU i of one node with GPU i + lane of the other.
    Gpu,
}

/// The pairs of GPUs that one execution covers.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum PairCoverage {
    /// None: a collective, a state query, or a measurement of host networking.
    #[default]
    None,
    /// GPU i of one node with GPU i of the other, or only some of these pairs.
    Lane,
    /// Every pair among the participating GPUs.
    All,
}

impl PairCoverage {
    /// The name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lane => "lane",
            Self::All => "all",
        }
    }
}

/// The impact of a probe on other workloads while it runs.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ProbeImpact {
    /// No impact: driver queries only.
    Nothing,
    /// GPU memory, copy engines and NVLink: jobs on these GPUs slow down or fail.
    Gpus,
    /// The scale-out network of the nodes.
    Network,
}

impl ProbeImpact {
    /// The name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Gpus => "gpus",
            Self::Network => "network",
        }
    }
}

/// The preconditions of a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProbePreconditions {
    /// Minimum number of GPUs on the node.
    pub min_gpus: u32,
    /// The GPUs must be idle for the duration of the probe.
    pub idle_gpus: bool,
    /// The NVLink domain must span nodes.
    pub nvlink_across: bool,
}

/// How a serving process signals that its peer may connect.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ReadySignal {
    /// It listens at the given port (`{port}`).
    Port,
    /// Its first output line is `listening PORT`; that port fills `{port}` of the client.
    Line,
}

/// A command, one element per argument. A burn-in of ten thousand nodes has millions of commands,
/// most of them equal: equal commands share their memory.
pub type SharedArgv = Arc<[String]>;

/// The command of the serving side on the second node, while the first runs the probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProbeServer {
    /// Its command, with the same placeholders.
    pub argv: SharedArgv,
    /// How it signals that it is ready.
    pub ready: ReadySignal,
}

/// The replacement for a tool that a node lacks, or for every tool at the operator's request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProbeFallback {
    /// The tool whose output format it prints.
    pub parser: Tool,
    /// Its command, with the same placeholders. It takes one reading.
    pub argv: SharedArgv,
    /// Every participating node runs it, see [`Probe::on_all_nodes`].
    #[serde(default, rename = "together", skip_serializing_if = "std::ops::Not::not")]
    pub on_all_nodes: bool,
}

/// One probe of the catalog.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Probe {
    /// Its name, unique in a catalog.
    pub name: String,
    /// Description, for readers.
    pub title: String,
    /// The tool whose output format it prints; the output is still recognised by content.
    pub parser: Tool,
    /// The command, with [placeholders](placeholder).
    pub argv: Vec<String>,
    /// The serving side, for tools with two sides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serve: Option<ProbeServer>,
    /// Every participating node runs the command, and their messages pass through the coordinator
    /// (`model::exchange`).
    #[serde(default, rename = "together", skip_serializing_if = "std::ops::Not::not")]
    pub on_all_nodes: bool,
    /// The replacement where the tool is missing.
    #[serde(default, rename = "otherwise", skip_serializing_if = "Option::is_none")]
    pub fallback: Option<ProbeFallback>,
    /// The extent of one execution.
    pub scope: ProbeScope,
    /// The granularity of a pair.
    #[serde(default)]
    pub grain: ProbeGranularity,
    /// The pairs of GPUs that one execution covers.
    #[serde(default)]
    pub covers: PairCoverage,
    /// The first stage of a sweep that uses it: 0 identity and state, 1 inside the node, 2 fast
    /// sweep, 4 collective, 5 complete sweep. Stage 3 repeats measurements with suspicious
    /// results.
    pub stage: u8,
    /// Preconditions of the probe.
    pub requires: ProbePreconditions,
    /// The tool takes all readings in one execution (`{readings}`).
    #[serde(default)]
    pub reads_itself: bool,
    /// Duration of one execution on healthy nodes, in seconds; of one reading, for a tool that
    /// takes all readings itself.
    pub cost_s: f64,
    /// Timeout of one execution in seconds, or of one reading, in the same way.
    pub timeout_s: f64,
    /// Its impact on other workloads.
    pub disturbs: ProbeImpact,
    /// The file it was read from, for messages.
    pub origin: String,
}

/// Format name of [`ProbesDocument`].
pub const PROBES_FORMAT: &str = "fabricgate.probes/1";

/// The output of `probes list --json` and `probes show --json`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ProbesDocument {
    /// `fabricgate.probes/1`.
    pub format: String,
    /// The probes, by name.
    pub probes: Vec<Probe>,
}

/// Placeholders in a probe's command. The plan fills in those known from claims; the last group
/// is filled in when the nodes have reported.
pub mod placeholder {
    /// Number of GPUs per node.
    pub const GPUS: &str = "{gpus}";
    /// Number of GPUs on all participating nodes.
    pub const RANKS: &str = "{ranks}";
    /// The participating nodes: `a,b`.
    pub const NODES: &str = "{nodes}";
    /// The participating nodes with their GPU counts, as Open MPI's `--host` expects them:
    /// `a:4,b:4`.
    pub const HOSTS: &str = "{hosts}";
    /// The node that runs the command.
    pub const NODE: &str = "{node}";
    /// The other node of the pair.
    pub const PEER: &str = "{peer}";
    /// The rail's name, `-` where none is claimed.
    pub const RAIL: &str = "{rail}";
    /// RDMA device of the rail.
    pub const RDMA: &str = "{rdma}";
    /// Number of readings to take.
    pub const READINGS: &str = "{readings}";
    /// The lane of a GPU-level round.
    pub const LANE: &str = "{lane}";
    /// Seconds in which the command must finish: nine tenths of its timeout.
    pub const LIMIT: &str = "{limit}";

    /// The path of fabricgate on that node.
    pub const SELF: &str = "{self}";
    /// The node's own address on the rail.
    pub const ADDRESS: &str = "{address}";
    /// The other node's address on the rail.
    pub const PEER_ADDRESS: &str = "{peer_address}";
    /// The network device of the rail on this node, `-` where unknown.
    pub const DEVICE: &str = "{device}";
    /// The port of the serving side.
    pub const PORT: &str = "{port}";

    /// All placeholders.
    pub const ALL: &[&str] = &[
        GPUS,
        RANKS,
        NODES,
        HOSTS,
        NODE,
        PEER,
        RAIL,
        RDMA,
        READINGS,
        LANE,
        LIMIT,
        SELF,
        ADDRESS,
        PEER_ADDRESS,
        DEVICE,
        PORT,
    ];
}

impl Probe {
    /// All arguments of its commands.
    pub fn command_words(&self) -> impl Iterator<Item = &String> {
        let serve = self.serve.iter().flat_map(|serve| serve.argv.iter());
        let fallback = self.fallback.iter().flat_map(|fallback| fallback.argv.iter());
        self.argv.iter().chain(serve).chain(fallback)
    }

    /// The probe with its fallback as the command; unchanged if it has no fallback.
    pub fn into_fallback(mut self) -> Self {
        if let Some(ProbeFallback { parser, argv, on_all_nodes }) = self.fallback.take() {
            (self.parser, self.argv, self.on_all_nodes) = (parser, argv.to_vec(), on_all_nodes);
            self.serve = None;
        }
        self
    }

    /// Whether a command contains this placeholder.
    pub fn uses_placeholder(&self, placeholder: &str) -> bool {
        self.command_words().any(|word| word.contains(placeholder))
    }
}
