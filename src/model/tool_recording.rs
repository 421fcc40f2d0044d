//! One parsed tool output, with the location where the tool ran: the input of the judge.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::id::{DomainName, NodeName};
use super::parse_output::ParseOutput;

/// The stage that measures suspects again, after the stages of the probe catalog.
pub const CONFIRM_STAGE: u8 = 3;

/// The nodes on which a tool ran.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecordingScope {
    /// One node.
    Node(NodeName),
    /// A domain; the ranks identify node and GPU.
    Domain(DomainName),
    /// Two nodes over the scale-out network: the one that ran the command, and its peer.
    Pair(NodeName, NodeName),
}

/// One parsed output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolRecording {
    /// The nodes on which the tool ran.
    pub scope: RecordingScope,
    /// The file in the run folder, as shown in reports.
    pub file: String,
    /// The rail it ran over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<String>,
    /// The stage of the sweep, for an output of a sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<u8>,
    /// The participating nodes, where the sweep knows them: a truncated output may not name them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeName>,
    /// The parsed output.
    pub parsed: ParseOutput,
}

impl ToolRecording {
    /// An output without rail and stage.
    pub fn new(scope: RecordingScope, file: impl Into<String>, parsed: ParseOutput) -> Self {
        Self { scope, file: file.into(), rail: None, stage: None, nodes: Vec::new(), parsed }
    }
}
