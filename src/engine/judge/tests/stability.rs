//! Spread and trend over the network and of whole fleets: an unstable or drifting part is not slow,
//! and scatter everywhere belongs to no part.

use super::network::{TestNetwork, all, judged, matching};
use super::test_machine::{TestMachine, loci, outcome_of};
use crate::judge::Judgement;
use model::verdict::Outcome;

/// A lab in which this function scales each reading of a pair.
fn lab(moment: impl Fn(u32, u32, u32) -> f64 + 'static, seed: u64) -> TestNetwork {
    let mut lab = TestNetwork::new(|_, _| 1.0).noise(0.004, 5, seed);
    lab.moment = Box::new(moment);
    lab
}

fn is(a: u32, b: u32, pair: (u32, u32)) -> bool {
    (a.min(b), a.max(b)) == pair
}

fn summary(judged: &Judgement) -> &str {
    &judged.verdicts.findings[0].summary
}

#[test]
fn a_path_that_falls_drifts_and_is_not_slow() {
    for seed in 0..20 {
        for pairs in [all(8), matching(8)] {
            let falls = |a, b, at| if is(a, b, (2, 3)) { 1.0 - 0.03 * f64::from(at) } else { 1.0 };
            let judged = judged(lab(falls, seed), &pairs);
            assert_eq!(loci(&judged), ["unknown drifting pair host2 - host3"], "seed {seed}");
            assert!(summary(&judged).contains("take more readings"), "{}", summary(&judged));
            assert_eq!(outcome_of(&judged, "host2"), Outcome::Unknown);
            assert_eq!(outcome_of(&judged, "host4"), Outcome::Pass);
        }
    }
}

#[test]
fn an_end_whose_paths_all_scatter_is_unstable_and_its_partners_are_not() {
    for seed in 0..20 {
        // Every other reading of host 5 is low, with all partners.
        let jumps = |a, b, at| if (a == 5 || b == 5) && at % 2 == 1 { 0.8 } else { 1.0 };
        let judged = judged(lab(jumps, seed), &all(8));
        assert_eq!(loci(&judged), ["unknown unstable rail host5"], "seed {seed}");
        assert!(summary(&judged).contains("spread, not level"), "{}", summary(&judged));
        assert_eq!(outcome_of(&judged, "host5"), Outcome::Unknown);
        assert_eq!(outcome_of(&judged, "host4"), Outcome::Pass, "{:?}", judged.verdicts.nodes);
    }
}

#[test]
fn one_dip_is_neither_drift_nor_scatter() {
    for seed in 0..20 {
        for when in 0..5 {
            let dips = move |a, b, at| if (a, b, at) == (2, 3, when) { 0.7 } else { 1.0 };
            let judged = judged(lab(dips, seed), &matching(8));
            assert_eq!(loci(&judged), Vec::<String>::new(), "seed {seed}, reading {when}");
        }
    }
}

#[test]
fn a_part_that_is_slow_from_the_first_reading_on_is_reported_as_such() {
    let slow = |a, b, _| if a == 3 || b == 3 { 0.7 } else { 1.0 };
    let slow = judged(lab(slow, 1), &all(8));
    assert_eq!(loci(&slow), ["degraded nic-low rail host3"]);
    assert!(summary(&slow).ends_with("it was so from the first reading on"), "{}", summary(&slow));
    let bench = TestMachine::hgx(1).readings(3);
    let judged = bench.capacity(|s, d| Some(if s.1 == 2 || d.1 == 2 { 0.9 } else { 1.0 })).judge();
    assert!(
        summary(&judged).ends_with("it was so from the first reading on"),
        "{}",
        summary(&judged)
    );
}

#[test]
fn readings_that_scatter_everywhere_blame_no_part() {
    let judged = judged(TestNetwork::new(|_, _| 1.0).noise(0.08, 5, 3), &all(8));
    assert_eq!(loci(&judged), ["unknown noisy-everywhere instrument"]);
    assert!(summary(&judged).contains("measure one pair"), "{}", summary(&judged));
    // All nodes of a fleet alike: one finding, and it blames no node.
    let judged = TestMachine::hgx(4).readings(5).noise(0.05, 0.0, 4).judge();
    assert_eq!(loci(&judged), ["unknown noisy-everywhere instrument - hgx"]);
    assert!(judged.verdicts.nodes.iter().all(|n| n.outcome <= Outcome::Unknown));
    // A quiet fleet has no such finding, at the noise level of the study.
    for sigma in [0.001, 0.01, 0.02] {
        let judged = TestMachine::hgx(4).readings(5).noise(sigma, 0.005, 4).judge();
        assert_eq!(loci(&judged), Vec::<String>::new(), "{sigma}");
    }
}
