//! Restores marks at the start of every turn. Slurm drops features at every reconfigure
//! and restart; on Kubernetes, other writers edit marks, and marks expire.
//!
//! `engine::policy::marks` detects them. Nodes are read again right before the write,
//! because feature lists are written whole.

use std::collections::BTreeMap;

use super::clock;
use super::scheduler::{Scheduler, SchedulerError};
use super::verification::has_change;
use engine::policy::action_policy::Policy;
use engine::policy::journal_state::JournalState;
use engine::policy::marks;
use model::action::ActionResult;
use model::id::NodeName;
use model::journal::JournalEvent;
use model::node_update::NodeUpdate;
use model::scheduler_snapshot::SchedulerSnapshot;
use model::source_report::SourceProblemKind;

/// Result for one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReassertResult {
    /// The node with the marks.
    pub node: NodeName,
    /// The change that was written or attempted.
    pub change: NodeUpdate,
    /// The outcome.
    pub result: ActionResult,
    /// The outcome as text.
    pub detail: String,
}

/// Restores marks that the journal has and nodes lost. Makes no call if `live` has lost
/// none.
pub async fn reassert_marks(
    scheduler: &dyn Scheduler,
    live: &SchedulerSnapshot,
    ledger: &JournalState,
    policy: &Policy,
) -> Vec<ReassertResult> {
    let lost = marks::find_lost_marks(live, ledger, policy, &clock::now());
    if lost.is_empty() {
        return Vec::new();
    }
    let nodes: Vec<NodeName> = lost.iter().map(|(node, _)| node.clone()).collect();
    let fresh = match scheduler.read_nodes(&nodes).await {
        Ok(fresh) => fresh,
        Err(error) => {
            let why = format!("the reading right before failed, so nothing was written: {error}");
            let refused =
                |(node, change)| ReassertResult::new(node, change, ActionResult::Refused, &why);
            return lost.into_iter().map(refused).collect();
        }
    };
    let still: BTreeMap<NodeName, NodeUpdate> =
        marks::find_lost_marks(&fresh, ledger, policy, &clock::now()).into_iter().collect();
    let mut results = Vec::new();
    let mut wanted = Vec::new();
    for (node, change) in lost {
        match still.get(&node) {
            Some(change) => wanted.push((node, change.clone())),
            None => {
                let why = "already restored, or no longer to be written";
                results.push(ReassertResult::new(node, change, ActionResult::Already, why));
            }
        }
    }
    results.extend(write_marks(scheduler, wanted, &fresh).await);
    results.sort_by(|a, b| a.node.cmp(&b.node));
    results
}

/// Writes these changes, one call per distinct change, then reads the nodes to check
/// them.
pub async fn write_marks(
    scheduler: &dyn Scheduler,
    wanted: Vec<(NodeName, NodeUpdate)>,
    fresh: &SchedulerSnapshot,
) -> Vec<ReassertResult> {
    let mut groups: BTreeMap<NodeUpdate, Vec<NodeName>> = BTreeMap::new();
    for (node, change) in wanted {
        groups.entry(change).or_default().push(node);
    }
    let mut results = Vec::new();
    let mut answers: Vec<(Vec<NodeName>, NodeUpdate, Option<SchedulerError>)> = Vec::new();
    // Every unanswered call takes its full time limit while the journal is locked.
    let mut silent: Option<SchedulerError> = None;
    for (change, nodes) in groups {
        if let Some(error) = &silent {
            let why = format!("not tried, an earlier call got no answer: {error}");
            let refused =
                |node| ReassertResult::new(node, change.clone(), ActionResult::Refused, &why);
            results.extend(nodes.into_iter().map(refused));
            continue;
        }
        let error = scheduler.update_nodes_if_unchanged(&nodes, &change, fresh).await.err();
        silent = error.clone().filter(|error| error.kind == SourceProblemKind::Unreachable);
        answers.push((nodes, change, error));
    }
    let all: Vec<NodeName> = answers.iter().flat_map(|(nodes, ..)| nodes).cloned().collect();
    if all.is_empty() {
        return results;
    }
    let seen = scheduler.read_nodes(&all).await;
    let is_whole = seen.as_ref().is_ok_and(|live| live.troubles.is_empty());
    for (nodes, change, error) in answers {
        // After a timeout the scheduler may still apply it.
        let is_open = error.as_ref().is_none_or(|it| it.kind == SourceProblemKind::Unreachable);
        let complaint = error.map(|error| format!(", with the error: {error}")).unwrap_or_default();
        for node in nodes {
            let shown = seen.as_ref().map(|live| live.nodes.get(&node));
            let (result, detail) = match shown {
                Ok(Some(live)) if has_change(live, &change) => {
                    (ActionResult::Done, format!("as written{complaint}"))
                }
                Ok(Some(_)) if complaint.is_empty() => {
                    (ActionResult::Unknown, "accepted, but not visible yet".to_owned())
                }
                Ok(Some(_)) if is_open => {
                    (ActionResult::Unknown, format!("not visible yet{complaint}"))
                }
                Ok(Some(_)) => (ActionResult::Failed, format!("not visible{complaint}")),
                Ok(None) if is_open || !is_whole => {
                    (ActionResult::Unknown, format!("the node was not listed{complaint}"))
                }
                Ok(None) => (ActionResult::Failed, format!("the node is gone{complaint}")),
                Err(error) => (ActionResult::Unknown, format!("the check failed: {error}")),
            };
            results.push(ReassertResult::new(node, change.clone(), result, &detail));
        }
    }
    results.sort_by(|a, b| a.node.cmp(&b.node));
    results
}

/// Events for conditions that the server has now accepted.
pub fn condition_events(results: &[ReassertResult], ledger: &JournalState) -> Vec<JournalEvent> {
    let visible = results.iter().filter(|it| {
        let marks = it.change.kubernetes.as_ref();
        let is_there = matches!(it.result, ActionResult::Done | ActionResult::Already);
        is_there && marks.is_some_and(|marks| marks.condition.is_some())
    });
    let event = |it: &ReassertResult| {
        let id = ledger.unacknowledged.get(&it.node)?.clone();
        Some(JournalEvent::Condition { id, node: it.node.clone(), shown: true })
    };
    visible.filter_map(event).collect()
}

impl ReassertResult {
    fn new(node: NodeName, change: NodeUpdate, result: ActionResult, detail: &str) -> Self {
        Self { node, change, result, detail: detail.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::gate::scheduler::SchedulerFuture;
    use engine::policy::marks::MarkNames;
    use model::action::VerdictMark;
    use model::scheduler_snapshot::SchedulerNode;
    use model::verdict::Outcome;

    /// A scheduler that forgets marks, and fails as configured.
    #[derive(Debug, Default)]
    struct ForgetfulScheduler {
        live: RefCell<SchedulerSnapshot>,
        calls: RefCell<Vec<(Vec<NodeName>, NodeUpdate)>>,
        reads_fail: bool,
        /// Changes return an error, but these nodes are changed anyway.
        half: Option<usize>,
        /// Features are stored in a different order.
        sorts: bool,
    }

    impl Scheduler for ForgetfulScheduler {
        fn name(&self) -> String {
            "a made-up scheduler".to_owned()
        }

        fn read_nodes<'a>(
            &'a self,
            nodes: &'a [NodeName],
        ) -> SchedulerFuture<'a, SchedulerSnapshot> {
            let mut live = self.live.borrow().clone();
            live.nodes.retain(|name, _| nodes.contains(name));
            let error = SchedulerError::new(SourceProblemKind::Unreachable, "no answer");
            Box::pin(async move { if self.reads_fail { Err(error) } else { Ok(live) } })
        }

        fn update_nodes<'a>(
            &'a self,
            nodes: &'a [NodeName],
            change: &'a NodeUpdate,
        ) -> SchedulerFuture<'a, ()> {
            self.calls.borrow_mut().push((nodes.to_vec(), change.clone()));
            for name in &nodes[..self.half.unwrap_or(nodes.len())] {
                let mut live = self.live.borrow_mut();
                let node = live.nodes.get_mut(name).expect("a node");
                node.available_features = change.available_features.clone().expect("a list");
                node.active_features = change.active_features.clone().expect("a list");
                if self.sorts {
                    node.available_features.reverse();
                }
            }
            let error = SchedulerError::new(SourceProblemKind::Unreachable, "timed out");
            Box::pin(async move { if self.half.is_some() { Err(error) } else { Ok(()) } })
        }

        fn command_lines(&self, _: &[NodeName], _: &NodeUpdate) -> Vec<Vec<String>> {
            Vec::new()
        }
    }

    fn mark() -> VerdictMark {
        VerdictMark {
            outcome: Outcome::Degraded,
            class: None,
            run: "r".to_owned(),
            at: "t".to_owned(),
            expires: None,
            boot_id: None,
            domain: None,
        }
    }

    /// Three nodes that lost their features.
    fn scheduler_without_marks() -> (ForgetfulScheduler, JournalState) {
        let names = ["n1", "n2", "n3"].map(NodeName::from);
        let slurm = ForgetfulScheduler::default();
        let mut ledger = JournalState::default();
        for name in names {
            let mut node = SchedulerNode::new(name.as_str(), &["IDLE"]);
            let extra = marks::mark_change(&node, &mark(), &MarkNames::default()).extra;
            node.extra = extra.expect("a field");
            slurm.live.borrow_mut().nodes.insert(name.clone(), node);
            ledger.marks.insert(name, mark());
        }
        (slurm, ledger)
    }

    fn reassert_results(
        slurm: &ForgetfulScheduler,
        live: &SchedulerSnapshot,
        ledger: &JournalState,
    ) -> Vec<(String, ActionResult)> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let results = runtime.block_on(reassert_marks(slurm, live, ledger, &Policy::default()));
        results.iter().map(|it| (it.node.to_string(), it.result)).collect()
    }

    #[test]
    fn nodes_that_lost_the_same_share_one_call_and_the_second_turn_writes_nothing() {
        let (slurm, ledger) = scheduler_without_marks();
        let before = slurm.live.borrow().clone();
        let done = ["n1", "n2", "n3"].map(|name| (name.to_owned(), ActionResult::Done));
        assert_eq!(reassert_results(&slurm, &before, &ledger), done);
        assert_eq!(slurm.calls.borrow().len(), 1);
        let after = slurm.live.borrow().clone();
        assert_eq!(reassert_results(&slurm, &after, &ledger), []);
        assert_eq!(slurm.calls.borrow().len(), 1);
    }

    #[test]
    fn features_stored_in_another_order_count_as_visible() {
        let (slurm, ledger) = scheduler_without_marks();
        for node in slurm.live.borrow_mut().nodes.values_mut() {
            node.available_features = vec!["a".to_owned(), "b".to_owned()];
        }
        let slurm = ForgetfulScheduler { sorts: true, ..slurm };
        let before = slurm.live.borrow().clone();
        let results = reassert_results(&slurm, &before, &ledger);
        let done = ["n1", "n2", "n3"].map(|name| (name.to_owned(), ActionResult::Done));
        assert_eq!(results, done);
    }

    #[test]
    fn a_node_changed_since_the_reading_is_not_written() {
        let (slurm, ledger) = scheduler_without_marks();
        let before = slurm.live.borrow().clone();
        slurm.live.borrow_mut().nodes.get_mut(&"n2".into()).expect("n2").extra.clear();
        let results = reassert_results(&slurm, &before, &ledger);
        assert_eq!(results[1], ("n2".to_owned(), ActionResult::Already));
        assert_eq!(slurm.calls.borrow()[0].0, ["n1".into(), "n3".into()]);
    }

    #[test]
    fn the_effect_of_a_failed_call_is_read_from_the_nodes() {
        let (slurm, ledger) = scheduler_without_marks();
        let before = slurm.live.borrow().clone();
        let slurm = ForgetfulScheduler { half: Some(2), ..slurm };
        let results = reassert_results(&slurm, &before, &ledger).into_iter().map(|it| it.1);
        let expected = [ActionResult::Done, ActionResult::Done, ActionResult::Unknown];
        assert_eq!(results.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn after_a_call_without_an_answer_no_other_is_tried() {
        let (slurm, ledger) = scheduler_without_marks();
        slurm.live.borrow_mut().nodes.get_mut(&"n3".into()).expect("n3").available_features =
            vec!["zz".to_owned()];
        let before = slurm.live.borrow().clone();
        let slurm = ForgetfulScheduler { half: Some(0), ..slurm };
        let results = reassert_results(&slurm, &before, &ledger);
        assert_eq!(slurm.calls.borrow().len(), 1);
        assert!(results.iter().any(|it| it.1 == ActionResult::Refused), "{results:?}");
    }

    #[test]
    fn an_unreadable_node_is_not_written() {
        let (slurm, ledger) = scheduler_without_marks();
        let before = slurm.live.borrow().clone();
        let slurm = ForgetfulScheduler { reads_fail: true, ..slurm };
        let refused = ["n1", "n2", "n3"].map(|name| (name.to_owned(), ActionResult::Refused));
        assert_eq!(reassert_results(&slurm, &before, &ledger), refused);
        assert!(slurm.calls.borrow().is_empty());
    }
}
