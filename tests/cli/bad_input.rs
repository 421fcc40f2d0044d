//! Bad inputs from outside, given to the program itself: each ends in one message that names the
//! file and the place in it, in the documented exit code, and never prevents the other inputs
//! from being read.

use std::fs;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use sim::recorded_files;
use sim::scenario::Scenario;

use crate::patience;

/// Longest time for one command: a hang is a failure.
const HANGS: Duration = Duration::from_secs(60);

/// Two healthy boxes.
const MACHINES: &str = "title = \"t\"\nseed = 5\n[noise]\nsigma = 0.001\n\
    [tools]\nrecord = [\"nvbandwidth\"]\n\
    node_tests = [\"host_to_device_memcpy_ce\", \"device_to_host_memcpy_ce\", \
    \"device_to_device_memcpy_read_ce\", \"device_to_device_memcpy_write_ce\"]\n\
    [[domain]]\nnodes = \"box[1-2]\"\nplatform = \"hgx-h100\"\nper_node = true\n";

/// A folder of recorded outputs, and room for files next to it.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().expect("a folder") };
        let scenario = Scenario::parse(MACHINES).expect("a good scenario");
        let recording =
            recorded_files::record_scenario(&scenario, None, None).expect("a recording");
        for (name, text) in &recording.files {
            place.put(&format!("rec/{name}"), text.as_bytes());
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("inside")).expect("made");
        fs::write(&path, bytes).expect("written");
        path
    }

    fn good(&self) -> PathBuf {
        self.path("rec/nodes/box1/nvbandwidth.txt")
    }

    fn run(&self, args: &[&str]) -> Output {
        patience::output(program().args(args).current_dir(self.dir.path()), HANGS)
    }
}

#[expect(clippy::disallowed_methods, reason = "a test starts the program itself")]
fn program() -> std::process::Command {
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("fabricgate"));
    command.env_remove("FABRICGATE_CONFIG").env("NO_COLOR", "1");
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The documents of `parse --json`.
fn documents(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).expect("UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("one document a line")).collect()
}

fn verdicts(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("no verdicts: {e}; {}", stderr(output)))
}

fn outcome<'a>(verdicts: &'a Value, node: &str) -> &'a str {
    let nodes = verdicts["nodes"].as_array().expect("nodes");
    let entry = nodes.iter().find(|entry| entry["node"] == node);
    entry.unwrap_or_else(|| panic!("{node} is not judged"))["outcome"].as_str().expect("a text")
}

/// An unreadable file: named once on stderr, exit code 5, and the valid file after it is still
/// parsed.
fn parse_goes_on(place: &Place, bad: &Path) -> Output {
    let (bad_name, good) = (bad.display().to_string(), place.good().display().to_string());
    let output = place.run(&["parse", "--json", &bad_name, &good]);
    let stderr = stderr(&output);
    assert_eq!(output.status.code(), Some(5), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(
        stderr.starts_with("fabricgate: ") && stderr.matches(&bad_name).count() == 1,
        "{stderr}"
    );
    let documents = documents(&output);
    assert_eq!(documents.len(), 2);
    assert_eq!(
        (&documents[0]["complete"], &documents[1]["complete"]),
        (&false.into(), &true.into())
    );
    assert_eq!(documents[0]["file"], bad_name.as_str());
    assert!(documents[0]["measurements"].as_array().is_some_and(Vec::is_empty));
    let problem = &documents[0]["problems"][0]["detail"];
    assert!(problem.as_str().is_some_and(|d| d.contains("cannot be read")), "{problem}");
    assert!(documents[1]["measurements"].as_array().is_some_and(|m| m.len() == 4));
    output
}

#[test]
fn a_missing_file_is_named_and_the_rest_is_parsed() {
    let place = Place::new();
    let stderr = stderr(&parse_goes_on(&place, &place.path("absent.txt")));
    assert!(stderr.contains("No such file"), "{stderr}");
}

#[test]
fn an_unreadable_file_is_named_and_the_rest_is_parsed() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let secret = place.put("secret.txt", b"x");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).expect("changed");
    // Root may read everything; a loop of links is unreadable for every user.
    let bad = if File::open(&secret).is_ok() {
        let link = place.path("loop.txt");
        std::os::unix::fs::symlink(&link, &link).expect("a link");
        link
    } else {
        secret
    };
    parse_goes_on(&place, &bad);
}

#[test]
fn a_directory_is_not_parsed() {
    let place = Place::new();
    let stderr = stderr(&parse_goes_on(&place, &place.path("rec")));
    assert!(stderr.contains("is a directory"), "{stderr}");
}

#[test]
fn two_gigabytes_of_zeroes_are_refused_immediately() {
    let place = Place::new();
    let huge = place.path("huge.txt");
    File::create(&huge).and_then(|file| file.set_len(2 << 30)).expect("a sparse file");
    let start = Instant::now();
    let stderr = stderr(&parse_goes_on(&place, &huge));
    assert!(stderr.contains("2048 MiB"), "{stderr}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

/// A readable file without usable content: no message is needed, the problem is in the document,
/// and the exit code is 4.
fn parse_finds(place: &Place, bad: &Path, kind: &str) -> Value {
    let bad_name = bad.display().to_string();
    let output = place.run(&["parse", "--json", &bad_name, &place.good().display().to_string()]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let mut documents = documents(&output);
    assert_eq!(documents.len(), 2);
    assert_eq!(documents[1]["complete"], true);
    let first = documents.swap_remove(0);
    let problems = first["problems"].as_array().expect("problems").clone();
    assert!(problems.iter().any(|p| p["kind"] == kind), "{problems:?}");
    assert_eq!(first["complete"], false);
    first
}

#[test]
fn empty_and_binary_files_and_devices_are_unrecognised() {
    let place = Place::new();
    let empty = parse_finds(&place, &place.put("empty.txt", b""), "unrecognised");
    assert!(empty["problems"][0]["detail"].as_str().is_some_and(|d| d.contains("empty")));
    let binary: Vec<u8> = (0..=255).cycle().take(5000).collect();
    let binary = parse_finds(&place, &place.put("core", &binary), "unrecognised");
    assert!(binary["problems"][0]["detail"].as_str().is_some_and(|d| d.contains("binary")));
    assert_eq!(binary["tool"], Value::Null);
    parse_finds(&place, Path::new("/dev/null"), "unrecognised");
    parse_finds(&place, &place.put("latin1.txt", b"gepr\xfcft: 12,5 GB/s\n"), "unrecognised");
}

#[test]
fn an_invalid_byte_costs_only_its_number() {
    let place = Place::new();
    let text = fs::read(place.good()).expect("readable");
    let at = text.windows(3).position(|w| w == b"N/A").expect("a diagonal");
    let point = at + text[at..].iter().position(|b| *b == b'.').expect("a number");
    let mut broken = text.clone();
    broken[point] = 0xff;
    let document = parse_finds(&place, &place.put("broken.txt", &broken), "unrecognised");
    let matrices = document["measurements"].as_array().expect("measurements");
    assert!(3 <= matrices.len(), "{matrices:?}");
}

#[test]
fn truncated_json_keeps_its_complete_part() {
    let place = Place::new();
    let text = MACHINES.replace("[tools]\n", "[tools]\nnvbandwidth_format = \"json\"\n");
    let scenario = Scenario::parse(&text).expect("a good scenario");
    let recording = recorded_files::record_scenario(&scenario, None, None).expect("a recording");
    let whole = &recording.files["nodes/box1/nvbandwidth.json"];
    let cut = &whole.as_bytes()[..whole.len() * 2 / 3];
    let document = parse_finds(&place, &place.put("cut.json", cut), "truncated");
    assert_eq!(document["tool"], "nvbandwidth");
    assert!(document["measurements"].as_array().is_some_and(|m| !m.is_empty() && m.len() < 4));
    let problems = document["problems"].as_array().expect("problems");
    assert!(problems.iter().any(|p| p["line"].as_u64().is_some_and(|l| 1 < l)), "{problems:?}");
}

#[test]
fn a_pipe_with_a_writer_is_read_to_its_end() {
    let place = Place::new();
    let text = fs::read(place.good()).expect("readable");
    let mut child = program()
        .args(["parse", "--json", "/dev/stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut stdin, &text).expect("written");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(documents(&output)[0]["tool"], "nvbandwidth");
}

#[test]
fn a_file_that_vanished_leaves_its_node_unknown_and_the_others_judged() {
    let place = Place::new();
    let output = place.run(&["judge", "rec", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    // A link whose target is gone is still listed.
    let file = place.path("rec/nodes/box2/nvbandwidth.txt");
    fs::remove_file(&file).expect("removed");
    std::os::unix::fs::symlink(place.path("gone.txt"), &file).expect("a link");
    let output = place.run(&["judge", "rec", "--json"]);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(5), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.contains("rec/nodes/box2/nvbandwidth.txt"), "{message}");
    let verdicts = verdicts(&output);
    assert_eq!((outcome(&verdicts, "box1"), outcome(&verdicts, "box2")), ("pass", "unknown"));
    assert_eq!(verdicts["outcome"], "unknown");
}

#[test]
fn bad_files_among_good_ones_cost_only_their_own_readings() {
    let place = Place::new();
    place.put("rec/nodes/box1/core", b"\x7fELF\x00\x00\x00\x01");
    place.put("rec/nodes/box2/nvidia-smi.txt", b"");
    let huge = place.path("rec/nodes/box2/huge.txt");
    File::create(huge).and_then(|file| file.set_len(2 << 30)).expect("a sparse file");
    let output = place.run(&["judge", "rec", "--json"]);
    let stderr = stderr(&output);
    assert_eq!(output.status.code(), Some(5), "{stderr}");
    assert!(stderr.contains("huge.txt") && stderr.lines().count() == 1, "{stderr}");
    let verdicts = verdicts(&output);
    assert!(verdicts["findings"].as_array().is_some_and(Vec::is_empty));
    for node in ["box1", "box2"] {
        assert_ne!(outcome(&verdicts, node), "failed");
        assert_ne!(outcome(&verdicts, node), "degraded");
    }
    let expected = verdicts["unknown"].to_string();
    assert!(expected.contains("huge.txt"), "{expected}");
}

/// A user's mistake: exit code 2, empty stdout, one line on stderr.
fn refused(place: &Place, args: &[&str], names: &[&str]) -> String {
    let output = place.run(args);
    let stderr = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(output.stdout.is_empty());
    for name in names {
        assert!(stderr.contains(name), "{name} is not named: {stderr}");
    }
    stderr
}

#[test]
fn a_platform_that_does_not_exist_is_refused_with_those_that_do() {
    let place = Place::new();
    let args = ["judge", "rec", "--platform", "hgx-h1000"];
    refused(&place, &args, &["--platform", "hgx-h1000", "hgx-h100"]);
}

#[test]
fn a_typo_in_a_threshold_file_is_named_with_line_and_column() {
    let place = Place::new();
    let text = "platform = \"hgx-h100\"\ntitle = \"ours\"\ndevises = [\"x\"]\n";
    place.put("site.toml", text.as_bytes());
    let message = refused(&place, &["judge", "rec", "--thresholds", "site.toml"], &["devises"]);
    assert!(message.contains("site.toml:3:1"), "{message}");
    place.put("site.toml", b"platform = \"hgx-h100\"\n\xff\n");
    let message = refused(&place, &["judge", "rec", "--thresholds", "site.toml"], &["UTF-8"]);
    assert!(message.contains("site.toml:2:1"), "{message}");
    let output = place.run(&["judge", "rec", "--thresholds", "absent.toml"]);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(stderr(&output).contains("absent.toml"));
}

#[test]
fn a_typo_in_the_claims_is_named_with_line_and_column() {
    let place = Place::new();
    place.put("rec/claims.toml", b"[[domain]]\nname = \"a\"\nnodes = \"box[1-2\"\n");
    let message = refused(&place, &["judge", "rec"], &["claims.toml:3:13"]);
    assert_eq!(message.lines().count(), 1, "{message}");
}

#[test]
fn a_folder_without_outputs_is_unknown_and_never_a_pass() {
    let place = Place::new();
    fs::create_dir(place.path("nothing")).expect("made");
    let output = place.run(&["judge", "nothing", "--json"]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert_eq!(verdicts(&output)["outcome"], "unknown");
    assert!(stderr(&output).contains("nothing: holds no outputs"), "{}", stderr(&output));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test makes a pipe")]
fn a_named_pipe_is_refused_and_not_waited_for() {
    let place = Place::new();
    let pipe = place.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    let output = place.run(&["parse", "--json", "pipe"]);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(stderr(&output).contains("pipe: is a named pipe"), "{}", stderr(&output));
}

#[test]
fn a_reader_that_goes_away_ends_the_program_quietly() {
    let place = Place::new();
    let good = place.good().display().to_string();
    let many: Vec<&str> = std::iter::repeat_n(good.as_str(), 200).collect();
    for args in [[&["parse", "--json"], many.as_slice()].concat(), vec!["judge", "rec"]] {
        let mut child = program()
            .args(&args)
            .current_dir(place.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        // As with `head -c 0`.
        drop(child.stdout.take());
        let stderr = patience::all(child.stderr.take());
        let status = child.wait().expect("it ends");
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        assert_eq!(stderr, "", "{:?}", &args[..2]);
        // The exit code still reports the result.
        assert_eq!(status.code(), Some(0), "{:?}", &args[..2]);
    }
}

/// Three nodes, reached through a command that every machine has.
const CONFIG: &str = "claims = \"claims.toml\"\n";
const CLAIMS: &str = "[[domain]]\nname = \"a\"\nnodes = \"n[1-3]\"\n";
const COMMAND: &str = "[launcher]\nkind = \"command\"\ntemplate = [\"env\", \"N={node}\"]\n";

/// A sweep with this configuration and these claims is refused in one line, before anything is
/// written.
fn sweep_refused(config: &str, claims: &str, code: i32, names: &[&str]) {
    let place = Place::new();
    place.put("claims.toml", claims.as_bytes());
    place.put("fabricgate.toml", config.as_bytes());
    let output = place.run(&["audit", "--config", "fabricgate.toml"]);
    let stderr = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{config}{stderr}");
    assert!(output.stdout.is_empty() && stderr.lines().count() == 1, "{stderr}");
    for name in names {
        assert!(stderr.contains(name), "{name} is not named: {stderr}");
    }
    assert!(!place.path("runs").exists(), "a run was begun");
}

#[test]
fn an_unknown_key_is_refused_in_every_section_with_its_line_and_the_known_keys() {
    let refused = |rest: &str, names: &[&str]| {
        sweep_refused(&format!("{CONFIG}{rest}"), CLAIMS, 2, names);
    };
    refused("bogus = 1\n", &["fabricgate.toml:2:1: unknown field `bogus`", "`run_dir`"]);
    for (section, known) in [
        ("[launcher]\nkind = \"local\"", "`connect_s`"),
        ("[probes]\nreadings = 1", "`most_readings`"),
        ("[sweep]\npartners = 3", "`cross_leaf`"),
        ("[confirm]\nenabled = true", "`wait_s`"),
        ("[policy]\nper_domain = 2", "`freeze_fleet`"),
    ] {
        let names = ["fabricgate.toml:4:1: unknown field `bogus`", known];
        refused(&format!("{section}\nbogus = 1\n"), &names);
    }
    refused("[bogus]\n", &["fabricgate.toml:2:2: unknown field `bogus`"]);
}

#[test]
fn claims_that_contradict_themselves_are_refused_with_their_line() {
    let refused = |claims: &str, names: &[&str]| {
        sweep_refused(&format!("{CONFIG}{COMMAND}"), claims, 2, names);
    };
    let twice = "[[domain]]\nname = \"a\"\nnodes = \"n1,n2,n1\"\n";
    refused(twice, &["claims.toml:3:9: node n1 is in domain a twice"]);
    let two = format!("{CLAIMS}[[domain]]\nname = \"b\"\nnodes = \"n3\"\n");
    refused(&two, &["claims.toml:6:9: node n3 is in two domains, a and b"]);
    let same = format!("{CLAIMS}[[domain]]\nname = \"a\"\nnodes = \"m1\"\n");
    refused(&same, &["claims.toml:5:8: domain a is already claimed on line 2"]);
    let leaf =
        |name: &str, nodes: &str| format!("[[leaf]]\nname = \"{name}\"\nnodes = \"{nodes}\"\n");
    let leaves = format!("{CLAIMS}{}{}", leaf("l", "n1"), leaf("m", "n[1-3]"));
    refused(&leaves, &["claims.toml:9:9: node n1 is in two leaves, l and m"]);
    let unclaimed = format!("{CLAIMS}{}", leaf("l", "n7"));
    refused(&unclaimed, &["claims.toml:6:9: leaf l: no domain contains node n7"]);
    refused(&format!("{CLAIMS}bogus = 1\n"), &["claims.toml:4:1: unknown field `bogus`"]);
}

#[test]
fn a_stand_in_for_nodes_must_exist_before_a_run_begins() {
    let launcher = |kind: &str, rest: &str| format!("[launcher]\nkind = \"{kind}\"\n{rest}");
    let refused = |code: i32, config: &str, names: &[&str]| {
        for claims in ["", CONFIG] {
            sweep_refused(&format!("{claims}{config}"), CLAIMS, code, names);
        }
    };
    let from = "fabricgate.toml: [launcher]";
    let gone = launcher("sim", "scenario = \"gone.toml\"\n");
    refused(5, &gone, &[from, "gone.toml: No such file"]);
    let wrong = launcher("sim", "scenario = \"claims.toml\"\n");
    refused(2, &wrong, &[from, "claims.toml:1:1: missing field `platform`"]);
    refused(5, &launcher("replay", "run = \"gone\"\n"), &[from, "gone: No such file"]);
    let none = launcher("replay", "run = \"rec\"\n");
    refused(2, &none, &[from, "rec: not a run folder: run.json is missing"]);
    refused(2, &launcher("replay", ""), &["fabricgate.toml:", "expected run = \"RUN FOLDER\""]);
    refused(2, &launcher("sim", ""), &["fabricgate.toml:", "expected scenario = \"FILE\""]);
    let place = Place::new();
    let output = place.run(&["audit", "--sim", "gone.toml"]);
    assert_eq!(output.status.code(), Some(5));
    assert!(stderr(&output).contains("--sim") && stderr(&output).contains("gone.toml: No such"));
}

#[test]
fn only_a_run_folder_can_be_resumed() {
    let place = Place::new();
    refused(&place, &["audit", "--resume", "rec"], &["rec: not a run folder: run.json is missing"]);
    let output = place.run(&["audit", "--resume", "gone"]);
    assert_eq!(output.status.code(), Some(5));
    assert!(stderr(&output).contains("gone: No such file"), "{}", stderr(&output));
    let args = ["audit", "--resume", "rec", "--seed", "4"];
    refused(&place, &args, &["--resume", "--seed"]);
}

#[test]
fn an_unwritable_run_folder_is_an_environment_error() {
    let place = Place::new();
    place.put("file", b"in the way");
    for place_of_runs in ["file", "file/runs", "/proc/runs"] {
        let output = place.run(&["audit", "--sim", "--run-dir", place_of_runs]);
        let stderr = stderr(&output);
        assert_eq!(output.status.code(), Some(5), "{stderr}");
        assert!(stderr.starts_with("fabricgate: the run cannot be recorded: "), "{stderr}");
        assert!(stderr.contains(place_of_runs) && stderr.lines().count() == 1, "{stderr}");
    }
}

/// A small file system, where this machine permits one.
struct SmallDisk(PathBuf);

impl SmallDisk {
    #[expect(clippy::disallowed_methods, reason = "a test mounts a file system")]
    fn mount(at: &Path, size: &str) -> Option<Self> {
        fs::create_dir_all(at).expect("made");
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(at);
        let mounted = mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        mounted.then(|| Self(at.to_owned()))
    }
}

impl Drop for SmallDisk {
    #[expect(clippy::disallowed_methods, reason = "a test unmounts its file system")]
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_ends_a_run_with_a_message_and_leaves_what_was_written() {
    let place = Place::new();
    let Some(_disk) = SmallDisk::mount(&place.path("small"), "400k") else {
        eprintln!("SKIPPED a full disk: this user may not mount a file system");
        return;
    };
    let output = place.run(&["audit", "--sim", "--run-dir", "small", "node[0001-0018]"]);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(5), "{message}");
    let last = message.lines().last().expect("a message");
    assert!(last.starts_with("fabricgate: the run cannot be recorded: small/"), "{message}");
    assert!(last.contains("No space left on device"), "{message}");
    let folder = fs::read_dir(place.path("small")).expect("there").next();
    let folder = folder.expect("a run").expect("readable").path().display().to_string();
    let reported = place.run(&["report", &folder, "--json"]);
    assert_eq!(reported.status.code(), Some(0), "{}", stderr(&reported));
    let report: Value = serde_json::from_slice(&reported.stdout).expect("a report");
    let unknown = report["verdicts"]["unknown"].to_string();
    assert!(unknown.contains("not run: the run ended before"), "{unknown}");
}
