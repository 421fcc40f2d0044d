//! A run indexed by node: built once instead of searched for every node of a fleet.
//!
//! References only; `build` interprets them.

use std::collections::{BTreeMap, BTreeSet};

use super::MapInput;
use super::builder::peer_node;
use model::claim_index::ClaimIndex;
use model::id::NodeName;
use model::measured_cell::MeasuredCell;
use model::source_report::SourceReport;
use model::tool_recording::{RecordingScope, ToolRecording};
use model::verdict::{Finding, NodeVerdict};
use model::worker_protocol::MachineRecord;
use readers::claims::nvlink_reach;

#[derive(Debug)]
pub(super) struct RunIndex<'s> {
    pub(super) source: &'s MapInput<'s>,
    pub(super) verdicts: BTreeMap<&'s NodeName, &'s NodeVerdict>,
    pub(super) claim_index: ClaimIndex<'s>,
    /// The latest machine record of a node.
    pub(super) machines: BTreeMap<&'s NodeName, &'s MachineRecord>,
    pub(super) node_recordings: BTreeMap<&'s NodeName, Vec<&'s ToolRecording>>,
    /// Measurements over rails, by either end.
    pub(super) rail_cells: BTreeMap<&'s NodeName, Vec<&'s MeasuredCell>>,
    /// Nodes with a number from an internal link.
    pub(super) measured_inside: BTreeSet<&'s NodeName>,
    pub(super) measured_report: SourceReport,
    findings: BTreeMap<&'s str, Vec<&'s Finding>>,
    /// Findings about a part larger than a node.
    pub(super) larger_findings: Vec<&'s Finding>,
}

impl<'s> RunIndex<'s> {
    pub(super) fn new(source: &'s MapInput<'s>) -> Self {
        let run = source.run;
        let mut ground = Self {
            source,
            verdicts: BTreeMap::new(),
            claim_index: ClaimIndex::from_claims(&run.claims),
            machines: source.machines.iter().map(|machine| (&machine.node, machine)).collect(),
            node_recordings: BTreeMap::new(),
            rail_cells: BTreeMap::new(),
            measured_inside: BTreeSet::new(),
            measured_report: nvlink_reach::read("", "", &run.claims, &run.cells),
            findings: BTreeMap::new(),
            larger_findings: Vec::new(),
        };
        for verdict in &run.verdicts.nodes {
            ground.verdicts.entry(&verdict.node).or_insert(verdict);
        }
        for recording in source.recordings {
            if let RecordingScope::Node(node) = &recording.scope {
                ground.node_recordings.entry(node).or_default().push(recording);
            }
        }
        for cell in &run.cells {
            ground.add_cell(cell);
        }
        for finding in &run.verdicts.findings {
            let own = finding.locus.node.as_ref().map(NodeName::as_str);
            let peer = finding.locus.peer.as_deref().map(peer_node);
            for node in own.iter().chain(peer.iter().filter(|_| peer != own)) {
                ground.findings.entry(node).or_default().push(finding);
            }
            if own.is_none() {
                ground.larger_findings.push(finding);
            }
        }
        ground
    }

    fn add_cell(&mut self, cell: &'s MeasuredCell) {
        let ends = [cell.src_node.as_ref(), cell.dst_node.as_ref()];
        if cell.rail.is_some() {
            let second = ends[1].filter(|_| ends[0] != ends[1]);
            for node in [ends[0], second].into_iter().flatten() {
                self.rail_cells.entry(node).or_default().push(cell);
            }
        } else if cell.value.is_some() && ends[0] == ends[1] {
            self.measured_inside.extend(ends[0]);
        }
    }

    /// The findings about a node or a part of it, in order.
    pub(super) fn findings_about(&self, node: &NodeName) -> &[&'s Finding] {
        self.findings.get(node.as_str()).map_or(&[], Vec::as_slice)
    }
}
