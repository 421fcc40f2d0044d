//! Common parts of the tables of fabricgate's GPU probes: GPUs with the driver's report around the
//! measurement, numbers over readings, problems.
//!
//! Displays measurements and judges nothing.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

use super::plain_text::{clip, to_plain};
use model::parse_output::OutputProblemKind;
use model::probe_report::{
    DriverTelemetry, GpuTelemetry, GpuTelemetrySample, ProbeProblem, ProbedGpu,
};

/// Placeholder of an unknown or unmeasured value.
pub(super) const UNKNOWN: &str = "?";
pub(super) const NOTHING: &str = "-";

/// The widest token of a table that is not cut.
const WIDEST: usize = 60;

/// A table without lines; all columns after the first `words` are numbers.
pub(super) fn render_table(header: &[String], words: usize, rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.iter().map(|cell| clip(cell, WIDEST)));
    for row in rows {
        table.add_row(row.iter().map(|cell| clip(cell, WIDEST)));
    }
    for column in table.column_iter_mut().skip(words) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let text = table.to_string();
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ReadingSpread {
    /// Median of the readings.
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

impl ReadingSpread {
    /// The spread of these readings; `None` without readings.
    pub(super) fn from_readings(readings: impl Iterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = readings.filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
            _ => sorted[middle],
        };
        Some(Self { median, least, most })
    }

    /// The range of the readings relative to the median.
    pub(super) fn relative_range(self) -> f64 {
        if self.median == 0.0 { 0.0 } else { (self.most - self.least) / self.median }
    }
}

/// One line per GPU: its identity, and its state under load.
pub(super) fn render_gpus(gpus: &[ProbedGpu], around: Option<&DriverTelemetry>) -> String {
    let header = [
        "GPU",
        "product",
        "PCI address",
        "NUMA",
        "PCIe under load",
        "SM/memory MHz",
        "SM before, after",
        "W",
        "C",
        "slowed by",
        "link errors",
    ];
    let rows = gpus.iter().map(|gpu| {
        let seen = around.and_then(|around| around.gpus.iter().find(|it| it.index == gpu.index));
        let load = seen.and_then(|seen| seen.under_load.as_ref());
        let number = |value: Option<u32>| value.map_or(UNKNOWN.to_owned(), |it| it.to_string());
        vec![
            gpu.index.to_string(),
            or_unknown(gpu.name.as_deref()),
            or_unknown(gpu.bus_id.as_deref()),
            match (gpu.numa_node, gpu.unreachable_numa_node) {
                (None, Some(node)) => format!("not {node}"),
                (node, _) => number(node),
            },
            load.and_then(format_pcie).unwrap_or_else(|| UNKNOWN.to_owned()),
            load.and_then(format_clocks).unwrap_or_else(|| UNKNOWN.to_owned()),
            {
                let clock = |it: Option<&GpuTelemetrySample>| number(it.and_then(|it| it.sm_mhz));
                let before = clock(seen.and_then(|seen| seen.before.as_ref()));
                format!("{before}, {}", clock(seen.and_then(|seen| seen.after.as_ref())))
            },
            load.and_then(|it| it.power_w)
                .map_or(UNKNOWN.to_owned(), |watts| format!("{watts:.0}")),
            number(load.and_then(|it| it.temperature_c)),
            load.map_or(UNKNOWN.to_owned(), |it| {
                let reasons: Vec<String> = it.throttled.iter().map(ToString::to_string).collect();
                list_words(&reasons)
            }),
            seen.map_or(UNKNOWN.to_owned(), format_errors),
        ]
    });
    render_table(&header.map(str::to_owned), header.len(), rows.collect())
}

fn or_unknown(text: Option<&str>) -> String {
    text.map_or(UNKNOWN, |text| text).to_owned()
}

fn list_words(words: &[String]) -> String {
    if words.is_empty() { NOTHING.to_owned() } else { words.join(", ") }
}

fn format_pcie(state: &GpuTelemetrySample) -> Option<String> {
    Some(format!("gen {} x{}", state.pcie_generation?, state.pcie_width?))
}

fn format_clocks(state: &GpuTelemetrySample) -> Option<String> {
    let number = |value: Option<u32>| value.map_or(UNKNOWN.to_owned(), |it| it.to_string());
    (state.sm_mhz.is_some() || state.memory_mhz.is_some())
        .then(|| format!("{}/{}", number(state.sm_mhz), number(state.memory_mhz)))
}

/// Counters that increased: `link 3 crc +12, PCIe replays +1`.
fn format_errors(seen: &GpuTelemetry) -> String {
    let links = seen.link_errors.iter().flat_map(|(link, counters)| {
        counters.iter().map(move |(counter, more)| format!("link {link} {counter} +{more}"))
    });
    let replays = seen.pcie_replays.filter(|more| *more != 0);
    let replays = replays.map(|more| format!("PCIe replays +{more}"));
    list_words(&links.chain(replays).collect::<Vec<_>>())
}

/// Parts of the driver's report that the table does not show.
pub(super) fn write_telemetry(text: &mut String, around: Option<&DriverTelemetry>) {
    let Some(around) = around else { return };
    for gpu in around.gpus.iter().filter(|gpu| !gpu.others.is_empty()) {
        let others: Vec<String> = gpu.others.iter().map(u32::to_string).collect();
        let _ = writeln!(
            text,
            "\nGPU {} was not idle: process {} of another user computed on it",
            gpu.index,
            others.join(", ")
        );
    }
    if around.missing.is_empty() {
        return;
    }
    text.push_str("\nNot reported by the driver\n");
    for missing in &around.missing {
        let gpus: Vec<String> = missing.gpus.iter().map(u32::to_string).collect();
        let of =
            if gpus.is_empty() { String::new() } else { format!(" (GPU {})", gpus.join(", ")) };
        let _ = writeln!(text, "  {}{of}: {}", to_plain(&missing.what), to_plain(&missing.why));
    }
}

pub(super) fn write_problems(text: &mut String, problems: &[ProbeProblem]) {
    if !problems.is_empty() {
        text.push_str("\nProblems\n");
    }
    let corrupt = |problem: &&ProbeProblem| problem.kind == OutputProblemKind::Corrupt;
    let (wrong, other): (Vec<_>, Vec<_>) = problems.iter().partition(corrupt);
    for problem in wrong.into_iter().chain(other) {
        let mut place = Vec::new();
        place.extend(problem.node.as_deref().map(|node| to_plain(node).into_owned()));
        place.extend(problem.gpu.map(|gpu| format!("GPU {gpu}")));
        place.extend(problem.testcase.as_deref().map(|test| to_plain(test).into_owned()));
        let place =
            if place.is_empty() { String::new() } else { format!(" ({})", place.join(", ")) };
        let word = match problem.kind {
            OutputProblemKind::Corrupt => "WRONG DATA ",
            OutputProblemKind::Waived => "left out: ",
            _ => "",
        };
        let _ = writeln!(
            text,
            "  {word}{}{place}: {}",
            to_plain(problem.class.as_str()),
            to_plain(&problem.detail)
        );
    }
}

pub(super) fn write_conclusion(text: &mut String, complete: bool) {
    text.push_str(match complete {
        true => "\nAll requested measurements are complete.\n",
        false => "\nIncomplete: missing values above are unknown, not slow.\n",
    });
}

#[cfg(test)]
pub(super) mod fixture {
    //! GPUs and driver reports about them, for the tables' tests.

    use std::collections::BTreeMap;

    use super::*;
    use model::node_facts::MissingFact;
    use model::throttle_reason::ThrottleReason;

    /// Two GPUs as a probe reports them.
    pub(in crate::report) fn two() -> Vec<ProbedGpu> {
        let gpu = |index: u32| ProbedGpu {
            index,
            name: Some("NVIDIA H200".to_owned()),
            uuid: None,
            bus_id: Some(format!("0000:{index}b:00.0")),
            numa_node: (index == 0).then_some(0),
            unreachable_numa_node: (index == 1).then_some(1),
            memory_bytes: Some(141 << 30),
        };
        vec![gpu(0), gpu(1)]
    }

    /// The driver's report around the measurement, without the second GPU.
    pub(in crate::report) fn around() -> DriverTelemetry {
        let state = GpuTelemetrySample {
            sm_mhz: Some(1980),
            memory_mhz: Some(3201),
            power_w: Some(311.6),
            temperature_c: Some(45),
            pcie_generation: Some(5),
            pcie_width: Some(16),
            throttled: vec![ThrottleReason::SoftwarePowerCap],
        };
        let counters = BTreeMap::from([("crc".to_owned(), 12)]);
        let missing = MissingFact {
            what: "power".to_owned(),
            gpus: vec![1],
            links: Vec::new(),
            why: "no permission\u{1b}[31m".to_owned(),
        };
        let gpu = GpuTelemetry {
            index: 0,
            under_load: Some(state),
            link_errors: BTreeMap::from([(3, counters)]),
            pcie_replays: Some(1),
            others: vec![4711],
            ..GpuTelemetry::default()
        };
        DriverTelemetry { samples: 12, gpus: vec![gpu], missing: vec![missing] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_ends_of_readings() {
        let spread =
            ReadingSpread::from_readings([3.0, 1.0, 2.0, f64::NAN].into_iter()).expect("three");
        assert_eq!((spread.least, spread.median, spread.most), (1.0, 2.0, 3.0));
        assert!((spread.relative_range() - 1.0).abs() < 1e-12);
        let even = ReadingSpread::from_readings([1.0, 2.0].into_iter()).expect("two");
        assert!((even.median - 1.5).abs() < 1e-12);
        assert_eq!(ReadingSpread::from_readings(std::iter::empty()), None);
    }
}
