//! The time to read 1,000 and 5,000 nodes of a real API server and to drain 1,000 of them in one
//! turn, including the journal, and the number of requests. Nodes are objects without a kubelet.
//!
//! `ci/bench-kubernetes` starts the server and names it in a variable; without it nothing is
//! measured.

mod turn;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use control::gate::kubernetes::KubernetesScheduler;
use control::gate::scheduler::Scheduler;
use control::sources::kubernetes;
use control::sources::kubernetes::connection;
use control::sources::kubernetes::connection::ResponseReadLimit;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{PatchParams, PostParams};
use kube::core::params::Patch;
use model::id::NodeName;
use model::kubernetes_node::{CERTIFICATE, CONDITION, REASON, VERDICT, VERIFIED_DOMAIN};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Fleets, in this order in one cluster.
const FLEETS: [usize; 2] = [1_000, 5_000];
/// Drained nodes.
const DRAINED: usize = 1_000;
/// Repetitions of a reading; the fastest counts.
const READS: usize = 10;
/// Nodes that are created concurrently.
const AT_ONCE: usize = 16;

fn now<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

#[expect(clippy::print_stdout, reason = "the counts are the result of a bench")]
fn main() {
    let Some(kubeconfig) = std::env::var_os("FABRICGATE_LAB_KUBERNETES") else {
        println!("SKIPPED: no Kubernetes to measure, `ci/bench-kubernetes` starts one");
        return;
    };
    let folder = Path::new(&kubeconfig).parent().expect("a folder");
    let server = kubernetes::KubernetesClientConfig {
        kubeconfig: Some(kubeconfig.clone().into()),
        context: None,
        limit: Duration::from_secs(60),
    };
    let cluster = KubernetesScheduler::new(server.clone());
    let mut made = 0;
    for size in FLEETS {
        let began = Instant::now();
        now(fill(&server, made..size));
        println!("{} nodes made in {:.2?}", size - made, began.elapsed());
        made = size;
        let fresh = requests(folder);
        let read = (0..READS).map(|_| {
            let began = Instant::now();
            let live = now(cluster.read_nodes(&[])).expect("read");
            assert_eq!(live.nodes.len(), size, "{:?}", live.troubles);
            began.elapsed()
        });
        let fastest = read.min().expect("some");
        println!("{size} nodes read in {fastest:.2?}, the fastest of {READS}");
        print_counts("  requests of one", &fresh, &requests(folder), READS);
        // Every fourth, so that they are of all racks, and different ones each time.
        let names: Vec<NodeName> =
            (0..size).rev().step_by(size / DRAINED).take(DRAINED).map(name).collect();
        let mut before = BTreeMap::new();
        let timed = turn::timed(&cluster, &names, || before = requests(folder));
        println!(
            "a turn: {} nodes read in {:.2?}, {} drains decided in {:.2?}, {} done in {:.2?}",
            timed.nodes, timed.read, timed.planned, timed.decided, timed.done, timed.carried
        );
        print_counts("  requests of it", &before, &requests(folder), 1);
        now(undo(&server, &names));
    }
    println!("{}", peak());
}

fn name(number: usize) -> NodeName {
    format!("node{number:04}").into()
}

/// Nodes as a device plugin and the feature discovery leave them.
async fn fill(server: &kubernetes::KubernetesClientConfig, numbers: std::ops::Range<usize>) {
    let client =
        connection::connect(server, ResponseReadLimit::Bounded).await.expect("a server").client;
    let nodes: Api<Node> = Api::all(client);
    let mut making = JoinSet::new();
    for number in numbers {
        if making.len() >= AT_ONCE {
            making.join_next().await.expect("one").expect("a node");
        }
        let nodes = nodes.clone();
        making.spawn(async move {
            let name = name(number);
            let clique = format!("5eed5eed-0000-4000-8000-{:012}.1", number / 18);
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name,
                "labels": {"nvidia.com/gpu.clique": clique, "nvidia.com/gpu.present": "true",
                    "nvidia.com/gpu.count": "4", "nvidia.com/gpu.product": "NVIDIA-GB200",
                    "kubernetes.io/hostname": name}}});
            let node = serde_json::from_value(node).expect("a node");
            nodes.create(&PostParams::default(), &node).await.expect("made");
            let status = json!({"status": {
                "capacity": {"nvidia.com/gpu": "4"}, "allocatable": {"nvidia.com/gpu": "4"},
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady",
                    "lastHeartbeatTime": "2030-01-01T00:00:00Z",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "nodeInfo": {"bootID": format!("boot-{name}"), "architecture": "",
                    "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                    "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
                    "systemUUID": ""}}});
            let by = PatchParams::default();
            let patched = nodes.patch_status(name.as_str(), &by, &Patch::Strategic(status)).await;
            patched.expect("a status");
        });
    }
    while let Some(made) = making.join_next().await {
        made.expect("a node");
    }
    // Only then does the cluster remove the taint of new nodes.
    for _ in 0..600 {
        let all = nodes.list(&kube::api::ListParams::default()).await.expect("nodes");
        let new = |node: &Node| {
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
            taints.is_some_and(|taints| !taints.is_empty())
        };
        if !all.items.iter().any(new) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    panic!("nodes stay new");
}

/// Removes the turn's marks: a journal that does not know the marks on nodes would trip the
/// breaker.
async fn undo(server: &kubernetes::KubernetesClientConfig, names: &[NodeName]) {
    let client =
        connection::connect(server, ResponseReadLimit::Bounded).await.expect("a server").client;
    let nodes: Api<Node> = Api::all(client);
    let nothing = json!({"spec": {"taints": null}, "metadata": {
        "labels": {VERDICT: null, VERIFIED_DOMAIN: null},
        "annotations": {REASON: null, CERTIFICATE: null}}});
    let unsaid = json!({"status": {"conditions": [{"$patch": "delete", "type": CONDITION}]}});
    for name in names {
        let by = PatchParams::default();
        nodes.patch(name.as_str(), &by, &Patch::Merge(&nothing)).await.expect("undone");
        let patched = nodes.patch_status(name.as_str(), &by, &Patch::Strategic(&unsaid)).await;
        patched.expect("undone");
    }
}

/// Number of the administrator's requests, by verb and resource, from the audit log. The lab's
/// controllers use the same account with their own user agents.
fn requests(folder: &Path) -> BTreeMap<String, usize> {
    // The log is written after the answers.
    std::thread::sleep(Duration::from_secs(1));
    let log = std::fs::read_to_string(folder.join("audit.jsonl")).expect("the audit log");
    let mut counted = BTreeMap::new();
    for line in log.lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
        let agent = event["userAgent"].as_str().unwrap_or_default();
        if agent.starts_with("kube-") {
            continue;
        }
        let object = &event["objectRef"];
        let part = object["subresource"].as_str().map_or(String::new(), |it| format!("/{it}"));
        let words = [&event["verb"], &object["resource"]].map(|it| it.as_str().unwrap_or("-"));
        *counted.entry(format!("{} {}{part}", words[0], words[1])).or_default() += 1;
    }
    counted
}

#[expect(clippy::print_stdout, reason = "the counts are the result of a bench")]
fn print_counts(
    what: &str,
    before: &BTreeMap<String, usize>,
    after: &BTreeMap<String, usize>,
    by: usize,
) {
    let more = after.iter().filter_map(|(kind, count)| {
        let more = count - before.get(kind).unwrap_or(&0);
        (more > 0).then(|| format!("{} {kind}", more / by))
    });
    println!("{what}: {}", more.collect::<Vec<_>>().join(", "));
}

/// The peak memory of this process.
fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    format!("most memory of the gate: {}", line.unwrap_or("unknown").trim())
}
