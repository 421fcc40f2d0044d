//! Turns under injected faults on a real server: lost answers, refusals, storms of conflicts,
//! nodes that are deleted and recreated, expired tokens, a server that hangs or is killed in the
//! middle of a turn.
//!
//! In every case: a drain is complete or absent, the journal records it or leaves it open, the
//! next turn concludes, and no foreign field is changed.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use control::gate::journal;
use control::gate::kubernetes::{KubernetesScheduler as Gate, events};
use control::gate::scheduler::Scheduler;
use control::sources::kubernetes::connection::{ResponseReadLimit, connect};
use engine::policy::journal_state::JournalState;
use model::action::ActionResult::*;
use model::action::{ActionKind, ActionRecord, ActionResult};
use model::source_report::SourceProblemKind;
use serde_json::{Value, json};

use super::proxy::{Call, InjectedFault, Proxy};
use super::turns::{
    Admin, NODES, action, content, drained, drained_before, foreign, laboratory, now, object, own,
    plan, results, through, turn, turn_of,
};

/// One gate, one node, and the proxy between them and the server.
struct Site {
    folder: tempfile::TempDir,
    proxy: Proxy,
    admin: Admin,
    gate: Gate,
    node: String,
    before: Value,
}

impl Site {
    fn new(kubeconfig: &Path, node: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let proxy = Proxy::to(kubeconfig, folder.path());
        let admin = Admin::of(kubeconfig);
        now(admin.make(node));
        let gate = Gate::new(through(&folder.path().join("admin.proxy.kubeconfig")));
        let before = now(admin.node(node));
        Self { folder, proxy, admin, gate, node: node.to_owned(), before }
    }

    fn turn(&self, kind: ActionKind) -> Vec<ActionRecord> {
        let plan = plan(vec![action(kind, &self.node)]);
        turn(&self.folder.path().join("state"), &self.gate, &plan)
    }

    fn drain(&self) -> (ActionResult, String) {
        let records = self.turn(ActionKind::Drain);
        assert_eq!(records.len(), 1, "{records:?}");
        (records[0].result, records[0].detail.clone())
    }

    fn ledger(&self) -> JournalState {
        journal::read_state(&self.folder.path().join("state")).expect("a journal")
    }

    fn now(&self) -> Value {
        now(self.admin.node(&self.node))
    }

    /// The drain exists once, is fabricgate's and in the journal; no foreign field was changed.
    fn is_drained(&self) {
        let (node, ledger) = (self.now(), self.ledger());
        assert_eq!(own(&ledger), [self.node.as_str()], "{ledger:?}");
        assert!(ledger.open_intents.is_empty(), "{ledger:?}");
        let written = &ledger.drains[&self.node.as_str().into()].action.reason;
        assert_eq!(drained(&node).as_ref(), Some(written));
        assert_eq!(foreign(&node), foreign(&self.before));
    }

    /// Nothing was changed, and the journal does not claim a change.
    fn is_untouched(&self) {
        assert_eq!(content(&self.now()), content(&self.before));
        assert!(own(&self.ledger()).is_empty(), "{:?}", self.ledger());
    }

    /// Without faults a turn drains an undrained node, and another changes nothing.
    fn concludes(&self) {
        self.proxy.inject(|_| InjectedFault::Fine);
        // An unanswered request is awaited, for a multiple of the time that a change needs.
        for _ in 0..60 {
            self.turn(ActionKind::Drain);
            if self.ledger().open_intents.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        self.is_drained();
        let after = self.now();
        self.proxy.inject(|_| InjectedFault::Fine);
        self.turn(ActionKind::Drain);
        assert!(self.proxy.asked().iter().all(|it| it.method == "GET"), "{:?}", self.writes());
        assert_eq!(content(&self.now()), content(&after));
    }

    fn writes(&self) -> Vec<Call> {
        self.proxy.received().into_iter().filter(|it| it.method != "GET").collect()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            now(self.admin.delete(&format!("{NODES}/{}", self.node)));
        }
    }
}

/// Faults for the first requests of a kind.
fn first(
    count: usize,
    of: fn(&Call) -> bool,
    fault: fn() -> InjectedFault,
) -> impl FnMut(&Call) -> InjectedFault + Send + 'static {
    let mut left = count;
    move |call| {
        if of(call) && 0 < left {
            left -= 1;
            fault()
        } else {
            InjectedFault::Fine
        }
    }
}

#[test]
fn a_lost_answer_is_verified_and_the_drain_made_once() {
    let Some(lab) = laboratory() else { return };
    let site = Site::new(&lab, "fault-answer");
    site.proxy.inject(first(1, Call::is_patch, || InjectedFault::LostAnswer));
    assert_eq!(site.drain().0, Done);
    site.is_drained();
    assert_eq!(site.writes().iter().filter(|it| it.is_patch()).count(), 1, "{:?}", site.writes());
    site.concludes();
}

#[test]
fn a_lost_request_is_repeated() {
    let Some(lab) = laboratory() else { return };
    let site = Site::new(&lab, "fault-question");
    site.proxy.inject(first(2, Call::is_patch, || InjectedFault::Lost));
    assert_eq!(site.drain().0, Done);
    site.is_drained();
    site.concludes();
}

#[test]
fn a_server_that_receives_no_write_leaves_the_node_unchanged() {
    let Some(lab) = laboratory() else { return };
    let site = Site::new(&lab, "fault-deaf");
    site.proxy.inject(first(usize::MAX, |it| it.method == "PATCH", || InjectedFault::Lost));
    let (result, detail) = site.drain();
    assert!(matches!(result, Failed | Unknown), "{result:?}: {detail}");
    site.is_untouched();
    site.concludes();
}

#[test]
fn a_server_that_is_lost_after_the_write_leaves_an_open_entry_that_is_concluded() {
    let Some(lab) = laboratory() else { return };
    let site = Site::new(&lab, "fault-gone");
    let gone = Arc::new(AtomicBool::new(false));
    site.proxy.inject(move |call| {
        if gone.load(Ordering::Relaxed) {
            InjectedFault::Lost
        } else if call.is_patch() {
            gone.store(true, Ordering::Relaxed);
            InjectedFault::LostAnswer
        } else {
            InjectedFault::Fine
        }
    });
    let (result, detail) = site.drain();
    assert_eq!(result, Unknown, "{detail}");
    let ledger = site.ledger();
    assert_eq!(ledger.open_intents.len(), 1, "{ledger:?}");
    assert!(drained(&site.now()).is_some());
    let before = site.now();
    site.concludes();
    assert_eq!(drained(&site.now()), drained(&before), "the same drain, not another");
}

#[test]
fn a_storm_of_conflicts_ends_and_no_write_is_lost() {
    let Some(lab) = laboratory() else { return };
    let site = Site::new(&lab, "fault-storm");
    let path = format!("{NODES}/{}", site.node);
    let mut number = 0;
    site.proxy.inject(move |call| {
        if call.method != "PATCH" || number == 8 {
            return InjectedFault::Fine;
        }
        number += 1;
        let beat = json!({"metadata": {"annotations": {"example.com/beat": number.to_string()}}});
        InjectedFault::Meanwhile(vec![("PATCH", path.clone(), beat)])
    });
    assert_eq!(site.drain().0, Done);
    let node = site.now();
    assert!(drained(&node).is_some());
    assert_eq!(node["metadata"]["annotations"]["example.com/beat"], "8");
    assert_eq!(node["metadata"]["annotations"]["example.com/note"], "a person's");
}

#[test]
fn a_server_that_asks_for_patience_gets_it() {
    let Some(lab) = laboratory() else { return };
    let site = Site::new(&lab, "fault-busy");
    let busy = || InjectedFault::Answer(429, vec![("retry-after", "1")]);
    site.proxy.inject(first(2, |_| true, busy));
    assert_eq!(site.drain().0, Done);
    site.is_drained();
    let other = Site::new(&lab, "fault-busier");
    other.proxy.inject(first(2, Call::is_patch, busy));
    assert_eq!(other.drain().0, Done);
    other.is_drained();
    // A request that is never processed is not awaited.
    let last = Site::new(&lab, "fault-busiest");
    last.proxy.inject(first(
        usize::MAX,
        |it| it.method == "PATCH",
        || InjectedFault::Answer(429, vec![("retry-after", "3600")]),
    ));
    let (result, detail) = last.drain();
    assert!(matches!(result, Failed | Unknown), "{result:?}: {detail}");
    last.is_untouched();
    last.concludes();
}

#[test]
fn server_errors_pass_or_are_reported() {
    let Some(lab) = laboratory() else { return };
    for (code, name) in [(500, "fault-500"), (503, "fault-503"), (504, "fault-504")] {
        let site = Site::new(&lab, name);
        let trouble = match code {
            500 => || InjectedFault::Answer(500, Vec::new()),
            503 => || InjectedFault::Answer(503, Vec::new()),
            _ => || InjectedFault::Answer(504, Vec::new()),
        };
        site.proxy.inject(first(1, |_| true, trouble));
        let (result, detail) = site.drain();
        assert_eq!(result, Done, "{code}: {detail}");
        site.is_drained();
    }
    let site = Site::new(&lab, "fault-trouble");
    let trouble = || InjectedFault::Answer(503, Vec::new());
    site.proxy.inject(first(usize::MAX, |it| it.method == "PATCH", trouble));
    let (result, detail) = site.drain();
    assert!(matches!(result, Failed | Unknown), "{result:?}: {detail}");
    site.is_untouched();
    site.concludes();
}

#[test]
fn a_missing_right_is_reported_and_no_action_counts_as_done() {
    let Some(lab) = laboratory() else { return };
    let denied = || InjectedFault::Answer(403, Vec::new());
    // No node may be patched.
    let site = Site::new(&lab, "fault-denied");
    site.proxy.inject(first(usize::MAX, |it| it.method == "PATCH", denied));
    let (result, detail) = site.drain();
    assert_eq!(result, Failed, "{detail}");
    assert!(detail.contains("no permission"), "{detail}");
    site.is_untouched();
    site.concludes();
    // Nodes may be patched, their status not: the drain exists, and is fabricgate's.
    let half = Site::new(&lab, "fault-half");
    half.proxy.inject(first(usize::MAX, Call::is_status, denied));
    let (result, detail) = half.drain();
    let is_there = drained(&half.now()).is_some();
    let is_known =
        own(&half.ledger()) == [half.node.as_str()] || !half.ledger().open_intents.is_empty();
    assert!(is_there && is_known, "{result:?}: {detail}: {:?}", half.ledger());
    assert_eq!(foreign(&half.now()), foreign(&half.before));
    // Pods may not be listed: no node is known to be idle, and drains are still made.
    let blind = Site::new(&lab, "fault-blind");
    blind.proxy.inject(first(usize::MAX, |it| it.path.starts_with("/api/v1/pods"), denied));
    let live = now(blind.gate.read_nodes(&[blind.node.as_str().into()])).expect("read");
    assert!(live.nodes.values().all(|node| !node.has_state("IDLE")), "{live:?}");
    assert!(live.troubles.iter().any(|it| it.contains("pods were not read")), "{live:?}");
    // Nodes may not be read: nothing is known, and nothing done.
    let dark = Site::new(&lab, "fault-dark");
    dark.proxy.inject(first(usize::MAX, |it| it.path.starts_with(NODES), denied));
    let error = now(dark.gate.read_nodes(&[dark.node.as_str().into()])).expect_err("denied");
    assert_eq!(error.kind, SourceProblemKind::Denied, "{error}");
    dark.is_untouched();
}

#[test]
fn a_token_that_runs_out_in_the_middle_is_read_anew() {
    let Some(lab) = laboratory() else { return };
    let mut site = Site::new(&lab, "fault-token");
    let token = site.folder.path().join("token");
    fs::write(&token, "expired-in-the-middle").expect("written");
    let credentials = format!("tokenFile: {:?}", token.display().to_string());
    site.gate = Gate::new(through(&site.proxy.kubeconfig("gate", &credentials)));
    // It was not renewed: nothing is read and nothing done, and the token is not printed.
    let error = now(site.gate.read_nodes(&[site.node.as_str().into()])).expect_err("denied");
    assert_eq!(error.kind, SourceProblemKind::Denied, "{error}");
    assert!(!error.message.contains("in-the-middle"), "{error}");
    fs::write(&token, "admin-token").expect("written");
    now(site.gate.read_nodes(&[site.node.as_str().into()]))
        .expect("a token that was renewed is read");
    // It expires between reading and writing.
    let renewed = token.clone();
    site.proxy.inject(first_and(1, Call::is_patch, move || {
        fs::write(&renewed, "admin-token").expect("written");
        InjectedFault::Answer(401, Vec::new())
    }));
    let (result, detail) = site.drain();
    assert!(matches!(result, Done | Failed | Unknown), "{result:?}: {detail}");
    if result != Done {
        site.is_untouched();
    }
    site.concludes();
}

/// The same as `first`, with captured state.
fn first_and(
    count: usize,
    of: fn(&Call) -> bool,
    fault: impl Fn() -> InjectedFault + Send + 'static,
) -> impl FnMut(&Call) -> InjectedFault + Send + 'static {
    let left = AtomicUsize::new(count);
    move |call| {
        let is_one = of(call)
            && left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |it| it.checked_sub(1))
                .is_ok();
        if is_one { fault() } else { InjectedFault::Fine }
    }
}

#[test]
fn a_node_that_is_recreated_during_a_turn_is_a_different_one() {
    let Some(lab) = laboratory() else { return };
    let site = Site::new(&lab, "fault-anew");
    let (node, path) = (site.node.clone(), format!("{NODES}/{}", site.node));
    site.proxy.inject(first_and(1, Call::is_patch, move || {
        let gone = ("DELETE", path.clone(), json!({}));
        InjectedFault::Meanwhile(vec![gone, ("POST", NODES.to_owned(), object(&node))])
    }));
    let (result, detail) = site.drain();
    assert_ne!(result, Done, "{detail}");
    let now = site.now();
    assert_ne!(now["metadata"]["uid"], site.before["metadata"]["uid"]);
    assert_eq!(drained(&now), None, "{now}");
    assert!(own(&site.ledger()).is_empty(), "{:?}", site.ledger());
    // Gone for good: no write recreates it.
    let other = Site::new(&lab, "fault-taken");
    let path = format!("{NODES}/{}", other.node);
    other.proxy.inject(first_and(1, Call::is_patch, move || {
        InjectedFault::Meanwhile(vec![("DELETE", path.clone(), json!({}))])
    }));
    let (result, detail) = other.drain();
    assert_ne!(result, Done, "{detail}");
    let live = other.gate.read_nodes(&[]);
    let live = self::now(live).expect("read");
    assert!(!live.nodes.contains_key(&other.node.as_str().into()), "a ghost");
}

#[test]
fn a_persons_change_during_a_turn_wins() {
    let Some(lab) = laboratory() else { return };
    let cordoned = json!({"spec": {"unschedulable": true}});
    let opted_out = json!({"metadata": {"labels": {"remediation.medik8s.io/exclude-from-remediation": "true"}}});
    let ours_by_hand = json!({"metadata": {"annotations": {"fabricgate.io/reason": "mine"}}});
    for (name, patch) in [
        ("fault-cordoned", cordoned),
        ("fault-opted-out", opted_out),
        ("fault-by-hand", ours_by_hand),
    ] {
        let site = Site::new(&lab, name);
        let path = format!("{NODES}/{name}");
        let patch_then = patch.clone();
        site.proxy.inject(first_and(1, Call::is_patch, move || {
            InjectedFault::Meanwhile(vec![("PATCH", path.clone(), patch_then.clone())])
        }));
        let (result, detail) = site.drain();
        let now = site.now();
        let taints = now["spec"]["taints"].to_string();
        assert!(!taints.contains("fabricgate.io"), "{name}: {result:?}: {detail}: {taints}");
        assert_ne!(result, Done, "{name}: {detail}");
        for (key, value) in patch["metadata"]["labels"].as_object().into_iter().flatten() {
            assert_eq!(&now["metadata"]["labels"][key], value, "{name}");
        }
        assert_eq!(now["spec"]["unschedulable"], patch["spec"]["unschedulable"], "{name}");
    }
}

#[test]
fn a_drain_whose_reason_a_person_edited_is_theirs() {
    let Some(lab) = laboratory() else { return };
    for (name, annotations) in [
        ("fault-edited", json!({"fabricgate.io/reason": "a person: do not touch"})),
        ("fault-removed", json!({"fabricgate.io/reason": Value::Null})),
        ("fault-other", json!({"fabricgate.io/reason": "fabricgate:nvlink-low:r9 e7"})),
    ] {
        let site = Site::new(&lab, name);
        let state = site.folder.path().join("state");
        drained_before(&state, &site.admin, &site.gate, name);
        let path = format!("{NODES}/{name}");
        now(site.admin.patch(&path, &json!({"metadata": {"annotations": annotations}})));
        let edited = site.now();
        let records = site.turn(ActionKind::Release);
        assert!(!results(&records).contains(&Done), "{name}: {records:?}");
        assert_eq!(content(&site.now()), content(&edited), "{name}");
    }
}

#[test]
fn an_edited_certificate_does_not_stop_the_gate() {
    let Some(lab) = laboratory() else { return };
    for (name, text) in [
        ("fault-certificate-a", "{not json"),
        ("fault-certificate-b", "{\"format\":\"fabricgate.certificate/99\"}"),
        ("fault-certificate-c", "\u{1b}[2Jx"),
    ] {
        let site = Site::new(&lab, name);
        let path = format!("{NODES}/{name}");
        let patch = json!({"metadata": {"annotations": {"fabricgate.io/certificate": text}}});
        now(site.admin.patch(&path, &patch));
        let (result, detail) = site.drain();
        assert_eq!(result, Done, "{name}: {detail}");
        assert!(drained(&site.now()).is_some(), "{name}");
        assert!(!detail.contains('\u{1b}'), "{detail:?}");
    }
}

#[test]
fn one_of_two_concurrent_gates_drains_and_the_other_does_not() {
    let Some(lab) = laboratory() else { return };
    let site = Site::new(&lab, "fault-two");
    let names: Vec<String> = (1..=6).map(|it| format!("fault-two-{it}")).collect();
    for name in &names {
        now(site.admin.make(name));
    }
    let before: Vec<Value> = names.iter().map(|name| now(site.admin.node(name))).collect();
    let folders = [tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder")];
    let all = plan(names.iter().map(|name| action(ActionKind::Drain, name)).collect());
    std::thread::scope(|scope| {
        for (folder, run) in folders.iter().zip(["r1", "r2"]) {
            let (all, gate) = (&all, Gate::new(through(&lab)));
            scope.spawn(move || turn_of(run, &folder.path().join("state"), &gate, all));
        }
    });
    for (name, before) in names.iter().zip(&before) {
        let node = now(site.admin.node(name));
        assert!(drained(&node).is_some(), "{name}");
        assert_eq!(foreign(&node), foreign(before), "{name}");
        let owners = folders.iter().filter(|folder| {
            let ledger = journal::read_state(&folder.path().join("state")).expect("a journal");
            assert!(ledger.open_intents.is_empty(), "{ledger:?}");
            own(&ledger).contains(&name.as_str())
        });
        assert_eq!(owners.count(), 1, "{name} has one owner");
        now(site.admin.delete(&format!("{NODES}/{name}")));
    }
}

#[test]
fn actions_are_recorded_as_events_of_the_node_where_allowed() {
    let Some(lab) = laboratory() else { return };
    let site = Site::new(&lab, "fault-events");
    let live = now(site.gate.read_nodes(&[site.node.as_str().into()])).expect("read");
    let records = site.turn(ActionKind::Drain);
    let server = through(&site.folder.path().join("admin.proxy.kubeconfig"));
    let tell = async || {
        let access = connect(&server, ResponseReadLimit::Bounded).await.expect("a way");
        events::write_events(&access.client, &records, &live).await
    };
    now(tell()).expect("sent");
    let wanted = format!(
        "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={}",
        site.node
    );
    let events = now(site.admin.get(&wanted));
    // Controllers also report a new node, at some time.
    let events = events["items"].as_array().expect("events").iter();
    let events: Vec<_> = events.filter(|it| it["reason"] != "RegisteredNode").collect();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0]["reason"], "FabricDrained");
    assert_eq!(events[0]["involvedObject"]["uid"], site.before["metadata"]["uid"]);
    // An account without the right gets one message, and nothing else differs.
    site.proxy.inject(first(
        usize::MAX,
        |it| it.method == "POST",
        || InjectedFault::Answer(403, Vec::new()),
    ));
    assert!(now(tell()).expect_err("denied").contains("no permission"));
    site.is_drained();
}

#[test]
fn a_slow_server_is_waited_for_within_bounds() {
    let Some(lab) = laboratory() else { return };
    let site = Site::new(&lab, "fault-slow");
    site.proxy.inject(|_| InjectedFault::Slow(Duration::from_millis(400)));
    assert_eq!(site.drain().0, Done);
    site.is_drained();
    // A server without an answer for longer than the limit.
    let stuck = Site::new(&lab, "fault-stuck");
    stuck.proxy.inject(first(
        usize::MAX,
        |it| it.method == "PATCH",
        || InjectedFault::Slow(Duration::from_secs(3_600)),
    ));
    let (result, detail) = stuck.drain();
    assert!(matches!(result, Failed | Unknown), "{result:?}: {detail}");
    stuck.is_untouched();
    stuck.concludes();
}
