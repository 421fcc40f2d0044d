//! Answering as one tool on one node, for launchers that run tools by name.
//!
//! The arguments understood are those that probes use; others are accepted
//! and change nothing. What a tool does besides printing (to listen, to hang)
//! is told, not done: the command line does it.

use super::bench::Bench;
use super::cases;
use super::collective::CollectiveRun;
use super::mpi;
use super::mpi::Environment;
use super::mpi::Job;
use super::pair;
use super::record;
use super::render;
use super::render::Answer;
use super::scenario::Group;
use super::scenario::Scenario;
use super::tooling::Nvbandwidth;
use super::unwell;
use super::unwell::Ailment;

/// The programs that are answered for, each under its own name.
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

/// The native TCP probe, as faults name it: it has no name of its own to be
/// called by.
pub const TCP_PROBE: &str = "fabricgate-tcp";

/// The native GPU probes, likewise.
pub const COPY_PROBE: &str = "fabricgate-copy";
/// The one of collectives.
pub const COLLECTIVE_PROBE: &str = "fabricgate-collective";
/// The one that asks what may be shared.
pub const FABRIC_PROBE: &str = "fabricgate-fabric";

/// Probes that faults may name beside tools.
pub const PROBES: &[&str] = &[TCP_PROBE, COPY_PROBE, COLLECTIVE_PROBE, FABRIC_PROBE];

/// What a tool does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It prints and ends.
    Says(Answer),
    /// It prints, listens at a port until one client was there, prints again
    /// and ends.
    Serves {
        /// The port.
        port: u16,
        /// What it prints first.
        before: String,
        /// What it prints in the end.
        answer: Answer,
    },
    /// It connects to a server at a port and prints one answer, or another one
    /// where nobody listens.
    Calls {
        /// The port.
        port: u16,
        /// What it prints.
        answer: Answer,
        /// What it prints where nobody listens.
        refused: Answer,
    },
    /// It never ends.
    Hangs,
    /// It prints without end.
    Floods,
}

/// Runs the tool of this name with these arguments; `None` where there is no
/// such tool. What it does besides printing is left out.
pub fn run(bench: &Bench<'_>, name: &str, args: &[String]) -> Option<Answer> {
    match call(bench, name, args, &Environment::new())? {
        Reply::Says(answer) | Reply::Serves { answer, .. } | Reply::Calls { answer, .. } => {
            Some(answer)
        }
        Reply::Hangs | Reply::Floods => Some(Answer::default()),
    }
}

/// A command without the `env NAME=VALUE ...` in front of it, and what that sets.
pub fn environment(argv: &[String]) -> (Environment, &[String]) {
    let mut set = Environment::new();
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

/// What the tool of this name does with these arguments and variables; `None`
/// where there is no such tool.
pub fn call(
    bench: &Bench<'_>,
    name: &str,
    args: &[String],
    environment: &Environment,
) -> Option<Reply> {
    if NAMES.contains(&name) && unwell::without(bench.scenario, &[bench.scope], name).is_some() {
        return Some(Reply::Says(unwell::not_found(name)));
    }
    if name == "mpirun" {
        return Some(launched(bench, args, environment));
    }
    let told = Job { hosts: Vec::new(), environment: environment.clone() };
    let bench = &Bench { job: bench.job.or(Some(&told)), ..*bench };
    if let Some(reply) = unwell(bench, name) {
        return Some(reply);
    }
    let alone = ["nvidia-smi", "p2pBandwidthLatencyTest", "ib_write_bw", "ib_read_bw", "iperf3"];
    if bench.across && alone.contains(&name) {
        let why = format!("{name}: runs on one node, not across {}\n", bench.scope);
        return Some(Reply::Says(Answer::ended(String::new(), why, 1)));
    }
    let mut reply = match name {
        "ib_write_bw" => pair::perftest(bench, args, false),
        "ib_read_bw" => pair::perftest(bench, args, true),
        "iperf3" => pair::iperf3(bench, args),
        _ => Reply::Says(prints(bench, name, args)?),
    };
    if let Reply::Says(answer) | Reply::Serves { answer, .. } | Reply::Calls { answer, .. } =
        &mut reply
    {
        // Faults name an output as its recording is named.
        let recorded = match (name, args.first().map(String::as_str)) {
            ("nvidia-smi", Some("nvlink")) => "nvidia-smi-nvlink",
            ("nvidia-smi", Some("topo")) => "nvidia-smi-topo",
            ("nvidia-smi", Some("-q" | "--query")) => "nvidia-smi-q",
            _ => name,
        };
        answer.stdout = record::cut(bench, recorded, std::mem::take(&mut answer.stdout));
    }
    Some(reply)
}

/// A tool that prints and ends.
fn prints(bench: &Bench<'_>, name: &str, args: &[String]) -> Option<Answer> {
    Some(match name {
        "nvbandwidth" => nvbandwidth(bench, args),
        "p2pBandwidthLatencyTest" => {
            render::p2p::text(bench, args.iter().any(|arg| arg == "--p2p_read"))
        }
        "nvidia-smi" => nvidia_smi(bench, args),
        "nvidia-imex-ctl" => match args.iter().any(|arg| arg == "-j") {
            true => render::imex::json(bench),
            false => render::imex::text(bench),
        },
        "nvloom_cli" => nvloom(bench, args),
        _ => nccl(bench, name, args)?,
    })
}

/// What a tool does that is not well on one of the nodes.
fn unwell(bench: &Bench<'_>, name: &str) -> Option<Reply> {
    let gpus = bench.gpus();
    let mut nodes = bench.node_names(&gpus);
    nodes.push(bench.scope);
    ailing(bench.scenario, &nodes, name)
}

/// What a tool does that is not well on one of these nodes.
pub fn ailing(scenario: &Scenario, nodes: &[&str], name: &str) -> Option<Reply> {
    Some(match unwell::ailment(scenario, nodes, name)? {
        Ailment::Hangs => Reply::Hangs,
        Ailment::Floods => Reply::Floods,
        Ailment::Garbage => Reply::Says(Answer::of(unwell::GARBAGE.to_owned())),
    })
}

/// `mpirun`: one rank per GPU of the hosts it names.
fn launched(bench: &Bench<'_>, args: &[String], environment: &Environment) -> Reply {
    if let Some(reply) = unwell(bench, "mpirun") {
        return reply;
    }
    let launch = match mpi::read(args, environment, bench.scope, bench.fabric) {
        Ok(launch) => launch,
        Err(answer) => return Reply::Says(answer),
    };
    let hosts = &launch.job.hosts;
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    if let Some(node) = unwell::without(bench.scenario, &names, &launch.program) {
        return Reply::Says(mpi::no_program(node, &launch.program));
    }
    // A run inside one claimed domain is one of that domain.
    let domain = bench.fabric.claim_of(names.iter().copied());
    let scope = match domain {
        Some(claim) => claim.name.as_str(),
        None => hosts.first().map_or(bench.scope, |host| host.name.as_str()),
    };
    let bench = Bench { scope, across: true, job: Some(&launch.job), ..*bench };
    let first = hosts.first().map_or("", |host| host.name.as_str());
    match call(&bench, &launch.program, &launch.args, environment) {
        Some(Reply::Says(answer)) => Reply::Says(mpi::epilogue(answer)),
        Some(reply) => reply,
        None => Reply::Says(mpi::no_program(first, &launch.program)),
    }
}

fn nvbandwidth(bench: &Bench<'_>, args: &[String]) -> Answer {
    let mut version = bench.scenario.tools.nvbandwidth;
    let wanted = values(args, &["-t", "--testcase"]);
    let prefixes = values(args, &["-p", "--testcasePrefixes"]);
    // The build with MPI is meant when a test across nodes is asked for.
    let across = wanted.iter().chain(&prefixes).any(|name| name.starts_with("multinode"));
    let launched = bench.job.is_some_and(|job| !job.hosts.is_empty());
    if launched && across {
        version = version.max(Nvbandwidth::V0_8);
    }
    let is_here = |claim: &&Group| {
        claim.name == bench.scope || claim.nodes.iter().any(|node| node == bench.scope)
    };
    let claims = &bench.fabric.claims;
    let claim = if across && !launched { claims.iter().find(is_here) } else { None };
    let mut bench = *bench;
    if let Some(claim) = claim {
        bench = Bench { scope: &claim.name, across: true, ..bench };
        version = version.max(Nvbandwidth::V0_8);
    }
    let known = cases::list(version, bench.across);
    if args.iter().any(|arg| arg == "-l" || arg == "--list") {
        return render::nvbandwidth::list(version, &known);
    }
    let mut tests = wanted;
    if !prefixes.is_empty() {
        let fits = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
        tests = known.iter().filter(|c| fits(c.name)).map(|c| c.name.to_owned()).collect();
        if tests.is_empty() {
            let stderr = "Specified list of testcase prefixes did not match any testcases\n";
            return Answer { stderr: stderr.to_owned(), code: 1, ..Answer::default() };
        }
    }
    // A test may be named by its number.
    for test in &mut tests {
        let by_number = test.parse::<usize>().ok().and_then(|number| known.get(number));
        if let Some(case) = by_number {
            *test = case.name.to_owned();
        }
    }
    let run = bench.nvbandwidth(version, &tests);
    let as_json = args.iter().any(|arg| arg == "-j" || arg == "--json");
    match as_json {
        true if !version.has_json() => Answer::ended(
            format!("ERROR: Invalid Arguments \nnvbandwidth {} \n\n", args.join(" ")),
            String::new(),
            1,
        ),
        true => render::nvbandwidth_json::json(&bench, version, &run),
        false => render::nvbandwidth::text(&bench, version, &run),
    }
}

fn nvloom(bench: &Bench<'_>, args: &[String]) -> Answer {
    let suites = values(args, &["-s", "--suite"]);
    let tests = values(args, &["-t", "--testcase"]);
    match bench.nvloom(&suites, &tests) {
        Ok(run) => render::nvloom::text(bench, &run),
        Err(name) => Answer::ended(format!("No such testcase as \"{name}\"\n"), String::new(), 1),
    }
}

fn nccl(bench: &Bench<'_>, name: &str, args: &[String]) -> Option<Answer> {
    let size = |flags: &[&str]| values(args, flags).first().and_then(|text| bytes(text));
    // 32 MiB is the tools' own default for both.
    let least = size(&["-b", "--minbytes"]).unwrap_or(32 << 20).max(1);
    let most = size(&["-e", "--maxbytes"]).unwrap_or(32 << 20);
    let mut gpus = bench.gpus();
    let wanted = values(args, &["-g", "--ngpus"]).first().and_then(|text| text.parse().ok());
    let wanted: usize = wanted.filter(|wanted| 0 < *wanted).unwrap_or(1);
    let sizes = [least, most.max(least)];
    let too_few = |wanted: usize, found: usize| {
        let stderr = format!(
            "Invalid number of GPUs: {wanted} requested but only {found} were found.\n\
             Please check the number of processes and GPUs per process.\n"
        );
        Some(Answer { stderr, code: 5, ..Answer::default() })
    };
    // The GPUs are counted before anything is asked of them.
    if bench.without_gpu().is_some() {
        let run = bench.collective(name, sizes, Vec::new())?;
        return Some(render::nccl::text(bench, &CollectiveRun { each: wanted, ..run }));
    }
    // Under a launcher every rank has -g GPUs, without one one process has
    // them, and across a claimed domain every GPU is a rank.
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
        None if bench.across => each = 1,
        None if gpus.len() < wanted => return too_few(wanted, gpus.len()),
        None => gpus.truncate(wanted),
    }
    let run = CollectiveRun { each, ..bench.collective(name, sizes, gpus)? };
    let mut answer = render::nccl::text(bench, &run);
    if let Some(path) = values(args, &["-J", "--output_file"]).into_iter().next() {
        answer.stdout = format!("# Writing JSON output to {path}\n{}", answer.stdout);
        answer.file = Some((path, render::nccl_json::json(bench, &run)));
    }
    Some(answer)
}

fn nvidia_smi(bench: &Bench<'_>, args: &[String]) -> Answer {
    if let Some(answer) = render::smi_csv::answer(bench, args) {
        return answer;
    }
    let has = |name: &str| args.iter().any(|arg| arg == name);
    match args.first().map(String::as_str) {
        Some("nvlink") if has("-s") || has("--status") => render::smi::nvlink_status(bench),
        Some("topo") if has("-m") || has("--matrix") => render::smi::topology(bench),
        Some("-q" | "--query") => render::smi::query(bench),
        _ => Answer {
            stderr: "the simulated nvidia-smi knows: nvlink -s, topo -m, -q, --query-gpu, \
                     --query-compute-apps\n"
                .to_owned(),
            code: 6,
            ..Answer::default()
        },
    }
}

/// The words after any of these flags, up to the next flag.
fn values(args: &[String], flags: &[&str]) -> Vec<String> {
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

/// A size such as `8`, `32M` or `16G`.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.to_ascii_uppercase().chars().last()? {
        'K' => (&text[..text.len() - 1], 10),
        'M' => (&text[..text.len() - 1], 20),
        'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}
