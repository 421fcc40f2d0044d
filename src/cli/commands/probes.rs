//! `fabricgate probes`: lists the probes in force, and checks probe files.

use std::fmt::Write as _;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::stdout;
use crate::cli::stdout::{Globals, note};
use crate::exit::CommandError;
use crate::{config, exit};
use model::probe::{
    PROBES_FORMAT, Probe, ProbeGranularity, ProbeScope, ProbesDocument, ReadySignal,
};
use model::shell_quote;
use readers::probe_catalog;
use readers::probe_catalog::ProbeCatalog;

/// List, show and check the probes in force.
#[derive(Debug, clap::Args)]
pub struct ProbesArgs {
    #[command(subcommand)]
    command: ProbesCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ProbesCommand {
    /// List the probes in force.
    List {
        /// A folder with the site's probe files.
        #[arg(long, value_name = "DIR")]
        probes: Option<PathBuf>,
    },
    /// Show everything about one probe.
    Show {
        /// The probe.
        #[arg(value_name = "NAME")]
        name: String,
        /// A folder with the site's probe files.
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

/// The format of `probes check --json`.
pub const CHECK_FORMAT: &str = "fabricgate.probes-check/1";

/// Runs the command.
pub fn run(args: &ProbesArgs, globals: &Globals) -> anyhow::Result<u8> {
    match &args.command {
        ProbesCommand::List { probes } => {
            let catalog = load_probes(probes.as_ref(), globals)?;
            if globals.json {
                let probes = catalog.probes.into_values().collect();
                stdout::write_json(&ProbesDocument { format: PROBES_FORMAT.to_owned(), probes })?;
            } else {
                let mut text = String::new();
                for probe in catalog.probes.values() {
                    let _ = writeln!(
                        text,
                        "{:<28} stage {}  {:<6}  {:>4} s  {}",
                        probe.name,
                        probe.stage,
                        probe.scope.as_str(),
                        probe.cost_s,
                        probe.title
                    );
                }
                stdout::write_text(&text)?;
            }
        }
        ProbesCommand::Show { name, probes } => {
            let catalog = load_probes(probes.as_ref(), globals)?;
            let Some(probe) = catalog.get(name) else {
                let known = catalog.joined_names();
                let text = format!("NAME {name:?}: no such probe, expected one of: {known}");
                return Err(CommandError::Usage(text).into());
            };
            if globals.json {
                let probes = vec![probe.clone()];
                stdout::write_json(&ProbesDocument { format: PROBES_FORMAT.to_owned(), probes })?;
            } else {
                stdout::write_text(&render_probe(probe))?;
            }
        }
        ProbesCommand::Check { files } => return check_files(files, globals.json),
    }
    Ok(exit::PASS)
}

/// Loads the site's folder: from the option, else from the configuration, if any.
fn load_probes(dir: Option<&PathBuf>, globals: &Globals) -> Result<ProbeCatalog, CommandError> {
    match (dir, &globals.config) {
        (Some(dir), _) => config::load_probes(Some(dir)),
        (None, Some(path)) => Ok(config::open(Some(path))?.catalog),
        (None, None) => Ok(ProbeCatalog::built_in()),
    }
}

/// The result of `probes check --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ProbesCheckDocument {
    /// `fabricgate.probes-check/1`.
    format: &'static str,
    /// The files, in the order of the arguments.
    files: Vec<CheckedProbeFile>,
}

/// One file: its probe, or its error.
#[derive(Debug, Serialize, JsonSchema)]
struct CheckedProbeFile {
    /// Path of the file.
    file: String,
    /// The probe in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    probe: Option<Probe>,
    /// Why the file is not valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

fn check_files(files: &[PathBuf], json: bool) -> anyhow::Result<u8> {
    let (document, code) = build_document(files);
    let mut text = String::new();
    for CheckedProbeFile { file, probe, error } in &document.files {
        if let Some(probe) = probe {
            let _ = writeln!(text, "{file}: good, probe {}", probe.name);
        }
        if let Some(error) = error {
            note(error);
        }
    }
    if json {
        stdout::write_json(&document)?;
    } else {
        stdout::write_text(&text)?;
    }
    Ok(code)
}

/// The results of all files, and the worst exit code.
fn build_document(files: &[PathBuf]) -> (ProbesCheckDocument, u8) {
    let mut code = exit::PASS;
    let mut document = ProbesCheckDocument { format: CHECK_FORMAT, files: Vec::new() };
    for path in files {
        let file = path.display().to_string();
        let read = config::read_text(path)
            .and_then(|text| probe_catalog::parse_probe(&file, &text).map_err(CommandError::usage));
        let (probe, error) = match read {
            Ok(probe) => (Some(probe), None),
            Err(failure) => {
                code = code.max(failure.exit_code());
                (None, Some(failure.to_string()))
            }
        };
        document.files.push(CheckedProbeFile { file, probe, error });
    }
    (document, code)
}

fn render_probe(probe: &Probe) -> String {
    let mut text = format!("{}: {}\n", probe.name, probe.title);
    let mut line = |label: &str, value: String| {
        let _ = writeln!(text, "  {label:<9} {value}");
    };
    line("from", probe.origin.clone());
    line("command", shell_quote::join_quoted(&probe.argv));
    if let Some(serve) = &probe.serve {
        let ready = match serve.ready {
            ReadySignal::Port => "ready when it listens on its port",
            ReadySignal::Line => "ready when it prints `listening PORT`",
        };
        line("serves", format!("{} ({ready})", shell_quote::join_quoted(&serve.argv)));
    }
    if probe.on_all_nodes {
        line("on", "every node that takes part; the nodes exchange messages".to_owned());
    }
    if let Some(fallback) = &probe.fallback {
        let on = if fallback.on_all_nodes { " (on every node)" } else { "" };
        let parser = fallback.parser;
        line(
            "fallback",
            format!("{}{on}, read as {parser}", shell_quote::join_quoted(&fallback.argv)),
        );
    }
    line("read as", probe.parser.to_string());
    let scope = match (probe.scope, probe.grain) {
        (ProbeScope::Node, _) => "one node",
        (ProbeScope::Pair, ProbeGranularity::Node) => "two nodes of a domain",
        (ProbeScope::Pair, ProbeGranularity::Gpu) => "two nodes of a domain, lane by lane",
        (ProbeScope::Rail, _) => "two nodes over a rail",
        (ProbeScope::Domain, _) => "all nodes of a domain",
    };
    line("scope", format!("{}: {scope}", probe.scope.as_str()));
    line("covers", format!("{} of the pairs of GPUs there", probe.covers.as_str()));
    line("stage", probe.stage.to_string());
    line("takes", format!("about {} s, given up after {} s", probe.cost_s, probe.timeout_s));
    if probe.reads_itself {
        line("repeats", "by itself, all readings in one execution".to_owned());
    }
    line("disturbs", probe.disturbs.as_str().to_owned());
    let mut needs = Vec::new();
    if 0 < probe.requires.min_gpus {
        needs.push(format!("{} GPUs or more on each node", probe.requires.min_gpus));
    }
    if probe.requires.idle_gpus {
        needs.push("no job on them".to_owned());
    }
    if probe.requires.nvlink_across {
        needs.push("NVLink between nodes".to_owned());
    }
    if needs.is_empty() {
        needs.push("nothing".to_owned());
    }
    line("needs", needs.join(", "));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_checked_separately_and_the_worst_decides_the_exit_code() {
        let folder = tempfile::tempdir().expect("a folder");
        let good = folder.path().join("good.toml");
        let bad = folder.path().join("bad.toml");
        let text = include_str!("../../../probes/iperf3.toml");
        std::fs::write(&good, text).expect("written");
        std::fs::write(&bad, text.replace("stage = 2", "stage = 3")).expect("written");
        let (document, code) = build_document(&[bad, good.clone()]);
        assert_eq!(code, exit::USAGE);
        let [first, second] = document.files.as_slice() else { panic!("{document:?}") };
        assert!(first.probe.is_none());
        let error = first.error.as_deref().unwrap_or_default();
        assert!(error.contains("bad.toml:10:9: stage 3"), "{error}");
        assert_eq!(second.probe.as_ref().map(|p| p.name.as_str()), Some("iperf3"));
        assert_eq!(build_document(&[good]).1, exit::PASS);
        assert_eq!(build_document(&[folder.path().join("none.toml")]).1, exit::ENVIRONMENT);
    }

    #[test]
    fn a_probe_of_two_sides_shows_both() {
        let catalog = ProbeCatalog::built_in();
        let text = render_probe(catalog.get("tcp").expect("built in"));
        for part in ["--serve", "prints `listening PORT`", "rail: two nodes", "all readings"] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        let lane = render_probe(catalog.get("nvbandwidth-lane").expect("built in"));
        assert!(lane.contains("NVLink between nodes") && lane.contains("covers    lane"), "{lane}");
    }
}
