//! The result of parsing one tool output: measurements, facts, problems.
//!
//! Parsing never fails as a whole. Everything that was understood is kept, and everything else is
//! in `problems`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::measurement::Measurement;
use super::probe_problem_class::ProbeProblemClass;
use super::tool_facts::ToolFacts;

/// The tools whose outputs can be parsed.
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
    /// The native TCP probe, `fabricgate node probe tcp`.
    #[serde(rename = "fabricgate-tcp")]
    FabricgateTcp,
    /// The native copy-engine probe, `fabricgate node probe copy`.
    #[serde(rename = "fabricgate-copy")]
    FabricgateCopy,
    /// The native NCCL probe, `fabricgate node probe collective`.
    #[serde(rename = "fabricgate-collective")]
    FabricgateCollective,
}

impl Tool {
    /// The name in documents.
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

/// A defect of an output, or a failure that the output reports.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum OutputProblemKind {
    /// The tool reports that the test does not apply here.
    Waived,
    /// The tool reports an error.
    Error,
    /// A transfer or a reduction produced wrong data.
    Corrupt,
    /// The output ends early, or a part of it is missing or elided.
    Truncated,
    /// The tool did not check the data.
    Unverified,
    /// The numbers contradict each other or the tool's own formula.
    Inconsistent,
    /// Text in the place of results that cannot be parsed.
    Unrecognised,
}

impl OutputProblemKind {
    /// The name in documents.
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

/// One problem, located as precisely as the output allows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct OutputProblem {
    /// Kind of the problem.
    pub kind: OutputProblemKind,
    /// The affected test, where known.
    pub testcase: Option<String>,
    /// Description of the problem.
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
    /// The native probes' class for the problem, such as `no-imex-channel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ProbeProblemClass>,
}

impl OutputProblem {
    /// A problem of this kind without a location.
    pub fn new(kind: OutputProblemKind, detail: impl Into<String>) -> Self {
        let mut detail = detail.into();
        // Some tools report errors with an empty text: say that the reason is missing.
        if detail.trim().is_empty() {
            detail = format!("{}, no reason given", kind.as_str());
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

    /// Sets the test.
    pub fn in_test(mut self, testcase: Option<&str>) -> Self {
        self.testcase = testcase.map(str::to_owned);
        self
    }

    /// Sets the line.
    pub fn at_line(mut self, line: u32) -> Self {
        self.line = Some(line);
        self
    }
}

/// The parsed content of one output.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ParseOutput {
    /// The tool that wrote it, when it can be identified.
    pub tool: Option<Tool>,
    /// The tool's version, without a leading v.
    pub tool_version: Option<String>,
    /// The tool's final line was seen and nothing is missing.
    pub complete: bool,
    /// The measurements, in order of the output.
    pub measurements: Vec<Measurement>,
    /// Facts about the machine in the output.
    pub facts: ToolFacts,
    /// Problems of the output, or reported in it.
    pub problems: Vec<OutputProblem>,
}

impl ParseOutput {
    /// An empty result for this tool.
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

/// Format name of one line of `parse --json`.
pub const PARSE_FORMAT: &str = "fabricgate.parse/1";

/// One line of `parse --json`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct ParseDocument {
    /// `fabricgate.parse/1`.
    pub format: String,
    /// The file, as given by the user.
    pub file: String,
    /// The tool that wrote it, when it can be identified.
    pub tool: Option<Tool>,
    /// The tool's version, without a leading v.
    pub tool_version: Option<String>,
    /// The tool's final line was seen and nothing is missing.
    pub complete: bool,
    /// The measurements, in order of the output.
    pub measurements: Vec<Measurement>,
    /// Facts about the machine in the output.
    pub facts: ToolFacts,
    /// Problems of the output, or reported in it.
    pub problems: Vec<OutputProblem>,
}

impl ParseDocument {
    /// The parsed content of this file.
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
