//! What will be run where, and what it costs, before anything is run.
//!
//! Pure: claims, probes and a profile in, one [`Plan`] out. A plan is never
//! changed after it was made; whatever of it was not done shows as unknown.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde::Serialize;

use crate::model::claims::ClaimedDomain;
use crate::model::claims::Claims;
use crate::model::id::DomainName;
use crate::model::id::NodeName;
use crate::model::parsed::Tool;
use crate::model::probe::Probe;
use crate::model::probe::Serve;
use crate::model::probe::placeholder;
use crate::model::raw;

/// The format of `plan.json`.
pub const PLAN_FORMAT: &str = "fabricgate.plan/1";

/// What the audit profile runs where nothing else is said: state first, then
/// the copy-engine matrices and one collective.
pub const AUDIT_PROBES: &[&str] =
    &["nvidia-smi-q", "nvidia-smi-nvlink", "nvidia-smi-topo", "nvbandwidth-ce", "nccl-all-reduce"];

/// One probe in one place: one or several readings, one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Its number in the plan, from 0.
    pub step: usize,
    /// The stage of the sweep.
    pub stage: u8,
    /// The probe.
    pub probe: String,
    /// The domain, where all nodes are of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// The nodes that take part. The first runs the command; the second of a
    /// pair serves.
    pub nodes: Vec<NodeName>,
    /// The rail, where one is claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<String>,
    /// The lane of a GPU-level round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<u32>,
    /// Readings that are always taken.
    pub readings: u32,
    /// Readings that are taken while the ones before do not decide.
    pub most_readings: u32,
    /// Whose output it must print.
    pub parser: Tool,
    /// The tool's command. What only the nodes can say is still a placeholder.
    pub argv: Vec<String>,
    /// The serving side's, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serve: Option<Serve>,
    /// It must not start while somebody else uses the GPUs.
    #[serde(default)]
    pub idle_gpus: bool,
    /// How long one reading should take, in seconds.
    pub estimate_s: f64,
    /// When one reading is given up, in seconds.
    pub timeout_s: f64,
}

impl Step {
    /// Where it runs, for people.
    pub fn place(&self) -> String {
        raw::place(&self.nodes)
    }
}

/// Steps that run at the same time. The next round begins when all have ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Its number in the plan, from 0.
    pub round: usize,
    /// The stage of the sweep.
    pub stage: u8,
    /// What it is, for people: `node rounds of block01, lane 0`.
    pub what: String,
    /// Its steps.
    pub steps: Vec<Step>,
}

/// A probe that is not run on a node, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The probe.
    pub probe: String,
    /// Where: nodes for a probe of nodes, all that would take part otherwise.
    pub nodes: Vec<NodeName>,
    /// Why.
    pub why: String,
    /// It does not apply there, so nothing is missing.
    pub not_applicable: bool,
}

/// Everything that will be run (`fabricgate.plan/1`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// `fabricgate.plan/1`.
    pub format: String,
    /// The profile it was made for.
    pub profile: String,
    /// The seed it was made with.
    pub seed: u64,
    /// How many steps run at the same time.
    pub parallel: usize,
    /// The rounds, in the order they run.
    pub rounds: Vec<Round>,
    /// Pairs are sampled on purpose: those that no round names are no gap.
    #[serde(default)]
    pub sampled: bool,
    /// What is left out.
    pub skipped: Vec<Skipped>,
    /// Estimated time from start to end, in seconds.
    pub estimate_s: f64,
    /// Estimated time taken from all nodes together, in seconds.
    pub node_seconds: f64,
}

impl Plan {
    /// All steps, in the order they run.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.rounds.iter().flat_map(|round| &round.steps)
    }

    /// The nodes that have something to do, in order of name.
    pub fn nodes(&self) -> BTreeSet<&NodeName> {
        self.steps().flat_map(|step| &step.nodes).collect()
    }
}

/// What a plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The claims; every node of them is planned for.
    pub claims: &'a Claims,
    /// The profile's name.
    pub profile: &'a str,
    /// The probes, in the order they run.
    pub probes: &'a [&'a Probe],
    /// How often each measuring probe runs; state is read once.
    pub readings: u32,
    /// How many nodes work at the same time.
    pub parallel: usize,
    /// The seed.
    pub seed: u64,
}

/// Plans a sweep inside every node of the claims.
pub fn inside_nodes(request: &Request<'_>) -> Plan {
    let mut probes: Vec<&Probe> = request.probes.to_vec();
    // Cheap questions first: a node that does not answer them costs no more.
    probes.sort_by_key(|probe| probe.stage);
    let mut nodes: Vec<(&ClaimedDomain, &NodeName)> =
        request.claims.domains.iter().flat_map(|d| d.nodes.iter().map(move |n| (d, n))).collect();
    shuffle(&mut nodes, request.seed);

    let mut rounds = Vec::new();
    let mut skipped = Vec::new();
    let (mut count, mut estimate_s, mut node_seconds) = (0, 0.0, 0.0);
    for probe in &probes {
        let mut steps = Vec::new();
        let mut loads = Vec::new();
        for (domain, node) in &nodes {
            let argv = match command(probe, domain) {
                Ok(argv) => argv,
                Err((not_applicable, why)) => {
                    let (probe, nodes) = (probe.name.clone(), vec![(*node).clone()]);
                    skipped.push(Skipped { probe, nodes, why, not_applicable });
                    continue;
                }
            };
            let readings = if probe.stage == 0 { 1 } else { request.readings.max(1) };
            loads.push(probe.cost_s * f64::from(readings));
            steps.push(Step {
                step: count,
                stage: probe.stage,
                probe: probe.name.clone(),
                domain: Some(domain.name.clone()),
                nodes: vec![(*node).clone()],
                rail: None,
                lane: None,
                readings,
                most_readings: readings,
                parser: probe.parser,
                argv,
                serve: None,
                idle_gpus: probe.requires.idle_gpus,
                estimate_s: probe.cost_s,
                timeout_s: probe.timeout_s,
            });
            count += 1;
        }
        if steps.is_empty() {
            continue;
        }
        estimate_s += makespan(&loads, request.parallel);
        node_seconds += loads.iter().sum::<f64>();
        let (round, stage, what) = (rounds.len(), probe.stage, probe.name.clone());
        rounds.push(Round { round, stage, what, steps });
    }
    Plan {
        format: PLAN_FORMAT.to_owned(),
        profile: request.profile.to_owned(),
        seed: request.seed,
        parallel: request.parallel,
        sampled: false,
        rounds,
        skipped,
        estimate_s,
        node_seconds,
    }
}

/// The command on a node of this domain, or why there is none.
fn command(probe: &Probe, domain: &ClaimedDomain) -> Result<Vec<String>, (bool, String)> {
    if let Some(gpus) = domain.gpus_per_node
        && gpus < probe.requires.min_gpus
    {
        let needed = probe.requires.min_gpus;
        return Err((true, format!("needs {needed} GPUs, {gpus} per node are claimed")));
    }
    if !probe.says(placeholder::GPUS) {
        return Ok(probe.argv.clone());
    }
    let Some(gpus) = domain.gpus_per_node else {
        let why = format!(
            "needs the number of GPUs, and domain {} does not claim gpus_per_node",
            domain.name
        );
        return Err((false, why));
    };
    let gpus = gpus.to_string();
    Ok(probe.argv.iter().map(|word| word.replace(placeholder::GPUS, &gpus)).collect())
}

/// Orders nodes by the seed, so that two sweeps do not put the same
/// neighbours next to each other and an order effect cannot look like a fault.
/// Fisher-Yates on `SplitMix64` (Steele, Lea, Flood, 2014).
fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    for last in (1..items.len()).rev() {
        let pick = next() % (last as u64 + 1);
        items.swap(last, usize::try_from(pick).unwrap_or(0));
    }
}

/// When the last of these loads is done, taken in order by `parallel` workers.
fn makespan(loads: &[f64], parallel: usize) -> f64 {
    let mut free = vec![0.0f64; parallel.clamp(1, loads.len().max(1))];
    for load in loads {
        let first = free.iter_mut().reduce(|a, b| if *b < *a { b } else { a });
        if let Some(first) = first {
            *first += load;
        }
    }
    free.into_iter().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::claims_file;
    use crate::probe::catalog::Catalog;

    fn claims() -> Claims {
        let text = "[[domain]]\nname = \"a\"\nnodes = \"a[1-4]\"\ngpus_per_node = 8\n\
            [[domain]]\nname = \"b\"\nnodes = \"b[1-2]\"\n\
            [[domain]]\nname = \"c\"\nnodes = \"c1\"\ngpus_per_node = 1\n";
        claims_file::parse("c", text).expect("good")
    }

    fn plan(parallel: usize, seed: u64) -> Plan {
        let catalog = Catalog::built_in();
        let probes: Vec<&Probe> = ["nccl-all-reduce", "nvidia-smi-q"]
            .iter()
            .map(|name| catalog.get(name).expect("built in"))
            .collect();
        let claims = claims();
        let (profile, readings) = ("audit", 2);
        inside_nodes(&Request {
            claims: &claims,
            profile,
            probes: &probes,
            readings,
            parallel,
            seed,
        })
    }

    #[test]
    fn state_comes_first_and_measurements_are_repeated() {
        let plan = plan(4, 1);
        let of = |node: &str| -> Vec<(&str, u32)> {
            let steps = plan.steps().filter(|s| s.nodes[0].as_str() == node);
            steps.map(|s| (s.probe.as_str(), s.readings)).collect()
        };
        assert_eq!(of("a1"), [("nvidia-smi-q", 1), ("nccl-all-reduce", 2)]);
        assert!(plan.steps().filter(|s| s.stage == 1).all(|s| s.argv.ends_with(&["8".to_owned()])));
    }

    #[test]
    fn what_cannot_run_is_left_out_with_a_reason() {
        let plan = plan(4, 1);
        let why: Vec<(&str, bool)> =
            plan.skipped.iter().map(|s| (s.nodes[0].as_str(), s.not_applicable)).collect();
        let mut sorted = why.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [("b1", false), ("b2", false), ("c1", true)]);
    }

    #[test]
    fn cost_is_what_the_probes_cost() {
        // a1-a4: 5 + 2 x 40 s; b1, b2, c1: 5 s.
        assert!((plan(1, 0).node_seconds - 355.0).abs() < 1e-9);
        assert!((plan(1, 0).estimate_s - 355.0).abs() < 1e-9);
        assert!((plan(100, 0).estimate_s - 85.0).abs() < 1e-9);
    }
}
