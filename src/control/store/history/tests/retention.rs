//! Thinned points and their summaries.

use super::*;

#[test]
fn old_points_are_thinned_and_their_alarms_stay() {
    let site = HistoryFixture::new();
    // Two runs a day for 60 days; from day 30 on the value is a twentieth lower.
    for half in 0..120i64 {
        let level = if half < 60 { 750.0 } else { 710.0 };
        let run = HistoryTestRun { id: format!("run-{half:04}"), ..test_run(half / 2, level) };
        site.write_run(&run);
    }
    let mut history = site.history();
    history.add_new_runs(&site.runs()).expect("read");
    let assessed = |history: &RunHistory| {
        let whole = history.full_resolution_since().expect("read");
        let mut trends =
            history.trends(&SeriesSelection::with_kinds([FabricPartKind::Node])).expect("read");
        for trend in &mut trends {
            engine::judge::drift::assess_since(trend, whole);
        }
        trends
    };
    let before = assessed(&history);
    let rung = |trends: &[model::trend::Trend]| -> Vec<String> {
        trends[0].alarms.iter().map(|alarm| alarm.run.clone()).collect()
    };
    assert_eq!(rung(&before), ["run-0060"]);
    let now_unix = 1_760_000_000 + 70 * 86_400;
    let retention = RetentionPolicy { now_unix, keep_days: 20, thin_after_days: 50 };
    let thinned = history.compact(&retention).expect("thinned");
    assert!(thinned.runs > 60 && thinned.after < thinned.before / 2, "{thinned:?}");
    let after = assessed(&history);
    assert_eq!(rung(&after), rung(&before));
    assert!(after[0].points.len() < before[0].points.len());
    assert_eq!(after[0].points.last(), before[0].points.last());
    assert_eq!(history.runs().expect("read").len(), 120, "runs, nodes and findings stay");
    // Repeating it, and adding the folders again, keeps the points thinned.
    let text = dump_history(&history);
    assert_eq!(history.compact(&retention).expect("again").before, 0);
    history.rebuild(&site.runs()).expect("read");
    assert_eq!(dump_history(&history), text);
}

#[test]
fn a_run_that_is_added_to_a_thinned_day_counts_with_its_findings() {
    let site = HistoryFixture::new();
    site.write_run(&test_run(0, 750.0));
    let mut history = site.history();
    history.add_new_runs(&site.runs()).expect("read");
    let now_unix = 1_760_000_000 + 100 * 86_400;
    let retention = RetentionPolicy { now_unix, keep_days: 20, thin_after_days: 50 };
    assert_eq!(history.compact(&retention).expect("thinned").runs, 1);
    let shown = |history: &RunHistory| {
        let trends =
            history.trends(&SeriesSelection::with_kinds([FabricPartKind::Node])).expect("read");
        trends[0].points.iter().map(|point| point.outcome).collect::<Vec<_>>()
    };
    assert_eq!(shown(&history), [Some(Outcome::Pass)]);
    for id in ["late-1", "late-2"] {
        let outcome = Outcome::Degraded;
        site.write_run(&HistoryTestRun { id: id.to_owned(), outcome, ..test_run(0, 700.0) });
    }
    history.add_new_runs(&site.runs()).expect("read");
    assert_eq!(history.compact(&retention).expect("thinned").runs, 2);
    assert_eq!(shown(&history), [Some(Outcome::Degraded)], "two of three runs found it degraded");
}
