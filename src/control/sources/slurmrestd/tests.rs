//! Servers that answer as slurmrestd does, and faulty ones. The answers are those of 24.11 and
//! 26.05, shortened.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;

use wiremock::matchers::{header, path, path_regex};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::*;

const TOKEN: &str = "eyJhbGciOiJIUzI1NiJ9.secret.word";
const UP: &str = r#"{"pings": [{"hostname": "head", "pinged": "UP", "responding": true}],
    "errors": [], "warnings": []}"#;
const NODES: &str = r#"{"nodes": [], "errors": [], "warnings": []}"#;
const PARTITIONS: &str = r#"{"partitions": [{"name": "main", "nodes": {"configured": "n1"}}], "errors": [], "warnings": []}"#;

fn now<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

fn at(address: impl Into<ServerAddress>) -> SlurmrestdClientConfig {
    SlurmrestdClientConfig {
        address: address.into(),
        token: Some(TOKEN.to_owned()),
        user: None,
        limit: Duration::from_secs(20),
    }
}

fn soon(address: impl Into<ServerAddress>) -> SlurmrestdClientConfig {
    SlurmrestdClientConfig { limit: Duration::from_millis(300), ..at(address) }
}

fn kinds(report: &SourceReport) -> Vec<SourceProblemKind> {
    report.problems.iter().map(|problem| problem.kind).collect()
}

/// The only problem of the only report of an unusable server.
fn only(answers: &[SourceReport]) -> (SourceProblemKind, String) {
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0].problems.len(), 1, "{answers:?}");
    let shown = format!("{answers:?}");
    assert!(!shown.contains("secret"), "{shown}");
    (answers[0].problems[0].kind, answers[0].problems[0].message.clone())
}

fn json(status: u16, body: &str) -> ResponseTemplate {
    ResponseTemplate::new(status).set_body_raw(body, "application/json")
}

/// A server that answers these paths, and 404 to everything else.
async fn server(answers: &[(&str, ResponseTemplate)]) -> MockServer {
    let server = MockServer::start().await;
    for (at, answer) in answers {
        Mock::given(path(*at)).respond_with(answer.clone()).mount(&server).await;
    }
    server
}

/// Queries a server that supports v0.0.45, with this answer for its nodes.
fn fetch_nodes(nodes: ResponseTemplate, most: usize) -> Vec<SourceReport> {
    now(async {
        let server = server(&[
            ("/slurm/v0.0.45/ping/", json(200, UP)),
            ("/slurm/v0.0.45/nodes/", nodes),
            ("/slurm/v0.0.45/partitions/", json(200, PARTITIONS)),
        ])
        .await;
        fetch_with_limit(&at(server.uri()), most).await
    })
}

/// Queries a server that answers every ping like this.
fn pinged(ping: ResponseTemplate) -> Vec<SourceReport> {
    now(async {
        let server = MockServer::start().await;
        Mock::given(path_regex("/ping/$")).respond_with(ping).mount(&server).await;
        fetch_claims(&at(server.uri())).await
    })
}

#[test]
fn the_newest_version_that_both_sides_know_is_used() {
    now(async {
        let server = server(&[
            ("/slurm/v0.0.40/ping/", json(200, UP)),
            ("/slurm/v0.0.42/ping/", json(200, UP)),
            ("/slurm/v0.0.42/nodes/", json(200, NODES)),
            ("/slurm/v0.0.42/partitions/", json(200, PARTITIONS)),
        ])
        .await;
        let answers = fetch_claims(&at(server.uri())).await;
        assert_eq!(answers.len(), 2);
        assert_eq!(answers[0].source.place, format!("{}/slurm/v0.0.42/nodes/", server.uri()));
        assert_eq!(answers[1].source.kind, SourceKind::SlurmPartitions);
        assert!(answers[0].notes.iter().any(|note| note.contains("does not report the topology")));
    });
}

#[test]
fn a_future_version_is_found_in_the_document() {
    now(async {
        let document = r#"{"paths": {"\/slurm\/v0.0.51\/nodes\/": {}, "/slurm/v0.0.52/nodes/": {},
            "/slurm/v0.0.53/jobs/": {}, "/slurmdb/v0.0.60/nodes/": {}}}"#;
        let server = server(&[
            ("/openapi/v3", json(200, document)),
            ("/slurm/v0.0.52/ping/", json(200, UP)),
            ("/slurm/v0.0.52/nodes/", json(200, NODES)),
            ("/slurm/v0.0.52/partitions/", json(200, PARTITIONS)),
        ])
        .await;
        let answers = fetch_claims(&at(server.uri())).await;
        assert_eq!(answers.len(), 2, "{answers:?}");
        assert!(answers[0].source.place.contains("v0.0.52"));
    });
}

#[test]
fn a_server_without_a_known_version_is_not_supported() {
    let (kind, message) = now(async { only(&fetch_claims(&at(server(&[]).await.uri())).await) });
    assert_eq!(kind, SourceProblemKind::Unsupported);
    assert!(message.contains("none of v0.0.40 to v0.0.45"), "{message}");
}

#[test]
fn the_token_is_sent_as_scontrol_prints_it_or_bare_and_the_user_with_it() {
    now(async {
        let server = MockServer::start().await;
        for (at, body) in [("ping", UP), ("nodes", NODES), ("partitions", PARTITIONS)] {
            Mock::given(path(format!("/slurm/v0.0.45/{at}/")))
                .and(header("X-SLURM-USER-TOKEN", TOKEN))
                .and(header("X-SLURM-USER-NAME", "root"))
                .respond_with(json(200, body))
                .mount(&server)
                .await;
        }
        for token in [TOKEN.to_owned(), format!("SLURM_JWT={TOKEN}\n")] {
            let user = Some("root".to_owned());
            let rest = SlurmrestdClientConfig { token: Some(token), user, ..at(server.uri()) };
            assert_eq!(fetch_claims(&rest).await.len(), 2);
            assert!(!format!("{rest:?}").contains("secret"), "{rest:?}");
        }
    });
}

#[test]
fn a_refused_login_names_the_missing_credential() {
    let refused = ResponseTemplate::new(401).set_body_raw("Authentication failure", "text/plain");
    let (kind, message) = only(&pinged(refused.clone()));
    assert_eq!(kind, SourceProblemKind::Denied);
    let expected = "HTTP 401: Authentication failure; the token may have expired";
    assert!(message.starts_with(expected), "{message}");

    let (kind, message) = now(async {
        let server = MockServer::start().await;
        Mock::given(path_regex("/ping/$")).respond_with(refused).mount(&server).await;
        only(&fetch_claims(&SlurmrestdClientConfig { token: None, ..at(server.uri()) }).await)
    });
    assert_eq!(kind, SourceProblemKind::Denied);
    assert!(message.contains("give a token: `scontrol token` makes one"), "{message}");

    assert_eq!(only(&pinged(ResponseTemplate::new(403))).0, SourceProblemKind::Denied);
}

#[test]
fn a_ping_of_a_dead_controller_is_answered_with_200() {
    for ping in [
        r#"{"pings": [{"hostname": "head", "pinged": "DOWN", "responding": false}], "errors": []}"#,
        r#"{"pings": [{"hostname": "head", "pinged": "DOWN"}]}"#,
    ] {
        let (kind, message) = only(&pinged(json(200, ping)));
        assert_eq!(kind, SourceProblemKind::Unreachable);
        assert!(message.contains("slurmctld at head does not"), "{message}");
    }
    let backup = r#"{"pings": [{"responding": false}, {"responding": true}]}"#;
    assert_eq!(pinged(json(200, backup)).len(), 2);
}

#[test]
fn a_refused_token_is_distinguished_from_an_unreachable_controller() {
    let ping = r#"{"pings": [{"hostname": "head", "responding": false,
        "status": "Protocol authentication error"}]}"#;
    let (kind, message) = only(&pinged(json(200, ping)));
    assert_eq!(kind, SourceProblemKind::Denied);
    assert!(message.contains("reports: Protocol authentication error; the token may"), "{message}");

    // Older versions give no reason in a ping, so the nodes are queried.
    let ping = r#"{"pings": [{"hostname": "head", "pinged": "DOWN", "responding": false}]}"#;
    let nodes = r#"{"errors": [{"error_number": 1007, "error": "Protocol authentication error"}]}"#;
    let (kind, message) = now(async {
        let server = server(&[
            ("/slurm/v0.0.42/ping/", json(200, ping)),
            ("/slurm/v0.0.42/nodes/", json(511, nodes)),
        ])
        .await;
        only(&fetch_claims(&at(server.uri())).await)
    });
    assert_eq!(kind, SourceProblemKind::Denied);
    assert!(message.starts_with("HTTP 511: Protocol authentication error"), "{message}");
}

#[test]
fn errors_are_reported_with_slurms_message() {
    let cases = [
        (511, 1007, "Protocol authentication error", SourceProblemKind::Denied),
        (
            502,
            1800,
            "Unable to contact slurm controller (connect failure)",
            SourceProblemKind::Unreachable,
        ),
        (422, 2010, "Invalid user id", SourceProblemKind::Denied),
        (500, 9999, "Something else", SourceProblemKind::Unreachable),
        (422, 2018, "Invalid node name specified", SourceProblemKind::Unsupported),
    ];
    for (status, number, error, kind) in cases {
        let body = format!(
            r#"{{"errors": [{{"description": "Failure to query nodes", "error_number": {number},
                "error": "{error}"}}]}}"#
        );
        let answers = fetch_nodes(json(status, &body), MAX_ANSWER_BYTES);
        assert_eq!(kinds(&answers[0]), [kind], "{status}");
        let expected = format!("HTTP {status}: Failure to query nodes: {error} (error {number})");
        let message = &answers[0].problems[0].message;
        assert!(message.starts_with(&expected), "{message}");
        assert!(!kinds(&answers[1]).contains(&kind), "partitions stay usable: {answers:?}");
    }
}

#[test]
fn errors_in_an_answer_with_200_are_reported() {
    let body = r#"{"errors": [{"description": "Failure to query node nosuch", "error_number": 0,
        "error": "No error"}], "warnings": []}"#;
    let answers = fetch_nodes(json(200, body), MAX_ANSWER_BYTES);
    let is_reported =
        answers[0].problems.iter().any(|it| it.message.contains("Failure to query node"));
    assert!(is_reported, "{answers:?}");
}

#[test]
fn an_answer_that_is_not_json_is_quoted_from_its_beginning() {
    let page = ResponseTemplate::new(200).set_body_raw("<html><body>Sign in\u{1b}[0m", "text/html");
    let answers = fetch_nodes(page, MAX_ANSWER_BYTES);
    assert_eq!(kinds(&answers[0]), [SourceProblemKind::Malformed]);
    let message = &answers[0].problems[0].message;
    assert!(message.contains("begin with \"<html><body>Sign in"), "{message}");

    let page = ResponseTemplate::new(200).set_body_raw("welcome", "text/html");
    assert_eq!(only(&pinged(page)).0, SourceProblemKind::Malformed);
}

#[test]
fn an_endless_answer_is_refused() {
    let answers =
        fetch_nodes(json(200, &format!("{{\"nodes\": [{}]}}", " ".repeat(100_000))), 50_000);
    assert_eq!(kinds(&answers[0]), [SourceProblemKind::Incomplete]);
    assert!(answers[0].problems[0].message.contains("50000 bytes"), "{answers:?}");
    assert!(!kinds(&answers[1]).contains(&SourceProblemKind::Incomplete), "{:?}", answers[1]);
}

#[test]
fn a_redirection_is_not_followed_with_a_token() {
    let elsewhere = ResponseTemplate::new(302).insert_header("Location", "http://127.0.0.1:1/");
    let (kind, message) = only(&pinged(elsewhere));
    assert_eq!(kind, SourceProblemKind::Unsupported);
    assert!(message.contains("HTTP 302; redirections are not followed"), "{message}");
}

#[test]
fn a_slow_server_is_given_up() {
    let slow = json(200, UP).set_delay(Duration::from_secs(60));
    let (kind, message) = now(async {
        let server = MockServer::start().await;
        Mock::given(path_regex("/ping/$")).respond_with(slow).mount(&server).await;
        only(&fetch_claims(&soon(server.uri())).await)
    });
    assert_eq!(kind, SourceProblemKind::Unreachable);
    assert!(message.starts_with("no answer within 300ms; "), "{message}");
}

#[test]
fn a_silent_server_is_given_up() {
    // Never accepted: the kernel completes the connection by itself.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let (kind, message) = only(&now(fetch_claims(&soon(address))));
    assert_eq!(kind, SourceProblemKind::Unreachable);
    assert!(message.starts_with("no answer within 300ms; "), "{message}");
}

#[test]
fn a_trickling_answer_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a call");
        // An answer before the request would be another kind of error.
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
        while stream.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let (kind, _) = only(&now(fetch_claims(&soon(address))));
    assert_eq!(kind, SourceProblemKind::Unreachable);
}

#[test]
fn a_server_without_http_is_distinguished_from_a_missing_one() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a call");
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n");
    });
    let (kind, message) = only(&now(fetch_claims(&at(address))));
    assert_eq!(kind, SourceProblemKind::Incomplete);
    assert!(message.starts_with("the answer broke off: "), "{message}");

    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let (kind, message) = only(&now(fetch_claims(&at(address))));
    assert_eq!(kind, SourceProblemKind::Unreachable);
    assert!(message.contains("refused"), "{message}");
    assert!(message.contains("that slurmrestd runs"), "{message}");
}

#[test]
fn https_to_a_server_without_it_is_unreachable() {
    let (kind, _) = now(async {
        let server = server(&[]).await;
        only(&fetch_claims(&at(server.uri().replace("http:", "https:"))).await)
    });
    assert_eq!(kind, SourceProblemKind::Unreachable);
}

/// Answers requests on a socket one after the other, like slurmrestd.
fn answer_socket(listener: &UnixListener) {
    while let Ok((mut stream, _)) = listener.accept() {
        let mut request = Vec::new();
        let mut buffer = [0u8; 1024];
        while !request.windows(4).any(|it| it == b"\r\n\r\n") {
            let count = stream.read(&mut buffer).unwrap_or(0);
            if count == 0 {
                break;
            }
            request.extend_from_slice(&buffer[..count]);
        }
        let request = String::from_utf8_lossy(&request).to_lowercase();
        let authentic = request.contains(&format!("x-slurm-user-token: {TOKEN}").to_lowercase());
        let (status, body) = match request.split(' ').nth(1).unwrap_or("") {
            _ if !authentic => ("401 Unauthorized", "Authentication failure"),
            "/slurm/v0.0.45/ping/" => ("200 OK", UP),
            "/slurm/v0.0.45/nodes/" => ("200 OK", NODES),
            "/slurm/v0.0.45/partitions/" => ("200 OK", PARTITIONS),
            _ => ("404 Not Found", ""),
        };
        let length = body.len();
        let _ = write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
    }
}

#[test]
fn a_unix_socket_is_queried_like_any_address() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let listener = UnixListener::bind(&socket).expect("a socket");
    std::thread::spawn(move || answer_socket(&listener));
    for address in [format!("unix:{}", socket.display()), format!("unix://{}", socket.display())] {
        let answers = now(fetch_claims(&at(address)));
        assert_eq!(answers.len(), 2, "{answers:?}");
        let place = format!("unix:{}/slurm/v0.0.45/nodes/", socket.display());
        assert_eq!(answers[0].source.place, place);
    }
    let anonymous =
        SlurmrestdClientConfig { token: None, ..at(format!("unix:{}", socket.display())) };
    let (kind, message) = only(&now(fetch_claims(&anonymous)));
    assert_eq!(kind, SourceProblemKind::Denied);
    assert!(message.contains("only the user that it runs as"), "{message}");
}

#[test]
fn a_missing_socket_is_unreachable() {
    let (kind, message) = only(&now(fetch_claims(&at("unix:/no/such/socket"))));
    assert_eq!(kind, SourceProblemKind::Unreachable);
    assert!(message.contains("No such file"), "{message}");
    assert!(!Path::new("/no/such/socket").exists());
}

#[test]
fn an_invalid_address_is_refused_without_being_quoted() {
    for address in ["", "head:6820", "ftp://head", "unix:relative", "http://", "http://u:secret@[x"]
    {
        let (kind, message) = only(&now(fetch_claims(&at(address))));
        assert_eq!(kind, SourceProblemKind::Malformed, "{address}");
        assert!(message.contains("expected http://host:6820"), "{message}");
    }
}

#[test]
fn credentials_of_an_address_are_neither_sent_nor_displayed() {
    let address = "http://me:secret@127.0.0.1:1/prefix?key=secret";
    let answers = now(fetch_claims(&at(address)));
    assert_eq!(only(&answers).0, SourceProblemKind::Unreachable);
    assert_eq!(answers[0].source.place, "http://127.0.0.1:1/prefix");
    assert!(!format!("{:?}", at(address)).contains("secret"), "{:?}", at(address));
}

#[test]
fn a_token_that_cannot_be_sent_is_not_displayed() {
    let rest = SlurmrestdClientConfig {
        token: Some("secret\nword".to_owned()),
        ..at("http://127.0.0.1:1")
    };
    let (kind, message) = only(&now(fetch_claims(&rest)));
    assert_eq!(kind, SourceProblemKind::Malformed);
    assert_eq!(message, "the token contains characters that cannot be sent");
}
