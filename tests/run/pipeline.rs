//! The whole pipeline from outside, with fake tools as executables on PATH.
//!
//! Nodes are reached through the command launcher (`env NODE=...`), so one script can behave
//! differently on every node. The assertions of these tests hold for any expectations in force.

mod commands;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A cluster of fake nodes in a temporary folder.
struct Cluster {
    dir: tempfile::TempDir,
}

/// Output of the fake nvbandwidth on a good node: invented numbers in the grammar of the tool.
const NVBANDWIDTH: &str = r#"cat <<END
nvbandwidth Version: v0.8
Built from Git version: v0.8

CUDA Runtime Version: 12080
CUDA Driver Version: 12080
Driver Version: 570.26

$NODE
Device 0: NVIDIA H100 80GB HBM3 (00000000:1b:00)
Device 1: NVIDIA H100 80GB HBM3 (00000000:2b:00)

Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    391.37
 1    390.85       N/A

SUM device_to_device_memcpy_read_ce 782.22

NOTE: The reported results may not reflect the full capabilities of the platform.
Performance can vary with software drivers, hardware clocks, and system topology.
END
"#;

impl Cluster {
    /// `nodes` claimed as one domain, measured by one probe.
    fn new(nodes: &str) -> Self {
        let cluster = Self { dir: tempfile::tempdir().expect("a folder") };
        cluster.put(
            "claims.toml",
            &format!("[[domain]]\nname = \"rack1\"\nnodes = \"{nodes}\"\ngpus_per_node = 2\n"),
        );
        cluster.config(&["nvbandwidth"], "");
        cluster.probe("nvbandwidth", 20.0);
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn put(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("inside")).expect("made");
        fs::write(path, text).expect("written");
    }

    fn config(&self, probes: &[&str], rest: &str) {
        self.put(
            "fabricgate.toml",
            &format!(
                "claims = \"claims.toml\"\nrun_dir = \"runs\"\npass_env = [\"NODE\"]\n[launcher]\nkind = \"command\"\n\
                 template = [\"env\", \"NODE={{node}}\"]\nworker = \"{}\"\n\
                 [confirm]\nwait_s = 0\n[probes]\ndir = \"probes\"\nrun = {probes:?}\n{rest}",
                assert_cmd::cargo::cargo_bin!("fabricgate").display()
            ),
        );
    }

    /// The probe `name` with this time limit; it runs a tool of that name.
    fn probe(&self, name: &str, timeout_s: f64) {
        self.put(
            &format!("probes/{name}.toml"),
            &format!(
                "name = \"{name}\"\ntitle = \"{name}\"\nparser = \"nvbandwidth\"\nargv = [\"{name}\"]\n\
                 scope = \"node\"\nstage = 1\ncost_s = 0.1\ntimeout_s = {timeout_s:?}\ndisturbs = \"gpus\"\n"
            ),
        );
    }

    /// Installs a shell script as a tool.
    fn tool(&self, name: &str, script: &str) {
        let name = format!("bin/{name}");
        self.put(&name, &format!("#!/bin/sh\n{script}"));
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.path(&name), mode).expect("executable");
    }

    fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = program();
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .args(args)
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("FABRICGATE_CONFIG", self.path("fabricgate.toml"))
            .env("NO_COLOR", "1")
            .current_dir(self.dir.path());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the program starts")
    }

    /// The one run folder.
    fn folder(&self) -> PathBuf {
        let mut folders: Vec<PathBuf> = fs::read_dir(self.path("runs"))
            .expect("runs are there")
            .map(|entry| entry.expect("readable").path())
            .collect();
        assert_eq!(folders.len(), 1, "{folders:?}");
        folders.remove(0)
    }
}

/// Output of a probe's first reading on a node.
fn raw(folder: &Path, node: &str, probe: &str) -> PathBuf {
    let entries = fs::read_dir(folder.join("raw/nodes").join(node)).expect("kept");
    let mut files: Vec<PathBuf> = entries.map(|e| e.expect("readable").path()).collect();
    files.retain(|f| f.file_name().is_some_and(|n| n.to_string_lossy().starts_with(probe)));
    files.sort();
    files.remove(0)
}

#[expect(clippy::disallowed_methods, reason = "a test starts the program itself")]
fn program() -> std::process::Command {
    std::process::Command::new(assert_cmd::cargo::cargo_bin!("fabricgate"))
}

fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Why a part is unknown, by its name in the verdicts.
fn unknown(verdicts: &Value, what: &str) -> String {
    let list = verdicts["unknown"].as_array().expect("a list");
    let entry = list.iter().find(|u| u["what"] == what);
    entry.unwrap_or_else(|| panic!("{what} in {list:?}"))["why"].as_str().expect("text").to_owned()
}

fn node_outcome(verdicts: &Value, node: &str) -> String {
    let nodes = verdicts["nodes"].as_array().expect("a list");
    let entry = nodes.iter().find(|n| n["node"] == node);
    entry.unwrap_or_else(|| panic!("{node} in {nodes:?}"))["outcome"]
        .as_str()
        .expect("text")
        .to_owned()
}

#[test]
fn every_node_is_measured_and_everything_is_kept() {
    let cluster = Cluster::new("n[1-3]");
    cluster.tool("nvbandwidth", NVBANDWIDTH);
    let output = cluster.run(&["audit", "--json"]);
    let stderr = stderr(&output);
    assert!(stderr.contains("[1/1]") && stderr.contains("nvbandwidth: 3 steps"), "{stderr}");
    let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(document["format"], "fabricgate.report/1");

    let folder = cluster.folder();
    assert!(stderr.contains(&folder.display().to_string()), "{stderr}");
    assert_eq!(json(&folder.join("run.json"))["state"], "complete");
    assert_eq!(json(&folder.join("run.json"))["format"], "fabricgate.run/1");
    assert_eq!(
        json(&folder.join("plan.json"))["rounds"][0]["steps"].as_array().map(Vec::len),
        Some(3)
    );
    assert_eq!(json(&folder.join("claims.json"))["claims"]["domains"][0]["name"], "rack1");
    for node in ["n1", "n2", "n3"] {
        let raw = fs::read_to_string(raw(&folder, node, "nvbandwidth"));
        assert!(raw.expect("kept").contains(&format!("\n{node}\n")), "{node} ran as itself");
    }
    let lines = |name: &str| fs::read_to_string(folder.join(name)).expect("kept").lines().count();
    assert_eq!((lines("results.jsonl"), lines("measurements.jsonl")), (3, 3));
    assert_eq!(json(&folder.join("verdicts.json")), document["verdicts"]);
    assert_eq!(json(&folder.join("actions.json")), document["actions"]);
    assert_eq!(document["actions"]["dry_run"], true);
}

#[test]
fn one_bad_node_is_unknown_with_its_reason_and_stops_no_other() {
    let cluster = Cluster::new("n[1-7]");
    cluster.probe("nvbandwidth", 1.0);
    cluster.tool(
        "nvbandwidth",
        &format!(
            "case $NODE in\n n2) exec no-such-tool-at-all ;;\n n3) echo half; sleep 60 ;;\n \
             n4) echo 'no device here' >&2; exit 1 ;;\n n5) head -c 5000 /dev/urandom; exit 0 ;;\n \
             n6) kill -9 $$ ;;\nesac\n{NVBANDWIDTH}"
        ),
    );
    let start = Instant::now();
    let output = cluster.run(&["audit", "--no-progress", "--json"]);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    let message = stderr(&output);
    assert!(
        message.starts_with("fabricgate: run folder"),
        "only that with --no-progress: {message}"
    );
    // Only an unreachable tool: the environment's exit code.
    assert_eq!(output.status.code(), Some(5), "{message}");
    let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
    let verdicts = &document["verdicts"];
    assert_eq!(verdicts["outcome"], "unknown");
    let why = |node: &str| unknown(verdicts, &format!("nvbandwidth on {node}"));
    assert!(why("n2").starts_with("exit code 127: the tool was not found"), "{}", why("n2"));
    assert_eq!(why("n3"), "exceeded its time limit and was killed");
    assert_eq!(why("n4"), "exit code 1; last line on stderr: no device here");
    assert_eq!(why("n6"), "killed by signal 9");
    for node in ["n2", "n3", "n4", "n6"] {
        assert_eq!(node_outcome(verdicts, node), "unknown", "{node}");
    }
    for node in ["n1", "n7"] {
        let listed = verdicts["unknown"].as_array().expect("a list");
        let what = format!("nvbandwidth on {node}");
        assert!(listed.iter().all(|u| u["what"] != what.as_str()), "{node} came back whole");
    }
    assert_eq!(document["actions"]["actions"].as_array().map(Vec::len), Some(0));
    let raw = raw(&cluster.folder(), "n3", "nvbandwidth");
    assert_eq!(fs::read_to_string(raw).expect("kept"), "half\n");
}

#[test]
fn a_flood_is_cut_and_its_node_is_unknown() {
    let cluster = Cluster::new("n[1-2]");
    // 80 MiB that no parser reads: head and tail are kept.
    cluster.tool(
        "nvbandwidth",
        &format!("[ $NODE = n1 ] && {{ head -c 83886080 /dev/zero | tr '\\0' x; exit 0; }}\n{NVBANDWIDTH}"),
    );
    let output = cluster.run(&["audit", "--json", "--no-progress"]);
    let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
    let why = unknown(&document["verdicts"], "nvbandwidth on n1");
    assert_eq!(why, "printed 83755008 bytes beyond the size limit");
    let kept = fs::metadata(raw(&cluster.folder(), "n1", "nvbandwidth")).expect("kept");
    assert!((131_072..135_168).contains(&kept.len()), "{}", kept.len());
}

#[test]
fn a_missing_launcher_is_an_environment_error() {
    let cluster = Cluster::new("n[1-2]");
    let config = fs::read_to_string(cluster.path("fabricgate.toml")).expect("there");
    cluster.put("fabricgate.toml", &config.replace("\"env\"", "\"no-such-launcher\""));
    let output = cluster.run(&["audit", "--json"]);
    assert_eq!(output.status.code(), Some(5));
    assert!(output.stdout.is_empty(), "{}", stdout(&output));
    let why = "0 of 2 nodes can be reached (n[1-2]: no-such-launcher: not found)";
    assert!(stderr(&output).contains(why), "{}", stderr(&output));
    // The run folder has the reason of each step.
    let document = fs::read_to_string(cluster.folder().join("verdicts.json")).expect("verdicts");
    let document: Value = serde_json::from_str(&document).expect("one document");
    let why = unknown(&document, "nvbandwidth on n2");
    assert_eq!(why, "not reached: no-such-launcher: not found");
}

#[test]
fn an_unreachable_node_is_tried_once() {
    let cluster = Cluster::new("n[1-2]");
    cluster.probe("second", 20.0);
    cluster.config(&["nvbandwidth", "second"], "");
    let config = fs::read_to_string(cluster.path("fabricgate.toml")).expect("there");
    cluster
        .put("fabricgate.toml", &config.replace("\"env\", \"NODE={node}\"", "\"ssh\", \"{node}\""));
    cluster.tool(
        "ssh",
        "echo $1 >> tried\n[ $1 = n1 ] && { echo 'No route to host' >&2; exit 255; }\nshift\nexec \"$@\"\n",
    );
    cluster.tool("nvbandwidth", NVBANDWIDTH);
    cluster.tool("second", NVBANDWIDTH);
    let output = cluster.run(&["audit", "--json"]);
    let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
    let why = unknown(&document["verdicts"], "nvbandwidth on n1");
    assert_eq!(why, "not reached: no worker: exit code 255; last line on stderr: No route to host");
    assert_eq!(unknown(&document["verdicts"], "second on n1"), why);
    let mut tried: Vec<String> = fs::read_to_string(cluster.path("tried"))
        .expect("tried")
        .lines()
        .map(str::to_owned)
        .collect();
    tried.sort();
    assert_eq!(tried, ["n1", "n2"]);
}

#[test]
fn a_stored_run_shows_and_judges_the_same_again() {
    let cluster = Cluster::new("n[1-3]");
    cluster.tool("nvbandwidth", &format!("[ $NODE = n2 ] && exit 3\n{NVBANDWIDTH}"));
    let audited = cluster.run(&["audit", "--json"]);
    let folder = cluster.folder().display().to_string();
    let reported = cluster.run(&["report", &folder, "--json"]);
    assert_eq!(reported.status.code(), Some(0));
    assert_eq!(stdout(&reported), stdout(&audited), "a report is the run again, byte for byte");

    let replayed = cluster.run(&["replay", &folder, "--json"]);
    assert!(stderr(&replayed).contains("the verdicts are unchanged"), "{}", stderr(&replayed));
    let verdicts: Value = serde_json::from_slice(&replayed.stdout).expect("verdicts");
    assert_eq!(verdicts, json(&cluster.folder().join("verdicts.json")));

    let output = cluster.run(&["explain", &folder, "n2"]);
    assert!(stdout(&output).contains("nvbandwidth on n2: exit code 3"), "{}", stdout(&output));
    let none = cluster.run(&["explain", &folder, "n99"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(stderr(&none).contains("LOCUS \"n99\""), "{}", stderr(&none));

    let applied = cluster.run(&["apply", &folder]);
    assert_eq!(applied.status.code(), Some(0));
    assert!(stdout(&applied).contains("Proposed"), "{}", stdout(&applied));
    let raw = cluster.folder().join("raw").display().to_string();
    let judged = cluster.run(&["judge", &raw, "--json"]);
    assert!(judged.status.code().is_some_and(|code| code != 1), "{}", stderr(&judged));
}

#[test]
fn a_run_that_was_killed_can_be_read_up_to_there() {
    let cluster = Cluster::new("n[1-4]");
    cluster.tool("nvbandwidth", &format!("[ $NODE = n3 ] && exec sleep 15\n{NVBANDWIDTH}"));
    let mut child = cluster
        .command(&["audit"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let done = || {
        let folder = fs::read_dir(cluster.path("runs")).ok()?.next()?.ok()?.path();
        let lines = fs::read_to_string(folder.join("results.jsonl")).ok()?.lines().count();
        (lines == 3).then_some(())
    };
    wait_for(done);
    child.kill().expect("kill -9");
    child.wait().expect("ended");

    let folder = cluster.folder();
    assert_eq!(json(&folder.join("run.json"))["state"], "running");
    let output = cluster.run(&["report", &folder.display().to_string(), "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("is partial"), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
    let why = unknown(&document["verdicts"], "nvbandwidth on n3");
    assert_eq!(why, "not run: the run ended before");
    assert_eq!(node_outcome(&document["verdicts"], "n3"), "unknown");

    // A partly written line is not read as a whole one.
    let torn =
        fs::read_to_string(folder.join("results.jsonl")).expect("there") + "{\"format\": \"fab";
    fs::write(folder.join("results.jsonl"), torn).expect("written");
    let output = cluster.run(&["replay", &folder.display().to_string()]);
    assert_ne!(output.status.code(), Some(1), "{}", stderr(&output));
}

#[test]
fn an_interrupt_ends_the_tools_and_leaves_a_partial_run() {
    let cluster = Cluster::new("n[1-3]");
    let script = "[ $NODE = n2 ] && { echo $$ > pid; sleep 60; }\n";
    cluster.tool("nvbandwidth", &format!("{script}{NVBANDWIDTH}"));
    let child = cluster
        .command(&["audit", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let tool = wait_for(|| {
        let folder = fs::read_dir(cluster.path("runs")).ok()?.next()?.ok()?.path();
        let lines = fs::read_to_string(folder.join("results.jsonl")).ok()?.lines().count();
        let pid: i32 = fs::read_to_string(cluster.path("pid")).ok()?.trim().parse().ok()?;
        (lines == 2).then_some(pid)
    });
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(pid.expect("a pid"), rustix::process::Signal::INT)
        .expect("still there");
    let output = child.wait_with_output().expect("ended");
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("interrupted"), "{}", stderr(&output));
    assert_eq!(json(&cluster.folder().join("run.json"))["state"], "partial");
    let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(unknown(&document["verdicts"], "nvbandwidth on n2"), "the run was interrupted");
    let tool = rustix::process::Pid::from_raw(tool).expect("a pid");
    assert!(rustix::process::test_kill_process(tool).is_err(), "the tool is gone");
}

/// One matrix of eight H100s whose GPU `slow` moves half of the expected rate.
fn matrix(testcase: &str, healthy: f64, slow: Option<i32>) -> String {
    let mut text = format!(
        "Running {testcase}.\nmemcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n           "
    );
    text += &(0..8).map(|gpu| format!("{gpu:<10}")).collect::<String>();
    let mut sum = 0.0;
    for row in 0..8 {
        text += &format!("\n{row:>2}");
        for column in 0..8 {
            if row == column {
                text += "       N/A";
                continue;
            }
            // A flat matrix with a last digit that moves, as real ones have.
            let jitter = f64::from((row * 5 + column * 3) % 7) * 0.11;
            let touched = slow == Some(row) || slow == Some(column);
            let value = (healthy + jitter) * if touched { 0.5 } else { 1.0 };
            let value = (value * 100.0).round() / 100.0;
            sum += value;
            text += &format!("{value:>10.2}");
        }
    }
    format!("{text}\n\nSUM {testcase} {sum:.2}\n\n")
}

/// Output of a node of eight H100s for the copy-engine tests.
fn eight_h100(slow: Option<i32>) -> String {
    let mut text = "nvbandwidth Version: v0.8\nBuilt from Git version: v0.8\n\n\
        CUDA Runtime Version: 12080\nCUDA Driver Version: 12080\nDriver Version: 570.26\n\n"
        .to_owned();
    for gpu in 0..8 {
        text += &format!("Device {gpu}: NVIDIA H100 80GB HBM3 (00000000:{gpu}b:00)\n");
    }
    text.push('\n');
    for (testcase, title, value) in [
        ("host_to_device_memcpy_ce", "CPU(row) -> GPU(column)", 55.4),
        ("device_to_host_memcpy_ce", "CPU(row) <- GPU(column)", 55.0),
    ] {
        let head: String = (0..8).map(|gpu| format!("{gpu:<10}")).collect();
        let row = format!("{value:>10.2}").repeat(8);
        text += &format!(
            "Running {testcase}.\nmemcpy CE {title} bandwidth (GB/s)\n           {head}\n 0{row}\n\n\
             SUM {testcase} {:.2}\n\n",
            value * 8.0
        );
    }
    text += &matrix("device_to_device_memcpy_read_ce", 395.5, slow);
    text += &matrix("device_to_device_memcpy_write_ce", 395.9, slow);
    text + "NOTE: The reported results may not reflect the full capabilities of the platform.\n\
        Performance can vary with software drivers, hardware clocks, and system topology.\n"
}

#[test]
fn a_slow_gpu_closes_the_gate_and_proposes_to_drain_its_node_only() {
    let cluster = Cluster::new("n[1-4]");
    // Eight machines without a common NVLink are domains of one node each.
    let domains: String = (1..=4)
        .map(|n| {
            format!(
                "[[domain]]\nname = \"box{n}\"\nnodes = \"n{n}\"\nplatform = \"hgx-h100\"\n\
                 gpus_per_node = 8\n"
            )
        })
        .collect();
    cluster.put("claims.toml", &domains);
    for node in 1..=4 {
        cluster.put(&format!("out/n{node}"), &eight_h100((node == 3).then_some(5)));
    }
    cluster.tool("nvbandwidth", "cat out/$NODE");
    let output = cluster.run(&["audit"]);
    assert_eq!(output.status.code(), Some(3), "{}{}", stdout(&output), stderr(&output));
    let folder = cluster.folder();
    let verdicts = json(&folder.join("verdicts.json"));
    let outcomes: Vec<String> =
        ["n1", "n2", "n3", "n4"].map(|n| node_outcome(&verdicts, n)).into_iter().collect();
    assert!(matches!(outcomes[2].as_str(), "degraded" | "failed"), "{outcomes:?}");
    for other in [0, 1, 3] {
        assert_eq!(outcomes[other], "pass", "{verdicts:#}");
    }
    let actions = json(&folder.join("actions.json"));
    let actions = actions["actions"].as_array().expect("a list");
    let [action] = actions.as_slice() else { panic!("{actions:#?}") };
    assert_eq!(action["node"], "n3");
    let applied = stdout(&cluster.run(&["apply", &folder.display().to_string()]));
    assert!(
        applied.contains("scontrol update NodeName=n3 State=DRAIN Reason=\"fabricgate:"),
        "{applied}"
    );
    assert!(stdout(&output).contains("scontrol update NodeName=n3"), "{}", stdout(&output));
    let matrix = fs::read_to_string(folder.join("matrix.csv")).expect("kept");
    assert!(matrix.starts_with("run,domain,stage,testcase,src_node"), "{matrix:.80}");
    assert!(fs::read_to_string(folder.join("report.html")).expect("kept").contains("n3"));
    let explained = cluster.run(&["explain", &folder.display().to_string(), "n3:5"]);
    assert_eq!(explained.status.code(), Some(0), "{}", stderr(&explained));
    let replayed = cluster.run(&["replay", &folder.display().to_string()]);
    assert_eq!(replayed.status.code(), Some(3));
    assert!(stderr(&replayed).contains("the verdicts are unchanged"), "{}", stderr(&replayed));
}

#[test]
fn healthy_boxes_pass_and_every_form_of_the_report_is_written() {
    let cluster = Cluster::new("n1");
    cluster.put(
        "claims.toml",
        "[[domain]]\nname = \"box\"\nnodes = \"n1\"\nplatform = \"hgx-h100\"\ngpus_per_node = 8\n",
    );
    cluster.put("out/n1", &eight_h100(None));
    cluster.tool("nvbandwidth", "cat out/$NODE");
    let output = cluster.run(&["audit"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    let folder = cluster.folder().display().to_string();
    for (form, start) in [("csv", "run,"), ("junit", "<?xml"), ("html", "<!"), ("json", "{")] {
        let file = format!("report.{form}");
        let args = ["report", &folder, "--format", form, "--output", &file];
        assert_eq!(cluster.run(&args).status.code(), Some(0), "{form}");
        let text = fs::read_to_string(cluster.path(&file)).expect("written").to_lowercase();
        assert!(text.starts_with(start), "{form}: {text:.60}");
    }
    let raw = format!("{folder}/raw");
    let judged = cluster.run(&["judge", &raw, "--platform", "hgx-h100", "--junit", "j.xml"]);
    assert_eq!(judged.status.code(), Some(0), "{}{}", stdout(&judged), stderr(&judged));
    assert!(cluster.path("j.xml").exists());
    let wrong = cluster.run(&["judge", "out/n1", "--platform", "hgx-h1000"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("did you mean `hgx-h100`"), "{}", stderr(&wrong));
}

/// Polls until there is an answer.
fn wait_for<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = poll() {
            return answer;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "waited in vain");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_local_launcher_measures_this_machine() {
    let cluster = Cluster::new("here");
    cluster.put(
        "fabricgate.toml",
        "claims = \"claims.toml\"\n[probes]\nrun = [\"nvbandwidth\"]\nmost_readings = 1\n",
    );
    cluster.tool("nvbandwidth", NVBANDWIDTH);
    // Other users of this machine are not under test here.
    let output = cluster.run(&["audit", "--even-if-busy"]);
    assert!(stderr(&output).contains("is measured as node here"), "{}", stderr(&output));
    let result = fs::read_to_string(cluster.folder().join("results.jsonl")).expect("kept");
    let result: Value = serde_json::from_str(result.trim()).expect("one line");
    assert_eq!(result["argv"], serde_json::json!(["nvbandwidth"]));
    assert_eq!(result["ending"], serde_json::json!({"how": "exited", "code": 0}));
}
