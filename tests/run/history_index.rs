//! The history from the command line: simulated runs are measured, stored, shown and pruned, and
//! no fault of the index costs a run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

/// A node whose GPUs are read in one test, so that a run is quick.
const NODE: &str = "title = \"t\"\nseed = SEED\n[noise]\nsigma = 0.003\n\
    [tools]\nrecord = [\"nvbandwidth\"]\nnode_tests = [\"device_to_device_memcpy_write_ce\"]\n\
    [[domain]]\nnodes = \"h1\"\nplatform = \"hgx-h100\"\nper_node = true\n";

/// The same GPU with one link of eighteen lost.
const LOST: &str = "[[fault]]\nkind = \"lost-links\"\ngpu = \"h1:5\"\n";

const CONFIG: &str = "run_dir = \"runs\"\n[launcher]\nkind = \"sim\"\nscenario = \"s.toml\"\n\
    [probes]\nrun = [\"nvbandwidth-ce\"]\n[confirm]\nenabled = false\n";

struct Site {
    dir: tempfile::TempDir,
}

impl Site {
    fn new(more: &str) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("c.toml"), format!("{CONFIG}{more}")).expect("written");
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    #[expect(clippy::disallowed_methods, reason = "a test starts the program itself")]
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fabricgate"));
        command.current_dir(self.dir.path()).args(["--config", "c.toml"]).args(args);
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("fabricgate runs")
    }

    /// Measures; returns the run folder.
    fn measure(&self, seed: u32, more: &str, code: i32) -> (PathBuf, String) {
        let before = self.folders();
        let scenario = NODE.replace("SEED", &seed.to_string()) + more;
        fs::write(self.path("s.toml"), scenario).expect("written");
        if !more.is_empty() {
            // Runs of one second have no order in time, and a lost run has one.
            std::thread::sleep(Duration::from_millis(1_100));
        }
        let run = self.run(&["admit", "--even-if-busy", "--no-progress"]);
        let stderr = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(code), "{stderr}");
        let new = self.folders().into_iter().find(|folder| !before.contains(folder));
        (new.expect("a run folder"), stderr)
    }

    fn folders(&self) -> Vec<PathBuf> {
        let listed = fs::read_dir(self.path("runs")).into_iter().flatten().flatten();
        let mut folders: Vec<PathBuf> = listed.map(|entry| entry.path()).collect();
        folders.sort();
        folders
    }

    /// The page and the table of the bundle of a run about h1.
    #[expect(clippy::disallowed_methods, reason = "a test unpacks what it packed")]
    fn bundle(&self, folder: &Path) -> (String, String) {
        let run = folder.to_str().expect("text");
        let packed = self.run(&["report", run, "--bundle", "h1", "--output", "b.tar.gz"]);
        let stderr = String::from_utf8_lossy(&packed.stderr).into_owned();
        assert_eq!((packed.status.code(), stderr.as_str()), (Some(0), ""));
        let read = |name: &str| {
            let mut tar = Command::new("tar");
            tar.current_dir(self.dir.path()).args(["-xzOf", "b.tar.gz", "--wildcards", name]);
            String::from_utf8(tar.output().expect("tar runs").stdout).expect("text")
        };
        (read("*/report.html"), read("*/history.csv"))
    }

    fn json(&self, args: &[&str]) -> Value {
        let mut all = vec!["history", "--json"];
        all.extend(args);
        let shown = self.run(&all);
        let stderr = String::from_utf8_lossy(&shown.stderr).into_owned();
        assert_eq!(shown.status.code(), Some(0), "{stderr}");
        serde_json::from_slice(&shown.stdout).expect("one document")
    }

    /// A copy of a run as if it had been made this many days earlier.
    fn copy(&self, folder: &Path, days: i64) -> PathBuf {
        let text = fs::read_to_string(folder.join("run.json")).expect("read");
        let mut run: Value = serde_json::from_str(&text).expect("json");
        let at: jiff::Timestamp =
            run["info"]["created"].as_str().expect("a time").parse().expect("a time");
        let at = jiff::Timestamp::from_second(at.as_second() - days * 86_400).expect("in range");
        let id = format!("{}-{days:06}", at.strftime("%Y%m%d-%H%M%S"));
        run["info"]["created"] = at.to_string().into();
        run["info"]["id"] = id.clone().into();
        let copy = self.path("runs").join(&id);
        fs::create_dir(&copy).expect("made");
        for entry in fs::read_dir(folder).expect("listed").flatten() {
            if entry.path().is_file() {
                fs::copy(entry.path(), copy.join(entry.file_name())).expect("copied");
            }
        }
        fs::write(copy.join("run.json"), run.to_string()).expect("written");
        copy
    }
}

fn id(folder: &Path) -> String {
    folder.file_name().expect("a name").to_string_lossy().into_owned()
}

#[test]
fn a_lost_link_is_reported_at_its_first_run_with_the_other_changes() {
    let site = Site::new("[history]\n[metrics]\ntextfile = \"f.prom\"\n");
    let mut healthy = Vec::new();
    for seed in 1..=9 {
        healthy.push(site.measure(seed, "", 0).0);
    }
    let (lost, _) = site.measure(20, LOST, 3);
    let (_, stderr) = site.measure(21, LOST, 3);
    assert!(stderr.contains("remark: ") && stderr.contains("h1, device_to_device"), "{stderr}");
    assert!(site.path("runs-history.sqlite").is_file(), "beside the run folders");
    // Monitoring shows that it persists, and a ticket shows since when.
    let shown = fs::read_to_string(site.path("f.prom")).expect("a textfile");
    assert!(shown.contains("\nfabricgate_node_drift_alarms{node=\"h1\"} 2\n"), "{shown}");
    assert!(shown.contains("\nfabricgate_state_troubles 0\n"), "{shown}");
    let second = site.folders().pop().expect("one");
    let (page, table) = site.bundle(&second);
    assert!(page.contains("h1:5") && page.contains(&id(&lost)), "{page}");
    let rung: Vec<&str> = table.lines().filter(|line| line.contains(",fast,")).collect();
    assert!(!rung.is_empty() && rung.iter().all(|line| line.contains(",h1,")), "{rung:#?}");
    // A bundle of the previous run contains nothing of later runs.
    let (page, table) = site.bundle(&lost);
    assert!(page.contains("h1:5") && !page.contains(&id(&second)), "{page}");
    assert!(table.contains(&id(&lost)) && !table.contains(&id(&second)), "{table}");
    let all = site.json(&["h1", "--gpu"]);
    assert_eq!(all["format"], "fabricgate.history/1");
    assert_eq!(all["runs"], 11);
    assert_eq!(all["nodes"][0]["last_run"], id(site.folders().last().expect("one")));
    let trends = all["trends"].as_array().expect("series");
    assert!(8 <= trends.len(), "{}", trends.len());
    for trend in trends {
        let part = &trend["part"];
        let alarms = trend["alarms"].as_array().cloned().unwrap_or_default();
        // The path to host memory loses nothing.
        if part["gpu"] == 5 && ["tx", "rx"].contains(&part["direction"].as_str().expect("one")) {
            assert_eq!(alarms.len(), 1, "{part}: {alarms:?}");
            assert_eq!(alarms[0]["since"], id(&lost), "{part}");
            let shift = alarms[0]["shift"].as_f64().expect("a number");
            assert!((shift + 1.0 / 18.0).abs() < 0.012, "{part}: {shift}");
            assert_eq!(trend["baseline"]["count"], 9, "points of blamed parts are not learned");
        } else {
            assert!(alarms.is_empty(), "{part}: {alarms:?}");
        }
    }
    // It contains a path, and the readable output is the same.
    let paths = site.json(&["h1", "--link", "h1:3", "--test", "device_to_device_memcpy_write_ce"]);
    let paths = paths["trends"].as_array().expect("series").clone();
    assert_eq!(paths.len(), 7);
    let shown = site.run(&["history"]);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        text.contains("11 runs, 1 node") && text.contains("less than usual from run"),
        "{text}"
    );
    assert!(text.contains("An alarm causes no action"), "{text}");
    let files = site.run(&["history", "h1", "--gpu", "5", "--csv", "o.csv", "--plot", "o.svg"]);
    assert_eq!(files.status.code(), Some(0));
    let csv = fs::read_to_string(site.path("o.csv")).expect("written");
    assert!(csv.starts_with("run,at,kind,domain,node,gpu,peer,rail,direction,testcase,unit,value"));
    assert!(csv.lines().any(|line| line.starts_with(&id(&lost)) && line.contains("degraded")));
    let svg = fs::read_to_string(site.path("o.svg")).expect("written");
    assert!(svg.starts_with("<svg") && svg.contains("h1:5") && svg.contains("usual"));

    // Another driver on another day: a step with its cause.
    let copy = site.copy(&lost, -1);
    let machines = fs::read_to_string(copy.join("machines.jsonl")).expect("read");
    let before = "\"driver\":null";
    assert!(machines.contains(before), "{machines}");
    fs::write(copy.join("machines.jsonl"), machines.replace(before, "\"driver\":\"999.9\""))
        .expect("written");
    let changed = site.json(&["h1", "--gpu", "5"]);
    let changes = changed["trends"][0]["changes"].as_array().expect("changes").clone();
    let driver = changes.iter().find(|change| change["kind"] == "driver").expect("the driver");
    assert_eq!((&driver["after"], &driver["run"]), (&"999.9".into(), &id(&copy).into()));

    // The index is deleted, and nothing is lost.
    let grown = site.json(&["--gpu"]);
    for end in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(site.path(&format!("runs-history.sqlite{end}")));
    }
    assert_eq!(site.json(&["--gpu"])["trends"], grown["trends"]);
}

#[test]
fn faults_of_the_index_do_not_change_the_run() {
    let site = Site::new("[history]\npath = \"h/h.sqlite\"\n");
    site.measure(1, "", 0);
    let file = site.path("h/h.sqlite");
    let whole = fs::read(&file).expect("made");

    // Damaged: the run completes and reports it, and the next reader rebuilds the index.
    for end in ["-wal", "-shm"] {
        let _ = fs::remove_file(site.path(&format!("h/h.sqlite{end}")));
    }
    fs::write(&file, "no database, no database, no database, no database, no database")
        .expect("ok");
    let (_, stderr) = site.measure(2, "", 0);
    assert!(
        stderr.contains("h.sqlite: damaged") && stderr.contains("adds this run later"),
        "{stderr}"
    );
    let shown = site.json(&[]);
    assert_eq!(shown["runs"], 2);
    assert!(shown["notes"][0].as_str().expect("a note").contains("h.sqlite.damaged-1"), "{shown}");
    assert!(site.path("h/h.sqlite.damaged-1").is_file());

    // Newer: refused by name, left as it is.
    let mut newer = whole;
    newer[60..64].copy_from_slice(&9u32.to_be_bytes());
    fs::write(&file, &newer).expect("written");
    let (_, stderr) = site.measure(3, "", 0);
    assert!(stderr.contains("a history of version 9, written by a newer fabricgate"), "{stderr}");
    let shown = site.run(&["history"]);
    assert_eq!(shown.status.code(), Some(2));
    assert!(shown.stdout.is_empty());
    assert_eq!(fs::read(&file).expect("there"), newer);
    let shown = site.run(&["metrics", "--format", "text"]);
    assert_eq!(shown.status.code(), Some(0), "monitoring goes on without it");
    let stderr = String::from_utf8_lossy(&shown.stderr).into_owned();
    assert!(
        stderr.contains("metrics: ") && stderr.contains("h.sqlite: a history of version 9"),
        "{stderr}"
    );
    assert!(String::from_utf8_lossy(&shown.stdout).contains("\nfabricgate_state_troubles 1\n"));
    fs::remove_file(&file).expect("removed");
    assert_eq!(site.json(&[])["runs"], 3);

    // Half a run folder, and an edited one, are named and keep no other run out.
    let half = site.path("runs/20200101-000000-000000");
    fs::create_dir(&half).expect("made");
    fs::write(half.join("run.json"), "{\"format\": \"fabricgate.run/1\"").expect("written");
    let edited = site.folders().pop().expect("one");
    let cells = fs::read_to_string(edited.join("cells.jsonl")).expect("read");
    fs::write(edited.join("cells.jsonl"), cells.replacen('{', "[", 1)).expect("written");
    let shown = site.json(&["--rebuild"]);
    let notes = shown["notes"].to_string();
    assert!(notes.contains("20200101-000000-000000") && notes.contains("cells.jsonl:1"), "{notes}");
    assert_eq!(shown["runs"], 3, "the index keeps the edited run's earlier facts");

    // A read-only folder.
    let me = rustix::process::geteuid();
    let folder = site.path("h");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).expect("set");
    let (_, stderr) = site.measure(4, "", 0);
    if me.is_root() {
        eprintln!("SKIPPED a folder that may only be read: root may write everywhere");
    } else {
        assert!(stderr.contains("adds this run later"), "{stderr}");
        assert_eq!(site.json(&[])["runs"], 3);
    }
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("set");
    assert_eq!(site.json(&[])["runs"], 4);
}

#[test]
fn two_concurrent_writers_lose_nothing() {
    let site = Site::new("[history]\n");
    let (first, _) = site.measure(1, "", 0);
    for days in 1..6 {
        site.copy(&first, days);
    }
    let start = || {
        let mut command = site.command(&["history", "--json", "--rebuild"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("fabricgate runs")
    };
    for child in [start(), start(), start()] {
        let ended = child.wait_with_output().expect("ends");
        let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(0), "{stderr}");
        let shown: Value = serde_json::from_slice(&ended.stdout).expect("one document");
        assert_eq!(shown["runs"], 6);
    }
}

#[test]
fn a_full_disk_leaves_the_index_as_it_was_and_the_run_its_outcome() {
    let site = Site::new("[history]\npath = \"small/h.sqlite\"\n");
    let small = site.path("small");
    fs::create_dir(&small).expect("made");
    let Some(_mounted) = Mounted::tmpfs(&small, "2M") else {
        eprintln!("SKIPPED a full disk: no file system can be mounted here");
        return;
    };
    site.measure(1, "", 0);
    assert_eq!(site.json(&[])["runs"], 1);
    // All entries beyond one page.
    let filler = small.join("filler");
    let mut bytes = vec![0u8; 2 << 20];
    while fs::write(&filler, &bytes).is_err() && 4096 < bytes.len() {
        bytes.truncate(bytes.len() - 4096);
    }
    let (_, stderr) = site.measure(2, "", 0);
    assert!(
        stderr.contains("small/h.sqlite") && stderr.contains("no room left on the disk"),
        "{stderr}"
    );
    assert!(stderr.contains("the history is unchanged"), "{stderr}");
    let shown = site.json(&[]);
    assert_eq!(shown["runs"], 1, "{shown}");
    assert!(shown["notes"].to_string().contains("the history is not up to date"), "{shown}");
    fs::remove_file(&filler).expect("removed");
    assert_eq!(site.json(&[])["runs"], 2, "with room it is taken in");
}

#[test]
fn old_run_folders_are_deleted_only_if_unneeded_and_requested() {
    let site = Site::new("[history]\nkeep_runs_days = 30\n[gate]\n");
    let (now, _) = site.measure(1, "", 0);
    let old = site.copy(&now, 100);
    let named = site.copy(&now, 90);
    let suspects = site.copy(&now, 95);
    let suspected = format!(
        "{{\"format\":\"fabricgate.journal/1\",\"seq\":1,\"at\":\"2026-11-21T04:00:00Z\",\"unix\":1,\
         \"epoch\":1,\"event\":\"suspected\",\"node\":\"h1\",\"run\":\"{}\",\"measured\":1,\"classes\":[]}}\n",
        id(&suspects)
    );
    fs::create_dir(site.path("gate")).expect("made");
    fs::write(site.path("gate/journal.jsonl"), suspected).expect("written");
    let young = site.copy(&now, 10);
    fs::write(young.join("acceptance.json"), format!("{{\"runs\": [\"{}\"]}}", id(&named)))
        .expect("ok");
    let broken = site.copy(&now, 80);
    fs::write(broken.join("cells.jsonl"), "nothing\n").expect("written");
    let link = site.path("runs/link");
    std::os::unix::fs::symlink(site.path("runs").join(id(&old)), &link).expect("linked");

    let dry = site.run(&["history", "prune", "--json"]);
    let stderr = String::from_utf8_lossy(&dry.stderr).into_owned();
    assert_eq!(dry.status.code(), Some(0), "{stderr}");
    let dry: Value = serde_json::from_slice(&dry.stdout).expect("one document");
    let why = |folder: &Path| {
        let all = dry["folders"].as_array().expect("folders");
        let found = all.iter().find(|aged| aged["run"] == id(folder));
        found.map(|aged| aged["kept_because"].as_str().unwrap_or("").to_owned())
    };
    assert_eq!(why(&old).as_deref(), Some(""), "{dry}");
    assert!(why(&named).expect("old").contains("acceptance.json names it"));
    assert!(why(&suspects).expect("old").contains("h1 is a suspect because of it"), "{dry}");
    assert!(why(&broken).expect("old").contains("the history does not have it"));
    assert_eq!((why(&young), why(&now)), (None, None));
    assert!(old.is_dir(), "a dry run removes nothing");

    let before = site.json(&["--gpu"]);
    let lock = fs::File::create(old.join(".lock")).expect("a lock");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    let held = site.run(&["history", "prune", "--apply"]);
    assert_eq!(held.status.code(), Some(5), "a failed removal is not a success");
    assert!(String::from_utf8_lossy(&held.stdout).contains("another process is writing into it"));
    assert!(old.join("run.json").is_file());
    drop(lock);
    assert_eq!(site.run(&["history", "prune", "--apply"]).status.code(), Some(0));
    assert!(!old.exists());
    for kept in [&named, &suspects, &young, &broken, &now] {
        assert!(kept.join("run.json").is_file(), "{}", kept.display());
    }
    let after = site.json(&["--gpu", "--rebuild"]);
    assert_eq!(after["trends"], before["trends"], "the index has what the folder showed");
    // The newest complete run of a node stays, regardless of its age.
    let aged = Site::new("");
    let (now, _) = aged.measure(1, "", 0);
    let (older, newest) = (aged.copy(&now, 50), aged.copy(&now, 40));
    fs::remove_dir_all(&now).expect("removed");
    let all = aged.run(&["history", "prune", "--older-than", "1", "--apply"]);
    assert_eq!(all.status.code(), Some(0));
    assert!(!older.exists() && newest.join("run.json").is_file());
    assert!(String::from_utf8_lossy(&all.stdout).contains("newest complete run of h1"));
    let none = Site::new("");
    fs::create_dir(none.path("runs")).expect("made");
    let asked = none.run(&["history", "prune"]);
    assert_eq!(asked.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&asked.stderr).contains("--older-than DAYS"));
}

#[test]
fn a_failed_display_has_a_message_and_its_code() {
    let site = Site::new("");
    let none = site.run(&["history"]);
    assert_eq!(none.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&none.stderr).contains("--run-dir DIR"));
    site.measure(1, "", 0);
    assert!(!site.path("runs-history.sqlite").exists(), "simulated, and not requested");
    assert_eq!(site.json(&[])["runs"], 1, "asked, it is read");
    for (args, expected) in [
        (&["history", "h2"][..], "no run measured h2"),
        (&["history", "--link"], "--link: expected NODE as well"),
        (&["history", "h1", "--since", "soon"], "--since \"soon\": expected a date"),
        (&["history", "h[1-"], "h[1-"),
    ] {
        let ended = site.run(args);
        assert_eq!(ended.status.code(), Some(2), "{args:?}");
        let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
    }
    let notes = |args: &[&str]| site.json(args)["notes"].to_string();
    assert!(notes(&["h1", "h7"]).contains("no run measured h7"), "{}", notes(&["h1", "h7"]));
    let stderr = notes(&["--domain", "nowhere"]);
    assert!(stderr.contains("no run measured domain nowhere"), "{stderr}");
    assert!(!notes(&["h1"]).contains("no run measured"), "{}", notes(&["h1"]));
    let later = site.json(&["--since", "2999-01-01"]);
    assert_eq!(later["trends"], Value::Array(Vec::new()));
    assert_eq!(site.json(&["--since", "1d"])["trends"].as_array().map(Vec::is_empty), Some(false));
}

/// A small file system, mounted as long as this lives.
struct Mounted(PathBuf);

impl Mounted {
    #[expect(clippy::disallowed_methods, reason = "a test mounts what it fills")]
    fn tmpfs(at: &Path, size: &str) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(at);
        let done = mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        done.then(|| Self(at.to_owned()))
    }
}

impl Drop for Mounted {
    #[expect(clippy::disallowed_methods, reason = "a test takes down what it mounted")]
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}
