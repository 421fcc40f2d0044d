//! Network pairs without a number: finds the unreachable node.
//!
//! One failed pair does not blame its ends: it is a finding about the pair, of outcome unknown, and
//! a suspicion. A node that several partners do not reach, while they reach each other, has failed
//! on that rail. Wrong data is an immediate finding about the pair.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::new_finding;
use super::finding_set::FindingSet;
use super::pair_failures;
use super::pair_failures::FailurePairs;
use super::rail_readings::{PairFailure, RailReadings, order_pair};
use model::finding_class::FindingClass;
use model::finding_rule::RuleKind;
use model::id::NodeName;
use model::parse_output::OutputProblemKind;
use model::verdict::{Finding, Locus, LocusKind, Outcome};

/// Judges the failures of a rail. `through` holds the nodes that reached another over any rail;
/// `at` makes a locus at a node of it.
pub(super) fn judge(
    rail: &RailReadings<'_>,
    through: &BTreeSet<NodeName>,
    at: impl Fn(LocusKind, &NodeName, &RailReadings<'_>) -> Locus,
    ledger: &mut FindingSet,
) {
    let good: FailurePairs<usize> =
        rail.readings.iter().map(|r| order_pair(r.src, r.dst)).collect();
    let lost = |f: &&PairFailure<'_>| {
        f.kind != OutputProblemKind::Corrupt && !good.contains(&order_pair(f.ends.0, f.ends.1))
    };
    let failed: FailurePairs<usize> =
        rail.failures.iter().filter(lost).map(|f| order_pair(f.ends.0, f.ends.1)).collect();
    // A truncated output names no rail: its nodes appear on the others.
    let elsewhere: BTreeSet<usize> = match rail.name {
        Some(_) => BTreeSet::new(),
        None => (0..rail.nodes.len()).filter(|end| through.contains(&rail.nodes[*end])).collect(),
    };
    let at_fault = pair_failures::attribute(&good, &failed, &elsewhere);
    // One node's outputs may have numbers and a problem, with each of its partners.
    let with_problem = rail.failures.iter().filter(|f| f.kind != OutputProblemKind::Corrupt);
    let with_problem: FailurePairs<usize> =
        with_problem.map(|f| order_pair(f.ends.0, f.ends.1)).collect();
    let doubted = pair_failures::attribute(&good, &with_problem, &elsewhere);
    let mut of_end: BTreeMap<usize, Vec<&PairFailure<'_>>> = BTreeMap::new();
    for failure in rail.failures.iter().filter(lost) {
        let ends = BTreeSet::from([failure.ends.0, failure.ends.1]);
        ends.into_iter().for_each(|end| of_end.entry(end).or_default().push(failure));
    }
    for end in &at_fault {
        let node = &rail.nodes[*end];
        let mine: Vec<&PairFailure<'_>> =
            of_end[end].iter().copied().filter(|f| f.unreached).collect();
        // Any other problem concerns this run only.
        if mine.len() * 2 <= of_end[end].len() {
            continue;
        }
        let partners: BTreeSet<usize> =
            mine.iter().map(|f| if f.ends.0 == *end { f.ends.1 } else { f.ends.0 }).collect();
        let summary = format!(
            "{node} is not reached{} by {} partners that reach others: {}",
            rail.sentence_suffix(),
            partners.len(),
            mine[0].what
        );
        let rule = RuleKind::Reach.with_terms(
            "nearly all pairs with this node have no connection, and its partners have others",
        );
        let mut found = new_finding(
            Outcome::Failed,
            FindingClass::NicUnreachable,
            at(LocusKind::Rail, node, rail),
            rule,
        )
        .with_summary(summary);
        for failure in mine.iter().take(6) {
            found = found.with_evidence(failure.file, failure.testcase, failure.what.clone());
        }
        ledger.add(found);
    }
    // If most pairs fail, the rail or the tool is the cause, not one of its pairs.
    let works = failed.len() * 2 < failed.union(&good).count();
    for failure in &rail.failures {
        let (a, b) = failure.ends;
        if failure.kind == OutputProblemKind::Corrupt {
            let (from, to) = (&rail.nodes[a], &rail.nodes[b]);
            let locus = Locus { peer: Some(to.to_string()), ..at(LocusKind::Pair, from, rail) };
            let summary = format!("{from} and {to}{}: {}", rail.sentence_suffix(), failure.what);
            let rule = RuleKind::Data.with_terms("the received data differs from the sent data");
            let found = new_finding(Outcome::Failed, FindingClass::DataCorruption, locus, rule)
                .with_summary(summary);
            ledger.add(found.with_evidence(failure.file, failure.testcase, failure.what.clone()));
            continue;
        }
        let test = failure.testcase.map_or(String::new(), |t| format!("{t} "));
        let explains = |end: &usize| at_fault.contains(end) || doubted.contains(end);
        let explained = explains(&a) || explains(&b);
        if lost(&failure) && failure.unreached && !explained && works {
            ledger.add(unreached_finding(failure, (&rail.nodes[a], &rail.nodes[b]), rail, &at));
            continue;
        }
        for (end, other) in [(a, b), (b, a)] {
            // A node that fails with nearly all its partners explains their failures.
            if explains(&end) || !explained {
                let with = &rail.nodes[other];
                let advice = match failure.unreached {
                    true => "; either may be the cause: run each with another partner",
                    false => "",
                };
                let why = format!(
                    "{test}with {with}{} in {}: {}{advice}",
                    rail.sentence_suffix(),
                    failure.file,
                    failure.what
                );
                ledger.add_doubt(&rail.nodes[end], why);
            }
        }
    }
}

/// A pair without a connection on a working rail: either end, or the path, may be the cause.
fn unreached_finding(
    failure: &PairFailure<'_>,
    (a, b): (&NodeName, &NodeName),
    rail: &RailReadings<'_>,
    at: &impl Fn(LocusKind, &NodeName, &RailReadings<'_>) -> Locus,
) -> Finding {
    let (a, b) = if b < a { (b, a) } else { (a, b) };
    let locus = Locus { peer: Some(b.to_string()), ..at(LocusKind::Pair, a, rail) };
    let rule = RuleKind::Suspicion.with_terms(
        "a pair without a connection blames neither end; run each with another partner",
    );
    let summary = format!(
        "{a} and {b} have no connection{}: {}; the cause, one of them or the path, is unknown: run \
         each with another partner",
        rail.sentence_suffix(),
        failure.what
    );
    let found = new_finding(Outcome::Unknown, FindingClass::NicUnreachable, locus, rule)
        .with_summary(summary);
    found.with_evidence(failure.file, failure.testcase, failure.what.clone())
}

#[cfg(test)]
mod tests {
    use super::super::fabric_group::PairReading;
    use super::*;

    /// One or two nodes have malformed outputs with each of their partners: only these nodes become
    /// unknown, with and without numbers in the outputs.
    #[test]
    fn malformed_outputs_with_each_partner_leave_the_partners_known() {
        for malformed in [BTreeSet::from([3]), BTreeSet::from([3, 6])] {
            for has_numbers in [true, false] {
                let mut rail = RailReadings::default();
                rail.nodes = (0..8).map(|n| format!("n{n}").into()).collect();
                for (src, dst) in (0..8).flat_map(|a| (a + 1..8).map(move |b| (a, b))) {
                    let is_bad = malformed.contains(&src) || malformed.contains(&dst);
                    if has_numbers || !is_bad {
                        rail.readings.push(PairReading { src, dst, group: 0, value: 49.0 });
                    }
                    if is_bad {
                        let what = "a row does not fit its header".to_owned();
                        let kind = OutputProblemKind::Unrecognised;
                        let (ends, testcase) = ((src, dst), None);
                        let file = "ib.txt";
                        let failure =
                            PairFailure { ends, file, kind, testcase, what, unreached: false };
                        rail.failures.push(failure);
                    }
                }
                let mut ledger = FindingSet::default();
                judge(&rail, &BTreeSet::new(), |kind, _, _| Locus::new(kind), &mut ledger);
                let wanted: BTreeSet<NodeName> =
                    malformed.iter().map(|n| rail.nodes[*n].clone()).collect();
                let doubted: BTreeSet<NodeName> = ledger.doubts.keys().cloned().collect();
                assert_eq!(doubted, wanted, "numbers: {has_numbers}");
            }
        }
    }
}
