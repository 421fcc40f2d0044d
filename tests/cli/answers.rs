//! Output of commands in all forms: to programs, into closed pipes, onto full disks.

mod measured;
mod schemas;

use std::fs::File;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[expect(clippy::disallowed_methods, reason = "a test starts the program itself")]
fn fabricgate(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricgate"));
    command.args(words).current_dir(root()).stdin(Stdio::null());
    command
}

fn answer(words: &[&str]) -> Output {
    fabricgate(words).output().expect("fabricgate runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_full_disk_is_the_environment_and_no_bug() {
    for words in [
        &["thresholds", "list"][..],
        &["thresholds", "show", "hgx-h100", "--json"],
        &["probes", "list"],
        &["plan", "audit", "--sim"],
        &["judge", "tests/recorded/rack-lost-link"],
    ] {
        let full = File::options().write(true).open("/dev/full").expect("Linux has one");
        let output = fabricgate(words).stdout(full).output().expect("fabricgate runs");
        assert_eq!(output.status.code(), Some(5), "{words:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("standard output cannot be written"), "{words:?}");
    }
}

#[test]
fn an_error_without_a_writable_stderr_still_has_its_exit_code() {
    for (words, code) in [
        (&["parse", "nowhere.txt"][..], 5),
        (&["thresholds", "show", "nothing"], 2),
        (&["sim", "record", "nowhere.toml", "nowhere"], 5),
    ] {
        let full = File::options().write(true).open("/dev/full").expect("Linux has one");
        let output = fabricgate(words).stderr(full).output().expect("fabricgate runs");
        assert_eq!(output.status.code(), Some(code), "{words:?}");
    }
}

#[test]
fn verdicts_on_names_that_steer_a_terminal_steer_none() {
    let scratch = tempfile::tempdir().expect("a folder");
    let node = scratch.path().join("nodes/n1");
    std::fs::create_dir_all(&node).expect("a folder");
    // An output that stops early: the unknown part names its file.
    let text = "nvbandwidth Version: v0.8\nRunning device_to_device\n";
    std::fs::write(node.join("\u{202e}\u{9b}31m.txt"), text).expect("written");
    let folder = scratch.path().to_str().expect("utf-8");
    for more in [&["--json"][..], &[]] {
        let output = answer(&[&["judge", folder], more].concat());
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("u202e") || text.contains("u{202e}"), "{text}");
        assert!(!text.contains(['\u{202e}', '\u{9b}']), "{more:?}: {text:?}");
    }
}

#[test]
fn a_form_together_with_json_is_a_usage_error() {
    let output = answer(&["report", "nowhere", "--format", "csv", "--json"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("--format"), "{}", stderr(&output));
}

#[test]
fn a_recording_gives_programs_its_path() {
    let scratch = tempfile::tempdir().expect("a folder");
    let folder = scratch.path().join("rack");
    let folder = folder.to_str().expect("utf-8");
    let output = answer(&["sim", "record", "examples/rack-lost-link.toml", folder, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(document["format"], "fabricgate.sim-record/1");
    for file in document["files"].as_array().expect("a list") {
        let path = Path::new(folder).join(file.as_str().expect("a name"));
        assert!(path.is_file(), "{}", path.display());
    }
    assert!(Path::new(document["truth"].as_str().expect("a name")).is_file());
}

#[test]
fn a_configuration_that_ships_can_be_planned_from() {
    let output = answer(&["plan", "burn-in", "--config", "examples/audit/fabricgate.toml"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    for part in ["burn-in: ", "stage 5 ib-write-bw: ", "stage 5 nvbandwidth-pair: "] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn the_configuration_in_the_readme_is_one() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md");
    // Quoted blocks are indented by four; the first line identifies each of the two files.
    let block = |first: &str| -> String {
        let lines = readme.lines().skip_while(|line| !line.starts_with(first));
        let inside = lines.take_while(|line| line.is_empty() || line.starts_with("    "));
        inside.map(|line| line.get(4..).unwrap_or("")).collect::<Vec<_>>().join("\n")
    };
    let scratch = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        std::fs::write(scratch.path().join(name), text).expect("a file is written");
    };
    write("claims.toml", &block("    [[domain]]"));
    write("fabricgate.toml", &block("    claims = "));
    write(
        "site.toml",
        &std::fs::read_to_string(root().join("thresholds/gb200-nvl72.toml")).expect("it ships"),
    );
    std::fs::create_dir(scratch.path().join("probes")).expect("a folder");
    let config = scratch.path().join("fabricgate.toml");
    let config = config.to_str().expect("utf-8");
    let output = answer(&["plan", "burn-in", "--config", config]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("stage 2 nvbandwidth-lane: "));
}
