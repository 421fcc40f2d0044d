//! The nodes with the oldest measurement come first, within every budget, and every node gets its
//! turn.

use proptest::prelude::*;

use super::*;

const DAY: i64 = 86_400;

/// Domains of these sizes: `d0` with `d0n0`, `d0n1` and so on.
fn fleet(sizes: &[usize]) -> Claims {
    let domain = |(at, size): (usize, &usize)| ClaimedDomain {
        name: format!("d{at}").into(),
        nodes: (0..*size).map(|node| format!("d{at}n{node}").into()).collect(),
        platform: None,
        gpus_per_node: None,
        nic: None,
    };
    Claims { domains: sizes.iter().enumerate().map(domain).collect(), ..Claims::default() }
}

/// A minute for every node of the largest domain: domains are measured concurrently.
fn cost(claims: &Claims) -> f64 {
    let largest = claims.domains.iter().map(|domain| domain.nodes.len()).max().unwrap_or(0);
    60.0 * u32::try_from(largest).map_or(f64::MAX, f64::from)
}

fn chosen(
    claims: &Claims,
    known: &BTreeMap<NodeName, AuditNodeState>,
    budget: AuditBudget,
) -> AuditSelection {
    select_nodes(&AuditSelectionRequest { claims, known, budget, seed: 7, cost: &cost })
}

fn measured(at: i64) -> AuditNodeState {
    AuditNodeState { measured: Some(at), tried: Some(at), ..AuditNodeState::default() }
}

fn names(choice: &AuditSelection) -> BTreeSet<String> {
    choice.nodes.iter().map(NodeName::to_string).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn without_a_budget_every_node_is_measured() {
    let claims = fleet(&[4, 1, 2]);
    let choice = chosen(&claims, &BTreeMap::new(), AuditBudget::default());
    assert_eq!(choice.nodes.len(), 7);
    assert!(choice.left_out.is_empty(), "{:?}", choice.left_out);
    assert!((choice.estimate_s - 240.0).abs() < 1e-9);
    assert_eq!(choice.restrict_claims(&claims), claims);
}

#[test]
fn unmeasured_nodes_come_first_then_the_oldest_then_by_certificate() {
    let claims = fleet(&[2, 2, 2, 2]);
    let mut known: BTreeMap<NodeName, AuditNodeState> = BTreeMap::new();
    for (domain, at) in [(0, 30), (1, 10), (2, 30)] {
        for node in 0..2 {
            known.insert(format!("d{domain}n{node}").into(), measured(at * DAY));
        }
    }
    for (domain, at) in [(0, 20), (2, 25)] {
        for node in 0..2 {
            let name = NodeName::from(format!("d{domain}n{node}"));
            known.entry(name).or_default().certified = Some(at * DAY);
        }
    }
    let of = |nodes| {
        let budget = AuditBudget { nodes: Some(nodes), ..AuditBudget::default() };
        names(&chosen(&claims, &known, budget))
    };
    assert_eq!(of(2), set(&["d3n0", "d3n1"]));
    assert_eq!(of(4), set(&["d3n0", "d3n1", "d1n0", "d1n1"]));
    assert_eq!(of(6), set(&["d3n0", "d3n1", "d1n0", "d1n1", "d0n0", "d0n1"]));
}

#[test]
fn suspected_nodes_come_before_all_others_with_partners() {
    let claims = fleet(&[6, 6]);
    let mut known: BTreeMap<NodeName, AuditNodeState> =
        (0..6).map(|at| (format!("d1n{at}").into(), measured((100 + at) * DAY))).collect();
    let budget = AuditBudget { nodes: Some(4), ..AuditBudget::default() };
    assert!(chosen(&claims, &known, budget).nodes.iter().all(|it| it.as_str().starts_with("d0")));
    known.entry("d1n5".into()).or_default().suspected = true;
    let choice = chosen(&claims, &known, budget);
    assert_eq!(choice.nodes[0].as_str(), "d1n5");
    assert!(choice.nodes.iter().all(|it| it.as_str().starts_with("d1")), "{:?}", choice.nodes);
    // A busy node is not requested.
    known.entry("d1n5".into()).or_default().unfit = Some("it is busy".to_owned());
    assert!(chosen(&claims, &known, budget).nodes.iter().all(|it| it.as_str().starts_with("d0")));
}

#[test]
fn the_most_urgent_has_partners_and_no_domain_gives_more_than_its_share() {
    let claims = fleet(&[18, 18]);
    let known = (0..18).map(|at| (format!("d0n{at}").into(), measured((100 + at) * DAY)));
    let known: BTreeMap<NodeName, AuditNodeState> = known.collect();
    let budget = AuditBudget { share: Some(0.25), ..AuditBudget::default() };
    let choice = chosen(&claims, &known, budget);
    assert_eq!(choice.nodes.len(), 9);
    assert!(choice.nodes.iter().all(|node| node.as_str().starts_with("d1")));
    let budget = AuditBudget { share_of_domain: Some(0.25), ..budget };
    let choice = chosen(&claims, &known, budget);
    let of =
        |domain: &str| choice.nodes.iter().filter(|it| it.as_str().starts_with(domain)).count();
    assert_eq!((of("d0"), of("d1")), (4, 4), "9 nodes, 4 of each: the ninth would be alone");
    assert_eq!(
        names(&choice).range("d0".to_owned().."d1".to_owned()).cloned().collect::<Vec<_>>(),
        ["d0n0", "d0n1", "d0n2", "d0n3"]
    );
}

#[test]
fn a_node_is_measured_alone_only_where_its_domain_has_no_other() {
    let claims = fleet(&[1, 2]);
    let busy =
        AuditNodeState { unfit: Some("busy: ALLOCATED".to_owned()), ..AuditNodeState::default() };
    let known = BTreeMap::from([("d1n0".into(), busy)]);
    let choice = chosen(&claims, &known, AuditBudget::default());
    assert_eq!(names(&choice), set(&["d0n0"]));
    assert_eq!(choice.left_out[&"d1n0".into()].to_string(), "never measured; busy: ALLOCATED");
    assert!(
        choice.left_out[&"d1n1".into()].why.contains("no other node of d1"),
        "{:?}",
        choice.left_out
    );
}

#[test]
fn the_time_limits_the_choice_and_two_are_better_than_none() {
    let claims = fleet(&[8, 8]);
    let of = |minutes: f64| {
        let budget = AuditBudget { seconds: Some(minutes * 60.0), ..AuditBudget::default() };
        chosen(&claims, &BTreeMap::new(), budget)
    };
    for (minutes, nodes) in [(100.0, 16), (8.0, 16), (3.0, 3), (2.0, 2), (1.0, 0)] {
        let choice = of(minutes);
        assert_eq!(choice.nodes.len(), nodes, "{minutes} min: {choice:?}");
        assert!(choice.estimate_s <= minutes * 60.0);
        assert_eq!(choice.left_out.len(), 16 - nodes);
    }
    let why = of(1.0).left_out[&"d0n0".into()].to_string();
    assert_eq!(why, "never measured; it takes longer than the limit of 1 min");
}

#[test]
fn a_busy_node_comes_first_next_time_and_an_always_busy_one_waits() {
    let claims = fleet(&[2, 2, 2]);
    let mut known: BTreeMap<NodeName, AuditNodeState> = BTreeMap::new();
    for domain in 0..3 {
        for node in 0..2 {
            known.insert(format!("d{domain}n{node}").into(), measured((10 + domain) * DAY));
        }
    }
    let budget = AuditBudget { nodes: Some(2), ..AuditBudget::default() };
    let missed = |misses| AuditNodeState { tried: Some(20 * DAY), misses, ..measured(9 * DAY) };
    for node in ["d2n0", "d2n1"] {
        known.insert(node.into(), missed(1));
    }
    assert_eq!(names(&chosen(&claims, &known, budget)), set(&["d2n0", "d2n1"]));
    for node in ["d2n0", "d2n1"] {
        known.insert(node.into(), missed(2));
    }
    assert_eq!(names(&chosen(&claims, &known, budget)), set(&["d0n0", "d0n1"]));
}

#[test]
fn the_same_seed_chooses_the_same_and_another_another() {
    let claims = fleet(&[2; 30]);
    let budget = AuditBudget { nodes: Some(10), ..AuditBudget::default() };
    let of = |seed| {
        let known = BTreeMap::new();
        select_nodes(&AuditSelectionRequest {
            claims: &claims,
            known: &known,
            budget,
            seed,
            cost: &cost,
        })
    };
    assert_eq!(of(1), of(1));
    assert_ne!(names(&of(1)), names(&of(2)));
}

/// Simulates weeks of one audit per day. `busy` selects the nodes that cannot be measured on a day;
/// with `seen`, the audit knows this beforehand. Returns the longest time that any node had no
/// measurement, in days.
fn weeks(
    claims: &Claims,
    budget: AuditBudget,
    days: i64,
    busy: impl Fn(i64, &NodeName) -> bool,
    seen: bool,
) -> i64 {
    let nodes: Vec<&NodeName> = claims.domains.iter().flat_map(|domain| &domain.nodes).collect();
    let mut known: BTreeMap<NodeName, AuditNodeState> = BTreeMap::new();
    let mut longest = 0;
    for day in 1..=days {
        for node in &nodes {
            let is_busy = seen && busy(day, node);
            known.entry((*node).clone()).or_default().unfit = is_busy.then(|| "busy".to_owned());
        }
        let seed = u64::try_from(day).expect("days are counted from 1");
        let choice = select_nodes(&AuditSelectionRequest {
            claims,
            known: &known,
            budget,
            seed,
            cost: &cost,
        });
        for node in &choice.nodes {
            let known = known.entry(node.clone()).or_default();
            known.tried = Some(day);
            if busy(day, node) {
                known.misses += 1;
            } else {
                (known.measured, known.misses) = (Some(day), 0);
            }
        }
        let since = |node: &&NodeName| day - known[*node].measured.unwrap_or(0);
        longest = nodes.iter().map(since).max().unwrap_or(0).max(longest);
    }
    longest
}

/// Whether a node is busy on a day, at random for this share of the days.
fn busy_by_chance(share: f64, salt: u64) -> impl Fn(i64, &NodeName) -> bool {
    move |day, node| {
        let name = format!("{node} on {day}");
        #[expect(clippy::cast_precision_loss, reason = "chance needs no last digit")]
        let chance = (SeededRng::new(salt, &name).next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        chance < share
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_node_is_measured_within_a_rotation_and_a_half(
        sizes in prop::collection::vec(1usize..20, 1..12),
        share in 0.1f64..1.0,
    ) {
        let claims = fleet(&sizes);
        let total: usize = sizes.iter().sum();
        let budget = AuditBudget { share: Some(share), ..AuditBudget::default() };
        let a_day = count_share(share, total).min(total);
        let rotation = i64::try_from(total.div_ceil(a_day.saturating_sub(1).max(1))).expect("few");
        let longest = weeks(&claims, budget, rotation * 4, |_, _| false, true);
        prop_assert!(longest <= rotation + rotation / 2 + 2, "{longest} days, {rotation} a rotation");
    }

    #[test]
    fn nodes_that_are_busy_now_and_then_have_their_turn_too(
        sizes in prop::collection::vec(4usize..20, 1..10),
        share in 0.15f64..0.6,
        busy in 0.0f64..0.2,
        seen in any::<bool>(),
        salt in any::<u64>(),
    ) {
        let claims = fleet(&sizes);
        let total: usize = sizes.iter().sum();
        let budget = AuditBudget { share: Some(share), ..AuditBudget::default() };
        let a_day = count_share(share, total).min(total);
        let rotation = i64::try_from(total.div_ceil(a_day.saturating_sub(1).max(1))).expect("few");
        let longest = weeks(&claims, budget, rotation * 10, busy_by_chance(busy, salt), seen);
        // At worst one of five tries fails, two in a row cost a turn, and each further one another:
        // seven such turns have a probability of 3 in a million.
        prop_assert!(longest <= 7 * rotation + 12, "{longest} days, {rotation} a rotation");
    }

    #[test]
    fn nodes_that_are_always_busy_do_not_block_others(
        sizes in prop::collection::vec(4usize..20, 2..10),
        share in 0.15f64..0.6,
    ) {
        let claims = fleet(&sizes);
        let total: usize = sizes.iter().sum();
        let stuck = |node: &NodeName| node.as_str().starts_with("d0n");
        let budget = AuditBudget { share: Some(share), ..AuditBudget::default() };
        let a_day = count_share(share, total).min(total);
        let rotation = i64::try_from(total.div_ceil(a_day.saturating_sub(1).max(1))).expect("few");
        let mut others = claims.clone();
        others.domains.remove(0);
        let mut last: BTreeMap<NodeName, i64> = BTreeMap::new();
        let mut known: BTreeMap<NodeName, AuditNodeState> = BTreeMap::new();
        for day in 1..=rotation * 6 {
            let choice = select_nodes(&AuditSelectionRequest { claims: &claims, known: &known, budget, seed: 1, cost: &cost });
            for node in choice.nodes {
                let it = known.entry(node.clone()).or_default();
                it.tried = Some(day);
                if stuck(&node) {
                    it.misses += 1;
                } else {
                    (it.measured, it.misses) = (Some(day), 0);
                    last.insert(node, day);
                }
            }
        }
        let end = rotation * 6;
        for node in others.domains.iter().flat_map(|domain| &domain.nodes) {
            let since = end - last.get(node).copied().unwrap_or(0);
            prop_assert!(since <= 2 * rotation + 4, "{node}: {since} days, {rotation} a rotation");
        }
    }

    #[test]
    fn no_budget_is_overdrawn_and_every_node_is_selected_or_has_a_reason(
        sizes in prop::collection::vec(1usize..20, 0..12),
        nodes in prop::option::of(0usize..80),
        share in prop::option::of(0.0f64..1.0),
        share_of_domain in prop::option::of(0.0f64..1.0),
        minutes in prop::option::of(0.0f64..30.0),
        busy in 0.0f64..1.0,
        salt in any::<u64>(),
    ) {
        let claims = fleet(&sizes);
        let is_busy = busy_by_chance(busy, salt);
        let unfit = |node: &NodeName| is_busy(0, node).then(|| "busy".to_owned());
        let all: Vec<&NodeName> = claims.domains.iter().flat_map(|domain| &domain.nodes).collect();
        let known = all.iter().map(|node| {
            ((*node).clone(), AuditNodeState { unfit: unfit(node), ..AuditNodeState::default() })
        }).collect();
        let budget = AuditBudget { seconds: minutes.map(|it| it * 60.0), nodes, share, share_of_domain };
        let choice = select_nodes(&AuditSelectionRequest { claims: &claims, known: &known, budget, seed: salt, cost: &cost });
        let unique: BTreeSet<&NodeName> = choice.nodes.iter().collect();
        prop_assert_eq!(unique.len(), choice.nodes.len());
        prop_assert_eq!(choice.nodes.len() + choice.left_out.len(), all.len());
        prop_assert!(choice.nodes.iter().all(|node| !choice.left_out.contains_key(node)));
        prop_assert!(choice.nodes.len() <= budget.max_nodes(all.len()));
        prop_assert!(budget.seconds.is_none_or(|seconds| choice.estimate_s <= seconds));
        for (domain, whole) in choice.restrict_claims(&claims).domains.iter().map(|domain| {
            (domain, claims.domains.iter().find(|it| it.name == domain.name).expect("claimed"))
        }) {
            prop_assert!(domain.nodes.len() <= budget.max_domain_nodes(whole));
            prop_assert!(1 < domain.nodes.len() || whole.nodes.len() == 1, "{domain:?}");
            prop_assert!(domain.nodes.iter().all(|node| !is_busy(0, node)));
        }
    }
}
