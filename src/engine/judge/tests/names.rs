//! One node under several names, and several nodes under similar ones.

use super::test_machine::{TestMachine, loci, outcome_of, share};
use crate::judge::Judgement;
use model::claims::Claims;
use model::id::NodeName;
use model::tool_facts::{ImexNode, ImexStatus};
use model::tool_recording::{RecordingScope, ToolRecording};
use model::unknown_subject::UnknownSubject;
use model::verdict::Outcome;

fn rename_hosts(recordings: &mut [ToolRecording], name: impl Fn(&str) -> String) {
    for rank in recordings.iter_mut().flat_map(|r| &mut r.parsed.facts.ranks) {
        rank.host = name(&rank.host);
    }
}

fn rename_folders(recordings: &mut [ToolRecording], name: impl Fn(&str) -> String) {
    for recording in recordings {
        if let RecordingScope::Node(node) = &mut recording.scope {
            *node = NodeName::from(name(node.as_str()));
        }
    }
}

#[test]
fn a_dns_suffix_does_not_make_a_second_node() {
    let long = |host: &str| format!("{host}.cluster.example");
    let mut bench = TestMachine::rack();
    let mut recordings = bench.record();
    rename_folders(&mut recordings, long);
    let judged = bench.judge_these(&recordings);
    assert_eq!(judged.verdicts.outcome, Outcome::Pass, "{:?}", judged.verdicts.nodes[0]);

    let mut recordings = bench.record();
    rename_hosts(&mut recordings, long);
    for recording in &mut recordings {
        for rank in &mut recording.parsed.facts.ranks {
            rank.name = Some("rack GPU".to_owned());
        }
    }
    let judged = bench.judge_claims(&Claims::default(), &recordings);
    assert_eq!(judged.verdicts.nodes.len(), 18);
    assert_eq!(outcome_of(&judged, "node0001"), Outcome::Pass);
}

#[test]
fn hosts_that_differ_only_in_their_dns_suffix_are_not_mixed_up() {
    let name = |host: &str| {
        let number: u32 = host.trim_start_matches("node").parse().expect("a number");
        format!("n{}.r{}", number % 9, number / 10)
    };
    let bad = (12, 2);
    let mut bench = TestMachine::rack()
        .capacity(move |s, d| Some(if s == bad || d == bad { share(2) } else { 1.0 }));
    let mut recordings = bench.record();
    rename_hosts(&mut recordings, name);
    rename_folders(&mut recordings, name);
    let nodes = (1..=18).map(|n| NodeName::from(name(&format!("node{n}")))).collect();
    let mut claims = bench.claims();
    claims.domains[0].nodes = nodes;
    let judged = bench.judge_claims(&claims, &recordings);
    assert_eq!(loci(&judged), ["degraded nvlink-low gpu n4.r1:2"]);
    assert_eq!(outcome_of(&judged, "n4.r0"), Outcome::Pass);
}

#[test]
fn a_run_across_two_claimed_domains_lists_no_node_twice() {
    let mut bench = TestMachine::rack();
    let mut recordings = bench.record_nodes();
    recordings.extend(bench.record_domain());
    let mut claims = bench.claims();
    let mut second = claims.domains[0].clone();
    second.name = "block02".into();
    second.nodes = claims.domains[0].nodes.split_off(9);
    claims.domains.push(second);
    for recording in &mut recordings {
        if let RecordingScope::Domain(domain) = &mut recording.scope {
            *domain = "both".into();
        }
        for rank in &mut recording.parsed.facts.ranks {
            rank.name = Some("rack GPU".to_owned());
        }
    }
    let judged = bench.judge_claims(&claims, &recordings);
    assert_eq!(judged.verdicts.nodes.len(), 18);
    // Between them it runs at full speed; that does not judge their internal links.
    assert_eq!(loci(&judged), ["unknown claimed-apart domain block01 - block02"]);
    assert!(judged.verdicts.nodes.iter().all(|n| n.outcome == Outcome::Unknown));
    assert!(
        judged.verdicts.unknown.iter().any(|u| u.what == UnknownSubject::Domain("both".into()))
    );
}

#[test]
fn runs_over_the_same_hosts_in_two_folders_are_of_one_domain() {
    let mut bench = TestMachine::rack().readings(2);
    let mut recordings = bench.record();
    let mut folders = ["first", "second"].into_iter();
    for recording in &mut recordings {
        if let RecordingScope::Domain(domain) = &mut recording.scope {
            *domain = folders.next().expect("two runs").into();
        }
        for rank in &mut recording.parsed.facts.ranks {
            rank.name = Some("rack GPU".to_owned());
        }
    }
    let judged = bench.judge_claims(&Claims::default(), &recordings);
    assert_eq!(judged.verdicts.nodes.len(), 18);
    assert_eq!(judged.verdicts.outcome, Outcome::Pass, "{:?}", judged.verdicts.unknown);
}

#[test]
fn an_address_in_an_imex_table_is_resolved_through_the_aliases_of_claims() {
    let member = |at: u32| ImexNode {
        index: at,
        host: Some(format!("10.0.0.{at}")),
        status: Some(if at == 3 { "UNAVAILABLE" } else { "READY" }.to_owned()),
        ..ImexNode::default()
    };
    let mut bench = TestMachine::rack();
    let mut recordings = bench.record();
    for recording in recordings.iter_mut().take(2) {
        recording.parsed.facts.imex = Some(ImexStatus {
            status: Some("DEGRADED".to_owned()),
            nodes: (1..=18).map(member).collect(),
            ..ImexStatus::default()
        });
    }
    let missing = |judged: &Judgement| {
        let found =
            judged.verdicts.findings.iter().find(|f| f.class.as_str() == "imex-peer-missing");
        found.map(|f| (f.locus.to_string(), f.evidence.len()))
    };
    // The address belongs to no known node.
    let mut claims = bench.claims();
    assert_eq!(missing(&bench.judge_claims(&claims, &recordings)), None);
    for at in 1..=18 {
        let node_claims = claims.nodes.entry(TestMachine::node(at - 1)).or_default();
        node_claims.aliases = vec![format!("10.0.0.{at}")];
    }
    let missing_node = missing(&bench.judge_claims(&claims, &recordings)).expect("a node");
    assert!(missing_node.0.contains("node0003") && missing_node.1 == 2, "{missing_node:?}");
    // An address that two nodes share identifies neither.
    claims.nodes.entry(TestMachine::node(7)).or_default().aliases = vec!["10.0.0.3".to_owned()];
    assert_eq!(missing(&bench.judge_claims(&claims, &recordings)), None);
}
