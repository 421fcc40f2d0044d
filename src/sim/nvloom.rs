//! Numbers that nvloom would measure on a simulated fabric.
//!
//! Covers the suites that its README recommends for a large domain, on device memory; one process
//! per GPU, started by mpirun.

use super::cases;
use super::fabric::{CopyRoute, GpuIndex, SimCopyEngine};
use super::invocation::{SimMatrix, SimToolFailure, ToolInvocation};
use super::noise::NoiseKey;
use super::tool_config::NvbandwidthLayout;

/// Peers per GPU and rack (nvloom's default).
const PEERS_PER_RACK: u64 = 5;

/// One run of nvloom.
#[derive(Clone, Debug, PartialEq)]
pub struct SimNvloomRun {
    /// The GPU of each rank.
    pub gpus: Vec<GpuIndex>,
    /// Serial numbers of the racks, in order.
    pub racks: Vec<String>,
    /// The tests; a test without a table is waived.
    pub tests: Vec<(String, Option<SimNvloomTable>)>,
    /// Failure before the first table.
    pub failure: Option<SimToolFailure>,
    /// The first rank with another clique than rank 0.
    pub foreign_rank: Option<usize>,
}

/// A table, with the labels of its columns.
#[derive(Clone, Debug, PartialEq)]
pub struct SimNvloomTable {
    /// The table.
    pub table: SimMatrix,
    /// Labels of its columns.
    pub columns: Vec<String>,
}

/// The serial number of a rack.
pub fn rack_name(domain: usize) -> String {
    format!("{:013}", 1_820_225_000_000_u64 + domain as u64)
}

#[derive(Clone, Copy, Debug)]
struct SimNvloomTest<'a> {
    name: &'a str,
    engine: SimCopyEngine,
    reads: bool,
    both: bool,
}

impl ToolInvocation<'_> {
    /// Runs the tests of these suites, and these tests; `Err` contains an unknown name.
    pub fn run_nvloom(&self, suites: &[String], tests: &[String]) -> Result<SimNvloomRun, String> {
        let mut names = Vec::new();
        for suite in suites {
            let of_suite = suite_tests(suite);
            if of_suite.is_empty() {
                return Err(suite.clone());
            }
            names.extend(of_suite);
        }
        let known: Vec<String> = SUITES.iter().flat_map(|suite| suite_tests(suite)).collect();
        if let Some(strange) = tests.iter().find(|test| !known.contains(test)) {
            return Err((*strange).clone());
        }
        names.extend(tests.iter().cloned());
        let mut gpus = self.gpus();
        // Without a launcher it is one process with one GPU.
        if self.job.is_none_or(|job| job.hosts.is_empty()) && !self.spans_domain {
            gpus.truncate(1);
        }
        let domain = |gpu: &GpuIndex| self.fabric.node_of(*gpu).domain;
        let mut racks: Vec<usize> = gpus.iter().map(domain).collect();
        racks.sort_unstable();
        racks.dedup();
        let first = gpus.first().map(domain);
        let foreign = gpus.iter().position(|gpu| Some(domain(gpu)) != first);
        let across = cases::cases_of_version(NvbandwidthLayout::V0_8, true);
        let copies = across.iter().find(|case| case.is_multinode());
        let failed = || copies.and_then(|case| self.test_failure(case, &gpus));
        let failure = self.no_device_failure().or_else(failed);
        let mut run = SimNvloomRun {
            racks: racks.iter().map(|rack| rack_name(*rack)).collect(),
            gpus,
            tests: Vec::new(),
            failure,
            foreign_rank: foreign,
        };
        if run.foreign_rank.is_some() || run.failure.is_some() {
            return Ok(run);
        }
        let ranks = run.gpus.clone();
        for name in names {
            let test = SimNvloomTest {
                name: &name,
                engine: if name.ends_with("_sm") {
                    SimCopyEngine::Kernel
                } else {
                    SimCopyEngine::Copy
                },
                reads: name.contains("_read_"),
                both: name.contains("bidir"),
            };
            let sheet = (1 < ranks.len()).then(|| self.nvloom_table(test, &ranks, &run.racks));
            run.tests.push((name, sheet));
        }
        Ok(run)
    }

    fn nvloom_table(
        &self,
        test: SimNvloomTest<'_>,
        gpus: &[GpuIndex],
        racks: &[String],
    ) -> SimNvloomTable {
        let key = self.key(test.name);
        let sheet = |columns: Vec<String>, row_labels: Vec<String>, cells: Vec<Option<f64>>| {
            let (key, description) = (test.name.to_owned(), String::new());
            let table = SimMatrix { key, description, row_labels, columns: columns.len(), cells };
            SimNvloomTable { table, columns }
        };
        let ranks = 0..gpus.len();
        if test.name.starts_with("bisect_") {
            let peer = |rank: usize| (rank + gpus.len() / 2) % gpus.len();
            let labels = ranks.clone().map(|rank| format!("{rank}->{}", peer(rank))).collect();
            let cells = ranks.map(|at| Some(self.read_copy(test, gpus[at], gpus[peer(at)], key)));
            return sheet(vec!["0".to_owned()], labels, cells.collect());
        }
        if test.name.starts_with("rack_to_rack_") {
            // All ranks share one clique, so only one rack exists.
            let cells = vec![None; racks.len() * racks.len()];
            return sheet(racks.to_vec(), racks.to_vec(), cells);
        }
        let cells = gpus.iter().map(|gpu| Some(self.read_sampled(test, *gpu, gpus, key))).collect();
        sheet(racks.to_vec(), ranks.map(|rank| rank.to_string()).collect(), cells)
    }

    /// The median of a GPU's copies with a sample of the others.
    fn read_sampled(
        &self,
        test: SimNvloomTest<'_>,
        gpu: GpuIndex,
        gpus: &[GpuIndex],
        key: NoiseKey,
    ) -> f64 {
        let mut others: Vec<GpuIndex> = gpus.iter().copied().filter(|o| *o != gpu).collect();
        let mut rates: Vec<f64> = (0..PEERS_PER_RACK)
            .filter_map(|sample| {
                let pick = key.with_part(gpu as u64).with_part(sample).value()
                    % others.len().max(1) as u64;
                let at = usize::try_from(pick).ok().filter(|at| *at < others.len())?;
                Some(self.read_copy(test, gpu, others.swap_remove(at), key))
            })
            .collect();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().unwrap_or(0.0)
    }

    fn read_copy(
        &self,
        test: SimNvloomTest<'_>,
        from: GpuIndex,
        to: GpuIndex,
        key: NoiseKey,
    ) -> f64 {
        let truth = |from: GpuIndex, to: GpuIndex| {
            let reads = self.fabric.node_of(to).hardware.reads;
            let share = match self.fabric.route(from, to) {
                CopyRoute::NvLink(_) if test.reads => {
                    reads[usize::from(test.engine == SimCopyEngine::Kernel)]
                }
                _ => 1.0,
            };
            self.fabric.copy_rate(from, to, test.engine) * share
        };
        let forward = self.read(truth(from, to), key, [from, to]);
        let back = if test.both { self.read(truth(to, from), key, [to, from]) } else { 0.0 };
        forward + back
    }
}

const SUITES: [&str; 3] = ["gpu-to-rack", "rack-to-rack", "fabric-stress"];

fn suite_tests(suite: &str) -> Vec<String> {
    let stems: &[&str] = match suite {
        "gpu-to-rack" => {
            &["gpu_to_rack_device_to_device_unidir", "gpu_to_rack_device_to_device_bidir"]
        }
        "rack-to-rack" => {
            &["rack_to_rack_unidir_device_to_device", "rack_to_rack_bidir_device_to_device"]
        }
        "fabric-stress" => &["bisect_device_to_device"],
        _ => &[],
    };
    let engines = ["write_ce", "read_ce", "write_sm", "read_sm"];
    stems.iter().flat_map(|stem| engines.map(|engine| format!("{stem}_{engine}"))).collect()
}
