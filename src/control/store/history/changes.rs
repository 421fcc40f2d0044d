//! Changes between runs, and which of them may explain a part's readings.
//!
//! The changes are reported as coincident; this module claims no cause.

use std::collections::{BTreeMap, BTreeSet};

use super::node_identity::{IdentityField, NodeIdentity};
use super::queries::{HistoryRun, parse_path_end};
use super::{HistoryError, RunHistory, node_identity};
use model::id::{DomainName, NodeName};
use model::trend::{FabricPart, FabricPartKind, RunChange, RunChangeKind, Trend};

impl RunHistory {
    /// The changes between runs, in order of time: of these nodes, or of all nodes if none is
    /// named, and the changes that concern the whole fleet.
    pub fn changes(&self, nodes: &BTreeSet<NodeName>) -> Result<Vec<RunChange>, HistoryError> {
        let mut changes = Vec::new();
        let mut before: Option<HistoryRun> = None;
        for run in self.runs()? {
            if let Some(before) = &before {
                changes.extend(fleet_changes(before, &run));
            }
            before = Some(run);
        }
        let rows = self.query(
            "SELECT nodes.node, run, at, at_unix, domain, facts
             FROM nodes JOIN counted USING (n) LEFT JOIN identities ON identities.id = identity
             ORDER BY nodes.node, at_unix, run",
            [],
            |row| {
                let domain: Option<String> = row.get(4)?;
                let facts: Option<String> = row.get(5)?;
                let mut is: NodeIdentity =
                    facts.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
                is.extend(domain.map(|domain| ("domain".to_owned(), domain)));
                let node = NodeName::from(row.get::<_, String>(0)?);
                Ok((
                    node,
                    row.get::<_, String>(1)?,
                    row.get::<_, String>(2)?,
                    row.get::<_, i64>(3)?,
                    is,
                ))
            },
        )?;
        let mut known: Option<(NodeName, NodeIdentity)> = None;
        for (node, run, at, _, is) in rows {
            if !nodes.is_empty() && !nodes.contains(&node) {
                continue;
            }
            let mut was = match known.take() {
                Some((of, was)) if of == node => was,
                _ => NodeIdentity::new(),
            };
            for (what, before, after) in node_identity::identity_differences(&was, &is) {
                let (run, at, node) = (run.clone(), at.clone(), Some(node.clone()));
                changes.push(RunChange {
                    run,
                    at,
                    node,
                    kind: IdentityField::from_name(&what).kind,
                    what,
                    before,
                    after,
                });
            }
            // A field that a run does not report keeps its last reported value.
            was.extend(is);
            known = Some((node, was));
        }
        changes.sort_by(|a, b| {
            (&a.at, &a.run, &a.node, &a.what).cmp(&(&b.at, &b.run, &b.node, &b.what))
        });
        Ok(changes)
    }

    pub(super) fn changes_by_node(&self) -> Result<ChangesByNode, HistoryError> {
        let mut meanwhile = ChangesByNode::default();
        for changed in self.changes(&BTreeSet::new())? {
            meanwhile.changes.entry(changed.node.clone()).or_default().push(changed);
        }
        for (node, domain) in self.domain_by_node()? {
            meanwhile.members.entry(domain).or_default().insert(node);
        }
        Ok(meanwhile)
    }
}

/// The changes over all runs.
#[derive(Default)]
pub(super) struct ChangesByNode {
    /// By node; `None` holds the changes of the whole fleet.
    changes: BTreeMap<Option<NodeName>, Vec<RunChange>>,
    members: BTreeMap<DomainName, BTreeSet<NodeName>>,
}

impl ChangesByNode {
    /// Adds to a series the changes of its part during the series.
    pub(super) fn add_to_trend(&self, trend: &mut Trend) {
        let mut nodes: BTreeSet<Option<NodeName>> = BTreeSet::from([None]);
        let part = &trend.part;
        match part.kind {
            FabricPartKind::Domain => {
                let members = part.domain.as_ref().and_then(|domain| self.members.get(domain));
                nodes.extend(members.into_iter().flatten().cloned().map(Some));
            }
            _ => {
                nodes.insert(part.node.clone());
                let peer = part.peer.as_deref().and_then(|peer| peer.split(':').next());
                nodes.extend(peer.map(|peer| Some(NodeName::from(peer))));
            }
        }
        let (Some(first), Some(last)) = (trend.points.first(), trend.points.last()) else {
            return;
        };
        let during = |c: &&RunChange| first.at < c.at && c.at <= last.at;
        let all = nodes.iter().filter_map(|node| self.changes.get(node)).flatten();
        trend.changes = all.filter(during).filter(|c| is_relevant(c, part)).cloned().collect();
        trend.changes.sort_by(|a, b| (&a.at, &a.node, &a.what).cmp(&(&b.at, &b.node, &b.what)));
    }
}

/// The fleet-wide differences from the run before.
fn fleet_changes(before: &HistoryRun, after: &HistoryRun) -> Vec<RunChange> {
    let changed = |kind, what: &str, was: &str, is: &str| RunChange {
        run: after.run.clone(),
        at: after.at.clone(),
        node: None,
        kind,
        what: what.to_owned(),
        before: was.to_owned(),
        after: is.to_owned(),
    };
    let tools = node_identity::identity_differences(&before.tools, &after.tools);
    let mut all: Vec<RunChange> =
        tools.iter().map(|(what, was, is)| changed(RunChangeKind::Tool, what, was, is)).collect();
    if before.thresholds != after.thresholds {
        let (was, is) = (&before.thresholds, &after.thresholds);
        all.push(changed(RunChangeKind::Thresholds, "expectations", was, is));
    }
    all
}

/// Whether a change can explain the readings of a part: one of another GPU cannot.
fn is_relevant(changed: &RunChange, part: &FabricPart) -> bool {
    let Some(index) = IdentityField::from_name(&changed.what).gpu else { return true };
    let is = |node: Option<&str>, gpu: Option<u32>| {
        changed.node.as_ref().map(|n| n.as_str()) == node && gpu.is_none_or(|gpu| index == gpu)
    };
    let peer = part.peer.as_deref().map(parse_path_end);
    part.kind == FabricPartKind::Domain
        || is(part.node.as_ref().map(|n| n.as_str()), part.gpu)
        || peer.is_some_and(|(node, gpu)| is(Some(node.as_str()), gpu))
}
