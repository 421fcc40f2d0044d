//! An in-memory scheduler for tests of plan execution. It can reproduce faults observed
//! in Slurm.

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

/// The fault of one change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FakeFailure {
    /// No fault.
    None,
    /// Refused without effect.
    Denied,
    /// A timeout, but applied.
    LateAndDone,
    /// A timeout, not applied.
    LateAndLost,
    /// Acknowledged, not applied.
    AckedAndLost,
    /// An unknown node in the list: the others are changed.
    InPart,
    /// Applied; after that every call times out.
    ThenSilent,
}

#[derive(Debug, Default)]
pub(super) struct FakeScheduler {
    pub(super) nodes: RefCell<BTreeMap<NodeName, SchedulerNode>>,
    pub(super) silent: Cell<bool>,
    /// Unreadable parts of its answers.
    pub(super) troubles: RefCell<Vec<String>>,
    /// Every call that changed nodes.
    pub(super) calls: RefCell<Vec<(Vec<NodeName>, NodeUpdate)>>,
    /// Faults of the next changes.
    pub(super) failures: RefCell<VecDeque<FakeFailure>>,
    /// Changes by another writer right before the next readings.
    pub(super) foreign_changes: RefCell<VecDeque<Vec<SchedulerNode>>>,
    /// Its start times: one per call, the last one repeatedly.
    pub(super) controller_starts: RefCell<VecDeque<String>>,
    /// Whether it accepts conditions of Kubernetes nodes.
    pub(super) takes_conditions: Cell<bool>,
}

impl FakeScheduler {
    /// Idle nodes, `n1` to `n<count>`.
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
            let is_requested = |name: &NodeName| nodes.is_empty() || nodes.contains(name);
            let listed = all.iter().filter(|(name, _)| is_requested(name));
            let nodes = listed.map(|(name, node)| (name.clone(), node.clone())).collect();
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

/// Runs a future on a single-threaded runtime.
pub(super) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

/// When certificates of these tests were issued.
pub(super) const ISSUED_AT: i64 = 1_772_600_767;

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
