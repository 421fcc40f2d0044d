//! The cells of the scale-out network: one per rate between two nodes, for `matrix.csv` and the
//! heat maps. This module only reports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::domain_recordings::DomainRecordings;
use super::fabric_matrix::compare_cell;
use super::finding_set::FindingSet;
use super::host_index::HostIndex;
use super::{nic, rail_readings};
use crate::thresholds::MeasurementConditions;
use model::claims::Claims;
use model::finding_class::FindingClass;
use model::id::NodeName;
use model::measured_cell::MeasuredCell;
use model::tool_recording::ToolRecording;
use model::verdict::{Direction, Finding, LocusKind, Outcome};

pub(super) fn add_cells(
    domains: &[DomainRecordings<'_>],
    claims: &Claims,
    recordings: &[ToolRecording],
    ledger: &FindingSet,
    cells: &mut Vec<MeasuredCell>,
) {
    let node_domains: BTreeMap<&NodeName, &DomainRecordings<'_>> =
        domains.iter().flat_map(|d| d.nodes.iter().map(move |n| (n, d))).collect();
    let known: HostIndex<()> = node_domains.keys().copied().collect();
    let names = rail_readings::RailNames::new(claims, recordings);
    let suspects = NetworkFindings::new(ledger.findings());
    let mut readings: BTreeMap<(NodeName, NodeName, Option<String>, String), u32> = BTreeMap::new();
    for recording in recordings.iter().filter(|r| rail_readings::is_of_network(r)) {
        let rail = names.rail_of(recording);
        for rate in rail_readings::collect_rates(recording, &known) {
            let key = (rate.from.clone(), rate.to.clone(), rail.clone(), rate.testcase.to_owned());
            let reading = readings.entry(key).or_insert(0);
            let domain_of = |node| node_domains.get(node).copied();
            let (from, to) = (domain_of(&rate.from), domain_of(&rate.to));
            let both = from.zip(to);
            let shared = both.filter(|(a, b)| a.name == b.name).map(|(a, _)| a.name.clone());
            let nic = both.and_then(|(a, b)| a.nic.zip(b.nic)).filter(|(a, b)| a.name == b.name);
            let bandwidth = rate.unit.is_bandwidth();
            let expected = nic.and_then(|(nic, _)| {
                nic::expected_rate(nic, &MeasurementConditions::new(rate.testcase, rate.bytes))
            });
            let is_explained = suspects.explain_low(rail.as_ref(), &rate.from, &rate.to);
            let cell = MeasuredCell {
                domain: shared,
                stage: recording.stage,
                testcase: Arc::from(rate.testcase),
                src_node: Some(rate.from),
                src_gpu: None,
                dst_node: Some(rate.to),
                dst_gpu: None,
                rail: rail.clone(),
                reading: *reading,
                value: Some(rate.value),
                unit: rate.unit,
                expected: None,
                ratio: None,
                outcome: Outcome::Unknown,
            };
            cells.push(compare_cell(cell, expected.filter(|_| bandwidth), is_explained));
            *reading += 1;
        }
    }
}

#[derive(Default)]
struct NetworkFindings<'f> {
    /// About an end, or a pair of ends.
    at: BTreeMap<(Option<&'f String>, &'f NodeName), Vec<&'f Finding>>,
    low_rails: BTreeSet<Option<&'f String>>,
}

impl<'f> NetworkFindings<'f> {
    fn new(findings: impl Iterator<Item = &'f Finding>) -> Self {
        let mut suspects = Self::default();
        for finding in findings {
            let rail = finding.locus.rail.as_ref();
            match (finding.locus.kind, &finding.locus.node) {
                (LocusKind::Rail | LocusKind::Pair, Some(node)) => {
                    suspects.at.entry((rail, node)).or_default().push(finding);
                }
                (LocusKind::Rail | LocusKind::Pair, None) => {}
                _ if finding.class == FindingClass::NetworkLow => {
                    _ = suspects.low_rails.insert(rail);
                }
                _ => {}
            }
        }
        suspects
    }

    /// Whether a finding explains a low rate between two nodes over a rail.
    fn explain_low(&self, rail: Option<&String>, from: &NodeName, to: &NodeName) -> bool {
        let at = |node| self.at.get(&(rail, node)).into_iter().flatten();
        self.low_rails.contains(&rail) || at(from).chain(at(to)).any(|f| explains(f, from, to))
    }
}

/// Whether a finding of this rail explains that a cell is low.
fn explains(finding: &Finding, from: &NodeName, to: &NodeName) -> bool {
    let locus = &finding.locus;
    let at = |node: &NodeName| locus.node.as_ref() == Some(node);
    let sends = locus.direction != Some(Direction::Rx);
    let receives = locus.direction != Some(Direction::Tx);
    match locus.kind {
        LocusKind::Rail => (at(from) && sends) || (at(to) && receives),
        LocusKind::Pair => {
            let peer = |node: &NodeName| locus.peer.as_deref() == Some(node.as_str());
            (at(from) && peer(to)) || (locus.direction.is_none() && at(to) && peer(from))
        }
        _ => false,
    }
}
