//! The expectations in force: what ships, and what a site lays over it.

use std::path::PathBuf;

use crate::cli::commands::thresholds::{Overrides, unknown_platform_text};
use crate::cli::stdout::note;
use crate::exit;
use crate::exit::CommandError;
use engine::thresholds::{PlatformCatalogue, builtin};

/// Expectations with their digest.
#[derive(Debug)]
pub struct ActiveThresholds {
    /// The expectations.
    pub catalogue: PlatformCatalogue,
    /// Their digest.
    pub digest: String,
}

/// Reads what is in force; `files` are a site's own, later ones win. What
/// looks wrong without being an error is told.
pub fn load_thresholds(files: &[PathBuf]) -> Result<ActiveThresholds, CommandError> {
    let overrides = Overrides { files: files.to_vec() };
    let (catalogue, warnings) = overrides.load().map_err(|error| match error.exit_code() {
        exit::USAGE => CommandError::usage(error),
        _ => CommandError::environment(error),
    })?;
    for warning in warnings {
        note(&warning.to_string());
    }
    let digest = builtin::digest(&catalogue);
    Ok(ActiveThresholds { catalogue, digest })
}

/// Checks that a platform a person named exists; `place` is where they did.
pub fn check_platform(
    catalogue: &PlatformCatalogue,
    name: &str,
    place: &str,
) -> Result<(), CommandError> {
    match catalogue.platform(name) {
        Some(class) if class.is_nic() => Err(CommandError::Usage(format!(
            "{place}: {name} is a class of NICs, not a platform; it is claimed as `nic` in claims.toml"
        ))),
        Some(_) => Ok(()),
        None => {
            Err(CommandError::Usage(format!("{place}: {}", unknown_platform_text(catalogue, name))))
        }
    }
}

/// Whether NVLink ends at the node on this platform, as far as one is named and known.
pub fn nvlink_ends_at_node(catalogue: &PlatformCatalogue, platform: Option<&str>) -> bool {
    let platform = platform.and_then(|name| catalogue.platform(name));
    platform.is_some_and(|platform| platform.nodes_per_domain == Some(1))
}
