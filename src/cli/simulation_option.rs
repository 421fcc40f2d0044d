//! `--sim`: a simulated fabric instead of a cluster. Workers act as its nodes; this module does not
//! know its hardware.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::config::{Config, open, open_with_scenario, parse, read_text};
use crate::exit::CommandError;
use engine::thresholds::fault::suggest_name;
use model::text_error::TextError;
use sim::fabric::SimFabric;
use sim::scenario::{Scenario, ScenarioError};

/// Options of commands that can run without a configuration.
#[derive(Debug, clap::Args)]
pub struct SimulationArgs {
    /// Measure a simulated fabric instead of a cluster: a scenario file, or a built-in scenario
    /// (rack-lost-link, two-racks-healthy, rail-half-rate, split-clique); by default
    /// rack-lost-link.
    #[arg(long = "sim", value_name = "SCENARIO", num_args = 0..=1,
        default_missing_value = "rack-lost-link")]
    scenario: Option<PathBuf>,
}

/// A temporary folder that only this user can write to, whatever the umask: workers find their
/// tools in it.
pub(crate) fn private_temp_dir() -> io::Result<tempfile::TempDir> {
    let own = fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix("fabricgate-sim-").permissions(own).tempdir()
}

impl SimulationArgs {
    /// Selects this scenario.
    pub fn from_scenario(scenario: PathBuf) -> Self {
        Self { scenario: Some(scenario) }
    }

    /// Whether --sim is given.
    pub fn is_requested(&self) -> bool {
        self.scenario.is_some()
    }

    /// Opens the configuration, with the scenario in place of the cluster if one is given.
    pub fn open_config(&self, path: Option<&Path>) -> Result<Config, CommandError> {
        let Some(scenario) = &self.scenario else { return open(path) };
        let name = scenario.display().to_string();
        let scratch = private_temp_dir().map_err(|error| {
            CommandError::Environment(format!("no folder for temporary files: {error}"))
        })?;
        let built_in = BUILT_IN_SCENARIOS.iter().find(|(built_in, _)| *built_in == name);
        let scenario = match built_in {
            Some((name, text)) => write_scenario(scratch.path(), name, text)?,
            None if is_name(scenario) => return Err(unknown_scenario(&name)),
            // Workers may have another working directory.
            None => std::path::absolute(scenario)
                .map_err(|error| CommandError::Environment(format!("{name}: {error}")))?,
        };
        let config = match path {
            Some(path) => open_with_scenario(path, Some(&scenario))?,
            None => parse("", "", Path::new("--sim"), Path::new(""), Some(&scenario))?,
        };
        Ok(Config { scratch: Some(scratch), ..config })
    }
}

/// Whether the argument is a name: no such file exists, and it is not spelled as one.
fn is_name(scenario: &Path) -> bool {
    let is_spelled_as_file = scenario.extension().is_some() || 1 < scenario.components().count();
    !is_spelled_as_file && !scenario.exists()
}

fn unknown_scenario(name: &str) -> CommandError {
    let known = || BUILT_IN_SCENARIOS.iter().map(|(name, _)| *name);
    let hint = suggest_name(name, known());
    let hint = hint.map(|name| format!(", did you mean `{name}`?")).unwrap_or_default();
    let known: Vec<&str> = known().collect();
    CommandError::Usage(format!(
        "--sim {name}: no such scenario{hint} Expected a file or one of {}",
        known.join(", ")
    ))
}

/// Writes a built-in scenario into a file that workers can read.
fn write_scenario(scratch: &Path, name: &str, text: &str) -> Result<PathBuf, CommandError> {
    let path = scratch.join(format!("{name}.toml"));
    fs::write(&path, text)
        .map_err(|error| CommandError::Environment(format!("{}: {error}", path.display())))?;
    Ok(path)
}

const BUILT_IN_SCENARIOS: &[(&str, &str)] = &[
    ("rack-lost-link", include_str!("../../examples/rack-lost-link.toml")),
    ("two-racks-healthy", include_str!("../../examples/two-racks-healthy.toml")),
    ("rail-half-rate", include_str!("../../examples/rail-half-rate.toml")),
    ("split-clique", include_str!("../../examples/split-clique.toml")),
];

/// Builds the simulated hardware of a scenario file.
pub(crate) fn build_fabric(path: &Path) -> Result<SimFabric, CommandError> {
    let name = path.display().to_string();
    let wrong = |why: String| CommandError::Usage(format!("{name}: {why}"));
    let text = read_text(path)?;
    let scenario = Scenario::parse(&text).map_err(|error| match error {
        ScenarioError::Syntax(error) => {
            CommandError::usage(TextError::from_toml(&name, &text, &error))
        }
        ScenarioError::Inconsistent(why) => wrong(why),
    })?;
    SimFabric::build(&scenario).map_err(wrong)
}
