//! The cost of a drain compared with the cost of a slow node.

use super::*;
use crate::policy::fixture::PolicyFixture;
use model::claims::Claims;
use model::finding_class::FindingClass;
use model::verdict::Outcome;

/// Blocks of 18, segments of 16, and a node with this loss.
fn world(lost: f64, gang: usize) -> PolicyFixture {
    let mut world = PolicyFixture::with_blocks(20, 18);
    world.policy.mix.0.insert(16, 1.0);
    world.policy.largest_gang = Some(gang);
    world.accuse("d0n0", "nvlink-low", Outcome::Degraded, 1.0 - lost);
    world
}

#[test]
fn the_break_even_of_the_algorithms_decides() {
    // Section 5: one lost link of eighteen at 30 % exposed pays from 11 nodes on if no node is
    // drained, and from 124 on if one is.
    assert_eq!(world(0.056, 10).proposed(), ["relabel d0n0"]);
    assert_eq!(world(0.056, 12).proposed(), ["drain d0n0"]);
    let with_one_out = |gang| {
        let mut world = world(0.056, gang);
        world.state("d0n9", &["DOWN"]);
        world.proposed()
    };
    assert_eq!(with_one_out(120), ["relabel d0n0"]);
    assert_eq!(with_one_out(126), ["drain d0n0"]);
    let mut third = world(0.5, 20);
    third.state("d0n8", &["DOWN"]);
    third.state("d0n9", &["IDLE", "DRAIN"]).reason = Some("bob".to_owned());
    let plan = third.plan();
    assert_eq!(third.proposed(), ["relabel d0n0"]);
    let [action] = plan.actions.as_slice() else { panic!("{plan:#?}") };
    assert!(action.price.is_some_and(|price| (13.0..14.0).contains(&price)), "{action:?}");
    assert!(action.why.contains("of 46 nodes or more; the largest has 20"), "{}", action.why);
    third.policy.largest_gang = Some(46);
    assert_eq!(third.proposed(), ["drain d0n0"]);
}

#[test]
fn a_drain_that_was_proposed_makes_the_next_one_dearer() {
    let mut world = world(0.056, 50);
    assert_eq!(world.proposed(), ["drain d0n0"]);
    world.accuse("d0n1", "nvlink-low", Outcome::Degraded, 0.96);
    assert_eq!(world.proposed(), ["drain d0n0", "relabel d0n1"]);
    // Another domain has its own two spare nodes.
    world.accuse("d1n1", "nvlink-low", Outcome::Degraded, 0.94);
    assert_eq!(world.proposed(), ["drain d0n0", "relabel d0n1", "drain d1n1"]);
}

#[test]
fn an_unknown_price_leaves_the_plain_budgets() {
    let mut no_mix = world(0.056, 1);
    no_mix.policy.mix.0.clear();
    let plan = no_mix.plan();
    assert_eq!(no_mix.proposed(), ["drain d0n0"]);
    assert_eq!(plan.actions[0].price, None);
    assert!(plan.actions[0].why.contains("unknown"), "{}", plan.actions[0].why);
    let mut no_ratio = world(0.056, 1);
    no_ratio.verdicts.findings[0].ratio = None;
    assert_eq!(no_ratio.proposed(), ["drain d0n0"]);
    // A node at its level costs jobs nothing: its readings scatter, or its history counts against
    // it.
    assert_eq!(world(0.0, 100_000).proposed(), ["relabel d0n0"]);
    assert_eq!(world(-0.2, 100_000).proposed(), ["relabel d0n0"]);
}

#[test]
fn a_site_may_always_drain_or_never() {
    let mut world = world(0.056, 10);
    world.policy.soft = SoftFaults::Drain;
    assert_eq!(world.proposed(), ["drain d0n0"]);
    world.policy.soft = SoftFaults::Relabel;
    world.policy.largest_gang = Some(10_000);
    assert_eq!(world.proposed(), ["relabel d0n0"]);
    // A hard fault is not weighed against the price.
    world.accuse("d1n0", "gpu-missing", Outcome::Failed, 0.9);
    assert_eq!(world.proposed(), ["relabel d0n0", "drain d1n0"]);
}

#[test]
fn the_largest_gang_is_that_of_the_largest_partition() {
    let mut world = world(0.056, 0);
    world.policy.largest_gang = None;
    // The whole fleet has 360 nodes.
    assert_eq!(world.proposed(), ["drain d0n0"]);
    let nodes: Vec<String> = (0..8).map(|n| format!("d0n{n}")).collect();
    for node in &nodes {
        world.node(node).partitions = vec!["small".to_owned()];
    }
    let why = world.plan().actions[0].why.clone();
    assert_eq!(world.proposed(), ["relabel d0n0"]);
    assert!(why.contains("the largest has 8"), "{why}");
    world.node("d0n0").partitions.push("other".to_owned());
    assert_eq!(world.proposed(), ["relabel d0n0"]);
}

#[test]
fn a_mark_that_is_there_is_not_made_again() {
    let mut world = world(0.056, 10);
    let mark = world.plan().actions[0].mark.clone().expect("a mark");
    assert_eq!(
        (mark.outcome, mark.class.as_ref()),
        (Outcome::Degraded, Some(&FindingClass::NvlinkLow))
    );
    world.ledger.marks.insert(NodeName::from("d0n0"), mark);
    assert!(world.why("d0n0").contains("marked degraded (nvlink-low) already"));
    world.ledger.marks.values_mut().for_each(|mark| mark.outcome = Outcome::Pass);
    assert_eq!(world.proposed(), ["relabel d0n0"]);
}

#[test]
fn an_unclaimed_domain_has_no_price() {
    let world = PolicyFixture { fleet: Claims::default(), ..world(0.056, 10) };
    let situation = world.situation();
    let places = ClaimIndex::from_claims(situation.fleet);
    let prices = DrainPrices::new(&situation, &places, &world.policy);
    assert_eq!(prices.price(Some(&"d0".into())), None);
    assert_eq!(prices.price(None), None);
}
