//! The TCP probe that a worker runs: between two of its own processes, with foreign clients at
//! the port, and with a peer that dies.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use std::{fs, thread};

use model::probe::ReadySignal;
use model::tcp::TcpDocument;
use model::worker_protocol::{CoordinatorMessage, ProcessOrder, ReadinessCheck, WorkerMessage};

use super::{Worker, order, program};

/// The TCP probe with these arguments.
fn tcp(arguments: &[&str]) -> Command {
    let mut command = program();
    command.args(["node", "probe", "tcp"]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A serving TCP probe and its port.
fn serving() -> (Child, u16) {
    let mut child = tcp(&["--serve", "--bind", "127.0.0.1", "--node", "b"]).spawn().expect("one");
    let mut line = String::new();
    let output = child.stdout.as_mut().expect("a pipe");
    BufReader::new(output).read_line(&mut line).expect("a line");
    let port = line.trim().strip_prefix("listening ").expect("a port").parse();
    (child, port.expect("a number"))
}

fn connect(port: u16, seconds: &str) -> Output {
    let peer = format!("127.0.0.1:{port}");
    let words = ["--connect", &peer, "--seconds", seconds, "--warmup", "0.05", "--node", "a"];
    tcp(&words).output().expect("run")
}

fn document(output: &[u8]) -> TcpDocument {
    serde_json::from_slice(output)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(output)))
}

#[test]
fn a_worker_measures_tcp_between_two_of_its_own_processes() {
    let mut worker = Worker::start();
    let serve = ["{self}", "node", "probe", "tcp", "--serve", "--bind", "127.0.0.1", "--node", "b"];
    worker.send(&CoordinatorMessage::Run(ProcessOrder {
        ready: Some(ReadinessCheck { how: ReadySignal::Line, port: 0 }),
        ..order(1, &serve)
    }));
    let WorkerMessage::Ready { port, .. } = worker.hear() else { panic!("not ready") };
    let peer = format!("127.0.0.1:{port}");
    let client = [
        &["{self}", "node", "probe", "tcp", "--connect", &peer, "--bind", "127.0.0.1"][..],
        &["--device", "-", "--node", "a", "--peer", "b", "--rail", "rail0", "--streams", "3"],
        &["--seconds", "0.2", "--warmup", "0.05", "--readings", "2"],
    ];
    worker.send(&CoordinatorMessage::Run(order(2, &client.concat())));
    let came = worker.come(2);
    for id in [1, 2] {
        let stderr = String::from_utf8_lossy(&came[&id].stderr);
        assert!(came[&id].done.ending.is_success(), "{id}: {:?} {stderr}", came[&id].done.ending);
    }
    let got = document(&came[&2].stdout);
    assert!(got.complete && got.problems.is_empty(), "{:?}", got.problems);
    assert_eq!((got.format.as_str(), got.unit.as_str()), ("fabricgate.tcp/1", "GB/s"));
    assert_eq!((got.source.node.as_str(), got.source.address.as_str()), ("a", "127.0.0.1"));
    assert_eq!((got.destination.node.as_str(), got.source.device), ("b", None));
    assert_eq!((got.rail.as_deref(), got.streams, got.readings.len()), (Some("rail0"), 3, 2));
    for flow in got.readings.iter().flat_map(|reading| [&reading.forward, &reading.reverse]) {
        assert_eq!(flow.sent_bytes, flow.received_bytes);
        let counted = flow.rate * flow.seconds * 1e9;
        assert!(0.0 < counted && counted <= flow.received_bytes as f64, "{flow:?}");
        assert!(0.0 < flow.seconds && flow.seconds <= 0.2, "{flow:?}");
    }
    let latency = got.latency.expect("latency");
    assert_eq!(latency.samples, 200);
    assert!(0.0 < latency.min_us && latency.min_us <= latency.median_us);
    assert!(latency.median_us <= latency.p99_us);
}

#[test]
fn another_node_than_the_one_asked_for_is_reported() {
    let (mut server, port) = serving();
    let peer = format!("127.0.0.1:{port}");
    let words = ["--connect", &peer, "--seconds", "0.05", "--peer", "c", "--no-latency"];
    let got = document(&tcp(&words).output().expect("run").stdout);
    assert_eq!(got.problems, ["connected to node c, but b answered"]);
    assert_eq!(got.latency, None);
    assert_eq!(server.wait().expect("ended").code(), Some(0));
}

#[test]
fn a_port_without_a_listener_is_reported() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = free.local_addr().expect("an address").port();
    drop(free);
    let got = connect(port, "1");
    assert_eq!(got.status.code(), Some(5));
    assert!(got.stdout.is_empty());
    let why = String::from_utf8_lossy(&got.stderr).into_owned();
    assert!(why.contains(&format!("127.0.0.1:{port} cannot be reached")), "{why}");
}

#[test]
fn a_foreign_client_at_the_port_is_recognised_and_a_silent_one_given_up() {
    for (greeting, expected) in [
        (&b"SSH-2.0-OpenSSH_9.6\r\n"[..], "not a fabricgate message"),
        (b"no line at all", "not a fabricgate message"),
        (b"", "it does not answer"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let foreign = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accepted");
            stream.write_all(greeting).expect("written");
            // Stays connected until the client has ended.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let got = connect(port, "1");
        let why = String::from_utf8_lossy(&got.stderr).into_owned();
        assert_eq!(got.status.code(), Some(5), "{why}");
        assert!(why.contains(expected), "{why}");
        foreign.join().expect("ended");
    }
}

#[test]
fn foreign_clients_are_rejected_and_the_client_is_served() {
    let (mut server, port) = serving();
    let mut silent = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    let mut loud = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    loud.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("written");
    let mut answer = String::new();
    loud.read_to_string(&mut answer).expect("read");
    assert!(answer.contains("expected a fabricgate client"), "{answer}");
    let got = connect(port, "0.1");
    assert_eq!(got.status.code(), Some(0), "{}", String::from_utf8_lossy(&got.stderr));
    assert!(document(&got.stdout).complete);
    assert_eq!(server.wait().expect("ended").code(), Some(0));
    // It neither delayed the session nor outlived it.
    let _ = silent.read_to_string(&mut answer);
}

#[test]
fn a_peer_that_dies_on_the_way_leaves_an_incomplete_document() {
    let (mut server, port) = serving();
    let client = thread::spawn(move || connect(port, "5"));
    // Data flows: one thread per stream in addition to the first and the one that accepts
    // connections.
    let threads = format!("/proc/{}/task", server.id());
    while fs::read_dir(&threads).expect("threads").count() < 2 + 4 {
        thread::sleep(Duration::from_millis(10));
    }
    server.kill().expect("killed");
    server.wait().expect("ended");
    let got = client.join().expect("run");
    assert_eq!(got.status.code(), Some(4), "{}", String::from_utf8_lossy(&got.stderr));
    let got = document(&got.stdout);
    assert!(!got.complete && got.readings.is_empty());
    assert_eq!(got.problems.len(), 1, "{:?}", got.problems);
}
