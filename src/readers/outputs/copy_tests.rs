//! Tests for fabricgate's copy-engine probe documents.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::outputs;
use crate::outputs::fixture::matrices;
use model::throttle_reason::ThrottleReason;

const WRITE: &str = "device_to_device_memcpy_write_ce";
const ACROSS: &str = "multinode_device_to_device_memcpy_write_ce";

fn document(node: &str, ranks: &Value, tests: &Value) -> Value {
    json!({"format": COPY_FORMAT, "version": "0.1.0", "node": node, "cuda": "13.0",
        "buffer_bytes": 536_870_912u64, "copies": 16, "warmup": 4,
        "gpus": [
            {"index": 0, "name": "NVIDIA Z1", "uuid": "GPU-0", "bus_id": "0000:3b:00.0"},
            {"index": 1, "name": "NVIDIA Z1", "uuid": "GPU-1", "bus_id": "0000:5e:00.0"}],
        "ranks": ranks, "tests": tests, "problems": [], "complete": true})
}

fn test(name: &str, rows: &[&str], cols: &[&str], readings: &Value) -> Value {
    json!({"testcase": name, "unit": "GB/s", "rows": rows, "cols": cols, "readings": readings})
}

/// One node with two GPUs, two readings.
fn alone() -> Value {
    let pairs = json!([[[null, 390.5], [391.25, null]], [[null, 390.0], [391.0, null]]]);
    let host = json!([[[55.5, 55.25]]]);
    let tests = json!([
        test("host_to_device_memcpy_ce", &["0"], &["0", "1"], &host),
        test(WRITE, &["0", "1"], &["0", "1"], &pairs),
    ]);
    document("n1", &json!([]), &tests)
}

fn ranks() -> Value {
    let rank = |rank: u32, node: &str, gpu: u32| json!({"rank": rank, "node": node, "gpu": gpu});
    json!([rank(0, "n1", 0), rank(1, "n1", 1), rank(2, "n2", 0), rank(3, "n2", 1)])
}

/// Two nodes with two GPUs each, one reading; each reports its own rows.
fn together() -> [Value; 2] {
    let all = ["0", "1", "2", "3"];
    let first = json!([[[null, 700.0, 710.0, 711.0], [701.0, null, 712.0, 713.0]]]);
    let second = json!([[[720.0, 721.0, null, 702.0], [722.0, 723.0, 703.0, null]]]);
    [
        document("n1", &ranks(), &json!([test(ACROSS, &["0", "1"], &all, &first)])),
        document("n2", &ranks(), &json!([test(ACROSS, &["2", "3"], &all, &second)])),
    ]
}

fn lines(documents: &[Value]) -> String {
    documents.iter().map(|document| format!("{document}\n")).collect()
}

fn read(text: &str) -> ParseOutput {
    outputs::parse_output(text.as_bytes())
}

fn has_problem(parsed: &ParseOutput, kind: OutputProblemKind, what: &str) -> bool {
    parsed.problems.iter().any(|p| p.kind == kind && p.detail.contains(what))
}

#[test]
fn a_document_is_a_matrix_per_test_and_reading() {
    for text in [
        format!("{}\n", alone()),
        serde_json::to_string_pretty(&alone()).expect("text"),
        format!("a log line {{\n{}\nanother }}\n", alone()),
    ] {
        let parsed = read(&text);
        assert_eq!(parsed.tool, Some(Tool::FabricgateCopy));
        assert_eq!(parsed.tool_version.as_deref(), Some("0.1.0"));
        assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
        let found = matrices(&parsed);
        let names: Vec<_> =
            found.iter().map(|m| (m.testcase.as_deref().unwrap_or(""), m.run)).collect();
        assert_eq!(names, [("host_to_device_memcpy_ce", 0), (WRITE, 0), (WRITE, 1)]);
        assert_eq!(found[1].cells, [[None, Some(390.5)], [Some(391.25), None]]);
        assert_eq!(found[2].cells[0][1], Some(390.0));
        assert_eq!(found[0].unit, Some(Unit::GigabytesPerSecond));
        assert_eq!(parsed.facts.hosts, ["n1"]);
        assert_eq!(parsed.facts.cuda_driver.as_deref(), Some("13.0"));
        assert_eq!(parsed.facts.devices[1].bus_id.as_deref(), Some("0000:5e:00.0"));
        let buffer = parsed.facts.parameters.get("buffer_bytes");
        assert_eq!(buffer.map(String::as_str), Some("536870912"));
    }
}

#[test]
fn documents_of_several_nodes_make_one_matrix_in_the_order_of_ranks() {
    let [first, second] = together();
    for text in [lines(&[first.clone(), second.clone()]), lines(&[second, first])] {
        let parsed = read(&text);
        assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
        let found = matrices(&parsed);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].rows, ["0", "1", "2", "3"]);
        assert_eq!(found[0].cols, ["0", "1", "2", "3"]);
        assert_eq!(found[0].cells[1], [Some(701.0), None, Some(712.0), Some(713.0)]);
        assert_eq!(found[0].cells[2], [Some(720.0), Some(721.0), None, Some(702.0)]);
        let ranks: Vec<_> =
            parsed.facts.ranks.iter().map(|r| (r.rank, r.host.as_str(), r.device)).collect();
        assert_eq!(ranks, [(0, "n1", 0), (1, "n1", 1), (2, "n2", 0), (3, "n2", 1)]);
    }
}

#[test]
fn rows_that_name_both_ends_are_put_in_order_too() {
    let name = "multinode_bisect_write_ce";
    let first = test(name, &["0->2", "1->3"], &["0"], &json!([[[730.0], [731.0]]]));
    let second = test(name, &["2->0", "3->1"], &["0"], &json!([[[732.0], [733.0]]]));
    let parsed = read(&lines(&[
        document("n2", &ranks(), &json!([second])),
        document("n1", &ranks(), &json!([first])),
    ]));
    assert!(parsed.complete, "{:?}", parsed.problems);
    assert_eq!(matrices(&parsed)[0].rows, ["0->2", "1->3", "2->0", "3->1"]);
    assert_eq!(matrices(&parsed)[0].cells[3], [Some(733.0)]);
}

#[test]
fn a_participant_without_a_document_is_reported() {
    let [first, _] = together();
    let parsed = read(&lines(&[first]));
    assert!(!parsed.complete && has_problem(&parsed, OutputProblemKind::Truncated, "n2 took part"));
    assert_eq!(matrices(&parsed)[0].rows, ["0", "1"]);
}

#[test]
fn a_truncated_document_keeps_its_complete_part_and_the_other_stays_complete() {
    let [first, second] = together();
    let text = first.to_string();
    // In the middle of `712.0`.
    let cut = text.find("712.0").expect("a number of the document") + 3;
    for (torn, line) in [
        (format!("{}\n{second}\n", &text[..cut]), 1),
        (format!("{second}\n{}\n", &text[..cut]), 2),
        (format!("{second}\n{}\nWARNING: 7\n", &text[..cut]), 2),
    ] {
        let parsed = read(&torn);
        assert!(
            !parsed.complete && has_problem(&parsed, OutputProblemKind::Truncated, "breaks off")
        );
        assert_eq!(parsed.problems[0].line, Some(line));
        let found = matrices(&parsed);
        assert_eq!(found[0].cells[0], [None, Some(700.0), Some(710.0), Some(711.0)]);
        assert_eq!(found[0].cells[1], [Some(701.0), None, None, None], "712 was cut");
        assert_eq!(found[0].cells[3][1], Some(723.0));
    }
}

#[test]
fn duplicate_documents_and_cells_are_problems_and_count_for_no_node() {
    let [first, mut second] = together();
    let parsed = read(&lines(&[first.clone(), second.clone(), first.clone()]));
    assert!(
        !parsed.complete && has_problem(&parsed, OutputProblemKind::Inconsistent, "two documents")
    );
    assert_eq!(matrices(&parsed).len(), 1);
    second["tests"][0]["rows"] = json!(["1", "3"]);
    let parsed = read(&lines(&[first.clone(), second]));
    assert!(
        !parsed.complete
            && has_problem(
                &parsed,
                OutputProblemKind::Inconsistent,
                "row 1 belongs to another node"
            )
    );
    assert_eq!(matrices(&parsed)[0].rows, ["0", "1"], "a document counts for its own node's rows");
    assert_eq!(
        matrices(&parsed)[0].cells[1][0],
        matrices(&read(&lines(&together())))[0].cells[1][0]
    );
    let parsed = read(&format!("{first}{first}\n"));
    assert!(
        !parsed.complete
            && has_problem(&parsed, OutputProblemKind::Unrecognised, "more text follows")
    );
}

#[test]
fn documents_that_disagree_about_ranks_give_no_numbers() {
    let [first, mut second] = together();
    second["ranks"][2]["gpu"] = json!(3);
    let parsed = read(&lines(&[first, second]));
    assert!(
        !parsed.complete
            && has_problem(&parsed, OutputProblemKind::Inconsistent, "n2:3 in another document")
    );
    assert_eq!(matrices(&parsed)[0].rows, ["2", "3"], "n2 knows its own ranks");
    let mut first = alone();
    first["node"] = json!("n2");
    let parsed = read(&lines(&[alone(), first]));
    assert!(
        has_problem(&parsed, OutputProblemKind::Unrecognised, "its numbers name no node"),
        "labels are not ranks"
    );
    assert!(parsed.measurements.is_empty() && !parsed.complete);
}

#[test]
fn tables_of_other_shapes_and_units_are_refused() {
    let refused = |change: &dyn Fn(&mut Value), kind, what: &str| {
        let mut document = alone();
        change(&mut document["tests"][1]);
        let parsed = read(&document.to_string());
        assert!(
            !parsed.complete && has_problem(&parsed, kind, what),
            "{what}: {:?}",
            parsed.problems
        );
        parsed
    };
    use OutputProblemKind::{Inconsistent, Unrecognised};
    let short = |t: &mut Value| t["readings"][0] = json!([[null, 390.5]]);
    let parsed = refused(&short, Unrecognised, "reading 0 does not match");
    assert_eq!(matrices(&parsed)[1].cells[0], [None, None]);
    refused(&|t| t["readings"][1][0][1] = json!("fast"), Unrecognised, "is not a rate");
    refused(
        &|t| t["readings"][1][0][1] = json!(-1.0),
        Unrecognised,
        "-1.0 in reading 1 is not a rate",
    );
    refused(&|t| t["unit"] = json!("GiB/s"), Unrecognised, "unit GiB/s");
    refused(&|t| t["rows"] = json!(["0", "0"]), Inconsistent, "twice");
    refused(&|t| t["testcase"] = json!("host_to_device_memcpy_ce"), Inconsistent, "twice");
    refused(&|t| t["rows"] = json!(7), Unrecognised, "without its name");
}

#[test]
fn another_version_is_refused_and_the_others_are_read() {
    let [first, mut second] = together();
    second["format"] = json!("fabricgate.copy/2");
    let parsed = read(&lines(&[first, second]));
    assert!(has_problem(&parsed, OutputProblemKind::Unrecognised, "format fabricgate.copy/2"));
    assert!(!parsed.complete);
    assert_eq!(matrices(&parsed)[0].rows, ["0", "1"]);
}

#[test]
fn problems_keep_their_place_and_an_unknown_kind_is_an_error() {
    let [mut first, second] = together();
    first["complete"] = json!(false);
    first["problems"] = json!([
        {"kind": "corrupt", "class": "wrong-data", "detail": "7 bytes differ", "testcase": ACROSS,
         "gpu": 1},
        {"kind": "error", "class": "no-imex-channel", "detail": "none", "node": "n2", "gpu": 0,
         "code": "CUDA_ERROR_NOT_PERMITTED"},
        {"kind": "of-tomorrow", "class": "x", "detail": "something new"},
    ]);
    let parsed = read(&lines(&[first, second]));
    let found: Vec<_> = parsed.problems.iter().map(|p| (p.kind, p.rank, p.gpu)).collect();
    use OutputProblemKind::{Corrupt, Error};
    assert_eq!(
        found,
        [(Corrupt, Some(1), Some(1)), (Error, Some(2), Some(0)), (Error, None, None)]
    );
    assert_eq!(parsed.problems[0].detail, "wrong-data: 7 bytes differ");
    assert_eq!(parsed.problems[0].host.as_deref(), Some("n1"));
    assert_eq!(parsed.problems[1].code.as_deref(), Some("CUDA_ERROR_NOT_PERMITTED"));
    assert!(!parsed.complete);
}

#[test]
fn a_document_of_very_many_problems_is_read_in_bounded_time() {
    const MANY: usize = 80_000;
    let mut document = alone();
    let problem = |n: usize| json!({"kind": "error", "class": "x", "detail": n.to_string()});
    document["problems"] = (0..MANY).map(problem).collect();
    let text = document.to_string();
    let began = std::time::Instant::now();
    assert_eq!(read(&text).problems.len(), MANY);
    let took = began.elapsed();
    assert!(took < std::time::Duration::from_secs(10), "each was held against all: {took:?}");
}

#[test]
fn a_test_without_a_number_was_not_measured() {
    let mut document = alone();
    (document["tests"][1]["readings"], document["complete"]) = (json!([]), json!(false));
    let parsed = read(&document.to_string());
    assert_eq!(matrices(&parsed)[1].cells, [[None, None], [None, None]]);
    assert!(has_problem(&parsed, OutputProblemKind::Truncated, "did not measure everything"));
}

#[test]
fn driver_telemetry_is_kept_by_node() {
    let [mut first, second] = together();
    first["around"] = json!({"samples": 12, "gpus": [{"index": 1, "others": [4711],
        "under_load": {"pcie_generation": 4, "throttled": ["hw-slowdown\u{7}"]}}]});
    let parsed = read(&lines(&[first.clone(), second.clone()]));
    let around = &parsed.facts.around["n1"];
    assert_eq!((around.samples, &around.gpus[0].others[..]), (12, &[4711][..]));
    let load = around.gpus[0].under_load.as_ref().expect("under load");
    assert_eq!(load.throttled, [ThrottleReason::parse("hw-slowdown")]);
    assert_eq!(parsed.facts.around.len(), 1);
    first["around"] = json!("everything was fine");
    assert!(!read(&lines(&[first, second])).complete);
}

fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Number(number) => number.as_f64().into_iter().collect(),
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        Value::Object(map) => map.values().flat_map(numbers).collect(),
        _ => Vec::new(),
    }
}

proptest! {
    #[test]
    fn a_cut_output_is_truncated_and_every_number_is_in_its_text(
        rates in prop::collection::vec(0.001..900.0f64, 12),
        at in 0.0..1.0f64,
        first_is_cut in any::<bool>(),
    ) {
        let [mut first, mut second] = together();
        let rate = |at: usize| json!(rates[at]);
        first["tests"][0]["readings"] =
            json!([[[null, rate(0), rate(1), rate(2)], [rate(3), null, rate(4), rate(5)]]]);
        second["tests"][0]["readings"] =
            json!([[[rate(6), rate(7), null, rate(8)], [rate(9), rate(10), rate(11), null]]]);
        let texts = [first.to_string(), second.to_string()];
        let torn = usize::from(!first_is_cut);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss,
                 clippy::cast_precision_loss, reason = "a place in a short text")]
        let cut = &texts[torn][..(texts[torn].len() as f64 * at) as usize];
        let text = match first_is_cut {
            true => format!("{cut}\n{}\n", texts[1]),
            false => format!("{}\n{cut}\n", texts[0]),
        };
        let parsed = read(&text);
        prop_assert!(!parsed.complete && !parsed.problems.is_empty());
        let known: Vec<f64> = numbers(&first).into_iter().chain(numbers(&second)).collect();
        for matrix in matrices(&parsed) {
            for (_, _, value) in matrix.numbers() {
                prop_assert!(known.contains(&value), "{value} was never printed");
            }
        }
        let whole = read(&lines(&[first, second]));
        prop_assert!(whole.complete, "{:?}", whole.problems);
        prop_assert_eq!(matrices(&whole)[0].numbers().count(), 12);
    }
}

#[test]
fn a_document_counts_only_for_the_node_of_its_connection() {
    let [first, second] = together().map(|document| format!("{document}\n"));
    let tools = [Tool::FabricgateCopy];
    let by = |senders: [&str; 2]| {
        let text = format!("{first}{second}");
        let sent = [(senders[0], first.len()), (senders[1], second.len())];
        outputs::parse_expected(&tools, text.as_bytes(), &sent, b"")
    };
    let whole = by(["n1", "n2.site.example"]);
    assert!(whole.complete, "{:?}", whole.problems);
    assert_eq!(matrices(&whole)[0].rows, ["0", "1", "2", "3"]);
    // n2 sends n1's rows: none of them counts, and the problem names n2.
    let parsed = by(["n2", "n2"]);
    assert!(
        !parsed.complete
            && has_problem(
                &parsed,
                OutputProblemKind::Inconsistent,
                "n2 sent a document that names n1"
            )
    );
    assert_eq!(matrices(&parsed)[0].rows, ["2", "3"]);
    assert_eq!(parsed.problems[0].host.as_deref(), Some("n2"));
    // A margin in front of a line changes no sender.
    let text = format!("n1: {second}n1: {second}");
    let sent = [("n2", text.len())];
    let parsed = outputs::parse_expected(&tools, text.as_bytes(), &sent, b"");
    assert!(
        parsed
            .problems
            .iter()
            .all(|p| p.host.as_deref() != Some("n1") || p.detail.contains("took part"))
    );
}
