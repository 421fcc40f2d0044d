//! Alarms that stand: whose, until when, and how often the file is read for them.

use super::*;

/// Ten quiet days and three on which everything reads less.
fn fallen(site: &Site) {
    for day in 0..10 {
        site.put(&made(day, 750.0));
    }
    for day in 10..13 {
        site.put(&made(day, 700.0));
    }
}

#[test]
fn alarms_that_stand_are_told_of_nodes_and_domains_until_something_ends_them() {
    let site = Site::new();
    fallen(&site);
    let mut history = site.history();
    history.catch_up(&site.runs()).expect("read");
    let drifts = history.drifts(Some("run-0011")).expect("read");
    let whose = |drifts: &Drifts| -> Vec<String> {
        let name = |it: &model::trend::OpenAlarm| match &it.part.node {
            Some(node) => node.to_string(),
            None => it.part.domain.as_ref().expect("a domain").to_string(),
        };
        drifts.standing.iter().map(name).collect()
    };
    assert_eq!(whose(&drifts), ["n1", "n2", "d1"]);
    assert_eq!(drifts.rung.len(), 3);
    assert!(drifts.standing.iter().all(|it| it.alarm.since == "run-0010"), "{drifts:#?}");
    // A later run rings nothing that rang before.
    let later = history.drifts(Some("run-0012")).expect("read");
    assert!(later.rung.is_empty() && later.standing == drifts.standing);
    // It comes back.
    for day in 13..16 {
        site.put(&made(day, 750.0));
    }
    history.catch_up(&site.runs()).expect("read");
    assert_eq!(whose(&history.drifts(None).expect("read")), Vec::<String>::new());
}

#[test]
fn an_alarm_of_a_test_that_nobody_runs_any_more_stands_no_longer() {
    let site = Site::new();
    fallen(&site);
    let mut history = site.history();
    history.catch_up(&site.runs()).expect("read");
    let of_another_test = |day: i64| {
        let folder = site.put(&made(day, 750.0));
        let mut cells = cells(&[750.0]);
        cells.iter_mut().for_each(|cell| cell.testcase = "another".into());
        Folder::at(&folder).write_lines(file::CELLS, cells).expect("written");
    };
    of_another_test(60);
    history.catch_up(&site.runs()).expect("read");
    assert_eq!(history.drifts(None).expect("read").standing.len(), 3);
    of_another_test(80);
    history.catch_up(&site.runs()).expect("read");
    assert_eq!(history.drifts(None).expect("read").standing, []);
}

#[test]
fn alarms_are_read_again_only_when_a_run_was_added_and_kept_while_they_cannot_be() {
    let site = Site::new();
    let mut alarms = Alarms::default();
    let file = site.file("h.sqlite");
    alarms.refresh(&file);
    assert!(alarms.standing.is_empty() && alarms.is_read(), "none yet");
    fallen(&site);
    let mut history = site.history();
    history.catch_up(&site.runs()).expect("read");
    alarms.refresh(&file);
    assert_eq!(alarms.standing.len(), 3);
    // Were it read again, it would be seen.
    alarms.standing.truncate(1);
    alarms.refresh(&file);
    assert_eq!(alarms.standing.len(), 1, "not read again");
    site.put(&made(13, 700.0));
    history.catch_up(&site.runs()).expect("read");
    alarms.refresh(&file);
    assert_eq!(alarms.standing.len(), 3, "read again");
    // A writer that lets nobody read, as on a file system of several machines.
    let connection = &history.connection;
    connection.pragma_update(None, "journal_mode", "truncate").expect("set");
    connection.execute_batch("BEGIN EXCLUSIVE; DELETE FROM runs").expect("held");
    alarms.refresh(&file);
    assert!(!alarms.is_read() && alarms.standing.len() == 3, "{:?}", alarms.trouble);
    connection.execute_batch("ROLLBACK").expect("given back");
    alarms.refresh(&file);
    assert!(alarms.is_read() && alarms.standing.len() == 3);
    drop(history);
    fs::write(&file, "no database, no database, no database").expect("written");
    alarms.refresh(&file);
    assert!(alarms.trouble.as_ref().is_some_and(|why| why.contains("damaged")), "{alarms:?}");
}

#[test]
fn who_gives_up_on_a_writer_says_how_long_it_waited() {
    let site = Site::new();
    let file = site.file("h.sqlite");
    drop(History::open(&file).expect("made"));
    // As on a file system of several machines: no log beside the file.
    let writer = Connection::open(&file).expect("opens");
    writer.pragma_update(None, "journal_mode", "truncate").expect("set");
    writer.execute_batch("BEGIN EXCLUSIVE").expect("begun");
    let patience = Duration::from_secs(1);
    let error = History::open_read_only_within(&file, patience).expect_err("busy");
    assert!(matches!(error, HistoryError::Busy { seconds: 1, .. }), "{error}");
}

#[test]
fn a_history_that_cannot_be_reached_is_not_one_that_is_gone() {
    let site = Site::new();
    let mut alarms = Alarms::default();
    fallen(&site);
    site.history().catch_up(&site.runs()).expect("read");
    alarms.refresh(&site.file("h.sqlite"));
    assert_eq!(alarms.standing.len(), 3);
    // Below what is no folder nobody can say what there is.
    let below = site.file("h.sqlite").join("h.sqlite");
    alarms.refresh(&below);
    assert!(alarms.standing.len() == 3 && !alarms.is_read(), "{alarms:?}");
    assert!(matches!(History::open_read_only(&below), Err(HistoryError::Io { .. })));
    alarms.refresh(&site.file("none.sqlite"));
    assert!(alarms.standing.is_empty() && alarms.is_read(), "none yet");
}
