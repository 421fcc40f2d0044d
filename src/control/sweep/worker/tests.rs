//! Workers that flood, do not read their input, or get an invalid order.

use super::*;

#[test]
fn an_undecodable_piece_makes_the_output_incomplete() {
    let mut stream = CapturedStream::default();
    append_output(&mut stream, "aGVsbG8=", 10);
    assert_eq!((stream.bytes.as_slice(), stream.dropped), (&b"hello"[..], 0));
    append_output(&mut stream, "no base64", 10);
    assert_eq!((stream.bytes.as_slice(), stream.dropped), (&b"hello"[..], 9));
    // More than ordered, from a worker that exceeds its limit.
    append_output(&mut stream, "aGVsbG8gd29ybGQ=", 10);
    assert_eq!((stream.bytes.as_slice(), stream.dropped), (&b"hellohello"[..], 15));
}

/// A worker that sends its greeting and then runs this script.
async fn connect_worker(then: &str) -> WorkerHandle {
    let hello = r#"{"type":"hello","protocol":2,"version":"0.1.0","environment":{}}"#;
    let script = format!("read x; echo '{hello}'; {then}");
    let launch = LaunchCommand {
        argv: ["sh", "-c", &script].map(str::to_owned).into(),
        env: BTreeMap::new(),
        environment_access: model::worker_protocol::EnvironmentAccess::None,
    };
    let limit = Duration::from_secs(30);
    let worker = WorkerHandle::connect(&NodeName::from("n1"), &launch, limit).await;
    worker.expect("it greets")
}

fn order_for_tool(tool: String) -> ProcessOrder {
    ProcessOrder {
        id: 0,
        argv: vec![tool],
        env: BTreeMap::new(),
        limit_s: 60.0,
        capture: 100,
        ready: None,
        idle_gpus: false,
        on_all_nodes: false,
    }
}

#[tokio::test]
async fn a_worker_that_sends_too_much_is_dropped_and_its_output_not_kept() {
    let piece = "A".repeat(40_000);
    let output = format!(r#"{{"type":"output","id":0,"stream":"stdout","data":"{piece}"}}"#);
    let worker = connect_worker(&format!("read x; exec yes '{output}'")).await;
    // The server of a pair: its messages are not read until its client is done.
    let mut running = worker.start_order(order_for_tool("tool".to_owned())).await.expect("given");
    while worker.is_alive() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let pending = Arc::clone(&lock(&worker.shared.orders).pending_bytes);
    assert!(pending.load(Ordering::Relaxed) <= 2 * MAX_PENDING_BYTES, "messages were still stored");
    while running.answers.recv().await.is_some() {}
    let why = "the worker sends more than the coordinator reads".to_owned();
    assert_eq!(running.lost_outcome().ending, ProcessEnding::not_started(why));
}

#[tokio::test]
async fn a_worker_that_does_not_read_blocks_no_order() {
    let worker = connect_worker("exec sleep 1000").await;
    // More than the capacity of a pipe.
    let sent =
        timeout(2 * WRITE_TIMEOUT, worker.start_order(order_for_tool("x".repeat(1 << 20)))).await;
    let why = sent.expect("no wait").expect_err("not read");
    assert_eq!(why, "the worker on n1 does not read its input");
    timeout(EXIT_TIMEOUT, worker.shut_down()).await.expect("no wait at shutdown");
}

#[tokio::test]
async fn an_invalid_time_limit_is_refused_without_a_panic() {
    let worker = connect_worker("exec sleep 1000").await;
    for limit_s in [-1.0, 1e300] {
        let given =
            worker.start_order(ProcessOrder { limit_s, ..order_for_tool("tool".to_owned()) }).await;
        assert_eq!(given.expect_err("invalid"), format!("{limit_s} s is not a valid time limit"));
    }
}

#[tokio::test]
async fn the_last_message_of_a_worker_is_reported_and_controls_no_terminal() {
    let fault = r#"{"type":"fault","why":"no \u001b[2Jroom"}"#;
    let other = r#"{"type":"\u001b[2J"}"#;
    for (message, expected) in [
        (fault, "the worker gave up: no [2Jroom"),
        (other, "the worker sent an invalid message: unknown variant `[2J`"),
    ] {
        let worker = connect_worker(&format!("printf '%s\\n' '{message}'; exec sleep 1000")).await;
        while worker.is_alive() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let why = worker.start_order(order_for_tool("tool".to_owned())).await.expect_err("dropped");
        assert!(why.starts_with(expected), "{why:?}");
    }
}
