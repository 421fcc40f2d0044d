//! Whether a plan keeps its own rules.
//!
//! Plans are read from disk too, and a run is resumed from one: what is wrong
//! in it must show before a node is touched.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::Limits;
use super::Plan;
use super::Round;
use super::Step;
use super::coverage::pair_of;
use super::leaf::Leaves;
use super::sweep::COMPLETE;
use super::sweep::FAST;
use crate::model::claims::Claims;
use crate::model::id::DomainName;
use crate::model::id::NodeName;
use crate::model::probe::ProbeScope;
use crate::model::probe::placeholder;

/// What the plan fills itself.
const FILLED: &[&str] = &[
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

/// A rule that a plan breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LintError {
    /// Numbers are not in the order in which things run.
    #[error("{what} {number} follows {before}: numbers must grow")]
    Number {
        /// A step or a round.
        what: &'static str,
        /// Its number.
        number: usize,
        /// The one before.
        before: usize,
    },
    /// A step names a node that nobody claims.
    #[error("step {step}: no domain claims node {node}")]
    UnknownNode {
        /// The step.
        step: usize,
        /// The node.
        node: NodeName,
    },
    /// A step has not the nodes that its probe needs.
    #[error("step {step}: {probe} of scope {scope} on {nodes} nodes")]
    Nodes {
        /// The step.
        step: usize,
        /// Its probe.
        probe: String,
        /// What the probe measures.
        scope: &'static str,
        /// How many nodes it has.
        nodes: usize,
    },
    /// A step says that its nodes are of a domain, and they are not.
    #[error("step {step}: its nodes are not all of domain {domain}")]
    Domain {
        /// The step.
        step: usize,
        /// The domain.
        domain: String,
    },
    /// A step runs over a rail that nobody claims.
    #[error("step {step}: rail {rail} is not claimed")]
    UnknownRail {
        /// The step.
        step: usize,
        /// The rail.
        rail: String,
    },
    /// Two tests of a round share a node.
    #[error("round {round}: node {node} is in two steps at the same time")]
    Busy {
        /// The round.
        round: usize,
        /// The node.
        node: NodeName,
    },
    /// Too many hosts of a leaf talk across leaves at the same time.
    #[error("round {round}: {hosts} hosts of {leaf} talk across leaves, {limit} may")]
    CrossLeaf {
        /// The round.
        round: usize,
        /// The leaf, by one of its nodes.
        leaf: String,
        /// How many do.
        hosts: usize,
        /// How many may.
        limit: usize,
    },
    /// A step reads more often than it may, or never.
    #[error("step {step}: {readings} readings, expected 1 to {most}")]
    Readings {
        /// The step.
        step: usize,
        /// Its readings.
        readings: u32,
        /// The most.
        most: u32,
    },
    /// A step is run by every node, and has one node only or a serving side.
    #[error("step {step}: {probe} cannot be run by every node that takes part")]
    Together {
        /// The step.
        step: usize,
        /// Its probe.
        probe: String,
    },
    /// A word of a command still waits for what claims tell.
    #[error("step {step}: {word:?} was not filled in")]
    Unfilled {
        /// The step.
        step: usize,
        /// The word.
        word: String,
    },
    /// A complete sweep leaves a pair out.
    #[error("{probe}: the complete sweep leaves out {a} and {b}{lane}")]
    PairMissing {
        /// The probe.
        probe: String,
        /// One node.
        a: NodeName,
        /// The other.
        b: NodeName,
        /// The lane, for people.
        lane: String,
    },
    /// A stage has a pair twice.
    #[error("{probe}: stage {stage} has {a} and {b} twice")]
    PairTwice {
        /// The probe.
        probe: String,
        /// The stage.
        stage: u8,
        /// One node.
        a: NodeName,
        /// The other.
        b: NodeName,
    },
}

/// Everything that is wrong with a plan for these claims.
pub fn lint(plan: &Plan, claims: &Claims) -> Vec<LintError> {
    let nodes: Vec<NodeName> = claims.domains.iter().flat_map(|d| d.nodes.clone()).collect();
    let domains = claims.domains.iter();
    let ground = Ground {
        domains: domains.flat_map(|d| d.nodes.iter().map(move |n| (n, &d.name))).collect(),
        places: nodes.iter().enumerate().map(|(at, node)| (node, at)).collect(),
        leaves: Leaves::claimed(claims, &nodes),
        nodes: &nodes,
        claims,
        limits: plan.limits,
    };
    let mut wrong = Vec::new();
    numbers("round", plan.rounds.iter().map(|round| round.round), &mut wrong);
    numbers("step", plan.steps().map(|step| step.step), &mut wrong);
    for step in plan.steps() {
        ground.step(step, &mut wrong);
    }
    for round in &plan.rounds {
        busy(round, &mut wrong);
        ground.cross_leaf(round, &mut wrong);
    }
    ground.pairs(plan, &mut wrong);
    wrong
}

fn numbers(what: &'static str, numbers: impl Iterator<Item = usize>, wrong: &mut Vec<LintError>) {
    let mut before: Option<usize> = None;
    for number in numbers {
        if let Some(before) = before.filter(|before| number <= *before) {
            wrong.push(LintError::Number { what, number, before });
        }
        before = Some(number);
    }
}

/// A node is in one step of a round; in several only on rails, or lanes, of
/// which each is another.
fn busy(round: &Round, wrong: &mut Vec<LintError>) {
    type Way<'r> = (Option<&'r str>, Option<u32>);
    let mut taken: BTreeMap<&NodeName, Vec<Way<'_>>> = BTreeMap::new();
    for step in &round.steps {
        let here = (step.rail.as_deref(), step.lane);
        for node in &step.nodes {
            let there = taken.entry(node).or_default();
            let is_apart = |(rail, lane): &Way<'_>| {
                let rails = rail.is_some() && here.0.is_some() && *rail != here.0;
                let lanes = lane.is_some() && here.1.is_some() && *lane != here.1;
                rails || lanes
            };
            if !there.iter().all(is_apart) {
                wrong.push(LintError::Busy { round: round.round, node: node.clone() });
            }
            there.push(here);
        }
    }
}

/// The nodes on which a probe is left out altogether.
fn left_out<'p>(plan: &'p Plan, probe: &str) -> BTreeSet<&'p NodeName> {
    let skipped = plan.skipped.iter().filter(|s| s.probe == probe).flat_map(|s| &s.nodes);
    let run: BTreeSet<&NodeName> =
        plan.steps().filter(|s| s.probe == probe).flat_map(|s| &s.nodes).collect();
    skipped.filter(|node| !run.contains(node)).collect()
}

struct Ground<'a> {
    nodes: &'a [NodeName],
    places: BTreeMap<&'a NodeName, usize>,
    domains: BTreeMap<&'a NodeName, &'a DomainName>,
    leaves: Leaves,
    claims: &'a Claims,
    limits: Limits,
}

impl Ground<'_> {
    fn step(&self, step: &Step, wrong: &mut Vec<LintError>) {
        let at = step.step;
        let fits = match step.scope {
            ProbeScope::Node => step.nodes.len() == 1,
            ProbeScope::Pair | ProbeScope::Rail => step.nodes.len() == 2,
            ProbeScope::Domain => 2 <= step.nodes.len(),
        };
        let different: BTreeSet<&NodeName> = step.nodes.iter().collect();
        if !fits || different.len() != step.nodes.len() {
            wrong.push(LintError::Nodes {
                step: at,
                probe: step.probe.clone(),
                scope: step.scope.as_str(),
                nodes: different.len(),
            });
        }
        for node in different.iter().filter(|node| !self.places.contains_key(**node)) {
            wrong.push(LintError::UnknownNode { step: at, node: (*node).clone() });
        }
        let domain = step.domain.as_ref();
        let is_inside = domain
            .is_some_and(|domain| step.nodes.iter().all(|n| self.domains.get(n) == Some(&domain)));
        let needs_domain = matches!(step.scope, ProbeScope::Pair | ProbeScope::Domain);
        if (domain.is_some() || needs_domain) && !is_inside {
            let domain = domain.map_or("that is named", |name| name.as_str()).to_owned();
            wrong.push(LintError::Domain { step: at, domain });
        }
        if let Some(rail) = &step.rail
            && !self.claims.rails.iter().any(|claimed| claimed.name == *rail)
        {
            wrong.push(LintError::UnknownRail { step: at, rail: rail.clone() });
        }
        if step.readings < 1 || step.most_readings < step.readings {
            let (readings, most) = (step.readings, step.most_readings);
            wrong.push(LintError::Readings { step: at, readings, most });
        }
        let serve = step.serve.iter().map(|serve| (&serve.argv, false));
        let otherwise = step.otherwise.iter().map(|it| (&it.argv, it.together));
        for (argv, together) in
            std::iter::once((&step.argv, step.together)).chain(serve).chain(otherwise)
        {
            // Whose name it is differs where every node runs the command.
            let waits = |word: &String| {
                FILLED
                    .iter()
                    .any(|name| word.contains(name) && !(together && *name == placeholder::NODE))
            };
            for word in argv.iter().filter(|word| word.contains('{') && waits(word)) {
                wrong.push(LintError::Unfilled { step: at, word: word.clone() });
            }
        }
        let among_nodes = matches!(step.scope, ProbeScope::Pair | ProbeScope::Domain);
        let together = step.together || step.otherwise.as_ref().is_some_and(|it| it.together);
        if together && (!among_nodes || step.serve.is_some()) {
            wrong.push(LintError::Together { step: at, probe: step.probe.clone() });
        }
    }

    fn cross_leaf(&self, round: &Round, wrong: &mut Vec<LintError>) {
        let mut hosts: BTreeMap<(Option<&str>, usize), BTreeSet<&NodeName>> = BTreeMap::new();
        for step in round.steps.iter().filter(|step| step.scope == ProbeScope::Rail) {
            let Some((a, b)) = pair_of(step) else { continue };
            let (Some(i), Some(j)) = (self.places.get(a), self.places.get(b)) else { continue };
            if self.leaves.crosses((*i, *j)) {
                let rail = step.rail.as_deref();
                hosts.entry((rail, self.leaves.of(*i))).or_default().insert(a);
                hosts.entry((rail, self.leaves.of(*j))).or_default().insert(b);
            }
        }
        let limit = self.limits.cross_leaf.max(1);
        for (_, hosts) in hosts.into_iter().filter(|(_, hosts)| limit < hosts.len()) {
            let leaf = hosts.first().map(|node| format!("the leaf of {node}")).unwrap_or_default();
            let (round, hosts) = (round.round, hosts.len());
            wrong.push(LintError::CrossLeaf { round, leaf, hosts, limit });
        }
    }

    /// A complete sweep has every pair: those of a domain, over rails those of
    /// a leaf. What it had in the fast sweep already counts.
    fn pairs(&self, plan: &Plan, wrong: &mut Vec<LintError>) {
        type Met<'p> = BTreeSet<(&'p NodeName, &'p NodeName)>;
        let mut met: BTreeMap<(&str, Option<&str>, Option<u32>), Met<'_>> = BTreeMap::new();
        let mut once = BTreeSet::new();
        let mut complete = BTreeMap::new();
        for step in plan.steps() {
            let Some((a, b)) = pair_of(step) else { continue };
            let probe = step.probe.as_str();
            if !matches!(step.scope, ProbeScope::Pair | ProbeScope::Rail) {
                continue;
            }
            let way = (probe, step.rail.as_deref(), step.lane);
            if !once.insert((step.stage, way, a, b)) {
                let (stage, probe) = (step.stage, probe.to_owned());
                wrong.push(LintError::PairTwice { probe, stage, a: a.clone(), b: b.clone() });
            }
            if [FAST, COMPLETE].contains(&step.stage) {
                met.entry(way).or_default().insert((a, b));
            }
            if step.stage == COMPLETE {
                // Which domains, or over rails which nodes, take part.
                complete.entry((way, step.scope)).or_insert_with(Vec::new).push(step);
            }
        }
        for (((probe, rail, lane), scope), steps) in complete {
            let met = met.get(&(probe, rail, lane));
            let left_out = left_out(plan, probe);
            for mut group in self.groups(scope, &steps) {
                group.retain(|node| !left_out.contains(node));
                for (i, a) in group.iter().enumerate() {
                    for b in &group[i + 1..] {
                        let pair = if a < b { (*a, *b) } else { (*b, *a) };
                        if !met.is_some_and(|met| met.contains(&pair)) {
                            let lane = lane.map(|l| format!(", lane {l}")).unwrap_or_default();
                            let (a, b) = (pair.0.clone(), pair.1.clone());
                            wrong.push(LintError::PairMissing {
                                probe: probe.to_owned(),
                                a,
                                b,
                                lane,
                            });
                        }
                    }
                }
            }
        }
    }

    /// The groups of nodes that must all meet: domains with a step of the
    /// complete sweep, or leaves with one inside; none that is sampled.
    fn groups(&self, scope: ProbeScope, steps: &[&Step]) -> Vec<Vec<&NodeName>> {
        let few = |group: &Vec<&NodeName>| group.len() <= self.limits.complete_nodes;
        if scope == ProbeScope::Pair {
            let named: BTreeSet<_> = steps.iter().filter_map(|step| step.domain.as_ref()).collect();
            let domains = self.claims.domains.iter().filter(|d| named.contains(&d.name));
            return domains.map(|d| d.nodes.iter().collect()).filter(few).collect();
        }
        let mut leaves: BTreeMap<usize, Vec<&NodeName>> = BTreeMap::new();
        let mut inside = BTreeSet::new();
        for step in steps {
            let Some((a, b)) = pair_of(step) else { continue };
            let (Some(a), Some(b)) = (self.places.get(a), self.places.get(b)) else { continue };
            if !self.leaves.crosses((*a, *b)) {
                inside.insert(self.leaves.of(*a));
            }
        }
        for (at, node) in self.nodes.iter().enumerate() {
            if inside.contains(&self.leaves.of(at)) {
                leaves.entry(self.leaves.of(at)).or_default().push(node);
            }
        }
        leaves.into_values().filter(few).collect()
    }
}
