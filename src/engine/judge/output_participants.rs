//! Which nodes took part in the outputs that a finding rests on.
//!
//! Every node of a step can make its output say anything of the others there, and be slow
//! to them. So a finding against a node stands where no other node took part in all that
//! shows it: its own output and that of another, or outputs with two others. Where one
//! did, either of the two may be it. Outputs without a plan are taken at their text.

use std::collections::{BTreeMap, BTreeSet};

use super::fabric_group::{FabricGroup, PairReading};
use super::finding::new_finding;
use super::finding_set::FindingSet;
use model::finding_rule::FindingRule;
use model::id::NodeName;
use model::parse_output::Tool;
use model::tool_recording::{RecordingScope, ToolRecording};
use model::verdict::{Finding, Locus, LocusKind, Outcome};

/// Which nodes took part in an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OutputParticipants {
    /// No plan tells.
    Unknown,
    /// One node, alone.
    Single(NodeName),
    /// These: what one of them prints stands among what the others print.
    Mixed(Vec<NodeName>),
    /// Many, each of which told what it measured itself.
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

    /// The nodes beside `own` that each alone could have made it say something of `own`
    /// with `far`; `None` where that is not known.
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

/// The nodes that took part in everything that shows a thing; empty where none did, or
/// nothing is known of it.
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

/// The nodes that took part in all readings of a node that show something.
pub(super) fn participants_of_readings(
    island: &FabricGroup<'_>,
    node: &NodeName,
    (readings, runs): (&[PairReading], &[usize]),
    shows: impl Fn(&PairReading) -> bool,
) -> BTreeSet<NodeName> {
    let own = |gpu: usize| island.gpus[gpu].node == *node;
    let shown = readings.iter().zip(runs).filter(|(r, _)| (own(r.src) || own(r.dst)) && shows(r));
    common_participants(shown.map(|(r, run)| {
        let far = if own(r.src) { r.dst } else { r.src };
        island.run_participants[*run].others(node, Some(&island.gpus[far].node))
    }))
}

/// The nodes that took part in all readings that have the level which others are held
/// against: what they alone show is no level.
pub(super) fn participants_of_level(
    island: &FabricGroup<'_>,
    (readings, runs): (&[PairReading], &[usize]),
    has_level: impl Fn(&PairReading) -> bool,
) -> BTreeSet<NodeName> {
    let shown = readings.iter().zip(runs).filter(|(r, _)| has_level(r));
    common_participants(shown.map(|(r, run)| match &island.run_participants[*run] {
        OutputParticipants::Unknown => None,
        OutputParticipants::Single(node) => Some([node.clone()].into()),
        OutputParticipants::Mixed(nodes) => Some(nodes.iter().cloned().collect()),
        OutputParticipants::Independent => {
            Some([r.src, r.dst].map(|gpu| island.gpus[gpu].node.clone()).into())
        }
    }))
}

/// The finding where others than its node took part in all that shows it: about the two,
/// where it is one other. Of several it is not known which; that is said as a doubt.
pub(super) fn widen_to_participants(found: Finding, others: &BTreeSet<NodeName>) -> Finding {
    let mut names = others.iter().map(NodeName::as_str);
    let (Some(first), None) = (names.next(), names.next()) else {
        let summary = format!(
            "{}; the same {} other nodes took part in all that shows it: pairs of it with others would tell",
            found.summary,
            others.len()
        );
        return Finding { outcome: Outcome::Unknown, summary, ..found };
    };
    let summary = format!(
        "{}; {first} took part in all that shows it, so either may be it: each with another node would tell",
        found.summary
    );
    let Locus { domain, node, rail, .. } = found.locus.clone();
    let peer = Some(first.to_owned());
    let locus = Locus { domain, node, rail, peer, ..Locus::new(LocusKind::Pair) };
    let id =
        new_finding(found.outcome, found.class.clone(), locus.clone(), FindingRule::default()).id;
    Finding { id, locus, summary, ..found }
}

/// Holds every finding of a part to the outputs that show it: those that are its evidence,
/// and of a number those that its node took part in with the same tests.
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

/// A finding of a node, or of a part of it.
fn is_of_part(found: &Finding) -> bool {
    matches!(
        found.locus.kind,
        LocusKind::Gpu | LocusKind::Node | LocusKind::Direction | LocusKind::Tray | LocusKind::Rail
    )
}

/// Whether a finding has to be shown by more than one other node.
fn needs_corroboration(found: &Finding) -> bool {
    let of_part = is_of_part(found) && Outcome::Unknown < found.outcome;
    of_part && found.locus.node.is_some() && !found.evidence.is_empty()
}
