//! Renders a run in every report format and writes the results.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::output::OutputFile;
use crate::cli::stdout;
use crate::exit::CommandError;
use control::store::file;
use engine::report::{TerminalStyle, actions, comparison, csv, html, json, junit, terminal};
use model::action::ActionPlan;
use model::comparison::RepairReport;
use model::run::{Run, RunInfo};
use model::verdict::Verdicts;

/// A format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ReportFormat {
    /// Text for a terminal.
    Terminal,
    /// One JSON document with verdicts and proposals.
    Json,
    /// The matrix, one measured cell per line.
    Csv,
    /// JUnit XML, for CI pipelines.
    Junit,
    /// One self-contained HTML page.
    Html,
}

/// Files to write a report to, in addition to standard output.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ReportFileArgs {
    /// Write the report as a self-contained page.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write every measured cell as CSV.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Write the verdicts as JUnit XML.
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
}

impl ReportFileArgs {
    /// Whether any file is requested.
    pub fn any(&self) -> bool {
        self.html.is_some() || self.csv.is_some() || self.junit.is_some()
    }

    /// Opens all files before the measurement, so that an unwritable path fails early.
    pub fn open(&self) -> Result<ReportFiles, CommandError> {
        let named = [&self.html, &self.csv, &self.junit].into_iter().flatten();
        check_distinct(named.map(PathBuf::as_path))?;
        Ok(ReportFiles {
            html: OutputFile::open_optional(self.html.as_ref())?,
            csv: OutputFile::open_optional(self.csv.as_ref())?,
            junit: OutputFile::open_optional(self.junit.as_ref())?,
        })
    }
}

/// Rejects a path given twice: the second file would overwrite the first.
pub fn check_distinct<'p>(paths: impl Iterator<Item = &'p Path>) -> Result<(), CommandError> {
    let mut seen: BTreeSet<&Path> = BTreeSet::new();
    for path in paths {
        if !seen.insert(path) {
            let text = format!("{}: given for two output files", path.display());
            return Err(CommandError::Usage(text));
        }
    }
    Ok(())
}

/// The opened files.
#[derive(Debug, Default)]
pub struct ReportFiles {
    pub(crate) html: Option<OutputFile>,
    pub(crate) csv: Option<OutputFile>,
    pub(crate) junit: Option<OutputFile>,
}

/// The format of a run as JSON.
pub const REPORT_FORMAT: &str = "fabricgate.report/1";

/// A run as one JSON document.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ReportDocument<'a> {
    /// `fabricgate.report/1`.
    format: &'static str,
    /// Id, time, profile, version.
    run: &'a RunInfo,
    /// The verdicts of the judge.
    verdicts: &'a Verdicts,
    /// The proposed or executed actions; null without a gate.
    actions: Option<&'a ActionPlan>,
    /// The effect of a repair.
    #[serde(skip_serializing_if = "Option::is_none")]
    comparison: Option<&'a RepairReport>,
}

/// The effect of a repair, for reports of the run made after it.
#[derive(Debug)]
pub struct RepairComparison {
    /// The effect, node by node.
    pub repairs: RepairReport,
    /// The run before the repair, for figures that show before and after: the one with which most
    /// nodes were compared, if any.
    pub before: Option<Run>,
}

impl RepairComparison {
    /// The part of a page that shows the repair.
    fn page_context(&self) -> html::HtmlPageContext<'_> {
        let (repairs, before) = (Some(&self.repairs), self.before.as_ref());
        html::HtmlPageContext { before, repairs, ..html::HtmlPageContext::default() }
    }

    /// The run with which most nodes were compared; among equals the newest, because ids begin with
    /// a timestamp.
    pub fn most_compared_run(repairs: &RepairReport) -> Option<&str> {
        let mut count: BTreeMap<&str, usize> = BTreeMap::new();
        for repair in &repairs.nodes {
            *count.entry(repair.comparison.before.as_str()).or_default() += 1;
        }
        count.into_iter().max_by_key(|(id, count)| (*count, *id)).map(|(id, _)| id)
    }
}

/// A run in one format; the terminal format adapts to this terminal.
pub fn render(run: &Run, format: ReportFormat) -> anyhow::Result<Vec<u8>> {
    render_with_repair(run, format, None)
}

/// Like [`render`], with the effect of a repair if there is one.
pub fn render_with_repair(
    run: &Run,
    format: ReportFormat,
    repaired: Option<&RepairComparison>,
) -> anyhow::Result<Vec<u8>> {
    let repairs = repaired.map(|it| &it.repairs);
    Ok(match format {
        ReportFormat::Terminal => {
            let mut text = terminal::render(run, &terminal_style());
            if let Some(repairs) = repairs {
                text.push_str(&comparison::render_terminal(repairs, &terminal_style()));
            }
            text.into_bytes()
        }
        ReportFormat::Json => {
            let document = ReportDocument {
                format: REPORT_FORMAT,
                run: &run.info,
                verdicts: &run.verdicts,
                actions: run.actions.as_ref(),
                comparison: repairs,
            };
            let mut bytes = serde_json::to_vec_pretty(&document)?;
            bytes.push(b'\n');
            bytes
        }
        ReportFormat::Csv => csv::render_matrix(run),
        ReportFormat::Junit => {
            let text = junit::render(run);
            match repairs {
                Some(repairs) => comparison::append_to_junit(&text, repairs).into_bytes(),
                None => text.into_bytes(),
            }
        }
        ReportFormat::Html => {
            render_page(run, &repaired.map(RepairComparison::page_context).unwrap_or_default())?
        }
    })
}

/// The HTML page of a run with additional sections.
pub fn render_page(run: &Run, context: &html::HtmlPageContext<'_>) -> anyhow::Result<Vec<u8>> {
    Ok(html::render(run, context)?.into_bytes())
}

/// Width and colour support of the terminal on standard output.
pub fn terminal_style() -> TerminalStyle {
    /// Columns if standard output is not a terminal.
    const WIDTH: u16 = 100;
    let out = std::io::stdout();
    let columns = rustix::termios::tcgetwinsize(&out).ok().map(|size| size.ws_col);
    let width = columns.filter(|columns| 0 < *columns).unwrap_or(WIDTH);
    let colour = anstream::AutoStream::choice(&out) != anstream::ColorChoice::Never;
    TerminalStyle { width: usize::from(width), colour }
}

/// The formats that every run folder holds, with their file names.
pub fn render_stored_forms(
    run: &Run,
    repaired: Option<&RepairComparison>,
) -> anyhow::Result<Vec<(&'static str, Vec<u8>)>> {
    let page = render_with_repair(run, ReportFormat::Html, repaired)?;
    Ok(vec![(file::MATRIX, render(run, ReportFormat::Csv)?), (file::REPORT, page)])
}

/// Prints the run, then writes the requested files; false if one could not be written.
pub fn show_run(run: &Run, files: ReportFiles, as_json: bool) -> anyhow::Result<bool> {
    // The verdict comes first: a file that cannot be written must not hide it.
    if as_json {
        stdout::write_document(&json::render_verdicts(&run.verdicts))?;
    } else {
        stdout::write_text(&String::from_utf8_lossy(&render(run, ReportFormat::Terminal)?))?;
    }
    write_files(run, files, None)
}

/// Writes the requested files, with the effect of a repair; false if one could not be written.
pub fn write_files(
    run: &Run,
    files: ReportFiles,
    repaired: Option<&RepairComparison>,
) -> anyhow::Result<bool> {
    let ReportFiles { html, csv, junit } = files;
    let mut written = true;
    for (output, format) in
        [(html, ReportFormat::Html), (csv, ReportFormat::Csv), (junit, ReportFormat::Junit)]
    {
        let Some(output) = output else { continue };
        written &= write_output(output, &render_with_repair(run, format, repaired)?);
    }
    Ok(written)
}

/// Writes one file; on failure prints the error and returns false.
pub fn write_output(output: OutputFile, bytes: &[u8]) -> bool {
    let written = output.write(bytes);
    if let Err(error) = &written {
        stdout::note(&error.to_string());
    }
    written.is_ok()
}

/// Writes a file at a path from the command line.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), CommandError> {
    OutputFile::open(path)?.write(bytes)
}

/// An action plan for this terminal, with the remaining budgets.
pub fn render_actions(plan: &ActionPlan, budgets: &[String]) -> String {
    actions::render(plan, &terminal_style(), budgets)
}
