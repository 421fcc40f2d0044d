//! Summarizes the readings before, during and after a probe.

use std::collections::{BTreeMap, BTreeSet};

use super::{GpuLoad, GpuSnapshot, TelemetryLine};
use crate::facts::query::merge_missing;
use model::node_facts::MissingFact;
use model::probe_report::{DriverTelemetry, GpuTelemetry, GpuTelemetrySample};
use model::throttle_reason::ThrottleReason;

/// Raises `most` to the higher values in `more`, and adds newly seen throttle reasons.
///
/// The idle throttle reason is ignored: every GPU is idle between two tests, and that is not a
/// fault.
pub(super) fn raise_maxima(most: &mut GpuTelemetrySample, more: &GpuTelemetrySample) {
    most.sm_mhz = most.sm_mhz.max(more.sm_mhz);
    most.memory_mhz = most.memory_mhz.max(more.memory_mhz);
    most.power_w = match (most.power_w, more.power_w) {
        (Some(one), Some(other)) => Some(one.max(other)),
        (one, other) => one.or(other),
    };
    most.temperature_c = most.temperature_c.max(more.temperature_c);
    most.pcie_generation = most.pcie_generation.max(more.pcie_generation);
    most.pcie_width = most.pcie_width.max(more.pcie_width);
    for why in &more.throttled {
        if *why != ThrottleReason::Idle && !most.throttled.contains(why) {
            most.throttled.push(why.clone());
        }
    }
}

/// Summarizes the output of the process that watched GPUs during a probe.
///
/// `own` are the process IDs of the probe. `trouble` is the reason if the watching process did not
/// end by itself. Truncated lines are ignored.
pub fn summarize_telemetry(output: &str, own: &[u32], trouble: Option<&str>) -> DriverTelemetry {
    let mut log = TelemetryLog::default();
    for line in output.lines() {
        if let Ok(line) = serde_json::from_str(line) {
            log.add_line(line);
        }
    }
    log.into_summary(own, trouble.unwrap_or("the process that reads them ended too early"))
}

/// Readings parsed up to now.
#[derive(Default)]
struct TelemetryLog {
    count: Option<u32>,
    own_numbers: bool,
    before: BTreeMap<u32, GpuSnapshot>,
    loads: BTreeMap<u32, GpuLoad>,
    after: BTreeMap<u32, GpuSnapshot>,
    missing: Vec<MissingFact>,
    /// Why no readings exist, if reported.
    nothing: Option<String>,
}

impl TelemetryLog {
    fn add_line(&mut self, line: TelemetryLine) {
        match line {
            TelemetryLine::NoDriver { why } => self.nothing = Some(why),
            TelemetryLine::Machine { gpus, own_numbers, missing } => {
                self.count = Some(gpus);
                self.own_numbers = own_numbers;
                self.missing.extend(missing);
            }
            TelemetryLine::Before(mut reading) => {
                self.merge_missing(&mut reading.missing);
                self.before.insert(reading.index, *reading);
            }
            TelemetryLine::Load(mut load) => {
                self.merge_missing(&mut load.missing);
                self.loads.insert(load.index, *load);
            }
            TelemetryLine::After(mut reading) => {
                self.merge_missing(&mut reading.missing);
                self.after.insert(reading.index, *reading);
            }
            TelemetryLine::Begun | TelemetryLine::End => {}
        }
    }

    /// Merges facts missing both before and after the probe into one entry.
    fn merge_missing(&mut self, missing: &mut Vec<MissingFact>) {
        for missing in missing.drain(..) {
            if !self.missing.contains(&missing) {
                self.missing.push(missing);
            }
        }
    }

    fn into_summary(mut self, own: &[u32], trouble: &str) -> DriverTelemetry {
        let mut around = DriverTelemetry::default();
        let Some(count) = self.count else {
            let why = self.nothing.unwrap_or_else(|| trouble.to_owned());
            around.missing.push(missing_entry("readings around the probe", Vec::new(), why));
            return around;
        };
        around.samples = self.loads.values().map(|load| load.samples).max().unwrap_or(0);
        let mut missing = std::mem::take(&mut self.missing);
        let without = |readings: &BTreeMap<u32, GpuSnapshot>| {
            (0..count).filter(|index| !readings.contains_key(index)).collect::<Vec<u32>>()
        };
        for (when, gpus) in [("before", without(&self.before)), ("after", without(&self.after))] {
            if !gpus.is_empty() {
                missing.push(missing_entry(&format!("readings {when} the probe"), gpus, trouble));
            }
        }
        for index in 0..count {
            around.gpus.push(self.summarize_gpu(index, own, &mut missing));
        }
        around.missing = merge_missing(missing);
        around
    }

    fn summarize_gpu(
        &self,
        index: u32,
        own: &[u32],
        missing: &mut Vec<MissingFact>,
    ) -> GpuTelemetry {
        let (before, after) = (self.before.get(&index), self.after.get(&index));
        let load = self.loads.get(&index).filter(|load| 0 < load.samples);
        let uuid = before.or(after).and_then(|reading| reading.uuid.clone());
        let state = |reading: Option<&GpuSnapshot>| {
            reading
                .map(|it| it.state.clone())
                .filter(|state| *state != GpuTelemetrySample::default())
        };
        let mut gpu = GpuTelemetry {
            index,
            uuid,
            before: state(before),
            under_load: load
                .map(|it| it.state.clone())
                .filter(|it| *it != GpuTelemetrySample::default()),
            after: state(after),
            others: self.foreign_processes(index, own),
            ..GpuTelemetry::default()
        };
        if let (Some(before), Some(after)) = (before, after) {
            add_counter_growth(&mut gpu, before, after, missing);
        }
        gpu
    }

    /// Processes on a GPU that do not belong to the probe. In another PID namespace the probe's
    /// processes cannot be identified, so only processes from before the probe count as foreign.
    fn foreign_processes(&self, index: u32, own: &[u32]) -> Vec<u32> {
        let before = self.before.get(&index).map(|reading| &reading.processes);
        if !self.own_numbers {
            return before.into_iter().flatten().copied().collect();
        }
        let load = self.loads.get(&index).map(|load| &load.processes);
        let after = self.after.get(&index).map(|reading| &reading.processes);
        let all = [before, load, after].into_iter().flatten().flatten();
        let others: BTreeSet<u32> = all.copied().filter(|pid| !own.contains(pid)).collect();
        others.into_iter().collect()
    }
}

fn missing_entry(what: &str, gpus: Vec<u32>, why: impl Into<String>) -> MissingFact {
    MissingFact { what: what.to_owned(), gpus, why: why.into(), ..MissingFact::default() }
}

/// Growth of the counters. A counter that decreased was reset, so its growth is unknown.
fn add_counter_growth(
    gpu: &mut GpuTelemetry,
    before: &GpuSnapshot,
    after: &GpuSnapshot,
    missing: &mut Vec<MissingFact>,
) {
    let index = gpu.index;
    let mut growth = |what: &str, link: Option<u32>, from: u64, to: u64| {
        if to < from {
            let why = format!("it was reset during the probe (from {from} to {to})");
            let links = link.into_iter().collect();
            missing.push(MissingFact { links, ..missing_entry(what, vec![index], why) });
        }
        to.checked_sub(from)
    };
    if let (Some(from), Some(to)) = (before.pcie_replays, after.pcie_replays) {
        gpu.pcie_replays = growth("growth of PCIe replays", None, from, to);
    }
    let at_first: BTreeMap<_, _> = before.links.iter().map(|(link, it)| (link, it)).collect();
    for (link, counters) in &after.links {
        for (name, to) in counters {
            let from = at_first.get(link).and_then(|counters| counters.get(name));
            let Some(from) = from else { continue };
            let what = format!("growth of NVLink errors {name}");
            if let Some(more) = growth(&what, Some(*link), *from, *to).filter(|it| 0 < *it) {
                gpu.link_errors.entry(*link).or_default().insert(name.clone(), more);
            }
        }
    }
}
