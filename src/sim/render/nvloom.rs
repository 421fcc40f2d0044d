//! nvloom_cli's tables, layout of 1.3.0.

use super::SimToolOutput;
use crate::invocation::{SimMatrix, ToolInvocation};
use crate::nvloom;
use crate::nvloom::SimNvloomRun;

/// Renders the whole output.
pub fn render_text(bench: &ToolInvocation<'_>, run: &SimNvloomRun) -> SimToolOutput {
    let fabric = bench.fabric;
    let mut out = String::from("nvloom_cli 1.3.0\ngit commit: simulated\n");
    if let Some(first) = run.gpus.first() {
        let hardware = fabric.node_of(*first).hardware;
        let cuda = format!("{}.{}", hardware.cuda / 1000, hardware.cuda % 1000 / 10);
        out.push_str(&format!(
            "NVCC version: {cuda}\nCUDA version: {cuda}\nDriver version: {}\n",
            hardware.driver
        ));
    }
    out.push_str("Allocation strategy: reuse\nBuffer size: 512 MiB\nIteration count: 16\n");
    for (rank, gpu) in run.gpus.iter().enumerate() {
        let node = fabric.node_of(*gpu);
        out.push_str(&format!(
            "Process {rank} ({}): device {}: {} ({}); rackGuid: {}\n",
            node.name,
            fabric.cuda_index(*gpu),
            node.hardware.product,
            node.hardware.bus_id(fabric.gpus[*gpu].slot),
            nvloom::rack_name(node.domain)
        ));
    }
    out.push('\n');
    if let Some(rank) = run.foreign_rank {
        out.push_str(&format!(
            "Process {rank} cliqueId=32765 is different than process 0 cliqueId=32766\n"
        ));
        return SimToolOutput::with_exit_code(out, String::new(), 1);
    }
    if let Some(failure) = &run.failure {
        let alone = || (bench.scope.to_owned(), 0);
        let (host, rank) = failure.rank.clone().unwrap_or_else(alone);
        let device = run.gpus.get(rank).map_or(0, |gpu| fabric.cuda_index(*gpu));
        let why = match failure.what.as_str() {
            // Its data check has another name than nvbandwidth's.
            "ASSERT" => "ASSERT in expression 0 == copy.dst->check(id)".to_owned(),
            what => format!("{what} in expression {}", failure.expression),
        };
        let line = format!("[{host}:{device}]: {why} in doBenchmark() : nvloom.cpp:300\n");
        return SimToolOutput::with_exit_code(out, line, 1);
    }
    for (name, sheet) in &run.tests {
        out.push_str(&format!("Running {name}\n"));
        match sheet {
            None => out.push_str("testcase WAIVED\n"),
            Some(sheet) => write_table(&mut out, &sheet.table, &sheet.columns),
        }
        out.push_str(&format!("Done {name}\n\n"));
    }
    SimToolOutput::success(out)
}

fn write_table(out: &mut String, table: &SimMatrix, columns: &[String]) {
    out.push_str(&format!("\t{}\t\n", columns.join("\t")));
    for (label, cells) in table.row_labels.iter().zip(table.cells.chunks(table.columns.max(1))) {
        out.push_str(&format!("{label}\t"));
        for cell in cells {
            out.push_str(&cell.map_or("N/A\t".to_owned(), |value| format!("{value:.2}\t")));
        }
        out.push('\n');
    }
    out.push('\n');
    let values: Vec<f64> = table.cells.iter().flatten().copied().collect();
    let sum: f64 = values.iter().sum();
    let name = &table.key;
    let statistics = [
        ("Min", values.iter().copied().fold(f64::INFINITY, f64::min)),
        ("Avg", sum / values.len() as f64),
        ("Max", values.iter().copied().fold(0.0, f64::max)),
        ("Total", sum),
    ];
    for (kind, value) in statistics {
        let value = if values.is_empty() { "N/A".to_owned() } else { format!("{value:.2}") };
        out.push_str(&format!("{kind} {name} {value} GB/s\n"));
    }
    out.push_str(&format!("\nExecutionTime {name} 1.25 s\n"));
}
