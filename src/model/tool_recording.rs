//! One tool output that was read, and where the tool ran. This is what the
//! judge is given.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::id::{DomainName, NodeName};
use super::parse_output::ParseOutput;

/// The stage in which suspects are measured again, after those of the catalogue of probes.
pub const CONFIRM_STAGE: u8 = 3;

/// Where a tool ran.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecordingScope {
    /// On one node.
    Node(NodeName),
    /// Across a domain; ranks say which node and GPU.
    Domain(DomainName),
    /// Between two nodes over the scale-out network: the one that ran the
    /// command, and its peer.
    Pair(NodeName, NodeName),
}

/// One output that was read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolRecording {
    /// Where the tool ran.
    pub scope: RecordingScope,
    /// The file, as shown to people and as kept in the run folder.
    pub file: String,
    /// The rail it ran over, where one was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<String>,
    /// The stage of the sweep it belongs to, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<u8>,
    /// The nodes it ran on, where the sweep knows: an output that broke off
    /// may not name them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeName>,
    /// What it says.
    pub parsed: ParseOutput,
}

impl ToolRecording {
    /// An output of no known rail and stage.
    pub fn new(scope: RecordingScope, file: impl Into<String>, parsed: ParseOutput) -> Self {
        Self { scope, file: file.into(), rail: None, stage: None, nodes: Vec::new(), parsed }
    }
}
