//! What somebody asserts about the fabric: which nodes share a domain.
//!
//! Claims are what is tested, never what the test relies on. Reading them from
//! their sources is `inventory`'s work.

use schemars::JsonSchema;
use serde::Deserialize;
use serde::Serialize;

use super::id::DomainName;
use super::id::NodeName;

/// Everything asserted, from all sources that could be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Claims {
    /// The claimed domains, in the order of their source.
    pub domains: Vec<ClaimedDomain>,
}

/// One claimed domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimedDomain {
    /// Its name: a Slurm block, a clique, a rack.
    pub name: DomainName,
    /// Its nodes.
    pub nodes: Vec<NodeName>,
    /// The platform, a name in `thresholds/`.
    pub platform: Option<String>,
    /// GPUs each node must show.
    pub gpus_per_node: Option<u32>,
    /// The class of the scale-out NICs, a name in `thresholds/`.
    pub nic: Option<String>,
}

impl Claims {
    /// The domain that claims this node, if any does.
    pub fn domain_of(&self, node: &NodeName) -> Option<&ClaimedDomain> {
        self.domains.iter().find(|d| d.nodes.contains(node))
    }
}
