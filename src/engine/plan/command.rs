//! The command of one step, as far as claims define it.
//!
//! Values that only the nodes know remain placeholders. A probe that cannot run somewhere is
//! skipped with the reason, and with whether coverage is then missing.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;

use serde::Deserializer;
use serde::de::{SeqAccess, Visitor};

use super::{PlanRequest, PlanStep};
use model::claim_index::ClaimIndex;
use model::claims::{ClaimedDomain, ClaimedRail};
use model::id::NodeName;
use model::probe::{Probe, ProbeFallback, ProbeScope, ProbeServer, SharedArgv, placeholder};

/// Why a probe does not run somewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProbeOmission {
    pub(super) why: String,
    pub(super) not_applicable: bool,
}

impl ProbeOmission {
    pub(super) fn not_applicable(why: String) -> Self {
        Self { why, not_applicable: true }
    }

    pub(super) fn missing(why: String) -> Self {
        Self { why, not_applicable: false }
    }
}

/// The share of its time limit that a command may use, so that it can still report partial results.
const LIMIT_SHARE: f64 = 0.9;

#[derive(Clone, Copy, Debug)]
struct CommandSettings {
    /// The number of readings it takes.
    readings: u32,
    /// Whether every node runs it.
    on_all_nodes: bool,
    /// Its timeout, in seconds.
    limit: f64,
}

#[derive(Clone, Debug)]
pub(super) struct StepLocation<'a> {
    pub(super) nodes: Vec<NodeName>,
    pub(super) rail: Option<&'a ClaimedRail>,
    pub(super) lane: Option<u32>,
    pub(super) stage: u8,
}

impl StepLocation<'_> {
    pub(super) fn new(stage: u8, nodes: Vec<NodeName>) -> Self {
        Self { nodes, rail: None, lane: None, stage }
    }
}

#[derive(Debug)]
pub(super) struct PlanContext<'a> {
    pub(super) request: &'a PlanRequest<'a>,
    claim_index: ClaimIndex<'a>,
    argv_pool: RefCell<ArgvPool>,
}

/// Distinct commands, each stored once.
#[derive(Debug, Default)]
struct ArgvPool(HashSet<SharedArgv>);

impl ArgvPool {
    /// Returns the stored copy of this command.
    fn intern(&mut self, argv: &[String]) -> SharedArgv {
        if let Some(words) = self.0.get(argv) {
            return words.clone();
        }
        let words = SharedArgv::from(argv);
        self.0.insert(words.clone());
        words
    }
}

/// Reads the steps of a round; equal commands share memory.
pub(super) fn deserialize_steps<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<PlanStep>, D::Error> {
    struct StepsVisitor;
    impl<'de> Visitor<'de> for StepsVisitor {
        type Value = Vec<PlanStep>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the steps of a round")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let (mut steps, mut known) = (Vec::new(), ArgvPool::default());
            while let Some(mut step) = seq.next_element::<PlanStep>()? {
                step.argv = known.intern(&step.argv);
                if let Some(serve) = &mut step.serve {
                    serve.argv = known.intern(&serve.argv);
                }
                if let Some(fallback) = &mut step.fallback {
                    fallback.argv = known.intern(&fallback.argv);
                }
                steps.push(step);
            }
            Ok(steps)
        }
    }
    from.deserialize_seq(StepsVisitor)
}

impl<'a> PlanContext<'a> {
    pub(super) fn new(request: &'a PlanRequest<'a>) -> Self {
        let claim_index = ClaimIndex::from_claims(request.claims);
        Self { request, claim_index, argv_pool: RefCell::default() }
    }

    pub(super) fn domain_of(&self, node: &NodeName) -> Option<&'a ClaimedDomain> {
        self.claim_index.domain_of(node)
    }

    /// Whether a probe can run on the nodes of a domain.
    pub(super) fn check_probe(
        &self,
        probe: &Probe,
        domain: &ClaimedDomain,
    ) -> Result<(), ProbeOmission> {
        let needs = &probe.requires;
        if let Some(gpus) = domain.gpus_per_node
            && gpus < needs.min_gpus
        {
            let why = format!("needs {} GPUs, {gpus} per node are claimed", needs.min_gpus);
            return Err(ProbeOmission::not_applicable(why));
        }
        if matches!(probe.scope, ProbeScope::Pair | ProbeScope::Domain) && domain.nodes.len() < 2 {
            let why = format!("needs two nodes, domain {} has one", domain.name);
            return Err(ProbeOmission::not_applicable(why));
        }
        if needs.nvlink_across && !self.request.nvlink_across.contains(&domain.name) {
            let why = format!(
                "needs NVLink between nodes, and domain {} claims no platform that has it",
                domain.name
            );
            return Err(ProbeOmission::not_applicable(why));
        }
        let counted = [placeholder::GPUS, placeholder::RANKS, placeholder::HOSTS];
        if domain.gpus_per_node.is_none() && counted.iter().any(|word| probe.uses_placeholder(word))
        {
            let why = format!(
                "needs the number of GPUs, and domain {} does not claim gpus_per_node",
                domain.name
            );
            return Err(ProbeOmission::missing(why));
        }
        Ok(())
    }

    /// Whether a probe can run on a rail, or without a claimed rail.
    pub(super) fn check_rail(
        probe: &Probe,
        rail: Option<&ClaimedRail>,
    ) -> Result<(), ProbeOmission> {
        if !probe.uses_placeholder(placeholder::RDMA) {
            return Ok(());
        }
        match rail {
            Some(rail) if rail.rdma.is_some() => Ok(()),
            Some(rail) => Err(ProbeOmission::missing(format!(
                "needs an RDMA device, rail {} names none",
                rail.name
            ))),
            None => Err(ProbeOmission::missing(
                "needs an RDMA device, and no rail is claimed".to_owned(),
            )),
        }
    }

    /// The step of an admitted probe in a place. Its number is set later.
    pub(super) fn build_step(&self, probe: &Probe, place: &StepLocation<'_>) -> PlanStep {
        let request = self.request;
        let wanted = if place.stage == 0 { 1 } else { request.readings.max(1) };
        let most = if place.stage == 0 { 1 } else { request.most_readings.max(wanted) };
        // A tool that repeats by itself runs once.
        let (readings, most_readings, times) =
            if probe.reads_itself { (1, 1, f64::from(wanted)) } else { (wanted, most, 1.0) };
        let limit = probe.timeout_s * times;
        let way = |on_all_nodes, readings| CommandSettings { readings, on_all_nodes, limit };
        let serve = probe.serve.as_ref().map(|serve| {
            let swapped: Vec<NodeName> = place.nodes.iter().rev().cloned().collect();
            let argv = self.fill_argv(&serve.argv, place, &swapped, way(false, wanted));
            ProbeServer { argv, ready: serve.ready }
        });
        let fallback = probe.fallback.as_ref().map(|fallback| ProbeFallback {
            argv: self.fill_argv(
                &fallback.argv,
                place,
                &place.nodes,
                way(fallback.on_all_nodes, 1),
            ),
            ..fallback.clone()
        });
        let mut domains = place.nodes.iter().map(|node| self.domain_of(node).map(|d| &d.name));
        let first = domains.next().flatten();
        let domain = first.filter(|name| domains.all(|other| other == Some(name))).cloned();
        PlanStep {
            step: 0,
            stage: place.stage,
            probe: probe.name.clone(),
            scope: probe.scope,
            domain,
            nodes: place.nodes.clone(),
            rail: place.rail.map(|rail| rail.name.clone()),
            lane: place.lane,
            readings,
            most_readings,
            parser: probe.parser,
            argv: self.fill_argv(&probe.argv, place, &place.nodes, way(probe.on_all_nodes, wanted)),
            serve,
            on_all_nodes: probe.on_all_nodes,
            fallback,
            idle_gpus: probe.requires.idle_gpus,
            estimate_s: probe.cost_s * times,
            timeout_s: limit,
        }
    }

    /// Fills in the arguments of a command. `nodes` begins with the node that starts it; if all of
    /// them do, the node stays a placeholder.
    fn fill_argv(
        &self,
        argv: &[String],
        place: &StepLocation<'_>,
        nodes: &[NodeName],
        CommandSettings { readings, on_all_nodes, limit }: CommandSettings,
    ) -> SharedArgv {
        let gpus = |node: &NodeName| {
            self.domain_of(node).and_then(|d| d.gpus_per_node).unwrap_or_default()
        };
        let list = |one: &dyn Fn(&NodeName) -> String| {
            place.nodes.iter().map(one).collect::<Vec<_>>().join(",")
        };
        let rail = place.rail;
        let own = match nodes.first() {
            Some(node) if !on_all_nodes => node.to_string(),
            _ => placeholder::NODE.to_owned(),
        };
        let fill = |word: &String| {
            // Most arguments have no placeholder, and a large fleet has millions of arguments.
            if !word.contains('{') {
                return word.clone();
            }
            let mut word = word.clone();
            let mut put = |name: &str, value: &dyn Fn() -> String| {
                if word.contains(name) {
                    word = word.replace(name, &value());
                }
            };
            put(placeholder::GPUS, &|| nodes.first().map(gpus).unwrap_or_default().to_string());
            put(placeholder::RANKS, &|| place.nodes.iter().map(gpus).sum::<u32>().to_string());
            put(placeholder::NODES, &|| list(&|node| node.to_string()));
            put(placeholder::HOSTS, &|| list(&|node| format!("{node}:{}", gpus(node))));
            put(placeholder::NODE, &|| own.clone());
            put(placeholder::PEER, &|| nodes.get(1).map(ToString::to_string).unwrap_or_default());
            put(placeholder::RAIL, &|| rail.map_or("-", |rail| &rail.name).to_owned());
            put(placeholder::RDMA, &|| rail.and_then(|r| r.rdma.clone()).unwrap_or_default());
            put(placeholder::READINGS, &|| readings.to_string());
            put(placeholder::LANE, &|| place.lane.unwrap_or_default().to_string());
            put(placeholder::LIMIT, &|| format!("{:.0}", (limit * LIMIT_SHARE).floor().max(1.0)));
            word
        };
        let filled: Vec<String> = argv.iter().map(fill).collect();
        self.argv_pool.borrow_mut().intern(&filled)
    }
}
