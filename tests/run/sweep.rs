//! Whole sweeps from outside: over a simulated fabric and over fake nodes, killed, interrupted
//! and resumed at inconvenient moments, with workers that misbehave.
//!
//! Time limits here only end a hang; the tests assert no duration.

mod drift;
mod files;
mod together;
mod unwell;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

/// Time after which a command counts as hanging.
const HANG: Duration = Duration::from_secs(180);

/// A small rack of which one GPU has lost two of its links.
const RACK: &str = "title = \"a rack\"\nseed = 7\n[noise]\nsigma = 0.005\n\
    [[domain]]\nname = \"rack\"\nnodes = \"n[1-6]\"\nplatform = \"gb200-nvl72\"\n\
    [[fault]]\nkind = \"lost-links\"\ngpu = \"n3:1\"\ncount = 2\n";

/// One sweep of it: pairs only, one after the other, so that a test has time to interfere.
const SLOWLY: &str = "run_dir = \"runs\"\npass_env = [\"SWEEP_PLACE\", \"NODE\"]\n[launcher]\nkind = \"sim\"\nscenario = \"rack.toml\"\n\
    parallel = 1\n[probes]\nrun = [\"nvbandwidth-lane\"]\n[confirm]\nwait_s = 0.5\n";

/// Output of a fake tool: invented numbers in the grammar of nvbandwidth.
const PRINTS: &str = "nvbandwidth Version: v0.8\nBuilt from Git version: v0.8\n\n\
    CUDA Runtime Version: 12080\nCUDA Driver Version: 12080\nDriver Version: 570.26\n\n\
    Device 0: NVIDIA H100 80GB HBM3 (00000000:1b:00)\n\
    Device 1: NVIDIA H100 80GB HBM3 (00000000:2b:00)\n\n\
    Running device_to_device_memcpy_read_ce.\n\
    memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n\
    \u{20}          0         1\n 0       N/A    391.37\n 1    390.85       N/A\n\n\
    SUM device_to_device_memcpy_read_ce 782.22\n";

/// A launcher that runs the command here and records its node.
const LAUNCH: &str = "node=$1; shift; cd \"$SWEEP_PLACE\"; echo $node >> started\n\
    NODE=$node exec \"$@\"";

/// A folder of its own in which the program runs.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a folder") }
    }

    /// The small rack, configured to be swept slowly.
    fn rack() -> Self {
        let place = Self::new();
        place.put("rack.toml", RACK);
        place.put("fabricgate.toml", SLOWLY);
        place
    }

    /// Nodes that a script `launch NODE COMMAND...` reaches, with fake probes
    /// of these names in this order, each a script.
    fn fakes(nodes: &str, launch: &str, connect_s: u32, probes: &[(&str, &str)]) -> Self {
        let place = Self::new();
        let claims = "[[domain]]\nname = \"rack1\"\ngpus_per_node = 2\n";
        place.put("claims.toml", &format!("{claims}nodes = \"{nodes}\"\n"));
        place.script("launch", launch);
        for (name, script) in probes {
            place.script(name, script);
            place.put(
                &format!("probes/{name}.toml"),
                &format!(
                    "name = \"{name}\"\ntitle = \"{name}\"\nparser = \"nvbandwidth\"\n\
                     argv = [{:?}]\nscope = \"node\"\nstage = 1\ncost_s = 0.1\n\
                     timeout_s = 120\ndisturbs = \"gpus\"\n",
                    place.path(name).display().to_string()
                ),
            );
        }
        let names: Vec<&str> = probes.iter().map(|(name, _)| *name).collect();
        let launch = place.path("launch").display().to_string();
        place.put(
            "fabricgate.toml",
            &format!(
                "claims = \"claims.toml\"\nrun_dir = \"runs\"\npass_env = [\"SWEEP_PLACE\", \"NODE\"]\n[launcher]\nkind = \"command\"\n\
                 template = [{launch:?}, \"{{node}}\"]\nworker = \"{}\"\nconnect_s = {connect_s}\n\
                 [probes]\ndir = \"probes\"\nrun = {names:?}\nmost_readings = 1\n\
                 [confirm]\nenabled = false\n",
                assert_cmd::cargo::cargo_bin!("fabricgate").display()
            ),
        );
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn put(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("inside")).expect("made");
        fs::write(path, text).expect("written");
    }

    fn script(&self, name: &str, text: &str) {
        self.put("output", PRINTS);
        self.put(name, &format!("#!/bin/sh\n{text}\n"));
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.path(name), mode).expect("executable");
    }

    fn start(&self, args: &[&str]) -> Child {
        self.start_by(&[], args)
    }

    /// The program, started with these arguments.
    #[expect(clippy::disallowed_methods, reason = "a test starts the program itself")]
    fn start_by(&self, words: &[&str], args: &[&str]) -> Child {
        let program = assert_cmd::cargo::cargo_bin!("fabricgate").display().to_string();
        let words = [words, &[program.as_str()], args].concat();
        let mut command = std::process::Command::new(words[0]);
        command
            .args(&words[1..])
            .current_dir(self.dir.path())
            .env_remove("FABRICGATE_CONFIG")
            .env("NO_COLOR", "1")
            // This identifies the processes of this test.
            .env("SWEEP_PLACE", self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().expect("the program starts")
    }

    fn run(&self, args: &[&str]) -> Output {
        ended(self.start(args))
    }

    fn configured(&self, args: &[&str]) -> Output {
        self.run(&[args, &["--config", "fabricgate.toml"]].concat())
    }

    fn folder(&self) -> PathBuf {
        self.folder_in("runs").expect("one run folder")
    }

    fn folder_in(&self, runs: &str) -> Option<PathBuf> {
        let mut folders = fs::read_dir(self.path(runs)).ok()?;
        let folder = folders.next()?.ok()?.path();
        assert!(folders.next().is_none(), "more than one run");
        Some(folder)
    }

    /// The processes that this test's program started and that still run.
    fn processes(&self) -> Vec<String> {
        let mark = format!("SWEEP_PLACE={}", self.dir.path().display());
        let entries = fs::read_dir("/proc").expect("Linux");
        let folders = entries.filter_map(|entry| Some(entry.ok()?.path()));
        folders
            .filter(|folder| {
                // A zombie has no environment any more.
                let environment = fs::read(folder.join("environ")).unwrap_or_default();
                environment.split(|byte| *byte == 0).any(|word| word == mark.as_bytes())
            })
            .map(|folder| fs::read_to_string(folder.join("cmdline")).unwrap_or_default())
            .collect()
    }

    fn nothing_is_left_running(&self) {
        wait_for("the processes to go", || self.processes().is_empty().then_some(()));
    }
}

/// Waits for the end; a hang is a failure.
fn ended(mut child: Child) -> Output {
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let out = std::thread::spawn(move || all(out));
    let err = std::thread::spawn(move || all(err));
    let status = wait_for("the program to end", || child.try_wait().expect("a child"));
    let stdout = out.join().expect("stdout is read");
    Output { status, stdout, stderr: err.join().expect("stderr is read") }
}

fn all(stream: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.expect("a pipe").read_to_end(&mut bytes).expect("readable");
    bytes
}

/// Polls until there is an answer.
fn wait_for<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = poll() {
            return answer;
        }
        assert!(start.elapsed() < HANG, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn interrupt(child: &Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a pid");
    rustix::process::kill_process(pid, Signal::INT).expect("still there");
}

fn kill(mut child: Child) {
    child.kill().expect("kill -9");
    child.wait().expect("ended");
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn verdicts(folder: &Path) -> Value {
    json(&folder.join("verdicts.json"))
}

/// The lines of a file; a line that is not a document is a failure.
fn lines(folder: &Path, name: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{name}: {e}: {line}"));
    text.lines().map(parse).collect()
}

/// Number of complete lines in a file that is being written.
fn count(folder: &Path, name: &str) -> usize {
    let bytes = fs::read(folder.join(name)).unwrap_or_default();
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

fn state(folder: &Path) -> String {
    json(&folder.join("run.json"))["state"].as_str().expect("a text").to_owned()
}

/// Outcome and reason of every node.
fn nodes(verdicts: &Value) -> BTreeMap<String, (String, String)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let nodes = verdicts["nodes"].as_array().expect("nodes").iter();
    nodes.map(|n| (text(&n["node"]), (text(&n["outcome"]), text(&n["reason"])))).collect()
}

/// Why a part is unknown, by its name in the verdicts.
fn unknown(verdicts: &Value, what: &str) -> String {
    let list = verdicts["unknown"].as_array().expect("a list");
    let entry = list.iter().find(|u| u["what"] == what);
    entry.unwrap_or_else(|| panic!("{what} in {list:?}"))["why"].as_str().expect("text").to_owned()
}

/// A reading without an interruption is recorded once.
fn no_reading_is_repeated(folder: &Path) {
    let mut whole: BTreeMap<(u64, u64), usize> = BTreeMap::new();
    for line in lines(folder, "results.jsonl") {
        if line["ending"]["how"] != "interrupted" {
            let key = (line["step"].as_u64().expect("n"), line["reading"].as_u64().expect("n"));
            *whole.entry(key).or_default() += 1;
        }
    }
    let repeated: Vec<_> = whole.iter().filter(|(_, count)| **count != 1).collect();
    assert!(!whole.is_empty() && repeated.is_empty(), "{repeated:?}");
}

#[test]
fn a_lost_link_is_named_and_everything_about_the_run_is_kept() {
    let place = Place::new();
    let output = place.run(&["audit", "--sim", "--run-dir", "runs", "--seed", "3"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let folder = place.folder();
    assert_eq!(state(&folder), "complete");
    let document = verdicts(&folder);
    let findings = document["findings"].as_array().expect("findings");
    assert_eq!(findings.len(), 1, "{findings:#?}");
    assert_eq!(findings[0]["locus"]["node"], "node0007");
    assert_eq!(findings[0]["locus"]["gpu"], 2);
    assert_eq!(findings[0]["confirmed"], true);
    for (node, (outcome, reason)) in nodes(&document) {
        assert_eq!(outcome == "pass", node != "node0007", "{node}: {outcome}, {reason}");
    }
    for name in ["plan.json", "confirm.json", "claims.json", "actions.json", "report.html"] {
        assert!(folder.join(name).metadata().is_ok_and(|m| 0 < m.len()), "{name}");
    }
    assert_eq!(count(&folder, "results.jsonl"), lines(&folder, "measurements.jsonl").len());
    for line in lines(&folder, "results.jsonl") {
        let name = line["stdout"].as_str().expect("a file");
        assert!(name.starts_with("raw/") && folder.join(name).exists(), "{name}");
    }
    let matrix = fs::read_to_string(folder.join("matrix.csv")).expect("kept");
    let mut rows = matrix.lines();
    assert_eq!(rows.next().and_then(|head| head.split(',').nth(2)), Some("stage"));
    let stages: Vec<&str> = rows.filter_map(|row| row.split(',').nth(2)).collect();
    assert!(stages.iter().all(|stage| ["1", "2", "3"].contains(stage)), "every cell has a stage");
    assert!(["1", "2", "3"].iter().all(|stage| stages.contains(stage)));
    place.nothing_is_left_running();

    // The announced steps are the executed ones.
    let planned = place.run(&["plan", "audit", "--sim", "--seed", "3", "--json"]);
    let planned: Value = serde_json::from_slice(&planned.stdout).expect("a plan");
    assert_eq!(planned, json(&folder.join("plan.json")));

    let shown = folder.display().to_string();
    let replayed = place.run(&["replay", &shown, "--json"]);
    assert!(stderr(&replayed).contains("the verdicts are unchanged"), "{}", stderr(&replayed));
    assert_eq!(serde_json::from_slice::<Value>(&replayed.stdout).expect("verdicts"), document);

    // The whole pipeline again, with the stored run in place of the nodes.
    place.put("again.toml", &format!("[launcher]\nkind = \"replay\"\nrun = {shown:?}\n"));
    let args = ["audit", "--config", "again.toml", "--run-dir", "again", "--seed", "3"];
    let output = place.run(&args);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert_eq!(verdicts(&place.folder_in("again").expect("a run")), document);
}

#[test]
fn a_healthy_part_of_two_racks_passes() {
    let place = Place::new();
    let part = "node[0101-0104,0201-0204]";
    let sim = ["audit", "--sim", "two-racks-healthy", "--run-dir", "runs", "--partners", "2", part];
    let output = place.run(&sim);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let document = verdicts(&place.folder());
    assert_eq!(document["outcome"], "pass");
    assert_eq!(nodes(&document).len(), 12, "two partners of each rack");
    assert!(!place.folder().join("confirm.json").exists(), "no part was suspected");
}

#[test]
fn a_copy_that_dips_is_read_again_and_its_node_passes() {
    let place = Place::new();
    place.put(
        "dips.toml",
        "title = \"dips\"\nseed = 5\n[noise]\nsigma = 0.003\ndip_rate = 0.02\n[tools]\nnode_tests = \
         [\"host_to_device_memcpy_ce\", \"device_to_host_memcpy_ce\", \
         \"device_to_device_memcpy_read_ce\"]\n[[domain]]\nnodes = \"h[1-16]\"\n\
         platform = \"hgx-h100\"\nper_node = true\n",
    );
    let output = place.run(&["audit", "--sim", "dips.toml", "--run-dir", "runs"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    // Most nodes have a copy of 72 that dips by more than noise explains.
    let again = lines(&place.folder(), "results.jsonl");
    let again = again.iter().filter(|result| result["reading"].as_u64() != Some(0)).count();
    assert!(8 <= again, "{again} readings beyond the first");
}

/// These verdicts have one finding, with all of these strings.
fn only_finding_has(verdicts: &Value, words: &[&str]) {
    let findings = verdicts["findings"].as_array().expect("findings");
    assert_eq!(findings.len(), 1, "{findings:#?}");
    let text = findings[0].to_string();
    for word in words {
        assert!(text.contains(word), "{word} in {text}");
    }
}

#[test]
fn a_slow_rail_is_named_and_confirmed() {
    let place = Place::new();
    let args = ["audit", "--sim", "rail-half-rate", "--run-dir", "runs", "hgx[05-09]"];
    let output = place.run(&args);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let document = verdicts(&place.folder());
    only_finding_has(&document, &["hgx07", "rail2", "\"confirmed\":true"]);
}

#[test]
fn a_rail_without_link_is_found_at_its_node_when_each_node_has_one_partner() {
    // One is the client of its pair, the other the server.
    for bad in ["hgx07", "hgx08"] {
        let place = Place::new();
        place.put(
            "down.toml",
            &format!(
                "title = \"down\"\nseed = 62\nreadings = 2\n[tools]\nrecord = [\"nvbandwidth\"]\n\
                 node_tests = [\"host_to_device_memcpy_ce\", \"device_to_host_memcpy_ce\", \
                 \"device_to_device_memcpy_read_ce\"]\n\
                 [network]\nrails = 8\nrate = 50.0\nleaf_nodes = 8\n\
                 [[domain]]\nnodes = \"hgx[01-16]\"\nplatform = \"hgx-h100\"\nper_node = true\n\
                 [[fault]]\nkind = \"rail-down\"\nnode = \"{bad}\"\nrail = 2\n"
            ),
        );
        let args = ["audit", "--sim", "down.toml", "--run-dir", "runs", "hgx[05-09]"];
        let output = place.run(&args);
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        let document = verdicts(&place.folder());
        let words = ["nic-unreachable", "\"failed\"", bad, "rail2", "\"confirmed\":true"];
        only_finding_has(&document, &words);
        for (node, (outcome, reason)) in nodes(&document) {
            let wanted = if node == bad { "failed" } else { "pass" };
            assert_eq!(outcome, wanted, "{node}: {reason}");
        }
    }
}

#[test]
fn unwell_nodes_are_unknown_with_a_reason_each_and_delay_no_other() {
    let place = Place::new();
    let fault = |kind: &str, node: &str, rest: &str| {
        format!("[[fault]]\nkind = \"{kind}\"\nnode = \"{node}\"\n{rest}")
    };
    let tool = "tool = \"nvbandwidth\"\n";
    place.put(
        "unwell.toml",
        &[
            "title = \"unwell\"\nseed = 64\n[tools]\nnode_tests = [\"host_to_device_memcpy_ce\", \
             \"device_to_host_memcpy_ce\", \"device_to_device_memcpy_read_ce\"]\n\
             [[domain]]\nnodes = \"h[1-8]\"\nplatform = \"hgx-h100\"\nper_node = true\n"
                .to_owned(),
            fault("unreachable", "h2", ""),
            fault("busy", "h3", "process = \"train.py\"\n"),
            fault("tool-hangs", "h4", tool),
            fault("tool-garbage", "h5", tool),
            fault("tool-error", "h6", ""),
        ]
        .concat(),
    );
    place.put(
        "probes/site.toml",
        "name = \"nvbandwidth\"\ntitle = \"ours\"\nparser = \"nvbandwidth\"\n\
         argv = [\"nvbandwidth\"]\nscope = \"node\"\ncovers = \"all\"\nstage = 1\ncost_s = 1\n\
         timeout_s = 15\ndisturbs = \"gpus\"\n[requires]\nmin_gpus = 1\nidle_gpus = true\n",
    );
    place.put(
        "fabricgate.toml",
        "run_dir = \"runs\"\npass_env = [\"SWEEP_PLACE\", \"NODE\"]\n[launcher]\nkind = \"sim\"\nscenario = \"unwell.toml\"\n\
         [probes]\ndir = \"probes\"\nrun = [\"nvbandwidth\"]\nreadings = 2\n",
    );
    let output = place.configured(&["audit"]);
    // One is failed: its GPUs report an error.
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let document = verdicts(&place.folder());
    let why = |node: &str| unknown(&document, &format!("nvbandwidth on {node}"));
    assert!(why("h2").contains("No route to host"), "{}", why("h2"));
    assert!(why("h3").contains("train.py"), "{}", why("h3"));
    assert_eq!(why("h4"), "exceeded its time limit and was killed");
    assert!(why("h6").starts_with("exit code 1"), "{}", why("h6"));
    let second = unknown(&document, "nvbandwidth on h4, reading 2");
    assert_eq!(second, "not tried: reading 1 hung");
    for (node, (outcome, reason)) in nodes(&document) {
        let well = ["h1", "h7", "h8"].contains(&node.as_str());
        let expected = match node.as_str() {
            "h1" | "h7" | "h8" => "pass",
            "h6" => "failed",
            _ => "unknown",
        };
        assert_eq!(outcome, expected, "{node}: {reason}");
        assert!(well || !reason.is_empty(), "{node}");
    }
    let plan = json(&place.folder().join("actions.json"));
    let acted = plan["actions"].as_array().expect("a list");
    assert!(acted.iter().all(|action| action["node"] == "h6"), "{acted:#?}");
    place.nothing_is_left_running();
}

/// Checks that a killed run can be read, and ends like an undisturbed one.
fn goes_on_after_a_kill(place: &Place, child: Child, whole: &Value) {
    kill(child);
    place.nothing_is_left_running();
    let folder = place.folder();
    assert_eq!(state(&folder), "running");
    let shown = folder.display().to_string();
    let reported = place.run(&["report", &shown]);
    assert_eq!(reported.status.code(), Some(0), "{}", stderr(&reported));
    assert!(stderr(&reported).contains("is partial"), "{}", stderr(&reported));
    let replayed = place.run(&["replay", &shown]);
    assert!(matches!(replayed.status.code(), Some(3 | 4)), "{}", stderr(&replayed));
    // The kill may have cut the last lines short.
    for name in ["results.jsonl", "measurements.jsonl"] {
        let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
        fs::write(folder.join(name), text + "{\"format\": \"fabr").expect("written");
    }
    let resumed = place.configured(&["audit", "--resume", &shown]);
    assert_eq!(resumed.status.code(), Some(3), "{}", stderr(&resumed));
    assert_eq!(state(&folder), "complete");
    no_reading_is_repeated(&folder);
    lines(&folder, "measurements.jsonl");
    assert_eq!(&verdicts(&folder), whole);
    let replayed = place.run(&["replay", &shown]);
    assert!(stderr(&replayed).contains("the verdicts are unchanged"), "{}", stderr(&replayed));
}

/// The verdict of an undisturbed sweep of the small rack.
fn undisturbed() -> Value {
    let place = Place::rack();
    let output = place.configured(&["audit"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    verdicts(&place.folder())
}

#[test]
fn a_sweep_resumes_after_a_kill_of_the_coordinator_at_any_moment() {
    let whole = undisturbed();
    type Moment = fn(&Path) -> bool;
    let moments: [Moment; 4] = [
        |folder| folder.join("run.json").exists(),
        |folder| 5 <= count(folder, "results.jsonl"),
        |folder| folder.join("confirm.json").exists(),
        |folder| {
            fs::read_to_string(folder.join("results.jsonl"))
                .is_ok_and(|text| text.contains("\"stage\":3"))
        },
    ];
    for moment in moments {
        let place = Place::rack();
        let child = place.start(&["audit", "--config", "fabricgate.toml"]);
        wait_for("the moment", || place.folder_in("runs").filter(|folder| moment(folder)));
        goes_on_after_a_kill(&place, child, &whole);
    }
}

#[test]
fn an_interrupted_sweep_prints_how_to_resume_and_the_resumed_one_has_the_same_verdict() {
    let whole = undisturbed();
    let place = Place::rack();
    let child = place.start(&["audit", "--config", "fabricgate.toml"]);
    let begun = || place.folder_in("runs").filter(|folder| 3 <= count(folder, "results.jsonl"));
    let folder = wait_for("some results", begun);
    interrupt(&child);
    let output = ended(child);
    assert!(matches!(output.status.code(), Some(3 | 4)), "{}", stderr(&output));
    assert_eq!(state(&folder), "partial");
    place.nothing_is_left_running();
    let message = stderr(&output);
    let hint = message.split('`').find(|part| part.contains("--resume")).expect("how to go on");
    let words: Vec<&str> = hint.split(' ').skip(1).collect();
    let resumed = place.run(&words);
    assert_eq!(resumed.status.code(), Some(3), "{}", stderr(&resumed));
    assert_eq!((state(&folder).as_str(), &verdicts(&folder)), ("complete", &whole));
    no_reading_is_repeated(&folder);

    let again = place.run(&words);
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("this run is complete"), "{}", stderr(&again));
}

#[test]
fn a_simulated_run_goes_on_without_its_scenario_file_and_configuration() {
    let place = Place::rack();
    let args = ["audit", "--sim", "rack.toml", "--run-dir", "runs", "n[2-3]"];
    let child = place.start(&args);
    let begun = || place.folder_in("runs").filter(|folder| 1 <= count(folder, "results.jsonl"));
    let folder = wait_for("some results", begun);
    kill(child);
    fs::remove_file(place.path("rack.toml")).expect("removed");
    let shown = folder.display().to_string();
    let other = place.run(&["burn-in", "--resume", &shown]);
    assert_eq!(other.status.code(), Some(2));
    let message = stderr(&other);
    assert!(message.contains("it is a run of profile audit") && message.contains("audit --resume"));
    let resumed = place.run(&["audit", "--resume", &shown]);
    assert_eq!(resumed.status.code(), Some(3), "{}", stderr(&resumed));
    assert_eq!(state(&folder), "complete");
    no_reading_is_repeated(&folder);
}
