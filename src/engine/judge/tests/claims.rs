//! Claims compared with the measurement, and with each other.

use super::*;
use model::disagreement::{Disagreement, DisagreementSeverity, DisagreementSide};
use model::disagreement_class::DisagreementClass;
use model::source_report::{ClaimBasis, ClaimSource, FabricReport, JobAssumption, SourceKind};

const UUID: &str = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31";

/// A rack, its recordings and its claims, with these cliques on its labels.
fn labelled(
    mut bench: TestMachine,
    clique: impl Fn(u32) -> u32,
) -> (TestMachine, Vec<ToolRecording>, Claims) {
    let recordings = bench.record();
    let mut claims = bench.claims();
    for at in 0..18 {
        let report = FabricReport {
            cluster_uuid: Some(UUID.to_owned()),
            clique_id: Some(clique(at).to_string()),
            basis: Some(ClaimBasis::Copied { from: "the driver".to_owned() }),
            at: Some("label nvidia.com/gpu.clique".to_owned()),
            ..FabricReport::default()
        };
        claims.nodes.entry(TestMachine::node(at)).or_default().fabric.push(report);
    }
    (bench, recordings, claims)
}

fn disagreement(
    class: &str,
    severity: DisagreementSeverity,
    domain: Option<&str>,
    at: &[u32],
) -> Disagreement {
    let source = ClaimSource { kind: SourceKind::Ray, place: "ray.json".to_owned(), read_at: None };
    Disagreement {
        class: DisagreementClass::from_name(class),
        severity,
        domain: domain.map(DomainName::from),
        nodes: at.iter().map(|at| TestMachine::node(*at)).collect(),
        sides: vec![DisagreementSide {
            source,
            at: Some("topo_rank".to_owned()),
            basis: ClaimBasis::Asserted,
            text: "1 on both".to_owned(),
        }],
        summary: format!("{class} it is"),
        remedy: None,
    }
}

fn split() -> TestMachine {
    TestMachine::rack().capacity(|s, d| Some(if (s.0 < 16) == (d.0 < 16) { 1.0 } else { 0.065 }))
}

#[test]
fn labels_that_the_measurement_confirms_change_nothing() {
    let (bench, recordings, claims) = labelled(TestMachine::rack(), |_| 1);
    let judged = bench.judge_claims(&claims, &recordings);
    assert_eq!(loci(&judged), Vec::<String>::new());
    assert_eq!(judged.verdicts.outcome, Outcome::Pass);
    assert_eq!(judged.verdicts.notes, Vec::<String>::new());
}

#[test]
fn a_label_that_splits_connected_nodes_is_found_and_blames_no_node() {
    let (bench, recordings, claims) =
        labelled(TestMachine::rack(), |at| if at < 16 { 1 } else { 2 });
    let judged = bench.judge_claims(&claims, &recordings);
    assert_eq!(loci(&judged), ["degraded claim-label-contradicted domain block01"]);
    let found = &judged.verdicts.findings[0];
    assert!(found.summary.starts_with("node0017, node0018 are labelled"), "{}", found.summary);
    assert!(found.evidence[0].detail.contains("copied from the driver"), "{found:?}");
    assert!(found.evidence[1].file.starts_with("domains/block01/"), "{found:?}");
    assert!(judged.verdicts.nodes.iter().all(|n| n.outcome == Outcome::Pass));
}

#[test]
fn one_label_over_parts_that_do_not_reach_each_other_joins_the_finding_about_them() {
    let (bench, recordings, claims) = labelled(split(), |_| 1);
    let plain = bench.judge_these(&recordings);
    let judged = bench.judge_claims(&claims, &recordings);
    assert_eq!(loci(&judged), loci(&plain));
    let found = &judged.verdicts.findings[0];
    assert!(
        found.evidence.iter().any(|e| e.detail.contains("18 nodes are labelled")),
        "{:?}",
        found.evidence
    );
    assert_eq!(judged.verdicts.nodes, plain.verdicts.nodes);
}

fn belief(ranks: u32, nodes: std::ops::Range<u32>) -> JobAssumption {
    JobAssumption {
        subject: "HybridEP".to_owned(),
        ranks_per_domain: Some(ranks),
        multi_node_nvlink: None,
        nodes: nodes.map(TestMachine::node).collect(),
        at: Some("job.env:3".to_owned()),
        text: format!("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN={ranks}"),
    }
}

fn believing(mut bench: TestMachine, belief: JobAssumption) -> Judgement {
    let recordings = bench.record();
    let claims = Claims { beliefs: vec![belief], ..bench.claims() };
    bench.judge_claims(&claims, &recordings)
}

#[test]
fn a_belief_is_compared_with_the_gpus_that_reach_each_other() {
    assert_eq!(loci(&believing(TestMachine::rack(), belief(64, 0..16))), Vec::<String>::new());
    assert_eq!(loci(&believing(TestMachine::rack(), belief(72, 0..0))), Vec::<String>::new());

    let judged = believing(TestMachine::rack(), belief(64, 0..8));
    assert_eq!(loci(&judged), ["failed claim-belief-beyond-measured domain block01"]);
    let found = &judged.verdicts.findings[0];
    assert_eq!((found.measured, found.expected), (Some(32.0), Some(64.0)));
    assert_eq!(found.evidence[0].file, "job.env:3");
    assert!(judged.verdicts.nodes.iter().all(|n| n.outcome == Outcome::Pass));

    // The claim states 72, the measurement 64.
    let judged = believing(split(), belief(72, 0..18));
    let found =
        judged.verdicts.findings.iter().find(|f| f.class.as_str() == BELIEF).expect("a finding");
    assert_eq!((found.outcome, found.measured), (Outcome::Failed, Some(64.0)));

    // Without a location for the job.
    let judged = believing(TestMachine::rack(), belief(144, 0..0));
    assert_eq!(loci(&judged), ["unknown claim-belief-beyond-measured domain block01"]);

    // On servers each node is its own domain.
    let judged = believing(TestMachine::hgx(2), belief(16, 0..2));
    assert_eq!(judged.verdicts.findings.len(), 2);
    assert_eq!(judged.verdicts.findings[0].measured, Some(8.0));
    assert_eq!(loci(&believing(TestMachine::hgx(2), belief(8, 0..2))), Vec::<String>::new());
}

const BELIEF: &str = "claim-belief-beyond-measured";

#[test]
fn a_belief_about_nodes_that_were_not_measured_is_not_judged() {
    let mut bench = TestMachine::rack();
    let recordings = bench.record_nodes();
    let claims = Claims { beliefs: vec![belief(64, 0..8)], ..bench.claims() };
    let judged = bench.judge_claims(&claims, &recordings);
    assert!(judged.verdicts.findings.iter().all(|f| f.class.as_str() != BELIEF));
}

#[test]
fn ranks_that_contradict_themselves_leave_the_run_unknown_and_the_nodes_as_they_are() {
    let mut bench = TestMachine::rack();
    let recordings = bench.record();
    let mut claims = bench.claims();
    for class in ["topo-rank-duplicate", "topo-rank-unusable"] {
        let contradiction =
            disagreement(class, DisagreementSeverity::Contradiction, Some("block01"), &[1, 2]);
        claims.disagreements.push(contradiction);
    }
    let judged = bench.judge_claims(&claims, &recordings);
    assert_eq!(
        loci(&judged),
        [
            "unknown claim-topo-rank-duplicate domain block01",
            "unknown claim-topo-rank-unusable domain block01"
        ]
    );
    let found = &judged.verdicts.findings[0];
    assert!(found.summary.contains("a framework that sorts by it"), "{}", found.summary);
    assert_eq!(found.evidence[0].file, "ray.json");
    assert_eq!(found.evidence[0].detail, "Ray, topo_rank: 1 on both");
    assert_eq!(judged.verdicts.outcome, Outcome::Unknown);
    assert!(judged.verdicts.nodes.iter().all(|n| n.outcome == Outcome::Pass));
}

#[test]
fn a_settled_contradiction_is_a_note_and_an_unsettled_one_is_unknown() {
    let between = |class, severity, domain| disagreement(class, severity, domain, &[16, 17]);
    let judged = |bench: TestMachine, contradiction: Disagreement| {
        let mut bench = bench;
        let recordings = bench.record();
        let claims = Claims { disagreements: vec![contradiction], ..bench.claims() };
        bench.judge_claims(&claims, &recordings)
    };
    let bad = DisagreementSeverity::Contradiction;
    let healthy =
        judged(TestMachine::rack(), between("block-against-clique", bad, Some("block01")));
    assert_eq!(healthy.verdicts.outcome, Outcome::Pass);
    let settled = "settled: in the measurement, all nodes of block01 reach";
    assert!(healthy.verdicts.notes[0].contains(settled));
    let cut = judged(split(), between("block-against-clique", bad, Some("block01")));
    let settled = "settled: in the measurement, block01 falls into parts of 16 and 2 nodes";
    assert!(cut.verdicts.notes.iter().any(|n| n.contains(settled)), "{:?}", cut.verdicts.notes);
    // Two domains of one clique, without a measurement between them.
    let merged = judged(TestMachine::rack(), between("merged-cliques", bad, Some("block01")));
    assert_eq!(loci(&merged), ["unknown claim-merged-cliques domain block01"]);
    let servers = TestMachine::hgx(1);
    let cables = disagreement("hosts-swapped", bad, None, &[0]);
    let judged_cables = judged(servers, cables);
    assert_eq!(judged_cables.verdicts.unknown[0].what.to_string(), "claim-hosts-swapped");
    assert!(judged_cables.verdicts.findings.is_empty());
}

#[test]
fn doubts_become_notes_and_other_domains_are_left_out() {
    let mut bench = TestMachine::rack();
    let recordings = bench.record();
    let mut claims = bench.claims();
    claims.disagreements = vec![
        disagreement("label-missing", DisagreementSeverity::Doubt, Some("block01"), &[1]),
        disagreement("opted-out", DisagreementSeverity::Note, None, &[1]),
        disagreement("split-clique", DisagreementSeverity::Contradiction, Some("block77"), &[1]),
        disagreement("slot-taken", DisagreementSeverity::Contradiction, None, &[99]),
    ];
    let judged = bench.judge_claims(&claims, &recordings);
    assert_eq!(judged.verdicts.outcome, Outcome::Pass, "{:?}", judged.verdicts);
    assert_eq!(judged.verdicts.notes, ["claims (label-missing): label-missing it is"]);
}
