//! Which nodes the confirm recordings measured again, and with which partners.

use std::collections::{BTreeMap, BTreeSet};

#[cfg(test)]
use super::confirm::COMPARISONS;
use super::confirm::{is_of_network, peer_node};
use super::host_index::HostIndex;
use super::rail_readings;
use model::id::NodeName;
use model::measurement::Measurement;
use model::tool_recording::{RecordingScope, ToolRecording};
use model::verdict::Finding;

/// One confirm recording that holds numbers.
#[derive(Debug)]
struct ConfirmRecording {
    network: bool,
    rail: Option<String>,
    nodes: BTreeSet<NodeName>,
}

impl ConfirmRecording {
    /// Whether it could show a finding.
    fn can_show(&self, finding: &Finding) -> bool {
        #[cfg(test)]
        COMPARISONS.set(COMPARISONS.get() + 1);
        let network = is_of_network(finding);
        self.network == network && (!network || self.rail == finding.locus.rail)
    }
}

/// The confirm recordings, by participating node.
#[derive(Debug)]
pub(super) struct ConfirmCoverage {
    recordings: Vec<ConfirmRecording>,
    by_node: HostIndex<Vec<usize>>,
}

impl ConfirmCoverage {
    pub(super) fn new(again: &[ToolRecording]) -> Self {
        let to_confirm = |r: &ToolRecording| ConfirmRecording {
            network: rail_readings::is_of_network(r),
            rail: rail_readings::rail_of(r),
            nodes: nodes_of(r),
        };
        let recordings: Vec<ConfirmRecording> =
            again.iter().filter(|r| has_numbers(r)).map(to_confirm).collect();
        let mut places: BTreeMap<&NodeName, Vec<usize>> = BTreeMap::new();
        for (at, node) in
            recordings.iter().enumerate().flat_map(|(at, l)| l.nodes.iter().map(move |n| (at, n)))
        {
            places.entry(node).or_default().push(at);
        }
        let mut by_node = HostIndex::default();
        places.into_iter().for_each(|(node, at)| by_node.add(node, at));
        Self { recordings, by_node }
    }

    /// The recordings that include a node and could show a finding.
    fn recordings_with<'l>(
        &'l self,
        node: &NodeName,
        finding: &'l Finding,
    ) -> impl Iterator<Item = &'l ConfirmRecording> {
        let places: BTreeSet<usize> =
            self.by_node.find_candidates(node.as_str()).flatten().copied().collect();
        places.into_iter().map(|at| &self.recordings[at]).filter(|r| r.can_show(finding))
    }

    /// Whether the same part was measured again: a node with any partner, a pair of nodes together.
    pub(super) fn has_part(&self, finding: &Finding) -> bool {
        let Some(node) = &finding.locus.node else { return false };
        let peer = peer_node(finding);
        let took_part = |recording: &ConfirmRecording, node: &NodeName| {
            recording.nodes.iter().any(|n| n.matches_host(node.as_str()))
        };
        self.recordings_with(node, finding)
            .any(|r| peer.as_ref().is_none_or(|peer| took_part(r, peer)))
    }

    /// Whether a node was measured again over the finding's kind of path.
    pub(super) fn has_node(&self, node: &NodeName, finding: &Finding) -> bool {
        self.recordings_with(node, finding).next().is_some()
    }

    /// How many other nodes the part was measured with again; for a pair, the smaller count of its
    /// ends.
    pub(super) fn partner_count(&self, finding: &Finding) -> usize {
        let ends: Vec<NodeName> =
            finding.locus.node.iter().cloned().chain(peer_node(finding)).collect();
        let of = |end: &NodeName| {
            let met: BTreeSet<&NodeName> = self
                .recordings_with(end, finding)
                .flat_map(|r| &r.nodes)
                .filter(|n| !ends.iter().any(|e| e.matches_host(n.as_str())))
                .collect();
            met.len()
        };
        ends.iter().map(of).min().unwrap_or(0)
    }
}

/// The nodes of a recording, as its tool or the sweep names them.
pub(super) fn nodes_of(recording: &ToolRecording) -> BTreeSet<NodeName> {
    let facts = &recording.parsed.facts;
    let own: Vec<NodeName> = match &recording.scope {
        RecordingScope::Node(node) => vec![node.clone()],
        RecordingScope::Pair(a, b) => vec![a.clone(), b.clone()],
        RecordingScope::Domain(_) if !recording.nodes.is_empty() => recording.nodes.clone(),
        RecordingScope::Domain(_) => {
            let hosts = facts.ranks.iter().map(|r| r.host.as_str());
            hosts.chain(facts.hosts.iter().map(String::as_str)).map(NodeName::from).collect()
        }
    };
    own.into_iter().collect()
}

pub(super) fn has_numbers(recording: &ToolRecording) -> bool {
    recording.parsed.measurements.iter().any(|m| match m {
        Measurement::Matrix(matrix) => matrix.numbers().next().is_some(),
        Measurement::Series(series) => !series.points.is_empty(),
        Measurement::Scalar(_) => true,
    })
}
