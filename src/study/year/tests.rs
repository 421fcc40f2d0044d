//! Small years that always give the same.

use super::*;
use engine::policy::policy::Policy;

fn ours() -> Rule {
    Rule::Ours(Box::default())
}

/// Without budgets: of two racks 3 % are a single node.
fn unbounded() -> Rule {
    let policy = Policy { per_hour: 1.0, outstanding: 1.0, ..Policy::default() };
    Rule::Ours(Box::new(Ours { policy, ..Ours::default() }))
}

fn calm(racks: usize, days: usize) -> Setting {
    let climate = Climate::CALM;
    Setting { racks, days, troubles: 0.0, busy: 0.0, climate, ..Setting::default() }
}

fn one(setting: &Setting, rule: Rule) -> Score {
    years(setting, &[rule], 1, &|_| {}).remove(0).1
}

#[test]
fn where_nothing_breaks_and_nothing_passes_nobody_is_drained() {
    let score = one(&calm(2, 5), ours());
    assert_eq!((score.drains, score.wrong(), score.frozen), (0, 0, 0), "{score:?}");
    // Two racks, four nodes of each, five nights.
    assert_eq!(score.measured, 40);
}

#[test]
fn what_breaks_is_drained_repaired_and_given_back() {
    // Sixty times what is assumed, so that it comes in a small world.
    let setting = Setting { troubles: 60.0, ..calm(2, 20) };
    let score = one(&setting, unbounded());
    let links = &score.found[&Class::Link];
    // Four nodes of eighteen a night: in five nights everybody was measured.
    let late = links.acted.iter().filter(|days| 5.0 < **days).count();
    assert!(2 <= links.acted.len() && late == 0, "{score:#?}");
    assert_eq!((score.wrong(), links.missed), (0, 0), "{score:#?}");
    assert!(0.0 < score.hours && 1 < score.drains, "{score:#?}");
}

#[test]
fn a_host_link_at_half_and_an_imex_daemon_that_is_gone_are_acted_on() {
    // What no second look measures again.
    let policy = Policy {
        per_hour: 1.0,
        outstanding: 1.0,
        freeze_fleet: 1.0,
        freeze_controls: 1.0,
        ..Policy::default()
    };
    let rule = Rule::Ours(Box::new(Ours { policy, ..Ours::default() }));
    let mut sum = Score::default();
    // Worlds in which both come early.
    for seed in [6, 8] {
        sum.add(&one(&Setting { seed, troubles: 100.0, ..calm(2, 12) }, rule.clone()));
    }
    for class in [Class::HostLink, Class::Imex] {
        let found = &sum.found[&class];
        assert!(!found.acted.is_empty(), "{}: {found:?}", class.as_str());
    }
}

#[test]
fn a_slow_hour_drains_nobody_where_a_second_run_is_asked_for() {
    let climate = Climate { node: 1.0, ..Climate::CALM };
    let setting = Setting { climate, ..calm(3, 15) };
    let policy = Policy { per_hour: 1.0, outstanding: 1.0, ..Policy::default() };
    let rule = |again_hours| {
        let policy = Policy { again_hours, ..policy.clone() };
        Rule::Ours(Box::new(Ours { policy, ..Ours::default() }))
    };
    let once = one(&setting, rule(0.0));
    assert!(once.wrong.contains_key(&Cause::Passing) && once.waited == 0, "{once:?}");
    let again = one(&setting, rule(4.0));
    assert!(0 < again.waited && again.wrong() < once.wrong(), "{again:?}");
}

#[test]
fn a_year_is_the_same_whoever_runs_it_and_another_seed_is_another() {
    let setting = Setting {
        troubles: 20.0,
        climate: Climate { node: 0.2, ..Climate::USUAL },
        worlds: 2,
        ..calm(1, 6)
    };
    let rules = [ours(), Rule::Floor(0.95)];
    let one = years(&setting, &rules, 1, &|_| {});
    assert_eq!(one, years(&setting, &rules, 3, &|_| {}));
    let other = years(&Setting { seed: 2, ..setting }, &rules, 1, &|_| {});
    assert_ne!(one, other);
}

#[test]
fn a_driver_that_lowers_everybody_drains_nobody_and_a_floor_everybody() {
    // In one night each, and 2 % less with each: eight of them are 15 %.
    let climate = Climate { driver: 1.0, driver_at_once: true, ..Climate::CALM };
    let setting = Setting { climate, ..calm(1, 8) };
    assert_eq!(one(&setting, ours()).drains, 0);
    assert!(4 < one(&setting, Rule::Floor(0.95)).drains);
}

#[test]
fn where_drivers_make_everybody_slower_for_good_people_state_that_and_audits_count_again() {
    let climate = Climate { driver: 0.3, driver_at_once: true, ..Climate::CALM };
    let setting = Setting { climate, ..calm(3, 30) };
    let rule = |states| Rule::Ours(Box::new(Ours { states, ..Ours::default() }));
    let silent = one(&setting, rule(false));
    assert_eq!((silent.drains, silent.stated), (0, 0), "{silent:?}");
    assert!(silent.frozen_by.keys().any(|why| why.contains("all-low-alike")), "{silent:?}");
    let stated = one(&setting, rule(true));
    assert!(0 < stated.stated && stated.frozen * 2 < silent.frozen, "{stated:?} {silent:?}");
    assert_eq!(stated.drains, 0, "{stated:?}");
}

#[test]
fn a_bad_day_of_the_measuring_host_drains_nobody() {
    let climate = Climate { host: 1.0, ..Climate::CALM };
    let score = one(&Setting { climate, ..calm(2, 4) }, ours());
    assert_eq!(score.drains, 0, "{score:?}");
}

#[test]
fn budgets_hold_whatever_breaks() {
    let setting = Setting { troubles: 2_000.0, ..calm(2, 4) };
    let score = one(&setting, ours());
    let policy = Policy::default();
    // Two a rack, and of 36 nodes 3 % are one.
    assert!(score.most_out <= (policy.per_domain * 2) as u64, "{score:?}");
    assert!(0 < score.stopped, "{score:?}");
}

#[test]
fn tables_and_documents_have_every_rule_and_class() {
    let setting = Setting { troubles: 60.0, ..calm(1, 6) };
    let rules = [ours(), Rule::Floor(0.9), Rule::Retest(0.9), Rule::Below(0.1)];
    let years = years(&setting, &rules, 2, &|_| {});
    let (text, json) =
        (text(&setting, &years), serde_json::to_string(&json(&setting, &years)).expect("JSON"));
    for rule in &rules {
        let name = rule.name();
        assert!(text.contains(&name) && json.contains(&name), "{name}");
        assert!(csv(&years).contains(&name) && svg(&years).contains(&name), "{name}");
    }
    for (class, _) in Class::ALL {
        assert!(text.contains(class.as_str()), "{}", class.as_str());
    }
}
