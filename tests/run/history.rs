//! Earlier run folders as a reference, from the command line: live simulated runs are stored, and
//! a later one is compared with them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const NODE: &str = "title = \"t\"\nseed = 5\n[noise]\nsigma = 0.003\n\
    [[domain]]\nnodes = \"h1\"\nplatform = \"hgx-h100\"\nper_node = true\n";

#[expect(clippy::disallowed_methods, reason = "a test starts the program itself")]
fn fabricgate(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricgate"));
    command.current_dir(folder).args(args).output().expect("fabricgate runs")
}

/// Measures a simulated node; returns its run folder.
fn audit(folder: &Path, name: &str, seed: u64, more: &str) -> PathBuf {
    let scenario = format!("{name}.toml");
    let text = NODE.replace("seed = 5", &format!("seed = {seed}"));
    fs::write(folder.join(&scenario), text + more).expect("a scenario");
    // Jobs of the simulating machine are not jobs of the node.
    let words = ["audit", "--even-if-busy", "--sim", &scenario, "--run-dir", name];
    let run = fabricgate(folder, &words);
    assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
    let inside = fs::read_dir(folder.join(name)).expect("a folder");
    inside.map(|e| e.expect("an entry").path()).max().expect("a run")
}

#[test]
fn a_node_that_lost_a_little_is_found_by_its_own_earlier_runs_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    for seed in 1..=3 {
        audit(root, "earlier", seed, "");
    }
    // Within the tolerance of the expectation, and alone: only the history can detect it.
    let less = "[[fault]]\nkind = \"power-cap\"\nnode = \"h1\"\nshare = 0.968\n";
    let now = audit(root, "now", 9, less);
    let now = now.to_str().expect("a name");
    assert_eq!(fabricgate(root, &["replay", now]).status.code(), Some(0));
    // Its outputs are a folder of recorded ones.
    let raw = format!("{now}/raw");
    for (command, of) in [("replay", now), ("judge", raw.as_str())] {
        let judged = fabricgate(root, &[command, of, "--json", "--history", "earlier"]);
        assert_eq!(judged.status.code(), Some(3), "{command}");
        let stdout = String::from_utf8_lossy(&judged.stdout).into_owned();
        assert!(
            stdout.contains("below-own-history") && stdout.contains("own history: "),
            "{stdout}"
        );
        let stderr = String::from_utf8_lossy(&judged.stderr).into_owned();
        assert!(stderr.contains("history: 3 earlier runs"), "{stderr}");
    }
    // A run is not its own history.
    let own = fabricgate(root, &["replay", now, "--history", now]);
    assert_eq!(own.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&own.stderr).contains("history: 0 earlier runs"));
    let none = fabricgate(root, &["replay", now, "--history", "nowhere"]);
    assert_eq!(none.status.code(), Some(5));
}
