//! Watches the nodes of a Kubernetes cluster and triggers an observation after a relevant
//! change.
//!
//! Makes no decision and keeps only a hash per node: the observation reads the nodes
//! again. An interrupted watch resumes, or starts from a new list (410), with growing
//! pauses; after a 401 it starts with a new client.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_core::Stream;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::mpsc;

use super::self_metrics::WatchMetrics;
use crate::sources::kubernetes::connection::ResponseReadLimit;
use crate::sources::kubernetes::{KubernetesClientConfig, connection};
use model::kubernetes_node::FABRICGATE_PREFIX;

/// Pause before reconnecting to the server.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(10);

/// Starts the watch in a thread that runs until the program ends.
pub fn start_node_watch(
    kubernetes: KubernetesClientConfig,
    vitals: Arc<WatchMetrics>,
) -> std::io::Result<mpsc::Receiver<()>> {
    // A capacity of one is enough: an observation covers all changes.
    let (poke, pokes) = mpsc::channel(1);
    std::thread::Builder::new().name("nodes".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        if let Ok(runtime) = runtime {
            runtime.block_on(watch_nodes(&kubernetes, &poke, &vitals));
        }
    })?;
    Ok(pokes)
}

async fn watch_nodes(
    kubernetes: &KubernetesClientConfig,
    poke: &mpsc::Sender<()>,
    vitals: &WatchMetrics,
) {
    while !poke.is_closed() {
        if let Ok(access) = connection::connect(kubernetes, ResponseReadLimit::Endless).await {
            let nodes: Api<Node> = Api::all(access.client);
            let stream = watcher(nodes, watcher::Config::default()).default_backoff();
            forward_changes(pin!(stream), poke, vitals).await;
        }
        tokio::time::sleep(RECONNECT_INTERVAL).await;
    }
}

async fn forward_changes<S>(mut stream: Pin<&mut S>, poke: &mpsc::Sender<()>, vitals: &WatchMetrics)
where
    S: Stream<Item = Result<Event<Node>, watcher::Error>>,
{
    let mut seen: HashMap<String, u64> = HashMap::new();
    let mut anew: HashMap<String, u64> = HashMap::new();
    loop {
        let event = std::future::poll_fn(|context| stream.as_mut().poll_next(context)).await;
        let is_news = match event {
            None => return,
            Some(Err(error)) => {
                vitals.record_node_event(false);
                if is_unauthenticated(&error) {
                    return;
                }
                false
            }
            Some(Ok(event)) => {
                vitals.record_node_event(true);
                match event {
                    Event::Init => {
                        anew.clear();
                        false
                    }
                    Event::InitApply(node) => {
                        anew.insert(node_name(&node), fingerprint(&node));
                        false
                    }
                    Event::InitDone => {
                        let is_news = anew != seen;
                        seen = std::mem::take(&mut anew);
                        is_news
                    }
                    Event::Apply(node) => {
                        let print = fingerprint(&node);
                        seen.insert(node_name(&node), print) != Some(print)
                    }
                    Event::Delete(node) => seen.remove(&node_name(&node)).is_some(),
                }
            }
        };
        if is_news && matches!(poke.try_send(()), Err(mpsc::error::TrySendError::Closed(()))) {
            return;
        }
    }
}

/// Whether the server rejected the credentials.
fn is_unauthenticated(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => connection::is_unauthenticated(error),
        watcher::Error::WatchError(status) => status.code == 401,
        watcher::Error::NoResourceVersion => false,
    }
}

fn node_name(node: &Node) -> String {
    node.metadata.name.clone().unwrap_or_default()
}

/// A hash of the fields that decisions depend on. Heartbeats do not change it.
fn fingerprint(node: &Node) -> u64 {
    let mut hasher = DefaultHasher::new();
    let fabricgate_entries = |map: &Option<BTreeMap<String, String>>| -> BTreeMap<String, String> {
        let all = map.iter().flatten().filter(|(key, _)| key.starts_with(FABRICGATE_PREFIX));
        all.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let metadata = &node.metadata;
    metadata.uid.hash(&mut hasher);
    metadata.deletion_timestamp.is_some().hash(&mut hasher);
    fabricgate_entries(&metadata.labels).hash(&mut hasher);
    fabricgate_entries(&metadata.annotations).hash(&mut hasher);
    if let Some(spec) = &node.spec {
        spec.unschedulable.hash(&mut hasher);
        for taint in spec.taints.iter().flatten() {
            (&taint.key, &taint.value, &taint.effect).hash(&mut hasher);
        }
    }
    if let Some(status) = &node.status {
        status.node_info.as_ref().map(|info| &info.boot_id).hash(&mut hasher);
        for condition in status.conditions.iter().flatten().filter(|it| it.type_ == "Ready") {
            condition.status.hash(&mut hasher);
        }
        for (resource, quantity) in status.allocatable.iter().flatten() {
            if resource.ends_with("/gpu") {
                (resource, &quantity.0).hash(&mut hasher);
            }
        }
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use serde_json::json;

    use super::*;

    fn node(change: impl FnOnce(&mut serde_json::Value)) -> u64 {
        let mut node = json!({"metadata": {"name": "n1", "uid": "u1",
                "labels": {"zone": "a"}, "annotations": {"fabricgate.io/reason": "r"}},
            "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
            "status": {"nodeInfo": {"bootID": "b1"}, "conditions": [
                {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]}});
        change(&mut node);
        let info = node["status"]["nodeInfo"].as_object_mut().expect("an object");
        for key in [
            "architecture",
            "containerRuntimeVersion",
            "kernelVersion",
            "kubeProxyVersion",
            "kubeletVersion",
            "machineID",
            "operatingSystem",
            "osImage",
            "systemUUID",
        ] {
            info.insert(key.to_owned(), "x".into());
        }
        fingerprint(&serde_json::from_value(node).expect("a node"))
    }

    #[test]
    fn only_relevant_changes_trigger_an_observation() {
        let usual = node(|_| {});
        let beat = node(|it| {
            it["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-01-01T00:00:10Z".into();
        });
        assert_eq!(usual, beat);
        assert_eq!(usual, node(|it| it["metadata"]["labels"]["zone"] = "b".into()));
        for changed in [
            node(|it| it["spec"]["taints"] = json!([])),
            node(|it| it["spec"]["unschedulable"] = true.into()),
            node(|it| it["metadata"]["annotations"]["fabricgate.io/reason"] = "s".into()),
            node(|it| it["status"]["nodeInfo"]["bootID"] = "b2".into()),
            node(|it| it["status"]["conditions"][0]["status"] = "False".into()),
            node(|it| it["metadata"]["uid"] = "u2".into()),
        ] {
            assert_ne!(usual, changed);
        }
    }

    /// A watch that fails once with this status, then stays silent.
    struct FailingWatchStream(Option<u16>);

    impl Stream for FailingWatchStream {
        type Item = Result<Event<Node>, watcher::Error>;

        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            let Some(code) = self.0.take() else { return Poll::Pending };
            let status = serde_json::from_value(json!({"code": code})).expect("a status");
            let error = kube::Error::Api(Box::new(status));
            Poll::Ready(Some(Err(watcher::Error::WatchStartFailed(error))))
        }
    }

    #[tokio::test]
    async fn a_new_client_is_created_only_after_rejected_credentials() {
        for (code, ends) in [(401, true), (403, false), (500, false)] {
            let (poke, _pokes) = mpsc::channel(1);
            let vitals = WatchMetrics::default();
            let failing = pin!(FailingWatchStream(Some(code)));
            let followed = forward_changes(failing, &poke, &vitals);
            let ended = tokio::time::timeout(Duration::from_millis(200), followed).await;
            assert_eq!(ended.is_ok(), ends, "{code}");
        }
    }
}
