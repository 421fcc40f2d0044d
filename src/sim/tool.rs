//! Answering as one tool on one node, for launchers that run tools by name.
//!
//! The arguments understood are those that probes use; others are accepted
//! and change nothing.

use super::bench::Bench;
use super::cases;
use super::record;
use super::render;
use super::render::Answer;
use super::tooling::Nvbandwidth;

/// Runs the tool of this name with these arguments; `None` where there is no
/// such tool.
pub fn run(bench: &Bench<'_>, name: &str, args: &[String]) -> Option<Answer> {
    if bench.across && ["nvidia-smi", "p2pBandwidthLatencyTest", "ib_write_bw"].contains(&name) {
        let why = format!("{name}: runs on one node, not across {}\n", bench.scope);
        return Some(Answer::ended(String::new(), why, 1));
    }
    let mut answer = match name {
        "nvbandwidth" => nvbandwidth(bench, args),
        "p2pBandwidthLatencyTest" => {
            render::p2p::text(bench, args.iter().any(|arg| arg == "--p2p_read"))
        }
        "nvidia-smi" => nvidia_smi(bench, args),
        "nvidia-imex-ctl" => match args.iter().any(|arg| arg == "-j") {
            true => render::imex::json(bench),
            false => render::imex::text(bench),
        },
        "ib_write_bw" => {
            render::perftest::write_bandwidth(bench, args.iter().any(|arg| arg == "--report_gbits"))
        }
        _ => nccl(bench, name, args)?,
    };
    answer.stdout = record::cut(bench, name, answer.stdout);
    Some(answer)
}

fn nvbandwidth(bench: &Bench<'_>, args: &[String]) -> Answer {
    let mut version = bench.scenario.tools.nvbandwidth;
    let wanted = values(args, &["-t", "--testcase"]);
    let prefixes = values(args, &["-p", "--testcasePrefixes"]);
    // The build with MPI is meant when a test across nodes is asked for.
    let across = wanted.iter().chain(&prefixes).any(|name| name.starts_with("multinode"));
    let claim = bench.fabric.claims.iter().find(|claim| {
        claim.name == bench.scope || claim.nodes.iter().any(|node| node == bench.scope)
    });
    let mut bench = *bench;
    if let Some(claim) = claim.filter(|_| across) {
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

fn nccl(bench: &Bench<'_>, name: &str, args: &[String]) -> Option<Answer> {
    let size = |flags: &[&str]| values(args, flags).first().and_then(|text| bytes(text));
    // 32 MiB is the tools' own default for both.
    let least = size(&["-b", "--minbytes"]).unwrap_or(32 << 20).max(1);
    let most = size(&["-e", "--maxbytes"]).unwrap_or(32 << 20);
    let mut gpus = bench.gpus();
    // Across a domain every rank has one GPU; on one node one process has -g.
    if !bench.across {
        let wanted = values(args, &["-g", "--ngpus"]).first().and_then(|text| text.parse().ok());
        let wanted: usize = wanted.unwrap_or(1);
        if gpus.len() < wanted {
            let stderr = format!(
                "Invalid number of GPUs: {wanted} requested but only {} were found.\n\
                 Please check the number of processes and GPUs per process.\n",
                gpus.len()
            );
            return Some(Answer { stderr, code: 5, ..Answer::default() });
        }
        gpus.truncate(wanted);
    }
    let run = bench.collective(name, [least, most.max(least)], gpus)?;
    let mut answer = render::nccl::text(bench, &run);
    if let Some(path) = values(args, &["-J", "--output_file"]).into_iter().next() {
        answer.stdout = format!("# Writing JSON output to {path}\n{}", answer.stdout);
        answer.file = Some((path, render::nccl_json::json(bench, &run)));
    }
    Some(answer)
}

fn nvidia_smi(bench: &Bench<'_>, args: &[String]) -> Answer {
    let has = |name: &str| args.iter().any(|arg| arg == name);
    match args.first().map(String::as_str) {
        Some("nvlink") if has("-s") || has("--status") => render::smi::nvlink_status(bench),
        Some("topo") if has("-m") || has("--matrix") => render::smi::topology(bench),
        Some("-q" | "--query") => render::smi::query(bench),
        _ => Answer {
            stderr: "the simulated nvidia-smi knows: nvlink -s, topo -m, -q\n".to_owned(),
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
fn bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.to_ascii_uppercase().chars().last()? {
        'K' => (&text[..text.len() - 1], 10),
        'M' => (&text[..text.len() - 1], 20),
        'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}
