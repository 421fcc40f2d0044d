//! `--sim`: a simulated fabric in the place of a cluster. Workers answer as its
//! nodes; nothing here knows what it is made of.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::path::PathBuf;

use super::Config;
use super::open;
use super::open_for;
use super::parse;
use super::read_text;
use crate::cli::failure::Failure;
use engine::thresholds::fault::nearest;
use model::span::TextError;
use sim::fabric::Fabric;
use sim::scenario::Scenario;
use sim::scenario::ScenarioError;

/// Options of commands that can do without a configuration.
#[derive(Debug, clap::Args)]
pub struct Simulated {
    /// Measure a simulated fabric instead of a cluster's: a scenario file, or one that is compiled
    /// in (rack-lost-link, two-racks-healthy, rail-half-rate, split-clique); rack-lost-link where none is
    /// named.
    #[arg(long = "sim", value_name = "SCENARIO", num_args = 0..=1,
        default_missing_value = "rack-lost-link")]
    scenario: Option<PathBuf>,
}

/// A folder for a moment that nobody else may write to, whatever the umask: tools that
/// workers start are looked for there.
pub(crate) fn folder() -> io::Result<tempfile::TempDir> {
    let own = fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix("fabricgate-sim-").permissions(own).tempdir()
}

impl Simulated {
    /// This scenario.
    pub fn by(scenario: PathBuf) -> Self {
        Self { scenario: Some(scenario) }
    }

    /// Whether a simulated fabric is asked for.
    pub fn is_asked(&self) -> bool {
        self.scenario.is_some()
    }

    /// The configuration that is meant.
    pub fn config(&self, path: Option<&Path>) -> Result<Config, Failure> {
        let Some(scenario) = &self.scenario else { return open(path) };
        let name = scenario.display().to_string();
        let scratch = folder().map_err(|error| {
            Failure::Environment(format!("no folder for temporary files: {error}"))
        })?;
        let built_in = BUILT_IN_SCENARIOS.iter().find(|(built_in, _)| *built_in == name);
        let scenario = match built_in {
            Some((name, text)) => as_file(scratch.path(), name, text)?,
            None if is_name(scenario) => return Err(unknown(&name)),
            // Workers may stand elsewhere.
            None => std::path::absolute(scenario)
                .map_err(|error| Failure::Environment(format!("{name}: {error}")))?,
        };
        let config = match path {
            Some(path) => open_for(path, Some(&scenario))?,
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

fn unknown(name: &str) -> Failure {
    let known = || BUILT_IN_SCENARIOS.iter().map(|(name, _)| *name);
    let hint = nearest(name, known());
    let hint = hint.map(|name| format!(", did you mean `{name}`?")).unwrap_or_default();
    let known: Vec<&str> = known().collect();
    Failure::Usage(format!(
        "--sim {name}: no such scenario{hint} Expected a file or one of {}",
        known.join(", ")
    ))
}

/// A scenario that is compiled in, as a file that workers can read.
fn as_file(scratch: &Path, name: &str, text: &str) -> Result<PathBuf, Failure> {
    let path = scratch.join(format!("{name}.toml"));
    fs::write(&path, text)
        .map_err(|error| Failure::Environment(format!("{}: {error}", path.display())))?;
    Ok(path)
}

/// The scenarios that are compiled in.
const BUILT_IN_SCENARIOS: &[(&str, &str)] = &[
    ("rack-lost-link", include_str!("../../../examples/rack-lost-link.toml")),
    ("two-racks-healthy", include_str!("../../../examples/two-racks-healthy.toml")),
    ("rail-half-rate", include_str!("../../../examples/rail-half-rate.toml")),
    ("split-clique", include_str!("../../../examples/split-clique.toml")),
];

/// The simulated hardware of a scenario file.
pub(super) fn fabric(path: &Path) -> Result<Fabric, Failure> {
    let name = path.display().to_string();
    let wrong = |why: String| Failure::Usage(format!("{name}: {why}"));
    let text = read_text(path)?;
    let scenario = Scenario::read(&text).map_err(|error| match error {
        ScenarioError::Shape(error) => Failure::usage(TextError::toml(&name, &text, &error)),
        ScenarioError::Sense(why) => wrong(why),
    })?;
    Fabric::build(&scenario).map_err(wrong)
}
