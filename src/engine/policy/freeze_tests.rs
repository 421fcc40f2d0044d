//! Conditions under which the sweep is in doubt, and conditions under which it is not.

use crate::policy::budget;
use crate::policy::fixture::PolicyFixture;
use crate::policy::journal_state::RecentIntent;
use model::claims::ClaimedLeaf;
use model::finding_class::FindingClass;
use model::id::NodeName;
use model::kubernetes_node::{
    CERTIFICATE, FabricNodeCondition, KubernetesNode, NO_SCHEDULE, Taint, UNVERIFIED,
};
use model::verdict::{Finding, Locus, LocusKind, Outcome};

/// Three suspects in three domains: few for this fleet.
fn three() -> PolicyFixture {
    let mut world = PolicyFixture::with_blocks(10, 10);
    for node in ["d0n0", "d1n0", "d2n0"] {
        world.accuse(node, "gpu-missing", Outcome::Failed, 0.5);
    }
    world
}

fn frozen(world: &PolicyFixture) -> String {
    let plan = world.plan();
    assert!(plan.frozen.is_none() || plan.actions.is_empty(), "{plan:#?}");
    assert!(plan.frozen.is_none() || plan.withheld.iter().all(|w| w.budget), "{plan:#?}");
    plan.frozen.unwrap_or_default()
}

fn all(world: &PolicyFixture) -> Vec<NodeName> {
    world.verdicts.nodes.iter().map(|n| n.node.clone()).collect()
}

#[test]
fn three_suspects_that_share_nothing_are_three_bad_nodes() {
    let world = three();
    assert_eq!(frozen(&world), "");
    assert_eq!(world.proposed().len(), 3);
}

#[test]
fn an_empty_journal_with_gate_marks_on_nodes_is_the_wrong_one() {
    let extra = |w: &mut PolicyFixture| {
        let entry = r#"{"theirs":1,"fabricgate":{"v":9}}"#;
        w.node("d4n4").extra = entry.to_owned();
    };
    let reason = |w: &mut PolicyFixture| {
        w.node("d4n4").state.push("DRAIN".to_owned());
        w.node("d4n4").reason = Some("fabricgate:nvlink-low:run1 e3".to_owned());
    };
    for written in [extra, reason] as [fn(&mut PolicyFixture); 2] {
        let mut world = three();
        written(&mut world);
        assert!(frozen(&world).contains("marked d4n4"), "{}", frozen(&world));
        let trips = budget::explain_trip(&world.situation(), &world.policy);
        assert!(trips.is_some_and(|why| why.contains("mounted")));
        // It is the right journal if it contains any entry, or if a user confirms it.
        let mut known = world.clone();
        known.ledger.known_intents.insert("run1/d9n9/drain/e1".to_owned());
        assert_eq!(frozen(&known), "");
        world.ledger.was_reset = true;
        assert_eq!(frozen(&world), "");
        assert_eq!(budget::explain_trip(&world.situation(), &world.policy), None);
    }
    // Marks of other programs prove nothing.
    let mut world = three();
    world.node("d4n4").extra = r#"{"theirs":1}"#.to_owned();
    assert_eq!(frozen(&world), "");
}

#[test]
fn defect_4_a_journal_with_any_intent_is_not_lost() {
    let mut world = three();
    world.node("d4n4").extra = r#"{"fabricgate":{"v":9}}"#.to_owned();
    assert!(frozen(&world).contains("the journal contains no action"));
    let meant = RecentIntent { run: "run1".to_owned(), reason: String::new() };
    world.ledger.recent_intents.insert("d4n4".into(), [meant].into());
    assert_eq!(frozen(&world), "", "an operator wrote over it before it was kept");
}

#[test]
fn control_nodes_that_fail_put_the_sweep_in_doubt() {
    let mut world = three();
    world.controls = all(&world).into_iter().take(25).collect();
    // d0n0, d1n0 and d2n0: three of twenty-five.
    assert!(frozen(&world).contains("3 of 25 nodes that were certified"), "{}", frozen(&world));
    world.controls = all(&world).into_iter().take(30).collect();
    assert_eq!(frozen(&world), "", "not more than a tenth");
    world.controls = [NodeName::from("d0n0")].into();
    assert_eq!(frozen(&world), "", "one is a bad node");
    // An unmeasured control node proves nothing.
    world.controls = all(&world).into_iter().take(30).collect();
    for verdict in world.verdicts.nodes.iter_mut().filter(|v| v.node.as_str().ends_with("n5")) {
        verdict.outcome = Outcome::Unknown;
    }
    assert!(frozen(&world).contains("3 of 27"), "{}", frozen(&world));
}

#[test]
fn a_driver_that_only_the_suspects_run_is_a_common_cause() {
    let mut world = three();
    world.drivers = all(&world).into_iter().map(|node| (node, "580.1".to_owned())).collect();
    assert_eq!(frozen(&world), "", "everybody runs it");
    for node in ["d0n0", "d1n0", "d2n0"] {
        world.drivers.insert(NodeName::from(node), "580.2".to_owned());
    }
    assert!(frozen(&world).contains("run driver 580.2"));
    world.drivers.insert(NodeName::from("d9n9"), "580.2".to_owned());
    assert_eq!(frozen(&world), "", "one of the others runs it too");
    world.drivers.insert(NodeName::from("d9n9"), "580.1".to_owned());
    world.drivers.remove(&NodeName::from("d0n0"));
    assert_eq!(frozen(&world), "", "not known of all of them");
    world.drivers.retain(|node, _| node.as_str() == "d1n0");
    assert_eq!(frozen(&world), "", "nothing to compare with");
}

#[test]
fn a_boot_in_the_same_minute_is_a_common_cause() {
    let mut world = three();
    for node in ["d0n0", "d1n0", "d2n0"] {
        world.node(node).booted = Some(1_794_000_000);
    }
    assert!(frozen(&world).contains("booted in the same minute"));
    world.node("d2n0").booted = Some(1_794_000_061);
    assert_eq!(frozen(&world), "");
}

#[test]
fn a_leaf_that_the_suspects_share_is_a_common_cause_unless_most_do() {
    let mut world = three();
    world.leaf("leaf1", &["d0n0", "d1n0", "d2n0", "d3n0"]);
    assert!(frozen(&world).contains("leaf leaf1"));
    world.fleet.leaves = vec![ClaimedLeaf { name: "all".to_owned(), nodes: all(&world) }];
    assert_eq!(frozen(&world), "");
}

#[test]
fn two_alike_are_no_common_cause() {
    let mut world = three();
    world.verdicts.findings.pop();
    world.leaf("leaf1", &["d0n0", "d1n0"]);
    assert_eq!(frozen(&world), "");
}

#[test]
fn a_finding_about_the_instrument_freezes_its_domain() {
    let doubt = |domain: Option<&str>| Finding {
        locus: Locus { domain: domain.map(Into::into), ..Locus::new(LocusKind::Instrument) },
        ..crate::policy::fixture::finding("x", "noisy-everywhere", Outcome::Degraded, 0.5)
    };
    let mut world = three();
    world.verdicts.findings.push(doubt(Some("d1")));
    assert_eq!(world.proposed(), ["drain d0n0", "drain d2n0"]);
    assert!(world.why("d1n0").contains("noisy-everywhere"));
    world.verdicts.findings.push(doubt(None));
    assert!(world.proposed().is_empty());
}

#[test]
fn an_empty_journal_with_marks_on_kubernetes_nodes_is_the_wrong_one() {
    let lost = "the journal contains no action";
    let with = |mark: fn(&mut KubernetesNode)| {
        let mut world = PolicyFixture::with_blocks(4, 18).on_kubernetes();
        mark(world.object("d0n0"));
        frozen(&world)
    };
    assert_eq!(with(|_| ()), "");
    let annotated = with(|it| {
        it.annotations.insert(CERTIFICATE.to_owned(), "x".to_owned());
    });
    assert!(annotated.contains(lost), "{annotated}");
    assert!(with(|it| it.condition = Some(FabricNodeCondition::default())).contains(lost));
    // A node joins with the start-up taint.
    let joined = with(|it| {
        it.taints.push(Taint {
            key: UNVERIFIED.to_owned(),
            value: String::new(),
            effect: NO_SCHEDULE.to_owned(),
        });
    });
    assert_eq!(joined, "");
}

#[test]
fn a_class_that_is_only_shown_freezes_nothing_and_trips_nothing() {
    let mut world = PolicyFixture::with_blocks(2, 9);
    for node in ["d0n0", "d0n1", "d0n2", "d1n0"] {
        world.accuse(node, "brand-new", Outcome::Degraded, 0.9);
    }
    assert!(frozen(&world).contains("4 of 18"), "{}", frozen(&world));
    world.policy.shadow.insert(FindingClass::from_name("brand-new"));
    assert_eq!(frozen(&world), "");
    assert_eq!(budget::explain_trip(&world.situation(), &world.policy), None);
    world.accuse("d0n5", "gpu-missing", Outcome::Failed, 0.5);
    assert_eq!(world.proposed(), ["drain d0n5"]);
}
