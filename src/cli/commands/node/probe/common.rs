//! Code shared by all supervised probes: options, starting and stopping processes, exit codes.

use std::collections::BTreeMap;
use std::io;
use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{mpsc, watch};

use crate::cli::simulated_node;
use crate::cli::stdout;
use crate::exit;
use crate::exit::CommandError;
use control::sweep::signals::StopSignals;
use model::parse_output::OutputProblemKind;
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::{DriverTelemetry, ProbeProblem, ProbedGpu};
use model::worker_protocol::LONGEST_LINE;
use node::exec::executable;
use node::facts::telemetry;
use node::probes::protocol::{ProbeEmitter, ProbeMessage};
use node::probes::supervisor;
use node::probes::supervisor::child_output::{ChildOutput, clean};
use node::probes::supervisor::{
    ExchangePeers, ProbeChildSpec, SamplerSpec, SupervisorOutput, SupervisorSpec,
};

/// The host name, from the kernel.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// Most GPUs of one node. The largest known have 16, or a few more when partitioned.
const MOST_GPUS: u32 = 1_024;

/// Options of every GPU probe.
#[derive(Clone, Debug, clap::Args)]
pub struct GpuProbeOptions {
    /// Name of this node; `-` stands for its host name.
    #[arg(long, value_name = "NAME", default_value = "-")]
    pub node: String,
    /// The driver's library, if it is not the one that the system finds.
    #[arg(long, value_name = "PATH", env = "FABRICGATE_CUDA")]
    pub cuda: Option<PathBuf>,
    /// The NVML library, likewise.
    #[arg(long, value_name = "PATH", env = "FABRICGATE_NVML")]
    pub nvml: Option<PathBuf>,
    /// The root directory that contains proc, sys and dev.
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    pub root: PathBuf,
    /// Seconds for the whole probe; measurements taken until then are kept.
    #[arg(long, value_name = "S", default_value_t = 600.0, value_parser = parse_seconds)]
    pub limit: f64,
    /// Seconds without a message after which a process counts as hung.
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = parse_seconds)]
    pub silence: f64,
    /// Do not read clocks, temperatures and errors from the driver during the measurement.
    #[arg(long)]
    pub no_around: bool,
    /// Measure together with other nodes; the coordinator sends their messages on standard input.
    #[arg(long, alias = "together", hide = true)]
    pub on_all_nodes: bool,
    /// Print what would be measured and about how long it takes; measure nothing.
    #[arg(long)]
    pub dry_run: bool,
}

impl GpuProbeOptions {
    /// The name of this node.
    pub fn node_name(&self) -> String {
        if !matches!(self.node.as_str(), "" | "-") {
            return clean(&self.node);
        }
        let name = std::fs::read_to_string(HOST_NAME).unwrap_or_default();
        let name = clean(&name);
        if name.is_empty() { "localhost".to_owned() } else { name }
    }

    /// The settings of the process that samples the GPUs during a measurement.
    fn sampler_settings(&self) -> Option<SamplerSpec> {
        if self.no_around {
            return None;
        }
        let mut arguments = ["node", "gpu-around"].map(str::to_owned).to_vec();
        for (name, path) in [("--nvml", self.nvml.as_ref()), ("--root", Some(&self.root))] {
            if let Some(path) = path {
                arguments.extend([name.to_owned(), path.display().to_string()]);
            }
        }
        Some(SamplerSpec { args: arguments, has_begun: telemetry::has_begun })
    }

    /// The supervisor's settings, without any process to supervise yet.
    pub fn build_work(&self) -> anyhow::Result<SupervisorSpec> {
        Ok(SupervisorSpec {
            executable: executable::current_executable()?,
            node: self.node_name(),
            children: Vec::new(),
            sampler: self.sampler_settings(),
            time_limit: Duration::from_secs_f64(self.limit),
            max_silence: Duration::from_secs_f64(self.silence),
            exchanges_lists: false,
        })
    }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    // A day is longer than any probe.
    const MOST: f64 = 86_400.0;
    match text.parse::<f64>() {
        Ok(value) if 0.0 < value && value <= MOST => Ok(value),
        _ => Err(format!("expected seconds above 0 and up to {MOST}")),
    }
}

/// GPU numbers such as `0,2-3`, or `all`.
pub fn parse_gpus(text: &str) -> Result<GpuSelection, String> {
    let number = |text: &str| match text.trim().parse::<u32>() {
        Ok(number) if number < MOST_GPUS => Ok(number),
        _ => Err(format!("`{text}`: expected numbers of GPUs such as 0,2-3")),
    };
    if matches!(text.trim(), "all" | "-") {
        return Ok(GpuSelection::default());
    }
    let mut found = Vec::new();
    for word in text.split(',') {
        match word.split_once('-') {
            None => found.push(number(word)?),
            Some((from, to)) => {
                let (from, to) = (number(from)?, number(to)?);
                if to < from {
                    return Err(format!("`{word}`: {to} is less than {from}"));
                }
                found.extend(from..=to);
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(GpuSelection(found))
}

/// GPUs by number; empty means all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuSelection(pub Vec<u32>);

/// Bytes with a suffix as in nccl-tests: `8`, `512K`, `16M`, `8G`, with or without `i` and `B`. All
/// suffixes are powers of 1024.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}`: expected bytes such as 8, 512K, 16M or 8G");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let factor: u64 = match text[digits..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        _ => return Err(wrong()),
    };
    number.checked_mul(factor).filter(|bytes| 0 < *bytes).ok_or_else(wrong)
}

/// Starts the processes and waits for their results. The processes die with this thread.
pub fn run_supervised(
    work: &SupervisorSpec,
    on_all_nodes: bool,
    progress: &mut ProbeProgress,
) -> anyhow::Result<SupervisorOutput> {
    let runtime = crate::cli::runtime::build_runtime()?;
    let output = runtime.block_on(async {
        let (ends, stop) = watch::channel(None);
        let listening = tokio::spawn(async move {
            let mut signals = StopSignals::listen();
            let how = signals.next().await;
            let _ = ends.send(Some(how));
            std::future::pending::<()>().await;
        });
        let mut show_progress = |part: usize, doing: &str| progress.show(work, part, doing);
        let mut send_line = |line: &str| {
            let mut out = io::stdout().lock();
            writeln!(out, "{line}").and_then(|()| out.flush())
        };
        let others = match on_all_nodes {
            false => ExchangePeers::LocalOnly,
            true => {
                ExchangePeers::Upstream { lines: read_stdin_lines(), send_line: &mut send_line }
            }
        };
        let output = supervisor::supervise(work, others, stop, &mut show_progress).await;
        listening.abort();
        output
    });
    // A process that hangs in the kernel must not delay the exit.
    runtime.shutdown_background();
    progress.clear();
    progress.was_interrupted |= output.interrupted.is_some();
    Ok(output)
}

/// The lines of standard input, read by a thread that ends with the process: a blocking read cannot
/// be cancelled.
fn read_stdin_lines() -> mpsc::Receiver<Vec<u8>> {
    let (send_line, lines) = mpsc::channel(16);
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        let longest = u64::try_from(LONGEST_LINE).unwrap_or(u64::MAX);
        loop {
            let mut line = Vec::new();
            let got = io::Read::take(&mut input, longest + 1).read_until(b'\n', &mut line);
            // A line cut off by the limit or by the end of input is incomplete.
            if !matches!(got, Ok(1..)) || line.pop() != Some(b'\n') {
                return;
            }
            if send_line.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Shows the current measurement at a terminal, on one line that is overwritten.
#[derive(Debug)]
pub struct ProbeProgress {
    is_shown: bool,
    is_dirty: bool,
    was_interrupted: bool,
}

impl ProbeProgress {
    /// Shows progress only if stderr is a terminal.
    pub fn new(no_progress: bool) -> Self {
        let is_shown = !no_progress && io::stderr().is_terminal();
        Self { is_shown, is_dirty: false, was_interrupted: false }
    }

    /// Whether a signal ended the measurement; no further one may start then.
    pub fn was_interrupted(&self) -> bool {
        self.was_interrupted
    }

    fn show(&mut self, work: &SupervisorSpec, part: usize, doing: &str) {
        if !self.is_shown {
            return;
        }
        let name = work.children.get(part).map_or("", |part| part.name.as_str());
        let between = if name.is_empty() { "" } else { ": " };
        let line: String = format!("{name}{between}{}", clean(doing)).chars().take(78).collect();
        let mut err = anstream::stderr().lock();
        // Returns to the start of the line and erases it (ECMA-48, EL).
        let _ = write!(err, "\r\x1b[K{line}").and_then(|()| err.flush());
        self.is_dirty = true;
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_dirty) {
            let mut err = anstream::stderr().lock();
            let _ = write!(err, "\r\x1b[K").and_then(|()| err.flush());
        }
    }
}

/// The GPUs of this node, as a child process lists them; or why there are none.
pub fn list_gpus(
    common: &GpuProbeOptions,
    progress: &mut ProbeProgress,
) -> anyhow::Result<Result<NodeGpus, Vec<ProbeProblem>>> {
    let mut arguments = ["node", "gpu-list"].map(str::to_owned).to_vec();
    for (name, path) in [("--cuda", common.cuda.as_ref()), ("--root", Some(&common.root))] {
        if let Some(path) = path {
            arguments.extend([name.to_owned(), path.display().to_string()]);
        }
    }
    let mut work = common.build_work()?;
    work.sampler = None;
    work.children.push(ProbeChildSpec {
        args: arguments,
        env: child_environment(),
        ..ProbeChildSpec::default()
    });
    let output = run_supervised(&work, false, progress)?;
    let child = output.children.first();
    let mut listed = NodeGpus::default();
    for line in child.iter().flat_map(|child| &child.messages) {
        match line {
            ProbeMessage::Driver { cuda } => listed.cuda = Some(cuda.clone()),
            ProbeMessage::Gpu(gpu) => listed.gpus.push(gpu.clone()),
            _ => {}
        }
    }
    if child.is_some_and(ChildOutput::is_complete) {
        return Ok(Ok(listed));
    }
    let problems =
        child.iter().flat_map(|child| child.problems().cloned().chain(child.exit_problem()));
    Ok(Err(problems.collect()))
}

/// The driver and the GPUs of a node.
#[derive(Clone, Debug, Default)]
pub struct NodeGpus {
    /// CUDA version of the driver.
    pub cuda: Option<String>,
    /// GPUs that the driver lists.
    pub gpus: Vec<ProbedGpu>,
}

impl NodeGpus {
    /// The requested GPUs, or all if none is requested, and a problem for each that does not exist.
    pub fn select(&self, wanted: &GpuSelection) -> (Vec<u32>, Vec<ProbeProblem>) {
        let present: Vec<u32> = self.gpus.iter().map(|gpu| gpu.index).collect();
        if wanted.0.is_empty() {
            return (present, Vec::new());
        }
        let (chosen, lacking): (Vec<u32>, Vec<u32>) =
            wanted.0.iter().partition(|index| present.contains(index));
        let problem = |index: u32| {
            let count = present.len();
            let detail = format!("there is no GPU {index}: the driver lists {count}");
            let mut problem =
                ProbeProblem::new(OutputProblemKind::Error, ProbeProblemClass::NoSuchGpu, detail);
            problem.gpu = Some(index);
            problem
        };
        (chosen, lacking.into_iter().map(problem).collect())
    }
}

/// Environment of every child: GPUs are numbered in NVML's order, and kernels are loaded on first
/// use.
pub fn child_environment() -> BTreeMap<String, String> {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    [pair("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), pair("CUDA_MODULE_LOADING", "LAZY")].into()
}

/// The nodes that take part in a simulation: simulated nodes start no processes to exchange
/// messages, and still need each other's names.
pub fn read_simulated_nodes(on_all_nodes: bool) -> anyhow::Result<Vec<String>> {
    /// Seconds that the other nodes may take to start.
    const PATIENCE_S: f64 = 60.0;
    if !on_all_nodes || !simulated_node::is_simulated() {
        return Ok(Vec::new());
    }
    let (mut out, mut progress) = (io::stdout().lock(), io::sink());
    let mut input = io::stdin().lock();
    let mut emitter = ProbeEmitter::new(&mut out, &mut progress, &mut input);
    let answer = emitter.barrier(PATIENCE_S).map_err(CommandError::environment)?;
    let present = answer.shares.into_iter().filter(|share| share.gone.is_none());
    Ok(present.map(|share| share.member).collect())
}

/// The driver's telemetry during the measurement, if it was sampled.
pub fn driver_telemetry(attended: &SupervisorOutput) -> Option<DriverTelemetry> {
    let watched = attended.sampled.as_ref()?;
    Some(telemetry::summarize_telemetry(&watched.text, &attended.pids, watched.failure.as_deref()))
}

/// Prints a document on one line.
pub fn print_line<T: Serialize>(document: &T) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(document)?;
    line.push(b'\n');
    stdout::write_bytes(&line)
}

/// The exit code of a measurement: wrong data closes the gate, incomplete data is inconclusive, and
/// a measurement that did not start is a failure of the environment.
pub fn exit_code(complete: bool, begun: bool, problems: &[ProbeProblem]) -> u8 {
    if problems.iter().any(|problem| problem.kind == OutputProblemKind::Corrupt) {
        exit::GATE_CLOSED
    } else if complete {
        exit::PASS
    } else if begun {
        exit::INCONCLUSIVE
    } else {
        exit::ENVIRONMENT
    }
}

/// The command line of a child, with its task as one JSON argument.
pub fn child_command<T: Serialize>(command: &str, task: &T) -> anyhow::Result<Vec<String>> {
    let task = serde_json::to_string(task).map_err(CommandError::environment)?;
    Ok(["node", command, "--task", &task].map(str::to_owned).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_numbers_and_ranges() {
        assert_eq!(parse_gpus("0,2-3").map(|it| it.0), Ok(vec![0, 2, 3]));
        assert_eq!(parse_gpus("3,1,1").map(|it| it.0), Ok(vec![1, 3]));
        assert_eq!(parse_gpus("all").map(|it| it.0), Ok(vec![]));
        for wrong in ["", "a", "3-1", "0,", "-1", "0-99999999"] {
            assert!(parse_gpus(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bytes_have_the_suffixes_of_nccl_tests() {
        assert_eq!(parse_bytes("8"), Ok(8));
        assert_eq!(parse_bytes("512K"), Ok(512 << 10));
        assert_eq!(parse_bytes("16MiB"), Ok(16 << 20));
        assert_eq!(parse_bytes("8g"), Ok(8 << 30));
        for wrong in ["", "0", "K", "1.5M", "-1", "1T", "99999999999999999999"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn wrong_data_is_worse_than_missing_data() {
        let corrupt =
            [ProbeProblem::new(OutputProblemKind::Corrupt, ProbeProblemClass::WrongData, "x")];
        assert_eq!(exit_code(true, true, &[]), exit::PASS);
        assert_eq!(exit_code(true, true, &corrupt), exit::GATE_CLOSED);
        assert_eq!(exit_code(false, true, &corrupt), exit::GATE_CLOSED);
        assert_eq!(exit_code(false, true, &[]), exit::INCONCLUSIVE);
        assert_eq!(exit_code(false, false, &[]), exit::ENVIRONMENT);
    }
}
