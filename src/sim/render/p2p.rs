//! Output of p2pBandwidthLatencyTest.

use super::SimToolOutput;
use crate::fabric::{GpuIndex, SimCopyEngine};
use crate::invocation::{ToolInvocation, cuda_error_text};

/// Renders the whole output; with `reads` also the matrices of --p2p_read.
pub fn render_text(bench: &ToolInvocation<'_>, reads: bool) -> SimToolOutput {
    let gpus = bench.gpus();
    let fabric = bench.fabric;
    let mut out = String::from("[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\n");
    if gpus.is_empty() {
        let why = cuda_error_text("CUDA_ERROR_NO_DEVICE");
        out.push_str(&format!("Cuda failure p2pBandwidthLatencyTest.cu:579: '{why}'\n"));
        return SimToolOutput::with_exit_code(out, String::new(), 1);
    }
    for (index, gpu) in gpus.iter().enumerate() {
        let hardware = fabric.node_of(*gpu).hardware;
        let bus = hardware.bus_id(fabric.gpus[*gpu].slot);
        let trim = |text: &str| match text.trim_start_matches('0') {
            "" => "0".to_owned(),
            rest => rest.to_owned(),
        };
        let part = |range| trim(bus.get(range).unwrap_or("0"));
        out.push_str(&format!(
            "Device: {index}, {}, pciBusID: {}, pciDeviceID: {}, pciDomainID:{}\n",
            hardware.product,
            part(9..11),
            part(12..14),
            part(0..8)
        ));
    }
    for from in 0..gpus.len() {
        for to in (0..gpus.len()).filter(|to| *to != from) {
            out.push_str(&format!("Device={from} CAN Access Peer Device={to}\n"));
        }
    }
    out.push_str(
        "\n***NOTE: In case a device doesn't have P2P access to other one, the copy takes the way\n\
         through the host, and the numbers of such pairs can be lower.\n\nP2P Connectivity Matrix\n     D\\D",
    );
    for column in 0..gpus.len() {
        out.push_str(&format!("{column:>6}"));
    }
    out.push('\n');
    for row in 0..gpus.len() {
        out.push_str(&format!("{row:>6}\t{}\n", "     1".repeat(gpus.len())));
    }
    let hardware = |gpu: GpuIndex| fabric.node_of(gpu).hardware;
    let peer = |from: GpuIndex, to: GpuIndex| fabric.copy_rate(from, to, SimCopyEngine::Peer);
    let off = |from: GpuIndex, _: GpuIndex| hardware(from).pcie_peer;
    let title = |way: &str, state: &str| format!("{way} P2P={state} Bandwidth");
    // The diagonal is a local copy, which counts reading and writing.
    let mut table = |title: &str, truth: &dyn Fn(GpuIndex, GpuIndex) -> f64| {
        write_matrix(bench, &mut out, title, "D\\D", &gpus, &|row, column| match row == column {
            true => hardware(row).local * 2.0,
            false => truth(row, column),
        });
    };
    table(&(title("Unidirectional", "Disabled") + " Matrix (GB/s)"), &off);
    table(&(title("Unidirectional", "Enabled") + " (P2P Writes) Matrix (GB/s)"), &peer);
    if reads {
        table(&(title("Unidirectional", "Enabled") + " (P2P Reads) Matrix (GB/s)"), &|a, b| {
            peer(b, a)
        });
    }
    table(&(title("Bidirectional", "Disabled") + " Matrix (GB/s)"), &|a, b| off(a, b) * 1.3);
    table(&(title("Bidirectional", "Enabled") + " Matrix (GB/s)"), &|a, b| {
        (peer(a, b) + peer(b, a)) * 0.99
    });
    write_latency(bench, &mut out, "P2P=Disabled Latency Matrix (us)", &gpus, 11.5);
    write_latency(bench, &mut out, "P2P=Enabled Latency (P2P Writes) Matrix (us)", &gpus, 2.4);
    if reads {
        write_latency(bench, &mut out, "P2P=Enabled Latency (P2P Reads) Matrix (us)", &gpus, 2.6);
    }
    out.push_str("\nNOTE: The CUDA Samples are not meant for performance measurements. GPU Boost may change results.\n");
    SimToolOutput::success(out)
}

fn write_latency(
    bench: &ToolInvocation<'_>,
    out: &mut String,
    title: &str,
    gpus: &[GpuIndex],
    gpu_us: f64,
) {
    let apart = |far: f64| move |a: GpuIndex, b: GpuIndex| if a == b { 2.1 } else { far };
    write_matrix(bench, out, title, "GPU", gpus, &apart(gpu_us));
    write_matrix(bench, out, "", "CPU", gpus, &apart(1.7));
}

fn write_matrix(
    bench: &ToolInvocation<'_>,
    out: &mut String,
    title: &str,
    corner: &str,
    gpus: &[GpuIndex],
    truth: &dyn Fn(GpuIndex, GpuIndex) -> f64,
) {
    let key = bench.key("p2pBandwidthLatencyTest").with_name(title).with_name(corner);
    out.push_str(&format!("{title}\n   {corner}"));
    for column in 0..gpus.len() {
        out.push_str(&format!("{column:>6} "));
    }
    out.push('\n');
    for (number, row) in gpus.iter().enumerate() {
        out.push_str(&format!("{number:>6} "));
        for column in gpus {
            let value = bench.read(truth(*row, *column), key, [*row, *column]);
            out.push_str(&format!("{value:>6.2} "));
        }
        out.push('\n');
    }
}
