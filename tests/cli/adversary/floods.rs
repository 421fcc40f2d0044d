//! Endless output without a line end: from a tool on a node, and from a process in place of a
//! worker. Memory is bounded by the limit on address space that [`super::place::Place::run`]
//! sets; the tests assert that the bound holds.

use std::fs;

use super::place::Place;

/// Megabytes that a tool prints here: four times the captured part of an output. A gigabyte, with
/// `FABRICGATE_FLOOD_MIB=1024`, takes a debug build half a minute.
const FLOOD_MIB: u64 = 256;

fn site(template: &str) -> Place {
    let place = Place::new();
    place.program("fabricgate", &format!("exec {} \"$@\"", env!("CARGO_BIN_EXE_fabricgate")));
    place.put("claims.toml", "[[domain]]\nname = \"a\"\nnodes = \"n1\"\nplatform = \"hgx-h100\"\n");
    let config = format!(
        "claims = \"claims.toml\"\nrun_dir = \"runs\"\n[launcher]\nkind = \"command\"\n\
         template = {template}\n[probes]\nrun = [\"nvbandwidth-ce\"]\nreadings = 1\n"
    );
    place.put("fabricgate.toml", config);
    place
}

#[test]
fn one_line_of_a_tool_that_does_not_end_is_cut_counted_and_unknown() {
    let megabytes = std::env::var("FABRICGATE_FLOOD_MIB").ok();
    let megabytes = megabytes.map_or(FLOOD_MIB, |it| it.parse().expect("a number"));
    let bytes = megabytes << 20;
    let place = site("[\"env\", \"N={node}\"]");
    place.program("nvbandwidth", &format!("head -c {bytes} /dev/zero | tr '\\0' x"));
    let ended = place.run(&["audit", "--config", "fabricgate.toml"]);
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    // No parser reads it: only its head and its tail are kept.
    let kept = 2 * (64 << 10);
    let message = format!("printed {} bytes beyond the size limit", bytes - kept);
    assert!(ended.stdout.contains(&message), "{}", ended.stdout);
    let largest = super::place::files(&place.path("runs"))
        .iter()
        .map(|file| fs::metadata(file).expect("there").len())
        .max();
    let largest = largest.expect("files");
    assert!(
        (kept..kept + 4_096).contains(&largest),
        "{largest}: something grows with what was printed"
    );
}

#[test]
fn tools_that_flood_on_all_nodes_cost_a_bounded_sum_of_memory_and_disk() {
    let mut place = site("[\"env\", \"N={node}\"]");
    place.memory = 1 << 20;
    place.put(
        "claims.toml",
        "[[domain]]\nnodes = \"n[1-2]\"\nplatform = \"hgx-h100\"\nper_node = true\n",
    );
    let flood =
        "head -c 8388608 /dev/zero | tr '\\0' x\nhead -c 8388608 /dev/zero | tr '\\0' y >&2";
    place.program("nvbandwidth", flood);
    let ended = place.run(&["audit", "--config", "fabricgate.toml"]);
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    let files = super::place::files(&place.path("runs"));
    let all: u64 = files.iter().map(|file| fs::metadata(file).expect("there").len()).sum();
    assert!(all < 2 << 20, "{all} bytes of 32 MiB are kept");
}

#[test]
fn a_flood_in_place_of_a_greeting_costs_only_its_node() {
    // A gigabyte on both streams, neither with a line end.
    let place = site("[\"flood\", \"{node}\"]");
    let flood =
        "head -c 1073741824 /dev/zero | tr '\\0' x >&2 &\nexec head -c 1073741824 /dev/zero";
    place.program("flood", flood);
    let ended = place.run(&["audit", "--config", "fabricgate.toml"]);
    assert!([Some(4), Some(5)].contains(&ended.code), "{}", ended.stderr);
    let message = "a line of more than 1048576 bytes";
    assert!(ended.stderr.contains(message), "{}", ended.stderr);
}

#[test]
fn a_gigabyte_in_one_line_of_a_file_is_refused_by_everything_that_reads_files() {
    let place = Place::new();
    let file = fs::File::create(place.path("line")).expect("a file");
    file.set_len(1 << 30).expect("a sparse file");
    for args in [&["parse", "line"][..], &["claims", "line"], &["audit", "--sim", "line"]] {
        let ended = place.run(args);
        assert!([Some(2), Some(5)].contains(&ended.code), "{args:?}: {ended:?}");
    }
}
