//! Copies across nodes and the fabric probe, in real processes that share
//! memory: what is measured, and what is said when something is wrong. Rates
//! are the simulated machines'.

use model::parse_output::OutputProblemKind;
use node::probes::copy::task::{CopyTask, CrossNodePairs};
use node::probes::protocol::ProbeMessage;

use crate::stub::{Library, Machine};
use crate::talking::{Said, Talker, talk};

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
        across: Some(across),
    }
}

/// Measures on these machines, called n0, n1 and so on.
fn measure(across: CrossNodePairs, tests: &[&str], machines: Vec<Machine>) -> Vec<Said> {
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
    let said = measure(
        CrossNodePairs::All,
        &[WRITE, READ],
        vec![
            // What n0 writes from its GPU 0 to GPU 1 of n1 is slow.
            node("n0", 2).with("pair 0 n1:1 = 0.5"),
            // What n1 pulls from GPU 0 of n0 to its GPU 1 is slower.
            node("n1", 2).with("pair n0:0 1 = 0.25"),
        ],
    );
    for (at, said) in said.iter().enumerate() {
        assert!(said.is_whole(), "{said:?}");
        let ranks: Vec<(u32, &str, u32)> = said
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
                    let value = said.value(testcase, &row.to_string(), &col.to_string());
                    assert!(is_near(value, wanted), "{testcase} {row} {col}: {value:?}");
                }
            }
            assert_eq!(said.cells(testcase).len(), 6, "rows of its own GPUs and no others");
        }
    }
}

#[test]
fn lanes_are_measured_both_ways_at_once_and_a_slow_one_holds_up_nobody() {
    let said = measure(
        CrossNodePairs::Lane,
        &[BISECT],
        vec![node("n0", 2), node("n1", 2).with("pair 1 n0:1 = 0.01")],
    );
    assert!(said.iter().all(Said::is_whole), "{said:?}");
    assert!(is_near(said[0].value(BISECT, "0->2", "0"), 1.0));
    assert!(is_near(said[0].value(BISECT, "1->3", "0"), 1.0));
    assert!(is_near(said[1].value(BISECT, "2->0", "0"), 1.0));
    assert!(is_near(said[1].value(BISECT, "3->1", "0"), 0.01));
    assert!(said[0].lines.iter().any(|line| match line {
        ProbeMessage::Test(shape) => shape.rows == ["0->2", "1->3"] && shape.cols == ["0"],
        _ => false,
    }));
}

#[test]
fn another_clique_is_told_and_pairs_inside_the_nodes_are_measured() {
    let machines = vec![node("n0", 2), node("n1", 2).with("clique = 2")];
    let said = measure(CrossNodePairs::All, &[WRITE], machines);
    for (at, said) in said.iter().enumerate() {
        assert_eq!(said.classes(), ["other-fabric"], "{said:?}");
        let problem = said.problems()[0];
        assert_eq!(problem.node, Some(format!("n{}", 1 - at)));
        assert_eq!(problem.code.as_deref(), Some("CUDA_ERROR_INVALID_HANDLE"));
        assert!(problem.detail.ends_with("; the same for 3 more pairs"), "{}", problem.detail);
        assert_eq!(said.cells(WRITE).len(), 2, "its own two GPUs");
        assert!(!said.is_whole());
    }
}

#[test]
fn a_node_without_a_channel_says_so_and_the_others_learn_it() {
    let machines = vec![node("n0", 1), node("n1", 1).with("imex = no"), node("n2", 1)];
    let said = measure(CrossNodePairs::Lane, &[BISECT], machines);
    assert_eq!(said[1].classes()[0], "no-imex-channel", "{:?}", said[1]);
    assert_eq!(said[0].classes(), ["peer-lost"]);
    let told = said[0].problems()[0];
    assert_eq!((told.node.as_deref(), told.gpu), (Some("n1"), Some(0)));
    assert!(told.detail.contains("nvidia-caps-imex-channels"), "{}", told.detail);
    assert!(is_near(said[0].value(BISECT, "0->2", "0"), 1.0), "the others go on");
    assert!(is_near(said[2].value(BISECT, "2->0", "0"), 1.0));
    assert!(said.iter().all(|said| !said.is_whole()));
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
    let said = talk(&talkers);
    assert_eq!(said[1].classes(), ["no-driver"]);
    assert_eq!(said[0].classes()[0], "peer-gone");
    assert!(said[0].problems()[0].detail.contains("cannot be opened"), "{said:?}");
}

#[test]
fn a_driver_without_fabric_handles_is_called_too_old() {
    let old = node("n1", 1).without(Library::Cuda, &["cuMemExportToShareableHandle"]);
    let said = measure(CrossNodePairs::Lane, &[BISECT], vec![node("n0", 1), old]);
    assert_eq!(said[1].classes()[0], "driver-too-old");
    assert_eq!(said[0].classes()[0], "peer-lost");
    assert!(said[0].cells(BISECT).is_empty());
}

#[test]
fn a_node_that_dies_in_the_middle_of_a_round_costs_its_own_pairs() {
    let dies = node("n1", 1).with("die cuMemcpyAsync = 30");
    let machines = vec![node("n0", 1), dies, node("n2", 1)];
    let said = measure(CrossNodePairs::All, &[WRITE, BISECT], machines);
    for (said, row, col) in [(&said[0], "0", "2"), (&said[2], "2", "0")] {
        assert!(said.classes().contains(&"peer-gone"), "{said:?}");
        assert!(is_near(said.value(WRITE, row, col), 1.0), "{said:?}");
        assert!(is_near(said.value(BISECT, &format!("{row}->{col}"), "0"), 1.0), "{said:?}");
        assert!(!said.is_whole());
        assert_eq!(said.code, Some(0));
    }
    let gone = said[0].problems();
    let gone: Vec<_> = gone.iter().filter(|it| it.class == "peer-gone").collect();
    assert_eq!(gone.len(), 1, "it is told once");
    assert_eq!(gone[0].node.as_deref(), Some("n1"));
}

#[test]
fn a_gpu_that_is_lost_costs_its_own_pairs() {
    let loses = node("n0", 2).with("lost 1 = 719 after 60");
    let said = measure(CrossNodePairs::All, &[WRITE, READ], vec![loses, node("n1", 1)]);
    assert!(said[0].classes().contains(&"gpu-lost"), "{:?}", said[0]);
    assert_eq!(said[1].classes(), ["peer-lost"]);
    assert_eq!(
        (said[1].problems()[0].node.as_deref(), said[1].problems()[0].gpu),
        (Some("n0"), Some(1))
    );
    assert!(is_near(said[0].value(READ, "0", "2"), 1.0), "{:?}", said[0]);
    assert!(is_near(said[1].value(READ, "2", "0"), 1.0));
}

#[test]
fn wrong_data_is_a_fault_of_its_pair_and_gives_no_number() {
    let wrong = node("n0", 2).with("wrong-data 0 n1:0");
    let said = measure(CrossNodePairs::Lane, &[BISECT], vec![wrong, node("n1", 2)]);
    let problem = said[0].problems()[0];
    assert_eq!((problem.kind, problem.class.as_str()), (OutputProblemKind::Corrupt, "wrong-data"));
    assert_eq!((problem.gpu, problem.testcase.as_deref()), (Some(0), Some(BISECT)));
    assert!(problem.detail.starts_with("the data of n0:0 -> n1:0 is wrong: "), "{problem:?}");
    assert_eq!(said[0].value(BISECT, "0->2", "0"), None);
    assert!(is_near(said[0].value(BISECT, "1->3", "0"), 1.0));
    assert!(said[1].is_whole() && !said[0].is_whole());
}

#[test]
fn a_host_link_that_spoils_data_is_not_taken_for_the_fabric() {
    let spoils = node("n0", 2).with("wrong-data host 0");
    let said = measure(CrossNodePairs::Lane, &[BISECT], vec![spoils, node("n1", 2)]);
    let problem = said[0].problems()[0];
    assert_eq!((problem.kind, problem.gpu), (OutputProblemKind::Corrupt, Some(0)));
    assert!(problem.detail.contains("differs from the data that the host wrote"), "{problem:?}");
    assert_eq!(said[1].classes(), ["peer-lost"]);
    assert!(is_near(said[0].value(BISECT, "1->3", "0"), 1.0));
    assert!(is_near(said[1].value(BISECT, "3->1", "0"), 1.0));
    // On its way back it is right at a second look, and the copy between GPUs counts.
    let spoils = node("n0", 1).with("wrong-data 0 host");
    let said = measure(CrossNodePairs::Lane, &[BISECT], vec![spoils, node("n1", 1)]);
    assert_eq!(said[0].problems()[0].kind, OutputProblemKind::Corrupt);
    assert!(said[0].cells(BISECT).is_empty(), "its source could not be checked");
}

#[test]
fn memory_is_imported_once_and_given_back_before_its_owner_releases_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let calls = folder.path().join("calls");
    let noted = |name| node(name, 2).with(&format!("calls = {}", calls.display()));
    let said = measure(CrossNodePairs::All, &[WRITE, READ], vec![noted("n0"), noted("n1")]);
    assert!(said.iter().all(Said::is_whole), "{said:?}");
    let text = std::fs::read_to_string(&calls).expect("calls");
    let calls: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once(' ')).collect();
    let count = |call: &str| calls.iter().filter(|(_, it)| *it == call).count();
    assert_eq!(count("cuMemImportFromShareableHandle"), 4, "two by either node");
    assert_eq!((count("cuMemUnmap"), count("cuMemRelease")), (8, 8));
    // Each process gives back two of others, then two of its own; in the order of all,
    // nobody releases his own before the last of others was unmapped.
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
    let said = measure(CrossNodePairs::All, &[WRITE], vec![node("n0", 2)]);
    assert!(said[0].is_whole(), "{said:?}");
    assert!(is_near(said[0].value(WRITE, "1", "0"), 1.0));
    let said = measure(CrossNodePairs::Lane, &[BISECT], vec![node("n0", 1)]);
    assert_eq!(said[0].classes(), ["no-counterpart"]);
}

/// The fabric probe's processes on one machine.
fn explore(machines: Vec<Machine>) -> Vec<Said> {
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
    let said = explore(vec![node("n0", 1), node("n0", 1)]);
    for said in &said {
        assert!(said.is_whole(), "{said:?}");
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
            assert_eq!(said.note(&format!("gpu0 {step}")), Some("ok"), "{step}: {said:?}");
        }
    }
}

#[test]
fn what_is_not_permitted_is_said_in_the_words_of_the_driver() {
    let machine = || node("n0", 2).with("imex = no");
    let said = explore(vec![machine(), machine()]);
    for said in &said {
        let create = said.note("gpu1 fabric-create").expect("tried");
        assert_eq!(create, "cuMemCreate: CUDA_ERROR_NOT_PERMITTED (800)");
        assert_eq!(said.note("gpu1 fabric-export"), Some("not tried: fabric-create failed"));
        assert_eq!(said.note("gpu0 ipc-written"), Some("ok"), "{said:?}");
        assert_eq!(said.note("imex-channels"), Some("none"));
        assert_eq!(said.classes(), ["no-imex-channel"], "one problem for both GPUs");
        assert!(!said.is_whole());
    }
}

#[test]
fn no_gpu_and_no_second_process_are_told() {
    let said = explore(vec![Machine::of(0), Machine::of(0)]);
    assert!(said.iter().all(|said| said.classes() == ["no-device"]), "{said:?}");
    let said = explore(vec![node("n0", 1), node("n0", 1).with("die cuMemCreate = 1")]);
    assert_eq!(said[0].classes(), ["other-process-gone"], "{said:?}");
    assert_eq!(said[0].note("gpu0 fabric-import-own"), Some("ok"));
    let open = said[0].note("gpu0 ipc-open").expect("said");
    assert!(open.starts_with("not tried: the other process is gone"), "{open}");
    let said = explore(vec![node("n0", 1)]);
    assert_eq!(said[0].classes(), ["other-process-gone"]);
}
