//! Nodes over the scale-out network: slow ends, slow pairs, slow leaves, and unreachable nodes.

use std::collections::BTreeMap;

use super::test_machine::{TestMachine, TestRng, loci, outcome_of, platform};
use crate::judge::{JudgeInput, Judgement, confirm, judge_without_history};
use crate::thresholds::{PlatformCatalogue, overlay};
use model::claims::{ClaimedDomain, ClaimedLeaf, ClaimedRail, Claims};
use model::id::NodeName;
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput};
use model::tool_recording::{RecordingScope, ToolRecording};
use model::verdict::{Outcome, Verdicts};
use readers::outputs;

/// The rate of each pair, relative to the rate of the class.
type PairShare = Box<dyn Fn(u32, u32) -> f64>;

/// Hosts of one network, in a lab.
pub(super) struct TestNetwork {
    pub(super) hosts: u32,
    sigma: f64,
    /// How often a reading dips, by 5 to 40 %.
    dips: f64,
    /// How far healthy pairs differ.
    spread: f64,
    rng: TestRng,
    readings: u32,
    share: PairShare,
    /// The share of that in one reading of a pair.
    pub(super) moment: Box<dyn Fn(u32, u32, u32) -> f64>,
    rail: Option<&'static str>,
    /// Whether a class of NIC is claimed.
    pub(super) nic: bool,
    /// Which pairs have no connection.
    pub(super) cut: Box<dyn Fn(u32, u32) -> bool>,
}

/// The rate of the class, in GB/s.
const RATE: f64 = 0.0125;

pub(super) fn host(at: u32) -> NodeName {
    NodeName::from(format!("host{at}"))
}

/// Every pair of hosts once.
pub(super) fn all(hosts: u32) -> Vec<(u32, u32)> {
    (0..hosts).flat_map(|a| (a + 1..hosts).map(move |b| (a, b))).collect()
}

/// Adjacent hosts.
pub(super) fn matching(hosts: u32) -> Vec<(u32, u32)> {
    (0..hosts / 2).map(|a| (2 * a, 2 * a + 1)).collect()
}

impl TestNetwork {
    pub(super) fn new(share: impl Fn(u32, u32) -> f64 + 'static) -> Self {
        let share = Box::new(share);
        Self {
            hosts: 8,
            sigma: 0.005,
            dips: 0.0,
            spread: 0.0,
            rng: TestRng(5),
            readings: 5,
            share,
            moment: Box::new(|_, _, _| 1.0),
            rail: None,
            nic: true,
            cut: Box::new(|_, _| false),
        }
    }

    pub(super) fn noise(mut self, sigma: f64, readings: u32, seed: u64) -> Self {
        (self.sigma, self.readings, self.rng) = (sigma, readings, TestRng(seed));
        self
    }

    fn add_noise(&mut self, value: f64) -> f64 {
        let dip =
            if self.rng.uniform() < self.dips { 0.05 + 0.35 * self.rng.uniform() } else { 0.0 };
        value * (1.0 + self.sigma * self.rng.normal()) * (1.0 - dip)
    }

    /// The probe's output for a pair, read as from a file.
    pub(super) fn pair(&mut self, a: u32, b: u32, stage: u8) -> ToolRecording {
        if (self.cut)(a, b) {
            return ToolRecording { stage: Some(stage), ..self.refused(a, b) };
        }
        let stream = |rate: f64| {
            serde_json::json!({"sent_bytes": 9, "received_bytes": 9, "seconds": 1.0,
                "rate": rate})
        };
        let own = [(); 2].map(|()| 1.0 + self.spread * self.rng.normal());
        let readings: Vec<_> = (0..self.readings)
            .map(|at| {
                let (there, back) = (own[0] * (self.share)(a, b), own[1] * (self.share)(b, a));
                let (there, back) =
                    (there * (self.moment)(a, b, at), back * (self.moment)(b, a, at));
                let (there, back) = (self.add_noise(RATE * there), self.add_noise(RATE * back));
                serde_json::json!({"reading": at, "forward": stream(there),
                    "reverse": stream(back)})
            })
            .collect();
        let end = |at| serde_json::json!({"node": host(at).as_str(), "address": "192.0.2.1"});
        let document = serde_json::json!({"format": "fabricgate.tcp/1", "version": "0.1.0",
            "source": end(a), "destination": end(b), "rail": self.rail, "streams": 4,
            "unit": "GB/s", "complete": true, "readings": readings, "latency":
            {"median_us": 30.0}, "problems": []});
        let parsed = outputs::parse_output(document.to_string().as_bytes());
        self.recording(a, b, stage, parsed)
    }

    fn recording(&self, a: u32, b: u32, stage: u8, parsed: ParseOutput) -> ToolRecording {
        let file = format!("pairs/{}/{}/tcp-{stage}.json", host(a), host(b));
        let mut recording =
            ToolRecording::new(RecordingScope::Pair(host(a), host(b)), file, parsed);
        (recording.rail, recording.stage) = (self.rail.map(str::to_owned), Some(stage));
        recording
    }

    fn refused(&self, a: u32, b: u32) -> ToolRecording {
        let mut parsed = ParseOutput::for_tool(model::parse_output::Tool::FabricgateTcp);
        parsed.problems.push(OutputProblem::new(OutputProblemKind::Error, "connection refused"));
        self.recording(a, b, 2, parsed)
    }

    pub(super) fn measure(&mut self, pairs: &[(u32, u32)]) -> Vec<ToolRecording> {
        pairs.iter().map(|(a, b)| self.pair(*a, *b, 2)).collect()
    }

    pub(super) fn claims(&self) -> Claims {
        let domain = ClaimedDomain {
            name: "lab".into(),
            nodes: (0..self.hosts).map(host).collect(),
            platform: None,
            gpus_per_node: Some(0),
            nic: self.nic.then(|| "nic-lab".to_owned()),
        };
        Claims { domains: vec![domain], ..Claims::default() }
    }

    /// The expectation of the NIC class.
    pub(super) fn catalogue() -> PlatformCatalogue {
        let mut catalogue = PlatformCatalogue::default();
        let text = "format = \"fabricgate.thresholds/1\"\nplatform = \"nic-lab\"\ntitle = \"lab\"\n\
            [link.nic]\ncount = 1\nrate = 0.0125\nsource = \"tc\"\n\
            [test.tcp_throughput]\nefficiency = 1.0\ntolerance = 0.05\nfloor_ratio = 0.8\n\
            confidence = \"site\"\nsource = \"tc\"\n";
        overlay::apply(&mut catalogue, text, "lab.toml").expect("a good file");
        catalogue
    }

    pub(super) fn case<'a>(
        &self,
        claims: &'a Claims,
        recordings: &'a [ToolRecording],
        catalogue: &'a PlatformCatalogue,
    ) -> JudgeInput<'a> {
        JudgeInput {
            claims,
            recordings,
            catalogue,
            thresholds_digest: "t",
            platform: None,
            cells: true,
            sampled: false,
        }
    }

    pub(super) fn judge(&self, claims: &Claims, recordings: &[ToolRecording]) -> Judgement {
        judge_without_history(&self.case(claims, recordings, &Self::catalogue()))
    }

    /// The result after a second measurement, with the readings `again`.
    pub(super) fn confirm(
        &self,
        first: &Judgement,
        second: &Verdicts,
        again: &[ToolRecording],
    ) -> Verdicts {
        let (claims, catalogue) = (self.claims(), Self::catalogue());
        confirm::apply_confirmation(first, second, &self.case(&claims, again, &catalogue))
    }
}

/// The rate of a pair whose slower end counts.
fn slower(ends: &'static [(u32, f64)]) -> impl Fn(u32, u32) -> f64 + 'static {
    move |a, b| {
        let of = |host: u32| ends.iter().find(|(h, _)| *h == host).map_or(1.0, |(_, s)| *s);
        of(a).min(of(b))
    }
}

pub(super) fn judged(mut lab: TestNetwork, pairs: &[(u32, u32)]) -> Judgement {
    let recordings = lab.measure(pairs);
    lab.judge(&lab.claims(), &recordings)
}

#[test]
fn a_healthy_network_passes_and_without_a_class_its_level_is_not_known() {
    for seed in 0..30 {
        for pairs in [all(8), matching(8)] {
            let lab = TestNetwork::new(|_, _| 1.0).noise(0.01, 3, seed);
            let judged = judged(lab, &pairs);
            assert_eq!(loci(&judged), Vec::<String>::new(), "seed {seed}");
            assert_eq!(judged.verdicts.outcome, Outcome::Pass, "{:?}", judged.verdicts.nodes);
        }
    }
    let judged = judged(TestNetwork { nic: false, ..TestNetwork::new(|_, _| 1.0) }, &all(8));
    assert_eq!(judged.verdicts.outcome, Outcome::Unknown);
    assert!(judged.verdicts.nodes[0].reason.contains("its level had no reference"));
}

#[test]
fn slow_hosts_and_a_lossy_pair_are_found_in_a_complete_sweep() {
    for seed in 0..30 {
        for nic in [true, false] {
            let slow = slower(&[(2, 0.5), (5, 17.0 / 18.0)]);
            let share = move |a: u32, b: u32| {
                let lossy = (a.min(b), a.max(b)) == (0, 7);
                slow(a, b) * if lossy { 0.6 } else { 1.0 }
            };
            let lab = TestNetwork { nic, ..TestNetwork::new(share) }.noise(0.01, 5, seed);
            let judged = judged(lab, &all(8));
            let expected = [
                "degraded path-low pair host0 - host7",
                "degraded nic-low rail host2",
                "degraded nic-low rail host5",
            ];
            assert_eq!(loci(&judged), expected, "seed {seed}, class {nic}");
            for (host, outcome) in [
                ("host2", Outcome::Degraded),
                ("host5", Outcome::Degraded),
                ("host0", Outcome::Unknown),
                ("host7", Outcome::Unknown),
                ("host1", if nic { Outcome::Pass } else { Outcome::Unknown }),
            ] {
                assert_eq!(outcome_of(&judged, host), outcome, "{host}");
            }
        }
    }
}

#[test]
fn one_matching_makes_only_pairs_suspect() {
    for seed in 0..30 {
        let lab = TestNetwork::new(slower(&[(2, 0.5), (5, 17.0 / 18.0)])).noise(0.01, 5, seed);
        let judged = judged(lab, &matching(8));
        let expected =
            ["degraded path-low pair host2 - host3", "degraded path-low pair host4 - host5"];
        assert_eq!(loci(&judged), expected, "seed {seed}");
        for at in 0..8u32 {
            let wanted = if (2..6).contains(&at) { Outcome::Unknown } else { Outcome::Pass };
            assert_eq!(outcome_of(&judged, &format!("host{at}")), wanted, "host{at}");
        }
    }
}

#[test]
fn two_agreeing_readings_of_a_path_decide_only_a_hard_fault() {
    for (left, expected) in [(0.8, "unknown"), (0.5, "degraded")] {
        let lossy = move |a: u32, b: u32| if (a.min(b), a.max(b)) == (2, 3) { left } else { 1.0 };
        let judged = judged(TestNetwork::new(lossy).noise(0.002, 1, 4), &all(8));
        assert_eq!(loci(&judged), [format!("{expected} path-low pair host2 - host3")]);
        let summary = &judged.verdicts.findings[0].summary;
        assert_eq!(summary.contains("read this pair again"), left > 0.7, "{summary}");
        assert_eq!(outcome_of(&judged, "host2"), Outcome::Unknown);
        assert_eq!(outcome_of(&judged, "host4"), Outcome::Pass);
    }
}

#[test]
fn one_slow_direction_of_an_end_is_distinguished_from_both() {
    let lab = TestNetwork::new(|a, _| if a == 3 { 0.7 } else { 1.0 });
    assert_eq!(loci(&judged(lab, &all(8))), ["degraded nic-low rail host3 tx"]);
    let lab = TestNetwork::new(|_, b| if b == 3 { 0.7 } else { 1.0 });
    assert_eq!(loci(&judged(lab, &all(8))), ["degraded nic-low rail host3 rx"]);
}

#[test]
fn a_network_that_is_slow_everywhere_blames_no_host() {
    let judged = judged(TestNetwork::new(|_, _| 0.5), &matching(8));
    assert_eq!(loci(&judged), ["degraded network-low domain lab"]);
    assert!(judged.verdicts.nodes.iter().all(|n| n.outcome == Outcome::Unknown));
}

#[test]
fn slow_uplinks_belong_to_the_leaf_and_two_leaves_are_both_named() {
    for (hosts, leaves, expected) in
        [(12, 3, "degraded leaf-low leaf leaf1"), (8, 2, "degraded leaf-low leaf leaf0 - leaf1")]
    {
        let mut lab =
            TestNetwork::new(
                |a, b| if a / 4 != b / 4 && (a / 4 == 1 || b / 4 == 1) { 0.5 } else { 1.0 },
            );
        lab.hosts = hosts;
        let recordings = lab.measure(&all(hosts));
        let mut claims = lab.claims();
        claims.leaves = (0..leaves)
            .map(|leaf| ClaimedLeaf {
                name: format!("leaf{leaf}"),
                nodes: (4 * leaf..4 * leaf + 4).map(host).collect(),
            })
            .collect();
        let judged = lab.judge(&claims, &recordings);
        assert_eq!(loci(&judged), [expected]);
        assert!(judged.verdicts.nodes.iter().all(|n| n.outcome < Outcome::Degraded));
        assert_eq!(outcome_of(&judged, "host5"), Outcome::Unknown);
        if leaves == 3 {
            assert_eq!(outcome_of(&judged, "host9"), Outcome::Pass);
        }
    }
}

#[test]
fn two_slow_nics_of_four_under_a_leaf_are_not_a_slow_uplink() {
    let slow = |at: u32| at == 5 || at == 7;
    let mut lab = TestNetwork::new(move |a, b| if slow(a) || slow(b) { 0.5 } else { 1.0 });
    lab.hosts = 8;
    // The readings of a second measurement: each node of a leaf with all of the other one.
    let mut pairs: Vec<(u32, u32)> = (4..8).flat_map(|a| (0..4).map(move |b| (a, b))).collect();
    pairs.extend([(0, 1), (2, 3), (4, 6)]);
    let recordings = lab.measure(&pairs);
    let mut claims = lab.claims();
    claims.leaves = (0..2)
        .map(|leaf| ClaimedLeaf {
            name: format!("leaf{leaf}"),
            nodes: (4 * leaf..4 * leaf + 4).map(host).collect(),
        })
        .collect();
    let judged = lab.judge(&claims, &recordings);
    assert_eq!(loci(&judged), ["degraded nic-low rail host5", "degraded nic-low rail host7"]);
}

#[test]
fn a_host_that_several_partners_do_not_reach_has_failed_and_one_refusal_is_unknown() {
    let mut lab = TestNetwork::new(|_, _| 1.0);
    let mut recordings = lab.measure(&all(8));
    for recording in recordings.iter_mut() {
        let RecordingScope::Pair(a, b) = recording.scope.clone() else { panic!("a pair") };
        if a == host(6) || b == host(6) {
            recording.parsed = lab.refused(0, 1).parsed;
        }
    }
    let judged = lab.judge(&lab.claims(), &recordings);
    assert_eq!(loci(&judged), ["failed nic-unreachable rail host6"]);
    assert_eq!(outcome_of(&judged, "host0"), Outcome::Pass);

    let mut recordings = lab.measure(&all(8));
    recordings[0] = lab.refused(0, 1);
    let judged = lab.judge(&lab.claims(), &recordings);
    assert_eq!(loci(&judged), ["unknown nic-unreachable pair host0 - host1"]);
    for (host, outcome) in
        [("host0", Outcome::Unknown), ("host1", Outcome::Unknown), ("host2", Outcome::Pass)]
    {
        assert_eq!(outcome_of(&judged, host), outcome);
    }
}

/// perftest's standard error for a port without link.
const NO_LINK: &[u8] = b" Port number 1 state is Down\n Couldn't set the link layer\n \
    Couldn't get context for the device\n";

#[test]
fn a_run_that_failed_in_several_lines_failed_once() {
    for (stderr, reached) in [
        (NO_LINK, false),
        (b"Couldn't connect to h:18515\nUnable to init the socket connection\n", false),
        (b"Completion with error at client\nFailed status 12: wr_id 0 syndrom 0x81\n", false),
        (b"Completion with error at client\nFailed status 4: wr_id 0 syndrom 0x81\n", true),
    ] {
        let mut lab = TestNetwork::new(|_, _| 1.0);
        let mut recordings = lab.measure(&all(8));
        for recording in recordings.iter_mut() {
            let RecordingScope::Pair(a, b) = recording.scope.clone() else { panic!("a pair") };
            if a == host(6) || b == host(6) {
                recording.parsed = outputs::parse_streams(b"", stderr);
            }
        }
        let judged = lab.judge(&lab.claims(), &recordings);
        let failed = ["failed nic-unreachable rail host6"];
        let expected: &[&str] = if reached { &[] } else { &failed };
        assert_eq!(loci(&judged), expected, "{}", String::from_utf8_lossy(stderr));
        assert_ne!(outcome_of(&judged, "host6"), Outcome::Pass);
    }
}

#[test]
fn a_rail_on_which_most_pairs_fail_makes_no_pair_a_suspect() {
    for (cut, open) in [(1, 1), (3, 0), (4, 0)] {
        let mut lab = TestNetwork::new(|_, _| 1.0);
        lab.cut = Box::new(move |a, _| a / 2 < cut);
        let judged = judged(lab, &matching(8));
        assert_eq!(judged.verdicts.findings.len(), open, "{cut}");
        let unknown = judged.verdicts.nodes.iter().filter(|n| n.outcome == Outcome::Unknown);
        assert_eq!(unknown.count(), 2 * cut as usize);
    }
}

#[test]
fn wrong_data_concerns_the_pair_and_an_unmeasured_host_is_unknown() {
    let mut lab = TestNetwork::new(|_, _| 1.0);
    let mut pairs = all(8);
    pairs.retain(|(a, b)| *a != 7 && *b != 7);
    let mut recordings = lab.measure(&pairs);
    let corrupt =
        OutputProblem::new(OutputProblemKind::Corrupt, "9 bytes were sent and 8 were received");
    recordings[0].parsed.problems.push(corrupt);
    let judged = lab.judge(&lab.claims(), &recordings);
    assert_eq!(loci(&judged), ["failed data-corruption pair host0 - host1"]);
    assert_eq!(outcome_of(&judged, "host0"), Outcome::Unknown);
    assert_eq!(outcome_of(&judged, "host2"), Outcome::Pass);
    assert_eq!(outcome_of(&judged, "host7"), Outcome::Unknown);
}

#[test]
fn every_claimed_rail_must_be_measured() {
    let mut lab = TestNetwork { rail: Some("rail0"), ..TestNetwork::new(slower(&[(3, 0.5)])) };
    let mut claims = lab.claims();
    let rail =
        |name: &str| ClaimedRail { name: name.to_owned(), device: None, network: None, rdma: None };
    claims.rails = vec![rail("rail0"), rail("rail1")];
    let mut recordings = lab.measure(&all(8));
    let judged = lab.judge(&claims, &recordings);
    assert_eq!(loci(&judged), ["degraded nic-low rail host3 rail rail0"]);
    assert!(judged.verdicts.nodes.iter().all(|n| n.outcome != Outcome::Pass));
    lab.rail = Some("rail1");
    lab.share = Box::new(|_, _| 1.0);
    recordings.extend(lab.measure(&all(8)));
    let judged = lab.judge(&claims, &recordings);
    assert_eq!(outcome_of(&judged, "host0"), Outcome::Pass, "{:?}", judged.verdicts.nodes);
    assert_eq!(outcome_of(&judged, "host3"), Outcome::Degraded);
    let rails: BTreeMap<Option<String>, usize> =
        judged.cells.iter().fold(BTreeMap::new(), |mut rails, cell| {
            *rails.entry(cell.rail.clone()).or_default() += 1;
            rails
        });
    // 28 pairs, 5 readings each way and one of latency each way.
    assert_eq!(rails.into_values().collect::<Vec<_>>(), [336, 336]);
    let degraded = judged.cells.iter().filter(|c| c.outcome == Outcome::Degraded).count();
    assert_eq!(degraded, 7 * 2 * 5);
    assert!(judged.cells.iter().all(|c| c.stage == Some(2) && c.src_gpu.is_none()));
}

#[test]
fn a_slow_nic_degrades_a_node_with_gpus_and_a_slow_path_never_does() {
    for (share, expected) in [
        (slow_end as fn(u32, u32) -> f64, [Outcome::Degraded, Outcome::Pass]),
        (slow_path, [Outcome::Unknown, Outcome::Unknown]),
    ] {
        let mut bench = TestMachine::with_platform(platform("hgx", 8, 1, 396.0), 8, 8);
        let mut recordings = bench.record();
        let mut lab = TestNetwork::new(share);
        let pairs = lab.measure(&all(8));
        recordings.extend(pairs.into_iter().map(|mut recording| {
            let RecordingScope::Pair(a, b) = &recording.scope else { panic!("a pair") };
            let node = |host: &NodeName| {
                TestMachine::node(
                    host.as_str().trim_start_matches("host").parse().expect("a number"),
                )
            };
            recording.scope = RecordingScope::Pair(node(a), node(b));
            recording
        }));
        let judged = bench.judge_these(&recordings);
        let outcomes = ["node0004", "node0005"].map(|node| outcome_of(&judged, node));
        assert_eq!(outcomes, expected, "{:?}", loci(&judged));
        assert_eq!(outcome_of(&judged, "node0001"), Outcome::Pass);
    }
}

#[test]
fn a_pair_without_a_reference_is_noted() {
    let lab = || TestNetwork { nic: false, ..TestNetwork::new(|_, _| 0.5) };
    let count_notes = |pairs: &[(u32, u32)]| {
        let notes = judged(lab(), pairs).verdicts.notes;
        notes.into_iter().filter(|note| note.contains("without a reference")).count()
    };
    assert_eq!((count_notes(&[(0, 1)]), count_notes(&all(8))), (1, 0));
    let known = judged(TestNetwork::new(|_, _| 1.0), &[(0, 1)]).verdicts.notes;
    assert_eq!(known, Vec::<String>::new());
}

fn slow_end(a: u32, b: u32) -> f64 {
    if a == 3 || b == 3 { 0.5 } else { 1.0 }
}

fn slow_path(a: u32, b: u32) -> f64 {
    if (a.min(b), a.max(b)) == (3, 4) { 0.5 } else { 1.0 }
}

#[test]
fn long_round_trips_are_noted() {
    let mut lab = TestNetwork::new(|_, _| 1.0);
    let mut recordings = lab.measure(&all(8));
    for measurement in &mut recordings[4].parsed.measurements {
        if let model::measurement::Measurement::Matrix(m) = measurement
            && m.testcase.as_deref() == Some("tcp_latency")
        {
            m.cells.iter_mut().flatten().flatten().for_each(|us| *us = 95.0);
        }
    }
    let judged = lab.judge(&lab.claims(), &recordings);
    assert_eq!(judged.verdicts.outcome, Outcome::Pass);
    assert!(judged.verdicts.notes.iter().any(|n| n.contains("round trips")));
}

#[test]
fn other_tools_between_two_nodes_report_the_direction_of_the_data() {
    let iperf = |reverse: u32, bits: f64| {
        let text = serde_json::json!({"start": {"version": "iperf 3.16", "test_start":
            {"protocol": "TCP", "reverse": reverse}, "connecting_to": {"host": "192.0.2.9"}},
            "intervals": [], "end": {"sum_received": {"bits_per_second": bits},
            "sum_sent": {"bits_per_second": bits}}});
        outputs::parse_output(text.to_string().as_bytes())
    };
    let lab = TestNetwork { nic: false, ..TestNetwork::new(|_, _| 1.0) };
    let mut recordings = Vec::new();
    for (a, b) in all(8) {
        let rate = |from: u32| if from == 3 { 5e7 } else { 1e8 };
        for (reverse, from) in [(0, a), (1, b)] {
            for _ in 0..2 {
                recordings.push(lab.recording(a, b, 2, iperf(reverse, rate(from))));
            }
        }
    }
    let judged = lab.judge(&lab.claims(), &recordings);
    assert_eq!(loci(&judged), ["degraded nic-low rail host3 tx"]);
}

/// The number of 20 labs in which a finding names host 3, and the number of other findings.
fn tally(make: impl Fn() -> TestNetwork, pairs: &[(u32, u32)], readings: u32) -> (usize, usize) {
    let (mut found, mut others) = (0, 0);
    for seed in 0..20 {
        let lab = make();
        let sigma = lab.sigma;
        let judged = judged(lab.noise(sigma, readings, seed), pairs);
        for finding in &judged.verdicts.findings {
            let locus = &finding.locus;
            let mine = locus.node == Some(host(3)) || locus.peer.as_deref() == Some("host3");
            if mine {
                found += 1;
            } else {
                others += 1;
            }
        }
    }
    (found, others)
}

#[test]
fn dips_and_small_differences_between_pairs_are_not_findings() {
    for (sigma, spread) in [(0.003, 0.0), (0.01, 0.0), (0.02, 0.0), (0.003, 0.01)] {
        for nic in [true, false] {
            let make =
                || TestNetwork { sigma, spread, dips: 0.005, nic, ..TestNetwork::new(|_, _| 1.0) };
            assert_eq!(tally(make, &all(8), 3), (0, 0), "{sigma} {spread}");
            assert_eq!(tally(make, &matching(8), 3), (0, 0), "{sigma} {spread}");
        }
    }
}

#[test]
fn a_matching_with_quiet_readings_finds_a_loss_of_one_eighteenth() {
    let slow = || slower(&[(3, 17.0 / 18.0)]);
    for (sigma, readings, pairs, fewest) in [
        (0.003, 3, matching(8), 20),
        (0.01, 5, matching(8), 19),
        // Three readings of 1 % leave one pair in fifteen undecided.
        (0.01, 3, matching(8), 17),
        (0.01, 3, matching(64), 19),
        (0.02, 3, all(8), 20),
    ] {
        let hosts = if pairs.len() == 32 { 64 } else { 8 };
        let make = || TestNetwork { sigma, hosts, dips: 0.005, ..TestNetwork::new(slow()) };
        let (found, others) = tally(make, &pairs, readings);
        assert!(fewest <= found && others == 0, "{sigma} {readings}: {found}, {others} others");
    }
}
