//! Which folders may use which: groups that are to become crates, and arrows that are
//! not there.

use super::{code, files, name, uses};

/// Groups of folders, and the groups that each may use besides itself.
const GROUPS: &[(&str, &[&str], &[&str])] = &[
    ("model", &["model"], &[]),
    // The text of other programs.
    ("readers", &["inventory", "measure"], &["model"]),
    (
        "engine",
        &["thresholds", "plan", "judge", "act", "report", "export", "place"],
        &["model", "readers"],
    ),
    // Runs on a node.
    ("node", &["exec", "ffi", "facts", "probe", "doctor"], &["model", "readers"]),
    (
        "control",
        &["launch", "coordinator", "record", "sources", "gate", "notify"],
        &["model", "readers", "engine", "node"],
    ),
    ("sim", &["sim"], &["model", "readers"]),
    ("study", &["study"], &["model", "readers", "engine", "node", "control", "sim"]),
    ("program", &["cli"], &["model", "readers", "engine", "node", "control", "sim", "study"]),
];

/// Arrows that no group forbids and that are not there either.
const NEVER: &[(&str, &[&str])] = &[
    ("act", &["measure", "report", "judge", "plan", "export", "place"]),
    ("coordinator", &["gate", "sim", "notify", "sources"]),
    ("export", &["judge", "measure", "report"]),
    ("gate", &["coordinator", "measure", "judge", "plan"]),
    ("judge", &["act", "inventory", "plan", "report"]),
    ("launch", &["coordinator", "gate", "record", "inventory", "measure"]),
    ("notify", &["gate", "measure"]),
    ("place", &["export"]),
    ("plan", &["inventory", "judge", "measure"]),
    ("record", &["coordinator", "gate", "measure", "sources"]),
    ("report", &["coordinator", "measure", "plan"]),
    ("sources", &["coordinator", "gate", "measure"]),
];

#[test]
fn groups_of_folders_use_only_what_they_may() {
    let group_of = |folder: &str| {
        let group = GROUPS.iter().find(|(_, folders, _)| folders.contains(&folder));
        group.map(|(name, ..)| *name)
    };
    let mut wrong = Vec::new();
    for path in files("src", "rs") {
        let file = name(&path);
        let Some((folder, _)) = file["src/".len()..].split_once('/') else { continue };
        let own = group_of(folder).unwrap_or_else(|| panic!("src/{folder} is in no group"));
        let (.., may) = GROUPS.iter().find(|(name, ..)| *name == own).expect("a group");
        let never = NEVER.iter().find(|(it, _)| *it == folder).map_or(&[][..], |(_, it)| it);
        for used in uses(&code(&path)) {
            // Names that stand in the crate itself are macros.
            let Some(other) = group_of(used) else { continue };
            if other != own && !may.contains(&other) || never.contains(&used) {
                wrong.push(format!("{file} uses crate::{used}"));
            }
        }
    }
    assert!(wrong.is_empty(), "invariant 1 (groups):\n{}", wrong.join("\n"));
}
