//! Answers for one tool on one node, for launchers that run tools by name.
//!
//! Supports the arguments that probes use; other arguments are accepted and ignored. Actions other
//! than printing (listening, hanging) are returned, not executed: the command line executes them.

use super::collective::SimCollectiveRun;
use super::invocation::ToolInvocation;
use super::misbehaviour::ToolMisbehaviour;
use super::mpirun::{MpiEnvironment, MpiJob};
use super::render::SimToolOutput;
use super::scenario::{ExpandedDomain, Scenario};
use super::tool_config::NvbandwidthLayout;
use super::{cases, client_server, misbehaviour, mpirun, recorded_files, render};

/// The simulated programs, by name.
pub const NAMES: &[&str] = &[
    "nvbandwidth",
    "nvidia-smi",
    "nvidia-imex-ctl",
    "p2pBandwidthLatencyTest",
    "all_reduce_perf",
    "all_gather_perf",
    "reduce_scatter_perf",
    "alltoall_perf",
    "broadcast_perf",
    "reduce_perf",
    "sendrecv_perf",
    "ib_write_bw",
    "ib_read_bw",
    "iperf3",
    "nvloom_cli",
    "mpirun",
];

/// The name of the native TCP probe in faults: it has no program name.
pub const TCP_PROBE: &str = "fabricgate-tcp";

/// The native copy probe.
pub const COPY_PROBE: &str = "fabricgate-copy";
/// The native NCCL probe.
pub const COLLECTIVE_PROBE: &str = "fabricgate-collective";
/// The native fabric probe.
pub const FABRIC_PROBE: &str = "fabricgate-fabric";

/// Probes that faults may name in addition to tools.
pub const PROBES: &[&str] = &[TCP_PROBE, COPY_PROBE, COLLECTIVE_PROBE, FABRIC_PROBE];

/// Action of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SimToolReply {
    /// It prints and ends.
    Prints(SimToolOutput),
    /// It prints, listens on a port until one client has connected, prints again and ends.
    Serves {
        /// The port.
        port: u16,
        /// Output at the start.
        before: String,
        /// Output at the end.
        answer: SimToolOutput,
    },
    /// It connects to a server on a port and prints one output, or another one if no server
    /// listens.
    Connects {
        /// The port.
        port: u16,
        /// Output after the connection.
        answer: SimToolOutput,
        /// Output without a server.
        refused: SimToolOutput,
    },
    /// It never ends.
    Hangs,
    /// It prints forever.
    Floods,
}

/// Runs the tool of this name with these arguments; `None` if the tool does not exist. Actions
/// other than printing are dropped.
pub fn run_tool(bench: &ToolInvocation<'_>, name: &str, args: &[String]) -> Option<SimToolOutput> {
    match call_tool(bench, name, args, &MpiEnvironment::new())? {
        SimToolReply::Prints(answer)
        | SimToolReply::Serves { answer, .. }
        | SimToolReply::Connects { answer, .. } => Some(answer),
        SimToolReply::Hangs | SimToolReply::Floods => Some(SimToolOutput::default()),
    }
}

/// Splits `env NAME=VALUE ...` from a command, and returns these variables.
pub fn split_environment(argv: &[String]) -> (MpiEnvironment, &[String]) {
    let mut set = MpiEnvironment::new();
    let [env, rest @ ..] = argv else { return (set, argv) };
    if env != "env" {
        return (set, argv);
    }
    let mut rest = rest;
    while let [word, after @ ..] = rest
        && let Some((name, value)) = word.split_once('=')
    {
        set.insert(name.to_owned(), value.to_owned());
        rest = after;
    }
    (set, rest)
}

/// The action of the tool with these arguments and variables; `None` if the tool does not exist.
pub fn call_tool(
    bench: &ToolInvocation<'_>,
    name: &str,
    args: &[String],
    environment: &MpiEnvironment,
) -> Option<SimToolReply> {
    if NAMES.contains(&name)
        && misbehaviour::node_without_tool(bench.scenario, &[bench.scope], name).is_some()
    {
        return Some(SimToolReply::Prints(misbehaviour::not_found(name)));
    }
    if name == "mpirun" {
        return Some(run_mpirun(bench, args, environment));
    }
    let placed = MpiJob { hosts: Vec::new(), environment: environment.clone() };
    let bench = &ToolInvocation { job: bench.job.or(Some(&placed)), ..*bench };
    if let Some(reply) = invocation_misbehaviour(bench, name) {
        return Some(reply);
    }
    let alone = ["nvidia-smi", "p2pBandwidthLatencyTest", "ib_write_bw", "ib_read_bw", "iperf3"];
    if bench.spans_domain && alone.contains(&name) {
        let why = format!("{name}: runs on one node, not across {}\n", bench.scope);
        return Some(SimToolReply::Prints(SimToolOutput::with_exit_code(String::new(), why, 1)));
    }
    let mut reply = match name {
        "ib_write_bw" => client_server::run_perftest(bench, args, false),
        "ib_read_bw" => client_server::run_perftest(bench, args, true),
        "iperf3" => client_server::run_iperf3(bench, args),
        _ => SimToolReply::Prints(run_printing_tool(bench, name, args)?),
    };
    if let SimToolReply::Prints(answer)
    | SimToolReply::Serves { answer, .. }
    | SimToolReply::Connects { answer, .. } = &mut reply
    {
        // Faults use the names of recordings.
        let recorded = match (name, args.first().map(String::as_str)) {
            ("nvidia-smi", Some("nvlink")) => "nvidia-smi-nvlink",
            ("nvidia-smi", Some("topo")) => "nvidia-smi-topo",
            ("nvidia-smi", Some("-q" | "--query")) => "nvidia-smi-q",
            _ => name,
        };
        answer.stdout =
            recorded_files::truncate_output(bench, recorded, std::mem::take(&mut answer.stdout));
    }
    Some(reply)
}

/// Runs a tool that prints and ends.
fn run_printing_tool(
    bench: &ToolInvocation<'_>,
    name: &str,
    args: &[String],
) -> Option<SimToolOutput> {
    Some(match name {
        "nvbandwidth" => run_nvbandwidth(bench, args),
        "p2pBandwidthLatencyTest" => {
            render::p2p::render_text(bench, args.iter().any(|arg| arg == "--p2p_read"))
        }
        "nvidia-smi" => run_nvidia_smi(bench, args),
        "nvidia-imex-ctl" => match args.iter().any(|arg| arg == "-j") {
            true => render::imex::render_json(bench),
            false => render::imex::render_text(bench),
        },
        "nvloom_cli" => run_nvloom(bench, args),
        _ => run_nccl_tests(bench, name, args)?,
    })
}

/// The misbehaviour of a tool on one of the run's nodes.
fn invocation_misbehaviour(bench: &ToolInvocation<'_>, name: &str) -> Option<SimToolReply> {
    let gpus = bench.gpus();
    let mut nodes = bench.node_names(&gpus);
    nodes.push(bench.scope);
    node_misbehaviour(bench.scenario, &nodes, name)
}

/// The misbehaviour of a tool on one of these nodes.
pub fn node_misbehaviour(scenario: &Scenario, nodes: &[&str], name: &str) -> Option<SimToolReply> {
    Some(match misbehaviour::find_misbehaviour(scenario, nodes, name)? {
        ToolMisbehaviour::Hangs => SimToolReply::Hangs,
        ToolMisbehaviour::Floods => SimToolReply::Floods,
        ToolMisbehaviour::Garbage => {
            SimToolReply::Prints(SimToolOutput::success(misbehaviour::GARBAGE.to_owned()))
        }
    })
}

/// `mpirun`: one rank per GPU of the given hosts.
fn run_mpirun(
    bench: &ToolInvocation<'_>,
    args: &[String],
    environment: &MpiEnvironment,
) -> SimToolReply {
    if let Some(reply) = invocation_misbehaviour(bench, "mpirun") {
        return reply;
    }
    let launch = match mpirun::parse_command(args, environment, bench.scope, bench.fabric) {
        Ok(launch) => launch,
        Err(answer) => return SimToolReply::Prints(answer),
    };
    let hosts = &launch.job.hosts;
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    if let Some(node) = misbehaviour::node_without_tool(bench.scenario, &names, &launch.program) {
        return SimToolReply::Prints(mpirun::program_not_found(node, &launch.program));
    }
    // A run within one claimed domain has that domain as its scope.
    let domain = bench.fabric.claim_of(names.iter().copied());
    let scope = match domain {
        Some(claim) => claim.name.as_str(),
        None => hosts.first().map_or(bench.scope, |host| host.name.as_str()),
    };
    let bench = ToolInvocation { scope, spans_domain: true, job: Some(&launch.job), ..*bench };
    let first = hosts.first().map_or("", |host| host.name.as_str());
    match call_tool(&bench, &launch.program, &launch.args, environment) {
        Some(SimToolReply::Prints(answer)) => SimToolReply::Prints(mpirun::add_epilogue(answer)),
        Some(reply) => reply,
        None => SimToolReply::Prints(mpirun::program_not_found(first, &launch.program)),
    }
}

fn run_nvbandwidth(bench: &ToolInvocation<'_>, args: &[String]) -> SimToolOutput {
    let mut version = bench.scenario.tools.nvbandwidth;
    let wanted = flag_values(args, &["-t", "--testcase"]);
    let prefixes = flag_values(args, &["-p", "--testcasePrefixes"]);
    // A test across nodes selects the build with MPI.
    let across = wanted.iter().chain(&prefixes).any(|name| name.starts_with("multinode"));
    let launched = bench.job.is_some_and(|job| !job.hosts.is_empty());
    if launched && across {
        version = version.max(NvbandwidthLayout::V0_8);
    }
    let is_here = |claim: &&ExpandedDomain| {
        claim.name == bench.scope || claim.nodes.iter().any(|node| node == bench.scope)
    };
    let claims = &bench.fabric.claims;
    let claim = if across && !launched { claims.iter().find(is_here) } else { None };
    let mut bench = *bench;
    if let Some(claim) = claim {
        bench = ToolInvocation { scope: &claim.name, spans_domain: true, ..bench };
        version = version.max(NvbandwidthLayout::V0_8);
    }
    let known = cases::cases_of_version(version, bench.spans_domain);
    if args.iter().any(|arg| arg == "-l" || arg == "--list") {
        return render::nvbandwidth::render_list(version, &known);
    }
    let mut tests = wanted;
    if !prefixes.is_empty() {
        let fits = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
        tests = known.iter().filter(|c| fits(c.name)).map(|c| c.name.to_owned()).collect();
        if tests.is_empty() {
            let stderr = "Specified list of testcase prefixes did not match any testcases\n";
            return SimToolOutput {
                stderr: stderr.to_owned(),
                code: 1,
                ..SimToolOutput::default()
            };
        }
    }
    // A test can be given by its number.
    for test in &mut tests {
        let by_number = test.parse::<usize>().ok().and_then(|number| known.get(number));
        if let Some(case) = by_number {
            *test = case.name.to_owned();
        }
    }
    let run = bench.run_nvbandwidth(version, &tests);
    let as_json = args.iter().any(|arg| arg == "-j" || arg == "--json");
    match as_json {
        true if !version.has_json() => SimToolOutput::with_exit_code(
            format!("ERROR: Invalid Arguments \nnvbandwidth {} \n\n", args.join(" ")),
            String::new(),
            1,
        ),
        true => render::nvbandwidth_json::render_json(&bench, version, &run),
        false => render::nvbandwidth::render_text(&bench, version, &run),
    }
}

fn run_nvloom(bench: &ToolInvocation<'_>, args: &[String]) -> SimToolOutput {
    let suites = flag_values(args, &["-s", "--suite"]);
    let tests = flag_values(args, &["-t", "--testcase"]);
    match bench.run_nvloom(&suites, &tests) {
        Ok(run) => render::nvloom::render_text(bench, &run),
        Err(name) => SimToolOutput::with_exit_code(
            format!("No such testcase as \"{name}\"\n"),
            String::new(),
            1,
        ),
    }
}

fn run_nccl_tests(
    bench: &ToolInvocation<'_>,
    name: &str,
    args: &[String],
) -> Option<SimToolOutput> {
    let size = |flags: &[&str]| flag_values(args, flags).first().and_then(|text| parse_size(text));
    // 32 MiB is the default of both tools.
    let least = size(&["-b", "--minbytes"]).unwrap_or(32 << 20).max(1);
    let most = size(&["-e", "--maxbytes"]).unwrap_or(32 << 20);
    let mut gpus = bench.gpus();
    let wanted = flag_values(args, &["-g", "--ngpus"]).first().and_then(|text| text.parse().ok());
    let wanted: usize = wanted.filter(|wanted| 0 < *wanted).unwrap_or(1);
    let sizes = [least, most.max(least)];
    let too_few = |wanted: usize, found: usize| {
        let stderr = format!(
            "Invalid number of GPUs: {wanted} requested but only {found} were found.\n\
             Please check the number of processes and GPUs per process.\n"
        );
        Some(SimToolOutput { stderr, code: 5, ..SimToolOutput::default() })
    };
    // The GPUs are counted before any other step.
    if bench.first_host_without_gpu().is_some() {
        let run = bench.run_collective(name, sizes, Vec::new())?;
        return Some(render::nccl::render_text(
            bench,
            &SimCollectiveRun { gpus_per_process: wanted, ..run },
        ));
    }
    // Under a launcher every rank has -g GPUs; without one, a single process has them; across a
    // claimed domain every GPU is a rank.
    let mut each = wanted;
    match bench.job.map(|job| &job.hosts).filter(|hosts| !hosts.is_empty()) {
        Some(hosts) => {
            gpus.clear();
            for host in hosts {
                let own = bench.fabric.gpus_of([&host.name]);
                let ranks = host.ranks * wanted;
                if own.len() < ranks {
                    return too_few(ranks, own.len());
                }
                gpus.extend(own.into_iter().take(ranks));
            }
        }
        None if bench.spans_domain => each = 1,
        None if gpus.len() < wanted => return too_few(wanted, gpus.len()),
        None => gpus.truncate(wanted),
    }
    let run =
        SimCollectiveRun { gpus_per_process: each, ..bench.run_collective(name, sizes, gpus)? };
    let mut output = render::nccl::render_text(bench, &run);
    if let Some(path) = flag_values(args, &["-J", "--output_file"]).into_iter().next() {
        output.stdout = format!("# Writing JSON output to {path}\n{}", output.stdout);
        output.file = Some((path, render::nccl_json::render_json(bench, &run)));
    }
    Some(output)
}

fn run_nvidia_smi(bench: &ToolInvocation<'_>, args: &[String]) -> SimToolOutput {
    if let Some(answer) = render::smi_csv::answer_query(bench, args) {
        return answer;
    }
    let has = |name: &str| args.iter().any(|arg| arg == name);
    match args.first().map(String::as_str) {
        Some("nvlink") if has("-s") || has("--status") => render::smi::render_nvlink_status(bench),
        Some("topo") if has("-m") || has("--matrix") => render::smi::render_topology(bench),
        Some("-q" | "--query") => render::smi::render_query(bench),
        _ => SimToolOutput {
            stderr: "the simulated nvidia-smi knows: nvlink -s, topo -m, -q, --query-gpu, \
                     --query-compute-apps\n"
                .to_owned(),
            code: 6,
            ..SimToolOutput::default()
        },
    }
}

/// The arguments after any of these flags, up to the next flag.
fn flag_values(args: &[String], flags: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut taking = false;
    for arg in args {
        if arg.starts_with('-') {
            taking = flags.contains(&arg.as_str());
        } else if taking {
            found.push(arg.clone());
        }
    }
    found
}

/// Parses a size such as `8`, `32M` or `16G`.
pub(super) fn parse_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.to_ascii_uppercase().chars().last()? {
        'K' => (&text[..text.len() - 1], 10),
        'M' => (&text[..text.len() - 1], 20),
        'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}
