//! The file that nccl-tests writes with -J, document version 1.
//!
//! One line without a line end; booleans are strings, doubles have six decimals. The environment is
//! empty: a real one may contain secrets.

use crate::collective::{SimCollectiveHalf, SimCollectiveRun};
use crate::invocation::ToolInvocation;

/// Renders the whole document. A failed run ends where the results would start.
pub fn render_json(bench: &ToolInvocation<'_>, run: &SimCollectiveRun) -> String {
    let [least, most] = run.bytes;
    let each = match run.gpus_per_process {
        1 => String::new(),
        each => format!(",\"-g\",\"{each}\""),
    };
    let mut out = format!(
        "{{\"version\":1,\"start_time\":\"2026-01-15 08:00:00\",\"args\":[\"{}\",\"-b\",\"{least}\",\"-e\",\"{most}\",\"-f\",\"2\"{each}],\
         \"env\":[],\"nccl_version\":22602,\"config\":{{\"nthreads\":1,\"ngpus\":{},\"minimum_bytes\":{least},\
         \"maximum_bytes\":{most},\"step_factor\":2,\"warmup_iters\":5,\"iterations\":20,\"aggregated_iterations\":1,\
         \"validation\":1,\"graph\":0,\"blocking_collectives\":\"false\",\"parallel_init\":\"false\"",
        run.program, run.gpus_per_process
    );
    // The tool records the first GPU of every process.
    let processes = run.processes(bench.fabric).into_iter().enumerate();
    let devices = processes.filter(|(_, (_, at))| *at == 0).map(|(rank, (pid, _))| {
        let gpu = &run.gpus[rank];
        let node = bench.fabric.node_of(*gpu);
        let bus = node.hardware.bus_id(bench.fabric.gpus[*gpu].slot);
        format!(
            "{{\"rank\":{rank},\"group\":0,\"pid\":{},\"hostname\":\"{}\",\"device\":{},\"device_hex\":\"{}\",\"device_info\":\"{}\"}}",
            pid,
            node.name,
            bench.fabric.cuda_index(*gpu),
            bus.get(4..).unwrap_or(bus),
            node.hardware.product
        )
    });
    let devices: Vec<String> = devices.collect();
    out.push_str(&format!(",\"devices\":[{}]}},\"results\":[", devices.join(",")));
    if run.failure.is_some() {
        return out;
    }
    let (op, root) = run.collective.redop_and_root();
    let rows: Vec<String> = run
        .rows
        .iter()
        .map(|row| {
            let [out_of_place, in_place] = row.halves.map(|placed| render_half(&placed));
            format!(
                "{{\"size\":{},\"count\":{},\"type\":\"float\",\"redop\":\"{op}\",\"root\":\"{root:>6}\",\
                 \"out_of_place\":{out_of_place},\"in_place\":{in_place},\"actual_iterations\":20,\
                 \"experiment_name\":\"{}\"}}",
                row.bytes, row.count, run.program
            )
        })
        .collect();
    let wrong = run.out_of_bounds();
    // The misspelling is the tool's, in 2.17.3 to 2.17.8.
    out.push_str(&format!(
        "{}],\"out_of_bounds\":{{\"count\":{wrong},\"okay\":\"{}\"}},\"average_bus_bandwidith\":\
         {{\"bandwidith\":{:.6},\"okay\":\"unchecked\"}},\"errors\":[],\"end_time\":\"2026-01-15 08:04:00\"}}",
        rows.join(","),
        wrong == 0,
        run.average_bus_bandwidth()
    ));
    out
}

fn render_half(half: &SimCollectiveHalf) -> String {
    let wrong = half.wrong.map_or("null".to_owned(), |wrong| format!("{:.6}", wrong as f64));
    format!(
        "{{\"time\":{:.6},\"alg_bw\":{:.6},\"bus_bw\":{:.6},\"nwrong\":{wrong}}}",
        half.time, half.algbw, half.busbw
    )
}
