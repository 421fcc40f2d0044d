//! The stages of a sweep that are planned before the run starts.

use super::command::{PlanContext, ProbeOmission, StepLocation};
use super::leaf::LeafMap;
use super::{Plan, PlanRequest, PlanRound, SkippedProbe, coverage};
use model::claims::{ClaimedDomain, ClaimedRail};
use model::id::NodeName;
use model::probe::{Probe, ProbeGranularity, ProbeScope};
use model::seeded_rng::SeededRng;
use model::tournament;

/// The stage of the fast sweep across nodes.
pub(super) const FAST_STAGE: u8 = 2;
/// The stage of the complete sweep.
pub(super) const COMPLETE_STAGE: u8 = 5;

/// Plans a sweep over all claimed nodes.
pub fn plan_sweep(request: &PlanRequest<'_>) -> Plan {
    let ground = PlanContext::new(request);
    let mut making = SweepPlanner { context: &ground, rounds: Vec::new(), skipped: Vec::new() };
    for stage in request.profile.stages() {
        for probe in request.probes {
            making.plan_stage(*stage, probe);
        }
    }
    for probe in request.probes.iter().filter(|p| !request.profile.has_stage(p.stage)) {
        let why = format!("stage {} is not part of profile {}", probe.stage, request.profile);
        let nodes = request.claims.domains.iter().flat_map(|d| d.nodes.clone()).collect();
        making.skip(probe, nodes, ProbeOmission::not_applicable(why));
    }
    let SweepPlanner { mut rounds, skipped, .. } = making;
    number_rounds(&mut rounds, 0, 0);
    let sampled = coverage::is_sampled(request, &rounds);
    Plan { sampled, ..Plan::from_rounds(request, request.profile.as_str(), rounds, skipped) }
}

/// Numbers rounds and steps in execution order.
pub(super) fn number_rounds(rounds: &mut [PlanRound], first_round: usize, first_step: usize) {
    let mut next = first_step;
    for (at, round) in rounds.iter_mut().enumerate() {
        round.round = first_round + at;
        for step in &mut round.steps {
            step.step = next;
            next += 1;
        }
    }
}

struct SweepPlanner<'a> {
    context: &'a PlanContext<'a>,
    rounds: Vec<PlanRound>,
    skipped: Vec<SkippedProbe>,
}

impl<'a> SweepPlanner<'a> {
    /// Plans a probe in a stage. The probes of the fast sweep run again in the complete one, for
    /// the pairs they lack.
    fn plan_stage(&mut self, stage: u8, probe: &'a Probe) {
        let is_own = probe.stage == stage;
        let again = stage == COMPLETE_STAGE && probe.stage == FAST_STAGE;
        match probe.scope {
            ProbeScope::Node if is_own => self.plan_nodes(stage, probe),
            ProbeScope::Pair if is_own || again => self.plan_pairs(stage, probe),
            ProbeScope::Rail if is_own || again => self.plan_rails(stage, probe),
            ProbeScope::Domain if is_own => self.plan_domains(stage, probe),
            _ => {}
        }
    }

    fn plan_nodes(&mut self, stage: u8, probe: &Probe) {
        let domains = self.admitted_domains(stage, probe);
        let mut nodes: Vec<NodeName> = domains.into_iter().flat_map(|d| d.nodes.clone()).collect();
        // Two sweeps order the nodes differently, so an effect of order cannot look like a fault.
        SeededRng::new(self.context.request.seed, "nodes").shuffle(&mut nodes);
        let places = nodes.into_iter().map(|node| StepLocation::new(stage, vec![node]));
        let steps = places.map(|place| self.context.build_step(probe, &place)).collect();
        self.push_round(stage, probe.name.clone(), steps);
    }

    fn plan_domains(&mut self, stage: u8, probe: &Probe) {
        let mut steps = Vec::new();
        for domain in self.admitted_domains(stage, probe) {
            steps.push(
                self.context.build_step(probe, &StepLocation::new(stage, domain.nodes.clone())),
            );
        }
        self.push_round(stage, format!("{}: whole domains", probe.name), steps);
    }

    /// Plans pairs of nodes inside their domain; all domains run their round k concurrently.
    fn plan_pairs(&mut self, stage: u8, probe: &Probe) {
        let request = self.context.request;
        let mut schedules = Vec::new();
        for domain in self.admitted_domains(stage, probe) {
            let rounds = self.pair_rounds(stage, probe, domain);
            let lanes = match (probe.grain, stage) {
                (ProbeGranularity::Node, _) => vec![None],
                (ProbeGranularity::Gpu, COMPLETE_STAGE) => {
                    (0..domain.gpus_per_node.unwrap_or(1).max(1)).map(Some).collect()
                }
                (ProbeGranularity::Gpu, _) => vec![Some(0)],
            };
            let turns: Vec<_> = rounds
                .into_iter()
                .flat_map(|round| lanes.iter().map(move |lane| (round.clone(), *lane)))
                .collect();
            schedules.push((domain, turns));
        }
        let longest = schedules.iter().map(|(_, turns)| turns.len()).max().unwrap_or(0);
        for at in 0..longest {
            let mut steps = Vec::new();
            for (domain, turns) in &schedules {
                let Some((round, lane)) = turns.get(at) else { continue };
                for (a, b) in round {
                    let nodes = vec![domain.nodes[*a].clone(), domain.nodes[*b].clone()];
                    let place = StepLocation { nodes, rail: None, lane: *lane, stage };
                    steps.push(self.context.build_step(probe, &place));
                }
            }
            // Concurrency is limited: a random order keeps any domain from always being last.
            SeededRng::new(request.seed, &format!("{} {at}", probe.name)).shuffle(&mut steps);
            self.push_round(
                stage,
                format!("{}: node pairs, {} of {longest}", probe.name, at + 1),
                steps,
            );
        }
    }

    fn pair_rounds(
        &mut self,
        stage: u8,
        probe: &Probe,
        domain: &ClaimedDomain,
    ) -> Vec<Vec<tournament::IndexPair>> {
        let request = self.context.request;
        let (limits, n) = (request.limits, domain.nodes.len());
        let seed = SeededRng::new(request.seed, domain.name.as_str()).next_u64();
        let sampled = limits.sampled_matchings.max(1);
        let fast = match limits.matchings {
            Some(matchings) => matchings.max(1),
            None if n <= limits.fast_nodes => usize::MAX,
            None => sampled,
        };
        if stage != COMPLETE_STAGE {
            return tournament::make_matchings(n, fast, seed);
        }
        let is_whole = n <= limits.complete_nodes;
        let mut rounds =
            tournament::make_matchings(n, if is_whole { usize::MAX } else { sampled }, seed);
        if !is_whole {
            let why = format!(
                "domain {} has {n} nodes, more than {}: each is paired with {} others, not all",
                domain.name, limits.complete_nodes, limits.sampled_matchings
            );
            self.skip(probe, domain.nodes.clone(), ProbeOmission::not_applicable(why));
        }
        if probe.stage == FAST_STAGE && probe.grain == ProbeGranularity::Node {
            rounds.drain(..fast.min(rounds.len()));
        }
        rounds
    }

    /// Plans pairs of nodes over the scale-out network, all rails concurrently.
    fn plan_rails(&mut self, stage: u8, probe: &'a Probe) {
        let claims = self.context.request.claims;
        let limits = self.context.request.limits;
        let nodes: Vec<NodeName> =
            self.admitted_domains(stage, probe).into_iter().flat_map(|d| d.nodes.clone()).collect();
        let rails = self.admitted_rails(stage, probe, &nodes);
        if rails.is_empty() || nodes.is_empty() {
            return;
        }
        if nodes.len() < 2 {
            if stage == probe.stage {
                let why = "needs two nodes, only one is available".to_owned();
                self.skip(probe, nodes, ProbeOmission::not_applicable(why));
            }
            return;
        }
        let leaves = LeafMap::from_claims(claims, &nodes);
        let seed = SeededRng::new(self.context.request.seed, "rails").next_u64();
        let swept = if stage == COMPLETE_STAGE {
            let (complete, matchings) = (limits.complete_nodes, limits.sampled_matchings.max(1));
            leaves.make_complete(seed, limits.cross_leaf, complete, matchings)
        } else {
            leaves.make_matching(seed)
        };
        for (sampled, why) in swept.notes {
            let nodes = sampled.into_iter().map(|node| nodes[node].clone()).collect();
            self.skip(probe, nodes, ProbeOmission::not_applicable(why));
        }
        let count = swept.rounds.len();
        for (at, round) in swept.rounds.into_iter().enumerate() {
            let mut steps = Vec::new();
            for (a, b) in round {
                for rail in &rails {
                    let nodes = vec![nodes[a].clone(), nodes[b].clone()];
                    let place = StepLocation { nodes, rail: *rail, lane: None, stage };
                    steps.push(self.context.build_step(probe, &place));
                }
            }
            let on = match rails.len() {
                1 => String::new(),
                n => format!(" on {n} rails"),
            };
            self.push_round(
                stage,
                format!("{}: pairs{on}, {} of {count}", probe.name, at + 1),
                steps,
            );
        }
    }

    /// The claimed rails that a probe can use; one unnamed rail if none is claimed.
    fn admitted_rails(
        &mut self,
        stage: u8,
        probe: &Probe,
        nodes: &[NodeName],
    ) -> Vec<Option<&'a ClaimedRail>> {
        let claimed = &self.context.request.claims.rails;
        let all = if claimed.is_empty() {
            vec![None]
        } else {
            claimed.iter().map(Some).collect::<Vec<_>>()
        };
        let mut admitted = Vec::new();
        for rail in all {
            match PlanContext::check_rail(probe, rail) {
                Ok(()) => admitted.push(rail),
                Err(omitted) if stage == probe.stage && !nodes.is_empty() => {
                    self.skip(probe, nodes.to_vec(), omitted);
                }
                Err(_) => {}
            }
        }
        admitted
    }

    /// The domains on which a probe can run. The others are skipped, each reported once.
    fn admitted_domains(&mut self, stage: u8, probe: &Probe) -> Vec<&'a ClaimedDomain> {
        let mut admitted = Vec::new();
        for domain in &self.context.request.claims.domains {
            match self.context.check_probe(probe, domain) {
                Ok(()) => admitted.push(domain),
                Err(omitted) if stage == probe.stage => {
                    self.skip(probe, domain.nodes.clone(), omitted);
                }
                Err(_) => {}
            }
        }
        admitted
    }

    fn push_round(&mut self, stage: u8, what: String, steps: Vec<super::PlanStep>) {
        if !steps.is_empty() {
            self.rounds.push(PlanRound { round: 0, stage, what, steps });
        }
    }

    fn skip(&mut self, probe: &Probe, nodes: Vec<NodeName>, omitted: ProbeOmission) {
        let ProbeOmission { why, not_applicable } = omitted;
        self.skipped.push(SkippedProbe { probe: probe.name.clone(), nodes, why, not_applicable });
    }
}
