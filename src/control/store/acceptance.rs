//! The folder of a burn-in, next to the run folders of its rounds.
//!
//! It is written after every round, each file whole or not at all: an interruption loses at most
//! the current round.

use std::path::{Path, PathBuf};
use std::{fs, io};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::run_folder::{RunFolder, io_error};
use super::{CLAIMS_FORMAT, ClaimsRecord, RecordError, file, run_reader};
use crate::launch::Launcher;
use model::acceptance::{ACCEPTANCE_FORMAT, Acceptance};
use model::claims::Claims;

/// The machine-readable document.
pub const DOCUMENT_FILE: &str = "acceptance.json";
/// The HTML page for readers.
pub const PAGE_FILE: &str = "acceptance.html";
/// The same report in Markdown.
pub const TEXT_FILE: &str = "acceptance.md";
const RESUME_FILE: &str = "burn-in.json";
/// The format of [`BurnInResumeState`].
pub const RESUME_FORMAT: &str = "fabricgate.burn-in/1";

/// The state that resuming a burn-in needs in addition to its document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BurnInResumeState {
    /// `fabricgate.burn-in/1`.
    pub format: String,
    /// How the coordinator reaches nodes.
    pub launcher: Launcher,
    /// The folder that holds the run folders of its rounds.
    pub run_dir: PathBuf,
}

/// An opened burn-in.
#[derive(Debug)]
pub struct BurnInFolder {
    /// Its folder on disk.
    pub folder: RunFolder,
    /// The document as of the last completed round.
    pub acceptance: Acceptance,
    /// The claims at the start of the burn-in.
    pub claims: Claims,
    /// The launcher, and the folder of the rounds.
    pub resume_state: BurnInResumeState,
}

/// The name of a burn-in's folder.
pub fn folder_name(id: &str) -> String {
    format!("burn-in-{id}")
}

/// Whether a folder holds a burn-in.
pub fn is_burn_in_folder(path: &Path) -> bool {
    path.join(DOCUMENT_FILE).is_file()
}

/// Creates the folder of a new burn-in.
pub fn create_folder(
    runs: &Path,
    acceptance: &Acceptance,
    claims: &Claims,
    launcher: &Launcher,
) -> Result<RunFolder, RecordError> {
    let folder = RunFolder::create(runs, &folder_name(&acceptance.id))?;
    if let Launcher::Sim { scenario, .. } = launcher {
        // The operator may have removed or edited the file before the burn-in resumes.
        let text = fs::read(scenario).map_err(|source| io_error(scenario, source))?;
        folder.write(file::SCENARIO, &text)?;
    }
    let claims =
        ClaimsRecord { format: CLAIMS_FORMAT.to_owned(), claims: claims.clone(), changes: None };
    folder.write_json(file::CLAIMS, &claims)?;
    let setting = BurnInResumeState {
        format: RESUME_FORMAT.to_owned(),
        launcher: launcher.clone(),
        run_dir: runs.to_owned(),
    };
    folder.write_json(RESUME_FILE, &setting)?;
    folder.write_json(DOCUMENT_FILE, acceptance)?;
    Ok(folder)
}

/// Reads the document of a burn-in.
pub fn read_acceptance(path: &Path) -> Result<Acceptance, RecordError> {
    let path = path.join(DOCUMENT_FILE);
    run_reader::read_json(&path, ACCEPTANCE_FORMAT)?.ok_or_else(|| missing_error(&path))
}

/// A document as typed values and as JSON. Its signature also covers fields that this program does
/// not know.
#[derive(Clone, Debug, PartialEq)]
pub struct AcceptanceDocument {
    /// The typed values.
    pub acceptance: Acceptance,
    /// The JSON.
    pub document: Value,
}

/// Reads a document from a file, which may be a copy; `None` if the file is missing.
pub fn read_file(path: &Path) -> Result<Option<AcceptanceDocument>, RecordError> {
    let read = run_reader::read_json_with_document(path, ACCEPTANCE_FORMAT)?;
    Ok(read.map(|(acceptance, document)| AcceptanceDocument { acceptance, document }))
}

/// Opens the folder of a burn-in.
pub fn open_folder(path: &Path) -> Result<BurnInFolder, RecordError> {
    let acceptance = read_acceptance(path)?;
    let at = path.join(file::CLAIMS);
    let claims: ClaimsRecord =
        run_reader::read_json(&at, CLAIMS_FORMAT)?.ok_or_else(|| missing_error(&at))?;
    let at = path.join(RESUME_FILE);
    let setting = run_reader::read_json(&at, RESUME_FORMAT)?.ok_or_else(|| missing_error(&at))?;
    Ok(BurnInFolder {
        folder: RunFolder::open(path),
        acceptance,
        claims: claims.claims,
        resume_state: setting,
    })
}

fn missing_error(path: &Path) -> RecordError {
    io_error(path, io::Error::from(io::ErrorKind::NotFound))
}
