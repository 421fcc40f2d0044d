//! Made-up runs for the tests of reports. No number here was measured.

#[path = "fixture/multi_run.rs"]
pub(super) mod multi_run;

use std::sync::Arc;

use model::action::{Action, ActionKind, ActionPlan, WithheldAction};
use model::claims::{ClaimedDomain, ClaimedLeaf, Claims};
use model::finding_class::FindingClass;
use model::finding_rule::FindingRule;
use model::id::{DomainName, NodeName};
use model::measured_cell::MeasuredCell;
use model::run::{Run, RunInfo};
use model::unit::Unit;
use model::unknown_subject::UnknownSubject;
use model::verdict::{
    Evidence, Finding, Locus, LocusKind, NodeVerdict, Outcome, UnknownEntry, Verdicts,
};

pub(super) fn all() -> Vec<Run> {
    vec![rack(), hgx(), empty(), hostile()]
}

/// Deterministic noise of at most 0.2 %.
fn noise(seed: u32) -> f64 {
    let mixed = seed.wrapping_mul(2_654_435_761).rotate_left(13).wrapping_mul(2_246_822_519);
    (f64::from(mixed >> 8) / f64::from(u32::MAX >> 8) - 0.5) * 0.004
}

fn info(id: &str, profile: &str, source: &str) -> RunInfo {
    RunInfo {
        id: id.to_owned(),
        created: "2026-03-04T05:06:07Z".to_owned(),
        profile: profile.to_owned(),
        source: source.to_owned(),
        version: "0.1.0".to_owned(),
        simulated: false,
    }
}

fn verdicts(platform: Option<&str>, outcome: Outcome) -> Verdicts {
    Verdicts {
        platform: platform.map(str::to_owned),
        thresholds_digest:
            "sha256:5c0ffee5c0ffee5c0ffee5c0ffee5c0ffee5c0ffee5c0ffee5c0ffee5c0ffee5".to_owned(),
        ..Verdicts::empty(outcome)
    }
}

fn domain(name: &str, nodes: &[NodeName], platform: &str, gpus: u32) -> ClaimedDomain {
    ClaimedDomain {
        name: DomainName::from(name),
        nodes: nodes.to_vec(),
        platform: Some(platform.to_owned()),
        gpus_per_node: Some(gpus),
        nic: None,
    }
}

/// A cell between two GPUs (or host memory) of a claimed domain.
pub(super) fn cell(
    domain: &str,
    testcase: &Arc<str>,
    src: (&NodeName, Option<u32>),
    dst: (&NodeName, Option<u32>),
    value: Option<f64>,
    expected: Option<f64>,
) -> MeasuredCell {
    let ratio = value.zip(expected).map(|(v, e)| v / e);
    MeasuredCell {
        domain: Some(DomainName::from(domain)),
        stage: None,
        testcase: testcase.clone(),
        src_node: Some(src.0.clone()),
        src_gpu: src.1,
        dst_node: Some(dst.0.clone()),
        dst_gpu: dst.1,
        rail: None,
        reading: 0,
        value,
        unit: Unit::GigabytesPerSecond,
        expected,
        ratio,
        outcome: match ratio {
            Some(ratio) if ratio < 0.97 => Outcome::Degraded,
            Some(_) => Outcome::Pass,
            None => Outcome::Unknown,
        },
    }
}

/// An 18-node rack with 72 GPUs: one GPU has 17/18 of its rate in both directions, and host copies
/// of one node are missing.
#[expect(clippy::too_many_lines, reason = "one run, spelled out")]
pub(super) fn rack() -> Run {
    let nodes: Vec<NodeName> =
        (1..=18).map(|n| NodeName::from(format!("node{n:04}").as_str())).collect();
    let gpus: Vec<(&NodeName, u32)> =
        nodes.iter().flat_map(|n| (0..4).map(move |g| (n, g))).collect();
    let low = (&nodes[6], 2);
    let read: Arc<str> = Arc::from("multinode_device_to_device_memcpy_read_ce");
    let host: Arc<str> = Arc::from("host_to_device_memcpy_ce");
    let mut cells = Vec::new();
    let mut seed = 1;
    for &src in &gpus {
        for &dst in gpus.iter().filter(|dst| **dst != src) {
            seed += 1;
            let share = if src == low || dst == low { 17.0 / 18.0 } else { 1.0 };
            let value = (760.0 * share * (1.0 + noise(seed)) * 100.0).round() / 100.0;
            let (src, dst) = ((src.0, Some(src.1)), (dst.0, Some(dst.1)));
            cells.push(cell("block01", &read, src, dst, Some(value), Some(761.0)));
        }
    }
    for &(node, gpu) in &gpus {
        seed += 1;
        let value = (200.0 * (1.0 + 4.0 * noise(seed)) * 100.0).round() / 100.0;
        let value = (node != &nodes[11]).then_some(value);
        cells.push(cell("block01", &host, (node, None), (node, Some(gpu)), value, Some(199.0)));
    }

    let mut verdicts = verdicts(Some("gb200-nvl72"), Outcome::Degraded);
    verdicts.findings.push(Finding {
        id: "nvlink-low-block01-node0007-2".to_owned(),
        outcome: Outcome::Degraded,
        class: FindingClass::NvlinkLow,
        locus: Locus {
            domain: Some(DomainName::from("block01")),
            node: Some(nodes[6].clone()),
            gpu: Some(2),
            ..Locus::new(LocusKind::Gpu)
        },
        measured: Some(717.8),
        expected: Some(761.0),
        unit: Some(Unit::GigabytesPerSecond),
        ratio: Some(717.8 / 761.0),
        confirmed: true,
        detectable: Some(0.028),
        from_first_reading: false,
        rule: FindingRule::parse("gpu-below-expectation"),
        summary: "node0007:2 copies at 717.8 GB/s to and from every partner where 761.0 GB/s \
                  are expected: what 17 of its 18 links would carry"
            .to_owned(),
        evidence: vec![
            Evidence {
                file: "domains/block01/read-1.txt".to_owned(),
                testcase: Some(read.to_string()),
                detail: "row and column of node0007:2: median 717.8 GB/s over 142 cells; all \
                         other cells: median 760.0 GB/s"
                    .to_owned(),
                class: None,
            },
            Evidence {
                file: "domains/block01/read-2.txt".to_owned(),
                testcase: Some(read.to_string()),
                detail: "the same GPU is low again: median 717.6 GB/s".to_owned(),
                class: None,
            },
        ],
        ..Finding::new("", Outcome::Degraded, FindingClass::NvlinkLow, Locus::new(LocusKind::Gpu))
    });
    verdicts.nodes = nodes
        .iter()
        .enumerate()
        .map(|(i, node)| {
            let (outcome, reason) = match i {
                6 => (Outcome::Degraded, "GPU 2 is below what its NVLinks must deliver"),
                11 => (Outcome::Unknown, "host copies were not measured"),
                _ => (Outcome::Pass, "its own and its cross-node measurements are as expected"),
            };
            NodeVerdict {
                node: node.clone(),
                domain: Some(DomainName::from("block01")),
                outcome,
                reason: reason.to_owned(),
                kept_by: None,
                detectable: Some(if i == 11 { 0.031 } else { 0.028 }),
                detectable_together: None,
                fabric_detectable: None,
                scope: None,
            }
        })
        .collect();
    verdicts.unknown.push(UnknownEntry {
        what: UnknownSubject::Other("host_to_device_memcpy_ce on node0012".to_owned()),
        why: "nodes/node0012/host.txt ends before the test's results".to_owned(),
    });
    verdicts.notes.push(
        "node0003:1 host_to_device_memcpy_ce dipped once to 188.0 GB/s; four other readings are \
         as expected"
            .to_owned(),
    );
    Run {
        info: info("20260304T050607Z-demo", "judge", "recorded outputs in racks/block01 (made up)"),
        claims: Claims {
            domains: vec![domain("block01", &nodes, "gb200-nvl72", 4)],
            ..Claims::default()
        },
        cells,
        verdicts,
        actions: Some(ActionPlan {
            withheld: vec![WithheldAction::new("node0012", "not knowing is no reason to drain")],
            ..ActionPlan::from_actions(vec![Action {
                command: [
                    "scontrol",
                    "update",
                    "NodeName=node0007",
                    "State=DRAIN",
                    "Reason=fabricgate: nvlink-low gpu 2 0.943 [nvlink-low-block01-node0007-2]",
                ]
                .map(str::to_owned)
                .to_vec(),
                findings: vec!["nvlink-low-block01-node0007-2".to_owned()],
                why: "GPU 2 of node0007 is below what its NVLinks must deliver, confirmed by a \
                      second reading"
                    .to_owned(),
                ..Action::new(ActionKind::Drain, nodes[6].clone())
            }])
        }),
    }
}

/// Two HGX nodes with healthy NVLinks and one waived test.
pub(super) fn hgx() -> Run {
    let nodes = [NodeName::from("hgx0101"), NodeName::from("hgx0102")];
    let read: Arc<str> = Arc::from("device_to_device_memcpy_read_ce");
    let latency: Arc<str> = Arc::from("device_to_device_latency_sm");
    let mut cells = Vec::new();
    let mut seed = 77;
    for node in &nodes {
        for src in 0..8 {
            for dst in (0..8).filter(|dst| *dst != src) {
                seed += 1;
                let value = (395.0 * (1.0 + noise(seed)) * 100.0).round() / 100.0;
                let (src, dst) = ((node, Some(src)), (node, Some(dst)));
                cells.push(cell("su01", &read, src, dst, Some(value), Some(396.0)));
                let value = Some((750.0 * (1.0 + 5.0 * noise(seed + 9)) * 10.0).round() / 10.0);
                let mut cell = cell("su01", &latency, src, dst, value, None);
                cell.unit = Unit::Nanoseconds;
                cells.push(cell);
            }
        }
    }
    let mut verdicts = verdicts(Some("hgx-h100"), Outcome::Unknown);
    verdicts.nodes = nodes
        .iter()
        .map(|node| NodeVerdict {
            node: node.clone(),
            domain: Some(DomainName::from("su01")),
            outcome: if node.as_str() == "hgx0102" { Outcome::Unknown } else { Outcome::Pass },
            reason: if node.as_str() == "hgx0102" {
                "host_to_device_memcpy_ce was waived".to_owned()
            } else {
                "its own measurements are as expected".to_owned()
            },
            kept_by: None,
            detectable: Some(0.03),
            detectable_together: None,
            fabric_detectable: None,
            scope: None,
        })
        .collect();
    verdicts.unknown = ["host_to_device_memcpy_ce", "device_to_host_memcpy_ce"]
        .map(|test| UnknownEntry {
            what: UnknownSubject::Other(format!("{test} on hgx0102")),
            why: "the tool waived it".to_owned(),
        })
        .to_vec();
    Run {
        info: info("20260304T060000Z-hgx", "audit", "nvbandwidth on 2 nodes (made up)"),
        claims: Claims {
            domains: vec![domain("su01", &nodes, "hgx-h100", 8)],
            ..Claims::default()
        },
        cells,
        verdicts,
        actions: Some(ActionPlan::from_actions(Vec::new())),
    }
}

/// The rack after a repair, each pair read three times: the GPU is as expected, and one reading of
/// another GPU dipped.
pub(super) fn repaired() -> Run {
    let mut run = rack();
    run.info = info("20260305T101500Z-after", "recertify", "a rack after a repair (made up)");
    let once = std::mem::take(&mut run.cells);
    for (at, mut cell) in (0_u32..).zip(once) {
        if let Some(value) = &mut cell.value {
            *value = (cell.expected.unwrap_or(*value) * (1.0 + noise(at)) * 100.0).round() / 100.0;
        }
        for reading in 0..3 {
            let mut cell = MeasuredCell { reading, ..cell.clone() };
            cell.value = cell.value.map(|v| match (at, reading) {
                (99, 1) => (v * 92.0).round() / 100.0,
                _ => ((v + f64::from(reading) * 0.11) * 100.0).round() / 100.0,
            });
            cell.ratio = cell.value.zip(cell.expected).map(|(v, e)| v / e);
            cell.outcome = if cell.value.is_some() { Outcome::Pass } else { Outcome::Unknown };
            run.cells.push(cell);
        }
    }
    let verdicts = &mut run.verdicts;
    verdicts.outcome = Outcome::Unknown;
    verdicts.findings.clear();
    verdicts.notes.clear();
    for node in verdicts.nodes.iter_mut().filter(|n| n.outcome == Outcome::Degraded) {
        node.outcome = Outcome::Pass;
        node.reason = "its own and its cross-node measurements are as expected".to_owned();
    }
    run.actions = None;
    run
}

/// Two leaves of two nodes each and two rails; one port has half the rate.
pub(super) fn rails() -> Run {
    let test: Arc<str> = Arc::from("ib_write_bw");
    let names = ["a1", "a2", "b1", "b2"].map(NodeName::from);
    let mut run = empty();
    for rail in ["rail0", "rail1"] {
        for src in &names {
            for dst in names.iter().filter(|dst| *dst != src) {
                let slow = rail == "rail1" && [src, dst].iter().any(|n| n.as_str() == "b2");
                let value = Some(if slow { 24.0 } else { 48.0 });
                let mut cell = cell("x", &test, (src, None), (dst, None), value, Some(48.0));
                cell.domain = None;
                cell.rail = Some(rail.to_owned());
                run.cells.push(cell);
            }
        }
    }
    let leaf = |name: &str, nodes: &[NodeName]| ClaimedLeaf {
        name: name.to_owned(),
        nodes: nodes.to_vec(),
    };
    run.claims.leaves = vec![leaf("leaf1", &names[..2]), leaf("leaf2", &names[2..])];
    run
}

/// Many racks of 18 nodes: the first has all cells of [`rack`], the others have host copies only;
/// every hundredth node is degraded.
pub(super) fn fleet(nodes: usize) -> Run {
    let mut run = rack();
    let finding = run.verdicts.findings.remove(0);
    let (host, proto): (Arc<str>, _) =
        (Arc::from("host_to_device_memcpy_ce"), run.verdicts.nodes.remove(0));
    run.verdicts.nodes.clear();
    run.claims.domains.clear();
    let all: Vec<NodeName> =
        (0..nodes).map(|n| NodeName::from(format!("node{:04}", n + 1).as_str())).collect();
    for (rack, nodes) in all.chunks(18).enumerate() {
        let name = format!("block{:02}", rack + 1);
        run.claims.domains.push(domain(&name, nodes, "gb200-nvl72", 4));
        for (at, node) in nodes.iter().enumerate() {
            let mut verdict = proto.clone();
            verdict.node = node.clone();
            verdict.domain = Some(DomainName::from(name.as_str()));
            if (rack * 18 + at) % 100 == 6 {
                verdict.outcome = Outcome::Degraded;
                verdict.reason = "GPU 2 is below what its NVLinks must deliver".to_owned();
                let mut finding = finding.clone();
                finding.id = format!("nvlink-low-{name}-{node}-2");
                finding.locus.node = Some(node.clone());
                finding.locus.domain = Some(DomainName::from(name.as_str()));
                run.verdicts.findings.push(finding);
            }
            run.verdicts.nodes.push(verdict);
            for gpu in (0..4).filter(|_| 0 < rack) {
                let ends = ((node, None), (node, Some(gpu)));
                run.cells.push(cell(&name, &host, ends.0, ends.1, Some(199.5), Some(199.0)));
            }
        }
    }
    run
}

pub(super) fn empty() -> Run {
    Run {
        info: info("20260304T070000Z-none", "judge", "an empty folder"),
        claims: Claims::default(),
        cells: Vec::new(),
        verdicts: verdicts(None, Outcome::Unknown),
        actions: None,
    }
}

/// A failed run whose names try to control terminals, pages and spreadsheets.
pub(super) fn hostile() -> Run {
    let nodes = [
        NodeName::from("=cmd|' /C calc'!A0"),
        NodeName::from("<script>alert(1)</script>"),
        NodeName::from("a\x1b[31;1mb\r\n\"quoted\" & ']]>"),
        NodeName::from("r\u{202e}l\u{0}\u{7}\u{9b}\u{fffe}"),
    ];
    let test: Arc<str> = Arc::from("+copy</title><img src=x onerror=alert(2)>");
    let block = "@b\"l'o&c<k>\x1b]0;owned\x07";
    let mut cells = Vec::new();
    for (i, src) in nodes.iter().enumerate() {
        for (j, dst) in nodes.iter().enumerate().filter(|(j, _)| *j != i) {
            let value = (j != 2 && i != 2).then_some(100.0);
            let mut cell = cell(block, &test, (src, Some(0)), (dst, Some(0)), value, Some(100.0));
            cell.rail = Some("-1+1\x1b[0m".to_owned());
            if value.is_none() {
                cell.outcome = Outcome::Failed;
            }
            cells.push(cell);
        }
    }
    let mut verdicts = verdicts(Some("gb<200>\x1b[7m"), Outcome::Failed);
    verdicts.findings.push(Finding {
        from_first_reading: false,
        rule: FindingRule::parse("no-path"),
        summary: "no copy to or from \x1b[5mit\x1b[0m works <b>at all</b>".to_owned(),
        evidence: vec![Evidence {
            file: "domains/x\x1b[8m/<y>.txt".to_owned(),
            testcase: Some(test.to_string()),
            detail: "{{ 7 * 7 }} {% raw %} ${7*7} \x1b[1A\x1b[2K".to_owned(),
            class: None,
        }],
        ..Finding::new(
            "no-path-<x>\x1b[2J",
            Outcome::Failed,
            FindingClass::from_name("no-path"),
            Locus {
                domain: Some(DomainName::from(block)),
                node: Some(nodes[2].clone()),
                ..Locus::new(LocusKind::Node)
            },
        )
    });
    verdicts.nodes = nodes
        .iter()
        .enumerate()
        .map(|(i, node)| NodeVerdict {
            node: node.clone(),
            domain: Some(DomainName::from(block)),
            outcome: if i == 2 { Outcome::Failed } else { Outcome::Pass },
            reason: "because \x1b[32mI say so\x1b[0m".to_owned(),
            kept_by: None,
            detectable: None,
            detectable_together: None,
            fabric_detectable: None,
            scope: None,
        })
        .collect();
    verdicts.unknown.push(UnknownEntry {
        what: UnknownSubject::Other("</script><script>alert(3)</script>\r".to_owned()),
        why: "\u{1b}[?1049h".to_owned(),
    });
    verdicts.notes.push("a\u{2028}b\x08\x08\x08c".to_owned());
    Run {
        info: info("run\x1b[31m", "judge", "files of an attacker\n"),
        claims: Claims { domains: vec![domain(block, &nodes, "gb<200>", 1)], ..Claims::default() },
        cells,
        verdicts,
        actions: Some(ActionPlan::from_actions(vec![Action {
            command: ["scontrol", "update", &format!("NodeName={}", nodes[2]), "State=DRAIN"]
                .map(str::to_owned)
                .to_vec(),
            findings: vec!["no-path-<x>\x1b[2J".to_owned()],
            why: "it failed\x1b[1m".to_owned(),
            ..Action::new(ActionKind::Drain, nodes[2].clone())
        }])),
    }
}

/// Whether a rendered text could control a terminal. Line breaks are layout.
pub(super) fn steers(text: &str) -> bool {
    text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}' || c == '\u{2028}')
}
