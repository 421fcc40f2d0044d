//! The journal under faults of disks, clocks and other processes.

use std::os::unix::fs::PermissionsExt;

use super::*;
use node::exec;
use node::exec::ProcessRequest;

fn tripped(why: &str) -> JournalEvent {
    JournalEvent::Tripped { why: why.to_owned(), run: "r1".to_owned() }
}

fn read_bytes(folder: &Path) -> Vec<u8> {
    fs::read(folder.join(JOURNAL_FILE)).expect("a journal")
}

fn write_bytes(folder: &Path, bytes: &[u8]) {
    fs::write(folder.join(JOURNAL_FILE), bytes).expect("written");
}

/// A journal of one turn and three more lines.
fn journal_of_three_lines() -> (tempfile::TempDir, Vec<u8>) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut journal = Journal::open(folder.path()).expect("opened");
    journal.append(tripped("é\n\"x\"")).expect("written");
    journal
        .append_all(vec![
            JournalEvent::Reset { by: "ada".to_owned(), why: String::new() },
            tripped("again"),
        ])
        .expect("written");
    drop(journal);
    let written = read_bytes(folder.path());
    (folder, written)
}

#[test]
fn every_turn_has_the_next_epoch_and_lines_are_numbered() {
    let folder = tempfile::tempdir().expect("a folder");
    for turn in 1..=3 {
        let mut journal = Journal::open(folder.path()).expect("opened");
        assert_eq!(journal.epoch(), turn);
        journal.append(tripped("x")).expect("written");
        assert_eq!(journal.state().lines, 2 * turn);
        assert!(journal.notes().is_empty());
    }
    let ledger = read_state(folder.path()).expect("read");
    assert_eq!((ledger.epoch, ledger.lines), (3, 6));
    assert!(ledger.breaker.is_some());
}

#[test]
fn after_the_highest_epoch_no_turn_starts() {
    let folder = tempfile::tempdir().expect("a folder");
    drop(Journal::open(folder.path()).expect("opened"));
    let text = String::from_utf8(read_bytes(folder.path())).expect("JSON");
    let last = text.replace("\"epoch\":1,", &format!("\"epoch\":{},", u64::MAX));
    assert_ne!(last, text);
    write_bytes(folder.path(), last.as_bytes());
    let error = Journal::open(folder.path()).expect_err("refused").to_string();
    assert!(
        error.contains("journal.jsonl:1") && error.contains("highest possible epoch"),
        "{error}"
    );
    assert_eq!(read_bytes(folder.path()), last.as_bytes(), "unchanged");
    assert_eq!(read_state(folder.path()).expect("read").epoch, u64::MAX);
}

#[test]
fn reading_changes_and_creates_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    assert_eq!(read_state(&state).expect("nothing there"), JournalState::default());
    assert!(!state.exists());
    let (folder, mut written) = journal_of_three_lines();
    let journal = Journal::open(folder.path()).expect("opened");
    assert_eq!(read_state(folder.path()).expect("readable while locked"), *journal.state());
    drop(journal);
    written = [read_bytes(folder.path()), written].concat();
    let torn = &written[..written.len() - 5];
    write_bytes(folder.path(), torn);
    assert!(read_state(folder.path()).is_err(), "the second copy restarts the numbering");
    let torn = &read_bytes(folder.path())[..600];
    write_bytes(folder.path(), torn);
    read_state(folder.path()).expect("a torn line is ignored");
    assert_eq!(read_bytes(folder.path()), torn);
}

#[test]
fn other_users_may_not_read_the_journal() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("a/b");
    let _journal = Journal::open(&state).expect("opened");
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(&state), 0o700);
    assert_eq!(mode(&state.join(JOURNAL_FILE)), 0o600);
    assert_eq!(mode(&state.join(LOCK_FILE)), 0o600);
}

#[test]
fn a_journal_torn_at_any_byte_is_repaired_and_keeps_all_whole_lines() {
    let (folder, written) = journal_of_three_lines();
    for end in 0..written.len() {
        write_bytes(folder.path(), &written[..end]);
        let whole = written[..end].iter().filter(|byte| **byte == b'\n').count() as u64;
        assert_eq!(read_state(folder.path()).expect("read").lines, whole, "torn at {end}");
        let is_torn = 0 < end && written[end - 1] != b'\n';
        // Every turn syncs the disk, so bytes in the middle of lines are not all tested.
        let is_edge = written[end.saturating_sub(2)..written.len().min(end + 2)].contains(&b'\n');
        if !is_edge && end % 16 != 0 {
            continue;
        }
        let mut journal = Journal::open(folder.path()).expect("opened");
        assert_eq!(journal.notes().is_empty(), !is_torn, "torn at {end}: {:?}", journal.notes());
        journal.append(tripped("later")).expect("written");
        drop(journal);
        let now = read_bytes(folder.path());
        let kept = written[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |it| it + 1);
        assert_eq!(now[..kept], written[..kept]);
        assert_eq!(read_state(folder.path()).expect("read").lines, whole + 2);
    }
}

#[test]
fn a_bad_line_in_the_middle_is_named_and_nothing_is_written() {
    let (folder, written) = journal_of_three_lines();
    let lines: Vec<&[u8]> = written.split_inclusive(|byte| *byte == b'\n').collect();
    let bad: [(&[u8], &str); 6] = [
        (b"{}\n", "not a fabricgate.journal/1 line"),
        (b"\xff\x00\n", "not a fabricgate.journal/1 line"),
        (b"\n", "not a fabricgate.journal/1 line: EOF while parsing a value; nothing was done"),
        (b"{]\n", "not a fabricgate.journal/1 line: key must be a string (column 2); nothing"),
        (lines[0], "sequence number 1, expected 2"),
        (b"{\"format\":\"fabricgate.other/1\"}\n", "expected \"fabricgate.journal/1\""),
    ];
    for (bad, why) in bad {
        let broken = [lines[0], bad, lines[2]].concat();
        write_bytes(folder.path(), &broken);
        for error in [
            read_state(folder.path()).expect_err("bad"),
            Journal::open(folder.path()).expect_err("bad"),
        ] {
            let message = error.to_string();
            assert!(message.contains("journal.jsonl:2: ") && message.contains(why), "{message}");
        }
        assert_eq!(read_bytes(folder.path()), broken);
    }
    // The numbers reveal a missing line.
    write_bytes(folder.path(), &[lines[0], lines[2]].concat());
    assert!(Journal::open(folder.path()).is_err());
}

#[test]
fn a_newer_format_is_refused_and_named() {
    let (folder, written) = journal_of_three_lines();
    let text = String::from_utf8(written).expect("text");
    let newer = text.replacen("fabricgate.journal/1", "fabricgate.journal/2", 1);
    write_bytes(folder.path(), newer.as_bytes());
    let message = Journal::open(folder.path()).expect_err("newer").to_string();
    assert!(message.contains("a newer fabricgate (fabricgate.journal/2)"), "{message}");
    assert_eq!(read_bytes(folder.path()), newer.as_bytes());
}

#[test]
fn a_second_gate_waits_and_learns_the_holder_of_the_lock() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = Journal::open(folder.path()).expect("opened");
    let taken = Journal::open_with_timeout(folder.path(), Duration::from_millis(120));
    let message = taken.expect_err("taken").to_string();
    assert!(message.contains(&format!("process {} on ", std::process::id())), "{message}");
    let path = folder.path().to_owned();
    let second = std::thread::spawn(move || Journal::open(&path).map(|it| it.epoch()));
    std::thread::sleep(Duration::from_millis(100));
    drop(first);
    assert_eq!(second.join().expect("no panic").expect("its turn"), 2);
}

#[test]
fn a_lock_of_another_process_holds_until_that_process_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    drop(Journal::open(folder.path()).expect("opened"));
    let script = "exec 9<>\"$0\"; flock -w 25 9 || exit 3; echo 'process 1 on far' >\"$0\"; \
                  echo locked; exec sleep 60";
    let lock = folder.path().join(LOCK_FILE).display().to_string();
    let argv = ["sh", "-c", script, &lock].map(str::to_owned).to_vec();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let other = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let request =
            ProcessRequest { argv, limit: Duration::from_secs(60), capture: exec::CAPTURE };
        runtime.expect("a runtime").block_on(exec::run(&request, stopped))
    });
    let start = Instant::now();
    let holder = loop {
        match Journal::open_with_timeout(folder.path(), Duration::ZERO) {
            Err(JournalError::Locked { who, .. }) if who.contains("far") => break who,
            _ => assert!(start.elapsed() < Duration::from_secs(30), "flock(1) does not lock"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(holder, "process 1 on far");
    stop.send(true).expect("it listens");
    other.join().expect("no panic").expect("it was started");
    Journal::open(folder.path()).expect("the lock is free");
}

#[test]
fn concurrent_gates_take_turns_and_lose_no_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let gates: Vec<_> = (0..4)
        .map(|_| {
            let path = folder.path().to_owned();
            std::thread::spawn(move || {
                for _ in 0..5 {
                    let mut journal =
                        Journal::open_with_timeout(&path, Duration::from_secs(60)).expect("a turn");
                    journal.append(tripped("x")).expect("written");
                }
            })
        })
        .collect();
    for gate in gates {
        gate.join().expect("no panic");
    }
    let ledger = read_state(folder.path()).expect("read");
    assert_eq!((ledger.epoch, ledger.lines), (20, 40));
}

#[test]
fn a_journal_that_another_process_changed_is_not_written_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(JOURNAL_FILE);
    let mut journal = Journal::open(folder.path()).expect("opened");
    let mut other = OpenOptions::new().append(true).open(&path).expect("opened");
    other.write_all(b"{}\n").expect("written");
    let message = journal.append(tripped("x")).expect_err("disturbed").to_string();
    assert!(message.contains("another process wrote"), "{message}");
    drop(journal);
    fs::remove_file(&path).expect("removed");
    let mut journal = Journal::open(folder.path()).expect("opened");
    fs::rename(&path, folder.path().join("journal.1")).expect("moved");
    let message = journal.append(tripped("x")).expect_err("moved").to_string();
    assert!(message.contains("moved or removed"), "{message}");
    fs::write(&path, "").expect("written");
    let message = journal.append(tripped("x")).expect_err("another").to_string();
    assert!(message.contains("another file"), "{message}");
}

#[test]
fn a_clock_set_back_is_reported_and_times_do_not_decrease() {
    let at = |unix: i64, at: &str| ClockStamp {
        at: at.to_owned(),
        unix,
        boot: "b".to_owned(),
        uptime_s: 5.0,
    };
    let (stamp, note) = clamp_to_monotonic(at(50, "early"), Some(&at(100, "late")));
    assert_eq!((stamp.unix, stamp.at.as_str(), stamp.uptime_s), (100, "late", 5.0));
    let note = note.expect("a note");
    assert!(note.contains("early") && note.contains("late"), "{note}");
    assert_eq!(clamp_to_monotonic(at(100, "x"), Some(&at(100, "y"))), (at(100, "x"), None));
    assert_eq!(clamp_to_monotonic(at(1, "x"), None), (at(1, "x"), None));

    // A journal whose last line is from the far future.
    let (folder, written) = journal_of_three_lines();
    let text = String::from_utf8(written).expect("text");
    let last = read_state(folder.path()).expect("read").last.expect("a stamp");
    let far = text.replace(&format!("\"unix\":{}", last.unix), "\"unix\":9999999999");
    write_bytes(folder.path(), far.as_bytes());
    let journal = Journal::open(folder.path()).expect("opened");
    assert_eq!(journal.state().last.as_ref().expect("a stamp").unix, 9_999_999_999);
    assert_eq!(journal.notes().len(), 1, "{:?}", journal.notes());
    assert!(journal.notes()[0].contains("set back"));
}

#[test]
fn a_full_device_is_an_error_and_adds_no_line() {
    let (folder, written) = journal_of_three_lines();
    let mut journal = Journal::open(folder.path()).expect("opened");
    let before = journal.state().clone();
    let full = OpenOptions::new().append(true).open("/dev/full").expect("/dev/full");
    let file = std::mem::replace(&mut journal.file, full);
    let path = std::mem::replace(&mut journal.path, PathBuf::from("/dev/full"));
    let whole = std::mem::replace(&mut journal.synced_len, 0);
    for _ in 0..2 {
        let error = journal.append(tripped("x")).expect_err("full");
        assert!(matches!(error, JournalError::Io { .. }), "{error}");
    }
    assert_eq!(*journal.state(), before);
    (journal.file, journal.path, journal.synced_len) = (file, path, whole);
    journal.append(tripped("later")).expect("space is available");
    assert!(read_bytes(folder.path()).starts_with(&written));
    assert_eq!(read_state(folder.path()).expect("read").lines, before.lines + 1);
}

#[test]
fn a_full_disk_is_an_error_before_any_action_and_leaves_no_partial_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().display().to_string();
    let command = |words: &[&str]| {
        let argv = words.iter().map(|word| (*word).to_owned()).collect();
        let (_sender, stop) = tokio::sync::watch::channel(false);
        let request =
            ProcessRequest { argv, limit: Duration::from_secs(20), capture: exec::CAPTURE };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let ended = runtime.expect("a runtime").block_on(exec::run(&request, stop));
        ended.is_ok_and(|it| it.ending.is_success())
    };
    if !command(&["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", &place]) {
        println!("SKIPPED: no small file system can be mounted here");
        return;
    }
    let state = folder.path().join("state");
    let outcome = std::panic::catch_unwind(|| {
        let mut journal = Journal::open(&state).expect("opened");
        fs::write(folder.path().join("ballast"), vec![0; 1 << 14]).expect("written");
        let long = "x".repeat(5_000);
        let mut lines = 1;
        let message = loop {
            match journal.append(tripped(&long)) {
                Ok(()) => lines += 1,
                Err(error) => break error.to_string(),
            }
            assert!(lines < 100, "the disk does not fill up");
        };
        assert!(message.contains("No space left"), "{message}");
        assert_eq!(journal.state().lines, lines);
        assert!(read_bytes(&state).ends_with(b"\n"), "a partial line was left");
        assert_eq!(read_state(&state).expect("read").lines, lines);
        // Several lines in one call: none of them is written either.
        assert!(journal.append_all(vec![tripped(&long), tripped(&long), tripped(&long)]).is_err());
        assert_eq!(read_state(&state).expect("read").lines, lines);
        // Fills the rest of the last page.
        while journal.append(tripped("")).is_ok() {
            lines += 1;
        }
        drop(journal);
        // The next turn cannot be journaled; no earlier line is lost.
        assert!(Journal::open(&state).is_err());
        assert_eq!(read_state(&state).expect("read").lines, lines);
        fs::remove_file(folder.path().join("ballast")).expect("removed");
        let mut journal = Journal::open(&state).expect("space is available");
        journal.append(tripped("short")).expect("written");
        assert_eq!(read_state(&state).expect("read").lines, lines + 2);
    });
    assert!(command(&["umount", &place]), "{place} stays mounted");
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

#[test]
fn eviction_lines_of_an_earlier_version_are_read_and_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let line = |seq: u64, rest: &str| {
        format!(
            r#"{{"format":"{JOURNAL_FORMAT}","seq":{seq},"at":"2026-01-01T00:00:00Z","unix":{seq},"epoch":1,{rest}}}"#
        )
    };
    let written = [
        line(1, r#""event":"opened","host":"h","pid":1,"version":"0.1.0""#),
        line(2, r#""event":"evicting","node":"n1","pods":["team/a","team/b"]"#),
        line(
            3,
            r#""event":"evicted","eviction":{"node":"n1","pods":[{"pod":"team/a","result":"gone"},{"pod":"team/b","result":"left","detail":"a budget holds it"}]}"#,
        ),
    ];
    let written = written.join("\n") + "\n";
    write_bytes(folder.path(), written.as_bytes());
    let read = read_entries(folder.path()).expect("read");
    let JournalEvent::Evicted { eviction } = &read[2].event else { panic!("{:?}", read[2]) };
    assert_eq!((eviction.node.as_str(), eviction.pods.len()), ("n1", 2));
    // A turn continues after them, has no intent of theirs to conclude, and changes none.
    let journal = Journal::open(folder.path()).expect("opened");
    assert!(journal.state().open_intents.is_empty());
    drop(journal);
    assert!(read_bytes(folder.path()).starts_with(written.as_bytes()));
}
