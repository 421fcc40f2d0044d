//! The folder of a burn-in, beside the run folders of its rounds.
//!
//! It is written after every round, each file whole or not at all, so that
//! whatever ends the program costs at most the round that was under way.

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

/// The document.
pub const DOCUMENT_FILE: &str = "acceptance.json";
/// The same for people, as a page.
pub const PAGE_FILE: &str = "acceptance.html";
/// And as text.
pub const TEXT_FILE: &str = "acceptance.md";
/// What going on with it needs beside the document.
const RESUME_FILE: &str = "burn-in.json";
/// The format of that.
pub const RESUME_FORMAT: &str = "fabricgate.burn-in/1";

/// What going on with a burn-in needs beside its document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BurnInResumeState {
    /// `fabricgate.burn-in/1`.
    pub format: String,
    /// How nodes are reached.
    pub launcher: Launcher,
    /// Where the run folders of its rounds are.
    pub run_dir: PathBuf,
}

/// A burn-in that was opened.
#[derive(Debug)]
pub struct BurnInFolder {
    /// Its folder.
    pub folder: RunFolder,
    /// How far it came.
    pub acceptance: Acceptance,
    /// What was claimed when it began.
    pub claims: Claims,
    /// How nodes are reached, and where its rounds are.
    pub resume_state: BurnInResumeState,
}

/// The name of a burn-in's folder.
pub fn folder_name(id: &str) -> String {
    format!("burn-in-{id}")
}

/// Whether a folder is that of a burn-in.
pub fn is_burn_in_folder(path: &Path) -> bool {
    path.join(DOCUMENT_FILE).is_file()
}

/// Makes the folder of a new burn-in.
pub fn create_folder(
    runs: &Path,
    acceptance: &Acceptance,
    claims: &Claims,
    launcher: &Launcher,
) -> Result<RunFolder, RecordError> {
    let folder = RunFolder::create(runs, &folder_name(&acceptance.id))?;
    if let Launcher::Sim { scenario, .. } = launcher {
        // The file may be gone, or another, when it is gone on with.
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

/// The document of a burn-in.
pub fn read_acceptance(path: &Path) -> Result<Acceptance, RecordError> {
    let path = path.join(DOCUMENT_FILE);
    run_reader::read_json(&path, ACCEPTANCE_FORMAT)?.ok_or_else(|| missing_error(&path))
}

/// A document as it was read: what it says, and itself, whose signature covers also
/// what this program does not know.
#[derive(Clone, Debug, PartialEq)]
pub struct AcceptanceDocument {
    /// What it says.
    pub acceptance: Acceptance,
    /// The document.
    pub document: Value,
}

/// Reads a document from a file, wherever it was copied to; `None` where there is none.
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
