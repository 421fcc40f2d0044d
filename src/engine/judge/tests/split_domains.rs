//! Domains in parts: parts that read low with each other, and parts that were never measured
//! together.

use super::test_machine::{TestMachine, loci, outcome_of, share, unknown_nodes};
use crate::judge::Judgement;
use model::verdict::Outcome;

/// The rate of another path than NVLink.
const OTHER: f64 = 0.065;

/// A rack whose two sides do not reach each other; some GPUs have lost three links.
fn cut(
    is_here: impl Fn(u32) -> bool + 'static,
    bad: &'static [(u32, u32)],
    between: Option<f64>,
) -> Judgement {
    TestMachine::rack()
        .noise(0.003, 0.0, 3)
        .capacity(move |s, d| {
            let inside = if [s, d].iter().any(|e| bad.contains(e)) { share(3) } else { 1.0 };
            if is_here(s.0) == is_here(d.0) { Some(inside) } else { between }
        })
        .judge()
}

#[test]
fn every_part_of_a_split_domain_is_judged_by_its_own_level() {
    // By order of names, and mixed.
    for is_here in [|at: u32| at < 9, |at: u32| at.is_multiple_of(2)] {
        let judged = cut(is_here, &[(3, 1), (14, 2)], Some(OTHER));
        let expected = [
            "failed split-domain domain block01",
            "degraded nvlink-low gpu node0004:1",
            "degraded nvlink-low gpu node0015:2",
        ];
        assert_eq!(loci(&judged), expected);
        assert!(judged.verdicts.nodes.iter().all(|n| Outcome::Unknown <= n.outcome));
        assert_eq!(outcome_of(&judged, "node0015"), Outcome::Degraded);
        assert_eq!(outcome_of(&judged, "node0016"), Outcome::Unknown);
    }
}

#[test]
fn a_small_majority_of_a_sample_does_not_pass_as_the_domain() {
    // Every composition of a sample of a split domain: measured nodes of one part, of the other,
    // and nodes that took no part.
    for (here, there, left_out) in (2..7).flat_map(|here| {
        (2..=here).flat_map(move |there| (0..12).map(move |left_out| (here, there, left_out)))
    }) {
        let mut bench = TestMachine::rack()
            .with_nodes(here + there)
            .capacity(move |s, d| Some(if (s.0 < here) == (d.0 < here) { 1.0 } else { OTHER }));
        let mut claims = bench.claims();
        let others = (0..left_out).map(|at| TestMachine::node(50 + at)).collect();
        claims.left_out.insert(claims.domains[0].name.clone(), others);
        let recordings = bench.record();
        let judged = bench.judge_claims(&claims, &recordings);
        let passes = outcome_of(&judged, "node0001") == Outcome::Pass;
        // All that took no part may be of the other part.
        let may_be_less = here <= there + left_out;
        let is_close = here < 3 * there;
        assert_eq!(passes, !(may_be_less && is_close), "{here} {there} {left_out}");
        let last = TestMachine::node(here + there - 1);
        assert_ne!(outcome_of(&judged, last.as_str()), Outcome::Pass);
    }
}

#[test]
fn nodes_outside_of_the_domain_are_judged_among_themselves() {
    let judged = cut(|at| at < 12, &[(14, 2)], Some(OTHER));
    let mut expected: Vec<String> =
        (12..18).map(|at| format!("failed wrong-domain node {}", TestMachine::node(at))).collect();
    expected.push("degraded nvlink-low gpu node0015:2".to_owned());
    assert_eq!(loci(&judged), expected);
    assert_eq!(outcome_of(&judged, "node0001"), Outcome::Pass);
    // A single node measures its own links.
    let judged = cut(|at| at != 7, &[(7, 3)], Some(OTHER));
    let expected = ["failed wrong-domain node node0008", "degraded nvlink-low gpu node0008:3"];
    assert_eq!(loci(&judged), expected);
    assert_eq!(outcome_of(&judged, "node0001"), Outcome::Pass);
}

#[test]
fn nodes_that_do_not_reach_each_other_are_judged_separately() {
    let judged = TestMachine::rack()
        .capacity(|s, d| {
            let lost = s == (5, 2) || d == (5, 2);
            Some(if s.0 != d.0 {
                OTHER
            } else if lost {
                share(3)
            } else {
                1.0
            })
        })
        .judge();
    let expected =
        ["failed multi-node-nvlink-off domain block01", "degraded nvlink-low gpu node0006:2"];
    assert_eq!(loci(&judged), expected);
}

#[test]
fn a_part_that_is_low_as_a_whole_does_not_affect_the_others() {
    let judged = TestMachine::rack()
        .capacity(|s, d| {
            let inside = if s.0 < 12 { 1.0 } else { share(1) };
            Some(if (s.0 < 12) == (d.0 < 12) { inside } else { OTHER })
        })
        .judge();
    assert!(judged.verdicts.findings.iter().all(|f| f.class.as_str() == "wrong-domain"));
    assert_eq!(outcome_of(&judged, "node0001"), Outcome::Pass);
    let notes = &judged.verdicts.notes;
    assert!(notes.iter().any(|note| note.contains("5.6 % low")), "{notes:?}");
}

#[test]
fn parts_never_measured_together_are_a_split_in_any_order_of_names() {
    for is_here in [|at: u32| at < 9, |at: u32| 9 <= at, |at: u32| at.is_multiple_of(2)] {
        let judged = cut(is_here, &[], None);
        assert_eq!(loci(&judged), Vec::<String>::new());
        assert_eq!(unknown_nodes(&judged).len(), 18);
        let reason = &judged.verdicts.nodes[0].reason;
        assert!(reason.contains("never between them"), "{reason}");
    }
    // No part holds most of the nodes.
    let three = TestMachine::rack().capacity(|s, d| (s.0 / 6 == d.0 / 6).then_some(1.0)).judge();
    assert_eq!(unknown_nodes(&three).len(), 18);
    // One does: the gap is attributed to as few as possible.
    for is_here in [|at: u32| at < 12, |at: u32| 6 <= at] {
        let judged = cut(is_here, &[], None);
        let expected: Vec<String> = (0..18)
            .filter(|at| is_here(*at) != is_here(8))
            .map(|at| TestMachine::node(at).as_str().to_owned())
            .collect();
        assert_eq!(unknown_nodes(&judged), expected);
    }
}

#[test]
fn a_fault_in_a_part_never_measured_with_the_others_is_found() {
    let judged = cut(|at| at < 9, &[(14, 2)], None);
    assert_eq!(loci(&judged), ["degraded nvlink-low gpu node0015:2"]);
    assert_eq!(unknown_nodes(&judged).len(), 17);
}

#[test]
fn two_gpus_with_equally_many_gaps_are_both_in_doubt() {
    // Two GPUs, each measured with half of the others.
    let (a, b) = ((3, 2), (12, 1));
    let judged = TestMachine::rack()
        .capacity(move |s, d| {
            let far = |end: (u32, u32), other: (u32, u32)| {
                (end == a && other.0.is_multiple_of(2)) || (end == b && !other.0.is_multiple_of(2))
            };
            (!far(s, d) && !far(d, s)).then_some(1.0)
        })
        .judge();
    assert_eq!(unknown_nodes(&judged), ["node0004", "node0013"]);
}
