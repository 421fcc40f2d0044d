//! Parts against their own history: it adds findings, and never takes one away.

use super::network::{TestNetwork, all};
use super::test_machine::{TestMachine, loci, outcome_of, share};
use crate::judge::{JudgeInput, Judgement, judge_run, run_summary};
use crate::thresholds::PlatformCatalogue;
use model::claims::Claims;
use model::part_history::PartHistory;
use model::tool_recording::ToolRecording;
use model::verdict::Outcome;
use std::collections::BTreeMap;

/// A GPU, as node and slot.
type GpuSlot = (u32, u32);

/// The remaining rate of a path at a GPU with this share.
fn at(bad: GpuSlot, left: f64) -> impl Fn(GpuSlot, GpuSlot) -> Option<f64> {
    move |s, d| Some(if s == bad || d == bad { left } else { 1.0 })
}

fn catalogue(bench: &TestMachine) -> PlatformCatalogue {
    let platform = bench.platform.clone();
    PlatformCatalogue { platforms: BTreeMap::from([(platform.name.clone(), platform)]) }
}

fn case<'a>(
    claims: &'a Claims,
    recordings: &'a [ToolRecording],
    catalogue: &'a PlatformCatalogue,
) -> JudgeInput<'a> {
    let sampled = false;
    JudgeInput {
        claims,
        recordings,
        catalogue,
        thresholds_digest: "t",
        platform: None,
        cells: false,
        sampled,
    }
}

fn driven(bench: &mut TestMachine, driver: &str) -> Vec<ToolRecording> {
    let mut recordings = bench.record();
    for recording in &mut recordings {
        recording.parsed.facts.driver = Some(driver.to_owned());
    }
    recordings
}

/// The history of so many runs of the same machine.
fn history(runs: u32, bench: impl Fn(u64) -> TestMachine) -> PartHistory {
    let run = |number: u32| {
        let mut bench = bench(u64::from(number) + 100);
        let recordings = driven(&mut bench, "570.1");
        let (claims, catalogue) = (bench.claims(), catalogue(&bench));
        let summary = run_summary::summarize_sound_parts(&case(&claims, &recordings, &catalogue));
        (format!("2026-11-{:02}T01:00:00Z", number + 1), summary)
    };
    run_summary::build_history(&(0..runs).map(run).collect::<Vec<_>>())
}

fn judged(mut bench: TestMachine, driver: &str, history: &PartHistory) -> Judgement {
    let recordings = driven(&mut bench, driver);
    let (claims, catalogue) = (bench.claims(), catalogue(&bench));
    judge_run(&case(&claims, &recordings, &catalogue), history)
}

const BAD: GpuSlot = (6, 1);

/// A rack in which one GPU was a little better than the others.
fn rack(seed: u64, left: f64) -> TestMachine {
    TestMachine::rack().noise(0.002, 0.0, seed).capacity(at(BAD, left))
}

#[test]
fn a_gpu_within_the_range_of_the_fleet_is_found_by_its_own_history() {
    let history = history(4, |seed| rack(seed, 1.02));
    let now = || rack(1, 0.98);
    assert_eq!(loci(&judged(now(), "570.1", &PartHistory::default())), Vec::<String>::new());
    let judged = judged(now(), "570.1", &history);
    assert_eq!(loci(&judged), ["degraded below-own-history gpu node0007:1"]);
    let found = &judged.verdicts.findings[0];
    assert!(found.rule.to_string().starts_with("own history:"), "{}", found.rule);
    assert!(
        found.summary.contains("its own 4 runs of 2026-11-01 to 2026-11-04"),
        "{}",
        found.summary
    );
    assert!(!found.confirmed && !found.evidence.is_empty(), "{found:?}");
    assert_eq!(outcome_of(&judged, "node0007"), Outcome::Degraded);
    assert_eq!(outcome_of(&judged, "node0006"), Outcome::Pass);
}

#[test]
fn two_runs_do_not_blame_a_part_and_another_driver_is_not_a_reference() {
    let two = history(2, |seed| rack(seed, 1.02));
    let open = judged(rack(1, 0.98), "570.1", &two);
    assert_eq!(loci(&open), ["unknown below-own-history gpu node0007:1"]);
    assert!(open.verdicts.findings[0].summary.contains("run it a third time"));
    assert_eq!(outcome_of(&open, "node0007"), Outcome::Unknown);
    let other = judged(rack(1, 0.98), "580.2", &two);
    assert_eq!(loci(&other), Vec::<String>::new());
    let note = other.verdicts.notes.iter().find(|n| n.contains("own history")).expect("a note");
    assert!(note.contains("driver 580.2") && note.contains("driver 570.1"), "{note}");
}

#[test]
fn a_part_that_was_always_slow_is_still_slow() {
    let slow = |seed| rack(seed, share(1));
    let history = history(4, slow);
    let part = history.usual.keys().find(|p| p.node.as_str() == "node0007" && p.gpu == Some(1));
    assert_eq!(part, None, "a part with a finding does not enter the history");
    for history in [&history, &PartHistory::default()] {
        let judged = judged(slow(1), "570.1", history);
        assert_eq!(loci(&judged), ["degraded nvlink-low gpu node0007:1"]);
    }
}

#[test]
fn another_reference_takes_precedence_over_history() {
    let history = history(4, |seed| rack(seed, 1.0));
    let judged = judged(rack(1, share(2)), "570.1", &history);
    assert_eq!(loci(&judged), ["degraded nvlink-low gpu node0007:1"]);
    let found = &judged.verdicts.findings[0];
    assert!(
        found.rule.to_string().contains("level of its own domain; its own history agrees"),
        "{}",
        found.rule
    );
}

#[test]
fn a_loss_of_the_whole_fabric_blames_no_gpu() {
    let history_of = |bench: fn(u64) -> TestMachine| history(3, bench);
    let slower = |bench: TestMachine| bench.capacity(|_, _| Some(0.965));
    let racks = history_of(|seed| TestMachine::rack().noise(0.002, 0.0, seed));
    let rack = judged(slower(TestMachine::rack()), "570.1", &racks);
    assert_eq!(loci(&rack), ["degraded below-own-history domain block01"]);
    assert!(rack.verdicts.findings[0].summary.contains("repeat the test with"));
    assert!(rack.verdicts.nodes.iter().all(|n| n.outcome == Outcome::Unknown));
    let boards = history_of(|seed| TestMachine::hgx(1).noise(0.002, 0.0, seed));
    let board = judged(slower(TestMachine::hgx(1)), "570.1", &boards);
    assert_eq!(loci(&board), ["degraded below-own-history node node0001"]);
    // The fleet decides if it can.
    let fleet = judged(
        TestMachine::hgx(5).capacity(|s, _| Some(if s.0 == 3 { 0.96 } else { 1.0 })),
        "570.1",
        &history_of(|seed| TestMachine::hgx(5).noise(0.002, 0.0, seed)),
    );
    assert_eq!(loci(&fleet), ["degraded nvlink-low node node0004"]);
    let rule = &fleet.verdicts.findings[0].rule;
    assert!(rule.to_string().ends_with("its own history agrees"), "{rule}");
    let fleets = history_of(|seed| TestMachine::hgx(4).noise(0.002, 0.0, seed));
    let fleet = judged(slower(TestMachine::hgx(4)), "570.1", &fleets);
    assert_eq!(loci(&fleet), ["unknown below-own-history instrument - hgx"]);
}

#[test]
fn a_healthy_machine_is_not_below_its_own_history() {
    for sigma in [0.001, 0.003, 0.01, 0.02] {
        let quiet = |seed| TestMachine::rack().noise(sigma, 0.005, seed);
        for runs in [1, 3] {
            let history = history(runs, quiet);
            for seed in 0..4 {
                let judged = judged(quiet(seed), "570.1", &history);
                assert_eq!(loci(&judged), Vec::<String>::new(), "{sigma} {runs} {seed}");
            }
        }
    }
}

#[test]
fn an_end_of_a_network_has_a_history_too() {
    // A host that was 3 % faster than the others, and is 2 % slower.
    let lab = |left: f64, seed| {
        let share = move |a, b| if a == 3 || b == 3 { left } else { 1.0 };
        TestNetwork::new(share).noise(0.003, 3, seed)
    };
    let summary = |number: u64| {
        let mut lab = lab(1.03, number);
        let recordings = lab.measure(&all(8));
        (
            format!("2026-11-0{number}"),
            run_summary::summarize_sound_parts(&lab.case(
                &lab.claims(),
                &recordings,
                &TestNetwork::catalogue(),
            )),
        )
    };
    let history = run_summary::build_history(&[1, 2, 3].map(summary));
    let mut now = lab(0.98, 9);
    let recordings = now.measure(&all(8));
    let (claims, catalogue) = (now.claims(), TestNetwork::catalogue());
    let judged = judge_run(&now.case(&claims, &recordings, &catalogue), &history);
    assert_eq!(loci(&judged), ["degraded below-own-history rail host3"]);
}
