//! The true faults of a scenario, for tests to compare with a judge's findings.
//!
//! Stored next to a recording, never in it: the judge must not see it.

use serde::Serialize;

use super::fabric::SimFabric;
use super::fault::{HostLinkDirection, SimFault, SimLinkDirection};
use super::network;
use super::scenario::{ExpandedDomain, Scenario};
use model::hostlist;

/// All faults of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScenarioTruth {
    /// The scenario's title.
    pub title: String,
    /// The seed used.
    pub seed: u64,
    /// The faults, in the order of the scenario.
    #[serde(rename = "wrong")]
    pub wrongs: Vec<TrueFault>,
}

/// Classes of faults: the kinds of faults, and differences between reality and claims. If a class
/// has the name of a class of findings, the judge must find it independently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "named as the faults are")]
pub enum TrueFaultClass {
    Busy,
    ClaimedApart,
    CollectiveFallback,
    Corrupt,
    Dips,
    DisturbedCopies,
    Drift,
    FabricDown,
    ForeignNode,
    GpuMissing,
    GpuParked,
    GpuSwapped,
    HostLink,
    ImexPeerMissing,
    LeafUplink,
    LostLinks,
    MergedCliques,
    MissingCells,
    MnnvlOff,
    NvlsOff,
    PairLoss,
    PlaneOut,
    PlaneOutForNode,
    PowerCap,
    RailDown,
    RailRate,
    ShownInactive,
    SlowPair,
    SplitDomain,
    StaleClique,
    ToolError,
    ToolFloods,
    ToolGarbage,
    ToolHangs,
    ToolMissing,
    Truncated,
    Unreachable,
    Waived,
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrueFault {
    /// Class of the fault.
    pub class: TrueFaultClass,
    /// Kind of the faulty component: a locus kind of `verdicts.json`.
    pub locus: String,
    /// Name of its claimed domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Name of its node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Its slot, which equals its CUDA index if no earlier GPU is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// Name of the other end of a pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The affected direction, if only one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<String>,
    /// Name of its rail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rail: Option<String>,
    /// Name of its leaf.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaf: Option<String>,
    /// Remaining share of the rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Expected outcome of the faulty component: `degraded`, `failed`, `unknown`; absent if
    /// measurements do not show the fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
}

impl TrueFault {
    fn new(class: TrueFaultClass) -> Self {
        Self {
            class,
            locus: String::new(),
            domain: None,
            node: None,
            gpu: None,
            peer: None,
            direction: None,
            rail: None,
            leaf: None,
            share: None,
            outcome: None,
        }
    }
}

/// Computes the true faults of a scenario.
pub fn compute_truth(scenario: &Scenario, fabric: &SimFabric, seed: u64) -> ScenarioTruth {
    let mut wrongs = Vec::new();
    for fault in &scenario.faults {
        let mut wrong = from_fault(fault, fabric);
        match fault {
            SimFault::PlaneOut { domain, .. } => {
                wrong.domain = Some(claimed_domain_of(scenario, fabric, domain));
            }
            SimFault::CliqueShown { like, .. } if wrong.peer.is_some() => {
                wrong.domain = Some(claimed_domain_of(scenario, fabric, like));
            }
            // One per node of the list.
            SimFault::CliqueShown { nodes, .. } => {
                let nodes = hostlist::expand(nodes).unwrap_or_default();
                let of = |node| TrueFault { node: Some(node), ..wrong.clone() };
                wrongs.extend(nodes.into_iter().map(of));
                continue;
            }
            _ => {}
        }
        wrongs.push(wrong);
    }
    mark_common_cause(fabric, &mut wrongs);
    wrongs.extend(foreign_nodes(fabric));
    wrongs.extend(domains_claimed_apart(fabric));
    for wrong in &mut wrongs {
        if wrong.domain.is_none() {
            let claim = fabric
                .claims
                .iter()
                .find(|claim| wrong.node.as_ref().is_some_and(|node| claim.nodes.contains(node)));
            wrong.domain = claim.map(|claim| claim.name.clone());
        }
    }
    ScenarioTruth { title: scenario.title.clone(), seed, wrongs }
}

/// The claimed domain with the most nodes of a real one: faults use real domain names, verdicts
/// claimed ones.
fn claimed_domain_of(scenario: &Scenario, fabric: &SimFabric, domain: &str) -> String {
    let real = scenario.real_domains().unwrap_or_default();
    let group = real.iter().find(|group| group.name == domain);
    let nodes = group.map_or(&[][..], |group| &group.nodes);
    let shared =
        |claim: &&ExpandedDomain| nodes.iter().filter(|it| claim.nodes.contains(it)).count();
    let most = fabric.claims.iter().rev().max_by_key(shared);
    most.filter(|claim| 0 < shared(claim)).map_or(domain, |claim| &claim.name).to_owned()
}

/// Nodes claimed together but really apart: all except those of the largest part, or the domain as
/// a whole if no part is the largest.
fn foreign_nodes(fabric: &SimFabric) -> Vec<TrueFault> {
    let mut wrongs = Vec::new();
    for claim in &fabric.claims {
        let mut parts: std::collections::BTreeMap<usize, Vec<&String>> = Default::default();
        for name in &claim.nodes {
            if let Ok(node) = fabric.node(name) {
                parts.entry(fabric.nodes[node].domain).or_default().push(name);
            }
        }
        let largest = parts.values().map(Vec::len).max().unwrap_or(0);
        let halves = 1 < parts.values().filter(|part| part.len() == largest).count();
        if halves {
            wrongs.push(TrueFault {
                locus: "domain".to_owned(),
                domain: Some(claim.name.clone()),
                outcome: Some("failed".to_owned()),
                ..TrueFault::new(TrueFaultClass::SplitDomain)
            });
            continue;
        }
        for name in parts.values().filter(|part| part.len() < largest).flatten() {
            wrongs.push(TrueFault {
                locus: "node".to_owned(),
                node: Some((*name).clone()),
                outcome: Some("failed".to_owned()),
                ..TrueFault::new(TrueFaultClass::ForeignNode)
            });
        }
    }
    wrongs
}

/// If every node is slower by the same share, none of them is faulty: the cause is common to all,
/// and measurements within the fleet cannot identify it.
fn mark_common_cause(fabric: &SimFabric, wrongs: &mut [TrueFault]) {
    let first = fabric.nodes[0].power;
    if first < 1.0 && 2 < fabric.nodes.len() && fabric.nodes.iter().all(|n| n.power == first) {
        for wrong in wrongs.iter_mut().filter(|wrong| wrong.class == TrueFaultClass::PowerCap) {
            wrong.outcome = Some("unknown".to_owned());
        }
    }
}

/// Domains claimed apart that really are one, as pairs.
fn domains_claimed_apart(fabric: &SimFabric) -> Vec<TrueFault> {
    let home = |claim: &ExpandedDomain| {
        let node = fabric.node(claim.nodes.first()?).ok()?;
        claim.hardware.spans_nodes.then_some(fabric.nodes[node].domain)
    };
    let mut wrongs = Vec::new();
    for (at, a) in fabric.claims.iter().enumerate() {
        for b in &fabric.claims[at + 1..] {
            if home(a).is_some() && home(a) == home(b) {
                wrongs.push(TrueFault {
                    locus: "domain".to_owned(),
                    domain: Some(a.name.clone()),
                    peer: Some(b.name.clone()),
                    outcome: Some("unknown".to_owned()),
                    ..TrueFault::new(TrueFaultClass::ClaimedApart)
                });
            }
        }
    }
    wrongs
}

#[expect(clippy::too_many_lines, reason = "an arm for each kind of fault")]
fn from_fault(fault: &SimFault, fabric: &SimFabric) -> TrueFault {
    let wrong = |class: TrueFaultClass, locus: &str, outcome: &str| TrueFault {
        locus: locus.to_owned(),
        outcome: (!outcome.is_empty()).then(|| outcome.to_owned()),
        ..TrueFault::new(class)
    };
    let at_gpu = |wrong: TrueFault, gpu: &str| {
        let (node, slot) = gpu.rsplit_once(':').unwrap_or((gpu, ""));
        TrueFault { node: Some(node.to_owned()), gpu: slot.parse().ok(), ..wrong }
    };
    let at_node = |wrong: TrueFault, node: &str| TrueFault { node: Some(node.to_owned()), ..wrong };
    let at_scope = |wrong: TrueFault, scope: &str| match fabric.node(scope) {
        Ok(_) => TrueFault { locus: "node".to_owned(), node: Some(scope.to_owned()), ..wrong },
        Err(_) => TrueFault { domain: Some(scope.to_owned()), ..wrong },
    };
    match fault {
        SimFault::LostLinks { gpu, count, direction, .. } => {
            // Also for a GPU that is missing in addition.
            let home = gpu.rsplit_once(':').and_then(|(node, _)| fabric.node(node).ok());
            let links = home.map_or(1, |node| fabric.nodes[node].hardware.links);
            let share = 1.0 - f64::from(*count) / f64::from(links);
            let (locus, way) = match direction {
                SimLinkDirection::Both => ("gpu", None),
                SimLinkDirection::Tx => ("direction", Some("tx".to_owned())),
                SimLinkDirection::Rx => ("direction", Some("rx".to_owned())),
            };
            let lost = wrong(TrueFaultClass::LostLinks, locus, "degraded");
            at_gpu(TrueFault { share: Some(share), direction: way, ..lost }, gpu)
        }
        SimFault::GpuParked { gpu } => {
            at_gpu(wrong(TrueFaultClass::GpuParked, "gpu", "failed"), gpu)
        }
        SimFault::GpuSwapped { gpu } => at_gpu(wrong(TrueFaultClass::GpuSwapped, "gpu", ""), gpu),
        SimFault::GpuMissing { gpu } => {
            at_gpu(wrong(TrueFaultClass::GpuMissing, "gpu", "failed"), gpu)
        }
        SimFault::PlaneOut { domain, .. } => TrueFault {
            domain: Some(domain.clone()),
            ..wrong(TrueFaultClass::PlaneOut, "plane", "degraded")
        },
        SimFault::PlaneOutForNode { node, .. } => {
            at_node(wrong(TrueFaultClass::PlaneOutForNode, "tray", "degraded"), node)
        }
        SimFault::SlowPair { a, b, share, .. } => {
            let pair = TrueFault {
                peer: Some(b.clone()),
                share: Some(*share),
                ..wrong(TrueFaultClass::SlowPair, "pair", "degraded")
            };
            at_gpu(pair, a)
        }
        SimFault::HostLink { gpu, share, direction } => {
            let (locus, way) = match direction {
                HostLinkDirection::Both => ("gpu", None),
                HostLinkDirection::H2d => ("direction", Some("h2d".to_owned())),
                HostLinkDirection::D2h => ("direction", Some("d2h".to_owned())),
            };
            let slow = wrong(TrueFaultClass::HostLink, locus, "degraded");
            at_gpu(TrueFault { share: Some(*share), direction: way, ..slow }, gpu)
        }
        SimFault::FabricDown { node } => {
            at_node(wrong(TrueFaultClass::FabricDown, "node", "failed"), node)
        }
        SimFault::PowerCap { node, share } => at_node(
            TrueFault {
                share: Some(*share),
                ..wrong(TrueFaultClass::PowerCap, "node", "degraded")
            },
            node,
        ),
        SimFault::Corrupt { gpu } => at_gpu(wrong(TrueFaultClass::Corrupt, "gpu", "failed"), gpu),
        SimFault::ToolError { node, .. } => {
            at_node(wrong(TrueFaultClass::ToolError, "node", "failed"), node)
        }
        SimFault::Truncated { scope, .. } => {
            at_scope(wrong(TrueFaultClass::Truncated, "domain", "unknown"), scope)
        }
        SimFault::Waived { node, .. } => {
            at_node(wrong(TrueFaultClass::Waived, "node", "unknown"), node)
        }
        SimFault::ShownInactive { gpu, .. } => {
            at_gpu(wrong(TrueFaultClass::ShownInactive, "gpu", ""), gpu)
        }
        SimFault::CliqueShown { nodes, like } => {
            let all = hostlist::expand(nodes).unwrap_or_default();
            let named = fabric.claims.iter().find(|claim| claim.nodes == all);
            match named {
                // A whole claimed domain that reports the clique of another.
                Some(claim) => TrueFault {
                    domain: Some(like.clone()),
                    peer: Some(claim.name.clone()),
                    ..wrong(TrueFaultClass::MergedCliques, "domain", "failed")
                },
                None => at_node(wrong(TrueFaultClass::StaleClique, "node", "failed"), nodes),
            }
        }
        SimFault::ImexPeerMissing { node } => {
            at_node(wrong(TrueFaultClass::ImexPeerMissing, "node", "failed"), node)
        }
        SimFault::CollectiveFallback { scope } => {
            at_scope(wrong(TrueFaultClass::CollectiveFallback, "domain", "degraded"), scope)
        }
        SimFault::NcclSetting { scope, name, .. } => {
            let class = match name.as_str() {
                "NCCL_MNNVL_ENABLE" => TrueFaultClass::MnnvlOff,
                _ => TrueFaultClass::NvlsOff,
            };
            at_scope(wrong(class, "domain", "degraded"), scope)
        }
        SimFault::DisturbedCopies { node, share } => {
            let low = wrong(TrueFaultClass::DisturbedCopies, "node", "degraded");
            at_node(TrueFault { share: Some(*share), ..low }, node)
        }
        SimFault::MissingCells { scope, .. } => {
            at_scope(wrong(TrueFaultClass::MissingCells, "domain", "unknown"), scope)
        }
        SimFault::Dips { gpu, rate, .. } => {
            // Few dips are normal; with many, no level can be determined.
            at_gpu(
                wrong(TrueFaultClass::Dips, "gpu", if *rate < 0.3 { "" } else { "unknown" }),
                gpu,
            )
        }
        SimFault::Drift { gpu, .. } => at_gpu(wrong(TrueFaultClass::Drift, "gpu", "unknown"), gpu),
        SimFault::RailRate { node, rail, share, direction } => {
            let way = match direction {
                SimLinkDirection::Both => None,
                SimLinkDirection::Tx => Some("tx".to_owned()),
                SimLinkDirection::Rx => Some("rx".to_owned()),
            };
            let slow = wrong(TrueFaultClass::RailRate, "rail", "degraded");
            let rail = Some(network::rail_name(*rail));
            at_node(TrueFault { rail, share: Some(*share), direction: way, ..slow }, node)
        }
        SimFault::RailDown { node, rail } => {
            let rail = Some(network::rail_name(*rail));
            at_node(TrueFault { rail, ..wrong(TrueFaultClass::RailDown, "rail", "failed") }, node)
        }
        SimFault::PairLoss { a, b, share } => {
            let lossy = wrong(TrueFaultClass::PairLoss, "pair", "degraded");
            at_node(TrueFault { peer: Some(b.clone()), share: Some(*share), ..lossy }, a)
        }
        SimFault::LeafUplink { leaf, share } => TrueFault {
            leaf: Some(leaf.clone()),
            share: Some(*share),
            ..wrong(TrueFaultClass::LeafUplink, "leaf", "degraded")
        },
        // A node that was not queried or did not answer is unknown.
        SimFault::Busy { node, .. } => {
            at_node(wrong(TrueFaultClass::Busy, "node", "unknown"), node)
        }
        SimFault::Unreachable { node } => {
            at_node(wrong(TrueFaultClass::Unreachable, "node", "unknown"), node)
        }
        SimFault::ToolHangs { node, .. } => {
            at_node(wrong(TrueFaultClass::ToolHangs, "node", "unknown"), node)
        }
        SimFault::ToolMissing { node, .. } => {
            at_node(wrong(TrueFaultClass::ToolMissing, "node", "unknown"), node)
        }
        SimFault::ToolFloods { node, .. } => {
            at_node(wrong(TrueFaultClass::ToolFloods, "node", "unknown"), node)
        }
        SimFault::ToolGarbage { node, .. } => {
            at_node(wrong(TrueFaultClass::ToolGarbage, "node", "unknown"), node)
        }
    }
}
