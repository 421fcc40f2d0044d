//! The nodes of a job, grouped into pieces with measured NVLink reachability.
//!
//! A node without a measurement against others is its own piece: whether it reaches the other nodes
//! of its claimed domain is unknown.

use std::collections::{BTreeMap, BTreeSet};

use super::{ExportOptions, ExportRefusal, check_known, find_domain, list_domains, refuse};
use crate::place::best_subset;
use crate::place::best_subset::PairStrengths;
use crate::place::map::{MapDomain, MapMember, VerifiedMap};
use model::hostlist;
use model::id::{GpuId, NodeName};
use model::text::clean;
use model::verdict::Outcome;

#[derive(Debug)]
pub(super) struct JobAllocation<'m> {
    /// Its pieces, ordered by domain name.
    pub(super) pieces: Vec<AllocationPiece<'m>>,
    /// GPUs that it uses on every node.
    pub(super) gpus_per_node: u32,
    pub(super) remarks: Vec<String>,
}

/// Nodes of a job that reach each other at NVLink speed.
#[derive(Debug)]
pub(super) struct AllocationPiece<'m> {
    pub(super) domain: String,
    /// Whether its reachability was measured.
    pub(super) is_measured: bool,
    /// The nodes: by leaf, nodes with an order first, then by name.
    pub(super) nodes: Vec<(&'m NodeName, &'m MapMember)>,
}

impl<'m> JobAllocation<'m> {
    /// The nodes that the options select, or all verified nodes of a domain.
    pub(super) fn from_options(
        map: &'m VerifiedMap,
        options: &ExportOptions,
    ) -> Result<Self, ExportRefusal> {
        let mut remarks = Vec::new();
        let nodes = match (&options.nodes, &options.domain) {
            (Some(_), Some(_)) => return refuse("--nodes and --domain: expected one of the two"),
            (Some(nodes), None) => named_nodes(map, nodes, &mut remarks)?,
            (None, domain) => domain_nodes(map, domain.as_deref(), &mut remarks)?,
        };
        let mut pieces: BTreeMap<(String, bool), Vec<(&NodeName, &MapMember)>> = BTreeMap::new();
        for node in nodes {
            let Some(member) = map.members.get(node) else { continue };
            let domain = map.domain_of(node).filter(|domain| domain.measured.contains(node));
            let key = match domain {
                Some(domain) => (domain.name.clone(), true),
                None => (node.to_string(), false),
            };
            pieces.entry(key).or_default().push((node, member));
        }
        let gpus_per_node = resolve_gpus_per_node(map, &pieces, options)?;
        let pieces = pieces.into_iter().map(|((domain, is_measured), mut nodes)| {
            nodes.sort_by_key(|(node, member)| (&member.leaf, !member.is_verified(), *node));
            AllocationPiece { domain, is_measured, nodes }
        });
        Ok(Self { pieces: pieces.collect(), gpus_per_node, remarks })
    }

    /// Every node with the domain of its piece, in order.
    pub(super) fn nodes(
        &self,
    ) -> impl Iterator<Item = (&AllocationPiece<'m>, &'m NodeName, &'m MapMember)> {
        self.pieces
            .iter()
            .flat_map(|piece| piece.nodes.iter().map(move |(node, member)| (piece, *node, *member)))
    }
}

/// The nodes that the operator named.
fn named_nodes<'m>(
    map: &'m VerifiedMap,
    nodes: &BTreeSet<NodeName>,
    remarks: &mut Vec<String>,
) -> Result<Vec<&'m NodeName>, ExportRefusal> {
    check_known(map, nodes)?;
    let known = map.members.iter().filter(|(node, _)| nodes.contains(*node));
    // Nodes with the same reason share one note.
    let mut unverified: BTreeMap<(Outcome, String), Vec<&str>> = BTreeMap::new();
    for (node, member) in known.clone().filter(|(_, member)| !member.is_verified()) {
        let key = (member.outcome, clean(&member.reason));
        unverified.entry(key).or_default().push(node.as_str());
    }
    for ((outcome, reason), nodes) in unverified {
        remarks.push(format!("{}: {outcome}: {reason}", clean(&hostlist::fold(nodes))));
    }
    Ok(known.map(|(node, _)| node).collect())
}

/// The verified nodes of a domain.
fn domain_nodes<'m>(
    map: &'m VerifiedMap,
    name: Option<&str>,
    remarks: &mut Vec<String>,
) -> Result<Vec<&'m NodeName>, ExportRefusal> {
    let domain: &MapDomain = match (name, map.domains.as_slice()) {
        (Some(name), _) => find_domain(map, name)?,
        (None, [one]) => one,
        (None, _) => {
            let known = list_domains(map);
            return refuse(format!("expected --nodes, or --domain, one of {known}"));
        }
    };
    let is_fit = |node: &&NodeName| {
        domain.measured.contains(*node)
            && map.members.get(*node).is_some_and(MapMember::is_verified)
    };
    let (fit, unfit): (Vec<&NodeName>, Vec<&NodeName>) =
        domain.nodes().into_iter().partition(|node| is_fit(node));
    if !unfit.is_empty() {
        let list = hostlist::fold(unfit.iter().map(|node| node.as_str()));
        remarks.push(format!("left out because not verified: {}", clean(&list)));
    }
    let own = |node: &&NodeName| map.members.get_key_value(*node).map(|(node, _)| node);
    let fit: Vec<&NodeName> = fit.iter().filter_map(own).collect();
    if fit.is_empty() {
        return refuse(format!("no node of {} is verified", clean(&domain.name)));
    }
    Ok(fit)
}

/// The number of GPUs used per node: the requested number, or all.
fn resolve_gpus_per_node(
    map: &VerifiedMap,
    pieces: &BTreeMap<(String, bool), Vec<(&NodeName, &MapMember)>>,
    options: &ExportOptions,
) -> Result<u32, ExportRefusal> {
    let has = |node: &NodeName, member: &MapMember| {
        let claimed = map.domain_of(node).and_then(|domain| domain.gpus_per_node);
        claimed.or_else(|| u32::try_from(member.gpus.len()).ok().filter(|count| 0 < *count))
    };
    let counts: BTreeSet<Option<u32>> =
        pieces.values().flatten().map(|(node, member)| has(node, member)).collect();
    if let Some(wanted) = options.gpus_per_node {
        let most = counts.iter().copied().flatten().min();
        return match most {
            Some(most) if most < wanted => {
                refuse(format!("--gpus-per-node {wanted}: a node has {most}"))
            }
            _ if wanted == 0 => refuse("--gpus-per-node 0: expected 1 or more"),
            _ => Ok(wanted),
        };
    }
    match Vec::from_iter(counts).as_slice() {
        [Some(one)] => Ok(*one),
        [] => refuse("no node is selected"),
        _ => refuse("the number of GPUs per node is unknown or differs; expected --gpus-per-node"),
    }
}

/// The GPUs of a node that a job uses: all, or the best-connected of those that no finding blames.
/// If these are too few, or were not all measured with each other, the first ones are used, with a
/// note.
pub(super) fn choose_gpus(
    map: &VerifiedMap,
    node: &NodeName,
    member: &MapMember,
    wanted: u32,
) -> (Vec<u32>, Option<String>) {
    let count = usize::try_from(wanted).unwrap_or(usize::MAX);
    if member.gpus.len() <= count {
        return ((0..wanted).collect(), None);
    }
    let is_sound = |index: &u32| {
        let outcome = member.gpus.get(index).and_then(|gpu| gpu.outcome);
        outcome.is_none_or(|it| it == Outcome::Pass)
    };
    let (sound, blamed): (Vec<u32>, Vec<u32>) = member.gpus.keys().copied().partition(is_sound);
    let ids: Vec<GpuId> = sound.iter().map(|index| GpuId::new(node.clone(), *index)).collect();
    // GPUs that differ only by noise count as equal; the first in order wins.
    const NOISE: f64 = 0.02;
    let level = |a: usize, b: usize| {
        map.matrix.weaker_direction(&ids[a], &ids[b]).map(|it| (it / NOISE).round() * NOISE)
    };
    let strengths = PairStrengths::new(ids.len(), level);
    if let Some(chosen) = best_subset::find_best(&strengths, count) {
        return (chosen.set.into_iter().map(|at| ids[at].gpu).collect(), None);
    }
    let mut taken: Vec<u32> = sound.iter().chain(&blamed).copied().take(count).collect();
    taken.sort_unstable();
    let why = if sound.len() < count {
        format!(
            "only {} of its GPUs are without a finding, and {wanted} are requested",
            sound.len()
        )
    } else {
        "its GPUs were not all measured with each other, so the first ones are used".to_owned()
    };
    (taken, Some(format!("{}: {why}", clean(node.as_str()))))
}
