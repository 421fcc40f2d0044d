//! Several rails between nodes, as in perftest's outputs: identifying the rail, comparing rails,
//! and detection limits.

use std::collections::{BTreeMap, BTreeSet};

use super::network::{all, matching};
use super::test_machine::{TestMachine, TestRng, loci, outcome_of, unknown_nodes};
use crate::judge::{JudgeInput, Judgement, confirm, judge_without_history};
use crate::thresholds::{PlatformCatalogue, overlay};
use model::claims::{ClaimedRail, Claims};
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::tool_recording::{CONFIRM_STAGE, RecordingScope, ToolRecording};
use model::verdict::Outcome;
use readers::outputs;

const LINE: &str =
    "---------------------------------------------------------------------------------------\n";

/// One copy from a node to another: rail, source, destination and reading.
#[derive(Clone, Copy)]
struct RailCopy {
    rail: u32,
    src: u32,
    dst: u32,
    reading: u32,
}

impl RailCopy {
    fn has(self, node: u32) -> bool {
        self.src == node || self.dst == node
    }
}

/// Eight GPUs a node, and NICs between nodes.
struct RailFleet {
    rails: u32,
    readings: u32,
    sigma: f64,
    /// The class of NIC is claimed.
    class: bool,
    /// Rails are claimed by their devices.
    claimed: bool,
    dice: TestRng,
    /// The share of the full rate.
    rate: Box<dyn Fn(RailCopy) -> f64>,
    bench: TestMachine,
}

impl RailFleet {
    fn new(nodes: u32, rate: impl Fn(RailCopy) -> f64 + 'static) -> Self {
        Self {
            rails: 8,
            readings: 1,
            sigma: 0.005,
            class: false,
            claimed: false,
            dice: TestRng(11),
            rate: Box::new(rate),
            bench: TestMachine::hgx(nodes),
        }
    }

    fn output(&mut self, copy: RailCopy, stage: u8) -> ToolRecording {
        let rate = 390.0 * (self.rate)(copy) * (1.0 + self.sigma * self.dice.normal());
        let text = format!(
            "{LINE}                    RDMA_Write BW Test\n \
             Dual-port       : OFF\t\tDevice         : mlx5_{}\n \
             Number of qps   : 4\t\tTransport type : IB\n \
             Connection type : RC\t\tUsing SRQ      : OFF\n{LINE} \
             #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n \
             1048576    5000             {:.2}             {rate:.2}\t\t     0.046\n{LINE}",
            copy.rail,
            rate + 1.0
        );
        let [a, b] = [copy.src, copy.dst].map(TestMachine::node);
        let file = format!("pairs/{a}/{b}/{}-{stage}-{}.txt", copy.rail, copy.reading);
        let parsed = outputs::parse_output(text.as_bytes());
        let mut recording = ToolRecording::new(RecordingScope::Pair(a, b), file, parsed);
        recording.stage = Some(stage);
        recording
    }

    /// Both directions of these pairs over one rail.
    fn over(&mut self, rail: u32, pairs: &[(u32, u32)], stage: u8) -> Vec<ToolRecording> {
        let mut recordings = Vec::new();
        for (a, b) in pairs {
            for (src, dst) in [(*a, *b), (*b, *a)] {
                for reading in 0..self.readings {
                    recordings.push(self.output(RailCopy { rail, src, dst, reading }, stage));
                }
            }
        }
        recordings
    }

    fn measure(&mut self, pairs: &[(u32, u32)]) -> Vec<ToolRecording> {
        let mut recordings = self.bench.record();
        for rail in 0..self.rails {
            recordings.extend(self.over(rail, pairs, 2));
        }
        recordings
    }

    fn judge(&self, recordings: &[ToolRecording]) -> Judgement {
        let rail = |number| ClaimedRail {
            name: format!("rail{number}"),
            device: None,
            network: None,
            rdma: Some(format!("mlx5_{number}")),
        };
        let claimed = (0..self.rails).filter(|_| self.claimed).map(rail).collect();
        self.judge_claiming(recordings, claimed)
    }

    /// Judges them against claims of these rails.
    fn judge_claiming(&self, recordings: &[ToolRecording], rails: Vec<ClaimedRail>) -> Judgement {
        let mut claims: Claims = Claims { rails, ..self.bench.claims() };
        for domain in &mut claims.domains {
            domain.nic = self.class.then(|| "nic-lab".to_owned());
        }
        let platform = &self.bench.platform;
        let platforms = BTreeMap::from([(platform.name.clone(), platform.clone())]);
        let mut catalogue = PlatformCatalogue { platforms };
        let text = "format = \"fabricgate.thresholds/1\"\nplatform = \"nic-lab\"\ntitle = \"lab\"\n\
            [link.nic]\ncount = 1\nrate = 50.0\nsource = \"tc\"\n\
            [test.ib_write_bw]\nefficiency = 0.98\ntolerance = 0.07\nfloor_ratio = 0.8\n\
            confidence = \"site\"\nsource = \"tc\"\n";
        overlay::apply(&mut catalogue, text, "lab.toml").expect("a good file");
        judge_without_history(&JudgeInput {
            claims: &claims,
            recordings,
            catalogue: &catalogue,
            thresholds_digest: "t",
            platform: None,
            cells: true,
            sampled: false,
        })
    }

    fn judged(mut self, pairs: &[(u32, u32)]) -> Judgement {
        let recordings = self.measure(pairs);
        self.judge(&recordings)
    }
}

/// The NICs of these nodes on rail 3 at half their rate.
fn half(nodes: &'static [u32]) -> impl Fn(RailCopy) -> f64 {
    move |copy| {
        if copy.rail == 3 && nodes.iter().any(|node| copy.has(*node)) { 0.5 } else { 1.0 }
    }
}

fn reason<'j>(judged: &'j Judgement, node: &str) -> &'j str {
    &judged.verdicts.nodes.iter().find(|n| n.node.as_str() == node).expect("judged").reason
}

#[test]
fn one_nic_of_eight_is_named_with_its_rail_whatever_is_claimed() {
    for (class, claimed) in [(true, true), (true, false), (false, true), (false, false)] {
        let rail = if claimed { "rail3" } else { "mlx5_3" };
        let fleet = |rate: Box<dyn Fn(RailCopy) -> f64>| RailFleet {
            class,
            claimed,
            ..RailFleet::new(8, rate)
        };
        let judged = fleet(Box::new(half(&[4]))).judged(&all(8));
        assert_eq!(loci(&judged), [format!("degraded nic-low rail node0005 rail {rail}")]);
        assert_eq!(outcome_of(&judged, "node0001"), Outcome::Pass);
        let low = judged.cells.iter().filter(|c| c.outcome == Outcome::Degraded);
        assert!(low.clone().all(|c| c.rail.as_deref() == Some(rail)));
        assert_eq!(low.count(), if class { 14 } else { 0 });

        let sends = |copy: RailCopy| if copy.rail == 3 && copy.src == 4 { 0.7 } else { 1.0 };
        let judged = fleet(Box::new(sends)).judged(&all(8));
        assert_eq!(loci(&judged), [format!("degraded nic-low rail node0005 rail {rail} tx")]);

        let judged = fleet(Box::new(half(&[4]))).judged(&matching(8));
        let pair = format!("degraded path-low pair node0005 - node0006 rail {rail}");
        assert_eq!(loci(&judged), [pair]);
        assert_eq!(unknown_nodes(&judged), ["node0005", "node0006"]);
    }
}

#[test]
fn nodes_with_one_device_each_share_one_rail_under_any_device_name() {
    let mut fleet =
        RailFleet { rails: 1, ..RailFleet::new(8, |copy| if copy.has(4) { 0.5 } else { 1.0 }) };
    let mut recordings = fleet.measure(&all(8));
    let judged = fleet.judge(&recordings);
    assert_eq!(loci(&judged), ["degraded nic-low rail node0005 rail mlx5_0"]);
    for recording in &mut recordings {
        let RecordingScope::Pair(client, _) = &recording.scope else { continue };
        let device = format!("mlx5_{}", &client.as_str()[7..]);
        recording.parsed.facts.parameters.insert("device".to_owned(), device);
    }
    let judged = fleet.judge(&recordings);
    assert_eq!(loci(&judged), ["degraded nic-low rail node0005"]);
}

/// The GID of a node on a rail, instead of its device or in addition to it.
fn with_gids(recordings: &mut [ToolRecording], gid: impl Fn(u32, u32) -> String) {
    for recording in recordings {
        let RecordingScope::Pair(client, _) = &recording.scope else { continue };
        let node: u32 = client.as_str()[4..].parse().expect("a number");
        let parameters = &mut recording.parsed.facts.parameters;
        let device = parameters.remove("device").expect("a device");
        let rail: u32 = device[5..].parse().expect("a number");
        parameters.insert("gid".to_owned(), gid(node, rail));
    }
}

#[test]
fn a_rail_without_a_device_is_named_after_the_network_of_its_gid() {
    let slow = half(&[4]);
    let mut fleet = RailFleet { rails: 4, ..RailFleet::new(8, slow) };
    let mut recordings = fleet.measure(&all(8));
    let devices = recordings.clone();
    with_gids(&mut recordings, |node, rail| format!("10.7.{rail}.{node}"));
    let judged = fleet.judge(&recordings);
    assert_eq!(loci(&judged), ["degraded nic-low rail node0005 rail 10.7.3.0/24"]);
    with_gids_of_ib(&mut recordings, &devices);
    let judged = fleet.judge(&recordings);
    assert_eq!(loci(&judged), ["degraded nic-low rail node0005 rail fd00:0:0:3::/64"]);
    // A GID that a port generates itself is not a network: that is one rail, as without it.
    recordings.clone_from(&devices);
    with_gids(&mut recordings, |node, _| format!("fe80::{node}"));
    assert!(loci(&fleet.judge(&recordings)).iter().all(|found| !found.contains("fe80")));
    // A claim for the network names it, whatever each node calls its devices.
    let claim = |rail: u32| ClaimedRail {
        name: format!("rail{rail}"),
        device: None,
        network: Some(format!("10.7.{rail}.0/24")),
        rdma: None,
    };
    recordings.clone_from(&devices);
    with_gids(&mut recordings, |node, rail| format!("10.7.{rail}.{node}"));
    for (at, recording) in recordings.iter_mut().enumerate() {
        let device = format!("mlx5_{}", at % 4);
        recording.parsed.facts.parameters.insert("device".to_owned(), device);
    }
    let judged = fleet.judge_claiming(&recordings, (0..4).map(claim).collect());
    assert_eq!(loci(&judged), ["degraded nic-low rail node0005 rail rail3"]);
    // A claim for the device comes before it.
    let rdma = |rail: u32| ClaimedRail { rdma: Some(format!("mlx5_{rail}")), ..claim(3 - rail) };
    let mut both = devices;
    for recording in &mut both {
        recording.parsed.facts.parameters.insert("gid".to_owned(), "10.7.0.1".to_owned());
    }
    let judged = fleet.judge_claiming(&both, (0..4).map(rdma).collect());
    assert_eq!(loci(&judged), ["degraded nic-low rail node0005 rail rail0"]);
}

/// The same with subnet prefixes of InfiniBand.
fn with_gids_of_ib(recordings: &mut Vec<ToolRecording>, devices: &[ToolRecording]) {
    *recordings = devices.to_vec();
    with_gids(recordings, |node, rail| format!("fd00:0:0:{rail}::{node}"));
}

#[test]
fn a_rail_whose_pairs_all_have_a_bad_end_does_not_pass() {
    for class in [true, false] {
        for pairs in [matching(8), vec![(0, 1), (2, 3), (4, 5), (6, 7), (0, 3), (2, 1)]] {
            let fleet = RailFleet { class, ..RailFleet::new(8, half(&[1, 3, 5, 7])) };
            let judged = fleet.judged(&pairs);
            let outcome = if class { "degraded" } else { "unknown" };
            let found = format!("{outcome} network-low domain rail mlx5_3");
            assert_eq!(loci(&judged).len(), 1, "{:?}", loci(&judged));
            let seen = &judged.verdicts.findings[0];
            assert_eq!(
                (seen.class.as_str(), seen.locus.rail.as_deref()),
                ("network-low", Some("mlx5_3")),
                "{found}"
            );
            assert_eq!(seen.outcome, if class { Outcome::Degraded } else { Outcome::Unknown });
            assert_eq!(unknown_nodes(&judged).len(), 8);
        }
    }
    // Rails of one kind differ by a few percent, which is not a fault of a rail.
    let apart = |copy: RailCopy| 1.0 - 0.01 * f64::from(copy.rail);
    for pairs in [all(8), matching(8)] {
        let judged = RailFleet::new(8, apart).judged(&pairs);
        assert_eq!(loci(&judged), Vec::<String>::new());
        assert_eq!(judged.verdicts.outcome, Outcome::Pass, "{:?}", judged.verdicts.nodes);
    }
}

#[test]
fn suspects_never_set_their_own_level_however_often_they_are_read() {
    for class in [true, false] {
        let mut fleet = RailFleet { class, ..RailFleet::new(8, half(&[4, 5])) };
        let mut recordings = fleet.measure(&matching(8));
        let first = fleet.judge(&recordings);
        assert_eq!(loci(&first), ["degraded path-low pair node0005 - node0006 rail mlx5_3"]);
        assert_eq!(unknown_nodes(&first), ["node0005", "node0006"]);
        let suspects = confirm::find_suspects(&first);
        fleet.readings = 5;
        let again: Vec<(u32, u32)> =
            [4, 5].into_iter().flat_map(|bad| [0, 1, 2, 3].map(|good| (good, bad))).collect();
        recordings.extend(fleet.over(3, &again, CONFIRM_STAGE));
        let second = fleet.judge(&confirm::select_confirm_recordings(&recordings, &suspects));
        let low =
            ["node0005", "node0006"].map(|n| format!("degraded nic-low rail {n} rail mlx5_3"));
        assert_eq!(loci(&second), low, "class {class}");
        let again: Vec<ToolRecording> =
            recordings.iter().filter(|r| r.stage == Some(CONFIRM_STAGE)).cloned().collect();
        let last = fleet.bench.confirm(&first, &second.verdicts, &again);
        let found: BTreeSet<(&str, bool)> =
            last.findings.iter().map(|f| (f.class.as_str(), f.confirmed)).collect();
        assert_eq!(found, [("nic-low", true)].into(), "{:#?}", last.findings);
        let degraded = last.nodes.iter().filter(|n| n.outcome == Outcome::Degraded).count();
        assert_eq!(degraded, 2);
    }
}

#[test]
fn partners_of_two_slow_nics_are_not_blamed_and_no_finding_contradicts_its_number() {
    for seed in 0..20 {
        for class in [true, false] {
            for few in [true, false] {
                // Four nodes measured with both, and with one or two others.
                let mut pairs =
                    vec![(0, 4), (0, 5), (1, 4), (1, 5), (2, 4), (2, 5), (3, 4), (3, 5)];
                pairs.extend([(0, 6), (1, 6), (2, 7), (3, 7), (6, 7)]);
                pairs.extend([(0, 7), (1, 7), (2, 6), (3, 6)].into_iter().filter(|_| !few));
                let dice = TestRng(seed);
                let judged =
                    RailFleet { class, dice, ..RailFleet::new(8, half(&[4, 5])) }.judged(&pairs);
                let blamed =
                    judged.verdicts.findings.iter().filter(|f| f.class.as_str() == "nic-low");
                let blamed: Vec<&str> =
                    blamed.map(|f| f.locus.node.as_ref().expect("a node").as_str()).collect();
                let is_slow = |node: &&str| ["node0005", "node0006"].contains(node);
                assert!(blamed.iter().all(is_slow), "seed {seed}: {:?}", loci(&judged));
                for found in
                    judged.verdicts.findings.iter().filter(|f| Outcome::Unknown < f.outcome)
                {
                    let ratio = found.deciding_share().expect("a rate");
                    assert!(ratio < 0.972 && !found.summary.contains("-0."), "{}", found.summary);
                }
            }
        }
    }
}

#[test]
fn a_claimed_rail_without_a_measurement_is_a_gap() {
    let mut fleet = RailFleet { claimed: true, ..RailFleet::new(8, |_| 1.0) };
    let mut recordings = fleet.measure(&matching(8));
    let of_pair = |r: &ToolRecording| {
        r.file.starts_with("pairs/node0001/") || r.file.starts_with("pairs/node0002/")
    };
    recordings.retain(|r| !of_pair(r) || !r.file.contains("/3-"));
    let judged = fleet.judge(&recordings);
    assert_eq!(unknown_nodes(&judged), ["node0001", "node0002"]);
    assert!(reason(&judged, "node0001").contains("rail3 was not measured"));
    // A claimed rail asserts that every node reaches the others over it.
    recordings.retain(|r| !of_pair(r));
    let judged = fleet.judge(&recordings);
    assert_eq!(unknown_nodes(&judged), ["node0001", "node0002"]);
    assert!(reason(&judged, "node0001").contains("was not measured between it and another node"));
}

#[test]
fn a_pair_without_a_reference_is_unknown_and_other_rails_are_a_reference() {
    let alone = RailFleet { rails: 1, ..RailFleet::new(2, |_| 1.0) }.judged(&[(0, 1)]);
    assert_eq!((loci(&alone).len(), unknown_nodes(&alone).len()), (0, 2));
    assert!(reason(&alone, "node0001").contains("without a reference"));
    let class = RailFleet { rails: 1, class: true, ..RailFleet::new(2, |_| 1.0) }.judged(&[(0, 1)]);
    assert_eq!(class.verdicts.outcome, Outcome::Pass, "{:?}", class.verdicts);

    for rails in [2, 8] {
        let judged = RailFleet { rails, ..RailFleet::new(2, |_| 1.0) }.judged(&[(0, 1)]);
        assert_eq!(judged.verdicts.outcome, Outcome::Pass, "{:?}", judged.verdicts);
    }
    let judged = RailFleet::new(2, half(&[1])).judged(&[(0, 1)]);
    assert_eq!(loci(&judged), ["degraded path-low pair node0001 - node0002 rail mlx5_3"]);
    assert_eq!(unknown_nodes(&judged).len(), 2);
    // With two rails, the correct one is ambiguous.
    let second = |copy: RailCopy| if copy.rail == 1 { 0.5 } else { 1.0 };
    let judged = RailFleet { rails: 2, ..RailFleet::new(2, second) }.judged(&[(0, 1)]);
    assert_eq!((loci(&judged).len(), unknown_nodes(&judged).len()), (0, 2));
}

#[test]
fn the_detection_limit_of_a_node_includes_its_rails() {
    let quiet = RailFleet { readings: 3, ..RailFleet::new(8, |_| 1.0) }.judged(&matching(8));
    assert_eq!(quiet.verdicts.outcome, Outcome::Pass, "{:?}", quiet.verdicts.nodes);
    for node in &quiet.verdicts.nodes {
        let all = node.detectable.expect("a limit");
        let inside = node.fabric_detectable.expect("a limit");
        // A matching determines a node's rail from a few readings, and an island from hundreds.
        assert!(inside < all && all < 0.06, "{inside} {all}");
        assert!(node.reason.contains("over mlx5_"), "{}", node.reason);
    }
    let noisy =
        RailFleet { readings: 3, sigma: 0.08, ..RailFleet::new(8, |_| 1.0) }.judged(&matching(8));
    assert_eq!(unknown_nodes(&noisy).len(), 8);
    assert!(noisy.verdicts.findings.iter().all(|f| f.outcome < Outcome::Degraded));
    assert!(reason(&noisy, "node0001").contains("too noisy over mlx5_"));
}

#[test]
fn a_storm_at_one_port_in_one_of_three_readings_does_not_pass() {
    let storm = |copy: RailCopy| {
        if copy.rail == 3 && copy.has(4) && copy.reading == 1 { 0.5 } else { 1.0 }
    };
    for class in [true, false] {
        let fleet = || RailFleet { readings: 3, class, ..RailFleet::new(8, storm) };
        let judged = fleet().judged(&all(8));
        assert_eq!(loci(&judged), ["unknown unstable rail node0005 rail mlx5_3"]);
        assert_eq!(unknown_nodes(&judged), ["node0005"]);
        let judged = fleet().judged(&matching(8));
        assert_eq!(loci(&judged), ["unknown unstable pair node0005 - node0006 rail mlx5_3"]);
        assert_eq!(unknown_nodes(&judged), ["node0005", "node0006"]);
    }
    // One reading that dips is not a finding, in one direction or over another rail at the same
    // moment.
    for dip in [3, 4] {
        let dips = move |copy: RailCopy| {
            let here = copy.reading == 1 && (copy.src, copy.dst) == (4, 5);
            if here && (copy.rail == 3 || copy.rail == dip) { 0.7 } else { 1.0 }
        };
        for pairs in [all(8), matching(8)] {
            let judged = RailFleet { readings: 3, ..RailFleet::new(8, dips) }.judged(&pairs);
            assert_eq!(loci(&judged), Vec::<String>::new());
            assert_eq!(judged.verdicts.outcome, Outcome::Pass, "{:?}", judged.verdicts.nodes);
        }
    }
}

/// An output without a rate.
fn broken(recording: &mut ToolRecording, detail: &str, device: bool) {
    let mut parsed = ParseOutput::for_tool(Tool::Perftest);
    let named = recording.parsed.facts.parameters.get("device").cloned().filter(|_| device);
    parsed.facts.parameters.extend(named.map(|name| ("device".to_owned(), name)));
    parsed.problems.push(OutputProblem::new(OutputProblemKind::Error, detail));
    recording.parsed = parsed;
}

#[test]
fn a_node_that_fails_with_all_partners_over_a_rail_is_failed_and_they_pass() {
    for (detail, outcome) in
        [("connection refused", Outcome::Failed), ("a bad option", Outcome::Unknown)]
    {
        for device in [true, false] {
            for count in [3, 7] {
                let mut fleet = RailFleet::new(8, |_| 1.0);
                // Each node with some of the others.
                let near = |(a, b): &(u32, u32)| {
                    let apart = (b - a).min(8 + a - b);
                    count == 7 || apart == 4 || apart == 1
                };
                let pairs: Vec<(u32, u32)> = all(8).into_iter().filter(near).collect();
                let mut recordings = fleet.measure(&pairs);
                for recording in &mut recordings {
                    let RecordingScope::Pair(a, b) = recording.scope.clone() else { continue };
                    let of_rail = recording.parsed.facts.parameters.get("device");
                    if [&a, &b].contains(&&TestMachine::node(4))
                        && of_rail.is_some_and(|d| d == "mlx5_3")
                    {
                        broken(recording, detail, device);
                    }
                }
                let judged = fleet.judge(&recordings);
                assert_eq!(outcome_of(&judged, "node0005"), outcome, "{detail} {device} {count}");
                let rest = judged.verdicts.nodes.iter().filter(|n| n.outcome == Outcome::Pass);
                assert_eq!(rest.count(), 7, "{:?}", judged.verdicts.nodes);
            }
        }
    }
}
