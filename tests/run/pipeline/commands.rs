//! Commands that measure nothing: their output, refusals and exit codes.

use std::fs;
use std::process::Stdio;

use serde_json::Value;

use super::{Cluster, node_outcome, stderr, stdout, unknown};

#[test]
fn a_plan_lists_the_steps_and_runs_nothing() {
    let cluster = Cluster::new("n[1-4]");
    cluster.tool("nvbandwidth", "touch ran");
    let with = cluster.run(&["plan", "audit", "n[2-3]"]);
    assert!(stdout(&with).contains("4 steps on 4 nodes"), "{}", stdout(&with));
    assert!(stderr(&with).contains("measured against n[1,4], none of them cleared"));
    let shown = cluster.run(&["plan", "audit", "n[2-3]", "--partners", "0"]);
    assert_eq!(shown.status.code(), Some(0), "{}", stderr(&shown));
    assert!(stdout(&shown).contains("2 steps on 2 nodes"), "{}", stdout(&shown));
    assert!(stdout(&shown).contains("on n[2-3]"), "{}", stdout(&shown));
    let plan: Value = serde_json::from_slice(&cluster.run(&["plan", "audit", "--json"]).stdout)
        .expect("one document");
    assert_eq!(plan["format"], "fabricgate.plan/1");
    assert!(!cluster.path("ran").exists() && !cluster.path("runs").exists());
}

#[test]
fn usage_errors_name_what_is_wrong_and_end_with_2() {
    let cluster = Cluster::new("n[1-4]");
    let complaint = |args: &[&str]| {
        let output = cluster.run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{args:?}");
        stderr(&output)
    };
    assert!(complaint(&["audit", "n9"]).contains("NODE \"n9\": no domain claims n9"));
    assert!(complaint(&["audit", "n[1-"]).contains("never closed"));
    let message = complaint(&["audit", "--seed", "many"]);
    assert!(message.contains("--seed") && message.contains("many"), "{message}");
    let message = complaint(&["report", "x", "--format", "pdf"]);
    assert!(message.contains("pdf") && message.contains("html"), "{message}");
    assert!(complaint(&["judge", "--platform", "no-such", "."]).contains("no-such"));
    assert!(complaint(&["probes", "show", "nvbandwith"]).contains("expected one of"));

    cluster.put("fabricgate.toml", "claims = \"claims.toml\"\n[launcher]\nkind = \"local\"\n");
    assert!(complaint(&["audit"]).contains("measures this machine only"));
    cluster.put("fabricgate.toml", "claims = \"claims.toml\"\nclaim = 1\n");
    assert!(complaint(&["audit"]).contains("fabricgate.toml:2:1: unknown field"));
    cluster.put("fabricgate.toml", "claims = \"claims.toml\"\n");
    cluster.put("claims.toml", "[[domain]]\nname = \"a\"\nnodes = \"n[1-\"\n");
    assert!(complaint(&["audit"]).contains("claims.toml:3:11"));
    fs::remove_file(cluster.path("claims.toml")).expect("removed");
    let output = cluster.run(&["audit"]);
    assert_eq!(output.status.code(), Some(5), "a file that is not there: {}", stderr(&output));
    let output = cluster.command(&["audit"]).env_remove("FABRICGATE_CONFIG").output();
    assert!(stderr(&output.expect("started")).contains("expected --config FILE"));
}

#[test]
fn recorded_outputs_are_judged_and_unreadable_ones_are_unknown() {
    let cluster = Cluster::new("n1");
    cluster.put("rec/nodes/n1/a.txt", "garbage\n");
    cluster.put("rec/nodes/n2/.hidden", "x");
    cluster.put("rec/nodes/stray", "x");
    cluster.put("rec/claims.toml", "[[domain]]\nname = \"r\"\nnodes = \"n[1-2]\"\n");
    std::os::unix::fs::symlink("nowhere", cluster.path("rec/nodes/n1/b.txt")).expect("linked");
    let output = cluster.run(&["judge", "rec", "missing.txt", "--json"]);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let verdicts: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(verdicts["format"], "fabricgate.verdicts/1");
    assert_eq!(verdicts["outcome"], "unknown");
    assert!(unknown(&verdicts, "rec/nodes/n1/b.txt").contains("cannot be read"));
    assert!(unknown(&verdicts, "missing.txt").contains("cannot be read"));
    assert_eq!(unknown(&verdicts, "node n2"), "its folder holds no output");
    assert_eq!(node_outcome(&verdicts, "n1"), "unknown");
    assert!(stderr(&output).contains("rec/nodes/stray: not read"), "{}", stderr(&output));

    let output = cluster.run(&["judge", "rec/nodes/n1/a.txt", "--json"]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
}

#[test]
fn a_closed_pipe_is_not_an_internal_error() {
    let cluster = Cluster::new("n[1-3]");
    for args in [&["completions", "bash"][..], &["probes", "list"], &["judge", "claims.toml"]] {
        let mut child = cluster
            .command(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("ended");
        assert_ne!(output.status.code(), Some(1), "{args:?}: {}", stderr(&output));
        assert!(!stderr(&output).contains("panicked"), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn probes_are_listed_shown_and_checked() {
    let cluster = Cluster::new("n1");
    let shown = cluster.run(&["probes", "show", "nccl-all-reduce"]);
    assert!(stdout(&shown).contains("all_reduce_perf"), "{}", stdout(&shown));
    let listed: Value =
        serde_json::from_slice(&cluster.run(&["probes", "list", "--json"]).stdout).expect("json");
    assert_eq!(listed["format"], "fabricgate.probes/1");
    cluster.put("bad.toml", "name = \"x\"\nparser = \"nvbw\"\n");
    let checked = cluster.run(&["probes", "check", "probes/nvbandwidth.toml", "bad.toml"]);
    assert_eq!(checked.status.code(), Some(2));
    assert!(stdout(&checked).contains("probes/nvbandwidth.toml: good"), "{}", stdout(&checked));
    assert!(stderr(&checked).contains("bad.toml:2:10"), "{}", stderr(&checked));
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    let cluster = Cluster::new("n1");
    for shell in ["bash", "zsh", "fish"] {
        assert!(stdout(&cluster.run(&["completions", shell])).contains("audit"), "{shell}");
    }
    fs::create_dir(cluster.path("man")).expect("made");
    assert_eq!(cluster.run(&["man", "man"]).status.code(), Some(0));
    assert!(cluster.path("man/fabricgate-audit.1").exists());
    assert!(stdout(&cluster.run(&["man"])).contains(".TH"));
}
