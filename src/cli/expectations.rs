//! The expectations in force: what ships, and what a site lays over it.

use std::path::PathBuf;

use super::failure::Failure;
use crate::record;
use crate::thresholds::Catalogue;

/// Expectations with their digest.
#[derive(Debug)]
pub struct InForce {
    /// The expectations.
    pub catalogue: Catalogue,
    /// Their digest.
    pub digest: String,
}

/// Reads what is in force; `files` are a site's own, later ones win.
pub fn load(files: &[PathBuf]) -> Result<InForce, Failure> {
    if let Some(file) = files.first() {
        let text = format!("{}: this build cannot read threshold files", file.display());
        return Err(Failure::Usage(text));
    }
    let catalogue = Catalogue::default();
    let digest = record::digest(&catalogue);
    Ok(InForce { catalogue, digest })
}

/// Checks that a platform a person named exists.
pub fn check_platform(catalogue: &Catalogue, name: &str, place: &str) -> Result<(), Failure> {
    if catalogue.platform(name).is_some() {
        return Ok(());
    }
    let names: Vec<&str> = catalogue.platforms.keys().map(String::as_str).collect();
    let known = if names.is_empty() { "none is known".to_owned() } else { names.join(", ") };
    Err(Failure::Usage(format!("{place}: there is no platform {name:?}, expected one of: {known}")))
}
