//! What reading one tool output gives: measurements, facts, problems.
//!
//! Reading never fails as a whole. What could not be understood is in
//! `problems`; what was understood is kept.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::measurement::Measurement;
use super::tool_facts::ToolFacts;

/// The tools whose outputs can be read.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum Tool {
    /// NVIDIA nvbandwidth, single node and multi-node.
    #[serde(rename = "nvbandwidth")]
    Nvbandwidth,
    /// NVIDIA nccl-tests (`*_perf`).
    #[serde(rename = "nccl-tests")]
    NcclTests,
    /// cuda-samples p2pBandwidthLatencyTest.
    #[serde(rename = "p2pBandwidthLatencyTest")]
    P2pBandwidthLatencyTest,
    /// perftest (`ib_write_bw` and siblings).
    #[serde(rename = "perftest")]
    Perftest,
    /// `nvidia-smi nvlink`.
    #[serde(rename = "nvidia-smi-nvlink")]
    NvidiaSmiNvlink,
    /// `nvidia-smi topo -m`.
    #[serde(rename = "nvidia-smi-topo")]
    NvidiaSmiTopo,
    /// `nvidia-smi -q`.
    #[serde(rename = "nvidia-smi-q")]
    NvidiaSmiQ,
    /// `nvidia-imex-ctl -N`.
    #[serde(rename = "nvidia-imex-ctl")]
    NvidiaImexCtl,
    /// `dcgmi diag -j`.
    #[serde(rename = "dcgm-diag")]
    DcgmDiag,
    /// NVIDIA nvloom.
    #[serde(rename = "nvloom")]
    Nvloom,
    /// iperf3.
    #[serde(rename = "iperf3")]
    Iperf3,
    /// Our own TCP probe, `fabricgate node probe tcp`.
    #[serde(rename = "fabricgate-tcp")]
    FabricgateTcp,
    /// Our own copy-engine probe, `fabricgate node probe copy`.
    #[serde(rename = "fabricgate-copy")]
    FabricgateCopy,
    /// Our own NCCL probe, `fabricgate node probe collective`.
    #[serde(rename = "fabricgate-collective")]
    FabricgateCollective,
}

impl Tool {
    /// The name used in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nvbandwidth => "nvbandwidth",
            Self::NcclTests => "nccl-tests",
            Self::P2pBandwidthLatencyTest => "p2pBandwidthLatencyTest",
            Self::Perftest => "perftest",
            Self::NvidiaSmiNvlink => "nvidia-smi-nvlink",
            Self::NvidiaSmiTopo => "nvidia-smi-topo",
            Self::NvidiaSmiQ => "nvidia-smi-q",
            Self::NvidiaImexCtl => "nvidia-imex-ctl",
            Self::DcgmDiag => "dcgm-diag",
            Self::Nvloom => "nvloom",
            Self::Iperf3 => "iperf3",
            Self::FabricgateTcp => "fabricgate-tcp",
            Self::FabricgateCopy => "fabricgate-copy",
            Self::FabricgateCollective => "fabricgate-collective",
        }
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What is wrong with an output, or with what it reports.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum OutputProblemKind {
    /// The tool says the test does not apply here.
    Waived,
    /// The tool reports an error.
    Error,
    /// Wrong data was copied or reduced.
    Corrupt,
    /// The output stops early, or a piece is missing or elided.
    Truncated,
    /// The tool did not check the data.
    Unverified,
    /// The numbers contradict each other or the tool's own formula.
    Inconsistent,
    /// Text that claims to be results and cannot be read.
    Unrecognised,
}

impl OutputProblemKind {
    /// The name used in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waived => "waived",
            Self::Error => "error",
            Self::Corrupt => "corrupt",
            Self::Truncated => "truncated",
            Self::Unverified => "unverified",
            Self::Inconsistent => "inconsistent",
            Self::Unrecognised => "unrecognised",
        }
    }
}

/// One problem, with as much of its place as the output tells.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct OutputProblem {
    /// What kind of problem.
    pub kind: OutputProblemKind,
    /// The test it belongs to, where that is known.
    pub testcase: Option<String>,
    /// What was found, readable by a person.
    pub detail: String,
    /// The line in the file, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The host the tool blames or reports from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The rank the tool blames or reports from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The GPU index on that host, where the tool names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The library's name for the error, such as `CUDA_ERROR_SYSTEM_NOT_READY`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// What our own probes call it, such as `no-imex-channel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
}

impl OutputProblem {
    /// A problem of this kind, its place unknown so far.
    pub fn new(kind: OutputProblemKind, detail: impl Into<String>) -> Self {
        let mut detail = detail.into();
        // Tools tell errors with an empty text; whoever reads of it should not wonder.
        if detail.trim().is_empty() {
            detail = format!("{}, without a word of why", kind.as_str());
        }
        Self {
            kind,
            testcase: None,
            detail,
            line: None,
            host: None,
            rank: None,
            gpu: None,
            code: None,
            class: None,
        }
    }

    /// The same problem, in this test.
    pub fn in_test(mut self, testcase: Option<&str>) -> Self {
        self.testcase = testcase.map(str::to_owned);
        self
    }

    /// The same problem, at this line.
    pub fn at_line(mut self, line: u32) -> Self {
        self.line = Some(line);
        self
    }
}

/// What one output says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ParseOutput {
    /// The tool that wrote it, when it can be told.
    pub tool: Option<Tool>,
    /// The tool's version, without a leading v.
    pub tool_version: Option<String>,
    /// The tool's own end was seen and nothing is missing.
    pub complete: bool,
    /// What was measured.
    pub measurements: Vec<Measurement>,
    /// What the output tells about the machine.
    pub facts: ToolFacts,
    /// What is wrong.
    pub problems: Vec<OutputProblem>,
}

impl ParseOutput {
    /// An empty result of this tool.
    pub fn for_tool(tool: Tool) -> Self {
        Self { tool: Some(tool), ..Self::default() }
    }

    /// Whether any problem is of this kind.
    pub fn has_problem(&self, kind: OutputProblemKind) -> bool {
        self.problems.iter().any(|p| p.kind == kind)
    }

    /// Complete, and free of error and corrupt problems.
    pub fn is_sound(&self) -> bool {
        self.complete
            && !self.has_problem(OutputProblemKind::Error)
            && !self.has_problem(OutputProblemKind::Corrupt)
    }
}

/// The format of one line of `parse --json`.
pub const PARSE_FORMAT: &str = "fabricgate.parse/1";

/// One line of `parse --json`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct ParseDocument {
    /// `fabricgate.parse/1`.
    pub format: String,
    /// The file as it was named.
    pub file: String,
    /// The tool that wrote it, when it can be told.
    pub tool: Option<Tool>,
    /// The tool's version, without a leading v.
    pub tool_version: Option<String>,
    /// The tool's own end was seen and nothing is missing.
    pub complete: bool,
    /// What was measured.
    pub measurements: Vec<Measurement>,
    /// What the output tells about the machine.
    pub facts: ToolFacts,
    /// What is wrong.
    pub problems: Vec<OutputProblem>,
}

impl ParseDocument {
    /// What was read from this file.
    pub fn new(file: String, parsed: ParseOutput) -> Self {
        Self {
            format: PARSE_FORMAT.to_owned(),
            file,
            tool: parsed.tool,
            tool_version: parsed.tool_version,
            complete: parsed.complete,
            measurements: parsed.measurements,
            facts: parsed.facts,
            problems: parsed.problems,
        }
    }
}
