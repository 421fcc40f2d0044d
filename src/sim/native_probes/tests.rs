//! Documents of the simulated probes, parsed by the real parsers.

use std::collections::BTreeMap;

use super::{NativeProbeSite, collective, copy};
use crate::fabric::SimFabric;
use crate::scenario::Scenario;
use model::copy::CopyDocument;
use model::measurement::{Measurement, MeasurementMatrix};
use model::parse_output::{OutputProblemKind, ParseOutput};
use model::probe_problem_class::ProbeProblemClass;
use readers::outputs;

const WRITE: &str = "device_to_device_memcpy_write_ce";

fn question(tests: &[String], lane: bool) -> copy::SimCopyRequest<'_> {
    copy::SimCopyRequest {
        tests,
        readings: 2,
        buffer_bytes: 512 << 20,
        copies: 16,
        warmup: 2,
        lane,
    }
}

fn to_strings(tests: &[&str]) -> Vec<String> {
    tests.iter().map(|test| (*test).to_owned()).collect()
}

fn asked<T>(
    platform: &str,
    more: &str,
    node: &str,
    nodes: &[String],
    ask: impl Fn(&NativeProbeSite<'_>) -> T,
) -> T {
    let text = format!(
        "title=\"t\"\n[[domain]]\nname=\"r\"\nnodes=\"n[1-3]\"\nplatform=\"{platform}\"\n{more}"
    );
    let scenario = Scenario::parse(&text).expect("good");
    let fabric = SimFabric::build(&scenario).expect("a fabric");
    ask(&NativeProbeSite {
        scenario: &scenario,
        fabric: &fabric,
        node,
        nodes,
        gpus: &[],
        environment: BTreeMap::new(),
        noise: |reading| reading,
        prior_runs: 0,
    })
}

fn alone(more: &str, tests: &[&str]) -> (CopyDocument, ParseOutput) {
    let document = asked("hgx-h100", more, "n1", &[], |place| {
        copy::build_document(place, &question(&to_strings(tests), false))
    });
    let text = serde_json::to_string(&document).expect("plain data");
    (document, outputs::parse_output(format!("{text}\n").as_bytes()))
}

/// The documents of all nodes that measure together, parsed as one output.
fn together(more: &str, nodes: &[&str], tests: &[&str], lane: bool) -> ParseOutput {
    let nodes: Vec<String> = nodes.iter().map(|node| (*node).to_owned()).collect();
    let line = |node: &String| {
        let document = asked("gb200-nvl72", more, node, &nodes, |place| {
            copy::build_document(place, &question(&to_strings(tests), lane))
        });
        serde_json::to_string(&document).expect("plain data") + "\n"
    };
    outputs::parse_output(nodes.iter().map(line).collect::<String>().as_bytes())
}

fn matrices<'p>(parsed: &'p ParseOutput, name: &str) -> Vec<&'p MeasurementMatrix> {
    let all = parsed.measurements.iter().filter_map(|m| match m {
        Measurement::Matrix(matrix) if matrix.testcase.as_deref() == Some(name) => Some(matrix),
        _ => None,
    });
    all.collect()
}

#[test]
fn a_healthy_node_shows_what_its_links_give_and_readings_differ() {
    let tests = [
        "host_to_device_memcpy_ce",
        WRITE,
        "device_to_device_bidirectional_memcpy_read_ce",
        "device_to_device_concurrent_memcpy_read_ce",
        "device_local_copy",
        "device_to_device_latency_ce",
        "all_to_one_write_ce",
    ];
    let (_, parsed) = alone("", &tests);
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
    assert_eq!(matrices(&parsed, WRITE).len(), 2);
    let [first, second] = [0, 1].map(|at| matrices(&parsed, WRITE)[at].cells[2][5].expect("one"));
    assert!((first / 396.0 - 1.0).abs() < 0.01 && (first - second).abs() > 1e-9);
    let total = matrices(&parsed, "device_to_device_bidirectional_memcpy_read_ce_total");
    assert!((total[0].cells[0][1].expect("one") / 792.0 - 1.0).abs() < 0.01);
    let at_once = matrices(&parsed, "device_to_device_concurrent_memcpy_read_ce");
    assert!((at_once[0].cells[7][0].expect("one") / 396.0 - 1.0).abs() < 0.01);
    assert_eq!(matrices(&parsed, "host_to_device_memcpy_ce")[0].rows, ["0"]);
    assert_eq!(parsed.facts.devices.len(), 8);
    assert_eq!(parsed.facts.devices[0].bus_id.as_deref(), Some("0000:1b:00.0"));
    assert_eq!(parsed.facts.around["n1"].gpus.len(), 8);
}

#[test]
fn lost_links_and_wrong_data_show_as_in_nvbandwidth() {
    let (_, parsed) = alone("[[fault]]\nkind=\"lost-links\"\ngpu=\"n1:3\"\ncount=2\n", &[WRITE]);
    let cells = &matrices(&parsed, WRITE)[0].cells;
    let share = cells[3][0].zip(cells[1][0]).map(|(low, good)| low / good).expect("both");
    assert!((share * 18.0 / 16.0 - 1.0).abs() < 0.01, "{share}");
    let more = "[[fault]]\nkind=\"corrupt\"\ngpu=\"n1:3\"\n";
    let (_, parsed) = alone(more, &["host_to_device_memcpy_ce", WRITE]);
    let host: Vec<_> = parsed
        .problems
        .iter()
        .filter(|p| p.testcase.as_deref() == Some("host_to_device_memcpy_ce"))
        .map(|p| (p.kind, p.gpu))
        .collect();
    assert_eq!(host, [(OutputProblemKind::Corrupt, Some(3))]);
    assert_eq!(matrices(&parsed, WRITE)[0].cells[0][3], None);
    assert!(matrices(&parsed, WRITE)[0].cells[0][1].is_some() && parsed.complete);
}

#[test]
fn an_error_ends_the_process_and_keeps_what_was_measured() {
    let more = "[[fault]]\nkind=\"tool-error\"\nnode=\"n1\"\ntestcase=\"device_local_copy\"\n";
    let (document, parsed) = alone(more, &["host_to_device_memcpy_ce", "device_local_copy", WRITE]);
    assert!(!document.complete && !parsed.complete);
    assert_eq!(parsed.problems[0].code.as_deref(), Some("CUDA_ERROR_ECC_UNCORRECTABLE"));
    assert_eq!(document.tests.len(), 1);
}

#[test]
fn nodes_that_measure_together_make_one_matrix() {
    let write = "multinode_device_to_device_memcpy_write_ce";
    let parsed = together("", &["n1", "n3"], &[write], false);
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
    let found = matrices(&parsed, write);
    assert_eq!((found.len(), found[0].rows.len(), found[0].numbers().count()), (2, 8, 56));
    assert_eq!((parsed.facts.ranks[5].host.as_str(), parsed.facts.ranks[5].device), ("n3", 1));
    let bisect = "multinode_bisect_write_ce";
    let parsed = together("", &["n1", "n3"], &[bisect], true);
    let rows = ["0->4", "1->5", "2->6", "3->7", "4->0", "5->1", "6->2", "7->3"];
    assert_eq!(matrices(&parsed, bisect)[0].rows, rows);
    assert!(parsed.complete, "{:?}", parsed.problems);
}

#[test]
fn memory_that_cannot_be_shared_is_reported_and_leaves_gaps() {
    let bisect = "multinode_bisect_write_ce";
    let more = "[[fault]]\nkind=\"imex-peer-missing\"\nnode=\"n3\"\n";
    let parsed = together(more, &["n1", "n3"], &[bisect], true);
    assert!(!parsed.complete);
    assert!(
        parsed
            .problems
            .iter()
            .all(|p| p.class.as_ref().map(ProbeProblemClass::as_str) == Some("no-imex-channel"))
    );
    assert_eq!(parsed.problems[0].host.as_deref(), Some("n3"));
    assert_eq!(matrices(&parsed, bisect)[0].numbers().count(), 0);
    let more = "[[fault]]\nkind=\"fabric-down\"\nnode=\"n3\"\n";
    let parsed = together(more, &["n1", "n3"], &[bisect], true);
    assert!(
        parsed
            .problems
            .iter()
            .all(|p| p.class.as_ref().map(ProbeProblemClass::as_str) == Some("other-fabric"))
    );
    assert!(!parsed.complete);
}

#[test]
fn collectives_of_a_rack_have_their_numbers_in_the_first_document() {
    let nodes: Vec<String> = ["n1", "n2", "n3"].map(str::to_owned).to_vec();
    let tests = ["all_reduce_perf".to_owned(), "alltoall_perf".to_owned()];
    let question = collective::SimCollectiveRequest {
        tests: &tests,
        readings: 2,
        bytes: [8 << 20, 8 << 30],
        factor: 2,
        iterations: 20,
        asserted: Some("MNNVL"),
    };
    let read = |more: &str| {
        let line = |node: &String| {
            let document = asked("gb200-nvl72", more, node, &nodes, |place| {
                collective::build_document(place, &question)
            });
            serde_json::to_string(&document).expect("plain data") + "\n"
        };
        outputs::parse_output(nodes.iter().map(line).collect::<String>().as_bytes())
    };
    let parsed = read("");
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
    assert_eq!((parsed.measurements.len(), parsed.facts.ranks.len()), (4, 12));
    assert!(parsed.facts.transports.contains(&"MNNVL".to_owned()));
    // The scope is the claimed domain, as with nccl-tests.
    for more in [
        "kind=\"collective-fallback\"\nscope=\"r\"\n",
        "kind=\"nccl-setting\"\nscope=\"r\"\nname=\"NCCL_MNNVL_ENABLE\"\nvalue=\"0\"\n",
    ] {
        let parsed = read(&format!("[[fault]]\n{more}"));
        let is_reported = parsed
            .problems
            .iter()
            .any(|p| p.class.as_ref().map(ProbeProblemClass::as_str) == Some("another-path"));
        assert!(is_reported, "{more}: {:?}", parsed.problems);
    }
    let parsed = read("[[fault]]\nkind=\"corrupt\"\ngpu=\"n2:1\"\n");
    let corrupt: Vec<_> =
        parsed.problems.iter().map(|p| (p.kind, p.host.as_deref(), p.gpu)).collect();
    assert_eq!(corrupt, [(OutputProblemKind::Corrupt, Some("n2"), Some(1)); 2]);
}
