//! Numbers that nvbandwidth would measure on a simulated fabric.
//!
//! Takes rates from the physics, and adds noise and the tool's failures. It prints nothing.

use super::cases;
use super::cases::{SimCase, SimCaseKind};
use super::fabric::{CopyRoute, GpuIndex, SimCopyEngine, SimFabric};
use super::fault::SimFault;
use super::mpirun::MpiJob;
use super::noise::{NoiseKey, SimNoise};
use super::scenario::Scenario;
use super::tool_config::{CrossDomainCopy, NvbandwidthLayout};

/// Microseconds until a copy engine starts a copy.
const COPY_START: f64 = 1.6;

/// One run of a tool.
#[derive(Clone, Copy, Debug)]
pub struct ToolInvocation<'a> {
    /// The scenario.
    pub scenario: &'a Scenario,
    /// Its fabric.
    pub fabric: &'a SimFabric,
    /// Name of the node or claimed domain that it runs on.
    pub scope: &'a str,
    /// Whether it runs across a domain, with one rank per GPU.
    pub spans_domain: bool,
    /// Seed of the noise.
    pub seed: u64,
    /// Number of the reading, from 0, or any number that identifies step and reading.
    pub reading: u32,
    /// Number of earlier readings of the same step.
    pub prior_readings: u32,
    /// Hosts and settings from the launcher.
    pub job: Option<&'a MpiJob>,
}

/// A matrix of results.
#[derive(Clone, Debug, PartialEq)]
pub struct SimMatrix {
    /// Its key: the test, and the part of a three-part test.
    pub key: String,
    /// Its headline.
    pub description: String,
    /// Labels of the rows; empty to count from 0.
    pub row_labels: Vec<String>,
    /// Number of columns.
    pub columns: usize,
    /// Cells, row by row.
    pub cells: Vec<Option<f64>>,
}

/// Outcome of one test.
#[derive(Clone, Debug, PartialEq)]
pub enum SimTestOutcome {
    /// One matrix, or the three of a bidirectional test.
    Measured(Vec<SimMatrix>),
    /// The test does not apply here.
    Waived,
    /// No test has this name.
    NotFound,
    /// The test failed and ended the run.
    Failed(SimToolFailure),
}

/// Why a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct SimToolFailure {
    /// `[NAME] text`, or `ASSERT`.
    pub what: String,
    /// The expression that failed.
    pub expression: String,
    /// Source location: function, file and line.
    pub place: &'static str,
    /// Host and rank of the failure, if the run has several ranks.
    pub rank: Option<(String, usize)>,
}

/// Source location of the wait for copies.
const IN_COPY: &str = "virtual double MemcpyOperation::doMemcpy() : memcpy.cpp:341";

/// Source location of the CUDA initialization.
const IN_MAIN: &str = "int main(int, char**)() : nvbandwidth.cpp:186";

/// One run of nvbandwidth.
#[derive(Clone, Debug, PartialEq)]
pub struct SimNvbandwidthRun {
    /// Why no test ran.
    pub refused: Option<SimToolFailure>,
    /// Hosts with more ranks than GPUs.
    pub oversubscribed: Vec<String>,
    /// The tests in order; a failure is always the last.
    pub tests: Vec<(String, SimTestOutcome)>,
    /// GPUs in the order of rows and columns.
    pub gpus: Vec<GpuIndex>,
}

impl SimNvbandwidthRun {
    /// The failure that ended the run.
    pub fn failure(&self) -> Option<&SimToolFailure> {
        match self.tests.last() {
            Some((_, SimTestOutcome::Failed(failure))) => Some(failure),
            _ => self.refused.as_ref(),
        }
    }
}

impl ToolInvocation<'_> {
    /// The GPUs that this run uses.
    pub fn gpus(&self) -> Vec<GpuIndex> {
        let fabric = self.fabric;
        if let Some(job) = self.job.filter(|job| !job.hosts.is_empty()) {
            let ranks = job.hosts.iter().flat_map(|host| {
                let own = fabric.gpus_of([&host.name]);
                // Ranks beyond the GPUs of a node share them.
                own.into_iter().cycle().take(host.ranks)
            });
            return ranks.collect();
        }
        if self.spans_domain
            && let Some(claim) = fabric.claims.iter().find(|claim| claim.name == self.scope)
        {
            return fabric.gpus_of(&claim.nodes);
        }
        fabric.gpus_of([&self.scope.to_owned()])
    }

    /// Value of an NCCL variable: from the run, else from the settings for every job.
    pub fn nccl_variable(&self, variable: &str) -> Option<&str> {
        let by_run = self.job.and_then(|job| job.environment.get(variable)).map(String::as_str);
        by_run.or_else(|| {
            self.scenario.faults.iter().find_map(|fault| match fault {
                SimFault::NcclSetting { scope, name, value }
                    if scope == self.scope && name == variable =>
                {
                    Some(value.as_str())
                }
                _ => None,
            })
        })
    }

    /// The noise key of this tool's readings in this run.
    pub fn key(&self, what: &str) -> NoiseKey {
        let key = NoiseKey::from_seed(self.seed)
            .with_name(self.scope)
            .with_name(what)
            .with_part(u64::from(self.reading));
        let hosts = self.job.into_iter().flat_map(|job| &job.hosts);
        hosts.fold(key, |key, host| key.with_name(&host.name))
    }

    /// A reading of `truth` between two GPUs, or of a single one, whose dips and drift count once.
    pub fn read(&self, truth: f64, key: NoiseKey, ends: [GpuIndex; 2]) -> f64 {
        let key = key.with_part(ends[0] as u64).with_part(ends[1] as u64);
        let value = truth * self.scenario.noise.factor(key);
        let others = if ends[0] == ends[1] { 1 } else { 2 };
        let ends = ends.iter().take(others).enumerate();
        ends.fold(value, |value, (number, end)| value * self.remaining_share(*end, key, number))
    }

    /// A reading of a joint operation of all these GPUs: the slowest one decides.
    pub fn read_slowest(&self, truth: f64, key: NoiseKey, gpus: &[GpuIndex]) -> f64 {
        truth * self.read_members(key, gpus, |_| 1.0)
    }

    /// Applies noise, dips and drift to a rate that is the minimum over these shares: a drifting
    /// GPU and another slow one do not add up.
    pub fn read_members(
        &self,
        key: NoiseKey,
        gpus: &[GpuIndex],
        share: impl Fn(GpuIndex) -> f64,
    ) -> f64 {
        let first = gpus.first().map_or(0, |gpu| *gpu as u64);
        let key = key.with_part(first).with_part(first);
        let slowest = gpus.iter().map(|gpu| share(*gpu)).fold(1.0, f64::min);
        let now = gpus.iter().enumerate();
        let now = now.map(|(number, gpu)| share(*gpu) * self.remaining_share(*gpu, key, number));
        let left = if 0.0 < slowest { now.fold(1.0, f64::min) / slowest } else { 1.0 };
        self.scenario.noise.factor(key) * left
    }

    /// Share of a GPU's rate that dips and drift leave in this reading.
    fn remaining_share(&self, gpu: GpuIndex, key: NoiseKey, number: usize) -> f64 {
        let gpu = &self.fabric.gpus[gpu];
        let dipped = gpu.dips.map_or(1.0, |(rate, depth)| {
            let dips = SimNoise { sigma: 0.0, dip_rate: rate, dip_depth: depth };
            dips.factor(key.with_part(number as u64 + 1_000_000))
        });
        // The drift ends after some readings.
        dipped * (1.0 - gpu.drift * f64::from(self.prior_readings.min(6)))
    }

    /// The first host that has no GPU for its ranks, and its first rank.
    pub fn first_host_without_gpu(&self) -> Option<(&str, usize)> {
        let hosts = self.job.map(|job| &job.hosts).filter(|hosts| !hosts.is_empty());
        let Some(hosts) = hosts else {
            let claim = self.fabric.claims.iter().find(|claim| claim.name == self.scope);
            let node = claim.and_then(|claim| claim.nodes.first()).map_or(self.scope, |node| node);
            return self.gpus().is_empty().then_some((node, 0));
        };
        let mut rank = 0;
        hosts.iter().find_map(|host| {
            let first = rank;
            rank += host.ranks;
            let none = self.fabric.gpus_of([&host.name]).is_empty();
            none.then_some((host.name.as_str(), first))
        })
    }

    /// The failure to initialize CUDA, if a driver finds no GPU.
    pub(super) fn no_device_failure(&self) -> Option<SimToolFailure> {
        let (host, rank) = self.first_host_without_gpu()?;
        let name = "CUDA_ERROR_NO_DEVICE";
        Some(SimToolFailure {
            what: format!("[{name}] {}", cuda_error_text(name)),
            expression: "cuInit(0)".to_owned(),
            place: IN_MAIN,
            rank: self.spans_domain.then(|| (host.to_owned(), rank)),
        })
    }

    /// Hosts of the run with fewer GPUs than ranks.
    fn oversubscribed_hosts(&self) -> Vec<String> {
        let hosts = self.job.into_iter().flat_map(|job| &job.hosts);
        let few = hosts.filter(|host| self.fabric.gpus_of([&host.name]).len() < host.ranks);
        few.map(|host| host.name.clone()).collect()
    }

    /// Runs nvbandwidth.
    pub fn run_nvbandwidth(
        &self,
        version: NvbandwidthLayout,
        tests: &[String],
    ) -> SimNvbandwidthRun {
        let gpus = self.gpus();
        let known = cases::cases_of_version(version, self.spans_domain);
        let wanted: Vec<(String, Option<&SimCase>)> = match tests.is_empty() {
            true => known.iter().map(|case| (case.name.to_owned(), Some(*case))).collect(),
            false => tests
                .iter()
                .map(|name| (name.clone(), known.iter().find(|c| c.name == *name).copied()))
                .collect(),
        };
        let refused = self.no_device_failure();
        let mut run = SimNvbandwidthRun {
            refused,
            oversubscribed: self.oversubscribed_hosts(),
            tests: Vec::new(),
            gpus,
        };
        if run.refused.is_some() {
            return run;
        }
        for (name, case) in wanted {
            let outcome = match case {
                None => SimTestOutcome::NotFound,
                Some(case) if self.is_waived(case, &run.gpus) => SimTestOutcome::Waived,
                Some(case) => match self.test_failure(case, &run.gpus) {
                    Some(failure) => SimTestOutcome::Failed(failure),
                    None => SimTestOutcome::Measured(self.measure_case(version, case, &run.gpus)),
                },
            };
            let ended = matches!(outcome, SimTestOutcome::Failed(_));
            run.tests.push((name, outcome));
            if ended {
                break;
            }
        }
        run
    }

    /// Names of the participating nodes.
    pub fn node_names(&self, gpus: &[GpuIndex]) -> Vec<&str> {
        let mut names: Vec<&str> =
            gpus.iter().map(|gpu| self.fabric.node_of(*gpu).name.as_str()).collect();
        names.dedup();
        names
    }

    fn is_waived(&self, case: &SimCase, gpus: &[GpuIndex]) -> bool {
        let alone = case.needs_peer() && gpus.len() < 2;
        let nodes = self.node_names(gpus);
        alone
            || self.scenario.faults.iter().any(|fault| match fault {
                SimFault::Waived { node, tests } => {
                    nodes.contains(&node.as_str()) && tests.iter().any(|test| test == case.name)
                }
                _ => false,
            })
    }

    /// Why a test fails here, or `None`.
    pub(super) fn test_failure(&self, case: &SimCase, gpus: &[GpuIndex]) -> Option<SimToolFailure> {
        let place = |gpu: GpuIndex| {
            let rank = gpus.iter().position(|other| *other == gpu).unwrap_or(0);
            self.spans_domain.then(|| (self.fabric.node_of(gpu).name.clone(), rank))
        };
        for fault in &self.scenario.faults {
            let SimFault::ToolError { node, testcase, error } = fault else { continue };
            let here = gpus.iter().find(|gpu| self.fabric.node_of(**gpu).name == *node);
            if let Some(gpu) = here
                && testcase.as_ref().is_none_or(|test| test == case.name)
            {
                return Some(SimToolFailure {
                    what: format!("[{error}] {}", cuda_error_text(error)),
                    expression: "cuStreamSynchronize(stream)".to_owned(),
                    place: IN_COPY,
                    rank: place(*gpu),
                });
            }
        }
        if case.is_multinode() {
            let unreachable = gpus.iter().find(|gpu| !self.fabric.node_of(**gpu).imex);
            let foreign =
                gpus.iter().find(|gpu| self.fabric.route(gpus[0], **gpu) == CopyRoute::Nic);
            let refused = self.scenario.tools.cross_domain == CrossDomainCopy::Error;
            if let Some(gpu) = unreachable.or(foreign.filter(|_| refused)) {
                let name = "CUDA_ERROR_INVALID_HANDLE";
                return Some(SimToolFailure {
                    what: format!("[{name}] {}", cuda_error_text(name)),
                    expression: "cuMemImportFromShareableHandle(&handle, fabric, type)".to_owned(),
                    place: IN_COPY,
                    rank: place(*gpu),
                });
            }
        }
        let corrupt = gpus.iter().find(|gpu| self.fabric.gpus[**gpu].corrupt)?;
        (!case.is_latency()).then(|| SimToolFailure {
            what: "ASSERT".to_owned(),
            expression: "h_errorFlag == 0".to_owned(),
            place: IN_COPY,
            rank: place(*corrupt),
        })
    }

    pub(super) fn measure_case(
        &self,
        version: NvbandwidthLayout,
        case: &SimCase,
        gpus: &[GpuIndex],
    ) -> Vec<SimMatrix> {
        let key = self.key(case.name);
        let table = |part: &str, columns: usize, cells: Vec<f64>| SimMatrix {
            key: match part {
                "" => case.name.to_owned(),
                part => format!("{}_{}", case.name, part.to_lowercase()),
            },
            description: case.description(version, part),
            row_labels: Vec::new(),
            columns,
            cells: cells.into_iter().map(|cell| (0.0 <= cell).then_some(cell)).collect(),
        };
        let row = |each: &dyn Fn(GpuIndex) -> f64| {
            let cells = gpus.iter().map(|gpu| self.read(each(*gpu), key, [*gpu, *gpu])).collect();
            vec![table("", gpus.len(), cells)]
        };
        let hardware = |gpu: GpuIndex| self.fabric.node_of(gpu).hardware;
        let mut tables = match case.kind {
            SimCaseKind::Host { to_device, bidirectional, all } => row(&|gpu| {
                let (hardware, way) = (hardware(gpu), usize::from(!to_device));
                let left = match (bidirectional, all) {
                    (false, false) => 1.0,
                    (true, false) => hardware.host_bidirectional[way],
                    (false, true) => hardware.host_all[way],
                    (true, true) => hardware.host_all_bidirectional,
                };
                let kernel = case.engine == SimCopyEngine::Kernel;
                let engine = if kernel { hardware.host_kernel[way] } else { 1.0 };
                self.fabric.host_copy_rate(gpu, to_device) * left * engine
            }),
            SimCaseKind::Pairs { read, bidirectional: false } => {
                let cells = self.read_pairs(case, key, gpus, read);
                vec![table("", gpus.len(), cells)]
            }
            SimCaseKind::Pairs { read, bidirectional: true } => {
                // The second stream of a pair runs in the opposite direction.
                let mut first = self.read_pairs(case, key.with_part(1), gpus, read);
                let mut second = self.read_opposite(case, key.with_part(2), gpus, read);
                if case.engine == SimCopyEngine::Kernel {
                    let left = gpus.first().map_or([1.0; 2], |gpu| hardware(*gpu).kernel_both);
                    let both = first.iter_mut().chain(&mut second);
                    // A negative cell is empty and must stay negative.
                    both.for_each(|cell| *cell *= left[usize::from(read)]);
                }
                // v0.10 runs each pair once and prints it in both triangles.
                if version == NvbandwidthLayout::V0_10 {
                    mirror(&mut first, gpus.len());
                    mirror(&mut second, gpus.len());
                }
                let total = first.iter().zip(&second).map(|(a, b)| a + b).collect();
                if NvbandwidthLayout::V0_6 <= version {
                    let verb = if read { "Read" } else { "Write" };
                    vec![
                        table(&format!("{verb}1"), gpus.len(), first),
                        table(&format!("{verb}2"), gpus.len(), second),
                        table("Total", gpus.len(), total),
                    ]
                } else {
                    // Kernels report both directions, copy engines only the first.
                    let shown = if case.engine == SimCopyEngine::Kernel { total } else { first };
                    vec![table("", gpus.len(), shown)]
                }
            }
            // Disjoint pairs share nothing behind a nonblocking switch; without a switch they share
            // the path through the host.
            SimCaseKind::PairsConcurrent { read } => {
                let mut cells = self.read_pairs(case, key, gpus, read);
                let ends = gpus.iter().flat_map(|row| gpus.iter().map(move |column| (row, column)));
                for (cell, (row, column)) in cells.iter_mut().zip(ends) {
                    let shared = self.fabric.route(*row, *column) == CopyRoute::Pcie;
                    *cell *= if shared { 0.6 } else { 1.0 };
                }
                vec![table("", gpus.len(), cells)]
            }
            SimCaseKind::CopyLatency => row(&|gpu| COPY_START + hardware(gpu).host_latency / 1e3),
            SimCaseKind::PeerCopyLatency => {
                let truth = |from, to| COPY_START + self.peer_latency(from, to) / 1e3;
                vec![table("", gpus.len(), self.read_matrix(gpus, key, &truth))]
            }
            SimCaseKind::Star { .. } => {
                row(&|gpu| self.star_rate(gpu, gpus, case.is_inbound(), case.engine))
            }
            SimCaseKind::HostLatency => row(&|gpu| hardware(gpu).host_latency),
            SimCaseKind::PeerLatency => {
                let cells = self.read_matrix(gpus, key, &|from, to| self.peer_latency(from, to));
                vec![table("", gpus.len(), cells)]
            }
            SimCaseKind::Local => row(&|gpu| hardware(gpu).local),
            SimCaseKind::Broadcast => row(&|gpu| self.star_rate(gpu, gpus, false, case.engine)),
            SimCaseKind::BroadcastAll => {
                let slowest = gpus.iter().map(|gpu| self.star_rate(*gpu, gpus, true, case.engine));
                let truth = slowest.fold(f64::INFINITY, f64::min);
                vec![table("", 1, vec![self.read_slowest(truth, key, gpus)])]
            }
            SimCaseKind::Bisect => self.read_bisect(case, key, gpus, &|cells| table("", 1, cells)),
        };
        self.drop_cells(&mut tables, key);
        tables
    }

    /// Cells by row and column; the row's GPU issues the copy. -1 is an empty cell.
    fn read_matrix(
        &self,
        gpus: &[GpuIndex],
        key: NoiseKey,
        truth: &dyn Fn(GpuIndex, GpuIndex) -> f64,
    ) -> Vec<f64> {
        let mut cells = Vec::with_capacity(gpus.len() * gpus.len());
        for row in gpus {
            for column in gpus {
                cells.push(match row == column {
                    true => -1.0,
                    false => self.read(truth(*row, *column), key, [*row, *column]),
                });
            }
        }
        cells
    }

    fn read_pairs(&self, case: &SimCase, key: NoiseKey, gpus: &[GpuIndex], read: bool) -> Vec<f64> {
        self.read_matrix(gpus, key, &|row, column| match read {
            // A read pulls: the data moves from the column to the row.
            true => {
                self.fabric.copy_rate(column, row, case.engine) * self.read_share(row, column, case)
            }
            false => self.fabric.copy_rate(row, column, case.engine),
        })
    }

    fn read_opposite(
        &self,
        case: &SimCase,
        key: NoiseKey,
        gpus: &[GpuIndex],
        read: bool,
    ) -> Vec<f64> {
        self.read_matrix(gpus, key, &|row, column| match read {
            true => {
                self.fabric.copy_rate(row, column, case.engine) * self.read_share(column, row, case)
            }
            false => self.fabric.copy_rate(column, row, case.engine),
        })
    }

    /// Ratio of a read over NVLink to a write.
    fn read_share(&self, row: GpuIndex, column: GpuIndex, case: &SimCase) -> f64 {
        match self.fabric.route(column, row) {
            CopyRoute::NvLink(_) => {
                let reads = self.fabric.node_of(row).hardware.reads;
                reads[usize::from(case.engine == SimCopyEngine::Kernel)]
            }
            CopyRoute::Pcie | CopyRoute::Nic => 1.0,
        }
    }

    /// All to one, or one to all, concurrently: limited by the links of the single GPU, or by the
    /// total of all others.
    fn star_rate(
        &self,
        one: GpuIndex,
        gpus: &[GpuIndex],
        inbound: bool,
        engine: SimCopyEngine,
    ) -> f64 {
        let rates = gpus.iter().filter(|gpu| **gpu != one).map(|other| match inbound {
            true => self.fabric.copy_rate(*other, one, engine),
            false => self.fabric.copy_rate(one, *other, engine),
        });
        let (best, sum) = rates.fold((0.0_f64, 0.0), |(best, sum), r| (best.max(r), sum + r));
        best.min(sum)
    }

    fn peer_latency(&self, from: GpuIndex, to: GpuIndex) -> f64 {
        let base = self.fabric.node_of(from).hardware.peer_latency;
        match self.fabric.route(from, to) {
            CopyRoute::NvLink(_) => base,
            CopyRoute::Pcie => base * 2.5,
            CopyRoute::Nic => base * 8.0,
        }
    }

    fn read_bisect(
        &self,
        case: &SimCase,
        key: NoiseKey,
        gpus: &[GpuIndex],
        table: &dyn Fn(Vec<f64>) -> SimMatrix,
    ) -> Vec<SimMatrix> {
        let width = (gpus.len() - 1).to_string().len();
        let peer = |rank: usize| (rank + gpus.len() / 2) % gpus.len();
        let cells = (0..gpus.len())
            .map(|rank| {
                let (from, to) = (gpus[rank], gpus[peer(rank)]);
                self.read(self.fabric.copy_rate(from, to, case.engine), key, [from, to])
            })
            .collect();
        let row_labels =
            (0..gpus.len()).map(|r| format!("{r:>width$}->{:>width$}", peer(r))).collect();
        vec![SimMatrix { row_labels, ..table(cells) }]
    }

    fn drop_cells(&self, tables: &mut [SimMatrix], key: NoiseKey) {
        for fault in &self.scenario.faults {
            let SimFault::MissingCells { scope, share } = fault else { continue };
            if scope != self.scope {
                continue;
            }
            for cell in tables.iter_mut().flat_map(|table| table.cells.iter_mut().enumerate()) {
                if key.with_name("missing").with_part(cell.0 as u64).fraction() < *share {
                    *cell.1 = None;
                }
            }
        }
    }
}

/// Copies the upper triangle to the lower one.
fn mirror(cells: &mut [f64], columns: usize) {
    for row in 0..columns {
        for column in 0..row {
            cells[row * columns + column] = cells[column * columns + row];
        }
    }
}

/// The driver's text for an error.
pub fn cuda_error_text(error: &str) -> &'static str {
    match error {
        "CUDA_ERROR_ECC_UNCORRECTABLE" => "uncorrectable ECC error encountered",
        "CUDA_ERROR_INVALID_HANDLE" => "invalid resource handle",
        "CUDA_ERROR_NOT_PERMITTED" => "operation not permitted",
        "CUDA_ERROR_SYSTEM_NOT_READY" => "system not yet initialized",
        "CUDA_ERROR_OUT_OF_MEMORY" => "out of memory",
        "CUDA_ERROR_NO_DEVICE" => "no CUDA-capable device is detected",
        "CUDA_ERROR_NVLINK_UNCORRECTABLE" => {
            "uncorrectable NVLink error detected during the execution"
        }
        _ => "unknown error",
    }
}
