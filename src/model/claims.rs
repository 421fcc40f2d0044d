//! What somebody asserts about the fabric: which nodes share a domain, a leaf,
//! a rail.
//!
//! Claims are what is tested, never what the test relies on. Reading them from
//! their sources is `inventory`'s work.

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

/// Everything asserted, from all sources that could be read: what is measured
/// (`domains`, `leaves`, `rails`), who says so, and who says otherwise.
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
    /// The sources, each with what of it could not be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceSummary>,
    /// Who says which nodes belong together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assertions: Vec<GroupAssertion>,
    /// What all sources together say of single nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<NodeName, NodeReport>,
    /// What jobs and frameworks take for granted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beliefs: Vec<JobAssumption>,
    /// Where the sources contradict each other, worst first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disagreements: Vec<Disagreement>,
    /// Claimed nodes that take no part: they are not measured, and what is claimed of the
    /// others reaches to them all the same. By domain, domains without a node left included.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out: BTreeMap<DomainName, Vec<NodeName>>,
}

/// A source, and what of it could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SourceSummary {
    /// The source.
    #[serde(flatten)]
    pub source: ClaimSource,
    /// Settings of the system behind it, by its own names for them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// What was skipped on purpose, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What could not be read or used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<SourceProblem>,
}

impl SourceSummary {
    /// What of it was asked for and not read, where anything was: nobody knows
    /// what it claims.
    pub fn unread_problem(&self) -> Option<&SourceProblem> {
        self.problems.iter().find(|problem| match problem.kind {
            // That a cluster has no such kind of object is often no fault.
            // One number of one node or group, which is left out.
            SourceProblemKind::TooLarge => false,
            SourceProblemKind::Missing => !matches!(
                self.source.kind,
                SourceKind::ComputeDomains | SourceKind::KubernetesTopologies
            ),
            // What a reader leaves out of a file it knows is told; a file that
            // nobody knows, or a server that speaks otherwise, was not read.
            SourceProblemKind::Unsupported => matches!(
                self.source.kind,
                SourceKind::Unrecognised | SourceKind::SlurmNodes | SourceKind::SlurmPartitions
            ),
            _ => true,
        })
    }
}

/// One source's word that nodes belong together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupAssertion {
    /// Its source: an index into [`Claims::sources`].
    pub source: usize,
    /// What it says.
    #[serde(flatten)]
    pub group: NodeGroup,
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
    #[serde(default, deserialize_with = "limits::deserialize_gpus")]
    pub gpus_per_node: Option<u32>,
    /// The class of the scale-out NICs, a name in `thresholds/`.
    pub nic: Option<String>,
}

/// One claimed leaf: a switch that its nodes reach each other through without
/// using an uplink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimedLeaf {
    /// Its name.
    pub name: String,
    /// Its nodes.
    pub nodes: Vec<NodeName>,
}

/// One claimed rail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimedRail {
    /// Its name.
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
    /// Whether its network holds this address; nothing where none is claimed.
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
    /// The claims of the nodes that take part; the others are left out.
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

    /// How many nodes a domain claims, those that take no part included.
    pub fn count_claimed_nodes(&self, domain: &ClaimedDomain) -> usize {
        domain.nodes.len() + self.left_out.get(&domain.name).map_or(0, Vec::len)
    }

    /// How many nodes are claimed, those that take no part included.
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
