//! The state as gauges, checked on made-up fleets.

use super::exposition::{render_classic, render_openmetrics};
use super::*;
use crate::report::fixture;
use model::trend::{FabricPart, FabricPartKind};

fn node(outcome: Option<Outcome>) -> NodeMetricsState {
    NodeMetricsState { outcome, measured: outcome.map(|_| 1_000), ..NodeMetricsState::default() }
}

fn state(nodes: &[(&str, Option<Outcome>)]) -> MetricsState {
    let nodes = nodes.iter().map(|(name, outcome)| (NodeName::from(*name), node(*outcome)));
    MetricsState { now: 5_000, nodes: nodes.collect(), ..MetricsState::default() }
}

fn render_text(state: &MetricsState, most: usize) -> String {
    render_classic(&build_families(state, most))
}

#[test]
fn a_node_without_a_verdict_is_unknown_and_never_a_pass() {
    let text = render_text(&state(&[("n1", Some(Outcome::Pass)), ("n2", None)]), 10);
    for line in [
        "fabricgate_node_verdict{node=\"n1\",domain=\"\",verdict=\"pass\"} 1\n",
        "fabricgate_node_verdict{node=\"n2\",domain=\"\",verdict=\"unknown\"} 1\n",
        "fabricgate_nodes_by_verdict{verdict=\"pass\"} 1\n",
        "fabricgate_nodes_by_verdict{verdict=\"unknown\"} 1\n",
        "fabricgate_nodes_left_out 0\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
    assert!(!text.contains("fabricgate_node_measured_timestamp_seconds{node=\"n2\"}"), "{text}");
}

#[test]
fn beyond_the_limit_healthy_nodes_are_left_out_and_counted() {
    let mut many = state(&[
        ("n1", Some(Outcome::Pass)),
        ("n2", Some(Outcome::Degraded)),
        ("n3", None),
        ("n4", Some(Outcome::Pass)),
        ("n5", Some(Outcome::Failed)),
    ]);
    let text = render_text(&many, 4);
    assert!(text.contains("fabricgate_nodes_left_out 2\n"), "{text}");
    assert!(!text.contains("node=\"n1\"") && text.contains("node=\"n3\""), "{text}");
    // A node that passed and whose certificate has expired does not count as healthy.
    let spent = CertificateValidity { issued: 1, expires: 4_000, is_void: false };
    many.nodes.get_mut(&"n4".into()).expect("there").certificate = Some(spent);
    assert!(render_text(&many, 4).contains("fabricgate_nodes_left_out 1\n"));
    // The worst nodes stay even if there is no room for all nodes.
    let text = render_text(&many, 1);
    assert!(text.contains("node=\"n5\"") && text.contains("fabricgate_nodes_left_out 4\n"));
    assert!(!text.contains("node=\"n2\""), "{text}");
    assert!(text.contains("fabricgate_nodes_by_verdict{verdict=\"pass\"} 2\n"), "{text}");
}

#[test]
fn certificates_are_moments_and_the_first_to_end_is_known_even_where_nodes_are_cut() {
    let mut all = state(&[("n1", Some(Outcome::Pass)), ("n2", Some(Outcome::Pass))]);
    for (name, expires, is_void) in [("n1", 9_000, false), ("n2", 8_000, true)] {
        let certificate = CertificateValidity { issued: 1_000, expires, is_void };
        all.nodes.get_mut(&name.into()).expect("there").certificate = Some(certificate);
    }
    let text = render_text(&all, 10);
    for line in [
        "fabricgate_node_certificate_expires_timestamp_seconds{node=\"n1\"} 9000\n",
        "fabricgate_node_certificate_void{node=\"n2\"} 1\n",
        "fabricgate_certificates_first_expiry_timestamp_seconds 9000\n",
        "fabricgate_certificates_on_disk{state=\"void\"} 1\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
    assert!(
        render_text(&all, 0)
            .contains("fabricgate_certificates_first_expiry_timestamp_seconds 9000")
    );
}

fn alarm(node: Option<&str>, testcase: &str) -> OpenAlarm {
    let trend = fixture::multi_run::trends().remove(1);
    let mut alarm = trend.alarms[0].clone();
    alarm.stands = true;
    let node = node.map(NodeName::from);
    let part = FabricPart { kind: FabricPartKind::Node, node, gpu: None, ..trend.part };
    OpenAlarm { part, testcase: testcase.to_owned(), alarm, beside: trend.changes }
}

#[test]
fn drifts_are_counted_by_node_and_domain_and_a_node_that_drifts_is_not_simply_well() {
    let mut all = state(&[("n1", Some(Outcome::Pass)), ("n2", Some(Outcome::Pass))]);
    let alarms = vec![alarm(Some("n2"), "a"), alarm(Some("n2"), "b")];
    all.nodes.get_mut(&"n2".into()).expect("there").alarms = alarms;
    all.drifting.insert("block01".into(), vec![alarm(None, "a")]);
    for most in [10, 1] {
        let text = render_text(&all, most);
        assert!(text.contains("fabricgate_node_drift_alarms{node=\"n2\"} 2\n"), "{text}");
        assert!(text.contains("fabricgate_domain_drift_alarms{domain=\"block01\"} 1\n"), "{text}");
        assert!(!text.contains("drift_alarms{node=\"n1\"}"), "{text}");
    }
}

#[test]
fn a_run_without_a_verdict_is_unknown() {
    let mut state = state(&[]);
    state.profiles.insert(
        "audit".to_owned(),
        ProfileMetricsState { at: 7, ..ProfileMetricsState::default() },
    );
    let text = render_text(&state, 10);
    assert!(text.contains("last_run_verdict{profile=\"audit\",verdict=\"unknown\"} 1\n"), "{text}");
    assert!(text.contains("last_run_complete{profile=\"audit\"} 0\n"), "{text}");
    assert!(!text.contains("last_conclusive_run"), "{text}");
}

#[test]
fn both_formats_show_the_same_series() {
    let mut state = state(&[("n1", Some(Outcome::Failed))]);
    state.gate = Some(GateMetricsState {
        budgets: vec![BudgetShare { name: "drains_within_hour", left: 1, limit: 2 }],
        ..GateMetricsState::default()
    });
    let series = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let names = lines.filter_map(|line| line.rsplit_once(' ').map(|(name, _)| name.to_owned()));
        names.collect()
    };
    let families = build_families(&state, 10);
    let old = series(&render_classic(&families));
    assert_eq!(old, series(&render_openmetrics(families)));
    assert!(
        old.contains(&"fabricgate_budget_left_nodes{budget=\"drains_within_hour\"}".to_owned())
    );
}

#[test]
fn every_name_has_the_prefix_and_its_unit_and_is_unique() {
    let mut names: Vec<String> = definitions::ALL.iter().map(|it| it.full_name()).collect();
    names.sort();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
    for it in definitions::ALL {
        let name = it.full_name();
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
        assert!(!name.contains("gbps") && !name.ends_with("_total"), "{name}");
        assert!(!it.name.contains("timestamp") || it.unit == Some("seconds"), "{name}");
        assert!(!it.help.ends_with('.') && !it.help.contains(['\n', '\\']), "{name}");
    }
}
