//! What will be run where, and what it costs, before anything is run.
//!
//! Pure: claims, probes and a profile in, one [`Plan`] out. A plan is never
//! changed after it was made; whatever of it was not done shows as unknown.

use serde::Deserialize;
use serde::Serialize;

use crate::model::claims::ClaimedDomain;
use crate::model::claims::Claims;
use crate::model::id::DomainName;
use crate::model::id::NodeName;
use crate::model::parsed::Tool;
use crate::model::probe::Probe;

/// The format of `plan.json`.
pub const PLAN_FORMAT: &str = "fabricgate.plan/1";

/// What the audit profile runs where nothing else is said: state first, then
/// the copy-engine matrices and one collective.
pub const AUDIT_PROBES: &[&str] =
    &["nvidia-smi-q", "nvidia-smi-nvlink", "nvidia-smi-topo", "nvbandwidth-ce", "nccl-all-reduce"];

/// One execution of one probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Its number in the plan, from 0.
    pub step: usize,
    /// The stage of the sweep.
    pub stage: u8,
    /// The probe.
    pub probe: String,
    /// The domain of the node.
    pub domain: DomainName,
    /// Where it runs.
    pub node: NodeName,
    /// Which reading of this probe, from 0.
    pub reading: u32,
    /// Whose output it must print.
    pub parser: Tool,
    /// The tool's command, without a launcher.
    pub argv: Vec<String>,
    /// How long it should take, in seconds.
    pub estimate_s: f64,
    /// When it is given up, in seconds.
    pub timeout_s: f64,
}

/// A probe that is not run on a node, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The probe.
    pub probe: String,
    /// The node.
    pub node: NodeName,
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
    /// How many nodes work at the same time.
    pub parallel: usize,
    /// The steps. Those of one node run one after the other, in this order.
    pub steps: Vec<Step>,
    /// What is left out.
    pub skipped: Vec<Skipped>,
    /// Estimated time from start to end, in seconds.
    pub estimate_s: f64,
    /// Estimated time taken from all nodes together, in seconds.
    pub node_seconds: f64,
}

impl Plan {
    /// The nodes that have something to do, in the order they start.
    pub fn nodes(&self) -> Vec<&NodeName> {
        let mut nodes: Vec<&NodeName> = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        for step in &self.steps {
            if seen.insert(&step.node) {
                nodes.push(&step.node);
            }
        }
        nodes
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

    let mut steps = Vec::new();
    let mut skipped = Vec::new();
    let mut loads = Vec::new();
    for (domain, node) in nodes {
        let mut load = 0.0;
        for probe in &probes {
            let argv = match command(probe, domain) {
                Ok(argv) => argv,
                Err((not_applicable, why)) => {
                    let probe = probe.name.clone();
                    skipped.push(Skipped { probe, node: node.clone(), why, not_applicable });
                    continue;
                }
            };
            let readings = if probe.stage == 0 { 1 } else { request.readings.max(1) };
            for reading in 0..readings {
                load += probe.cost_s;
                steps.push(Step {
                    step: steps.len(),
                    stage: probe.stage,
                    probe: probe.name.clone(),
                    domain: domain.name.clone(),
                    node: node.clone(),
                    reading,
                    parser: probe.parser,
                    argv: argv.clone(),
                    estimate_s: probe.cost_s,
                    timeout_s: probe.timeout_s,
                });
            }
        }
        loads.push(load);
    }
    Plan {
        format: PLAN_FORMAT.to_owned(),
        profile: request.profile.to_owned(),
        seed: request.seed,
        parallel: request.parallel,
        estimate_s: makespan(&loads, request.parallel),
        node_seconds: loads.iter().sum(),
        steps,
        skipped,
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
    probe.command(domain.gpus_per_node).ok_or_else(|| {
        let why = format!(
            "needs the number of GPUs, and domain {} does not claim gpus_per_node",
            domain.name
        );
        (false, why)
    })
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
        let of = |node: &str| -> Vec<(String, u32)> {
            let steps = plan.steps.iter().filter(|s| s.node.as_str() == node);
            steps.map(|s| (s.probe.clone(), s.reading)).collect()
        };
        let nccl = |reading| ("nccl-all-reduce".to_owned(), reading);
        assert_eq!(of("a1"), [("nvidia-smi-q".to_owned(), 0), nccl(0), nccl(1)]);
        assert_eq!(
            plan.steps.iter().map(|s| s.step).collect::<Vec<_>>(),
            (0..15).collect::<Vec<_>>()
        );
        assert!(
            plan.steps.iter().filter(|s| s.stage == 1).all(|s| s.argv.ends_with(&["8".to_owned()]))
        );
    }

    #[test]
    fn what_cannot_run_is_left_out_with_a_reason() {
        let plan = plan(4, 1);
        let why: Vec<(&str, bool)> =
            plan.skipped.iter().map(|s| (s.node.as_str(), s.not_applicable)).collect();
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

    #[test]
    fn the_seed_decides_the_order_and_nothing_else() {
        assert_eq!(plan(4, 7), plan(4, 7));
        assert!((0..20).any(|seed| plan(4, seed).nodes() != plan(4, 99).nodes()));
        let sorted = |plan: &Plan| {
            let mut nodes: Vec<String> = plan.nodes().iter().map(|n| n.to_string()).collect();
            nodes.sort();
            nodes
        };
        assert_eq!(sorted(&plan(4, 1)), sorted(&plan(4, 2)));
    }
}
