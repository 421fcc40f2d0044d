//! The model can fail: histories in which an invariant is broken.

use std::collections::BTreeMap;

use super::storm::journal::Line;
use super::storm::model::*;
use super::storm::runs::{Evidence, Finding};

fn fields(pairs: &[(&str, &str)]) -> Fields {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

const OURS: &str = "fabricgate:nvlink-low:r1 e1";
const FILE: u64 = 1_000;

fn intent(seq: u64, node: &str, kind: &str) -> Line {
    let reason = if kind == "drain" { OURS } else { "" };
    Line {
        end: seq * 100,
        seq,
        epoch: 1,
        unix: 100,
        event: "intent".to_owned(),
        id: format!("r1/{node}/{kind}/e1"),
        run: "r1".to_owned(),
        node: node.to_owned(),
        kind: kind.to_owned(),
        reason: reason.to_owned(),
        findings: vec![format!("of-{node}")],
        ..Line::default()
    }
}

fn outcome(seq: u64, of: &Line) -> Line {
    let event = "outcome".to_owned();
    Line {
        end: seq * 100,
        seq,
        event,
        result: "done".to_owned(),
        kind: String::new(),
        ..of.clone()
    }
}

/// A run that blames these nodes; all others pass.
fn run(created: i64, bad: &[&str]) -> Evidence {
    let outcome = |node: &str| if bad.contains(&node) { "failed" } else { "pass" };
    let finding = |node: &&str| {
        let finding = Finding { node: Some((*node).to_owned()), confirmed: true };
        (format!("of-{node}"), finding)
    };
    let nodes = ["n1", "n2", "n3"].map(|node| (node.to_owned(), outcome(node).to_owned()));
    Evidence {
        created,
        began: None,
        is_whole: true,
        nodes: nodes.into(),
        findings: bad.iter().map(finding).collect(),
    }
}

/// Three nodes of one domain, of which two may be out, and a run that blames n1 and n2.
fn history() -> History {
    let names = ["n1", "n2", "n3"].map(str::to_owned);
    History {
        begin: names.clone().map(|name| (name, Fields::new())).into(),
        log: Vec::new(),
        journal: Vec::new(),
        earlier: Vec::new(),
        runs: BTreeMap::from([("r1".to_owned(), run(50, &["n1", "n2"]))]),
        domains: names.map(|name| (name, "d".to_owned())).into(),
        limits: Limits {
            per_domain: 2,
            outstanding: 2,
            per_hour: 2,
            freeze_domain: 3,
            freeze_fleet: 3,
            clean_sweeps: 2,
            waits: false,
        },
    }
}

fn drain(reason: &str) -> Order {
    Order { set: fields(&[(DRAIN, reason)]), ..Order::default() }
}

fn resume() -> Order {
    Order { unset: vec![DRAIN.to_owned(), "down".to_owned()], ..Order::default() }
}

impl History {
    /// The gate reads a node, and sends this update with this number of journal lines.
    fn acts(&mut self, node: &str, order: Order, journal: u64, evidence: bool) {
        let now = self.now();
        let after = order.on(&now[node]);
        let nodes = vec![node.to_owned()];
        let by = By::Gate(1);
        self.log.push(Entry { by, what: What::Read(now) });
        self.log.push(Entry { by, what: What::Sent { nodes, order, journal, evidence } });
        self.becomes(by, node, after);
    }

    fn becomes(&mut self, by: By, node: &str, now: Fields) {
        let what = What::Became { node: node.to_owned(), now };
        self.log.push(Entry { by, what });
    }
}

/// Exactly one invariant is broken, and its message contains this text.
fn breaks(history: &History, words: &str) {
    let broken = history.broken();
    assert!(broken.len() == 1 && broken[0].contains(words), "{words}: {broken:?}");
}

/// n1 drained correctly.
fn good() -> History {
    let mut history = history();
    let first = intent(1, "n1", "drain");
    history.journal = vec![first.clone(), outcome(2, &first)];
    history.acts("n1", drain(OURS), 100, true);
    history
}

#[test]
fn a_drain_with_intent_and_evidence_breaks_no_invariant() {
    assert_eq!(good().broken(), Vec::<String>::new());
}

#[test]
fn a_drain_before_its_intent_is_seen() {
    let mut history = good();
    let What::Sent { journal, .. } = &mut history.log[1].what else { panic!() };
    *journal = 99;
    breaks(&history, "without an open intent");
}

#[test]
fn a_drain_after_its_intent_was_ended_is_seen() {
    let mut history = good();
    let What::Sent { journal, .. } = &mut history.log[1].what else { panic!() };
    *journal = FILE;
    breaks(&history, "without an open intent");
}

#[test]
fn a_drain_without_verdicts_on_disk_is_seen() {
    let mut history = good();
    let What::Sent { evidence, .. } = &mut history.log[1].what else { panic!() };
    *evidence = false;
    breaks(&history, "names a run without verdicts");
}

#[test]
fn a_run_that_does_not_blame_is_not_evidence() {
    let mut history = good();
    history.runs = BTreeMap::from([("r1".to_owned(), run(50, &["n2"]))]);
    breaks(&history, "run r1 has outcome pass");
    let run = history.runs.get_mut("r1").expect("a run");
    *run = self::run(50, &["n1"]);
    run.findings.get_mut("of-n1").expect("a finding").confirmed = false;
    breaks(&history, "run r1 has outcome failed");
    history.runs.clear();
    breaks(&history, "no readable verdicts");
}

#[test]
fn an_overwritten_or_removed_foreign_drain_is_detected() {
    for (order, kind) in [(drain(OURS), "drain"), (resume(), "release")] {
        let mut history = history();
        history.journal = vec![intent(1, "n1", kind)];
        history.begin.insert("n1".to_owned(), fields(&[(DRAIN, "ticket 4711")]));
        history.acts("n1", order, 100, true);
        let broken = history.broken();
        assert!(broken.iter().any(|it| it.contains("a foreign drain")), "{broken:?}");
    }
}

#[test]
fn a_reason_of_our_form_that_the_journal_does_not_know_is_foreign() {
    let mut history = history();
    history.journal = vec![intent(1, "n1", "drain")];
    let forged = fields(&[(DRAIN, "fabricgate:nvlink-low:r0 e1")]);
    history.begin.insert("n1".to_owned(), forged);
    history.acts("n1", drain(OURS), 100, true);
    breaks(&history, "a foreign drain");
}

#[test]
fn any_other_field_of_others_is_theirs() {
    for (key, order) in [
        ("comment", Order { set: fields(&[("comment", "ours")]), ..Order::default() }),
        ("extra/asset", Order { unset: vec!["extra/".to_owned()], ..Order::default() }),
        ("extra-text", Order { unset: vec!["extra-text".to_owned()], ..Order::default() }),
        ("active/gpu", Order { unset: vec!["active/".to_owned()], ..Order::default() }),
    ] {
        let mut history = history();
        history.journal = vec![intent(1, "n1", "drain")];
        history.begin.insert("n1".to_owned(), fields(&[(key, "theirs")]));
        history.acts("n1", order, 100, true);
        breaks(&history, "is not fabricgate's");
    }
}

#[test]
fn a_mark_without_an_intent_is_detected() {
    let mut history = history();
    let order = Order { set: fields(&[("own/extra/fabricgate", "{}")]), ..Order::default() };
    history.acts("n3", order, 0, true);
    breaks(&history, "written without an intent");
}

#[test]
fn a_node_that_is_changed_unread_is_seen() {
    let mut history = good();
    history.log.remove(0);
    breaks(&history, "without being read");
}

#[test]
fn a_persons_write_after_the_last_reading_was_not_seen_by_the_gate() {
    let mut history = good();
    history.log.insert(
        1,
        Entry {
            by: By::Hand,
            what: What::Became { node: "n1".to_owned(), now: fields(&[(DRAIN, "mine")]) },
        },
    );
    assert_eq!(history.broken(), Vec::<String>::new());
}

#[test]
fn one_node_beyond_a_budget_is_detected() {
    let two = || {
        let mut history = good();
        let second = Line { end: 300, ..intent(3, "n2", "drain") };
        history.journal.push(second);
        history.acts("n2", drain(OURS), 300, true);
        history
    };
    assert_eq!(two().broken(), Vec::<String>::new());
    let limit = |change: fn(&mut Limits)| {
        let mut history = two();
        change(&mut history.limits);
        history
    };
    breaks(&limit(|it| it.per_domain = 1), "nodes of its domain are out, and 1");
    breaks(&limit(|it| it.outstanding = 1), "2 nodes are out, and 1");
    breaks(&limit(|it| it.per_hour = 1), "2 drains were begun, and 1");
}

#[test]
fn a_release_needs_its_clean_runs_and_an_intent() {
    let mut history = good();
    let release = Line { end: 300, run: "r3".to_owned(), ..intent(3, "n1", "release") };
    history.journal.push(release);
    history.runs.insert("r2".to_owned(), run(200, &[]));
    history.runs.insert("r3".to_owned(), run(300, &[]));
    history.acts("n1", resume(), 300, true);
    assert_eq!(history.broken(), Vec::<String>::new());
    history.runs.remove("r2");
    breaks(&history, "it passed 1 runs");
    history.runs.insert("r2".to_owned(), run(99, &[]));
    breaks(&history, "it passed 1 runs");
    history.runs.insert("r2".to_owned(), run(200, &[]));
    history.journal.pop();
    breaks(&history, "given back without an open intent");
}

#[test]
fn clean_runs_are_counted_by_the_real_time_and_not_by_a_clock_that_was_ahead() {
    let at = |began: f64| Evidence { began: Some(began), ..run(90, &[]) };
    let mut history = good();
    for line in &mut history.journal {
        // At 100 by its clock, which every run seems to precede, and at 50 in truth.
        line.truly = Some(50.0);
    }
    let release = Line { end: 300, run: "r3".to_owned(), ..intent(3, "n1", "release") };
    history.journal.push(release);
    history.runs.insert("r2".to_owned(), at(60.0));
    history.runs.insert("r3".to_owned(), at(70.0));
    history.acts("n1", resume(), 300, true);
    assert_eq!(history.broken(), Vec::<String>::new());
    history.runs.insert("r2".to_owned(), at(40.0));
    breaks(&history, "it passed 1 runs");
}

#[test]
fn a_journal_with_a_gap_or_a_step_back_in_time_is_seen() {
    let mut history = good();
    history.journal[1].seq = 3;
    breaks(&history, "has number 3");
    let mut history = good();
    history.journal[1].unix = 99;
    breaks(&history, "goes back in time");
}

#[test]
fn a_fault_that_stays_in_service_and_a_cure_that_stays_out_are_seen() {
    let mut history = good();
    history.limits.per_hour = 3;
    let unsettled = |history: &History, run: &str| history.unsettled(run);
    let left = unsettled(&history, "r1");
    assert!(left.len() == 1 && left[0].contains("n2 is failed and in service"), "{left:?}");
    let line = |event: &str| Line { event: event.to_owned(), seq: 3, ..intent(3, "n2", "") };
    let mut seen_once = history.clone();
    seen_once.journal.push(line("suspected"));
    // Where one finding suffices, a first finding is not an excuse.
    assert_eq!(unsettled(&seen_once, "r1").len(), 1);
    // A full budget, a person's veto, or a person's own drain excuse it.
    for excuse in ["budget", "undone", "foreign", "awaited"] {
        let mut history = history.clone();
        match excuse {
            "budget" => history.limits.per_domain = 1,
            "undone" => history.journal.push(line("undone")),
            "awaited" => {
                history = seen_once.clone();
                history.limits.waits = true;
            }
            _ => history.becomes(By::Hand, "n2", fields(&[(DRAIN, "mine")])),
        }
        assert_eq!(unsettled(&history, "r1"), Vec::<String>::new(), "{excuse}");
    }
    for at in 2..5 {
        history.runs.insert(format!("r{at}"), run(100 * at, &[]));
    }
    let left = unsettled(&history, "r4");
    assert!(left.len() == 1 && left[0].contains("n1 passed again and again"), "{left:?}");
    // A release that the gate made, and an older store reverted.
    let mut restored = history.clone();
    let is = restored.now()["n1"].clone();
    let last = restored.journal.len() as u64;
    let release = intent(last + 1, "n1", "release");
    restored.journal.extend([release.clone(), outcome(last + 2, &release)]);
    restored.becomes(By::Gate(1), "n1", Fields::new());
    let mut by_gate = restored.clone();
    restored.becomes(By::Fate, "n1", is.clone());
    assert_eq!(unsettled(&restored, "r4"), Vec::<String>::new(), "an older store's");
    by_gate.becomes(By::Gate(1), "n1", is);
    assert_eq!(unsettled(&by_gate, "r4").len(), 1, "drained again by the gate");
    let mut down = history.clone();
    let mut is = down.now()["n1"].clone();
    is.insert("down".to_owned(), "dimm 4".to_owned());
    down.becomes(By::Hand, "n1", is);
    assert_eq!(unsettled(&down, "r4"), Vec::<String>::new(), "down by hand");
    history.journal.pop();
    let left = unsettled(&history, "r4");
    assert!(left.iter().any(|it| it.contains("is open yet")), "{left:?}");
}

#[test]
fn an_undo_that_is_overridden_by_the_same_drain_is_seen() {
    for left in ["own/extra/fabricgate", "own/condition/GpuFabricVerified"] {
        let mut history = good();
        history.becomes(By::Hand, "n1", fields(&[(left, "{}")]));
        history.acts("n1", drain(OURS), 100, true);
        breaks(&history, "an undo was overridden");
    }
    // A mark that a scheduler forgot is written again.
    let mut history = good();
    history.becomes(By::Fate, "n1", Fields::new());
    history.acts("n1", drain(OURS), 100, true);
    assert_eq!(history.broken(), Vec::<String>::new());
}

#[test]
fn a_mark_that_an_older_journal_lacks_counts_on_its_node() {
    let mut history = good();
    // The second drain is by a journal that has forgotten the first.
    history.log.push(Entry { by: By::Hand, what: What::Restored });
    let second = intent(1, "n2", "drain");
    history.earlier = vec![std::mem::replace(&mut history.journal, vec![second])];
    history.acts("n2", drain(OURS), 100, true);
    assert_eq!(history.broken(), Vec::<String>::new());
    history.limits.outstanding = 1;
    breaks(&history, "2 nodes are out, and 1");
    history.limits = Limits { outstanding: 2, per_hour: 1, ..history.limits };
    breaks(&history, "2 drains were begun, and 1");
}

#[test]
fn a_drain_that_an_older_store_restores_is_in_the_budget_of_the_next_drain_only() {
    let mut history = good();
    history.limits.outstanding = 1;
    let second = intent(3, "n2", "drain");
    history.journal.extend([second.clone(), outcome(4, &second)]);
    history.becomes(By::Fate, "n2", fields(&[(DRAIN, OURS)]));
    let words = fields(&[("own/labels/fabricgate.io/verdict", "degraded")]);
    history.acts("n1", Order { set: words, ..Order::default() }, 400, true);
    assert_eq!(history.broken(), Vec::<String>::new());
    // Only the one that came back forbids it.
    let mut history = good();
    history.limits.outstanding = 1;
    history.journal.push(second);
    history.acts("n2", drain(OURS), 300, true);
    breaks(&history, "2 nodes are out");
}
