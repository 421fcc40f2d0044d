//! `fabricgate node probe copy`: measures the same as nvbandwidth's copy-engine tests.

use std::fmt::Write as _;

use crate::cli::commands::node::probe::common;
use crate::cli::commands::node::probe::common::{GpuProbeOptions, GpuSelection, ProbeProgress};
use crate::cli::simulated_node;
use crate::cli::simulated_node::SimProbeAnswer;
use crate::cli::stdout;
use crate::exit;
use engine::report;
use model::copy::CopyDocument;
use node::probes::copy::cases;
use node::probes::supervisor::child_output::clean;
use node::probes::supervisor::{ProbeChildSpec, copy_document};
use node::probes::task::{CopyTask, CrossNodePairs};

/// The tests of --set quick.
const QUICK_TESTS: [&str; 5] = [
    "host_to_device_memcpy_ce",
    "device_to_host_memcpy_ce",
    "device_to_device_memcpy_read_ce",
    "device_to_device_memcpy_write_ce",
    "device_local_copy",
];

/// Measure the GPUs' copy engines: copies to and from the host, between GPUs, inside a GPU.
///
/// Tests have the names and the meaning of nvbandwidth's: the row issues the copy. Bandwidth is in
/// GB/s (1e9 bytes a second), latency in us. Events time every reading over many copies of one
/// buffer, and the data is compared afterwards. Needs the NVIDIA driver (libcuda.so.1) and nothing
/// else; the GPUs should be idle.
///
/// The exit code is 0 when everything was measured, 3 when wrong data was copied, 4 when not
/// everything could be measured, and 5 when nothing could start.
#[derive(Clone, Debug, clap::Args)]
pub struct CopyArgs {
    #[command(flatten)]
    pub(crate) common: GpuProbeOptions,
    #[command(flatten)]
    what: CopyTestArgs,
    /// The GPUs to measure, by their number in the order of the PCI bus: 0,2-3.
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = common::parse_gpus)]
    gpus: GpuSelection,
    /// Readings of each cell.
    #[arg(long, value_name = "K", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    readings: u32,
    /// Size of one copy, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 512,
        value_parser = clap::value_parser!(u64).range(1..=65_536))]
    buffer: u64,
    /// Copies per reading.
    #[arg(long, value_name = "N", default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    copies: u32,
    /// Warm-up copies before each reading.
    #[arg(long, value_name = "N", default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(0..=1000))]
    warmup: u32,
    /// The least time of copies before each reading, so that clocks are up, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 50,
        value_parser = clap::value_parser!(u32).range(0..=10_000))]
    warmup_ms: u32,
    /// Measure across nodes: GPU i with GPU i (`lane`), or every pair (`all`).
    #[arg(long, value_name = "WHICH", value_enum, hide = true, requires = "on_all_nodes")]
    across: Option<CopyPairScope>,
}

/// The selected tests.
#[derive(Clone, Debug, clap::Args)]
struct CopyTestArgs {
    /// Which tests: `quick` has host copies both ways, reads and writes between GPUs, and copies
    /// inside a GPU; `full` has all tests.
    #[arg(long, value_enum, default_value = "quick", conflicts_with = "tests")]
    set: CopyTestPreset,
    /// Tests by nvbandwidth's names, in the order to run them.
    #[arg(long, value_name = "TEST,..", value_delimiter = ',')]
    tests: Vec<String>,
}

/// A set of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CopyTestPreset {
    /// The tests with the most information in little time.
    Quick,
    /// All tests.
    Full,
}

/// The pairs of GPUs on several nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum CopyPairScope {
    /// GPU i of one node with GPU i of another.
    Lane,
    /// Every pair.
    All,
}

impl CopyArgs {
    /// The task of the child process.
    fn build_task(&self) -> CopyTask {
        let tests = match (self.what.tests.as_slice(), self.what.set) {
            ([], CopyTestPreset::Quick) => QUICK_TESTS.map(str::to_owned).to_vec(),
            ([], CopyTestPreset::Full) => cases::case_names().map(str::to_owned).collect(),
            (tests, _) => tests.to_vec(),
        };
        CopyTask {
            cuda: self.common.cuda.clone(),
            root: self.common.root.clone(),
            node: self.common.node_name(),
            gpus: self.gpus.0.clone(),
            tests,
            readings: self.readings,
            buffer_bytes: self.buffer << 20,
            copies: self.copies,
            warmup: self.warmup,
            warmup_ms: self.warmup_ms,
            across: self.across.map(|pairs| match pairs {
                CopyPairScope::Lane => CrossNodePairs::Lane,
                CopyPairScope::All => CrossNodePairs::All,
            }),
        }
    }
}

/// Measures and prints.
pub fn run(args: &CopyArgs, json: bool, progress: &mut ProbeProgress) -> anyhow::Result<u8> {
    if args.common.dry_run {
        let listed = common::list_gpus(&args.common, progress)?;
        let found = listed.map(|listed| listed.select(&args.gpus).0.len());
        stdout::write_text(&describe_estimate(&args.build_task(), found.ok()))?;
        return Ok(exit::PASS);
    }
    let task = args.build_task();
    let nodes = common::read_simulated_nodes(args.common.on_all_nodes)?;
    let document = match simulated_node::answer_copy_probe(&task, &nodes) {
        Some(simulated) => match simulated? {
            SimProbeAnswer::Document(document) => document,
            SimProbeAnswer::Ended(code) => return Ok(code),
        },
        None => measure(args, &task, progress)?,
    };
    if json || args.common.on_all_nodes {
        common::print_line(&document)?;
    } else {
        stdout::write_text(&report::copy_probe::render(&document))?;
    }
    Ok(common::exit_code(document.complete, has_begun(&document), &document.problems))
}

fn has_begun(document: &CopyDocument) -> bool {
    document.tests.iter().any(|test| test.readings.iter().flatten().flatten().any(Option::is_some))
}

fn measure(
    args: &CopyArgs,
    task: &CopyTask,
    progress: &mut ProbeProgress,
) -> anyhow::Result<CopyDocument> {
    let mut work = args.common.build_work()?;
    work.children.push(ProbeChildSpec {
        args: common::child_command("copy-child", task)?,
        env: common::child_environment(),
        ..ProbeChildSpec::default()
    });
    let output = common::run_supervised(&work, args.common.on_all_nodes, progress)?;
    let around = common::driver_telemetry(&output);
    Ok(CopyDocument { around, ..copy_document::build_document(task, &output) })
}

/// Describes the copies and estimates their time, for links as fast as those of the slowest
/// platform with an expectation.
fn describe_estimate(task: &CopyTask, gpus: Option<usize>) -> String {
    // PCIe 4 x16 and NVLink 3 (thresholds/hgx-a100.toml), in bytes a second.
    const HOST: f64 = 24e9;
    const PAIR: f64 = 230e9;
    /// Time to initialize the GPUs and allocate memory.
    const SETUP_S: f64 = 10.0;
    let mut text = format!(
        "{} tests, {} readings each of {} copies of {} MiB\n",
        task.tests.len(),
        task.readings,
        task.copies,
        task.buffer_bytes >> 20
    );
    for name in &task.tests {
        let _ = writeln!(text, "  {}", clean(name));
    }
    let Some(gpus) = gpus.filter(|gpus| 0 < *gpus) else {
        text.push_str("No GPU found, so the time is unknown\n");
        return text;
    };
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let seconds = task.tests.iter().fold(SETUP_S, |sum, name| {
        let is_pair = name.starts_with("device_to_device");
        let cells = if is_pair { gpus * gpus.saturating_sub(1) } else { gpus };
        let rate = if is_pair || name.starts_with("device_local") { PAIR } else { HOST };
        let copies = f64::from(task.copies + task.warmup) * f64::from(task.readings);
        sum + cells as f64 * copies * task.buffer_bytes as f64 / rate
    });
    let _ = writeln!(
        text,
        "{gpus} GPUs: about {seconds:.0} s at {} GB/s to the host and {} GB/s between GPUs",
        HOST / 1e9,
        PAIR / 1e9
    );
    text
}
