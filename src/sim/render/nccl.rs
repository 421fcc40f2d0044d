//! nccl-tests' text output, layouts 2.13 and 2.17.

use super::{SimToolOutput, format_general, nccl_debug};
use crate::collective::{SimCollectiveHalf, SimCollectiveRun};
use crate::invocation::ToolInvocation;
use crate::tool_config::NcclTestsLayout;

/// Renders the whole output.
pub fn render_text(bench: &ToolInvocation<'_>, run: &SimCollectiveRun) -> SimToolOutput {
    let modern = run.version == NcclTestsLayout::V2_17;
    let mut out = String::new();
    if modern {
        out.push_str("# nccl-tests version 2.17.6 nccl-headers=22602 nccl-library=22602\n");
        out.push_str(&format!("# Collective test starting: {}\n", run.program));
    }
    let [least, most] = run.bytes;
    out.push_str(&format!(
        "# nThread 1 nGpus {} minBytes {least} maxBytes {most} step: 2(factor) warmup iters: 5 \
         iters: 20 agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n",
        run.gpus_per_process
    ));
    let processes = run.processes(bench.fabric);
    for (rank, (gpu, (pid, _))) in run.gpus.iter().zip(processes).enumerate() {
        let node = bench.fabric.node_of(*gpu);
        let bus = node.hardware.bus_id(bench.fabric.gpus[*gpu].slot);
        let bus = match modern {
            true => bus.get(4..).unwrap_or(bus).to_owned(),
            false => format!("0x{}", bus.get(9..11).unwrap_or("00")),
        };
        let (name, device) = (&node.name, bench.fabric.cuda_index(*gpu));
        let product = node.hardware.product;
        out.push_str(&format!(
            "#  Rank {rank:>2} Group {:>2} Pid {pid:>6} on {name:>10} device {device:>2} [{bus}] {product}\n",
            0
        ));
    }
    if let Some((host, what)) = &run.failure {
        out.push_str(&format!(
            "{host}: {what}\n .. {host} pid 21000: Test failure common.cu:401\n"
        ));
        return SimToolOutput::with_exit_code(out, String::new(), exit_code(what));
    }
    out.push_str("NCCL version 2.26.2+cuda12.8\n");
    out.push_str(&nccl_debug::render_records(bench, run));
    render_table(&mut out, run, modern);
    let wrong = run.out_of_bounds();
    let judged = if wrong == 0 { "OK" } else { "FAILED" };
    out.push_str(&format!("# Out of bounds values : {wrong} {judged}\n"));
    out.push_str(&format!(
        "# Avg bus bandwidth    : {} \n#\n",
        format_general(run.average_bus_bandwidth(), 6)
    ));
    if modern {
        out.push_str(&format!("# Collective test concluded: {}\n", run.program));
    }
    out.push('\n');
    if wrong != 0 {
        let host = run.gpus.first().map_or("", |gpu| &bench.fabric.node_of(*gpu).name);
        out.push_str(&format!(" .. {host} pid 21000: Test failure common.cu:1127\n"));
    }
    // 7 is wrong data; the run itself finished.
    SimToolOutput::with_exit_code(out, String::new(), if wrong == 0 { 0 } else { 7 })
}

fn exit_code(what: &str) -> u8 {
    if what.contains("NCCL") { 3 } else { 2 }
}

fn render_table(out: &mut String, run: &SimCollectiveRun, modern: bool) {
    let blank = "";
    out.push_str(&format!(
        "#\n# {blank:>10}  {blank:>12}  {blank:>8}  {blank:>6}  {blank:>6}           out-of-place                       in-place          \n"
    ));
    let names = ["time", "algbw", "busbw", "#wrong"];
    let units = ["(us)", "(GB/s)", "(GB/s)", ""];
    let half = |words: [&str; 4], wrong: usize, gap: &str| {
        let [a, b, c, d] = words;
        format!("  {a:>7}  {b:>6}  {c:>6}{gap}{d:>wrong$}")
    };
    let (gap, second) = if modern { ("  ", 6) } else { (" ", 6) };
    let line = |labels: [&str; 5], words: [&str; 4]| {
        let [size, count, kind, op, root] = labels;
        let tail = if modern { format!(" {blank:>20}") } else { String::new() };
        let halves = half(words, second, gap).repeat(2);
        format!("# {size:>10}  {count:>12}  {kind:>8}  {op:>6}  {root:>6}{halves}{tail}\n")
    };
    out.push_str(&line(["size", "count", "type", "redop", "root"], names));
    out.push_str(&line(["(B)", "(elements)", "", "", ""], units));
    let (op, root) = run.collective.redop_and_root();
    for row in &run.rows {
        out.push_str(&format!(
            "{:>12}  {:>12}  {:>8}  {op:>6}  {root:>6}",
            row.bytes, row.count, "float"
        ));
        for half in &row.halves {
            out.push_str(&if modern { format_modern_half(half) } else { format_old_half(half) });
        }
        out.push('\n');
    }
}

fn wrong_count(half: &SimCollectiveHalf) -> String {
    half.wrong.map_or("N/A".to_owned(), |wrong| format_general(wrong as f64, 6))
}

fn format_old_half(half: &SimCollectiveHalf) -> String {
    let time = match half.time {
        time if 10_000.0 <= time => format!("{time:>7.0}"),
        time if 100.0 <= time => format!("{time:>7.1}"),
        time => format!("{time:>7.2}"),
    };
    format!("  {time}  {:>6.2}  {:>6.2}  {:>5}", half.algbw, half.busbw, wrong_count(half))
}

fn format_modern_half(half: &SimCollectiveHalf) -> String {
    let (time, algbw, busbw) = (
        format_to_width(half.time, 7),
        format_to_width(half.algbw, 6),
        format_to_width(half.busbw, 6),
    );
    let wrong = match half.wrong {
        Some(_) => format!("{:>6}", wrong_count(half)),
        None => "   N/A".to_owned(),
    };
    format!("  {time}  {algbw}  {busbw}  {wrong}")
}

/// As many decimals as fit the column: two, one, none, then an exponent.
fn format_to_width(value: f64, width: usize) -> String {
    if !value.is_finite() {
        return format!("{value:>width$}");
    }
    let mut digits = 0;
    let mut power = 1.0;
    while power <= value {
        power *= 10.0;
        digits += 1;
    }
    if digits < width - 2 {
        format!("{value:>width$.2}")
    } else if digits < width - 1 {
        format!("{value:>width$.1}")
    } else if digits < width + 1 {
        format!("{value:>width$.0}")
    } else {
        let text = format!("{value:.1e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let text = format!("{mantissa}e+{exponent:0>2}");
        format!("{text:>width$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_without_end_has_a_width_too() {
        assert_eq!(format_to_width(f64::INFINITY, 7), "    inf");
        assert_eq!(format_to_width(12.345, 7), "  12.35");
    }
}
