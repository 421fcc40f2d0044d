//! The state that follows from journal lines, including arbitrary ones.

use proptest::prelude::*;

use super::*;
use model::finding_class::FindingClass;
use model::journal::JOURNAL_FORMAT;
use model::verdict::Outcome;

fn action(kind: ActionKind, node: &str) -> Action {
    Action {
        mark: Some(VerdictMark {
            outcome: Outcome::Failed,
            class: Some(FindingClass::NvlinkLow),
            run: "r1".to_owned(),
            at: String::new(),
            expires: None,
            boot_id: None,
            domain: None,
        }),
        ..Action::new(kind, node)
    }
}

fn intent(id: &str, kind: ActionKind, node: &str) -> JournalEvent {
    JournalEvent::Intent {
        id: id.to_owned(),
        run: "r1".to_owned(),
        action: Box::new(action(kind, node)),
        change: Box::default(),
        before: Box::new(SchedulerNode::new(node, &["IDLE"])),
    }
}

fn outcome(id: &str, result: ActionResult) -> JournalEvent {
    JournalEvent::Outcome { id: id.to_owned(), result, detail: String::new() }
}

fn ledger(events: impl IntoIterator<Item = JournalEvent>) -> JournalState {
    let entries: Vec<JournalEntry> = (1..)
        .zip(events)
        .map(|(seq, event)| {
            let stamp = ClockStamp { unix: 1_000 + seq, ..ClockStamp::default() };
            let seq = u64::try_from(seq).expect("positive");
            JournalEntry {
                format: JOURNAL_FORMAT.to_owned(),
                seq,
                stamp,
                epoch: 1 + seq / 8,
                event,
            }
        })
        .collect();
    JournalState::from_entries(&entries)
}

fn drained(ledger: &JournalState) -> Vec<&str> {
    ledger.drains.keys().map(NodeName::as_str).collect()
}

/// An entry as journals of earlier versions have it.
#[test]
fn one_gpu_that_an_earlier_version_took_out_is_read_and_is_no_drain_of_the_node() {
    let action: Action = serde_json::from_str(
        r#"{"kind":"drain","node":"n1","command":[],"reason":"fabricgate:nvlink-low:r1 e1",
            "device":{"way":"taint-rule","index":2,"uuid":"GPU-2a"},"findings":[],"why":"w"}"#,
    )
    .expect("read");
    assert_eq!(action.device.as_ref().map(|it| it.index), Some(2));
    let change: NodeUpdate = serde_json::from_str(
        r#"{"state":{"to":"drain","reason":"fabricgate:nvlink-low:r1 e1"},
            "kubernetes":{"device":{"way":"taint-rule","index":2,"uuid":"GPU-2a"}}}"#,
    )
    .expect("read");
    let begun = |kind| JournalEvent::Intent {
        id: "a".to_owned(),
        run: "r1".to_owned(),
        action: Box::new(Action { kind, ..action.clone() }),
        change: Box::new(change.clone()),
        before: Box::new(SchedulerNode::new("n1", &["IDLE"])),
    };
    let done = ledger([begun(ActionKind::Drain), outcome("a", ActionResult::Done)]);
    // Nothing to release, to repeat or to conclude; its cost stays charged.
    assert!(
        done.drains.is_empty() && done.undone_drains.is_empty() && done.open_intents.is_empty()
    );
    assert_eq!(done.spent.len(), 1);
    // A drain of the whole node, which was released together with its GPU, is over as usual.
    let whole = [
        intent("b", ActionKind::Drain, "n1"),
        outcome("b", ActionResult::Done),
        begun(ActionKind::Release),
    ];
    let begun = ledger(whole.clone());
    assert_eq!((drained(&begun), begun.open_intents.len()), (vec!["n1"], 1));
    let over = ledger(whole.into_iter().chain([outcome("a", ActionResult::Done)]));
    assert!(over.drains.is_empty());
}

#[test]
fn a_drain_is_open_and_spent_until_it_is_concluded() {
    let begun = ledger([intent("a", ActionKind::Drain, "n1")]);
    assert_eq!((begun.open_intents.len(), begun.spent.len(), begun.drains.len()), (1, 1, 0));
    let done = ledger([intent("a", ActionKind::Drain, "n1"), outcome("a", ActionResult::Done)]);
    assert_eq!((done.open_intents.len(), done.spent.len()), (0, 1));
    assert_eq!(drained(&done), ["n1"]);
    assert_eq!(done.marks.len(), 1);
}

#[test]
fn unknown_results_stay_open_and_only_failed_actions_are_refunded() {
    let begun = intent("a", ActionKind::Drain, "n1");
    let unknown = ledger([begun.clone(), outcome("a", ActionResult::Unknown)]);
    assert_eq!((unknown.open_intents.len(), unknown.spent.len(), unknown.drains.len()), (1, 1, 0));
    // A drain that a user overwrote, or that a scheduler forgot, was in force for a while.
    for (result, spent) in
        [(ActionResult::Superseded, 1), (ActionResult::Refused, 1), (ActionResult::Failed, 0)]
    {
        let concluded = ledger([begun.clone(), outcome("a", result)]);
        let sums = (concluded.open_intents.len(), concluded.spent.len(), concluded.drains.len());
        assert_eq!(sums, (0, spent, 0), "{result:?}");
        assert!(concluded.marks.is_empty());
        let anew = ledger([begun.clone(), outcome("a", result), begun.clone()]);
        assert_eq!((anew.open_intents.len(), anew.spent.len()), (1, 1), "{result:?}");
    }
}

#[test]
fn certificates_and_releases_cost_nothing() {
    let ledger =
        ledger([intent("a", ActionKind::Certify, "n1"), intent("b", ActionKind::Release, "n2")]);
    assert_eq!((ledger.open_intents.len(), ledger.spent.len()), (2, 0));
}

#[test]
fn a_release_ends_a_drain_and_a_clean_run_counts_once() {
    let clean = |run: &str| JournalEvent::Clean {
        node: "n1".into(),
        run: run.to_owned(),
        measured: 5,
        boot_id: None,
    };
    let mut events = vec![
        clean("r0"),
        intent("a", ActionKind::Drain, "n1"),
        outcome("a", ActionResult::Done),
        clean("r2"),
        clean("r2"),
        clean("r3"),
    ];
    let runs = |ledger: &JournalState| -> Vec<String> {
        ledger.drains[&NodeName::from("n1")].clean.iter().map(|it| it.run.clone()).collect()
    };
    assert_eq!(runs(&ledger(events.clone())), ["r2", "r3"]);
    events.push(intent("b", ActionKind::Release, "n1"));
    assert_eq!(drained(&ledger(events.clone())), ["n1"]);
    events.push(outcome("b", ActionResult::Done));
    assert!(ledger(events).drains.is_empty());
}

#[test]
fn an_undone_drain_is_remembered_until_the_node_is_drained_anew() {
    let undone = |id: &str| JournalEvent::Undone {
        node: "n1".into(),
        id: id.to_owned(),
        detail: String::new(),
    };
    let mut events = vec![
        intent("a", ActionKind::Drain, "n1"),
        outcome("a", ActionResult::Done),
        undone("another"),
    ];
    assert_eq!(drained(&ledger(events.clone())), ["n1"], "another drain was undone");
    events.push(undone("a"));
    let seen = ledger(events.clone());
    assert!(seen.drains.is_empty());
    assert_eq!(seen.undone_drains[&NodeName::from("n1")].drain.id, "a");
    events.extend([intent("b", ActionKind::Drain, "n1"), outcome("b", ActionResult::Done)]);
    let anew = ledger(events);
    assert!(anew.undone_drains.is_empty());
    assert_eq!(anew.drains[&NodeName::from("n1")].id, "b");
}

#[test]
fn defect_3_a_forgotten_node_counts_no_more_and_what_it_spent_stays() {
    let forgotten =
        JournalEvent::Forgotten { node: "n1".into(), by: "ann".to_owned(), why: "sold".to_owned() };
    let hold = JournalEvent::Holding {
        name: "h".to_owned(),
        kind: HoldKind::Reservation,
        nodes: vec!["n1".into(), "n2".into()],
        drained: vec![("n1".into(), "ours".to_owned())],
        host: "head".to_owned(),
        pid: 7,
    };
    let seen = ledger([
        intent("a", ActionKind::Drain, "n1"),
        outcome("a", ActionResult::Done),
        JournalEvent::Absent { node: "n1".into() },
        intent("b", ActionKind::Relabel, "n1"),
        intent("c", ActionKind::Drain, "n2"),
        hold,
        forgotten,
    ]);
    assert!(seen.drains.is_empty() && seen.marks.is_empty() && seen.absent_nodes.is_empty());
    assert_eq!(seen.open_intents.iter().map(|it| it.id.as_str()).collect::<Vec<_>>(), ["c"]);
    assert_eq!((seen.allocations["h"].nodes.len(), seen.allocations["h"].drained.len()), (1, 0));
    assert_eq!(seen.spent.len(), 3);
}

#[test]
fn a_drained_node_that_is_absent_is_so_until_it_is_seen_or_its_drain_ends() {
    let absent = || JournalEvent::Absent { node: "n1".into() };
    let mut events = vec![absent(), intent("a", ActionKind::Drain, "n1")];
    events.extend([outcome("a", ActionResult::Done), absent(), absent()]);
    let seen = ledger(events.clone());
    assert_eq!(seen.absent_nodes[&NodeName::from("n1")].unix, 1_004, "since it was first missed");
    for end in [
        JournalEvent::Present { node: "n1".into() },
        JournalEvent::Undone { node: "n1".into(), id: "a".to_owned(), detail: String::new() },
    ] {
        let all = events.iter().cloned().chain([end.clone()]);
        assert!(ledger(all).absent_nodes.is_empty(), "{end:?}");
    }
}

#[test]
fn defect_17_an_adopted_drain_keeps_its_own_turn_and_time() {
    let action = Action {
        reason: "fabricgate:r7:nvlink-low e3".to_owned(),
        ..Action::new(ActionKind::Drain, "n1")
    };
    let adopted = |set| JournalEvent::Adopted {
        run: "r7".to_owned(),
        action: Box::new(action.clone()),
        before: Box::new(SchedulerNode::new("n1", &["IDLE", "DRAIN"])),
        set,
        by: "ann".to_owned(),
        why: "of the old gate".to_owned(),
    };
    let seen = ledger([adopted(Some(500))]);
    let own = &seen.drains[&NodeName::from("n1")];
    assert_eq!((own.epoch, own.run.as_str(), own.stamp.unix), (3, "r7", 500));
    assert_eq!((seen.spent.len(), seen.has_recent_intent(&"n1".into(), "r7")), (1, true));
    assert_eq!(ledger([adopted(None)]).drains[&NodeName::from("n1")].stamp.unix, 1_001);
    // A release ends it like any other drain.
    let released = [intent("b", ActionKind::Release, "n1"), outcome("b", ActionResult::Done)];
    assert!(ledger([adopted(None)].into_iter().chain(released)).drains.is_empty());
}

#[test]
fn an_intent_is_known_regardless_of_its_result() {
    for result in [ActionResult::Superseded, ActionResult::Refused, ActionResult::Failed] {
        let seen = ledger([intent("a", ActionKind::Drain, "n1"), outcome("a", result)]);
        assert!(seen.has_recent_intent(&"n1".into(), "r1"), "{result:?}");
        assert!(
            !seen.has_recent_intent(&"n1".into(), "r2")
                && !seen.has_recent_intent(&"n2".into(), "r1")
        );
    }
}

#[test]
fn lines_that_come_twice_or_contradict_count_once() {
    let seen = ledger([
        outcome("a", ActionResult::Done),
        intent("a", ActionKind::Drain, "n1"),
        intent("a", ActionKind::Drain, "n1"),
        outcome("a", ActionResult::Done),
        outcome("a", ActionResult::Failed),
        intent("a", ActionKind::Drain, "n1"),
        outcome("a", ActionResult::Done),
    ]);
    assert_eq!((seen.open_intents.len(), seen.spent.len(), seen.drains.len()), (0, 1, 1));
}

#[test]
fn a_breaker_stays_tripped_until_it_is_reset() {
    let trip = JournalEvent::Tripped { why: "many".to_owned(), run: "r1".to_owned() };
    let reset = JournalEvent::Reset { by: "ada".to_owned(), why: "looked".to_owned() };
    assert_eq!(ledger([trip.clone()]).breaker.map(|it| it.why).as_deref(), Some("many"));
    assert_eq!(ledger([trip, reset]).breaker, None);
}

#[test]
fn a_hold_is_there_until_it_is_freed() {
    let hold = JournalEvent::Holding {
        name: "h".to_owned(),
        kind: HoldKind::Job,
        nodes: vec!["n1".into()],
        drained: Vec::new(),
        host: "head".to_owned(),
        pid: 7,
    };
    let freed = JournalEvent::Freed { name: "h".to_owned(), detail: String::new() };
    assert_eq!(ledger([hold.clone()]).allocations["h"].pid, 7);
    assert!(ledger([freed.clone(), hold, freed]).allocations.is_empty());
}

fn kinds() -> impl Strategy<Value = ActionKind> {
    prop_oneof![
        4 => Just(ActionKind::Drain),
        1 => Just(ActionKind::Relabel),
        1 => Just(ActionKind::Release),
        1 => Just(ActionKind::Certify),
    ]
}

fn results() -> impl Strategy<Value = ActionResult> {
    prop_oneof![
        4 => Just(ActionResult::Done),
        1 => Just(ActionResult::Already),
        1 => Just(ActionResult::Superseded),
        1 => Just(ActionResult::Refused),
        1 => Just(ActionResult::Failed),
        1 => Just(ActionResult::Unknown),
    ]
}

/// Lines in arbitrary order with few names, as a faulty program would write them.
fn any_event() -> impl Strategy<Value = JournalEvent> {
    let node = (0..3u8).prop_map(|it| format!("n{it}"));
    let id = (0..6u8).prop_map(|it| format!("i{it}"));
    prop_oneof![
        4 => (id.clone(), kinds(), node.clone()).prop_map(|(id, kind, node)| intent(&id, kind, &node)),
        4 => (id.clone(), results()).prop_map(|(id, result)| outcome(&id, result)),
        1 => (node.clone(), id.clone()).prop_map(|(node, run)| JournalEvent::Clean {
            node: node.as_str().into(),
            run,
            measured: 0, boot_id: None }),
        1 => (node, id).prop_map(|(node, id)| JournalEvent::Undone {
            node: node.as_str().into(),
            id,
            detail: String::new()
        }),
        1 => Just(JournalEvent::Reset { by: String::new(), why: String::new() }),
        1 => (0..3u8).prop_map(|it| {
            let (by, why) = (String::new(), String::new());
            JournalEvent::Forgotten { node: format!("n{it}").as_str().into(), by, why }
        }),
        1 => (0..3u8).prop_map(|it| JournalEvent::Absent { node: format!("n{it}").as_str().into() }),
    ]
}

fn unique<'a>(ids: impl Iterator<Item = &'a String>) -> bool {
    let mut ids: Vec<_> = ids.collect();
    let all = ids.len();
    ids.sort();
    ids.dedup();
    ids.len() == all
}

proptest! {
    #[test]
    fn any_prefix_of_any_journal_adds_up(events in prop::collection::vec(any_event(), 0..60)) {
        for end in 0..=events.len() {
            let seen = ledger(events[..end].iter().cloned());
            prop_assert_eq!(seen.lines, end as u64);
            prop_assert!(unique(seen.open_intents.iter().map(|it| &it.id)));
            prop_assert!(unique(seen.spent.iter().map(|it| &it.id)));
            let own = seen.drains.values().chain(seen.undone_drains.values().map(|it| &it.drain));
            prop_assert!(unique(own.clone().map(|it| &it.id)), "a drain counts twice");
            for drain in own {
                prop_assert!(seen.open_intents.iter().all(|open| open.id != drain.id));
                prop_assert!(unique(drain.clean.iter().map(|it| &it.run)));
            }
            for node in seen.drains.keys() {
                prop_assert!(!seen.undone_drains.contains_key(node), "{node} is both");
            }
        }
    }

    #[test]
    fn lines_written_twice_change_no_sum(events in prop::collection::vec(any_event(), 0..40)) {
        let once = ledger(events.iter().cloned());
        let twice = ledger(events.iter().flat_map(|it| {
            // A refunded line may be repeated intentionally: only the turn distinguishes the two,
            // and these names omit it.
            let copies = match it {
                JournalEvent::Outcome { .. } | JournalEvent::Clean { .. } | JournalEvent::Intent { .. } => 2,
                _ => 1,
            };
            vec![it.clone(); copies]
        }));
        prop_assert_eq!(once.spent.len(), twice.spent.len());
        prop_assert_eq!(once.open_intents.len(), twice.open_intents.len());
        prop_assert_eq!(drained(&once), drained(&twice));
    }
}
