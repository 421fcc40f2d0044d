//! Nodes that only pairs with nodes of other domains keep from passing.
//!
//! Pure. Over the network a node meets nodes with which it has nothing else in common. A pair
//! without a usable result is reported, and implicates both ends equally: a node is judged by its
//! other partners over the same rail if most of them measured it as good.

use std::collections::{BTreeMap, BTreeSet};

use super::gaps;
use super::run_judgement::{RunJudgeInput, judge_recordings};
use engine::plan::{ConfirmationSuspect, Plan};
use model::claim_index::ClaimIndex;
use model::claims::Claims;
use model::id::NodeName;
use model::measurement::Measurement;
use model::probe::ProbeScope;
use model::raw_result::RawResult;
use model::tool_recording::{RecordingScope, ToolRecording};
use model::unknown_subject::UnknownSubject;
use model::verdict::{Finding, LocusKind, Outcome, Verdicts};

/// Fewer other partners than this do not clear a node.
const MIN_OTHER_PARTNERS: usize = 2;

/// Two nodes and the rail between them, in order.
type RailNodePair = (NodeName, NodeName, Option<String>);

fn ordered_pair(a: &NodeName, b: &NodeName, rail: Option<&String>) -> RailNodePair {
    let (a, b) = if b < a { (b, a) } else { (a, b) };
    (a.clone(), b.clone(), rail.cloned())
}

fn has_rate(recording: &ToolRecording) -> bool {
    recording.parsed.measurements.iter().any(|measurement| match measurement {
        Measurement::Matrix(matrix) => matrix.numbers().next().is_some(),
        Measurement::Series(series) => !series.points.is_empty(),
        Measurement::Scalar(_) => true,
    })
}

/// The pairs over the network between nodes of different domains with a reading that is not usable.
fn pairs_without_result(
    claim_index: &ClaimIndex<'_>,
    plan: &Plan,
    results: &[RawResult],
    unusable: &BTreeSet<String>,
) -> BTreeMap<RailNodePair, BTreeSet<String>> {
    let mut found: BTreeMap<RailNodePair, BTreeSet<String>> = BTreeMap::new();
    let rails: BTreeSet<usize> =
        plan.steps().filter(|s| s.scope == ProbeScope::Rail).map(|s| s.step).collect();
    for result in results.iter().filter(|result| rails.contains(&result.step)) {
        let [a, b] = result.nodes.as_slice() else { continue };
        let is_usable = result.stdout.as_ref().is_some_and(|file| !unusable.contains(file));
        let is_fine = result.gap_reason().is_none() && is_usable;
        if !is_fine && claim_index.is_cross_domain(a, b) {
            let probes = found.entry(ordered_pair(a, b, result.rail.as_ref())).or_default();
            probes.insert(result.probe.clone());
        }
    }
    found
}

/// Both ends of such pairs, to be measured with other partners.
pub(super) fn find_suspects(
    claims: &Claims,
    plan: &Plan,
    results: &[RawResult],
    unusable: &BTreeSet<String>,
) -> Vec<ConfirmationSuspect> {
    let found = pairs_without_result(&ClaimIndex::from_claims(claims), plan, results, unusable);
    // If most pairs failed, the cause is the rail or the tool, not a single pair.
    let pairs = plan.steps().filter(|s| s.scope == ProbeScope::Rail);
    let all: BTreeSet<RailNodePair> = pairs
        .filter_map(|s| Some(ordered_pair(s.nodes.first()?, s.nodes.get(1)?, s.rail.as_ref())))
        .collect();
    if all.len() <= 2 * found.len() {
        return Vec::new();
    }
    let suspect = |((node, peer, rail), probes)| ConfirmationSuspect {
        node,
        peer: Some(peer),
        rail,
        gpus: None,
        probes,
    };
    found.into_iter().map(suspect).collect()
}

/// Lets nodes pass that only pairs with nodes of other domains keep from passing. `unusable` are
/// the files of pairs without a usable result.
pub(super) fn clear_nodes(
    run: &RunJudgeInput<'_>,
    all: &[ToolRecording],
    unusable: &BTreeSet<String>,
    verdicts: &mut Verdicts,
) {
    if verdicts.nodes.iter().all(|it| it.outcome != Outcome::Unknown) {
        return;
    }
    let claim_index = ClaimIndex::from_claims(run.claims);
    let mut open = pairs_without_result(&claim_index, run.plan, run.results, unusable);
    for (a, b, rail) in verdicts.findings.iter().filter_map(finding_pair) {
        if claim_index.is_cross_domain(&a, &b) {
            open.entry(ordered_pair(&a, &b, rail.as_ref())).or_default();
        }
    }
    if open.is_empty() {
        return;
    }
    let is_open = |a: &NodeName, b: &NodeName, rail: Option<&String>| {
        claim_index.is_cross_domain(a, b) && open.contains_key(&ordered_pair(a, b, rail))
    };
    let of_open = |recording: &&ToolRecording| match &recording.scope {
        RecordingScope::Pair(a, b) => is_open(a, b, recording.rail.as_ref()),
        _ => false,
    };
    let kept: Vec<ToolRecording> = all.iter().filter(|it| !of_open(it)).cloned().collect();
    // For each end and rail: its partners, and the partners without a usable result.
    let mut met: BTreeMap<(&NodeName, &Option<String>), BTreeSet<&NodeName>> = BTreeMap::new();
    for recording in kept.iter().filter(|recording| has_rate(recording)) {
        let RecordingScope::Pair(a, b) = &recording.scope else { continue };
        met.entry((a, &recording.rail)).or_default().insert(b);
        met.entry((b, &recording.rail)).or_default().insert(a);
    }
    let mut without: BTreeMap<(&NodeName, &Option<String>), usize> = BTreeMap::new();
    for (a, b, rail) in open.keys() {
        [a, b].into_iter().for_each(|end| *without.entry((end, rail)).or_default() += 1);
    }
    let mut spoken_for: BTreeMap<&NodeName, bool> = BTreeMap::new();
    for (end, gone) in &without {
        let others = met.get(end).map_or(0, BTreeSet::len);
        *spoken_for.entry(end.0).or_insert(true) &= MIN_OTHER_PARTNERS <= others && *gone < others;
    }
    // Other findings about the node stay.
    let named: BTreeSet<NodeName> = verdicts
        .findings
        .iter()
        .filter(|f| finding_pair(f).is_none_or(|(a, b, rail)| !is_open(&a, &b, rail.as_ref())))
        .flat_map(|f| f.locus.node.clone().into_iter().chain(finding_peer(f)))
        .collect();
    let wanted = |node: &NodeName| spoken_for.get(node) == Some(&true) && !named.contains(node);
    if !verdicts.nodes.iter().any(|it| it.outcome == Outcome::Unknown && wanted(&it.node)) {
        return;
    }
    let mut plan = run.plan.clone();
    for round in &mut plan.rounds {
        round.steps.retain(|step| match step.nodes.as_slice() {
            [a, b] if step.scope == ProbeScope::Rail => !is_open(a, b, step.rail.as_ref()),
            _ => true,
        });
    }
    let mut others = judge_recordings(run, &kept, false).verdicts;
    let gaps = gaps::find_gaps(&plan, run.results, &kept, &others);
    gaps::apply_gaps(&mut others, run.claims, &gaps);
    let passes: BTreeMap<&NodeName, _> = others
        .nodes
        .iter()
        .filter(|it| it.outcome == Outcome::Pass && wanted(&it.node))
        .map(|it| (&it.node, it))
        .collect();
    for verdict in verdicts.nodes.iter_mut().filter(|it| it.outcome == Outcome::Unknown) {
        if let Some(other) = passes.get(&verdict.node) {
            let why = std::mem::take(&mut verdict.reason);
            verdicts.notes.push(format!("{}: passes by its other partners; {why}", verdict.node));
            *verdict = (*other).clone();
        }
    }
    let is_passed = |what: &UnknownSubject| match what {
        UnknownSubject::Node(node) => passes.contains_key(node),
        _ => false,
    };
    verdicts.unknown.retain(|unknown| !is_passed(&unknown.what));
}

fn finding_peer(finding: &Finding) -> Option<NodeName> {
    let peer = finding.locus.peer.as_deref().filter(|_| finding.locus.kind == LocusKind::Pair)?;
    Some(peer.rsplit_once(':').map_or(peer, |(node, _)| node).into())
}

/// The ends of the network pair of a finding.
fn finding_pair(finding: &Finding) -> Option<RailNodePair> {
    let near = finding.locus.node.clone()?;
    let far = finding_peer(finding).filter(|_| finding.locus.gpu.is_none())?;
    Some((near, far, finding.locus.rail.clone()))
}
