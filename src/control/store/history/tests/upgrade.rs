//! The upgrade of a file of an older version keeps the data that only the file holds, also if the
//! upgrade fails.

use super::*;

/// A file of version 1, with one run without a folder, one thinned run, and one (day 2) whose
/// folder may exist.
fn write_version_1(site: &HistoryFixture) {
    let connection = Connection::open(site.file("h.sqlite")).expect("made");
    connection.execute_batch(include_str!("../version_1.sql")).expect("tables");
    let run = |n: i64, id: &str, day: i64, thinned: bool| {
        let at = 1_760_000_000 + day * 86_400;
        let text = model::time_format::format_rfc3339(at);
        connection
            .execute(
                "INSERT INTO runs VALUES (?1, ?2, ?3, ?4, 'audit', 's', '0.0.9', 'complete', 'pass',
                 NULL, 't', '{}', '/gone', 'as it was', 0, ?5)",
                rusqlite::params![n, id, text, at, thinned],
            )
            .expect("a run");
    };
    run(1, "run-thinned", 0, true);
    run(2, "run-gone", 1, false);
    run(3, "run-0002", 2, false);
    connection
        .execute_batch(
            "INSERT INTO identities VALUES (1, 'd', '{\"driver\": \"570.1\"}');
             INSERT INTO nodes VALUES (2, 'n1', 'd1', 'pass', 'r', 1, 1, 0.9, 1);
             INSERT INTO nodes VALUES (3, 'n1', 'd1', 'pass', 'r', 1, 1, 0.9, 1);
             INSERT INTO series VALUES (1, 'rail', '', 'n1', -1, 'rail0', 'tx', 'tcp', 'Gb/s');
             INSERT INTO series VALUES (2, 'rail', '', 'n1', -1, 'rail1', 'tx', 'tcp', 'Gb/s');
             INSERT INTO series VALUES (3, 'node', '', 'n1', -1, '', '', 'tcp', 'Gb/s');
             INSERT INTO series VALUES (4, 'rail', '', 'n1', -1, 'rail0', 'tx', 'lat', 'us');
             INSERT INTO series VALUES (5, 'rail', '', 'n1', -1, 'rail1', 'tx', 'lat', 'us');
             INSERT INTO series VALUES (6, 'node', '', 'n1', -1, '', '', 'lat', 'us');
             INSERT INTO series VALUES (7, 'node', '', 'n1', -1, '', '', 'copies', 'GB/s');
             INSERT INTO points VALUES (1, 2, 395.0, 0.01, 400.0, 'pass');
             INSERT INTO points VALUES (2, 2, 200.0, 0.02, 390.0, 'degraded');
             INSERT INTO points VALUES (3, 2, 395.0, 0.01, 400.0, 'pass');
             INSERT INTO points VALUES (4, 2, 2.0, NULL, NULL, NULL);
             INSERT INTO points VALUES (5, 2, 3.5, NULL, NULL, NULL);
             INSERT INTO points VALUES (6, 2, 2.0, NULL, NULL, 'pass');
             INSERT INTO points VALUES (7, 2, 2780.0, NULL, NULL, 'pass');
             INSERT INTO points VALUES (7, 3, 2790.0, NULL, NULL, 'pass');
             INSERT INTO thinned VALUES (7, 1759968000, 1, 2800.0, 2750.0, 3, 0, 'run-thinned',
                                         '2025-10-09T08:53:20Z', 1760000000);
             INSERT INTO alarms VALUES (7, 'fast', 'run-thinned', '2025-10-09T08:53:20Z', 1760000000,
                                        'run-thinned', -0.05, 6.0);
             INSERT INTO findings VALUES (2, 'f1', 'degraded', 'nic-low', 'rail', 'd1', 'n1', NULL,
                                          NULL, 'rail1', 'tx', 200.0, 400.0, 'Gb/s', 0.5, 1, 's');",
        )
        .expect("rows");
}

#[test]
fn an_upgrade_from_version_1_keeps_data_that_only_the_file_holds() {
    let site = HistoryFixture::new();
    write_version_1(&site);
    let named = |run: &str, value: f64| (run.to_owned(), value);
    // A reader reads the old version without an upgrade.
    let read = RunHistory::open_read_only(&site.file("h.sqlite")).expect("opens");
    assert_eq!(series_values(&read, "tcp"), [named("run-gone", 395.0)]);
    drop(read);
    let mut history = site.history();
    assert_eq!(history.upgraded_versions(), Some((1, 2)));
    // The lower rail of the bandwidth, the higher one of the latency; the others are unchanged.
    assert_eq!(series_values(&history, "tcp"), [named("run-gone", 200.0)]);
    assert_eq!(series_values(&history, "lat"), [named("run-gone", 3.5)]);
    let copies =
        [named("run-thinned", 2800.0), named("run-gone", 2780.0), named("run-0002", 2790.0)];
    assert_eq!(series_values(&history, "copies"), copies);
    let all = history.trends(&SeriesSelection::with_kinds([FabricPartKind::Node])).expect("read");
    let alarms: Vec<&str> = all.iter().flat_map(|t| &t.alarms).map(|a| a.run.as_str()).collect();
    assert_eq!(alarms, ["run-thinned"]);
    let outcome = all.iter().find(|t| t.testcase == "tcp").expect("there").points[0].outcome;
    assert_eq!(outcome, Some(Outcome::Pass), "the rail does not change the node's outcome");
    // A folder that still exists is read again, once; a run without one keeps its data.
    site.write_run(&test_run(2, 750.0));
    assert_eq!(history.add_new_runs(&site.runs()).expect("read").added, 1);
    assert_eq!(history.add_new_runs(&site.runs()).expect("read").same, 1);
    assert_eq!(series_values(&history, "copies"), copies[..2], "the folder's values replace them");
    assert_eq!(series_values(&history, "pairs"), [named("run-0002", 750.01)]);
    assert_eq!(history.run_ids().expect("read").len(), 3);
    let rebuilt = history.rebuild(&site.runs()).expect("read");
    assert_eq!((rebuilt.added, rebuilt.kept), (1, 2));
    assert_eq!(series_values(&history, "tcp"), [named("run-gone", 200.0)]);
    drop(history);
    assert_eq!(site.history().upgraded_versions(), None, "once");
}

#[test]
fn a_failed_upgrade_leaves_the_file_unchanged() {
    let site = HistoryFixture::new();
    write_version_1(&site);
    let connection = Connection::open(site.file("h.sqlite")).expect("opens");
    // Fails in the middle, as on a full disk: the last step makes two signatures equal. (A trigger
    // would not do: fabricgate never runs the triggers of a file.)
    connection
        .execute_batch(
            "UPDATE runs SET signature = run; CREATE UNIQUE INDEX full ON runs (signature)",
        )
        .expect("made");
    let error = RunHistory::open(&site.file("h.sqlite")).expect_err("it stops");
    assert!(error.to_string().contains("runs.signature"), "{error}");
    let (version, value): (i64, f64) = connection
        .query_row(
            "SELECT user_version, value FROM pragma_user_version, points WHERE series = 3",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .expect("read");
    assert_eq!((version, value), (1, 395.0));
    connection.execute_batch("DROP INDEX full").expect("gone");
    assert_eq!(site.history().upgraded_versions(), Some((1, 2)));
    assert_eq!(series_values(&site.history(), "tcp").len(), 1);
}
