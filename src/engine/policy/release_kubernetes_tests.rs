//! Releases and certificates of Kubernetes nodes.

use super::*;
use crate::policy::action_policy::SlinkyOwner;
use crate::policy::fixture::{NOW, PolicyFixture, written};
use crate::policy::journal_state::CleanRun;
use model::id::DomainName;
use model::kubernetes_node::{
    NO_SCHEDULE, PREFER_NO_SCHEDULE, Taint, UNVERIFIED, VERDICT, VERIFIED_DOMAIN,
};

/// The expected part of a reason, and the change that causes it.
type KubernetesReleaseCase = (&'static str, fn(&mut PolicyFixture));

const NODE: &str = "d0n0";

/// One node that joined and passed the current run.
fn joined() -> PolicyFixture {
    let mut world = PolicyFixture::with_blocks(1, 1).on_kubernetes();
    world.state(NODE, &["IDLE", "UNVERIFIED"]);
    let key = UNVERIFIED.to_owned();
    let taint = Taint { key, value: String::new(), effect: NO_SCHEDULE.to_owned() };
    world.object(NODE).taints.push(taint);
    world
}

/// One node that fabricgate drained yesterday, with clean runs of these boots, and that passed the
/// current run.
fn drained(clean: &[(&str, Option<&str>)]) -> PolicyFixture {
    let mut world = PolicyFixture::with_blocks(1, 1).on_kubernetes();
    world.drained(NODE, "nvlink-low", 0.9, 80_000);
    let own = world.ledger.drains.values_mut().next().expect("one");
    own.clean = clean
        .iter()
        .zip(0..)
        .map(|((run, boot), at)| CleanRun {
            run: (*run).to_owned(),
            measured: NOW - 40_000 + 5_000 * at,
            boot_id: boot.map(str::to_owned),
        })
        .collect();
    world
}

fn proposed(world: &PolicyFixture) -> Vec<Action> {
    propose_releases(&world.situation(), &world.policy).0
}

fn why(world: &PolicyFixture) -> String {
    let (actions, withheld) = propose_releases(&world.situation(), &world.policy);
    assert_eq!(actions, [], "{withheld:?}");
    let entry = withheld.iter().find(|it| it.what == NODE);
    entry.unwrap_or_else(|| panic!("{withheld:?}")).why.clone()
}

#[test]
fn a_node_that_passed_twice_in_its_boot_is_released_with_kubectl_commands() {
    let world = drained(&[("first", Some("boot-d0n0"))]);
    let actions = proposed(&world);
    let [action] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(action.kind, ActionKind::Release);
    let line = action.command.join(" ");
    let start =
        "kubectl taint --overwrite node d0n0 fabricgate.io/degraded:NoSchedule- && kubectl label";
    assert!(line.starts_with(start), "{line}");
    assert!(line.contains("fabricgate.io/reason-") && line.contains("fabricgate.io/verdict=pass"));
    let mark = action.mark.as_ref().expect("a mark");
    assert_eq!(mark.boot_id.as_deref(), Some("boot-d0n0"));
    assert_eq!(mark.domain.as_ref().map(DomainName::as_str), Some("d0"));
}

#[test]
fn a_clean_run_of_another_boot_or_of_one_that_is_not_known_gives_nothing_back() {
    for boot in [Some("another"), None] {
        let world = drained(&[("first", boot)]);
        let reason = why(&world);
        assert!(reason.contains("has passed run run2 since"), "{reason}");
        assert!(reason.ends_with("1 made in another or an unknown boot do not count"));
    }
    let mut moved = drained(&[("first", Some("boot-d0n0"))]);
    moved.node(NODE).boot_id = Some("new".to_owned());
    assert!(why(&moved).contains("has passed no full run since"), "{}", why(&moved));
    let mut no_boot = drained(&[("first", Some("boot-d0n0"))]);
    no_boot.node(NODE).boot_id = None;
    assert!(why(&no_boot).contains("it may have booted since it was drained"), "{}", why(&no_boot));
}

#[test]
fn a_release_by_earlier_runs_has_their_boot_and_not_the_current_run_s() {
    let mut world = drained(&[("first", Some("new")), ("second", Some("new"))]);
    world.node(NODE).boot_id = Some("new".to_owned());
    let actions = proposed(&world);
    let [action] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(action.kind, ActionKind::Release);
    assert_eq!(action.mark.as_ref().and_then(|mark| mark.boot_id.as_deref()), Some("new"));
}

#[test]
fn a_release_leaves_a_cordon_and_takes_the_start_up_taint_with_it() {
    let mut world = drained(&[("first", Some("boot-d0n0"))]);
    world.node(NODE).state.extend(["CORDONED", "UNVERIFIED"].map(str::to_owned));
    world.object(NODE).taints.extend([
        Taint { key: UNVERIFIED.to_owned(), effect: NO_SCHEDULE.to_owned(), ..Taint::default() },
        Taint { key: "x.io/y".to_owned(), effect: NO_SCHEDULE.to_owned(), ..Taint::default() },
    ]);
    world.object(NODE).cordoned = true;
    let line = proposed(&world)[0].command.join(" ");
    assert!(line.contains("fabricgate.io/unverified:NoSchedule-"), "{line}");
    assert!(!line.contains("x.io") && !line.contains("cordon"), "{line}");
}

#[test]
fn a_node_that_joined_and_passed_is_certified_and_in_service_then() {
    let mut world = joined();
    let actions = proposed(&world);
    let [action] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(action.kind, ActionKind::Certify);
    let line = action.command.join(" ");
    for words in [
        "kubectl taint --overwrite node d0n0 fabricgate.io/unverified:NoSchedule-",
        "fabricgate.io/verified-domain=d0",
        "\"boot_id\":\"boot-d0n0\"",
        "\"status\":\"True\"",
    ] {
        assert!(line.contains(words), "{words}: {line}");
    }
    let mark = action.mark.clone().expect("a mark");
    let names = world.policy.marks.clone();
    let change = marks::mark_change(world.node(NODE), &mark, &names);
    *world.node(NODE) = written(world.node(NODE), &change);
    world.state(NODE, &["IDLE"]);
    assert!(world.object(NODE).taints.is_empty());
    assert_eq!(proposed(&world), [], "it says so");
    world.ledger.marks.insert(NODE.into(), mark);
    assert_eq!(proposed(&world), []);
}

#[test]
fn nodes_of_another_boot_or_held_by_others_are_not_certified() {
    let cases: &[KubernetesReleaseCase] = &[
        ("it has booted since it was measured", |w| {
            w.node(NODE).boot_id = Some("new".to_owned());
        }),
        ("does not name the boot", |w| w.boots.clear()),
        ("out of service (IDLE+UNVERIFIED+CORDONED)", |w| {
            w.state(NODE, &["IDLE", "UNVERIFIED", "CORDONED"]);
        }),
        ("out of service (IDLE+TAINTED)", |w| {
            w.state(NODE, &["IDLE", "TAINTED"]);
        }),
        ("out of service (NOT_READY+UNVERIFIED)", |w| {
            w.state(NODE, &["NOT_READY", "UNVERIFIED"]);
        }),
        ("leave it alone: label a=b", |w| w.object(NODE).left_alone.push("label a=b".to_owned())),
        ("left to the gate of Slurm", |w| w.object(NODE).slinky = true),
    ];
    for (part, change) in cases {
        let mut world = joined();
        change(&mut world);
        assert!(why(&world).contains(part), "{part}: {}", why(&world));
    }
    let mut owner = joined();
    owner.object(NODE).slinky = true;
    owner.policy.slinky = SlinkyOwner::Kubernetes;
    assert_eq!(proposed(&owner).len(), 1);
}

#[test]
fn a_lost_longer_certificate_is_restored() {
    let mut world = joined();
    let longer = VerdictMark {
        outcome: Outcome::Pass,
        class: None,
        run: "burn-in-run".to_owned(),
        at: "2026-11-17T12:00:00Z".to_owned(),
        expires: Some("2027-01-01T00:00:00Z".to_owned()),
        domain: Some("d0".into()),
        boot_id: Some("boot-d0n0".to_owned()),
    };
    world.ledger.marks.insert(NODE.into(), longer.clone());
    let actions = proposed(&world);
    let [action] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(action.mark.as_ref(), Some(&longer));
    assert!(action.why.contains("for longer: until 2027-01-01"), "{}", action.why);
    let names = world.policy.marks.clone();
    let change = marks::mark_change(world.node(NODE), &longer, &names);
    *world.node(NODE) = written(world.node(NODE), &change);
    world.state(NODE, &["IDLE"]);
    assert!(why(&world).contains("an earlier certificate counts for longer"), "{}", why(&world));
    // A mark of another boot has no meaning for this one.
    world.ledger.marks.values_mut().next().expect("one").boot_id = Some("old".to_owned());
    assert_eq!(proposed(&world)[0].mark.as_ref().expect("a mark").run, "run2");
}

#[test]
fn a_pass_removes_a_soft_taint_and_sets_the_label() {
    let mut world = PolicyFixture::with_blocks(1, 1).on_kubernetes();
    let key = "fabricgate.io/degraded".to_owned();
    let (value, effect) = ("nvlink-low".to_owned(), PREFER_NO_SCHEDULE.to_owned());
    world.object(NODE).taints.push(Taint { key, value, effect });
    world.object(NODE).labels.insert(VERDICT.to_owned(), "degraded".to_owned());
    let mark = proposed(&world)[0].mark.clone().expect("a mark");
    let names = world.policy.marks.clone();
    let change = marks::mark_change(world.node(NODE), &mark, &names);
    let after = written(world.node(NODE), &change);
    let after = after.kubernetes.expect("a node of Kubernetes");
    assert!(after.taints.is_empty());
    assert_eq!((&*after.labels[VERDICT], &*after.labels[VERIFIED_DOMAIN]), ("pass", "d0"));
}
