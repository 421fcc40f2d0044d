//! The allowed dependencies between crates and between folders. The compiler refuses an arrow
//! that a manifest does not have; these tests check the manifests and the folders inside the
//! crates.

use std::collections::BTreeSet;
use std::fs;

use super::{CRATES, code, crate_of, files, name, root, uses};

/// Crates, and the crates of the workspace that each may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("readers", &["model"]),
    ("engine", &["model", "readers"]),
    ("node", &["model", "readers"]),
    ("control", &["engine", "model", "node", "readers"]),
    ("sim", &["model", "readers"]),
    ("study", &["control", "engine", "model", "node", "readers", "sim"]),
];

/// Dependencies that only these crates (and the program) may have: opening sockets, using an API
/// server, loading a library, drawing.
const ONLY: &[(&str, &[&str])] = &[
    ("axum", &["control"]),
    ("kube", &["control"]),
    ("libloading", &["node"]),
    ("minijinja", &["engine"]),
    ("nvml-wrapper", &["node"]),
    ("plotters", &["engine"]),
    ("reqwest", &["control"]),
    ("rusqlite", &["control"]),
    ("tokio", &["node", "control"]),
];

/// Folders, and the folders that they never use although the crates would allow it.
const NEVER: &[(&str, &[&str])] = &[
    (
        "control/launch",
        &["control/sweep", "control/gate", "control/store", "readers/claims", "readers/outputs"],
    ),
    ("control/gate", &["control/sweep", "readers/outputs", "engine/judge", "engine/plan"]),
    ("control/notify", &["control/gate", "readers/outputs"]),
    ("control/sources", &["control/sweep", "control/gate", "readers/outputs"]),
    ("control/store", &["control/sweep", "control/gate", "readers/outputs", "control/sources"]),
    ("control/sweep", &["control/gate", "control/notify", "control/sources"]),
    ("engine/export", &["engine/judge", "readers/outputs", "engine/report"]),
    ("engine/judge", &["engine/policy", "readers/claims", "engine/plan", "engine/report"]),
    ("engine/place", &["engine/export"]),
    (
        "engine/plan",
        &["readers/claims", "engine/judge", "readers/outputs", "engine/policy", "engine/report"],
    ),
    (
        "engine/policy",
        &[
            "readers/outputs",
            "engine/report",
            "engine/judge",
            "engine/plan",
            "engine/export",
            "engine/place",
        ],
    ),
    ("engine/report", &["readers/outputs", "engine/plan"]),
    (
        "engine/thresholds",
        &[
            "engine/judge",
            "engine/plan",
            "engine/policy",
            "engine/report",
            "engine/export",
            "engine/place",
        ],
    ),
    ("node/exec", &["node/probes", "node/worker", "node/facts", "node/doctor"]),
    ("node/ffi", &["node/probes", "node/worker", "node/facts", "node/doctor", "node/exec"]),
    ("readers/outputs", &["readers/claims"]),
    // It answers as the tools do and reads no output.
    ("sim", &["readers/outputs"]),
];

/// The dependencies of a crate, without those of its tests.
fn dependencies(name: &str) -> BTreeSet<String> {
    let manifest = fs::read_to_string(root().join("src").join(name).join("Cargo.toml"));
    let manifest = manifest.unwrap_or_else(|error| panic!("src/{name}/Cargo.toml: {error}"));
    let table = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
    let table = table.split("\n[").next().unwrap_or(table);
    let names = table.lines().filter_map(|line| line.split(['.', ' ']).next());
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[test]
fn crates_depend_only_on_the_crates_below_them() {
    assert_eq!(ARROWS.iter().map(|(name, _)| *name).collect::<Vec<_>>(), CRATES);
    for (name, may) in ARROWS {
        let used: Vec<String> = dependencies(name)
            .iter()
            .filter_map(|it| it.strip_prefix("fabricgate-").map(str::to_owned))
            .collect();
        assert_eq!(used, *may, "invariant 1: src/{name}/Cargo.toml");
    }
    for (dependency, crates) in ONLY {
        let have = CRATES.iter().filter(|name| dependencies(name).contains(*dependency));
        let have: Vec<&str> = have.copied().collect();
        assert_eq!(have, *crates, "crates that depend on {dependency}");
    }
}

#[test]
fn only_the_node_crate_may_hold_unsafe_code() {
    for name in CRATES.iter().filter(|name| **name != "node") {
        let top = fs::read_to_string(root().join("src").join(name).join("lib.rs")).expect("lib.rs");
        assert!(top.contains("#![forbid(unsafe_code)]"), "invariant 3: src/{name}/lib.rs");
    }
}

#[test]
fn folders_do_not_use_forbidden_folders() {
    let mut wrong = Vec::new();
    for (folder, never) in NEVER {
        for path in files(&format!("src/{folder}"), "rs") {
            let file = name(&path);
            let used = uses(&file, &code(&path));
            let bad = never.iter().filter(|it| used.contains(**it));
            wrong.extend(bad.map(|it| format!("{file} uses {it}")));
        }
    }
    assert!(wrong.is_empty(), "invariant 1 (folders):\n{}", wrong.join("\n"));
    // The test would pass over an empty set if paths were no longer found.
    let file = "src/engine/policy/drain.rs";
    assert_eq!(crate_of(file), "engine");
    assert!(uses(file, &code(&root().join(file))).iter().any(|it| it.starts_with("model/")));
}

#[test]
fn the_configuration_does_not_know_the_command_line() {
    let sections = files("src/config", "rs");
    assert!(10 < sections.len(), "the sections are found no longer");
    for path in sections {
        assert!(!code(&path).contains("crate::cli"), "invariant 1: {} uses cli", name(&path));
    }
}

#[test]
fn shared_modules_do_not_know_the_commands() {
    let shared: Vec<_> = files("src/cli", "rs")
        .into_iter()
        .filter(|it| !name(it).starts_with("src/cli/commands/"))
        // `mod.rs` runs the commands, `schemas.rs` is a test.
        .filter(|it| !["src/cli/mod.rs", "src/cli/schemas.rs"].contains(&name(it).as_str()))
        .collect();
    assert!(15 < shared.len(), "the shared modules are found no longer");
    for path in shared {
        assert!(!code(&path).contains("commands::"), "{} uses a command", name(&path));
    }
}

#[test]
fn a_command_uses_no_other_command() {
    for path in files("src/cli/commands", "rs") {
        let file = name(&path);
        let own = file["src/cli/commands/".len()..].split(['/', '.']).next().unwrap_or_default();
        if own == "mod" {
            continue;
        }
        let code = code(&path);
        let uses = code.split("cli::commands::").skip(1);
        let others: Vec<&str> = uses
            .filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next())
            .filter(|command| *command != own)
            .collect();
        assert!(others.is_empty(), "{file} uses commands {others:?}: share it in src/cli");
    }
}
