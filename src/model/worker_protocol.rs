//! The protocol between a coordinator and its workers: one JSON document per line, over the
//! worker's standard input and output.
//!
//! Types only. `probe::worker` implements the worker, `coordinator::worker` the other end. Both
//! reject an unknown protocol version.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::exchange::{ExchangeReply, ExchangeRequest};
use super::id::NodeName;
use super::probe::ReadySignal;
use super::raw_result::ProcessEnding;

/// Version of the protocol. It increases when a line changes its meaning.
pub const PROTOCOL: u32 = 2;

/// Longest accepted line, in bytes. Larger outputs are sent in pieces.
pub const LONGEST_LINE: usize = 1 << 20;

/// Environment variable of a probe's process with its step and reading in the plan, as
/// `STEP.READING`.
pub const STEP_VARIABLE: &str = "FABRICGATE_STEP";

/// The part of fabricgate's environment that a child process inherits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EnvironmentAccess {
    /// Everything: a fabricgate command that acts on fabricgate's behalf.
    Whole,
    /// Everything except fabricgate's configured secrets: a fabricgate command that accesses an
    /// API server.
    Own,
    /// Variables of scheduler programs on this machine, including the scheduler's token.
    Site,
    /// Variables for starting a process on nodes through the scheduler, including its token.
    Scheduler,
    /// Variables for reaching a node, such as the socket of ssh's agent.
    Launcher,
    /// Variables that tools need.
    #[default]
    None,
}

/// A message to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CoordinatorMessage {
    /// The first message: identifies the coordinator.
    Hello {
        /// Protocol version of the coordinator.
        protocol: u32,
        /// The coordinator's version of fabricgate.
        version: String,
        /// Name of the node in the coordinator.
        node: String,
    },
    /// Starts a process.
    Run(ProcessOrder),
    /// Kills a started process.
    Stop {
        /// Id of its order.
        id: u64,
    },
    /// The reply to an exchange request of a process.
    Answer {
        /// Id of its order.
        id: u64,
        /// The reply.
        answer: ExchangeReply,
    },
    /// Kills all processes and exits; the end of standard input has the same effect.
    Bye,
}

/// An order to start a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessOrder {
    /// Id of the order, repeated in all answers.
    pub id: u64,
    /// Program and arguments; `{self}` is the worker's own executable.
    pub argv: Vec<String>,
    /// Additional environment variables of the process.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Timeout, in seconds.
    pub limit_s: f64,
    /// Bytes of each output stream to keep.
    pub capture: usize,
    /// Report when it listens: at this port, or at the port in its first output line.
    #[serde(default)]
    pub ready: Option<ReadinessCheck>,
    /// Refuse to start it while another process uses the GPUs.
    #[serde(default)]
    pub idle_gpus: bool,
    /// It takes part in exchanges: its input stays open, and its requests are forwarded instead
    /// of stored.
    #[serde(default, rename = "together")]
    pub on_all_nodes: bool,
}

/// How the worker detects that a serving process is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadinessCheck {
    /// The signal to wait for.
    pub how: ReadySignal,
    /// The port, for [`ReadySignal::Port`].
    #[serde(default)]
    pub port: u16,
}

/// A message from a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum WorkerMessage {
    /// The first message: identifies the worker.
    Hello(Box<WorkerHello>),
    /// A process is ready and listens.
    Ready {
        /// Id of its order.
        id: u64,
        /// The port it listens at.
        port: u16,
    },
    /// A piece of a process's output.
    Output {
        /// Id of its order.
        id: u64,
        /// The output stream.
        stream: OutputStream,
        /// The bytes, base64 (RFC 4648 section 4).
        data: String,
    },
    /// A process requests an exchange.
    Asks {
        /// Id of its order.
        id: u64,
        /// The request.
        ask: ExchangeRequest,
    },
    /// A process has ended, and all of its output was sent.
    Done(Box<ProcessReport>),
    /// A process was not started because the node is busy.
    Refused {
        /// Id of its order.
        id: u64,
        /// The reason.
        why: String,
    },
    /// The worker cannot continue.
    Fault {
        /// The reason.
        why: String,
    },
}

/// An output stream of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    /// Standard output of the process.
    Stdout,
    /// Standard error of the process.
    Stderr,
}

/// The identity of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerHello {
    /// Protocol version of the worker.
    pub protocol: u32,
    /// The worker's version of fabricgate.
    pub version: String,
    /// The machine that the worker runs on.
    pub environment: MachineEnvironment,
}

/// The machine that a worker runs on, as far as readable.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MachineEnvironment {
    /// Hostname of the machine, as it reports it.
    pub hostname: String,
    /// Kernel release of the machine.
    pub kernel: Option<String>,
    /// Kernel boot id, which changes at every boot.
    pub boot_id: Option<String>,
    /// Version of the NVIDIA driver.
    pub driver: Option<String>,
    /// One-minute load average.
    pub load: Option<f64>,
    /// Number of CPUs.
    pub cpus: Option<u32>,
    /// Addresses by network device, without loopback.
    pub interfaces: BTreeMap<String, Vec<String>>,
    /// One line per GPU: index, UUID, clocks, temperature, power, VBIOS, as nvidia-smi prints
    /// them.
    pub gpus: Vec<String>,
}

/// A worker's report about its machine (`fabricgate.machine/1`, a line of `machines.jsonl`). A
/// node has several where its worker was restarted; a different report means another machine or a
/// reboot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MachineRecord {
    /// `fabricgate.machine/1`.
    pub format: String,
    /// Name of the node.
    pub node: NodeName,
    /// The reported environment.
    pub environment: MachineEnvironment,
}

/// Format name of a line of `machines.jsonl`.
pub const MACHINE_FORMAT: &str = "fabricgate.machine/1";

/// The result of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessReport {
    /// Id of its order.
    pub id: u64,
    /// How the process ended.
    pub ending: ProcessEnding,
    /// Duration, in seconds.
    pub duration_s: f64,
    /// Bytes of standard output beyond the size limit.
    #[serde(default)]
    pub stdout_dropped: u64,
    /// Bytes of standard error beyond the size limit.
    #[serde(default)]
    pub stderr_dropped: u64,
    /// One-minute load average after the process.
    #[serde(default)]
    pub load: Option<f64>,
    /// One line per GPU after the process, where GPUs were used.
    #[serde(default)]
    pub gpus: Vec<String>,
}
