//! The interface of backends that answer probe commands in this process instead of on nodes: the
//! request and the result.

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
    /// Index of the step in the plan.
    pub step: usize,
    /// Number of the reading, from 0.
    pub reading: u32,
}

/// The complete output of a command, and how it ended.
#[derive(Clone, Debug)]
pub struct ToolOutput {
    /// How the command ended.
    pub ending: ProcessEnding,
    /// Complete standard output.
    pub stdout: Vec<u8>,
    /// Complete standard error.
    pub stderr: Vec<u8>,
}

/// Replaces the tools on nodes.
pub trait ToolBackend: Debug + Send + Sync {
    /// Runs a command; an error is the reason why it could not start.
    fn run_tool(&self, call: &ToolCall<'_>) -> Result<ToolOutput, String>;
}
