//! An independent reader of run folders: their verdicts, and the completeness of every file in
//! them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value;

/// Summary of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evidence {
    /// Its time, in seconds since 1970.
    pub(crate) created: i64,
    /// True time of its plan, written before any measurement, independent of the writer's clock:
    /// the kernel's time of the file.
    pub(crate) began: Option<f64>,
    /// It is complete, and of a profile that measures everything.
    pub(crate) is_whole: bool,
    pub(crate) nodes: BTreeMap<String, String>,
    /// Findings, by id.
    pub(crate) findings: BTreeMap<String, Finding>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Finding {
    /// The node that it blames.
    pub(crate) node: Option<String>,
    pub(crate) confirmed: bool,
}

/// The run folders below this one, oldest first.
pub(crate) fn folders(runs: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = fs::read_dir(runs)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_dir())
        .collect();
    folders.sort();
    folders
}

/// Summaries of runs, by id; a run without verdicts has an empty one.
pub(crate) fn read(runs: &Path) -> BTreeMap<String, Evidence> {
    let evidence = |folder: PathBuf| {
        let name = folder.file_name()?.to_str()?.to_owned();
        Some((name, of_run(&folder)?))
    };
    folders(runs).into_iter().filter_map(evidence).collect()
}

fn document(file: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

fn began(folder: &Path) -> Option<f64> {
    let written = fs::metadata(folder.join("plan.json")).ok()?.modified().ok()?;
    Some(written.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs_f64())
}

fn of_run(folder: &Path) -> Option<Evidence> {
    let verdicts = document(&folder.join("verdicts.json"))?;
    let run = document(&folder.join("run.json"))?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let created: jiff::Timestamp = run["info"]["created"].as_str()?.parse().ok()?;
    let profile = text(&run["info"]["profile"]);
    let nodes = verdicts["nodes"].as_array()?.iter();
    // A part of a node blames the node; a pair or a domain blames no node.
    let accused = |locus: &Value| {
        let is_of_node =
            matches!(locus["kind"].as_str(), Some("gpu" | "node" | "direction" | "tray" | "rail"));
        is_of_node.then(|| text(&locus["node"])).filter(|name| !name.is_empty())
    };
    let finding = |value: &Value| Finding {
        node: accused(&value["locus"]),
        confirmed: value["confirmed"] == true,
    };
    let findings = verdicts["findings"].as_array()?.iter();
    Some(Evidence {
        created: created.as_second(),
        began: began(folder),
        is_whole: run["state"] == "complete" && matches!(profile.as_str(), "recertify" | "burn-in"),
        nodes: nodes.map(|it| (text(&it["node"]), text(&it["outcome"]))).collect(),
        findings: findings.map(|it| (text(&it["id"]), finding(it))).collect(),
    })
}

/// Files of a folder, including subfolders.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Time of the last write in a folder; `None` where it is empty.
pub(crate) fn written(folder: &Path) -> Option<SystemTime> {
    let mut found = Vec::new();
    files(folder, &mut found);
    found.iter().filter_map(|file| fs::metadata(file).ok()?.modified().ok()).max()
}

/// Incomplete files under their final names.
pub(crate) fn torn(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    files(folder, &mut found);
    let mut broken = Vec::new();
    for file in found {
        let extension = file.extension().and_then(|it| it.to_str()).unwrap_or_default();
        // A tool's output is stored as printed.
        let is_raw = file.components().any(|it| it.as_os_str() == "raw");
        if is_raw || !matches!(extension, "json" | "jsonl") {
            continue;
        }
        let Ok(bytes) = fs::read(&file) else { continue };
        let is_json = |text: &[u8]| serde_json::from_slice::<Value>(text).is_ok();
        let is_whole = match extension {
            "json" => is_json(&bytes),
            // Only the last line may be torn.
            _ => {
                let lines = bytes.split_inclusive(|byte| *byte == b'\n');
                lines.filter(|line| line.last() == Some(&b'\n')).all(is_json)
            }
        };
        if !is_whole {
            broken.push(format!("{} is not whole", file.display()));
        }
    }
    broken
}
