//! Marks on Slurm nodes, and text of other programs that must stay.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use model::finding_class::FindingClass;

fn node() -> SchedulerNode {
    let mut node = SchedulerNode::new("n1", &["IDLE"]);
    node.available_features = vec!["gb200".to_owned(), "rack7".to_owned()];
    node.active_features = vec!["gb200".to_owned()];
    node
}

fn mark(outcome: Outcome) -> VerdictMark {
    VerdictMark {
        outcome,
        class: (outcome != Outcome::Pass).then_some(FindingClass::NvlinkLow),
        run: "20261121T1200-ab12".to_owned(),
        at: "2026-11-21T12:00:00Z".to_owned(),
        expires: Some("2026-11-28T12:00:00Z".to_owned()),
        boot_id: None,
        domain: None,
    }
}

/// The node after the change, as Slurm stores it.
fn changed(node: &SchedulerNode, change: &NodeUpdate) -> SchedulerNode {
    let mut node = node.clone();
    let NodeUpdate { state, available_features, active_features, extra, comment, kubernetes: _ } =
        change.clone();
    assert_eq!((state, comment), (None, None));
    node.available_features = available_features.unwrap_or(node.available_features);
    node.active_features = active_features.unwrap_or(node.active_features);
    node.extra = extra.unwrap_or(node.extra);
    node
}

fn with_mark(node: &SchedulerNode, outcome: Outcome) -> SchedulerNode {
    changed(node, &mark_change(node, &mark(outcome), &MarkNames::default()))
}

#[test]
fn each_outcome_has_its_feature_and_others_stay_in_order() {
    let names = MarkNames::default();
    let verified = with_mark(&node(), Outcome::Pass);
    assert_eq!(verified.available_features, ["gb200", "rack7", "fabric_verified"]);
    assert_eq!(verified.active_features, ["gb200", "fabric_verified"]);
    for outcome in [Outcome::Degraded, Outcome::Failed] {
        let now = with_mark(&verified, outcome);
        assert_eq!(now.available_features, ["gb200", "rack7", "fabric_degraded"], "{outcome}");
        assert_eq!(now.active_features, ["gb200", "fabric_degraded"], "{outcome}");
        assert_eq!(with_mark(&now, Outcome::Pass).active_features, verified.active_features);
    }
    assert!(mark_change(&verified, &mark(Outcome::Unknown), &names).is_empty());
    assert!(has_mark(&verified, &mark(Outcome::Pass), &names));
}

#[test]
fn a_feature_that_is_only_available_is_made_active() {
    let mut half = with_mark(&node(), Outcome::Pass);
    half.active_features = vec!["gb200".to_owned()];
    assert_eq!(with_mark(&half, Outcome::Pass).active_features, ["gb200", "fabric_verified"]);
}

#[test]
fn incomplete_features_are_not_written() {
    let mut cut = node();
    cut.available_features.clear();
    let change = mark_change(&cut, &mark(Outcome::Pass), &MarkNames::default());
    assert_eq!((change.available_features, change.active_features), (None, None));
    assert_eq!(explain_unwritable(&cut, &mark(Outcome::Pass), &MarkNames::default()).len(), 1);
}

#[test]
fn the_entry_is_one_key_and_other_keys_stay_unchanged() {
    let others = r#"{"b" : 1.50e+02,"a":[1, 2 ],"é":12345678901234567890123,"b":null}"#;
    let mut node = SchedulerNode { extra: others.to_owned(), ..node() };
    node = with_mark(&node, Outcome::Degraded);
    let ours = r#""fabricgate":{"v":1,"outcome":"degraded","class":"nvlink-low","run":"20261121T1200-ab12","at":"2026-11-21T12:00:00Z","expires":"2026-11-28T12:00:00Z"}"#;
    let kept = r#"{"b":1.50e+02,"a":[1,2],"é":12345678901234567890123,"b":null,"#;
    assert_eq!(node.extra, format!("{kept}{ours}}}"));
    assert_eq!(read_mark(&node, &MarkNames::default()), Some(mark(Outcome::Degraded)));
    let empty = with_mark(&SchedulerNode::new("n", &[]), Outcome::Degraded);
    assert_eq!(empty.extra, format!("{{{ours}}}"));
    // The new entry stays at its position and does not move behind the others.
    let first =
        SchedulerNode { extra: r#"{"fabricgate":7,"x":1,"fabricgate":{}}"#.to_owned(), ..empty };
    assert_eq!(with_mark(&first, Outcome::Degraded).extra, format!(r#"{{{ours},"x":1}}"#));
}

#[test]
fn another_party_s_text_stays_and_is_reported() {
    for foreign in ["ticket 4711", "[1]", "\"x\"", "{\"a\":1} b", "{", "null", "\u{1b}[31m"] {
        let node = SchedulerNode { extra: foreign.to_owned(), ..node() };
        let (mark, names) = (mark(Outcome::Pass), MarkNames::default());
        let change = mark_change(&node, &mark, &names);
        assert_eq!((&change.extra, &change.comment), (&None, &None), "{foreign}");
        assert!(change.active_features.is_some());
        let reason = explain_unwritable(&node, &mark, &names);
        assert_eq!(reason.len(), 1, "{foreign}");
        assert!(!reason[0].contains('\u{1b}'), "{reason:?}");
        assert_eq!(read_mark(&node, &names), None);
        assert!(has_mark(&changed(&node, &change), &mark, &names));
    }
}

#[test]
fn a_field_of_several_lines_becomes_one_and_what_steers_terminals_is_left_alone() {
    let pretty = "{\n  \"a\": {\n    \"b \\\" c\": [ 1,\t2 ]\n  }\n}\n";
    let node = with_mark(&SchedulerNode { extra: pretty.to_owned(), ..node() }, Outcome::Pass);
    assert!(node.extra.starts_with(r#"{"a":{"b \" c":[1,2]},"fabricgate":{"#), "{}", node.extra);
    let steering = SchedulerNode { extra: "{\"a\":\"\u{9b}31m\"}".to_owned(), ..node };
    let (mark, names) = (mark(Outcome::Pass), MarkNames::default());
    assert_eq!(mark_change(&steering, &mark, &names).extra, None);
    assert_eq!(explain_unwritable(&steering, &mark, &names).len(), 1);
}

#[test]
fn a_field_too_long_for_one_argument_is_left_alone() {
    let node = SchedulerNode { extra: json!({"a": "x".repeat(40_000)}).to_string(), ..node() };
    let (mark, names) = (mark(Outcome::Pass), MarkNames::default());
    assert_eq!(mark_change(&node, &mark, &names).extra, None);
    assert!(
        explain_unwritable(&node, &mark, &names)[0].contains(" bytes"),
        "{:?}",
        explain_unwritable(&node, &mark, &names)
    );
}

#[test]
fn a_hostile_entry_is_no_danger_to_read() {
    let names = MarkNames::default();
    let deep = format!("{{\"fabricgate\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for extra in [
        deep.as_str(),
        r#"{"fabricgate":{"v":2,"outcome":"pass","run":"r","at":"t"}}"#,
        r#"{"fabricgate":{"v":1,"outcome":"excellent","run":"r","at":"t"}}"#,
        r#"{"fabricgate":"pass"}"#,
    ] {
        assert_eq!(read_mark(&SchedulerNode { extra: extra.to_owned(), ..node() }, &names), None);
    }
    let run = "\u{1b}]0;owned\u{7}\n".repeat(1_000);
    let extra = json!({"fabricgate": {"v": 1, "outcome": "pass", "run": run, "at": "t"}});
    let node = SchedulerNode { extra: extra.to_string(), ..node() };
    let read = read_mark(&node, &names).expect("a mark");
    assert!(read.run.chars().all(|c| !c.is_control()) && read.run.len() < 1_000, "{read:?}");
}

#[test]
fn a_site_can_leave_either_out() {
    let only_extra = MarkNames { features: false, ..MarkNames::default() };
    let only_features = MarkNames { extra: false, ..MarkNames::default() };
    let by_extra = mark_change(&node(), &mark(Outcome::Pass), &only_extra);
    assert!(by_extra.active_features.is_none() && by_extra.extra.is_some());
    let by_features = mark_change(&node(), &mark(Outcome::Pass), &only_features);
    assert!(by_features.active_features.is_some() && by_features.extra.is_none());
}

#[test]
fn names_are_such_that_jobs_can_ask_for_them() {
    assert_eq!(MarkNames::default().check(), Ok(()));
    let named =
        |verified: &str| MarkNames { verified: verified.to_owned(), ..MarkNames::default() };
    assert_eq!(named("gate:ok-1.2/x").check(), Ok(()));
    for wrong in [
        "",
        "a,b",
        "a b",
        "a&b",
        "a|b",
        "[a",
        "a]",
        "(a",
        "a)",
        "a*2",
        "é",
        "a\n",
        "fabric_degraded",
    ] {
        assert!(named(wrong).check().is_err(), "{wrong:?}");
    }
}

#[test]
fn features_lost_by_slurm_are_restored_and_removed_entries_are_not() {
    let policy = Policy::default();
    let marked = with_mark(&node(), Outcome::Degraded);
    let forgot = SchedulerNode {
        available_features: node().available_features,
        active_features: node().active_features,
        ..marked.clone()
    };
    let of = |name: &str, node: &SchedulerNode| {
        (NodeName::from(name), SchedulerNode { name: name.into(), ..node.clone() })
    };
    let live = SchedulerSnapshot {
        nodes: [
            of("forgot", &forgot),
            of("marked", &marked),
            of("taken", &SchedulerNode { extra: r#"{"other":1}"#.to_owned(), ..forgot.clone() }),
            of("cleared", &SchedulerNode { extra: String::new(), ..forgot.clone() }),
            of("foreign", &SchedulerNode { extra: "ticket 4711".to_owned(), ..forgot.clone() }),
            of("never", &node()),
        ]
        .into(),
        troubles: Vec::new(),
    };
    let names_of = ["forgot", "marked", "taken", "cleared", "foreign", "gone"];
    let marks = names_of.map(|name| (NodeName::from(name), mark(Outcome::Degraded)));
    let mut ledger = JournalState { marks: marks.into(), ..JournalState::default() };
    let found = find_lost_marks(&live, &ledger, &policy, &ClockStamp::default());
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, "forgot".into());
    assert_eq!(changed(&forgot, &found[0].1), marked);
    // Without the field, only the journal contains evidence.
    let names = MarkNames { extra: false, ..MarkNames::default() };
    let only_features = Policy { marks: names, ..Policy::default() };
    assert_eq!(find_lost_marks(&live, &ledger, &only_features, &ClockStamp::default()).len(), 4);
    ledger.marks.values_mut().for_each(|mark| mark.outcome = Outcome::Unknown);
    assert_eq!(find_lost_marks(&live, &ledger, &policy, &ClockStamp::default()), []);
}

#[test]
fn on_slurm_a_pass_of_an_earlier_boot_is_taken_off_and_never_brought_back() {
    let policy = Policy::default();
    let verified =
        SchedulerNode { booted: Some(1_795_400_000), ..with_mark(&node(), Outcome::Pass) };
    let live = |node: SchedulerNode| SchedulerSnapshot {
        nodes: [("n1".into(), node)].into(),
        troubles: Vec::new(),
    };
    let marks = [(NodeName::from("n1"), mark(Outcome::Pass))];
    let ledger = JournalState { marks: marks.into(), ..JournalState::default() };
    let now = ClockStamp { at: "2026-11-23T03:00:00Z".to_owned(), ..ClockStamp::default() };
    let found = find_lost_marks(&live(verified.clone()), &ledger, &policy, &now);
    assert_eq!(found[0].1.active_features, Some(vec!["gb200".to_owned()]));
    let lost = SchedulerNode {
        available_features: node().available_features,
        active_features: node().active_features,
        ..verified.clone()
    };
    assert_eq!(find_lost_marks(&live(lost), &ledger, &policy, &now), []);
    let mut kept = policy;
    kept.certificate_void.boot = false;
    assert_eq!(find_lost_marks(&live(verified), &ledger, &kept, &now), []);
}

fn feature() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("fabric_verified".to_owned()),
        Just("fabric_degraded".to_owned()),
        "[a-c]{1,2}",
        "\\PC{1,4}",
    ]
}

fn field() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        Just(json!({"v": 1, "outcome": "pass", "run": "r", "at": "t"}).to_string()),
        "-?[1-9][0-9]{0,25}(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?",
        "\\PC{0,8}".prop_map(|text| json!(text).to_string()),
        Just("[1, {\"fabricgate\" : null}]".to_owned()),
        Just("{\n\"a\\\\\":\r\n\"\\\" b\"}".to_owned()),
        Just("\"\u{7f}\"".to_owned()),
    ];
    let key = prop_oneof![Just("fabricgate".to_owned()), "[a-c]", "\\PC{0,3}"];
    let object = proptest::collection::vec((key, value), 0..5).prop_map(|keys| {
        let parts = keys.iter().map(|(key, value)| format!("{} : {value}", json!(key)));
        format!("{{ {} }}", parts.collect::<Vec<_>>().join(" , "))
    });
    prop_oneof![Just(String::new()), object, "\\PC{0,12}"]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    proptest::sample::select(vec![
        Outcome::Pass,
        Outcome::Degraded,
        Outcome::Failed,
        Outcome::Unknown,
    ])
}

/// Keys and values of other programs, character by character.
fn of_others(extra: &str) -> Vec<(String, String)> {
    let found = slurm_extra_field::parse_keys(extra).unwrap_or_default();
    let others = found.into_iter().filter(|(key, _)| key != "fabricgate");
    others.map(|(key, raw)| (key, slurm_extra_field::compact(raw.get()))).collect()
}

proptest! {
    #[test]
    fn a_written_mark_is_read_back_keeps_the_rest_and_is_written_once(
        available in proptest::collection::vec(feature(), 0..6),
        picks in proptest::collection::vec(any::<bool>(), 6),
        extra in field(),
        outcome in outcome(),
        run in "\\PC{0,20}",
    ) {
        let mut node = SchedulerNode::new("n", &["IDLE"]);
        let active = available.iter().zip(&picks).filter(|(_, pick)| **pick);
        node.active_features = active.map(|(feature, _)| feature.clone()).collect();
        node.available_features = available;
        node.extra = extra;
        let names = MarkNames::default();
        let mark = VerdictMark { run, ..mark(outcome) };
        let change = mark_change(&node, &mark, &names);
        let after = changed(&node, &change);

        prop_assert!(has_mark(&after, &mark, &names));
        prop_assert!(mark_change(&after, &mark, &names).is_empty());
        let others = |features: &[String]| -> Vec<String> {
            let is_ours = |it: &&String| **it == names.verified || **it == names.degraded;
            features.iter().filter(|it| !is_ours(it)).cloned().collect()
        };
        prop_assert_eq!(others(&after.available_features), others(&node.available_features));
        prop_assert_eq!(others(&after.active_features), others(&node.active_features));
        // `gate` refuses to send control characters.
        prop_assert!(!change.extra.unwrap_or_default().contains(char::is_control));
        let sent = change.available_features.unwrap_or_default();
        prop_assert!(sent.iter().all(|it| !it.is_empty() && !it.contains(char::is_whitespace)));
        prop_assert!(after.active_features.iter().all(|it| after.available_features.contains(it)));
        if slurm_extra_field::parse_keys(&node.extra).is_some() {
            prop_assert_eq!(of_others(&after.extra), of_others(&node.extra));
            if explain_unwritable(&node, &mark, &names).is_empty() && outcome != Outcome::Unknown {
                prop_assert!(serde_json::from_str::<Value>(&after.extra).is_ok());
                prop_assert_eq!(read_mark(&after, &names).map(|it| it.outcome), Some(outcome));
            }
        } else {
            prop_assert_eq!(&after.extra, &node.extra);
        }
    }
}
