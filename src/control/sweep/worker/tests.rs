//! Workers that flood, do not listen, or are asked for what cannot be.

use super::*;

#[test]
fn a_piece_that_cannot_be_read_makes_the_output_incomplete() {
    let mut stream = CapturedStream::default();
    append_output(&mut stream, "aGVsbG8=", 10);
    assert_eq!((stream.bytes.as_slice(), stream.dropped), (&b"hello"[..], 0));
    append_output(&mut stream, "no base64", 10);
    assert_eq!((stream.bytes.as_slice(), stream.dropped), (&b"hello"[..], 9));
    // More than was ordered, from a worker that does not keep to it.
    append_output(&mut stream, "aGVsbG8gd29ybGQ=", 10);
    assert_eq!((stream.bytes.as_slice(), stream.dropped), (&b"hellohello"[..], 15));
}

/// A worker that greets and then does this.
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
async fn a_worker_that_says_more_than_anybody_takes_in_is_left_and_not_kept() {
    let piece = "A".repeat(40_000);
    let output = format!(r#"{{"type":"output","id":0,"stream":"stdout","data":"{piece}"}}"#);
    let worker = connect_worker(&format!("read x; exec yes '{output}'")).await;
    // A server of a pair: nobody looks at what it says until its client is done.
    let mut running = worker.start_order(order_for_tool("tool".to_owned())).await.expect("given");
    while worker.is_alive() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let said = Arc::clone(&lock(&worker.shared.orders).pending_bytes);
    assert!(said.load(Ordering::Relaxed) <= 2 * MAX_PENDING_BYTES, "it went on being kept");
    while running.answers.recv().await.is_some() {}
    let why = "the worker says more than anybody takes in".to_owned();
    assert_eq!(running.lost_outcome().ending, ProcessEnding::not_started(why));
}

#[tokio::test]
async fn a_worker_that_does_not_listen_keeps_nobody_waiting() {
    let worker = connect_worker("exec sleep 1000").await;
    // More than a pipe holds.
    let given =
        timeout(2 * WRITE_TIMEOUT, worker.start_order(order_for_tool("x".repeat(1 << 20)))).await;
    let why = given.expect("it is not waited for").expect_err("nobody heard it");
    assert_eq!(why, "the worker on n1 does not listen");
    timeout(EXIT_TIMEOUT, worker.shut_down()).await.expect("nor is it when it is let go");
}

#[tokio::test]
async fn a_limit_that_is_no_time_is_refused_and_no_panic() {
    let worker = connect_worker("exec sleep 1000").await;
    for limit_s in [-1.0, 1e300] {
        let given =
            worker.start_order(ProcessOrder { limit_s, ..order_for_tool("tool".to_owned()) }).await;
        assert_eq!(given.expect_err("no time"), format!("{limit_s} s is no time limit"));
    }
}

#[tokio::test]
async fn the_last_word_of_a_worker_is_told_and_steers_no_terminal() {
    let fault = r#"{"type":"fault","why":"no \u001b[2Jroom"}"#;
    let other = r#"{"type":"\u001b[2J"}"#;
    for (says, expected) in [
        (fault, "the worker gave up: no [2Jroom"),
        (other, "the worker said something that is no answer: unknown variant `[2J`"),
    ] {
        let worker = connect_worker(&format!("printf '%s\\n' '{says}'; exec sleep 1000")).await;
        while worker.is_alive() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let why =
            worker.start_order(order_for_tool("tool".to_owned())).await.expect_err("it is left");
        assert!(why.starts_with(expected), "{why:?}");
    }
}
