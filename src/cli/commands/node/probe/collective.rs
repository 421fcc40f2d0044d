//! `fabricgate node probe collective`: what nccl-tests measures.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::cli::commands::node::probe::common;
use crate::cli::commands::node::probe::common::{GpuProbeOptions, GpuSelection, ProbeProgress};
use crate::cli::commands::sim;
use crate::cli::commands::sim::SimProbeAnswer;
use crate::cli::stdout;
use crate::exit;
use crate::exit::CommandError;
use ::sim::native_probes::collective::SimCollectiveRequest as AskedOfSimulation;
use engine::report;
use model::collective::CollectiveDocument;
use model::probe_report::ProbeProblem;
use node::probes::collective::formula::NcclCollective;
use node::probes::collective::nccl_path;
use node::probes::collective::nccl_path::{NcclPath, NcclPathRequest};
use node::probes::collective::task::CollectiveTask;
use node::probes::supervisor::child_output::clean;
use node::probes::supervisor::collective_document::CollectiveProbeRequest;
use node::probes::supervisor::{ProbeChildSpec, collective_document};

/// Measure collectives of NCCL over the GPUs of this node, one process per GPU,
/// without MPI.
///
/// Tests are called what nccl-tests calls them; algbw and busbw are in GB/s by
/// its formulas, times in us. Results are compared with what they must be. Needs
/// the NVIDIA driver and NCCL (libnccl.so.2, also that of a Python wheel); the
/// GPUs should be idle. What NCCL says that it uses is reported; with --assert
/// another path is an error, since its numbers say nothing about this one.
///
/// Ends with 0 when everything was measured, 3 when results were wrong, 4 when
/// not everything could be measured and 5 when nothing could be begun.
#[derive(Clone, Debug, clap::Args)]
pub struct CollectiveArgs {
    #[command(flatten)]
    pub(crate) common: GpuProbeOptions,
    /// NCCL, where it is not the one that is found.
    #[arg(long, value_name = "PATH", env = "FABRICGATE_NCCL")]
    nccl: Option<PathBuf>,
    /// The GPUs that take part, by their number in the order of the PCI bus.
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = common::parse_gpus)]
    gpus: GpuSelection,
    /// Tests by nccl-tests' names, in the order they shall run; `all` are all.
    #[arg(long, value_name = "TEST,..", value_delimiter = ',', default_value = "all_reduce_perf")]
    tests: Vec<String>,
    /// Numbers taken of each size.
    #[arg(long, value_name = "K", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    readings: u32,
    /// The smallest message: bytes, or with K, M or G.
    #[arg(long, value_name = "BYTES", default_value = "8M", value_parser = common::parse_bytes)]
    min: u64,
    /// The largest.
    #[arg(long, value_name = "BYTES", default_value = "8G", value_parser = common::parse_bytes)]
    max: u64,
    /// From one size to the next.
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u64).range(2..=1_048_576))]
    factor: u64,
    /// Operations that one number is taken over.
    #[arg(long, value_name = "N", default_value_t = 20,
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    iterations: u32,
    /// Operations before them that do not count.
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

/// Over which path.
#[derive(Clone, Debug, clap::Args)]
struct CollectivePathArgs {
    /// The path that NCCL must take: it is forced, and another one is an error.
    #[arg(long, value_name = "PATH", value_parser = ["mnnvl", "nvls", "p2p", "ib", "socket"])]
    assert: Option<String>,
    /// The only network device to use, `mlx5_3`, or several with commas.
    #[arg(long, value_name = "DEV")]
    rail: Option<String>,
    /// The network interface over which ranks find each other, `eth0`.
    #[arg(long, value_name = "IF")]
    interface: Option<String>,
    /// Do not use NVLink between nodes.
    #[arg(long)]
    no_mnnvl: bool,
    /// Do not reduce in NVLink switches.
    #[arg(long)]
    no_nvls: bool,
    /// Communicators that block, as nccl-tests has them: a rank that never comes
    /// is then killed instead of given up.
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

    fn build_task(&self, asked: &CollectiveProbeRequest, gpu: u32) -> CollectiveTask {
        CollectiveTask {
            cuda: self.common.cuda.clone(),
            nccl: self.nccl.clone(),
            node: asked.node.clone(),
            gpu,
            tests: asked.tests.clone(),
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
pub fn run(args: &CollectiveArgs, json: bool, telling: &mut ProbeProgress) -> anyhow::Result<u8> {
    let asked = args.build_request()?;
    if args.common.dry_run {
        stdout::write_text(&describe_plan(args, &asked, telling)?)?;
        return Ok(exit::PASS);
    }
    let nodes = common::read_simulated_nodes(args.common.on_all_nodes)?;
    let question = AskedOfSimulation {
        tests: &asked.tests,
        readings: args.readings,
        bytes: [args.min, args.max],
        factor: args.factor,
        iterations: args.iterations,
        asserted: asked.path.map(simulated_name),
    };
    let played = sim::answer_collective_probe(&question, &args.gpus.0, &nodes, &asked.environment);
    let document = match played {
        Some(played) => match played? {
            SimProbeAnswer::Document(document) => document,
            SimProbeAnswer::Ended(code) => return Ok(code),
        },
        None => measure(args, &asked, telling)?,
    };
    if json || args.common.on_all_nodes {
        common::print_line(&document)?;
    } else {
        stdout::write_text(&report::collective_probe::render(&document))?;
    }
    // Of several nodes the first has the numbers of all.
    let begun = document.tests.iter().any(|test| !test.points.is_empty()) || document.complete;
    Ok(common::exit_code(document.complete, begun, &document.problems))
}

/// What simulated NCCL calls a path.
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
    asked: &CollectiveProbeRequest,
    telling: &mut ProbeProgress,
) -> anyhow::Result<CollectiveDocument> {
    let (listed, lacking) = match common::list_gpus(&args.common, telling)? {
        Ok(listed) => listed.select(&args.gpus),
        // The ranks that cannot be would keep other nodes waiting for nothing.
        Err(problems) => return Ok(CollectiveDocument { problems, ..asked.empty_document() }),
    };
    let mut work = args.common.build_work()?;
    work.exchanges_lists = true;
    // Ranks that wait for NCCL say nothing meanwhile, and give up by themselves.
    let patience = Duration::from_secs(args.patience + ENDING_S);
    work.max_silence = work.max_silence.max(patience);
    for gpu in listed {
        let mut env = common::child_environment();
        env.extend(asked.environment.clone());
        work.children.push(ProbeChildSpec {
            name: format!("GPU {gpu}"),
            gpu: Some(gpu),
            args: common::child_command("collective-child", &args.build_task(asked, gpu))?,
            env,
        });
    }
    let attended = common::run_supervised(&work, args.common.on_all_nodes, telling)?;
    let around = common::driver_telemetry(&attended);
    let mut document =
        CollectiveDocument { around, ..collective_document::build_document(asked, &attended) };
    document.complete &= lacking.is_empty();
    document.problems.extend(lacking);
    Ok(document)
}

/// How long a rank may take to give a communicator back that is of no use.
const ENDING_S: u64 = 15;

/// What would be measured.
fn describe_plan(
    args: &CollectiveArgs,
    asked: &CollectiveProbeRequest,
    telling: &mut ProbeProgress,
) -> anyhow::Result<String> {
    let gpus = match common::list_gpus(&args.common, telling)? {
        Ok(listed) => format!("{:?}", listed.select(&args.gpus).0),
        Err(problems) => first_problem(&problems),
    };
    let tests: Vec<String> = asked.tests.iter().map(|test| clean(test)).collect();
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

/// The first of these reasons.
fn first_problem(problems: &[ProbeProblem]) -> String {
    problems.first().map_or_else(|| "none".to_owned(), |problem| clean(&problem.detail))
}
