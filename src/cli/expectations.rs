//! The expectations in force: what ships, and what a site lays over it.

use std::path::PathBuf;

use super::exit;
use super::failure::Failure;
use super::stdout::note;
use super::thresholds::Overrides;
use super::thresholds::unknown_platform;
use engine::thresholds::Catalogue;
use engine::thresholds::builtin;

/// Expectations with their digest.
#[derive(Debug)]
pub struct InForce {
    /// The expectations.
    pub catalogue: Catalogue,
    /// Their digest.
    pub digest: String,
}

/// Reads what is in force; `files` are a site's own, later ones win. What
/// looks wrong without being an error is told.
pub fn load(files: &[PathBuf]) -> Result<InForce, Failure> {
    let overrides = Overrides { files: files.to_vec() };
    let (catalogue, warnings) = overrides.in_force().map_err(|error| match error.code() {
        exit::USAGE => Failure::usage(error),
        _ => Failure::environment(error),
    })?;
    for warning in warnings {
        note(&warning.to_string());
    }
    let digest = builtin::digest(&catalogue);
    Ok(InForce { catalogue, digest })
}

/// Checks that a platform a person named exists; `place` is where they did.
pub fn check_platform(catalogue: &Catalogue, name: &str, place: &str) -> Result<(), Failure> {
    match catalogue.platform(name) {
        Some(class) if class.is_nic() => Err(Failure::Usage(format!(
            "{place}: {name} is a class of NICs, not a platform; it is claimed as `nic` in claims.toml"
        ))),
        Some(_) => Ok(()),
        None => Err(Failure::Usage(format!("{place}: {}", unknown_platform(catalogue, name)))),
    }
}

/// Whether NVLink ends at the node on this platform, as far as one is named and known.
pub fn ends_at_node(catalogue: &Catalogue, platform: Option<&str>) -> bool {
    let platform = platform.and_then(|name| catalogue.platform(name));
    platform.is_some_and(|platform| platform.nodes_per_domain == Some(1))
}
