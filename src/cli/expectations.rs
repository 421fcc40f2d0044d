//! The expectations in force: the built-in ones and the site's files on top.

use std::path::{Path, PathBuf};

use crate::cli::stdout::note;
use crate::exit;
use crate::exit::CommandError;
use control::sources::input_file;
use engine::thresholds::fault::{ThresholdFault, suggest_name};
use engine::thresholds::{PlatformCatalogue, builtin, file, overlay};

/// Options for the site's threshold files.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Overrides {
    /// A threshold file of this site, on top of the built-in ones (repeatable).
    #[arg(long = "thresholds", value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// Why the expectations could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum OverrideError {
    /// A file cannot be read.
    #[error(transparent)]
    Input(#[from] input_file::InputError),
    /// A file has faults.
    #[error("{}", join_faults(.0))]
    Faults(Vec<ThresholdFault>),
}

impl OverrideError {
    /// The exit code of this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Input(_) => exit::ENVIRONMENT,
            Self::Faults(_) => exit::USAGE,
        }
    }
}

fn join_faults(faults: &[ThresholdFault]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

impl Overrides {
    /// Loads the built-in expectations with these files on top; returns the warnings.
    pub fn load(&self) -> Result<(PlatformCatalogue, Vec<ThresholdFault>), OverrideError> {
        let mut catalogue = builtin::builtin_catalogue().clone();
        let mut warnings = Vec::new();
        for path in &self.files {
            warnings.extend(add_file(&mut catalogue, path)?);
        }
        Ok((catalogue, warnings))
    }
}

/// Adds one file to the catalogue and returns its warnings.
pub(crate) fn add_file(
    catalogue: &mut PlatformCatalogue,
    path: &Path,
) -> Result<Vec<ThresholdFault>, OverrideError> {
    let origin = path.display().to_string();
    let bytes = input_file::read(path)?;
    let text =
        file::decode_text(&bytes, &origin).map_err(|fault| OverrideError::Faults(vec![*fault]))?;
    overlay::apply(catalogue, text, &origin).map_err(OverrideError::Faults)
}

/// The expectations with their digest.
#[derive(Debug)]
pub struct ActiveThresholds {
    /// The expectations.
    pub catalogue: PlatformCatalogue,
    /// Digest of the expectations.
    pub digest: String,
}

/// Loads the expectations in force: the built-in ones with the site's `files` on top; later files
/// win. Prints the warnings.
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

/// Checks that a named platform exists; `place` is the option or key that names it.
pub fn check_platform(
    catalogue: &PlatformCatalogue,
    name: &str,
    place: &str,
) -> Result<(), CommandError> {
    match catalogue.platform(name) {
        Some(class) if class.is_nic() => Err(CommandError::Usage(format!(
            "{place}: {name} is a class of NICs, not a platform; claim it as `nic` in claims.toml"
        ))),
        Some(_) => Ok(()),
        None => {
            Err(CommandError::Usage(format!("{place}: {}", unknown_platform_text(catalogue, name))))
        }
    }
}

/// Whether NVLink ends at the node on this platform; false for an unknown or absent platform.
pub fn nvlink_ends_at_node(catalogue: &PlatformCatalogue, platform: Option<&str>) -> bool {
    let platform = platform.and_then(|name| catalogue.platform(name));
    platform.is_some_and(|platform| platform.nodes_per_domain == Some(1))
}

/// The message about an unknown platform: its name, the nearest name and all names.
pub fn unknown_platform_text(catalogue: &PlatformCatalogue, name: &str) -> String {
    let names: Vec<&str> = catalogue.platforms.keys().map(String::as_str).collect();
    let meant = suggest_name(name, names.iter().copied())
        .map_or_else(String::new, |nearest| format!(", did you mean `{nearest}`?"));
    format!("there is no platform `{name}`{meant}\nexpected one of: {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_platform_is_named_with_the_nearest_and_all_others() {
        let text = unknown_platform_text(builtin::builtin_catalogue(), "gb200-nvl27");
        assert!(
            text.starts_with("there is no platform `gb200-nvl27`, did you mean `gb200-nvl72`?")
        );
        assert!(text.contains("hgx-a100") && text.contains("nic-ndr-400"));
    }
}
