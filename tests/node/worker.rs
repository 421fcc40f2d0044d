//! The worker from outside: the real program over a pipe, with correct and incorrect input.

mod tcp;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use std::{fs, thread};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::exchange::{ExchangeReply, ExchangeRequest, ExchangeShare};
use model::probe::ReadySignal;
use model::raw_result::ProcessEnding;
use model::worker_protocol::{
    CoordinatorMessage, LONGEST_LINE, OutputStream, PROTOCOL, ProcessOrder, ProcessReport,
    ReadinessCheck, STEP_VARIABLE, WorkerMessage,
};

/// Time limit of a test for an expected event; after it the test reports a hang.
const HANGS: Duration = Duration::from_secs(60);

fn program() -> Command {
    #[expect(clippy::disallowed_methods, reason = "a test starts the program under test")]
    Command::new(assert_cmd::cargo::cargo_bin!("fabricgate"))
}

/// A worker, and a coordinator's end of its pipes.
struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    lines: mpsc::Receiver<WorkerMessage>,
}

/// Output of an order so far: both streams, and ports it is ready at.
type Printed = (Vec<u8>, Vec<u8>, Vec<u16>);

/// Result of an order.
struct Came {
    done: ProcessReport,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    ready: Vec<u16>,
}

impl Worker {
    fn start_with(arguments: &[&str], path: Option<&Path>) -> Self {
        let mut command = program();
        command.args(["node", "worker"]).args(arguments);
        if let Some(path) = path {
            let rest = std::env::var("PATH").expect("a PATH");
            command.env("PATH", format!("{}:{rest}", path.display()));
        }
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                assert!(line.len() < LONGEST_LINE, "a line of {} bytes", line.len());
                let word = serde_json::from_str(&line);
                let word = word.unwrap_or_else(|error| panic!("{line}: {error}"));
                if sender.send(word).is_err() {
                    return;
                }
            }
        });
        Self { input: child.stdin.take(), child, lines }
    }

    /// A worker after its greeting.
    fn start() -> Self {
        Self::start_with(&[], None).greeted()
    }

    fn greeted(mut self) -> Self {
        self.send(&hello(PROTOCOL));
        assert!(matches!(self.hear(), WorkerMessage::Hello(_)));
        self
    }

    fn send(&mut self, word: &CoordinatorMessage) {
        let mut line = serde_json::to_vec(word).expect("a document");
        line.push(b'\n');
        self.say_bytes(&line);
    }

    fn say_bytes(&mut self, bytes: &[u8]) {
        self.input.as_mut().expect("not closed").write_all(bytes).expect("written");
    }

    fn hear(&self) -> WorkerMessage {
        self.lines.recv_timeout(HANGS).expect("a line in time")
    }

    fn fault(&self) -> String {
        match self.hear() {
            WorkerMessage::Fault { why } => why,
            other => panic!("expected a fault: {other:?}"),
        }
    }

    /// Reads messages until this many orders are done.
    fn come(&self, orders: usize) -> BTreeMap<u64, Came> {
        let mut pieces: BTreeMap<u64, Printed> = BTreeMap::new();
        let mut came = BTreeMap::new();
        while came.len() < orders {
            match self.hear() {
                WorkerMessage::Output { id, stream, data } => {
                    let parts = pieces.entry(id).or_default();
                    let into = match stream {
                        OutputStream::Stdout => &mut parts.0,
                        OutputStream::Stderr => &mut parts.1,
                    };
                    into.extend(STANDARD.decode(data).expect("base64"));
                }
                WorkerMessage::Ready { id, port } => pieces.entry(id).or_default().2.push(port),
                WorkerMessage::Done(done) => {
                    let (stdout, stderr, ready) = pieces.remove(&done.id).unwrap_or_default();
                    came.insert(done.id, Came { done: *done, stdout, stderr, ready });
                }
                // Some requests of a process that sends them endlessly may be late.
                WorkerMessage::Asks { .. } => {}
                other => panic!("unexpected: {other:?}"),
            }
        }
        came
    }

    fn run(&mut self, order: &ProcessOrder) -> Came {
        self.send(&CoordinatorMessage::Run(order.clone()));
        self.come(1).remove(&order.id).expect("that order")
    }

    fn code(&mut self) -> Option<i32> {
        self.child.wait().expect("waited for").code()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn hello(protocol: u32) -> CoordinatorMessage {
    CoordinatorMessage::Hello { protocol, version: "0.0.0".to_owned(), node: "n1".to_owned() }
}

fn order(id: u64, argv: &[&str]) -> ProcessOrder {
    ProcessOrder {
        id,
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        env: BTreeMap::new(),
        limit_s: 60.0,
        capture: 1 << 20,
        ready: None,
        idle_gpus: false,
        on_all_nodes: false,
    }
}

fn shell(id: u64, script: &str) -> ProcessOrder {
    order(id, &["sh", "-c", script])
}

/// An order that can be found among the processes of this machine.
fn marked(mut order: ProcessOrder, mark: &str) -> ProcessOrder {
    let mark = format!("{mark}-{}", std::process::id());
    order.env.insert(STEP_VARIABLE.to_owned(), mark);
    order
}

/// Processes that carry this mark. An ended one has no environment.
fn carrying(mark: &str) -> Vec<String> {
    let wanted = format!("{STEP_VARIABLE}={mark}-{}", std::process::id());
    let entries = fs::read_dir("/proc").expect("/proc").filter_map(Result::ok);
    entries
        .filter(|entry| {
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
        })
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Waits until this many processes carry a mark.
fn wait_for(mark: &str, wanted: usize) {
    let start = std::time::Instant::now();
    while carrying(mark).len() != wanted {
        assert!(start.elapsed() < HANGS, "{mark}: {:?}, expected {wanted}", carrying(mark));
        thread::sleep(Duration::from_millis(10));
    }
}

/// A shell with a child, both of which ignore termination signals, and one with a grandchild in
/// the background that keeps no pipe.
const STUBBORN: &str = "trap '' TERM; sleep 300 & sleep 300";
const LEAVING: &str = "sleep 300 >/dev/null 2>&1 & sleep 300";

#[test]
fn a_worker_reports_its_version_and_node() {
    let mut worker = Worker::start_with(&[], None);
    worker.send(&hello(PROTOCOL));
    let WorkerMessage::Hello(hello) = worker.hear() else { panic!("no hello") };
    assert_eq!((hello.protocol, hello.version.as_str()), (PROTOCOL, env!("CARGO_PKG_VERSION")));
    let own = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    assert_eq!(hello.environment.hostname, own.trim());
    assert!(hello.environment.boot_id.is_some() && hello.environment.load.is_some());
    assert!(!hello.environment.interfaces.contains_key("lo"));
    worker.send(&CoordinatorMessage::Bye);
    assert_eq!(worker.code(), Some(0));
}

#[test]
fn another_protocol_is_refused_by_name() {
    let mut worker = Worker::start_with(&[], None);
    worker.send(&hello(PROTOCOL + 1));
    let why = worker.fault();
    assert!(why.contains(&format!("expected protocol {PROTOCOL}")), "{why}");
    assert_eq!(worker.code(), Some(1));
}

#[test]
fn an_invalid_order_ends_the_worker_with_a_reason() {
    for (line, expected) in [
        (&b"ssh: Welcome to n1\n"[..], "expected a line of JSON: hello, run, stop or bye"),
        (b"{\"type\":\"dance\"}\n", "expected a line of JSON"),
        (b"\xff\xfe\n", "expected a line of JSON"),
        (b"{\"type\":\"stop\",\"id\":1}\n", "expected hello first"),
    ] {
        let mut worker = Worker::start_with(&[], None);
        worker.say_bytes(line);
        let why = worker.fault();
        assert!(why.contains(expected), "{why}");
        assert_eq!(worker.code(), Some(1));
    }
    let mut worker = Worker::start();
    // The worker may end before it has read all of it.
    let _ = worker.input.as_mut().expect("open").write_all(&vec![b'x'; LONGEST_LINE + 9]);
    assert!(worker.fault().contains("at most"));
    assert_eq!(worker.code(), Some(1));
}

#[test]
fn an_order_is_carried_out_and_its_output_comes_back() {
    let mut worker = Worker::start();
    let mut output = shell(7, "echo \"$GREETING\"; echo {self} >&2; exit 3");
    output.env.insert("GREETING".to_owned(), "grüß".to_owned());
    let came = worker.run(&output);
    assert_eq!(came.done.ending, ProcessEnding::Exited { code: 3 });
    assert_eq!(came.stdout, "grüß\n".as_bytes());
    assert!(String::from_utf8_lossy(&came.stderr).trim().ends_with("fabricgate"));
    assert!(0.0 < came.done.duration_s && came.done.load.is_some());
    assert!(came.done.gpus.is_empty(), "no GPUs were asked for");
}

#[test]
fn endings_are_distinguished() {
    let mut worker = Worker::start();
    let mut hanging = shell(3, "echo begun; sleep 300 & wait");
    hanging.limit_s = 0.3;
    for order in [shell(1, "kill -9 $$"), order(2, &["no-such-tool-here"]), hanging, order(4, &[])]
    {
        worker.send(&CoordinatorMessage::Run(order));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("text");
    fs::write(&text, "no program").expect("written");
    worker.send(&CoordinatorMessage::Run(order(5, &[&text.display().to_string()])));
    let came = worker.come(5);
    let ending = |id: u64| &came[&id].done.ending;
    assert_eq!(*ending(1), ProcessEnding::Signalled { signal: 9 });
    assert_eq!(*ending(2), ProcessEnding::Missing { program: "no-such-tool-here".to_owned() });
    assert_eq!(*ending(3), ProcessEnding::TimedOut);
    assert_eq!(came[&3].stdout, b"begun\n");
    assert!(matches!(ending(4), ProcessEnding::NotStarted { .. }), "{:?}", ending(4));
    assert_eq!(*ending(5), ProcessEnding::Exited { code: 126 });
    assert!(String::from_utf8_lossy(&came[&5].stderr).contains("cannot be started"));
}

#[test]
fn orders_run_side_by_side() {
    let mut worker = Worker::start();
    // Each waits for the other: one after the other they would hang.
    let folder = tempfile::tempdir().expect("a folder");
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    for (id, own, other) in [(1, &a, &b), (2, &b, &a)] {
        let (own, other) = (own.display(), other.display());
        let script = format!("touch {own}; while [ ! -e {other} ]; do sleep 0.01; done");
        worker.send(&CoordinatorMessage::Run(shell(id, &script)));
    }
    let came = worker.come(2);
    assert!(came.values().all(|came| came.done.ending.is_success()));
}

#[test]
fn a_flood_is_bounded_and_counted() {
    let mut worker = Worker::start();
    let flood = shell(1, "dd if=/dev/zero bs=65536 count=160 2>/dev/null; echo end >&2");
    let came = worker.run(&ProcessOrder { capture: 3_000_000, ..flood });
    assert!(came.done.ending.is_success());
    assert_eq!(came.stdout.len(), 3_000_000);
    assert_eq!(came.done.stdout_dropped, 160 * 65_536 - 3_000_000);
    assert_eq!((came.stderr.as_slice(), came.done.stderr_dropped), (&b"end\n"[..], 0));
}

/// A shell that takes part in exchanges.
fn joint(id: u64, script: &str) -> ProcessOrder {
    ProcessOrder { on_all_nodes: true, ..shell(id, script) }
}

fn answer(id: u64, number: u64, value: &str) -> CoordinatorMessage {
    let share = ExchangeShare { member: "n1".to_owned(), value: Some(value.into()), gone: None };
    CoordinatorMessage::Answer {
        id,
        answer: ExchangeReply { number, me: 0, shares: vec![share], waited_s: 0.0 },
    }
}

fn asked(word: WorkerMessage) -> (u64, ExchangeRequest) {
    match word {
        WorkerMessage::Asks { id, ask } => (id, ask),
        other => panic!("expected a question: {other:?}"),
    }
}

#[test]
fn a_processs_request_is_forwarded_and_answered() {
    let mut worker = Worker::start();
    let script = "echo begun; for i in 0 1; do\n\
        echo \"exchange {\\\"number\\\":$i,\\\"value\\\":[$i],\\\"within_s\\\":2.5}\"\n\
        read -r x; echo \"$x\"; done; echo exchange nothing; printf 'exchange {'; exit 4";
    worker.send(&CoordinatorMessage::Run(joint(1, script)));
    // Unsolicited messages.
    worker.send(&answer(1, 7, "early"));
    worker.send(&answer(99, 0, "unsolicited"));
    for number in [0, 1] {
        let (id, ask) = asked(worker.hear());
        assert_eq!((id, ask.number, ask.within_s), (1, number, 2.5));
        assert_eq!(ask.value, serde_json::json!([number]));
        worker.send(&answer(1, number, "late"));
    }
    let came = worker.come(1).remove(&1).expect("that order");
    assert_eq!(came.done.ending, ProcessEnding::Exited { code: 4 });
    let text = String::from_utf8(came.stdout).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    let reply: ExchangeReply = serde_json::from_str(lines[1]).expect("an answer");
    assert_eq!((reply.number, &reply.shares[0].value), (0, &Some("late".into())));
    assert!(lines[2].contains("\"number\":1"), "{text}");
    assert_eq!((lines[0], &lines[3..]), ("begun", &["exchange nothing", "exchange {"][..]));
    worker.send(&CoordinatorMessage::Bye);
    assert_eq!(worker.code(), Some(0));
}

#[test]
fn a_process_that_does_not_read_or_floods_requests_delays_no_other() {
    let mut worker = Worker::start();
    let line = "echo 'exchange {\"number\":0,\"value\":null,\"within_s\":1}'";
    let script = format!("i=0; while [ $i -lt 2000 ]; do {line}; i=$((i+1)); done; sleep 300");
    worker.send(&CoordinatorMessage::Run(marked(joint(1, &script), "deaf")));
    let large = "x".repeat(300_000);
    for _ in 0..2 {
        assert_eq!(asked(worker.hear()).0, 1);
        worker.send(&answer(1, 0, &large));
    }
    worker.send(&CoordinatorMessage::Run(shell(2, "echo well")));
    // Answered requests make room for others of the flood.
    let done = loop {
        match worker.hear() {
            WorkerMessage::Asks { .. } => {}
            WorkerMessage::Output { id, data, .. } => {
                assert_eq!((id, data), (2, STANDARD.encode("well\n")));
            }
            WorkerMessage::Done(done) => break done,
            other => panic!("unexpected: {other:?}"),
        }
    };
    assert_eq!((done.id, done.ending), (2, ProcessEnding::Exited { code: 0 }));
    worker.send(&CoordinatorMessage::Stop { id: 1 });
    let came = worker.come(1).remove(&1).expect("that order");
    assert_eq!((came.done.ending, came.stdout), (ProcessEnding::Interrupted, Vec::new()));
    wait_for("deaf", 0);
}

#[test]
fn without_exchanges_such_lines_are_output_and_nothing_can_be_read() {
    let mut worker = Worker::start();
    let line = "exchange {\"number\":0,\"value\":null,\"within_s\":1}";
    let came = worker.run(&shell(1, &format!("echo '{line}'; read -r x; echo $?")));
    assert_eq!(String::from_utf8(came.stdout).expect("text"), format!("{line}\n1\n"));
}

#[test]
fn one_order_can_be_stopped_and_the_rest_goes_on() {
    let mut worker = Worker::start();
    worker.send(&CoordinatorMessage::Run(marked(shell(1, LEAVING), "stopped")));
    worker.send(&CoordinatorMessage::Run(marked(shell(2, LEAVING), "going")));
    wait_for("stopped", 3);
    wait_for("going", 3);
    worker.send(&CoordinatorMessage::Stop { id: 1 });
    worker.send(&CoordinatorMessage::Stop { id: 99 });
    let came = worker.come(1);
    assert_eq!(came[&1].done.ending, ProcessEnding::Interrupted);
    wait_for("stopped", 0);
    assert_eq!(carrying("going").len(), 3);
}

#[test]
fn the_end_of_its_input_ends_everything() {
    let mut worker = Worker::start();
    worker.send(&CoordinatorMessage::Run(marked(shell(1, STUBBORN), "input")));
    worker.send(&CoordinatorMessage::Run(marked(shell(2, LEAVING), "input")));
    wait_for("input", 6);
    worker.input = None;
    assert_eq!(worker.code(), Some(0));
    assert_eq!(carrying("input"), Vec::<String>::new());
}

#[test]
fn a_killed_worker_takes_everything_with_it() {
    let mut worker = Worker::start();
    worker.send(&CoordinatorMessage::Run(marked(shell(1, STUBBORN), "killed")));
    worker.send(&CoordinatorMessage::Run(marked(shell(2, LEAVING), "killed")));
    worker.send(&CoordinatorMessage::Run(marked(order(3, &["sleep", "300"]), "killed")));
    wait_for("killed", 7);
    worker.child.kill().expect("killed");
    wait_for("killed", 0);
}

#[test]
fn a_guarded_tool_dies_with_its_parent() {
    #[expect(clippy::disallowed_methods, reason = "a test starts the program under test")]
    let mut parent = Command::new("sh");
    let script = "\"$PROGRAM\" node guard --parent $$ -- sleep 300 & wait";
    let mark = format!("guarded-{}", std::process::id());
    parent.args(["-c", script]).env(STEP_VARIABLE, mark);
    parent.env("PROGRAM", assert_cmd::cargo::cargo_bin!("fabricgate"));
    let mut parent = parent.spawn().expect("a shell");
    wait_for("guarded", 2);
    // Only after the guard has become the tool: by then it is bound.
    let is_tool = |pid: &String| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n")
    };
    while !carrying("guarded").iter().any(is_tool) {
        thread::sleep(Duration::from_millis(10));
    }
    parent.kill().expect("killed");
    parent.wait().expect("ended");
    wait_for("guarded", 0);
}

#[test]
fn an_order_that_ends_leaves_nothing_in_the_background() {
    let mut worker = Worker::start();
    let order = marked(shell(1, "sleep 300 >/dev/null 2>&1 & echo done"), "left");
    assert!(worker.run(&order).done.ending.is_success());
    wait_for("left", 0);
}

#[test]
fn a_server_is_ready_at_its_first_line() {
    let mut worker = Worker::start();
    let waiting = Some(ReadinessCheck { how: ReadySignal::Line, port: 0 });
    worker.send(&CoordinatorMessage::Run(ProcessOrder {
        ready: waiting,
        ..shell(1, "printf listen; sleep 0.1; echo 'ing 4711'; exec sleep 300")
    }));
    match worker.hear() {
        WorkerMessage::Ready { id: 1, port: 4711 } => {}
        other => panic!("expected ready: {other:?}"),
    }
    worker.send(&CoordinatorMessage::Stop { id: 1 });
    assert_eq!(worker.come(1)[&1].done.ending, ProcessEnding::Interrupted);
    let came =
        worker.run(&ProcessOrder { ready: waiting, ..shell(2, "echo no port for you; exit 1") });
    assert_eq!(
        (came.ready.as_slice(), came.done.ending),
        (&[][..], ProcessEnding::Exited { code: 1 })
    );
}

#[test]
fn a_server_is_ready_when_its_port_is_served() {
    let mut worker = Worker::start();
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = free.local_addr().expect("an address").port();
    drop(free);
    let waiting = Some(ReadinessCheck { how: ReadySignal::Port, port });
    worker.send(&CoordinatorMessage::Run(ProcessOrder {
        ready: waiting,
        ..order(1, &["sleep", "300"])
    }));
    thread::sleep(Duration::from_millis(200));
    assert!(worker.lines.try_recv().is_err(), "no process listens yet");
    let _served = TcpListener::bind(("127.0.0.1", port)).expect("still free");
    match worker.hear() {
        WorkerMessage::Ready { id: 1, port: got } => assert_eq!(got, port),
        other => panic!("expected ready: {other:?}"),
    }
    // Another server at this port would not be the one that listens.
    let came = worker.run(&ProcessOrder { ready: waiting, ..order(2, &["sleep", "300"]) });
    let ProcessEnding::NotStarted { why, .. } = came.done.ending else { panic!("{:?}", came.done) };
    assert!(why.contains("served by another process"), "{why}");
}

#[test]
fn a_listener_of_another_process_does_not_make_a_failed_server_ready() {
    let mut worker = Worker::start();
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = free.local_addr().expect("an address").port();
    drop(free);
    // A server of another run takes the port first, so that this one cannot bind it.
    let ready = Some(ReadinessCheck { how: ReadySignal::Port, port });
    worker.send(&CoordinatorMessage::Run(ProcessOrder {
        ready,
        ..shell(1, "sleep 0.7; echo 'Address already in use' >&2; exit 1")
    }));
    thread::sleep(Duration::from_millis(200));
    let _other = TcpListener::bind(("127.0.0.1", port)).expect("still free");
    let result = &worker.come(1)[&1];
    assert_eq!(
        (result.ready.as_slice(), &result.done.ending),
        (&[][..], &ProcessEnding::Exited { code: 1 })
    );
}

/// A folder with an `nvidia-smi` that knows one GPU and one process on it.
fn driver_tool(process: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("nvidia-smi");
    let script = format!(
        "#!/bin/sh\ncase \"$1\" in\n--query-compute-apps=*) echo '{process}';;\n\
         --query-gpu=*) echo '0, GPU-1, 1980 MHz, 2619 MHz, 35, 76.5 W';;\nesac\n"
    );
    fs::write(&file, script).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("executable");
    folder
}

#[test]
fn a_node_with_busy_gpus_is_left_alone_unless_the_order_allows_it() {
    let folder = driver_tool("1, /usr/bin/python3");
    let on_gpus = ProcessOrder { idle_gpus: true, ..shell(1, "echo ran") };
    let mut worker = Worker::start_with(&[], Some(folder.path())).greeted();
    worker.send(&CoordinatorMessage::Run(on_gpus.clone()));
    match worker.hear() {
        WorkerMessage::Refused { id: 1, why } => {
            assert_eq!(why, "busy: pid 1 (python3) uses a GPU");
        }
        other => panic!("expected a refusal: {other:?}"),
    }
    // Orders that need no GPU are not affected.
    assert!(worker.run(&shell(2, "true")).done.ending.is_success());
    let mut worker = Worker::start_with(&["--even-if-busy"], Some(folder.path())).greeted();
    let came = worker.run(&on_gpus);
    assert_eq!(came.stdout, b"ran\n");
    assert_eq!(came.done.gpus, ["0, GPU-1, 1980 MHz, 2619 MHz, 35, 76.5 W"]);
}

#[test]
fn idle_gpus_are_used() {
    let folder = driver_tool("");
    let mut worker = Worker::start_with(&[], Some(folder.path())).greeted();
    let came = worker.run(&ProcessOrder { idle_gpus: true, ..shell(1, "echo ran") });
    assert_eq!(came.stdout, b"ran\n");
}
