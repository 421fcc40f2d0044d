//! Marks on Kubernetes nodes, and entries of other programs that must stay.

use proptest::prelude::*;

use super::*;
use crate::policy::action_policy::Policy;
use crate::policy::fixture::written;
use crate::policy::journal_state::JournalState;
use crate::policy::marks;
use model::action::ActionKind;
use model::finding_class::FindingClass;
use model::id::NodeName;
use model::kubernetes_node::{NO_SCHEDULE, REASON};
use model::node_update::NodeUpdate;
use model::scheduler_snapshot::SchedulerSnapshot;

const NOW: &str = "2026-11-21T12:00:00Z";

fn taint(key: &str, value: &str, effect: &str) -> Taint {
    Taint { key: key.to_owned(), value: value.to_owned(), effect: effect.to_owned() }
}

/// A node that joined with another controller's taint.
fn joined() -> SchedulerNode {
    let object = KubernetesNode {
        taints: vec![
            taint("nvidia.com/gpu", "present", NO_SCHEDULE),
            taint(UNVERIFIED, "", NO_SCHEDULE),
        ],
        ..KubernetesNode::default()
    };
    SchedulerNode {
        kubernetes: Some(Box::new(object)),
        boot_id: Some("b-1".to_owned()),
        ..SchedulerNode::new("n1", &["IDLE", "UNVERIFIED"])
    }
}

fn mark(outcome: Outcome) -> VerdictMark {
    VerdictMark {
        outcome,
        class: (outcome != Outcome::Pass).then_some(FindingClass::NvlinkLow),
        run: "r1".to_owned(),
        at: "2026-11-20T12:00:00Z".to_owned(),
        expires: (outcome == Outcome::Pass).then(|| "2026-11-27T12:00:00Z".to_owned()),
        domain: Some("rack 7/b".into()),
        boot_id: Some("b-1".to_owned()),
    }
}

fn with_mark(node: &SchedulerNode, kind: ActionKind, outcome: Outcome) -> SchedulerNode {
    written(node, &marks::change_beside_action(kind, node, &mark(outcome), &MarkNames::default()))
}

fn verified() -> SchedulerNode {
    let mut node = with_mark(&joined(), ActionKind::Certify, Outcome::Pass);
    node.state = vec!["IDLE".to_owned()];
    node
}

fn object(node: &SchedulerNode) -> &KubernetesNode {
    node.kubernetes.as_deref().expect("a node of Kubernetes")
}

fn edited(node: &SchedulerNode, edit: impl FnOnce(&mut KubernetesNode)) -> SchedulerNode {
    let mut node = node.clone();
    edit(node.kubernetes.as_mut().expect("a node of Kubernetes"));
    node
}

/// The marks that are written again on this node at this time, for this mark in the journal.
fn restored(node: &SchedulerNode, mark: &VerdictMark, at: &str) -> Option<SchedulerNode> {
    restored_after(node, mark, None, at)
}

/// [`restored`] with an earlier mark in the journal as well.
fn restored_after(
    node: &SchedulerNode,
    mark: &VerdictMark,
    before: Option<&VerdictMark>,
    at: &str,
) -> Option<SchedulerNode> {
    let name = NodeName::from("n1");
    let live =
        SchedulerSnapshot { nodes: [(name.clone(), node.clone())].into(), troubles: Vec::new() };
    let marks_before = before.map(|before| (name.clone(), before.clone())).into_iter().collect();
    let marks = [(name, mark.clone())].into();
    let ledger = JournalState { marks, marks_before, ..JournalState::default() };
    let now = ClockStamp { at: at.to_owned(), ..ClockStamp::default() };
    let found = marks::find_lost_marks(&live, &ledger, &Policy::default(), &now);
    assert!(found.len() <= 1, "{found:?}");
    found.first().map(|(_, change)| {
        let edits = change.kubernetes.as_ref().expect("marks");
        assert!(edits.taints.is_empty(), "taints are a run's: {edits:?}");
        let again = written(node, change);
        let live = SchedulerSnapshot {
            nodes: [("n1".into(), again.clone())].into(),
            troubles: Vec::new(),
        };
        assert_eq!(marks::find_lost_marks(&live, &ledger, &Policy::default(), &now), []);
        again
    })
}

#[test]
fn a_pass_removes_the_start_up_taint_and_records_domain_and_expiry() {
    let node = verified();
    let object = object(&node);
    assert_eq!(object.taints, [taint("nvidia.com/gpu", "present", NO_SCHEDULE)]);
    assert_eq!(object.labels[VERDICT], "pass");
    assert_eq!(object.labels[VERIFIED_DOMAIN], "rack-7-b-f3e41320");
    assert_eq!(
        object.annotations[CERTIFICATE],
        "{\"v\":1,\"outcome\":\"pass\",\"run\":\"r1\",\"at\":\"2026-11-20T12:00:00Z\",\
         \"expires\":\"2026-11-27T12:00:00Z\",\"domain\":\"rack 7/b\",\"boot_id\":\"b-1\"}"
    );
    let condition = object.condition.clone().expect("ours");
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("True", "Verified"));
    assert_eq!(
        condition.message,
        "passed run r1 of 2026-11-20T12:00:00Z in rack 7/b, counts until 2026-11-27T12:00:00Z"
    );
    let names = MarkNames::default();
    assert!(marks::has_mark(&node, &mark(Outcome::Pass), &names));
    assert_eq!(marks::read_mark(&node, &names), Some(mark(Outcome::Pass)));
    assert!(!marks::has_mark(&node, &mark(Outcome::Degraded), &names));
}

#[test]
fn a_soft_fault_in_service_has_a_soft_taint_that_a_pass_or_a_drain_takes_away() {
    let soft = with_mark(&verified(), ActionKind::Relabel, Outcome::Degraded);
    let has = |node: &SchedulerNode| {
        object(node).taints.contains(&taint(DEGRADED, "nvlink-low", PREFER_NO_SCHEDULE))
    };
    assert!(has(&soft));
    assert_eq!(object(&soft).labels.get(VERIFIED_DOMAIN), None);
    assert_eq!(object(&soft).labels[VERDICT], "degraded");
    let condition = object(&soft).condition.clone().expect("ours");
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "NvlinkLow"));
    assert_eq!(
        condition.message,
        "degraded in run r1 of 2026-11-20T12:00:00Z in rack 7/b: nvlink-low"
    );
    assert!(!has(&with_mark(&soft, ActionKind::Certify, Outcome::Pass)));
    let drained = with_mark(&soft, ActionKind::Drain, Outcome::Failed);
    assert!(!has(&drained), "the drain has its own");
    assert_eq!(object(&drained).labels[VERDICT], "failed");
    assert!(
        marks::change_beside_action(
            ActionKind::Drain,
            &drained,
            &mark(Outcome::Failed),
            &MarkNames::default()
        )
        .is_empty()
    );
}

#[test]
fn only_a_pass_takes_the_start_up_taint_whichever_effect_it_has() {
    let start =
        |node: &SchedulerNode| object(node).taints.iter().filter(|it| it.key == UNVERIFIED).count();
    let hard = edited(&joined(), |it| it.taints.push(taint(UNVERIFIED, "new", "NoExecute")));
    for (kind, outcome, left) in [
        (ActionKind::Relabel, Outcome::Degraded, 2),
        (ActionKind::Drain, Outcome::Failed, 2),
        (ActionKind::Certify, Outcome::Unknown, 2),
        (ActionKind::Certify, Outcome::Pass, 0),
        (ActionKind::Release, Outcome::Pass, 0),
    ] {
        assert_eq!(start(&with_mark(&hard, kind, outcome)), left, "{kind:?} {outcome}");
    }
}

#[test]
fn the_drain_taint_is_not_a_mark_and_follows_the_change_of_state() {
    let drained = edited(&verified(), |it| it.taints.push(taint(DEGRADED, "x", NO_SCHEDULE)));
    for outcome in [Outcome::Pass, Outcome::Degraded, Outcome::Failed] {
        let change = marks::mark_change(&drained, &mark(outcome), &MarkNames::default());
        let taints = change.kubernetes.map(|it| it.taints).unwrap_or_default();
        assert!(taints.iter().all(|it| it.effect != NO_SCHEDULE), "{taints:?}");
    }
}

#[test]
fn an_unknown_outcome_writes_no_mark() {
    let change = marks::mark_change(&joined(), &mark(Outcome::Unknown), &MarkNames::default());
    assert!(change.is_empty(), "{change:?}");
}

#[test]
fn a_site_can_leave_each_out_and_the_start_up_taint_goes_all_the_same() {
    let of = |names: MarkNames| {
        marks::mark_change(&joined(), &mark(Outcome::Pass), &names).kubernetes.expect("marks")
    };
    let all = MarkNames::default;
    assert!(of(MarkNames { labels: false, ..all() }).labels.is_empty());
    assert!(of(MarkNames { extra: false, ..all() }).annotations.is_empty());
    assert_eq!(of(MarkNames { condition: false, ..all() }).condition, None);
    let none = of(MarkNames { labels: false, extra: false, condition: false, ..all() });
    assert_eq!((none.taints.len(), none.labels.len(), none.annotations.len()), (1, 0, 0));
    assert_eq!(marks::read_mark(&verified(), &MarkNames { extra: false, ..all() }), None);
}

#[test]
fn manually_removed_marks_stay_removed_until_the_next_run() {
    for outcome in [Outcome::Pass, Outcome::Degraded] {
        let node = with_mark(&verified(), ActionKind::Relabel, outcome);
        assert_eq!(restored(&node, &mark(outcome), NOW), None, "nothing is missing");
        let edits: [fn(&mut KubernetesNode); 5] = [
            |it| it.labels.clear(),
            |it| it.annotations.clear(),
            |it| it.condition = None,
            |it| it.taints.clear(),
            |it| *it = KubernetesNode::default(),
        ];
        for edit in edits {
            assert_eq!(restored(&edited(&node, edit), &mark(outcome), NOW), None);
        }
        let back = edited(&node, |it| it.taints.push(taint(UNVERIFIED, "", NO_SCHEDULE)));
        assert_eq!(restored(&back, &mark(outcome), NOW), None, "a user requests a new measurement");
    }
}

#[test]
fn an_edited_certificate_is_rewritten_from_the_journal() {
    let node = verified();
    let forged = node.kubernetes.as_ref().expect("one").annotations[CERTIFICATE]
        .replace("2026-11-27", "2036-11-27");
    let forged = edited(&node, |it| {
        it.annotations.insert(CERTIFICATE.to_owned(), forged);
        it.labels.insert(VERIFIED_DOMAIN.to_owned(), "elsewhere".to_owned());
    });
    assert_eq!(restored(&forged, &mark(Outcome::Pass), NOW), Some(node.clone()));
    // A different spelling with the same meaning.
    let spelt = edited(&node, |it| {
        let text =
            it.annotations[CERTIFICATE].replace(":", " : ").replace("T12 : 00 : 00", "T12:00:00");
        it.annotations.insert(CERTIFICATE.to_owned(), text);
    });
    assert_eq!(restored(&spelt, &mark(Outcome::Pass), NOW), None);
    // A node that did not pass and whose condition claims a pass.
    let bad = with_mark(&node, ActionKind::Relabel, Outcome::Degraded);
    let passes = edited(&bad, |it| {
        it.labels = object(&node).labels.clone();
        it.annotations = object(&node).annotations.clone();
        it.condition = object(&node).condition.clone();
    });
    assert_eq!(restored(&passes, &mark(Outcome::Degraded), NOW), Some(bad));
}

#[test]
fn an_edit_that_claims_less_than_a_pass_stays() {
    let less = edited(&verified(), |it| {
        it.labels.insert(VERDICT.to_owned(), "failed".to_owned());
        it.annotations.insert(CERTIFICATE.to_owned(), "see ticket 7".to_owned());
        it.condition.as_mut().expect("ours").status = "False".to_owned();
    });
    assert_eq!(restored(&less, &mark(Outcome::Pass), NOW), None);
}

#[test]
fn an_earlier_condition_of_the_gate_is_not_an_edit_and_is_replaced() {
    let bad = with_mark(&joined(), ActionKind::Drain, Outcome::Degraded);
    let early = object(&bad).condition.clone();
    let booted = edited(&verified(), |_| {});
    let mut elsewhere = booted.clone();
    elsewhere.boot_id = Some("b-2".to_owned());
    let lapsed = restored(&elsewhere, &mark(Outcome::Pass), NOW).expect("taken back");
    let later = VerdictMark { run: "r2".to_owned(), ..mark(Outcome::Pass) };
    let good = written(
        &verified(),
        &marks::change_beside_action(
            ActionKind::Certify,
            &verified(),
            &later,
            &MarkNames::default(),
        ),
    );
    for (before, words) in
        [(mark(Outcome::Degraded), early), (mark(Outcome::Pass), object(&lapsed).condition.clone())]
    {
        // The server stored the label and the certificate and did not acknowledge the condition.
        let stale = edited(&good, |it| it.condition = words.clone());
        assert_eq!(restored(&stale, &later, NOW), None, "it counts as an edit: {words:?}");
        let found = restored_after(&stale, &later, Some(&before), NOW);
        assert_eq!(found, Some(good.clone()), "{words:?}");
        // A user's text stays.
        let own = edited(&stale, |it| {
            it.condition.as_mut().expect("ours").message = "see ticket 7".to_owned();
        });
        assert_eq!(restored_after(&own, &later, Some(&before), NOW), None);
    }
}

#[test]
fn a_pass_that_expired_or_is_of_another_boot_is_known_no_more() {
    let node = verified();
    assert_eq!(restored(&node, &mark(Outcome::Pass), "2026-11-27T11:59:59Z"), None);
    let booted = SchedulerNode { boot_id: Some("b-2".to_owned()), ..node.clone() };
    for (node, at, reason) in
        [(&node, "2026-11-27T12:00:00Z", "CertificateExpired"), (&booted, NOW, "BootedSince")]
    {
        let now = restored(node, &mark(Outcome::Pass), at).expect("something to take back");
        let condition = object(&now).condition.clone().expect("ours");
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("Unknown", reason));
        assert!(object(&now).labels.is_empty());
        assert_eq!(object(&now).annotations, object(node).annotations, "with its own expiry");
        assert_eq!(object(&now).taints, object(node).taints, "it stays in service");
    }
    // A reboot does not improve a node that did not pass.
    let bad = with_mark(&booted, ActionKind::Relabel, Outcome::Degraded);
    assert_eq!(restored(&bad, &mark(Outcome::Degraded), "2036-01-01T00:00:00Z"), None);
    // An edit that fabricgate does not interpret at that time is not overwritten either.
    let less = edited(&booted, |it| {
        it.labels.insert(VERDICT.to_owned(), "failed".to_owned());
        it.labels.remove(VERIFIED_DOMAIN);
        it.condition.as_mut().expect("ours").status = "False".to_owned();
    });
    assert_eq!(restored(&less, &mark(Outcome::Pass), NOW), None);
}

#[test]
fn a_boot_withdraws_nothing_if_the_policy_excludes_it() {
    // The mark was written under a policy in which a boot voids it; the policy has changed since.
    let booted = SchedulerNode { boot_id: Some("b-2".to_owned()), ..verified() };
    let live = SchedulerSnapshot { nodes: [("n1".into(), booted)].into(), troubles: Vec::new() };
    let marks = [("n1".into(), mark(Outcome::Pass))].into();
    let ledger = JournalState { marks, ..JournalState::default() };
    let now = ClockStamp { at: NOW.to_owned(), ..ClockStamp::default() };
    let mut policy = Policy::default();
    assert_ne!(marks::find_lost_marks(&live, &ledger, &policy, &now), []);
    policy.certificate_void.boot = false;
    assert_eq!(marks::find_lost_marks(&live, &ledger, &policy, &now), []);
}

#[test]
fn a_pass_withdrawn_by_a_clock_ahead_is_restored() {
    let node = verified();
    let early = restored(&node, &mark(Outcome::Pass), "2036-01-01T00:00:00Z").expect("taken back");
    assert!(object(&early).labels.is_empty());
    assert_eq!(restored(&early, &mark(Outcome::Pass), NOW), Some(node));
    // A user's edit in between stays.
    let less = edited(&early, |it| {
        it.labels.insert(VERDICT.to_owned(), "failed".to_owned());
    });
    let now = restored(&less, &mark(Outcome::Pass), NOW).expect("the rest of it");
    assert_eq!(object(&now).labels[VERDICT], "failed");
}

#[test]
fn marks_are_not_restored_on_excluded_or_deleted_nodes() {
    let forged = edited(&verified(), |it| {
        it.labels.insert(VERIFIED_DOMAIN.to_owned(), "elsewhere".to_owned());
    });
    assert!(restored(&forged, &mark(Outcome::Pass), NOW).is_some());
    let alone = edited(&forged, |it| it.left_alone.push("label managed=false".to_owned()));
    assert_eq!(restored(&alone, &mark(Outcome::Pass), NOW), None);
    let goes = SchedulerNode { state: vec!["DELETING".to_owned()], ..forged };
    assert_eq!(restored(&goes, &mark(Outcome::Pass), NOW), None);
}

#[test]
fn a_hostile_annotation_is_no_danger_to_read() {
    let deep = "[".repeat(100_000);
    let run = "\u{1b}]0;owned\u{7}\n".repeat(1_000);
    let entry =
        serde_json::json!({"v": 1, "outcome": "pass", "run": run, "at": "t", "domain": run});
    let with = |text: &str| {
        edited(&joined(), |it| {
            it.annotations.insert(CERTIFICATE.to_owned(), text.to_owned());
        })
    };
    assert_eq!(marks::read_mark(&with(&deep), &MarkNames::default()), None);
    let read = marks::read_mark(&with(&entry.to_string()), &MarkNames::default()).expect("a mark");
    let shown = format!("{}{}", read.run, read.domain.expect("a domain"));
    assert!(shown.len() < 2_000 && !shown.contains(char::is_control), "{shown:?}");
}

fn any_mark() -> impl Strategy<Value = VerdictMark> {
    let outcome = proptest::sample::select(vec![
        Outcome::Pass,
        Outcome::Degraded,
        Outcome::Failed,
        Outcome::Unknown,
    ]);
    let text = || proptest::option::of("\\PC{0,80}");
    (outcome, text(), any::<String>(), text(), text(), text()).prop_map(
        |(outcome, class, run, expires, domain, boot_id)| VerdictMark {
            outcome,
            class: class.as_deref().map(FindingClass::from_name),
            run,
            at: NOW.to_owned(),
            expires,
            domain: domain.map(Into::into),
            boot_id,
        },
    )
}

/// A node on which every party has written, including fabricgate.
fn any_node() -> impl Strategy<Value = SchedulerNode> {
    let key = || {
        prop_oneof![
            proptest::sample::select(vec![
                DEGRADED,
                UNVERIFIED,
                VERDICT,
                VERIFIED_DOMAIN,
                CERTIFICATE,
                REASON
            ])
            .prop_map(str::to_owned),
            "[a-z]{1,8}\\.io/[a-z]{1,8}",
        ]
    };
    let effect = proptest::sample::select(vec![NO_SCHEDULE, PREFER_NO_SCHEDULE, "NoExecute"]);
    let taints = proptest::collection::btree_map((key(), effect), "[a-z]{0,4}", 0..6);
    let texts = || proptest::collection::btree_map(key(), "\\PC{0,12}", 0..6);
    let condition = proptest::option::of(("[A-Z][a-z]{1,4}", "[A-Z][a-z]{1,4}", "\\PC{0,9}"));
    (taints, texts(), texts(), condition).prop_map(|(taints, labels, annotations, condition)| {
        let taints = taints.into_iter();
        let object = KubernetesNode {
            taints: taints.map(|((key, effect), value)| taint(&key, &value, effect)).collect(),
            labels,
            annotations,
            condition: condition.map(|(status, reason, message)| FabricNodeCondition {
                status,
                reason,
                message,
            }),
            ..KubernetesNode::default()
        };
        SchedulerNode { kubernetes: Some(Box::new(object)), ..SchedulerNode::new("n1", &["IDLE"]) }
    })
}

fn is_legal(value: &str) -> bool {
    value.len() <= 63
        && value.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        && value.starts_with(|c: char| c.is_ascii_alphanumeric())
        && value.ends_with(|c: char| c.is_ascii_alphanumeric())
}

proptest! {
    #[test]
    fn a_change_only_touches_own_keys_is_legal_and_is_made_once(
        node in any_node(), mark in any_mark(), drains in any::<bool>(),
    ) {
        let names = MarkNames::default();
        let kind = if drains { ActionKind::Drain } else { ActionKind::Certify };
        let change = marks::change_beside_action(kind, &node, &mark, &names);
        let NodeUpdate { kubernetes, .. } = change.clone();
        prop_assert_eq!(&NodeUpdate { kubernetes: None, ..change.clone() }, &NodeUpdate::default());
        let edits = kubernetes.unwrap_or_default();
        for edit in &edits.taints {
            let is_start = edit.key == UNVERIFIED && edit.value.is_none();
            let is_soft = edit.key == DEGRADED && edit.effect == PREFER_NO_SCHEDULE;
            prop_assert!(is_soft || (is_start && mark.outcome == Outcome::Pass), "{:?}", edit);
            prop_assert!(edit.value.as_deref().is_none_or(is_legal));
        }
        for (key, value) in &edits.labels {
            prop_assert!([VERDICT, VERIFIED_DOMAIN].contains(&key.as_str()));
            prop_assert!(value.as_deref().is_none_or(is_legal), "{:?}", value);
        }
        prop_assert!(edits.annotations.keys().all(|key| key == CERTIFICATE));
        let harmless = |text: &str| !text.contains(char::is_control);
        prop_assert!(edits.annotations.values().flatten().all(|it| harmless(it)));
        prop_assert!(edits.condition.iter().all(|it| harmless(&it.message)));

        let after = written(&node, &change);
        prop_assert!(marks::change_beside_action(kind, &after, &mark, &names).is_empty());
        let (then, now) = (object(&node), object(&after));
        let others = |node: &KubernetesNode| {
            let own_keys = [DEGRADED, UNVERIFIED, VERDICT, VERIFIED_DOMAIN, CERTIFICATE];
            let mut node = node.clone();
            node.taints.retain(|it| {
                (it.key != DEGRADED || it.effect != PREFER_NO_SCHEDULE) && it.key != UNVERIFIED
            });
            node.labels.retain(|key, _| !own_keys.contains(&key.as_str()));
            node.annotations.retain(|key, _| !own_keys.contains(&key.as_str()));
            node.condition = None;
            node
        };
        prop_assert_eq!(others(then), others(now));
    }

    #[test]
    fn restored_marks_never_exceed_the_journal_and_are_written_once(
        node in any_node(), mark in any_mark(),
    ) {
        if let Some(again) = restored(&node, &mark, NOW) {
            let claims = |node: &SchedulerNode| {
                object(node).labels.get(VERDICT).is_some_and(|it| it == "pass")
                    || object(node).condition.as_ref().is_some_and(|it| it.status == TRUE)
            };
            prop_assert!(claims(&node) || !claims(&again), "{:?}", again);
            let keys = |node: &SchedulerNode| -> Vec<String> {
                let it = object(node);
                it.labels.keys().chain(it.annotations.keys()).cloned().collect()
            };
            let before = keys(&node);
            prop_assert!(keys(&again).iter().all(|key| before.contains(key)), "nothing comes back");
        }
    }
}
