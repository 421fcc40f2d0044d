//! A recording of a scenario: the files that the tools would have left.
//!
//! Makes values; the command line writes them.

use std::collections::BTreeMap;

use super::bench::Bench;
use super::fabric::Fabric;
use super::fault::Fault;
use super::mpi::Host;
use super::mpi::Job;
use super::network;
use super::render;
use super::render::Answer;
use super::render::perftest::Run;
use super::scenario::Group;
use super::scenario::Scenario;
use super::tool;
use super::tooling::Format;
use super::tooling::Recorded;
use super::truth;
use super::unwell;
use super::unwell::Ailment;
use super::unwell::GARBAGE;
use model::hostlist;

/// A recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// Contents by path, relative to the recording.
    pub files: BTreeMap<String, String>,
    /// What is really wrong, as TOML. It goes beside the recording.
    pub truth: String,
}

/// Records a scenario with its own seed and readings or with others.
pub fn record(
    scenario: &Scenario,
    seed: Option<u64>,
    readings: Option<u32>,
) -> Result<Recording, String> {
    let fabric = Fabric::build(scenario)?;
    let seed = seed.unwrap_or(scenario.seed);
    let readings = readings.unwrap_or(scenario.readings);
    let mut files = BTreeMap::from([("claims.toml".to_owned(), claims(&fabric))]);
    for what in &scenario.tools.record {
        for (scope, across) in scopes(&fabric, *what) {
            if is_silent(&fabric, scope, *what) {
                continue;
            }
            let repeats = if is_measurement(*what) { readings } else { 1 };
            // Whoever records collectives may ask NCCL which way they went.
            let asked = *what == Recorded::Collectives && scenario.tools.nccl_debug;
            let job = asked.then(debugged);
            for reading in 0..repeats {
                let job = job.as_ref();
                let bench = Bench {
                    scenario,
                    fabric: &fabric,
                    scope,
                    across,
                    seed,
                    reading,
                    before: reading,
                    job,
                };
                for (name, mut answer) in outputs(&bench, *what) {
                    let folder = folder(&fabric, scope, across);
                    let (stem, extension) = name.rsplit_once('.').unwrap_or((&name, "txt"));
                    if is_missing(&bench, stem) {
                        continue;
                    }
                    let number =
                        if repeats == 1 { String::new() } else { format!("-{}", reading + 1) };
                    match ailment(&bench, stem) {
                        None => {}
                        Some(Ailment::Garbage) => answer = Answer::of(GARBAGE.to_owned()),
                        // Given up, and nothing of it kept.
                        Some(Ailment::Hangs | Ailment::Floods) => continue,
                    }
                    let path = format!("{folder}/{stem}{number}.{extension}");
                    // The rail is no part of the tool's name.
                    let tool = stem.split_once("_rail").map_or(stem, |(tool, _)| tool);
                    files.insert(path, cut(&bench, tool, answer.both()));
                }
            }
        }
    }
    if scenario.tools.record.contains(&Recorded::NvbandwidthBetween) {
        between(scenario, &fabric, seed, &mut files);
    }
    let truth = truth::of(scenario, &fabric, seed);
    let truth = toml::to_string(&truth).map_err(|error| error.to_string())?;
    Ok(Recording { files, truth })
}

/// A job whose NCCL says what it does, as probes ask it to.
fn debugged() -> Job {
    let told = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,ENV,NET,TUNING")];
    let environment = told.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    Job { hosts: Vec::new(), environment }
}

/// One node of each of two claimed domains, for every two.
fn between(scenario: &Scenario, fabric: &Fabric, seed: u64, files: &mut BTreeMap<String, String>) {
    let spanning = |c: &&Group| c.hardware.spans_nodes;
    let claims: Vec<&Group> = fabric.claims.iter().filter(spanning).collect();
    for (at, a) in claims.iter().enumerate() {
        for b in &claims[at + 1..] {
            let host = |claim: &Group| Host {
                name: claim.nodes[0].clone(),
                ranks: fabric.gpus_of([&claim.nodes[0]]).len(),
            };
            let job = Job { hosts: vec![host(a), host(b)], ..Job::default() };
            let scope = format!("{}+{}", a.name, b.name);
            let bench = Bench {
                scenario,
                fabric,
                scope: &scope,
                across: true,
                seed,
                reading: 0,
                before: 0,
                job: Some(&job),
            };
            for (name, answer) in outputs(&bench, Recorded::NvbandwidthBetween) {
                if is_missing(&bench, "nvbandwidth") {
                    continue;
                }
                files.insert(format!("domains/{scope}/{name}"), answer.both());
            }
        }
    }
}

/// `claims.toml`.
pub fn claims(fabric: &Fabric) -> String {
    let one = |claim: &Group| {
        format!(
            "[[domain]]\nname = {:?}\nnodes = {:?}\nplatform = {:?}\ngpus_per_node = {}\n",
            claim.name, claim.folded, claim.hardware.platform, claim.gpus
        )
    };
    fabric.claims.iter().map(one).collect::<Vec<_>>().join("\n")
}

/// `claims.toml` with the leaves and rails that the scenario describes, for
/// sweeps. Recordings claim domains only: nothing in them runs over a rail.
pub fn claims_of_network(fabric: &Fabric) -> String {
    let network = &fabric.network;
    let mut out = claims(fabric);
    if !network.described {
        return out;
    }
    for leaf in &network.leaves {
        let nodes = hostlist::fold(leaf.nodes.iter().map(String::as_str));
        out.push_str(&format!("\n[[leaf]]\nname = {:?}\nnodes = {nodes:?}\n", leaf.name));
    }
    for rail in 0..network.most_rails() {
        let (name, device) = (network::rail_name(rail), network::device_name(rail));
        out.push_str(&format!("\n[[rail]]\nname = {name:?}\nrdma = {device:?}\n"));
    }
    out
}

/// Whether a node has nothing to tell: it does not answer, or is in use and so
/// was not measured.
fn is_silent(fabric: &Fabric, scope: &str, what: Recorded) -> bool {
    fabric.node(scope).is_ok_and(|node| {
        let node = &fabric.nodes[node];
        !node.reachable || (node.process.is_some() && is_measurement(what))
    })
}

/// The tool that leaves the file of this stem.
fn tool_of(stem: &str) -> Option<&'static str> {
    let known = tool::NAMES.iter().filter(|name| stem.starts_with(**name));
    known.max_by_key(|name| name.len()).copied()
}

/// What is wrong with the tool that leaves the file of this stem.
fn ailment(bench: &Bench<'_>, stem: &str) -> Option<Ailment> {
    unwell::ailment(bench.scenario, &bench.node_names(&bench.gpus()), tool_of(stem)?)
}

/// Whether a node that takes part has no such tool.
fn is_missing(bench: &Bench<'_>, stem: &str) -> bool {
    let gpus = bench.gpus();
    let mut nodes = bench.node_names(&gpus);
    nodes.push(bench.scope);
    tool_of(stem).is_some_and(|name| unwell::without(bench.scenario, &nodes, name).is_some())
}

fn is_measurement(what: Recorded) -> bool {
    !matches!(what, Recorded::NvlinkStatus | Recorded::Topo | Recorded::Query | Recorded::Imex)
}

/// Where this output is taken: nodes or claimed domains, and whether across.
fn scopes(fabric: &Fabric, what: Recorded) -> Vec<(&str, bool)> {
    let several = fabric.claims.iter().filter(|c| 1 < c.nodes.len() && c.hardware.spans_nodes);
    match what {
        Recorded::NvbandwidthDomain | Recorded::Imex => {
            several.map(|claim| (claim.name.as_str(), true)).collect()
        }
        // Its scopes are pairs of domains.
        Recorded::NvbandwidthBetween => Vec::new(),
        Recorded::Collectives => {
            fabric.claims.iter().map(|claim| (claim.name.as_str(), true)).collect()
        }
        _ => {
            let named = fabric.claims.iter().flat_map(|claim| &claim.nodes);
            named.map(|node| (node.as_str(), false)).collect()
        }
    }
}

fn folder(fabric: &Fabric, scope: &str, across: bool) -> String {
    let single = fabric.claims.iter().any(|c| c.name == scope && c.nodes == [scope.to_owned()]);
    match across && !single {
        true => format!("domains/{scope}"),
        false => format!("nodes/{scope}"),
    }
}

fn outputs(bench: &Bench<'_>, what: Recorded) -> Vec<(String, Answer)> {
    let tools = &bench.scenario.tools;
    let one = |name: &str, answer| vec![(name.to_owned(), answer)];
    match what {
        Recorded::Nvbandwidth | Recorded::NvbandwidthDomain | Recorded::NvbandwidthBetween => {
            let tests = if bench.across { &tools.domain_tests } else { &tools.node_tests };
            let version = tools.nvbandwidth;
            let run = bench.nvbandwidth(version, tests);
            match tools.nvbandwidth_format {
                Format::Text => {
                    one("nvbandwidth.txt", render::nvbandwidth::text(bench, version, &run))
                }
                Format::Json => {
                    one("nvbandwidth.json", render::nvbandwidth_json::json(bench, version, &run))
                }
            }
        }
        Recorded::Collectives => tools
            .collectives
            .iter()
            .filter_map(|program| {
                Some((program, bench.collective(program, tools.bytes, bench.gpus())?))
            })
            .map(|(program, run)| match tools.nccl_format {
                Format::Text => (format!("{program}.txt"), render::nccl::text(bench, &run)),
                Format::Json => {
                    let document = render::nccl_json::json(bench, &run);
                    (format!("{program}.json"), Answer::of(document))
                }
            })
            .collect(),
        Recorded::P2p => one("p2pBandwidthLatencyTest.txt", render::p2p::text(bench, false)),
        Recorded::NvlinkStatus => one("nvidia-smi-nvlink.txt", render::smi::nvlink_status(bench)),
        Recorded::Topo => one("nvidia-smi-topo.txt", render::smi::topology(bench)),
        Recorded::Query => one("nvidia-smi-q.txt", render::smi::query(bench)),
        Recorded::Imex => match tools.imex_format {
            Format::Text => one("nvidia-imex-ctl.txt", render::imex::text(bench)),
            Format::Json => one("nvidia-imex-ctl.json", render::imex::json(bench)),
        },
        Recorded::IbWriteBw => nics(bench),
    }
}

/// `ib_write_bw` of a node's NICs: of all where the scenario describes its
/// network, else of the first.
fn nics(bench: &Bench<'_>) -> Vec<(String, Answer)> {
    let network = &bench.fabric.network;
    let Ok(node) = bench.fabric.node(bench.scope) else { return Vec::new() };
    let rails = if network.described { network.rails(node) } else { 1 };
    (0..rails)
        .map(|rail| {
            let name = match network.described {
                true => format!("ib_write_bw_{}.txt", network::rail_name(rail)),
                false => "ib_write_bw.txt".to_owned(),
            };
            let answer = match network.is_up(node, rail) {
                true => render::perftest::bandwidth(bench, &Run::alone(rail)),
                false => render::perftest::no_link(),
            };
            (name, answer)
        })
        .collect()
}

/// What is left of an output that a fault truncates.
pub fn cut(bench: &Bench<'_>, tool: &str, mut text: String) -> String {
    for fault in &bench.scenario.faults {
        if let Fault::Truncated { scope, tool: name, share } = fault
            && scope == bench.scope
            && name == tool
        {
            let length = text.len();
            let left = (0..=length)
                .rev()
                .find(|at| *at as f64 <= length as f64 * share && text.is_char_boundary(*at));
            text.truncate(left.unwrap_or(0));
        }
    }
    text
}
