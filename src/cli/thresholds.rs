//! `fabricgate thresholds`: which expectations are in force, and where every
//! number comes from. Judges nothing.

pub mod measured;
mod show;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

use super::Globals;
use super::exit;
use super::stdout;
use super::stdout::note;
use control::sources::input;
use engine::thresholds::Catalogue;
use engine::thresholds::Platform;
use engine::thresholds::builtin;
use engine::thresholds::fault::Fault;
use engine::thresholds::fault::nearest;
use engine::thresholds::file;
use engine::thresholds::lint;
use engine::thresholds::overlay;

/// List, show and check the expectations in force.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the platforms and NIC classes in force.
    List {
        #[command(flatten)]
        overrides: Overrides,
    },
    /// Show every number of one platform, with its derivation and its source.
    Show {
        /// The platform or NIC class.
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        overrides: Overrides,
    },
    /// Check threshold files; without FILE, those that ship.
    Check {
        /// Files to check, each on top of what ships and of those before it.
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Propose a threshold file of this site from what a run showed, for a person to read.
    Measured(measured::Args),
}

/// A site's own threshold files.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Overrides {
    /// A threshold file of this site, laid over those that ship (repeatable).
    #[arg(long = "thresholds", value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// Why the expectations in force cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum OverrideError {
    /// A file cannot be read.
    #[error(transparent)]
    Input(#[from] input::InputError),
    /// A file is wrong.
    #[error("{}", joined(.0))]
    Faults(Vec<Fault>),
}

impl OverrideError {
    /// The exit code that this means.
    pub fn code(&self) -> u8 {
        match self {
            Self::Input(_) => exit::ENVIRONMENT,
            Self::Faults(_) => exit::USAGE,
        }
    }
}

fn joined(faults: &[Fault]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

impl Overrides {
    /// What ships with these files on top, and what looks wrong in them.
    pub fn in_force(&self) -> Result<(Catalogue, Vec<Fault>), OverrideError> {
        let mut catalogue = builtin::catalogue().clone();
        let mut warnings = Vec::new();
        for path in &self.files {
            warnings.extend(lay(&mut catalogue, path)?);
        }
        Ok((catalogue, warnings))
    }
}

/// Lays one file over the catalogue; gives its warnings.
fn lay(catalogue: &mut Catalogue, path: &std::path::Path) -> Result<Vec<Fault>, OverrideError> {
    let origin = path.display().to_string();
    let bytes = input::read(path)?;
    let text = file::text(&bytes, &origin).map_err(|fault| OverrideError::Faults(vec![*fault]))?;
    overlay::apply(catalogue, text, &origin).map_err(OverrideError::Faults)
}

/// `thresholds list --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ListDocument {
    /// `fabricgate.thresholds/1`.
    pub format: String,
    /// Digest of all expectations in force.
    pub digest: String,
    /// The platforms.
    pub platforms: Vec<PlatformSummary>,
}

/// One line of the list.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PlatformSummary {
    /// Its name.
    pub name: String,
    /// What it is.
    pub title: String,
    /// Product names of its GPUs.
    pub devices: Vec<String>,
    /// GPUs a node must show.
    pub gpus_per_node: Option<u32>,
    /// Nodes in one NVLink domain.
    pub nodes_per_domain: Option<u32>,
    /// How many tests have an expectation.
    pub tests: usize,
    /// How many collectives have one.
    pub collectives: usize,
    /// The files it was read from.
    pub origin: String,
}

/// `thresholds show --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ShowDocument {
    /// `fabricgate.thresholds/1`.
    pub format: String,
    /// Digest of all expectations in force.
    pub digest: String,
    /// The platform.
    pub platform: Platform,
}

/// `thresholds check --json`.
#[derive(Debug, Serialize)]
pub struct CheckDocument {
    /// `fabricgate.thresholds/1`.
    pub format: String,
    /// One entry per file.
    pub files: Vec<CheckedFile>,
    /// What looks wrong about all of them together.
    pub warnings: Vec<String>,
}

/// One checked file.
#[derive(Debug, Serialize)]
pub struct CheckedFile {
    /// The file as it was named.
    pub file: String,
    /// Whether it can be used.
    pub ok: bool,
    /// Why it could not be read at all.
    pub unreadable: Option<String>,
    /// What is wrong.
    pub faults: Vec<Fault>,
    /// What looks wrong.
    pub warnings: Vec<Fault>,
}

/// Runs the command.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    let json = globals.json;
    match &args.command {
        Command::List { overrides } => with_catalogue(overrides, |all| list(all, json)),
        Command::Show { name, overrides } => with_catalogue(overrides, |all| show(all, name, json)),
        Command::Check { files } => check(files, json),
        Command::Measured(args) => measured::run(args, globals),
    }
}

fn with_catalogue(
    overrides: &Overrides,
    then: impl FnOnce(&Catalogue) -> anyhow::Result<u8>,
) -> anyhow::Result<u8> {
    match overrides.in_force() {
        Ok((catalogue, warnings)) => {
            for warning in warnings {
                anstream::eprintln!("warning: {warning}");
            }
            then(&catalogue)
        }
        Err(error) => {
            note(&error.to_string());
            Ok(error.code())
        }
    }
}

fn list(catalogue: &Catalogue, json: bool) -> anyhow::Result<u8> {
    let digest = builtin::digest(catalogue);
    if json {
        let platforms = catalogue.platforms.values().map(summary).collect();
        stdout::json(&ListDocument { format: file::FORMAT.to_owned(), digest, platforms })?;
        return Ok(exit::PASS);
    }
    let mut table =
        show::table(&["name", "what", "GPUs", "nodes", "tests", "collectives", "from"], "what");
    for platform in catalogue.platforms.values() {
        let row = summary(platform);
        table.add_row([
            row.name,
            row.title,
            show::count(row.gpus_per_node),
            show::count(row.nodes_per_domain),
            row.tests.to_string(),
            row.collectives.to_string(),
            row.origin,
        ]);
    }
    show::align_right(&mut table, &[2, 3, 4, 5]);
    stdout::text(&format!("{}\n\ndigest {digest}\n", show::trimmed(&table)))?;
    Ok(exit::PASS)
}

fn summary(platform: &Platform) -> PlatformSummary {
    PlatformSummary {
        name: platform.name.clone(),
        title: platform.title.clone(),
        devices: platform.devices.clone(),
        gpus_per_node: platform.gpus_per_node,
        nodes_per_domain: platform.nodes_per_domain,
        tests: platform.expectations.len(),
        collectives: platform.collectives.len(),
        origin: platform.origin.clone(),
    }
}

fn show(catalogue: &Catalogue, name: &str, json: bool) -> anyhow::Result<u8> {
    let Some(platform) = catalogue.platform(name) else {
        note(&unknown_platform(catalogue, name));
        return Ok(exit::USAGE);
    };
    let digest = builtin::digest(catalogue);
    if json {
        let format = file::FORMAT.to_owned();
        stdout::json(&ShowDocument { format, digest, platform: platform.clone() })?;
    } else {
        stdout::text(&show::rendered(platform, &digest))?;
    }
    Ok(exit::PASS)
}

/// What to say about a platform that does not exist: the value, the nearest
/// name and all names.
pub fn unknown_platform(catalogue: &Catalogue, name: &str) -> String {
    let names: Vec<&str> = catalogue.platforms.keys().map(String::as_str).collect();
    let meant = nearest(name, names.iter().copied())
        .map_or_else(String::new, |nearest| format!(", did you mean `{nearest}`?"));
    format!("there is no platform `{name}`{meant}\nexpected one of: {}", names.join(", "))
}

fn check(files: &[PathBuf], json: bool) -> anyhow::Result<u8> {
    let mut catalogue = builtin::catalogue().clone();
    let mut checked = Vec::new();
    let mut code = exit::PASS;
    if files.is_empty() {
        checked.extend(shipped());
    }
    for path in files {
        let file = path.display().to_string();
        let mut entry =
            CheckedFile { file, ok: true, unreadable: None, faults: vec![], warnings: vec![] };
        match lay(&mut catalogue, path) {
            Ok(warnings) => entry.warnings = warnings,
            Err(error) => {
                code = code.max(error.code());
                entry.ok = false;
                match error {
                    OverrideError::Input(error) => entry.unreadable = Some(error.to_string()),
                    OverrideError::Faults(faults) => entry.faults = faults,
                }
            }
        }
        checked.push(entry);
    }
    let shared = lint::shared_devices(&catalogue).into_iter();
    let warnings: Vec<String> =
        shared.map(|(a, b, device)| format!("`{device}` of {a} is also a GPU of {b}")).collect();
    if json {
        let format = file::FORMAT.to_owned();
        stdout::json(&CheckDocument { format, files: checked, warnings })?;
    } else {
        let files = checked.iter().map(report);
        let all = warnings.iter().map(|warning| format!("warning: {warning}\n"));
        stdout::text(&files.chain(all).collect::<String>())?;
    }
    Ok(code)
}

fn shipped() -> Vec<CheckedFile> {
    let mut catalogue = Catalogue::default();
    builtin::FILES
        .iter()
        .map(|(name, text)| {
            let (faults, warnings) = match overlay::apply(&mut catalogue, text, name) {
                Ok(warnings) => (Vec::new(), warnings),
                Err(faults) => (faults, Vec::new()),
            };
            let ok = faults.is_empty();
            CheckedFile { file: (*name).to_owned(), ok, unreadable: None, faults, warnings }
        })
        .collect()
}

fn report(entry: &CheckedFile) -> String {
    let faults = entry.faults.iter().map(|fault| format!("error: {fault}\n"));
    let warnings = entry.warnings.iter().map(|warning| format!("warning: {warning}\n"));
    let text: String = faults.chain(warnings).collect();
    if let Some(why) = &entry.unreadable {
        return format!("{text}error: {why}\n");
    }
    let verdict = match (entry.faults.len(), entry.warnings.len()) {
        (0, 0) => "ok".to_owned(),
        (0, n) => format!("ok, {}", counted(n, "warning")),
        (n, _) => counted(n, "error"),
    };
    format!("{text}{}: {verdict}\n", entry.file)
}

fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_platform_is_named_with_the_nearest_and_all_others() {
        let text = unknown_platform(builtin::catalogue(), "gb200-nvl27");
        assert!(
            text.starts_with("there is no platform `gb200-nvl27`, did you mean `gb200-nvl72`?")
        );
        assert!(text.contains("hgx-a100") && text.contains("nic-ndr-400"));
    }
}
