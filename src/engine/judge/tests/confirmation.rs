//! The second measurement: suspects are measured with cleared partners, and a finding that is not
//! confirmed no longer counts against them.

use std::collections::BTreeSet;

use super::network::{TestNetwork, all, host, matching};
use super::test_machine::{TestMachine, loci, outcome_of, share};
use crate::judge::confirm::ConfirmSuspect;
use crate::judge::finding::new_finding;
use crate::judge::{Judgement, confirm};
use model::finding_class::FindingClass;
use model::finding_rule::{FindingRule, RuleKind};
use model::id::NodeName;
use model::tool_recording::{CONFIRM_STAGE as STAGE, ToolRecording};
use model::unknown_subject::UnknownSubject;
use model::verdict::{Finding, Locus, LocusKind, Outcome, Verdicts};

/// Three cleared partners for every suspect node, as pairs of numbers.
fn partners(suspects: &[ConfirmSuspect], cleared: &BTreeSet<NodeName>) -> Vec<(u32, u32)> {
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

/// Formats a verdict: outcome, class, locus, whether confirmed.
fn describe(verdicts: &Verdicts) -> Vec<String> {
    let describe_one = |f: &Finding| {
        let sure = if f.confirmed { "" } else { " ?" };
        format!("{} {} {}{sure}", f.outcome, f.class, f.locus)
    };
    verdicts.findings.iter().map(describe_one).collect()
}

fn outcome(verdicts: &Verdicts, node: &str) -> Outcome {
    verdicts.nodes.iter().find(|n| n.node.as_str() == node).expect("judged").outcome
}

/// Measures the suspects of `first` again, in the lab's current state.
fn measure_again(lab: &mut TestNetwork, first: &Judgement, before: &[ToolRecording]) -> Verdicts {
    let suspects = confirm::find_suspects(first);
    let cleared = confirm::find_cleared_nodes(first, before);
    let mut recordings = before.to_vec();
    for (a, b) in partners(&suspects, &cleared) {
        recordings.push(lab.pair(a, b, STAGE));
    }
    let second =
        lab.judge(&lab.claims(), &confirm::select_confirm_recordings(&recordings, &suspects));
    lab.confirm(first, &second.verdicts, &confirm_recordings(&recordings))
}

/// The readings of the second measurement.
fn confirm_recordings(recordings: &[ToolRecording]) -> Vec<ToolRecording> {
    recordings.iter().filter(|r| r.stage == Some(STAGE)).cloned().collect()
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
        let mut lab = TestNetwork::new(|a, b| slow(a).min(slow(b))).noise(0.01, 5, seed);
        let before = lab.measure(&matching(8));
        let first = lab.judge(&lab.claims(), &before);
        let suspects = confirm::find_suspects(&first);
        let pairs: Vec<(NodeName, Option<NodeName>)> =
            suspects.iter().map(|s| (s.node.clone(), s.peer.clone())).collect();
        assert_eq!(pairs, [(host(2), Some(host(3))), (host(4), Some(host(5)))], "seed {seed}");
        assert!(suspects.iter().all(|s| s.network && !s.files.is_empty()));
        let cleared = confirm::find_cleared_nodes(&first, &before);
        assert_eq!(cleared, [0, 1, 6, 7].map(host).into());

        let verdicts = measure_again(&mut lab, &first, &before);
        let expected = ["degraded nic-low rail host2", "degraded nic-low rail host5"];
        assert_eq!(describe(&verdicts), expected, "seed {seed}");
        for at in 0..8 {
            let wanted = if at == 2 || at == 5 { Outcome::Degraded } else { Outcome::Pass };
            assert_eq!(outcome(&verdicts, host(at).as_str()), wanted, "seed {seed}, host{at}");
        }
        assert!(verdicts.unknown.is_empty(), "{:?}", verdicts.unknown);
    }
}

#[test]
fn an_unconfirmed_finding_is_unknown_and_names_the_number_of_partners() {
    let mut lab = TestNetwork::new(|a, b| slow(a).min(slow(b)));
    let before = lab.measure(&all(8));
    let first = lab.judge(&lab.claims(), &before);
    assert_eq!(loci(&first), ["degraded nic-low rail host2", "degraded nic-low rail host5"]);
    let mut later = TestNetwork::new(|a, b| if a == 5 || b == 5 { 17.0 / 18.0 } else { 1.0 });
    let verdicts = measure_again(&mut later, &first, &before);
    assert_eq!(
        describe(&verdicts),
        ["degraded nic-low rail host5", "unknown nic-low rail host2 ?"]
    );
    assert_eq!(verdicts.findings[1].rule.to_string(), "not confirmed by 3 partners");
    assert_eq!(outcome(&verdicts, "host2"), Outcome::Unknown);
    let reason = &verdicts.nodes.iter().find(|n| n.node == host(2)).expect("judged").reason;
    assert!(reason.starts_with("not confirmed by 3 partners"), "{reason}");
    assert!(verdicts.unknown.iter().any(|u| u.what == UnknownSubject::Node("host2".into())));
    assert_eq!(outcome(&verdicts, "host0"), Outcome::Pass);
}

#[test]
fn a_slow_path_stays_a_path_if_its_ends_are_normal_with_others() {
    let path = |a: u32, b: u32| if (a.min(b), a.max(b)) == (0, 7) { 0.6 } else { 1.0 };
    let mut lab = TestNetwork::new(path);
    let before = lab.measure(&all(8));
    let first = lab.judge(&lab.claims(), &before);
    let verdicts = measure_again(&mut lab, &first, &before);
    assert_eq!(describe(&verdicts), ["degraded path-low pair host0 - host7 ?"]);
    assert!(verdicts.findings[0].summary.contains("other partners"));

    // Measured together again: the fault either persists or not.
    let suspects = confirm::find_suspects(&first);
    for (late, expected) in [
        (path as fn(u32, u32) -> f64, "degraded path-low pair host0 - host7"),
        (|_, _| 1.0, "unknown path-low pair host0 - host7 ?"),
    ] {
        let mut later = TestNetwork::new(late);
        let mut recordings = before.clone();
        for (a, b) in [(0, 7), (0, 1), (0, 2), (7, 3), (7, 4)] {
            recordings.push(later.pair(a, b, STAGE));
        }
        let second = later
            .judge(&later.claims(), &confirm::select_confirm_recordings(&recordings, &suspects));
        let verdicts = later.confirm(&first, &second.verdicts, &confirm_recordings(&recordings));
        assert_eq!(describe(&verdicts), [expected]);
        assert_eq!(outcome(&verdicts, "host0"), Outcome::Unknown);
        assert_eq!(outcome(&verdicts, "host1"), Outcome::Pass);
    }
}

#[test]
fn a_pair_that_loses_packets_one_way_is_found_among_slow_hosts() {
    // A shaper is so steady that most rates are equal to the last byte.
    for (sigma, seed) in [(0.0, 0), (0.005, 1), (0.005, 2), (0.01, 3)] {
        for lossy in [0.05, 0.5, 0.7] {
            let share = move |a: u32, b: u32| {
                slow(a).min(slow(b)) * if (a, b) == (0, 4) { lossy } else { 1.0 }
            };
            let mut lab = TestNetwork::new(share).noise(sigma, 3, seed);
            let before = lab.measure(&all(8));
            let first = lab.judge(&lab.claims(), &before);
            let expected = [
                "degraded path-low pair host0 - host4 tx",
                "degraded nic-low rail host2",
                "degraded nic-low rail host5",
            ];
            assert_eq!(loci(&first), expected, "{sigma}, {lossy}");
            let suspects = confirm::find_suspects(&first);
            let mut recordings = before.clone();
            let repeats = [(2, 1), (2, 3), (2, 6), (5, 1), (5, 3), (5, 7)];
            // Each end with two cleared partners, and both together again.
            let pair = [(0, 1), (0, 3), (4, 6), (4, 7), (0, 4)];
            for (a, b) in repeats.into_iter().chain(pair) {
                recordings.push(lab.pair(a, b, STAGE));
            }
            let second = lab
                .judge(&lab.claims(), &confirm::select_confirm_recordings(&recordings, &suspects));
            let verdicts = lab.confirm(&first, &second.verdicts, &confirm_recordings(&recordings));
            assert_eq!(describe(&verdicts), expected, "{sigma}, {lossy}");
            assert_eq!(outcome(&verdicts, "host0"), Outcome::Unknown);
            assert_eq!(outcome(&verdicts, "host1"), Outcome::Pass);
        }
    }
}

#[test]
fn findings_that_partners_cannot_show_stay_as_they_are() {
    let mut lab = TestNetwork::new(|_, _| 0.5);
    let before = lab.measure(&all(8));
    let first = lab.judge(&lab.claims(), &before);
    assert_eq!(loci(&first), ["degraded network-low domain lab"]);
    assert_eq!(confirm::find_suspects(&first), []);
    let verdicts = measure_again(&mut lab, &first, &before);
    assert_eq!(verdicts, first.verdicts);
}

/// A rack measured twice: in its first state, and in its state when the suspects are measured with
/// three partners each.
fn rack(
    was: impl Fn((u32, u32), (u32, u32)) -> f64 + 'static,
    is: impl Fn((u32, u32), (u32, u32)) -> f64 + 'static,
) -> (Judgement, Verdicts) {
    let mut bench = TestMachine::rack().capacity(move |s, d| Some(was(s, d)));
    let before = bench.record();
    let first = bench.judge_these(&before);
    let suspects = confirm::find_suspects(&first);
    let cleared = confirm::find_cleared_nodes(&first, &before);
    let mut later = TestMachine::rack().capacity(move |s, d| Some(is(s, d)));
    let mut recordings = before;
    for (a, b) in partners(&suspects, &cleared) {
        // Node names count from 1.
        let mut recording = later.record_siblings(a - 1, b - 1);
        recording.stage = Some(STAGE);
        recordings.push(recording);
    }
    let case = confirm::select_confirm_recordings(&recordings, &suspects);
    let second = later.judge_sampled(&later.claims(), &case, true);
    let verdicts = later.confirm(&first, &second.verdicts, &confirm_recordings(&recordings));
    (first, verdicts)
}

#[test]
fn a_lost_link_is_confirmed_by_three_partners_and_a_temporary_loss_is_not() {
    let bad = (6, 1);
    let lost = move |s, d| if s == bad || d == bad { share(1) } else { 1.0 };
    let (first, verdicts) = rack(lost, lost);
    assert!(!first.verdicts.findings[0].confirmed);
    assert_eq!(describe(&verdicts), ["degraded nvlink-low gpu node0007:1"]);
    assert_eq!(outcome(&verdicts, "node0007"), Outcome::Degraded);
    assert_eq!(outcome_of(&first, "node0008"), Outcome::Pass);

    let (_, verdicts) = rack(lost, |_, _| 1.0);
    assert_eq!(describe(&verdicts), ["unknown nvlink-low gpu node0007:1 ?"]);
    assert_eq!(verdicts.findings[0].rule.to_string(), "not confirmed by 3 partners");
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
    assert_eq!(describe(&verdicts), ["failed wrong-domain node node0009"]);
}

#[test]
fn a_plane_and_a_split_domain_are_not_suspects() {
    for was in [(|_, _| share(1)) as fn((u32, u32), (u32, u32)) -> f64, |s, d| {
        if (s.0 < 9) == (d.0 < 9) { 1.0 } else { 0.065 }
    }] {
        let (first, verdicts) = rack(was, |_, _| 1.0);
        assert_eq!(confirm::find_suspects(&first), []);
        assert_eq!(verdicts.findings, first.verdicts.findings);
    }
}

#[test]
fn a_node_that_is_its_own_island_is_measured_again_alone() {
    let mut bench = TestMachine::hgx(3)
        .capacity(|s, d| Some(if s.0 == 1 && (s.1 == 5 || d.1 == 5) { share(1) } else { 1.0 }));
    let before = bench.record();
    let first = bench.judge_these(&before);
    for (is, expected) in [
        (share(1), "degraded nvlink-low gpu node0002:5"),
        (1.0, "unknown nvlink-low gpu node0002:5 ?"),
    ] {
        let mut later = TestMachine::hgx(3)
            .capacity(move |s, d| Some(if s.0 == 1 && (s.1 == 5 || d.1 == 5) { is } else { 1.0 }));
        let mut recordings = before.clone();
        recordings.extend(later.record().into_iter().filter(|r| r.file.contains("node0002")).map(
            |mut recording| {
                recording.stage = Some(STAGE);
                recording
            },
        ));
        let case = confirm::select_confirm_recordings(&recordings, &confirm::find_suspects(&first));
        let second = later.judge_sampled(&later.claims(), &case, true);
        let verdicts = later.confirm(&first, &second.verdicts, &confirm_recordings(&recordings));
        assert_eq!(describe(&verdicts), [expected]);
    }
}

#[test]
fn the_cost_per_suspect_does_not_grow_with_their_number() {
    /// The number of comparisons per host, with every host suspected.
    fn comparisons_per_host(hosts: u32) -> usize {
        let mut lab = TestNetwork::new(|_, _| 0.5);
        lab.hosts = hosts;
        let before = lab.measure(&matching(hosts));
        let mut first = lab.judge(&lab.claims(), &before);
        let low = |at: u32| {
            let locus = Locus { node: Some(host(at)), ..Locus::new(LocusKind::Rail) };
            Finding {
                ratio: Some(0.5),
                ..new_finding(
                    Outcome::Degraded,
                    FindingClass::NicLow,
                    locus,
                    FindingRule::default(),
                )
            }
        };
        first.verdicts.findings = (0..hosts).map(low).collect();
        // A tenth of them is confirmed.
        let mut second = first.verdicts.clone();
        second
            .findings
            .retain(|it| it.locus.node.as_ref().is_some_and(|n| n.as_str().ends_with('1')));
        let again: Vec<ToolRecording> =
            (0..hosts).map(|at| lab.pair(at, (at + 1) % hosts, STAGE)).collect();
        confirm::COMPARISONS.set(0);
        let last = lab.confirm(&first, &second, &again);
        assert_eq!(last.findings.iter().filter(|it| it.confirmed).count(), second.findings.len());
        confirm::COMPARISONS.get().div_ceil(hosts as usize)
    }
    assert_eq!(comparisons_per_host(40), comparisons_per_host(400));
}

/// A rack with a slow pair, and the result of a second measurement with these `runs`.
fn slow_pair(
    later: impl Fn((u32, u32), (u32, u32)) -> f64 + 'static,
    runs: &[(bool, u32, u32)],
) -> Finding {
    let pair = [(1, 0), (10, 3)];
    let is_slow = move |s, d| pair.contains(&s) && pair.contains(&d);
    let mut bench = TestMachine::rack()
        .readings(3)
        .capacity(move |s, d| Some(if is_slow(s, d) { 0.5 } else { 1.0 }));
    let before = bench.record();
    let first = bench.judge_these(&before);
    assert_eq!(loci(&first), ["degraded nvlink-low pair node0002:0 - node0011:3"]);
    let [suspect] = confirm::find_suspects(&first).try_into().expect("one");
    assert_eq!(suspect.gpus, Some((0, 3)));
    let mut bench = TestMachine::rack().capacity(move |s, d| Some(later(s, d)));
    let mut read = Vec::new();
    for (all, a, b) in runs {
        let run = if *all { bench.record_two_nodes(*a, *b) } else { bench.record_siblings(*a, *b) };
        read.push(ToolRecording { stage: Some(STAGE), ..run });
    }
    // A second judgement without findings, whatever its input.
    let second = Verdicts { findings: Vec::new(), ..first.verdicts.clone() };
    let verdicts = bench.confirm(&first, &second, &read);
    let [found] = verdicts.findings.try_into().expect("one");
    found
}

#[test]
fn only_the_same_gpus_confirm_a_pair_or_clear_it() {
    let lanes = [(false, 1, 10), (false, 1, 4), (false, 10, 5)];
    let all = [(true, 1, 10), (false, 1, 4), (false, 10, 5)];
    let was = |s: (u32, u32), d: (u32, u32)| {
        let is_slow = [s, d] == [(1, 0), (10, 3)] || [d, s] == [(1, 0), (10, 3)];
        if is_slow { 0.5 } else { 1.0 }
    };
    let of = |f: &Finding| (f.outcome, f.confirmed);
    let found = slow_pair(was, &lanes);
    assert_eq!(of(&found), (Outcome::Degraded, false));
    assert!(found.summary.contains("was not read again"), "{}", found.summary);
    let found = slow_pair(was, &all);
    assert_eq!(of(&found), (Outcome::Degraded, true), "{}", found.summary);
    assert!(found.evidence.iter().any(|e| e.file.contains("all-02-11")));
    let found = slow_pair(|_, _| 1.0, &all);
    assert_eq!(of(&found), (Outcome::Unknown, false));
    assert!(found.rule.kind == RuleKind::NotConfirmed, "{}", found.rule);
    // Less low than before: neither.
    let found = slow_pair(move |s, d| if was(s, d) < 1.0 { 0.9 } else { 1.0 }, &all);
    assert_eq!(of(&found), (Outcome::Degraded, false));
    assert!(found.summary.contains("neither confirms nor excludes"), "{}", found.summary);
}

#[test]
fn a_gpu_is_cleared_by_the_direction_and_the_side_that_was_low_and_by_nothing_else() {
    let low = |s: (u32, u32), d: (u32, u32)| if s == (6, 1) && d.0 != 6 { 0.7 } else { 1.0 };
    let mut bench = TestMachine::rack().capacity(move |s, d| Some(low(s, d)));
    let before = bench.record();
    let first = bench.judge_these(&before);
    assert_eq!(loci(&first), ["degraded nvlink-low direction node0007:1 tx"]);
    let second = Verdicts { findings: Vec::new(), ..first.verdicts.clone() };
    let of = |runs: &mut dyn FnMut(&mut TestMachine) -> Vec<ToolRecording>, is_well: bool| {
        let mut later =
            TestMachine::rack().capacity(move |s, d| Some(if is_well { 1.0 } else { low(s, d) }));
        let read: Vec<ToolRecording> = runs(&mut later)
            .into_iter()
            .map(|r| ToolRecording { stage: Some(STAGE), ..r })
            .collect();
        describe(&bench.confirm(&first, &second, &read))
    };
    let node = |b: &mut TestMachine| {
        let own = b.record_nodes().into_iter();
        own.filter(|r| r.file.contains("node0007")).collect::<Vec<_>>()
    };
    let lanes = |b: &mut TestMachine| {
        vec![b.record_siblings(6, 1), b.record_siblings(6, 2), b.record_siblings(3, 6)]
    };
    let open = ["degraded nvlink-low direction node0007:1 tx ?"];
    // Inside the node it never was low.
    assert_eq!(of(&mut { node }, true), open);
    // No lane was read before: the platform's expectation is the level.
    assert_eq!(of(&mut { lanes }, true), ["unknown nvlink-low direction node0007:1 tx ?"]);
    assert_eq!(of(&mut { lanes }, false), ["degraded nvlink-low direction node0007:1 tx"]);
    let matrices = |b: &mut TestMachine| vec![b.record_two_nodes(6, 1), b.record_two_nodes(6, 2)];
    assert_eq!(of(&mut { matrices }, false), ["degraded nvlink-low direction node0007:1 tx"]);
    assert_eq!(of(&mut { matrices }, true), ["unknown nvlink-low direction node0007:1 tx ?"]);
    // One partner may be the slow one itself.
    let one = |b: &mut TestMachine| vec![b.record_two_nodes(6, 1)];
    assert_eq!(of(&mut { one }, false), open);
}

#[test]
fn bad_ends_measured_together_do_not_clear_each_other() {
    for seed in 0..10 {
        let bad = |at: u32| -> f64 { if at == 4 || at == 5 { 0.5 } else { 1.0 } };
        let mut lab = TestNetwork::new(move |a, b| bad(a).min(bad(b))).noise(0.005, 1, seed);
        (lab.nic, lab.hosts) = (false, 8);
        let before = lab.measure(&matching(8));
        let first = lab.judge(&lab.claims(), &before);
        assert_eq!(loci(&first), ["degraded path-low pair host4 - host5"]);
        let mut recordings = before.clone();
        let repeats = [(4, 5), (4, 0), (4, 1), (4, 2), (4, 3), (5, 0), (5, 1), (5, 6), (5, 7)];
        recordings.extend(repeats.map(|(a, b)| lab.pair(a, b, STAGE)));
        let case = confirm::select_confirm_recordings(&recordings, &confirm::find_suspects(&first));
        let second = lab.judge(&lab.claims(), &case);
        let verdicts = lab.confirm(&first, &second.verdicts, &confirm_recordings(&recordings));
        let expected = ["degraded nic-low rail host4", "degraded nic-low rail host5"];
        assert_eq!(describe(&verdicts), expected, "seed {seed}");
        assert!(verdicts.findings.iter().all(|f| f.evidence.len() > 1));
    }
}

#[test]
fn the_ends_of_two_low_paths_that_are_low_with_others_are_named() {
    let bad = |at: u32| -> f64 { if at == 4 || at == 6 { 0.5 } else { 1.0 } };
    let mut lab = TestNetwork::new(move |a, b| bad(a).min(bad(b))).noise(0.005, 1, 7);
    lab.nic = false;
    let before = lab.measure(&matching(8));
    let first = lab.judge(&lab.claims(), &before);
    let suspects = confirm::find_suspects(&first);
    assert_eq!(suspects.len(), 2);
    let mut recordings = before.clone();
    let repeats = [(4, 5), (4, 0), (4, 1), (4, 2), (5, 0), (5, 1), (5, 3)];
    let others = [(6, 7), (6, 1), (6, 2), (6, 3), (7, 0), (7, 2), (7, 3)];
    recordings.extend(repeats.into_iter().chain(others).map(|(a, b)| lab.pair(a, b, STAGE)));
    let second =
        lab.judge(&lab.claims(), &confirm::select_confirm_recordings(&recordings, &suspects));
    let without_findings = Verdicts { findings: Vec::new(), ..second.verdicts.clone() };
    for second in [second.verdicts, without_findings] {
        let verdicts = lab.confirm(&first, &second, &confirm_recordings(&recordings));
        let expected = ["degraded nic-low rail host4", "degraded nic-low rail host6"];
        assert_eq!(describe(&verdicts), expected);
        assert_eq!(outcome(&verdicts, "host4"), Outcome::Degraded);
    }
}

/// A matching in which two hosts have no connection, and the result after they were measured with
/// three others, and with each other.
fn unreached(later: impl Fn(u32, u32) -> bool + 'static) -> (Judgement, Verdicts) {
    let is_down = |a: u32, b: u32| a == 2 || b == 2;
    let mut lab = TestNetwork::new(|_, _| 1.0);
    lab.cut = Box::new(is_down);
    let before = lab.measure(&matching(8));
    let first = lab.judge(&lab.claims(), &before);
    let suspects = confirm::find_suspects(&first);
    let pairs: Vec<(NodeName, Option<NodeName>)> =
        suspects.iter().map(|s| (s.node.clone(), s.peer.clone())).collect();
    assert_eq!(pairs, [(host(2), Some(host(3)))]);
    assert!(suspects[0].network && !suspects[0].files.is_empty());
    assert_eq!(confirm::find_cleared_nodes(&first, &before), [0, 1, 4, 5, 6, 7].map(host).into());
    lab.cut = Box::new(later);
    let mut recordings = before;
    let repeats = partners(&suspects, &confirm::find_cleared_nodes(&first, &recordings));
    for (a, b) in repeats.into_iter().chain([(2, 3)]) {
        recordings.push(lab.pair(a, b, STAGE));
    }
    let second =
        lab.judge(&lab.claims(), &confirm::select_confirm_recordings(&recordings, &suspects));
    let verdicts = lab.confirm(&first, &second.verdicts, &confirm_recordings(&recordings));
    (first, verdicts)
}

#[test]
fn the_end_of_an_unconnected_pair_that_no_node_reaches_has_failed() {
    let (first, verdicts) = unreached(|a, b| a == 2 || b == 2);
    assert_eq!(loci(&first), ["unknown nic-unreachable pair host2 - host3"]);
    assert_eq!([outcome_of(&first, "host2"), outcome_of(&first, "host3")], [Outcome::Unknown; 2]);
    assert_eq!(describe(&verdicts), ["failed nic-unreachable rail host2"]);
    for at in 0..8 {
        let wanted = if at == 2 { Outcome::Failed } else { Outcome::Pass };
        assert_eq!(outcome(&verdicts, host(at).as_str()), wanted, "host{at}");
    }
    assert!(verdicts.unknown.is_empty(), "{:?}", verdicts.unknown);
}

#[test]
fn a_path_that_is_cut_twice_has_failed_and_one_cut_once_is_unknown() {
    let (_, verdicts) = unreached(|a, b| (a, b) == (2, 3));
    assert_eq!(describe(&verdicts), ["failed nic-unreachable pair host2 - host3"]);
    let (_, passing) = unreached(|_, _| false);
    assert_eq!(describe(&passing), ["unknown nic-unreachable pair host2 - host3 ?"]);
    for verdicts in [verdicts, passing] {
        for (node, wanted) in [("host2", Outcome::Unknown), ("host4", Outcome::Pass)] {
            assert_eq!(outcome(&verdicts, node), wanted);
        }
    }
}

#[test]
fn the_partner_of_an_unreached_node_passes_only_if_it_was_read_again() {
    let mut lab = TestNetwork::new(|_, _| 1.0);
    lab.cut = Box::new(|a, b| a == 2 || b == 2);
    let before = lab.measure(&matching(8));
    let first = lab.judge(&lab.claims(), &before);
    let suspects = confirm::find_suspects(&first);
    let mut recordings = before;
    for (a, b) in [(2, 0), (2, 4), (6, 2)] {
        recordings.push(lab.pair(a, b, STAGE));
    }
    let second =
        lab.judge(&lab.claims(), &confirm::select_confirm_recordings(&recordings, &suspects));
    let verdicts = lab.confirm(&first, &second.verdicts, &confirm_recordings(&recordings));
    assert_eq!(describe(&verdicts), ["failed nic-unreachable rail host2"]);
    assert_eq!(outcome(&verdicts, "host3"), Outcome::Unknown);
}
