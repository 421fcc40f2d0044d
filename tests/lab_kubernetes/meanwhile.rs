//! Concurrent changes to a node while the gate changes it: other gates, writers that never rest,
//! and events between the reading and the write.
//!
//! The latter run in the fence, which is checked right before every write.

use super::changes::{
    NODES, OURS, add_plain, certify, drain, gate, named, one, own_condition, plain_node, read,
    remove, resume, status, version,
};
use super::lab::{Lab, Server, lab};
use super::proxy::Proxy;
use control::gate::kubernetes::{KubernetesScheduler, WriteFence};
use control::gate::scheduler::{Scheduler, SchedulerError, SchedulerFuture};
use control::sources::kubernetes::KubernetesClientConfig as Asked;
use kube::Client;
use kube::core::Request;
use model::id::NodeName;
use model::kubernetes_node::{
    DEGRADED, FABRICGATE_PREFIX, GATE, KubernetesNodeUpdate, REASON, VERDICT,
};
use model::node_update::{NodeStateChange, NodeUpdate};
use model::source_report::SourceProblemKind;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The drain of run `r1` in its first turn, by the gate of this name.
fn drain_by(gate: &str) -> NodeUpdate {
    let annotations = [(GATE.to_owned(), Some(gate.to_owned()))].into();
    let kubernetes = Some(KubernetesNodeUpdate { annotations, ..KubernetesNodeUpdate::default() });
    NodeUpdate { kubernetes, ..drain() }
}

#[tokio::test]
async fn the_second_of_two_gates_with_the_same_reason_learns_that_the_drain_is_not_its_own() {
    let Some(lab) = lab() else { return };
    let (server, gate) = (lab.admin().await, gate(&lab));
    let names = ["chg-twice".to_owned()];
    add_plain(&server, &names).await;
    let (nodes, seen) = (named(&names), read(&gate, &names).await);
    let first = gate.update_nodes_if_unchanged(&nodes, &drain_by("one"), &seen).await;
    assert_eq!(first, Ok(()));
    let before = version(&server.node("chg-twice").await);
    // The same reason to the letter: only its author differs.
    let second = gate.update_nodes_if_unchanged(&nodes, &drain_by("two"), &seen).await;
    let error = second.expect_err("it is another's");
    assert_eq!(error.kind, SourceProblemKind::Contradictory, "{error}");
    let node = server.node("chg-twice").await;
    assert_eq!(version(&node), before, "nothing was written");
    assert_eq!(node["metadata"]["annotations"][GATE], "one");
    assert_eq!(node["metadata"]["annotations"][REASON], OURS);
    remove(&server, &names).await;
}

#[tokio::test]
async fn a_condition_that_arrives_after_a_later_one_is_refused() {
    let Some(lab) = lab() else { return };
    let (server, folder) = (lab.admin().await, tempfile::tempdir().expect("a folder"));
    let proxy = Proxy::to(&lab.kubeconfig("admin"), folder.path());
    let limit = Duration::from_secs(20);
    let kubeconfig = Some(folder.path().join("admin.proxy.kubeconfig"));
    let gate = KubernetesScheduler::new(Asked { kubeconfig, context: None, limit });
    let name = "chg-late";
    add_plain(&server, &[name.to_owned()]).await;
    let nodes = [NodeName::from(name)];
    // The first gate's request is kept, as if it were still in flight.
    gate.update_nodes(&nodes, &certify("the first")).await.expect("written");
    let calls = proxy.received();
    let first = calls.iter().find(|call| call.is_status()).expect("one");
    let late: Value = serde_json::from_str(&first.body).expect("JSON");
    gate.update_nodes(&nodes, &certify("the second")).await.expect("written");
    let error = server.try_status(&format!("{NODES}/{name}"), &late).await.expect_err("too late");
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 409), "{error}");
    let condition = own_condition(&server.node(name).await).expect("ours");
    assert!(condition["message"].as_str().expect("words").contains("the second"), "{condition}");
    remove(&server, &[name.to_owned()]).await;
}

/// Writes its own taint repeatedly, as careful writers do.
async fn hammer(client: Client, path: String, key: String, times: usize) -> (usize, usize) {
    let server = Server(client);
    let (mut written, mut conflicts) = (0, 0);
    while written < times {
        let node = server.get(&path).await.expect("the node");
        let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        taints.retain(|it| it["key"] != key.as_str());
        taints.push(json!({"key": key, "value": format!("v{written}"), "effect": "NoSchedule"}));
        let patch = json!({"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
            "spec": {"taints": taints}});
        let (parent, name) = path.rsplit_once('/').expect("a path");
        let by = kube::api::PatchParams::default();
        let patch = kube::core::params::Patch::Merge(patch);
        let request = Request::new(parent).patch(name, &by, &patch).expect("a request");
        match server.0.request::<Value>(request).await {
            Ok(_) => written += 1,
            Err(kube::Error::Api(status)) if status.code == 409 => conflicts += 1,
            Err(error) => panic!("{key}: {error}"),
        }
    }
    (written, conflicts)
}

#[tokio::test]
async fn eight_writers_of_one_nodes_taints_lose_nothing_and_neither_do_we() {
    let Some(lab) = lab() else { return };
    let (server, gate) = (lab.admin().await, gate(&lab));
    let name = "chg-storm";
    add_plain(&server, &[name.to_owned()]).await;
    let path = format!("{NODES}/{name}");
    let writers: Vec<_> = (0..8)
        .map(|it| {
            let client = server.0.clone();
            tokio::spawn(hammer(client, path.clone(), format!("writer.example.com/{it}"), 40))
        })
        .collect();
    let nodes = [NodeName::from(name)];
    let mut changes = 0;
    while writers.iter().any(|writer| !writer.is_finished()) {
        for change in [drain(), certify(&format!("{changes}")), resume()] {
            gate.update_nodes(&nodes, &change).await.unwrap_or_else(|error| panic!("{error}"));
            changes += 1;
            let live = one(&gate, name).await;
            let is_drained = live.has_state("DRAIN");
            assert_eq!(is_drained, change.state != Some(NodeStateChange::Resume), "{changes}");
        }
    }
    let mut conflicts = 0;
    for writer in writers {
        let (written, met) = writer.await.expect("a writer");
        assert_eq!(written, 40);
        conflicts += met;
    }
    println!("{changes} changes of the gate among 320 of others, which met {conflicts} conflicts");
    assert!(0 < conflicts, "no conflicts: the writers did not overlap");
    let node = server.node(name).await;
    let taints = node["spec"]["taints"].as_array().expect("taints");
    let last = taints.iter().map(|it| (it["key"].as_str().expect("a key"), it["value"].as_str()));
    let last: BTreeMap<&str, Option<&str>> = last.collect();
    let keys: Vec<String> = (0..8).map(|it| format!("writer.example.com/{it}")).collect();
    let expected = keys.iter().map(|key| (key.as_str(), Some("v39"))).collect();
    assert_eq!(last, expected);
    remove(&server, &[name.to_owned()]).await;
}

/// An event right before the write.
#[derive(Clone, Debug)]
enum Deed {
    Nothing,
    /// The node is deleted.
    Delete,
    /// The node is deleted, and another one with its name is created.
    Replace,
    Cordon,
    /// A foreign condition, as every kubelet writes.
    Heartbeat,
    /// Another gate drains it.
    Drain,
    /// A client removes a foreign taint and adds another.
    Retaint,
    /// The right to write is lost.
    Forbid,
}

/// A fence that performs these events, one at each check.
#[derive(Debug)]
struct Meanwhile {
    lab: control::sources::kubernetes::KubernetesClientConfig,
    name: String,
    deeds: Mutex<VecDeque<Deed>>,
    asked: Mutex<usize>,
}

impl WriteFence for Meanwhile {
    fn check<'a>(&'a self) -> SchedulerFuture<'a, ()> {
        Box::pin(async move {
            let asked = {
                let mut asked = self.asked.lock().expect("a count");
                *asked += 1;
                *asked
            };
            let deed = self.deeds.lock().expect("deeds").pop_front().unwrap_or(Deed::Nothing);
            let server = Server::of(self.lab.kubeconfig.as_deref().expect("a file")).await;
            let path = format!("{NODES}/{}", self.name);
            match deed {
                Deed::Nothing => {}
                Deed::Delete => server.delete(&path).await,
                Deed::Replace => {
                    server.delete(&path).await;
                    server.create(NODES, &plain_node(&self.name)).await;
                    server.status(&path, &status(&format!("boot-{}", self.name))).await;
                }
                Deed::Cordon => {
                    server.merge(&path, &json!({"spec": {"unschedulable": true}})).await;
                }
                Deed::Heartbeat => {
                    let beat = json!({"conditions": [{"type": "GPUReady", "status": "True",
                        "reason": "Beat", "message": format!("beat {asked}")}]});
                    server.status(&path, &beat).await;
                }
                Deed::Drain => {
                    let taint = json!([{"key": DEGRADED, "value": "other",
                        "effect": "NoSchedule"}]);
                    let reason = json!({REASON: "fabricgate:other:r9 e9"});
                    server
                        .merge(
                            &path,
                            &json!({"metadata": {"annotations": reason},
                        "spec": {"taints": taint}}),
                        )
                        .await;
                }
                Deed::Retaint => {
                    let taint = json!([{"key": "dedicated", "effect": "NoSchedule"}]);
                    server.merge(&path, &json!({"spec": {"taints": taint}})).await;
                }
                Deed::Forbid => {
                    let why = "the lease is another's";
                    return Err(SchedulerError::new(SourceProblemKind::Denied, why));
                }
            }
            Ok(())
        })
    }
}

/// Drains and certifies a node as it was read, while these events happen to it.
async fn meanwhile(lab: &Lab, server: &Server, name: &str, deeds: &[Deed]) -> Case {
    add_plain(server, &[name.to_owned()]).await;
    let fence = Arc::new(Meanwhile {
        lab: lab.asks_as("admin"),
        name: name.to_owned(),
        deeds: Mutex::new(deeds.iter().cloned().collect()),
        asked: Mutex::new(0),
    });
    let gate = KubernetesScheduler::new(lab.asks_as("admin")).with_fence(fence.clone());
    let nodes = [NodeName::from(name)];
    let seen = gate.read_nodes(&nodes).await.expect("an answer");
    let kubernetes = certify("a").kubernetes;
    let change = NodeUpdate { kubernetes, ..drain() };
    let answer = gate.update_nodes_if_unchanged(&nodes, &change, &seen).await;
    let asked = *fence.asked.lock().expect("a count");
    Case { answer, asked, node: server.get(&format!("{NODES}/{name}")).await }
}

#[derive(Debug)]
struct Case {
    answer: Result<(), SchedulerError>,
    asked: usize,
    node: Option<Value>,
}

impl Case {
    fn refused(&self, kind: SourceProblemKind, words: &str) {
        let error = self.answer.as_ref().expect_err("refused");
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.message.contains(words), "{error}");
    }

    /// True if the node carries any of fabricgate's fields.
    fn is_written(&self) -> bool {
        let node = self.node.as_ref().expect("a node");
        let kept = json!([
            node["metadata"]["labels"],
            node["metadata"]["annotations"],
            node["spec"]["taints"]
        ]);
        kept.to_string().contains(FABRICGATE_PREFIX) || own_condition(node).is_some()
    }
}

#[tokio::test]
async fn a_change_of_a_node_between_reading_and_writing_decides() {
    let Some(lab) = lab() else { return };
    let server = lab.admin().await;
    use SourceProblemKind::*;

    let calm = meanwhile(&lab, &server, "chm-calm", &[]).await;
    calm.answer.clone().expect("written");
    assert_eq!((calm.asked, calm.is_written()), (2, true), "metadata, then the condition");

    let gone = meanwhile(&lab, &server, "chm-gone", &[Deed::Delete]).await;
    gone.refused(Missing, "none is created");
    assert!(gone.node.is_none(), "no ghost: {gone:?}");

    let other = meanwhile(&lab, &server, "chm-other", &[Deed::Replace]).await;
    other.refused(Contradictory, "another node has its name");
    assert!(!other.is_written(), "{other:?}");

    // Between metadata and condition.
    let late = meanwhile(&lab, &server, "chm-late", &[Deed::Nothing, Deed::Replace]).await;
    late.refused(Contradictory, "its condition is not written");
    assert!(!late.is_written(), "{late:?}");
    let late = meanwhile(&lab, &server, "chm-late2", &[Deed::Nothing, Deed::Delete]).await;
    late.refused(Missing, "its condition is not written");
    assert!(late.node.is_none(), "{late:?}");

    let cordoned = meanwhile(&lab, &server, "chm-cordon", &[Deed::Cordon]).await;
    cordoned.refused(Contradictory, "CORDONED");
    assert!(!cordoned.is_written(), "{cordoned:?}");

    let drained = meanwhile(&lab, &server, "chm-drain", &[Deed::Drain]).await;
    drained.refused(Contradictory, "drained already");
    let node = drained.node.as_ref().expect("a node");
    assert_eq!(node["metadata"]["annotations"][REASON], "fabricgate:other:r9 e9");
    assert!(node["metadata"]["labels"].get(VERDICT).is_none(), "{node}");

    let beats = [Deed::Heartbeat, Deed::Heartbeat, Deed::Retaint];
    let beaten = meanwhile(&lab, &server, "chm-beat", &beats).await;
    beaten.answer.clone().expect("written");
    assert_eq!(beaten.asked, 5, "three conflicts, then both patches");
    let taints = beaten.node.as_ref().expect("a node")["spec"]["taints"].clone();
    let keys: Vec<&str> =
        taints.as_array().expect("taints").iter().filter_map(|it| it["key"].as_str()).collect();
    assert_eq!(keys, ["dedicated", DEGRADED]);

    let forbidden = meanwhile(&lab, &server, "chm-lost", &[Deed::Forbid]).await;
    forbidden.refused(Denied, "the lease is another's");
    assert!(!forbidden.is_written(), "{forbidden:?}");
    let half = meanwhile(&lab, &server, "chm-half", &[Deed::Nothing, Deed::Forbid]).await;
    half.refused(Denied, "the lease is another's");
    assert!(own_condition(half.node.as_ref().expect("a node")).is_none());

    let all = ["calm", "gone", "other", "late", "late2", "cordon", "drain", "beat", "lost", "half"];
    remove(&server, &all.map(|it| format!("chm-{it}"))).await;
}

#[tokio::test]
async fn a_node_that_became_another_since_it_was_read_is_not_written() {
    let Some(lab) = lab() else { return };
    let (server, gate) = (lab.admin().await, gate(&lab));
    let names: Vec<String> = (0..4).map(|it| format!("chs-{it}")).collect();
    add_plain(&server, &names).await;
    let seen = read(&gate, &names).await;
    // One reboots, one is replaced, one goes, one stays.
    server.status(&format!("{NODES}/chs-0"), &status("boot-two")).await;
    add_plain(&server, &names[1..2]).await;
    remove(&server, &names[2..3]).await;
    let error = gate
        .update_nodes_if_unchanged(&named(&names), &drain(), &seen)
        .await
        .expect_err("three fail");
    for words in [
        "3 of 4 nodes",
        "chs-0: it changed after this was decided",
        "booted since",
        "chs-1: another node has its name",
        "chs-2: the cluster has no such node",
    ] {
        assert!(error.message.contains(words), "{words}: {error}");
    }
    let live = read(&gate, &names).await;
    let drained = live.nodes.values().filter(|node| node.has_state("DRAIN"));
    let drained: Vec<&str> = drained.map(|node| node.name.as_str()).collect();
    assert_eq!(drained, ["chs-3"]);
    assert!(server.get(&format!("{NODES}/chs-2")).await.is_none(), "no ghost");
    remove(&server, &names).await;
}

#[tokio::test]
async fn many_nodes_are_read_and_written_concurrently() {
    let Some(lab) = lab() else { return };
    let (server, gate) = (lab.admin().await, gate(&lab));
    let names: Vec<String> = (0..60).map(|it| format!("chw-{it:02}")).collect();
    for name in &names {
        let path = format!("{NODES}/{name}");
        server.delete(&path).await;
        server.create(NODES, &plain_node(name)).await;
        server.status(&path, &status("b")).await;
    }
    server.wait_until_ready(&names).await;
    let seen = read(&gate, &names).await;
    assert_eq!(seen.nodes.len(), names.len());
    gate.update_nodes_if_unchanged(&named(&names), &drain(), &seen).await.expect("drained");
    let live = read(&gate, &names).await;
    assert!(live.nodes.values().all(|node| node.reason.as_deref() == Some(OURS)));
    gate.update_nodes_if_unchanged(&named(&names), &resume(), &live).await.expect("given back");
    let live = read(&gate, &names).await;
    assert!(live.nodes.values().all(|node| !node.has_state("DRAIN")));
    remove(&server, &names).await;
}
