//! nvbandwidth's JSON output, v0.5 to v0.8, in JsonCpp's style: tabs, sorted keys, a blank before
//! the colon.

use serde_json::{Map, Value};

use super::nvbandwidth::{failure_line, oversubscription_warning, version_name};
use super::{SimToolOutput, format_general};
use crate::invocation::{SimNvbandwidthRun, SimTestOutcome, ToolInvocation};
use crate::tool_config::NvbandwidthLayout;

/// Renders the whole output.
pub fn render_json(
    bench: &ToolInvocation<'_>,
    version: NvbandwidthLayout,
    run: &SimNvbandwidthRun,
) -> SimToolOutput {
    let fabric = bench.fabric;
    let name = version_name(version);
    let mut root = Map::new();
    root.insert("version".to_owned(), name.into());
    root.insert("git_version".to_owned(), name.into());
    let begun = run.refused.is_none();
    if let Some(first) = run.gpus.first().filter(|_| begun) {
        let hardware = fabric.node_of(*first).hardware;
        root.insert("CUDA Runtime Version".to_owned(), hardware.cuda.into());
        root.insert("Driver Version".to_owned(), hardware.driver.into());
    }
    if NvbandwidthLayout::V0_8 <= version && !bench.spans_domain && begun {
        let list = run.gpus.iter().map(|gpu| {
            let (node, device) = (fabric.node_of(*gpu), fabric.cuda_index(*gpu));
            let bus = node.hardware.bus_id(fabric.gpus[*gpu].slot);
            Value::from(format!("{device}: {} ({bus}): ({})", node.hardware.product, node.name))
        });
        root.insert("GPU Device list".to_owned(), list.collect());
    }
    let tests: Vec<Value> =
        run.tests.iter().map(|(name, outcome)| render_testcase(version, name, outcome)).collect();
    if begun {
        root.insert("testcases".to_owned(), tests.into());
    }
    if let Some(host) = run.oversubscribed.first().filter(|_| begun) {
        root.insert("warning".to_owned(), oversubscription_warning(host).into());
    }
    let code = u8::from(run.failure().is_some());
    if let Some(failure) = run.failure() {
        root.insert("error".to_owned(), failure_line(failure).into());
    }
    let document = Value::Object(Map::from_iter([("nvbandwidth".to_owned(), root.into())]));
    let mut stdout = String::new();
    write_value(&document, 0, &mut stdout);
    // One newline is from JsonCpp, one from the tool.
    stdout.push_str("\n\n");
    SimToolOutput::with_exit_code(stdout, String::new(), code)
}

fn render_testcase(version: NvbandwidthLayout, name: &str, outcome: &SimTestOutcome) -> Value {
    let mut entry = Map::new();
    entry.insert("name".to_owned(), name.into());
    let status = match outcome {
        SimTestOutcome::Measured(_) => "Passed",
        SimTestOutcome::Waived => "Waived",
        SimTestOutcome::NotFound => "ERROR",
        SimTestOutcome::Failed(_) => "Running",
    };
    entry.insert("status".to_owned(), status.into());
    if let SimTestOutcome::Measured(tables) = outcome
        && let Some(last) = tables.last()
    {
        // The parts of a bidirectional test are concatenated.
        let rows = tables.iter().flat_map(|table| table.cells.chunks(table.columns.max(1)));
        let rows: Vec<Value> = rows
            .map(|row| {
                row.iter()
                    .map(|cell| cell.map_or("N/A".to_owned(), |v| format_general(v, 6)))
                    .collect()
            })
            .collect();
        entry.insert("bandwidth_matrix".to_owned(), rows.into());
        let blank = if version == NvbandwidthLayout::V0_5 { " " } else { "" };
        let description = format!("{}{blank}", last.description);
        entry.insert("bandwidth_description".to_owned(), description.into());
        entry.insert("sum".to_owned(), last.cells.iter().flatten().sum::<f64>().into());
    }
    entry.into()
}

/// Writes a value like JsonCpp's styled writer.
fn write_value(value: &Value, depth: usize, out: &mut String) {
    let indent = "\t".repeat(depth);
    match value {
        Value::Object(map) if !map.is_empty() => {
            out.push_str("{\n");
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            for (number, key) in keys.iter().enumerate() {
                let comma = if number + 1 < keys.len() { "," } else { "" };
                let below = &map[*key];
                let nested = below.is_object() || below.is_array();
                out.push_str(&format!("{indent}\t{} :", Value::from(key.as_str())));
                out.push_str(&if nested { format!("\n{indent}\t") } else { " ".to_owned() });
                write_value(below, depth + 1, out);
                out.push_str(&format!("{comma}\n"));
            }
            out.push_str(&format!("{indent}}}"));
        }
        Value::Array(items) if !items.is_empty() => {
            out.push_str("[\n");
            for (number, item) in items.iter().enumerate() {
                let comma = if number + 1 < items.len() { "," } else { "" };
                out.push_str(&format!("{indent}\t"));
                write_value(item, depth + 1, out);
                out.push_str(&format!("{comma}\n"));
            }
            out.push_str(&format!("{indent}]"));
        }
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(double) => {
                let text = format_general(double, 17);
                let whole = !text.contains(['.', 'e']);
                out.push_str(&if whole { format!("{text}.0") } else { text });
            }
            None => out.push_str(&number.to_string()),
        },
        other => out.push_str(&other.to_string()),
    }
}
