//! Small, deterministic years.

use super::*;
use engine::policy::action_policy::Policy;

fn ours() -> YearRule {
    YearRule::Scheme(Box::default())
}

/// Without budgets: 3 % of two racks are a single node.
fn unbounded() -> YearRule {
    let policy = Policy { per_hour: 1.0, outstanding: 1.0, ..Policy::default() };
    YearRule::Scheme(Box::new(SchemeSettings { policy, ..SchemeSettings::default() }))
}

fn calm(racks: usize, days: usize) -> YearSetting {
    let climate = TransientRates::CALM;
    YearSetting {
        racks,
        days,
        fault_factor: 0.0,
        busy: 0.0,
        transient_rates: climate,
        ..YearSetting::default()
    }
}

fn run_single(setting: &YearSetting, rule: YearRule) -> YearScore {
    run_years(setting, &[rule], 1, &|_| {}).remove(0).1
}

#[test]
fn without_faults_and_transients_no_node_is_drained() {
    let score = run_single(&calm(2, 5), ours());
    assert_eq!((score.drains, score.wrong_drains(), score.frozen), (0, 0, 0), "{score:?}");
    // Two racks, four nodes of each, five nights.
    assert_eq!(score.measured, 40);
}

#[test]
fn faulty_nodes_are_drained_repaired_and_released() {
    // Sixty times the assumed rate, so that faults occur in a small world.
    let setting = YearSetting { fault_factor: 60.0, ..calm(2, 20) };
    let score = run_single(&setting, unbounded());
    let links = &score.by_class[&YearFaultClass::Link];
    // Four nodes of eighteen per night: five nights cover all.
    let late = links.acted_on.iter().filter(|days| 5.0 < **days).count();
    assert!(2 <= links.acted_on.len() && late == 0, "{score:#?}");
    assert_eq!((score.wrong_drains(), links.missed), (0, 0), "{score:#?}");
    assert!(0.0 < score.hours && 1 < score.drains, "{score:#?}");
}

#[test]
fn a_host_link_at_half_and_an_imex_daemon_that_is_gone_are_acted_on() {
    // Findings that the second measurement does not repeat.
    let policy = Policy {
        per_hour: 1.0,
        outstanding: 1.0,
        freeze_fleet: 1.0,
        freeze_controls: 1.0,
        ..Policy::default()
    };
    let rule = YearRule::Scheme(Box::new(SchemeSettings { policy, ..SchemeSettings::default() }));
    let mut sum = YearScore::default();
    // Worlds in which both occur early.
    for seed in [6, 8] {
        sum.add(&run_single(
            &YearSetting { seed, fault_factor: 100.0, ..calm(2, 12) },
            rule.clone(),
        ));
    }
    for class in [YearFaultClass::HostLink, YearFaultClass::Imex] {
        let found = &sum.by_class[&class];
        assert!(!found.acted_on.is_empty(), "{}: {found:?}", class.as_str());
    }
}

#[test]
fn a_slow_hour_drains_no_node_if_a_second_run_must_confirm() {
    let climate = TransientRates { node: 1.0, ..TransientRates::CALM };
    let setting = YearSetting { transient_rates: climate, ..calm(3, 15) };
    let policy = Policy { per_hour: 1.0, outstanding: 1.0, ..Policy::default() };
    let rule = |again_hours| {
        let policy = Policy { again_hours, ..policy.clone() };
        YearRule::Scheme(Box::new(SchemeSettings { policy, ..SchemeSettings::default() }))
    };
    let once = run_single(&setting, rule(0.0));
    assert!(
        once.wrong_by_cause.contains_key(&WrongDrainCause::Transient) && once.deferred == 0,
        "{once:?}"
    );
    let again = run_single(&setting, rule(4.0));
    assert!(0 < again.deferred && again.wrong_drains() < once.wrong_drains(), "{again:?}");
}

#[test]
fn a_year_is_reproducible_and_depends_on_the_seed() {
    let setting = YearSetting {
        fault_factor: 20.0,
        transient_rates: TransientRates { node: 0.2, ..TransientRates::USUAL },
        worlds: 2,
        ..calm(1, 6)
    };
    let rules = [ours(), YearRule::Floor(0.95)];
    let one = run_years(&setting, &rules, 1, &|_| {});
    assert_eq!(one, run_years(&setting, &rules, 3, &|_| {}));
    let other = run_years(&YearSetting { seed: 2, ..setting }, &rules, 1, &|_| {});
    assert_ne!(one, other);
}

#[test]
fn a_driver_that_slows_all_drains_none_and_a_floor_drains_all() {
    // Each update takes one night and 2 % of the rate: eight of them take 15 %.
    let climate = TransientRates { driver: 1.0, driver_at_once: true, ..TransientRates::CALM };
    let setting = YearSetting { transient_rates: climate, ..calm(1, 8) };
    assert_eq!(run_single(&setting, ours()).drains, 0);
    assert!(4 < run_single(&setting, YearRule::Floor(0.95)).drains);
}

#[test]
fn after_permanent_slow_drivers_operators_set_levels_and_audits_count_again() {
    let climate = TransientRates { driver: 0.3, driver_at_once: true, ..TransientRates::CALM };
    let setting = YearSetting { transient_rates: climate, ..calm(3, 30) };
    let rule = |states| {
        YearRule::Scheme(Box::new(SchemeSettings {
            restates_levels: states,
            ..SchemeSettings::default()
        }))
    };
    let silent = run_single(&setting, rule(false));
    assert_eq!((silent.drains, silent.level_updates), (0, 0), "{silent:?}");
    assert!(silent.frozen_by.keys().any(|why| why.contains("all-low-alike")), "{silent:?}");
    let stated = run_single(&setting, rule(true));
    assert!(0 < stated.level_updates && stated.frozen * 2 < silent.frozen, "{stated:?} {silent:?}");
    assert_eq!(stated.drains, 0, "{stated:?}");
}

#[test]
fn a_faulty_measuring_host_drains_no_node() {
    let climate = TransientRates { host: 1.0, ..TransientRates::CALM };
    let score = run_single(&YearSetting { transient_rates: climate, ..calm(2, 4) }, ours());
    assert_eq!(score.drains, 0, "{score:?}");
}

#[test]
fn budgets_hold_for_any_fault() {
    let setting = YearSetting { fault_factor: 2_000.0, ..calm(2, 4) };
    let score = run_single(&setting, ours());
    let policy = Policy::default();
    // Two per rack; 3 % of 36 nodes are one.
    assert!(score.most_out <= (policy.per_domain * 2) as u64, "{score:?}");
    assert!(0 < score.stopped, "{score:?}");
}

#[test]
fn tables_and_documents_have_every_rule_and_class() {
    let setting = YearSetting { fault_factor: 60.0, ..calm(1, 6) };
    let rules = [ours(), YearRule::Floor(0.9), YearRule::Retest(0.9), YearRule::BelowMedian(0.1)];
    let years = run_years(&setting, &rules, 2, &|_| {});
    let (text, json) = (
        render_text(&setting, &years),
        serde_json::to_string(&build_document(&setting, &years)).expect("JSON"),
    );
    for rule in &rules {
        let name = rule.name();
        assert!(text.contains(&name) && json.contains(&name), "{name}");
        assert!(render_csv(&years).contains(&name) && render_svg(&years).contains(&name), "{name}");
    }
    for (class, _) in YearFaultClass::ALL {
        assert!(text.contains(class.as_str()), "{}", class.as_str());
    }
}
