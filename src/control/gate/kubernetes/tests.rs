//! Failures that a real server cannot be made to show, and requests refused before
//! sending. The laboratory tests cover a real server.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use wiremock::matchers::{any, header, method, path, query_param, query_param_is_missing};
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use super::*;
use model::kubernetes_node::KubernetesNodeUpdate;
use model::node_update::NodeStateChange;

fn drain() -> NodeUpdate {
    let reason = "fabricgate:nvlink-low:r1 e1".to_owned();
    NodeUpdate { state: Some(NodeStateChange::Drain { reason }), ..NodeUpdate::default() }
}

fn node(name: &str, version: usize) -> Value {
    json!({
        "metadata": {"name": name, "uid": format!("u-{name}"),
            "resourceVersion": version.to_string()},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    })
}

/// The node after a patch, as a server that alters nothing stores it.
fn stored(request: &Request, version: usize) -> Value {
    let patch: Value = serde_json::from_slice(&request.body).expect("JSON");
    let mut node = node("n1", version);
    for part in ["labels", "annotations"] {
        node["metadata"][part] = patch["metadata"][part].clone();
    }
    node["spec"]["taints"] = patch["spec"]["taints"].clone();
    node
}

fn list_response(items: &[Value], next: &str) -> ResponseTemplate {
    ResponseTemplate::new(200)
        .set_body_json(json!({"metadata": {"continue": next}, "items": items}))
}

/// A kubeconfig for this server, with these lines in its user entry.
fn kubeconfig(folder: &Path, address: &str, user: &str) -> Server {
    let file = folder.join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters:\n- name: c\n  cluster: {{server: \"{address}\"}}\n\
         contexts:\n- name: c\n  context: {{cluster: c, user: u}}\n\
         users:\n- name: u\n  user: {user}\n"
    );
    std::fs::write(&file, text).expect("written");
    Server { kubeconfig: Some(file), context: None, limit: Duration::from_secs(20) }
}

/// A server, and a gate with this time limit that uses it.
async fn connect_gate(limit: Duration) -> (MockServer, KubernetesScheduler, tempfile::TempDir) {
    let server = MockServer::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let way = kubeconfig(folder.path(), &server.uri(), "{token: t}");
    (server, KubernetesScheduler::new(Server { limit, ..way }), folder)
}

async fn count_requests(server: &MockServer, verb: &str) -> usize {
    let requests = server.received_requests().await.expect("recorded");
    requests.iter().filter(|it| it.method.as_str() == verb).count()
}

const PATIENT: Duration = Duration::from_secs(20);
const IMPATIENT: Duration = Duration::from_millis(500);

#[tokio::test]
async fn a_busy_server_gets_another_request_after_its_retry_after() {
    let (server, gate, _folder) = connect_gate(PATIENT).await;
    Mock::given(method("GET"))
        .respond_with(ResponseTemplate::new(200).set_body_json(node("n1", 7)))
        .mount(&server)
        .await;
    let times = Arc::new(AtomicUsize::new(0));
    let seen = times.clone();
    Mock::given(method("PATCH"))
        .respond_with(move |request: &Request| match seen.fetch_add(1, Ordering::Relaxed) {
            0 => ResponseTemplate::new(429).insert_header("Retry-After", "1"),
            1 => ResponseTemplate::new(409),
            2 => ResponseTemplate::new(503),
            _ => ResponseTemplate::new(200).set_body_json(stored(request, 8)),
        })
        .mount(&server)
        .await;
    gate.update_nodes(&["n1".into()], &drain()).await.expect("written");
    assert_eq!(times.load(Ordering::Relaxed), 4);
    assert_eq!(count_requests(&server, "GET").await, 4, "read again before each attempt");
}

#[tokio::test]
async fn endless_conflicts_end_at_the_limit() {
    let (server, gate, _folder) = connect_gate(IMPATIENT).await;
    Mock::given(method("GET"))
        .respond_with(ResponseTemplate::new(200).set_body_json(node("n1", 7)))
        .mount(&server)
        .await;
    Mock::given(method("PATCH")).respond_with(ResponseTemplate::new(409)).mount(&server).await;
    let error = gate.update_nodes(&["n1".into()], &drain()).await.expect_err("given up");
    assert_eq!(error.kind, SourceProblemKind::Contradictory, "{error}");
    assert!(error.message.contains("attempt"), "{error}");
    assert!(1 < count_requests(&server, "PATCH").await);
}

#[tokio::test]
async fn a_write_without_an_answer_is_unknown_and_the_rest_is_not_tried() {
    let (server, gate, _folder) = connect_gate(IMPATIENT).await;
    for at in 0..40 {
        let name = format!("n{at}");
        Mock::given(method("GET"))
            .and(path(format!("/api/v1/nodes/{name}")))
            .respond_with(ResponseTemplate::new(200).set_body_json(node(&name, 7)))
            .mount(&server)
            .await;
    }
    let late = ResponseTemplate::new(200).set_delay(Duration::from_secs(60));
    Mock::given(method("PATCH")).respond_with(late).mount(&server).await;
    let names: Vec<NodeName> = (0..40).map(|at| NodeName::from(format!("n{at}"))).collect();
    let error = gate.update_nodes(&names, &drain()).await.expect_err("no answer");
    assert_eq!(error.kind, SourceProblemKind::Unreachable, "{error}");
    assert!(error.message.contains("40 of 40 nodes"), "{error}");
    assert!(count_requests(&server, "PATCH").await <= 16, "those that had begun");
}

#[tokio::test]
async fn a_condition_refused_by_a_newer_version_is_written_for_that_version() {
    let (server, gate, _folder) = connect_gate(PATIENT).await;
    // Another writer changes the node between its marks and its condition.
    let patched = Arc::new(AtomicUsize::new(0));
    let seen = patched.clone();
    Mock::given(method("GET"))
        .respond_with(move |_: &Request| {
            let version = if seen.load(Ordering::Relaxed) == 0 { 7 } else { 9 };
            ResponseTemplate::new(200).set_body_json(node("n1", version))
        })
        .mount(&server)
        .await;
    Mock::given(method("PATCH"))
        .and(path("/api/v1/nodes/n1/status"))
        .respond_with(|request: &Request| {
            let patch: Value = serde_json::from_slice(&request.body).expect("JSON");
            match patch["metadata"]["resourceVersion"].as_str() {
                Some("9") => ResponseTemplate::new(200).set_body_json(node("n1", 10)),
                Some(_) => ResponseTemplate::new(409),
                // Written despite later changes, as a harmful late request would be.
                None => ResponseTemplate::new(200).set_body_json(node("n1", 10)),
            }
        })
        .mount(&server)
        .await;
    Mock::given(method("PATCH"))
        .respond_with(move |request: &Request| {
            patched.fetch_add(1, Ordering::Relaxed);
            ResponseTemplate::new(200).set_body_json(stored(request, 8))
        })
        .mount(&server)
        .await;
    let condition = model::kubernetes_node::FabricNodeCondition {
        status: "False".to_owned(),
        reason: "NvlinkLow".to_owned(),
        message: "degraded".to_owned(),
    };
    let marks =
        KubernetesNodeUpdate { condition: Some(condition), ..KubernetesNodeUpdate::default() };
    let change = NodeUpdate { kubernetes: Some(marks), ..drain() };
    gate.update_nodes(&["n1".into()], &change).await.expect("written");
    let requests = server.received_requests().await.expect("recorded");
    let status = requests.iter().filter(|it| it.url.path().ends_with("/status"));
    assert_eq!(status.count(), 2, "refused once, then for the current version");
}

#[tokio::test]
async fn a_drain_that_the_cluster_stores_differently_is_reverted_immediately() {
    type AdmissionEdit = fn(&mut Value);
    let ways: [(&str, AdmissionEdit); 4] = [
        ("fabricgate.io/reason", |it| {
            it["metadata"]["annotations"]["fabricgate.io/reason"] = json!("site: ask us");
        }),
        ("fabricgate.io/reason", |it| {
            let words = it["metadata"]["annotations"].as_object_mut().expect("a map");
            words.remove("fabricgate.io/reason");
        }),
        ("taint", |it| it["spec"]["taints"] = json!([])),
        ("taint", |it| it["spec"]["taints"][0]["effect"] = json!("NoExecute")),
    ];
    for (what, alter) in ways {
        let (server, gate, _folder) = connect_gate(PATIENT).await;
        Mock::given(method("GET"))
            .respond_with(ResponseTemplate::new(200).set_body_json(node("n1", 7)))
            .mount(&server)
            .await;
        Mock::given(method("PATCH"))
            .respond_with(move |request: &Request| {
                let mut node = stored(request, 8);
                alter(&mut node);
                ResponseTemplate::new(200).set_body_json(node)
            })
            .mount(&server)
            .await;
        let error = gate.update_nodes(&["n1".into()], &drain()).await.expect_err("not as sent");
        assert_eq!(error.kind, SourceProblemKind::Contradictory, "{error}");
        assert!(error.message.contains(what) && error.message.contains("reverted"), "{error}");
        let requests = server.received_requests().await.expect("recorded");
        let patches: Vec<Value> = requests
            .iter()
            .filter(|it| it.method.as_str() == "PATCH")
            .map(|it| serde_json::from_slice(&it.body).expect("JSON"))
            .collect();
        let [_, back] = patches.as_slice() else { panic!("{patches:?}") };
        let meta = &back["metadata"];
        assert_eq!(meta["resourceVersion"], "8", "the stored version only");
        assert_eq!(meta["annotations"], json!({"fabricgate.io/reason": null}));
        let taints = &back["spec"]["taints"];
        assert!(taints.is_null() || *taints == json!([]), "{what}: {taints}");
    }
}

#[tokio::test]
async fn lists_are_read_page_by_page_and_forbidden_pods_are_reported() {
    let (server, gate, _folder) = connect_gate(PATIENT).await;
    let nodes = || Mock::given(method("GET")).and(path("/api/v1/nodes"));
    nodes()
        .and(query_param_is_missing("continue"))
        .and(query_param("limit", "500"))
        .respond_with(list_response(&[node("n1", 1), json!({"metadata": 7})], "next"))
        .mount(&server)
        .await;
    nodes()
        .and(query_param("continue", "next"))
        .respond_with(list_response(&[node("n2", 2)], ""))
        .mount(&server)
        .await;
    Mock::given(path("/api/v1/pods")).respond_with(ResponseTemplate::new(403)).mount(&server).await;
    let live = gate.read_nodes(&[]).await.expect("nodes");
    assert_eq!(live.nodes.len(), 2);
    assert!(live.nodes.values().all(|node| node.state == ["PODS_UNREAD"]), "{live:?}");
    assert_eq!(live.troubles.len(), 2, "{:?}", live.troubles);
    assert!(live.troubles[0].contains("pods were not read"), "{:?}", live.troubles);
}

#[tokio::test]
async fn missing_pods_are_an_error_and_not_an_idle_node() {
    let (server, gate, _folder) = connect_gate(IMPATIENT).await;
    Mock::given(path("/api/v1/pods")).respond_with(ResponseTemplate::new(500)).mount(&server).await;
    Mock::given(any()).respond_with(list_response(&[node("n1", 1)], "")).mount(&server).await;
    let error = gate.read_nodes(&[]).await.expect_err("no pods");
    assert_eq!(error.kind, SourceProblemKind::Unreachable, "{error}");
}

/// The kubelet replaces a projected token before it expires.
#[tokio::test]
async fn a_running_gate_reads_a_rotated_token_again() {
    let server = MockServer::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    let user = format!("{{tokenFile: {}}}", file.display());
    std::fs::write(&file, "first").expect("written");
    let gate = KubernetesScheduler::new(kubeconfig(folder.path(), &server.uri(), &user));
    for token in ["first", "second", "third"] {
        // From now on only this token is valid.
        server.reset().await;
        let bearer = header("authorization", format!("Bearer {token}"));
        Mock::given(bearer).respond_with(list_response(&[node("n1", 1)], "")).mount(&server).await;
        let unknown = ResponseTemplate::new(401);
        Mock::given(any()).respond_with(unknown).with_priority(9).mount(&server).await;
        if token != "first" {
            let refused = gate.read_nodes(&[]).await.expect_err("the old token is invalid");
            assert_eq!(refused.kind, SourceProblemKind::Denied, "{refused}");
        }
        std::fs::write(&file, token).expect("written");
        let live = gate.read_nodes(&[]).await.unwrap_or_else(|error| panic!("{token}: {error}"));
        assert_eq!(live.nodes.len(), 1);
    }
}

#[tokio::test]
async fn a_hanging_token_program_does_not_block_the_gate() {
    let (server, _, folder) = connect_gate(PATIENT).await;
    let plugin = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: sleep, \
                  args: [\"20\"], interactiveMode: Never}}";
    let way = kubeconfig(folder.path(), &server.uri(), plugin);
    let gate = KubernetesScheduler::new(Server { limit: IMPATIENT, ..way });
    let begun = tokio::time::Instant::now();
    for _ in 0..2 {
        let error = gate.read_nodes(&["n1".into()]).await.expect_err("nothing came");
        assert_eq!(error.kind, SourceProblemKind::Unreachable, "{error}");
        assert!(error.message.contains("its program for tokens"), "{error}");
    }
    let error = gate.update_nodes(&["n1".into()], &drain()).await.expect_err("nothing came");
    assert_eq!(error.kind, SourceProblemKind::Unreachable, "{error}");
    assert!(begun.elapsed() < Duration::from_secs(20), "waited for the program to end");
    assert_eq!(count_requests(&server, "GET").await, 0);
}

#[tokio::test]
async fn an_invalid_change_is_not_sent() {
    let (server, gate, _folder) = connect_gate(PATIENT).await;
    let two_lines = NodeUpdate {
        state: Some(NodeStateChange::Drain { reason: "a\nb".to_owned() }),
        ..NodeUpdate::default()
    };
    let foreign = KubernetesNodeUpdate {
        labels: [("nvidia.com/gpu.clique".to_owned(), None)].into(),
        ..KubernetesNodeUpdate::default()
    };
    let foreign = NodeUpdate { kubernetes: Some(foreign), ..NodeUpdate::default() };
    let of_slurm = NodeUpdate { extra: Some("{}".to_owned()), ..NodeUpdate::default() };
    for change in [two_lines, foreign, of_slurm] {
        let error = gate.update_nodes(&["n1".into()], &change).await.expect_err("refused");
        assert!(error.message.starts_with("nothing was sent"), "{error}");
    }
    for name in ["../pods", "N1", "a/b", "", "n1?x"] {
        let error = gate.update_nodes(&[name.into()], &drain()).await.expect_err("refused");
        assert!(error.message.starts_with("nothing was sent"), "{name}: {error}");
    }
    gate.update_nodes(&["n1".into()], &NodeUpdate::default()).await.expect("nothing to do");
    gate.update_nodes(&[], &drain()).await.expect("no node");
    assert_eq!(server.received_requests().await.expect("recorded").len(), 0);
}

#[test]
fn a_change_is_printed_as_commands_that_an_operator_can_run() {
    let server = Server {
        kubeconfig: None,
        context: Some("gate".to_owned()),
        limit: Duration::from_secs(1),
    };
    let gate = KubernetesScheduler::new(server);
    let line = |change: &NodeUpdate| -> Vec<String> {
        let words = gate.command_lines(&["n1".into(), "n2".into()], change);
        words.iter().map(|words| words.join(" ")).collect()
    };
    assert_eq!(
        line(&drain()),
        [
            "kubectl --context gate annotate --overwrite node n1 n2 \
             fabricgate.io/reason=fabricgate:nvlink-low:r1 e1",
            "kubectl --context gate taint --overwrite node n1 n2 \
             fabricgate.io/degraded=nvlink-low:NoSchedule",
        ]
    );
    // A taint without the annotation would not count as fabricgate's, so it goes first.
    let resume = NodeUpdate { state: Some(NodeStateChange::Resume), ..NodeUpdate::default() };
    assert_eq!(
        line(&resume),
        [
            "kubectl --context gate taint --overwrite node n1 n2 fabricgate.io/degraded:NoSchedule-",
            "kubectl --context gate annotate --overwrite node n1 n2 fabricgate.io/reason-",
        ]
    );
    assert!(gate.command_lines(&[], &resume).is_empty());
}
