//! Which nodes the recordings of a second look measured again, and with whom.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

#[cfg(test)]
use super::confirm::LOOKED;
use super::confirm::is_of_network;
use super::confirm::peer_node;
use super::rails;
use super::roster::Roster;
use model::id::NodeName;
use model::measurement::Measurement;
use model::recording::Recording;
use model::recording::Scope;
use model::verdict::Finding;

/// One recording of the second look that holds numbers.
#[derive(Debug)]
struct Look {
    network: bool,
    rail: Option<String>,
    nodes: BTreeSet<NodeName>,
}

impl Look {
    /// Whether it could have shown a finding.
    fn fits(&self, finding: &Finding) -> bool {
        #[cfg(test)]
        LOOKED.set(LOOKED.get() + 1);
        let network = is_of_network(finding);
        self.network == network && (!network || self.rail == finding.locus.rail)
    }
}

/// The recordings of the second look, by the nodes that took part.
#[derive(Debug)]
pub(super) struct Looks {
    all: Vec<Look>,
    of: Roster<Vec<usize>>,
}

impl Looks {
    pub(super) fn of(again: &[Recording]) -> Self {
        let look = |r: &Recording| Look {
            network: rails::is_of_network(r),
            rail: rails::rail_of(r),
            nodes: nodes_of(r),
        };
        let all: Vec<Look> = again.iter().filter(|r| has_numbers(r)).map(look).collect();
        let mut by_node: BTreeMap<&NodeName, Vec<usize>> = BTreeMap::new();
        for (at, node) in
            all.iter().enumerate().flat_map(|(at, l)| l.nodes.iter().map(move |n| (at, n)))
        {
            by_node.entry(node).or_default().push(at);
        }
        let mut of = Roster::default();
        by_node.into_iter().for_each(|(node, at)| of.add(node, at));
        Self { all, of }
    }

    /// Those in which a node took part and that could have shown a finding.
    fn with<'l>(&'l self, node: &NodeName, finding: &'l Finding) -> impl Iterator<Item = &'l Look> {
        let places: BTreeSet<usize> = self.of.alike(node.as_str()).flatten().copied().collect();
        places.into_iter().map(|at| &self.all[at]).filter(|look| look.fits(finding))
    }

    /// Whether the same part was measured again: a node with somebody, a pair of
    /// nodes together.
    pub(super) fn was_read_again(&self, finding: &Finding) -> bool {
        let Some(node) = &finding.locus.node else { return false };
        let peer = peer_node(finding);
        let took_part =
            |look: &Look, node: &NodeName| look.nodes.iter().any(|n| n.matches_host(node.as_str()));
        self.with(node, finding).any(|look| peer.as_ref().is_none_or(|peer| took_part(look, peer)))
    }

    /// Whether a node was measured again where a finding was seen.
    pub(super) fn was_read(&self, node: &NodeName, finding: &Finding) -> bool {
        self.with(node, finding).next().is_some()
    }

    /// With how many other nodes the part was measured again: of a pair, the fewest of
    /// its ends.
    pub(super) fn partners(&self, finding: &Finding) -> usize {
        let ends: Vec<NodeName> =
            finding.locus.node.iter().cloned().chain(peer_node(finding)).collect();
        let of = |end: &NodeName| {
            let met: BTreeSet<&NodeName> = self
                .with(end, finding)
                .flat_map(|look| &look.nodes)
                .filter(|n| !ends.iter().any(|e| e.matches_host(n.as_str())))
                .collect();
            met.len()
        };
        ends.iter().map(of).min().unwrap_or(0)
    }
}

/// The nodes of a recording, as its tool or the sweep names them.
pub(super) fn nodes_of(recording: &Recording) -> BTreeSet<NodeName> {
    let facts = &recording.parsed.facts;
    let own: Vec<NodeName> = match &recording.scope {
        Scope::Node(node) => vec![node.clone()],
        Scope::Pair(a, b) => vec![a.clone(), b.clone()],
        Scope::Domain(_) if !recording.nodes.is_empty() => recording.nodes.clone(),
        Scope::Domain(_) => {
            let hosts = facts.ranks.iter().map(|r| r.host.as_str());
            hosts.chain(facts.hosts.iter().map(String::as_str)).map(NodeName::from).collect()
        }
    };
    own.into_iter().collect()
}

pub(super) fn has_numbers(recording: &Recording) -> bool {
    recording.parsed.measurements.iter().any(|m| match m {
        Measurement::Matrix(matrix) => matrix.numbers().next().is_some(),
        Measurement::Series(series) => !series.points.is_empty(),
        Measurement::Scalar(_) => true,
    })
}
