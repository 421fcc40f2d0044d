//! Tests of proposals, of withheld actions, and of their reasons.

use super::*;
use crate::policy::drain_reason;
use model::claims::ClaimedDomain;
use model::finding_class::FindingClass;
use model::finding_rule::FindingRule;
use model::id::DomainName;
use model::shell_quote;
use model::verdict::{Finding, Locus, LocusKind, Outcome};

fn claims(domains: usize, nodes: usize) -> Claims {
    let domain = |d: usize| ClaimedDomain {
        name: DomainName::from(format!("d{d}")),
        nodes: (0..nodes).map(|n| NodeName::from(format!("d{d}n{n}"))).collect(),
        platform: None,
        gpus_per_node: None,
        nic: None,
    };
    Claims { domains: (0..domains).map(domain).collect(), ..Claims::default() }
}

fn finding(kind: LocusKind, node: &str, outcome: Outcome, ratio: f64) -> Finding {
    let mut locus = Locus::new(kind);
    locus.node = Some(NodeName::from(node));
    Finding {
        ratio: Some(ratio),
        from_first_reading: false,
        rule: FindingRule::parse("r"),
        summary: "too slow".to_owned(),
        ..Finding::new(format!("id-{node}"), outcome, FindingClass::NvlinkLow, locus)
    }
}

fn verdicts(findings: Vec<Finding>) -> Verdicts {
    Verdicts { findings, ..Verdicts::empty(Outcome::Degraded) }
}

fn plan(claims: &Claims, findings: Vec<Finding>) -> ActionPlan {
    propose_from_verdicts(&verdicts(findings), claims, &Policy::default(), None, &run())
}

fn run() -> EvidenceRun {
    EvidenceRun { id: "run1".to_owned(), ..EvidenceRun::default() }
}

/// A policy whose limits leave room for everything that a test does not cover.
fn roomy() -> Policy {
    Policy { per_hour: 1.0, outstanding: 1.0, ..Policy::default() }
}

fn drained(plan: &ActionPlan) -> Vec<&str> {
    plan.actions.iter().map(|a| a.node.as_str()).collect()
}

#[test]
fn one_bad_gpu_proposes_one_drain_with_the_exact_line() {
    let mut two = finding(LocusKind::Direction, "d0n1", Outcome::Degraded, 0.9);
    two.id = "other".to_owned();
    let plan =
        plan(&claims(1, 18), vec![two, finding(LocusKind::Gpu, "d0n1", Outcome::Failed, 0.0)]);
    let [action] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert!(plan.dry_run);
    assert_eq!(
        shell_quote::join_quoted(&action.command),
        "scontrol update NodeName=d0n1 State=DRAIN Reason=\"fabricgate:nvlink-low:run1 e0\""
    );
    assert_eq!(action.findings, ["id-d0n1", "other"]);
    assert!(action.why.contains("not confirmed"), "{}", action.why);
}

#[test]
fn shared_parts_pairs_and_the_instrument_drain_no_node() {
    for kind in [
        LocusKind::Pair,
        LocusKind::Rail,
        LocusKind::Leaf,
        LocusKind::Plane,
        LocusKind::Domain,
        LocusKind::Instrument,
    ] {
        let mut found = finding(kind, "d0n1", Outcome::Failed, 0.0);
        if kind == LocusKind::Rail {
            found.locus.node = None;
        }
        let plan = plan(&claims(1, 18), vec![found]);
        assert_eq!((plan.actions.len(), plan.withheld.len()), (0, 1), "{kind:?}");
    }
}

#[test]
fn a_nodes_own_end_of_a_rail_is_the_nodes() {
    let low = finding(LocusKind::Rail, "d0n1", Outcome::Degraded, 0.5);
    assert_eq!(drained(&plan(&claims(1, 18), vec![low])), ["d0n1"]);
}

#[test]
fn unknown_never_acts() {
    let plan = plan(&claims(1, 4), vec![finding(LocusKind::Node, "d0n1", Outcome::Unknown, 0.0)]);
    assert_eq!((plan.actions.len(), plan.withheld.len()), (0, 0));
}

#[test]
fn the_worst_two_of_a_domain_use_up_its_budget() {
    let policy = Policy { freeze_domain: 10, ..roomy() };
    let findings = vec![
        finding(LocusKind::Gpu, "d0n1", Outcome::Degraded, 0.9),
        finding(LocusKind::Gpu, "d0n2", Outcome::Degraded, 0.5),
        finding(LocusKind::Gpu, "d0n3", Outcome::Failed, 0.95),
    ];
    let plan = propose_from_verdicts(
        &verdicts(findings),
        &claims(1, 18),
        &policy,
        None,
        &EvidenceRun::default(),
    );
    assert_eq!(drained(&plan), ["d0n2", "d0n3"]);
    assert_eq!(plan.withheld[0].what, "d0n1");
    assert!(plan.withheld[0].why.starts_with("budget"));
}

#[test]
fn three_suspects_of_a_domain_freeze_it_and_leave_the_others() {
    let mut findings: Vec<Finding> =
        (0..3).map(|n| finding(LocusKind::Gpu, &format!("d0n{n}"), Outcome::Failed, 0.1)).collect();
    findings.push(finding(LocusKind::Gpu, "d1n0", Outcome::Failed, 0.1));
    let plan = plan(&claims(10, 18), findings);
    assert_eq!(drained(&plan), ["d1n0"]);
    assert_eq!(plan.withheld.len(), 3);
    assert!(plan.withheld.iter().all(|w| w.why.contains("3 nodes of d0")));
}

#[test]
fn five_percent_of_the_fleet_freeze_everything() {
    let spread = |domains: usize| {
        let findings = (0..5)
            .map(|d| finding(LocusKind::Gpu, &format!("d{d}n0"), Outcome::Failed, 0.1))
            .collect();
        propose_from_verdicts(&verdicts(findings), &claims(domains, 10), &roomy(), None, &run())
    };
    assert_eq!(drained(&spread(10)).len(), 0);
    assert!(spread(10).withheld[0].why.contains("5 of 100"));
    assert_eq!(drained(&spread(11)).len(), 5);
}

#[test]
fn one_node_of_a_small_fleet_is_not_a_common_cause() {
    let plan = plan(&claims(1, 4), vec![finding(LocusKind::Gpu, "d0n1", Outcome::Failed, 0.1)]);
    assert_eq!(drained(&plan), ["d0n1"]);
}

#[test]
fn a_mostly_missing_sweep_blames_no_node() {
    let findings = || vec![finding(LocusKind::Gpu, "d0n1", Outcome::Failed, 0.1)];
    let with = |returned| {
        let coverage = Some(PlanCoverage { planned: 10, returned });
        propose_from_verdicts(
            &verdicts(findings()),
            &claims(1, 18),
            &Policy::default(),
            coverage,
            &EvidenceRun::default(),
        )
    };
    assert_eq!(with(8).actions.len(), 1);
    assert_eq!(with(7).actions.len(), 0);
    assert!(with(7).withheld[0].why.contains("7 of 10"));
}

#[test]
fn names_that_mean_more_than_one_node_are_never_written() {
    for name in ["ALL", "all", "n[1-3]", "n1,n2", "-x", ""] {
        let mut claims = claims(1, 1);
        claims.domains[0].nodes.push(NodeName::from(name));
        let plan = plan(&claims, vec![finding(LocusKind::Node, name, Outcome::Failed, 0.0)]);
        assert_eq!((plan.actions.len(), plan.withheld.len()), (0, 1), "{name}");
    }
}

#[test]
fn an_unclaimed_node_is_left_alone() {
    let plan = plan(&claims(1, 4), vec![finding(LocusKind::Node, "x", Outcome::Failed, 0.0)]);
    assert!(plan.actions.is_empty() && plan.withheld[0].why.contains("no domain claims"));
}

#[test]
fn a_policy_may_want_confirmation_first() {
    let policy = Policy { propose_unconfirmed: false, ..Policy::default() };
    let mut sure = finding(LocusKind::Node, "d0n2", Outcome::Failed, 0.0);
    sure.confirmed = true;
    let findings = vec![finding(LocusKind::Node, "d0n1", Outcome::Failed, 0.0), sure];
    let plan = propose_from_verdicts(
        &verdicts(findings),
        &claims(1, 18),
        &policy,
        None,
        &EvidenceRun::default(),
    );
    assert_eq!(drained(&plan), ["d0n2"]);
}

#[test]
fn any_class_gives_a_short_and_harmless_reason() {
    let mut odd = finding(LocusKind::Node, "d0n1", Outcome::Failed, 0.0);
    odd.id = "a\"b\n$(c)".to_owned();
    odd.class = FindingClass::from_name(&"ü".repeat(200));
    let plan = plan(&claims(1, 4), vec![odd]);
    let reason = plan.actions[0].command[4].strip_prefix("Reason=").expect("a reason");
    assert!(reason.len() <= drain_reason::LONGEST && reason.starts_with("fabricgate:---"));
}
