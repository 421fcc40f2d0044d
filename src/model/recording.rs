//! One tool output with its place: the node it ran on, or the domain it ran
//! across. This is what the judge is given.

use serde::Deserialize;
use serde::Serialize;

use super::id::DomainName;
use super::id::NodeName;
use super::parsed::Parsed;

/// Where a tool ran.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// On one node.
    Node(NodeName),
    /// Across a domain; ranks say which node and GPU.
    Domain(DomainName),
}

/// One output that was read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// Where the tool ran.
    pub scope: Scope,
    /// The file, as shown to people and as kept in the run folder.
    pub file: String,
    /// What it says.
    pub parsed: Parsed,
}
