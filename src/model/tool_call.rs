//! Commands of probes that are answered in this process, in the place of nodes: what is
//! asked, and what comes back.

use std::fmt::Debug;

use super::id::NodeName;
use super::raw_result::ProcessEnding;

/// One reading of a step.
#[derive(Clone, Copy, Debug)]
pub struct ToolCall<'a> {
    /// The nodes of the step; the first one runs the command.
    pub nodes: &'a [NodeName],
    /// The command, with every placeholder filled.
    pub argv: &'a [String],
    /// Its number in the plan.
    pub step: usize,
    /// Which reading of it, from 0.
    pub reading: u32,
}

/// Whole outputs, and how the command ended.
#[derive(Clone, Debug)]
pub struct ToolOutput {
    /// How it ended.
    pub ending: ProcessEnding,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
}

/// Answers in the place of tools on nodes.
pub trait ToolBackend: Debug + Send + Sync {
    /// The outputs of a command; an error says why it was not started.
    fn run_tool(&self, call: &ToolCall<'_>) -> Result<ToolOutput, String>;
}
