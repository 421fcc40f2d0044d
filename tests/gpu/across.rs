//! Copies across nodes and the fabric probe, in real processes that share memory: the measured
//! values, and the messages for faults. Rates are the simulated machines'.

use model::parse_output::OutputProblemKind;
use node::probes::protocol::ProbeMessage;
use node::probes::task::{CopyTask, CrossNodePairs};

use crate::stub::{Library, Machine};
use crate::talking::{ProbeOutput, Talker, talk};

const WRITE: &str = "multinode_device_to_device_memcpy_write_ce";
const READ: &str = "multinode_device_to_device_memcpy_read_ce";
const BISECT: &str = "multinode_bisect_write_ce";

/// A node whose GPUs copy at 1 GB/s, so that a copy of 1 MiB takes a millisecond.
fn node(name: &str, gpus: u32) -> Machine {
    Machine::of(gpus).with(&format!("node = {name}")).with("pair = 1")
}

fn task(node: &str, across: CrossNodePairs, tests: &[&str]) -> CopyTask {
    CopyTask {
        cuda: Some("{cuda}".into()),
        root: "{root}".into(),
        node: node.to_owned(),
        gpus: Vec::new(),
        tests: tests.iter().map(|it| (*it).to_owned()).collect(),
        readings: 1,
        buffer_bytes: 1 << 20,
        copies: 16,
        warmup: 1,
        warmup_ms: 0,
        across: Some(across),
    }
}

/// Measures on these machines, named n0, n1 and so on.
fn measure(across: CrossNodePairs, tests: &[&str], machines: Vec<Machine>) -> Vec<ProbeOutput> {
    let talkers: Vec<Talker> = (0..)
        .zip(machines)
        .map(|(at, machine): (u32, Machine)| {
            let name = format!("n{at}");
            let task = serde_json::to_string(&task(&name, across, tests)).expect("plain data");
            Talker { name, machine, command: "copy-child", task }
        })
        .collect();
    talk(&talkers)
}

fn is_near(value: Option<f64>, wanted: f64) -> bool {
    value.is_some_and(|value| (value / wanted - 1.0).abs() < 0.01)
}

#[test]
fn every_pair_of_two_nodes_is_measured_in_the_direction_of_its_data() {
    let outcome = measure(
        CrossNodePairs::All,
        &[WRITE, READ],
        vec![
            // The write from GPU 0 of n0 to GPU 1 of n1 is slow.
            node("n0", 2).with("pair 0 n1:1 = 0.5"),
            // The read by GPU 1 of n1 from GPU 0 of n0 is slower.
            node("n1", 2).with("pair n0:0 1 = 0.25"),
        ],
    );
    for (at, outcome) in outcome.iter().enumerate() {
        assert!(outcome.is_whole(), "{outcome:?}");
        let ranks: Vec<(u32, &str, u32)> = outcome
            .lines
            .iter()
            .filter_map(|line| match line {
                ProbeMessage::Rank(rank) => Some((rank.rank, rank.node.as_str(), rank.gpu)),
                _ => None,
            })
            .collect();
        assert_eq!(ranks, [(0, "n0", 0), (1, "n0", 1), (2, "n1", 0), (3, "n1", 1)]);
        for testcase in [WRITE, READ] {
            for row in [2 * at, 2 * at + 1] {
                for col in (0..4).filter(|col| *col != row) {
                    let wanted = match (testcase, row, col) {
                        (WRITE, 0, 3) => 0.5,
                        (READ, 3, 0) => 0.25,
                        _ => 1.0,
                    };
                    let value = outcome.value(testcase, &row.to_string(), &col.to_string());
                    assert!(is_near(value, wanted), "{testcase} {row} {col}: {value:?}");
                }
            }
            assert_eq!(outcome.cells(testcase).len(), 6, "rows of its own GPUs and no others");
        }
    }
}

#[test]
fn lanes_are_measured_both_ways_concurrently_and_a_slow_one_delays_no_other() {
    let outcome = measure(
        CrossNodePairs::Lane,
        &[BISECT],
        vec![node("n0", 2), node("n1", 2).with("pair 1 n0:1 = 0.01")],
    );
    assert!(outcome.iter().all(ProbeOutput::is_whole), "{outcome:?}");
    assert!(is_near(outcome[0].value(BISECT, "0->2", "0"), 1.0));
    assert!(is_near(outcome[0].value(BISECT, "1->3", "0"), 1.0));
    assert!(is_near(outcome[1].value(BISECT, "2->0", "0"), 1.0));
    assert!(is_near(outcome[1].value(BISECT, "3->1", "0"), 0.01));
    assert!(outcome[0].lines.iter().any(|line| match line {
        ProbeMessage::Test(shape) => shape.rows == ["0->2", "1->3"] && shape.cols == ["0"],
        _ => false,
    }));
}

#[test]
fn another_clique_is_reported_and_pairs_inside_the_nodes_are_measured() {
    let machines = vec![node("n0", 2), node("n1", 2).with("clique = 2")];
    let outcome = measure(CrossNodePairs::All, &[WRITE], machines);
    for (at, outcome) in outcome.iter().enumerate() {
        assert_eq!(outcome.classes(), ["other-fabric"], "{outcome:?}");
        let problem = outcome.problems()[0];
        assert_eq!(problem.node, Some(format!("n{}", 1 - at)));
        assert_eq!(problem.code.as_deref(), Some("CUDA_ERROR_INVALID_HANDLE"));
        assert!(problem.detail.ends_with("; the same for 3 more pairs"), "{}", problem.detail);
        assert_eq!(outcome.cells(WRITE).len(), 2, "its own two GPUs");
        assert!(!outcome.is_whole());
    }
}

#[test]
fn a_node_without_a_channel_reports_it_and_the_others_receive_it() {
    let machines = vec![node("n0", 1), node("n1", 1).with("imex = no"), node("n2", 1)];
    let outcome = measure(CrossNodePairs::Lane, &[BISECT], machines);
    assert_eq!(outcome[1].classes()[0], "no-imex-channel", "{:?}", outcome[1]);
    assert_eq!(outcome[0].classes(), ["peer-lost"]);
    let problem = outcome[0].problems()[0];
    assert_eq!((problem.node.as_deref(), problem.gpu), (Some("n1"), Some(0)));
    assert!(problem.detail.contains("nvidia-caps-imex-channels"), "{}", problem.detail);
    assert!(is_near(outcome[0].value(BISECT, "0->2", "0"), 1.0), "the others go on");
    assert!(is_near(outcome[2].value(BISECT, "2->0", "0"), 1.0));
    assert!(outcome.iter().all(|outcome| !outcome.is_whole()));
}

#[test]
fn a_node_without_a_driver_is_not_waited_for() {
    let mut talkers = Vec::new();
    for name in ["n0", "n1"] {
        let mut task = task(name, CrossNodePairs::Lane, &[BISECT]);
        if name == "n1" {
            task.cuda = Some("/no/such/libcuda.so.1".into());
        }
        let task = serde_json::to_string(&task).expect("plain data");
        let (name, machine) = (name.to_owned(), node(name, 1));
        talkers.push(Talker { name, machine, command: "copy-child", task });
    }
    let outcome = talk(&talkers);
    assert_eq!(outcome[1].classes(), ["no-driver"]);
    assert_eq!(outcome[0].classes()[0], "peer-gone");
    assert!(outcome[0].problems()[0].detail.contains("cannot be opened"), "{outcome:?}");
}

#[test]
fn a_driver_without_fabric_handles_is_called_too_old() {
    let old = node("n1", 1).without(Library::Cuda, &["cuMemExportToShareableHandle"]);
    let outcome = measure(CrossNodePairs::Lane, &[BISECT], vec![node("n0", 1), old]);
    assert_eq!(outcome[1].classes()[0], "driver-too-old");
    assert_eq!(outcome[0].classes()[0], "peer-lost");
    assert!(outcome[0].cells(BISECT).is_empty());
}

#[test]
fn a_node_that_dies_in_the_middle_of_a_round_costs_its_own_pairs() {
    let dies = node("n1", 1).with("die cuMemcpyAsync = 30");
    let machines = vec![node("n0", 1), dies, node("n2", 1)];
    let outcome = measure(CrossNodePairs::All, &[WRITE, BISECT], machines);
    for (outcome, row, col) in [(&outcome[0], "0", "2"), (&outcome[2], "2", "0")] {
        assert!(outcome.classes().contains(&"peer-gone"), "{outcome:?}");
        assert!(is_near(outcome.value(WRITE, row, col), 1.0), "{outcome:?}");
        assert!(is_near(outcome.value(BISECT, &format!("{row}->{col}"), "0"), 1.0), "{outcome:?}");
        assert!(!outcome.is_whole());
        assert_eq!(outcome.code, Some(0));
    }
    let gone = outcome[0].problems();
    let gone: Vec<_> = gone.iter().filter(|it| it.class.as_str() == "peer-gone").collect();
    assert_eq!(gone.len(), 1, "it is reported once");
    assert_eq!(gone[0].node.as_deref(), Some("n1"));
}

#[test]
fn a_gpu_that_is_lost_costs_its_own_pairs() {
    let loses = node("n0", 2).with("lost 1 = 719 after 60");
    let outcome = measure(CrossNodePairs::All, &[WRITE, READ], vec![loses, node("n1", 1)]);
    assert!(outcome[0].classes().contains(&"gpu-lost"), "{:?}", outcome[0]);
    assert_eq!(outcome[1].classes(), ["peer-lost"]);
    assert_eq!(
        (outcome[1].problems()[0].node.as_deref(), outcome[1].problems()[0].gpu),
        (Some("n0"), Some(1))
    );
    assert!(is_near(outcome[0].value(READ, "0", "2"), 1.0), "{:?}", outcome[0]);
    assert!(is_near(outcome[1].value(READ, "2", "0"), 1.0));
}

#[test]
fn wrong_data_is_a_fault_of_its_pair_and_gives_no_number() {
    let wrong = node("n0", 2).with("wrong-data 0 n1:0");
    let outcome = measure(CrossNodePairs::Lane, &[BISECT], vec![wrong, node("n1", 2)]);
    let problem = outcome[0].problems()[0];
    assert_eq!((problem.kind, problem.class.as_str()), (OutputProblemKind::Corrupt, "wrong-data"));
    assert_eq!((problem.gpu, problem.testcase.as_deref()), (Some(0), Some(BISECT)));
    assert!(problem.detail.starts_with("the data of n0:0 -> n1:0 is wrong: "), "{problem:?}");
    assert_eq!(outcome[0].value(BISECT, "0->2", "0"), None);
    assert!(is_near(outcome[0].value(BISECT, "1->3", "0"), 1.0));
    assert!(outcome[1].is_whole() && !outcome[0].is_whole());
}

#[test]
fn a_host_link_that_corrupts_data_is_not_mistaken_for_the_fabric() {
    let spoils = node("n0", 2).with("wrong-data host 0");
    let outcome = measure(CrossNodePairs::Lane, &[BISECT], vec![spoils, node("n1", 2)]);
    let problem = outcome[0].problems()[0];
    assert_eq!((problem.kind, problem.gpu), (OutputProblemKind::Corrupt, Some(0)));
    assert!(problem.detail.contains("differs from the data that the host wrote"), "{problem:?}");
    assert_eq!(outcome[1].classes(), ["peer-lost"]);
    assert!(is_near(outcome[0].value(BISECT, "1->3", "0"), 1.0));
    assert!(is_near(outcome[1].value(BISECT, "3->1", "0"), 1.0));
    // On the return path the second check is correct, and the copy between GPUs counts.
    let spoils = node("n0", 1).with("wrong-data 0 host");
    let outcome = measure(CrossNodePairs::Lane, &[BISECT], vec![spoils, node("n1", 1)]);
    assert_eq!(outcome[0].problems()[0].kind, OutputProblemKind::Corrupt);
    assert!(outcome[0].cells(BISECT).is_empty(), "its source could not be checked");
}

#[test]
fn memory_is_imported_once_and_given_back_before_its_owner_releases_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let calls = folder.path().join("calls");
    let noted = |name| node(name, 2).with(&format!("calls = {}", calls.display()));
    let outcome = measure(CrossNodePairs::All, &[WRITE, READ], vec![noted("n0"), noted("n1")]);
    assert!(outcome.iter().all(ProbeOutput::is_whole), "{outcome:?}");
    let text = std::fs::read_to_string(&calls).expect("calls");
    let calls: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once(' ')).collect();
    let count = |call: &str| calls.iter().filter(|(_, it)| *it == call).count();
    assert_eq!(count("cuMemImportFromShareableHandle"), 4, "two by either node");
    assert_eq!((count("cuMemUnmap"), count("cuMemRelease")), (8, 8));
    // Each process releases two allocations of others, then two of its own; in the overall order,
    // no process releases its own before the last process has unmapped it.
    let mut seen: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
    let mut own = false;
    for (process, call) in &calls {
        if *call == "cuMemUnmap" {
            let nth = seen.entry(process).or_default();
            *nth += 1;
            own |= 2 < *nth;
            assert!(!own || seen.values().all(|unmapped| 2 <= *unmapped), "{calls:?}");
        }
    }
    assert_eq!(seen.len(), 2);
}

#[test]
fn one_node_alone_measures_its_own_pairs() {
    let outcome = measure(CrossNodePairs::All, &[WRITE], vec![node("n0", 2)]);
    assert!(outcome[0].is_whole(), "{outcome:?}");
    assert!(is_near(outcome[0].value(WRITE, "1", "0"), 1.0));
    let outcome = measure(CrossNodePairs::Lane, &[BISECT], vec![node("n0", 1)]);
    assert_eq!(outcome[0].classes(), ["no-counterpart"]);
}

fn explore(machines: Vec<Machine>) -> Vec<ProbeOutput> {
    let task = r#"{"cuda":"{cuda}","root":"{root}","node":"n0","bytes":2097152}"#;
    let talkers: Vec<Talker> = machines
        .into_iter()
        .map(|machine| Talker {
            name: "n0".to_owned(),
            machine,
            command: "fabric-child",
            task: task.to_owned(),
        })
        .collect();
    talk(&talkers)
}

#[test]
fn two_processes_share_the_memory_of_one_gpu_in_every_way() {
    let outcome = explore(vec![node("n0", 1), node("n0", 1)]);
    for outcome in &outcome {
        assert!(outcome.is_whole(), "{outcome:?}");
        for step in [
            "ipc-create",
            "ipc-open",
            "ipc-data",
            "ipc-close",
            "ipc-written",
            "fabric-create",
            "fabric-export",
            "fabric-map",
            "fabric-import-own",
            "fabric-import",
            "fabric-data",
            "fabric-written",
        ] {
            assert_eq!(outcome.note(&format!("gpu0 {step}")), Some("ok"), "{step}: {outcome:?}");
        }
    }
}

#[test]
fn a_missing_permission_is_reported_with_the_drivers_message() {
    let machine = || node("n0", 2).with("imex = no");
    let outcome = explore(vec![machine(), machine()]);
    for outcome in &outcome {
        let create = outcome.note("gpu1 fabric-create").expect("tried");
        assert_eq!(create, "cuMemCreate: CUDA_ERROR_NOT_PERMITTED (800)");
        assert_eq!(outcome.note("gpu1 fabric-export"), Some("not tried: fabric-create failed"));
        assert_eq!(outcome.note("gpu0 ipc-written"), Some("ok"), "{outcome:?}");
        assert_eq!(outcome.note("imex-channels"), Some("none"));
        assert_eq!(outcome.classes(), ["no-imex-channel"], "one problem for both GPUs");
        assert!(!outcome.is_whole());
    }
}

#[test]
fn a_missing_gpu_or_second_process_is_reported() {
    let outcome = explore(vec![Machine::of(0), Machine::of(0)]);
    assert!(outcome.iter().all(|outcome| outcome.classes() == ["no-device"]), "{outcome:?}");
    let outcome = explore(vec![node("n0", 1), node("n0", 1).with("die cuMemCreate = 1")]);
    assert_eq!(outcome[0].classes(), ["other-process-gone"], "{outcome:?}");
    assert_eq!(outcome[0].note("gpu0 fabric-import-own"), Some("ok"));
    let open = outcome[0].note("gpu0 ipc-open").expect("a note");
    assert!(open.starts_with("not tried: the other process is gone"), "{open}");
    let outcome = explore(vec![node("n0", 1)]);
    assert_eq!(outcome[0].classes(), ["other-process-gone"]);
}
