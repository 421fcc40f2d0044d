//! `fabricgate capacity` against a real Slurm: blocks and their unavailable nodes.

use std::fs;

use serde_json::Value;

use super::*;

/// The program under test, by default the one built with these tests.
const BINARY: &str = "FABRICGATE_LAB_BINARY";

/// Output of `capacity --from slurm --json` with these additional arguments, and its exit code.
fn capacity(lab: &Lab, arguments: &[&str]) -> (Value, i32) {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("fabricgate.toml");
    let run = &lab.run;
    let text = format!(
        "[sources.slurm]\nscontrol = [{run:?}, \"scontrol\"]\nsinfo = [{run:?}, \"sinfo\"]\n"
    );
    fs::write(&config, text).expect("written");
    let config = config.display().to_string();
    let binary = std::env::var(BINARY).unwrap_or(env!("CARGO_BIN_EXE_fabricgate").to_owned());
    let words = [&binary, "capacity", "--json", "--from", "slurm", "--config", &config];
    let argv = [&words, arguments].concat().into_iter().map(str::to_owned).collect();
    let request = ProcessRequest { argv, limit: Duration::from_secs(120), capture: exec::CAPTURE };
    let (_sender, stop) = tokio::sync::watch::channel(false);
    let finished = now(exec::run(&request, stop)).expect("the program");
    let ProcessEnding::Exited { code } = finished.ending else { panic!("{}", finished.ending) };
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

/// Nine blocks of four on three levels, until this goes out of scope.
struct Levels<'l> {
    lab: &'l Lab,
    file: PathBuf,
    before: String,
}

impl<'l> Levels<'l> {
    fn of(lab: &'l Lab) -> Self {
        let folder = PathBuf::from(&lab.run).with_file_name("etc");
        let file = folder.join(if lab.has_yaml() { "topology.yaml" } else { "topology.conf" });
        let before = fs::read_to_string(&file).expect("the lab's topology");
        let block = |at: u32| {
            let (first, last) = (at * 4 + 1, at * 4 + 4);
            (format!("b{at}"), format!("node[{first:04}-{last:04}]"))
        };
        let blocks = (0..9).map(block);
        let text = if lab.has_yaml() {
            let block = |(name, nodes)| format!("      - block: {name}\n        nodes: {nodes}\n");
            let blocks: String = blocks.map(block).collect();
            format!(
                "---\n- topology: topo-block\n  cluster_default: true\n  block:\n    block_sizes: [4, 8, 16]\n    \
                 blocks:\n{blocks}- topology: topo-flat\n  cluster_default: false\n  flat: true\n"
            )
        } else {
            let block = |(name, nodes)| format!("BlockName={name} Nodes={nodes}\n");
            blocks.map(block).collect::<String>() + "BlockSizes=4,8,16\n"
        };
        let levels = Self { lab, file, before };
        fs::write(&levels.file, text).expect("written");
        lab.run(&["scontrol", "reconfigure"]);
        // A job submitted right after it may wait for a turn of the scheduler.
        std::thread::sleep(Duration::from_secs(2));
        levels
    }
}

impl Drop for Levels<'_> {
    fn drop(&mut self) {
        let written = fs::write(&self.file, &self.before);
        self.lab.finished(&["scancel", "--user=root"]);
        let (_, ending) = self.lab.finished(&["scontrol", "reconfigure"]);
        assert!(written.is_ok() && ending.is_success() || std::thread::panicking());
    }
}

impl Lab {
    fn jobs(&self, states: &str) -> usize {
        self.run(&["squeue", "-h", "--user=root", "-t", states, "-o", "%i"]).lines().count()
    }

    /// Number of jobs with these arguments that run concurrently, of `most` and one more.
    fn started(&self, arguments: &[&str], most: usize) -> usize {
        for _ in 0..=most {
            let words = ["sbatch", "-Q", "-o", "/dev/null", "--exclusive", "--wrap", "sleep 600"];
            // A job that could never start is refused.
            self.finished(&[&words, arguments].concat());
        }
        let begun = Instant::now();
        // More than one turn of the backfill scheduler, where fewer run than expected.
        while self.jobs("R") < most && begun.elapsed() < Duration::from_secs(15) {
            std::thread::sleep(Duration::from_millis(100));
        }
        std::thread::sleep(Duration::from_millis(1_500));
        let started = self.jobs("R");
        self.run(&["scancel", "--user=root"]);
        // Ended ones are listed for as long as `MinJobAge`.
        self.wait_for("no job", || self.jobs("PD,CF,R,S,CG") == 0);
        started
    }
}

#[test]
fn as_many_jobs_of_a_shape_start_as_capacity_says_on_every_level() {
    let Some(lab) = lab() else { return };
    let levels = Levels::of(&lab);
    for node in ["node0001", "node0009", "node0017"] {
        let node = format!("NodeName={node}");
        lab.run(&["scontrol", "update", &node, "State=DRAIN", "Reason=lab: capacity"]);
    }
    let (spread, consolidate) = ("--spread-segments", "--consolidate-segments");
    let mut shapes: Vec<(&str, Option<&str>, Vec<&str>)> = vec![
        ("4", None, vec![]),
        ("6", None, vec![]),
        ("8", None, vec![]),
        ("16", None, vec![]),
        ("8", Some("4"), vec![]),
        ("12", Some("3"), vec![]),
        ("36", Some("4"), vec![]),
    ];
    // 24.11 has neither larger segments nor these options.
    if lab.has_yaml() {
        shapes.extend([
            ("20", None, vec![]),
            ("33", None, vec![]),
            ("12", Some("6"), vec![]),
            ("16", Some("8"), vec![]),
            ("8", Some("4"), vec![consolidate]),
            ("6", Some("3"), vec![consolidate]),
            ("12", Some("6"), vec![consolidate]),
            ("8", Some("2"), vec![spread]),
            ("18", Some("2"), vec![spread]),
            ("12", Some("6"), vec![spread]),
            ("8", Some("2"), vec![consolidate, spread]),
        ]);
    }
    let mut wrong = Vec::new();
    for (nodes, segment, options) in shapes {
        let mut asked = vec!["--job", nodes];
        let number = format!("-N{nodes}");
        let mut submitted = vec![number.as_str()];
        let given = segment.map(|segment| format!("--segment={segment}"));
        if let Some(given) = &given {
            asked.push(given);
            submitted.push(given);
        }
        asked.extend(&options);
        submitted.extend(&options);
        let (document, code) = capacity(&lab, &asked);
        assert_eq!(code, 0, "{document}");
        assert_eq!(document["levels"].as_array().expect("levels").len(), 3, "{document}");
        let fit = &document["jobs"][0]["jobs"];
        let number = |key: &str| {
            usize::try_from(fit[key].as_u64().expect("a number")).expect("a small number")
        };
        let (least, most) = (number("at_least"), number("at_most"));
        let started = lab.started(&submitted, most);
        let is_right =
            started <= most && (started == least || least != most && (0 < started) == (0 < least));
        if !is_right {
            wrong.push(format!("{submitted:?}: {least} to {most}, started {started}"));
        }
    }
    drop(levels);
    lab.settle();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
