//! Sweeps with a low limit of open files.

use std::collections::BTreeSet;

use super::*;

/// A fleet of thirty under these limits of open files, soft and hard.
fn under(soft: u64, hard: u64) -> (Place, Output) {
    let probe = "ulimit -Sn >> \"$SWEEP_PLACE/limits\"; cat \"$SWEEP_PLACE/output\"";
    let place = Place::fakes("n[01-30]", LAUNCH, 120, &[("counts", probe)]);
    let limits = format!("ulimit -Sn {soft}; ulimit -Hn {hard}; exec \"$0\" \"$@\"");
    let child = place.start_by(&["sh", "-c", &limits], &["audit", "--config", "fabricgate.toml"]);
    let output = ended(child);
    (place, output)
}

#[test]
fn more_workers_than_files_leave_nodes_unknown_and_the_run_whole() {
    let (place, output) = under(128, 128);
    // Some nodes are out of reach.
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let folder = place.folder();
    assert_eq!(state(&folder), "complete");
    let document = verdicts(&folder);
    let nodes = nodes(&document);
    assert_eq!(nodes.len(), 30);
    let full = "a limit of 128 open files allows only 16 workers";
    let lines = lines(&folder, "results.jsonl");
    let is_left =
        |line: &&Value| line["ending"]["why"].as_str().is_some_and(|it| it.contains(full));
    let left: BTreeSet<&str> =
        lines.iter().filter(is_left).filter_map(|line| line["nodes"][0].as_str()).collect();
    assert_eq!(left.len(), 14, "{left:?}");
    assert!(left.iter().all(|node| nodes[*node].0 == "unknown"), "{nodes:#?}");
    // The others were measured, and their results are kept.
    let exited = lines.iter().filter(|line| line["ending"]["how"] == "exited");
    let measured: BTreeSet<&str> = exited.filter_map(|line| line["nodes"][0].as_str()).collect();
    assert_eq!(measured.len(), 16);
    assert!(left.is_disjoint(&measured));
    place.nothing_is_left_running();
}

#[test]
fn the_limit_is_raised_where_it_may_be_and_nodes_are_not_given_the_raised_one() {
    let (place, output) = under(64, 512);
    let folder = place.folder();
    let exited = |line: &Value| line["ending"]["how"] == "exited";
    let lines = lines(&folder, "results.jsonl");
    assert_eq!(lines.iter().filter(|line| exited(line)).count(), 30, "{}", stderr(&output));
    let limits = fs::read_to_string(place.path("limits")).expect("written by every node");
    assert_eq!(limits.lines().count(), 30);
    assert!(limits.lines().all(|limit| limit == "64"), "{limits}");
    place.nothing_is_left_running();
}
