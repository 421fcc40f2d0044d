//! Says again what Slurm forgot: features, and places in a topology, vanish at
//! every reconfigure and restart. At the start of every turn.
//!
//! What was forgotten, `act` says. Nodes are read once more right before they
//! are written, because lists of features are written whole.

use std::collections::BTreeMap;

use super::scheduler::Scheduler;
use super::scheduler::SchedulerError;
use crate::act::ledger::Ledger;
use crate::act::marks;
use crate::act::marks::MarkNames;
use crate::model::action::ActionResult;
use crate::model::change::Change;
use crate::model::id::NodeName;
use crate::model::live::Live;
use crate::model::live::LiveNode;

/// What became of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reasserted {
    /// The node.
    pub node: NodeName,
    /// What was written, or was to be.
    pub change: Change,
    /// How it ended.
    pub result: ActionResult,
    /// In words.
    pub detail: String,
}

/// Says again on nodes what the journal has and they lost. Nothing is asked and
/// nothing written where `live` has lost nothing.
pub async fn reassert(
    scheduler: &dyn Scheduler,
    live: &Live,
    ledger: &Ledger,
    names: &MarkNames,
) -> Vec<Reasserted> {
    let lost = marks::forgotten(live, ledger, names);
    if lost.is_empty() {
        return Vec::new();
    }
    let nodes: Vec<NodeName> = lost.iter().map(|(node, _)| node.clone()).collect();
    let fresh = match scheduler.read(&nodes).await {
        Ok(fresh) => fresh,
        Err(error) => {
            let why = format!("not read right before, so nothing was written: {error}");
            let refused =
                |(node, change)| Reasserted::new(node, change, ActionResult::Refused, &why);
            return lost.into_iter().map(refused).collect();
        }
    };
    let still: BTreeMap<NodeName, Change> =
        marks::forgotten(&fresh, ledger, names).into_iter().collect();
    let mut told = Vec::new();
    let mut wanted = Vec::new();
    for (node, change) in lost {
        match still.get(&node) {
            Some(change) => wanted.push((node, change.clone())),
            None => {
                let why = "it says so again, or is no longer ours to write";
                told.push(Reasserted::new(node, change, ActionResult::Already, why));
            }
        }
    }
    told.extend(write(scheduler, wanted).await);
    told.sort_by(|a, b| a.node.cmp(&b.node));
    told
}

/// Writes these changes, as many nodes at a time as get the same one, and looks
/// whether they show.
pub async fn write(scheduler: &dyn Scheduler, wanted: Vec<(NodeName, Change)>) -> Vec<Reasserted> {
    let mut groups: BTreeMap<Change, Vec<NodeName>> = BTreeMap::new();
    for (node, change) in wanted {
        groups.entry(change).or_default().push(node);
    }
    let mut told = Vec::new();
    let mut answers: Vec<(Vec<NodeName>, Change, Option<SchedulerError>)> = Vec::new();
    for (change, nodes) in groups {
        let error = scheduler.change(&nodes, &change).await.err();
        answers.push((nodes, change, error));
    }
    let all: Vec<NodeName> = answers.iter().flat_map(|(nodes, ..)| nodes).cloned().collect();
    if all.is_empty() {
        return told;
    }
    let seen = scheduler.read(&all).await;
    for (nodes, change, error) in answers {
        let complaint = error.map(|error| format!(", and it said: {error}")).unwrap_or_default();
        for node in nodes {
            let shown = seen.as_ref().map(|live| live.nodes.get(&node));
            let (result, detail) = match shown {
                Ok(Some(live)) if shows(live, &change) => {
                    (ActionResult::Done, format!("it shows{complaint}"))
                }
                Ok(Some(_)) if complaint.is_empty() => {
                    (ActionResult::Unknown, "it was accepted and does not show yet".to_owned())
                }
                Ok(Some(_)) => (ActionResult::Failed, format!("it does not show{complaint}")),
                Ok(None) => (ActionResult::Failed, format!("the node is gone{complaint}")),
                Err(error) => (ActionResult::Unknown, format!("not read after: {error}")),
            };
            told.push(Reasserted::new(node, change.clone(), result, &detail));
        }
    }
    told.sort_by(|a, b| a.node.cmp(&b.node));
    told
}

impl Reasserted {
    fn new(node: NodeName, change: Change, result: ActionResult, detail: &str) -> Self {
        Self { node, change, result, detail: detail.to_owned() }
    }
}

/// Whether the node shows what was written; a state is not looked at.
fn shows(node: &LiveNode, change: &Change) -> bool {
    let list = |wanted: &Option<Vec<String>>, own: &Vec<String>| {
        wanted.as_ref().is_none_or(|wanted| wanted == own)
    };
    list(&change.available_features, &node.available_features)
        && list(&change.active_features, &node.active_features)
        && change.extra.as_ref().is_none_or(|extra| *extra == node.extra)
        && change.comment.as_ref().is_none_or(|comment| *comment == node.comment)
        && change.topology.as_ref().is_none_or(|place| node.topology.as_ref() == Some(place))
}
