//! Tests of which GPU goes instead of its node, and when the node goes.

use super::*;
use crate::policy::fixture::{PolicyFixture, drain, finding, stamp};
use crate::policy::journal_state::CleanRun;
use crate::policy::release;
use model::action::{Action, ActionKind};
use model::kubernetes_node::{DEVICE, NO_SCHEDULE, PREFER_NO_SCHEDULE};
use model::verdict::Outcome;

const NODE: &str = "d0n0";

fn found(gpu: Option<u32>, class: &str) -> Finding {
    let mut finding = finding(NODE, class, Outcome::Failed, 0.3);
    finding.locus.gpu = gpu;
    finding.id = format!("{class}-{gpu:?}");
    finding
}

/// A cluster where GPU 2 of one node is to blame.
fn world(devices: Devices) -> PolicyFixture {
    let mut world = PolicyFixture::with_blocks(4, 18).on_kubernetes();
    world.accuse(NODE, "nvlink-absent", Outcome::Failed, 0.3);
    world.verdicts.findings[0].locus.gpu = Some(2);
    let uuids = (0..4).map(|at| format!("GPU-{at}a")).collect();
    world.gpus.insert(NODE.into(), uuids);
    world.policy.device = devices;
    world
}

fn mark() -> GpuCordon {
    GpuCordon { way: GpuCordonMethod::TaintRule, index: 2, uuid: "GPU-2a".to_owned() }
}

fn one(world: &PolicyFixture) -> Action {
    let plan = world.plan();
    let [action] = plan.actions.as_slice() else { panic!("{plan:#?}") };
    assert_eq!(action.kind, ActionKind::Drain);
    action.clone()
}

/// The same world a moment after GPU 2 was taken out.
fn out() -> PolicyFixture {
    let mut world = world(Devices::TaintRule);
    let action = one(&world);
    let mut own = drain(&world.fleet, NODE, "nvlink-absent", 0.3, stamp(80_000));
    own.before = world.node(NODE).clone();
    own.action.device = action.device;
    let reason = own.action.reason.clone();
    world.state(NODE, &["IDLE", "DRAIN"]).reason = Some(reason);
    world.object(NODE).annotations.insert(DEVICE.to_owned(), mark().to_annotation());
    world.ledger.drains.insert(NODE.into(), own);
    world
}

#[test]
fn one_gpu_goes_where_the_policy_says_so_and_its_node_stays_with_a_soft_taint() {
    assert_eq!(one(&world(Devices::None)).device, None);
    let action = one(&world(Devices::TaintRule));
    assert_eq!(action.device, Some(mark()));
    assert_eq!(action.mark.as_ref().map(|it| it.outcome), Some(Outcome::Degraded));
    assert!(action.why.contains("GPU 2 (GPU-2a, taint-rule) alone goes"), "{}", action.why);
    let words = action.command.join(" ");
    assert!(words.contains(&format!("=nvlink-absent:{PREFER_NO_SCHEDULE}")), "{words}");
    assert!(!words.contains(&format!(":{NO_SCHEDULE}")), "{words}");
    assert!(words.contains("fabricgate.io/device=taint-rule:2:GPU-2a"), "{words}");
    let hami = one(&world(Devices::Hami));
    assert_eq!(hami.device.map(|it| it.way), Some(GpuCordonMethod::Hami));
}

#[test]
fn the_whole_node_goes_where_more_than_one_known_gpu_is_meant_and_it_is_said_why() {
    type Change = fn(&mut PolicyFixture);
    let cases: [(&str, Change); 8] = [
        ("more than one", |world| world.verdicts.findings.push(found(Some(1), "p2p-low"))),
        ("is not one GPU's", |world| world.verdicts.findings.push(found(None, "nic-low"))),
        ("is not there", |world| world.verdicts.findings.push(found(Some(2), "gpu-missing"))),
        ("did not tell the UUIDs", |world| world.gpus.clear()),
        ("UUID of GPU 2", |world| world.gpus.values_mut().for_each(|it| it.truncate(2))),
        ("no UUID of a GPU", |world| {
            world.gpus.values_mut().for_each(|it| it[2] = "MIG-1/2".to_owned());
        }),
        ("two of its GPUs", |world| {
            world.gpus.values_mut().for_each(|it| it[1] = it[2].clone());
        }),
        ("are claimed", |world| {
            world.fleet.domains.iter_mut().for_each(|it| it.gpus_per_node = Some(8));
        }),
    ];
    for (words, change) in cases {
        let mut world = world(Devices::TaintRule);
        change(&mut world);
        let action = one(&world);
        assert_eq!(action.device, None, "{words}");
        assert!(
            action.why.contains("the whole node: ") && action.why.contains(words),
            "{action:?}"
        );
    }
    let mut slurm = PolicyFixture::with_blocks(4, 18);
    slurm.accuse(NODE, "nvlink-absent", Outcome::Failed, 0.3);
    slurm.policy.device = Devices::TaintRule;
    assert!(one(&slurm).why.contains("Slurm keeps no single GPU"));
}

#[test]
fn a_gpu_alone_is_a_drain_in_every_budget() {
    let mut world = world(Devices::TaintRule);
    world.policy.per_hour = 0.0;
    let plan = world.plan();
    assert!(plan.actions.is_empty() && plan.withheld[0].budget, "{plan:#?}");
}

#[test]
fn what_is_accused_besides_the_gpu_that_is_out_takes_the_node_and_the_same_gpu_does_not() {
    let mut world = out();
    assert!(world.plan().actions.is_empty());
    assert!(world.why(NODE).contains("out already, by us"), "{}", world.why(NODE));
    world.verdicts.findings.push(found(Some(1), "nvlink-absent"));
    let action = one(&world);
    assert_eq!(action.device, None);
    assert!(action.command.join(" ").contains(&format!(":{NO_SCHEDULE}")), "{action:?}");
    // The next time it is one drain like any other.
    let taint = crate::policy::command_line::drain_taint(&action.reason);
    world.object(NODE).taints.push(taint);
    let why = world.why(NODE);
    assert!(world.plan().actions.is_empty() && why.contains("drained already"), "{why}");
}

#[test]
fn a_release_gives_back_the_gpu_that_was_taken_and_asks_a_person_where_another_is_named() {
    let passed = |mut world: PolicyFixture| {
        world.verdicts.findings.clear();
        world.verdicts.nodes.iter_mut().for_each(|it| it.outcome = Outcome::Pass);
        let own = world.ledger.drains.values_mut().next().expect("one");
        let boot_id = Some(format!("boot-{NODE}"));
        let run = "first".to_owned();
        own.clean = vec![CleanRun { run, measured: own.stamp.unix + 9, boot_id }];
        let (actions, withheld) = release::propose_releases(&world.situation(), &world.policy);
        let is_it = |it: &&Action| it.kind == ActionKind::Release;
        (actions.iter().find(is_it).cloned(), format!("{withheld:?}"))
    };
    let (release, why) = passed(out());
    assert_eq!(release.unwrap_or_else(|| panic!("{why}")).device, Some(mark()));

    let mut edited = out();
    let other = GpuCordon { index: 3, uuid: "GPU-3a".to_owned(), ..mark() };
    edited.object(NODE).annotations.insert(DEVICE.to_owned(), other.to_annotation());
    let (release, why) = passed(edited);
    assert!(release.is_none() && why.contains("a person should look"), "{why}");

    // The whole node went later: both come back.
    let mut whole = out();
    let before = whole.node(NODE).clone();
    let taint = crate::policy::command_line::drain_taint("fabricgate:nvlink-absent:run1 e3");
    whole.object(NODE).taints.push(taint);
    let own = whole.ledger.drains.values_mut().next().expect("one");
    (own.before, own.action.device) = (before, None);
    let (release, why) = passed(whole);
    assert_eq!(release.unwrap_or_else(|| panic!("{why}")).device, Some(mark()));
}

#[test]
fn what_anybody_may_write_into_our_annotation_names_a_gpu_or_nothing() {
    assert_eq!(GpuCordon::from_annotation(&mark().to_annotation()), Some(mark()));
    for text in ["", "x", "taint-rule:2", "taint-rule:-1:GPU-a", "hami:0:GPU-a,GPU-b", "hami:0:a/b"]
    {
        assert_eq!(GpuCordon::from_annotation(text), None, "{text}");
    }
}
