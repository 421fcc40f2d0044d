//! What a coordinator and its workers say to each other: one JSON document a
//! line, over the worker's standard input and output.
//!
//! Types only. The worker is `probe::worker`, the other end is
//! `coordinator::worker`. Both refuse a protocol they do not know.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::exchange::{ExchangeReply, ExchangeRequest};
use super::id::NodeName;
use super::probe::ReadySignal;
use super::raw_result::ProcessEnding;

/// The version of this protocol. It grows when a line changes its meaning.
pub const PROTOCOL: u32 = 2;

/// Longest line that either side accepts, in bytes. Outputs travel in pieces.
pub const LONGEST_LINE: usize = 1 << 20;

/// Environment variable that tells a probe's process which step and reading of
/// the plan it is, as `STEP.READING`.
pub const STEP_VARIABLE: &str = "FABRICGATE_STEP";

/// How much of our environment a process that is started is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EnvironmentAccess {
    /// All of it: a command of this program that does our work.
    Whole,
    /// All but what the configuration names as ours: a command of this program that reaches
    /// an API server.
    Own,
    /// What the scheduler's programs on this machine need, its token included.
    Site,
    /// What starts a process on nodes through the scheduler needs, its token included.
    Scheduler,
    /// What reaches a node needs, such as the socket of ssh's agent.
    Launcher,
    /// What tools need.
    #[default]
    None,
}

/// A line to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CoordinatorMessage {
    /// The first line: who speaks.
    Hello {
        /// The coordinator's protocol.
        protocol: u32,
        /// The coordinator's version of fabricgate.
        version: String,
        /// What the coordinator calls this node.
        node: String,
    },
    /// Start a process.
    Run(ProcessOrder),
    /// End a process that was started.
    Stop {
        /// Its order.
        id: u64,
    },
    /// The answer to an exchange that a process asked for.
    Answer {
        /// Its order.
        id: u64,
        /// The answer.
        answer: ExchangeReply,
    },
    /// End everything and exit; the same as the end of standard input.
    Bye,
}

/// A process to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessOrder {
    /// A number that answers repeat.
    pub id: u64,
    /// Program and arguments; `{self}` is the worker's own executable.
    pub argv: Vec<String>,
    /// Additional environment variables.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// When it is given up, in seconds.
    pub limit_s: f64,
    /// Bytes of each output stream that are kept.
    pub capture: usize,
    /// Somebody waits for it to listen: at this port, or at the port its
    /// first line names.
    #[serde(default)]
    pub ready: Option<ReadinessCheck>,
    /// It must not start while somebody else uses the GPUs.
    #[serde(default)]
    pub idle_gpus: bool,
    /// It takes part in exchanges: its input is open, and what it asks for is
    /// passed on instead of kept.
    #[serde(default)]
    pub together: bool,
}

/// How the worker knows that a serving process is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadinessCheck {
    /// What to look at.
    pub how: ReadySignal,
    /// The port, with [`Ready::Port`].
    #[serde(default)]
    pub port: u16,
}

/// A line from a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum WorkerMessage {
    /// The first line: who answers.
    Hello(Box<WorkerHello>),
    /// A process listens.
    Ready {
        /// Its order.
        id: u64,
        /// The port.
        port: u16,
    },
    /// A piece of what a process printed.
    Output {
        /// Its order.
        id: u64,
        /// Which stream.
        stream: OutputStream,
        /// The bytes, base64 (RFC 4648 section 4).
        data: String,
    },
    /// A process asks for an exchange.
    Asks {
        /// Its order.
        id: u64,
        /// What it gives.
        ask: ExchangeRequest,
    },
    /// A process ended, and all of its output was sent.
    Done(Box<ProcessReport>),
    /// A process was not started, and why: the node is busy.
    Refused {
        /// Its order.
        id: u64,
        /// Why.
        why: String,
    },
    /// The worker cannot go on.
    Fault {
        /// Why.
        why: String,
    },
}

/// An output stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Who a worker is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerHello {
    /// The worker's protocol.
    pub protocol: u32,
    /// The worker's version of fabricgate.
    pub version: String,
    /// The machine it runs on.
    pub environment: MachineEnvironment,
}

/// The machine a worker runs on, as far as it could be read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MachineEnvironment {
    /// Its own name for itself.
    pub hostname: String,
    /// Kernel release.
    pub kernel: Option<String>,
    /// Boot id: another one after every boot.
    pub boot_id: Option<String>,
    /// NVIDIA driver version.
    pub driver: Option<String>,
    /// Load average over a minute.
    pub load: Option<f64>,
    /// Processors.
    pub cpus: Option<u32>,
    /// Addresses by network device, without loopback.
    pub interfaces: BTreeMap<String, Vec<String>>,
    /// One line per GPU: index, UUID, clocks, temperature, power, VBIOS, as the
    /// driver's tool prints them.
    pub gpus: Vec<String>,
}

/// What the worker of one node said of its machine (`fabricgate.machine/1`, a
/// line of `machines.jsonl`). A node has several where its worker was started
/// again; one that says something else is another machine, or one that booted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MachineRecord {
    /// `fabricgate.machine/1`.
    pub format: String,
    /// The node.
    pub node: NodeName,
    /// What it is.
    pub environment: MachineEnvironment,
}

/// The format of a line of `machines.jsonl`.
pub const MACHINE_FORMAT: &str = "fabricgate.machine/1";

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessReport {
    /// Its order.
    pub id: u64,
    /// How it ended.
    pub ending: ProcessEnding,
    /// How long it ran, in seconds.
    pub duration_s: f64,
    /// Bytes of standard output beyond what is kept.
    #[serde(default)]
    pub stdout_dropped: u64,
    /// Bytes of standard error beyond what is kept.
    #[serde(default)]
    pub stderr_dropped: u64,
    /// Load average over a minute, afterwards.
    #[serde(default)]
    pub load: Option<f64>,
    /// One line per GPU, afterwards, where GPUs were used.
    #[serde(default)]
    pub gpus: Vec<String>,
}
