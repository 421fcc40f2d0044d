//! What is really wrong in a scenario, for tests to compare a judge with.
//!
//! Written beside a recording, never into it: the judge must not see it.

use serde::Serialize;

use super::fabric::Fabric;
use super::fault::Fault;
use super::fault::HostWay;
use super::fault::Way;
use super::network;
use super::scenario::Group;
use super::scenario::Scenario;
use model::hostlist;

/// Everything that is wrong.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Truth {
    /// The scenario's title.
    pub title: String,
    /// The seed used.
    pub seed: u64,
    /// What is wrong, in the order of the scenario.
    #[serde(rename = "wrong")]
    pub wrongs: Vec<Wrong>,
}

/// What is wrong: the kinds of faults, and what follows from claims that are not true. Where
/// one is named as a class of findings, the judge has to come to that by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "named as the faults are")]
pub enum WrongClass {
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

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Wrong {
    /// What.
    pub class: WrongClass,
    /// Kind of the guilty part: a locus kind of `verdicts.json`.
    pub locus: String,
    /// Its claimed domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Its node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Its slot; the CUDA index while no GPU before it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The other end of a pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Which way, where only one is concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<String>,
    /// Its rail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rail: Option<String>,
    /// Its leaf.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaf: Option<String>,
    /// What is left of the rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// What the guilty part is: `degraded`, `failed`, `unknown`; absent where
    /// the fault changes nothing a measurement shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
}

impl Wrong {
    fn new(class: WrongClass) -> Self {
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

/// The truth about a scenario.
pub fn of(scenario: &Scenario, fabric: &Fabric, seed: u64) -> Truth {
    let mut wrongs = Vec::new();
    for fault in &scenario.faults {
        let mut wrong = from_fault(fault, fabric);
        match fault {
            Fault::PlaneOut { domain, .. } => {
                wrong.domain = Some(as_claimed(scenario, fabric, domain));
            }
            Fault::CliqueShown { like, .. } if wrong.peer.is_some() => {
                wrong.domain = Some(as_claimed(scenario, fabric, like));
            }
            // One for each node of the list.
            Fault::CliqueShown { nodes, .. } => {
                let nodes = hostlist::expand(nodes).unwrap_or_default();
                let of = |node| Wrong { node: Some(node), ..wrong.clone() };
                wrongs.extend(nodes.into_iter().map(of));
                continue;
            }
            _ => {}
        }
        wrongs.push(wrong);
    }
    all_alike(fabric, &mut wrongs);
    wrongs.extend(strangers(fabric));
    wrongs.extend(torn(fabric));
    for wrong in &mut wrongs {
        if wrong.domain.is_none() {
            let claim = fabric
                .claims
                .iter()
                .find(|claim| wrong.node.as_ref().is_some_and(|node| claim.nodes.contains(node)));
            wrong.domain = claim.map(|claim| claim.name.clone());
        }
    }
    Truth { title: scenario.title.clone(), seed, wrongs }
}

/// The claimed domain that has most nodes of a real one: faults name domains as they are,
/// verdicts as they are claimed.
fn as_claimed(scenario: &Scenario, fabric: &Fabric, domain: &str) -> String {
    let real = scenario.real().unwrap_or_default();
    let group = real.iter().find(|group| group.name == domain);
    let nodes = group.map_or(&[][..], |group| &group.nodes);
    let shared = |claim: &&Group| nodes.iter().filter(|it| claim.nodes.contains(it)).count();
    let most = fabric.claims.iter().rev().max_by_key(shared);
    most.filter(|claim| 0 < shared(claim)).map_or(domain, |claim| &claim.name).to_owned()
}

/// Nodes claimed together that really are apart: all but those of the largest
/// part, or the domain as a whole where no part is the largest.
fn strangers(fabric: &Fabric) -> Vec<Wrong> {
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
            wrongs.push(Wrong {
                locus: "domain".to_owned(),
                domain: Some(claim.name.clone()),
                outcome: Some("failed".to_owned()),
                ..Wrong::new(WrongClass::SplitDomain)
            });
            continue;
        }
        for name in parts.values().filter(|part| part.len() < largest).flatten() {
            wrongs.push(Wrong {
                locus: "node".to_owned(),
                node: Some((*name).clone()),
                outcome: Some("failed".to_owned()),
                ..Wrong::new(WrongClass::ForeignNode)
            });
        }
    }
    wrongs
}

/// Where every node is slower by the same share, none of them is guilty: what
/// they have in common is, and measurements inside the fleet cannot tell what.
fn all_alike(fabric: &Fabric, wrongs: &mut [Wrong]) {
    let first = fabric.nodes[0].power;
    if first < 1.0 && 2 < fabric.nodes.len() && fabric.nodes.iter().all(|n| n.power == first) {
        for wrong in wrongs.iter_mut().filter(|wrong| wrong.class == WrongClass::PowerCap) {
            wrong.outcome = Some("unknown".to_owned());
        }
    }
}

/// Domains claimed apart that really are one, every two of them.
fn torn(fabric: &Fabric) -> Vec<Wrong> {
    let home = |claim: &Group| {
        let node = fabric.node(claim.nodes.first()?).ok()?;
        claim.hardware.spans_nodes.then_some(fabric.nodes[node].domain)
    };
    let mut wrongs = Vec::new();
    for (at, a) in fabric.claims.iter().enumerate() {
        for b in &fabric.claims[at + 1..] {
            if home(a).is_some() && home(a) == home(b) {
                wrongs.push(Wrong {
                    locus: "domain".to_owned(),
                    domain: Some(a.name.clone()),
                    peer: Some(b.name.clone()),
                    outcome: Some("unknown".to_owned()),
                    ..Wrong::new(WrongClass::ClaimedApart)
                });
            }
        }
    }
    wrongs
}

#[expect(clippy::too_many_lines, reason = "an arm for each kind of fault")]
fn from_fault(fault: &Fault, fabric: &Fabric) -> Wrong {
    let wrong = |class: WrongClass, locus: &str, outcome: &str| Wrong {
        locus: locus.to_owned(),
        outcome: (!outcome.is_empty()).then(|| outcome.to_owned()),
        ..Wrong::new(class)
    };
    let at_gpu = |wrong: Wrong, gpu: &str| {
        let (node, slot) = gpu.rsplit_once(':').unwrap_or((gpu, ""));
        Wrong { node: Some(node.to_owned()), gpu: slot.parse().ok(), ..wrong }
    };
    let at_node = |wrong: Wrong, node: &str| Wrong { node: Some(node.to_owned()), ..wrong };
    let at_scope = |wrong: Wrong, scope: &str| match fabric.node(scope) {
        Ok(_) => Wrong { locus: "node".to_owned(), node: Some(scope.to_owned()), ..wrong },
        Err(_) => Wrong { domain: Some(scope.to_owned()), ..wrong },
    };
    match fault {
        Fault::LostLinks { gpu, count, direction, .. } => {
            // Also of a GPU that is missing besides.
            let home = gpu.rsplit_once(':').and_then(|(node, _)| fabric.node(node).ok());
            let links = home.map_or(1, |node| fabric.nodes[node].hardware.links);
            let share = 1.0 - f64::from(*count) / f64::from(links);
            let (locus, way) = match direction {
                Way::Both => ("gpu", None),
                Way::Tx => ("direction", Some("tx".to_owned())),
                Way::Rx => ("direction", Some("rx".to_owned())),
            };
            let lost = wrong(WrongClass::LostLinks, locus, "degraded");
            at_gpu(Wrong { share: Some(share), direction: way, ..lost }, gpu)
        }
        Fault::GpuParked { gpu } => at_gpu(wrong(WrongClass::GpuParked, "gpu", "failed"), gpu),
        Fault::GpuSwapped { gpu } => at_gpu(wrong(WrongClass::GpuSwapped, "gpu", ""), gpu),
        Fault::GpuMissing { gpu } => at_gpu(wrong(WrongClass::GpuMissing, "gpu", "failed"), gpu),
        Fault::PlaneOut { domain, .. } => Wrong {
            domain: Some(domain.clone()),
            ..wrong(WrongClass::PlaneOut, "plane", "degraded")
        },
        Fault::PlaneOutForNode { node, .. } => {
            at_node(wrong(WrongClass::PlaneOutForNode, "tray", "degraded"), node)
        }
        Fault::SlowPair { a, b, share, .. } => {
            let pair = Wrong {
                peer: Some(b.clone()),
                share: Some(*share),
                ..wrong(WrongClass::SlowPair, "pair", "degraded")
            };
            at_gpu(pair, a)
        }
        Fault::HostLink { gpu, share, direction } => {
            let (locus, way) = match direction {
                HostWay::Both => ("gpu", None),
                HostWay::H2d => ("direction", Some("h2d".to_owned())),
                HostWay::D2h => ("direction", Some("d2h".to_owned())),
            };
            let slow = wrong(WrongClass::HostLink, locus, "degraded");
            at_gpu(Wrong { share: Some(*share), direction: way, ..slow }, gpu)
        }
        Fault::FabricDown { node } => {
            at_node(wrong(WrongClass::FabricDown, "node", "failed"), node)
        }
        Fault::PowerCap { node, share } => at_node(
            Wrong { share: Some(*share), ..wrong(WrongClass::PowerCap, "node", "degraded") },
            node,
        ),
        Fault::Corrupt { gpu } => at_gpu(wrong(WrongClass::Corrupt, "gpu", "failed"), gpu),
        Fault::ToolError { node, .. } => {
            at_node(wrong(WrongClass::ToolError, "node", "failed"), node)
        }
        Fault::Truncated { scope, .. } => {
            at_scope(wrong(WrongClass::Truncated, "domain", "unknown"), scope)
        }
        Fault::Waived { node, .. } => at_node(wrong(WrongClass::Waived, "node", "unknown"), node),
        Fault::ShownInactive { gpu, .. } => {
            at_gpu(wrong(WrongClass::ShownInactive, "gpu", ""), gpu)
        }
        Fault::CliqueShown { nodes, like } => {
            let all = hostlist::expand(nodes).unwrap_or_default();
            let named = fabric.claims.iter().find(|claim| claim.nodes == all);
            match named {
                // A whole claimed domain that names the clique of another.
                Some(claim) => Wrong {
                    domain: Some(like.clone()),
                    peer: Some(claim.name.clone()),
                    ..wrong(WrongClass::MergedCliques, "domain", "failed")
                },
                None => at_node(wrong(WrongClass::StaleClique, "node", "failed"), nodes),
            }
        }
        Fault::ImexPeerMissing { node } => {
            at_node(wrong(WrongClass::ImexPeerMissing, "node", "failed"), node)
        }
        Fault::CollectiveFallback { scope } => {
            at_scope(wrong(WrongClass::CollectiveFallback, "domain", "degraded"), scope)
        }
        Fault::NcclSetting { scope, name, .. } => {
            let class = match name.as_str() {
                "NCCL_MNNVL_ENABLE" => WrongClass::MnnvlOff,
                _ => WrongClass::NvlsOff,
            };
            at_scope(wrong(class, "domain", "degraded"), scope)
        }
        Fault::DisturbedCopies { node, share } => {
            let low = wrong(WrongClass::DisturbedCopies, "node", "degraded");
            at_node(Wrong { share: Some(*share), ..low }, node)
        }
        Fault::MissingCells { scope, .. } => {
            at_scope(wrong(WrongClass::MissingCells, "domain", "unknown"), scope)
        }
        Fault::Dips { gpu, rate, .. } => {
            // Few dips are healthy; many are no level that could be known.
            at_gpu(wrong(WrongClass::Dips, "gpu", if *rate < 0.3 { "" } else { "unknown" }), gpu)
        }
        Fault::Drift { gpu, .. } => at_gpu(wrong(WrongClass::Drift, "gpu", "unknown"), gpu),
        Fault::RailRate { node, rail, share, direction } => {
            let way = match direction {
                Way::Both => None,
                Way::Tx => Some("tx".to_owned()),
                Way::Rx => Some("rx".to_owned()),
            };
            let slow = wrong(WrongClass::RailRate, "rail", "degraded");
            let rail = Some(network::rail_name(*rail));
            at_node(Wrong { rail, share: Some(*share), direction: way, ..slow }, node)
        }
        Fault::RailDown { node, rail } => {
            let rail = Some(network::rail_name(*rail));
            at_node(Wrong { rail, ..wrong(WrongClass::RailDown, "rail", "failed") }, node)
        }
        Fault::PairLoss { a, b, share } => {
            let lossy = wrong(WrongClass::PairLoss, "pair", "degraded");
            at_node(Wrong { peer: Some(b.clone()), share: Some(*share), ..lossy }, a)
        }
        Fault::LeafUplink { leaf, share } => Wrong {
            leaf: Some(leaf.clone()),
            share: Some(*share),
            ..wrong(WrongClass::LeafUplink, "leaf", "degraded")
        },
        // Nothing is known of what was not asked or did not answer.
        Fault::Busy { node, .. } => at_node(wrong(WrongClass::Busy, "node", "unknown"), node),
        Fault::Unreachable { node } => {
            at_node(wrong(WrongClass::Unreachable, "node", "unknown"), node)
        }
        Fault::ToolHangs { node, .. } => {
            at_node(wrong(WrongClass::ToolHangs, "node", "unknown"), node)
        }
        Fault::ToolMissing { node, .. } => {
            at_node(wrong(WrongClass::ToolMissing, "node", "unknown"), node)
        }
        Fault::ToolFloods { node, .. } => {
            at_node(wrong(WrongClass::ToolFloods, "node", "unknown"), node)
        }
        Fault::ToolGarbage { node, .. } => {
            at_node(wrong(WrongClass::ToolGarbage, "node", "unknown"), node)
        }
    }
}
