//! Several faults together, and the same fault everywhere: each is identified, and no healthy part
//! is blamed.

use super::test_machine::{TestMachine, loci, outcome_of, platform, share, unknown_nodes};
use crate::judge::Judgement;
use model::measurement::Measurement;
use model::tool_recording::{RecordingScope, ToolRecording};
use model::verdict::{LocusKind, Outcome};

/// Links of a GPU that are lost, one bit each. Two GPUs use those that both have.
type LostLinks = fn((u32, u32)) -> u32;

fn links(lost: LostLinks) -> impl Fn((u32, u32), (u32, u32)) -> Option<f64> {
    move |s, d| Some(f64::from(18 - (lost(s) | lost(d)).count_ones()) / 18.0)
}

fn rack(lost: LostLinks, seed: u64) -> Judgement {
    TestMachine::rack().noise(0.003, 0.002, seed).capacity(links(lost)).judge()
}

#[test]
fn two_faulty_gpus_that_share_a_cell_are_two_findings_and_not_a_pair() {
    for seed in 0..5 {
        let judged = rack(
            |gpu| match gpu {
                (3, 1) => 0b1,
                (11, 2) => 0b100_0000,
                _ => 0,
            },
            seed,
        );
        let expected = ["degraded nvlink-low gpu node0004:1", "degraded nvlink-low gpu node0012:2"];
        assert_eq!(loci(&judged), expected, "seed {seed}");
        // In one node they share two cells.
        let judged = rack(
            |gpu| match gpu {
                (3, 1) => 0b1,
                (3, 2) => 0b110,
                _ => 0,
            },
            seed,
        );
        let expected = ["degraded nvlink-low gpu node0004:1", "degraded nvlink-low gpu node0004:2"];
        assert_eq!(loci(&judged), expected, "seed {seed}");
    }
}

#[test]
fn two_nodes_that_each_lose_a_different_plane_are_two_trays() {
    for seed in 0..5 {
        let judged = rack(
            |gpu| match gpu.0 {
                2 => 0b1,
                9 => 0b1000,
                _ => 0,
            },
            seed,
        );
        let expected = ["degraded nvlink-low tray node0003", "degraded nvlink-low tray node0010"];
        assert_eq!(loci(&judged), expected, "seed {seed}");
    }
}

#[test]
fn a_plane_that_is_out_and_a_gpu_with_a_lost_link_are_both_found() {
    for seed in 0..5 {
        let judged = rack(|gpu| if gpu == (6, 0) { 0b11 } else { 0b1 }, seed);
        let mut found = loci(&judged);
        found.sort();
        let expected = ["degraded nvlink-low gpu node0007:0", "degraded plane-low plane block01"];
        assert_eq!(found, expected, "seed {seed}");
        assert_eq!(outcome_of(&judged, "node0001"), Outcome::Unknown);
        assert_eq!(outcome_of(&judged, "node0007"), Outcome::Degraded);
    }
}

/// Removes a node from all recordings.
fn without(recordings: &mut Vec<ToolRecording>, node: &str) {
    recordings.retain(|r| r.scope != RecordingScope::Node(node.into()));
    for recording in recordings {
        let ranks = recording.parsed.facts.ranks.clone();
        for measurement in &mut recording.parsed.measurements {
            let Measurement::Matrix(matrix) = measurement else { continue };
            for rank in ranks.iter().filter(|rank| rank.host == node) {
                let at = rank.rank as usize;
                matrix.cells[at].fill(None);
                matrix.cells.iter_mut().for_each(|row| row[at] = None);
            }
        }
    }
}

#[test]
fn a_faulty_gpu_is_named_although_a_node_is_missing() {
    for seed in 0..5 {
        let mut bench = TestMachine::rack()
            .noise(0.003, 0.002, seed)
            .capacity(links(|gpu| u32::from(gpu == (6, 1))));
        let mut recordings = bench.record();
        without(&mut recordings, "node0012");
        let judged = bench.judge_these(&recordings);
        assert_eq!(loci(&judged), ["degraded nvlink-low gpu node0007:1"], "seed {seed}");
        assert_eq!(outcome_of(&judged, "node0012"), Outcome::Unknown);
        assert_eq!(outcome_of(&judged, "node0001"), Outcome::Pass);
    }
}

#[test]
fn a_node_whose_gpus_are_all_low_is_named_however_few_nodes_of_its_rack_were_measured() {
    // Of four nodes, half of all cells between nodes are such a node's.
    for nodes in 3..=9 {
        for seed in 0..3 {
            let judged = TestMachine::with_platform(platform("rack", 4, 18, 770.0), nodes, 4)
                .noise(0.003, 0.002, seed)
                .capacity(|s, d| Some(if s.0 == 2 || d.0 == 2 { share(1) } else { 1.0 }))
                .judge();
            let found = loci(&judged);
            assert_eq!(found, ["degraded nvlink-low tray node0003"], "{nodes} nodes, seed {seed}");
            assert_eq!(unknown_nodes(&judged), [""; 0], "{nodes} nodes, seed {seed}");
        }
    }
}

#[test]
fn a_domain_loss_that_fits_no_number_of_links_is_not_a_plane() {
    let judged = TestMachine::rack().capacity(|_, _| Some(0.915)).judge();
    assert_eq!(loci(&judged), ["degraded domain-low domain block01"]);
    let summary = &judged.verdicts.findings[0].summary;
    assert!(summary.contains("clocks, a power limit, or a wrong expectation"), "{summary}");
    assert!(judged.verdicts.nodes.iter().all(|n| n.outcome == Outcome::Unknown));
}

#[test]
fn equally_low_nodes_have_one_cause_and_none_is_blamed() {
    let judged = TestMachine::hgx(5).capacity(|_, _| Some(0.93)).judge();
    assert_eq!(loci(&judged).len(), 1, "{:?}", loci(&judged));
    let found = &judged.verdicts.findings[0];
    assert_eq!((found.class.as_str(), found.locus.kind), ("all-low-alike", LocusKind::Instrument));
    assert_eq!(found.outcome, Outcome::Unknown);
    assert!(judged.verdicts.nodes.iter().all(|n| n.outcome == Outcome::Unknown));
    // Each with another share: each has its own cause.
    let judged = TestMachine::hgx(3).capacity(|s, _| Some(0.93 - 0.07 * f64::from(s.0))).judge();
    assert!(judged.verdicts.findings.iter().all(|f| f.class.as_str() != "all-low-alike"));
    // A GPU that is low in addition is still reported.
    let judged = TestMachine::hgx(5)
        .capacity(|s, d| {
            Some(if (s.0, s.1) == (2, 4) || (d.0, d.1) == (2, 4) { 0.7 } else { 0.93 })
        })
        .judge();
    assert!(loci(&judged).contains(&"degraded nvlink-low gpu node0003:4".to_owned()));
    assert_eq!(outcome_of(&judged, "node0003"), Outcome::Degraded);
}

#[test]
fn falling_or_scattered_readings_are_neither_slow_nor_a_pass() {
    for seed in 0..5 {
        let judged = TestMachine::hgx(2).readings(5).noise(0.003, 0.005, seed).judge();
        assert_eq!(loci(&judged), Vec::<String>::new(), "seed {seed}");
        let mut bench = TestMachine::hgx(2).readings(5).noise(0.003, 0.0, seed);
        let mut recordings = bench.record();
        let own =
            recordings.iter_mut().filter(|r| r.scope == RecordingScope::Node("node0002".into()));
        for (reading, recording) in (0u32..).zip(own) {
            for measurement in &mut recording.parsed.measurements {
                let Measurement::Matrix(matrix) = measurement else { continue };
                if matrix.rows.len() == 8 {
                    let share = 1.0 - 0.02 * f64::from(reading);
                    matrix.cells[3].iter_mut().flatten().for_each(|cell| *cell *= share);
                    matrix.cells.iter_mut().for_each(|row| {
                        row[3].iter_mut().for_each(|cell| *cell *= share);
                    });
                }
            }
        }
        let judged = bench.judge_these(&recordings);
        assert_eq!(loci(&judged), ["unknown drifting gpu node0002:3"], "seed {seed}");
        assert_eq!(outcome_of(&judged, "node0002"), Outcome::Unknown);
        assert_eq!(outcome_of(&judged, "node0001"), Outcome::Pass);
    }
}
