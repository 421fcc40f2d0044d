//! Which nodes took part in the outputs behind a finding.
//!
//! Every node of a step can distort its output about the other participants, and slow them down. So
//! a finding against a node stands only if no single other node took part in all its evidence: the
//! node's own output plus another one, or outputs with two different nodes. Otherwise either of the
//! two may be the cause. Outputs without a plan are taken at face value.

use std::collections::{BTreeMap, BTreeSet};

use super::fabric_group::{FabricGroup, PairReading};
use super::finding::new_finding;
use super::finding_set::FindingSet;
use model::finding_rule::FindingRule;
use model::id::NodeName;
use model::parse_output::Tool;
use model::tool_recording::{RecordingScope, ToolRecording};
use model::verdict::{Finding, Locus, LocusKind, Outcome};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OutputParticipants {
    /// No plan lists them.
    Unknown,
    Single(NodeName),
    /// These nodes, whose lines are mixed in one output.
    Mixed(Vec<NodeName>),
    /// Many, each of which reports its own measurement.
    Independent,
}

impl OutputParticipants {
    pub(super) fn from_recording(recording: &ToolRecording) -> Self {
        let by_themselves = matches!(
            recording.parsed.tool,
            Some(Tool::FabricgateCopy | Tool::FabricgateCollective)
        );
        match &recording.scope {
            RecordingScope::Node(node) => Self::Single(node.clone()),
            _ if recording.nodes.is_empty() => Self::Unknown,
            RecordingScope::Domain(_) if by_themselves && 2 < recording.nodes.len() => {
                Self::Independent
            }
            _ => Self::Mixed(recording.nodes.clone()),
        }
    }

    /// The nodes other than `own` that could each alone have distorted what the output reports
    /// about `own` with `far`; `None` if unknown.
    fn others(&self, own: &NodeName, far: Option<&NodeName>) -> Option<BTreeSet<NodeName>> {
        let others =
            |nodes: &[NodeName]| nodes.iter().filter(|node| *node != own).cloned().collect();
        match self {
            Self::Unknown => None,
            Self::Single(node) => Some(others(std::slice::from_ref(node))),
            Self::Mixed(nodes) => Some(others(nodes)),
            Self::Independent => Some(others(far.map_or(&[], std::slice::from_ref))),
        }
    }
}

/// The nodes that took part in every piece of evidence; empty if there is none, or if the
/// participants are unknown.
fn common_participants(
    all: impl Iterator<Item = Option<BTreeSet<NodeName>>>,
) -> BTreeSet<NodeName> {
    let mut common: Option<BTreeSet<NodeName>> = None;
    for others in all {
        let Some(others) = others else { return BTreeSet::new() };
        let left = match common {
            None => others,
            Some(known) => known.intersection(&others).cloned().collect(),
        };
        if left.is_empty() {
            return left;
        }
        common = Some(left);
    }
    common.unwrap_or_default()
}

/// The nodes that took part in all readings of a node behind a finding.
pub(super) fn participants_of_readings(
    island: &FabricGroup<'_>,
    node: &NodeName,
    (readings, runs): (&[PairReading], &[usize]),
    shows: impl Fn(&PairReading) -> bool,
) -> BTreeSet<NodeName> {
    let own = |gpu: usize| island.gpus[gpu].node == *node;
    let selected =
        readings.iter().zip(runs).filter(|(r, _)| (own(r.src) || own(r.dst)) && shows(r));
    common_participants(selected.map(|(r, run)| {
        let far = if own(r.src) { r.dst } else { r.src };
        island.run_participants[*run].others(node, Some(&island.gpus[far].node))
    }))
}

/// The nodes that took part in all readings at the reference level: readings from one node's runs
/// alone do not form a level.
pub(super) fn participants_of_level(
    island: &FabricGroup<'_>,
    (readings, runs): (&[PairReading], &[usize]),
    has_level: impl Fn(&PairReading) -> bool,
) -> BTreeSet<NodeName> {
    let selected = readings.iter().zip(runs).filter(|(r, _)| has_level(r));
    common_participants(selected.map(|(r, run)| match &island.run_participants[*run] {
        OutputParticipants::Unknown => None,
        OutputParticipants::Single(node) => Some([node.clone()].into()),
        OutputParticipants::Mixed(nodes) => Some(nodes.iter().cloned().collect()),
        OutputParticipants::Independent => {
            Some([r.src, r.dst].map(|gpu| island.gpus[gpu].node.clone()).into())
        }
    }))
}

/// Widens the finding if other nodes took part in all its evidence: with one other node, it
/// concerns the two. With several, the cause is ambiguous, and a doubt records that.
pub(super) fn widen_to_participants(found: Finding, others: &BTreeSet<NodeName>) -> Finding {
    let mut names = others.iter().map(NodeName::as_str);
    let (Some(first), None) = (names.next(), names.next()) else {
        let summary = format!(
            "{}; the same {} other nodes took part in all its evidence: measure pairs of it with \
             others",
            found.summary,
            others.len()
        );
        return Finding { outcome: Outcome::Unknown, summary, ..found };
    };
    let summary = format!(
        "{}; {first} took part in all its evidence, so either may be the cause: run each with \
         another node",
        found.summary
    );
    let Locus { domain, node, rail, .. } = found.locus.clone();
    let peer = Some(first.to_owned());
    let locus = Locus { domain, node, rail, peer, ..Locus::new(LocusKind::Pair) };
    let id =
        new_finding(found.outcome, found.class.clone(), locus.clone(), FindingRule::default()).id;
    Finding { id, locus, summary, ..found }
}

/// Checks every finding about a part against the outputs behind it: its evidence, and for a number
/// those outputs of the same tests in which its node took part.
pub(super) fn judge(recordings: &[ToolRecording], ledger: &mut FindingSet) {
    if ledger.findings().all(|found| !needs_corroboration(found)) {
        return;
    }
    let mut files: BTreeMap<&str, &ToolRecording> = BTreeMap::new();
    let mut of: BTreeMap<&NodeName, Vec<&ToolRecording>> = BTreeMap::new();
    for recording in recordings {
        files.insert(&recording.file, recording);
        recording.nodes.iter().for_each(|node| of.entry(node).or_default().push(recording));
    }
    for found in ledger.take(needs_corroboration) {
        let Some(node) = found.locus.node.clone() else { continue };
        let named = || found.evidence.iter().map(|e| files.get(e.file.as_str()).copied());
        let tests: BTreeSet<&str> =
            found.evidence.iter().filter_map(|e| e.testcase.as_deref()).collect();
        let holds = |recording: &&&ToolRecording| {
            let mut measured = recording.parsed.measurements.iter();
            measured.any(|it| it.testcase().is_some_and(|name| tests.contains(name)))
        };
        let others = match found.ratio.is_some() && !tests.is_empty() {
            true => {
                let own = of.get(&node).into_iter().flatten().filter(holds);
                common_participants(own.map(|recording| {
                    OutputParticipants::from_recording(recording).others(&node, None)
                }))
            }
            false => common_participants(named().map(|recording| {
                OutputParticipants::from_recording(recording?).others(&node, None)
            })),
        };
        let found = if others.is_empty() { found } else { widen_to_participants(found, &others) };
        if found.outcome == Outcome::Unknown {
            ledger.add_doubt(&node, found.summary.clone());
        }
        ledger.add(found);
    }
}

/// A finding about a node, or a part of it.
fn is_of_part(found: &Finding) -> bool {
    matches!(
        found.locus.kind,
        LocusKind::Gpu | LocusKind::Node | LocusKind::Direction | LocusKind::Tray | LocusKind::Rail
    )
}

/// Whether a finding needs evidence from more than one other node.
fn needs_corroboration(found: &Finding) -> bool {
    let of_part = is_of_part(found) && Outcome::Unknown < found.outcome;
    of_part && found.locus.node.is_some() && !found.evidence.is_empty()
}
