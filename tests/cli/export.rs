//! `fabricgate export` and `fabricgate place` from outside, on a simulated run: refused and
//! written files, and how Lua and a shell read them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

/// A run of four HGX nodes, of which one has a GPU that lost a link.
fn run() -> &'static Path {
    static RUN: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, run) = RUN.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a folder");
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/hgx-lost-link.toml");
        let swept = fabricgate(&[
            "admit",
            "--no-progress",
            "--sim",
            text(&example),
            "--run-dir",
            text(dir.path()),
        ]);
        assert_eq!(swept.status.code(), Some(3), "{}", stderr(&swept));
        let mut runs = fs::read_dir(dir.path()).expect("runs").flatten().map(|entry| entry.path());
        let run = runs.find(|path| path.join("run.json").exists()).expect("a run");
        (dir, run)
    });
    run
}

#[expect(clippy::disallowed_methods, reason = "a test starts the program")]
fn fabricgate(words: &[&str]) -> Output {
    Command::new(assert_cmd::cargo::cargo_bin!("fabricgate"))
        .args(words)
        .output()
        .expect("it starts")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain name")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn on(run: &Path, command: &str, words: &[&str]) -> Output {
    fabricgate(&[&[command, text(run), "--even-if-simulated"], words].concat())
}

/// The message of a refusal with code 2.
fn refused(run: &Path, command: &str, words: &[&str]) -> String {
    let output = on(run, command, words);
    assert_eq!(output.status.code(), Some(2), "{words:?}: {}", stderr(&output));
    assert!(output.stdout.is_empty(), "{words:?}");
    stderr(&output)
}

/// A copy of the run that may be spoiled.
fn copy() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for entry in fs::read_dir(run()).expect("the run").flatten().filter(|it| it.path().is_file()) {
        fs::copy(entry.path(), dir.path().join(entry.file_name())).expect("copied");
    }
    dir
}

fn edit(dir: &Path, name: &str, from: &str, to: &str) {
    let path = dir.join(name);
    let before = fs::read_to_string(&path).expect("readable");
    assert!(before.contains(from), "{name} has {from}");
    fs::write(&path, before.replacen(from, to, 1)).expect("written");
}

#[test]
fn a_simulated_or_partial_run_is_refused_by_default() {
    let plain = fabricgate(&["export", text(run()), "--to", "map"]);
    assert_eq!(plain.status.code(), Some(2));
    assert!(stderr(&plain).contains("--even-if-simulated"), "{}", stderr(&plain));
    let partial = copy();
    edit(partial.path(), "run.json", "\"complete\"", "\"partial\"");
    assert!(refused(partial.path(), "export", &["--to", "map"]).contains("--even-if-partial"));
    assert!(
        refused(partial.path(), "place", &["-k", "2", "--node", "hgx01"])
            .contains("--even-if-partial")
    );
    let taken = on(partial.path(), "export", &["--to", "topograph", "--even-if-partial"]);
    let stdout = String::from_utf8(taken.stdout).expect("text");
    assert!(stdout.contains("# PARTIAL: ") && stdout.contains("# SIMULATED: "), "{stdout}");
}

#[test]
fn a_folder_that_is_damaged_newer_or_no_run_is_named() {
    let damaged = copy();
    fs::write(damaged.path().join("verdicts.json"), "{\"format\": \"fabricgate.verdicts/1\", ")
        .expect("written");
    assert!(refused(damaged.path(), "export", &["--to", "map"]).contains("verdicts.json"));
    let newer = copy();
    edit(newer.path(), "run.json", "fabricgate.run/1", "fabricgate.run/2");
    let message = refused(newer.path(), "export", &["--to", "map"]);
    assert!(message.contains("run.json") && message.contains("newer fabricgate"), "{message}");
    let empty = tempfile::tempdir().expect("a folder");
    assert!(refused(empty.path(), "place", &["-k", "1"]).contains("not a run folder"));
    let gone = on(Path::new("/no/such/run"), "export", &["--to", "map"]);
    assert_eq!(gone.status.code(), Some(5), "{}", stderr(&gone));
}

#[test]
fn a_request_that_does_not_fit_the_run_is_refused_with_the_expected_values() {
    for (command, words, expected) in [
        ("export", &["--to", "slrum"][..], "expected one of"),
        ("export", &["--to", "map", "--tp", "4"], "--tp: export to map does not read it"),
        ("export", &["--to", "ranks", "--nodes", "hgx01,hgx99"], "the run has no hgx99"),
        ("export", &["--to", "ranks", "--nodes", "hgx[01"], "--nodes hgx[01"),
        (
            "export",
            &["--to", "ranks", "--nodes", "hgx01", "--form", "xml"],
            "expected json, slurm or openmpi",
        ),
        ("export", &["--to", "slurm-topology"], "no domain of this run has two nodes"),
        ("place", &["-k", "9", "--node", "hgx01"], "-k 9: 9 GPUs requested, 8 GPUs eligible"),
        ("place", &["-k", "8", "--node", "hgx03"], "the first: hgx03:5: degraded: nvlink-low"),
        ("place", &["-k", "0", "--node", "hgx01"], "0 GPUs requested"),
        ("place", &["-k", "2"], "several domains: expected --domain"),
        ("place", &["-k", "2", "--node", "hgx99"], "no such node"),
        ("place", &["-k", "2", "--domain", "rack9"], "--domain rack9: the run has hgx01"),
    ] {
        let message = refused(run(), command, words);
        assert!(message.contains(expected), "{words:?}: {message}");
    }
}

#[test]
fn one_file_goes_to_its_path_and_json_is_one_document() {
    let dir = tempfile::tempdir().expect("a folder");
    let named = dir.path().join("env.sh");
    let asked = ["--to", "nccl-env", "--nodes", "hgx[01-02]"];
    let written = on(run(), "export", &[&asked[..], &["--output", text(&named)]].concat());
    assert_eq!((written.status.code(), written.stdout.len()), (Some(0), 0), "{}", stderr(&written));
    let shown = on(run(), "export", &asked);
    assert_eq!(fs::read(&named).expect("written"), shown.stdout);
    // A folder that exists receives the file under its default name.
    on(run(), "export", &[&asked[..], &["--output", text(dir.path())]].concat());
    assert_eq!(fs::read(dir.path().join("nccl.env.sh")).expect("written"), shown.stdout);
    let json = on(run(), "export", &[&asked[..], &["--json"]].concat());
    let document: Value = serde_json::from_slice(&json.stdout).expect("one document");
    assert_eq!(document["format"], "fabricgate.export/1");
    assert_eq!(document["files"][0]["content"].as_str().expect("text").as_bytes(), shown.stdout);
    let into = on(run(), "export", &[&asked[..], &["--output", "/no/such/folder/x"]].concat());
    assert_eq!(into.status.code(), Some(5), "{}", stderr(&into));
}

#[test]
fn a_place_is_explained_and_never_on_the_gpu_that_lost_a_link() {
    let asked = ["-k", "4", "--node", "hgx03", "--strategy", "both"];
    let json = on(run(), "place", &[&asked[..], &["--json"]].concat());
    let document: Value = serde_json::from_slice(&json.stdout).expect("one document");
    assert_eq!(document["format"], "fabricgate.placement/1");
    assert_eq!(
        (&document["candidates"], &document["excluded"][0]["part"]),
        (&7.into(), &"hgx03:5".into())
    );
    for choice in document["choices"].as_array().expect("choices") {
        let gpus: Vec<u64> = choice["parts"]
            .as_array()
            .expect("parts")
            .iter()
            .filter_map(|it| it["gpu"].as_u64())
            .collect();
        assert!(gpus.len() == 4 && !gpus.contains(&5), "{gpus:?}");
        assert_eq!(choice["exact"], true);
        assert!(0.9 < choice["weakest"]["strength"].as_f64().expect("a pair"));
        assert!(choice["next"]["parts"].is_array());
    }
    let people = String::from_utf8(on(run(), "place", &asked).stdout).expect("text");
    for word in
        ["best connected: 4 of 7", "weakest pair: hgx03:", "next best: ", "left out: hgx03:5"]
    {
        assert!(people.contains(word), "{word}: {people}");
    }
    // With this option, it is allocated first.
    let spare = ["-k", "1", "--node", "hgx03", "--strategy", "spare", "--allow-degraded", "--json"];
    let document: Value = serde_json::from_slice(&on(run(), "place", &spare).stdout).expect("JSON");
    assert_eq!(document["choices"][0]["parts"][0]["gpu"], 5);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test starts a shell")]
fn a_shell_reads_the_environment_as_it_is_meant() {
    let env = on(run(), "export", &["--to", "nccl-env", "--nodes", "hgx[01-02]"]);
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("env.sh");
    fs::write(&file, &env.stdout).expect("written");
    let script =
        ". \"$0\"; printf '%s %s' \"$NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN\" \"$USE_MNNVL\"";
    let sourced = Command::new("sh").args(["-euc", script, text(&file)]).output().expect("a shell");
    assert_eq!(String::from_utf8_lossy(&sourced.stdout), "8 0", "{}", stderr(&sourced));
}

/// A stub of the environment that Slurm gives a filter, and requests: nodes, segment, the
/// returned codes in the modes advise and enforce, and a part of the logged message.
const STUB: &str = r#"
slurm = { SUCCESS = 0, ERROR = -1 }
local logged = ""
function slurm.log_error(form, ...) logged = logged .. string.format(form, ...) end
slurm.log_info = slurm.log_error
local mode = arg[2] == "enforce" and 2 or 1
dofile(arg[1])
local function of(nodes, segment, codes, word)
  logged = ""
  local code = slurm_cli_pre_submit({ type = "sbatch", nodes = nodes, segment = segment }, 0)
  assert(code == codes[mode], tostring(nodes) .. " " .. tostring(segment) .. ": " .. tostring(code) .. " " .. logged)
  if word == nil then assert(logged == "", logged) else assert(string.find(logged, word, 1, true), logged) end
end
local pass, refuse = { 0, 0 }, { 0, -1 }
of(nil, nil, pass)
of("3", nil, pass)
of("4", "4", refuse, "the largest has 3")
of("9", nil, pass, "more than any NVLink domain holds")
of("6", "3", refuse, "need 2 segments, and NVLink domains have room for 1")
of("4", "2", pass, "verified nodes hold 1 of 2 segments")
of("2", "2", pass)
of("1", "9", pass)
of("1-8", "2", pass)
of("words", "-", pass)
of({}, {}, pass)
print("held")
"#;

#[test]
#[expect(clippy::disallowed_methods, reason = "a test starts Lua")]
fn lua_advises_or_refuses_segments_by_the_measurement() {
    let interpreters = ["lua5.1", "lua5.4", "lua5.3", "lua"];
    let Some(lua) = interpreters.iter().find(|it| Command::new(it).arg("-v").output().is_ok())
    else {
        println!("SKIPPED: no Lua is installed");
        return;
    };
    let dir = tempfile::tempdir().expect("a folder");
    let stub = dir.path().join("stub.lua");
    fs::write(&stub, STUB).expect("written");
    for mode in ["advise", "enforce"] {
        // Blocks of 2 verified nodes of 3 possible ones, and of 1 of 1.
        let head = format!(
            "local MODE = \"{mode}\"\nlocal RUN = \"r\"\nlocal BLOCKS = {{\n  {{ name = \"a\", verified = 2, possible = 3 }},\n  \
             {{ name = \"b\", verified = 1, possible = 2 }},\n}}\n"
        );
        let filter = dir.path().join("cli_filter.lua");
        fs::write(&filter, head + include_str!("../../src/engine/export/cli_filter.lua"))
            .expect("written");
        let ran = Command::new(lua).args([text(&stub), text(&filter), mode]).output().expect("Lua");
        assert_eq!(String::from_utf8_lossy(&ran.stdout), "held\n", "{mode}: {}", stderr(&ran));
    }
}
