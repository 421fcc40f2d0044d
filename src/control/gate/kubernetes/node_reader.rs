//! Reads nodes and the pods that hold their GPUs.
//!
//! Uses no cache: every read returns the server's latest stored state. Without permission
//! to read pods, the problem is reported and no node counts as idle.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::Value;
use tokio::task::{JoinError, JoinSet};

use super::client::{ApiRequestFailure, KubernetesApiClient};
use crate::gate::scheduler::SchedulerError;
use model::id::NodeName;
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::source_report::SourceProblemKind;
use model::text::clean;
use readers::claims::kubernetes::live_node::PodsByNode;
use readers::claims::kubernetes::pods::NodePods;
use readers::claims::kubernetes::{live_node, pods};

/// Up to this number, nodes are read one by one, each with its pods; above it, whole
/// lists are cheaper.
const MAX_SINGLE_READS: usize = 32;

/// Pods per node, collected over all pages.
type PodsByNodeName = BTreeMap<NodeName, NodePods>;

/// Reads these nodes, or all if the list is empty.
pub(super) async fn read_nodes(
    client: Rc<KubernetesApiClient>,
    nodes: &[NodeName],
) -> Result<SchedulerSnapshot, SchedulerError> {
    if nodes.is_empty() || MAX_SINGLE_READS < nodes.len() {
        return read_all_nodes(&client, nodes).await;
    }
    let mut reading = JoinSet::new();
    for name in nodes {
        // An invalid object name cannot belong to a node.
        if !is_object_name(name) {
            continue;
        }
        let (client, name) = (client.clone(), name.clone());
        reading.spawn_local(async move {
            let _turn = client.node_permit().await;
            read_one_node(&client, &name).await
        });
    }
    let mut live = SchedulerSnapshot::default();
    while let Some(read) = reading.join_next().await {
        // Returning an error drops the set and cancels the remaining reads.
        let (node, trouble) = read.map_err(|error| join_failure(&error))??;
        if let Some(node) = node {
            live.nodes.insert(node.name.clone(), node);
        }
        if let Some(trouble) = trouble
            && !live.troubles.contains(&trouble)
        {
            live.troubles.push(trouble);
        }
    }
    Ok(live)
}

/// The error of a panicked task.
pub(super) fn join_failure(error: &JoinError) -> SchedulerError {
    let message = clean(&format!("a request to the API server ended: {error}"));
    SchedulerError::new(SourceProblemKind::Unreachable, message)
}

async fn read_one_node(
    client: &KubernetesApiClient,
    name: &NodeName,
) -> Result<(Option<SchedulerNode>, Option<String>), SchedulerError> {
    let Some(object) = client.read_node(name.as_str()).await? else { return Ok((None, None)) };
    let mut found = PodsByNodeName::new();
    let mut unread = Vec::new();
    let read =
        client.read_pods(Some(name.as_str()), |page| add_pods(&mut found, &mut unread, page)).await;
    let trouble = explain_pods_unread(read, &unread)?;
    let pods = if trouble.is_none() { PodsByNode::Known(&found) } else { PodsByNode::Unknown };
    match parse_node(object, pods) {
        Ok(node) => Ok((Some(node), trouble)),
        Err(why) => Ok((None, Some(why))),
    }
}

async fn read_all_nodes(
    client: &KubernetesApiClient,
    wanted: &[NodeName],
) -> Result<SchedulerSnapshot, SchedulerError> {
    let mut found = PodsByNodeName::new();
    let mut unread = Vec::new();
    // Pods before nodes: the next read shows a pod that started in between, and a node
    // that joined in between has no known pods.
    let read = client.read_pods(None, |page| add_pods(&mut found, &mut unread, page)).await;
    let trouble = explain_pods_unread(read, &unread)?;
    let pods = if trouble.is_none() { PodsByNode::Known(&found) } else { PodsByNode::Unknown };
    let wanted: BTreeSet<&str> = wanted.iter().map(NodeName::as_str).collect();
    let mut live = SchedulerSnapshot {
        troubles: trouble.into_iter().collect(),
        ..SchedulerSnapshot::default()
    };
    client
        .read_nodes(|page| {
            for object in page {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                if !wanted.is_empty() && !wanted.contains(name) {
                    continue;
                }
                match parse_node(object, pods) {
                    Ok(node) => drop(live.nodes.insert(node.name.clone(), node)),
                    Err(why) => live.troubles.push(why),
                }
            }
        })
        .await?;
    Ok(live)
}

fn add_pods(found: &mut PodsByNodeName, unread: &mut Vec<String>, page: Vec<Value>) {
    let mut read: Vec<Pod> = Vec::new();
    for pod in page {
        match serde_json::from_value(pod) {
            Ok(pod) => read.push(pod),
            Err(error) => unread.push(clean(&error.to_string())),
        }
    }
    for (name, more) in pods::pods_by_node(&read) {
        let known = found.entry(name).or_default();
        known.gpu_pods.extend(more.gpu_pods);
        known.gangs.extend(more.gangs);
        known.own_pods.extend(more.own_pods);
        known.slinky |= more.slinky;
    }
}

/// The problem if some or all pods could not be read. No answer at all is an error,
/// because nodes cannot be read then either.
fn explain_pods_unread(
    read: Result<(), ApiRequestFailure>,
    unread: &[String],
) -> Result<Option<String>, ApiRequestFailure> {
    let why = match read {
        Ok(()) => match unread.first() {
            None => return Ok(None),
            Some(why) => format!("a pod cannot be read: {why}"),
        },
        Err(refused) if refused.status == Some(403) => refused.message,
        Err(refused) => return Err(refused),
    };
    Ok(Some(format!("pods were not read, so no node counts as idle: {why}")))
}

/// Parses a node; the error describes an unreadable object.
pub(super) fn parse_node(object: Value, pods: PodsByNode<'_>) -> Result<SchedulerNode, String> {
    let name = clean(object["metadata"]["name"].as_str().unwrap_or("without a name"));
    let read: Result<Node, serde_json::Error> = serde_json::from_value(object);
    let read = read.map_err(|error| format!("node {name}: {}", clean(&error.to_string())))?;
    live_node::to_live_node(&read, pods).ok_or_else(|| "a node without a name".to_owned())
}

/// Whether an object can have this name (RFC 1123, as API servers check it). No other
/// name is put into a path.
pub(super) fn is_object_name(name: &NodeName) -> bool {
    const LONGEST: usize = 253;
    let name = name.as_str();
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    let ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= LONGEST
        && name.chars().all(fits)
        && name.starts_with(ends)
        && name.ends_with(ends)
}
