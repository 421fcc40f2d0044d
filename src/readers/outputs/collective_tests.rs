//! Tests for fabricgate's NCCL probe documents.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::outputs;

fn point(bytes: u64, time_us: f64, wrong: &Value) -> Value {
    #[expect(clippy::cast_precision_loss, reason = "a size of a message")]
    let algbw = bytes as f64 / time_us / 1e3;
    json!({"bytes": bytes, "iterations": 20, "time_us": time_us, "slowest_us": time_us * 1.1,
        "algbw": algbw, "busbw": algbw * 1.5, "wrong": wrong, "checked": 1000})
}

fn document(node: &str, tests: &Value) -> Value {
    let rank = |rank: u32, node: &str, gpu: u32| json!({"rank": rank, "node": node, "gpu": gpu, "name": "NVIDIA Z1"});
    json!({"format": COLLECTIVE_FORMAT, "version": "0.1.0", "node": node, "cuda": "13.0",
        "nccl": "2.28.3", "library": "/usr/lib/libnccl.so.2",
        "ranks": [rank(0, "n1", 0), rank(1, "n1", 1), rank(2, "n2", 0), rank(3, "n2", 1)],
        "transports": ["MNNVL", "P2P/CUMEM"], "algorithms": [["all_reduce_perf", "NVLS"]],
        "environment": {"NCCL_MNNVL_ENABLE": "1", "PATH": "/secret"},
        "tests": tests, "problems": [], "complete": true})
}

fn run(reading: u32, points: &[Value]) -> Value {
    json!({"testcase": "all_reduce_perf", "reading": reading, "datatype": "float",
        "points": points})
}

fn whole() -> [Value; 2] {
    let points = [point(8 << 20, 60.0, &json!(0)), point(1 << 30, 3000.0, &json!(0))];
    let tests = json!([run(0, &points), run(1, &points)]);
    [document("n1", &tests), document("n2", &json!([]))]
}

fn read(documents: &[Value]) -> ParseOutput {
    let text: String = documents.iter().map(|document| format!("{document}\n")).collect();
    outputs::parse_output(text.as_bytes())
}

fn has_problem(parsed: &ParseOutput, kind: OutputProblemKind, what: &str) -> bool {
    parsed.problems.iter().any(|p| p.kind == kind && p.detail.contains(what))
}

#[test]
fn documents_of_a_run_are_a_series_per_reading_with_ranks_and_paths() {
    let parsed = read(&whole());
    assert_eq!(parsed.tool, Some(Tool::FabricgateCollective));
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
    let runs: Vec<u32> = parsed.measurements.iter().map(Measurement::run).collect();
    assert_eq!(runs, [0, 1]);
    let Measurement::Series(series) = &parsed.measurements[0] else { panic!("a series") };
    assert_eq!(series.testcase.as_deref(), Some("all_reduce_perf"));
    assert_eq!((series.points[1].bytes, series.points[1].wrong), (1 << 30, Some(0.0)));
    assert_eq!(series.points[1].time_us, Some(3000.0));
    let facts = &parsed.facts;
    assert_eq!(facts.nccl.as_deref(), Some("2.28.3"));
    assert_eq!(facts.transports, ["MNNVL", "P2P/CUMEM"]);
    assert_eq!((facts.ranks.len(), facts.ranks[2].host.as_str()), (4, "n2"));
    let parameter = |key: &str| facts.parameters.get(key).map(String::as_str);
    assert_eq!(parameter("algorithms"), Some("NVLS"));
    assert_eq!(parameter("NCCL_MNNVL_ENABLE"), Some("1"));
    assert_eq!(parameter("PATH"), None);
}

#[test]
fn wrong_elements_are_corrupt_and_reported_once() {
    let [mut first, second] = whole();
    first["tests"][0]["points"][1]["wrong"] = json!(12);
    let parsed = read(&[first.clone(), second.clone()]);
    assert!(has_problem(&parsed, OutputProblemKind::Corrupt, "12 wrong elements"));
    first["problems"] = json!([{"kind": "corrupt", "class": "wrong-data", "gpu": 1,
        "detail": "12 wrong", "testcase": "all_reduce_perf"}]);
    let parsed = read(&[first, second]);
    let corrupt: Vec<_> =
        parsed.problems.iter().filter(|p| p.kind == OutputProblemKind::Corrupt).collect();
    assert_eq!((corrupt.len(), corrupt[0].rank), (1, Some(1)));
}

#[test]
fn unchecked_data_is_unverified() {
    let [mut first, second] = whole();
    first["tests"][0]["points"][0]["wrong"] = Value::Null;
    let parsed = read(&[first, second]);
    assert!(has_problem(&parsed, OutputProblemKind::Unverified, "was not verified"));
    assert_eq!(parsed.problems.len(), 1);
}

#[test]
fn numbers_that_contradict_each_other_are_inconsistent() {
    for (key, what) in [("algbw", "is not size over time"), ("busbw", "is not algbw times 1.5")] {
        let [mut first, second] = whole();
        first["tests"][0]["points"][1][key] = json!(20.0);
        let parsed = read(&[first, second]);
        assert!(
            !parsed.complete && has_problem(&parsed, OutputProblemKind::Inconsistent, what),
            "{key}"
        );
    }
    let [mut first, second] = whole();
    first["tests"][0]["points"][1]["time_us"] = json!(-4.0);
    assert!(has_problem(
        &read(&[first, second]),
        OutputProblemKind::Unrecognised,
        "an operation cannot take"
    ));
}

#[test]
fn duplicate_and_empty_runs_are_problems() {
    let [first, mut second] = whole();
    second["tests"] = first["tests"].clone();
    let parsed = read(&[first.clone(), second.clone()]);
    assert!(
        !parsed.complete
            && has_problem(&parsed, OutputProblemKind::Inconsistent, "n2 has numbers too")
    );
    assert_eq!(parsed.measurements.len(), 2);
    second["tests"] = json!([]);
    let mut doubled = first.clone();
    let again = doubled["tests"][0].clone();
    doubled["tests"].as_array_mut().expect("a list").push(again);
    let parsed = read(&[doubled, second.clone()]);
    assert!(has_problem(&parsed, OutputProblemKind::Inconsistent, "appears twice"));
    assert_eq!(parsed.measurements.len(), 2);
    let mut empty = first.clone();
    (empty["tests"], empty["complete"]) = (json!([run(3, &[])]), json!(true));
    let parsed = read(&[empty, second]);
    assert!(
        !parsed.complete
            && has_problem(&parsed, OutputProblemKind::Truncated, "reading 3 has no point")
    );
    assert!(has_problem(&read(&[first]), OutputProblemKind::Truncated, "n2 took part"));
}

#[test]
fn another_version_is_refused() {
    let [mut first, second] = whole();
    first["format"] = json!("fabricgate.collective/9");
    let parsed = read(&[first, second]);
    assert!(has_problem(
        &parsed,
        OutputProblemKind::Unrecognised,
        "format fabricgate.collective/9"
    ));
    assert!(!parsed.complete && parsed.measurements.is_empty());
}

proptest! {
    #[test]
    fn a_cut_output_is_truncated_and_every_number_is_in_its_text(
        times in prop::collection::vec(1.0..9000.0f64, 1..6),
        at in 0.0..1.0f64,
    ) {
        let points: Vec<Value> =
            times.iter().map(|time| point(8 << 20, *time, &json!(0))).collect();
        let [_, second] = whole();
        let first = document("n1", &json!([run(0, &points)])).to_string();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss,
                 clippy::cast_precision_loss, reason = "a place in a short text")]
        let cut = &first[..(first.len() as f64 * at) as usize];
        let parsed = outputs::parse_output(format!("{cut}\n{second}\n").as_bytes());
        prop_assert!(!parsed.complete && !parsed.problems.is_empty());
        for measurement in &parsed.measurements {
            let Measurement::Series(series) = measurement else { panic!("a series") };
            for point in &series.points {
                prop_assert!(point.time_us.is_some_and(|time| times.contains(&time)));
            }
        }
        let whole = outputs::parse_output(format!("{first}\n{second}\n").as_bytes());
        prop_assert!(whole.complete, "{:?}", whole.problems);
    }
}
