//! `fabricgate capacity` against a real Slurm: blocks and what of them is out.

use serde_json::Value;

use super::*;

/// The program that is asked, where it is not the one built with these tests.
const BINARY: &str = "FABRICGATE_LAB_BINARY";

/// What `capacity --from slurm --json` with these arguments besides prints, and
/// its exit code.
fn capacity(lab: &Lab, arguments: &[&str]) -> (Value, i32) {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("fabricgate.toml");
    let run = &lab.run;
    let text = format!(
        "[sources.slurm]\nscontrol = [{run:?}, \"scontrol\"]\nsinfo = [{run:?}, \"sinfo\"]\n"
    );
    std::fs::write(&config, text).expect("written");
    let config = config.display().to_string();
    let binary = std::env::var(BINARY).unwrap_or(env!("CARGO_BIN_EXE_fabricgate").to_owned());
    let words = [&binary, "capacity", "--json", "--from", "slurm", "--config", &config];
    let argv = [&words, arguments].concat().into_iter().map(str::to_owned).collect();
    let request = Request { argv, limit: Duration::from_secs(120), capture: exec::CAPTURE };
    let (_nobody, stop) = tokio::sync::watch::channel(false);
    let finished = now(exec::run(&request, stop)).expect("the program");
    let Ending::Exited { code } = finished.ending else { panic!("{}", finished.ending) };
    let document = serde_json::from_slice(&finished.stdout.bytes).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(&finished.stderr.bytes))
    });
    (document, code)
}

#[test]
fn two_blocks_of_eighteen_and_one_drained_node_are_seen() {
    let Some(lab) = lab() else { return };
    let mix = ["--mix", "16=1"];
    let (before, code) = capacity(&lab, &mix);
    assert_eq!(code, 0, "{before}");
    lab.run(&["scontrol", "update", "NodeName=node0003", "State=DRAIN", "Reason=lab: capacity"]);
    let (after, code) = capacity(&lab, &mix);
    lab.run(&["scontrol", "update", "NodeName=node0003", "State=RESUME"]);
    lab.settle();
    assert_eq!(code, 0, "{after}");

    let blocks = |document: &Value| document["blocks"].as_array().expect("blocks").clone();
    let shape = |document: &Value| -> Vec<(String, u64, u64)> {
        let number = |value: &Value| value.as_u64().expect("a number");
        let name = |value: &Value| value.as_str().expect("a name").to_owned();
        let of = |it: &Value| (name(&it["name"]), number(&it["nodes"]), number(&it["out"]));
        blocks(document).iter().map(of).collect()
    };
    let both = |first| vec![("block01".to_owned(), 18, first), ("block02".to_owned(), 18, 0)];
    assert_eq!(shape(&before), both(0));
    assert_eq!(shape(&after), both(1));
    assert_eq!(blocks(&after)[0]["out_nodes"], serde_json::json!(["node0003"]));
    // The second drain of a block costs more than the first.
    let next = |document: &Value, at: usize| {
        let drains = blocks(document)[at]["outlooks"][0]["mixed"]["drains"].clone();
        drains[0].as_f64().expect("a price")
    };
    assert!((next(&before, 0) - 0.185).abs() < 0.001, "{before}");
    assert!((next(&after, 0) - 2.180).abs() < 0.001, "{after}");
    assert!((next(&after, 1) - 0.185).abs() < 0.001, "{after}");
}
