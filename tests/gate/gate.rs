//! `fabricgate gate` as an operator runs it, with a stand-in for `scontrol`: its current state,
//! its log of the past, and a pause.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// The reason of fabricgate's drain of `node0001` in the journal.
const OURS: &str = "fabricgate:nvlink-low:20261121-065544-3f9a1c e1";

/// A folder with two claimed nodes, `node0001` of which fabricgate drained, and a controller that
/// answers with `nodes.json`, unless that is missing.
struct Site(tempfile::TempDir);

#[expect(clippy::disallowed_methods, reason = "a test is not part of the program")]
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

impl Site {
    fn new() -> Self {
        let site = Self(tempfile::tempdir().expect("a folder"));
        let claims = "[[domain]]\nname = \"rack\"\nnodes = \"node[0001-0002]\"\nplatform = \"gb200-nvl72\"\n";
        fs::write(site.path().join("claims.toml"), claims).expect("written");
        let config = "claims = \"claims.toml\"\n[gate]\nstate = \"gate\"\n\
                      scontrol = [\"sh\", \"-c\", \"cat nodes.json\"]\n";
        fs::write(site.path().join("fabricgate.toml"), config).expect("written");
        fs::create_dir(site.path().join("gate")).expect("made");
        site.journal();
        site.shows(&["IDLE", "DRAIN"], OURS);
        site
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// An hour ago fabricgate drained `node0001`; half an hour ago it passed a run.
    fn journal(&self) {
        let action = json!({
            "kind": "drain", "node": "node0001", "domain": "rack", "command": [], "reason": OURS,
            "findings": ["f"], "why": "gpu 2 is slow", "price": null, "ratio": 0.94,
        });
        let before = json!({"name": "node0001", "state": ["IDLE"]});
        let events = [
            (3_600, json!({"event": "opened", "host": "h", "pid": 1, "version": "0"})),
            (
                3_600,
                json!({"event": "intent", "id": "i", "run": "20261121-065544-3f9a1c",
                "action": action, "change": {}, "before": before}),
            ),
            (
                3_600,
                json!({"event": "outcome", "id": "i", "result": "done",
                "detail": "it is IDLE+DRAIN"}),
            ),
            (
                1_800,
                json!({"event": "clean", "node": "node0001", "run": "r2",
                "measured": now() - 1_800}),
            ),
        ];
        let mut text = String::new();
        for ((ago, event), seq) in events.into_iter().zip(1..) {
            let mut line = event;
            line["format"] = json!("fabricgate.journal/1");
            line["seq"] = json!(seq);
            line["epoch"] = json!(1);
            line["unix"] = json!(now() - ago);
            line["at"] = json!(format!("{ago} s ago"));
            text.push_str(&format!("{line}\n"));
        }
        fs::write(self.path().join("gate/journal.jsonl"), text).expect("written");
    }

    /// The controller's answer for `node0001`.
    fn shows(&self, state: &[&str], reason: &str) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/recorded/slurm/24.11-scontrol-show-node-2.json");
        let text = fs::read_to_string(file).expect("a recorded answer");
        let mut document: Value = serde_json::from_str(&text).expect("JSON");
        let node = &mut document["nodes"][0];
        assert_eq!(node["name"], "node0001");
        node["state"] = json!(state);
        node["reason"] = json!(reason);
        node["reason_set_by_user"] = json!("bob");
        fs::write(self.path().join("nodes.json"), document.to_string()).expect("written");
    }

    #[expect(clippy::disallowed_methods, reason = "a test is not part of the program")]
    fn run(&self, words: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fabricgate"));
        command.args(["--config", "fabricgate.toml"]).args(words).current_dir(self.path());
        // A machine that trusts no authority, as most containers do.
        command.env("SSL_CERT_FILE", "/nonexistent").env("SSL_CERT_DIR", "/nonexistent");
        command.env("USER", "ann").stdin(Stdio::null());
        let ended = command.output().expect("the program");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (ended.status.code(), text(ended.stdout), text(ended.stderr))
    }

    fn document(&self, words: &[&str]) -> Value {
        let (code, stdout, stderr) = self.run(&[words, &["--json"]].concat());
        assert_eq!(code, Some(0), "{words:?}: {stderr}");
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"))
    }

    fn status(&self) -> String {
        let (code, stdout, stderr) = self.run(&["gate", "status"]);
        assert_eq!(code, Some(0), "{stderr}");
        stdout
    }
}

/// Defect 8 of the operator's review.
#[test]
fn status_shows_what_the_scheduler_shows_now() {
    let site = Site::new();
    let status = site.status();
    assert!(status.starts_with("as of 2"), "{status}");
    let line = status.lines().find(|line| line.contains("node0001")).expect("a line");
    for word in ["nvlink-low", "clean 1/2", "IDLE+DRAIN", "the next run counts from"] {
        assert!(line.contains(word), "{word}: {line}");
    }
    assert!(
        status.contains("drained by fabricgate: 1\n") && !status.contains("at odds"),
        "{status}"
    );

    // Taken over: not fabricgate's any more, regardless of the journal's last entry.
    site.shows(&["IDLE", "DRAIN"], "rma INC4712");
    let status = site.status();
    let odds = status.find("differing from the journal: 1").expect("told");
    assert!(odds < status.find("drained by fabricgate: 0").expect("none is left"), "{status}");
    assert!(status.contains("rma INC4712") && status.contains("by bob"), "{status}");
    assert!(!status.contains("by hand"), "{status}");

    site.shows(&["IDLE"], "");
    let status = site.status();
    assert!(status.contains("fabricgate's drain is missing"), "{status}");
    let document = site.document(&["gate", "status"]);
    assert_eq!(document["nodes"][0]["standing"], "in_service");
    assert_eq!(document["nodes"][0]["state"], "IDLE");
    // The earlier entries are unchanged.
    assert_eq!(document["drained"][0]["node"], "node0001");
    assert_eq!(document["unasked"], Value::Null);
}

/// A reader of the document learns as much as a reader of the text.
#[test]
fn a_drain_of_our_form_that_the_journal_does_not_know_is_in_the_text_and_in_the_document() {
    let site = Site::new();
    let unrecorded = |site: &Site| site.document(&["gate", "status"])["unrecorded"].clone();
    assert_eq!(unrecorded(&site), json!([]));
    let other = "fabricgate:nvlink-low:20261121-065544-000000 e9";
    site.shows(&["IDLE", "DRAIN"], other);
    for is_known in [true, false] {
        // On a node that the journal lists with another drain, and on an unlisted one.
        if !is_known {
            fs::remove_file(site.path().join("gate/journal.jsonl")).expect("removed");
        }
        let found = unrecorded(&site);
        assert_eq!(found.as_array().map(Vec::len), Some(1), "{found}");
        assert_eq!(found[0]["node"], "node0001");
        let reason = found[0]["reason"].as_str().expect("a text");
        assert!(reason.contains(other) && site.status().contains(reason), "{reason}");
    }
    site.shows(&["IDLE", "DRAIN"], "maintenance");
    assert_eq!(unrecorded(&site), json!([]));
    // "Not queried" differs from "none".
    fs::remove_file(site.path().join("nodes.json")).expect("removed");
    assert_eq!(unrecorded(&site), Value::Null);
}

/// Defect 8 of the operator's review.
#[test]
fn status_without_an_answer_is_marked_as_past() {
    let site = Site::new();
    fs::remove_file(site.path().join("nodes.json")).expect("removed");
    let status = site.status();
    let first = status.lines().next().expect("a line");
    assert!(first.contains(", the scheduler could not be queried: "), "{status}");
    assert!(!status.contains("drained by fabricgate: "), "{status}");
    let document = site.document(&["gate", "status"]);
    assert_eq!(document["nodes"][0]["standing"], "unknown");
    assert_eq!(document["nodes"][0]["state"], Value::Null);
    assert!(document["unasked"].as_str().is_some_and(|why| !why.is_empty()), "{document}");
}

#[test]
fn the_log_lists_events_since_a_time_for_one_node_or_all() {
    let site = Site::new();
    let (code, stdout, stderr) = site.run(&["gate", "log"]);
    assert_eq!(code, Some(0), "{stderr}");
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{stdout}");
    assert!(lines[0].contains("node0001  drain (nvlink-low) for run 20261121"), "{stdout}");
    assert!(lines[1].contains("node0001  passed run r2"), "{stdout}");
    let (_, stdout, _) = site.run(&["gate", "log", "--since", "45m", "node0001"]);
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    let (_, stdout, _) = site.run(&["gate", "log", "node0002"]);
    assert!(stdout.starts_with("nothing happened since "), "{stdout}");
    let document = site.document(&["gate", "log", "--since", "2h"]);
    assert_eq!(document["format"], "fabricgate.gate-log/1");
    assert_eq!(document["events"][0]["event"], "drain");
    assert_eq!(document["events"][0]["nodes"], json!(["node0001"]));
    let (code, _, stderr) = site.run(&["gate", "log", "--since", "soon"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("such as 2h"), "{stderr}");
}

#[test]
fn a_pause_is_kept_reported_and_ended() {
    let site = Site::new();
    for words in [
        &["gate", "pause", "--for", "2h"][..],
        &["gate", "pause", "--for", "2h", "--why", " "],
        &["gate", "pause", "--for", "31d", "--why", "x"],
        &["gate", "pause", "--why", "x"],
    ] {
        assert_eq!(site.run(words).0, Some(2), "{words:?}");
    }
    let (code, _, stderr) = site.run(&["gate", "pause", "--for", "2h", "--why", "switch swap"]);
    assert_eq!(code, Some(0), "{stderr}");
    let stdout = site.status();
    assert!(
        stdout.contains("paused until ") && stdout.contains(" by ann: switch swap"),
        "{stdout}"
    );
    assert_eq!(site.document(&["gate", "status"])["pause"]["by"], "ann");

    for words in [
        &["audit", "--no-progress"][..],
        &["admit", "--apply", "--no-progress", "node0001"],
        &["recertify", "--no-progress", "node0001"],
        &["burn-in", "--no-progress", "node0001"],
    ] {
        let (code, _, stderr) = site.run(words);
        assert_eq!(code, Some(6), "{words:?}: {stderr}");
        assert!(stderr.contains("switch swap") && stderr.contains("gate resume"), "{stderr}");
    }
    let (code, stdout, stderr) = site.run(&["--json", "watch", "--once"]);
    assert_eq!(code, Some(0), "{stderr}");
    let lines: Vec<Value> =
        stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let looked = lines.iter().find(|it| it["event"] == "looked").expect("it looked");
    assert!(looked["paused"].as_str().is_some_and(|it| it.contains("switch swap")), "{looked}");
    assert!(lines.iter().all(|it| it["event"] != "due"), "{stdout}");
    let (_, stdout, stderr) = site.run(&["metrics"]);
    assert!(stdout.contains("fabricgate_gate_paused 1"), "{stdout} {stderr}");

    let (code, _, stderr) = site.run(&["gate", "resume", "--why", "done early"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(!site.status().contains("paused"));
    let (_, stdout, _) = site.run(&["metrics"]);
    assert!(stdout.contains("fabricgate_gate_paused 0"), "{stdout}");
    let (_, stdout, _) = site.run(&["--json", "watch", "--once"]);
    assert!(stdout.contains("\"event\":\"due\""), "the second node has no certificate: {stdout}");
    let (_, stdout, _) = site.run(&["gate", "log", "--since", "5m"]);
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{stdout}");
    assert!(lines[0].contains("by ann: switch swap"), "{stdout}");
    assert!(lines[1].contains("the pause was ended by ann: done early"), "{stdout}");
    let (_, _, stderr) = site.run(&["gate", "resume"]);
    assert!(stderr.contains("is not paused"), "{stderr}");
}

/// Defect 10 of the operator's review.
#[test]
fn slurmrestd_needs_no_authorities_but_for_https() {
    let site = Site::new();
    for (address, needs) in [
        ("unix:/nonexistent/slurmrestd.sock", false),
        ("http://127.0.0.1:1", false),
        ("https://127.0.0.1:1", true),
    ] {
        let config = format!(
            "claims = \"claims.toml\"\n[sources.slurmrestd]\naddress = {address:?}\n\
             [gate]\nstate = \"gate\"\nthrough = \"slurmrestd\"\n"
        );
        fs::write(site.path().join("fabricgate.toml"), config).expect("written");
        let status = site.status();
        let first = status.lines().next().expect("a line");
        assert!(first.contains("could not be queried"), "{address}: {first}");
        assert_eq!(first.contains("ca-certificates"), needs, "{address}: {first}");
    }
}

/// A run of both nodes of this site, the second of which is faulty: its folder.
#[expect(clippy::disallowed_methods, reason = "a test is not part of the program")]
fn swept(site: &Site) -> PathBuf {
    let scenario = "title = \"two\"\n[[domain]]\nname = \"rack\"\nnodes = \"node[0001-0002]\"\n\
                    platform = \"gb200-nvl72\"\n[[fault]]\nkind = \"lost-links\"\ngpu = \"node0002:1\"\n\
                    count = 9\n";
    fs::write(site.path().join("two.toml"), scenario).expect("written");
    let mut sweep = Command::new(env!("CARGO_BIN_EXE_fabricgate"));
    sweep.args(["audit", "--sim", "two.toml", "--run-dir", "runs", "--no-progress"]);
    let swept = sweep.current_dir(site.path()).stdin(Stdio::null()).output().expect("the program");
    let mut folders = fs::read_dir(site.path().join("runs")).expect("runs");
    let folder = folders.next().expect("one run").expect("read").path();
    assert!(folder.join("verdicts.json").is_file(), "{}", String::from_utf8_lossy(&swept.stderr));
    folder
}

/// The acting process need not be able to write to the measurements (`ci/deploy`,
/// `two-processes`).
#[test]
#[expect(clippy::disallowed_methods, reason = "a test is not part of the program")]
fn a_run_on_a_read_only_volume_is_applied_and_recorded_in_the_journal() {
    let site = Site::new();
    let folder = swept(&site);
    let before = fs::read(folder.join("actions.json")).ok();
    let script = "mount --bind runs runs && mount -o remount,bind,ro runs || exit 77\n\
                  touch runs/x 2>/dev/null && exit 78\nexec \"$@\"";
    let mut apply = Command::new("unshare");
    apply.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]);
    apply.args([env!("CARGO_BIN_EXE_fabricgate"), "--config", "fabricgate.toml", "apply"]);
    apply.arg(&folder).arg("--apply").current_dir(site.path()).stdin(Stdio::null());
    let output = apply.output().expect("unshare");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_mounted = stderr.contains("fabricgate") || stderr.contains("journal");
    if !is_mounted && !matches!(output.status.code(), Some(0 | 3 | 6 | 78)) {
        println!("SKIPPED: nothing can be mounted here: {stderr}");
        return;
    }
    assert!(matches!(output.status.code(), Some(0 | 6)), "{:?}: {stderr}", output.status);
    assert!(stderr.contains("the actions are only in the journal"), "{stderr}");
    assert_eq!(fs::read(folder.join("actions.json")).ok(), before);
}

/// A drain names its run: the run's verdicts are on disk before any action uses them.
#[test]
fn a_run_that_ended_before_its_verdicts_drains_nothing() {
    let site = Site::new();
    let folder = swept(&site);
    let (record, verdicts) = (folder.join("run.json"), folder.join("verdicts.json"));
    let journal = || fs::read(site.path().join("gate/journal.jsonl")).expect("a journal");
    let before = journal();
    let whole = fs::read_to_string(&record).expect("a record");
    let running = whole.replace("\"state\": \"complete\"", "\"state\": \"running\"");
    assert_ne!(running, whole);
    let applied = |why: &str| {
        let (code, _, stderr) = site.run(&["apply", &folder.display().to_string(), "--apply"]);
        assert_eq!(code, Some(6), "{why}: {stderr}");
        assert!(stderr.contains("--resume"), "{why}: {stderr}");
        assert_eq!(journal(), before, "{why}");
    };
    fs::write(&record, running).expect("written");
    applied("under way");
    fs::write(&record, whole).expect("written");
    fs::remove_file(&verdicts).expect("removed");
    applied("without verdicts");
}
