//! The remainder of each budget, and the conditions that trip the breaker.

use super::*;
use crate::policy::action_policy::Policy;
use crate::policy::fixture::{NOW, PolicyFixture, stamp};
use crate::policy::journal_state::{BreakerTrip, OpenIntent};
use model::node_update::NodeUpdate;
use model::source_report::NicReport;
use model::verdict::Outcome;

/// A hard fault on each of these nodes.
fn failing(world: &mut PolicyFixture, nodes: &[&str]) {
    for node in nodes {
        world.accuse(node, "gpu-missing", Outcome::Failed, 0.5);
    }
}

#[test]
fn drains_that_stand_count_against_their_domain_and_no_other() {
    let mut world = PolicyFixture::with_blocks(2, 18);
    world.drained("d0n0", "nvlink-low", 0.9, 90_000);
    world.drained("d0n1", "nvlink-low", 0.9, 90_000);
    failing(&mut world, &["d0n5", "d1n5"]);
    assert_eq!(world.proposed(), ["drain d1n5"]);
    assert!(world.why("d0n5").starts_with("budget: 2 nodes of d0"), "{}", world.why("d0n5"));
    // An intent without a recorded result may have been carried out.
    let own = world.ledger.drains.remove(&NodeName::from("d0n1")).expect("drained");
    let open = OpenIntent {
        is_late: false,
        id: own.id.clone(),
        stamp: own.stamp.clone(),
        epoch: own.epoch,
        run: own.run.clone(),
        action: own.action.clone(),
        change: NodeUpdate::default(),
        before: own.before.clone(),
    };
    world.ledger.open_intents.push_back(open);
    assert!(world.why("d0n5").starts_with("budget: 2 nodes of d0"));
    // A drain without a journal entry also counts.
    world.ledger.open_intents.clear();
    assert!(world.why("d0n5").starts_with("budget: 2 nodes of d0"));
    world.state("d0n1", &["IDLE"]).reason = None;
    assert_eq!(world.proposed(), ["drain d0n5", "drain d1n5"]);
}

#[test]
fn nodes_of_one_leaf_share_a_budget_whichever_domain_they_are_in() {
    let mut world = PolicyFixture::with_blocks(4, 18);
    world.leaf("leaf1", &["d0n0", "d1n0", "d2n0"]);
    // Three concurrent faults would be a common cause.
    world.drained("d1n0", "nvlink-low", 0.9, 90_000);
    failing(&mut world, &["d0n0", "d2n0"]);
    assert_eq!(world.proposed(), ["drain d0n0"]);
    assert_eq!(world.plan().actions[0].leaf.as_deref(), Some("leaf1"));
    assert!(world.why("d2n0").contains("2 nodes on leaf leaf1"), "{}", world.why("d2n0"));
    // Cables define the leaf of a rail.
    world.fleet.leaves.clear();
    for node in ["d0n0", "d1n0", "d2n0"] {
        let nic = NicReport { leaf: Some("rail0-leaf1".to_owned()), ..NicReport::default() };
        world.fleet.nodes.entry(NodeName::from(node)).or_default().nics = vec![nic];
    }
    assert!(world.why("d2n0").contains("rail0-leaf1"));
}

#[test]
fn drains_of_nodes_that_this_run_does_not_cover_count_as_they_were_claimed_then() {
    let mut world = PolicyFixture::with_blocks(3, 18);
    world.leaf("leaf1", &["d0n0", "d1n0", "d2n0"]);
    for node in ["d0n0", "d1n0"] {
        world.drained(node, "nvlink-low", 0.9, 90_000);
        let own = world.ledger.drains.get_mut(&NodeName::from(node)).expect("drained");
        own.action.leaf = Some("leaf1".to_owned());
    }
    // A run of the third block alone.
    world.fleet.domains.drain(..2);
    world.fleet.leaves[0].nodes.retain(|node| node.as_str() == "d2n0");
    failing(&mut world, &["d2n0"]);
    assert!(world.why("d2n0").contains("2 nodes on leaf leaf1"), "{}", world.why("d2n0"));
}

#[test]
fn the_remainder_of_each_limit_is_a_sentence() {
    let mut world = PolicyFixture::with_blocks(10, 20);
    world.policy = Policy::default();
    world.leaf("leaf1", &["d0n0", "d0n1"]);
    world.drained("d0n0", "nvlink-low", 0.9, 60);
    world.drained("d0n1", "nvlink-low", 0.9, 90_000);
    let left = |world: &PolicyFixture| {
        describe_remaining(
            &world.ledger,
            world.live.as_ref(),
            &world.fleet,
            &world.policy,
            &world.now,
        )
    };
    let expected = [
        "drains within the hour: 1 of 2 left (1 % of 200 nodes)",
        "drains at a time: 4 of 6 left (3 % of 200 nodes)",
        "drains in each domain: at most 2 at a time, none left in d0",
        "drains in each leaf: at most 2 at a time, none left in leaf1",
        "marks within the hour: 10 of 10 left (5 % of 200 nodes)",
    ];
    assert_eq!(left(&world), expected);
    assert_eq!(count_within_hour(&world.ledger, &world.now), (1, 0));
    // A lowered limit does not require releases.
    world.policy.outstanding = 0.0;
    assert_eq!(left(&world)[1], "drains at a time: 0 of 0 left (0 % of 200 nodes)");
    for domain in 1..9 {
        for node in 0..2 {
            world.drained(&format!("d{domain}n{node}"), "nvlink-low", 0.9, 90_000);
        }
    }
    assert!(left(&world)[2].ends_with("d0, d1, d2, d3, d4, d5 and 3 more"), "{:?}", left(&world));
}

#[test]
fn a_price_that_is_no_number_is_over_every_ceiling() {
    let mut world = PolicyFixture::with_blocks(1, 18);
    world.policy.price_ceiling = Some(5.0);
    let situation = world.situation();
    let places = ClaimIndex::from_claims(situation.fleet);
    let budget = DrainBudget::from_situation(&situation, &places, &world.policy);
    let domain = DomainName::from("d0");
    let full =
        |price| budget.check_drain(&NodeName::from("d0n0"), Some(&domain), Some(price)).is_err();
    assert_eq!([5.0, 5.1, f64::NAN, f64::INFINITY].map(full), [false, true, true, true]);
}

#[test]
fn an_hour_and_the_whole_fleet_have_a_share_of_at_least_one_node() {
    let mut world = PolicyFixture::with_blocks(20, 10);
    world.policy = Policy { freeze_domain: 10, ..Policy::default() };
    failing(&mut world, &["d0n0", "d1n0", "d2n0"]);
    // One node of a hundred counts like two of two hundred.
    assert_eq!(world.proposed(), ["drain d0n0", "drain d1n0"]);
    assert!(world.why("d2n0").contains("limit 2: 1 % of 200 nodes"), "{}", world.why("d2n0"));
    world.drained("d9n0", "nvlink-low", 0.9, 3_599);
    assert_eq!(world.proposed(), ["drain d0n0"]);
    world.drained("d9n0", "nvlink-low", 0.9, 3_600);
    world.ledger.spent.remove(0);
    assert_eq!(world.proposed(), ["drain d0n0", "drain d1n0"]);
    for other in ["d10n0", "d11n0", "d12n0", "d13n0", "d14n0"] {
        world.drained(other, "nvlink-low", 0.9, 90_000);
    }
    assert!(world.proposed().is_empty());
    assert!(
        world.why("d0n0").contains("6 drains by fabricgate are outstanding"),
        "{}",
        world.why("d0n0")
    );
    world.policy.outstanding = 0.0;
    assert!(world.why("d0n0").contains("limit 0"));

    let mut small = PolicyFixture::with_blocks(1, 4);
    small.policy = Policy::default();
    failing(&mut small, &["d0n0", "d0n1"]);
    assert_eq!(small.proposed(), ["drain d0n0"]);
}

#[test]
fn time_is_counted_by_uptime_within_a_boot_and_never_runs_backwards() {
    let now = PolicyFixture::with_blocks(1, 1).now;
    let recent = |stamp: ClockStamp| is_recent(&stamp, &now, 3_600.0);
    assert!(recent(stamp(3_599)));
    assert!(!recent(stamp(3_600)));
    // The wall clock jumped; the uptime did not.
    assert!(recent(ClockStamp { unix: 0, ..stamp(10) }));
    assert!(!recent(ClockStamp { unix: NOW + 9_999, ..stamp(7_200) }));
    // Another boot, or an unknown one.
    let other = |unix: i64| ClockStamp { boot: "boot-b".to_owned(), unix, ..stamp(0) };
    assert!(recent(other(NOW - 3_599)));
    assert!(!recent(other(NOW - 3_600)));
    assert!(recent(other(NOW + 1_000_000)));
    assert!(recent(ClockStamp { boot: String::new(), ..other(NOW - 10) }));
    assert!(recent(ClockStamp { uptime_s: f64::NAN, ..stamp(10) }));
    assert!(recent(other(i64::MAX)) && !recent(other(i64::MIN)));
}

#[test]
fn no_fault_justifies_a_drain_above_the_ceiling() {
    let mut world = PolicyFixture::with_blocks(4, 18);
    world.policy.mix.0.insert(16, 1.0);
    failing(&mut world, &["d0n0"]);
    world.state("d0n1", &["DOWN"]).reason = Some("bob".to_owned());
    world.state("d0n2", &["IDLE", "DRAIN"]).reason = Some("bob".to_owned());
    // The third drained node of a block of 18 costs a whole segment.
    let price = world.plan().actions[0].price.expect("a price");
    assert!((13.0..14.0).contains(&price), "{price}");
    world.policy.price_ceiling = Some(13.0);
    assert!(world.why("d0n0").contains("costs 13.6"), "{}", world.why("d0n0"));
    world.policy.price_ceiling = Some(14.0);
    assert_eq!(world.proposed(), ["drain d0n0"]);
}

#[test]
fn marks_have_a_larger_budget_of_their_own() {
    let mut world = PolicyFixture::with_blocks(20, 10);
    world.policy =
        Policy { soft: super::super::action_policy::SoftFaults::Relabel, ..Policy::default() };
    world.policy.freeze_fleet = 1.0;
    for domain in 0..12 {
        world.accuse(&format!("d{domain}n0"), "nvlink-low", Outcome::Degraded, 0.9);
    }
    let proposed = world.proposed();
    assert_eq!(proposed.len(), 10, "{proposed:?}");
    assert!(proposed.iter().all(|line| line.starts_with("relabel")));
    world.accuse("d19n0", "gpu-missing", Outcome::Failed, 0.5);
    assert!(world.proposed().contains(&"drain d19n0".to_owned()));
}

#[test]
fn the_breaker_trips_for_what_outlives_a_run_and_once() {
    let tripped = |world: &PolicyFixture| explain_trip(&world.situation(), &world.policy);
    let mut world = PolicyFixture::with_blocks(10, 10);
    failing(&mut world, &["d0n0", "d1n0", "d2n0", "d3n0"]);
    assert_eq!(tripped(&world), None);
    failing(&mut world, &["d4n0"]);
    assert!(tripped(&world).is_some_and(|why| why.contains("5 of 100")));
    // A plan that was only displayed, an old run, a simulated run.
    for change in [
        |w: &mut PolicyFixture| w.live = None,
        |w: &mut PolicyFixture| w.run.created_unix = NOW - 25 * 3_600,
        |w: &mut PolicyFixture| w.run.real = false,
        |w: &mut PolicyFixture| {
            w.coverage = Some(crate::policy::situation::PlanCoverage { planned: 10, returned: 7 });
        },
        |w: &mut PolicyFixture| {
            let (stamp, why, run) = (stamp(10), "before".to_owned(), "run1".to_owned());
            w.ledger.breaker = Some(BreakerTrip { stamp, why, run });
        },
    ] {
        let mut other = world.clone();
        change(&mut other);
        assert_eq!(tripped(&other), None);
    }
    // Known suspects that are measured again do not count as new.
    for domain in 0..5 {
        world.drained(&format!("d{domain}n0"), "gpu-missing", 0.5, 90_000);
    }
    assert_eq!(tripped(&world), None);
}

#[test]
fn a_gang_loses_one_node_at_a_time_in_whichever_domains_it_runs() {
    let gang = |world: &mut PolicyFixture, node: &str, name: &str| {
        world.object(node).gangs.insert(name.to_owned());
        world.state(node, &["ALLOCATED"]);
    };
    let mut world = PolicyFixture::with_blocks(4, 18).on_kubernetes();
    failing(&mut world, &["d0n0", "d1n0"]);
    gang(&mut world, "d0n0", "team/train-7");
    gang(&mut world, "d1n0", "team/train-8");
    assert_eq!(world.proposed(), ["drain d0n0", "drain d1n0"]);
    gang(&mut world, "d1n0", "team/train-7");
    assert_eq!(world.proposed(), ["drain d0n0"]);
    let why = world.why("d1n0");
    assert!(why.starts_with("budget: 1 nodes of gang team/train-7, which runs on it"), "{why}");
    assert!(world.plan().withheld.iter().any(|it| it.what == "d1n0" && it.budget));
    world.policy.per_gang = 2;
    assert_eq!(world.proposed(), ["drain d0n0", "drain d1n0"]);
    // A node drained earlier counts while it still runs the job.
    let mut later = PolicyFixture::with_blocks(4, 18).on_kubernetes();
    failing(&mut later, &["d1n0"]);
    gang(&mut later, "d1n0", "team/train-7");
    later.drained("d0n0", "nvlink-low", 0.9, 90_000);
    assert_eq!(later.proposed(), ["drain d1n0"]);
    gang(&mut later, "d0n0", "team/train-7");
    let own = later.ledger.drains[&NodeName::from("d0n0")].action.reason.clone();
    later.state("d0n0", &["ALLOCATED", "DRAIN"]).reason = Some(own);
    assert!(later.why("d1n0").contains("1 nodes of gang team/train-7"), "{}", later.why("d1n0"));
}

#[test]
fn nodes_with_unread_pods_are_drained_one_by_one() {
    let mut world = PolicyFixture::with_blocks(4, 18).on_kubernetes();
    failing(&mut world, &["d0n0", "d1n0"]);
    world.state("d0n0", &["IDLE", "PODS_UNREAD"]);
    assert_eq!(world.proposed(), ["drain d0n0", "drain d1n0"]);
    // A node that is neither idle nor busy has no known state.
    world.state("d1n0", &["UNVERIFIED"]);
    assert_eq!(world.proposed(), ["drain d0n0"]);
    assert!(world.why("d1n0").contains("could not be read"), "{}", world.why("d1n0"));
    assert!(world.plan().actions[0].why.contains("has pods that could not be read"));
}
