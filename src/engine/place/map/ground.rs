//! What a run says, by node: looked up once for every node of a fleet, and not
//! searched for each of them.
//!
//! References only; what the map makes of them is `build`'s.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::Source;
use super::build::peer_node;
use model::cell::Cell;
use model::claims::ClaimedDomain;
use model::id::NodeName;
use model::recording::Recording;
use model::recording::Scope;
use model::said::Said;
use model::verdict::Finding;
use model::verdict::NodeVerdict;
use model::worker::Machine;
use readers::claims::measured;

/// A run by node.
#[derive(Debug)]
pub(super) struct Ground<'s> {
    pub(super) source: &'s Source<'s>,
    pub(super) verdicts: BTreeMap<&'s NodeName, &'s NodeVerdict>,
    /// The domain that claims a node; of several the first.
    pub(super) homes: BTreeMap<&'s NodeName, &'s ClaimedDomain>,
    pub(super) leaves: BTreeMap<&'s NodeName, &'s str>,
    /// The last machine that a node was.
    pub(super) machines: BTreeMap<&'s NodeName, &'s Machine>,
    /// Outputs of the node alone.
    pub(super) own: BTreeMap<&'s NodeName, Vec<&'s Recording>>,
    /// What was measured over rails, by either end.
    pub(super) over: BTreeMap<&'s NodeName, Vec<&'s Cell>>,
    /// Nodes inside which something gave a number: their own links were measured.
    pub(super) inside: BTreeSet<&'s NodeName>,
    /// Who was measured to reach whom.
    pub(super) said: Said,
    /// Findings by the nodes that they are about.
    findings: BTreeMap<&'s str, Vec<&'s Finding>>,
    /// Those about something larger than a node.
    pub(super) larger: Vec<&'s Finding>,
}

impl<'s> Ground<'s> {
    pub(super) fn of(source: &'s Source<'s>) -> Self {
        let run = source.run;
        let mut ground = Self {
            source,
            verdicts: BTreeMap::new(),
            homes: BTreeMap::new(),
            leaves: BTreeMap::new(),
            machines: source.machines.iter().map(|machine| (&machine.node, machine)).collect(),
            own: BTreeMap::new(),
            over: BTreeMap::new(),
            inside: BTreeSet::new(),
            said: measured::read("", "", &run.claims, &run.cells),
            findings: BTreeMap::new(),
            larger: Vec::new(),
        };
        for verdict in &run.verdicts.nodes {
            ground.verdicts.entry(&verdict.node).or_insert(verdict);
        }
        for domain in &run.claims.domains {
            domain.nodes.iter().for_each(|node| _ = ground.homes.entry(node).or_insert(domain));
        }
        for leaf in &run.claims.leaves {
            leaf.nodes.iter().for_each(|node| _ = ground.leaves.entry(node).or_insert(&leaf.name));
        }
        for recording in source.recordings {
            if let Scope::Node(node) = &recording.scope {
                ground.own.entry(node).or_default().push(recording);
            }
        }
        for cell in &run.cells {
            ground.add(cell);
        }
        for finding in &run.verdicts.findings {
            let own = finding.locus.node.as_ref().map(NodeName::as_str);
            let peer = finding.locus.peer.as_deref().map(peer_node);
            for node in own.iter().chain(peer.iter().filter(|_| peer != own)) {
                ground.findings.entry(node).or_default().push(finding);
            }
            if own.is_none() {
                ground.larger.push(finding);
            }
        }
        ground
    }

    fn add(&mut self, cell: &'s Cell) {
        let ends = [cell.src_node.as_ref(), cell.dst_node.as_ref()];
        if cell.rail.is_some() {
            let second = ends[1].filter(|_| ends[0] != ends[1]);
            for node in [ends[0], second].into_iter().flatten() {
                self.over.entry(node).or_default().push(cell);
            }
        } else if cell.value.is_some() && ends[0] == ends[1] {
            self.inside.extend(ends[0]);
        }
    }

    /// The findings about a node or a part of it, in their order.
    pub(super) fn about(&self, node: &NodeName) -> &[&'s Finding] {
        self.findings.get(node.as_str()).map_or(&[], Vec::as_slice)
    }
}
