//! Claims about the fabric: which nodes share a domain, a leaf, a rail.
//!
//! Claims are the hypothesis under test, never an input the test relies on. `inventory` reads
//! them from their sources.

use core::net::IpAddr;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::disagreement::Disagreement;
use super::id::{DomainName, NodeName};
use super::limits;
use super::source_report::{
    ClaimSource, JobAssumption, NodeGroup, NodeReport, SourceKind, SourceProblem, SourceProblemKind,
};

/// All claims from all readable sources: the groups to measure (`domains`, `leaves`, `rails`),
/// the sources behind them, and their disagreements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Claims {
    /// The claimed domains, in the order of their source.
    pub domains: Vec<ClaimedDomain>,
    /// The claimed leaves of the scale-out network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaves: Vec<ClaimedLeaf>,
    /// The claimed rails: every node has one end of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rails: Vec<ClaimedRail>,
    /// The sources, each with the parts that could not be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceSummary>,
    /// Each source's claims about which nodes belong together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assertions: Vec<GroupAssertion>,
    /// Everything the sources report about single nodes, merged.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<NodeName, NodeReport>,
    /// Assumptions of jobs and frameworks about the fabric.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beliefs: Vec<JobAssumption>,
    /// Disagreements between the sources, worst first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disagreements: Vec<Disagreement>,
    /// Claimed nodes that are excluded from the measurement, by domain, including domains without
    /// a remaining node. Claims about the other nodes still count them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out: BTreeMap<DomainName, Vec<NodeName>>,
}

/// A source, with the parts of it that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SourceSummary {
    /// Identity of the source.
    #[serde(flatten)]
    pub source: ClaimSource,
    /// Settings of the system behind the source, under that system's names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Parts that were skipped on purpose, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Parts that could not be read or used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<SourceProblem>,
}

impl SourceSummary {
    /// The first problem that left a requested part of the source unread, so that its claims are
    /// unknown.
    pub fn unread_problem(&self) -> Option<&SourceProblem> {
        self.problems.iter().find(|problem| match problem.kind {
            // A cluster without this kind of object is often correct. TooLarge concerns one
            // number of one node or group, which is skipped.
            SourceProblemKind::TooLarge => false,
            SourceProblemKind::Missing => !matches!(
                self.source.kind,
                SourceKind::ComputeDomains | SourceKind::KubernetesTopologies
            ),
            // A reader reports the parts it skips in a known format. An unknown format, or a
            // server with another protocol, leaves the whole source unread.
            SourceProblemKind::Unsupported => matches!(
                self.source.kind,
                SourceKind::Unrecognised | SourceKind::SlurmNodes | SourceKind::SlurmPartitions
            ),
            _ => true,
        })
    }
}

/// One source's claim that a group of nodes belongs together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupAssertion {
    /// Its source: an index into [`Claims::sources`].
    pub source: usize,
    /// The claimed group.
    #[serde(flatten)]
    pub group: NodeGroup,
}

/// One claimed NVLink domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimedDomain {
    /// Its name: a Slurm block, a clique, a rack.
    pub name: DomainName,
    /// Its nodes, in the order of the source.
    pub nodes: Vec<NodeName>,
    /// The platform, a name in `thresholds/`.
    pub platform: Option<String>,
    /// GPUs that each node must have.
    #[serde(default, deserialize_with = "limits::deserialize_gpus")]
    pub gpus_per_node: Option<u32>,
    /// The class of the scale-out NICs, a name in `thresholds/`.
    pub nic: Option<String>,
}

/// One claimed leaf: a switch through which its nodes reach each other without an uplink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimedLeaf {
    /// Name of the switch.
    pub name: String,
    /// Nodes attached to it.
    pub nodes: Vec<NodeName>,
}

/// One claimed rail of the scale-out network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimedRail {
    /// Name of the rail.
    pub name: String,
    /// The network device of every node on it, such as `eth1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The network its addresses are in, such as `10.7.0.0/16`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The RDMA device of every node on it, such as `mlx5_0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<String>,
}

impl ClaimedRail {
    /// Whether the claimed network contains this address; `None` without a claimed network.
    pub fn contains_address(&self, ip: IpAddr) -> Option<bool> {
        let (base, bits) = self.network.as_deref()?.split_once('/')?;
        let (Ok(base), Ok(bits)) = (base.parse::<IpAddr>(), bits.parse::<u32>()) else {
            return Some(false);
        };
        Some(match (base, ip) {
            (IpAddr::V4(base), IpAddr::V4(ip)) => {
                let mask = u32::MAX.checked_shl(32 - bits.min(32)).unwrap_or(0);
                base.to_bits() & mask == ip.to_bits() & mask
            }
            (IpAddr::V6(base), IpAddr::V6(ip)) => {
                let mask = u128::MAX.checked_shl(128 - bits.min(128)).unwrap_or(0);
                base.to_bits() & mask == ip.to_bits() & mask
            }
            _ => false,
        })
    }
}

impl Claims {
    /// The claims of the nodes that `takes_part` accepts; the other nodes move to `left_out`.
    pub fn with_nodes(&self, takes_part: impl Fn(&NodeName) -> bool) -> Self {
        let mut claims = self.clone();
        for domain in &mut claims.domains {
            let (stay, go): (Vec<NodeName>, Vec<NodeName>) =
                std::mem::take(&mut domain.nodes).into_iter().partition(&takes_part);
            domain.nodes = stay;
            if !go.is_empty() {
                claims.left_out.entry(domain.name.clone()).or_default().extend(go);
            }
        }
        claims.domains.retain(|domain| !domain.nodes.is_empty());
        for leaf in &mut claims.leaves {
            leaf.nodes.retain(&takes_part);
        }
        claims.leaves.retain(|leaf| !leaf.nodes.is_empty());
        claims
    }

    /// The number of claimed nodes of a domain, excluded nodes included.
    pub fn count_claimed_nodes(&self, domain: &ClaimedDomain) -> usize {
        domain.nodes.len() + self.left_out.get(&domain.name).map_or(0, Vec::len)
    }

    /// The number of all claimed nodes, excluded nodes included.
    pub fn count_all_claimed_nodes(&self) -> usize {
        let here = self.domains.iter().map(|domain| domain.nodes.len());
        here.chain(self.left_out.values().map(Vec::len)).sum()
    }

    /// The domain that claims this node, if any does.
    pub fn domain_of(&self, node: &NodeName) -> Option<&ClaimedDomain> {
        self.domains.iter().find(|d| d.nodes.contains(node))
    }

    /// The leaf that claims this node, if any does.
    pub fn leaf_of(&self, node: &NodeName) -> Option<&ClaimedLeaf> {
        self.leaves.iter().find(|l| l.nodes.contains(node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_hold_their_addresses() {
        for (network, address, holds) in [
            ("10.7.0.0/16", "10.7.9.1", true),
            ("10.7.0.0/16", "10.8.0.1", false),
            ("0.0.0.0/0", "9.9.9.9", true),
            ("10.0.0.0/8", "fd00::1", false),
            ("10.0.0.1/32", "10.0.0.1", true),
            ("10.0.0.1/32", "10.0.0.2", false),
            ("fd00:7::/32", "fd00:7::1", true),
        ] {
            let network = Some(network.to_owned());
            let rail = ClaimedRail { name: "r".to_owned(), device: None, network, rdma: None };
            let ip = address.parse().expect("an address");
            assert_eq!(rail.contains_address(ip), Some(holds), "{address}");
            assert_eq!(ClaimedRail { network: None, ..rail }.contains_address(ip), None);
        }
    }
}
