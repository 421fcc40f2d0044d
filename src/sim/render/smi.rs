//! nvidia-smi: `nvlink -s`, `topo -m`, and the fabric part of `-q`.

use super::{SimToolOutput, cluster_key, format_uuid, gpu_uuid};
use crate::fabric::GpuIndex;
use crate::invocation::ToolInvocation;

/// Output of every query if the driver finds no GPU: NVML's "not found".
pub(super) fn no_devices() -> SimToolOutput {
    SimToolOutput::with_exit_code("No devices were found\n".to_owned(), String::new(), 6)
}

/// `nvidia-smi nvlink -s`.
pub fn render_nvlink_status(bench: &ToolInvocation<'_>) -> SimToolOutput {
    let fabric = bench.fabric;
    let gpus = bench.gpus();
    if gpus.is_empty() {
        return no_devices();
    }
    let mut out = String::new();
    for gpu in gpus {
        let (hardware, device) = (fabric.node_of(gpu).hardware, fabric.cuda_index(gpu));
        let uuid = gpu_uuid(fabric, gpu);
        out.push_str(&format!("GPU {device}: {} (UUID: {uuid})\n", hardware.product));
        if fabric.gpus[gpu].shown == 0 {
            let all = "NVML: Unable to retrieve NVLink information as all links are inActive";
            out.push_str(&format!("{all}\n"));
            continue;
        }
        for link in 0..hardware.links {
            let active = fabric.gpus[gpu].shown & (1 << link) != 0;
            let rate = format!("{} GB/s", hardware.line_rate);
            let state = if active { &rate } else { "<inactive>" };
            out.push_str(&format!("\t Link {link}: {state}\n"));
        }
    }
    SimToolOutput::success(out)
}

/// `nvidia-smi topo -m`.
pub fn render_topology(bench: &ToolInvocation<'_>) -> SimToolOutput {
    let fabric = bench.fabric;
    let gpus = bench.gpus();
    if gpus.is_empty() {
        return no_devices();
    }
    let nics = gpus.len();
    let socket = |number: usize| number * 2 / gpus.len().max(1);
    let mut out = String::new();
    for gpu in 0..gpus.len() {
        out.push_str(&format!("\tGPU{gpu}"));
    }
    for nic in 0..nics {
        out.push_str(&format!("\tNIC{nic}"));
    }
    out.push_str("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n");
    let nic_link = |a: usize, b: usize| match (a == b, socket(a) == socket(b)) {
        (true, _) => "PIX",
        (false, true) => "NODE",
        (false, false) => "SYS",
    };
    for (number, gpu) in gpus.iter().enumerate() {
        out.push_str(&format!("GPU{number}"));
        for (column, other) in gpus.iter().enumerate() {
            let links = |gpu: GpuIndex| fabric.gpus[gpu].shown.count_ones();
            let cell = match links(*gpu).min(links(*other)) {
                _ if number == column => " X ".to_owned(),
                0 => nic_link(number, column).to_owned(),
                up => format!("NV{up}"),
            };
            out.push_str(&format!("\t{cell}"));
        }
        for nic in 0..nics {
            out.push_str(&format!("\t{}", nic_link(number, nic)));
        }
        let side = socket(number);
        out.push_str(&format!("\t{}-{}\t{side}\t\tN/A\n", side * 56, side * 56 + 55));
    }
    for nic in 0..nics {
        out.push_str(&format!("NIC{nic}"));
        for column in 0..gpus.len() {
            out.push_str(&format!("\t{}", nic_link(nic, column)));
        }
        for column in 0..nics {
            let cell = match (nic == column, socket(nic) == socket(column)) {
                (true, _) => " X ",
                (false, true) => "NODE",
                (false, false) => "SYS",
            };
            out.push_str(&format!("\t{cell}"));
        }
        out.push_str("\t\t\t\n");
    }
    out.push_str("\nLegend:\n\n");
    for (name, meaning) in [
        ("X   ", "Self"),
        ("SYS ", "PCIe and the link between NUMA nodes"),
        ("NODE", "PCIe and the link between host bridges of a NUMA node"),
        ("PHB ", "PCIe and a host bridge"),
        ("PXB ", "several PCIe bridges"),
        ("PIX ", "at most one PCIe bridge"),
        ("NV# ", "a bonded set of # NVLinks"),
    ] {
        out.push_str(&format!("  {name} = {meaning}\n"));
    }
    out.push_str("\nNIC Legend:\n\n");
    for nic in 0..nics {
        out.push_str(&format!("  NIC{nic}: mlx5_{nic}\n"));
    }
    out.push('\n');
    SimToolOutput::success(out)
}

/// The identity and fabric sections of `nvidia-smi -q`.
pub fn render_query(bench: &ToolInvocation<'_>) -> SimToolOutput {
    let fabric = bench.fabric;
    let gpus = bench.gpus();
    let Some(first) = gpus.first() else { return no_devices() };
    let hardware = fabric.node_of(*first).hardware;
    let mut out = String::from("\n==============NVSMI LOG==============\n\n");
    let cuda = format!("{}.{}", hardware.cuda / 1000, hardware.cuda % 1000 / 10);
    push_line(&mut out, 0, "Timestamp", "Thu Jan 15 08:00:00 2026");
    push_line(&mut out, 0, "Driver Version", hardware.driver);
    push_line(&mut out, 0, "CUDA Version", &cuda);
    out.push('\n');
    push_line(&mut out, 0, "Attached GPUs", &gpus.len().to_string());
    for gpu in &gpus {
        render_query_gpu(bench, *gpu, &mut out);
    }
    SimToolOutput::success(out)
}

fn render_query_gpu(bench: &ToolInvocation<'_>, gpu: GpuIndex, out: &mut String) {
    let fabric = bench.fabric;
    let node = fabric.node_of(gpu);
    let state = &fabric.gpus[gpu];
    let bus = node.hardware.bus_id(state.slot).to_uppercase();
    out.push_str(&format!("GPU {bus}.0\n"));
    push_line(out, 1, "Product Name", node.hardware.product);
    push_line(out, 1, "GPU UUID", &gpu_uuid(fabric, gpu));
    push_line(out, 1, "Minor Number", &state.slot.to_string());
    let attached = node.fabric_up && state.tx != 0;
    // A fabric within one node has no cluster: its UUID is all zeros.
    let cluster = match node.hardware.spans_nodes && attached {
        true => format_uuid(cluster_key(bench, node)),
        false => "00000000-0000-0000-0000-000000000000".to_owned(),
    };
    let clique = if node.hardware.spans_nodes && attached { "32766" } else { "0" };
    out.push_str("    Fabric\n");
    let [progress, status] = match (node.fabric_up, attached) {
        (true, true) => ["Completed", "Success"],
        (true, false) => ["Not Started", "N/A"],
        (false, _) => ["In Progress", "N/A"],
    };
    push_line(out, 2, "State", progress);
    push_line(out, 2, "Status", status);
    push_line(out, 2, "CliqueId", if attached { clique } else { "N/A" });
    push_line(out, 2, "ClusterUUID", if attached { &cluster } else { "N/A" });
    out.push_str("        Health\n");
    let full = state.shown == node.hardware.all_links();
    let bandwidth = match (attached, full) {
        (false, _) => "N/A",
        (true, true) => "Full",
        (true, false) => "Degraded",
    };
    let other = if attached { "False" } else { "N/A" };
    push_line(out, 3, "Bandwidth", bandwidth);
    push_line(out, 3, "Route Recovery in progress", other);
    push_line(out, 3, "Route Unhealthy", other);
    push_line(out, 3, "Access Timeout Recovery", other);
    let Some(process) = &node.process else {
        push_line(out, 1, "Processes", "None");
        return;
    };
    out.push_str("    Processes\n");
    push_line(out, 2, "GPU instance ID", "N/A");
    push_line(out, 2, "Compute instance ID", "N/A");
    push_line(out, 2, "Process ID", &(31_000 + state.slot).to_string());
    push_line(out, 3, "Type", "C");
    push_line(out, 3, "Name", process);
    push_line(out, 3, "Used GPU Memory", "70112 MiB");
}

fn push_line(out: &mut String, depth: usize, key: &str, value: &str) {
    let key = format!("{}{key}", "    ".repeat(depth));
    out.push_str(&format!("{key:<54} : {value}\n"));
}
