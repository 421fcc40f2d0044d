//! Messages to receivers that are busy, hang, refuse, or redirect.

use std::collections::BTreeSet;

use serde_json::json;
use wiremock::matchers::{any, header, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::super::secret::{Secret, SecretSource};
use super::*;

const SECRET: &str = "T0SECRETPART";

fn target(server: &str, attempts: u32, timeout: Duration) -> NotifyTarget {
    NotifyTarget {
        name: "ops".to_owned(),
        kind: NotifyTargetKind::Generic,
        address: SecretSource::Inline(Secret::from(format!(
            "{server}/services/{SECRET}?key=KEYSECRET"
        ))),
        bearer: None,
        ca_file: None,
        on: BTreeSet::new(),
        timeout,
        attempts,
        per_hour: 12,
    }
}

async fn tried(target: &NotifyTarget, within: Duration) -> Result<Delivery, DeliveryError> {
    send_message(target, &json!({"a": 1}), Instant::now() + within, 7).await
}

const LONG: Duration = Duration::from_secs(60);

/// The displayed parts of a result contain no credentials.
fn hides(result: &Result<Delivery, DeliveryError>) {
    let shown = match result {
        Ok(sent) => format!("{sent:?}"),
        Err(error) => format!("{error} {error:?}"),
    };
    for secret in [SECRET, "KEYSECRET", "BEARERSECRET", "ELSEWHERE"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

async fn server(answers: Vec<ResponseTemplate>) -> MockServer {
    let server = MockServer::start().await;
    let count = answers.len();
    for (at, answer) in answers.into_iter().enumerate() {
        let mock = Mock::given(any()).respond_with(answer);
        // The last answer repeats.
        let mock = if at + 1 < count { mock.up_to_n_times(1) } else { mock };
        mock.mount(&server).await;
    }
    server
}

#[tokio::test]
async fn a_busy_receiver_gets_another_attempt_after_its_retry_after() {
    let server = server(vec![
        ResponseTemplate::new(503),
        ResponseTemplate::new(429).insert_header("retry-after", "1"),
        ResponseTemplate::new(200).set_body_string("ok"),
    ])
    .await;
    let began = Instant::now();
    let sent = tried(&target(&server.uri(), 4, LONG), LONG).await;
    hides(&sent);
    let sent = sent.expect("sent");
    assert_eq!((sent.attempts, sent.status, sent.answer.as_str()), (3, 200, "ok"));
    assert!(Duration::from_secs(1) <= began.elapsed(), "it waited for Retry-After");
}

#[tokio::test]
async fn a_permanent_refusal_is_not_retried_and_its_answer_hides_the_address() {
    let body = format!("no such hook /services/{SECRET} with KEYSECRET\u{1b}[31m");
    let server = server(vec![ResponseTemplate::new(404).set_body_string(body)]).await;
    let sent = tried(&target(&server.uri(), 4, LONG), LONG).await;
    hides(&sent);
    let error = sent.expect_err("refused").to_string();
    assert!(error.contains("404") && error.contains("no such hook (hidden)"), "{error}");
    assert!(!error.contains('\u{1b}'), "{error}");
    assert_eq!(server.received_requests().await.expect("kept").len(), 1);
}

#[tokio::test]
async fn a_wait_beyond_the_time_limit_is_not_begun() {
    let server =
        server(vec![ResponseTemplate::new(429).insert_header("retry-after", "3600")]).await;
    let sent = tried(&target(&server.uri(), 4, LONG), LONG).await;
    let error = sent.expect_err("given up").to_string();
    assert!(
        error.contains("it asks to wait 3600 s") && error.contains("after 1 attempts"),
        "{error}"
    );
}

#[tokio::test]
async fn a_hanging_receiver_is_given_up() {
    let server = server(vec![ResponseTemplate::new(200).set_delay(Duration::from_secs(600))]).await;
    let short = Duration::from_millis(200);
    let sent = tried(&target(&server.uri(), 2, short), LONG).await;
    hides(&sent);
    let error = sent.expect_err("given up").to_string();
    assert!(error.contains("no answer within 0.2 s; given up after 2 attempts"), "{error}");
    // The time limit of all attempts also bounds a single attempt with a longer limit.
    let sent = tried(&target(&server.uri(), 9, LONG), short).await;
    assert!(sent.expect_err("given up").to_string().contains("after 1 attempts"));
}

#[tokio::test]
async fn a_token_goes_to_its_receiver_and_follows_no_redirection() {
    let elsewhere = server(vec![ResponseTemplate::new(200)]).await;
    let here = MockServer::start().await;
    let to = format!("{}/ELSEWHERE", elsewhere.uri());
    Mock::given(header("authorization", "Bearer BEARERSECRET"))
        .respond_with(ResponseTemplate::new(307).insert_header("location", to.as_str()))
        .mount(&here)
        .await;
    let mut target = target(&here.uri(), 3, LONG);
    target.bearer = Some(SecretSource::Inline(Secret::from("BEARERSECRET".to_owned())));
    let sent = tried(&target, LONG).await;
    hides(&sent);
    let error = sent.expect_err("not followed").to_string();
    assert!(error.contains("a redirection to http://127.0.0.1:"), "{error}");
    assert!(elsewhere.received_requests().await.expect("kept").is_empty());
    assert_eq!(here.received_requests().await.expect("kept").len(), 1);
}

#[tokio::test]
async fn a_missing_receiver_is_reported_without_the_address() {
    // No server listens on a port that was just released.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", free.local_addr().expect("an address"));
    drop(free);
    let sent = tried(&target(&address, 2, LONG), LONG).await;
    hides(&sent);
    let error = sent.expect_err("no listener").to_string();
    assert!(error.starts_with(&address) && error.contains("after 2 attempts"), "{error}");
}

#[tokio::test]
async fn a_receiver_without_tls_is_reported_as_such() {
    let server = server(vec![ResponseTemplate::new(200)]).await;
    let address = server.uri().replace("http://", "https://");
    let sent = tried(&target(&address, 1, LONG), LONG).await;
    hides(&sent);
    assert!(sent.is_err());
}

#[tokio::test]
async fn alertmanager_gets_the_path_of_its_api() {
    let server = MockServer::start().await;
    Mock::given(path("/am/api/v2/alerts"))
        .respond_with(ResponseTemplate::new(200))
        .mount(&server)
        .await;
    let mut target = target(&server.uri(), 1, LONG);
    target.kind = NotifyTargetKind::Alertmanager;
    target.address = SecretSource::Inline(Secret::from(format!("{}/am/", server.uri())));
    assert!(tried(&target, LONG).await.is_ok());
}

#[test]
fn waits_grow_to_a_bound_and_differ_between_gates() {
    let waits: Vec<Duration> = (1..=40).map(|n| backoff_delay(n, 3)).collect();
    assert!(waits.iter().all(|it| *it <= BACKOFF.1));
    assert!(BACKOFF.0 / 2 <= waits[0] && BACKOFF.1 / 2 <= waits[39]);
    let firsts: BTreeSet<Duration> = (0..50).map(|seed| backoff_delay(1, seed)).collect();
    assert!(40 < firsts.len());
}
