//! The NCCL probe's ranks as processes of the real program, on machines of stubs: they find each
//! other, measure, and end under every fault. A board takes the place of the coordinator and the
//! attendant.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use model::collective::CollectivePoint;
use model::exchange::{EXCHANGE_PREFIX, ExchangeReply, ExchangeRequest};
use model::parse_output::OutputProblemKind;
use model::probe_report::ProbeProblem;
use node::probes::collective::formula::NcclCollective;
use node::probes::collective::nccl_path;
use node::probes::exchange_group::ExchangeGroup;
use node::probes::protocol::ProbeMessage;
use node::probes::task::CollectiveTask;

use crate::stub::{Library, Machine};

/// Time limit of a test for a process that must end; after it the test reports a hang.
const HANGS: Duration = Duration::from_secs(120);

/// A node, and which of its GPUs are ranks.
struct Node {
    name: &'static str,
    machine: Machine,
    gpus: Vec<u32>,
}

impl Node {
    fn of(name: &'static str, gpus: u32) -> Self {
        let machine = Machine::of(gpus).with(&format!("node = {name}"));
        Self { name, machine, gpus: (0..gpus).collect() }
    }

    fn with(mut self, line: &str) -> Self {
        self.machine = self.machine.with(line);
        self
    }

    fn without(mut self, symbols: &[&'static str]) -> Self {
        self.machine = self.machine.without(Library::Nccl, symbols);
        self
    }
}

/// Output of a rank.
#[derive(Debug, Default)]
struct Ran {
    lines: Vec<ProbeMessage>,
    /// Lines that are not fabricgate's.
    strange: Vec<String>,
    asks: Vec<ExchangeRequest>,
    stderr: String,
    /// Its exit code; `None` where a signal ended it.
    code: Option<i32>,
}

impl Ran {
    fn problems(&self) -> Vec<&ProbeProblem> {
        let problems = self.lines.iter().filter_map(|line| match line {
            ProbeMessage::Problem(problem) => Some(problem),
            _ => None,
        });
        problems.collect()
    }

    fn classes(&self) -> Vec<&str> {
        self.problems().into_iter().map(|it| it.class.as_str()).collect()
    }

    fn points(&self) -> Vec<(&str, &CollectivePoint)> {
        let points = self.lines.iter().filter_map(|line| match line {
            ProbeMessage::Point { testcase, point, .. } => Some((testcase.as_str(), point)),
            _ => None,
        });
        points.collect()
    }

    fn is_whole(&self) -> bool {
        self.lines.last() == Some(&ProbeMessage::End)
    }

    fn problem(&self) -> &ProbeProblem {
        match self.problems().as_slice() {
            [problem] => problem,
            other => panic!("one problem was expected: {other:?} {}", self.stderr),
        }
    }
}

/// The task of every rank.
fn task(tests: &[&str]) -> CollectiveTask {
    CollectiveTask {
        cuda: None,
        root: crate::root_with_module(),
        nccl: None,
        node: String::new(),
        gpu: 0,
        tests: tests.iter().map(|it| (*it).to_owned()).collect(),
        readings: 1,
        least_bytes: 4 << 10,
        most_bytes: 64 << 10,
        factor: 4,
        iterations: 3,
        warmup: 1,
        patience_s: 60,
    }
}

fn all() -> Vec<&'static str> {
    NcclCollective::ALL.into_iter().map(NcclCollective::name).collect()
}

enum Event {
    Line(usize, String),
    Closed(usize),
}

fn run(nodes: &[Node], task: &CollectiveTask, wanted: &nccl_path::NcclPathRequest) -> Vec<Ran> {
    let folder = tempfile::tempdir().expect("a folder");
    let (send, events) = mpsc::channel();
    let mut started = Vec::new();
    let mut members = Vec::new();
    for node in nodes {
        let home = folder.path().join(node.name);
        std::fs::create_dir(&home).expect("made");
        let variables: BTreeMap<&str, PathBuf> = node.machine.write(&home).into_iter().collect();
        for gpu in &node.gpus {
            let task = CollectiveTask {
                cuda: variables.get("FABRICGATE_CUDA").cloned(),
                nccl: task.nccl.clone().or_else(|| variables.get("FABRICGATE_NCCL").cloned()),
                node: node.name.to_owned(),
                gpu: *gpu,
                ..task.clone()
            };
            let task = serde_json::to_string(&task).expect("plain data");
            #[expect(clippy::disallowed_methods, reason = "a test starts the program under test")]
            let child = Command::new(assert_cmd::cargo::cargo_bin!("fabricgate"))
                .args(["node", "collective-child", "--task", &task])
                .envs(&variables)
                .envs(nccl_path::nccl_environment(wanted))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("started");
            started.push(Started::of(child, started.len(), &send));
            members.push(node.name.to_owned());
        }
    }
    follow(&mut started, &events, ExchangeGroup::new(members));
    started.into_iter().map(Started::ended).collect()
}

struct Started {
    child: Child,
    ran: Ran,
    stderr: Option<JoinHandle<String>>,
}

impl Started {
    fn of(mut child: Child, at: usize, send: &mpsc::Sender<Event>) -> Self {
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut err = child.stderr.take().expect("a pipe");
        let send = send.clone();
        std::thread::spawn(move || {
            for line in out.lines() {
                // The receiver may have ended.
                let _ = send.send(Event::Line(at, line.expect("text")));
            }
            let _ = send.send(Event::Closed(at));
        });
        let stderr = std::thread::spawn(move || {
            let mut text = String::new();
            err.read_to_string(&mut text).expect("text");
            text
        });
        Self { child, ran: Ran::default(), stderr: Some(stderr) }
    }

    fn answer(&mut self, answer: &ExchangeReply) {
        let text = serde_json::to_string(answer).expect("plain data");
        let input = self.child.stdin.as_mut().expect("a pipe");
        // It may have died meanwhile.
        let _ = writeln!(input, "{text}");
    }

    fn ended(mut self) -> Ran {
        self.ran.code = self.child.wait().expect("a child").code();
        let stderr = self.stderr.take().expect("not taken yet");
        self.ran.stderr = stderr.join().expect("read");
        self.ran
    }
}

/// Transfers exchanges until all outputs are closed.
fn follow(started: &mut [Started], events: &mpsc::Receiver<Event>, mut board: ExchangeGroup) {
    let begun = Instant::now();
    let mut open = started.len();
    while 0 < open {
        let event = events.recv_timeout(Duration::from_millis(50));
        let now = begun.elapsed();
        let mut answers = Vec::new();
        match event {
            Ok(Event::Closed(at)) => {
                open -= 1;
                answers = board.remove(at, "its process ended");
            }
            Ok(Event::Line(at, line)) => match line.strip_prefix(EXCHANGE_PREFIX) {
                Some(ask) => {
                    let ask: ExchangeRequest = serde_json::from_str(ask).expect("an exchange");
                    started[at].ran.asks.push(ask.clone());
                    answers = board.ask(at, ask, now);
                }
                None => match serde_json::from_str(&line) {
                    Ok(message) => started[at].ran.lines.push(message),
                    Err(_) => started[at].ran.strange.push(line),
                },
            },
            Err(_) => {}
        }
        answers.extend(board.expire(now).answers);
        for (at, answer) in answers {
            started[at].answer(&answer);
        }
        if HANGS < now {
            for rank in started.iter_mut() {
                let _ = rank.child.kill();
            }
            let message: Vec<_> = started.iter().map(|it| &it.ran).collect();
            panic!("ranks hang: {message:#?}");
        }
    }
}

fn measured(nodes: &[Node], task: &CollectiveTask) -> Vec<Ran> {
    run(nodes, task, &nccl_path::NcclPathRequest::default())
}

/// Two nodes with two ranks and one.
fn three() -> [Node; 2] {
    [Node::of("n1", 2), Node::of("n2", 1)]
}

/// The same with a line in the description of both.
fn three_with(line: &str) -> [Node; 2] {
    three().map(|node| node.with(line))
}

#[test]
fn ranks_of_two_nodes_measure_every_collective_and_find_its_data_right() {
    let task = CollectiveTask { readings: 2, ..task(&all()) };
    let ran = measured(&three(), &task);
    for rank in &ran {
        assert!(rank.is_whole() && rank.code == Some(0), "{rank:#?}");
        assert!(rank.problems().is_empty() && rank.strange.is_empty(), "{rank:#?}");
        let ranks = rank.lines.iter().filter(|line| matches!(line, ProbeMessage::Rank(_))).count();
        assert_eq!(ranks, 3, "every rank knows all ranks");
    }
    assert!(
        ran[1].points().is_empty() && ran[2].points().is_empty(),
        "only the first rank reports them"
    );
    let points = ran[0].points();
    // Three sizes, two readings.
    assert_eq!(points.len(), 6 * 3 * 2);
    for (name, point) in points {
        let collective = NcclCollective::from_name(name).expect("a known message");
        let rate = point.bytes as f64 / point.time_us / 1e3;
        assert!((point.algbw - rate).abs() <= rate * 1e-9, "{name} {point:?}");
        let busbw = point.algbw * collective.factor(3);
        assert!((point.busbw - busbw).abs() <= busbw * 1e-9, "{name} {point:?}");
        assert!(point.time_us <= point.slowest_us, "{name} {point:?}");
        assert_eq!((point.wrong, point.iterations), (Some(0), 3));
        let counts = collective.counts(point.bytes, 3).expect("it was measured");
        assert_eq!(counts.bytes(), point.bytes, "bytes of whole parts");
        assert_eq!(point.checked, counts.receive * 3, "so little is checked wholly");
    }
}

#[test]
fn the_unique_id_is_given_once_and_never_shown() {
    let ran = measured(&three(), &task(&["all_reduce_perf"]));
    let id = ran[0].asks[1].value["value"].as_str().expect("the first rank gives it").to_owned();
    assert!(100 < id.len(), "it is the id: {id}");
    for rank in &ran {
        let lines = serde_json::to_string(&rank.lines).expect("plain data");
        assert!(!lines.contains(&id) && !rank.stderr.contains(&id), "{}", rank.stderr);
    }
    assert!(ran[1].asks[1].value["value"].is_null(), "only the first rank gives it");
}

#[test]
fn messages_too_large_to_be_checked_wholly_are_checked_in_places() {
    let least_bytes = 6 << 20;
    let task = CollectiveTask {
        least_bytes,
        most_bytes: 6 << 20,
        iterations: 1,
        ..task(&["all_gather_perf"])
    };
    let ran = measured(&[Node::of("n1", 2)], &task);
    let points = ran[0].points();
    assert_eq!(points.len(), 1, "{ran:#?}");
    let (_, point) = points[0];
    assert_eq!(point.wrong, Some(0));
    assert!(1_000 < point.checked && point.checked < point.bytes / 4, "{point:?}");
}

#[test]
fn one_rank_exercises_everything_and_claims_no_bandwidth() {
    let ran = measured(&[Node::of("n1", 1)], &task(&all()));
    assert!(ran[0].is_whole(), "{ran:#?}");
    let problem = ran[0].problem();
    assert_eq!((problem.class.as_str(), problem.kind), ("one-rank", OutputProblemKind::Waived));
    let points = ran[0].points();
    assert_eq!(points.len(), 6 * 3);
    let right = |point: &CollectivePoint| point.busbw == 0.0 && 0.0 < point.algbw;
    assert!(points.iter().all(|(_, point)| right(point) && point.wrong == Some(0)));
}

#[test]
fn wrong_data_is_counted_and_names_the_rank_that_received_it() {
    // The sixth operation is the first checked one: warm-up, barrier, three timed ones, then this
    // one.
    let ran = measured(&three_with("nccl wrong 1 = 6"), &task(&["reduce_scatter_perf"]));
    let problems = ran[1].problems();
    assert_eq!(problems.len(), 3, "one for every size: {problems:?}");
    for problem in problems {
        assert_eq!(
            (problem.kind, problem.class.as_str()),
            (OutputProblemKind::Corrupt, "wrong-data")
        );
        assert_eq!(
            (problem.gpu, problem.testcase.as_deref()),
            (Some(1), Some("reduce_scatter_perf"))
        );
        assert!(problem.detail.starts_with("rank 1 (n1, GPU 1) received 1 wrong"), "{problem:?}");
    }
    assert!(ran.iter().all(Ran::is_whole), "it was measured: {ran:#?}");
    assert!(ran[0].points().iter().all(|(_, point)| point.wrong == Some(1)));
    assert!(ran[0].problems().is_empty() && ran[2].problems().is_empty());
}

/// No problem except wrong data blames a GPU.
fn nothing_is_blamed(ran: &[Ran]) {
    for problem in ran.iter().flat_map(Ran::problems) {
        assert_ne!(problem.kind, OutputProblemKind::Corrupt, "{problem:?}");
    }
}

#[test]
fn a_rank_that_dies_while_ranks_connect_is_named_and_the_others_end() {
    let task = CollectiveTask { patience_s: 2, ..task(&["all_reduce_perf"]) };
    let ran = measured(&three_with("nccl init 1 = die"), &task);
    nothing_is_blamed(&ran);
    assert_eq!(ran[1].code, None, "a signal ended it");
    for rank in [&ran[0], &ran[2]] {
        let problem = rank.problem();
        assert_eq!(problem.class.as_str(), "rank-gone");
        assert!(problem.detail.contains("rank 1 (n1, GPU 1): its process ended"), "{problem:?}");
        assert_eq!((problem.node.as_deref(), problem.gpu), (Some("n1"), Some(1)));
        assert!(!rank.is_whole() && rank.points().is_empty());
    }
}

#[test]
fn ranks_that_never_connect_end_in_time_and_report_the_awaited_event() {
    let task = CollectiveTask { patience_s: 2, ..task(&["all_reduce_perf"]) };
    let ran = measured(&three_with("nccl init 2 = hang"), &task);
    nothing_is_blamed(&ran);
    let problem = ran[0].problem();
    assert_eq!(problem.class.as_str(), "time-out");
    assert!(
        problem.detail.contains("ncclCommInitRankConfig did not end within 2 s"),
        "{problem:?}"
    );
    assert!(problem.detail.starts_with("3 of 3 ranks timed out"), "{problem:?}");
    assert!(ran[1].problems().is_empty(), "once per node");
    assert_eq!(ran[2].problem().class.as_str(), "time-out");
}

#[test]
fn a_rank_that_dies_in_the_middle_ends_all_and_what_was_measured_is_kept() {
    // The first size has six operations.
    let ran = measured(&three_with("nccl die 2 = 9"), &task(&["all_reduce_perf"]));
    nothing_is_blamed(&ran);
    let problem = ran[0].problem();
    assert_eq!(
        (problem.class.as_str(), problem.testcase.as_deref()),
        ("rank-gone", Some("all_reduce_perf"))
    );
    assert!(problem.detail.contains("rank 2 (n2, GPU 0)"), "{problem:?}");
    assert_eq!(ran[0].points().len(), 1, "the first size");
    assert!(ran[1].problems().is_empty() && !ran[0].is_whole());
}

#[test]
fn a_death_that_nccl_does_not_notice_ends_with_the_patience() {
    let task = CollectiveTask { patience_s: 2, ..task(&["sendrecv_perf"]) };
    let nodes = three_with("nccl die 2 = 3").map(|node| node.with("nccl deaf = yes"));
    let ran = measured(&nodes, &task);
    nothing_is_blamed(&ran);
    assert_eq!(ran[0].problem().class.as_str(), "rank-gone");
    assert!(ran[1].problems().is_empty());
}

#[test]
fn an_operation_that_never_ends_is_waited_for_no_longer_than_patience() {
    let task = CollectiveTask { patience_s: 2, ..task(&["alltoall_perf"]) };
    // A hanging abort must not keep the process alive either.
    let nodes = three_with("nccl stall 0 = 3").map(|node| node.with("nccl abort = hang"));
    let ran = measured(&nodes, &task);
    nothing_is_blamed(&ran);
    let problem = ran[0].problem();
    assert_eq!(problem.class.as_str(), "time-out");
    assert!(problem.detail.contains("alltoall_perf of "), "{problem:?}");
    assert!(ran.iter().all(|rank| rank.code == Some(0)), "{ran:#?}");
}

#[test]
fn an_error_behind_the_scenes_is_that_of_its_rank_and_known_to_the_others() {
    let task = CollectiveTask { patience_s: 2, ..task(&["all_reduce_perf"]) };
    let ran = measured(&three_with("nccl async 1 = 2 at 4"), &task);
    nothing_is_blamed(&ran);
    let own = ran[1].problem();
    assert_eq!(
        (own.class.as_str(), own.code.as_deref()),
        ("nccl-system-error", Some("ncclSystemError"))
    );
    assert!(own.detail.contains("the stub is configured to fail"), "NCCL's message: {own:?}");
    assert_eq!(own.gpu, Some(1));
    assert!(ran[0].problems().is_empty(), "its node has reported it");
    let other = ran[2].problem();
    assert_eq!((other.class.as_str(), other.node.as_deref()), ("rank-failed", Some("n1")));
}

#[test]
fn different_versions_are_reported_before_any_connection() {
    let [one, other] = three();
    let ran = measured(&[one.with("nccl version = 22703"), other], &task(&["all_reduce_perf"]));
    nothing_is_blamed(&ran);
    for rank in [&ran[0], &ran[2]] {
        let problem = rank.problem();
        assert_eq!(problem.class.as_str(), "nccl-versions-differ");
        assert!(problem.detail.contains("2.27.3 on n1, 2.28.3 on n2"), "{problem:?}");
    }
    assert!(ran.iter().all(|rank| rank.asks.len() == 1), "no rank continued");
}

#[test]
fn a_node_without_nccl_is_missing_and_the_others_measure() {
    let [one, other] = three();
    let ran = measured(&[one, other.without(&["ncclGetVersion"])], &task(&["all_reduce_perf"]));
    nothing_is_blamed(&ran);
    assert_eq!(ran[2].problem().class.as_str(), "no-nccl");
    let problem = ran[0].problem();
    assert_eq!((problem.class.as_str(), problem.node.as_deref()), ("rank-missing", Some("n2")));
    assert_eq!(ran[0].points().len(), 3);
    assert!(!ran[0].is_whole() && !ran[1].is_whole(), "not all that was asked for");
}

#[test]
fn memory_that_is_gone_when_it_is_asked_for_ends_all_before_they_connect() {
    let [one, other] = three();
    let other = other.with("fail cuMemAlloc_v2 = 2");
    let ran = measured(&[one, other], &task(&["all_reduce_perf"]));
    nothing_is_blamed(&ran);
    let own = ran[2].problem();
    assert_eq!(own.class.as_str(), "no-memory");
    assert_eq!(own.code.as_deref(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    let problem = ran[0].problem();
    assert_eq!((problem.class.as_str(), problem.node.as_deref()), ("rank-failed", Some("n2")));
    assert!(ran.iter().all(|rank| rank.asks.len() == 2), "no rank connected");
}

#[test]
fn a_gpu_that_is_lost_in_mid_run_is_reported_by_its_rank_and_the_others_end() {
    let [one, other] = three();
    let other = other.with("lost 0 = 719 after 60");
    let task = CollectiveTask { patience_s: 2, ..task(&all()) };
    let ran = measured(&[one, other], &task);
    nothing_is_blamed(&ran);
    let own = ran[2].problem();
    // The call that meets it first varies.
    let classes = ["gpu-lost", "nccl-cuda-error"];
    assert!(classes.contains(&own.class.as_str()) && own.gpu == Some(0), "{own:?}");
    assert_eq!(ran[0].problem().class.as_str(), "rank-failed");
    assert!(ran[1].problems().is_empty() && ran[1].code == Some(0));
}

#[test]
fn one_gpu_cannot_be_two_ranks() {
    let node = Node { gpus: vec![0, 0], ..Node::of("n1", 1) };
    let ran = measured(&[node], &task(&["all_reduce_perf"]));
    assert_eq!(ran[0].problem().class.as_str(), "gpu-twice");
    assert!(ran[1].problems().is_empty() && ran[1].asks.len() == 1);
}

#[test]
fn no_driver_is_one_clear_problem_and_the_others_know() {
    let [one, other] = three();
    let ran = measured(&[one, other.with("fail cuInit = 100")], &task(&["all_reduce_perf"]));
    let own = ran[2].problem();
    assert_eq!(
        (own.class.as_str(), own.code.as_deref()),
        ("no-device", Some("CUDA_ERROR_NO_DEVICE"))
    );
    let problem = ran[0].problem();
    assert_eq!((problem.class.as_str(), problem.node.as_deref()), ("rank-missing", Some("n2")));
    assert_eq!(ran[0].points().len(), 3);
}

#[test]
fn no_library_at_all_is_one_clear_problem() {
    let nccl = Some(PathBuf::from("/no/such/libnccl.so.2"));
    let ran =
        measured(&[Node::of("n1", 1)], &CollectiveTask { nccl, ..task(&["all_reduce_perf"]) });
    let problem = ran[0].problem();
    assert_eq!((problem.class.as_str(), problem.kind), ("no-nccl", OutputProblemKind::Error));
    assert!(problem.detail.contains("/no/such/libnccl.so.2"), "{problem:?}");
    assert_eq!(ran[0].code, Some(0));
}

#[test]
fn an_nccl_too_old_to_wait_connects_by_waiting() {
    let nodes = three().map(|node| node.without(&["ncclCommInitRankConfig", "ncclCommFinalize"]));
    let ran = measured(&nodes, &task(&["all_reduce_perf"]));
    assert!(ran.iter().all(Ran::is_whole), "{ran:#?}");
    let is_note =
        |line: &ProbeMessage| matches!(line, ProbeMessage::Note { name, .. } if name == "blocking");
    assert!(ran[0].lines.iter().any(is_note));
    assert_eq!(ran[0].points().len(), 3);
}

#[test]
fn a_test_whose_calls_are_missing_is_skipped_and_the_others_run() {
    let nodes = three().map(|node| node.without(&["ncclSend"]));
    let ran = measured(&nodes, &task(&["sendrecv_perf", "all_gather_perf", "no_such_perf"]));
    assert_eq!(ran[0].classes(), ["nccl-too-old", "unknown-test"]);
    assert_eq!(ran[0].points().len(), 3);
    assert!(ran[1].problems().is_empty() && !ran[0].is_whole());
}

#[test]
fn communicators_that_block_measure_the_same() {
    let wanted =
        nccl_path::NcclPathRequest { blocking: true, ..nccl_path::NcclPathRequest::default() };
    let ran = run(&three(), &task(&["all_reduce_perf", "alltoall_perf"]), &wanted);
    assert!(ran.iter().all(Ran::is_whole), "{ran:#?}");
    assert_eq!(ran[0].points().len(), 6);
}

#[test]
fn little_memory_anywhere_cuts_the_largest_message_everywhere() {
    let [one, other] = three();
    // 100 KiB, of which seven eighths are two buffers.
    let other = other.with("gpu memory = 102400");
    let ran = measured(&[one, other], &task(&["all_reduce_perf"]));
    nothing_is_blamed(&ran);
    let problem = ran[2].problem();
    assert_eq!(problem.class.as_str(), "no-memory");
    let sizes: Vec<u64> = ran[0].points().iter().map(|(_, point)| point.bytes).collect();
    assert_eq!(sizes, [4 << 10, 16 << 10], "64 KiB do not fit twice");
    assert!(ran[0].problems().is_empty() && !ran[0].is_whole());
}

#[test]
fn nccls_reported_path_is_compared_with_the_requested_one() {
    let path_of = |ran: &[Ran]| nccl_path::parse_log(&ran[0].stderr);
    let tests = task(&["all_reduce_perf"]);
    let chosen = measured(&three(), &tests);
    let taken = path_of(&chosen);
    assert!(taken.transports.contains("P2P/CUMEM"), "{taken:?}");
    assert_eq!(taken.algorithms["all_reduce_perf"], "RING");
    assert!(nccl_path::check_path(nccl_path::NcclPath::Ib, &taken, 2).is_some());
    let wanted = nccl_path::NcclPathRequest {
        path: Some(nccl_path::NcclPath::Socket),
        ..nccl_path::NcclPathRequest::default()
    };
    let forced = run(&three(), &tests, &wanted);
    assert_eq!(nccl_path::check_path(nccl_path::NcclPath::Socket, &path_of(&forced), 2), None);
    assert!(forced[0].strange.is_empty(), "standard output is for the probe's lines");
    let rail = nccl_path::NcclPathRequest {
        rail: Some("mlx5_3".to_owned()),
        ..nccl_path::NcclPathRequest::default()
    };
    let pinned = run(&three(), &tests, &rail);
    assert!(pinned[0].stderr.contains("NCCL_IB_HCA set to =mlx5_3"), "{}", pinned[0].stderr);
    assert_eq!(nccl_path::check_path(nccl_path::NcclPath::Ib, &path_of(&pinned), 2), None);
}
