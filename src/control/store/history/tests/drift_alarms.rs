//! Standing alarms: of which part, until when, and how often the file is read for them.

use super::*;

/// Ten quiet days and three with a lower value everywhere.
fn write_drop(site: &HistoryFixture) {
    for day in 0..10 {
        site.write_run(&test_run(day, 750.0));
    }
    for day in 10..13 {
        site.write_run(&test_run(day, 700.0));
    }
}

#[test]
fn alarms_of_nodes_and_domains_stand_until_something_ends_them() {
    let site = HistoryFixture::new();
    write_drop(&site);
    let mut history = site.history();
    history.add_new_runs(&site.runs()).expect("read");
    let drifts = history.drift_summary(Some("run-0011")).expect("read");
    let whose = |drifts: &DriftSummary| -> Vec<String> {
        let name = |it: &model::trend::OpenAlarm| match &it.part.node {
            Some(node) => node.to_string(),
            None => it.part.domain.as_ref().expect("a domain").to_string(),
        };
        drifts.open.iter().map(name).collect()
    };
    assert_eq!(whose(&drifts), ["n1", "n2", "d1"]);
    assert_eq!(drifts.triggered.len(), 3);
    assert!(drifts.open.iter().all(|it| it.alarm.since == "run-0010"), "{drifts:#?}");
    // A later run raises no alarm again.
    let later = history.drift_summary(Some("run-0012")).expect("read");
    assert!(later.triggered.is_empty() && later.open == drifts.open);
    // The value recovers.
    for day in 13..16 {
        site.write_run(&test_run(day, 750.0));
    }
    history.add_new_runs(&site.runs()).expect("read");
    assert_eq!(whose(&history.drift_summary(None).expect("read")), Vec::<String>::new());
}

#[test]
fn an_alarm_of_a_test_that_no_longer_runs_ends() {
    let site = HistoryFixture::new();
    write_drop(&site);
    let mut history = site.history();
    history.add_new_runs(&site.runs()).expect("read");
    let of_another_test = |day: i64| {
        let folder = site.write_run(&test_run(day, 750.0));
        let mut cells = pair_cells(&[750.0]);
        cells.iter_mut().for_each(|cell| cell.testcase = "another".into());
        RunFolder::open(&folder).write_lines(file::CELLS, cells).expect("written");
    };
    of_another_test(60);
    history.add_new_runs(&site.runs()).expect("read");
    assert_eq!(history.drift_summary(None).expect("read").open.len(), 3);
    of_another_test(80);
    history.add_new_runs(&site.runs()).expect("read");
    assert_eq!(history.drift_summary(None).expect("read").open, []);
}

#[test]
fn alarms_are_read_again_only_when_a_run_was_added_and_kept_while_they_cannot_be() {
    let site = HistoryFixture::new();
    let mut alarms = DriftAlarms::default();
    let file = site.file("h.sqlite");
    alarms.refresh(&file);
    assert!(alarms.open.is_empty() && alarms.is_read(), "none yet");
    write_drop(&site);
    let mut history = site.history();
    history.add_new_runs(&site.runs()).expect("read");
    alarms.refresh(&file);
    assert_eq!(alarms.open.len(), 3);
    // A second read would restore the removed alarms.
    alarms.open.truncate(1);
    alarms.refresh(&file);
    assert_eq!(alarms.open.len(), 1, "not read again");
    site.write_run(&test_run(13, 700.0));
    history.add_new_runs(&site.runs()).expect("read");
    alarms.refresh(&file);
    assert_eq!(alarms.open.len(), 3, "read again");
    // A writer that blocks readers, as on a shared file system.
    let connection = &history.connection;
    connection.pragma_update(None, "journal_mode", "truncate").expect("set");
    connection.execute_batch("BEGIN EXCLUSIVE; DELETE FROM runs").expect("held");
    alarms.refresh(&file);
    assert!(!alarms.is_read() && alarms.open.len() == 3, "{:?}", alarms.read_error);
    connection.execute_batch("ROLLBACK").expect("given back");
    alarms.refresh(&file);
    assert!(alarms.is_read() && alarms.open.len() == 3);
    drop(history);
    fs::write(&file, "not a database, not a database, not a").expect("written");
    alarms.refresh(&file);
    assert!(alarms.read_error.as_ref().is_some_and(|why| why.contains("damaged")), "{alarms:?}");
}

#[test]
fn a_reader_that_gives_up_reports_how_long_it_waited() {
    let site = HistoryFixture::new();
    let file = site.file("h.sqlite");
    drop(RunHistory::open(&file).expect("made"));
    // As on a shared file system: no log next to the file.
    let writer = Connection::open(&file).expect("opens");
    writer.pragma_update(None, "journal_mode", "truncate").expect("set");
    writer.execute_batch("BEGIN EXCLUSIVE").expect("begun");
    let patience = Duration::from_secs(1);
    let error = RunHistory::open_read_only_within(&file, patience).expect_err("busy");
    assert!(matches!(error, HistoryError::Busy { seconds: 1, .. }), "{error}");
}

#[test]
fn an_unreachable_history_keeps_its_alarms() {
    let site = HistoryFixture::new();
    let mut alarms = DriftAlarms::default();
    write_drop(&site);
    site.history().add_new_runs(&site.runs()).expect("read");
    alarms.refresh(&site.file("h.sqlite"));
    assert_eq!(alarms.open.len(), 3);
    // A path below a regular file is unreachable, not missing.
    let below = site.file("h.sqlite").join("h.sqlite");
    alarms.refresh(&below);
    assert!(alarms.open.len() == 3 && !alarms.is_read(), "{alarms:?}");
    assert!(matches!(RunHistory::open_read_only(&below), Err(HistoryError::Io { .. })));
    alarms.refresh(&site.file("none.sqlite"));
    assert!(alarms.open.is_empty() && alarms.is_read(), "none yet");
}
