//! Tests of the combined result of several rounds.

use super::*;
use crate::policy::burn_in_termination::tests;
use crate::policy::burn_in_termination::tests::held;
use model::acceptance::{BurnInRequest, SoakRecord};
use model::trend::FabricPart;
use model::unit::Unit;

fn round(number: u32, outcome: Outcome) -> BurnInRound {
    let mut round = BurnInRound { minutes: 1.0, ..tests::round(number, outcome) };
    round.nodes[0].reason = "its reason".to_owned();
    round.nodes[0].boot_id = Some("boot".to_owned());
    round
}

fn concluded(
    wanted: u32,
    outcomes: &[Outcome],
    change: impl Fn(&mut Acceptance),
) -> NodeAcceptance {
    let rounds = (1..).zip(outcomes).map(|(n, outcome)| round(n, *outcome)).collect();
    let request = BurnInRequest { rounds: Some(wanted), drift: 0.028, ..BurnInRequest::default() };
    let mut acceptance = held(request, rounds);
    change(&mut acceptance);
    conclude(&mut acceptance);
    assert_eq!(acceptance.accepted, acceptance.nodes[0].accepted);
    acceptance.nodes.remove(0)
}

use Outcome::{Degraded, Pass, Unknown};

#[test]
fn only_all_requested_rounds_are_accepted() {
    let of = |wanted, outcomes: &[Outcome]| concluded(wanted, outcomes, |_| {}).accepted;
    assert_eq!(of(2, &[Pass, Pass]), AcceptanceOutcome::Pass);
    assert_eq!(of(3, &[Pass, Pass]), AcceptanceOutcome::Unknown);
    assert_eq!(of(2, &[Pass, Unknown]), AcceptanceOutcome::Unknown);
    assert_eq!(of(3, &[Pass, Degraded, Pass]), AcceptanceOutcome::Fail);
    assert_eq!(of(1, &[]), AcceptanceOutcome::Unknown);
}

#[test]
fn a_node_that_booted_begins_anew_and_is_not_accepted_for_what_it_was() {
    let node = concluded(3, &[Pass, Pass, Pass], |it| {
        it.rounds[1].nodes[0].boot_id = Some("other".to_owned());
        it.rounds[2].nodes[0].boot_id = Some("other".to_owned());
    });
    assert_eq!((node.accepted, node.rounds, node.passed), (AcceptanceOutcome::Unknown, 2, 2));
    assert!(node.reason.contains("restarted after round 1"), "{}", node.reason);
}

#[test]
fn a_node_that_booted_in_the_last_round_is_not_accepted_for_it() {
    let node = concluded(2, &[Pass, Pass], |it| it.rounds[1].nodes[0].rebooted = true);
    assert_eq!((node.accepted, node.rounds), (AcceptanceOutcome::Unknown, 0));
    assert!(node.reason.contains("it rebooted while round 2 measured it"), "{}", node.reason);
    let anew = node.anew.expect("it is told");
    assert_eq!((anew.rule, anew.after_round), (StopRule::Rebooted, 2));
    // Enough clean rounds followed, so the node is accepted; the reason names the earlier round.
    let node = concluded(9, &[Pass, Pass, Pass], |it| {
        it.rounds[1].nodes[0].boot_id = Some("other".to_owned());
        it.rounds[2].nodes[0].boot_id = Some("other".to_owned());
        it.asked.clean_rounds = Some(2);
        let why = "2 consecutive rounds were clean".to_owned();
        it.stop = Some(BurnInStop { rule: StopRule::CleanRounds, after_round: 3, why });
    });
    assert_eq!(node.accepted, AcceptanceOutcome::Pass, "{}", node.reason);
    assert!(node.reason.contains("restarted after round 1"), "{}", node.reason);
}

#[test]
fn unknowns_caused_by_a_lost_node_do_not_count_for_others() {
    let again = |it: &mut Acceptance| it.rounds[1].set_aside = true;
    let node = concluded(2, &[Pass, Unknown, Pass], again);
    assert_eq!((node.accepted, node.rounds), (AcceptanceOutcome::Pass, 2));
    let bad = concluded(2, &[Pass, Degraded, Pass], again);
    assert_eq!(bad.accepted, AcceptanceOutcome::Fail, "the finding stays");
}

#[test]
fn faults_under_load_count() {
    let soak = |found: bool| {
        let about = BTreeMap::from([("n1".into(), "wrong data".to_owned())]);
        let none = BTreeMap::new();
        let (found, not_on) = if found { (about, none) } else { (none, about) };
        SoakRecord {
            after_round: 1,
            began: String::new(),
            minutes: 1.0,
            passes: 1,
            probes: Vec::new(),
            simulated: false,
            not_on,
            found,
        }
    };
    let with = |found| concluded(2, &[Pass, Pass], |it| it.soaks.push(soak(found)));
    assert_eq!(with(true).accepted, AcceptanceOutcome::Fail);
    assert_eq!(with(false).accepted, AcceptanceOutcome::Unknown);
}

fn drifting(share: f64) -> impl Fn(&mut Acceptance) {
    move |it| {
        let (peer, rail, direction, domain) = (None, None, None, None);
        let (kind, node, gpu) = (FabricPartKind::Gpu, Some("n1".into()), Some(2));
        let part = FabricPart { kind, domain, node, gpu, peer, rail, direction };
        it.comparison = Some(RunComparison {
            before: "run1".to_owned(),
            before_created: String::new(),
            after: "run2".to_owned(),
            after_created: String::new(),
            parts: vec![PartComparison {
                part,
                testcase: "copies".to_owned(),
                unit: Unit::GigabytesPerSecond,
                before: Some(100.0),
                after: Some(100.0 * (1.0 - share)),
                expected: None,
                change: Some(-share),
                noise: Some(0.005),
                difference: ComparisonOutcome::Worse,
            }],
        });
    }
}

#[test]
fn a_drift_below_the_limit_is_reported_and_beyond_it_not_accepted() {
    let small = concluded(2, &[Pass, Pass], drifting(0.02));
    assert_eq!(small.accepted, AcceptanceOutcome::Pass);
    assert!(small.reason.contains("GPU 2 is 2.0 % slower"), "{}", small.reason);
    let large = concluded(2, &[Pass, Pass], drifting(0.05));
    assert_eq!(large.accepted, AcceptanceOutcome::Unknown);
    assert!(large.drift.is_some() && large.reason.contains("more than the accepted 2.8 %"));
}

#[test]
fn a_node_that_left_takes_no_part_and_is_unknown_without_a_finding() {
    let out = |it: &mut Acceptance| {
        let why = "no route".to_owned();
        it.nodes[0].out = Some(BurnInStop { rule: StopRule::Lost, after_round: 2, why });
    };
    let node = concluded(2, &[Pass, Unknown], out);
    assert_eq!(node.accepted, AcceptanceOutcome::Unknown);
    assert!(node.reason.contains("out since round 2 (lost): no route"), "{}", node.reason);
    let text = "[[domain]]\nname = \"d\"\nnodes = \"n[1-2]\"\n";
    let claims = readers::claims::claims_file::parse("c", text).expect("good");
    let left = participating_claims(&claims, &[node]);
    assert_eq!(left.domains[0].nodes, [NodeName::from("n2")]);
    assert_eq!(new_acceptances(&claims).len(), 2);
}
