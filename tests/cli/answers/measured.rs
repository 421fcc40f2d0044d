//! `thresholds measured`: from a pod that is low alike to expectations of its own, as
//! an operator goes who knows why it is.

use std::fs;
use std::path::Path;

use super::{fabricgate, told};

/// Runs a command in a folder: its exit code and what it said.
fn says(folder: &Path, words: &[&str]) -> (Option<i32>, String, String) {
    let output = fabricgate(words).current_dir(folder).output().expect("fabricgate runs");
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), out, told(&output))
}

#[test]
fn a_pod_that_is_low_alike_is_expected_to_be_once_a_person_has_stated_it() {
    let place = tempfile::tempdir().expect("a folder");
    let pod = super::root().join("examples/all-low-alike.toml");
    let audit =
        ["audit", "--sim", pod.to_str().expect("utf-8"), "--run-dir", "runs", "--no-progress"];
    let (_, _, said) = says(place.path(), &audit);
    let run = fs::read_dir(place.path().join("runs")).expect(&said).next().expect("a run");
    let run = run.expect("an entry").path().display().to_string();
    let verdicts =
        |run: &str| fs::read_to_string(format!("{run}/verdicts.json")).expect("verdicts");
    assert!(verdicts(&run).contains("all-low-alike"), "{}", verdicts(&run));

    let state = ["thresholds", "measured", &run, "--output", "site.toml"];
    let (code, out, said) = says(place.path(), &state);
    assert_eq!((code, out.as_str()), (Some(0), ""), "{said}");
    // Nobody is to take a simulation for his machines.
    assert!(said.contains("simulated"), "{said}");
    let sheet = fs::read_to_string(place.path().join("site.toml")).expect("a file");
    assert!(sheet.contains("SIMULATED") && sheet.contains("platform = \"hgx-h100\""), "{sheet}");
    let (code, _, said) = says(place.path(), &["thresholds", "check", "site.toml"]);
    assert_eq!(code, Some(0), "{said}\n{sheet}");

    let (_, out, said) =
        says(place.path(), &["replay", &run, "--thresholds", "site.toml", "--json"]);
    assert!(out.contains("\"outcome\"") && !out.contains("all-low-alike"), "{said}\n{out}");

    // What is there is not lost by a second try.
    let (code, _, said) = says(place.path(), &state);
    assert!(code == Some(2) && said.contains("--force"), "{code:?} {said}");
    let (code, _, said) = says(place.path(), &[&state[..], &["--force"]].concat());
    assert_eq!(code, Some(0), "{said}");
    let other = ["thresholds", "measured", &run, "--platform", "hgx-h900"];
    let (code, _, said) = says(place.path(), &other);
    assert!(code == Some(2) && said.contains("hgx-h100"), "{code:?} {said}");
    // A platform that the run did not measure has no level there.
    let other = ["thresholds", "measured", &run, "--platform", "gb200-nvl72"];
    let (code, _, said) = says(place.path(), &other);
    assert!(code == Some(2) && said.contains("no level"), "{code:?} {said}");
}
