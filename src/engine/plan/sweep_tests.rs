//! The planned sweep for different fleets.

use std::collections::BTreeSet;

use super::coverage::node_pair;
use super::fixture::{PlanFixture, domain, leaf, rail};
use super::lint::lint_plan;
use super::{Plan, PlanStep};
use model::probe::ProbeScope;
use model::profile::Profile;
use readers::probe_catalog::ProbeCatalog;

const LANE: &str = "nvbandwidth-lane";
const PAIR: &str = "nvbandwidth-pair";

fn stages_of(plan: &Plan, probe: &str) -> Vec<u8> {
    let mut stages: Vec<u8> =
        plan.rounds.iter().filter(|r| r.steps[0].probe == probe).map(|r| r.stage).collect();
    stages.dedup();
    stages
}

fn rounds_of(plan: &Plan, stage: u8, probe: &str) -> usize {
    plan.rounds.iter().filter(|r| r.stage == stage && r.steps[0].probe == probe).count()
}

fn first<'p>(plan: &'p Plan, probe: &str) -> &'p PlanStep {
    plan.steps().find(|step| step.probe == probe).unwrap_or_else(|| panic!("no step of {probe}"))
}

#[test]
fn a_profile_has_its_stages_in_order() {
    let catalog = ProbeCatalog::built_in();
    let names: Vec<&str> = catalog.probes.keys().map(String::as_str).collect();
    let claims = domain("rack1", "a[1-4]", 4) + &rail(0);
    for profile in Profile::ALL {
        let plan = PlanFixture::new(*profile, &claims, &names).plan();
        let mut stages: Vec<u8> = plan.rounds.iter().map(|round| round.stage).collect();
        assert!(stages.is_sorted(), "{stages:?}");
        stages.dedup();
        assert_eq!(stages, profile.stages(), "{profile}");
        assert_eq!(lint_plan(&plan, &PlanFixture::new(*profile, &claims, &[]).claims), []);
    }
}

#[test]
fn state_is_read_once_and_measurements_are_repeated() {
    let mut fleet = PlanFixture::new(
        Profile::Audit,
        &domain("a", "a[1-4]", 8),
        &["nccl-all-reduce", "nvidia-smi-q"],
    );
    (fleet.readings, fleet.most_readings) = (2, 7);
    let plan = fleet.plan();
    let of = |node: &str| -> Vec<(&str, u32, u32)> {
        let steps = plan.steps().filter(|s| s.nodes[0].as_str() == node);
        steps.map(|s| (s.probe.as_str(), s.readings, s.most_readings)).collect()
    };
    assert_eq!(of("a1"), [("nvidia-smi-q", 1, 1), ("nccl-all-reduce", 2, 7)]);
    assert!(plan.steps().filter(|s| s.stage == 1).all(|s| s.argv.ends_with(&["8".to_owned()])));
}

#[test]
fn a_probe_that_cannot_run_is_skipped_with_a_reason() {
    let claims = domain("a", "a[1-4]", 8)
        + "[[domain]]\nname = \"b\"\nnodes = \"b[1-2]\"\n"
        + &domain("c", "c1", 1)
        + &domain("n", "n1", 0);
    let plan =
        PlanFixture::new(Profile::Audit, &claims, &["nccl-all-reduce", LANE, PAIR, "tcp"]).plan();
    let mut why: Vec<(&str, &str, bool)> = plan
        .skipped
        .iter()
        .map(|s| (s.probe.as_str(), s.nodes[0].as_str(), s.not_applicable))
        .collect();
    why.sort_unstable();
    let expected = [
        ("nccl-all-reduce", "b1", false),
        ("nccl-all-reduce", "c1", true),
        ("nccl-all-reduce", "n1", true),
        // The platform does not join the nodes, or the domain has one node.
        (LANE, "a1", true),
        (LANE, "b1", true),
        (LANE, "c1", true),
        (LANE, "n1", true),
        // Stage 5 is not part of an audit.
        (PAIR, "a1", true),
    ];
    assert_eq!(why, expected);
}

#[test]
fn cost_is_what_the_probes_cost() {
    let claims = domain("a", "a[1-4]", 8) + &domain("c", "c[1-3]", 1);
    let mut fleet = PlanFixture::new(Profile::Audit, &claims, &["nccl-all-reduce", "nvidia-smi-q"]);
    fleet.readings = 2;
    // a1-a4: 5 + 2 x 40 s; c1-c3: 5 s.
    let near = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-9, "{value}");
    fleet.parallel = 1;
    near(fleet.plan().node_seconds, 355.0);
    near(fleet.plan().estimate_s, 355.0);
    fleet.parallel = 100;
    near(fleet.plan().estimate_s, 85.0);
}

#[test]
fn two_racks_meet_in_17_rounds_at_the_same_time() {
    let claims = domain("rack1", "a[01-18]", 4) + &domain("rack2", "b[01-18]", 4);
    let plan = PlanFixture::new(Profile::Admit, &claims, &[LANE, "nccl-all-reduce-domain"]).plan();
    assert_eq!(rounds_of(&plan, 2, LANE), 17);
    let lanes = plan.rounds.iter().filter(|r| r.stage == 2);
    assert!(lanes.clone().all(|round| round.steps.len() == 18));
    let met: BTreeSet<_> = plan.steps().filter(|s| s.stage == 2).filter_map(node_pair).collect();
    assert_eq!(met.len(), 2 * 153);
    // One lane does not prove the other pairs.
    assert!(plan.sampled);
    let collectives: Vec<&PlanStep> = plan.steps().filter(|s| s.stage == 4).collect();
    assert_eq!(collectives.len(), 2);
    assert!(collectives.iter().all(|s| s.scope == ProbeScope::Domain && s.nodes.len() == 18));
    // 18 x 10 s in 64 slots, then two concurrent collectives.
    assert!((plan.estimate_s - (17.0 * 10.0 + 60.0)).abs() < 1e-9);
}

#[test]
fn a_large_domain_is_swept_by_eight_matchings_first() {
    let claims = domain("rack1", "a[01-36]", 2);
    let mut fleet = PlanFixture::new(Profile::Audit, &claims, &[LANE]);
    assert_eq!(rounds_of(&fleet.plan(), 2, LANE), 8);
    fleet.limits.matchings = Some(1);
    assert_eq!(rounds_of(&fleet.plan(), 2, LANE), 1);
    // The complete sweep has the remaining pairs, and none twice.
    fleet.profile = Profile::BurnIn;
    let plan = fleet.plan();
    assert_eq!((rounds_of(&plan, 2, LANE), rounds_of(&plan, 5, LANE)), (1, 34));
    assert_eq!(lint_plan(&plan, &fleet.claims), []);
}

#[test]
fn a_probe_of_every_pair_makes_a_sweep_complete() {
    let claims = domain("rack1", "a[01-18]", 4);
    let plan = PlanFixture::new(Profile::BurnIn, &claims, &[LANE, PAIR]).plan();
    assert_eq!((rounds_of(&plan, 5, LANE), rounds_of(&plan, 5, PAIR)), (0, 17));
    assert!(!plan.sampled);
    let whole = PlanFixture::new(Profile::BurnIn, &claims, &[LANE, "nvbandwidth-domain"]).plan();
    assert!(!whole.sampled);
    // Eight matchings of 36 nodes leave out pairs; a collective has none.
    let claims = domain("rack1", "a[01-36]", 4);
    let mut large = PlanFixture::new(Profile::BurnIn, &claims, &[PAIR, "nccl-all-reduce-domain"]);
    large.limits.complete_nodes = 18;
    let plan = large.plan();
    assert!(plan.sampled && rounds_of(&plan, 5, PAIR) == 8);
    assert!(plan.skipped.iter().any(|s| s.not_applicable && s.why.contains("more than 18")));
    assert_eq!(lint_plan(&plan, &large.claims), []);
}

#[test]
fn a_rack_that_nothing_was_planned_across_is_a_gap_and_not_a_sample() {
    let claims = domain("rack1", "a[01-18]", 4);
    assert!(!PlanFixture::new(Profile::Audit, &claims, &["nvbandwidth-ce"]).plan().sampled);
    // With one GPU in each node there is only one lane.
    let single = domain("rack1", "a[01-18]", 1);
    assert!(!PlanFixture::new(Profile::Audit, &single, &[LANE]).plan().sampled);
}

#[test]
fn a_probe_of_lanes_takes_one_first_and_all_at_last() {
    let claims = domain("rack1", "a[01-18]", 4);
    let plan = PlanFixture::new(Profile::BurnIn, &claims, &["nvbandwidth-ce", "lanes"]).plan();
    assert_eq!((rounds_of(&plan, 2, "lanes"), rounds_of(&plan, 5, "lanes")), (17, 17 * 4));
    assert!(!plan.sampled, "every lane of every two nodes, and the nodes' own pairs");
    let without = PlanFixture::new(Profile::BurnIn, &claims, &["lanes"]).plan();
    assert!(without.sampled, "no probe reads the pairs inside nodes");
    let lanes: BTreeSet<Option<u32>> =
        plan.steps().filter(|s| s.stage == 5).map(|s| s.lane).collect();
    assert_eq!(lanes.len(), 4);
    assert_eq!(first(&plan, "lanes").argv[2], "0");
}

#[test]
fn rails_are_measured_at_the_same_time_and_inside_leaves_first() {
    let claims = domain("a", "a[1-8]", 8)
        + &leaf("l1", "a[1-4]")
        + &leaf("l2", "a[5-8]")
        + &rail(0)
        + &rail(1);
    let plan = PlanFixture::new(Profile::BurnIn, &claims, &["ib-write-bw", "tcp"]).plan();
    assert_eq!(stages_of(&plan, "tcp"), [2, 5]);
    assert_eq!(rounds_of(&plan, 2, "tcp"), 1);
    let round = plan.rounds.iter().find(|r| r.steps[0].probe == "tcp").expect("a round");
    assert_eq!(round.steps.len(), 4 * 2);
    // Three rounds in each leaf, and one for the pair of leaves.
    assert_eq!(rounds_of(&plan, 5, "ib-write-bw"), 3 + 1);
    let last = plan.rounds.last().expect("a round");
    assert_eq!(last.steps.len(), 2 * 2, "two hosts of each leaf on two rails");
}

#[test]
fn commands_are_filled_for_the_node_that_starts_them() {
    let claims = domain("rack1", "a[1-2]", 4) + &rail(3);
    let mut fleet = PlanFixture::new(Profile::Audit, &claims, &[LANE, "tcp", "ib-write-bw"]);
    (fleet.readings, fleet.most_readings) = (5, 9);
    let plan = fleet.plan();
    let lane = first(&plan, LANE);
    let hosts = format!("{}:4,{}:4", lane.nodes[0], lane.nodes[1]);
    assert!(lane.argv.contains(&hosts) && lane.argv.contains(&"8".to_owned()), "{:?}", lane.argv);
    let tcp = first(&plan, "tcp");
    let after = |argv: &[String], option: &str| -> String {
        let at = argv.iter().position(|word| word == option).expect("the option");
        argv[at + 1].clone()
    };
    let serve = tcp.serve.as_ref().expect("two sides");
    assert_eq!(after(&tcp.argv, "--node"), tcp.nodes[0].as_str());
    assert_eq!(after(&tcp.argv, "--peer"), tcp.nodes[1].as_str());
    assert_eq!(after(&serve.argv, "--node"), tcp.nodes[1].as_str());
    assert_eq!(after(&tcp.argv, "--rail"), "rail3");
    assert_eq!(after(&tcp.argv, "--connect"), "{peer_address}:{port}");
    // The tool repeats by itself: one execution takes five readings.
    assert_eq!(after(&tcp.argv, "--readings"), "5");
    assert_eq!((tcp.readings, tcp.most_readings), (1, 1));
    assert!((tcp.estimate_s - 15.0).abs() < 1e-9 && (tcp.timeout_s - 100.0).abs() < 1e-9);
    let ib = first(&plan, "ib-write-bw");
    assert_eq!(after(&ib.argv, "-d"), "mlx5_3");
    assert_eq!((ib.readings, ib.most_readings), (5, 9));
}

#[test]
fn a_rail_without_an_rdma_device_is_left_out() {
    let claims = domain("a", "a[1-2]", 8) + "[[rail]]\nname = \"r\"\ndevice = \"eth1\"\n";
    let plan = PlanFixture::new(Profile::BurnIn, &claims, &["ib-write-bw"]).plan();
    assert!(plan.rounds.is_empty());
    let [skipped] = plan.skipped.as_slice() else { panic!("{:?}", plan.skipped) };
    assert!(!skipped.not_applicable && skipped.why.contains("rail r names none"), "{skipped:?}");
}

#[test]
fn nodes_without_gpus_are_measured_over_their_network_only() {
    let plan = PlanFixture::new(
        Profile::Audit,
        &domain("lab", "n[1-9]", 0),
        &["nvidia-smi-q", "nvbandwidth-ce", "tcp"],
    )
    .plan();
    assert!(plan.steps().all(|step| step.probe == "tcp" && step.rail.is_none()));
    // Four pairs, and the ninth node by itself.
    assert_eq!(plan.steps().count(), 5);
    assert!(plan.skipped.iter().all(|skipped| skipped.not_applicable));
    assert!(!plan.sampled);
}

#[test]
fn a_seed_repeats_a_plan_and_another_does_not() {
    let claims = domain("rack1", "a[01-18]", 4) + &rail(0);
    let mut fleet =
        PlanFixture::new(Profile::BurnIn, &claims, &[LANE, PAIR, "tcp", "nvidia-smi-q"]);
    let plan = fleet.plan();
    assert_eq!(plan, fleet.plan());
    fleet.seed = 2;
    assert_ne!(plan.rounds, fleet.plan().rounds);
    let document = serde_json::to_string(&plan).expect("a plan is a document");
    let read: Plan = serde_json::from_str(&document).expect("and is read again");
    assert_eq!(read, plan);
}

#[test]
fn a_plan_for_four_times_the_nodes_has_four_times_the_steps_and_as_many_rounds() {
    // Many leaves, plus nodes without one: each of those is its own leaf.
    let plan = |leaves: usize, free: usize| {
        let mut claims = domain("net", &format!("n[00001-{:05}]", leaves * 4 + free), 0);
        for at in 0..leaves {
            let nodes = format!("n[{:05}-{:05}]", at * 4 + 1, at * 4 + 4);
            claims += &leaf(&format!("leaf{at:04}"), &nodes);
        }
        let mut fleet = PlanFixture::new(Profile::BurnIn, &(claims + &rail(0)), &["ib-write-bw"]);
        fleet.limits.complete_nodes = 16;
        fleet.plan()
    };
    for (leaves, free) in [(32, 0), (8, 32)] {
        let (small, large) = (plan(leaves, free), plan(4 * leaves, 4 * free));
        let (few, many) = (small.steps().count(), large.steps().count());
        // Two hosts of two leaves are paired, or one if a node is its own leaf.
        assert!(many * 10 <= few * 44 && (0 < free || many == 4 * few), "{few} and {many}");
        assert_eq!(large.rounds.len(), small.rounds.len());
        assert!(large.skipped.iter().any(|s| s.why.contains("leaves, more than 16")));
    }
}

#[test]
fn commands_that_are_the_same_are_held_once_however_many_nodes_have_them() {
    let held = |plan: &Plan| {
        let words = plan
            .steps()
            .flat_map(|s| std::iter::once(&s.argv).chain(s.serve.iter().map(|it| &it.argv)));
        words.map(|words| words.as_ptr()).collect::<BTreeSet<_>>().len()
    };
    for leaves in [2, 8] {
        let mut claims =
            domain("net", &format!("n[01-{:02}]", leaves * 4), 0) + &rail(0) + &rail(1);
        for at in 0..leaves {
            claims +=
                &leaf(&format!("leaf{at}"), &format!("n[{:02}-{:02}]", at * 4 + 1, at * 4 + 4));
        }
        let plan = PlanFixture::new(Profile::BurnIn, &claims, &["ib-write-bw"]).plan();
        assert!(leaves * 4 * 3 < plan.steps().count());
        // Each side on each of two rails.
        assert_eq!(held(&plan), 4);
        let document = serde_json::to_string(&plan).expect("a plan is a document");
        let read: Plan = serde_json::from_str(&document).expect("and is read again");
        assert_eq!(read, plan);
        assert_eq!(held(&read), 4 * plan.rounds.len(), "round by round");
    }
}
