//! A recording of a scenario: the files that the tools would have written.
//!
//! Returns values; the command line writes the files.

use std::collections::BTreeMap;

use super::fabric::SimFabric;
use super::fault::SimFault;
use super::invocation::ToolInvocation;
use super::misbehaviour::{GARBAGE, ToolMisbehaviour};
use super::mpirun::{MpiHost, MpiJob};
use super::render::SimToolOutput;
use super::render::perftest::SimPerftestRun;
use super::scenario::{ExpandedDomain, Scenario};
use super::tool_config::{RecordedTool, SimToolFormat};
use super::{misbehaviour, network, render, tool_dispatch, truth};
use model::hostlist;

/// A recording.
#[derive(Clone, Debug, PartialEq)]
pub struct SimRecording {
    /// Contents by path, relative to the recording.
    pub files: BTreeMap<String, String>,
    /// The true faults as TOML. It is stored next to the recording.
    pub truth: String,
}

/// Records a scenario with its own or the given seed and readings.
pub fn record_scenario(
    scenario: &Scenario,
    seed: Option<u64>,
    readings: Option<u32>,
) -> Result<SimRecording, String> {
    let fabric = SimFabric::build(scenario)?;
    let seed = seed.unwrap_or(scenario.seed);
    let readings = readings.unwrap_or(scenario.readings);
    let mut files = BTreeMap::from([("claims.toml".to_owned(), claims_toml(&fabric))]);
    for what in &scenario.tools.record {
        for (scope, across) in scopes(&fabric, *what) {
            if is_silent(&fabric, scope, *what) {
                continue;
            }
            let repeats = if is_measurement(*what) { readings } else { 1 };
            // Recordings of collectives can contain NCCL's debug output.
            let has_debug = *what == RecordedTool::Collectives && scenario.tools.nccl_debug;
            let job = has_debug.then(debug_job);
            for reading in 0..repeats {
                let job = job.as_ref();
                let bench = ToolInvocation {
                    scenario,
                    fabric: &fabric,
                    scope,
                    spans_domain: across,
                    seed,
                    reading,
                    prior_readings: reading,
                    job,
                };
                for (name, mut output) in outputs(&bench, *what) {
                    let folder = folder(&fabric, scope, across);
                    let (stem, extension) = name.rsplit_once('.').unwrap_or((&name, "txt"));
                    if is_missing(&bench, stem) {
                        continue;
                    }
                    let number =
                        if repeats == 1 { String::new() } else { format!("-{}", reading + 1) };
                    match find_misbehaviour(&bench, stem) {
                        None => {}
                        Some(ToolMisbehaviour::Garbage) => {
                            output = SimToolOutput::success(GARBAGE.to_owned());
                        }
                        // Timed out or over the limit: no output is kept.
                        Some(ToolMisbehaviour::Hangs | ToolMisbehaviour::Floods) => continue,
                    }
                    let path = format!("{folder}/{stem}{number}.{extension}");
                    // The rail is not part of the tool's name.
                    let tool = stem.split_once("_rail").map_or(stem, |(tool, _)| tool);
                    files.insert(path, truncate_output(&bench, tool, output.combined()));
                }
            }
        }
    }
    if scenario.tools.record.contains(&RecordedTool::NvbandwidthBetween) {
        record_between_domains(scenario, &fabric, seed, &mut files);
    }
    let truth = truth::compute_truth(scenario, &fabric, seed);
    let truth = toml::to_string(&truth).map_err(|error| error.to_string())?;
    Ok(SimRecording { files, truth })
}

/// A job with NCCL's debug output, as probes request it.
fn debug_job() -> MpiJob {
    let variables = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,ENV,NET,TUNING")];
    let environment = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    MpiJob { hosts: Vec::new(), environment }
}

/// Records one node of each of two claimed domains, for every pair of domains.
fn record_between_domains(
    scenario: &Scenario,
    fabric: &SimFabric,
    seed: u64,
    files: &mut BTreeMap<String, String>,
) {
    let spanning = |c: &&ExpandedDomain| c.hardware.spans_nodes;
    let claims: Vec<&ExpandedDomain> = fabric.claims.iter().filter(spanning).collect();
    for (at, a) in claims.iter().enumerate() {
        for b in &claims[at + 1..] {
            let host = |claim: &ExpandedDomain| MpiHost {
                name: claim.nodes[0].clone(),
                ranks: fabric.gpus_of([&claim.nodes[0]]).len(),
            };
            let job = MpiJob { hosts: vec![host(a), host(b)], ..MpiJob::default() };
            let scope = format!("{}+{}", a.name, b.name);
            let bench = ToolInvocation {
                scenario,
                fabric,
                scope: &scope,
                spans_domain: true,
                seed,
                reading: 0,
                prior_readings: 0,
                job: Some(&job),
            };
            for (name, output) in outputs(&bench, RecordedTool::NvbandwidthBetween) {
                if is_missing(&bench, "nvbandwidth") {
                    continue;
                }
                files.insert(format!("domains/{scope}/{name}"), output.combined());
            }
        }
    }
}

/// `claims.toml`.
pub fn claims_toml(fabric: &SimFabric) -> String {
    let one = |claim: &ExpandedDomain| {
        format!(
            "[[domain]]\nname = {:?}\nnodes = {:?}\nplatform = {:?}\ngpus_per_node = {}\n",
            claim.name, claim.folded, claim.hardware.platform, claim.gpus
        )
    };
    fabric.claims.iter().map(one).collect::<Vec<_>>().join("\n")
}

/// `claims.toml` with the leaves and rails of the scenario, for sweeps. Recordings only claim
/// domains: nothing in them runs over a rail.
pub fn network_claims_toml(fabric: &SimFabric) -> String {
    let network = &fabric.network;
    let mut out = claims_toml(fabric);
    if !network.is_described {
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

/// True if a node leaves no output: it is unreachable, or is in use and so was not measured.
fn is_silent(fabric: &SimFabric, scope: &str, what: RecordedTool) -> bool {
    fabric.node(scope).is_ok_and(|node| {
        let node = &fabric.nodes[node];
        !node.reachable || (node.process.is_some() && is_measurement(what))
    })
}

/// The tool that writes the file with this stem.
fn tool_of(stem: &str) -> Option<&'static str> {
    let known = tool_dispatch::NAMES.iter().filter(|name| stem.starts_with(**name));
    known.max_by_key(|name| name.len()).copied()
}

/// The misbehaviour of the tool that writes the file with this stem.
fn find_misbehaviour(bench: &ToolInvocation<'_>, stem: &str) -> Option<ToolMisbehaviour> {
    misbehaviour::find_misbehaviour(
        bench.scenario,
        &bench.node_names(&bench.gpus()),
        tool_of(stem)?,
    )
}

/// True if a participating node lacks this tool.
fn is_missing(bench: &ToolInvocation<'_>, stem: &str) -> bool {
    let gpus = bench.gpus();
    let mut nodes = bench.node_names(&gpus);
    nodes.push(bench.scope);
    tool_of(stem)
        .is_some_and(|name| misbehaviour::node_without_tool(bench.scenario, &nodes, name).is_some())
}

fn is_measurement(what: RecordedTool) -> bool {
    !matches!(
        what,
        RecordedTool::NvlinkStatus | RecordedTool::Topo | RecordedTool::Query | RecordedTool::Imex
    )
}

/// Scopes of this output: nodes or claimed domains, and whether the run crosses nodes.
fn scopes(fabric: &SimFabric, what: RecordedTool) -> Vec<(&str, bool)> {
    let several = fabric.claims.iter().filter(|c| 1 < c.nodes.len() && c.hardware.spans_nodes);
    match what {
        RecordedTool::NvbandwidthDomain | RecordedTool::Imex => {
            several.map(|claim| (claim.name.as_str(), true)).collect()
        }
        // Its scopes are pairs of domains.
        RecordedTool::NvbandwidthBetween => Vec::new(),
        RecordedTool::Collectives => {
            fabric.claims.iter().map(|claim| (claim.name.as_str(), true)).collect()
        }
        _ => {
            let named = fabric.claims.iter().flat_map(|claim| &claim.nodes);
            named.map(|node| (node.as_str(), false)).collect()
        }
    }
}

fn folder(fabric: &SimFabric, scope: &str, across: bool) -> String {
    let single = fabric.claims.iter().any(|c| c.name == scope && c.nodes == [scope.to_owned()]);
    match across && !single {
        true => format!("domains/{scope}"),
        false => format!("nodes/{scope}"),
    }
}

fn outputs(bench: &ToolInvocation<'_>, what: RecordedTool) -> Vec<(String, SimToolOutput)> {
    let tools = &bench.scenario.tools;
    let one = |name: &str, output| vec![(name.to_owned(), output)];
    match what {
        RecordedTool::Nvbandwidth
        | RecordedTool::NvbandwidthDomain
        | RecordedTool::NvbandwidthBetween => {
            let tests = if bench.spans_domain { &tools.domain_tests } else { &tools.node_tests };
            let version = tools.nvbandwidth;
            let run = bench.run_nvbandwidth(version, tests);
            match tools.nvbandwidth_format {
                SimToolFormat::Text => {
                    one("nvbandwidth.txt", render::nvbandwidth::render_text(bench, version, &run))
                }
                SimToolFormat::Json => one(
                    "nvbandwidth.json",
                    render::nvbandwidth_json::render_json(bench, version, &run),
                ),
            }
        }
        RecordedTool::Collectives => tools
            .collectives
            .iter()
            .filter_map(|program| {
                Some((program, bench.run_collective(program, tools.bytes, bench.gpus())?))
            })
            .map(|(program, run)| match tools.nccl_format {
                SimToolFormat::Text => {
                    (format!("{program}.txt"), render::nccl::render_text(bench, &run))
                }
                SimToolFormat::Json => {
                    let document = render::nccl_json::render_json(bench, &run);
                    (format!("{program}.json"), SimToolOutput::success(document))
                }
            })
            .collect(),
        RecordedTool::P2p => {
            one("p2pBandwidthLatencyTest.txt", render::p2p::render_text(bench, false))
        }
        RecordedTool::NvlinkStatus => {
            one("nvidia-smi-nvlink.txt", render::smi::render_nvlink_status(bench))
        }
        RecordedTool::Topo => one("nvidia-smi-topo.txt", render::smi::render_topology(bench)),
        RecordedTool::Query => one("nvidia-smi-q.txt", render::smi::render_query(bench)),
        RecordedTool::Imex => match tools.imex_format {
            SimToolFormat::Text => one("nvidia-imex-ctl.txt", render::imex::render_text(bench)),
            SimToolFormat::Json => one("nvidia-imex-ctl.json", render::imex::render_json(bench)),
        },
        RecordedTool::IbWriteBw => nic_outputs(bench),
    }
}

/// `ib_write_bw` of a node's NICs: all of them if the scenario describes its network, else the
/// first.
fn nic_outputs(bench: &ToolInvocation<'_>) -> Vec<(String, SimToolOutput)> {
    let network = &bench.fabric.network;
    let Ok(node) = bench.fabric.node(bench.scope) else { return Vec::new() };
    let rails = if network.is_described { network.rail_count(node) } else { 1 };
    (0..rails)
        .map(|rail| {
            let name = match network.is_described {
                true => format!("ib_write_bw_{}.txt", network::rail_name(rail)),
                false => "ib_write_bw.txt".to_owned(),
            };
            let output = match network.is_up(node, rail) {
                true => render::perftest::render_bandwidth(bench, &SimPerftestRun::all_sizes(rail)),
                false => render::perftest::link_down(),
            };
            (name, output)
        })
        .collect()
}

/// Truncates an output if a fault demands it.
pub fn truncate_output(bench: &ToolInvocation<'_>, tool: &str, mut text: String) -> String {
    for fault in &bench.scenario.faults {
        if let SimFault::Truncated { scope, tool: name, share } = fault
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
