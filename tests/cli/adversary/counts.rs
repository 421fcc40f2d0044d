//! Impossible counts and sizes in every input: each number of a recorded input is replaced by a
//! huge one. The program allocates nothing of that size: it has a gigabyte of address space, and
//! its exit codes are the documented ones.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use super::place::{Place, run};

/// Kilobytes of address space: what the program maps, and some hundred megabytes.
const MEMORY: u64 = 1 << 20;

/// Replacements for a number: a count whose allocation exceeds any machine's memory, and the
/// largest number of each width.
const HUGE: [u64; 5] = [300_000, 4_000_000, 0x7fff_ffff, u32::MAX as u64, u64::MAX];

/// The numbers of a document, one for each place in its structure: elements of a list count as
/// one place, and so do names of nodes.
fn places(value: &Value, at: &str, found: &mut BTreeMap<String, String>, pointer: &str) {
    match value {
        Value::Number(_) => _ = found.entry(at.to_owned()).or_insert_with(|| pointer.to_owned()),
        Value::Array(all) => {
            for (number, one) in all.iter().enumerate() {
                places(one, &format!("{at}/*"), found, &format!("{pointer}/{number}"));
            }
        }
        Value::Object(all) => {
            for (key, one) in all {
                let name = if key.starts_with("box") { "*" } else { key };
                let escaped = key.replace('~', "~0").replace('/', "~1");
                places(one, &format!("{at}/{name}"), found, &format!("{pointer}/{escaped}"));
            }
        }
        _ => {}
    }
}

fn with(value: &Value, pointer: &str, number: u64) -> Value {
    let mut value = value.clone();
    *value.pointer_mut(pointer).expect("it was found there") = number.into();
    value
}

/// Each text with one of its runs of digits replaced, a few for each kind of line.
fn in_text(text: &str, number: u64) -> Vec<String> {
    let mut kinds: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if !bytes[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let end = bytes[at..]
            .iter()
            .position(|it| !it.is_ascii_digit())
            .map_or(bytes.len(), |it| at + it);
        let line = text[..at].rfind('\n').map_or(0, |it| it + 1);
        let before: String = text[line..at].chars().filter(|it| !it.is_ascii_digit()).collect();
        kinds.entry(before).or_insert((at, end));
        at = end;
    }
    let replaced =
        |(from, to): &(usize, usize)| format!("{}{number}{}", &text[..*from], &text[*to..]);
    kinds.values().map(replaced).collect()
}

fn ends(place: &Place, args: &[&str], what: &str) {
    let ended = place.run(args);
    let code = ended.code.unwrap_or(-1);
    assert!([0, 2, 3, 4, 5, 6].contains(&code), "{what}: {args:?}: {ended:?}");
}

fn small() -> Place {
    let mut place = Place::new();
    place.memory = MEMORY;
    place
}

#[test]
fn a_huge_number_anywhere_in_a_run_folder_allocates_nothing_of_its_size() {
    let place = small();
    let folder = place.foreign_run();
    let documents = [
        "run.json",
        "claims.json",
        "plan.json",
        "verdicts.json",
        "actions.json",
        "results.jsonl",
        "measurements.jsonl",
        "machines.jsonl",
        "cells.jsonl",
    ];
    let mut tried = 0;
    for name in documents {
        let path = folder.join(name);
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let lines: Vec<Value> = match name.ends_with('l') {
            true => text.lines().map(|it| serde_json::from_str(it).expect("JSON")).collect(),
            false => vec![serde_json::from_str(&text).expect("JSON")],
        };
        let all = Value::Array(lines);
        let mut found = BTreeMap::new();
        places(&all, "", &mut found, "");
        for (number, (at, pointer)) in found.iter().enumerate() {
            // Each place gets two of the replacements; every replacement is used many times.
            for huge in [HUGE[number % HUGE.len()], HUGE[(number + 1) % HUGE.len()]] {
                let Value::Array(lines) = with(&all, pointer, huge) else { panic!("a list") };
                let text: Vec<String> = lines.iter().map(Value::to_string).collect();
                fs::write(&path, text.join("\n") + "\n").expect("written");
                let what = format!("{name}{at} = {huge}");
                // Line 1 of a file begins with its format, which the reader checks first.
                let reader: &[&str] = match name {
                    "verdicts.json" | "actions.json" | "cells.jsonl" => &["report", "runs/r"],
                    _ => &["replay", "runs/r"],
                };
                ends(&place, reader, &what);
                tried += 1;
            }
        }
        fs::write(&path, text).expect("written");
    }
    assert!(60 < tried, "only {tried} numbers were found");
    let ended = place.run(&["replay", "runs/r"]);
    assert_eq!(ended.code, Some(3), "the folder is as it was: {ended:?}");
}

#[test]
fn a_huge_number_in_a_tools_output_allocates_nothing_of_its_size() {
    let place = small();
    let raw = run().join("raw/nodes/box2");
    let mut files: Vec<_> =
        fs::read_dir(raw).expect("outputs").map(|it| it.expect("one").path()).collect();
    files.sort();
    let text = "[[domain]]\nname = \"box2\"\nnodes = \"box2\"\nplatform = \"hgx-h100\"\ngpus_per_node = 2\n";
    place.put("in/claims.toml", text);
    for (number, file) in files.iter().enumerate() {
        let Ok(text) = fs::read_to_string(file) else { continue };
        let huge = HUGE[number % HUGE.len()];
        // `fuzz` judges all of them; this test bounds the memory they take.
        for text in in_text(&text, huge).into_iter().step_by(9) {
            place.put("in/nodes/box2/out.txt", &text);
            ends(&place, &["judge", "in"], &text);
        }
    }
}

#[test]
fn a_huge_number_in_a_claim_is_reported_with_its_place_and_allocates_nothing_of_its_size() {
    let place = small();
    let claims = "[[domain]]\nname = \"a\"\nnodes = \"box[1-18]\"\nplatform = \"gb200-nvl72\"\ngpus_per_node = 1000\n";
    let folder = |text: &str| {
        place.put("in/claims.toml", text);
        place.put("in/nodes/box1/out.txt", "nothing that a tool prints\n");
    };
    // As many GPUs as a reader accepts, for each of 18 nodes: 18,000 GPUs, of which one table
    // holds some.
    folder(claims);
    ends(&place, &["judge", "in"], claims);
    folder(&claims.replace("1000", "4000000"));
    let ended = place.run(&["judge", "in"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(
        ended.stderr.contains("claims.toml:5:") && ended.stderr.contains("at most 1024"),
        "{ended:?}"
    );

    // A kubelet's, Slurm's and Ray's report about a node.
    let node = |name: &str, gpus: u64| {
        serde_json::json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name,
            "labels": {"nvidia.com/gpu.clique": "9e9a6f3c-0000-4000-8000-1234567890ab.1", "nvidia.com/gpu.count": gpus.to_string()}},
            "status": {"capacity": {"nvidia.com/gpu": gpus.to_string()}, "allocatable": {"nvidia.com/gpu": gpus.to_string()}}})
    };
    for gpus in [3_000_000, 300_000_000, u64::from(u32::MAX), u64::MAX] {
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List",
            "items": [node("n1", gpus), node("n2", 4)]});
        place.put("nodes.json", list.to_string());
        let ended = place.run(&["--json", "claims", "nodes.json"]);
        assert!([Some(0), Some(4)].contains(&ended.code), "{ended:?}");
        let document: Value = serde_json::from_str(&ended.stdout).expect("JSON");
        let document = &document["claims"];
        let domains = document["domains"].as_array().expect("domains");
        assert!(
            domains.iter().all(|it| it["gpus_per_node"].as_u64().unwrap_or(0) <= 1_024),
            "{document}"
        );
        if gpus <= u64::from(u32::MAX) {
            let problems = document["sources"][0]["problems"].to_string();
            assert!(
                problems.contains("n1") && problems.contains("expected at most 1024"),
                "{problems}"
            );
        }
        place.put(
            "machines.toml",
            "title = \"t\"\nseed = 5\n[[domain]]\nname = \"a\"\nnodes = \"n[1-2]\"\n\
            platform = \"gb200-nvl72\"\n",
        );
        ends(
            &place,
            &["audit", "--sim", "machines.toml", "--claims", "nodes.json", "--dry-run"],
            &gpus.to_string(),
        );
    }
    let others = [
        ("slurm.txt", "NodeName=n1 Arch=x86_64 CPUTot=4 State=IDLE Gres=gpu:4\n"),
        ("conf", "BlockName=b1 Nodes=n[1-2]\nBlockSizes=2\n"),
        (
            "topology.yaml",
            "- topology: t\n  cluster_default: true\n  block:\n    block_sizes: [2, 4]\n    blocks:\n      - {block: a, nodes: 'n[1-4]'}\n",
        ),
        (
            "job.sh",
            "export NCCL_MNNVL_ENABLE=1\nexport NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=64\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=4\n#SBATCH --segment=2\n",
        ),
        ("show.txt", "BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\n"),
    ];
    for (name, text) in others {
        for huge in HUGE {
            for text in in_text(text, huge) {
                place.put(name, &text);
                ends(&place, &["claims", name], &text);
            }
        }
    }
}
