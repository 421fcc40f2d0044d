//! Proposals for nodes with a known scheduler state, and invariants that hold for any input.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use crate::policy::action_policy::{Policy, SoftFaults};
use crate::policy::capacity::SegmentMix;
use crate::policy::fixture::{PolicyFixture, finding, stamp};
use crate::policy::journal_state::{BreakerTrip, UndoneDrain};
use crate::policy::{action_policy, node_state, release};
use model::action::ActionKind;
use model::claims::GroupAssertion;
use model::finding_class::FindingClass;
use model::id::NodeName;
use model::source_report::{ClaimBasis, NodeGroup, NodeGroupKind};
use model::verdict::{LocusKind, Outcome};

/// A case's name, and its change of the fixture.
type DrainCase = (&'static str, fn(&mut PolicyFixture));

/// One confirmed hard fault on `d0n0`.
fn world() -> PolicyFixture {
    let mut world = PolicyFixture::with_blocks(4, 18);
    world.accuse("d0n0", "gpu-missing", Outcome::Failed, 0.75);
    world
}

#[test]
fn a_confirmed_hard_fault_is_drained_with_run_class_and_turn() {
    let plan = world().plan();
    let [action] = plan.actions.as_slice() else { panic!("{plan:#?}") };
    assert_eq!(action.kind, ActionKind::Drain);
    assert_eq!(action.reason, "fabricgate:gpu-missing:run2 e7");
    assert_eq!(action.command[4], "Reason=fabricgate:gpu-missing:run2 e7");
    assert_eq!(action.domain.as_ref().map(|d| d.as_str()), Some("d0"));
    let mark = action.mark.as_ref().expect("a mark");
    assert_eq!((mark.outcome, mark.run.as_str()), (Outcome::Failed, "run2"));
    assert_eq!((plan.frozen, plan.withheld.len()), (None, 0));
}

#[test]
fn a_busy_or_reserved_node_is_drained_with_a_remark() {
    let mut world = world();
    world.state("d0n0", &["MIXED", "RESERVED", "MAINTENANCE"]).reservation =
        Some("window".to_owned());
    let why = world.plan().actions[0].why.clone();
    assert!(why.contains("its jobs end first") && why.contains("window"), "{why}");
}

#[test]
fn every_line_that_is_not_taken_has_its_reason() {
    let cases: [DrainCase; 8] = [
        ("the scheduler does not know it", |w| {
            w.live.as_mut().expect("asked").nodes.remove(&NodeName::from("d0n0"));
        }),
        ("not by fabricgate: \"bob: DIMM\"", |w| {
            w.state("d0n0", &["IDLE", "DRAIN"]).reason = Some("bob: DIMM".to_owned());
        }),
        ("drained already, by fabricgate", |w| {
            w.drained("d0n0", "gpu-missing", 0.75, 90_000);
        }),
        ("leave it alone: label managed=false", |w| {
            let claims = w.fleet.nodes.entry(NodeName::from("d0n0")).or_default();
            claims.opt_out = vec!["label managed=false".to_owned()];
        }),
        ("not confirmed by a second", |w| w.verdicts.findings[0].confirmed = false),
        ("only displays findings of this class", |w| {
            w.policy.shadow.insert(FindingClass::GpuMissing);
        }),
        ("no domain claims", |w| w.fleet.domains.clear()),
        ("the breaker tripped at 60 s ago (storm; run run1)", |w| {
            let (stamp, why, run) = (stamp(60), "storm".to_owned(), "run1".to_owned());
            w.ledger.breaker = Some(BreakerTrip { stamp, why, run });
        }),
    ];
    for (why, change) in cases {
        let mut world = world();
        change(&mut world);
        assert!(world.why("d0n0").contains(why), "{why}: {}", world.why("d0n0"));
        let is_stop = why.starts_with("the breaker");
        assert_eq!(world.plan().withheld[0].budget, is_stop, "{why}");
        assert_eq!(world.plan().frozen.is_some(), is_stop, "{why}");
    }
}

#[test]
fn a_node_specific_reason_precedes_the_breaker() {
    let mut world = world();
    let (stamp, why, run) = (stamp(60), "storm".to_owned(), "run1".to_owned());
    world.ledger.breaker = Some(BreakerTrip { stamp, why, run });
    world.state("d0n0", &["DOWN"]);
    assert!(world.why("d0n0").contains("Slurm keeps jobs away already"));
    assert!(!world.plan().withheld[0].budget);
}

#[test]
fn confirmed_faults_of_shared_parts_drain_no_node() {
    for kind in [
        LocusKind::Pair,
        LocusKind::Leaf,
        LocusKind::Plane,
        LocusKind::Domain,
        LocusKind::Instrument,
    ] {
        let mut world = world();
        world.verdicts.findings[0].locus.kind = kind;
        let plan = world.plan();
        assert_eq!((plan.actions.len(), plan.withheld.len()), (0, 1), "{kind:?}");
    }
    let mut unknown = world();
    unknown.verdicts.findings[0].outcome = Outcome::Unknown;
    assert!(unknown.plan().actions.is_empty());
}

#[test]
fn only_the_confirmed_of_several_findings_acts() {
    let mut world = world();
    world.verdicts.findings[0].confirmed = false;
    world.policy.soft = SoftFaults::Relabel;
    world.accuse("d0n0", "nvlink-low", Outcome::Degraded, 0.9);
    let plan = world.plan();
    let [action] = plan.actions.as_slice() else { panic!("{plan:#?}") };
    assert_eq!((action.kind, action.findings.len()), (ActionKind::Relabel, 1));
    world.policy.confirmed = false;
    let plan = world.plan();
    assert_eq!((plan.actions[0].kind, plan.actions[0].findings.len()), (ActionKind::Drain, 2));
}

#[test]
fn a_node_of_another_domain_is_marked_once_it_was_measured_there() {
    let mut world = PolicyFixture::with_blocks(4, 18);
    world.accuse("d0n0", "wrong-domain", Outcome::Failed, 0.05);
    let why = world.why("d0n0");
    assert!(why.contains("no measurement shows which other domain"), "{why}");
    let nodes = ["d0n0", "d1n0", "d1n1"].map(NodeName::from).to_vec();
    world.fleet.assertions.push(GroupAssertion {
        source: 0,
        group: NodeGroup {
            basis: ClaimBasis::Measured,
            ..NodeGroup::new(NodeGroupKind::Domain, "measured domain", "d1", nodes)
        },
    });
    let plan = world.plan();
    assert_eq!(world.proposed(), ["relabel d0n0"]);
    assert!(plan.actions[0].why.contains("it reaches d1"), "{}", plan.actions[0].why);
    assert!(plan.actions[0].reason.is_empty());
    // Wrong data is a fault regardless of the node's domain.
    world.accuse("d0n0", "data-corruption", Outcome::Failed, 0.0);
    assert_eq!(world.proposed(), ["drain d0n0"]);
}

#[test]
fn the_worst_suspect_over_budget_names_a_milder_drain_to_release() {
    let mut world = PolicyFixture::with_blocks(4, 18);
    world.drained("d0n1", "nvlink-low", 0.94, 90_000);
    world.drained("d0n2", "nvlink-low", 0.6, 90_000);
    world.accuse("d0n0", "gpu-missing", Outcome::Failed, 0.75);
    let why = world.why("d0n0");
    assert!(why.starts_with("budget: 2 nodes of d0"), "{why}");
    assert!(why.contains("worse than d0n1 (fabricgate:nvlink-low:run1 e3, at 94.0 %)"), "{why}");
    // A milder fault displaces no drain.
    let mut milder = PolicyFixture::with_blocks(4, 18);
    milder.drained("d0n1", "nvlink-low", 0.94, 90_000);
    milder.drained("d0n2", "nvlink-low", 0.6, 90_000);
    milder.accuse("d0n0", "nvlink-low", Outcome::Degraded, 0.95);
    assert!(!milder.why("d0n0").contains("worse than"), "{}", milder.why("d0n0"));
    // If the price keeps the node in service, the advice appears next to the mark.
    milder.policy.mix.0.insert(16, 1.0);
    milder.policy.largest_gang = Some(20);
    milder.verdicts.findings[0].ratio = Some(0.7);
    let plan = milder.plan();
    assert_eq!(milder.proposed(), ["relabel d0n0"]);
    assert!(plan.actions[0].why.contains("worse than d0n1"), "{}", plan.actions[0].why);
}

#[test]
fn limits_out_of_range_are_named_with_what_was_expected() {
    assert_eq!(Policy::default().check(), Ok(()));
    let of = |change: fn(&mut Policy)| {
        let mut policy = Policy::default();
        change(&mut policy);
        policy.check().expect_err("out of range")
    };
    assert_eq!(of(|p| p.per_hour = 1.5), "per_hour 1.5, expected 0 to 1");
    assert!(of(|p| p.freeze_fleet = f64::NAN).contains("freeze_fleet NaN"));
    assert!(of(|p| p.evidence_hours = -1.0).contains("evidence_hours -1"));
    assert!(of(|p| p.price_ceiling = Some(f64::INFINITY)).contains("price_ceiling"));
    let error = of(|p| p.again_hours = 200.0);
    assert!(error.starts_with("again_hours 200 is longer than again_days 7"), "{error}");
    let off = Policy { again_hours: 0.0, again_days: 0.0, ..Policy::default() };
    assert_eq!(off.check(), Ok(()), "no second run is required");
    assert!(of(|p| p.exposed = 0.0).contains("exposed"));
    assert!(of(|p| p.freeze_domain = 0).contains("freeze_domain 0"));
    assert!(of(|p| p.largest_gang = Some(0)).contains("largest_gang 0"));
    assert!(of(|p| p.mix = SegmentMix([(0, 1.0)].into())).contains("mix"));
}

#[test]
fn a_policy_of_an_earlier_version_is_read_with_the_defaults_of_this_one() {
    let old =
        r#"{"per_domain":1,"freeze_domain":4,"freeze_fleet":0.1,"propose_unconfirmed":false}"#;
    let policy: Policy = serde_json::from_str(old).expect("readable");
    assert_eq!((policy.per_domain, policy.freeze_domain), (1, 4));
    assert_eq!(policy.evidence_hours, Policy::default().evidence_hours);
    let written = serde_json::to_string(&policy).expect("plain data");
    assert_eq!(serde_json::from_str::<Policy>(&written).expect("readable"), policy);
    assert!(serde_json::from_str::<Policy>(r#"{"per_domian":1}"#).is_err());
}

#[test]
fn a_kubernetes_drain_lists_every_written_entry_in_kubernetes_terms() {
    let mut world = PolicyFixture::with_blocks(4, 18).on_kubernetes();
    world.accuse("d0n0", "gpu-missing", Outcome::Failed, 0.75);
    world.state("d0n0", &["ALLOCATED"]);
    let plan = world.plan();
    let [action] = plan.actions.as_slice() else { panic!("{plan:#?}") };
    assert_eq!(action.reason, "fabricgate:gpu-missing:run2 e7");
    let line = action.command.join(" ");
    for words in [
        "kubectl annotate --overwrite node d0n0 fabricgate.io/reason=fabricgate:gpu-missing:run2 e7",
        "&& kubectl taint --overwrite node d0n0 fabricgate.io/degraded=gpu-missing:NoSchedule &&",
        "fabricgate.io/verdict=failed",
        "\"type\":\"GpuFabricVerified\",\"status\":\"False\",\"reason\":\"GpuMissing\"",
    ] {
        assert!(line.contains(words), "{words}: {line}");
    }
    assert!(!line.contains("scontrol") && !line.contains("PreferNoSchedule"), "{line}");
    let mark = action.mark.as_ref().expect("a mark");
    assert_eq!(mark.boot_id.as_deref(), Some("boot-d0n0"));
    assert_eq!(mark.domain.as_ref().map(|it| it.as_str()), Some("d0"));
    assert!(action.why.contains("its pods end first"), "{}", action.why);
}

#[test]
fn a_soft_fault_on_kubernetes_is_marked_with_a_soft_taint() {
    let mut world = PolicyFixture::with_blocks(4, 18).on_kubernetes();
    world.accuse("d0n0", "nvlink-low", Outcome::Degraded, 0.9);
    world.policy.soft = SoftFaults::Relabel;
    let plan = world.plan();
    let line = plan.actions[0].command.join(" ");
    assert!(line.contains("fabricgate.io/degraded=nvlink-low:PreferNoSchedule"), "{line}");
    assert!(!line.contains(":NoSchedule"), "{line}");
}

#[test]
fn a_node_that_was_never_in_service_costs_nothing_to_drain() {
    let mut world = PolicyFixture::with_blocks(4, 18).on_kubernetes();
    world.accuse("d0n0", "nvlink-low", Outcome::Degraded, 0.9);
    world.policy.mix.0.insert(16, 1.0);
    world.drained("d0n1", "nvlink-low", 0.9, 90_000);
    world.state("d0n2", &["NOT_READY"]);
    world.policy.largest_gang = Some(4);
    assert_eq!(world.proposed(), ["relabel d0n0"]);
    world.state("d0n0", &["IDLE", "UNVERIFIED"]);
    assert_eq!(world.proposed(), ["drain d0n0"]);
    assert_eq!(world.plan().actions[0].price, Some(0.0));
}

#[test]
fn withheld_kubernetes_nodes_have_reasons_in_kubernetes_terms() {
    let cases: &[DrainCase] = &[
        ("it is cordoned (CORDONED), not by fabricgate", |w| {
            w.state("d0n0", &["IDLE", "CORDONED"]);
        }),
        ("(TAINTED), not by fabricgate", |w| {
            w.state("d0n0", &["IDLE", "TAINTED"]);
        }),
        ("Kubernetes keeps pods away already", |w| {
            w.state("d0n0", &["NOT_READY"]);
        }),
        ("leave it alone: taint of another tool", |w| {
            w.object("d0n0").left_alone.push("taint of another tool".to_owned());
        }),
        ("no annotation fabricgate.io/reason", |w| {
            w.state("d0n0", &["IDLE", "DRAIN"]);
        }),
        ("no node exists to drain", |w| {
            w.state("d0n0", &["IDLE", "DELETING"]);
        }),
    ];
    for (why, change) in cases {
        let mut world = PolicyFixture::with_blocks(4, 18).on_kubernetes();
        world.accuse("d0n0", "gpu-missing", Outcome::Failed, 0.75);
        assert_eq!(world.proposed(), ["drain d0n0"]);
        change(&mut world);
        assert!(world.why("d0n0").contains(why), "{why}: {}", world.why("d0n0"));
        assert!(world.plan().withheld.iter().all(|it| !it.why.contains("Slurm")));
    }
}

/// States that the property tests draw from.
const STATES: &[&[&str]] = &[
    &["IDLE"],
    &["IDLE"],
    &["MIXED"],
    &["IDLE", "DRAIN"],
    &["DOWN", "NOT_RESPONDING"],
    &["IDLE", "REBOOT_REQUESTED"],
    &["UNKNOWN"],
    &["IDLE", "PLANNED"],
    &["BRAND_NEW"],
    &["ALLOCATED"],
    &["IDLE", "CORDONED"],
    &["IDLE", "UNVERIFIED"],
];

const CLASSES: &[&str] =
    &["gpu-missing", "nvlink-low", "wrong-domain", "nvlink-inactive", "data-corruption"];

/// Possible findings about nodes: block, node, class, outcome, ratio, whether it is confirmed, and
/// the kind of part.
type AccusedPart = (usize, usize, usize, bool, f64, bool, bool);

fn any_world() -> impl Strategy<Value = PolicyFixture> {
    let findings = (
        0..6_usize,
        0..6_usize,
        0..CLASSES.len(),
        any::<bool>(),
        0.0..1.1_f64,
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.9),
    );
    let findings = prop::collection::vec(findings, 0..14);
    let states = prop::collection::vec(0..STATES.len(), 36);
    let drained = prop::collection::vec((0..6_usize, 0..6_usize, 0..10_000_i64), 0..4);
    let limits = (0..4_usize, 0..4_usize, 0.0..0.3_f64, 0.0..0.3_f64, 2..9_usize, any::<bool>());
    let gangs = proptest::option::of(prop::collection::vec(0..9_usize, 36));
    (findings, states, drained, limits, gangs).prop_map(
        |(findings, states, drained, limits, gangs)| {
            let mut world = PolicyFixture::with_blocks(6, 6);
            if let Some(gangs) = gangs {
                world = world.on_kubernetes();
                for (at, gang) in gangs.into_iter().enumerate() {
                    let object = world.object(&format!("d{}n{}", at / 6, at % 6));
                    object.gangs.insert(format!("gang-{gang}"));
                }
            }
            for (at, state) in states.into_iter().enumerate() {
                world.state(&format!("d{}n{}", at / 6, at % 6), STATES[state]);
            }
            for (domain, node, ago) in drained {
                world.drained(&format!("d{domain}n{node}"), "nvlink-low", 0.9, ago);
            }
            for one in findings {
                add(&mut world, one);
            }
            let (per_domain, per_leaf, per_hour, outstanding, freeze, live) = limits;
            world.policy = Policy {
                per_domain,
                per_leaf,
                per_hour,
                outstanding,
                freeze_domain: freeze,
                freeze_fleet: 0.5,
                ..Policy::default()
            };
            world.policy.mix.0.insert(4, 1.0);
            world.leaf("leaf1", &["d0n0", "d1n0", "d2n0", "d3n0", "d4n0", "d5n0"]);
            if !live {
                world.live = None;
            }
            world
        },
    )
}

fn add(world: &mut PolicyFixture, (d, n, class, hard, ratio, confirmed, of_node): AccusedPart) {
    let outcome = if hard { Outcome::Failed } else { Outcome::Degraded };
    let mut found = finding(&format!("d{d}n{n}"), CLASSES[class], outcome, ratio);
    found.confirmed = confirmed;
    if !of_node {
        found.locus.kind = LocusKind::Domain;
    }
    world.verdicts.findings.push(found);
}

/// Whether a finding names this node as the part at fault.
fn is_accused(world: &PolicyFixture, node: &NodeName) -> bool {
    world.verdicts.findings.iter().any(|f| {
        f.locus.node.as_ref() == Some(node)
            && f.locus.kind == LocusKind::Gpu
            && Outcome::Unknown < f.outcome
    })
}

proptest! {
    #[test]
    fn no_budget_is_ever_exceeded(world in any_world()) {
        let plan = world.plan();
        let drains: Vec<_> =
            plan.actions.iter().filter(|a| a.kind == ActionKind::Drain).collect();
        let policy = &world.policy;
        let share = |share: f64| {
            let most = (0..=36_u8).rev().find(|n| f64::from(*n) <= 36.0 * share);
            if share <= 0.0 { 0 } else { usize::from(most.unwrap_or(0)).max(1) }
        };
        let before = |has: &dyn Fn(&NodeName) -> bool| {
            world.ledger.drains.keys().filter(|node| has(node)).count()
        };
        for domain in &world.fleet.domains {
            let here = |node: &NodeName| domain.nodes.contains(node);
            let new = drains.iter().filter(|a| here(&a.node)).count();
            prop_assert!(new == 0 || new + before(&here) <= policy.per_domain, "{plan:#?}");
        }
        let on_leaf = |node: &NodeName| node.as_str().ends_with("n0");
        let new = drains.iter().filter(|a| on_leaf(&a.node)).count();
        prop_assert!(new == 0 || new + before(&on_leaf) <= policy.per_leaf);
        let mut gangs: BTreeMap<&str, usize> = BTreeMap::new();
        for action in &drains {
            let node = world.live.as_ref().and_then(|live| live.nodes[&action.node].kubernetes.as_ref());
            for gang in node.into_iter().flat_map(|node| &node.gangs) {
                *gangs.entry(gang).or_default() += 1;
            }
        }
        prop_assert!(gangs.values().all(|drained| *drained <= policy.per_gang), "{plan:#?}");
        let recent = world.ledger.spent.iter().filter(|s| s.stamp.uptime_s > 496_400.0).count();
        prop_assert!(drains.is_empty() || drains.len() + recent <= share(policy.per_hour));
        let all = drains.len() + world.ledger.drains.len();
        prop_assert!(drains.is_empty() || all <= share(policy.outstanding));
    }

    #[test]
    fn no_action_without_a_finding_or_against_the_node_state(world in any_world()) {
        for action in &world.plan().actions {
            prop_assert!(is_accused(&world, &action.node), "{action:#?}");
            let known: BTreeSet<&str> =
                world.verdicts.findings.iter().map(|f| f.id.as_str()).collect();
            prop_assert!(!action.findings.is_empty());
            prop_assert!(action.findings.iter().all(|id| known.contains(id.as_str())));
            if let Some(live) = &world.live {
                let node = &live.nodes[&action.node];
                prop_assert_eq!(node_state::explain_no_drain(node, &world.ledger), None);
                let sure = |f: &&model::verdict::Finding| action.findings.contains(&f.id);
                prop_assert!(world.verdicts.findings.iter().filter(sure).any(|f| f.confirmed));
            }
        }
    }

    #[test]
    fn every_blamed_node_is_planned_or_withheld_exactly_once(world in any_world()) {
        let plan = world.plan();
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let taken = plan.actions.iter().map(|a| a.node.to_string());
        for node in taken.chain(plan.withheld.iter().map(|w| w.what.clone())) {
            *seen.entry(node).or_default() += 1;
        }
        for verdict in PolicyFixture::with_blocks(6, 6).verdicts.nodes {
            let times = seen.get(verdict.node.as_str()).copied().unwrap_or(0);
            let expected = usize::from(is_accused(&world, &verdict.node));
            prop_assert!(expected <= times, "{} in {plan:#?}", verdict.node);
        }
        prop_assert!(plan.withheld.iter().all(|w| !w.why.is_empty()));
        prop_assert!(plan.actions.iter().all(|a| !a.why.is_empty()));
    }

    #[test]
    fn a_breaker_stops_drains_and_marks_and_never_a_release(world in any_world()) {
        let mut stopped = world.clone();
        let (stamp, why, run) = (stamp(60), "storm".to_owned(), "run1".to_owned());
        stopped.ledger.breaker = Some(BreakerTrip { stamp, why, run });
        let (back, _) = release::propose_releases(&stopped.situation(), &stopped.policy);
        let plan = action_policy::propose_actions(&stopped.situation(), &stopped.policy);
        prop_assert!(plan.frozen.is_some());
        let takes = |kind| matches!(kind, ActionKind::Drain | ActionKind::Relabel);
        prop_assert!(plan.actions.iter().all(|a| !takes(a.kind)), "{plan:#?}");
        prop_assert_eq!(plan.actions.len(), back.len());
    }

    #[test]
    fn the_order_of_findings_does_not_change_the_plan(world in any_world()) {
        let plan = world.plan();
        prop_assert_eq!(&plan, &world.plan());
        let mut turned = world.clone();
        turned.verdicts.findings.reverse();
        let acts = |world: &PolicyFixture| -> Vec<(NodeName, ActionKind, String)> {
            let plan = world.plan();
            plan.actions.into_iter().map(|a| (a.node, a.kind, a.reason)).collect()
        };
        // Two findings with the same id have no difference that a judge would distinguish.
        let ids: BTreeSet<&str> = world.verdicts.findings.iter().map(|f| f.id.as_str()).collect();
        if ids.len() == world.verdicts.findings.len() {
            prop_assert_eq!(acts(&world), acts(&turned));
        }
    }

    #[test]
    fn an_undone_drain_stays_undone_until_new_evidence(world in any_world()) {
        let mut undone = world.clone();
        for action in world.plan().actions.iter().filter(|a| a.kind == ActionKind::Drain) {
            let mut own =
                PolicyFixture::with_blocks(6, 6).drained(action.node.as_str(), "x", 1.0, 7_200);
            own.action = action.clone();
            undone.ledger.undone_drains.insert(
                action.node.clone(),
                UndoneDrain { stamp: stamp(3_600), drain: own },
            );
        }
        if undone.live.is_some() {
            let again: Vec<NodeName> = undone.plan().actions.into_iter().map(|a| a.node).collect();
            let were: BTreeSet<NodeName> = undone.ledger.undone_drains.keys().cloned().collect();
            prop_assert!(again.iter().all(|node| !were.contains(node)), "{again:?}");
        }
    }
}
