//! Tests of queries to an API server, against servers that answer, refuse, hang, stop half-way and
//! send garbage.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use wiremock::matchers::{any, header, method, path, query_param, query_param_is_missing};
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use super::client::MAX_ANSWER_BYTES;
use super::{KubernetesClientConfig, fetch_claims};
use model::source_report::{SourceKind, SourceProblemKind, SourceReport};

/// Long enough for a busy machine to answer, short enough to wait for without an answer.
const PATIENT: Duration = Duration::from_secs(20);
const HASTY: Duration = Duration::from_millis(300);

const CLIQUE: &str = "11111111-2222-3333-4444-555555555555.7";

fn kubeconfig(folder: &Path, server: &str, user: &str) -> PathBuf {
    let file = folder.join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: lab\n\
         clusters: [{{name: lab, cluster: {{server: \"{server}\"}}}}]\n\
         contexts: [{{name: lab, context: {{cluster: lab, user: lab}}}}]\n\
         users: [{{name: lab, user: {user}}}]\n"
    );
    std::fs::write(&file, text).expect("a kubeconfig");
    file
}

async fn fetch_as(server: &str, user: &str, limit: Duration) -> Vec<SourceReport> {
    let folder = TempDir::new().expect("a folder");
    let kubeconfig = Some(kubeconfig(folder.path(), server, user));
    fetch_claims(&KubernetesClientConfig { kubeconfig, context: None, limit }).await
}

async fn fetch(server: &str, limit: Duration) -> Vec<SourceReport> {
    fetch_as(server, "{token: secret-1}", limit).await
}

/// The kinds of the problems of each source.
fn kinds(reports: &[SourceReport]) -> Vec<Vec<SourceProblemKind>> {
    reports
        .iter()
        .map(|report| report.problems.iter().map(|problem| problem.kind).collect())
        .collect()
}

fn only(reports: &[SourceReport]) -> (SourceProblemKind, String) {
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0].source.kind, SourceKind::KubernetesNodes);
    assert_eq!(reports[0].problems.len(), 1, "{:?}", reports[0].problems);
    (reports[0].problems[0].kind, reports[0].problems[0].to_string())
}

fn node(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"nvidia.com/gpu.clique": CLIQUE, "rack": "r1"}}})
}

fn page(kind: &str, version: &str, items: &[Value], more: &str) -> Value {
    json!({"kind": format!("{kind}List"), "apiVersion": version,
        "metadata": {"resourceVersion": "7", "continue": more}, "items": items})
}

async fn answers(server: &MockServer, at: &str, status: u16, body: &Value) {
    let answer = ResponseTemplate::new(status).set_body_json(body);
    Mock::given(method("GET")).and(path(at)).respond_with(answer).mount(server).await;
}

fn group(name: &str, versions: &[&str]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{name}/{version}"), "version": version}))
        .collect();
    json!({"kind": "APIGroup", "name": name, "preferredVersion": versions[0], "versions": versions})
}

/// A server with nodes in two pages, ComputeDomains, and a topology of Kueue, but no KAI.
async fn whole() -> MockServer {
    let server = MockServer::start().await;
    let nodes = || {
        Mock::given(method("GET"))
            .and(path("/api/v1/nodes"))
            .and(header("authorization", "Bearer secret-1"))
    };
    let first = page("Node", "v1", &[node("a"), node("b")], "a+/=");
    let last = page("Node", "v1", &[node("c")], "");
    let json = |body: &Value| ResponseTemplate::new(200).set_body_json(body);
    nodes().and(query_param_is_missing("continue")).respond_with(json(&first)).mount(&server).await;
    nodes().and(query_param("continue", "a+/=")).respond_with(json(&last)).mount(&server).await;
    let nvidia = "resource.nvidia.com";
    answers(&server, &format!("/apis/{nvidia}"), 200, &group(nvidia, &["v2", "v1beta1"])).await;
    let domain = json!({"metadata": {"name": "cd", "namespace": "ns", "uid": "u"}, "spec": {},
        "status": {"status": "Ready", "nodes": [{"name": "a", "cliqueID": CLIQUE}]}});
    let at = format!("/apis/{nvidia}/v1beta1");
    let domains = page("ComputeDomain", &format!("{nvidia}/v1beta1"), &[domain], "");
    answers(&server, &format!("{at}/computedomains"), 200, &domains).await;
    let kueue = "kueue.x-k8s.io";
    let known = group(kueue, &["v1beta1", "v1beta2"]);
    answers(&server, &format!("/apis/{kueue}"), 200, &known).await;
    let topology = json!({"metadata": {"name": "t"}, "spec": {"levels": [{"nodeLabel": "rack"}]}});
    let topologies = page("Topology", &format!("{kueue}/v1beta2"), &[topology], "");
    answers(&server, &format!("/apis/{kueue}/v1beta2/topologies"), 200, &topologies).await;
    server
}

#[tokio::test]
async fn a_server_is_read_page_by_page_and_missing_objects_are_reported() {
    let server = whole().await;
    let reports = fetch(&server.uri(), PATIENT).await;
    assert_eq!(
        kinds(&reports),
        [vec![], vec![], vec![], vec![SourceProblemKind::Missing]],
        "{reports:?}"
    );
    let names = |at: usize, group: usize| -> Vec<&str> {
        reports[at].groups[group].nodes.iter().map(|node| node.as_str()).collect()
    };
    assert_eq!(reports[0].groups[0].name, CLIQUE);
    assert_eq!(names(0, 0), ["a", "b", "c"]);
    assert_eq!(reports[0].source.place, format!("{}/api/v1/nodes", server.uri()));
    assert_eq!((reports[1].groups[0].name.as_str(), names(1, 0)), ("ns/cd", vec!["a"]));
    assert_eq!((reports[2].groups[0].name.as_str(), names(2, 0)), ("r1", vec!["a", "b", "c"]));
    assert!(reports[3].problems[0].message.contains("KAI is not installed"));
    let received: Vec<Request> = server.received_requests().await.expect("recorded");
    assert!(received.iter().all(|request| request.method.as_str() == "GET"));
    let first = &received[0].url;
    assert!(first.query().is_some_and(|query| query.contains("limit=500")), "{first}");
}

#[tokio::test]
async fn forbidden_objects_are_denied_and_the_rest_is_read() {
    let server = whole().await;
    let forbidden = json!({"kind": "Status", "status": "Failure", "code": 403,
        "message": "computedomains is forbidden: User \"gate\" cannot list"});
    let refusing = MockServer::start().await;
    for at in ["/apis/resource.nvidia.com/v1beta1/computedomains", "/apis/kai.scheduler"] {
        answers(&refusing, at, 403, &forbidden).await;
    }
    // All other answers are those of the complete server.
    for at in [
        "/apis/resource.nvidia.com",
        "/apis/kueue.x-k8s.io",
        "/apis/kueue.x-k8s.io/v1beta2/topologies",
    ] {
        let body: Value = body_at(&server.uri(), at);
        answers(&refusing, at, 200, &body).await;
    }
    answers(&refusing, "/api/v1/nodes", 200, &page("Node", "v1", &[node("a")], "")).await;
    let reports = fetch(&refusing.uri(), PATIENT).await;
    use SourceProblemKind::*;
    assert_eq!(kinds(&reports), [vec![], vec![Denied], vec![], vec![Denied]]);
    assert_eq!(reports[0].groups.len(), 1);
    assert_eq!(reports[2].groups.len(), 1);
    assert!(reports[1].problems[0].message.contains("cannot list"), "{:?}", reports[1].problems);
}

/// The body that a plain HTTP server returns at a path.
fn body_at(server: &str, at: &str) -> Value {
    let address = server.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).expect("a server");
    let request = format!("GET {at} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    serde_json::from_str(body).expect("JSON")
}

#[tokio::test]
async fn refusals_are_distinguished() {
    for (status, kind, words) in [
        (401, SourceProblemKind::Denied, "expired token?"),
        (403, SourceProblemKind::Denied, "no permission for that"),
        (404, SourceProblemKind::Missing, "no such object"),
        (410, SourceProblemKind::Incomplete, "changed while it was read"),
        (418, SourceProblemKind::Malformed, "unexpected answer"),
        (500, SourceProblemKind::Unreachable, "cannot answer now (500): oh"),
        (503, SourceProblemKind::Unreachable, "cannot answer now (503): oh"),
    ] {
        let server = MockServer::start().await;
        // A proxy in front may answer without a Status.
        let body =
            if status == 503 { "oh".to_owned() } else { json!({"message": "oh"}).to_string() };
        let answer = ResponseTemplate::new(status).set_body_string(body);
        Mock::given(any()).respond_with(answer).mount(&server).await;
        let reports = fetch(&server.uri(), PATIENT).await;
        assert_eq!(reports[0].problems.len(), 1, "{status}: {reports:?}");
        assert_eq!(reports[0].problems[0].kind, kind, "{status}");
        assert!(reports[0].problems[0].message.contains(words), "{:?}", reports[0].problems);
        assert!(reports[0].groups.is_empty());
    }
}

#[tokio::test]
async fn a_server_that_cannot_list_nodes_still_answers_other_queries() {
    let server = whole().await;
    let broken = ResponseTemplate::new(500);
    Mock::given(path("/api/v1/nodes")).respond_with(broken).with_priority(1).mount(&server).await;
    let reports = fetch(&server.uri(), PATIENT).await;
    use SourceProblemKind::*;
    assert_eq!(kinds(&reports), [vec![Unreachable], vec![], vec![], vec![Missing]]);
    assert_eq!(reports[1].groups[0].name, "ns/cd");
    assert_eq!(reports[2].settings["Topology kueue/t"], "rack");
}

#[tokio::test]
async fn a_busy_server_gets_another_request() {
    let server = MockServer::start().await;
    let busy = ResponseTemplate::new(429);
    Mock::given(path("/api/v1/nodes"))
        .respond_with(busy)
        .up_to_n_times(2)
        .with_priority(1)
        .mount(&server)
        .await;
    answers(&server, "/api/v1/nodes", 200, &page("Node", "v1", &[node("a")], "")).await;
    let reports = fetch(&server.uri(), PATIENT).await;
    assert_eq!(reports[0].problems, []);
    assert_eq!(reports[0].groups.len(), 1);
}

#[tokio::test]
async fn pages_before_a_failure_stay_usable() {
    let server = MockServer::start().await;
    let first = page("Node", "v1", &[node("a")], "more");
    Mock::given(path("/api/v1/nodes"))
        .and(query_param_is_missing("continue"))
        .respond_with(ResponseTemplate::new(200).set_body_json(first))
        .mount(&server)
        .await;
    answers(&server, "/api/v1/nodes", 410, &json!({"message": "too old"})).await;
    let reports = fetch(&server.uri(), PATIENT).await;
    assert_eq!(reports[0].problems[0].kind, SourceProblemKind::Incomplete);
    assert_eq!(reports[0].groups[0].nodes.len(), 1);
}

#[tokio::test]
async fn an_endless_list_is_abandoned() {
    let server = MockServer::start().await;
    answers(&server, "/api/v1/nodes", 200, &page("Node", "v1", &[node("a")], "same")).await;
    let reports = fetch(&server.uri(), PATIENT).await;
    assert_eq!(reports[0].problems[0].kind, SourceProblemKind::Incomplete);
    assert!(reports[0].problems[0].message.contains("further pages without end"));
}

#[tokio::test]
async fn answers_without_a_list_are_malformed() {
    for body in ["", "<html>log in</html>", "{}", "[1,2]", "null", "{\"items\": 7}"] {
        let server = MockServer::start().await;
        let answer = ResponseTemplate::new(200).set_body_string(body);
        Mock::given(any()).respond_with(answer).mount(&server).await;
        let reports = fetch(&server.uri(), PATIENT).await;
        assert!(!reports[0].problems.is_empty(), "{body}");
        assert_eq!(reports[0].problems[0].kind, SourceProblemKind::Malformed, "{body}");
        assert!(
            reports.iter().all(|report| report.groups.is_empty() && !report.problems.is_empty())
        );
    }
}

#[tokio::test]
async fn an_endless_answer_is_cut_off() {
    let server = MockServer::start().await;
    let endless = ResponseTemplate::new(200).set_body_bytes(vec![b' '; MAX_ANSWER_BYTES + 1]);
    Mock::given(path("/api/v1/nodes")).respond_with(endless).mount(&server).await;
    let reports = fetch(&server.uri(), PATIENT).await;
    assert_eq!(kinds(&reports)[0], [SourceProblemKind::Unsupported]);
    let message = &reports[0].problems[0].message;
    assert!(message.contains("more than 134217728 bytes"), "{message}");
}

#[tokio::test]
async fn a_late_answer_is_not_waited_for() {
    let server = MockServer::start().await;
    let late = ResponseTemplate::new(200).set_delay(Duration::from_secs(600));
    Mock::given(any()).respond_with(late).mount(&server).await;
    let (kind, message) = only(&fetch(&server.uri(), HASTY).await);
    assert_eq!(kind, SourceProblemKind::Unreachable);
    assert!(message.contains("did not answer within 300ms"), "{message}");
}

/// A server that sends these bytes to every client, and then closes the connection or keeps it
/// open.
fn writes(bytes: &'static [u8], stays: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(bytes);
            if stays {
                kept.push(stream);
            }
        }
    });
    address
}

#[tokio::test]
async fn silence_partial_answers_and_garbage_are_problems() {
    const HALF: &[u8] =
        b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n{\"kind\":\"NodeList\",\"items\":[";
    for (bytes, stays, limit, kind) in [
        (&b""[..], true, HASTY, SourceProblemKind::Unreachable),
        (HALF, true, HASTY, SourceProblemKind::Unreachable),
        (HALF, false, PATIENT, SourceProblemKind::Incomplete),
        (&b""[..], false, PATIENT, SourceProblemKind::Incomplete),
        (&b"\x16\x03\x01 what is this\r\n\r\n"[..], false, PATIENT, SourceProblemKind::Unreachable),
    ] {
        let server = format!("http://{}", writes(bytes, stays));
        let reports = fetch(&server, limit).await;
        assert_eq!(reports[0].problems[0].kind, kind, "{bytes:?}: {:?}", reports[0].problems);
        assert!(reports[0].groups.is_empty());
    }
}

#[tokio::test]
async fn a_missing_server_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    for scheme in ["http", "https"] {
        let (kind, message) = only(&fetch(&format!("{scheme}://{address}"), PATIENT).await);
        assert_eq!(kind, SourceProblemKind::Unreachable);
        assert!(message.to_lowercase().contains("refused"), "{message}");
    }
}

#[tokio::test]
async fn unusable_kubeconfigs_are_reported_without_their_secrets() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("k");
    let cases: [(Option<&str>, Option<&str>, SourceProblemKind); 5] = [
        (None, None, SourceProblemKind::Missing),
        (Some("users:\n- name: [token: top-secret\n"), None, SourceProblemKind::Malformed),
        (Some("apiVersion: v1\nkind: Config\n"), None, SourceProblemKind::Malformed),
        (Some("users: top-secret\n"), None, SourceProblemKind::Malformed),
        (
            Some("apiVersion: v1\nkind: Config\ncurrent-context: a\n"),
            Some("b"),
            SourceProblemKind::Malformed,
        ),
    ];
    for (text, context, kind) in cases {
        if let Some(text) = text {
            std::fs::write(&file, text).expect("written");
        }
        let kubernetes = KubernetesClientConfig {
            kubeconfig: Some(file.clone()),
            context: context.map(ToOwned::to_owned),
            limit: PATIENT,
        };
        let (found, message) = only(&fetch_claims(&kubernetes).await);
        assert_eq!(found, kind, "{message}");
        assert!(message.contains("kubeconfig") && !message.contains("top-secret"), "{message}");
        assert!(message.starts_with(&file.display().to_string()), "{message}");
    }
}

#[tokio::test]
async fn a_failing_or_hanging_token_program_does_not_block() {
    let exec = |command: &str, words: &str| {
        format!(
            "{{exec: {{apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, \
             command: {command}, args: [{words}]}}}}"
        )
    };
    for (user, limit, kind, words) in [
        (
            exec("/bin/sh", "-c, \"echo top-secret; exit 3\""),
            PATIENT,
            SourceProblemKind::Denied,
            "failed",
        ),
        (exec("/bin/sh", "-c, echo top-secret"), PATIENT, SourceProblemKind::Denied, "credentials"),
        (exec("/no/such/program", "x"), PATIENT, SourceProblemKind::Denied, "cannot be started"),
        (
            exec("/bin/sleep", "\"30\""),
            HASTY,
            SourceProblemKind::Unreachable,
            "gave no result within",
        ),
    ] {
        let (found, message) = only(&fetch_as("https://127.0.0.1:1", &user, limit).await);
        assert_eq!(found, kind, "{message}");
        assert!(message.contains(words) && !message.contains("top-secret"), "{message}");
    }
}

#[tokio::test]
async fn a_failed_token_renewal_is_denied_without_the_programs_output() {
    let server = whole().await;
    let folder = TempDir::new().expect("a folder");
    // The first token has expired already, so that the first query requests another.
    let script = folder.path().join("token");
    let text = format!(
        "if [ -e {0}/asked ]; then echo top-secret; echo top-secret >&2; exit 3; fi; touch {0}/asked\n\
         echo '{{\"apiVersion\": \"client.authentication.k8s.io/v1\", \"kind\": \"ExecCredential\", \
         \"status\": {{\"token\": \"top-secret\", \"expirationTimestamp\": \"2020-01-01T00:00:00Z\"}}}}'\n",
        folder.path().display()
    );
    std::fs::write(&script, text).expect("written");
    let user = format!(
        "{{exec: {{apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, \
         command: /bin/sh, args: [\"{}\"]}}}}",
        script.display()
    );
    let (found, message) = only(&fetch_as(&server.uri(), &user, PATIENT).await);
    assert_eq!(found, SourceProblemKind::Denied, "{message}");
    assert!(message.contains("program for tokens failed"), "{message}");
    assert!(!message.contains("top-secret") && !message.contains("asked"), "{message}");
}
