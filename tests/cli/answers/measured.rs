//! `thresholds measured`: from a pod that is uniformly low to the site's own expectations, as an
//! operator does who knows the cause.

use std::fs;
use std::path::Path;

use super::{fabricgate, stderr};

/// Runs a command in a folder: its exit code and its output.
fn answer(folder: &Path, words: &[&str]) -> (Option<i32>, String, String) {
    let output = fabricgate(words).current_dir(folder).output().expect("fabricgate runs");
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), out, stderr(&output))
}

#[test]
fn a_pod_that_is_low_alike_is_expected_to_be_once_a_person_has_stated_it() {
    let place = tempfile::tempdir().expect("a folder");
    let pod = super::root().join("examples/all-low-alike.toml");
    let audit =
        ["audit", "--sim", pod.to_str().expect("utf-8"), "--run-dir", "runs", "--no-progress"];
    let (_, _, stderr) = answer(place.path(), &audit);
    let run = fs::read_dir(place.path().join("runs")).expect(&stderr).next().expect("a run");
    let run = run.expect("an entry").path().display().to_string();
    let verdicts =
        |run: &str| fs::read_to_string(format!("{run}/verdicts.json")).expect("verdicts");
    assert!(verdicts(&run).contains("all-low-alike"), "{}", verdicts(&run));

    let state = ["thresholds", "measured", &run, "--output", "site.toml"];
    let (code, out, stderr) = answer(place.path(), &state);
    assert_eq!((code, out.as_str()), (Some(0), ""), "{stderr}");
    // No operator may mistake a simulation for real machines.
    assert!(stderr.contains("simulated"), "{stderr}");
    let sheet = fs::read_to_string(place.path().join("site.toml")).expect("a file");
    assert!(sheet.contains("SIMULATED") && sheet.contains("platform = \"hgx-h100\""), "{sheet}");
    let (code, _, stderr) = answer(place.path(), &["thresholds", "check", "site.toml"]);
    assert_eq!(code, Some(0), "{stderr}\n{sheet}");

    let (_, out, stderr) =
        answer(place.path(), &["replay", &run, "--thresholds", "site.toml", "--json"]);
    assert!(out.contains("\"outcome\"") && !out.contains("all-low-alike"), "{stderr}\n{out}");

    // A second attempt does not overwrite the file.
    let (code, _, stderr) = answer(place.path(), &state);
    assert!(code == Some(2) && stderr.contains("--force"), "{code:?} {stderr}");
    let (code, _, stderr) = answer(place.path(), &[&state[..], &["--force"]].concat());
    assert_eq!(code, Some(0), "{stderr}");
    let other = ["thresholds", "measured", &run, "--platform", "hgx-h900"];
    let (code, _, stderr) = answer(place.path(), &other);
    assert!(code == Some(2) && stderr.contains("hgx-h100"), "{code:?} {stderr}");
    // The run did not measure that platform, so it has no level there.
    let other = ["thresholds", "measured", &run, "--platform", "gb200-nvl72"];
    let (code, _, stderr) = answer(place.path(), &other);
    assert!(code == Some(2) && stderr.contains("no level"), "{code:?} {stderr}");
}
