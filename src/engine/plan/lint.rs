//! Checks a plan against its rules.
//!
//! Plans are also read from disk, and a resumed run uses one: an error in it must appear before any
//! node is touched.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::leaf::LeafMap;
use super::sweep::{COMPLETE_STAGE, FAST_STAGE};
use super::{Plan, PlanLimits, PlanRound, PlanStep};
use model::claims::Claims;
use model::id::{DomainName, NodeName};
use model::probe::{ProbeScope, placeholder};

/// Placeholders that the plan fills in itself.
const PLAN_PLACEHOLDERS: &[&str] = &[
    placeholder::GPUS,
    placeholder::RANKS,
    placeholder::NODES,
    placeholder::HOSTS,
    placeholder::NODE,
    placeholder::PEER,
    placeholder::RAIL,
    placeholder::RDMA,
    placeholder::READINGS,
    placeholder::LANE,
    placeholder::LIMIT,
];

/// A broken rule of a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanLintError {
    /// Numbers are not in execution order.
    #[error("{what} {number} follows {before}: numbers must increase")]
    Number {
        /// A step or a round.
        what: &'static str,
        /// The number out of order.
        number: usize,
        /// The previous number.
        before: usize,
    },
    /// A step names an unclaimed node.
    #[error("step {step}: no domain claims node {node}")]
    UnknownNode {
        /// Number of the step.
        step: usize,
        /// The unclaimed node.
        node: NodeName,
    },
    /// A step has the wrong number of nodes for its probe.
    #[error("step {step}: {probe} of scope {scope} on {nodes} nodes")]
    Nodes {
        /// Number of the step.
        step: usize,
        /// Name of its probe.
        probe: String,
        /// The scope of the probe.
        scope: &'static str,
        /// Number of nodes of the step.
        nodes: usize,
    },
    /// A step names a domain that does not hold all its nodes.
    #[error("step {step}: its nodes are not all of domain {domain}")]
    Domain {
        /// Number of the step.
        step: usize,
        /// The named domain.
        domain: String,
    },
    /// A step uses an unclaimed rail.
    #[error("step {step}: rail {rail} is not claimed")]
    UnknownRail {
        /// Number of the step.
        step: usize,
        /// The unclaimed rail.
        rail: String,
    },
    /// Two tests of a round share a node.
    #[error("round {round}: node {node} is in two steps at the same time")]
    Busy {
        /// Number of the round.
        round: usize,
        /// The shared node.
        node: NodeName,
    },
    /// Too many hosts of a leaf send across leaves concurrently.
    #[error("round {round}: {hosts} hosts of {leaf} send across leaves, the limit is {limit}")]
    CrossLeaf {
        /// Number of the round.
        round: usize,
        /// The leaf, identified by one of its nodes.
        leaf: String,
        /// Number of hosts that send concurrently.
        hosts: usize,
        /// The limit.
        limit: usize,
    },
    /// A step has more readings than allowed, or none.
    #[error("step {step}: {readings} readings, expected 1 to {most}")]
    Readings {
        /// Number of the step.
        step: usize,
        /// Number of its readings.
        readings: u32,
        /// Maximum number of readings.
        most: u32,
    },
    /// A step that every node runs has only one node, or a serving side.
    #[error("step {step}: {probe} cannot be run by every node that takes part")]
    OnAllNodes {
        /// Number of the step.
        step: usize,
        /// Name of its probe.
        probe: String,
    },
    /// An argument of a command still holds a placeholder that claims define.
    #[error("step {step}: {word:?} was not filled in")]
    Unfilled {
        /// Number of the step.
        step: usize,
        /// The argument.
        word: String,
    },
    /// A complete sweep lacks a pair.
    #[error("{probe}: the complete sweep leaves out {a} and {b}{lane}")]
    PairMissing {
        /// Name of the probe.
        probe: String,
        /// One node of the pair.
        a: NodeName,
        /// The other node.
        b: NodeName,
        /// The lane, formatted for the message.
        lane: String,
    },
    /// A stage measures a pair twice.
    #[error("{probe}: stage {stage} has {a} and {b} twice")]
    PairTwice {
        /// Name of the probe.
        probe: String,
        /// Number of the stage.
        stage: u8,
        /// One node of the pair.
        a: NodeName,
        /// The other node.
        b: NodeName,
    },
}

/// All broken rules of a plan for these claims.
pub fn lint_plan(plan: &Plan, claims: &Claims) -> Vec<PlanLintError> {
    let nodes: Vec<NodeName> = claims.domains.iter().flat_map(|d| d.nodes.clone()).collect();
    let domains = claims.domains.iter();
    let domains = domains.flat_map(|d| d.nodes.iter().map(move |_| &d.name)).collect();
    let ground = LintContext {
        domains,
        leaves: LeafMap::from_claims(claims, &nodes),
        claims,
        limits: plan.limits,
    };
    let mut numbered = NodeNumbering::new(&nodes);
    let (mut wrong, mut of_rounds) = (Vec::new(), Vec::new());
    check_numbers("round", plan.rounds.iter().map(|round| round.round), &mut wrong);
    check_numbers("step", plan.steps().map(|step| step.step), &mut wrong);
    let mut met = PairingIndex::default();
    for round in &plan.rounds {
        // Names are resolved once: a large plan has millions of steps.
        let steps: Vec<NumberedStep<'_>> =
            round.steps.iter().map(|it| numbered.number_step(it)).collect();
        for step in &steps {
            ground.check_step(step, &mut wrong);
            met.add_step(step, &numbered);
        }
        check_busy(round, &steps, numbered.names.len(), &mut of_rounds);
        ground.check_cross_leaf(round, &steps, &numbered, &mut of_rounds);
    }
    wrong.append(&mut of_rounds);
    met.check_pairs(plan, &ground, &numbered, &mut wrong);
    wrong
}

/// Node indices: claimed nodes in claim order, then the others.
struct NodeNumbering<'p> {
    places: HashMap<&'p NodeName, usize>,
    names: Vec<&'p NodeName>,
    claimed: usize,
}

/// A step with the indices of its nodes.
struct NumberedStep<'p> {
    step: &'p PlanStep,
    nodes: Vec<usize>,
}

impl<'p> NodeNumbering<'p> {
    fn new(nodes: &'p [NodeName]) -> Self {
        Self {
            places: nodes.iter().enumerate().map(|(at, node)| (node, at)).collect(),
            names: nodes.iter().collect(),
            claimed: nodes.len(),
        }
    }

    fn number_step(&mut self, step: &'p PlanStep) -> NumberedStep<'p> {
        let number = |node: &'p NodeName| {
            *self.places.entry(node).or_insert_with(|| {
                self.names.push(node);
                self.names.len() - 1
            })
        };
        NumberedStep { nodes: step.nodes.iter().map(number).collect(), step }
    }
}

impl NumberedStep<'_> {
    /// Its two nodes, ordered by name, if it has two.
    fn node_pair(&self, names: &NodeNumbering<'_>) -> Option<(usize, usize)> {
        let &[a, b] = self.nodes.as_slice() else { return None };
        Some(if names.names[b] < names.names[a] { (b, a) } else { (a, b) })
    }
}

fn check_numbers(
    what: &'static str,
    numbers: impl Iterator<Item = usize>,
    wrong: &mut Vec<PlanLintError>,
) {
    let mut before: Option<usize> = None;
    for number in numbers {
        if let Some(before) = before.filter(|before| number <= *before) {
            wrong.push(PlanLintError::Number { what, number, before });
        }
        before = Some(number);
    }
}

/// A node is in one step of a round; in several only if they use different rails or lanes.
fn check_busy(
    round: &PlanRound,
    steps: &[NumberedStep<'_>],
    nodes: usize,
    wrong: &mut Vec<PlanLintError>,
) {
    type RailLane<'r> = (Option<&'r str>, Option<u32>);
    let mut taken: Vec<Vec<RailLane<'_>>> = vec![Vec::new(); nodes];
    for NumberedStep { step, nodes } in steps {
        let here = (step.rail.as_deref(), step.lane);
        for (at, node) in nodes.iter().zip(&step.nodes) {
            let is_apart = |(rail, lane): &RailLane<'_>| {
                let rails = rail.is_some() && here.0.is_some() && *rail != here.0;
                let lanes = lane.is_some() && here.1.is_some() && *lane != here.1;
                rails || lanes
            };
            if !taken[*at].iter().all(is_apart) {
                wrong.push(PlanLintError::Busy { round: round.round, node: node.clone() });
            }
            taken[*at].push(here);
        }
    }
}

/// The nodes on which a probe is skipped entirely.
fn skipped_nodes<'p>(plan: &'p Plan, probe: &str) -> BTreeSet<&'p NodeName> {
    let mut skipped =
        plan.skipped.iter().filter(|s| s.probe == probe).flat_map(|s| &s.nodes).peekable();
    if skipped.peek().is_none() {
        return BTreeSet::new();
    }
    let run: BTreeSet<&NodeName> =
        plan.steps().filter(|s| s.probe == probe).flat_map(|s| &s.nodes).collect();
    skipped.filter(|node| !run.contains(node)).collect()
}

struct LintContext<'a> {
    domains: Vec<&'a DomainName>,
    leaves: LeafMap,
    claims: &'a Claims,
    limits: PlanLimits,
}

impl LintContext<'_> {
    fn check_step(
        &self,
        NumberedStep { step, nodes }: &NumberedStep<'_>,
        wrong: &mut Vec<PlanLintError>,
    ) {
        let at = step.step;
        let fits = match step.scope {
            ProbeScope::Node => step.nodes.len() == 1,
            ProbeScope::Pair | ProbeScope::Rail => step.nodes.len() == 2,
            ProbeScope::Domain => 2 <= step.nodes.len(),
        };
        let mut different: Vec<(&NodeName, usize)> =
            step.nodes.iter().zip(nodes.iter().copied()).collect();
        different.sort_unstable();
        different.dedup();
        if !fits || different.len() != step.nodes.len() {
            wrong.push(PlanLintError::Nodes {
                step: at,
                probe: step.probe.clone(),
                scope: step.scope.as_str(),
                nodes: different.len(),
            });
        }
        for (node, _) in different.iter().filter(|(_, node)| self.domains.len() <= *node) {
            wrong.push(PlanLintError::UnknownNode { step: at, node: (*node).clone() });
        }
        let domain = step.domain.as_ref();
        let is_inside = domain
            .is_some_and(|domain| nodes.iter().all(|n| self.domains.get(*n) == Some(&domain)));
        let needs_domain = matches!(step.scope, ProbeScope::Pair | ProbeScope::Domain);
        if (domain.is_some() || needs_domain) && !is_inside {
            let domain = domain.map_or("that the step names", |name| name.as_str()).to_owned();
            wrong.push(PlanLintError::Domain { step: at, domain });
        }
        if let Some(rail) = &step.rail
            && !self.claims.rails.iter().any(|claimed| claimed.name == *rail)
        {
            wrong.push(PlanLintError::UnknownRail { step: at, rail: rail.clone() });
        }
        if step.readings < 1 || step.most_readings < step.readings {
            let (readings, most) = (step.readings, step.most_readings);
            wrong.push(PlanLintError::Readings { step: at, readings, most });
        }
        let serve = step.serve.iter().map(|serve| (&serve.argv, false));
        let fallback = step.fallback.iter().map(|it| (&it.argv, it.on_all_nodes));
        for (argv, on_all_nodes) in
            std::iter::once((&step.argv, step.on_all_nodes)).chain(serve).chain(fallback)
        {
            // The node name differs if every node runs the command.
            let waits = |word: &String| {
                PLAN_PLACEHOLDERS.iter().any(|name| {
                    word.contains(name) && !(on_all_nodes && *name == placeholder::NODE)
                })
            };
            for word in argv.iter().filter(|word| word.contains('{') && waits(word)) {
                wrong.push(PlanLintError::Unfilled { step: at, word: word.clone() });
            }
        }
        let among_nodes = matches!(step.scope, ProbeScope::Pair | ProbeScope::Domain);
        let on_all_nodes =
            step.on_all_nodes || step.fallback.as_ref().is_some_and(|it| it.on_all_nodes);
        if on_all_nodes && (!among_nodes || step.serve.is_some()) {
            wrong.push(PlanLintError::OnAllNodes { step: at, probe: step.probe.clone() });
        }
    }

    fn check_cross_leaf(
        &self,
        round: &PlanRound,
        steps: &[NumberedStep<'_>],
        names: &NodeNumbering<'_>,
        wrong: &mut Vec<PlanLintError>,
    ) {
        let mut hosts: BTreeMap<(Option<&str>, usize), BTreeSet<usize>> = BTreeMap::new();
        for it in steps.iter().filter(|it| it.step.scope == ProbeScope::Rail) {
            let Some((a, b)) = it.node_pair(names) else { continue };
            if names.claimed <= a.max(b) {
                continue;
            }
            if self.leaves.is_cross_leaf((a, b)) {
                let rail = it.step.rail.as_deref();
                hosts.entry((rail, self.leaves.leaf_of(a))).or_default().insert(a);
                hosts.entry((rail, self.leaves.leaf_of(b))).or_default().insert(b);
            }
        }
        let limit = self.limits.cross_leaf.max(1);
        for (_, hosts) in hosts.into_iter().filter(|(_, hosts)| limit < hosts.len()) {
            let first = hosts.iter().map(|host| names.names[*host]).min();
            let leaf = first.map(|node| format!("the leaf of {node}")).unwrap_or_default();
            let (round, hosts) = (round.round, hosts.len());
            wrong.push(PlanLintError::CrossLeaf { round, leaf, hosts, limit });
        }
    }

    /// The groups of nodes that must all be paired: domains with a step of the complete sweep, or
    /// leaves with one inside; sampled ones excluded.
    fn pairing_groups(&self, scope: ProbeScope, steps: &[StepPairing]) -> Vec<Vec<usize>> {
        let few = |group: &Vec<usize>| group.len() <= self.limits.complete_nodes;
        let claimed = 0..self.domains.len();
        if scope == ProbeScope::Pair {
            let inside =
                steps.iter().filter(|it| it.b < self.domains.len() && it.a < self.domains.len());
            let inside = inside.filter(|it| self.domains[it.a] == self.domains[it.b]);
            let named: BTreeSet<&DomainName> = inside.map(|it| self.domains[it.a]).collect();
            let mut groups: BTreeMap<&DomainName, Vec<usize>> = BTreeMap::new();
            for node in claimed.filter(|node| named.contains(self.domains[*node])) {
                groups.entry(self.domains[node]).or_default().push(node);
            }
            return groups.into_values().filter(few).collect();
        }
        let mut inside = BTreeSet::new();
        for it in steps.iter().filter(|it| it.a.max(it.b) < self.domains.len()) {
            if !self.leaves.is_cross_leaf((it.a, it.b)) {
                inside.insert(self.leaves.leaf_of(it.a));
            }
        }
        let mut leaves: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for node in claimed.filter(|node| inside.contains(&self.leaves.leaf_of(*node))) {
            leaves.entry(self.leaves.leaf_of(node)).or_default().push(node);
        }
        leaves.into_values().filter(few).collect()
    }
}

/// Two nodes that a step measures, ordered by name, and the step's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct StepPairing {
    stage: u8,
    a: usize,
    b: usize,
    at: usize,
}

/// The probe, the rail and the lane.
type PairingKey<'p> = (&'p str, Option<&'p str>, Option<u32>);

#[derive(Default)]
struct PairingIndex<'p> {
    pairings: BTreeMap<(PairingKey<'p>, ProbeScope), Vec<StepPairing>>,
    steps: usize,
}

impl<'p> PairingIndex<'p> {
    fn add_step(&mut self, placed: &NumberedStep<'p>, names: &NodeNumbering<'_>) {
        let step = placed.step;
        self.steps += 1;
        let is_pair = matches!(step.scope, ProbeScope::Pair | ProbeScope::Rail);
        let Some((a, b)) = placed.node_pair(names).filter(|_| is_pair) else { return };
        let way = ((step.probe.as_str(), step.rail.as_deref(), step.lane), step.scope);
        let pairing = StepPairing { stage: step.stage, a, b, at: self.steps };
        self.pairings.entry(way).or_default().push(pairing);
    }

    /// A stage has no pair twice, and a complete sweep has every pair: those of a domain, over
    /// rails those of a leaf. Pairs of the fast sweep count.
    fn check_pairs(
        self,
        plan: &Plan,
        ground: &LintContext<'_>,
        names: &NodeNumbering<'_>,
        wrong: &mut Vec<PlanLintError>,
    ) {
        let mut left: BTreeMap<&str, BTreeSet<&NodeName>> = BTreeMap::new();
        for (((probe, _, lane), scope), mut pairings) in self.pairings {
            pairings.sort_unstable();
            let same = |two: &[StepPairing]| {
                (two[0].stage, two[0].a, two[0].b) == (two[1].stage, two[1].a, two[1].b)
            };
            for again in pairings.windows(2).filter(|two| same(two)).map(|two| two[1]) {
                let (a, b) = (names.names[again.a].clone(), names.names[again.b].clone());
                let (stage, probe) = (again.stage, probe.to_owned());
                wrong.push(PlanLintError::PairTwice { probe, stage, a, b });
            }
            // Which domains, or over rails which nodes, take part.
            let complete: Vec<StepPairing> =
                pairings.iter().copied().filter(|it| it.stage == COMPLETE_STAGE).collect();
            if complete.is_empty() {
                continue;
            }
            let swept =
                pairings.iter().filter(|it| [FAST_STAGE, COMPLETE_STAGE].contains(&it.stage));
            let mut met: Vec<(usize, usize)> = swept.map(|it| (it.a, it.b)).collect();
            met.sort_unstable();
            let left_out = left.entry(probe).or_insert_with(|| skipped_nodes(plan, probe));
            for mut group in ground.pairing_groups(scope, &complete) {
                group.retain(|node| !left_out.contains(names.names[*node]));
                for (i, a) in group.iter().enumerate() {
                    for b in &group[i + 1..] {
                        let is_first = names.names[*a] < names.names[*b];
                        let pair = if is_first { (*a, *b) } else { (*b, *a) };
                        if met.binary_search(&pair).is_err() {
                            let lane = lane.map(|l| format!(", lane {l}")).unwrap_or_default();
                            let (a, b) = (names.names[pair.0].clone(), names.names[pair.1].clone());
                            let probe = probe.to_owned();
                            wrong.push(PlanLintError::PairMissing { probe, a, b, lane });
                        }
                    }
                }
            }
        }
    }
}
