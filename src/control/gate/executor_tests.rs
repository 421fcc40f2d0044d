//! Plans against an in-memory scheduler that fails as Slurm does.

use super::super::fixture::{FakeFailure, FakeScheduler, action, block_on, journal, plan};
use super::super::journal::read_state;
use super::*;
use engine::policy::node_state;
use engine::policy::node_state::DrainOwner;
use model::finding_class::FindingClass;
use model::kubernetes_node::{GATE, GpuCordon, GpuCordonMethod};

const DRAIN: &str = "fabricgate:nvlink-low:r1 e1";

fn mark_names() -> MarkNames {
    MarkNames { features: false, extra: true, ..MarkNames::default() }
}

/// Executes a plan with timeouts that are short enough for tests.
fn execute(fake: &FakeScheduler, journal: &mut Journal, plan: &ActionPlan) -> Vec<ActionRecord> {
    try_execute(fake, journal, plan, false).expect("the journal can be written")
}

fn try_execute(
    fake: &FakeScheduler,
    journal: &mut Journal,
    plan: &ActionPlan,
    stop: bool,
) -> Result<Vec<ActionRecord>, JournalError> {
    let (_sender, stop) = watch::channel(stop);
    let carrier = Executor {
        scheduler: fake,
        journal,
        names: &mark_names(),
        settle: Duration::from_millis(120),
        log: &mut |_| {},
        stop,
    };
    block_on(execute_plan_within(carrier, "r1", plan, Duration::from_millis(5)))
}

fn results(records: &[ActionRecord]) -> Vec<(&str, ActionResult)> {
    records.iter().map(|it| (it.node.as_str(), it.result)).collect()
}

/// A journal in which fabricgate drained `n1`.
fn after_a_drain(fake: &FakeScheduler) -> (tempfile::TempDir, Journal) {
    let (folder, mut journal) = journal();
    let records = execute(fake, &mut journal, &plan(vec![action(ActionKind::Drain, "n1")]));
    assert_eq!(results(&records), [("n1", ActionResult::Done)]);
    fake.calls.borrow_mut().clear();
    (folder, journal)
}

#[test]
fn an_action_on_one_gpu_of_an_earlier_version_is_refused_and_drains_no_node() {
    let fake = FakeScheduler::with_nodes(1);
    let (_folder, mut journal) = journal();
    let device = GpuCordon { way: GpuCordonMethod::Hami, index: 0, uuid: "GPU-0a".to_owned() };
    let one = Action { device: Some(device), ..action(ActionKind::Drain, "n1") };
    let records = execute(&fake, &mut journal, &plan(vec![one]));
    assert_eq!(results(&records), [("n1", ActionResult::Refused)]);
    assert!(fake.changed_nodes().is_empty());
}

#[test]
fn equal_changes_share_one_call_and_every_action_is_journaled() {
    let fake = FakeScheduler::with_nodes(4);
    let (folder, mut journal) = journal();
    let drains = ["n1", "n2", "n4"].map(|node| action(ActionKind::Drain, node)).to_vec();
    let records = execute(&fake, &mut journal, &plan(drains));
    assert_eq!(fake.changed_nodes(), [["n1", "n2", "n4"]]);
    assert!(records.iter().all(|it| it.result == ActionResult::Done), "{records:?}");
    assert_eq!(fake.node("n4").reason.as_deref(), Some(DRAIN));
    assert_eq!(fake.node("n3"), SchedulerNode::new("n3", &["IDLE"]), "it is not in the plan");
    let ledger = read_state(folder.path()).expect("read");
    assert_eq!((ledger.drains.len(), ledger.open_intents.len(), ledger.spent.len()), (3, 0, 3));
    let own = &ledger.drains[&NodeName::from("n1")];
    assert_eq!((own.action.reason.as_str(), own.epoch), (DRAIN, 1));
    assert_eq!(own.action.command, ["change n1"]);
    assert_eq!(own.before.state, ["IDLE"]);
}

#[test]
fn a_second_time_nothing_is_changed() {
    let fake = FakeScheduler::with_nodes(2);
    let (_folder, mut journal) = after_a_drain(&fake);
    let lines = journal.state().lines;
    let records = execute(&fake, &mut journal, &plan(vec![action(ActionKind::Drain, "n1")]));
    assert_eq!(results(&records), [("n1", ActionResult::Already)]);
    assert!(fake.changed_nodes().is_empty());
    assert_eq!(journal.state().lines, lines);
    // Also if the marks of the drain are gone: its record has the reason.
    fake.put(SchedulerNode { extra: String::new(), ..fake.node("n1") });
    let records = execute(&fake, &mut journal, &plan(vec![action(ActionKind::Drain, "n1")]));
    assert_eq!(results(&records), [("n1", ActionResult::Already)]);
    assert_eq!(journal.state().drains[&NodeName::from("n1")].epoch, 1);
}

#[test]
fn releases_and_certificates_come_before_drains_and_the_worst_drain_first() {
    let fake = FakeScheduler::with_nodes(5);
    let (_folder, mut journal) = after_a_drain(&fake);
    let drain = |node: &str, ratio: f64, class: &str| {
        let mut drain = action(ActionKind::Drain, node);
        drain.ratio = Some(ratio);
        drain.mark.as_mut().expect("a mark").class = Some(FindingClass::from_name(class));
        drain
    };
    let all = vec![
        drain("n2", 0.9, "a"),
        drain("n3", 0.2, "b"),
        action(ActionKind::Certify, "n4"),
        action(ActionKind::Release, "n1"),
    ];
    let records = execute(&fake, &mut journal, &plan(all));
    assert_eq!(fake.changed_nodes(), [["n1"], ["n4"], ["n3"], ["n2"]]);
    let order: Vec<&str> = records.iter().map(|it| it.node.as_str()).collect();
    assert_eq!(order, ["n2", "n3", "n4", "n1"], "records are in the order of the plan");
    assert!(journal.state().drains.contains_key(&NodeName::from("n3")));
    assert!(!journal.state().drains.contains_key(&NodeName::from("n1")));
}

#[test]
fn a_drain_of_another_owner_stays_unchanged() {
    let fake = FakeScheduler::with_nodes(2);
    fake.put(FakeScheduler::drained_node("n1", "psu is smoking"));
    let (_folder, mut journal) = journal();
    let both = ["n1", "n2"].map(|node| action(ActionKind::Drain, node)).to_vec();
    let records = execute(&fake, &mut journal, &plan(both));
    assert_eq!(results(&records), [("n1", ActionResult::Superseded), ("n2", ActionResult::Done)]);
    assert!(records[0].detail.contains("psu is smoking"), "{records:?}");
    assert_eq!(fake.node("n1").reason.as_deref(), Some("psu is smoking"));
    assert_eq!(fake.changed_nodes(), [["n2"]]);
    // It is not released either.
    fake.put(FakeScheduler::drained_node("n2", "mine now"));
    let records = execute(&fake, &mut journal, &plan(vec![action(ActionKind::Release, "n2")]));
    assert_eq!(results(&records), [("n2", ActionResult::Superseded)]);
    assert_eq!(fake.node("n2").reason.as_deref(), Some("mine now"));
}

#[test]
fn a_node_that_an_operator_drains_between_two_groups_is_left_alone() {
    let fake = FakeScheduler::with_nodes(2);
    let (_folder, mut journal) = journal();
    let mut second = action(ActionKind::Drain, "n2");
    second.mark.as_mut().expect("a mark").class = Some(FindingClass::from_name("other"));
    // Read for the plan, after the first change, and for the second.
    let no_change = Vec::new;
    let by_operator = vec![FakeScheduler::drained_node("n2", "mine")];
    fake.foreign_changes.borrow_mut().extend([no_change(), no_change(), by_operator]);
    let both = vec![action(ActionKind::Drain, "n1"), second];
    let records = execute(&fake, &mut journal, &plan(both));
    assert_eq!(results(&records), [("n1", ActionResult::Done), ("n2", ActionResult::Superseded)]);
    assert_eq!(fake.changed_nodes(), [["n1"]]);
}

#[test]
fn an_operators_change_right_after_a_drain_is_not_overwritten() {
    let fake = FakeScheduler::with_nodes(1);
    let (_folder, mut journal) = journal();
    fake.foreign_changes
        .borrow_mut()
        .extend([Vec::new(), vec![FakeScheduler::drained_node("n1", "mine")]]);
    let records = execute(&fake, &mut journal, &plan(vec![action(ActionKind::Drain, "n1")]));
    assert_eq!(results(&records), [("n1", ActionResult::Superseded)]);
    assert_eq!(fake.node("n1").reason.as_deref(), Some("mine"));
    assert_eq!(journal.state().spent.len(), 1, "it was visible for a moment");
}

#[test]
fn an_error_never_counts_as_not_done() {
    for (mishap, expected) in [
        (FakeFailure::LateAndDone, ActionResult::Done),
        (FakeFailure::LateAndLost, ActionResult::Unknown),
        (FakeFailure::Denied, ActionResult::Failed),
        (FakeFailure::InPart, ActionResult::Done),
        (FakeFailure::ThenSilent, ActionResult::Unknown),
    ] {
        let fake = FakeScheduler::with_nodes(1);
        let (_folder, mut journal) = journal();
        fake.failures.borrow_mut().push_back(mishap);
        let records = execute(&fake, &mut journal, &plan(vec![action(ActionKind::Drain, "n1")]));
        assert_eq!(results(&records), [("n1", expected)], "{mishap:?}: {records:?}");
        let ledger = journal.state();
        let is_unknown = expected == ActionResult::Unknown;
        assert_eq!(ledger.open_intents.len(), usize::from(is_unknown), "{mishap:?}");
        assert_eq!(ledger.spent.len(), usize::from(expected != ActionResult::Failed));
    }
}

#[test]
fn each_node_of_a_partly_applied_list_has_its_own_result() {
    let records = execute_partial_drain(&FakeScheduler::with_nodes(2));
    let done = ActionResult::Done;
    assert_eq!(results(&records), [("n1", done), ("n2", done), ("n3", ActionResult::Failed)]);
    assert!(records[2].detail.contains("Invalid node name"), "{records:?}");
}

#[test]
fn a_node_missing_from_a_partly_read_answer_has_an_unknown_result() {
    let fake = FakeScheduler::with_nodes(2);
    fake.troubles.borrow_mut().push("nodes[2]: no name".to_owned());
    let records = execute_partial_drain(&fake);
    assert_eq!(results(&records)[2], ("n3", ActionResult::Unknown), "{records:?}");
    assert!(records[2].detail.contains("nodes[2]: no name"), "{records:?}");
}

/// Three drains in one call, of which one node vanishes meanwhile.
fn execute_partial_drain(fake: &FakeScheduler) -> Vec<ActionRecord> {
    let (_folder, mut journal) = journal();
    // The node exists at the reading and is gone at the change.
    fake.failures.borrow_mut().push_back(FakeFailure::InPart);
    fake.put(SchedulerNode::new("n3", &["IDLE"]));
    let (_sender, stop) = watch::channel(false);
    let all = plan(["n1", "n2", "n3"].map(|node| action(ActionKind::Drain, node)).to_vec());
    let gone = RemoveNodeScheduler(fake);
    let carrier = Executor {
        scheduler: &gone,
        journal: &mut journal,
        names: &mark_names(),
        settle: Duration::from_millis(60),
        log: &mut |_| {},
        stop,
    };
    block_on(execute_plan_within(carrier, "r1", &all, Duration::from_millis(5))).expect("written")
}

/// Removes `n3` at the first change.
#[derive(Debug)]
struct RemoveNodeScheduler<'a>(&'a FakeScheduler);

impl Scheduler for RemoveNodeScheduler<'_> {
    fn name(&self) -> String {
        self.0.name()
    }

    fn read_nodes<'a>(&'a self, nodes: &'a [NodeName]) -> SchedulerFuture<'a, SchedulerSnapshot> {
        self.0.read_nodes(nodes)
    }

    fn update_nodes<'a>(
        &'a self,
        nodes: &'a [NodeName],
        change: &'a NodeUpdate,
    ) -> SchedulerFuture<'a, ()> {
        self.0.nodes.borrow_mut().remove(&NodeName::from("n3"));
        self.0.update_nodes(nodes, change)
    }

    fn command_lines(&self, nodes: &[NodeName], change: &NodeUpdate) -> Vec<Vec<String>> {
        self.0.command_lines(nodes, change)
    }
}

#[test]
fn a_drain_that_was_acknowledged_and_lost_is_repeated_once() {
    let fake = FakeScheduler::with_nodes(1);
    let (_folder, mut first) = journal();
    fake.failures.borrow_mut().push_back(FakeFailure::AckedAndLost);
    let one = plan(vec![action(ActionKind::Drain, "n1")]);
    let records = execute(&fake, &mut first, &one);
    assert_eq!(results(&records), [("n1", ActionResult::Done)]);
    assert!(records[0].detail.contains("after it was lost"), "{records:?}");
    assert_eq!(fake.changed_nodes().len(), 2);
    let ledger = first.state();
    assert_eq!((ledger.drains.len(), ledger.spent.len()), (1, 1), "it counts once");

    let fake = FakeScheduler::with_nodes(1);
    let (_folder, mut second) = journal();
    fake.failures.borrow_mut().extend([FakeFailure::AckedAndLost, FakeFailure::AckedAndLost]);
    let records = execute(&fake, &mut second, &one);
    assert_eq!(results(&records), [("n1", ActionResult::Failed)]);
    assert_eq!(fake.changed_nodes().len(), 2, "not a third time");
    assert!(second.state().spent.is_empty());
}

#[test]
fn a_drain_that_vanishes_before_it_is_persisted_is_repeated() {
    let fake = FakeScheduler::with_nodes(1);
    let (_folder, mut journal) = journal();
    let lost = vec![SchedulerNode::new("n1", &["IDLE"])];
    fake.foreign_changes.borrow_mut().extend([Vec::new(), Vec::new(), lost]);
    let records = execute(&fake, &mut journal, &plan(vec![action(ActionKind::Drain, "n1")]));
    assert_eq!(results(&records), [("n1", ActionResult::Done)]);
    assert_eq!(fake.changed_nodes().len(), 2);
    assert_eq!(fake.node("n1").reason.as_deref(), Some(DRAIN));
}

#[test]
fn a_silent_scheduler_stops_the_plan_and_every_action_has_a_record() {
    let fake = FakeScheduler::with_nodes(3);
    let (_folder, mut journal) = journal();
    fake.silent.set(true);
    let all = plan(["n1", "n2"].map(|node| action(ActionKind::Drain, node)).to_vec());
    let records = execute(&fake, &mut journal, &all);
    assert!(records.iter().all(|it| it.result == ActionResult::Refused), "{records:?}");
    assert!(records[0].detail.contains("not tried"), "{records:?}");
    assert!(fake.changed_nodes().is_empty());
    // It stops answering after the first group: the second is not tried.
    fake.silent.set(false);
    fake.failures.borrow_mut().push_back(FakeFailure::ThenSilent);
    let both = vec![action(ActionKind::Certify, "n3"), action(ActionKind::Drain, "n1")];
    let records = execute(&fake, &mut journal, &plan(both));
    let expected = [("n3", ActionResult::Unknown), ("n1", ActionResult::Refused)];
    assert_eq!(results(&records), expected, "{records:?}");
    assert_eq!(fake.changed_nodes(), [["n3"]]);
}

#[test]
fn after_a_stop_request_no_action_begins() {
    let fake = FakeScheduler::with_nodes(1);
    let (_folder, mut journal) = journal();
    let one = plan(vec![action(ActionKind::Drain, "n1")]);
    let records = try_execute(&fake, &mut journal, &one, true).expect("written");
    assert_eq!(results(&records), [("n1", ActionResult::Refused)]);
    assert!(records[0].detail.contains("asked to stop"));
    assert!(fake.changed_nodes().is_empty() && journal.state().open_intents.is_empty());
}

#[test]
fn a_contradictory_or_frozen_plan_is_not_executed() {
    let fake = FakeScheduler::with_nodes(3);
    let (_folder, mut journal) = after_a_drain(&fake);
    let all = vec![
        action(ActionKind::Drain, "n2"),
        action(ActionKind::Drain, "n2"),
        action(ActionKind::Drain, "n1"),
        action(ActionKind::Release, "n1"),
    ];
    let (done, refused) = (ActionResult::Done, ActionResult::Refused);
    let records = execute(&fake, &mut journal, &plan(all));
    let expected = [("n2", done), ("n2", refused), ("n1", refused), ("n1", refused)];
    assert_eq!(results(&records), expected);
    let drain = action(ActionKind::Drain, "n3");
    let frozen = ActionPlan {
        frozen: Some("many".to_owned()),
        ..plan(vec![drain, action(ActionKind::Release, "n1")])
    };
    let records = execute(&fake, &mut journal, &frozen);
    assert_eq!(results(&records), [("n3", refused), ("n1", done)]);
}

#[test]
fn a_node_unknown_to_the_scheduler_is_not_changed() {
    let fake = FakeScheduler::with_nodes(1);
    let (_folder, mut journal) = journal();
    let both = ["n1", "nosuch"].map(|node| action(ActionKind::Drain, node)).to_vec();
    let records = execute(&fake, &mut journal, &plan(both));
    assert_eq!(results(&records), [("n1", ActionResult::Done), ("nosuch", ActionResult::Refused)]);
    assert_eq!(fake.changed_nodes(), [["n1"]]);
}

#[test]
fn nothing_is_changed_without_a_journal_entry() {
    let fake = FakeScheduler::with_nodes(1);
    let (folder, mut journal) = journal();
    std::fs::rename(folder.path().join("journal.jsonl"), folder.path().join("gone"))
        .expect("moved");
    let one = plan(vec![action(ActionKind::Drain, "n1")]);
    let failed = try_execute(&fake, &mut journal, &one, false).expect_err("no journal");
    assert!(matches!(failed, JournalError::Disturbed { .. }), "{failed}");
    assert!(fake.changed_nodes().is_empty());
    assert_eq!(fake.node("n1").state, ["IDLE"]);
}

#[test]
fn a_drain_without_a_record_is_not_released() {
    let fake = FakeScheduler::with_nodes(1);
    fake.put(FakeScheduler::drained_node("n1", "fabricgate:nvlink-low:r0 e9"));
    let (_folder, mut journal) = journal();
    let records = execute(&fake, &mut journal, &plan(vec![action(ActionKind::Release, "n1")]));
    assert_eq!(results(&records), [("n1", ActionResult::Refused)]);
    assert!(fake.changed_nodes().is_empty());
}

/// An idle Kubernetes node, in this boot.
fn kubernetes_node(name: &str, boot: &str) -> SchedulerNode {
    let kubernetes = Some(Box::default());
    SchedulerNode {
        boot_id: Some(boot.to_owned()),
        kubernetes,
        ..SchedulerNode::new(name, &["IDLE"])
    }
}

#[test]
fn a_node_that_left_service_after_the_decision_is_not_certified() {
    let fake = FakeScheduler::with_nodes(2);
    fake.put(FakeScheduler::drained_node("n1", "psu"));
    fake.put(SchedulerNode::new("n2", &["DOWN"]));
    let (_folder, mut journal) = journal();
    let both = ["n1", "n2"].map(|node| action(ActionKind::Certify, node)).to_vec();
    let records = execute(&fake, &mut journal, &plan(both));
    let refused = [("n1", ActionResult::Superseded), ("n2", ActionResult::Refused)];
    assert_eq!(results(&records), refused, "{records:?}");
    assert!(fake.changed_nodes().is_empty());
}

#[test]
fn measurements_from_before_a_boot_are_never_written() {
    for kind in [ActionKind::Drain, ActionKind::Relabel, ActionKind::Certify] {
        for (measured, result) in [("b1", ActionResult::Refused), ("b2", ActionResult::Done)] {
            let fake = FakeScheduler::with_nodes(0);
            fake.put(kubernetes_node("n1", "b2"));
            let (_folder, mut journal) = journal();
            let mut action = action(kind, "n1");
            action.mark.as_mut().expect("a mark").boot_id = Some(measured.to_owned());
            let records = execute(&fake, &mut journal, &plan(vec![action]));
            let is_written = !fake.changed_nodes().is_empty();
            assert_eq!(is_written, result == ActionResult::Done, "{kind:?} {records:?}");
        }
    }
}

#[test]
fn two_gates_that_write_the_same_reason_are_distinguished() {
    let fake = FakeScheduler::with_nodes(0);
    fake.put(kubernetes_node("n1", "b1"));
    fake.put(kubernetes_node("n2", "b1"));
    let (_folder, mut journal) = journal();
    // Another gate was first: the same run, class and turn.
    let mut theirs = kubernetes_node("n1", "b1");
    theirs.state.push("DRAIN".to_owned());
    theirs.reason = Some(DRAIN.to_owned());
    let seen = theirs.kubernetes.as_mut().expect("a Kubernetes node");
    seen.annotations.insert(GATE.to_owned(), "another".to_owned());
    fake.foreign_changes.borrow_mut().extend([vec![], vec![theirs.clone()]]);
    let drains = ["n1", "n2"].map(|node| action(ActionKind::Drain, node)).to_vec();
    let records = execute(&fake, &mut journal, &plan(drains.clone()));
    let ends = [("n1", ActionResult::Superseded), ("n2", ActionResult::Done)];
    assert_eq!(results(&records), ends, "{records:?}");
    // The journal knows the first gate's drain, but not the other gate's.
    fake.put(theirs);
    let ledger = journal.state();
    assert!(matches!(node_state::drain_owner(&fake.node("n2"), ledger), DrainOwner::ThisGate(_)));
    let own = ledger.drains.keys().map(NodeName::as_str).collect::<Vec<_>>();
    assert_eq!(own, ["n2"]);
    let mut as_another = fake.node("n2");
    let seen = as_another.kubernetes.as_mut().expect("a Kubernetes node");
    seen.annotations.insert(GATE.to_owned(), "another".to_owned());
    assert_eq!(node_state::drain_owner(&as_another, ledger), DrainOwner::Unrecorded);
    // A release removes what the drain added.
    let release = action(ActionKind::Release, "n2");
    let records = execute(&fake, &mut journal, &plan(vec![release]));
    assert_eq!(results(&records), [("n2", ActionResult::Done)], "{records:?}");
    let left = fake.node("n2").kubernetes.expect("a Kubernetes node").annotations;
    assert!(!left.contains_key(GATE), "{left:?}");
}

#[test]
fn a_repeated_drain_without_an_answer_stays_open() {
    let fake = FakeScheduler::with_nodes(1);
    let (_folder, mut journal) = journal();
    fake.failures.borrow_mut().extend([FakeFailure::AckedAndLost, FakeFailure::LateAndLost]);
    let records = execute(&fake, &mut journal, &plan(vec![action(ActionKind::Drain, "n1")]));
    assert_eq!(results(&records), [("n1", ActionResult::Unknown)], "{records:?}");
    let ledger = journal.state();
    assert_eq!((ledger.open_intents.len(), ledger.spent.len()), (1, 1));
}

#[test]
fn defect_5_a_drain_that_an_operator_undoes_immediately_stays_undone_and_is_recorded() {
    for starts in [vec![], vec!["monday"], vec!["monday", "tuesday"]] {
        let fake = FakeScheduler::with_nodes(1);
        let (_folder, mut journal) = journal();
        fake.controller_starts.borrow_mut().extend(starts.iter().map(|it| (*it).to_owned()));
        // Read, then visible; then an operator resumes the node, which leaves fabricgate's entry in
        // Extra.
        let drain = action(ActionKind::Drain, "n1");
        let mark = drain.mark.clone().expect("a mark");
        let extra =
            marks::mark_change(&SchedulerNode::new("n1", &["IDLE"]), &mark, &mark_names()).extra;
        let undone =
            SchedulerNode { extra: extra.expect("written"), ..SchedulerNode::new("n1", &["IDLE"]) };
        fake.foreign_changes.borrow_mut().extend([Vec::new(), Vec::new(), vec![undone]]);
        let records = execute(&fake, &mut journal, &plan(vec![drain]));
        assert_eq!(results(&records), [("n1", ActionResult::Superseded)], "{starts:?} {records:?}");
        assert_eq!(fake.changed_nodes().len(), 1, "not repeated");
        let ledger = journal.state();
        let noted = (ledger.drains.len(), ledger.undone_drains.len(), ledger.open_intents.len());
        assert_eq!(noted, (0, 1, 0), "{starts:?}");
    }
}

#[test]
fn defect_5_without_a_restart_of_the_controller_no_drain_is_lost() {
    let lost = |starts: &[&str]| {
        let fake = FakeScheduler::with_nodes(1);
        let (_folder, mut journal) = journal();
        fake.controller_starts.borrow_mut().extend(starts.iter().map(|it| (*it).to_owned()));
        // Without a trace of fabricgate.
        let lost = vec![SchedulerNode::new("n1", &["IDLE"])];
        fake.foreign_changes.borrow_mut().extend([Vec::new(), Vec::new(), lost]);
        execute(&fake, &mut journal, &plan(vec![action(ActionKind::Drain, "n1")]));
        fake.changed_nodes().len()
    };
    assert_eq!(lost(&["monday", "tuesday"]), 2, "repeated");
    assert_eq!(lost(&["monday"]), 1, "respected");
    assert_eq!(lost(&[]), 2, "fabricgate's entry is lost too");
}

#[test]
fn defect_6_an_old_reading_is_repeated_right_before_the_change() {
    let ends = |slow: Duration| {
        let fake = FakeScheduler::with_nodes(1);
        let (_folder, mut journal) = journal();
        let (_sender, stop) = watch::channel(false);
        let carrier = Executor {
            scheduler: &fake,
            journal: &mut journal,
            names: &mark_names(),
            settle: Duration::from_millis(60),
            log: &mut |_| {},
            stop,
        };
        // An operator drains it while the first answer is on its way.
        fake.foreign_changes
            .borrow_mut()
            .extend([Vec::new(), vec![FakeScheduler::drained_node("n1", "mine")]]);
        let one = plan(vec![action(ActionKind::Drain, "n1")]);
        block_on(execute_plan_timed(carrier, "r1", &one, Duration::ZERO, slow)).expect("written");
        fake.changed_nodes().len()
    };
    // Every reading is older than a limit of zero.
    assert_eq!((ends(Duration::ZERO), ends(Duration::MAX)), (0, 1));
}

#[test]
fn defect_18_a_drain_that_cannot_be_journaled_is_reported() {
    let fake = FakeScheduler::with_nodes(2);
    let (folder, mut journal) = journal();
    let full = FullDiskScheduler(&fake, folder.path().join("journal.jsonl"));
    let (_sender, stop) = watch::channel(false);
    let mut lines = Vec::new();
    let both = plan(["n1", "n2"].map(|node| action(ActionKind::Drain, node)).to_vec());
    let carrier = Executor {
        scheduler: &full,
        journal: &mut journal,
        names: &mark_names(),
        settle: Duration::from_millis(60),
        log: &mut |event| lines.push(event.to_string()),
        stop,
    };
    block_on(execute_plan_within(carrier, "r1", &both, Duration::ZERO)).expect_err("no journal");
    let last = lines.last().expect("something");
    assert!(last.starts_with("n[1-2]: drain requested"), "{lines:?}");
}

/// The journal becomes unwritable once nodes were changed.
#[derive(Debug)]
struct FullDiskScheduler<'a>(&'a FakeScheduler, std::path::PathBuf);

impl Scheduler for FullDiskScheduler<'_> {
    fn name(&self) -> String {
        self.0.name()
    }

    fn read_nodes<'a>(&'a self, nodes: &'a [NodeName]) -> SchedulerFuture<'a, SchedulerSnapshot> {
        self.0.read_nodes(nodes)
    }

    fn update_nodes<'a>(
        &'a self,
        nodes: &'a [NodeName],
        change: &'a NodeUpdate,
    ) -> SchedulerFuture<'a, ()> {
        std::fs::rename(&self.1, self.1.with_extension("gone")).expect("moved");
        self.0.update_nodes(nodes, change)
    }

    fn command_lines(&self, nodes: &[NodeName], change: &NodeUpdate) -> Vec<Vec<String>> {
        self.0.command_lines(nodes, change)
    }
}
