//! The folder of a burn-in, beside the run folders of its rounds.
//!
//! It is written after every round, each file whole or not at all, so that
//! whatever ends the program costs at most the round that was under way.

use std::path::{Path, PathBuf};
use std::{fs, io};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::folder::{Folder, io_error};
use super::{CLAIMS_FORMAT, ClaimsRecord, RecordError, file, stored};
use crate::launch::Launcher;
use model::acceptance::{ACCEPTANCE_FORMAT, Acceptance};
use model::claims::Claims;

/// The document.
pub const DOCUMENT: &str = "acceptance.json";
/// The same for people, as a page.
pub const PAGE: &str = "acceptance.html";
/// And as text.
pub const TEXT: &str = "acceptance.md";
/// What going on with it needs beside the document.
const SETTING: &str = "burn-in.json";
/// The format of that.
pub const SETTING_FORMAT: &str = "fabricgate.burn-in/1";

/// What going on with a burn-in needs beside its document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Setting {
    /// `fabricgate.burn-in/1`.
    pub format: String,
    /// How nodes are reached.
    pub launcher: Launcher,
    /// Where the run folders of its rounds are.
    pub run_dir: PathBuf,
}

/// A burn-in that was opened.
#[derive(Debug)]
pub struct Opened {
    /// Its folder.
    pub folder: Folder,
    /// How far it came.
    pub acceptance: Acceptance,
    /// What was claimed when it began.
    pub claims: Claims,
    /// How nodes are reached, and where its rounds are.
    pub setting: Setting,
}

/// The name of a burn-in's folder.
pub fn name(id: &str) -> String {
    format!("burn-in-{id}")
}

/// Whether a folder is that of a burn-in.
pub fn is_one(path: &Path) -> bool {
    path.join(DOCUMENT).is_file()
}

/// Makes the folder of a new burn-in.
pub fn create(
    runs: &Path,
    acceptance: &Acceptance,
    claims: &Claims,
    launcher: &Launcher,
) -> Result<Folder, RecordError> {
    let folder = Folder::create(runs, &name(&acceptance.id))?;
    if let Launcher::Sim { scenario, .. } = launcher {
        // The file may be gone, or another, when it is gone on with.
        let text = fs::read(scenario).map_err(|source| io_error(scenario, source))?;
        folder.write(file::SCENARIO, &text)?;
    }
    let claims =
        ClaimsRecord { format: CLAIMS_FORMAT.to_owned(), claims: claims.clone(), changes: None };
    folder.write_json(file::CLAIMS, &claims)?;
    let setting = Setting {
        format: SETTING_FORMAT.to_owned(),
        launcher: launcher.clone(),
        run_dir: runs.to_owned(),
    };
    folder.write_json(SETTING, &setting)?;
    folder.write_json(DOCUMENT, acceptance)?;
    Ok(folder)
}

/// The document of a burn-in.
pub fn read(path: &Path) -> Result<Acceptance, RecordError> {
    let path = path.join(DOCUMENT);
    stored::json(&path, ACCEPTANCE_FORMAT)?.ok_or_else(|| missing(&path))
}

/// A document as it was read: what it says, and itself, whose signature covers also
/// what this program does not know.
#[derive(Clone, Debug, PartialEq)]
pub struct Read {
    /// What it says.
    pub acceptance: Acceptance,
    /// The document.
    pub document: Value,
}

/// Reads a document from a file, wherever it was copied to; `None` where there is none.
pub fn of_file(path: &Path) -> Result<Option<Read>, RecordError> {
    let read = stored::as_read(path, ACCEPTANCE_FORMAT)?;
    Ok(read.map(|(acceptance, document)| Read { acceptance, document }))
}

/// Opens the folder of a burn-in.
pub fn open(path: &Path) -> Result<Opened, RecordError> {
    let acceptance = read(path)?;
    let at = path.join(file::CLAIMS);
    let claims: ClaimsRecord = stored::json(&at, CLAIMS_FORMAT)?.ok_or_else(|| missing(&at))?;
    let at = path.join(SETTING);
    let setting = stored::json(&at, SETTING_FORMAT)?.ok_or_else(|| missing(&at))?;
    Ok(Opened { folder: Folder::at(path), acceptance, claims: claims.claims, setting })
}

fn missing(path: &Path) -> RecordError {
    io_error(path, io::Error::from(io::ErrorKind::NotFound))
}
