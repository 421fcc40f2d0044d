//! Changes of the claims between two points in time.
//!
//! Values in, values out, with texts for readers. The caller handles times and files.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::messages::{is_or_are, list_nodes};
use model::claim_index::ClaimIndex;
use model::claims::{ClaimedDomain, ClaimedRail, Claims};
use model::disagreement::Disagreement;
use model::disagreement_class::DisagreementClass;
use model::id::{DomainName, NodeName};
use model::source_report::{ClaimSource, NodeReport};

/// The fact that the scheduler changes, also on fabricgate's request.
const STATE_FACT: &str = "state";

/// Replaces a fact that no source reports.
const NOT_REPORTED: &str = "not reported";

/// Kinds of changes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ClaimsChangeKind {
    /// A newly claimed domain.
    DomainAppeared,
    /// A domain that is no longer claimed.
    DomainVanished,
    /// Changed properties of a domain: platform, GPUs, NICs.
    DomainChanged,
    /// Nodes that moved between domains.
    NodesMoved,
    /// Nodes that were in no domain before.
    NodesGained,
    /// Nodes that are no longer in a domain.
    NodesLost,
    /// Changed leaves or rails.
    NetworkChanged,
    /// Changed reports about single nodes.
    NodeChanged,
    /// A newly read source.
    SourceAppeared,
    /// A source that is no longer read.
    SourceVanished,
    /// A new disagreement.
    DisagreementAppeared,
    /// A settled disagreement.
    DisagreementVanished,
}

/// One change of the claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimsChange {
    /// Kind of the change.
    pub kind: ClaimsChangeKind,
    /// The affected domain; for moved nodes, the new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// The affected nodes, in order of name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeName>,
    /// The change in one sentence.
    #[serde(rename = "says")]
    pub text: String,
}

impl ClaimsChange {
    fn new(kind: ClaimsChangeKind, statement: String) -> Self {
        Self { kind, domain: None, nodes: Vec::new(), text: statement }
    }

    fn with_subject<'n>(
        mut self,
        domain: Option<&DomainName>,
        nodes: impl IntoIterator<Item = &'n NodeName>,
    ) -> Self {
        self.domain = domain.cloned();
        self.nodes = nodes.into_iter().cloned().collect();
        self.nodes.sort();
        self
    }
}

/// The changes from `old` to `new`.
pub fn diff_claims(old: &Claims, new: &Claims) -> Vec<ClaimsChange> {
    let mut changes = Vec::new();
    diff_domains(old, new, &mut changes);
    diff_members(old, new, &mut changes);
    diff_network(old, new, &mut changes);
    diff_nodes(old, new, &mut changes);
    diff_sources(old, new, &mut changes);
    diff_disagreements(old, new, &mut changes);
    changes
}

fn domains_by_name(claims: &Claims) -> BTreeMap<&DomainName, &ClaimedDomain> {
    claims.domains.iter().map(|domain| (&domain.name, domain)).collect()
}

fn diff_domains(old: &Claims, new: &Claims, changes: &mut Vec<ClaimsChange>) {
    let (before, after) = (domains_by_name(old), domains_by_name(new));
    for (name, domain) in &after {
        let Some(was) = before.get(name) else {
            let statement = format!("{name} is newly claimed: {}", list_nodes(&domain.nodes));
            changes.push(
                ClaimsChange::new(ClaimsChangeKind::DomainAppeared, statement)
                    .with_subject(Some(name), &domain.nodes),
            );
            continue;
        };
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        let number =
            |value: Option<u32>| value.map_or_else(|| "nothing".to_owned(), |n| n.to_string());
        let facts = [
            ("platform", text(&was.platform), text(&domain.platform)),
            ("GPUs per node", number(was.gpus_per_node), number(domain.gpus_per_node)),
            ("NICs", text(&was.nic), text(&domain.nic)),
        ];
        for (what, was, is) in facts.into_iter().filter(|(_, was, is)| was != is) {
            let statement = format!("{name}: {what} {was} before, {is} now");
            changes.push(
                ClaimsChange::new(ClaimsChangeKind::DomainChanged, statement)
                    .with_subject(Some(name), []),
            );
        }
    }
    for (name, domain) in before.iter().filter(|(name, _)| !after.contains_key(*name)) {
        let statement =
            format!("{name} is no longer claimed; it had {}", list_nodes(&domain.nodes));
        changes.push(
            ClaimsChange::new(ClaimsChangeKind::DomainVanished, statement)
                .with_subject(Some(name), &domain.nodes),
        );
    }
}

/// Groups the nodes whose place differs by its value before and after.
fn group_moves<'c, T: Ord>(
    nodes: impl Iterator<Item = &'c NodeName>,
    before: impl Fn(&NodeName) -> Option<T>,
    after: impl Fn(&NodeName) -> Option<T>,
) -> BTreeMap<(Option<T>, Option<T>), Vec<&'c NodeName>> {
    let mut moves: BTreeMap<_, Vec<&NodeName>> = BTreeMap::new();
    for node in nodes.collect::<BTreeSet<_>>() {
        let (from, to) = (before(node), after(node));
        if from != to {
            moves.entry((from, to)).or_default().push(node);
        }
    }
    moves
}

fn diff_members(old: &Claims, new: &Claims, changes: &mut Vec<ClaimsChange>) {
    let (before, after) = (ClaimIndex::from_claims(old), ClaimIndex::from_claims(new));
    let nodes = old.domains.iter().chain(&new.domains).flat_map(|domain| &domain.nodes);
    let moves = group_moves(nodes, |n| before.domain_name_of(n), |n| after.domain_name_of(n));
    let (old_names, new_names) = (domains_by_name(old), domains_by_name(new));
    for ((from, to), nodes) in moves {
        let names = list_nodes(nodes.iter().copied());
        let (kind, statement, domain) = match (from, to) {
            // Reported with the domain itself.
            (None, Some(to)) if !old_names.contains_key(to) => continue,
            (Some(from), None) if !new_names.contains_key(from) => continue,
            (None, Some(to)) => {
                (ClaimsChangeKind::NodesGained, format!("{to} gained {names}"), Some(to))
            }
            (Some(from), None) => {
                (ClaimsChangeKind::NodesLost, format!("{from} lost {names}"), Some(from))
            }
            (Some(from), Some(to)) => (
                ClaimsChangeKind::NodesMoved,
                format!("{names} moved from {from} to {to}"),
                Some(to),
            ),
            (None, None) => continue,
        };
        changes.push(ClaimsChange::new(kind, statement).with_subject(domain, nodes));
    }
}

fn diff_network(old: &Claims, new: &Claims, changes: &mut Vec<ClaimsChange>) {
    let (before, after) = (ClaimIndex::from_claims(old), ClaimIndex::from_claims(new));
    let nodes = old.leaves.iter().chain(&new.leaves).flat_map(|leaf| &leaf.nodes);
    let moves = group_moves(nodes, |n| before.leaf_of(n), |n| after.leaf_of(n));
    for ((from, to), nodes) in moves {
        let leaf = |name: Option<&str>| name.map_or("no leaf".to_owned(), |n| format!("leaf {n}"));
        let statement = format!(
            "{}: {} before, {} now",
            list_nodes(nodes.iter().copied()),
            leaf(from),
            leaf(to)
        );
        changes.push(
            ClaimsChange::new(ClaimsChangeKind::NetworkChanged, statement)
                .with_subject(None, nodes),
        );
    }
    if old.rails != new.rails {
        let names = |claims: &Claims| {
            let names: Vec<String> = claims.rails.iter().map(describe_rail).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        let statement = format!("rails: {} before, {} now", names(old), names(new));
        changes.push(ClaimsChange::new(ClaimsChangeKind::NetworkChanged, statement));
    }
}

/// A rail with its devices: under the same name it may use other cables.
fn describe_rail(rail: &ClaimedRail) -> String {
    let parts = [&rail.device, &rail.network, &rail.rdma];
    let parts: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
    if parts.is_empty() {
        rail.name.clone()
    } else {
        format!("{} ({})", rail.name, parts.join(", "))
    }
}

/// Facts of a node whose changes are reported, as text.
fn reported_facts(node: &NodeReport) -> Vec<(&'static str, Option<String>)> {
    let fabrics: BTreeSet<String> = node.fabric.iter().filter_map(|f| f.clique()).collect();
    let fabric = (!fabrics.is_empty()).then(|| fabrics.into_iter().collect::<Vec<_>>().join(", "));
    let state = (!node.state.is_empty()).then(|| node.state.join("+"));
    let opt_out = (!node.opt_out.is_empty()).then(|| node.opt_out.join(", "));
    vec![
        ("boot id", node.boot_id.clone()),
        ("driver", node.driver.clone()),
        ("clique", fabric),
        ("product", node.product.clone()),
        ("number of GPUs", node.gpus.map(|gpus| gpus.to_string())),
        ("rack", node.rack.clone()),
        ("slot", node.slot.clone()),
        ("topo_rank", node.topo_rank.clone()),
        (STATE_FACT, state),
        ("opt-out", opt_out),
    ]
}

/// Changed facts of a node: the fact, old and new value. The scheduler's state is excluded: it
/// reflects operations on the node, not its properties.
pub fn changed_facts(old: &NodeReport, new: &NodeReport) -> Vec<(&'static str, String, String)> {
    let word = |value: Option<String>| value.unwrap_or_else(|| NOT_REPORTED.to_owned());
    let both = reported_facts(old).into_iter().zip(reported_facts(new));
    both.filter(|((what, before), (_, after))| *what != STATE_FACT && before != after)
        .map(|((what, before), (_, after))| (what, word(before), word(after)))
        .collect()
}

fn diff_nodes(old: &Claims, new: &Claims, changes: &mut Vec<ClaimsChange>) {
    // The same change on many nodes is reported once.
    type NodeChangeKey<'c> = (usize, &'c str, Option<String>, Option<String>);
    let mut found: BTreeMap<NodeChangeKey<'_>, Vec<&NodeName>> = BTreeMap::new();
    for (name, node) in &new.nodes {
        let Some(was) = old.nodes.get(name) else { continue };
        for (at, ((what, before), (_, after))) in
            reported_facts(was).into_iter().zip(reported_facts(node)).enumerate()
        {
            if before == after {
                continue;
            }
            // Boot ids, ranks and slots differ per node.
            let own = matches!(what, "boot id" | "topo_rank" | "slot");
            let key = if own { (at, what, None, None) } else { (at, what, before, after) };
            found.entry(key).or_default().push(name);
        }
    }
    for ((_, what, before, after), nodes) in found {
        let names = list_nodes(nodes.iter().copied());
        let word = |value: Option<String>| value.unwrap_or_else(|| NOT_REPORTED.to_owned());
        let statement = match (what, &before, &after) {
            ("boot id", ..) => {
                format!("{names} {} rebooted or replaced", is_or_are(nodes.len()))
            }
            (_, None, None) => format!("{names}: {what} changed"),
            _ => format!("{names}: {what} {} before, {} now", word(before), word(after)),
        };
        changes.push(
            ClaimsChange::new(ClaimsChangeKind::NodeChanged, statement).with_subject(None, nodes),
        );
    }
}

fn diff_sources(old: &Claims, new: &Claims, changes: &mut Vec<ClaimsChange>) {
    // The time of reading is not a difference.
    fn sources_by_identity(claims: &Claims) -> BTreeMap<ClaimSource, &ClaimSource> {
        let known = |s: &ClaimSource| ClaimSource { read_at: None, ..s.clone() };
        claims.sources.iter().map(|read| (known(&read.source), &read.source)).collect()
    }
    let (before, after) = (sources_by_identity(old), sources_by_identity(new));
    for (key, source) in &after {
        if !before.contains_key(key) {
            changes.push(ClaimsChange::new(
                ClaimsChangeKind::SourceAppeared,
                format!("{source} is newly read"),
            ));
        }
    }
    for (key, source) in &before {
        if !after.contains_key(key) {
            let statement = format!("{source} is no longer read");
            changes.push(ClaimsChange::new(ClaimsChangeKind::SourceVanished, statement));
        }
    }
}

fn diff_disagreements(old: &Claims, new: &Claims, changes: &mut Vec<ClaimsChange>) {
    type DisagreementIdentity<'c> = (&'c DisagreementClass, Option<&'c DomainName>, &'c [NodeName]);
    fn disagreement_identity(disagreement: &Disagreement) -> DisagreementIdentity<'_> {
        (&disagreement.class, disagreement.domain.as_ref(), &disagreement.nodes)
    }
    let before: BTreeSet<DisagreementIdentity<'_>> =
        old.disagreements.iter().map(disagreement_identity).collect();
    let after: BTreeSet<DisagreementIdentity<'_>> =
        new.disagreements.iter().map(disagreement_identity).collect();
    for disagreement in new
        .disagreements
        .iter()
        .filter(|disagreement| !before.contains(&disagreement_identity(disagreement)))
    {
        let statement = format!(
            "new: {} ({}): {}",
            disagreement.class, disagreement.severity, disagreement.summary
        );
        let change = ClaimsChange::new(ClaimsChangeKind::DisagreementAppeared, statement);
        changes.push(change.with_subject(disagreement.domain.as_ref(), &disagreement.nodes));
    }
    for disagreement in old
        .disagreements
        .iter()
        .filter(|disagreement| !after.contains(&disagreement_identity(disagreement)))
    {
        let statement = format!(
            "settled: {} ({}): {}",
            disagreement.class, disagreement.severity, disagreement.summary
        );
        let change = ClaimsChange::new(ClaimsChangeKind::DisagreementVanished, statement);
        changes.push(change.with_subject(disagreement.domain.as_ref(), &disagreement.nodes));
    }
}
