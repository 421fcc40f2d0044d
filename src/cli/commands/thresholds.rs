//! `fabricgate thresholds`: the expectations in force, and the source of every number. Judges
//! nothing.

pub mod platform_table;
pub mod site_proposal;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::expectations::{OverrideError, Overrides, add_file, unknown_platform_text};
use crate::cli::stdout;
use crate::cli::stdout::{Globals, note};
use crate::exit;
use engine::thresholds::fault::ThresholdFault;
use engine::thresholds::{Platform, PlatformCatalogue, builtin, file, lint, overlay};

/// List, show and check the expectations in force.
#[derive(Debug, clap::Args)]
pub struct ThresholdsArgs {
    #[command(subcommand)]
    command: ThresholdsCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ThresholdsCommand {
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
    /// Check threshold files; without FILE, the built-in ones.
    Check {
        /// Files to check, each on top of the built-in ones and of the files before it.
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Propose a threshold file of this site from the levels that a run measured, for an operator
    /// to review.
    Measured(site_proposal::ThresholdsMeasuredArgs),
}

/// The result of `thresholds list --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ThresholdsListDocument {
    /// `fabricgate.thresholds/1`.
    pub format: String,
    /// Digest of all expectations in force.
    pub digest: String,
    /// The platforms.
    pub platforms: Vec<PlatformSummary>,
}

/// One platform of the list.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PlatformSummary {
    /// Name of the platform.
    pub name: String,
    /// Description of the platform.
    pub title: String,
    /// Product names of its GPUs.
    pub devices: Vec<String>,
    /// Expected GPUs per node.
    pub gpus_per_node: Option<u32>,
    /// Nodes in one NVLink domain.
    pub nodes_per_domain: Option<u32>,
    /// Number of tests with an expectation.
    pub tests: usize,
    /// Number of collectives with an expectation.
    pub collectives: usize,
    /// The files that define the platform.
    pub origin: String,
}

/// The result of `thresholds show --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ThresholdsShowDocument {
    /// `fabricgate.thresholds/1`.
    pub format: String,
    /// Digest of all expectations in force.
    pub digest: String,
    /// The platform.
    pub platform: Platform,
}

/// The result of `thresholds check --json`.
#[derive(Debug, Serialize)]
pub struct ThresholdsCheckDocument {
    /// `fabricgate.thresholds/1`.
    pub format: String,
    /// One entry per file.
    pub files: Vec<CheckedThresholdFile>,
    /// Warnings about all files together.
    pub warnings: Vec<String>,
}

/// One checked file.
#[derive(Debug, Serialize)]
pub struct CheckedThresholdFile {
    /// Path of the file, as given.
    pub file: String,
    /// Whether the file is usable.
    pub ok: bool,
    /// Why the file could not be read at all.
    pub unreadable: Option<String>,
    /// Errors in the file.
    pub faults: Vec<ThresholdFault>,
    /// Warnings about the file.
    pub warnings: Vec<ThresholdFault>,
}

/// Runs the command.
pub fn run(args: &ThresholdsArgs, globals: &Globals) -> anyhow::Result<u8> {
    let json = globals.json;
    match &args.command {
        ThresholdsCommand::List { overrides } => {
            with_catalogue(overrides, |all| list_platforms(all, json))
        }
        ThresholdsCommand::Show { name, overrides } => {
            with_catalogue(overrides, |all| show_platform(all, name, json))
        }
        ThresholdsCommand::Check { files } => check_files(files, json),
        ThresholdsCommand::Measured(args) => site_proposal::run(args, globals),
    }
}

fn with_catalogue(
    overrides: &Overrides,
    then: impl FnOnce(&PlatformCatalogue) -> anyhow::Result<u8>,
) -> anyhow::Result<u8> {
    match overrides.load() {
        Ok((catalogue, warnings)) => {
            for warning in warnings {
                anstream::eprintln!("warning: {warning}");
            }
            then(&catalogue)
        }
        Err(error) => {
            note(&error.to_string());
            Ok(error.exit_code())
        }
    }
}

fn list_platforms(catalogue: &PlatformCatalogue, json: bool) -> anyhow::Result<u8> {
    let digest = builtin::digest(catalogue);
    if json {
        let platforms = catalogue.platforms.values().map(summarize_platform).collect();
        stdout::write_json(&ThresholdsListDocument {
            format: file::THRESHOLDS_FORMAT.to_owned(),
            digest,
            platforms,
        })?;
        return Ok(exit::PASS);
    }
    let mut table = platform_table::new_table(
        &["name", "what", "GPUs", "nodes", "tests", "collectives", "from"],
        "what",
    );
    for platform in catalogue.platforms.values() {
        let row = summarize_platform(platform);
        table.add_row([
            row.name,
            row.title,
            platform_table::format_count(row.gpus_per_node),
            platform_table::format_count(row.nodes_per_domain),
            row.tests.to_string(),
            row.collectives.to_string(),
            row.origin,
        ]);
    }
    platform_table::align_right(&mut table, &[2, 3, 4, 5]);
    stdout::write_text(&format!("{}\n\ndigest {digest}\n", platform_table::trim_table(&table)))?;
    Ok(exit::PASS)
}

fn summarize_platform(platform: &Platform) -> PlatformSummary {
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

fn show_platform(catalogue: &PlatformCatalogue, name: &str, json: bool) -> anyhow::Result<u8> {
    let Some(platform) = catalogue.platform(name) else {
        note(&unknown_platform_text(catalogue, name));
        return Ok(exit::USAGE);
    };
    let digest = builtin::digest(catalogue);
    if json {
        let format = file::THRESHOLDS_FORMAT.to_owned();
        stdout::write_json(&ThresholdsShowDocument { format, digest, platform: platform.clone() })?;
    } else {
        stdout::write_text(&platform_table::render_platform(platform, &digest))?;
    }
    Ok(exit::PASS)
}

fn check_files(files: &[PathBuf], json: bool) -> anyhow::Result<u8> {
    let mut catalogue = builtin::builtin_catalogue().clone();
    let mut checked = Vec::new();
    let mut code = exit::PASS;
    if files.is_empty() {
        checked.extend(check_shipped());
    }
    for path in files {
        let file = path.display().to_string();
        let mut entry = CheckedThresholdFile {
            file,
            ok: true,
            unreadable: None,
            faults: vec![],
            warnings: vec![],
        };
        match add_file(&mut catalogue, path) {
            Ok(warnings) => entry.warnings = warnings,
            Err(error) => {
                code = code.max(error.exit_code());
                entry.ok = false;
                match error {
                    OverrideError::Input(error) => entry.unreadable = Some(error.to_string()),
                    OverrideError::Faults(faults) => entry.faults = faults,
                }
            }
        }
        checked.push(entry);
    }
    let shared = lint::find_shared_devices(&catalogue).into_iter();
    let warnings: Vec<String> =
        shared.map(|(a, b, device)| format!("`{device}` of {a} is also a GPU of {b}")).collect();
    if json {
        let format = file::THRESHOLDS_FORMAT.to_owned();
        stdout::write_json(&ThresholdsCheckDocument { format, files: checked, warnings })?;
    } else {
        let files = checked.iter().map(describe_file);
        let all = warnings.iter().map(|warning| format!("warning: {warning}\n"));
        stdout::write_text(&files.chain(all).collect::<String>())?;
    }
    Ok(code)
}

fn check_shipped() -> Vec<CheckedThresholdFile> {
    let mut catalogue = PlatformCatalogue::default();
    builtin::BUILTIN_FILES
        .iter()
        .map(|(name, text)| {
            let (faults, warnings) = match overlay::apply(&mut catalogue, text, name) {
                Ok(warnings) => (Vec::new(), warnings),
                Err(faults) => (faults, Vec::new()),
            };
            let ok = faults.is_empty();
            CheckedThresholdFile {
                file: (*name).to_owned(),
                ok,
                unreadable: None,
                faults,
                warnings,
            }
        })
        .collect()
}

fn describe_file(entry: &CheckedThresholdFile) -> String {
    let faults = entry.faults.iter().map(|fault| format!("error: {fault}\n"));
    let warnings = entry.warnings.iter().map(|warning| format!("warning: {warning}\n"));
    let text: String = faults.chain(warnings).collect();
    if let Some(why) = &entry.unreadable {
        return format!("{text}error: {why}\n");
    }
    let verdict = match (entry.faults.len(), entry.warnings.len()) {
        (0, 0) => "ok".to_owned(),
        (0, n) => format!("ok, {}", count_noun(n, "warning")),
        (n, _) => count_noun(n, "error"),
    };
    format!("{text}{}: {verdict}\n", entry.file)
}

fn count_noun(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}
