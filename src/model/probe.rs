//! What a probe is: a tool, how it is called, and what it costs.
//!
//! Plans are made from these and launchers run them. Reading probe files is
//! the catalog's work (`probe::catalog`), filling in commands is the plan's.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::parse_output::Tool;

/// What one execution of a probe measures.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ProbeScope {
    /// One node, and nothing outside it.
    Node,
    /// Two nodes of one domain, over the fabric they share.
    Pair,
    /// Two nodes over one rail of the scale-out network.
    Rail,
    /// All nodes of a domain at once.
    Domain,
}

impl ProbeScope {
    /// The name used in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Pair => "pair",
            Self::Rail => "rail",
            Self::Domain => "domain",
        }
    }
}

/// What the ends of a pair probe are.
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

/// Which pairs of GPUs one execution reads.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum PairCoverage {
    /// None: a collective, a state, a host's network.
    #[default]
    None,
    /// Of two nodes, GPU i of one with GPU i of the other; or some pairs only.
    Lane,
    /// Every pair among the GPUs that take part.
    All,
}

impl PairCoverage {
    /// The name used in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lane => "lane",
            Self::All => "all",
        }
    }
}

/// What a probe takes away from others while it runs.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ProbeImpact {
    /// Driver queries only.
    Nothing,
    /// GPU memory, copy engines, NVLink: jobs there slow down or fail.
    Gpus,
    /// The scale-out network of the nodes.
    Network,
}

impl ProbeImpact {
    /// The name used in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Gpus => "gpus",
            Self::Network => "network",
        }
    }
}

/// What must hold before a probe makes sense.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProbePreconditions {
    /// Fewest GPUs on the node.
    pub min_gpus: u32,
    /// No job may use the GPUs meanwhile.
    pub idle_gpus: bool,
    /// The domain's NVLink spans nodes.
    pub nvlink_across: bool,
}

/// How a serving process says that its peer may come.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ReadySignal {
    /// It listens at the port it was given (`{port}`).
    Port,
    /// Its first line of output is `listening PORT`; that port fills `{port}` of the client.
    Line,
}

/// A command, word by word. A burn-in of ten thousand nodes has millions of them, of
/// which most are the same: those share their words.
pub type SharedArgv = Arc<[String]>;

/// The command that serves on the second node while the first runs the probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProbeServer {
    /// Its command, with the same placeholders.
    pub argv: SharedArgv,
    /// How it says that it is ready.
    pub ready: ReadySignal,
}

/// What is run in place of a tool that a node does not have, or of every tool
/// where a person says so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProbeFallback {
    /// Whose output it prints.
    pub parser: Tool,
    /// Its command, with the same placeholders. Takes one reading.
    pub argv: SharedArgv,
    /// Every node that takes part runs it, see [`Probe::together`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub together: bool,
}

/// One probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Probe {
    /// Its name, unique in a catalog.
    pub name: String,
    /// What it is, for people.
    pub title: String,
    /// Whose output it prints; the output is still recognised by content.
    pub parser: Tool,
    /// The command, with [placeholders](placeholder).
    pub argv: Vec<String>,
    /// The serving side, for tools of two sides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serve: Option<ProbeServer>,
    /// Every node that takes part runs the command, and what they have to tell
    /// each other passes through the coordinator (`model::exchange`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub together: bool,
    /// What is run where the tool is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<ProbeFallback>,
    /// What one execution measures.
    pub scope: ProbeScope,
    /// The ends of a pair.
    #[serde(default)]
    pub grain: ProbeGranularity,
    /// The pairs of GPUs that one execution reads.
    #[serde(default)]
    pub covers: PairCoverage,
    /// The first stage of a sweep that uses it: 0 identity and state, 1 inside
    /// the node, 2 fast sweep, 4 collective, 5 complete sweep. Stage 3 repeats
    /// what raised a suspicion.
    pub stage: u8,
    /// What must hold before.
    pub requires: ProbePreconditions,
    /// The tool takes all readings in one execution (`{readings}`).
    #[serde(default)]
    pub reads_itself: bool,
    /// How long one execution takes on healthy nodes, in seconds; for a tool
    /// that takes all readings itself, one reading.
    pub cost_s: f64,
    /// When it is given up, in seconds, likewise.
    pub timeout_s: f64,
    /// What it takes away from others.
    pub disturbs: ProbeImpact,
    /// The file it was read from, as shown to people.
    pub origin: String,
}

/// The format of [`ProbesDocument`].
pub const PROBES_FORMAT: &str = "fabricgate.probes/1";

/// What `probes list --json` and `probes show --json` print.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ProbesDocument {
    /// `fabricgate.probes/1`.
    pub format: String,
    /// The probes, by name.
    pub probes: Vec<Probe>,
}

/// Words that stand for something in a probe's command. The plan fills what
/// claims tell; the last group is filled when the nodes have said it.
pub mod placeholder {
    /// GPUs of each node.
    pub const GPUS: &str = "{gpus}";
    /// GPUs of all nodes that take part.
    pub const RANKS: &str = "{ranks}";
    /// The nodes that take part: `a,b`.
    pub const NODES: &str = "{nodes}";
    /// The same with their GPUs, as Open MPI's `--host` wants it: `a:4,b:4`.
    pub const HOSTS: &str = "{hosts}";
    /// The node that runs the command.
    pub const NODE: &str = "{node}";
    /// The other node.
    pub const PEER: &str = "{peer}";
    /// The rail's name, `-` where none is claimed.
    pub const RAIL: &str = "{rail}";
    /// The rail's RDMA device.
    pub const RDMA: &str = "{rdma}";
    /// Readings to take.
    pub const READINGS: &str = "{readings}";
    /// The lane of a GPU-level round.
    pub const LANE: &str = "{lane}";
    /// Seconds in which the command should be done with everything: nine tenths
    /// of the time after which it is given up.
    pub const LIMIT: &str = "{limit}";

    /// fabricgate itself, as that node calls it.
    pub const SELF: &str = "{self}";
    /// The node's own address on the rail.
    pub const ADDRESS: &str = "{address}";
    /// The other node's address on the rail.
    pub const PEER_ADDRESS: &str = "{peer_address}";
    /// The network device of the rail on this node, `-` where it is not known.
    pub const DEVICE: &str = "{device}";
    /// The port of the serving side.
    pub const PORT: &str = "{port}";

    /// All of them.
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
    /// All words of its commands.
    pub fn command_words(&self) -> impl Iterator<Item = &String> {
        let serve = self.serve.iter().flat_map(|serve| serve.argv.iter());
        let otherwise = self.otherwise.iter().flat_map(|otherwise| otherwise.argv.iter());
        self.argv.iter().chain(serve).chain(otherwise)
    }

    /// The same probe with what it has in place of its tool as its command; a
    /// probe that has nothing stays as it is.
    pub fn into_fallback(mut self) -> Self {
        if let Some(ProbeFallback { parser, argv, together }) = self.otherwise.take() {
            (self.parser, self.argv, self.together) = (parser, argv.to_vec(), together);
            self.serve = None;
        }
        self
    }

    /// Whether a command says this placeholder.
    pub fn uses_placeholder(&self, placeholder: &str) -> bool {
        self.command_words().any(|word| word.contains(placeholder))
    }
}
