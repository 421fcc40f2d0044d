//! Sweeps in which nodes have only the driver: the native probes replace missing tools, over a
//! simulated fabric.
//!
//! The tests assert that the verdict is the one that the tools would have given, and never a
//! duration.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::Value;

/// Tools that a node with only the driver lacks.
const BARE: &str = "[tools]\nmissing = [\"nvbandwidth\", \"mpirun\", \"nccl-tests\", \
    \"p2pBandwidthLatencyTest\", \"nvloom_cli\"]\n";

/// One node with eight GPUs of which one has lost two of its links, and another with half a host
/// link.
const BOARD: &str = "[[domain]]\nnodes = \"n1\"\nplatform = \"hgx-h100\"\nper_node = true\n\
    [[fault]]\nkind = \"lost-links\"\ngpu = \"n1:3\"\ncount = 2\n\
    [[fault]]\nkind = \"host-link\"\ngpu = \"n1:6\"\nshare = 0.5\n";

/// A small rack of which one GPU has lost two of its links.
const RACK: &str = "[[domain]]\nname = \"rack\"\nnodes = \"n[1-4]\"\nplatform = \"gb200-nvl72\"\n\
    [[fault]]\nkind = \"lost-links\"\ngpu = \"n3:1\"\ncount = 2\n";

/// The shipped copy probe, with shorter limits.
const HASTY: &str = "name = \"copy\"\ntitle = \"copies\"\nparser = \"fabricgate-copy\"\n\
    argv = [\"{self}\", \"--json\", \"node\", \"probe\", \"copy\", \"--node\", \"{node}\", \
    \"--readings\", \"{readings}\"]\nscope = \"node\"\ncovers = \"all\"\nstage = 1\n\
    reads_itself = true\ncost_s = 1\ntimeout_s = 3\ndisturbs = \"gpus\"\n";

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// A folder with this scenario, and a configuration for it.
    fn of(scenario: &[&str], probes: &str) -> Self {
        let place = Self { dir: tempfile::tempdir().expect("a folder") };
        let head = "title = \"t\"\nseed = 11\n[noise]\nsigma = 0.001\n";
        place.put("scenario.toml", &format!("{head}{}", scenario.concat()));
        place.put("probes/copy.toml", HASTY);
        place.put(
            "fabricgate.toml",
            &format!(
                "run_dir = \"runs\"\n[launcher]\nkind = \"sim\"\nscenario = \"scenario.toml\"\n\
                 [confirm]\nwait_s = 0.1\n{probes}"
            ),
        );
        place
    }

    fn put(&self, name: &str, text: &str) {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().expect("inside")).expect("made");
        fs::write(path, text).expect("written");
    }

    #[expect(clippy::disallowed_methods, reason = "a test starts the program itself")]
    fn audit(&self, more: &[&str]) -> Output {
        std::process::Command::new(assert_cmd::cargo::cargo_bin!("fabricgate"))
            .args([&["audit", "--config", "fabricgate.toml", "--no-progress"], more].concat())
            .current_dir(self.dir.path())
            .env_remove("FABRICGATE_CONFIG")
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .output()
            .expect("the program runs")
    }

    fn folder(&self) -> PathBuf {
        let mut folders = fs::read_dir(self.dir.path().join("runs")).expect("runs");
        folders.next().expect("a run").expect("readable").path()
    }

    fn verdicts(&self) -> Value {
        json(&self.folder().join("verdicts.json"))
    }

    /// The tools that wrote the recorded outputs.
    fn parsers(&self) -> Vec<String> {
        let folder = self.folder();
        let mut parsers: Vec<String> = outputs(&folder)
            .iter()
            .filter_map(|path| fs::read(path).ok())
            .filter_map(|bytes| readers::outputs::parse_output(&bytes).tool)
            .map(|tool| tool.to_string())
            .collect();
        parsers.sort_unstable();
        parsers.dedup();
        parsers
    }
}

fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every file below a folder's raw outputs.
fn outputs(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.join("raw")];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() { open.push(path) } else { found.push(path) }
        }
    }
    found
}

/// Findings: outcome, class and place.
fn found(verdicts: &Value) -> Vec<String> {
    let all = verdicts["findings"].as_array().expect("findings").iter();
    let mut found: Vec<String> = all
        .map(|f| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (node, gpu) = (text(&f["locus"]["node"]), &f["locus"]["gpu"]);
            format!("{} {} {node}:{gpu}", text(&f["outcome"]), text(&f["class"]))
        })
        .collect();
    found.sort();
    found
}

fn outcomes(verdicts: &Value) -> Vec<String> {
    let nodes = verdicts["nodes"].as_array().expect("nodes").iter();
    nodes.map(|n| format!("{} {}", n["node"], n["outcome"]).replace('"', "")).collect()
}

fn output_text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}\n{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

#[test]
fn a_node_with_only_the_driver_gets_the_verdict_of_one_with_tools() {
    let with_tools = Place::of(&[BOARD], "");
    let bare = Place::of(&[BARE, BOARD], "");
    let (there, here) = (with_tools.audit(&[]), bare.audit(&[]));
    assert_eq!(there.status.code(), Some(3), "{}", output_text(&there));
    assert_eq!(here.status.code(), Some(3), "{}", output_text(&here));
    let (theirs, ours) = (with_tools.verdicts(), bare.verdicts());
    let expected = ["degraded host-link-low n1:6", "degraded nvlink-low n1:3"];
    assert_eq!(found(&theirs), expected);
    assert_eq!(found(&ours), expected, "{}", output_text(&here));
    assert_eq!(outcomes(&ours), outcomes(&theirs));
    assert!(with_tools.parsers().contains(&"nvbandwidth".to_owned()));
    let parsers = bare.parsers();
    assert!(parsers.contains(&"fabricgate-copy".to_owned()), "{parsers:?}");
    assert!(!parsers.contains(&"nvbandwidth".to_owned()), "{parsers:?}");
    // The driver's report under load accompanies the slow host link.
    let all = ours["findings"].as_array().expect("findings");
    let host = all.iter().find(|f| f["class"] == "host-link-low").expect("it was found");
    assert!(host["summary"].as_str().expect("text").contains("PCIe generation 4"), "{host}");
}

#[test]
fn a_healthy_node_with_only_the_driver_passes() {
    let healthy = "[[domain]]\nnodes = \"n1\"\nplatform = \"hgx-h100\"\nper_node = true\n";
    let place = Place::of(&[BARE, healthy], "");
    let output = place.audit(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    assert_eq!(outcomes(&place.verdicts()), ["n1 pass"]);
}

#[test]
fn a_rack_is_measured_by_the_native_probes_lanes_pairs_and_collectives() {
    let (with_tools, place) = (Place::of(&[RACK], ""), Place::of(&[RACK], ""));
    let (there, output) = (with_tools.audit(&[]), place.audit(&["--own-probes"]));
    assert_eq!(there.status.code(), Some(3), "{}", output_text(&there));
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
    let (theirs, verdicts) = (with_tools.verdicts(), place.verdicts());
    assert_eq!(found(&verdicts), found(&theirs), "{}", output_text(&output));
    assert!(found(&verdicts).contains(&"degraded nvlink-low n3:1".to_owned()));
    assert_eq!(outcomes(&verdicts), outcomes(&theirs));
    assert_eq!(outcomes(&verdicts), ["n1 pass", "n2 pass", "n3 degraded", "n4 pass"]);
    let parsers = place.parsers();
    for tool in ["nvbandwidth", "nccl-tests"] {
        assert!(!parsers.contains(&tool.to_owned()), "{parsers:?}");
    }
    for tool in ["fabricgate-copy", "fabricgate-collective"] {
        assert!(parsers.contains(&tool.to_owned()), "{parsers:?}");
    }
}

#[test]
fn wrong_data_is_a_hard_fault_of_the_gpu_that_is_wrong() {
    let wrong = "[[domain]]\nnodes = \"n1\"\nplatform = \"hgx-h100\"\nper_node = true\n\
        [[fault]]\nkind = \"corrupt\"\ngpu = \"n1:5\"\n";
    let place = Place::of(&[BARE, wrong], "");
    let output = place.audit(&[]);
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
    let verdicts = place.verdicts();
    assert_eq!(outcomes(&verdicts), ["n1 failed"]);
    assert!(
        found(&verdicts).contains(&"failed data-corruption n1:5".to_owned()),
        "{:?}",
        found(&verdicts)
    );
}

#[test]
fn a_probe_that_hangs_leaves_its_node_unknown_and_the_other_as_it_is() {
    let hangs = "[[domain]]\nnodes = \"n[1-2]\"\nplatform = \"hgx-h100\"\nper_node = true\n\
        [[fault]]\nkind = \"tool-hangs\"\nnode = \"n2\"\ntool = \"fabricgate-copy\"\n";
    let probes = "[probes]\ndir = \"probes\"\nrun = [\"copy\"]\n";
    let place = Place::of(&[BARE, hangs], probes);
    let output = place.audit(&[]);
    assert_eq!(output.status.code(), Some(4), "{}", output_text(&output));
    let verdicts = place.verdicts();
    assert_eq!(found(&verdicts), Vec::<String>::new());
    assert_eq!(outcomes(&verdicts), ["n1 pass", "n2 unknown"]);
}
