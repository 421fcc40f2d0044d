//! Tests of the partners of a suspect.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::fixture::{PlanFixture, domain, leaf, rail};
use super::lint::lint_plan;
use super::{ConfirmationSuspect, Plan, PlanStep, plan_confirmation};
use model::id::NodeName;
use model::profile::Profile;

fn suspect(node: &str, peer: Option<&str>, probes: &[&str]) -> ConfirmationSuspect {
    ConfirmationSuspect {
        node: node.into(),
        peer: peer.map(NodeName::from),
        rail: None,
        gpus: None,
        probes: probes.iter().map(|name| (*name).to_owned()).collect(),
    }
}

/// Clears all nodes of the fleet except these.
fn confirmed(
    fleet: &PlanFixture,
    suspects: &[ConfirmationSuspect],
    not_cleared: &[&str],
) -> (Plan, Plan) {
    let main = fleet.plan();
    let nodes = fleet.claims.domains.iter().flat_map(|d| d.nodes.clone());
    let cleared: BTreeSet<NodeName> =
        nodes.filter(|node| !not_cleared.contains(&node.as_str())).collect();
    let plan =
        fleet.with_request(|request| plan_confirmation(&main, request, suspects, &cleared, 5));
    assert_eq!(lint_plan(&plan, &fleet.claims), []);
    (main, plan)
}

fn others<'p>(plan: &'p Plan, node: &str) -> Vec<&'p str> {
    let steps = plan.steps().filter(|s| s.nodes.len() == 2);
    let with = steps.filter(|s| s.nodes.iter().any(|n| n.as_str() == node));
    with.flat_map(|s| &s.nodes).map(|n| n.as_str()).filter(|n| *n != node).collect()
}

#[test]
fn a_suspect_meets_three_cleared_nodes_of_its_domain_that_it_had_not_met() {
    let claims = domain("rack1", "a[01-18]", 4) + &domain("rack2", "b[01-18]", 4);
    let mut fleet =
        PlanFixture::new(Profile::Audit, &claims, &["nvbandwidth-ce", "nvbandwidth-lane"]);
    fleet.limits.matchings = Some(3);
    let suspects = [
        suspect("a05", None, &["nvbandwidth-lane", "nvbandwidth-ce"]),
        suspect("a07", None, &["nvbandwidth-lane"]),
    ];
    let (main, plan) = confirmed(&fleet, &suspects, &["a01"]);
    for node in ["a05", "a07"] {
        let partners = others(&plan, node);
        assert_eq!(partners.iter().collect::<BTreeSet<_>>().len(), 3, "{partners:?}");
        let met = others(&main, node);
        for partner in partners {
            assert!(partner.starts_with('a') && !["a01", "a05", "a07"].contains(&partner));
            assert!(!met.contains(&partner), "{partner} again");
        }
    }
    let inside: Vec<&PlanStep> = plan.steps().filter(|s| s.nodes.len() == 1).collect();
    assert_eq!(inside.len(), 1);
    assert_eq!(inside[0].nodes, [NodeName::from("a05")]);
    // Both suspects at the same time: one round inside, three of pairs.
    assert_eq!(plan.rounds.len(), 4);
    assert!(plan.rounds.iter().all(|r| r.stage == 3) && plan.profile == "confirm");
    let last = main.steps().last().map(|s| s.step);
    assert_eq!(plan.steps().next().map(|s| s.step), last.map(|s| s + 1));
    assert_eq!(plan.rounds[0].round, main.rounds.len());
}

#[test]
fn a_suspected_pair_is_measured_again_and_each_end_against_others() {
    let fleet =
        PlanFixture::new(Profile::Audit, &domain("rack1", "a[1-8]", 4), &["nvbandwidth-lane"]);
    let pair = suspect("a1", Some("a2"), &["nvbandwidth-lane"]);
    let (_, plan) = confirmed(&fleet, &[pair], &[]);
    let (one, two) = (others(&plan, "a1"), others(&plan, "a2"));
    assert!(one.contains(&"a2") && two.contains(&"a1"));
    assert_eq!((one.len(), two.len()), (4, 4));
}

/// The pair of the two nodes of a suspected path between GPUs: probes and lanes.
fn together(plan: &Plan) -> Vec<(&str, Option<u32>)> {
    let both = plan.steps().filter(|s| ["a1", "a2"].iter().all(|n| s.nodes.contains(&(*n).into())));
    both.map(|s| (s.probe.as_str(), s.lane)).collect()
}

#[test]
fn the_path_between_two_gpus_is_read_by_a_probe_that_reads_them() {
    let rack = domain("rack1", "a[1-8]", 4);
    let run = |probes: &[&str], raised: &[&str], gpus: (u32, u32)| {
        let fleet = PlanFixture::new(Profile::BurnIn, &rack, probes);
        let mut pair = suspect("a1", Some("a2"), raised);
        pair.gpus = Some(gpus);
        let (_, plan) = confirmed(&fleet, &[pair], &[]);
        // Each end takes the same readings with other nodes as before.
        assert!(others(&plan, "a1").len() > 3 || !raised.contains(&"nvbandwidth-lane"));
        plan
    };
    let probes = ["nvbandwidth-lane", "nvbandwidth-pair"];
    for raised in [&probes[..], &probes[..1]] {
        assert_eq!(together(&run(&probes, raised, (0, 3))), [("nvbandwidth-pair", None)]);
    }
    assert_eq!(together(&run(&probes, &probes[..1], (2, 2))), [("nvbandwidth-lane", None)]);
    for gpus in [(0, 3), (3, 0), (2, 2), (1, 3)] {
        let lane = (gpus.1 + 4 - gpus.0) % 4;
        assert_eq!(together(&run(&["lanes"], &["lanes"], gpus)), [("lanes", Some(lane))]);
    }
    // If no probe reads it, the plan reports that.
    let fleet = PlanFixture::new(Profile::BurnIn, &rack, &probes[..1]);
    let mut pair = suspect("a1", Some("a2"), &probes[..1]);
    pair.gpus = Some((0, 3));
    let (_, plan) = confirmed(&fleet, &[pair], &[]);
    assert_eq!(together(&plan), []);
    assert!(plan.skipped.iter().any(|s| s.why.contains("reads GPU 0 with GPU 3")));
}

#[test]
fn two_suspects_never_meet_and_a_lack_of_cleared_nodes_is_reported() {
    let fleet =
        PlanFixture::new(Profile::Audit, &domain("rack1", "a[1-4]", 4), &["nvbandwidth-lane"]);
    let suspects: Vec<ConfirmationSuspect> =
        ["a1", "a2", "a3"].map(|node| suspect(node, None, &["nvbandwidth-lane"])).into();
    let (_, plan) = confirmed(&fleet, &suspects, &[]);
    assert!(plan.steps().all(|s| s.nodes.contains(&"a4".into())));
    assert_eq!(plan.rounds.len(), 3, "one partner, one at a time");
    let (_, none) = confirmed(&fleet, &suspects, &["a4"]);
    assert!(none.rounds.is_empty());
    assert_eq!(none.skipped.len(), 3);
    assert!(none.skipped.iter().all(|s| s.why.contains("no cleared partner") && !s.not_applicable));
}

#[test]
fn a_rail_is_confirmed_inside_the_leaf_first() {
    let claims = domain("a", "a[1-8]", 8)
        + &leaf("l1", "a[1-3]")
        + &leaf("l2", "a[4-8]")
        + &rail(0)
        + &rail(1);
    let fleet = PlanFixture::new(Profile::Audit, &claims, &["tcp"]);
    let mut one = suspect("a1", None, &["tcp"]);
    one.rail = Some("rail1".to_owned());
    let (_, plan) = confirmed(&fleet, std::slice::from_ref(&one), &[]);
    assert!(plan.steps().all(|s| s.rail.as_deref() == Some("rail1")));
    let partners: BTreeSet<&str> = others(&plan, "a1").into_iter().collect();
    assert_eq!(partners.len(), 3);
    assert!(partners.contains("a2") && partners.contains("a3"), "{partners:?}");
    // Without a named rail, all rails concurrently.
    one.rail = None;
    let (_, plan) = confirmed(&fleet, &[one], &[]);
    assert_eq!((plan.rounds.len(), plan.steps().count()), (3, 6));
}

#[test]
fn hosts_that_leave_their_leaf_to_confirm_keep_the_limit() {
    let nodes = domain("a", "a[1-4],b[1-9]", 8);
    let claims = nodes + &leaf("l1", "a[1-4]") + &leaf("l2", "b[1-9]");
    let fleet = PlanFixture::new(Profile::Audit, &claims, &["tcp"]);
    let suspects: Vec<ConfirmationSuspect> =
        ["a1", "a2", "a3", "a4"].map(|node| suspect(node, None, &["tcp"])).into();
    // Twelve tests, two at a time.
    let (_, plan) = confirmed(&fleet, &suspects, &[]);
    assert_eq!((plan.rounds.len(), plan.steps().count()), (6, 12));
}

#[test]
fn a_domain_probe_that_raised_a_suspicion_runs_once_more() {
    let claims = domain("rack1", "a[1-4]", 4);
    let fleet = PlanFixture::new(Profile::Admit, &claims, &["nccl-all-reduce-domain"]);
    let probes = &["nccl-all-reduce-domain", "not-here"];
    let suspects = [suspect("a1", None, probes), suspect("a2", None, probes)];
    let (_, plan) = confirmed(&fleet, &suspects, &[]);
    assert_eq!(plan.steps().count(), 1);
    assert!(plan.skipped.iter().all(|s| s.probe == "not-here"));
    assert_eq!(plan.skipped.len(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_two_suspects_meet_and_no_suspect_has_more_partners_than_requested(
        nodes in 2usize..20,
        suspected in proptest::collection::btree_set((0usize..20, 0usize..40), 1..6),
        doubtful in proptest::collection::btree_set(0usize..20, 0..10),
        (rails, partners, seed) in (0u32..3, 1usize..5, any::<u64>()),
    ) {
        let name = |at: usize| format!("a{:02}", at % nodes + 1);
        let mut claims = domain("rack1", &format!("a[01-{nodes:02}]"), 4)
            + &leaf("l1", &format!("a[01-{:02}]", nodes.div_ceil(2)));
        for at in 0..rails {
            claims += &rail(at);
        }
        let probes = ["nvbandwidth-ce", "nvbandwidth-lane", "tcp"];
        let mut fleet = PlanFixture::new(Profile::Audit, &claims, &probes);
        fleet.limits.partners = partners;
        fleet.seed = seed;
        // Half of the numbers belong to no peer.
        let suspects: Vec<ConfirmationSuspect> = suspected
            .iter()
            .map(|(node, peer)| {
                let peer = Some(name(*peer)).filter(|other| *peer < 20 && *other != name(*node));
                suspect(&name(*node), peer.as_deref(), &probes)
            })
            .collect();
        let not_cleared: Vec<String> = doubtful.iter().map(|at| name(*at)).collect();
        let not_cleared: Vec<&str> = not_cleared.iter().map(String::as_str).collect();
        let (_, plan) = confirmed(&fleet, &suspects, &not_cleared);
        let ends: BTreeSet<&NodeName> =
            suspects.iter().flat_map(|s| std::iter::once(&s.node).chain(&s.peer)).collect();
        for step in plan.steps().filter(|step| step.nodes.len() == 2) {
            let (a, b) = (&step.nodes[0], &step.nodes[1]);
            let is_pair = suspects.iter().any(|s| {
                s.peer.as_ref().is_some_and(|p| {
                    (&s.node == a && p == b) || (&s.node == b && p == a)
                })
            });
            prop_assert!(is_pair || !(ends.contains(a) && ends.contains(b)), "{} and {}", a, b);
            prop_assert!(is_pair || !not_cleared.contains(&b.as_str()), "{} is not cleared", b);
        }
        for node in &ends {
            for probe in ["nvbandwidth-lane", "tcp"] {
                let met: BTreeSet<&NodeName> = plan
                    .steps()
                    .filter(|s| s.probe == probe && s.nodes.contains(node))
                    .flat_map(|s| &s.nodes)
                    .filter(|other| !ends.contains(other))
                    .collect();
                // Over several rails the partners may differ.
                let most = partners * if probe == "tcp" { rails.max(1) as usize } else { 1 };
                prop_assert!(met.len() <= most);
                let is_skipped = plan.skipped.iter().any(|s| s.nodes.contains(node));
                prop_assert!(!met.is_empty() || is_skipped, "{} is forgotten", node);
            }
        }
    }
}
