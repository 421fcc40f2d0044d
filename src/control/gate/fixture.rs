//! A scheduler in memory, for tests of whoever carries plans out: it does as it
//! is told, and can be told to misbehave as Slurm was seen to.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

use super::journal::Journal;
use super::request_validation;
use super::scheduler::{Scheduler, SchedulerError, SchedulerFuture};
use model::action::{Action, ActionKind, ActionPlan, VerdictMark};
use model::certificate::{Certificate, MachineIdentity};
use model::finding_class::FindingClass;
use model::id::NodeName;
use model::node_update::{NodeStateChange, NodeUpdate};
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::source_report::SourceProblemKind;
use model::verdict::Outcome;

/// How one call of `change` goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FakeFailure {
    /// As it should.
    None,
    /// Refused, nothing done.
    Denied,
    /// No answer in time, and done.
    LateAndDone,
    /// No answer in time, and not done.
    LateAndLost,
    /// Acknowledged and not done.
    AckedAndLost,
    /// The list holds a node that is not known: the others are changed.
    InPart,
    /// Done, and then nobody answers any more.
    ThenSilent,
}

/// A scheduler in memory.
#[derive(Debug, Default)]
pub(super) struct FakeScheduler {
    pub(super) nodes: RefCell<BTreeMap<NodeName, SchedulerNode>>,
    pub(super) silent: Cell<bool>,
    /// What of its answers cannot be read.
    pub(super) troubles: RefCell<Vec<String>>,
    /// What was changed, in calls.
    pub(super) calls: RefCell<Vec<(Vec<NodeName>, NodeUpdate)>>,
    /// How the next calls go.
    pub(super) failures: RefCell<VecDeque<FakeFailure>>,
    /// What somebody else does to nodes right before the next readings.
    pub(super) foreign_changes: RefCell<VecDeque<Vec<SchedulerNode>>>,
    /// When it started; a different one each time that it is asked, the last one again.
    pub(super) controller_starts: RefCell<VecDeque<String>>,
    /// Conditions of nodes of Kubernetes are taken.
    pub(super) takes_conditions: Cell<bool>,
}

impl FakeScheduler {
    /// So many idle nodes, `n1` and on.
    pub(super) fn with_nodes(count: usize) -> Self {
        let fake = Self::default();
        for number in 1..=count {
            fake.put(SchedulerNode::new(format!("n{number}"), &["IDLE"]));
        }
        fake
    }

    pub(super) fn put(&self, node: SchedulerNode) {
        self.nodes.borrow_mut().insert(node.name.clone(), node);
    }

    pub(super) fn node(&self, name: &str) -> SchedulerNode {
        self.nodes.borrow()[&NodeName::from(name)].clone()
    }

    /// A drain by somebody's hand.
    pub(super) fn drained_node(name: &str, reason: &str) -> SchedulerNode {
        let reason = Some(reason.to_owned());
        SchedulerNode { reason, ..SchedulerNode::new(name, &["IDLE", "DRAIN"]) }
    }

    /// Names of the nodes in each call.
    pub(super) fn changed_nodes(&self) -> Vec<Vec<String>> {
        let names = |(nodes, _): &(Vec<NodeName>, NodeUpdate)| {
            nodes.iter().map(|node| node.as_str().to_owned()).collect()
        };
        self.calls.borrow().iter().map(names).collect()
    }

    fn apply_change(&self, nodes: &[NodeName], change: &NodeUpdate) {
        let mut all = self.nodes.borrow_mut();
        for name in nodes {
            let Some(node) = all.get_mut(name) else { continue };
            match &change.state {
                Some(NodeStateChange::Drain { reason }) => {
                    node.state.retain(|word| word != "DRAIN");
                    node.state.push("DRAIN".to_owned());
                    node.reason = Some(reason.clone());
                }
                Some(NodeStateChange::Resume) => {
                    node.state.retain(|word| word != "DRAIN");
                    node.reason = None;
                }
                None => {}
            }
            if let Some(features) = &change.available_features {
                node.available_features.clone_from(features);
            }
            if let Some(features) = &change.active_features {
                node.active_features.clone_from(features);
            }
            if let Some(extra) = &change.extra {
                node.extra.clone_from(extra);
            }
            if let (Some(marks), Some(seen)) = (&change.kubernetes, &mut node.kubernetes) {
                if self.takes_conditions.get() && marks.condition.is_some() {
                    seen.condition.clone_from(&marks.condition);
                }
                for (key, value) in &marks.labels {
                    match value {
                        Some(value) => drop(seen.labels.insert(key.clone(), value.clone())),
                        None => drop(seen.labels.remove(key)),
                    }
                }
                for (key, value) in &marks.annotations {
                    match value {
                        Some(value) => drop(seen.annotations.insert(key.clone(), value.clone())),
                        None => drop(seen.annotations.remove(key)),
                    }
                }
            }
        }
    }
}

fn timeout_error() -> SchedulerError {
    SchedulerError::new(SourceProblemKind::Unreachable, "Socket timed out on send/recv operation")
}

impl Scheduler for FakeScheduler {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn read_nodes<'a>(&'a self, nodes: &'a [NodeName]) -> SchedulerFuture<'a, SchedulerSnapshot> {
        Box::pin(async move {
            request_validation::check_node_names(nodes)?;
            if self.silent.get() {
                return Err(timeout_error());
            }
            for node in self.foreign_changes.borrow_mut().pop_front().unwrap_or_default() {
                self.put(node);
            }
            let all = self.nodes.borrow();
            let asked = |name: &NodeName| nodes.is_empty() || nodes.contains(name);
            let told = all.iter().filter(|(name, _)| asked(name));
            let nodes = told.map(|(name, node)| (name.clone(), node.clone())).collect();
            Ok(SchedulerSnapshot { nodes, troubles: self.troubles.borrow().clone() })
        })
    }

    fn read_start_time(&self) -> SchedulerFuture<'_, Option<String>> {
        let mut starts = self.controller_starts.borrow_mut();
        let now = if 1 < starts.len() { starts.pop_front() } else { starts.front().cloned() };
        Box::pin(async move { Ok(now) })
    }

    fn update_nodes<'a>(
        &'a self,
        nodes: &'a [NodeName],
        change: &'a NodeUpdate,
    ) -> SchedulerFuture<'a, ()> {
        Box::pin(async move {
            self.calls.borrow_mut().push((nodes.to_vec(), change.clone()));
            let mishap = self.failures.borrow_mut().pop_front().unwrap_or(FakeFailure::None);
            match mishap {
                FakeFailure::Denied => {
                    return Err(SchedulerError::new(SourceProblemKind::Denied, "Invalid user id"));
                }
                FakeFailure::LateAndLost => return Err(timeout_error()),
                FakeFailure::AckedAndLost => return Ok(()),
                FakeFailure::None
                | FakeFailure::LateAndDone
                | FakeFailure::InPart
                | FakeFailure::ThenSilent => {}
            }
            self.apply_change(nodes, change);
            match mishap {
                FakeFailure::LateAndDone => Err(timeout_error()),
                FakeFailure::InPart => Err(SchedulerError::new(
                    SourceProblemKind::Missing,
                    "Invalid node name specified",
                )),
                FakeFailure::ThenSilent => {
                    self.silent.set(true);
                    Ok(())
                }
                _ => Ok(()),
            }
        })
    }

    fn command_lines(&self, nodes: &[NodeName], _change: &NodeUpdate) -> Vec<Vec<String>> {
        vec![nodes.iter().map(|node| format!("change {node}")).collect()]
    }
}

/// An action of run `r1`.
pub(super) fn action(kind: ActionKind, node: &str) -> Action {
    let (outcome, class) = match kind {
        ActionKind::Drain => (Outcome::Failed, Some(FindingClass::NvlinkLow)),
        ActionKind::Relabel => (Outcome::Degraded, Some(FindingClass::NvlinkLow)),
        ActionKind::Release | ActionKind::Certify => (Outcome::Pass, None),
    };
    Action {
        domain: Some("block01".into()),
        mark: Some(VerdictMark {
            outcome,
            class,
            run: "r1".to_owned(),
            at: "2026-01-01T00:00:00Z".to_owned(),
            expires: None,
            boot_id: None,
            domain: None,
        }),
        findings: vec!["f1".to_owned()],
        why: "it is slow".to_owned(),
        ..Action::new(kind, node)
    }
}

pub(super) fn plan(actions: Vec<Action>) -> ActionPlan {
    ActionPlan { dry_run: false, ..ActionPlan::from_actions(actions) }
}

/// A state folder with its first turn begun.
pub(super) fn journal() -> (tempfile::TempDir, Journal) {
    let folder = tempfile::tempdir().expect("a folder");
    let journal = Journal::open(folder.path()).expect("opened");
    (folder, journal)
}

/// Waits for work, without anybody beside.
pub(super) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

/// When certificates of these tests were issued.
pub(super) const ISSUED_AT: i64 = 1_772_600_767;

/// A certificate of a node.
pub(super) fn certificate(node: &str) -> Certificate {
    let identity = MachineIdentity {
        gpus: vec!["GPU-a".to_owned()],
        boot_id: Some("b".to_owned()),
        driver: None,
        firmware: BTreeMap::new(),
    };
    let expires = ISSUED_AT + 7 * 86_400;
    Certificate {
        identity,
        detectable: Some(0.01),
        ..Certificate::unsigned(node.into(), ISSUED_AT, expires)
    }
}
