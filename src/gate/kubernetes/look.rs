//! Reads nodes, and which of them pods hold.
//!
//! Nothing is taken from a cache: every question is answered from what the
//! server has stored last. Whoever may not see pods is told so, and then no node
//! is idle.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::rc::Rc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;
use tokio::task::JoinError;
use tokio::task::JoinSet;

use super::desk::Desk;
use super::desk::Refused;
use crate::gate::scheduler::SchedulerError;
use crate::inventory::kubernetes::live;
use crate::inventory::kubernetes::live::Pods;
use crate::inventory::kubernetes::pods;
use crate::inventory::kubernetes::pods::OnNode;
use crate::model::id::NodeName;
use crate::model::live::Live;
use crate::model::live::LiveNode;
use crate::model::said::ProblemKind;
use crate::model::text::clean;

/// So many nodes are asked for one by one, each with its pods; for more, the
/// whole lists are cheaper.
const FEW: usize = 32;

/// What is read of pods while pages come in.
type OnNodes = BTreeMap<NodeName, OnNode>;

/// These nodes, or all where none is named.
pub(super) async fn look(desk: Rc<Desk>, nodes: &[NodeName]) -> Result<Live, SchedulerError> {
    if nodes.is_empty() || FEW < nodes.len() {
        return all(&desk, nodes).await;
    }
    let mut reading = JoinSet::new();
    for name in nodes {
        // A name that no node can have is the name of none.
        if !is_name(name) {
            continue;
        }
        let (desk, name) = (desk.clone(), name.clone());
        reading.spawn_local(async move {
            let _turn = desk.turn().await;
            one(&desk, &name).await
        });
    }
    let mut live = Live::default();
    while let Some(read) = reading.join_next().await {
        // An error drops the set, and with it whatever is still being asked.
        let (node, trouble) = read.map_err(|error| ended(&error))??;
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

/// A task that panicked.
pub(super) fn ended(error: &JoinError) -> SchedulerError {
    let message = clean(&format!("a question to the API server ended: {error}"));
    SchedulerError::new(ProblemKind::Unreachable, message)
}

async fn one(
    desk: &Desk,
    name: &NodeName,
) -> Result<(Option<LiveNode>, Option<String>), SchedulerError> {
    let Some(object) = desk.node(name.as_str()).await? else { return Ok((None, None)) };
    let mut found = OnNodes::new();
    let mut unread = Vec::new();
    let read = desk.pods(Some(name.as_str()), |page| add(&mut found, &mut unread, page)).await;
    let trouble = pods_trouble(read, &unread)?;
    let pods = if trouble.is_none() { Pods::Read(&found) } else { Pods::Unknown };
    match node(object, pods) {
        Ok(node) => Ok((Some(node), trouble)),
        Err(why) => Ok((None, Some(why))),
    }
}

async fn all(desk: &Desk, wanted: &[NodeName]) -> Result<Live, SchedulerError> {
    let mut found = OnNodes::new();
    let mut unread = Vec::new();
    // Before the nodes: a pod that came in between is seen by whoever asks again,
    // and a node that came in between has none that we know of.
    let read = desk.pods(None, |page| add(&mut found, &mut unread, page)).await;
    let trouble = pods_trouble(read, &unread)?;
    let pods = if trouble.is_none() { Pods::Read(&found) } else { Pods::Unknown };
    let wanted: BTreeSet<&str> = wanted.iter().map(NodeName::as_str).collect();
    let mut live = Live { troubles: trouble.into_iter().collect(), ..Live::default() };
    desk.nodes(|page| {
        for object in page {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            if !wanted.is_empty() && !wanted.contains(name) {
                continue;
            }
            match node(object, pods) {
                Ok(node) => drop(live.nodes.insert(node.name.clone(), node)),
                Err(why) => live.troubles.push(why),
            }
        }
    })
    .await?;
    Ok(live)
}

fn add(found: &mut OnNodes, unread: &mut Vec<String>, page: Vec<Value>) {
    let mut read: Vec<Pod> = Vec::new();
    for pod in page {
        match serde_json::from_value(pod) {
            Ok(pod) => read.push(pod),
            Err(error) => unread.push(clean(&error.to_string())),
        }
    }
    for (name, more) in pods::read(&read) {
        let known = found.entry(name).or_default();
        known.gpu_pods.extend(more.gpu_pods);
        known.gangs.extend(more.gangs);
        known.ours.extend(more.ours);
        known.slinky |= more.slinky;
    }
}

/// What is told where pods were not read, or not all. A server that does not
/// answer is an error: then nodes say nothing either.
fn pods_trouble(read: Result<(), Refused>, unread: &[String]) -> Result<Option<String>, Refused> {
    let why = match read {
        Ok(()) => match unread.first() {
            None => return Ok(None),
            Some(why) => format!("a pod cannot be read: {why}"),
        },
        Err(refused) if refused.status == Some(403) => refused.message,
        Err(refused) => return Err(refused),
    };
    Ok(Some(format!("pods were not read, so nobody is known to be idle: {why}")))
}

/// A node as it is told; an object that cannot be read is told as a trouble.
pub(super) fn node(object: Value, pods: Pods<'_>) -> Result<LiveNode, String> {
    let name = clean(object["metadata"]["name"].as_str().unwrap_or("without a name"));
    let read: Result<Node, serde_json::Error> = serde_json::from_value(object);
    let read = read.map_err(|error| format!("node {name}: {}", clean(&error.to_string())))?;
    live::node(&read, pods).ok_or_else(|| "a node without a name".to_owned())
}

/// Whether an object can have this name (RFC 1123, as API servers check it):
/// nothing else is put into a path.
pub(super) fn is_name(name: &NodeName) -> bool {
    const LONGEST: usize = 253;
    let name = name.as_str();
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    let ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= LONGEST
        && name.chars().all(fits)
        && name.starts_with(ends)
        && name.ends_with(ends)
}
