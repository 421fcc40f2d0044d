//! The second look: suspects are measured with cleared partners, and what is not
//! seen again is not held against them.

use std::collections::BTreeSet;

use super::bench::Bench;
use super::bench::loci;
use super::bench::outcome_of;
use super::bench::share;
use super::network::Lab;
use super::network::all;
use super::network::host;
use super::network::matching;
use crate::judge::Judgement;
use crate::judge::confirm;
use crate::judge::confirm::Suspect;
use crate::judge::finding::finding;
use crate::model::id::NodeName;
use crate::model::recording::Recording;
use crate::model::verdict::Finding;
use crate::model::verdict::Locus;
use crate::model::verdict::LocusKind;
use crate::model::verdict::Outcome;
use crate::model::verdict::Verdicts;
use crate::plan::CONFIRM_STAGE as STAGE;

/// Three cleared partners for every suspect node, as pairs of numbers.
fn partners(suspects: &[Suspect], cleared: &BTreeSet<NodeName>) -> Vec<(u32, u32)> {
    let number = |node: &NodeName| -> u32 {
        let digits: String = node.as_str().chars().filter(char::is_ascii_digit).collect();
        digits.parse().expect("a number")
    };
    let nodes: BTreeSet<u32> = suspects
        .iter()
        .flat_map(|s| [Some(&s.node), s.peer.as_ref()])
        .flatten()
        .map(number)
        .collect();
    let good: Vec<u32> = cleared.iter().map(number).collect();
    let pairs = nodes.iter().enumerate().flat_map(|(at, node)| {
        let of = |k: usize| good[(at + k) % good.len()];
        [(*node, of(0)), (*node, of(1)), (of(2), *node)]
    });
    pairs.collect()
}

/// The words of a verdict: outcome, class, locus, whether confirmed.
fn words(verdicts: &Verdicts) -> Vec<String> {
    let word = |f: &Finding| {
        let sure = if f.confirmed { "" } else { " ?" };
        format!("{} {} {}{sure}", f.outcome, f.class, f.locus)
    };
    verdicts.findings.iter().map(word).collect()
}

fn outcome(verdicts: &Verdicts, node: &str) -> Outcome {
    verdicts.nodes.iter().find(|n| n.node.as_str() == node).expect("judged").outcome
}

/// Looks at the suspects of `first` again, in a lab as it is by then.
fn look_again(lab: &mut Lab, first: &Judgement, before: &[Recording]) -> Verdicts {
    let suspects = confirm::suspects(first);
    let cleared = confirm::cleared(first, before);
    let mut recordings = before.to_vec();
    for (a, b) in partners(&suspects, &cleared) {
        recordings.push(lab.pair(a, b, STAGE));
    }
    let second = lab.judge(&lab.claims(), &confirm::second_case(&recordings, &suspects));
    let again: Vec<&Recording> = recordings.iter().filter(|r| r.stage == Some(STAGE)).collect();
    confirm::confirm(&first.verdicts, &second.verdicts, &again)
}

fn slow(at: u32) -> f64 {
    match at {
        2 => 0.5,
        5 => 17.0 / 18.0,
        _ => 1.0,
    }
}

#[test]
fn a_matching_and_three_cleared_partners_name_the_slow_hosts() {
    for seed in 0..20 {
        let mut lab = Lab::new(|a, b| slow(a).min(slow(b))).noise(0.01, 5, seed);
        let before = lab.measure(&matching(8));
        let first = lab.judge(&lab.claims(), &before);
        let suspects = confirm::suspects(&first);
        let pairs: Vec<(NodeName, Option<NodeName>)> =
            suspects.iter().map(|s| (s.node.clone(), s.peer.clone())).collect();
        assert_eq!(pairs, [(host(2), Some(host(3))), (host(4), Some(host(5)))], "seed {seed}");
        assert!(suspects.iter().all(|s| s.network && !s.files.is_empty()));
        let cleared = confirm::cleared(&first, &before);
        assert_eq!(cleared, [0, 1, 6, 7].map(host).into());

        let verdicts = look_again(&mut lab, &first, &before);
        let expected = ["degraded nic-low rail host2", "degraded nic-low rail host5"];
        assert_eq!(words(&verdicts), expected, "seed {seed}");
        for at in 0..8 {
            let wanted = if at == 2 || at == 5 { Outcome::Degraded } else { Outcome::Pass };
            assert_eq!(outcome(&verdicts, host(at).as_str()), wanted, "seed {seed}, host{at}");
        }
        assert!(verdicts.unknown.is_empty(), "{:?}", verdicts.unknown);
    }
}

#[test]
fn what_is_not_seen_again_is_unknown_and_says_by_how_many() {
    let mut lab = Lab::new(|a, b| slow(a).min(slow(b)));
    let before = lab.measure(&all(8));
    let first = lab.judge(&lab.claims(), &before);
    assert_eq!(loci(&first), ["degraded nic-low rail host2", "degraded nic-low rail host5"]);
    let mut later = Lab::new(|a, b| if a == 5 || b == 5 { 17.0 / 18.0 } else { 1.0 });
    let verdicts = look_again(&mut later, &first, &before);
    assert_eq!(words(&verdicts), ["degraded nic-low rail host5", "unknown nic-low rail host2 ?"]);
    assert_eq!(verdicts.findings[1].rule, "not confirmed by 3 partners");
    assert_eq!(outcome(&verdicts, "host2"), Outcome::Unknown);
    let reason = &verdicts.nodes.iter().find(|n| n.node == host(2)).expect("judged").reason;
    assert!(reason.starts_with("not confirmed by 3 partners"), "{reason}");
    assert!(verdicts.unknown.iter().any(|u| u.what == "node host2"));
    assert_eq!(outcome(&verdicts, "host0"), Outcome::Pass);
}

#[test]
fn a_slow_path_stays_a_path_when_its_ends_are_fine_with_others() {
    let path = |a: u32, b: u32| if (a.min(b), a.max(b)) == (0, 7) { 0.6 } else { 1.0 };
    let mut lab = Lab::new(path);
    let before = lab.measure(&all(8));
    let first = lab.judge(&lab.claims(), &before);
    let verdicts = look_again(&mut lab, &first, &before);
    assert_eq!(words(&verdicts), ["degraded path-low pair host0 - host7 ?"]);
    assert!(verdicts.findings[0].summary.contains("other partners"));

    // Measured together again: it is there, or it is not.
    let suspects = confirm::suspects(&first);
    for (late, expected) in [
        (path as fn(u32, u32) -> f64, "degraded path-low pair host0 - host7"),
        (|_, _| 1.0, "unknown path-low pair host0 - host7 ?"),
    ] {
        let mut later = Lab::new(late);
        let mut recordings = before.clone();
        for (a, b) in [(0, 7), (0, 1), (0, 2), (7, 3), (7, 4)] {
            recordings.push(later.pair(a, b, STAGE));
        }
        let second = later.judge(&later.claims(), &confirm::second_case(&recordings, &suspects));
        let again: Vec<&Recording> = recordings.iter().filter(|r| r.stage == Some(STAGE)).collect();
        let verdicts = confirm::confirm(&first.verdicts, &second.verdicts, &again);
        assert_eq!(words(&verdicts), [expected]);
        assert_eq!(outcome(&verdicts, "host0"), Outcome::Unknown);
        assert_eq!(outcome(&verdicts, "host1"), Outcome::Pass);
    }
}

#[test]
fn a_pair_that_loses_packets_one_way_is_found_beside_slow_hosts() {
    // A shaper is so steady that most rates are the same to the last byte.
    for (sigma, seed) in [(0.0, 0), (0.005, 1), (0.005, 2), (0.01, 3)] {
        for lossy in [0.05, 0.5, 0.7] {
            let share = move |a: u32, b: u32| {
                slow(a).min(slow(b)) * if (a, b) == (0, 4) { lossy } else { 1.0 }
            };
            let mut lab = Lab::new(share).noise(sigma, 3, seed);
            let before = lab.measure(&all(8));
            let first = lab.judge(&lab.claims(), &before);
            let expected = [
                "degraded path-low pair host0 - host4 tx",
                "degraded nic-low rail host2",
                "degraded nic-low rail host5",
            ];
            assert_eq!(loci(&first), expected, "{sigma}, {lossy}");
            let suspects = confirm::suspects(&first);
            let mut recordings = before.clone();
            let again = [(2, 1), (2, 3), (2, 6), (5, 1), (5, 3), (5, 7)];
            // Each end with two cleared partners, and both together again.
            let pair = [(0, 1), (0, 3), (4, 6), (4, 7), (0, 4)];
            for (a, b) in again.into_iter().chain(pair) {
                recordings.push(lab.pair(a, b, STAGE));
            }
            let second = lab.judge(&lab.claims(), &confirm::second_case(&recordings, &suspects));
            let again: Vec<&Recording> =
                recordings.iter().filter(|r| r.stage == Some(STAGE)).collect();
            let verdicts = confirm::confirm(&first.verdicts, &second.verdicts, &again);
            assert_eq!(words(&verdicts), expected, "{sigma}, {lossy}");
            assert_eq!(outcome(&verdicts, "host0"), Outcome::Unknown);
            assert_eq!(outcome(&verdicts, "host1"), Outcome::Pass);
        }
    }
}

#[test]
fn findings_that_partners_cannot_show_stay_as_they_are() {
    let mut lab = Lab::new(|_, _| 0.5);
    let before = lab.measure(&all(8));
    let first = lab.judge(&lab.claims(), &before);
    assert_eq!(loci(&first), ["degraded network-low domain lab"]);
    assert_eq!(confirm::suspects(&first), []);
    let verdicts = look_again(&mut lab, &first, &before);
    assert_eq!(verdicts, first.verdicts);
}

/// A rack looked at twice: as it was, and as it is when the suspects are
/// measured with three partners each.
fn rack(
    was: impl Fn((u32, u32), (u32, u32)) -> f64 + 'static,
    is: impl Fn((u32, u32), (u32, u32)) -> f64 + 'static,
) -> (Judgement, Verdicts) {
    let mut bench = Bench::rack().capacity(move |s, d| Some(was(s, d)));
    let before = bench.record();
    let first = bench.judge_these(&before);
    let suspects = confirm::suspects(&first);
    let cleared = confirm::cleared(&first, &before);
    let mut later = Bench::rack().capacity(move |s, d| Some(is(s, d)));
    let mut recordings = before;
    for (a, b) in partners(&suspects, &cleared) {
        // Nodes count from 1 in their names.
        let mut recording = later.of_two(a - 1, b - 1);
        recording.stage = Some(STAGE);
        recordings.push(recording);
    }
    let case = confirm::second_case(&recordings, &suspects);
    let second = later.judge_sampled(&later.claims(), &case, true);
    let again: Vec<&Recording> = recordings.iter().filter(|r| r.stage == Some(STAGE)).collect();
    let verdicts = confirm::confirm(&first.verdicts, &second.verdicts, &again);
    (first, verdicts)
}

#[test]
fn a_lost_link_is_confirmed_by_three_partners_and_a_passing_one_is_not() {
    let bad = (6, 1);
    let lost = move |s, d| if s == bad || d == bad { share(1) } else { 1.0 };
    let (first, verdicts) = rack(lost, lost);
    assert!(!first.verdicts.findings[0].confirmed);
    assert_eq!(words(&verdicts), ["degraded nvlink-low gpu node0007:1"]);
    assert_eq!(outcome(&verdicts, "node0007"), Outcome::Degraded);
    assert_eq!(outcome_of(&first, "node0008"), Outcome::Pass);

    let (_, verdicts) = rack(lost, |_, _| 1.0);
    assert_eq!(words(&verdicts), ["unknown nvlink-low gpu node0007:1 ?"]);
    assert_eq!(verdicts.findings[0].rule, "not confirmed by 3 partners");
    assert_eq!(outcome(&verdicts, "node0007"), Outcome::Unknown);
    assert_eq!(verdicts.outcome, Outcome::Unknown);
}

#[test]
fn a_node_of_another_domain_is_confirmed_from_runs_of_two_alone() {
    let foreign = |s: (u32, u32), d: (u32, u32)| {
        if (s.0 == 8) != (d.0 == 8) { 0.065 } else { 1.0 }
    };
    let (first, verdicts) = rack(foreign, foreign);
    assert_eq!(loci(&first), ["failed wrong-domain node node0009"]);
    assert_eq!(words(&verdicts), ["failed wrong-domain node node0009"]);
}

#[test]
fn a_plane_and_a_split_domain_are_no_suspects() {
    for was in [(|_, _| share(1)) as fn((u32, u32), (u32, u32)) -> f64, |s, d| {
        if (s.0 < 9) == (d.0 < 9) { 1.0 } else { 0.065 }
    }] {
        let (first, verdicts) = rack(was, |_, _| 1.0);
        assert_eq!(confirm::suspects(&first), []);
        assert_eq!(verdicts.findings, first.verdicts.findings);
    }
}

#[test]
fn a_node_that_is_an_island_is_looked_at_again_alone() {
    let mut bench = Bench::hgx(3)
        .capacity(|s, d| Some(if s.0 == 1 && (s.1 == 5 || d.1 == 5) { share(1) } else { 1.0 }));
    let before = bench.record();
    let first = bench.judge_these(&before);
    for (is, expected) in [
        (share(1), "degraded nvlink-low gpu node0002:5"),
        (1.0, "unknown nvlink-low gpu node0002:5 ?"),
    ] {
        let mut later = Bench::hgx(3)
            .capacity(move |s, d| Some(if s.0 == 1 && (s.1 == 5 || d.1 == 5) { is } else { 1.0 }));
        let mut recordings = before.clone();
        recordings.extend(later.record().into_iter().filter(|r| r.file.contains("node0002")).map(
            |mut recording| {
                recording.stage = Some(STAGE);
                recording
            },
        ));
        let case = confirm::second_case(&recordings, &confirm::suspects(&first));
        let second = later.judge_sampled(&later.claims(), &case, true);
        let again: Vec<&Recording> = recordings.iter().filter(|r| r.stage == Some(STAGE)).collect();
        let verdicts = confirm::confirm(&first.verdicts, &second.verdicts, &again);
        assert_eq!(words(&verdicts), [expected]);
    }
}

#[test]
fn a_day_on_which_all_are_suspected_costs_each_of_them_as_much_as_a_small_one() {
    /// How much was held against each other for each host, all of them suspected.
    fn looked(hosts: u32) -> usize {
        let mut lab = Lab::new(|_, _| 0.5);
        lab.hosts = hosts;
        let before = lab.measure(&matching(hosts));
        let mut first = lab.judge(&lab.claims(), &before).verdicts;
        let low = |at: u32| {
            let locus = Locus { node: Some(host(at)), ..Locus::of(LocusKind::Rail) };
            Finding { ratio: Some(0.5), ..finding(Outcome::Degraded, "nic-low", locus, "") }
        };
        first.findings = (0..hosts).map(low).collect();
        // A tenth of them is seen again.
        let mut second = first.clone();
        second
            .findings
            .retain(|it| it.locus.node.as_ref().is_some_and(|n| n.as_str().ends_with('1')));
        let again: Vec<Recording> =
            (0..hosts).map(|at| lab.pair(at, (at + 1) % hosts, STAGE)).collect();
        let again: Vec<&Recording> = again.iter().collect();
        confirm::LOOKED.set(0);
        let last = confirm::confirm(&first, &second, &again);
        assert_eq!(last.findings.iter().filter(|it| it.confirmed).count(), second.findings.len());
        confirm::LOOKED.get().div_ceil(hosts as usize)
    }
    assert_eq!(looked(40), looked(400));
}
