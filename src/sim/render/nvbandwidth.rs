//! nvbandwidth's text output, layouts v0.2 to v0.10.

use std::fmt::Write;

use super::SimToolOutput;
use crate::cases::SimCase;
use crate::invocation::{
    SimMatrix, SimNvbandwidthRun, SimTestOutcome, SimToolFailure, ToolInvocation,
};
use crate::tool_config::NvbandwidthLayout;

/// The version's name in the output.
pub fn version_name(version: NvbandwidthLayout) -> &'static str {
    match version {
        NvbandwidthLayout::V0_2 => "v0.2",
        NvbandwidthLayout::V0_5 => "v0.5",
        NvbandwidthLayout::V0_6 => "v0.6",
        NvbandwidthLayout::V0_8 => "v0.8",
        NvbandwidthLayout::V0_10 => "v0.10.0",
    }
}

/// Renders the whole output.
pub fn render_text(
    bench: &ToolInvocation<'_>,
    version: NvbandwidthLayout,
    run: &SimNvbandwidthRun,
) -> SimToolOutput {
    let mut out = render_header(bench, version, run);
    for (name, outcome) in &run.tests {
        match outcome {
            SimTestOutcome::Waived if version < NvbandwidthLayout::V0_5 => {
                out.push_str(&format!("Waiving {name}.\n\n"));
            }
            SimTestOutcome::Waived => out.push_str("Waived: \n"),
            SimTestOutcome::NotFound => {
                out.push_str(&format!("ERROR: Testcase {name} not found!\n"));
            }
            SimTestOutcome::Failed(_) => out.push_str(&format!("Running {name}.\n")),
            SimTestOutcome::Measured(tables) => {
                out.push_str(&format!("Running {name}.\n"));
                for table in tables {
                    print_table(&mut out, version, table);
                }
            }
        }
    }
    if let Some(failure) = run.failure() {
        let line = failure_line(failure);
        return match NvbandwidthLayout::V0_8 <= version {
            true => SimToolOutput::with_exit_code(out, line, 1),
            false => SimToolOutput::with_exit_code(out + &line, String::new(), 1),
        };
    }
    if NvbandwidthLayout::V0_6 <= version {
        out.push_str(
            "NOTE: The reported results may not reflect the full capabilities of the platform.\n\
             Performance can vary with software drivers, hardware clocks, and system topology.\n\n",
        );
    }
    SimToolOutput::success(out)
}

/// Output of `--list`.
pub fn render_list(version: NvbandwidthLayout, cases: &[&SimCase]) -> SimToolOutput {
    let name = version_name(version);
    let mut out = format!(
        "nvbandwidth Version: {name}\nBuilt from Git version: {name}\n\n\
         Index, Name:\n\tDescription\n=======================\n"
    );
    for (number, case) in cases.iter().enumerate() {
        let what = case.description(version, "");
        out.push_str(&format!("{number}, {}:\n\t{what}\n\n", case.name));
    }
    SimToolOutput::success(out)
}

/// The warning for a host whose ranks share its GPUs.
pub fn oversubscription_warning(host: &str) -> String {
    format!(
        "Warning: there are more processes than GPUs on {host}. Please reduce number of processes \
         to match GPU count."
    )
}

/// The line of a failed call.
pub fn failure_line(failure: &SimToolFailure) -> String {
    let place = match &failure.rank {
        Some((host, rank)) => format!(" on {host}, rank = {rank}"),
        None => String::new(),
    };
    format!("{} in expression {}{place} in {}\n", failure.what, failure.expression, failure.place)
}

fn render_header(
    bench: &ToolInvocation<'_>,
    version: NvbandwidthLayout,
    run: &SimNvbandwidthRun,
) -> String {
    let fabric = bench.fabric;
    let mut out = String::new();
    let name = version_name(version);
    out.push_str(&format!("nvbandwidth Version: {name}\nBuilt from Git version: {name}\n\n"));
    if bench.spans_domain {
        out.push_str("MPI version: Open MPI v4.1.7, simulated\n");
    }
    if version < NvbandwidthLayout::V0_6 {
        out.push_str(
            "NOTE: This tool reports current measured bandwidth on your system.\n\
             Additional system-specific tuning may be required to achieve maximal peak bandwidth.\n\n",
        );
    }
    let Some(first) = run.gpus.first().filter(|_| run.refused.is_none()) else { return out };
    for host in &run.oversubscribed {
        out.push_str(&format!("{}\n", oversubscription_warning(host)));
    }
    let hardware = fabric.node_of(*first).hardware;
    let (cuda, driver) = (hardware.cuda, hardware.driver);
    let lines = match version {
        NvbandwidthLayout::V0_10 => {
            let dotted = format!("{}.{} ({cuda})", cuda / 1000, cuda % 1000 / 10);
            format!("CUDA Runtime Version: {dotted}\nCUDA Driver Version (API): {dotted}\n")
        }
        _ => format!("CUDA Runtime Version: {cuda}\nCUDA Driver Version: {cuda}\n"),
    };
    out.push_str(&format!("{lines}Driver Version: {driver}\n\n"));
    if version == NvbandwidthLayout::V0_10 && !bench.spans_domain {
        return out;
    }
    if NvbandwidthLayout::V0_8 <= version && !bench.spans_domain {
        out.push_str(&format!("{}\n", fabric.node_of(*first).name));
    }
    let width = (run.gpus.len() - 1).to_string().len();
    for (rank, gpu) in run.gpus.iter().enumerate() {
        let (node, device) = (fabric.node_of(*gpu), fabric.cuda_index(*gpu));
        let product = node.hardware.product;
        let bus = node.hardware.bus_id(fabric.gpus[*gpu].slot);
        let written = if bench.spans_domain {
            writeln!(
                out,
                "Process {rank:>width$} ({}): device {device}: {product} ({bus})",
                node.name
            )
        } else if version < NvbandwidthLayout::V0_6 {
            writeln!(out, "Device {device}: {product}")
        } else {
            writeln!(out, "Device {device}: {product} ({bus})")
        };
        debug_assert!(written.is_ok(), "writing to a string does not fail");
    }
    out.push('\n');
    out
}

fn print_table(out: &mut String, version: NvbandwidthLayout, table: &SimMatrix) {
    let least = if version < NvbandwidthLayout::V0_5 { 1 } else { 2 };
    let width = table.row_labels.iter().map(String::len).fold(least, usize::max);
    out.push_str(&table.description);
    out.push('\n');
    out.push_str(&" ".repeat(width));
    for column in 0..table.columns {
        out.push_str(&format!("{column:>10}"));
    }
    out.push('\n');
    for (row, cells) in table.cells.chunks(table.columns.max(1)).enumerate() {
        match table.row_labels.get(row) {
            Some(label) => out.push_str(&format!("{label:>width$}")),
            None => out.push_str(&format!("{row:>least$}")),
        }
        for cell in cells {
            match cell {
                Some(value) => out.push_str(&format!("{value:>10.2}")),
                None => out.push_str("       N/A"),
            }
        }
        out.push('\n');
    }
    let values: Vec<f64> = table.cells.iter().copied().flatten().collect();
    let sum: f64 = values.iter().sum();
    out.push_str(&format!("\nSUM {} {sum:.2}\n", table.key));
    let is_part = table.key.ends_with('1') || table.key.ends_with('2');
    if version == NvbandwidthLayout::V0_10 && !is_part {
        out.push_str(&format!(
            "COEFFICIENT_OF_VARIATION {} {:.2}\n",
            table.key,
            coefficient_of_variation(&values)
        ));
    }
    out.push('\n');
}

/// Standard deviation divided by the mean.
fn coefficient_of_variation(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    if values.is_empty() {
        return 0.0;
    }
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
    variance.sqrt() / mean
}
