//! Stage 3: measures every suspect again, later, and with cleared partners.
//!
//! A dip does not repeat, and a bad partner is replaced. Two suspects are never paired: they would
//! confirm each other.

use std::collections::{BTreeMap, BTreeSet};

use super::command::{PlanContext, ProbeOmission, StepLocation};
use super::coverage::{node_pair, reads_pair};
use super::leaf::LeafMap;
use super::packed_rounds::pack_rounds;
use super::partner_pool::{PartnerGroup, PartnerPool};
use super::sweep::number_rounds;
use super::{Plan, PlanRequest, PlanRound, PlanStep, SkippedProbe};
use model::claims::{ClaimedDomain, ClaimedRail};
use model::id::NodeName;
use model::probe::{Probe, ProbeGranularity, ProbeScope};
use model::seeded_rng::SeededRng;
use model::tool_recording::CONFIRM_STAGE;

/// The profile name of its plan.
pub const CONFIRM_PROFILE: &str = "confirm";

/// A part to measure again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfirmationSuspect {
    /// The suspected node, or one end of a pair.
    pub node: NodeName,
    /// The other end, if a pair is suspected and neither end alone.
    pub peer: Option<NodeName>,
    /// The rail, if one is suspected.
    pub rail: Option<String>,
    /// The GPUs at both ends, if the path between two GPUs is suspected.
    pub gpus: Option<(u32, u32)>,
    /// The probes whose outputs raised the suspicion.
    pub probes: BTreeSet<String>,
}

/// Plans the confirmation of some suspects. `request` is the input of the main plan; `cleared`
/// holds the nodes that are not suspected. Rounds and steps continue the main plan's numbers.
pub fn plan_confirmation(
    main: &Plan,
    request: &PlanRequest<'_>,
    suspects: &[ConfirmationSuspect],
    cleared: &BTreeSet<NodeName>,
    seed: u64,
) -> Plan {
    let ground = PlanContext::new(request);
    let mut making = ConfirmationPlanner::new(&ground, main, suspects, cleared, seed);
    for suspect in suspects {
        for name in &suspect.probes {
            making.plan_suspect(suspect, name);
        }
        making.plan_path(suspect);
    }
    let (mut rounds, skipped) = making.into_rounds();
    let next_round = main.rounds.last().map_or(0, |round| round.round + 1);
    let next_step = main.steps().map(|step| step.step + 1).max().unwrap_or(0);
    number_rounds(&mut rounds, next_round, next_step);
    // Pairs without a suspicion need no readings here.
    Plan { seed, ..Plan::from_rounds(request, CONFIRM_PROFILE, rounds, skipped) }
}

/// The identity of a test.
type ConfirmationTest = (String, Option<String>, Option<u32>, Vec<NodeName>);

struct ConfirmationPlanner<'a> {
    context: &'a PlanContext<'a>,
    main_plan: MainPlanTests<'a>,
    places: BTreeMap<NodeName, usize>,
    leaves: LeafMap,
    partner_pool: PartnerPool,
    seed: u64,
    planned: BTreeSet<ConfirmationTest>,
    /// The ends that have their partners, by probe and rail.
    partnered: BTreeSet<(String, Option<String>, NodeName)>,
    steps: Vec<PlanStep>,
    skipped: Vec<SkippedProbe>,
    /// Skipped tests, to report each once.
    reported: BTreeSet<(String, Vec<NodeName>, String)>,
}

/// The tests of the main plan.
struct MainPlanTests<'a> {
    /// The lanes in which it ran each probe.
    lanes: BTreeMap<&'a str, BTreeSet<Option<u32>>>,
    /// The partners of each suspect, by probe and rail.
    partners: BTreeMap<(&'a str, Option<&'a str>, &'a NodeName), BTreeSet<&'a NodeName>>,
}

impl<'a> MainPlanTests<'a> {
    fn from_plan(main: &'a Plan, suspected: &BTreeSet<NodeName>) -> Self {
        let mut past = Self { lanes: BTreeMap::new(), partners: BTreeMap::new() };
        for step in main.steps() {
            let probe = step.probe.as_str();
            past.lanes.entry(probe).or_default().insert(step.lane);
            let [a, b] = step.nodes.as_slice() else { continue };
            for (node, other) in [(a, b), (b, a)] {
                if suspected.contains(node) {
                    let way = (probe, step.rail.as_deref(), node);
                    past.partners.entry(way).or_default().insert(other);
                }
            }
        }
        past
    }
}

impl<'a> ConfirmationPlanner<'a> {
    fn new(
        context: &'a PlanContext<'a>,
        main: &'a Plan,
        suspects: &[ConfirmationSuspect],
        cleared: &BTreeSet<NodeName>,
        seed: u64,
    ) -> Self {
        let claims = context.request.claims;
        let nodes: Vec<NodeName> = claims.domains.iter().flat_map(|d| d.nodes.clone()).collect();
        let suspected: BTreeSet<NodeName> = suspects
            .iter()
            .flat_map(|s| std::iter::once(&s.node).chain(&s.peer))
            .cloned()
            .collect();
        let mut cleared: Vec<NodeName> = cleared
            .difference(&suspected)
            .filter(|node| context.domain_of(node).is_some())
            .cloned()
            .collect();
        SeededRng::new(seed, CONFIRM_PROFILE).shuffle(&mut cleared);
        Self {
            context,
            main_plan: MainPlanTests::from_plan(main, &suspected),
            leaves: LeafMap::from_claims(claims, &nodes),
            places: nodes.into_iter().enumerate().map(|(at, node)| (node, at)).collect(),
            partner_pool: PartnerPool::new(cleared),
            seed,
            planned: BTreeSet::new(),
            partnered: BTreeSet::new(),
            steps: Vec::new(),
            skipped: Vec::new(),
            reported: BTreeSet::new(),
        }
    }

    fn plan_suspect(&mut self, suspect: &ConfirmationSuspect, name: &str) {
        let request = self.context.request;
        let ends: Vec<NodeName> =
            std::iter::once(&suspect.node).chain(&suspect.peer).cloned().collect();
        let Some(probe) = request.probes.iter().find(|p| p.name == name).copied() else {
            let why = "it raised a suspicion and is not among the selected probes".to_owned();
            return self.skip(name, ends, ProbeOmission::missing(why));
        };
        let Some(domain) = self.context.domain_of(&suspect.node) else {
            let why = format!("no domain claims {}", suspect.node);
            return self.skip(name, ends, ProbeOmission::missing(why));
        };
        if let Err(omitted) = self.context.check_probe(probe, domain) {
            return self.skip(name, ends, omitted);
        }
        match probe.scope {
            ProbeScope::Node => {
                for node in ends {
                    self.add_test(probe, vec![node], None, None);
                }
            }
            // It has no partners to choose: it runs once more.
            ProbeScope::Domain => self.add_test(probe, domain.nodes.clone(), None, None),
            // The path between two GPUs has its own tests.
            ProbeScope::Pair => self.plan_pair(probe, &ends, None, suspect.gpus.is_none()),
            ProbeScope::Rail => {
                for rail in self.select_rails(suspect.rail.as_deref()) {
                    match PlanContext::check_rail(probe, rail) {
                        Ok(()) => self.plan_pair(probe, &ends, rail, true),
                        Err(omitted) => self.skip(name, ends.clone(), omitted),
                    }
                }
            }
        }
    }

    /// Plans the suspected path between two GPUs again. If the probes that raised the suspicion
    /// only read other GPUs of the two nodes, a probe that reads these is added.
    fn plan_path(&mut self, suspect: &ConfirmationSuspect) {
        let Some((near, far)) = suspect.gpus else { return };
        let ends: Vec<NodeName> =
            std::iter::once(&suspect.node).chain(&suspect.peer).cloned().collect();
        let Some(domain) = self.context.domain_of(&suspect.node) else { return };
        let mut reading: Vec<(&Probe, Option<u32>)> = Vec::new();
        for &probe in self.context.request.probes {
            if probe.scope != ProbeScope::Rail && self.context.check_probe(probe, domain).is_ok() {
                let lanes = self.lanes_that_read(probe, domain, ends.len(), (near, far));
                reading.extend(lanes.into_iter().map(|lane| (probe, lane)));
            }
        }
        let raised = |it: &&(&Probe, Option<u32>)| suspect.probes.contains(&it.0.name);
        let own: Vec<(&Probe, Option<u32>)> = reading.iter().filter(raised).copied().collect();
        // A lane that ran before has a level to compare with.
        let cost = |it: &&(&Probe, Option<u32>)| {
            let is_new = !self.main_plan.lanes.contains_key(it.0.name.as_str());
            (is_new, it.0.cost_s.to_bits())
        };
        let wanted = match own.is_empty() {
            true => reading.iter().min_by_key(cost).copied().into_iter().collect(),
            false => own,
        };
        if wanted.is_empty() {
            let why = format!(
                "none of the selected probes reads GPU {near} with GPU {far} of these nodes"
            );
            return self.skip("the suspected path", ends, ProbeOmission::missing(why));
        }
        for (probe, lane) in wanted {
            let nodes =
                if probe.scope == ProbeScope::Domain { domain.nodes.clone() } else { ends.clone() };
            self.add_test(probe, nodes, None, lane);
        }
    }

    /// The lanes in which a probe reads these GPUs of two nodes, or of one.
    fn lanes_that_read(
        &self,
        probe: &Probe,
        domain: &ClaimedDomain,
        nodes: usize,
        gpus: (u32, u32),
    ) -> Vec<Option<u32>> {
        let is_between = 1 < nodes;
        if is_between == (probe.scope == ProbeScope::Node) {
            return Vec::new();
        }
        let mut lanes = self.main_plan_lanes(probe);
        if probe.grain == ProbeGranularity::Gpu {
            lanes.extend((0..domain.gpus_per_node.unwrap_or(0)).map(Some));
        }
        lanes.sort_unstable();
        lanes.dedup();
        lanes.retain(|lane| reads_pair(probe, *lane, domain.gpus_per_node, gpus));
        lanes
    }

    /// The rail of this name, or all rails.
    fn select_rails(&self, name: Option<&str>) -> Vec<Option<&'a ClaimedRail>> {
        let claimed = &self.context.request.claims.rails;
        if claimed.is_empty() {
            return vec![None];
        }
        claimed.iter().filter(|rail| name.is_none_or(|name| rail.name == name)).map(Some).collect()
    }

    /// Plans a suspected pair `together` again, and each end with cleared partners.
    fn plan_pair(
        &mut self,
        probe: &Probe,
        ends: &[NodeName],
        rail: Option<&'a ClaimedRail>,
        together: bool,
    ) {
        let lanes = self.main_plan_lanes(probe);
        if together && ends.len() == 2 {
            for lane in &lanes {
                self.add_test(probe, ends.to_vec(), rail, *lane);
            }
        }
        for node in ends {
            // A node in several findings needs its partners once.
            let rail_name = rail.map(|rail| rail.name.clone());
            if !self.partnered.insert((probe.name.clone(), rail_name, node.clone())) {
                continue;
            }
            let partners = self.choose_partners(probe, node, rail);
            if partners.is_empty() {
                let why = format!("no cleared partner for {node}");
                self.skip(&probe.name, vec![node.clone()], ProbeOmission::missing(why));
            }
            for partner in partners {
                for lane in &lanes {
                    self.add_test(probe, vec![node.clone(), partner.clone()], rail, *lane);
                }
            }
        }
    }

    fn main_plan_lanes(&self, probe: &Probe) -> Vec<Option<u32>> {
        let lanes = self.main_plan.lanes.get(probe.name.as_str());
        lanes.map_or_else(|| vec![None], |lanes| lanes.iter().copied().collect())
    }

    /// Partners for a suspect: nodes of its domain, over rails of its leaf first; preferably new
    /// ones that are rarely used.
    fn choose_partners(
        &mut self,
        probe: &Probe,
        node: &NodeName,
        rail: Option<&ClaimedRail>,
    ) -> Vec<NodeName> {
        let over_rail = probe.scope == ProbeScope::Rail;
        let leaf = |node: &NodeName| {
            self.places.get(node).map(|at| PartnerGroup::Leaf(self.leaves.leaf_of(*at)))
        };
        let domain = |node: &NodeName| {
            self.context.domain_of(node).map(|it| PartnerGroup::Domain(it.name.clone()))
        };
        let near = |node: &NodeName| if over_rail { leaf(node) } else { domain(node) };
        let ground = self.context;
        let admits = |other: &NodeName| {
            !over_rail
                || ground.domain_of(other).is_some_and(|it| ground.check_probe(probe, it).is_ok())
        };
        self.partner_pool.add_probe(&probe.name, |other| near(other).filter(|_| admits(other)));
        let way = (probe.name.as_str(), rail.map(|rail| rail.name.as_str()), node);
        let none = BTreeSet::new();
        let met = self.main_plan.partners.get(&way).unwrap_or(&none);
        let wanted = self.context.request.limits.partners.max(1);
        self.partner_pool.choose(&probe.name, (near(node), over_rail), met, wanted)
    }

    fn add_test(
        &mut self,
        probe: &Probe,
        nodes: Vec<NodeName>,
        rail: Option<&ClaimedRail>,
        lane: Option<u32>,
    ) {
        let mut ordered = nodes.clone();
        ordered.sort();
        let test = (probe.name.clone(), rail.map(|rail| rail.name.clone()), lane, ordered);
        if self.planned.insert(test) {
            let place = StepLocation { nodes, rail, lane, stage: CONFIRM_STAGE };
            self.steps.push(self.context.build_step(probe, &place));
        }
    }

    fn skip(&mut self, probe: &str, nodes: Vec<NodeName>, omitted: ProbeOmission) {
        let ProbeOmission { why, not_applicable } = omitted;
        let skipped = SkippedProbe { probe: probe.to_owned(), nodes, why, not_applicable };
        let what = (skipped.probe.clone(), skipped.nodes.clone(), skipped.why.clone());
        if self.reported.insert(what) {
            self.skipped.push(skipped);
        }
    }

    /// The rounds: probe after probe in stage order, suspects in random order.
    fn into_rounds(mut self) -> (Vec<PlanRound>, Vec<SkippedProbe>) {
        let request = self.context.request;
        let mut steps = std::mem::take(&mut self.steps);
        SeededRng::new(self.seed, "suspects").shuffle(&mut steps);
        let mut probes: Vec<&Probe> = request.probes.to_vec();
        probes.sort_by_key(|probe| probe.stage);
        let mut rounds = Vec::new();
        for probe in probes {
            let (own, others): (Vec<PlanStep>, Vec<PlanStep>) =
                steps.into_iter().partition(|step| step.probe == probe.name);
            steps = others;
            let packed = pack_rounds(own, request.limits.cross_leaf, |step| self.step_leaves(step));
            let count = packed.len();
            for (at, steps) in packed.into_iter().enumerate() {
                let what = format!("{}: suspects again, {} of {count}", probe.name, at + 1);
                rounds.push(PlanRound { round: 0, stage: CONFIRM_STAGE, what, steps });
            }
        }
        (rounds, self.skipped)
    }

    /// The leaves of the two ends of a step that crosses leaves.
    fn step_leaves(&self, step: &PlanStep) -> Option<(usize, usize)> {
        let (a, b) = node_pair(step).filter(|_| step.scope == ProbeScope::Rail)?;
        let (a, b) = (*self.places.get(a)?, *self.places.get(b)?);
        self.leaves.is_cross_leaf((a, b)).then(|| (self.leaves.leaf_of(a), self.leaves.leaf_of(b)))
    }
}
