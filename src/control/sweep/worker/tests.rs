//! Workers that flood, do not listen, or are asked for what cannot be.

use super::*;

#[test]
fn a_piece_that_cannot_be_read_makes_the_output_incomplete() {
    let mut stream = CapturedStream::default();
    add(&mut stream, "aGVsbG8=", 10);
    assert_eq!((stream.bytes.as_slice(), stream.dropped), (&b"hello"[..], 0));
    add(&mut stream, "no base64", 10);
    assert_eq!((stream.bytes.as_slice(), stream.dropped), (&b"hello"[..], 9));
    // More than was ordered, from a worker that does not keep to it.
    add(&mut stream, "aGVsbG8gd29ybGQ=", 10);
    assert_eq!((stream.bytes.as_slice(), stream.dropped), (&b"hellohello"[..], 15));
}

/// A worker that greets and then does this.
async fn greeted(then: &str) -> Worker {
    let hello = r#"{"type":"hello","protocol":2,"version":"0.1.0","environment":{}}"#;
    let script = format!("read x; echo '{hello}'; {then}");
    let launch = LaunchCommand {
        argv: ["sh", "-c", &script].map(str::to_owned).into(),
        env: BTreeMap::new(),
        environment_access: model::worker_protocol::EnvironmentAccess::None,
    };
    let limit = Duration::from_secs(30);
    let worker = Worker::connect(&NodeName::from("n1"), &launch, limit).await;
    worker.expect("it greets")
}

fn order(tool: String) -> ProcessOrder {
    ProcessOrder {
        id: 0,
        argv: vec![tool],
        env: BTreeMap::new(),
        limit_s: 60.0,
        capture: 100,
        ready: None,
        idle_gpus: false,
        together: false,
    }
}

#[tokio::test]
async fn a_worker_that_says_more_than_anybody_takes_in_is_left_and_not_kept() {
    let piece = "A".repeat(40_000);
    let output = format!(r#"{{"type":"output","id":0,"stream":"stdout","data":"{piece}"}}"#);
    let worker = greeted(&format!("read x; exec yes '{output}'")).await;
    // A server of a pair: nobody looks at what it says until its client is done.
    let mut running = worker.order(order("tool".to_owned())).await.expect("given");
    while worker.is_alive() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let said = Arc::clone(&lock(&worker.shared.orders).said);
    assert!(said.load(Ordering::Relaxed) <= 2 * MOST_WAITING, "it went on being kept");
    while running.answers.recv().await.is_some() {}
    let why = "the worker says more than anybody takes in".to_owned();
    assert_eq!(running.lost().ending, ProcessEnding::not_started(why));
}

#[tokio::test]
async fn a_worker_that_does_not_listen_keeps_nobody_waiting() {
    let worker = greeted("exec sleep 1000").await;
    // More than a pipe holds.
    let given = timeout(2 * HEARING, worker.order(order("x".repeat(1 << 20)))).await;
    let why = given.expect("it is not waited for").expect_err("nobody heard it");
    assert_eq!(why, "the worker on n1 does not listen");
    timeout(LEAVING, worker.bye()).await.expect("nor is it when it is let go");
}

#[tokio::test]
async fn a_limit_that_is_no_time_is_refused_and_no_panic() {
    let worker = greeted("exec sleep 1000").await;
    for limit_s in [-1.0, 1e300] {
        let given = worker.order(ProcessOrder { limit_s, ..order("tool".to_owned()) }).await;
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
        let worker = greeted(&format!("printf '%s\\n' '{says}'; exec sleep 1000")).await;
        while worker.is_alive() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let why = worker.order(order("tool".to_owned())).await.expect_err("it is left");
        assert!(why.starts_with(expected), "{why:?}");
    }
}
