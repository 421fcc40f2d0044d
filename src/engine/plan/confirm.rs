//! Stage 3: every suspect again, later, and against partners that are cleared.
//!
//! A dip does not come back, and a bad partner is another one now. Two suspects
//! never meet: they would confirm each other.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::Plan;
use super::Request;
use super::Round;
use super::Skipped;
use super::Step;
use super::command::Ground;
use super::command::Omitted;
use super::command::Place;
use super::coverage::pair_of;
use super::coverage::reads_pair;
use super::good::Good;
use super::good::Near;
use super::leaf::Leaves;
use super::pack::pack;
use super::sweep::number;
use model::chance::Chance;
use model::claims::ClaimedDomain;
use model::claims::ClaimedRail;
use model::id::NodeName;
use model::probe::Grain;
use model::probe::Probe;
use model::probe::ProbeScope;
use model::recording::CONFIRM_STAGE;

/// What its plan has for a profile.
pub const CONFIRM_PROFILE: &str = "confirm";

/// Somebody to look at again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// The node.
    pub node: NodeName,
    /// The other end, where a pair is suspected and neither end alone.
    pub peer: Option<NodeName>,
    /// The rail, where one is suspected.
    pub rail: Option<String>,
    /// The GPUs at both ends, where the path between two is suspected.
    pub gpus: Option<(u32, u32)>,
    /// The probes whose outputs raised it.
    pub probes: BTreeSet<String>,
}

/// Plans the confirmation of some suspects. `request` is what the main plan
/// was made from; `cleared` are the nodes that are above suspicion. Rounds and
/// steps are numbered on from the main plan's.
pub fn confirm(
    main: &Plan,
    request: &Request<'_>,
    suspects: &[Suspect],
    cleared: &BTreeSet<NodeName>,
    seed: u64,
) -> Plan {
    let ground = Ground::new(request);
    let mut making = Making::new(&ground, main, suspects, cleared, seed);
    for suspect in suspects {
        for name in &suspect.probes {
            making.suspect(suspect, name);
        }
        making.path(suspect);
    }
    let (mut rounds, skipped) = making.finished();
    let next_round = main.rounds.last().map_or(0, |round| round.round + 1);
    let next_step = main.steps().map(|step| step.step + 1).max().unwrap_or(0);
    number(&mut rounds, next_round, next_step);
    // Nobody asks here for pairs that are not suspected.
    Plan { seed, ..Plan::of(request, CONFIRM_PROFILE, rounds, skipped) }
}

/// One test: what makes it different from another.
type Test = (String, Option<String>, Option<u32>, Vec<NodeName>);

struct Making<'a> {
    ground: &'a Ground<'a>,
    past: Past<'a>,
    places: BTreeMap<NodeName, usize>,
    leaves: Leaves,
    good: Good,
    seed: u64,
    planned: BTreeSet<Test>,
    /// The ends that have their partners, by probe and rail.
    partnered: BTreeSet<(String, Option<String>, NodeName)>,
    steps: Vec<Step>,
    skipped: Vec<Skipped>,
    /// What was skipped, to say it once.
    told: BTreeSet<(String, Vec<NodeName>, String)>,
}

/// What the main plan did.
struct Past<'a> {
    /// The lanes in which it ran a probe.
    lanes: BTreeMap<&'a str, BTreeSet<Option<u32>>>,
    /// Whom suspects met, by probe and rail.
    met: BTreeMap<(&'a str, Option<&'a str>, &'a NodeName), BTreeSet<&'a NodeName>>,
}

impl<'a> Past<'a> {
    fn of(main: &'a Plan, suspected: &BTreeSet<NodeName>) -> Self {
        let mut past = Self { lanes: BTreeMap::new(), met: BTreeMap::new() };
        for step in main.steps() {
            let probe = step.probe.as_str();
            past.lanes.entry(probe).or_default().insert(step.lane);
            let [a, b] = step.nodes.as_slice() else { continue };
            for (node, other) in [(a, b), (b, a)] {
                if suspected.contains(node) {
                    let way = (probe, step.rail.as_deref(), node);
                    past.met.entry(way).or_default().insert(other);
                }
            }
        }
        past
    }
}

impl<'a> Making<'a> {
    fn new(
        ground: &'a Ground<'a>,
        main: &'a Plan,
        suspects: &[Suspect],
        cleared: &BTreeSet<NodeName>,
        seed: u64,
    ) -> Self {
        let claims = ground.request.claims;
        let nodes: Vec<NodeName> = claims.domains.iter().flat_map(|d| d.nodes.clone()).collect();
        let suspected: BTreeSet<NodeName> = suspects
            .iter()
            .flat_map(|s| std::iter::once(&s.node).chain(&s.peer))
            .cloned()
            .collect();
        let mut cleared: Vec<NodeName> = cleared
            .difference(&suspected)
            .filter(|node| ground.domain(node).is_some())
            .cloned()
            .collect();
        Chance::new(seed, CONFIRM_PROFILE).shuffle(&mut cleared);
        Self {
            ground,
            past: Past::of(main, &suspected),
            leaves: Leaves::claimed(claims, &nodes),
            places: nodes.into_iter().enumerate().map(|(at, node)| (node, at)).collect(),
            good: Good::of(cleared),
            seed,
            planned: BTreeSet::new(),
            partnered: BTreeSet::new(),
            steps: Vec::new(),
            skipped: Vec::new(),
            told: BTreeSet::new(),
        }
    }

    fn suspect(&mut self, suspect: &Suspect, name: &str) {
        let request = self.ground.request;
        let ends: Vec<NodeName> =
            std::iter::once(&suspect.node).chain(&suspect.peer).cloned().collect();
        let Some(probe) = request.probes.iter().find(|p| p.name == name).copied() else {
            let why = "it raised a suspicion and is not among the probes to run".to_owned();
            return self.skip(name, ends, Omitted::missing(why));
        };
        let Some(domain) = self.ground.domain(&suspect.node) else {
            let why = format!("no domain claims {}", suspect.node);
            return self.skip(name, ends, Omitted::missing(why));
        };
        if let Err(omitted) = self.ground.admits(probe, domain) {
            return self.skip(name, ends, omitted);
        }
        match probe.scope {
            ProbeScope::Node => {
                for node in ends {
                    self.test(probe, vec![node], None, None);
                }
            }
            // It has no partners to choose: it is asked once more.
            ProbeScope::Domain => self.test(probe, domain.nodes.clone(), None, None),
            // The path between two GPUs has its own tests.
            ProbeScope::Pair => self.between(probe, &ends, None, suspect.gpus.is_none()),
            ProbeScope::Rail => {
                for rail in self.rails(suspect.rail.as_deref()) {
                    match Ground::admits_rail(probe, rail) {
                        Ok(()) => self.between(probe, &ends, rail, true),
                        Err(omitted) => self.skip(name, ends.clone(), omitted),
                    }
                }
            }
        }
    }

    /// The suspected path between two GPUs again. Probes that raised the suspicion may read
    /// other GPUs of the two nodes only: then one that reads these is added.
    fn path(&mut self, suspect: &Suspect) {
        let Some((near, far)) = suspect.gpus else { return };
        let ends: Vec<NodeName> =
            std::iter::once(&suspect.node).chain(&suspect.peer).cloned().collect();
        let Some(domain) = self.ground.domain(&suspect.node) else { return };
        let mut reading: Vec<(&Probe, Option<u32>)> = Vec::new();
        for &probe in self.ground.request.probes {
            if probe.scope != ProbeScope::Rail && self.ground.admits(probe, domain).is_ok() {
                let lanes = self.lanes_that_read(probe, domain, ends.len(), (near, far));
                reading.extend(lanes.into_iter().map(|lane| (probe, lane)));
            }
        }
        let raised = |it: &&(&Probe, Option<u32>)| suspect.probes.contains(&it.0.name);
        let own: Vec<(&Probe, Option<u32>)> = reading.iter().filter(raised).copied().collect();
        // What ran before has a level to be compared with.
        let cost = |it: &&(&Probe, Option<u32>)| {
            let is_new = !self.past.lanes.contains_key(it.0.name.as_str());
            (is_new, it.0.cost_s.to_bits())
        };
        let wanted = match own.is_empty() {
            true => reading.iter().min_by_key(cost).copied().into_iter().collect(),
            false => own,
        };
        if wanted.is_empty() {
            let why = format!("no probe to run reads GPU {near} with GPU {far} of these nodes");
            return self.skip("the suspected path", ends, Omitted::missing(why));
        }
        for (probe, lane) in wanted {
            let nodes =
                if probe.scope == ProbeScope::Domain { domain.nodes.clone() } else { ends.clone() };
            self.test(probe, nodes, None, lane);
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
        let mut lanes = self.lanes(probe);
        if probe.grain == Grain::Gpu {
            lanes.extend((0..domain.gpus_per_node.unwrap_or(0)).map(Some));
        }
        lanes.sort_unstable();
        lanes.dedup();
        lanes.retain(|lane| reads_pair(probe, *lane, domain.gpus_per_node, gpus));
        lanes
    }

    /// The rail of this name, or all.
    fn rails(&self, name: Option<&str>) -> Vec<Option<&'a ClaimedRail>> {
        let claimed = &self.ground.request.claims.rails;
        if claimed.is_empty() {
            return vec![None];
        }
        claimed.iter().filter(|rail| name.is_none_or(|name| rail.name == name)).map(Some).collect()
    }

    /// A suspected pair `together` again, and each end against cleared partners.
    fn between(
        &mut self,
        probe: &Probe,
        ends: &[NodeName],
        rail: Option<&'a ClaimedRail>,
        together: bool,
    ) {
        let lanes = self.lanes(probe);
        if together && ends.len() == 2 {
            for lane in &lanes {
                self.test(probe, ends.to_vec(), rail, *lane);
            }
        }
        for node in ends {
            // A node that several findings suspect needs its partners once.
            let rail_name = rail.map(|rail| rail.name.clone());
            if !self.partnered.insert((probe.name.clone(), rail_name, node.clone())) {
                continue;
            }
            let partners = self.partners(probe, node, rail);
            if partners.is_empty() {
                let why = format!("no cleared partner for {node}");
                self.skip(&probe.name, vec![node.clone()], Omitted::missing(why));
            }
            for partner in partners {
                for lane in &lanes {
                    self.test(probe, vec![node.clone(), partner.clone()], rail, *lane);
                }
            }
        }
    }

    /// The lanes in which the main plan ran this probe.
    fn lanes(&self, probe: &Probe) -> Vec<Option<u32>> {
        let lanes = self.past.lanes.get(probe.name.as_str());
        lanes.map_or_else(|| vec![None], |lanes| lanes.iter().copied().collect())
    }

    /// Whom a suspect is measured against: nodes of its domain, over rails of
    /// its leaf first; such that it has not met and that are not asked often.
    fn partners(
        &mut self,
        probe: &Probe,
        node: &NodeName,
        rail: Option<&ClaimedRail>,
    ) -> Vec<NodeName> {
        let over_rail = probe.scope == ProbeScope::Rail;
        let leaf =
            |node: &NodeName| self.places.get(node).map(|at| Near::Leaf(self.leaves.of(*at)));
        let domain =
            |node: &NodeName| self.ground.domain(node).map(|it| Near::Domain(it.name.clone()));
        let near = |node: &NodeName| if over_rail { leaf(node) } else { domain(node) };
        let ground = self.ground;
        let admits = |other: &NodeName| {
            !over_rail || ground.domain(other).is_some_and(|it| ground.admits(probe, it).is_ok())
        };
        self.good.enter(&probe.name, |other| near(other).filter(|_| admits(other)));
        let way = (probe.name.as_str(), rail.map(|rail| rail.name.as_str()), node);
        let none = BTreeSet::new();
        let met = self.past.met.get(&way).unwrap_or(&none);
        let wanted = self.ground.request.limits.partners.max(1);
        self.good.choose(&probe.name, (near(node), over_rail), met, wanted)
    }

    fn test(
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
            let place = Place { nodes, rail, lane, stage: CONFIRM_STAGE };
            self.steps.push(self.ground.step(probe, &place));
        }
    }

    fn skip(&mut self, probe: &str, nodes: Vec<NodeName>, omitted: Omitted) {
        let Omitted { why, not_applicable } = omitted;
        let skipped = Skipped { probe: probe.to_owned(), nodes, why, not_applicable };
        let what = (skipped.probe.clone(), skipped.nodes.clone(), skipped.why.clone());
        if self.told.insert(what) {
            self.skipped.push(skipped);
        }
    }

    /// The rounds: probe after probe in the order of their stages, suspects in
    /// an order of chance.
    fn finished(mut self) -> (Vec<Round>, Vec<Skipped>) {
        let request = self.ground.request;
        let mut steps = std::mem::take(&mut self.steps);
        Chance::new(self.seed, "suspects").shuffle(&mut steps);
        let mut probes: Vec<&Probe> = request.probes.to_vec();
        probes.sort_by_key(|probe| probe.stage);
        let mut rounds = Vec::new();
        for probe in probes {
            let (own, others): (Vec<Step>, Vec<Step>) =
                steps.into_iter().partition(|step| step.probe == probe.name);
            steps = others;
            let packed = pack(own, request.limits.cross_leaf, |step| self.leaves_of(step));
            let count = packed.len();
            for (at, steps) in packed.into_iter().enumerate() {
                let what = format!("{}: suspects again, {} of {count}", probe.name, at + 1);
                rounds.push(Round { round: 0, stage: CONFIRM_STAGE, what, steps });
            }
        }
        (rounds, self.skipped)
    }

    /// The leaves of the two ends of a step that leaves its leaf.
    fn leaves_of(&self, step: &Step) -> Option<(usize, usize)> {
        let (a, b) = pair_of(step).filter(|_| step.scope == ProbeScope::Rail)?;
        let (a, b) = (*self.places.get(a)?, *self.places.get(b)?);
        self.leaves.crosses((a, b)).then(|| (self.leaves.of(a), self.leaves.of(b)))
    }
}
