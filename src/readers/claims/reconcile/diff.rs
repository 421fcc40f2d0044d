//! What changed in the claims between two moments.
//!
//! Values in, values out, with words for people. Times and files are the
//! caller's.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::Serialize;

use super::words::is;
use super::words::listed;
use model::claims::ClaimedDomain;
use model::claims::ClaimedRail;
use model::claims::Claims;
use model::disagreement::Disagreement;
use model::disagreement_class::DisagreementClass;
use model::id::DomainName;
use model::id::NodeName;
use model::said::NodeSaid;
use model::said::Source;

/// The fact that is the scheduler's own doing, or ours by it.
const STATE: &str = "state";

/// In the place of a fact that no source gives.
const NOT_SAID: &str = "not said";

/// Kinds of changes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeKind {
    /// A domain that was not claimed before.
    DomainAppeared,
    /// A domain that is claimed no more.
    DomainVanished,
    /// A domain says something else of itself: platform, GPUs, NICs.
    DomainChanged,
    /// Nodes of another domain.
    NodesMoved,
    /// Nodes that no domain had.
    NodesGained,
    /// Nodes that no domain has any more.
    NodesLost,
    /// Leaves or rails are others.
    NetworkChanged,
    /// What sources say of single nodes.
    NodeChanged,
    /// A source that was not read before.
    SourceAppeared,
    /// A source that is read no more.
    SourceVanished,
    /// A disagreement that was not there.
    DisagreementAppeared,
    /// A disagreement that is settled.
    DisagreementVanished,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// What kind.
    pub kind: ChangeKind,
    /// The domain it is about; where nodes moved, the one they are in now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// The nodes it is about, in order of name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeName>,
    /// One sentence for a person.
    pub says: String,
}

impl Change {
    fn of(kind: ChangeKind, says: String) -> Self {
        Self { kind, domain: None, nodes: Vec::new(), says }
    }

    fn at<'n>(
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

/// What is different in `new`.
pub fn diff(old: &Claims, new: &Claims) -> Vec<Change> {
    let mut changes = Vec::new();
    domains(old, new, &mut changes);
    members(old, new, &mut changes);
    network(old, new, &mut changes);
    nodes(old, new, &mut changes);
    sources(old, new, &mut changes);
    disagreements(old, new, &mut changes);
    changes
}

fn by_name(claims: &Claims) -> BTreeMap<&DomainName, &ClaimedDomain> {
    claims.domains.iter().map(|domain| (&domain.name, domain)).collect()
}

fn domains(old: &Claims, new: &Claims, changes: &mut Vec<Change>) {
    let (before, after) = (by_name(old), by_name(new));
    for (name, domain) in &after {
        let Some(was) = before.get(name) else {
            let says = format!("{name} is claimed now: {}", listed(&domain.nodes));
            changes
                .push(Change::of(ChangeKind::DomainAppeared, says).at(Some(name), &domain.nodes));
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
            let says = format!("{name}: {what} {was} before, {is} now");
            changes.push(Change::of(ChangeKind::DomainChanged, says).at(Some(name), []));
        }
    }
    for (name, domain) in before.iter().filter(|(name, _)| !after.contains_key(*name)) {
        let says = format!("{name} is claimed no more; it had {}", listed(&domain.nodes));
        changes.push(Change::of(ChangeKind::DomainVanished, says).at(Some(name), &domain.nodes));
    }
}

fn homes(claims: &Claims) -> BTreeMap<&NodeName, &DomainName> {
    let all = claims.domains.iter();
    all.flat_map(|domain| domain.nodes.iter().map(|node| (node, &domain.name))).collect()
}

fn members(old: &Claims, new: &Claims, changes: &mut Vec<Change>) {
    let (before, after) = (homes(old), homes(new));
    let all: BTreeSet<&NodeName> = before.keys().chain(after.keys()).copied().collect();
    let mut moves: BTreeMap<(Option<&DomainName>, Option<&DomainName>), Vec<&NodeName>> =
        BTreeMap::new();
    for node in all {
        let (from, to) = (before.get(node).copied(), after.get(node).copied());
        if from != to {
            moves.entry((from, to)).or_default().push(node);
        }
    }
    let (old_names, new_names) = (by_name(old), by_name(new));
    for ((from, to), nodes) in moves {
        let names = listed(nodes.iter().copied());
        let (kind, says, domain) = match (from, to) {
            // Told with the domain itself.
            (None, Some(to)) if !old_names.contains_key(to) => continue,
            (Some(from), None) if !new_names.contains_key(from) => continue,
            (None, Some(to)) => (ChangeKind::NodesGained, format!("{to} gained {names}"), Some(to)),
            (Some(from), None) => {
                (ChangeKind::NodesLost, format!("{from} lost {names}"), Some(from))
            }
            (Some(from), Some(to)) => {
                (ChangeKind::NodesMoved, format!("{names} moved from {from} to {to}"), Some(to))
            }
            (None, None) => continue,
        };
        changes.push(Change::of(kind, says).at(domain, nodes));
    }
}

fn network(old: &Claims, new: &Claims, changes: &mut Vec<Change>) {
    fn leaves(claims: &Claims) -> BTreeMap<&NodeName, &str> {
        let all = claims.leaves.iter();
        all.flat_map(|leaf| leaf.nodes.iter().map(|node| (node, leaf.name.as_str()))).collect()
    }
    let (before, after) = (leaves(old), leaves(new));
    let all: BTreeSet<&NodeName> = before.keys().chain(after.keys()).copied().collect();
    let mut moves: BTreeMap<(Option<&str>, Option<&str>), Vec<&NodeName>> = BTreeMap::new();
    for node in all {
        let (from, to) = (before.get(node).copied(), after.get(node).copied());
        if from != to {
            moves.entry((from, to)).or_default().push(node);
        }
    }
    for ((from, to), nodes) in moves {
        let leaf = |name: Option<&str>| name.map_or("no leaf".to_owned(), |n| format!("leaf {n}"));
        let says =
            format!("{}: {} before, {} now", listed(nodes.iter().copied()), leaf(from), leaf(to));
        changes.push(Change::of(ChangeKind::NetworkChanged, says).at(None, nodes));
    }
    if old.rails != new.rails {
        let names = |claims: &Claims| {
            let names: Vec<String> = claims.rails.iter().map(rail).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        let says = format!("rails: {} before, {} now", names(old), names(new));
        changes.push(Change::of(ChangeKind::NetworkChanged, says));
    }
}

/// A rail with what it is on a node: one that keeps its name may be other cables.
fn rail(rail: &ClaimedRail) -> String {
    let parts = [&rail.device, &rail.network, &rail.rdma];
    let parts: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
    if parts.is_empty() {
        rail.name.clone()
    } else {
        format!("{} ({})", rail.name, parts.join(", "))
    }
}

/// Facts of a node worth telling when they change, in words.
fn facts(node: &NodeSaid) -> Vec<(&'static str, Option<String>)> {
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
        (STATE, state),
        ("opt-out", opt_out),
    ]
}

/// What of a node is said otherwise now: which fact, before and after. The scheduler's
/// state is not among it: that is what was done with the node, not what it is.
pub fn facts_changed(old: &NodeSaid, new: &NodeSaid) -> Vec<(&'static str, String, String)> {
    let word = |value: Option<String>| value.unwrap_or_else(|| NOT_SAID.to_owned());
    let both = facts(old).into_iter().zip(facts(new));
    both.filter(|((what, before), (_, after))| *what != STATE && before != after)
        .map(|((what, before), (_, after))| (what, word(before), word(after)))
        .collect()
}

fn nodes(old: &Claims, new: &Claims, changes: &mut Vec<Change>) {
    // The same change on many nodes is one change.
    type Key<'c> = (usize, &'c str, Option<String>, Option<String>);
    let mut found: BTreeMap<Key<'_>, Vec<&NodeName>> = BTreeMap::new();
    for (name, node) in &new.nodes {
        let Some(was) = old.nodes.get(name) else { continue };
        for (at, ((what, before), (_, after))) in
            facts(was).into_iter().zip(facts(node)).enumerate()
        {
            if before == after {
                continue;
            }
            // Boot ids and ranks are each node's own.
            let own = matches!(what, "boot id" | "topo_rank" | "slot");
            let key = if own { (at, what, None, None) } else { (at, what, before, after) };
            found.entry(key).or_default().push(name);
        }
    }
    for ((_, what, before, after), nodes) in found {
        let names = listed(nodes.iter().copied());
        let word = |value: Option<String>| value.unwrap_or_else(|| NOT_SAID.to_owned());
        let says = match (what, &before, &after) {
            ("boot id", ..) => format!("{names} {} rebooted, or another machine", is(nodes.len())),
            (_, None, None) => format!("{names}: another {what}"),
            _ => format!("{names}: {what} {} before, {} now", word(before), word(after)),
        };
        changes.push(Change::of(ChangeKind::NodeChanged, says).at(None, nodes));
    }
}

fn sources(old: &Claims, new: &Claims, changes: &mut Vec<Change>) {
    // When it was read is no difference.
    fn of(claims: &Claims) -> BTreeMap<Source, &Source> {
        let known = |s: &Source| Source { read_at: None, ..s.clone() };
        claims.sources.iter().map(|read| (known(&read.source), &read.source)).collect()
    }
    let (before, after) = (of(old), of(new));
    for (key, source) in &after {
        if !before.contains_key(key) {
            changes.push(Change::of(ChangeKind::SourceAppeared, format!("{source} was read now")));
        }
    }
    for (key, source) in &before {
        if !after.contains_key(key) {
            let says = format!("{source} was read before and is not now");
            changes.push(Change::of(ChangeKind::SourceVanished, says));
        }
    }
}

fn disagreements(old: &Claims, new: &Claims, changes: &mut Vec<Change>) {
    type Key<'c> = (&'c DisagreementClass, Option<&'c DomainName>, &'c [NodeName]);
    fn key(told: &Disagreement) -> Key<'_> {
        (&told.class, told.domain.as_ref(), &told.nodes)
    }
    let before: BTreeSet<Key<'_>> = old.disagreements.iter().map(key).collect();
    let after: BTreeSet<Key<'_>> = new.disagreements.iter().map(key).collect();
    for told in new.disagreements.iter().filter(|told| !before.contains(&key(told))) {
        let says = format!("new: {} ({}): {}", told.class, told.severity, told.summary);
        let change = Change::of(ChangeKind::DisagreementAppeared, says);
        changes.push(change.at(told.domain.as_ref(), &told.nodes));
    }
    for told in old.disagreements.iter().filter(|told| !after.contains(&key(told))) {
        let says = format!("settled: {} ({}): {}", told.class, told.severity, told.summary);
        let change = Change::of(ChangeKind::DisagreementVanished, says);
        changes.push(change.at(told.domain.as_ref(), &told.nodes));
    }
}
