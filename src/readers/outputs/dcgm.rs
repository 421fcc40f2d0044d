//! `dcgmi diag`: the statuses of its tests, as JSON (`-j`) in the layouts of DCGM 2 to 4, and as
//! the table that it prints otherwise (`table`).
//!
//! Exit codes differ between versions and are not used; statuses are. A failed test is an error of
//! the part it names, a skipped one was not run, a warning stays a fact.

mod table;

use serde_json::{Map, Value};

use super::lenient_json::JsonDocument;
use super::{CERTAIN, POSSIBLE, ParserConfidence, ParserInput, lenient_json, text};
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::text::clean;
use model::tool_facts::DcgmDiagnostic;

/// The diagnostic's key up to DCGM 3 and from DCGM 4 on (`NVVS_NAME`).
const KEYS: &[&str] = &["DCGM GPU Diagnostic", "DCGM Diagnostic"];

/// Several runs (`--iterations`) are in a list under this key.
const ITERATIONS: &str = "iterations";

/// More messages than this on one result are a log, not a result.
const MOST_MESSAGES: usize = 32;

/// GPU numbers on one machine are below this. Every result is stored once for each GPU it names, so
/// a forged list must not multiply it.
const MOST_GPUS: u32 = 1024;

/// The confidence that this is `dcgmi diag`.
pub fn recognises(input: &ParserInput<'_>) -> ParserConfidence {
    if find_document(input).is_some() || input.lines.iter().any(|l| table::is_heading(l.text)) {
        CERTAIN
    } else if input.lines.iter().any(|line| table::is_unreached(line.text)) {
        POSSIBLE
    } else {
        0
    }
}

/// Reads the results of every test.
pub fn parse(input: &ParserInput<'_>) -> ParseOutput {
    let mut parsed = ParseOutput::for_tool(Tool::DcgmDiag);
    let Some(document) = find_document(input) else {
        if let Some(printed) = table::parse(input) {
            return printed;
        }
        parsed
            .problems
            .push(OutputProblem::new(OutputProblemKind::Truncated, "no diagnostic was found"));
        return parsed;
    };
    if let Some(root) = document.value.as_object() {
        match root.get(ITERATIONS).and_then(Value::as_array) {
            Some(runs) => {
                for run in runs.iter().filter_map(Value::as_object) {
                    read_run(run, &mut parsed);
                }
                if let Some(warning) = string_field(root, "warning") {
                    parsed.problems.push(OutputProblem::new(OutputProblemKind::Error, warning));
                }
            }
            None => read_run(root, &mut parsed),
        }
    }
    if let Some(stop) = &document.stopped {
        let detail = format!("the JSON stops where {} is expected", stop.expected);
        parsed
            .problems
            .push(OutputProblem::new(OutputProblemKind::Truncated, detail).at_line(stop.line));
    }
    if document.is_followed(&input.plain_text(), is_diagnostic) {
        parsed.problems.push(document.extra_document_problem());
    }
    parsed.complete = !parsed.has_problem(OutputProblemKind::Truncated)
        && !parsed.has_problem(OutputProblemKind::Unrecognised)
        && !parsed.facts.diagnostics.is_empty();
    parsed
}

/// The diagnostic in the file: a status line, and log lines of a launcher, may surround it.
fn find_document(input: &ParserInput<'_>) -> Option<JsonDocument> {
    // Searching for the object costs more than searching for its key.
    if !KEYS.iter().any(|key| input.text.contains(key)) {
        return None;
    }
    lenient_json::find_document_where(&input.plain_text(), is_diagnostic)
}

fn is_diagnostic(map: &Map<String, Value>) -> bool {
    let holds = |map: &Map<String, Value>| KEYS.iter().any(|key| map.contains_key(*key));
    let runs = map.get(ITERATIONS).and_then(Value::as_array);
    holds(map) || runs.is_some_and(|r| r.iter().filter_map(Value::as_object).any(holds))
}

fn read_run(root: &Map<String, Value>, parsed: &mut ParseOutput) {
    let empty = Map::new();
    let diagnostic = KEYS.iter().find_map(|key| root.get(*key)).and_then(Value::as_object);
    let diagnostic = diagnostic.unwrap_or(&empty);
    let metadata = root.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
    // DCGM 4 stores versions in `metadata`, older releases next to the tests.
    let anywhere =
        |key: &str| [metadata, diagnostic, root].iter().find_map(|m| string_field(m, key));
    if let Some(version) = anywhere("version") {
        let version = version.trim_start_matches(['v', 'V']).to_owned();
        parsed.tool_version = parsed.tool_version.take().or(Some(version));
    }
    if let Some(driver) = anywhere("Driver Version Detected") {
        parsed.facts.driver = parsed.facts.driver.take().or(Some(driver));
    }
    if let Some(warning) = anywhere("Warning") {
        parsed.facts.parameters.insert("warning".to_owned(), warning);
    }
    let failed = anywhere("runtime_error");
    if let Some(error) = &failed {
        parsed.problems.push(OutputProblem::new(OutputProblemKind::Error, error.as_str()));
    }
    let categories = diagnostic.get("test_categories").and_then(Value::as_array);
    if categories.is_none_or(Vec::is_empty) {
        if failed.is_none() {
            let detail = "the diagnostic holds no tests";
            parsed.problems.push(OutputProblem::new(OutputProblemKind::Truncated, detail));
        }
        return;
    }
    for category in categories.into_iter().flatten().filter_map(Value::as_object) {
        let name = string_field(category, "category");
        let tests = category.get("tests").and_then(Value::as_array);
        if tests.is_none() {
            let name = name.as_deref().unwrap_or("without a name");
            let detail = format!("category {name} holds no tests");
            parsed.problems.push(OutputProblem::new(OutputProblemKind::Truncated, detail));
        }
        for test in tests.into_iter().flatten().filter_map(Value::as_object) {
            read_test(test, name.as_deref(), parsed);
        }
    }
}

/// One test: its results by part, or its summary if it has none.
fn read_test(test: &Map<String, Value>, category: Option<&str>, parsed: &mut ParseOutput) {
    let Some(name) = string_field(test, "name") else {
        let detail = "a test without a name";
        parsed.problems.push(OutputProblem::new(OutputProblemKind::Unrecognised, detail));
        return;
    };
    let results: Vec<&Map<String, Value>> = test
        .get("results")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object)
        .collect();
    let summary = test.get("test_summary").and_then(Value::as_object);
    let mut diagnostics: Vec<DcgmDiagnostic> = Vec::new();
    for result in results {
        diagnostics.extend(read_result(result, &name, category));
    }
    let of_summary = summary.map(|s| read_result(s, &name, category)).unwrap_or_default();
    // The summary repeats the parts' results, unless no part has one.
    let agrees = of_summary.iter().all(|s| diagnostics.iter().any(|d| d.status == s.status));
    if diagnostics.is_empty() || (!agrees && of_summary.iter().any(|s| s.status == "fail")) {
        diagnostics.extend(of_summary);
    }
    if diagnostics.is_empty() {
        let problem =
            OutputProblem::new(OutputProblemKind::Truncated, format!("{name} has no result"));
        parsed.problems.push(problem.in_test(Some(&name)));
    }
    push_problems(&name, &diagnostics, &mut parsed.problems);
    parsed.facts.diagnostics.extend(diagnostics);
}

/// The problems of one test: one error for each failed part, one note for all parts that were not
/// run.
fn push_problems(name: &str, diagnostics: &[DcgmDiagnostic], problems: &mut Vec<OutputProblem>) {
    let mut skipped: Vec<String> = Vec::new();
    let mut waived = false;
    for diagnostic in diagnostics {
        match diagnostic.status.as_str() {
            "pass" | "warn" => {}
            "fail" => {
                let place = diagnostic.gpu.map(|gpu| format!(" on GPU {gpu}")).unwrap_or_default();
                let why = diagnostic.messages.first().map(|m| format!(": {m}")).unwrap_or_default();
                let detail = format!("{name} failed{place}{why}");
                let mut problem =
                    OutputProblem::new(OutputProblemKind::Error, detail).in_test(Some(name));
                problem.gpu = diagnostic.gpu;
                problems.push(problem);
            }
            "skip" | "not run" => {
                waived = true;
                skipped.extend(diagnostic.gpu.map(|gpu| gpu.to_string()));
            }
            other => {
                let detail = format!("{name} has the unknown status \"{other}\"");
                let problem = OutputProblem::new(OutputProblemKind::Unrecognised, detail);
                problems.push(problem.in_test(Some(name)));
            }
        }
    }
    if waived {
        let mut detail = format!("{name} was skipped");
        if !skipped.is_empty() {
            detail = format!("{detail} on GPU {}", skipped.join(", "));
        }
        problems.push(OutputProblem::new(OutputProblemKind::Waived, detail).in_test(Some(name)));
    }
}

/// One result, once for every GPU it names.
fn read_result(
    result: &Map<String, Value>,
    test: &str,
    category: Option<&str>,
) -> Vec<DcgmDiagnostic> {
    let status = result.get("status").and_then(Value::as_str).unwrap_or_default();
    // The status lost a byte: the remainder must not count as a status.
    let status = if status.contains('\u{fffd}') { "damaged" } else { status };
    let status = clean(status).to_ascii_lowercase();
    let mut messages = Vec::new();
    let (gpus, other) = affected_parts(result);
    // Errors first, then informational messages.
    for key in ["warnings", "info"] {
        add_messages(result.get(key), &mut messages);
    }
    if let Some(other) = other {
        messages.push(other);
    }
    let of = |gpu: Option<u32>| DcgmDiagnostic {
        category: category.map(str::to_owned),
        test: test.to_owned(),
        gpu,
        status: status.clone(),
        messages: messages.clone(),
    };
    if gpus.is_empty() { vec![of(None)] } else { gpus.into_iter().map(|g| of(Some(g))).collect() }
}

/// The GPUs of a result: `gpu_ids` ("0,1"), `gpu_id`, or an entity. Other entities (CPUs, switches)
/// are returned by name.
fn affected_parts(result: &Map<String, Value>) -> (Vec<u32>, Option<String>) {
    let mut gpus = Vec::new();
    for key in ["gpu_ids", "gpu_id"] {
        if let Some(value) = result.get(key) {
            add_ids(value, &mut gpus);
        }
    }
    let Some(id) = result.get("entity_id") else { return (gpus, None) };
    let group = string_field(result, "entity_group");
    // Entity group 1 is the GPU (`DCGM_FE_GPU`).
    let is_gpu = group.as_deref().map_or_else(
        || result.get("entity_group_id").and_then(Value::as_u64) == Some(1),
        |group| group.eq_ignore_ascii_case("GPU"),
    );
    if is_gpu {
        add_ids(id, &mut gpus);
        return (gpus, None);
    }
    let mut ids = Vec::new();
    add_ids(id, &mut ids);
    let name = group.unwrap_or_else(|| "entity".to_owned());
    (gpus, ids.first().map(|id| format!("{name} {id}")))
}

/// IDs come as "0,1,2", as a number, or as a list of either.
fn add_ids(value: &Value, ids: &mut Vec<u32>) {
    let mut add = |id: Option<u64>| {
        if let Some(id) = id.and_then(|id| u32::try_from(id).ok()).filter(|id| *id < MOST_GPUS)
            && !ids.contains(&id)
        {
            ids.push(id);
        }
    };
    match value {
        Value::String(list) => list.split(',').for_each(|id| add(text::parse_integer(id.trim()))),
        Value::Number(id) => add(id.as_u64()),
        Value::Array(list) => list.iter().for_each(|value| add_ids(value, ids)),
        _ => {}
    }
}

/// Messages are strings, or objects with the text under `warning`.
fn add_messages(value: Option<&Value>, messages: &mut Vec<String>) {
    match value {
        Some(Value::String(text)) if messages.len() < MOST_MESSAGES => {
            let text = clean(text);
            if !text.is_empty() {
                messages.push(text);
            }
        }
        Some(Value::Array(list)) => list.iter().for_each(|v| add_messages(Some(v), messages)),
        Some(Value::Object(map)) => add_messages(map.get("warning"), messages),
        _ => {}
    }
}

fn string_field(map: &Map<String, Value>, key: &str) -> Option<String> {
    map.get(key).and_then(Value::as_str).map(clean).filter(|t| !t.is_empty())
}

#[cfg(test)]
mod tests;
