//! `fabricgate capacity` from outside: its calculation, its inputs from files and sources, its
//! refusals, and its document, which quotes it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use assert_cmd::Command;
use serde_json::Value;

/// Time after which a command counts as hanging.
const HANG: Duration = Duration::from_secs(120);

const BLOCKS: &str = "- topology: nvl\n  cluster_default: true\n  block:\n    block_sizes: [2]\n    blocks:\n\
    \u{20}     - block: b1\n        nodes: n[1-4]\n      - block: b2\n        nodes: n[5-8]\n";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn capacity(folder: &Path, words: &[&str]) -> Output {
    Command::new(assert_cmd::cargo::cargo_bin!("fabricgate"))
        .arg("capacity")
        .args(words)
        .current_dir(folder)
        .env_remove("FABRICGATE_CONFIG")
        .env("NO_COLOR", "1")
        .timeout(HANG)
        .output()
        .expect("the program starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The document that these arguments print, with this exit code.
fn document(folder: &Path, words: &[&str], code: i32) -> Value {
    let output = capacity(folder, &[&["--json"], words].concat());
    assert_eq!(output.status.code(), Some(code), "{words:?}: {}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(document["format"], "fabricgate.capacity/1");
    document
}

/// The prices of the next drains in the mix, of the first block.
fn drains(document: &Value) -> Vec<f64> {
    let drains = document["blocks"][0]["outlooks"][0]["mixed"]["drains"].as_array();
    drains.expect("prices").iter().map(|price| price.as_f64().expect("a price")).collect()
}

fn near(values: &[f64], expected: &[f64]) -> bool {
    values.len() == expected.len()
        && values.iter().zip(expected).all(|(value, expected)| (value - expected).abs() < 0.005)
}

fn list(value: &Value, key: &str) -> Vec<Value> {
    value.as_array().expect("a list").iter().map(|it| it[key].clone()).collect()
}

#[test]
fn a_block_of_eighteen_is_the_default() {
    let document = document(root(), &["--mix", "16=1"], 0);
    let block = &document["blocks"][0];
    assert_eq!((&block["nodes"], &block["out"]), (&18.into(), &0.into()));
    assert_eq!(document["assumptions"][0]["unavailable"], 0.01);
    let segments = list(&block["outlooks"][0]["segments"], "segment");
    assert_eq!(segments, [1, 2, 4, 8, 9, 16, 18].map(Value::from));
    assert!(near(&drains(&document), &[0.19, 2.18, 13.62, 0.0]), "{document}");
    let ranking = list(&block["outlooks"][0]["ranking"], "segment");
    assert_eq!(ranking, [9, 16, 18].map(Value::from));
}

#[test]
fn options_reach_the_reckoning() {
    let words = ["--out", "2", "--unavailable", "3%,0.01", "--mix", "16=1", "--segment", "16"];
    let of = document(root(), &words, 0);
    assert!(near(&drains(&of)[..1], &[9.83]), "{of}");
    let outlooks = of["blocks"][0]["outlooks"].as_array().expect("two").len();
    assert_eq!(outlooks, 2);
    let of = document(root(), &["--mix", "16=1", "--degraded", "50%", "--exposed", "1"], 0);
    let size = of["blocks"][0]["outlooks"][0]["mixed"]["break_even"].as_f64().expect("a size");
    assert!((size - 0.185).abs() < 0.001, "{size}");
    let of = document(root(), &["--at-least", "17"], 0);
    let ranking = list(&of["blocks"][0]["outlooks"][0]["ranking"], "segment");
    assert_eq!(ranking, [Value::from(18)]);
    assert_eq!(of["blocks"][0]["outlooks"][0].get("mixed"), None);
}

#[test]
fn unset_options_take_the_policys_values() {
    let folder = tempfile::tempdir().expect("a folder");
    let policy =
        "claims = \"c.toml\"\n[policy]\nexposed = 1.0\nunavailable = 0.03\nmix = { 16 = 1.0 }\n";
    fs::write(folder.path().join("f.toml"), policy).expect("written");
    let config = ["--config", "f.toml", "--nodes", "18", "--out", "2", "--degraded", "50%"];
    let of = document(folder.path(), &config, 0);
    let options = ["--out", "2", "--degraded", "50%", "--exposed", "1", "--unavailable", "3%"];
    let asked = document(folder.path(), &[&options[..], &["--mix", "16=1"]].concat(), 0);
    assert_eq!(of["blocks"], asked["blocks"]);
    assert_eq!(of["mix"], asked["mix"]);
    let own = ["--unavailable", "1%", "--mix", "8=1", "--exposed", "30%"];
    let over = document(folder.path(), &[&config[..], &own[..]].concat(), 0);
    assert_eq!(over["assumptions"][0]["unavailable"], 0.01);
    assert_eq!(over["mix"]["8"], 1.0);
    assert_ne!(over["blocks"], asked["blocks"]);
}

#[test]
fn a_mix_from_accounting_is_the_mix_it_amounts_to() {
    let accounting = document(root(), &["--mix-from", "examples/capacity/sacct.txt"], 0);
    let seconds = |nodes: f64, seconds: f64| nodes * seconds;
    let sixteen = seconds(64.0, 302_400.0) + seconds(32.0, 86_400.0);
    let single = 14_400.0 + 7_200.0 + 9_000.0;
    let (eight, four) = (seconds(8.0, 259_200.0), seconds(4.0, 432_000.0));
    let mix = format!("16={sixteen},8={eight},4={four},1={single}");
    let written = document(root(), &["--mix", &mix], 0);
    assert!(near(&drains(&accounting), &drains(&written)), "{accounting}");
    assert_eq!(accounting["mix"]["16"].as_f64(), Some(sixteen));
    assert!(accounting["notes"][0].as_str().expect("a note").contains("7 jobs; 4 of them"));
}

#[test]
fn an_observation_counts_instead_of_chance() {
    let words = ["--observed", "examples/capacity/observed.csv", "--mix", "16=1"];
    let of = document(root(), &words, 0);
    assert_eq!(of["assumptions"][0]["how"], "observed");
    let outlook = &of["blocks"][0]["outlooks"][0];
    assert!((outlook["all_up"].as_f64().expect("a chance") - 0.862).abs() < 1e-9);
    assert_eq!(outlook.get("crossings"), None);

    // The statement of docs/capacity.md on this block and on chance at the same average.
    let unavailable = outlook["unavailable"].as_f64().expect("an average");
    assert_eq!(format!("{:.2}", unavailable * 100.0), "1.48");
    let chance = document(root(), &["--unavailable", &unavailable.to_string()], 0);
    let usable = |of: &Value, segment: u64| {
        let segments = of["blocks"][0]["outlooks"][0]["segments"].as_array().expect("a list");
        let left = segments.iter().find(|it| it["segment"] == segment).expect("the segment");
        format!("{:.2}", left["usable"].as_f64().expect("nodes"))
    };
    assert_eq!((usable(&of, 18).as_str(), usable(&of, 16).as_str()), ("15.52", "15.79"));
    assert_eq!((usable(&chance, 18).as_str(), usable(&chance, 16).as_str()), ("13.77", "15.96"));
}

#[test]
fn blocks_and_nodes_that_are_out_come_from_sources() {
    let place = tempfile::tempdir().expect("a folder");
    let put = |name: &str, text: &str| fs::write(place.path().join(name), text).expect("written");
    put("topology.yaml", BLOCKS);
    let node = |number: u32, state: &str| {
        format!("{{\"name\":\"n{number}\",\"state\":[{state}],\"real_memory\":1}}")
    };
    let states = |most: u32| {
        let of = |number| match number {
            2 => node(number, "\"IDLE\",\"DRAIN\""),
            3 => node(number, "\"DOWN\",\"NOT_RESPONDING\""),
            _ => node(number, "\"ALLOCATED\""),
        };
        format!("{{\"nodes\":[{}]}}", (1..=most).map(of).collect::<Vec<_>>().join(","))
    };
    put("nodes.json", &states(8));
    let words = ["--from", "topology.yaml", "--from", "nodes.json", "--mix", "2=1"];
    let of = document(place.path(), &words, 0);
    assert_eq!(list(&of["blocks"], "name"), ["b1", "b2"].map(Value::from));
    assert_eq!(list(&of["blocks"], "out"), [2, 0].map(Value::from));
    assert_eq!(of["blocks"][0]["out_nodes"], serde_json::json!(["n2", "n3"]));

    // No source reports the last two: the output lists them, and they count as up.
    put("nodes.json", &states(6));
    let of = document(place.path(), &words, 4);
    assert_eq!(of["blocks"][1]["unknown_nodes"], serde_json::json!(["n7", "n8"]));
    assert!(of["notes"].to_string().contains("2 of 8 nodes"), "{of}");

    // No source was queried: an answer, with a remark.
    let of = document(place.path(), &words[..2], 0);
    assert!(of["notes"].to_string().contains("no source reports which nodes are out"), "{of}");

    // The same sources by configuration, and --nodes instead of them.
    put("fabricgate.toml", "claims = [\"topology.yaml\", \"nodes.json\"]\n");
    put("nodes.json", &states(8));
    let of = document(place.path(), &["--config", "fabricgate.toml"], 0);
    assert_eq!(list(&of["blocks"], "out"), [2, 0].map(Value::from));
    let of = document(place.path(), &["--config", "fabricgate.toml", "--nodes", "4"], 0);
    assert_eq!(list(&of["blocks"], "nodes"), [Value::from(4)]);
    let output = capacity(place.path(), &["--config", "fabricgate.toml", "--out", "1"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));

    // A block with more nodes out at once than it has.
    put("seen.csv", "out,share\n0,0.9\n6,0.1\n");
    let output = capacity(place.path(), &[&words[..], &["--observed", "seen.csv"]].concat());
    assert_eq!(output.status.code(), Some(2));
    let message = stderr(&output);
    assert!(
        message.contains("seen.csv: block b1: 6 nodes out at the same time, in a domain of 4"),
        "{message}"
    );
}

/// The example's racks, with their nodes: three are out, in the first and the third.
const RACKS: [&str; 4] =
    ["--from", "examples/capacity/topology.yaml", "--from", "examples/capacity/nodes.json"];

fn numbers(value: &Value, key: &str) -> Vec<u64> {
    list(value, key).iter().map(|it| it.as_u64().expect("a number")).collect()
}

#[test]
fn every_level_of_block_sizes_is_priced() {
    let of = document(root(), &RACKS, 0);
    assert_eq!(numbers(&of["levels"], "size"), [18, 36, 72]);
    assert_eq!(numbers(&of["levels"], "jobs"), [2, 0, 0]);
    assert_eq!(numbers(&of["levels"], "jobs_none_out"), [4, 2, 1]);
    let pairs = &of["levels"][1]["aggregates"];
    assert_eq!(pairs[0]["blocks"], serde_json::json!(["rack1", "rack2"]));
    assert_eq!(numbers(pairs, "out"), [1, 2]);
    assert_eq!(numbers(pairs, "spare"), [35, 34]);

    // Sizes by option replace those of the source; a single size has no levels.
    let of = document(root(), &[&RACKS[..], &["--block-sizes", "16,32"]].concat(), 0);
    assert_eq!(numbers(&of["levels"], "jobs"), [4, 2]);
    assert_eq!(numbers(&of["levels"][1]["aggregates"], "spare"), [3, 2]);
    assert_eq!(document(root(), &["--nodes", "18"], 0).get("levels"), None);
}

#[test]
fn jobs_of_a_shape_are_counted_wherever_their_segments_may_go() {
    let with = |words: &[&str]| document(root(), &[&RACKS[..], words].concat(), 0);
    let of = with(&["--job", "36", "--segment", "18"]);
    assert_eq!(list(&of["jobs"], "placing"), ["anywhere", "consolidated", "spread"]);
    let fits = |of: &Value| numbers(&Value::Array(list(&of["jobs"], "jobs")), "at_least");
    assert_eq!(fits(&of), [1, 0, 1]);
    assert_eq!(of["jobs"][0]["costly"], serde_json::json!([1, 3]));
    assert_eq!(of["jobs"][1]["jobs_none_out"]["at_least"], 2);

    let one = ["--job", "32", "--segment", "8", "--consolidate-segments", "--spread-segments"];
    let of = with(&one);
    assert_eq!(list(&of["jobs"], "placing"), ["consolidated-and-spread"]);
    assert_eq!(fits(&of), [2]);
    // No segment, and one that is not smaller than the job.
    let of = with(&["--job", "36,16", "--segment", "18", "--spread-segments"]);
    assert_eq!(numbers(&of["jobs"], "nodes"), [36, 16]);
    assert_eq!(of["jobs"][1].get("segment"), None);
    assert_eq!(fits(&of), [1, 4]);
}

#[test]
fn blocks_are_adjacent_in_the_order_of_the_topology_not_by_their_names() {
    let place = tempfile::tempdir().expect("a folder");
    let put = |name: &str, text: &str| fs::write(place.path().join(name), text).expect("written");
    let names = ["z", "b10", "b2", "a"];
    let block = |(at, name): (usize, &&str)| {
        format!("      - block: {name}\n        nodes: n[{}-{}]\n", 2 * at + 1, 2 * at + 2)
    };
    let blocks: String = names.iter().enumerate().map(block).collect();
    let text = format!(
        "- topology: t\n  cluster_default: true\n  block:\n    block_sizes: [2, 4]\n    blocks:\n{blocks}"
    );
    put("topology.yaml", &text);
    let printed = "BlockName=z BlockIndex=0 Nodes=n[1-2] BlockSize=2\n\
                   BlockName=b10 BlockIndex=1 Nodes=n[3-4] BlockSize=2\n\
                   BlockName=b2 BlockIndex=2 Nodes=n[5-6] BlockSize=2\n\
                   BlockName=a BlockIndex=3 Nodes=n[7-8] BlockSize=2\n\
                   AggregatedBlock=[b10,z] BlockIndex=4 Nodes=n[1-4] BlockSize=4\n\
                   AggregatedBlock=[a,b2] BlockIndex=5 Nodes=n[5-8] BlockSize=4\n";
    put("topology.txt", printed);
    for file in ["topology.yaml", "topology.txt"] {
        let of = document(place.path(), &["--from", file], 0);
        assert_eq!(numbers(&of["levels"], "size"), [2, 4], "{file}");
        let pairs = list(&of["levels"][1]["aggregates"], "blocks");
        assert_eq!(pairs, [serde_json::json!(["z", "b10"]), serde_json::json!(["b2", "a"])]);
    }
}

#[test]
fn impossible_input_is_refused_with_the_expected_value() {
    let place = tempfile::tempdir().expect("a folder");
    let put = |name: &str, text: &str| fs::write(place.path().join(name), text).expect("written");
    put("bad.csv", "out,share\n0,0.5\n1,half\n");
    put("short.csv", "out,share\n0,0.5\n");
    put("bad.txt", "JobID|NNodes|ElapsedRaw\n1|2|3\n2|x|3\n");
    put("none.txt", "JobID|NNodes|ElapsedRaw\n1|2|0\n");
    put("empty.txt", "");
    fs::write(place.path().join("binary.txt"), [0xff, 0xfe, 0x00]).expect("written");
    let cases: &[(&[&str], i32, &str)] = &[
        (&["--nodes", "0"], 2, "1..=1000"),
        (&["--nodes", "1001"], 2, "1..=1000"),
        (&["--nodes", "many"], 2, "--nodes"),
        (&["--out", "19"], 2, "--out 19: expected at most the block's 18 nodes"),
        (&["--segment", "0"], 2, "1..=1000"),
        (&["--mix", ""], 2, "--mix: no segment is named, expected SEGMENT=SHARE"),
        (&["--mix", "16"], 2, "--mix: \"16\": expected SEGMENT=SHARE"),
        (&["--mix", "0=1"], 2, "--mix: segment \"0\": expected a number of nodes"),
        (&["--mix", "16=nan"], 2, "--mix: segment 16: share NaN, expected a number above 0"),
        (&["--mix", "16=-1"], 2, "--mix: segment 16: share -1, expected a number above 0"),
        (&["--mix", "16=1,16=1"], 2, "--mix: duplicate segment 16"),
        (&["--mix", "16=1", "--mix-from", "bad.txt"], 2, "cannot be used with"),
        (&["--mix-from", "bad.txt"], 2, "bad.txt:3: NNodes \"x\", expected a whole number"),
        (&["--mix-from", "none.txt"], 2, "none.txt:2: no job has run, expected one or more"),
        (
            &["--mix-from", "empty.txt"],
            2,
            "empty.txt:1: the file is empty, expected the output of `sacct",
        ),
        (&["--mix-from", "binary.txt"], 2, "binary.txt:1:1: not UTF-8 text"),
        (&["--mix-from", "missing.txt"], 5, "missing.txt"),
        (&["--unavailable", "1"], 2, "expected a share of nodes from 0 to 0.5, or 0% to 50%"),
        (&["--unavailable=-0.1"], 2, "expected a share of nodes from 0 to 0.5"),
        (&["--unavailable", "nan"], 2, "expected a share of nodes from 0 to 0.5"),
        (&["--unavailable", "0.01", "--observed", "bad.csv"], 2, "cannot be used with"),
        (&["--observed", "bad.csv"], 2, "bad.csv:3: share \"half\", expected a share of time"),
        (&["--observed", "short.csv"], 2, "short.csv: the shares sum to 0.5, expected 1"),
        (&["--observed", "empty.txt"], 2, "empty.txt:1: no column out, expected the header"),
        (&["--observed", "missing.csv"], 5, "missing.csv"),
        (&["--degraded", "0"], 2, "expected a share above 0 and below 1"),
        (&["--exposed", "2"], 2, "expected a share above 0 and up to 1"),
        (&["--from", "nosuch"], 2, "--from nosuch: expected slurm"),
        (&["--from", "slurm", "--nodes", "18"], 2, "cannot be used with"),
        (&["--from", "slurm", "--out", "1"], 2, "cannot be used with"),
        (&["--from", "bad.csv"], 5, "no source reports a block: expected --nodes N"),
        (
            &["--job", "70", "--segment", "18"],
            2,
            "--job 70: not a multiple of --segment 18; Slurm refuses",
        ),
        (&["--job", "0"], 2, "1..=65533"),
        (&["--block-sizes", "18,54"], 2, "--block-sizes: 54 is not 18 times a power of two"),
        (&["--spread-segments"], 2, "--job"),
        (&["--job", "36", "--consolidate-segments"], 2, "--segment"),
        (&["--plot", "nowhere/a.svg"], 5, "nowhere/a.svg"),
    ];
    for (words, code, message) in cases {
        let output = capacity(place.path(), words);
        let stderr = stderr(&output);
        assert_eq!(output.status.code(), Some(*code), "{words:?}: {stderr}");
        let flat = stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(message), "{words:?}: {message:?} is not in {stderr}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
}

#[test]
fn the_document_quotes_the_programs_output() {
    let path = root().join("docs/capacity.md");
    let mut text = fs::read_to_string(&path).expect("docs/capacity.md");
    let mut quoted = 0;
    let mut at = 0;
    while let Some(found) = text[at..].find("\n    $ fabricgate capacity ") {
        let start = at + found + 1;
        let end = start + text[start..].find('\n').expect("a line");
        let command = text[start..end].trim().to_owned();
        let words: Vec<&str> = command.split(' ').skip(3).collect();
        let output = capacity(root(), &words);
        assert_eq!(output.status.code(), Some(0), "{command}: {}", stderr(&output));
        let printed = String::from_utf8(output.stdout).expect("text");
        let indented: String = printed
            .lines()
            .map(|line| if line.is_empty() { "\n".to_owned() } else { format!("    {line}\n") })
            .collect();
        // A quoted block goes on while lines are indented or empty.
        let rest = &text[end + 1..];
        let lines = rest.split_inclusive('\n');
        let length: usize =
            lines.take_while(|it| *it == "\n" || it.starts_with("    ")).map(str::len).sum();
        let quotation = &rest[..length];
        if std::env::var_os("UPDATE_REPORTS").is_some() {
            text.replace_range(end + 1..end + 1 + length, &format!("{indented}\n"));
        } else {
            assert_eq!(quotation.trim_end(), indented.trim_end(), "{command} prints this now");
        }
        quoted += 1;
        at = end;
    }
    assert!(2 <= quoted, "the document shows what the program prints");
    if std::env::var_os("UPDATE_REPORTS").is_some() {
        fs::write(&path, &text).expect("the document is in this repository");
    }
}

#[test]
fn the_documents_figure_is_the_programs() {
    let scratch = tempfile::tempdir().expect("a folder");
    let drawn: PathBuf = scratch.path().join("capacity.svg");
    let output = capacity(root(), &["--plot", &drawn.display().to_string()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let drawn = fs::read_to_string(&drawn).expect("a picture");
    let path = root().join("docs/capacity.svg");
    if std::env::var_os("UPDATE_REPORTS").is_some() {
        fs::write(&path, &drawn).expect("the figure is in this repository");
    }
    let kept = fs::read_to_string(&path).expect("docs/capacity.svg");
    assert!(kept == drawn, "docs/capacity.svg is not what is drawn; run with UPDATE_REPORTS=1");
}
