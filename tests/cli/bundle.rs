//! Evidence bundles from outside: packed from a real run folder of a simulated fabric,
//! unpacked and checked by `tar` and `sha256sum`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use assert_cmd::Command;
use serde_json::Value;

const BAD: &str = "hgx03";

fn binary() -> Command {
    Command::new(assert_cmd::cargo::cargo_bin!("fabricgate"))
}

/// One run for all tests: a GPU of one of several servers has lost a link.
fn run() -> &'static Path {
    static RUN: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, run) = RUN.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a folder");
        let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/hgx-lost-link.toml");
        let mut sweep = binary();
        sweep
            .args(["admit", "--no-progress", "--sim"])
            .arg(scenario)
            .arg("--run-dir")
            .arg(dir.path());
        sweep.assert().code(3);
        let mut inside = fs::read_dir(dir.path()).expect("readable");
        let run = inside.next().expect("a run").expect("an entry").path();
        (dir, run)
    });
    run
}

/// The program's standard output and standard error; it must end with this code.
fn run_program(args: &[&str], code: i32) -> (String, String) {
    let ended = binary().args(args).assert().code(code).get_output().clone();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (text(ended.stdout), text(ended.stderr))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a name of text")
}

/// Packs a bundle of a run and unpacks it with `tar`: its folder, and its listing.
fn unpacked(run: &Path, node: &str, more: &[&str], into: &Path) -> (PathBuf, String) {
    let archive = into.join("bundle.tar.gz");
    let mut args = vec!["report", text(run), "--bundle", node, "--output", text(&archive)];
    args.extend(more);
    run_program(&args, 0);
    let listed = Command::new("tar").args(["-tvzf", text(&archive)]).assert().success();
    let listing = String::from_utf8(listed.get_output().stdout.clone()).expect("text");
    Command::new("tar").args(["-xzf", text(&archive), "-C", text(into)]).assert().success();
    let run = run.file_name().expect("a name").to_str().expect("text");
    (into.join(format!("fabricgate-{run}-{node}")), listing)
}

fn files_below(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).expect("readable") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).expect("below").display().to_string();
                found.push((name, fs::read(&path).expect("readable")));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn tar_and_sha256sum_accept_a_bundle_and_it_is_the_same_every_time() {
    let dir = tempfile::tempdir().expect("a folder");
    let (folder, listing) = unpacked(run(), BAD, &[], dir.path());
    let checked = Command::new("sha256sum")
        .args(["--strict", "-c", "MANIFEST.sha256"])
        .current_dir(&folder)
        .assert()
        .success();
    let checked = String::from_utf8(checked.get_output().stdout.clone()).expect("text");
    // All files but the manifest are in it.
    assert_eq!(checked.lines().count(), files_below(&folder).len() - 1);
    let names: Vec<&str> =
        listing.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert!(names.is_sorted(), "{listing}");
    assert!(listing.lines().all(|line| line.starts_with("-rw-r--r-- 0/0 ")), "{listing}");

    let first = fs::read(dir.path().join("bundle.tar.gz")).expect("readable");
    let again = tempfile::tempdir().expect("a folder");
    unpacked(run(), BAD, &[], again.path());
    assert!(first == fs::read(again.path().join("bundle.tar.gz")).expect("readable"));
}

#[test]
fn a_bundle_has_the_evidence_for_and_against_and_the_hardware() {
    let dir = tempfile::tempdir().expect("a folder");
    let (folder, _) = unpacked(run(), BAD, &[], dir.path());
    let read = |name: &str| fs::read_to_string(folder.join(name)).expect(name);
    let document: Value = serde_json::from_str(&read("bundle.json")).expect("JSON");
    assert_eq!(document["format"], "fabricgate.bundle/2");
    assert_eq!(document["verdict"]["outcome"], "degraded");
    assert_eq!(document["against"][0]["locus"]["gpu"], 5);

    // Every reading is of this node, and the blaming ones are of its fifth GPU.
    let matrix = read("matrix.csv");
    let rows: Vec<Vec<&str>> = matrix.lines().skip(1).map(|row| row.split(',').collect()).collect();
    assert!(rows.iter().all(|row| row[4] == BAD && row[6] == BAD), "{matrix}");
    let (blaming, fine): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row[14] == "degraded");
    assert!(!blaming.is_empty() && blaming.iter().all(|row| row[5] == "5" || row[7] == "5"));
    assert!(fine.iter().any(|row| row[14] == "pass"), "the other GPUs with each other");

    let serials = read("serials.csv");
    assert_eq!(serials.lines().filter(|row| row.contains(",UUID,GPU-")).count(), 8);
    assert!(serials.contains("GPU 5,board serial,not known"), "{serials}");

    // The index lists only files that are packed, and only this node's.
    let index = read("raw/index.csv");
    for row in index.lines().skip(1) {
        let name = row.split(',').next().expect("a field");
        assert!(name.starts_with(&format!("raw/nodes/{BAD}/")) || name.is_empty(), "{row}");
        assert!(name.is_empty() || folder.join(name).is_file(), "{row}");
    }
    assert!(index.contains("nvidia-smi nvlink -s"), "{index}");
    let page = read("report.html");
    for word in [BAD, "DEGRADED", "<svg"] {
        assert!(page.contains(word), "{word}");
    }
    assert!(!page.contains("hgx02"), "it names another server");
}

#[test]
fn a_bundle_as_json_lists_only_the_packed_files() {
    let dir = tempfile::tempdir().expect("a folder");
    let archive = dir.path().join("x.tar.gz");
    let args = ["--json", "report", text(run()), "--bundle", BAD, "--output", text(&archive)];
    let (stdout, stderr) = run_program(&args, 0);
    let document: Value = serde_json::from_str(&stdout).expect("one document");
    assert_eq!(
        (&document["format"], &document["outcome"]),
        (&"fabricgate.packed/1".into(), &"degraded".into())
    );
    let bytes = fs::read(&archive).expect("readable");
    assert_eq!(document["bytes"], bytes.len());
    let files = document["files"].as_array().expect("files");
    assert!(files.iter().any(|it| it["name"] == "MANIFEST.sha256"));
    assert_eq!((&document["missing"], stderr.as_str()), (&serde_json::json!([]), ""));
}

#[test]
fn a_passing_node_has_a_bundle_with_that_verdict() {
    let dir = tempfile::tempdir().expect("a folder");
    let (folder, _) = unpacked(run(), "hgx01", &[], dir.path());
    let page = fs::read_to_string(folder.join("report.html")).expect("a page");
    assert!(page.contains("PASS") && !page.contains("DEGRADED"), "{page}");
    let matrix = fs::read_to_string(folder.join("matrix.csv")).expect("a table");
    assert!(matrix.lines().skip(1).all(|row| row.ends_with(",pass")), "{matrix}");
}

#[test]
fn an_unknown_node_is_refused_with_names_that_look_like_it() {
    let (_, stderr) = run_program(&["report", text(run()), "--bundle", "hgx3"], 2);
    assert!(stderr.contains("no such node in") && stderr.contains(BAD), "{stderr}");
    let (_, stderr) = run_program(&["report", text(run()), "--redact"], 2);
    assert!(stderr.contains("--bundle"), "{stderr}");
}

#[test]
fn node_facts_bring_serial_numbers_and_those_of_another_node_do_not() {
    let dir = tempfile::tempdir().expect("a folder");
    let facts = dir.path().join("facts.json");
    let gpu = r#"{"index": 5, "serial": "1650123", "platform": {"chassis_serial": "CH-7", "slot": 3, "tray": 2,
        "host": 0, "peer_type": 1, "module": 6}}"#;
    let nic = r#"{"device": "mlx5_0", "rdma": true, "port_guid": "0011223344556677"}"#;
    let line = |node: &str| {
        let facts = format!(
            r#"{{"format": "fabricgate.node-facts/1", "hostname": "{node}", "gpus": [{gpu}], "nics": [{nic}]}}"#
        );
        format!("{{\"node\": \"{node}\", \"facts\": {}}}\n", facts.replace('\n', " "))
    };
    let with = |text_of: &str| {
        fs::write(&facts, text_of).expect("written");
        let (folder, _) = unpacked(run(), BAD, &["--facts", text(&facts)], dir.path());
        fs::read_to_string(folder.join("serials.csv")).expect("a table")
    };
    let serials = with(&line(BAD));
    for row in [
        "GPU 5,board serial,1650123",
        "GPU 5,chassis serial,CH-7",
        "NIC mlx5_0,port GUID,0011223344556677",
    ] {
        assert!(serials.contains(row), "{serials}");
    }
    assert!(!with(&line("hgx01")).contains("1650123"));
    fs::write(&facts, "{\"node\": 1}\n").expect("written");
    let (_, stderr) =
        run_program(&["report", text(run()), "--bundle", BAD, "--facts", text(&facts)], 2);
    assert!(
        stderr.contains("facts.json:1:") && stderr.contains("fabricgate.node-facts/1"),
        "{stderr}"
    );
}

fn copied(into: &Path) -> PathBuf {
    let copy = into.join(run().file_name().expect("a name"));
    for (name, bytes) in files_below(run()) {
        let path = copy.join(name);
        fs::create_dir_all(path.parent().expect("has one")).expect("made");
        fs::write(path, bytes).expect("written");
    }
    copy
}

#[test]
fn a_damaged_run_gives_its_readable_part_and_reports_the_rest() {
    let dir = tempfile::tempdir().expect("a folder");
    let copy = copied(dir.path());
    fs::write(copy.join("verdicts.json"), "{\"format\": \"fabricgate.verdicts/9\"}")
        .expect("written");
    fs::remove_file(copy.join("plan.json")).expect("removed");
    let cells = fs::read_to_string(copy.join("cells.jsonl")).expect("readable");
    fs::write(copy.join("cells.jsonl"), format!("{{\n{cells}")).expect("written");
    let raw = files_below(&copy.join("raw/nodes").join(BAD));
    fs::remove_file(copy.join("raw/nodes").join(BAD).join(&raw[0].0)).expect("removed");
    let (folder, _) = unpacked(&copy, BAD, &[], dir.path());
    let page = fs::read_to_string(folder.join("report.html")).expect("a page");
    for word in ["newer fabricgate", "cells.jsonl:1:", "cannot be read", "was not judged"] {
        assert!(page.contains(word), "{word}: {page}");
    }
    Command::new("sha256sum")
        .args(["-c", "MANIFEST.sha256"])
        .current_dir(&folder)
        .assert()
        .success();

    fs::write(copy.join("run.json"), "{").expect("written");
    let (_, stderr) = run_program(&["report", text(&copy), "--bundle", BAD], 2);
    assert!(stderr.contains("run.json:1:"), "{stderr}");
    let empty = tempfile::tempdir().expect("a folder");
    let (_, stderr) = run_program(&["report", text(empty.path()), "--bundle", BAD], 2);
    assert!(stderr.contains("not a run folder"), "{stderr}");
}

#[test]
fn a_path_that_leads_out_of_the_run_is_not_followed() {
    let dir = tempfile::tempdir().expect("a folder");
    let copy = copied(dir.path());
    fs::write(dir.path().join("secret"), "the secret").expect("written");
    let results = fs::read_to_string(copy.join("results.jsonl")).expect("readable");
    let name =
        results.split("\"stdout\":\"").find(|it| it.starts_with(&format!("raw/nodes/{BAD}/")));
    let name = name.and_then(|it| it.split('"').next()).expect("an output");
    fs::write(copy.join("results.jsonl"), results.replace(name, "../secret")).expect("written");
    let (folder, _) = unpacked(&copy, BAD, &[], dir.path());
    assert!(
        files_below(&folder)
            .iter()
            .all(|(_, it)| !String::from_utf8_lossy(it).contains("the secret"))
    );
}

#[test]
fn redaction_leaves_no_name_of_another_node_and_no_address() {
    let dir = tempfile::tempdir().expect("a folder");
    let copy = copied(dir.path());
    let raw = copy.join("raw/nodes").join(BAD);
    let (name, _) = files_below(&raw).remove(0);
    let planted = "at hgx02.bad.example.com, 10.1.2.3 and /home/olga/x by olga@hgx01\n";
    let text_of = fs::read_to_string(raw.join(&name)).expect("text");
    fs::write(raw.join(&name), format!("{planted}{text_of}")).expect("written");
    let (folder, listing) = unpacked(&copy, BAD, &["--redact"], dir.path());
    let all = files_below(&folder);
    for (name, bytes) in &all {
        let text = String::from_utf8_lossy(bytes);
        for word in ["hgx01", "hgx02", "hgx04", "10.1.2.3", "olga", "bad.example.com"] {
            assert!(!text.contains(word) && !name.contains(word), "{name}: {word}");
        }
    }
    assert!(!listing.contains("hgx02"));
    let page = fs::read_to_string(folder.join("report.html")).expect("a page");
    assert!(page.contains(BAD) && page.contains("Not replaced: names of domains"), "{page}");
    Command::new("sha256sum")
        .args(["-c", "MANIFEST.sha256"])
        .current_dir(&folder)
        .assert()
        .success();
}
