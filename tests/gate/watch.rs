//! `fabricgate watch` as a user runs it, with a stand-in for `scontrol`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// Time within which a change must be visible.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder with claims for the nodes that a real controller reported, and a configuration with
/// these lines in `[watch]`.
fn site(watch: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/recorded/slurm/24.11-scontrol-show-node-2.json");
    let text = fs::read_to_string(&recorded).expect("a recorded answer");
    let document: Value = serde_json::from_str(&text).expect("JSON");
    let nodes = document["nodes"].as_array().expect("nodes");
    let names: Vec<&str> = nodes.iter().map(|it| it["name"].as_str().expect("a name")).collect();
    let claims =
        format!("[[domain]]\nname = \"rack\"\nnodes = {names:?}\nplatform = \"gb200-nvl72\"\n");
    fs::write(folder.path().join("claims.toml"), claims).expect("written");
    let config = format!(
        "claims = \"claims.toml\"\n[gate]\nstate = \"gate\"\nscontrol = [\"sh\", \"-c\", \
         \"cat {}\"]\n[watch]\n{watch}\n",
        recorded.display()
    );
    fs::write(folder.path().join("fabricgate.toml"), config).expect("written");
    folder
}

#[expect(clippy::disallowed_methods, reason = "a test is not part of the program")]
fn start(folder: &Path, words: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricgate"));
    command.args(["--config", "fabricgate.toml"]).args(words).current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the program")
}

/// Exit code, standard output, standard error.
fn run(folder: &Path, words: &[&str]) -> (Option<i32>, String, String) {
    let ended = start(folder, words).wait_with_output().expect("the program");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (ended.status.code(), text(ended.stdout), text(ended.stderr))
}

fn term(child: &mut Child) -> Option<i32> {
    let pid = i32::try_from(child.id()).expect("a number");
    let pid = rustix::process::Pid::from_raw(pid).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signalled");
    child.wait().expect("ended").code()
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn a_dry_decision_is_one_json_document_a_line_and_writes_nothing() {
    let folder = site("");
    let (code, stdout, stderr) = run(folder.path(), &["--json", "watch", "--once"]);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    let lines: Vec<Value> =
        stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(lines.iter().all(|it| it["format"] == "fabricgate.watch/1"), "{stdout}");
    let kinds: Vec<&str> = lines.iter().map(|it| it["event"].as_str().expect("a word")).collect();
    assert_eq!(kinds[..2], ["began", "looked"], "{stdout}");
    assert_eq!(lines[1]["nodes"], 2);
    assert!(!folder.path().join("gate").exists());
}

/// The gate certified both nodes an hour ago, and its journal lists `node0001` as slow in a run
/// of five hours ago.
#[expect(clippy::disallowed_methods, reason = "a test is not part of the program")]
fn suspects(folder: &Path) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    fs::create_dir_all(folder.join("gate/certificates")).expect("a folder");
    for node in ["node0001", "node0002"] {
        let certificate = json!({
            "format": "fabricgate.certificate/1", "node": node, "identity": {}, "domain": "rack",
            "platform": "gb200-nvl72", "profile": "recertify", "minima": [], "detectable": 0.01,
            "scope": {"inside": true, "domain": "node[0001-0002]"},
            "thresholds_digest": "d", "run": "r0", "issued": "", "issued_unix": now - 3_600,
            "expires": "", "expires_unix": now + 86_400, "void_on": {"boot": false},
        });
        let file = folder.join(format!("gate/certificates/{node}.json"));
        fs::write(file, certificate.to_string()).expect("written");
    }
    let line = json!({
        "format": "fabricgate.journal/1", "seq": 1, "epoch": 1, "at": "", "unix": now - 17_000,
        "event": "suspected", "node": "node0001", "run": "r1", "measured": now - 18_000,
        "classes": ["nvlink-low"],
    });
    fs::write(folder.join("gate/journal.jsonl"), format!("{line}\n")).expect("written");
}

#[test]
fn a_suspect_is_audited_again_after_the_hours_of_the_policy() {
    for (policy, is_due) in [
        ("", true),
        ("[policy]\nagain_hours = 6", false),
        ("[policy]\nagain_hours = 1\nagain_days = 0.2", false),
    ] {
        let folder = site(policy);
        suspects(folder.path());
        let (code, stdout, stderr) = run(folder.path(), &["--json", "watch", "--once"]);
        assert_eq!(code, Some(0), "{stdout}{stderr}");
        let lines: Vec<Value> =
            stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let due: Vec<&Value> = lines.iter().filter(|it| it["event"] == "due").collect();
        assert_eq!(due.len(), usize::from(is_due), "{policy}: {stdout}");
        for job in due {
            assert_eq!((&job["profile"], &job["cause"]), (&json!("audit"), &json!("audit")));
            assert_eq!(
                (&job["nodes"], &job["partners"]),
                (&json!(["node0001"]), &json!(["node0002"]))
            );
            let command = job["command"].as_array().expect("words");
            assert!(command.ends_with(&["--", "node0001", "node0002"].map(Value::from)), "{job}");
        }
    }
}

#[test]
fn mistakes_are_reported_with_line_column_and_expected_value() {
    for (watch, expected) in [
        ("interval_s = 0", "fabricgate.toml:6:14: interval_s"),
        ("at_once = 0", "6:11: at_once: 0, expected 1 to 1000"),
        ("audit_every_h = -1", "6:17: audit_every_h: -1"),
        ("listen = \"9464\"", "6:10: listen: \"9464\", expected ADDRESS:PORT"),
        ("profiles = { repaired = \"admit\" }", "only full runs release a node"),
        (
            "expired = \"taint\"\nprofiles = { unverified = \"off\" }",
            "the taint would never be removed",
        ),
        ("backoff = { first_s = 0 }", "first_s: 0, expected more than 0, to 86400"),
        ("lease = { name = \"w\" }", "6:9: lease: only for [gate] through = \"kubernetes\""),
        ("intervals = 3", "6:1: unknown field `intervals`"),
    ] {
        let folder = site(watch);
        let (code, _, stderr) = run(folder.path(), &["watch", "--once"]);
        assert_eq!(code, Some(2), "{watch}: {stderr}");
        assert!(stderr.contains(expected), "{watch}: {stderr}");
    }
    let folder = site("");
    fs::write(folder.path().join("fabricgate.toml"), "claims = \"claims.toml\"\n")
        .expect("written");
    let (code, _, stderr) = run(folder.path(), &["watch", "--once"]);
    assert!(code == Some(2) && stderr.contains("there is no [gate]"), "{stderr}");
}

#[test]
fn without_an_answer_of_its_scheduler_it_decides_nothing() {
    let folder = site("");
    let config = fs::read_to_string(folder.path().join("fabricgate.toml")).expect("read");
    let config = config.replace("cat ", "false; : ");
    fs::write(folder.path().join("fabricgate.toml"), config).expect("written");
    let (code, _, stderr) = run(folder.path(), &["watch", "--once", "--apply"]);
    assert_eq!(code, Some(5), "{stderr}");
    assert!(stderr.contains("nothing could be decided"), "{stderr}");
}

#[test]
fn it_reports_its_state_and_ends_cleanly_on_a_signal() {
    let folder = site("listen = \"127.0.0.1:0\"\nprofiles = { missing = \"off\" }");
    let mut watch = start(folder.path(), &["watch", "--apply"]);
    let mut lines = BufReader::new(watch.stderr.take().expect("a pipe")).lines();
    let mut line = |wanted: &str| loop {
        let line = lines.next().expect("a line").expect("text");
        if line.contains(wanted) {
            return line;
        }
    };
    let address = line("/healthz").rsplit(' ').next().expect("an address").to_owned();
    line("2 nodes, 2 claimed");
    assert!(get(&address, "/healthz").starts_with("HTTP/1.1 200"));
    let begun = Instant::now();
    while !get(&address, "/readyz").starts_with("HTTP/1.1 200") {
        assert!(begun.elapsed() < PATIENCE, "{}", get(&address, "/readyz"));
        std::thread::sleep(Duration::from_millis(50));
    }
    let metrics = get(&address, "/metrics");
    for expected in [
        "fabricgate_leading 1",
        "fabricgate_nodes{state=\"in_service\"}",
        "fabricgate_looks_total{result=\"ok\"}",
        "application/openmetrics-text",
    ] {
        assert!(metrics.contains(expected), "{expected}: {metrics}");
    }
    assert!(get(&address, "/").starts_with("HTTP/1.1 404"));

    // A second instance of the same folder, for one decision: it names the active one.
    let (code, _, stderr) = run(folder.path(), &["watch", "--once", "--apply"]);
    assert_eq!(code, Some(5), "{stderr}");
    assert!(stderr.contains(&format!("process {}", watch.id())), "{stderr}");
    assert_eq!(term(&mut watch), Some(0));
}

/// Defect 16 of the operator's review.
#[test]
fn a_second_one_waits_for_the_first_and_its_address() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = port.local_addr().expect("an address").to_string();
    let folder = site(&format!("listen = \"{address}\"\nprofiles = {{ missing = \"off\" }}"));
    // Another program holds it: that is not an instance to wait for.
    let (code, _, stderr) = run(folder.path(), &["watch", "--apply"]);
    assert_eq!(code, Some(5), "{stderr}");
    assert!(stderr.contains(&format!("listen {address}")), "{stderr}");
    drop(port);
    let begun = |words: &[&str], wanted: &str| {
        let mut watch = start(folder.path(), words);
        let mut lines = BufReader::new(watch.stderr.take().expect("a pipe")).lines();
        let line = lines.by_ref().map(|it| it.expect("text")).find(|it| it.contains(wanted));
        (watch, lines, line.unwrap_or_else(|| panic!("{wanted}")))
    };
    let (mut first, _lines, _) = begun(&["watch", "--apply"], "watch: leading");
    let (mut second, mut lines, line) = begun(&["watch", "--apply"], "watch: waiting");
    assert!(line.contains(&format!("process {}", first.id())), "{line}");
    let (mut third, _others, _) = begun(&["watch", "--apply"], "watch: waiting");
    assert_eq!(term(&mut third), Some(0), "one that waits ends well");
    assert_eq!(term(&mut first), Some(0));
    let leading = lines.by_ref().map(|it| it.expect("text")).find(|it| it.contains("leading"));
    assert!(leading.is_some());
    assert!(get(&address, "/healthz").starts_with("HTTP/1.1 200"));
    assert_eq!(term(&mut second), Some(0));
}
