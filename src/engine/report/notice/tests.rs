//! Tests of notices of made-up runs: receivers, frequency and text.

use std::collections::BTreeSet;

use serde_json::Value;

use super::changes::{NoticeChanges, ReceiverState};
use super::message::{MessageContext, build_notice};
use super::*;
use crate::report::fixture;
use crate::report::metrics::{CertificateValidity, GateMetricsState, NodeMetricsState};
use model::finding_class::FindingClass;
use model::trend::{FabricPart, FabricPartKind, TrendAlarm};

fn all() -> BTreeSet<NoticeEvent> {
    NoticeEvent::ALL.into()
}

fn degraded(node: &str, ratio: f64) -> NoticeItem {
    let mut it = new_item(format!("node/{node}"), NoticeEvent::Degraded, "NVLink slow");
    (it.node, it.domain) = (Some(node.into()), Some("block01".into()));
    (it.class, it.ratio) = (Some(FindingClass::NvlinkLow), Some(ratio));
    "it measured less".clone_into(&mut it.how);
    it
}

fn occasion(items: Vec<NoticeItem>, well: &[&str]) -> NoticeOccasion {
    let well = well.iter().map(|it| (*it).to_owned()).collect();
    NoticeOccasion { items, healthy: well, ..NoticeOccasion::default() }
}

fn about() -> MessageContext<'static> {
    MessageContext {
        site: Some("<lab>"),
        at: "2026-03-04T05:06:07Z",
        run: Some("r1"),
        profile: Some("audit"),
        folder: Some("/runs/r`1`"),
        is_test: false,
        is_simulated: false,
    }
}

#[test]
fn a_finding_is_delivered_once_again_when_worse_and_at_its_end() {
    let mut memory = ReceiverState::default();
    let mut hear = |occasion: &NoticeOccasion| {
        let news = memory.find_changes(occasion, &all());
        let counts = (news.fresh.len(), news.resolved.len());
        if !news.is_empty() {
            memory.record_delivery(&news, 0);
        }
        counts
    };
    assert_eq!(hear(&occasion(vec![degraded("n1", 0.9)], &[])), (1, 0));
    assert_eq!(hear(&occasion(vec![degraded("n1", 0.88)], &[])), (0, 0), "noise");
    assert_eq!(hear(&occasion(vec![degraded("n1", 0.7)], &[])), (1, 0), "worse");
    assert_eq!(hear(&occasion(Vec::new(), &[])), (0, 0), "not measured");
    let unknown = NoticeItem { event: NoticeEvent::Unknown, ..degraded("n1", 0.7) };
    assert_eq!(hear(&occasion(vec![unknown], &[])), (0, 0), "not judged again");
    let failed = NoticeItem { event: NoticeEvent::Failed, ..degraded("n1", 0.7) };
    assert_eq!(hear(&occasion(vec![failed], &[])), (1, 0), "another event");
    assert_eq!(hear(&occasion(Vec::new(), &["node/n1"])), (0, 1), "over");
    assert_eq!(hear(&occasion(Vec::new(), &["node/n1"])), (0, 0), "over once");
}

#[test]
fn a_slow_decline_in_small_steps_is_delivered() {
    let mut memory = ReceiverState::default();
    let mut delivered = 0;
    for step in 0..20 {
        let now = occasion(vec![degraded("n1", 0.95 - 0.01 * f64::from(step))], &[]);
        let news = memory.find_changes(&now, &all());
        if !news.is_empty() {
            delivered += 1;
            memory.record_delivery(&news, 0);
        }
    }
    assert!((3..=5).contains(&delivered), "{delivered}");
}

#[test]
fn a_slow_decline_is_delivered_among_other_notices() {
    let mut memory = ReceiverState::default();
    let mut delivered = 0;
    for step in 0..20 {
        let ratio = 0.95 - 0.01 * f64::from(step);
        let drained =
            new_item(format!("action/r{step}/n2/drained"), NoticeEvent::Action, "drained");
        let news =
            memory.find_changes(&occasion(vec![degraded("n1", ratio), drained], &[]), &all());
        delivered += news.fresh.iter().filter(|it| it.key == "node/n1").count();
        memory.record_delivery(&news, 0);
    }
    assert!((3..=5).contains(&delivered), "{delivered}");
}

#[test]
fn a_node_that_could_not_be_judged_again_stays_what_it_was_known_to_be() {
    let mut memory = ReceiverState::default();
    let drained =
        |run: &str| new_item(format!("action/{run}/n2/drained"), NoticeEvent::Action, "drained");
    let mut hear = |items: Vec<NoticeItem>| {
        let news = memory.find_changes(&occasion(items, &[]), &all());
        memory.record_delivery(&news, 0);
        news
    };
    hear(vec![degraded("n1", 0.9)]);
    let unknown = NoticeItem { event: NoticeEvent::Unknown, ..degraded("n1", 0.9) };
    let news = hear(vec![unknown, drained("r2")]);
    assert_eq!(news.ongoing, [degraded("n1", 0.9)], "an alert of it goes on");
    let news = hear(vec![degraded("n1", 0.9), drained("r3")]);
    assert_eq!(news.fresh, [drained("r3")], "it was delivered before");
}

#[test]
fn a_node_s_notice_has_its_worst_finding() {
    let mut run = fixture::rack();
    let first = run.verdicts.findings[0].clone();
    let node = first.locus.node.clone().expect("a node's");
    let with = |gpu: u32, ratio: Option<f64>, outcome: Outcome| {
        let mut finding = first.clone();
        finding.id = format!("f{gpu}");
        finding.locus.gpu = Some(gpu);
        (finding.ratio, finding.outcome) = (ratio, outcome);
        finding.summary = format!("GPU {gpu}");
        finding
    };
    let mut deliver = |findings: &[Finding]| {
        run.verdicts.findings = findings.to_vec();
        let occasion = occasion_from_run(&run, None, "/runs/r1", false);
        let item = occasion.items.into_iter().find(|it| it.node.as_ref() == Some(&node));
        let item = item.expect("it is told");
        (item.how, item.ratio)
    };
    let degraded = |gpu, ratio| with(gpu, Some(ratio), Outcome::Degraded);
    let low = [degraded(0, 0.9), degraded(1, 0.5), degraded(2, 0.8)];
    assert_eq!(deliver(&low), ("GPU 1".to_owned(), Some(0.5)));
    let lost = [with(3, None, Outcome::Failed), degraded(0, 0.9)];
    assert_eq!(deliver(&lost), ("GPU 3".to_owned(), None), "a share of another part is not its");
}

#[test]
fn a_receiver_only_gets_events_it_subscribes_to() {
    let on: BTreeSet<NoticeEvent> = [NoticeEvent::Failed].into();
    let mut memory = ReceiverState::default();
    assert!(memory.find_changes(&occasion(vec![degraded("n1", 0.9)], &[]), &on).is_empty());
    let failed = NoticeItem { event: NoticeEvent::Failed, ..degraded("n1", 0.1) };
    let news = memory.find_changes(&occasion(vec![failed], &[]), &on);
    memory.record_delivery(&news, 0);
    let news = memory.find_changes(&occasion(Vec::new(), &["node/n1"]), &on);
    assert!(news.is_empty() && memory.forget_unwanted(&news) && memory.delivered.is_empty());
}

#[test]
fn held_back_notices_are_delivered_later_including_one_time_events() {
    let mut memory = ReceiverState { sent: vec![100, 200], ..ReceiverState::default() };
    assert!(!memory.may_send(3_000, 2) && memory.may_send(3_701, 2));
    assert!(memory.may_send(50, 2), "a clock that was put back silences no receiver");
    let mut drained = new_item("action/r1/n1/drained".to_owned(), NoticeEvent::Action, "drained");
    drained.node = Some("n1".into());
    let news = memory.find_changes(&occasion(vec![drained, degraded("n1", 0.5)], &[]), &all());
    memory.record_failure(&news, true);
    let later = memory.find_changes(&occasion(Vec::new(), &[]), &all());
    assert_eq!((later.fresh.len(), later.withheld), (1, 1));
    memory.record_delivery(&later, 4_000);
    assert!(memory.kept.is_empty() && memory.withheld == 0 && memory.delivered.is_empty());
}

#[test]
fn a_run_tells_of_its_nodes_and_an_interrupted_one_ends_nothing() {
    let rack = fixture::rack();
    let occasion = occasion_from_run(&rack, None, "/runs/r1", false);
    assert!(!occasion.items.is_empty() && !occasion.judged.is_empty());
    for verdict in &rack.verdicts.nodes {
        let key = format!("node/{}", verdict.node);
        let is_told = occasion.items.iter().any(|it| it.key == key);
        assert_eq!(is_told, verdict.outcome != Outcome::Pass, "{key}");
        assert_eq!(occasion.healthy.contains(&key), verdict.outcome == Outcome::Pass, "{key}");
    }
    let cut = occasion_from_run(&rack, None, "/runs/r1", true);
    assert!(cut.healthy.is_empty() && cut.covered.is_empty() && cut.judged.is_empty());
    assert!(cut.items.iter().all(|it| it.event != NoticeEvent::Unknown));
}

#[test]
fn a_notice_about_a_part_ends_only_if_a_run_measured_it() {
    let item = |node: Option<&str>, domain: Option<&str>| {
        let mut it = new_item(format!("part/{node:?}{domain:?}"), NoticeEvent::Degraded, "slow");
        (it.node, it.domain) = (node.map(NodeName::from), domain.map(DomainName::from));
        it
    };
    let parts = [
        item(Some("node0001"), Some("block01")),
        item(Some("node0012"), Some("block01")),
        item(None, Some("block01")),
        item(None, None),
    ];
    let mut memory = ReceiverState::default();
    memory.record_delivery(&NoticeChanges { fresh: parts.to_vec(), ..NoticeChanges::default() }, 0);
    let over = |occasion: &NoticeOccasion| -> Vec<bool> {
        let over = memory.find_changes(occasion, &all()).resolved;
        parts.iter().map(|part| over.contains(part)).collect()
    };

    // One node of the domain is unknown: that only ends notices about other nodes.
    let mut run = fixture::rack();
    let unknown = |run: &Run| {
        let nodes = run.verdicts.nodes.iter().filter(|it| it.outcome == Outcome::Unknown);
        nodes.map(|it| it.node.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(unknown(&run), ["node0012"]);
    assert_eq!(over(&occasion_from_run(&run, None, "/r", false)), [true, false, false, false]);

    for verdict in &mut run.verdicts.nodes {
        verdict.outcome = Outcome::Pass;
    }
    let mut occasion = occasion_from_run(&run, None, "/r", false);
    assert_eq!(over(&occasion), [true, true, true, false], "no network was measured");
    let port = MeasuredCell { src_gpu: None, dst_gpu: None, rail: None, ..run.cells[0].clone() };
    let ends = (Some("node0001".into()), Some("node0002".into()));
    let port = MeasuredCell { src_node: ends.0, dst_node: ends.1, value: Some(1.0), ..port };
    run.cells.push(port);
    occasion.is_everywhere = occasion_from_run(&run, None, "/r", false).is_everywhere;
    assert_eq!(over(&occasion), [true; 4]);

    // Another node of the domain is known, and this run left it out.
    let mut state = MetricsState::default();
    let gone = NodeMetricsState { domain: Some("block01".into()), ..NodeMetricsState::default() };
    state.nodes.insert("gone".into(), gone.clone());
    occasion.limit_to_known(&run, &state);
    assert_eq!(over(&occasion), [true; 4], "it was never measured");
    let there = NodeMetricsState { measured: Some(7), ..gone };
    state.nodes.insert("node0099".into(), there);
    occasion.limit_to_known(&run, &state);
    assert_eq!(over(&occasion), [true, true, false, false]);
}

#[test]
fn the_state_tells_of_expired_certificates_and_the_breaker() {
    let mut state = MetricsState { now: 100, ..MetricsState::default() };
    for (name, expires, is_void) in [("n1", 90, false), ("n2", 200, false), ("n3", 90, true)] {
        let certificate = Some(CertificateValidity { issued: 1, expires, is_void });
        state
            .nodes
            .insert(name.into(), NodeMetricsState { certificate, ..NodeMetricsState::default() });
    }
    state.gate = Some(GateMetricsState { is_tripped: true, ..GateMetricsState::default() });
    let occasion = occasion_from_state(&state);
    let keys: Vec<&str> = occasion.items.iter().map(|it| it.key.as_str()).collect();
    assert_eq!(keys, ["expired/n1", "breaker"]);
    assert!(occasion.healthy.contains("expired/n2") && !occasion.healthy.contains("expired/n3"));
    state.gate = Some(GateMetricsState::default());
    assert!(occasion_from_state(&state).healthy.contains("breaker"));
}

fn standing(testcase: &str) -> OpenAlarm {
    let trend = fixture::multi_run::trends().remove(1);
    let part = FabricPart { kind: FabricPartKind::Node, gpu: None, ..trend.part.clone() };
    let alarm = TrendAlarm { stands: true, ..trend.alarms[0].clone() };
    OpenAlarm { part, testcase: testcase.to_owned(), alarm, beside: trend.changes }
}

#[test]
fn a_drift_is_delivered_once_with_changes_and_ends_only_with_a_read_history() {
    let drifting = |tests: &[&str], is_history_read: bool| {
        let alarms: Vec<OpenAlarm> = tests.iter().map(|test| standing(test)).collect();
        let node = NodeMetricsState { alarms, ..NodeMetricsState::default() };
        let nodes = [("node0007".into(), node)].into();
        occasion_from_state(&MetricsState { nodes, is_history_read, ..MetricsState::default() })
    };
    let mut memory = ReceiverState::default();
    let mut hear = |occasion: &NoticeOccasion| {
        let news = memory.find_changes(occasion, &all());
        let keys = |items: &[NoticeItem]| -> Vec<String> {
            items.iter().map(|it| it.key.clone()).collect()
        };
        let delivered = (keys(&news.fresh), keys(&news.resolved));
        if !news.is_empty() {
            memory.record_delivery(&news, 0);
        }
        delivered
    };
    let none = Vec::<String>::new;
    let (a, b) = ("drift/node/node0007/a".to_owned(), "drift/node/node0007/b".to_owned());
    assert_eq!(hear(&drifting(&["a"], true)), (vec![a.clone()], none()));
    assert_eq!(hear(&drifting(&["a"], true)), (none(), none()), "not every day");
    assert_eq!(hear(&drifting(&["a", "b"], true)), (vec![b.clone()], none()), "another test");
    assert_eq!(hear(&drifting(&[], false)), (none(), none()), "the history could not be read");
    assert_eq!(hear(&drifting(&["b"], true)), (none(), vec![a]));
    assert_eq!(hear(&drifting(&[], true)), (none(), vec![b]));
    let first = drifting(&["a"], true);
    let it = &first.items[0];
    assert_eq!((it.event, it.event.severity()), (NoticeEvent::Drift, "warning"));
    assert!(it.how.starts_with("a: 5.6 % less than usual from run 202608 on"), "{}", it.how);
    assert!(it.how.contains("at that time: driver 580.65.06 -> 580.82.07"), "{}", it.how);
    assert!(it.next.as_ref().is_some_and(|it| it.contains("`fabricgate history node0007`")));
    let domain = [("block01".into(), vec![standing("a")])].into();
    let mut state =
        MetricsState { drifting: domain, is_history_read: true, ..MetricsState::default() };
    state.drifting.values_mut().flatten().for_each(|it| it.part.node = None);
    let first = occasion_from_state(&state);
    assert_eq!(first.items[0].key, "drift/domain/block01/a");
    assert!(
        first.items[0].next.as_ref().is_some_and(|it| it.contains("history --domain block01`"))
    );
}

fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(all) => all.iter().flat_map(texts).collect(),
        Value::Object(all) if all.get("text").is_some_and(Value::is_string) => {
            vec![all["text"].as_str().expect("text").to_owned()]
        }
        Value::Object(all) => all.values().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn slack_gets_blocks_within_its_limits_and_no_mention_from_a_name() {
    let mut items: Vec<NoticeItem> = (0..300).map(|n| degraded(&format!("n{n:03}"), 0.5)).collect();
    for n in 0..40 {
        let mut odd = degraded("<!channel>", 0.5);
        odd.what = format!("{n}: <https://x|y> & {}", "z".repeat(5_000));
        odd.how = "h".repeat(5_000);
        items.push(odd);
    }
    let news = NoticeChanges { fresh: items, withheld: 3, ..NoticeChanges::default() };
    let payload = slack::build_payload(&build_notice(&news, &about()));
    let blocks = payload["blocks"].as_array().expect("blocks");
    assert!(blocks.len() <= 50);
    assert_eq!(blocks[0]["text"]["type"], "plain_text");
    assert!(blocks[0]["text"]["text"].as_str().expect("text").chars().count() <= 150);
    for text in blocks.iter().skip(1).flat_map(|it| texts(&it.clone())) {
        assert!(text.chars().count() <= 3_000);
        assert!(!text.contains(['<', '>']), "{text}");
    }
    let all = payload.to_string();
    assert!(all.contains("n[000-299] (block01): NVLink slow"), "{}", &all[..600]);
    assert!(all.contains("3 messages before this one were held back"));
    assert!(all.contains("`/runs/r'1'`"));
    assert!(payload["text"].as_str().expect("text").contains("&lt;lab&gt;"));
}

#[test]
fn a_group_names_every_domain_that_it_is_about() {
    let drift = |domain: &str| NoticeItem { domain: Some(domain.into()), ..drifting() };
    let of = |node: &str, domain: &str| NoticeItem {
        domain: Some(domain.into()),
        ..degraded(node, 0.5)
    };
    let fresh = vec![drift("block01"), drift("block02"), of("n1", "block01"), of("n2", "block02")];
    let mut over: Vec<NoticeItem> = (0..14).map(|n| drift(&format!("block{n:02}"))).collect();
    over.iter_mut().zip(0..).for_each(|(it, n)| it.what = format!("drift {n}"));
    let news = NoticeChanges { fresh, resolved: over, withheld: 1, ..NoticeChanges::default() };
    let shown = slack::build_payload(&build_notice(&news, &about())).to_string();
    for expected in [
        "block01, block02: drifted away",
        "n[1-2] (block01, block02): NVLink slow",
        "; and 2 more",
        "1 message before this one was held back",
    ] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
}

fn drifting() -> NoticeItem {
    new_item("drift/domain/d/a".to_owned(), NoticeEvent::Drift, "drifted away from its usual level")
}

#[test]
fn alertmanager_gets_stable_labels_and_the_end_of_an_alert() {
    let labels = |news: &NoticeChanges| {
        let payload = alertmanager::build_payload(news, &about(), 1_000, 500);
        let all = payload.as_array().expect("alerts").clone();
        all.into_iter().map(|it| (it["labels"].clone(), it["endsAt"].clone())).collect::<Vec<_>>()
    };
    let fresh =
        labels(&NoticeChanges { fresh: vec![degraded("n1", 0.9)], ..NoticeChanges::default() });
    let worse =
        labels(&NoticeChanges { ongoing: vec![degraded("n1", 0.5)], ..NoticeChanges::default() });
    assert_eq!(fresh, worse);
    let over =
        labels(&NoticeChanges { resolved: vec![degraded("n1", 0.5)], ..NoticeChanges::default() });
    assert_eq!(over[0].0, fresh[0].0);
    assert_eq!(
        (&fresh[0].1, &over[0].1),
        (&"1970-01-01T00:25:00Z".into(), &"1970-01-01T00:16:40Z".into())
    );
    // Another event is another alert, and the first one ends.
    let mut memory = ReceiverState::default();
    memory.record_delivery(
        &NoticeChanges { fresh: vec![degraded("n1", 0.9)], ..NoticeChanges::default() },
        0,
    );
    let failed = NoticeItem { event: NoticeEvent::Failed, ..degraded("n1", 0.1) };
    let changed = labels(&memory.find_changes(&occasion(vec![failed], &[]), &all()));
    assert_eq!(changed.len(), 2);
    assert_ne!(changed[0].0, fresh[0].0);
    assert_eq!(changed[1].0, fresh[0].0);
}

#[test]
fn a_message_has_matter_place_severity_and_next_step() {
    let mut it = degraded("n1", 0.612);
    it.done = Some("drained".to_owned());
    it.next = Some("look at it".to_owned());
    let news = NoticeChanges {
        fresh: vec![it],
        resolved: vec![degraded("n2", 0.9)],
        ..NoticeChanges::default()
    };
    let message = build_notice(&news, &about());
    assert_eq!(message.title, "fabricgate <lab>: 1 degraded, 1 over (audit)");
    assert_eq!(message.severity, "warning");
    let shown = slack::build_payload(&message).to_string();
    for expected in ["n1 (block01): NVLink slow", "61.2 %", "_Done:_ drained", "_Next:_ look at it"]
    {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
}
