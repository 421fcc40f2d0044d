//! Files on disk: run folders, and folders of recorded outputs.
//!
//! A run folder is the authoritative record of a run. Each of its files is written whole or not at
//! all, so a run that is cut off at any moment leaves a readable folder. Nothing here measures,
//! judges or decides.

pub mod acceptance;
pub mod archive;
pub mod document_signature;
pub mod history;
pub mod last_measured;
pub mod latest_verdicts;
pub mod lenient_reader;
pub mod plan_json;
pub mod recorded_outputs;
pub mod run_folder;
pub mod run_id;
pub mod run_reader;
pub mod safe_open;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::launch::Launcher;
use engine::policy::action_policy::{Policy, removed};
use model::claims::Claims;
use model::run::RunInfo;
use model::tool_recording::ToolRecording;
use readers::claims::reconcile::diff::ClaimsChange;

/// The format of `run.json`.
pub const RUN_FORMAT: &str = "fabricgate.run/1";
/// The format of `claims.json`.
pub const CLAIMS_FORMAT: &str = "fabricgate.claims/1";
/// The format of a line of `measurements.jsonl`.
pub const MEASUREMENT_FORMAT: &str = "fabricgate.measurement/1";

/// Names of files in a run folder.
pub mod file {
    /// The record of the run.
    pub const RUN: &str = "run.json";
    /// The claims about its nodes.
    pub const CLAIMS: &str = "claims.json";
    /// The simulated fabric of a simulated run.
    pub const SCENARIO: &str = "scenario.toml";
    /// The plan.
    pub const PLAN: &str = "plan.json";
    /// The plan of the confirm stage, if there were suspicions.
    pub const CONFIRM: &str = "confirm.json";
    /// One line per start of a worker: the machine of its node.
    pub const MACHINES: &str = "machines.jsonl";
    /// One line per completed reading.
    pub const RESULTS: &str = "results.jsonl";
    /// One line per parsed output.
    pub const MEASUREMENTS: &str = "measurements.jsonl";
    /// The verdicts.
    pub const VERDICTS: &str = "verdicts.json";
    /// One line per measured cell.
    pub const CELLS: &str = "cells.jsonl";
    /// The lowest ratio to the expectation of each node.
    pub const LEVELS: &str = "levels.json";
    /// The proposed actions.
    pub const ACTIONS: &str = "actions.json";
    /// Every measured cell, for spreadsheets.
    pub const MATRIX: &str = "matrix.csv";
    /// The comparison with an earlier run, after a repair.
    pub const COMPARISON: &str = "comparison.json";
    /// The HTML report.
    pub const REPORT: &str = "report.html";

    /// The files that the program reads back.
    pub const READ: &[&str] = &[
        RUN,
        CLAIMS,
        SCENARIO,
        PLAN,
        CONFIRM,
        MACHINES,
        RESULTS,
        MEASUREMENTS,
        VERDICTS,
        CELLS,
        LEVELS,
        ACTIONS,
        COMPARISON,
    ];
}

/// The state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// It is in progress, or was killed.
    Running,
    /// It was interrupted; earlier measurements are stored.
    Partial,
    /// Every step of its plan was attempted.
    Complete,
}

/// The record of a run (`run.json`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunRecord {
    /// `fabricgate.run/1`.
    pub format: String,
    /// Id, time, profile, version.
    pub info: RunInfo,
    /// Its state.
    pub state: RunState,
    /// When it ended, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// When it was resumed after an interruption, RFC 3339.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resumed: Vec<String>,
    /// The seed of its plan.
    pub seed: u64,
    /// The launcher of its nodes.
    pub launcher: Launcher,
    /// The platform that the operator named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// The policy for proposed actions.
    #[serde(deserialize_with = "removed::recorded")]
    pub policy: Policy,
    /// The number of all claimed nodes, of which this run may cover a part.
    pub fleet: usize,
    /// Digest of the claims.
    pub claims_digest: String,
    /// Digest of the expectations.
    pub thresholds_digest: String,
}

/// `claims.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimsRecord {
    /// `fabricgate.claims/1`.
    pub format: String,
    /// The claims.
    pub claims: Claims,
    /// The changes since an earlier moment, if the operator asked for a comparison.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Vec<ClaimsChange>>,
}

/// A line of `measurements.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeasurementRecord {
    /// `fabricgate.measurement/1`.
    pub format: String,
    /// The output with its scope.
    pub recording: ToolRecording,
}

/// An error in writing or reading a run folder.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// An error of the operating system.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// The folder has no `run.json`.
    #[error("{}: not a run folder: {} is missing", path.display(), file::RUN)]
    NotARunFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A file is damaged or of another kind.
    #[error("{}:{line}: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The error in that line.
        why: String,
    },
    /// A newer program wrote it.
    #[error(
        "{}: written by a newer fabricgate ({found}); this one reads up to {known}",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: String,
        /// The newest format that this program reads.
        known: &'static str,
    },
}

/// The first 16 hexadecimal digits of the SHA-256 of a value's JSON.
pub fn json_digest<T: Serialize>(value: &T) -> String {
    use sha2::Digest as _;
    let json = serde_json::to_vec(value).expect("values of the model are plain data");
    let hash = sha2::Sha256::digest(&json);
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
