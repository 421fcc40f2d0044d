//! Where reports are plugged in: a run in, bytes out, and where they go.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::Path;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

use super::failure::Failure;
use super::output::Output;
use super::stdout;
use control::store::file;
use engine::report::TerminalStyle;
use engine::report::actions;
use engine::report::comparison;
use engine::report::csv;
use engine::report::html;
use engine::report::json;
use engine::report::junit;
use engine::report::terminal;
use model::action::ActionPlan;
use model::comparison::Repairs;
use model::run::Run;
use model::run::RunInfo;
use model::verdict::Verdicts;

/// A form of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people, in a terminal.
    Terminal,
    /// One JSON document with verdicts and proposals.
    Json,
    /// The matrix, one measured cell a line.
    Csv,
    /// JUnit XML, for pipelines.
    Junit,
    /// One self-contained page.
    Html,
}

/// Files to write a report to, besides the terminal.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Files {
    /// Write the report as a self-contained page.
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Write every measured cell as CSV.
    #[arg(long, value_name = "FILE")]
    pub(super) csv: Option<PathBuf>,
    /// Write the verdicts as JUnit XML.
    #[arg(long, value_name = "FILE")]
    pub(super) junit: Option<PathBuf>,
}

impl Files {
    /// Whether any file is asked for.
    pub fn any(&self) -> bool {
        self.html.is_some() || self.csv.is_some() || self.junit.is_some()
    }

    /// Opens all of them, before anything is measured for them.
    pub fn open(&self) -> Result<Opened, Failure> {
        let named = [&self.html, &self.csv, &self.junit].into_iter().flatten();
        once_each(named.map(PathBuf::as_path))?;
        Ok(Opened {
            html: Output::of(self.html.as_ref())?,
            csv: Output::of(self.csv.as_ref())?,
            junit: Output::of(self.junit.as_ref())?,
        })
    }
}

/// That no file is named twice: the second would take the place of the first.
pub fn once_each<'p>(paths: impl Iterator<Item = &'p Path>) -> Result<(), Failure> {
    let mut seen: BTreeSet<&Path> = BTreeSet::new();
    for path in paths {
        if !seen.insert(path) {
            let text = format!("{}: it is named for two files", path.display());
            return Err(Failure::Usage(text));
        }
    }
    Ok(())
}

/// Those files, opened.
#[derive(Debug, Default)]
pub struct Opened {
    pub(super) html: Option<Output>,
    pub(super) csv: Option<Output>,
    pub(super) junit: Option<Output>,
}

/// The format of a run as JSON.
pub const REPORT_FORMAT: &str = "fabricgate.report/1";

/// A run as one JSON document.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ReportDocument<'a> {
    /// `fabricgate.report/1`.
    format: &'static str,
    /// Id, time, profile, version.
    run: &'a RunInfo,
    /// What the judge says.
    verdicts: &'a Verdicts,
    /// What is proposed, or was done; null where nobody asked.
    actions: Option<&'a ActionPlan>,
    /// What a repair changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    comparison: Option<&'a Repairs>,
}

/// What is told of a repair beside the run that was made after it.
#[derive(Debug)]
pub struct Repaired {
    /// What it changed, node by node.
    pub repairs: Repairs,
    /// The run before it, for figures that show before and after: that with which most
    /// nodes were compared, where there is one.
    pub before: Option<Run>,
}

impl Repaired {
    /// What a page shows of it.
    fn beside(&self) -> html::Beside<'_> {
        let (repairs, before) = (Some(&self.repairs), self.before.as_ref());
        html::Beside { before, repairs, ..html::Beside::default() }
    }

    /// The run with which most nodes were compared; of several the newest, as ids begin
    /// with a moment.
    pub fn commonest(repairs: &Repairs) -> Option<&str> {
        let mut count: BTreeMap<&str, usize> = BTreeMap::new();
        for repair in &repairs.nodes {
            *count.entry(repair.comparison.before.as_str()).or_default() += 1;
        }
        count.into_iter().max_by_key(|(id, count)| (*count, *id)).map(|(id, _)| id)
    }
}

/// A run in one form; the terminal's as this terminal is.
pub fn render(run: &Run, format: Format) -> anyhow::Result<Vec<u8>> {
    render_with(run, format, None)
}

/// The same with what a repair changed, where the run tells of one.
pub fn render_with(
    run: &Run,
    format: Format,
    repaired: Option<&Repaired>,
) -> anyhow::Result<Vec<u8>> {
    let repairs = repaired.map(|it| &it.repairs);
    Ok(match format {
        Format::Terminal => {
            let mut text = terminal::render(run, &style());
            if let Some(repairs) = repairs {
                text.push_str(&comparison::terminal(repairs, &style()));
            }
            text.into_bytes()
        }
        Format::Json => {
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
        Format::Csv => csv::matrix(run),
        Format::Junit => {
            let text = junit::render(run);
            match repairs {
                Some(repairs) => comparison::in_junit(&text, repairs).into_bytes(),
                None => text.into_bytes(),
            }
        }
        Format::Html => page(run, &repaired.map(Repaired::beside).unwrap_or_default())?,
    })
}

/// The page of a run with what is shown beside it.
pub fn page(run: &Run, beside: &html::Beside<'_>) -> anyhow::Result<Vec<u8>> {
    Ok(html::render(run, beside)?.into_bytes())
}

/// How the terminal behind standard output wants its report.
pub fn style() -> TerminalStyle {
    /// Columns where standard output is no terminal.
    const WIDTH: u16 = 100;
    let out = std::io::stdout();
    let columns = rustix::termios::tcgetwinsize(&out).ok().map(|size| size.ws_col);
    let width = columns.filter(|columns| 0 < *columns).unwrap_or(WIDTH);
    let colour = anstream::AutoStream::choice(&out) != anstream::ColorChoice::Never;
    TerminalStyle { width: usize::from(width), colour }
}

/// The forms that every run folder holds, with their names.
pub fn kept(
    run: &Run,
    repaired: Option<&Repaired>,
) -> anyhow::Result<Vec<(&'static str, Vec<u8>)>> {
    let page = render_with(run, Format::Html, repaired)?;
    Ok(vec![(file::MATRIX, render(run, Format::Csv)?), (file::REPORT, page)])
}

/// Shows the run, then writes the files that were asked for; false where one
/// could not be written.
pub fn run(run: &Run, files: Opened, as_json: bool) -> anyhow::Result<bool> {
    // The verdict first: a file that cannot be written must not hide it.
    if as_json {
        stdout::document(&json::verdicts(&run.verdicts))?;
    } else {
        stdout::text(&String::from_utf8_lossy(&render(run, Format::Terminal)?))?;
    }
    self::files(run, files, None)
}

/// Writes the files that were asked for, with what a repair changed; false where one could
/// not be written.
pub fn files(run: &Run, files: Opened, repaired: Option<&Repaired>) -> anyhow::Result<bool> {
    let Opened { html, csv, junit } = files;
    let mut written = true;
    for (output, format) in [(html, Format::Html), (csv, Format::Csv), (junit, Format::Junit)] {
        let Some(output) = output else { continue };
        written &= put(output, &render_with(run, format, repaired)?);
    }
    Ok(written)
}

/// Writes one; false where that could not be done, which is told.
pub fn put(output: Output, bytes: &[u8]) -> bool {
    let written = output.put(bytes);
    if let Err(error) = &written {
        stdout::note(&error.to_string());
    }
    written.is_ok()
}

/// Writes a file a person named.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    Output::open(path)?.put(bytes)
}

/// An action plan for this terminal, and what is left of budgets.
pub fn actions(plan: &ActionPlan, budgets: &[String]) -> String {
    actions::render(plan, &style(), budgets)
}
