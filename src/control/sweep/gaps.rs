//! Planned measurements without a result are unknown, whatever the judge finds in the others.
//!
//! Pure. The judge sees outputs only; this module knows which outputs are missing and why. A gap
//! never improves a verdict and never blames a node.

use std::collections::{BTreeMap, BTreeSet};

use engine::plan::{Plan, PlanStep};
use model::claim_index::ClaimIndex;
use model::claims::Claims;
use model::id::{DomainName, NodeName};
use model::parse_output::Tool;
use model::raw_result;
use model::raw_result::RawResult;
use model::tool_recording::ToolRecording;
use model::unknown_subject::UnknownSubject;
use model::verdict::{Finding, LocusKind, NodeVerdict, Outcome, UnknownEntry, Verdicts};

/// A planned measurement without a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasurementGap {
    /// The nodes that it leaves partly unmeasured.
    pub nodes: Vec<NodeName>,
    /// The unknown measurement.
    pub subject: UnknownSubject,
    /// The reason.
    pub why: String,
}

/// The gaps of a run: steps without a usable result.
pub fn find_gaps(
    plan: &Plan,
    results: &[RawResult],
    recordings: &[ToolRecording],
    verdicts: &Verdicts,
) -> Vec<MeasurementGap> {
    let partners = PartnerEvidence::new(results, verdicts);
    let results: BTreeMap<(usize, u32), &RawResult> =
        results.iter().map(|r| ((r.step, r.reading), r)).collect();
    let read: BTreeMap<&str, &ToolRecording> =
        recordings.iter().map(|r| (r.file.as_str(), r)).collect();
    let mut gaps = Vec::new();
    for skipped in plan.skipped.iter().filter(|s| !s.not_applicable) {
        gaps.push(MeasurementGap {
            nodes: skipped.nodes.clone(),
            subject: UnknownSubject::Other(format!(
                "{} on {}",
                skipped.probe,
                raw_result::format_location(&skipped.nodes)
            )),
            why: skipped.why.clone(),
        });
    }
    // A reading beyond the planned ones was needed because those did not decide: if it fails, its
    // result is unknown too.
    let further = |step: &PlanStep| {
        let taken = results.range((step.step, step.readings)..=(step.step, u32::MAX));
        taken.map(|((_, reading), _)| *reading).collect::<Vec<u32>>()
    };
    let wanted = plan
        .steps()
        .flat_map(|step| (0..step.readings).chain(further(step)).map(move |r| (step, r)));
    for (step, reading) in wanted {
        let why = match results.get(&(step.step, reading)) {
            None => Some("not run: the run ended before".to_owned()),
            Some(result) => result.gap_reason().or_else(|| {
                let recording = read.get(result.stdout.as_deref()?)?;
                let tool = recording.parsed.tool;
                // The judge reports output that no parser recognises.
                let instead = step.fallback.as_ref().map(|fallback| fallback.parser);
                let expected = |tool: &Tool| *tool == step.parser || Some(*tool) == instead;
                let other = tool.filter(|tool| !expected(tool))?;
                Some(format!("printed an output of {other}, expected one of {}", step.parser))
            }),
        };
        if let Some(why) = why {
            let mut what = format!("{} on {}", step.probe, step.location());
            if let Some(rail) = &step.rail {
                what.push_str(&format!(", rail {rail}"));
            }
            if 0 < reading {
                what.push_str(&format!(", reading {}", reading + 1));
            }
            let what = UnknownSubject::Other(what);
            gaps.push(MeasurementGap { nodes: partners.affected_nodes(step), subject: what, why });
        }
    }
    gaps.sort_by(|a, b| (&a.nodes, &a.subject).cmp(&(&b.nodes, &b.subject)));
    gaps
}

/// Clears one node of a failed pair: if the other node is found failed, and the same probe came
/// back from the first one with a third node.
#[derive(Debug)]
struct PartnerEvidence<'r> {
    failed: BTreeSet<&'r NodeName>,
    /// The nodes whose runs with other nodes came back, by probe and rail.
    returned: BTreeSet<(&'r str, Option<&'r str>, &'r NodeName)>,
}

impl<'r> PartnerEvidence<'r> {
    fn new(results: &'r [RawResult], verdicts: &'r Verdicts) -> Self {
        let is_part =
            |f: &&Finding| f.outcome == Outcome::Failed && f.locus.kind != LocusKind::Pair;
        let failed = verdicts.findings.iter().filter(is_part);
        let came = results.iter().filter(|r| 1 < r.nodes.len() && r.gap_reason().is_none());
        let of = |r: &'r RawResult| {
            r.nodes.iter().map(|node| (r.probe.as_str(), r.rail.as_deref(), node))
        };
        Self {
            failed: failed.filter_map(|f| f.locus.node.as_ref()).collect(),
            returned: came.flat_map(of).collect(),
        }
    }

    /// The nodes that a failed step leaves partly unmeasured.
    fn affected_nodes(&self, step: &PlanStep) -> Vec<NodeName> {
        let came = |node: &NodeName| {
            self.returned.contains(&(step.probe.as_str(), step.rail.as_deref(), node))
        };
        match step.nodes.as_slice() {
            [bad, other] | [other, bad]
                if self.failed.contains(bad) && !self.failed.contains(other) && came(other) =>
            {
                vec![bad.clone()]
            }
            nodes => nodes.to_vec(),
        }
    }
}

/// Adds gaps to verdicts: each is listed, and a node with one cannot pass.
pub fn apply_gaps(verdicts: &mut Verdicts, claims: &Claims, gaps: &[MeasurementGap]) {
    if gaps.is_empty() {
        return verdicts.nodes.sort_by(|a, b| a.node.cmp(&b.node));
    }
    let claim_index = ClaimIndex::from_claims(claims);
    let mut reported_at: BTreeMap<UnknownSubject, usize> = BTreeMap::new();
    for (at, unknown) in verdicts.unknown.iter().enumerate() {
        reported_at.entry(unknown.what.clone()).or_insert(at);
    }
    let mut known: BTreeMap<NodeName, usize> = BTreeMap::new();
    for (at, verdict) in verdicts.nodes.iter().enumerate() {
        known.entry(verdict.node.clone()).or_insert(at);
    }
    for gap in gaps {
        verdicts.outcome = verdicts.outcome.max(Outcome::Unknown);
        let unknown = UnknownEntry { what: gap.subject.clone(), why: gap.why.clone() };
        // The cause is more specific than the effect that the judge reported.
        match reported_at.get(&unknown.what) {
            Some(at) => verdicts.unknown[*at] = unknown,
            None => {
                reported_at.insert(unknown.what.clone(), verdicts.unknown.len());
                verdicts.unknown.push(unknown);
            }
        }
        let reason = format!("{}: {}", gap.subject, gap.why);
        for node in &gap.nodes {
            let at = *known.entry(node.clone()).or_insert_with(|| {
                let domain = claim_index.domain_name_of(node).cloned();
                verdicts.nodes.push(unmeasured_verdict(node, domain));
                verdicts.nodes.len() - 1
            });
            mark_unknown(&mut verdicts.nodes[at], &reason);
        }
    }
    verdicts.nodes.sort_by(|a, b| a.node.cmp(&b.node));
}

/// The verdict of a node without a verdict of the judge, before its first gap is reported.
fn unmeasured_verdict(node: &NodeName, domain: Option<DomainName>) -> NodeVerdict {
    let (outcome, reason) = (Outcome::Pass, String::new());
    NodeVerdict {
        node: node.clone(),
        domain,
        outcome,
        reason,
        kept_by: None,
        detectable: None,
        detectable_together: None,
        fabric_detectable: None,
        scope: None,
    }
}

/// A node with a gap cannot pass.
fn mark_unknown(verdict: &mut NodeVerdict, reason: &str) {
    if verdict.outcome == Outcome::Pass {
        verdict.outcome = Outcome::Unknown;
        reason.clone_into(&mut verdict.reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::fixture;
    use crate::sweep::fixture::EXITED_WELL;
    use model::finding_class::FindingClass;
    use model::raw_result::ProcessEnding;
    use model::verdict::Locus;

    fn verdicts(outcome: Outcome) -> Verdicts {
        Verdicts {
            nodes: vec![NodeVerdict {
                node: "n2".into(),
                domain: None,
                outcome,
                reason: "as judged".to_owned(),
                kept_by: None,
                detectable: None,
                detectable_together: None,
                fabric_detectable: None,
                scope: None,
            }],
            ..Verdicts::empty(outcome)
        }
    }

    fn gap(node: &str) -> MeasurementGap {
        MeasurementGap {
            nodes: vec![node.into()],
            subject: UnknownSubject::Other("x".to_owned()),
            why: "y".to_owned(),
        }
    }

    #[test]
    fn the_partner_of_a_failed_node_has_no_gap_once_its_other_pairs_succeed() {
        let nodes: Vec<NodeName> = ["n1", "n2"].map(NodeName::from).into();
        let mut plan = fixture::plan(&[0]);
        plan.rounds[0].steps[0].nodes = nodes.clone();
        let ran = |nodes: &[&str], rail: Option<&str>, ending| {
            let nodes = nodes.iter().map(|node| NodeName::from(*node)).collect();
            let rail = rail.map(str::to_owned);
            RawResult { nodes, rail, ..fixture::result(1, 0, ending) }
        };
        let found = |node: &str, outcome, kind| {
            let locus = Locus { node: Some(node.into()), ..Locus::new(kind) };
            let findings = vec![Finding::new("f", outcome, FindingClass::NvlinkLow, locus)];
            Verdicts { findings, ..verdicts(Outcome::Pass) }
        };
        let bad = found("n1", Outcome::Failed, LocusKind::Rail);
        let broken = ProcessEnding::Exited { code: 1 };
        for (results, verdicts, left) in [
            (vec![ran(&["n2", "n3"], None, EXITED_WELL)], &bad, 1),
            (vec![ran(&["n2", "n3"], Some("rail1"), EXITED_WELL)], &bad, 2),
            (vec![ran(&["n2", "n3"], None, broken)], &bad, 2),
            (vec![ran(&["n2"], None, EXITED_WELL)], &bad, 2),
            (vec![ran(&["n2", "n3"], None, EXITED_WELL)], &verdicts(Outcome::Pass), 2),
            (
                vec![ran(&["n2", "n3"], None, EXITED_WELL)],
                &found("n1", Outcome::Degraded, LocusKind::Rail),
                2,
            ),
            (
                vec![ran(&["n2", "n3"], None, EXITED_WELL)],
                &found("n1", Outcome::Failed, LocusKind::Pair),
                2,
            ),
        ] {
            let gaps = find_gaps(&plan, &results, &[], verdicts);
            assert!(gaps.iter().all(|gap| gap.nodes == nodes[..left]), "{gaps:?} {results:?}");
            assert_eq!(gaps.len(), 2);
        }
    }

    #[test]
    fn a_gap_makes_a_pass_unknown_and_a_failure_stays() {
        let mut passed = verdicts(Outcome::Pass);
        apply_gaps(&mut passed, &Claims::default(), &[gap("n2")]);
        assert_eq!((passed.outcome, passed.nodes[0].outcome), (Outcome::Unknown, Outcome::Unknown));
        let mut failed = verdicts(Outcome::Failed);
        apply_gaps(&mut failed, &Claims::default(), &[gap("n2")]);
        assert_eq!((failed.outcome, failed.nodes[0].outcome), (Outcome::Failed, Outcome::Failed));
        assert_eq!(failed.nodes[0].reason, "as judged");
        assert_eq!(failed.unknown.len(), 1);
    }

    #[test]
    fn a_node_without_a_verdict_is_listed_as_unknown_and_in_order() {
        let mut verdicts = verdicts(Outcome::Pass);
        apply_gaps(&mut verdicts, &Claims::default(), &[gap("n1"), gap("n1")]);
        let nodes: Vec<(&str, Outcome)> =
            verdicts.nodes.iter().map(|v| (v.node.as_str(), v.outcome)).collect();
        assert_eq!(nodes, [("n1", Outcome::Unknown), ("n2", Outcome::Pass)]);
        assert_eq!(verdicts.unknown.len(), 1);
    }

    #[test]
    fn a_further_reading_is_a_gap_only_if_it_was_needed_and_hung() {
        let plan = fixture::plan(&[0, 1]);
        let mut results: Vec<RawResult> = [(0, 0), (0, 1), (1, 0), (1, 1)]
            .map(|(step, reading)| fixture::result(step, reading, EXITED_WELL))
            .into();
        assert_eq!(find_gaps(&plan, &results, &[], &verdicts(Outcome::Pass)), []);
        results.push(fixture::result(1, 2, ProcessEnding::TimedOut));
        let [gap] =
            find_gaps(&plan, &results, &[], &verdicts(Outcome::Pass)).try_into().expect("one gap");
        assert_eq!(
            (gap.subject.to_string().as_str(), gap.nodes),
            ("p on n1, reading 3", vec!["n1".into()])
        );
        results.pop();
        results.pop();
        let why: Vec<String> = find_gaps(&plan, &results, &[], &verdicts(Outcome::Pass))
            .into_iter()
            .map(|gap| gap.why)
            .collect();
        assert_eq!(why, ["not run: the run ended before"]);
    }

    #[test]
    fn without_gaps_nothing_changes() {
        let mut passed = verdicts(Outcome::Pass);
        apply_gaps(&mut passed, &Claims::default(), &[]);
        assert_eq!(passed, verdicts(Outcome::Pass));
    }
}
