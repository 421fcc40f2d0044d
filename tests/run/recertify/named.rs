//! Defects 13 and 19 of the operator's review: a run is found by its id, by `latest`, by the
//! reason of a drain, and by a node alone.

use super::{Place, json_of, lost};

/// Two runs: a GPU of n2 is bad in the first, none in the second. Their ids.
fn twice() -> (Place, String, String) {
    let place = Place::measured(&lost("n2:1", 9));
    place.now("");
    // The ids are ordered by second.
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    place.run(&["recertify", "--all", "--no-progress"]).expect(0);
    let runs = place.runs();
    let id = |at: usize| {
        let record = json_of(&runs[at].join("run.json"));
        record["info"]["id"].as_str().expect("an id").to_owned()
    };
    let (bad, good) = (id(0), id(1));
    (place, bad, good)
}

#[test]
fn a_run_is_named_by_id_latest_reason_or_node() {
    let (place, bad, good) = twice();
    let reason = format!("fabricgate:nvlink-low:{bad} e7");
    let older = format!("fabricgate:{bad}:nvlink-low e7 : Not responding");
    for (words, run, locus) in [
        (vec!["explain", bad.as_str(), "n2"], &bad, "n2"),
        (vec!["explain", &reason], &bad, "n2"),
        (vec!["explain", &reason, "n3"], &bad, "n3"),
        (vec!["explain", &older], &bad, "n2"),
        (vec!["explain", "latest", "n2"], &good, "n2"),
        (vec!["explain", "n2"], &good, "n2"),
        (vec!["explain", "n2:1"], &good, "n2:1"),
    ] {
        let output = place.run(&[words.as_slice(), &["--json"]].concat()).expect(0).document();
        assert_eq!(
            (&output["run"], &output["locus"]),
            (&(run.as_str().into()), &locus.into()),
            "{words:?}"
        );
    }
    let (latest, folder) = ("latest", format!("runs/{bad}"));
    for words in [
        vec!["apply", latest],
        vec!["report", latest],
        vec!["replay", latest],
        vec!["place", latest, "-k", "2", "--even-if-simulated"],
        vec!["export", latest, "--to", "map", "--even-if-simulated"],
        vec!["report", latest, "--format", "html", "--output", "a.html", "--before", &bad],
        vec!["recertify", "n2", "--no-progress", "--before", &reason],
    ] {
        place.run(&words).expect(0);
    }
    // An earlier run as a reference: one that is found, and not the run itself.
    for (earlier, count) in [(bad.as_str(), 1), (&reason, 1), (&folder, 1), (latest, 0)] {
        let output = place.run(&["replay", latest, "--history", earlier]).expect(0);
        let message = format!("history: {count} earlier runs");
        assert!(output.stderr.contains(&message), "{earlier}: {}", output.stderr);
    }
    for command in ["apply", "report", "replay"] {
        let by_folder = place.run(&[command, &folder, "--json"]);
        for name in [&bad, &reason] {
            assert_eq!(place.run(&[command, name, "--json"]).stdout, by_folder.stdout, "{command}");
        }
    }
}

#[test]
fn a_reference_without_a_run_is_refused_with_valid_forms() {
    let (place, bad, _) = twice();
    let other = "fabricgate:nvlink-low:20200101-000000-abcdef e7";
    for (words, code, message) in [
        // As `sinfo -R` shows it.
        (vec!["explain", "fabricgate:nvlink-lo"], 2, "20 characters"),
        (vec!["explain", other], 5, "is not in"),
        (vec!["explain", &bad], 2, "it found something about n2"),
        (vec!["explain", "n99"], 2, "no run in"),
        (vec!["report", "20200101-000000-abcdef"], 5, "20200101-000000-abcdef"),
    ] {
        let output = place.run(&words).expect(code);
        assert!(output.stderr.contains(message), "{words:?}: {}", output.stderr);
    }
    std::fs::remove_dir_all(place.path().join("runs")).expect("removed");
    let output = place.run(&["report", "latest"]).expect(5);
    assert!(output.stderr.contains("there is no run in"), "{}", output.stderr);
}
