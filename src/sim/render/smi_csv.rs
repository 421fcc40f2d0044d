//! CSV queries of nvidia-smi: `--query-gpu` and `--query-compute-apps`.

use super::smi::no_devices;
use super::{SimToolOutput, gpu_uuid};
use crate::fabric::GpuIndex;
use crate::invocation::ToolInvocation;

/// The VBIOS of every simulated GPU.
const VBIOS: &str = "96.00.74.00.01";

/// Answers a query; `None` if the arguments are not one.
pub fn answer_query(bench: &ToolInvocation<'_>, args: &[String]) -> Option<SimToolOutput> {
    let value = |name: &str| args.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='));
    let format = value("--format").unwrap_or_default();
    let has_option = |word: &str| format.split(',').any(|part| part == word);
    let form = SmiCsvFormat { header: !has_option("noheader"), units: !has_option("nounits") };
    if let Some(fields) = value("--query-compute-apps") {
        return Some(render_processes(bench, fields, form));
    }
    value("--query-gpu").map(|fields| render_gpus(bench, fields, form))
}

#[derive(Clone, Copy)]
struct SmiCsvFormat {
    header: bool,
    units: bool,
}

fn render_table(
    fields: &str,
    form: SmiCsvFormat,
    rows: Vec<Option<Vec<(String, &'static str)>>>,
) -> SimToolOutput {
    let names: Vec<&str> = fields.split(',').map(str::trim).collect();
    let mut out = String::new();
    if form.header {
        out.push_str(&format!("{}\n", names.join(", ")));
    }
    for row in rows {
        let Some(cells) = row else {
            let why = format!("Field in \"{fields}\" is not a valid field to query.\n\n");
            return SimToolOutput::with_exit_code(why, String::new(), 2);
        };
        let cells: Vec<String> = cells
            .into_iter()
            .map(|(value, unit)| match unit.is_empty() || !form.units {
                true => value,
                false => format!("{value} {unit}"),
            })
            .collect();
        out.push_str(&format!("{}\n", cells.join(", ")));
    }
    SimToolOutput::success(out)
}

fn render_processes(bench: &ToolInvocation<'_>, fields: &str, form: SmiCsvFormat) -> SimToolOutput {
    let gpus = bench.gpus();
    let Some(first) = gpus.first() else { return no_devices() };
    let Some(process) = &bench.fabric.node_of(*first).process else {
        return render_table(fields, form, Vec::new());
    };
    let field = |gpu: GpuIndex, name: &str| -> Option<(String, &'static str)> {
        let slot = bench.fabric.gpus[gpu].slot;
        Some(match name.trim() {
            "pid" => ((31_000 + slot).to_string(), ""),
            "process_name" | "name" => (process.clone(), ""),
            "gpu_uuid" => (gpu_uuid(bench.fabric, gpu), ""),
            "used_memory" | "used_gpu_memory" => ("70112".to_owned(), "MiB"),
            _ => return None,
        })
    };
    let row = |gpu: &GpuIndex| fields.split(',').map(|name| field(*gpu, name)).collect();
    render_table(fields, form, gpus.iter().map(row).collect())
}

fn render_gpus(bench: &ToolInvocation<'_>, fields: &str, form: SmiCsvFormat) -> SimToolOutput {
    let gpus = bench.gpus();
    if gpus.is_empty() {
        return no_devices();
    }
    let row = |gpu: &GpuIndex| fields.split(',').map(|name| gpu_field(bench, *gpu, name)).collect();
    render_table(fields, form, gpus.iter().map(row).collect())
}

fn gpu_field(
    bench: &ToolInvocation<'_>,
    gpu: GpuIndex,
    name: &str,
) -> Option<(String, &'static str)> {
    let fabric = bench.fabric;
    let (node, state) = (fabric.node_of(gpu), &fabric.gpus[gpu]);
    let busy = node.process.is_some();
    // A variation of a few degrees and watts from one reading to the next.
    let wobble =
        bench.key("nvidia-smi").with_part(gpu as u64).with_part(name.len() as u64).fraction();
    let clock = 1980.0 * if node.power < 1.0 { node.power } else { 1.0 };
    Some(match name.trim() {
        "index" => (fabric.cuda_index(gpu).to_string(), ""),
        "uuid" | "gpu_uuid" => (gpu_uuid(fabric, gpu), ""),
        "name" | "gpu_name" => (node.hardware.product.to_owned(), ""),
        "count" => (node.gpus.len().to_string(), ""),
        "driver_version" => (node.hardware.driver.to_owned(), ""),
        "vbios_version" => (VBIOS.to_owned(), ""),
        "pci.bus_id" | "gpu_bus_id" => {
            (format!("{}.0", node.hardware.bus_id(state.slot).to_uppercase()), "")
        }
        "pstate" => ("P0".to_owned(), ""),
        "persistence_mode" => ("Enabled".to_owned(), ""),
        "mig.mode.current" => ("Disabled".to_owned(), ""),
        "clocks.sm" | "clocks.current.sm" | "clocks.gr" | "clocks.current.graphics" => {
            (format!("{clock:.0}"), "MHz")
        }
        "clocks.max.sm" | "clocks.max.graphics" => ("1980".to_owned(), "MHz"),
        "clocks.mem" | "clocks.current.memory" | "clocks.max.mem" | "clocks.max.memory" => {
            ("2619".to_owned(), "MHz")
        }
        "temperature.gpu" => (format!("{:.0}", 30.0 + 4.0 * wobble), ""),
        "temperature.memory" => (format!("{:.0}", 38.0 + 4.0 * wobble), ""),
        "power.draw" | "power.draw.instant" => {
            (format!("{:.2}", if busy { 610.0 } else { 118.0 } + 9.0 * wobble), "W")
        }
        "power.limit" | "enforced.power.limit" => (format!("{:.2}", 700.0 * node.power), "W"),
        "utilization.gpu" => (if busy { "97" } else { "0" }.to_owned(), "%"),
        "utilization.memory" => (if busy { "41" } else { "0" }.to_owned(), "%"),
        "memory.used" => (if busy { "70112" } else { "4" }.to_owned(), "MiB"),
        "memory.total" => ("81559".to_owned(), "MiB"),
        "ecc.errors.uncorrected.volatile.total" | "ecc.errors.corrected.volatile.total" => {
            ("0".to_owned(), "")
        }
        "clocks_throttle_reasons.active" | "clocks_event_reasons.active" => {
            ("0x0000000000000000".to_owned(), "")
        }
        _ => return None,
    })
}
