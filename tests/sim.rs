//! The simulated fabric from outside: example scenarios, the recording that is
//! shipped, and fake tools on PATH.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::path::PathBuf;

use assert_cmd::Command;
use fabricgate::sim::record;
use fabricgate::sim::scenario::Scenario;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn binary() -> Command {
    Command::new(assert_cmd::cargo::cargo_bin!("fabricgate"))
}

fn files_below(folder: &Path, base: &Path, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files_below(&path, base, found);
        } else {
            let name = path.strip_prefix(base).expect("below the base").display().to_string();
            found.insert(name, fs::read_to_string(&path).expect("a text file"));
        }
    }
}

#[test]
fn every_example_scenario_can_be_recorded_and_has_a_comment() {
    let mut seen = 0;
    for entry in fs::read_dir(root().join("examples")).expect("examples") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a text file");
        assert!(text.starts_with("# ") && text.contains("# Expect: "), "{}", path.display());
        let scenario = Scenario::read(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let recording = record::record(&scenario, None, Some(1)).expect("a recording");
        assert!(2 < recording.files.len(), "{}", path.display());
        seen += 1;
    }
    assert!(11 <= seen, "{seen} examples");
}

#[test]
fn the_shipped_recording_is_what_its_scenario_gives() {
    let scenario = fs::read_to_string(root().join("examples/rack-lost-link.toml")).expect("text");
    let scenario = Scenario::read(&scenario).expect("a good scenario");
    let recording = record::record(&scenario, None, None).expect("a recording");
    let base = root().join("tests/recorded/rack-lost-link");
    let mut shipped = BTreeMap::new();
    files_below(&base, &base, &mut shipped);
    let names = |files: &BTreeMap<String, String>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&shipped), names(&recording.files));
    for (name, text) in &shipped {
        assert!(*text == recording.files[name], "{name} differs from what the scenario gives");
    }
    let truth = fs::read_to_string(base.with_extension("truth.toml")).expect("the truth");
    assert_eq!(truth, recording.truth);
}

#[test]
fn a_recording_is_not_written_over_anything_by_accident() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("rack");
    let scenario = root().join("examples/host-link-x8.toml");
    let record = |force: bool| {
        let mut command = binary();
        command.args(["sim", "record"]).arg(&scenario).arg(&target).args(["--readings", "1"]);
        if force {
            command.arg("--force");
        }
        command.assert()
    };
    record(false).success();
    assert!(target.join("claims.toml").is_file());
    assert!(folder.path().join("rack.truth.toml").is_file());
    record(false).code(2);
    record(true).success();
    fs::remove_file(target.join("claims.toml")).expect("removed");
    record(true).code(2);
    let left: Vec<_> = fs::read_dir(folder.path()).expect("readable").collect();
    assert_eq!(left.len(), 2, "nothing temporary is left");
}

#[test]
fn a_scenario_that_is_wrong_or_absent_ends_with_one_message_and_its_code() {
    let folder = tempfile::tempdir().expect("a folder");
    let broken = folder.path().join("broken.toml");
    fs::write(&broken, "title = \"t\"\nseeed = 1\n").expect("written");
    let run = |path: &Path| {
        binary().args(["sim", "record"]).arg(path).arg(folder.path().join("out")).assert()
    };
    let output = run(&broken).code(2).get_output().clone();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("broken.toml") && message.contains("line 2"), "{message}");
    run(&folder.path().join("absent.toml")).code(5);
    assert!(!folder.path().join("out").exists());
}

#[test]
fn fake_tools_answer_as_the_tool_does_there() {
    let fake = |tool: &str, node: &str| {
        let mut command = Command::new(root().join("tests/fakes").join(tool));
        command
            .env("FABRICGATE_BIN", assert_cmd::cargo::cargo_bin!("fabricgate"))
            .env("FABRICGATE_SIM", root().join("examples/corrupt.toml"))
            .env("FABRICGATE_SIM_NODE", node);
        command
    };
    let test = ["-t", "device_to_device_memcpy_read_ce"];
    let output = fake("nvbandwidth", "hgx01").args(test).assert().success().get_output().clone();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("\nSUM device_to_device_memcpy_read_ce "), "{text}");
    let output = fake("nvbandwidth", "hgx04").args(test).assert().code(1).get_output().clone();
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("ASSERT "));
    fake("nvidia-smi", "hgx01").args(["nvlink", "-s"]).assert().success();
    fake("nvbandwidth", "hgx99").assert().code(2);
}

#[test]
fn nccl_tests_write_their_json_file_where_asked() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("out.json");
    let scenario = root().join("examples/hgx-pod.toml");
    let mut command = binary();
    command.args(["sim", "tool", "all_reduce_perf", "--node", "hgx01", "--scenario"]);
    command.arg(scenario).args(["--", "-g", "8", "-b", "1M", "-e", "4M", "-J"]).arg(&file);
    command.assert().success();
    let text = fs::read_to_string(&file).expect("the file");
    let value: serde_json::Value = serde_json::from_str(&text).expect("valid JSON");
    assert_eq!(value["results"].as_array().map(Vec::len), Some(3));
    assert_eq!(value["config"]["devices"].as_array().map(Vec::len), Some(8));
}
