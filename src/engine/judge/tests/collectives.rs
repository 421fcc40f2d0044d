//! Collectives: one number for a whole node or domain.

use super::test_machine::{TestMachine, loci, outcome_of, ranks, unknown_nodes};
use crate::judge::Judgement;
use crate::thresholds::{CollectiveConditions, CollectiveExpectation, ForcedPath};
use model::id::DomainName;
use model::measurement::{BufferPlacement, Measurement, MeasurementSeries, SeriesPoint};
use model::parse_output::{ParseOutput, Tool};
use model::tool_recording::{RecordingScope, ToolRecording};
use model::unit::Unit;
use model::verdict::Outcome;
use std::collections::BTreeSet;

/// An all-reduce of 8 GiB over a rack: bus bandwidths out of place and in.
fn all_reduce(reading: u32, busbw: [f64; 2]) -> ToolRecording {
    let ends: Vec<(u32, u32)> = (0..18).flat_map(|n| (0..4).map(move |g| (n, g))).collect();
    let mut parsed = ParseOutput { complete: true, ..ParseOutput::for_tool(Tool::NcclTests) };
    parsed.facts.ranks = ranks(&ends);
    let placements = [BufferPlacement::OutOfPlace, BufferPlacement::InPlace];
    let points = placements.iter().zip(busbw).map(|(placement, busbw)| SeriesPoint {
        bytes: 8 << 30,
        placement: Some(*placement),
        busbw: Some(busbw),
        wrong: Some(0.0),
        ..SeriesPoint::default()
    });
    parsed.measurements = vec![Measurement::Series(MeasurementSeries {
        run: 0,
        testcase: Some("all_reduce_perf".to_owned()),
        unit: Some(Unit::GigabytesPerSecond),
        points: points.collect(),
        average_busbw: None,
    })];
    let file = format!("domains/block01/nccl-{reading}.txt");
    ToolRecording::new(RecordingScope::Domain(DomainName::from("block01")), file, parsed)
}

fn judge(bench: &mut TestMachine, runs: &[[f64; 2]]) -> Judgement {
    let mut recordings = bench.record();
    recordings.extend((0..).zip(runs).map(|(at, busbw)| all_reduce(at, *busbw)));
    bench.judge_these(&recordings)
}

/// A rack that also has expectations at 1 GiB, and for a second algorithm.
fn rack() -> TestMachine {
    let mut bench = TestMachine::rack();
    let usual = bench.platform.collectives[0].clone();
    let mut large = usual.clone();
    large.min_bytes = 8 << 30;
    let mut small = usual.clone();
    (small.min_bytes, small.busbw) = (1 << 30, 640.0);
    let mut ring = usual;
    (ring.algorithm, ring.busbw) = ("Ring".to_owned(), 500.0);
    bench.platform.collectives = vec![small, large, ring];
    bench
}

#[test]
fn a_collective_is_compared_at_its_own_size() {
    let mut bench = rack();
    bench.platform.collectives.truncate(2);
    let judged = judge(&mut bench, &[[660.0, 655.0]]);
    assert_eq!(loci(&judged), ["degraded collective-low domain block01"]);
    assert_eq!(judged.verdicts.findings[0].expected, Some(840.0));
}

#[test]
fn a_rate_between_two_algorithms_stays_open() {
    let judged = judge(&mut rack(), &[[510.0, 512.0]]);
    assert_eq!(loci(&judged), Vec::<String>::new());
    assert_eq!(judged.verdicts.outcome, Outcome::Unknown);
    assert!(judged.verdicts.unknown[0].why.contains("Ring"), "{:?}", judged.verdicts.unknown);
    assert_eq!(outcome_of(&judged, "node0001"), Outcome::Pass);
    assert_eq!(judge(&mut rack(), &[[838.0, 841.0]]).verdicts.outcome, Outcome::Pass);
}

#[test]
fn one_good_reading_clears_a_collective() {
    let disturbed = [[700.0, 838.0], [600.0, 610.0]];
    assert_eq!(judge(&mut rack(), &disturbed).verdicts.outcome, Outcome::Pass);
    let judged = judge(&mut rack(), &disturbed[1..]);
    assert_eq!(judged.verdicts.outcome, Outcome::Unknown);
    let judged = judge(&mut rack(), &[[400.0, 402.0], [410.0, 405.0]]);
    assert_eq!(loci(&judged), ["degraded collective-low domain block01"]);
    assert_eq!(judged.verdicts.findings[0].evidence.len(), 2);
}

/// The same with the transports and algorithms that NCCL logs.
fn judge_with(bench: &mut TestMachine, busbw: f64, transports: &[&str]) -> Judgement {
    let mut recordings = bench.record();
    let mut run = all_reduce(0, [busbw, busbw]);
    run.parsed.facts.transports = transports.iter().map(|t| (*t).to_owned()).collect();
    recordings.push(run);
    bench.judge_these(&recordings)
}

#[test]
fn the_transports_that_nccl_logs_are_compared_with_the_platform() {
    let judged = judge_with(&mut rack(), 838.0, &["MNNVL", "NVLS", "P2P"]);
    assert_eq!(judged.verdicts.outcome, Outcome::Pass);
    // A rate alone could have hidden it.
    let judged = judge_with(&mut rack(), 838.0, &["P2P", "NET/IB"]);
    assert_eq!(loci(&judged), ["degraded mnnvl-off domain block01"]);
    let judged = judge_with(&mut rack(), 510.0, &["MNNVL", "P2P"]);
    assert_eq!(loci(&judged), ["degraded nvls-off domain block01"]);
    let judged = judge_with(&mut rack(), 90.0, &["P2P", "NET/IB"]);
    assert_eq!(loci(&judged), ["degraded collective-fallback domain block01"]);
    let summary = &judged.verdicts.findings[0].summary;
    assert!(
        summary.contains("multi-node NVLink was off")
            && summary.contains("between the GPUs read normally"),
        "{summary}"
    );
    assert!(judged.verdicts.nodes.iter().all(|n| n.outcome < Outcome::Degraded));
}

#[test]
fn a_matrix_that_a_collective_contradicts_is_reported() {
    let mut bench = rack().capacity(|_, _| Some(0.7));
    let judged = judge_with(&mut bench, 838.0, &[]);
    let found = loci(&judged);
    assert!(
        found.contains(&"unknown matrix-contradicted instrument block01".to_owned()),
        "{found:?}"
    );
    // A lost link is below the detection limit of a collective.
    let bad = (6, 1);
    let lost = move |s, d| Some(if s == bad || d == bad { 17.0 / 18.0 } else { 1.0 });
    let judged = judge_with(&mut rack().capacity(lost), 838.0, &[]);
    assert_eq!(loci(&judged), ["degraded nvlink-low gpu node0007:1"]);
}

/// An all-reduce of 8 GiB over the GPUs of one node.
fn on_node(at: u32, busbw: f64) -> ToolRecording {
    let mut run = all_reduce(0, [busbw, busbw]);
    run.parsed.facts.ranks = ranks(&(0..4).map(|gpu| (at, gpu)).collect::<Vec<_>>());
    run.scope = RecordingScope::Node(TestMachine::node(at));
    run.file = format!("nodes/{}/nccl.txt", TestMachine::node(at));
    run
}

/// The judgement of a rack whose nodes reach these rates.
fn each(nodes: u32, busbw: impl Fn(u32) -> f64) -> (Judgement, Vec<String>) {
    let mut bench = TestMachine::rack();
    let mut recordings = bench.record();
    recordings.extend((0..nodes).map(|at| on_node(at, busbw(at))));
    let judged = bench.judge_these(&recordings);
    let found = judged.verdicts.findings.iter();
    let found = found.map(|f| format!("{} {} {:?}", f.outcome, f.class, f.locus.kind)).collect();
    (judged, found)
}

/// A rack with these copies, and an all-reduce at full rate on these nodes.
fn contradicted(
    capacity: impl Fn((u32, u32), (u32, u32)) -> f64 + 'static,
    runs: &[ToolRecording],
) -> Judgement {
    let mut bench = TestMachine::rack().capacity(move |s, d| Some(capacity(s, d)));
    let mut recordings = bench.record();
    recordings.extend_from_slice(runs);
    bench.judge_these(&recordings)
}

#[test]
fn a_run_inside_a_node_contradicts_nothing_between_nodes() {
    type CopyPath = fn((u32, u32), (u32, u32)) -> f64;
    let all: Vec<ToolRecording> = (0..18).map(|at| on_node(at, 838.0)).collect();
    let cases: [(CopyPath, &[&str]); 4] = [
        (
            |s, d| if (s.0 == 8) == (d.0 == 8) { 1.0 } else { 0.065 },
            &["failed wrong-domain node node0009"],
        ),
        (
            |s, d| if (s.0 < 9) == (d.0 < 9) { 1.0 } else { 0.065 },
            &["failed split-domain domain block01"],
        ),
        (
            |s, d| if s.0 == d.0 { 1.0 } else { 0.065 },
            &["failed multi-node-nvlink-off domain block01"],
        ),
        (
            |s, d| if s.0 != d.0 && (s == (6, 1) || d == (6, 1)) { 0.6 } else { 1.0 },
            &["degraded nvlink-low gpu node0007:1"],
        ),
    ];
    for (capacity, expected) in cases {
        assert_eq!(loci(&contradicted(capacity, &all)), expected);
    }
    let judged = contradicted(cases[0].0, &all);
    assert_eq!(unknown_nodes(&judged), Vec::<&str>::new());
}

#[test]
fn a_contradiction_puts_only_the_members_of_its_run_in_doubt() {
    let tray = |s: (u32, u32), d: (u32, u32)| if s.0 == 8 || d.0 == 8 { 0.6 } else { 1.0 };
    let judged = contradicted(tray, &[on_node(8, 838.0), on_node(3, 838.0)]);
    let expected =
        ["degraded nvlink-low tray node0009", "unknown matrix-contradicted instrument node0009"];
    assert_eq!(loci(&judged), expected);
    assert_eq!(unknown_nodes(&judged), Vec::<&str>::new());
    // A run over two nodes, and one without the tray.
    let mut bench = TestMachine::rack();
    let usual = bench.platform.collectives[0].clone();
    bench.platform.collectives.push(CollectiveExpectation { min_ranks: 8, max_ranks: 8, ..usual });
    for (other, expected) in [(8, vec!["node0004"]), (5, vec![])] {
        let mut run = all_reduce(0, [838.0; 2]);
        let ends = [3, other].into_iter().flat_map(|n| (0..4).map(move |g| (n, g)));
        run.parsed.facts.ranks = ranks(&ends.collect::<Vec<_>>());
        bench = bench.capacity(move |s, d| Some(tray(s, d)));
        let mut recordings = bench.record();
        recordings.push(run);
        let judged = bench.judge_these(&recordings);
        assert_eq!(unknown_nodes(&judged), expected);
        assert_eq!(loci(&judged).len(), 1 + expected.len(), "{:?}", loci(&judged));
    }
}

#[test]
fn a_collective_that_is_equally_low_on_all_nodes_blames_none() {
    const COMMON: &str = "unknown all-low-alike Instrument";
    let (judged, found) = each(18, |at| 760.0 + f64::from(at % 3) * 8.0);
    assert_eq!(found, [COMMON]);
    assert!(judged.verdicts.nodes.iter().all(|n| n.outcome == Outcome::Unknown));
    let summary = &judged.verdicts.findings[0].summary;
    assert!(
        summary.contains("on 18 nodes of rack is equally low, median 768.0 of 840.0"),
        "{summary}"
    );
    // One that is lower than the others is still reported.
    let (judged, found) = each(18, |at| if at == 3 { 690.0 } else { 765.0 });
    assert_eq!(found, ["degraded collective-low Node", COMMON]);
    assert_eq!(outcome_of(&judged, "node0004"), Outcome::Degraded);
    // So is one in a healthy fleet.
    let (_, found) = each(18, |at| if at == 3 { 760.0 } else { 838.0 });
    assert_eq!(found, ["degraded collective-low Node"]);
    // Three nodes do not define a level to compare with.
    let (_, found) = each(3, |_| 760.0);
    assert_eq!(found, ["degraded collective-low Node"; 3]);
}

#[test]
fn a_size_that_was_cut_for_its_ranks_meets_the_expectation_of_its_size() {
    let mut bench = rack();
    bench.platform.collectives.truncate(2);
    let at = |bytes| {
        let ranks = bench.platform.collectives[0].min_ranks;
        let name = bench.platform.collectives[0].testcase.clone();
        let run = CollectiveConditions {
            testcase: &name,
            ranks: Some(ranks),
            bytes,
            forced_path: ForcedPath::No,
            algorithms: BTreeSet::new(),
            nics: None,
        };
        let found = bench.platform.collective_expectations(&run).expect("it is stated");
        found.iter().map(|it| it.min_bytes).collect::<Vec<u64>>()
    };
    let ranks = u64::from(bench.platform.collectives[0].min_ranks);
    assert!(1 < ranks);
    // Each rank's part is a multiple of 16 bytes: all together lack less than that of each.
    assert_eq!(at((8 << 30) - 16 * ranks + 1), [8 << 30]);
    assert_eq!(at((8 << 30) - 16 * ranks), [1 << 30]);
}
