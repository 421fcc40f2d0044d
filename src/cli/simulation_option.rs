//! `--sim`: a simulated fabric in the place of a cluster. Workers answer as its
//! nodes; nothing here knows what it is made of.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::config::{Config, open, open_with_scenario, parse, read_text};
use crate::exit::CommandError;
use engine::thresholds::fault::suggest_name;
use model::text_error::TextError;
use sim::fabric::SimFabric;
use sim::scenario::{Scenario, ScenarioError};

/// Options of commands that can do without a configuration.
#[derive(Debug, clap::Args)]
pub struct SimulationArgs {
    /// Measure a simulated fabric instead of a cluster's: a scenario file, or one that is compiled
    /// in (rack-lost-link, two-racks-healthy, rail-half-rate, split-clique); rack-lost-link where none is
    /// named.
    #[arg(long = "sim", value_name = "SCENARIO", num_args = 0..=1,
        default_missing_value = "rack-lost-link")]
    scenario: Option<PathBuf>,
}

/// A folder for a moment that nobody else may write to, whatever the umask: tools that
/// workers start are looked for there.
pub(crate) fn private_temp_dir() -> io::Result<tempfile::TempDir> {
    let own = fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix("fabricgate-sim-").permissions(own).tempdir()
}

impl SimulationArgs {
    /// This scenario.
    pub fn from_scenario(scenario: PathBuf) -> Self {
        Self { scenario: Some(scenario) }
    }

    /// Whether a simulated fabric is asked for.
    pub fn is_requested(&self) -> bool {
        self.scenario.is_some()
    }

    /// The configuration that is meant.
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
            // Workers may stand elsewhere.
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

/// Whether a person meant a name and no file: there is none, and it is not spelled as one.
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

/// A scenario that is compiled in, as a file that workers can read.
fn write_scenario(scratch: &Path, name: &str, text: &str) -> Result<PathBuf, CommandError> {
    let path = scratch.join(format!("{name}.toml"));
    fs::write(&path, text)
        .map_err(|error| CommandError::Environment(format!("{}: {error}", path.display())))?;
    Ok(path)
}

/// The scenarios that are compiled in.
const BUILT_IN_SCENARIOS: &[(&str, &str)] = &[
    ("rack-lost-link", include_str!("../../examples/rack-lost-link.toml")),
    ("two-racks-healthy", include_str!("../../examples/two-racks-healthy.toml")),
    ("rail-half-rate", include_str!("../../examples/rail-half-rate.toml")),
    ("split-clique", include_str!("../../examples/split-clique.toml")),
];

/// The simulated hardware of a scenario file.
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
