//! Generated documents in the tool's layouts, and properties of the parser.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::outputs;
use crate::outputs::fixture;

fn read(text: &str) -> ParseOutput {
    let parsed = outputs::parse_output(text.as_bytes());
    assert_eq!(parsed.tool, Some(Tool::DcgmDiag));
    parsed
}

fn version_4(tests: &Value) -> Value {
    json!({
        "DCGM Diagnostic": { "test_categories": [{ "category": "Hardware", "tests": tests }] },
        "entity_groups": [{ "entities": [{ "entity_id": 0 }], "entity_group": "GPU" }],
        "metadata": { "Driver Version Detected": "580.65.06", "version": "4.4.1" },
    })
}

#[test]
fn entities_of_version_4_name_their_gpu_and_a_failure_is_its_error() {
    let tests = json!([{
        "name": "memory",
        "results": [
            { "entity_group": "GPU", "entity_group_id": 1, "entity_id": 0, "status": "Pass" },
            { "entity_group": "GPU", "entity_group_id": 1, "entity_id": 3, "status": "Fail",
              "warnings": [{ "warning": "bad cells", "error_id": 7 }], "info": ["looked twice"] },
        ],
        "test_summary": { "status": "Fail" },
    }]);
    let parsed = read(&version_4(&tests).to_string());
    assert!(parsed.complete);
    assert_eq!(parsed.tool_version.as_deref(), Some("4.4.1"));
    assert_eq!(parsed.facts.driver.as_deref(), Some("580.65.06"));
    assert_eq!(parsed.facts.diagnostics.len(), 2);
    let failed = &parsed.facts.diagnostics[1];
    assert_eq!((failed.gpu, failed.status.as_str()), (Some(3), "fail"));
    assert_eq!(failed.category.as_deref(), Some("Hardware"));
    assert_eq!(failed.messages, ["bad cells", "looked twice"]);
    assert_eq!(parsed.problems.len(), 1);
    let problem = &parsed.problems[0];
    assert_eq!((problem.kind, problem.gpu), (OutputProblemKind::Error, Some(3)));
    assert_eq!(problem.testcase.as_deref(), Some("memory"));
    assert_eq!(problem.detail, "memory failed on GPU 3: bad cells");
}

#[test]
fn lists_of_gpus_become_one_result_each_and_skips_one_note() {
    let text = json!({ "DCGM GPU Diagnostic": {
        "version": "3.3.9",
        "Driver Version Detected": "550.90",
        "test_categories": [{ "category": "Stress", "tests": [
            { "name": "Targeted Power", "results": [
                { "gpu_ids": "0,2", "status": "SKIP", "warnings": ["no power limit"] },
                { "gpu_id": "1", "status": "PASS", "info": "fine" },
            ]},
            { "name": "PCIe", "results": [{ "gpu_ids": "0,1,2", "status": "Warn" }] },
        ]}],
    }});
    let parsed = read(&format!("Successfully ran diagnostic for group.\n{text}\n"));
    assert!(parsed.complete);
    assert_eq!(parsed.tool_version.as_deref(), Some("3.3.9"));
    assert_eq!(parsed.facts.driver.as_deref(), Some("550.90"));
    let read: Vec<_> =
        parsed.facts.diagnostics.iter().map(|d| (d.gpu, d.status.as_str())).collect();
    let warn = [(Some(0), "warn"), (Some(1), "warn"), (Some(2), "warn")];
    assert_eq!(read[..3], [(Some(0), "skip"), (Some(2), "skip"), (Some(1), "pass")]);
    assert_eq!(read[3..], warn);
    assert_eq!(parsed.problems.len(), 1);
    assert_eq!(parsed.problems[0].kind, OutputProblemKind::Waived);
    assert_eq!(parsed.problems[0].detail, "Targeted Power was skipped on GPU 0, 2");
}

#[test]
fn a_part_other_than_a_gpu_is_named_and_not_counted_as_one() {
    let tests = json!([{ "name": "cpu_eud", "results": [
        { "entity_group": "CPU", "entity_group_id": 7, "entity_id": 1, "status": "Fail" },
    ]}]);
    let parsed = read(&version_4(&tests).to_string());
    assert_eq!(parsed.problems[0].gpu, None);
    assert_eq!(parsed.problems[0].detail, "cpu_eud failed: CPU 1");
}

#[test]
fn a_summary_counts_if_no_part_has_a_result() {
    let tests =
        json!([{ "name": "software", "results": [], "test_summary": { "status": "Fail" } }]);
    let parsed = read(&version_4(&tests).to_string());
    assert_eq!(parsed.facts.diagnostics.len(), 1);
    assert!(parsed.has_problem(OutputProblemKind::Error) && parsed.complete);
    let disagrees = json!([{ "name": "software",
        "results": [{ "entity_group": "GPU", "entity_id": 0, "status": "Pass" }],
        "test_summary": { "status": "Fail", "warnings": [{ "warning": "host trouble" }] } }]);
    let parsed = read(&version_4(&disagrees).to_string());
    assert_eq!(parsed.problems[0].detail, "software failed: host trouble");
}

#[test]
fn a_diagnostic_that_could_not_run_is_an_error() {
    let text = r#"{ "DCGM Diagnostic": { "runtime_error": "cannot reach the host engine", "version": "4.2.0" } }"#;
    let parsed = read(text);
    assert!(parsed.has_problem(OutputProblemKind::Error) && !parsed.complete);
    assert!(!parsed.has_problem(OutputProblemKind::Truncated));
}

#[test]
fn iterations_are_all_read() {
    let run = |status: &str| {
        version_4(&json!([{ "name": "memory", "results": [
            { "entity_group": "GPU", "entity_id": 0, "status": status }] }]))
    };
    let text = json!({ "Overall Result": "Fail", "iterations": [run("Pass"), run("Fail")] });
    let parsed = read(&text.to_string());
    assert_eq!(parsed.facts.diagnostics.len(), 2);
    assert_eq!(parsed.problems.len(), 1);
}

#[test]
fn a_second_document_is_reported_and_not_ignored() {
    let of = |status: &str| {
        let result =
            json!({"entity_group": "GPU", "entity_group_id": 1, "entity_id": 0, "status": status});
        version_4(&json!([{"name": "memory", "results": [result]}])).to_string()
    };
    let one = read(&of("Pass"));
    assert!(one.complete, "{one:?}");
    let two = read(&format!("{}\n{}\n", of("Pass"), of("Fail")));
    assert!(two.has_problem(OutputProblemKind::Unrecognised) && !two.complete, "{two:?}");
}

#[test]
fn an_unknown_status_is_not_a_pass() {
    for status in ["", "Pas\u{0}s", "Maybe"] {
        let tests = json!([{ "name": "pcie", "results": [{ "gpu_ids": "0", "status": status }] }]);
        let text = version_4(&tests).to_string().replace("\\u0000", "\u{0}");
        let parsed = read(&text);
        assert!(
            parsed.has_problem(OutputProblemKind::Unrecognised) && !parsed.complete,
            "{status:?}"
        );
    }
}

#[test]
fn a_document_about_links_is_not_a_diagnostic() {
    let links = r#"{"body": {"Link 0": {"children": {"Replay Error": {"value": "3"}}}}, "header": ["NVLINK Error Counts"]}"#;
    assert_eq!(outputs::parse_output(links.as_bytes()).tool, None);
}

proptest! {
    #[test]
    fn every_result_is_read_back(
        statuses in proptest::collection::vec(proptest::collection::vec(0usize..4, 1..9), 1..8),
        pretty in any::<bool>(),
    ) {
        const NAMES: [&str; 4] = ["Pass", "Fail", "Warn", "Skip"];
        let tests: Vec<Value> = statuses.iter().enumerate().map(|(index, row)| {
            let results: Vec<Value> = row.iter().enumerate().map(|(gpu, status)| {
                json!({ "entity_group": "GPU", "entity_id": gpu, "status": NAMES[*status] })
            }).collect();
            json!({ "name": format!("test{index}"), "results": results })
        }).collect();
        let document = version_4(&Value::Array(tests));
        let text = if pretty { format!("{document:#}") } else { document.to_string() };
        let parsed = read(&text);
        prop_assert!(parsed.complete);
        let wrote: Vec<String> =
            statuses.iter().flatten().map(|s| NAMES[*s].to_ascii_lowercase()).collect();
        let back: Vec<String> =
            parsed.facts.diagnostics.iter().map(|d| d.status.clone()).collect();
        prop_assert_eq!(back, wrote);
        let failed = statuses.iter().flatten().filter(|s| **s == 1).count();
        let errors = parsed.problems.iter().filter(|p| p.kind == OutputProblemKind::Error).count();
        prop_assert_eq!(errors, failed);
    }

    #[test]
    fn a_cut_document_is_never_whole(cut in 0usize..10_000) {
        let tests = json!([{ "name": "memory", "results": [
            { "entity_group": "GPU", "entity_id": 0, "status": "Pass" },
            { "entity_group": "GPU", "entity_id": 1, "status": "Pass" }] }]);
        let text = version_4(&tests).to_string();
        let parsed = outputs::parse_output(&text.as_bytes()[..cut % text.len()]);
        prop_assert!(!parsed.complete);
    }

    #[test]
    fn nothing_makes_it_panic(text in ".{0,200}", hurt in fixture::any_damage()) {
        let tests = json!([{ "name": "memory", "results": [{ "gpu_ids": "0,1", "status": "Pass" }] }]);
        let good = version_4(&tests).to_string();
        for bytes in [text.as_bytes().to_vec(), fixture::apply_damage(&good, &hurt)] {
            let decoded = text::decode(&bytes);
            let parsed = parse(&ParserInput::new(&decoded));
            prop_assert!(parsed.facts.diagnostics.iter().all(|d| !d.test.is_empty()));
        }
    }
}
