//! `fabricgate node probe copy`: what nvbandwidth's copy-engine tests measure.

use std::collections::BTreeMap;

use super::attending;
use super::attending::Common;
use super::attending::Gpus;
use super::attending::Telling;
use crate::cli::stdout;
use crate::model::copy::CopyDocument;
use crate::probe::attend::Part;
use crate::probe::attend::copies;
use crate::probe::copy::task::Across;
use crate::probe::copy::task::Task;
use crate::report;

/// The tests of a quick look.
const QUICK: [&str; 5] = [
    "host_to_device_memcpy_ce",
    "device_to_host_memcpy_ce",
    "device_to_device_memcpy_read_ce",
    "device_to_device_memcpy_write_ce",
    "device_local_copy",
];

/// Measure copies of the GPUs' copy engines: to and from the host, between
/// GPUs, inside a GPU.
///
/// Tests are called what nvbandwidth calls them and mean the same: the row
/// issues the copy. Bandwidth is in GB/s (1e9 bytes a second), latency in us.
/// Every number is taken with events over many copies of one buffer, and the
/// data is compared afterwards. Needs the NVIDIA driver (libcuda.so.1) and
/// nothing else; the GPUs should be idle.
///
/// Ends with 0 when everything was measured, 3 when wrong data was copied, 4
/// when not everything could be measured and 5 when nothing could be begun.
#[derive(Clone, Debug, clap::Args)]
pub struct CopyArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    what: What,
    /// The GPUs to measure, by their number in the order of the PCI bus: 0,2-3.
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = attending::gpus)]
    gpus: Gpus,
    /// Numbers taken of each cell.
    #[arg(long, value_name = "K", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    readings: u32,
    /// Size of one copy, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 512,
        value_parser = clap::value_parser!(u64).range(1..=65_536))]
    buffer: u64,
    /// Copies that one number is taken over.
    #[arg(long, value_name = "N", default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    copies: u32,
    /// Copies before them that do not count.
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(0..=1000))]
    warmup: u32,
    /// Measure across nodes: GPU i with GPU i (`lane`), or every pair (`all`).
    #[arg(long, value_name = "WHICH", value_enum, hide = true, requires = "together")]
    across: Option<Pairs>,
}

/// Which tests.
#[derive(Clone, Debug, clap::Args)]
struct What {
    /// Which tests: `quick` are host copies both ways, reads and writes between
    /// GPUs, and copies inside a GPU; `full` are all there are.
    #[arg(long, value_enum, default_value = "quick", conflicts_with = "tests")]
    set: Set,
    /// Tests by nvbandwidth's names, in the order they shall run.
    #[arg(long, value_name = "TEST,..", value_delimiter = ',')]
    tests: Vec<String>,
}

/// A set of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Set {
    /// What shows most in little time.
    Quick,
    /// Everything.
    Full,
}

/// Pairs of GPUs on several nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Pairs {
    /// GPU i of one node with GPU i of another.
    Lane,
    /// Every pair.
    All,
}

impl CopyArgs {
    fn task(&self) -> Task {
        let tests = match (self.what.tests.as_slice(), self.what.set) {
            ([], Set::Quick | Set::Full) => QUICK.map(str::to_owned).to_vec(),
            (tests, _) => tests.to_vec(),
        };
        Task {
            cuda: self.common.cuda.clone(),
            root: self.common.root.clone(),
            node: self.common.node(),
            gpus: self.gpus.0.clone(),
            tests,
            readings: self.readings,
            buffer_bytes: self.buffer << 20,
            copies: self.copies,
            warmup: self.warmup,
            across: self.across.map(|pairs| match pairs {
                Pairs::Lane => Across::Lane,
                Pairs::All => Across::All,
            }),
        }
    }
}

/// Measures and prints.
pub fn run(args: &CopyArgs, json: bool, telling: &mut Telling) -> anyhow::Result<u8> {
    let document = measure(args, telling)?;
    if json || args.common.together {
        attending::line(&document)?;
    } else {
        stdout::text(&report::copy::text(&document))?;
    }
    Ok(attending::code(document.complete, has_begun(&document), &document.problems))
}

fn has_begun(document: &CopyDocument) -> bool {
    document.tests.iter().any(|test| test.readings.iter().flatten().flatten().any(Option::is_some))
}

/// Measures.
pub fn measure(args: &CopyArgs, telling: &mut Telling) -> anyhow::Result<CopyDocument> {
    let task = args.task();
    let mut work = args.common.work()?;
    work.parts.push(Part {
        words: attending::task("copy-child", &task)?,
        env: environment(),
        ..Part::default()
    });
    let attended = attending::attended(&work, args.common.together, telling)?;
    let around = attending::around(&attended);
    Ok(CopyDocument { around, ..copies::document(&task, &attended) })
}

/// GPUs are counted as NVML counts them, and code is loaded when it is used.
pub fn environment() -> BTreeMap<String, String> {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    [pair("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), pair("CUDA_MODULE_LOADING", "LAZY")].into()
}
