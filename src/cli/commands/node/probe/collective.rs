//! `fabricgate node probe collective`: measures the same as nccl-tests.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::cli::commands::node::probe::common;
use crate::cli::commands::node::probe::common::{GpuProbeOptions, GpuSelection, ProbeProgress};
use crate::cli::simulated_node;
use crate::cli::simulated_node::SimProbeAnswer;
use crate::cli::stdout;
use crate::exit;
use crate::exit::CommandError;
use ::sim::native_probes::collective::SimCollectiveRequest;
use engine::report;
use model::collective::CollectiveDocument;
use model::probe_report::ProbeProblem;
use node::probes::collective::formula::NcclCollective;
use node::probes::collective::nccl_path;
use node::probes::collective::nccl_path::{NcclPath, NcclPathRequest};
use node::probes::supervisor::child_output::clean;
use node::probes::supervisor::collective_document::CollectiveProbeRequest;
use node::probes::supervisor::{ProbeChildSpec, collective_document};
use node::probes::task::CollectiveTask;

/// Measure NCCL collectives over the GPUs of this node, one process per GPU, without MPI.
///
/// Tests have the names of nccl-tests; algbw and busbw are in GB/s by its formulas, times in us.
/// Results are compared with the expected values. Needs the NVIDIA driver and NCCL (libnccl.so.2,
/// also that of a Python wheel); the GPUs should be idle. The path that NCCL reports is part of the
/// output; with --assert another path is an error, because its numbers do not apply to this one.
///
/// The exit code is 0 when everything was measured, 3 when results were wrong, 4 when not
/// everything could be measured, and 5 when nothing could start.
#[derive(Clone, Debug, clap::Args)]
pub struct CollectiveArgs {
    #[command(flatten)]
    pub(crate) common: GpuProbeOptions,
    /// The NCCL library, if it is not the one that is found.
    #[arg(long, value_name = "PATH", env = "FABRICGATE_NCCL")]
    nccl: Option<PathBuf>,
    /// The GPUs that take part, by their number in the order of the PCI bus.
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = common::parse_gpus)]
    gpus: GpuSelection,
    /// Tests by nccl-tests' names, in the order to run them; `all` stands for every test.
    #[arg(long, value_name = "TEST,..", value_delimiter = ',', default_value = "all_reduce_perf")]
    tests: Vec<String>,
    /// Readings of each size.
    #[arg(long, value_name = "K", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    readings: u32,
    /// The smallest message: bytes, or with K, M or G.
    #[arg(long, value_name = "BYTES", default_value = "8M", value_parser = common::parse_bytes)]
    min: u64,
    /// The largest message.
    #[arg(long, value_name = "BYTES", default_value = "8G", value_parser = common::parse_bytes)]
    max: u64,
    /// The factor from one size to the next.
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u64).range(2..=1_048_576))]
    factor: u64,
    /// Operations per reading.
    #[arg(long, value_name = "N", default_value_t = 20,
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    iterations: u32,
    /// Warm-up operations before each reading.
    #[arg(long, value_name = "N", default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(0..=1000))]
    warmup: u32,
    /// Seconds that ranks wait for each other.
    #[arg(long, value_name = "S", default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: u64,
    #[command(flatten)]
    path: CollectivePathArgs,
}

/// The path of the data.
#[derive(Clone, Debug, clap::Args)]
struct CollectivePathArgs {
    /// The path that NCCL must take: fabricgate forces it, and another path is an error.
    #[arg(long, value_name = "PATH", value_parser = ["mnnvl", "nvls", "p2p", "ib", "socket"])]
    assert: Option<String>,
    /// The only network device to use, `mlx5_3`, or several with commas.
    #[arg(long, value_name = "DEV")]
    rail: Option<String>,
    /// The network interface that ranks use to find each other, `eth0`.
    #[arg(long, value_name = "IF")]
    interface: Option<String>,
    /// Do not use NVLink between nodes.
    #[arg(long)]
    no_mnnvl: bool,
    /// Do not reduce in NVLink switches.
    #[arg(long)]
    no_nvls: bool,
    /// Use blocking communicators, as nccl-tests does: a rank that waits for a missing one is then
    /// killed instead of aborted.
    #[arg(long)]
    blocking: bool,
}

impl CollectivePathArgs {
    fn asserted_path(&self) -> Option<NcclPath> {
        self.assert.as_deref().and_then(NcclPath::from_name)
    }

    fn environment(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let mut environment = nccl_path::nccl_environment(&NcclPathRequest {
            path: self.asserted_path(),
            rail: self.rail.clone(),
            interface: self.interface.clone(),
            blocking: self.blocking,
        });
        for (is_off, path, name) in [
            (self.no_mnnvl, NcclPath::Mnnvl, "NCCL_MNNVL_ENABLE"),
            (self.no_nvls, NcclPath::Nvls, "NCCL_NVLS_ENABLE"),
        ] {
            if !is_off {
                continue;
            }
            if self.asserted_path() == Some(path) {
                let name = path.name();
                let why = format!("--assert {name} and --no-{name} exclude each other");
                return Err(CommandError::usage(why).into());
            }
            environment.insert(name.to_owned(), "0".to_owned());
        }
        Ok(environment)
    }
}

impl CollectiveArgs {
    fn tests(&self) -> Vec<String> {
        match self.tests.as_slice() {
            [all] if all == "all" => {
                NcclCollective::ALL.iter().map(|it| it.name().to_owned()).collect()
            }
            tests => tests.to_vec(),
        }
    }

    fn build_request(&self) -> anyhow::Result<CollectiveProbeRequest> {
        if self.max < self.min {
            let why = format!("--min {} is above --max {}", self.min, self.max);
            return Err(CommandError::usage(why).into());
        }
        Ok(CollectiveProbeRequest {
            node: self.common.node_name(),
            tests: self.tests(),
            path: self.path.asserted_path(),
            environment: self.path.environment()?,
        })
    }

    fn build_task(&self, request: &CollectiveProbeRequest, gpu: u32) -> CollectiveTask {
        CollectiveTask {
            cuda: self.common.cuda.clone(),
            root: self.common.root.clone(),
            nccl: self.nccl.clone(),
            node: request.node.clone(),
            gpu,
            tests: request.tests.clone(),
            readings: self.readings,
            least_bytes: self.min,
            most_bytes: self.max,
            factor: self.factor,
            iterations: self.iterations,
            warmup: self.warmup,
            patience_s: self.patience,
        }
    }
}

/// Measures and prints.
pub fn run(args: &CollectiveArgs, json: bool, progress: &mut ProbeProgress) -> anyhow::Result<u8> {
    let request = args.build_request()?;
    if args.common.dry_run {
        stdout::write_text(&describe_plan(args, &request, progress)?)?;
        return Ok(exit::PASS);
    }
    let nodes = common::read_simulated_nodes(args.common.on_all_nodes)?;
    let sim_request = SimCollectiveRequest {
        tests: &request.tests,
        readings: args.readings,
        bytes: [args.min, args.max],
        factor: args.factor,
        iterations: args.iterations,
        asserted: request.path.map(simulated_name),
    };
    let simulated = simulated_node::answer_collective_probe(
        &sim_request,
        &args.gpus.0,
        &nodes,
        &request.environment,
    );
    let document = match simulated {
        Some(simulated) => match simulated? {
            SimProbeAnswer::Document(document) => document,
            SimProbeAnswer::Ended(code) => return Ok(code),
        },
        None => measure(args, &request, progress)?,
    };
    if json || args.common.on_all_nodes {
        common::print_line(&document)?;
    } else {
        stdout::write_text(&report::collective_probe::render(&document))?;
    }
    // With several nodes, the first one's document has the numbers of all.
    let begun = document.tests.iter().any(|test| !test.points.is_empty()) || document.complete;
    Ok(common::exit_code(document.complete, begun, &document.problems))
}

/// The name of a path in simulated NCCL output.
fn simulated_name(path: NcclPath) -> &'static str {
    match path {
        NcclPath::Mnnvl => "MNNVL",
        NcclPath::Nvls => "NVLS",
        NcclPath::P2p => "P2P/CUMEM",
        NcclPath::Ib => "NET/IB",
        NcclPath::Socket => "NET/Socket",
    }
}

fn measure(
    args: &CollectiveArgs,
    request: &CollectiveProbeRequest,
    progress: &mut ProbeProgress,
) -> anyhow::Result<CollectiveDocument> {
    let (listed, lacking) = match common::list_gpus(&args.common, progress)? {
        Ok(listed) => listed.select(&args.gpus),
        // Ranks that cannot start would keep other nodes waiting in vain.
        Err(problems) => return Ok(CollectiveDocument { problems, ..request.empty_document() }),
    };
    let mut work = args.common.build_work()?;
    work.exchanges_lists = true;
    // Ranks that wait for NCCL send no messages meanwhile, and have their own time limit.
    let patience = Duration::from_secs(args.patience + ENDING_S);
    work.max_silence = work.max_silence.max(patience);
    for gpu in listed {
        let mut env = common::child_environment();
        env.extend(request.environment.clone());
        work.children.push(ProbeChildSpec {
            name: format!("GPU {gpu}"),
            gpu: Some(gpu),
            args: common::child_command("collective-child", &args.build_task(request, gpu))?,
            env,
        });
    }
    let output = common::run_supervised(&work, args.common.on_all_nodes, progress)?;
    let around = common::driver_telemetry(&output);
    let mut document =
        CollectiveDocument { around, ..collective_document::build_document(request, &output) };
    document.complete &= lacking.is_empty();
    document.problems.extend(lacking);
    Ok(document)
}

/// Seconds that a rank may take to abort an unusable communicator.
const ENDING_S: u64 = 15;

/// Describes the measurement without running it.
fn describe_plan(
    args: &CollectiveArgs,
    request: &CollectiveProbeRequest,
    progress: &mut ProbeProgress,
) -> anyhow::Result<String> {
    let gpus = match common::list_gpus(&args.common, progress)? {
        Ok(listed) => format!("{:?}", listed.select(&args.gpus).0),
        Err(problems) => first_problem(&problems),
    };
    let tests: Vec<String> = request.tests.iter().map(|test| clean(test)).collect();
    Ok(format!(
        "tests   {}\nsizes   {} to {} bytes, times {} each\nover    {} readings of {} operations\n\
         GPUs    {gpus}\n",
        tests.join(", "),
        args.min,
        args.max,
        args.factor,
        args.readings,
        args.iterations
    ))
}

fn first_problem(problems: &[ProbeProblem]) -> String {
    problems.first().map_or_else(|| "none".to_owned(), |problem| clean(&problem.detail))
}
