//! `fabricgate probes`: the probes in force, and whether a file is good.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Serialize;

use super::Globals;
use super::config;
use super::exit;
use super::failure::Failure;
use super::stdout;
use super::stdout::note;
use crate::model::probe::Probe;
use crate::model::words;
use crate::probe::catalog;
use crate::probe::catalog::Catalog;

/// List, show and check the probes in force.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the probes in force.
    List {
        /// A folder with a site's own probe files.
        #[arg(long, value_name = "DIR")]
        probes: Option<PathBuf>,
    },
    /// Show everything about one probe.
    Show {
        /// The probe.
        #[arg(value_name = "NAME")]
        name: String,
        /// A folder with a site's own probe files.
        #[arg(long, value_name = "DIR")]
        probes: Option<PathBuf>,
    },
    /// Check probe files.
    Check {
        /// The files.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

/// The format of `probes list --json`.
pub const PROBES_FORMAT: &str = "fabricgate.probes/1";

#[derive(Debug, Serialize)]
struct ProbesDocument<'a> {
    format: &'static str,
    probes: Vec<&'a Probe>,
}

/// Runs the command.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    match &args.command {
        Command::List { probes } => {
            let catalog = in_force(probes.as_ref(), globals)?;
            if globals.json {
                let probes = catalog.probes.values().collect();
                stdout::json(&ProbesDocument { format: PROBES_FORMAT, probes })?;
            } else {
                let mut text = String::new();
                for probe in catalog.probes.values() {
                    let _ = writeln!(
                        text,
                        "{:<20} stage {}  {:>4} s  {}",
                        probe.name, probe.stage, probe.cost_s, probe.title
                    );
                }
                stdout::text(&text)?;
            }
        }
        Command::Show { name, probes } => {
            let catalog = in_force(probes.as_ref(), globals)?;
            let Some(probe) = catalog.get(name) else {
                let known = catalog.names();
                let text = format!("NAME {name:?}: no such probe, expected one of: {known}");
                return Err(Failure::Usage(text).into());
            };
            if globals.json {
                let probes = vec![probe];
                stdout::json(&ProbesDocument { format: PROBES_FORMAT, probes })?;
            } else {
                stdout::text(&shown(probe))?;
            }
        }
        Command::Check { files } => return check(files),
    }
    Ok(exit::PASS)
}

/// A site's folder: from the option, else from the configuration, if any.
fn in_force(dir: Option<&PathBuf>, globals: &Globals) -> Result<Catalog, Failure> {
    match (dir, &globals.config) {
        (Some(dir), _) => config::probes_in_force(Some(dir)),
        (None, Some(path)) => Ok(config::open(Some(path))?.catalog),
        (None, None) => Ok(Catalog::built_in()),
    }
}

fn check(files: &[PathBuf]) -> anyhow::Result<u8> {
    let mut code = exit::PASS;
    let mut text = String::new();
    for file in files {
        let name = file.display().to_string();
        let checked = config::read_text(file)
            .and_then(|text| catalog::parse(&name, &text).map_err(Failure::usage));
        match checked {
            Ok(probe) => {
                let _ = writeln!(text, "{name}: good, probe {}", probe.name);
            }
            Err(failure) => {
                note(&failure.to_string());
                code = code.max(failure.code());
            }
        }
    }
    stdout::text(&text)?;
    Ok(code)
}

fn shown(probe: &Probe) -> String {
    let mut text = format!("{}: {}\n", probe.name, probe.title);
    let mut line = |label: &str, value: String| {
        let _ = writeln!(text, "  {label:<9} {value}");
    };
    line("from", probe.origin.clone());
    line("command", words::line(&probe.argv));
    line("read as", probe.parser.to_string());
    line("stage", probe.stage.to_string());
    line("takes", format!("about {} s, given up after {} s", probe.cost_s, probe.timeout_s));
    line("disturbs", probe.disturbs.as_str().to_owned());
    let idle = if probe.requires.idle_gpus { ", no job on them" } else { "" };
    line("needs", format!("{} GPUs or more{idle}", probe.requires.min_gpus));
    text
}
