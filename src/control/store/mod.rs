//! Files on disk: run folders, and folders of recorded outputs.
//!
//! A run folder is the truth about a run. It is written piece by piece, each
//! file whole or not at all, so that whatever ends the run leaves something
//! that can be read. Nothing here measures, judges or decides.

pub mod acceptance;
pub mod archive;
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
pub mod signing;

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
    /// What the run was.
    pub const RUN: &str = "run.json";
    /// What was claimed of the nodes it covers.
    pub const CLAIMS: &str = "claims.json";
    /// The simulated fabric that was measured, where it was one.
    pub const SCENARIO: &str = "scenario.toml";
    /// What was planned.
    pub const PLAN: &str = "plan.json";
    /// What was planned to confirm suspicions, where there were any.
    pub const CONFIRM: &str = "confirm.json";
    /// One line per greeting of a worker: which machine a node was.
    pub const MACHINES: &str = "machines.jsonl";
    /// One line per reading that ended.
    pub const RESULTS: &str = "results.jsonl";
    /// One line per output that was read.
    pub const MEASUREMENTS: &str = "measurements.jsonl";
    /// What the judge says.
    pub const VERDICTS: &str = "verdicts.json";
    /// One line per measured cell.
    pub const CELLS: &str = "cells.jsonl";
    /// How far below expectation the worst part of each node was.
    pub const LEVELS: &str = "levels.json";
    /// What is proposed.
    pub const ACTIONS: &str = "actions.json";
    /// Every measured cell, for spreadsheets.
    pub const MATRIX: &str = "matrix.csv";
    /// What a repair changed, where the run was held against an earlier one.
    pub const COMPARISON: &str = "comparison.json";
    /// The report as a page.
    pub const REPORT: &str = "report.html";

    /// Those that something reads back.
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

/// How far a run came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// It is under way, or was ended without notice.
    Running,
    /// It was interrupted; what was measured until then is there.
    Partial,
    /// Every step of its plan was tried.
    Complete,
}

/// What a run was (`run.json`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunRecord {
    /// `fabricgate.run/1`.
    pub format: String,
    /// Id, time, profile, version.
    pub info: RunInfo,
    /// How far it came.
    pub state: RunState,
    /// When it ended, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// When it was taken up again after an interruption, RFC 3339.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resumed: Vec<String>,
    /// The seed of its plan.
    pub seed: u64,
    /// How nodes were reached.
    pub launcher: Launcher,
    /// The platform a person named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// What might be proposed.
    #[serde(deserialize_with = "removed::recorded")]
    pub policy: Policy,
    /// How many nodes are claimed in all, of which this run may cover a part.
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
    /// What was claimed.
    pub claims: Claims,
    /// What has changed since an earlier moment, where one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Vec<ClaimsChange>>,
}

/// A line of `measurements.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeasurementRecord {
    /// `fabricgate.measurement/1`.
    pub format: String,
    /// The output with its place.
    pub recording: ToolRecording,
}

/// Why a run folder could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The system says no.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// The folder has no `run.json`.
    #[error("{}: no run folder, {} is missing", path.display(), file::RUN)]
    NotARunFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A file is not what it should be.
    #[error("{}:{line}: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
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
        /// The newest one known here.
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
