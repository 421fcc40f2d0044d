//! Untrusted run folders as file systems: pipes, devices, links, endless files, files that change
//! while they are read.

use std::fs;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use control::store::file;
use control::store::history::RunHistory;

use super::place::{Place, change};

/// Every command that reads a run folder.
const READERS: &[&[&str]] = &[
    &["report", "runs/r"],
    &["report", "runs/r", "--bundle", "box2", "--output", "b.tgz"],
    &["replay", "runs/r"],
    &["explain", "runs/r", "box2"],
    &["history", "--run-dir", "runs"],
    &["metrics", "--run-dir", "runs"],
];

fn pipe(path: &Path) {
    let _ = fs::remove_file(path);
    rustix::fs::mkfifoat(rustix::fs::CWD, path, 0o600.into()).expect("a pipe");
}

/// An output that findings rest on.
fn output(run: &Path) -> std::path::PathBuf {
    let folder = run.join("raw/nodes/box2");
    let mut all: Vec<_> =
        fs::read_dir(folder).expect("outputs").map(|it| it.expect("one").path()).collect();
    all.sort();
    let is_copy = |it: &&std::path::PathBuf| it.to_string_lossy().contains("nvbandwidth");
    all.iter().find(is_copy).expect("an output").clone()
}

#[test]
fn pipes_and_devices_in_a_run_folder_are_neither_waited_for_nor_read() {
    for document in file::READ {
        let place = Place::new();
        let path = place.foreign_run().join(document);
        pipe(&path);
        for args in READERS {
            // A command may leave out or refuse an unreadable file; it must end.
            place.run(args);
        }
        fs::remove_file(&path).expect("removed");
        symlink("/dev/zero", &path).expect("a link");
        for args in READERS {
            place.run(args);
        }
    }
    let place = Place::new();
    let run = place.foreign_run();
    pipe(&output(&run));
    let ended = place.run(&["replay", "runs/r"]);
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert!(ended.stderr.contains("not a regular file"), "{}", ended.stderr);
}

#[test]
fn files_of_many_gigabytes_and_of_endless_depth_are_refused_in_bounded_memory() {
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    for document in ["run.json", "verdicts.json", "cells.jsonl"] {
        let place = Place::new();
        let path = place.foreign_run().join(document);
        File::create(&path).and_then(|it| it.set_len(20 << 30)).expect("a sparse file");
        let ended = place.run(&["report", "runs/r"]);
        assert_eq!(ended.code, Some(5), "{document}: {ended:?}");
        assert!(ended.stderr.contains("MiB are read"), "{document}: {}", ended.stderr);
        // A last line without its line end would count as torn.
        for text in [format!("{{\"format\":{deep}}}\n"), format!("{deep}\n")] {
            fs::write(&path, text).expect("written");
            let ended = place.run(&["report", "runs/r"]);
            assert_eq!(ended.code, Some(2), "{document}: {ended:?}");
            assert!(ended.stderr.contains(document), "{}", ended.stderr);
        }
    }
}

#[test]
fn no_link_and_no_name_adds_foreign_files_to_a_bundle() {
    let place = Place::new();
    let secret = place.put("secret.txt", "root-of-all-keys\n");
    let outside = fs::canonicalize(&secret).expect("there");
    let ways: &[fn(&Path, &Path)] = &[
        // A link in place of an output, and one in place of its folder.
        |output, secret| {
            fs::remove_file(output).expect("removed");
            symlink(secret, output).expect("a link");
        },
        |output, secret| {
            let folder = output.parent().expect("a folder");
            let name = output.file_name().expect("a name");
            let aside = secret.parent().expect("a folder").join("aside");
            let _ = fs::create_dir(&aside);
            fs::copy(secret, aside.join(name)).expect("copied");
            fs::remove_dir_all(folder).expect("removed");
            symlink(&aside, folder).expect("a link");
        },
    ];
    let packed = |place: &Place| {
        let ended = place.run(&["report", "runs/r", "--bundle", "box2", "--output", "b.tgz"]);
        let mut text = Vec::new();
        if let Ok(file) = File::open(place.path("b.tgz")) {
            flate2::read::GzDecoder::new(file).read_to_end(&mut text).expect("gzip");
        }
        (ended, String::from_utf8_lossy(&text).into_owned())
    };
    for way in ways {
        let run = place.foreign_run();
        way(&output(&run), &outside);
        let (ended, text) = packed(&place);
        assert!(ended.stderr.contains("leads out of the run folder"), "{}", ended.stderr);
        assert!(!text.contains("root-of-all-keys"));
        let ended = place.run(&["replay", "runs/r"]);
        assert_eq!(ended.code, Some(5), "{ended:?}");
        fs::remove_dir_all(run).expect("removed");
    }
    for name in ["../../secret.txt", &outside.display().to_string(), "raw/../../../secret.txt"] {
        let run = place.foreign_run();
        let path = run.join("results.jsonl");
        let lines = fs::read_to_string(&path).expect("results");
        let mut changed = String::new();
        for line in lines.lines() {
            let mut line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            line["stdout"] = name.into();
            changed.push_str(&format!("{line}\n"));
        }
        fs::write(path, changed).expect("written");
        let (_, text) = packed(&place);
        assert!(!text.contains("root-of-all-keys"), "{name}");
        assert_eq!(place.run(&["replay", "runs/r"]).code, Some(5), "{name}");
        fs::remove_dir_all(run).expect("removed");
    }
}

/// An interrupted run from an untrusted source, so that there is a run to resume.
fn interrupted(place: &Place) -> std::path::PathBuf {
    let run = place.foreign_run();
    change(&run.join(file::RUN), |run| run["state"] = "partial".into());
    let path = run.join(file::RESULTS);
    let text = fs::read_to_string(&path).expect("results");
    let last = text.trim_end().rfind('\n').expect("several");
    fs::write(path, &text[..=last]).expect("written");
    run
}

#[test]
fn a_resumed_run_writes_through_no_link() {
    let place = Place::new();
    let precious = place.put("precious", "mine\n");
    place.program("fabricgate", &format!("exec {} \"$@\"", env!("CARGO_BIN_EXE_fabricgate")));
    place.program("ssh", "shift\nexec \"$@\"");
    place.put("claims.toml", "[[domain]]\nname = \"a\"\nnodes = \"box[1-2]\"\n");
    place.put(
        "fabricgate.toml",
        "claims = \"claims.toml\"\nplatform = \"hgx-h100\"\n[launcher]\nkind = \"command\"\n\
         template = [\"ssh\", \"{node}\"]\n[confirm]\nwait_s = 0\n",
    );
    let args = ["audit", "--config", "fabricgate.toml", "--resume", "runs/r"];
    // Without a link everything is written: a test that only sees refusals proves nothing.
    let run = interrupted(&place);
    let written = [file::VERDICTS, file::CELLS, file::ACTIONS, file::MATRIX, file::REPORT];
    written.iter().for_each(|name| fs::remove_file(run.join(name)).expect("removed"));
    let ended = place.run(&args);
    let missing = written.iter().find(|name| !run.join(name).is_file());
    assert_eq!(missing, None, "{ended:?}");
    fs::remove_dir_all(run).expect("removed");
    // One by one: a refused link must not prevent the check of the others.
    for name in file::READ.iter().chain(&[".lock", file::MATRIX, file::REPORT]) {
        let run = interrupted(&place);
        let _ = fs::remove_file(run.join(name));
        symlink(&precious, run.join(name)).expect("a link");
        place.run(&args);
        assert_eq!(fs::read_to_string(&precious).expect("there"), "mine\n", "{name}");
        fs::remove_dir_all(run).expect("removed");
    }
}

#[test]
fn files_that_change_while_they_are_read_end_in_an_answer_each_time() {
    let place = Place::new();
    let run = place.foreign_run();
    let path = run.join("cells.jsonl");
    let good = fs::read(&path).expect("cells");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut file = File::create(&path).expect("a file");
                let _ = file.write_all(&good[..good.len() / 2]);
                let _ = file.write_all(&good);
                let _ = file.set_len(3);
            }
        });
        for _ in 0..8 {
            let ended = place.run(&["report", "runs/r"]);
            assert!([Some(0), Some(2), Some(5)].contains(&ended.code), "{ended:?}");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn an_untrusted_history_cannot_run_code() {
    let place = Place::new();
    place.foreign_run();
    let database = place.path("history.db");
    let mut history = RunHistory::open(&database).expect("a new one");
    history.rebuild(&place.path("runs")).expect("rebuilt");
    drop(history);
    assert!(
        RunHistory::open_read_only(&database).is_ok(),
        "a test that only sees refusals proves nothing"
    );
    for hostile in [
        "CREATE TRIGGER t AFTER INSERT ON runs BEGIN SELECT load_extension('x'); END",
        "DROP VIEW link_points; CREATE VIEW link_points AS WITH RECURSIVE r(x) AS \
         (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT * FROM r",
    ] {
        let aside = place.path("hostile.db");
        fs::copy(&database, &aside).expect("copied");
        let opened = rusqlite::Connection::open(&aside).expect("a database");
        opened.execute_batch(hostile).expect("changed");
        drop(opened);
        let refused = RunHistory::open_read_only(&aside);
        assert!(refused.is_err(), "{hostile}");
        let refused = RunHistory::open(&aside);
        assert!(refused.is_err(), "{hostile}");
    }
    pipe(&place.path("pipe.db"));
    assert!(RunHistory::open_read_only(&place.path("pipe.db")).is_err());
}
