//! Every generated plan satisfies the rules, and every rule detects its violation.

use proptest::prelude::*;

use super::Plan;
use super::fixture::{PlanFixture, domain, leaf, rail};
use super::lint::{PlanLintError, lint_plan};
use model::profile::Profile;

fn fleet() -> PlanFixture {
    let claims = domain("rack1", "a[1-6]", 4)
        + &leaf("l1", "a[1-3]")
        + &leaf("l2", "a[4-6]")
        + &rail(0)
        + &rail(1);
    PlanFixture::new(Profile::BurnIn, &claims, &["nvidia-smi-q", "nvbandwidth-pair", "ib-write-bw"])
}

/// The lint result for the fleet's plan after some damage.
fn after(damage: impl FnOnce(&mut Plan)) -> Vec<PlanLintError> {
    let fleet = fleet();
    let mut plan = fleet.plan();
    assert_eq!(lint_plan(&plan, &fleet.claims), []);
    damage(&mut plan);
    lint_plan(&plan, &fleet.claims)
}

/// The first round of a probe and stage.
fn round_of(plan: &mut Plan, stage: u8, probe: &str) -> usize {
    let found = plan.rounds.iter().position(|r| r.stage == stage && r.steps[0].probe == probe);
    found.expect("such a round")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_plan_keeps_its_rules(
        profile in 0usize..4,
        racks in proptest::collection::vec((1usize..22, 0u32..5), 1..4),
        leaves in 0usize..5,
        rails in 0u32..4,
        (readings, more, parallel) in (1u32..4, 0u32..4, 1usize..9),
        (seed, matchings) in (any::<u64>(), proptest::option::of(0usize..4)),
        (complete_nodes, cross_leaf) in (2usize..24, 0usize..4),
    ) {
        let mut claims = String::new();
        let mut hang: Vec<Vec<String>> = vec![Vec::new(); leaves];
        for (at, (nodes, gpus)) in racks.iter().enumerate() {
            // NVLink does not join the nodes of every third domain.
            let kind = if at % 3 == 2 { "plain" } else { "rack" };
            claims += &domain(&format!("{kind}{at}"), &format!("r{at}n[01-{nodes:02}]"), *gpus);
            for node in 1..=*nodes {
                // Some nodes have no leaf.
                let leaf = (node * 7 + at) % (leaves + 1);
                if leaf < leaves {
                    hang[leaf].push(format!("r{at}n{node:02}"));
                }
            }
        }
        for (at, nodes) in hang.iter().enumerate().filter(|(_, nodes)| !nodes.is_empty()) {
            claims += &leaf(&format!("leaf{at}"), &nodes.join(","));
        }
        for at in 0..rails {
            claims += &rail(at);
        }
        let probes = [
            "nvidia-smi-q", "nvbandwidth-ce", "nvbandwidth-lane", "lanes", "tcp", "ib-read-bw",
            "nccl-alltoall-domain", "nvbandwidth-pair", "nvloom", "copy", "copy-lane", "copy-pair",
            "collective-domain",
        ];
        let mut fleet = PlanFixture::new(Profile::ALL[profile], &claims, &probes);
        (fleet.readings, fleet.most_readings) = (readings, readings + more);
        (fleet.parallel, fleet.seed) = (parallel, seed);
        fleet.limits.matchings = matchings;
        fleet.limits.complete_nodes = complete_nodes;
        fleet.limits.cross_leaf = cross_leaf;
        let plan = fleet.plan();
        prop_assert_eq!(lint_plan(&plan, &fleet.claims), []);
        prop_assert!(plan.estimate_s.is_finite() && 0.0 <= plan.estimate_s);
        prop_assert!(plan.rounds.iter().all(|round| !round.steps.is_empty()));
    }
}

#[test]
fn numbers_that_do_not_grow_are_found() {
    let wrong = after(|plan| {
        plan.rounds[0].steps[1].step = 0;
        plan.rounds[1].round = 0;
    });
    let expected = [
        PlanLintError::Number { what: "round", number: 0, before: 0 },
        PlanLintError::Number { what: "step", number: 0, before: 0 },
    ];
    assert_eq!(wrong, expected);
}

#[test]
fn a_node_that_works_twice_at_a_time_is_found() {
    let wrong = after(|plan| {
        let at = round_of(plan, 0, "nvidia-smi-q");
        let node = plan.rounds[at].steps[0].nodes.clone();
        plan.rounds[at].steps[1].nodes = node;
    });
    assert!(matches!(wrong.as_slice(), [PlanLintError::Busy { round: 0, .. }]), "{wrong:?}");
    // Two rails are two paths; one rail is not.
    let wrong = after(|plan| {
        let at = round_of(plan, 2, "ib-write-bw");
        plan.rounds[at].steps[1].rail = Some("rail0".to_owned());
    });
    assert!(wrong.iter().any(|w| matches!(w, PlanLintError::Busy { .. })), "{wrong:?}");
}

#[test]
fn a_pair_missing_from_a_complete_sweep_is_found() {
    let wrong = after(|plan| {
        let at = round_of(plan, 5, "nvbandwidth-pair");
        plan.rounds[at].steps.remove(0);
    });
    assert!(matches!(wrong.as_slice(), [PlanLintError::PairMissing { .. }]), "{wrong:?}");
    // Over rails, the pairs inside leaves on each rail; the fast sweep has some of them.
    let wrong = after(|plan| {
        plan.rounds.retain(|round| round.stage != 2);
        let at = round_of(plan, 5, "ib-write-bw");
        plan.rounds[at].steps.retain(|step| step.rail.as_deref() == Some("rail0"));
    });
    let missing = |w: &PlanLintError| matches!(w, PlanLintError::PairMissing { .. });
    assert!(!wrong.is_empty() && wrong.iter().all(missing), "{wrong:?}");
}

#[test]
fn a_pair_that_is_there_twice_is_found() {
    let wrong = after(|plan| {
        let at = round_of(plan, 5, "nvbandwidth-pair");
        let again = plan.rounds[at].steps.clone();
        plan.rounds[at + 1].steps = again;
    });
    assert!(
        wrong.iter().any(|w| matches!(w, PlanLintError::PairTwice { stage: 5, .. })),
        "{wrong:?}"
    );
}

#[test]
fn unclaimed_nodes_domains_and_rails_are_found() {
    let wrong = after(|plan| plan.rounds[0].steps[0].nodes = vec!["x9".into()]);
    assert!(matches!(
        wrong.as_slice(),
        [PlanLintError::UnknownNode { step: 0, .. }, PlanLintError::Domain { step: 0, .. }]
    ));
    let wrong = after(|plan| {
        let at = round_of(plan, 5, "nvbandwidth-pair");
        plan.rounds[at].steps[0].domain = None;
    });
    assert!(wrong.iter().any(|w| matches!(w, PlanLintError::Domain { .. })), "{wrong:?}");
    let wrong = after(|plan| {
        let at = round_of(plan, 2, "ib-write-bw");
        plan.rounds[at].steps[0].rail = Some("rail9".to_owned());
    });
    assert!(matches!(wrong.as_slice(), [PlanLintError::UnknownRail { .. }]), "{wrong:?}");
}

#[test]
fn a_step_without_the_nodes_it_needs_is_found() {
    let wrong = after(|plan| {
        let at = round_of(plan, 2, "ib-write-bw");
        plan.rounds[at].steps[0].nodes.pop();
    });
    assert!(wrong.iter().any(|w| matches!(w, PlanLintError::Nodes { nodes: 1, .. })), "{wrong:?}");
    let wrong = after(|plan| {
        let node = plan.rounds[0].steps[0].nodes[0].clone();
        let at = round_of(plan, 2, "ib-write-bw");
        plan.rounds[at].steps[0].nodes = vec![node.clone(), node];
    });
    assert!(wrong.iter().any(|w| matches!(w, PlanLintError::Nodes { nodes: 1, .. })), "{wrong:?}");
}

#[test]
fn more_hosts_across_leaves_than_may_are_found() {
    let wrong = after(|plan| plan.limits.cross_leaf = 1);
    // Two leaves on two rails, in the one round between leaves.
    let across =
        |w: &PlanLintError| matches!(w, PlanLintError::CrossLeaf { hosts: 2, limit: 1, .. });
    assert!(wrong.len() == 4 && wrong.iter().all(across), "{wrong:?}");
}

#[test]
fn readings_out_of_bounds_are_found() {
    let wrong = after(|plan| {
        plan.rounds[0].steps[0].readings = 0;
        plan.rounds[0].steps[1].readings = 3;
    });
    let expected = [
        PlanLintError::Readings { step: 0, readings: 0, most: 1 },
        PlanLintError::Readings { step: 1, readings: 3, most: 1 },
    ];
    assert_eq!(wrong, expected);
}

#[test]
fn a_command_that_was_not_filled_in_is_found() {
    let wrong = after(|plan| {
        for (at, word) in ["--gpus={gpus}", "{self}"].into_iter().enumerate() {
            let step = &mut plan.rounds[0].steps[at];
            step.argv = step.argv.iter().cloned().chain([word.to_owned()]).collect();
        }
    });
    let expected = [PlanLintError::Unfilled { step: 0, word: "--gpus={gpus}".to_owned() }];
    assert_eq!(wrong, expected, "values from nodes are filled in later");
}

#[test]
fn a_step_on_all_nodes_leaves_only_the_node_name_open() {
    let names = ["copy-lane", "nvbandwidth-pair", "collective-domain"];
    let fleet = PlanFixture::new(Profile::BurnIn, &domain("rack1", "a[1-4]", 4), &names);
    let plan = fleet.plan();
    assert_eq!(lint_plan(&plan, &fleet.claims), []);
    let of = |name: &str| plan.steps().find(|step| step.probe == name).expect("planned");
    let open = |argv: &[String]| {
        argv.iter().filter(|word| word.contains('{')).cloned().collect::<Vec<_>>()
    };
    for (argv, on_all_nodes) in [
        (&of("copy-lane").argv, of("copy-lane").on_all_nodes),
        (&of("collective-domain").argv, of("collective-domain").on_all_nodes),
    ] {
        assert!(on_all_nodes);
        assert_eq!(open(argv), ["{self}", "{node}"]);
    }
    let limit = |argv: &[String]| {
        let at = argv.iter().position(|word| word == "--limit").expect("it has one");
        argv[at + 1].clone()
    };
    let lane = of("copy-lane");
    assert_eq!((lane.timeout_s, limit(&lane.argv).as_str()), (120.0, "108"));
    let pair = of("nvbandwidth-pair");
    let fallback = pair.fallback.as_ref().expect("measured by ourselves");
    assert!(!pair.on_all_nodes && fallback.on_all_nodes && open(&pair.argv).is_empty());
    assert_eq!(open(&fallback.argv), ["{self}", "{node}"]);

    let damaged = |damage: &dyn Fn(&mut super::PlanStep)| {
        let mut plan = plan.clone();
        for step in plan.rounds.iter_mut().flat_map(|round| &mut round.steps) {
            if step.probe == "nvbandwidth-pair" {
                damage(step);
            }
        }
        lint_plan(&plan, &fleet.claims)
    };
    let word = |step: &mut super::PlanStep, word: &str, on_all_nodes| {
        let fallback = step.fallback.as_mut().expect("there");
        fallback.argv = fallback.argv.iter().cloned().chain([word.to_owned()]).collect();
        fallback.on_all_nodes = on_all_nodes;
    };
    let unfilled = |wrong: &[PlanLintError]| {
        !wrong.is_empty() && wrong.iter().all(|it| matches!(it, PlanLintError::Unfilled { .. }))
    };
    assert!(unfilled(&damaged(&|step| word(step, "{gpus}", true))));
    assert!(unfilled(&damaged(&|step| word(step, "{lane}", false))), "{{node}} is open there too");
    assert_eq!(damaged(&|step| step.on_all_nodes = true), []);
    let serves = damaged(&|step| {
        let argv = ["x".to_owned()].into();
        step.serve =
            Some(model::probe::ProbeServer { argv, ready: model::probe::ReadySignal::Line });
    });
    assert!(matches!(serves.first(), Some(PlanLintError::OnAllNodes { .. })), "{serves:?}");
}
