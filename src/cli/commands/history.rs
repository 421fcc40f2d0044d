//! `fabricgate history`: results of runs over time, departures from the usual level, and changes at
//! the same time.
//!
//! Updates the index from the run folders first. `judge::drift` computes the usual level and the
//! alarms; `report` renders pages, tables and plots.

pub mod prune;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::cli::output::OutputFile;
use crate::cli::stdout::{Globals, note};
use crate::cli::{report_output, stdout};
use crate::config::history::HistoryConfig;
use crate::exit::CommandError;
use crate::{config, exit};
use control::store::history;
use control::store::history::{
    HistoryError, IngestSummary, RetentionPolicy, RunHistory, SeriesSelection,
};
use control::sweep;
use engine::judge::drift;
use engine::report::{trend, trend_plot};
use model::id::{DomainName, NodeName};
use model::trend::{FabricPartKind, HISTORY_FORMAT, HistoryDocument, NodeHistory, Trend};
use model::{hostlist, time_format};

/// Show measurements over time, and where they left the usual level.
///
/// Without options: every node and domain. First updates the index from the run folders, and
/// rebuilds it if it is damaged. An alarm is a remark: the gate does not act on it. The exit code
/// is 0 whatever the result, 2 when a newer fabricgate wrote the index, and 5 when the index cannot
/// be read or written.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[group(id = "history_args")]
pub struct HistoryArgs {
    #[command(subcommand)]
    command: Option<HistoryCommand>,
    #[command(flatten)]
    place: HistoryLocationArgs,
    /// Only these nodes: names or host lists.
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
    /// Only these domains.
    #[arg(long, value_name = "NAME")]
    domain: Vec<String>,
    /// The GPUs of the nodes, one series each; with N only the GPU of that index.
    #[arg(long, value_name = "N", num_args = 0..=1)]
    gpu: Option<Option<u32>>,
    /// The paths of the nodes, one series each; with PEER (`node:gpu` or `node`) only those to it.
    #[arg(long, value_name = "PEER", num_args = 0..=1)]
    link: Option<Option<String>>,
    /// The rail ports of the nodes; with RAIL only those of that rail.
    #[arg(long, value_name = "RAIL", num_args = 0..=1)]
    rail: Option<Option<String>>,
    /// Only this test.
    #[arg(long, value_name = "NAME")]
    test: Option<String>,
    /// Only runs from then on: a date (2026-11-01), a time in RFC 3339, or an age (30d, 12h). The
    /// usual level is computed from all runs.
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    /// Write every selected point into this file.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Plot the selection into this SVG file, one panel for each series, at most 24.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Rebuild the index from the run folders first.
    #[arg(long)]
    rebuild: bool,
    /// Thin out old points first, according to [history].
    #[arg(long)]
    compact: bool,
}

/// The folder of the runs and their index.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct HistoryLocationArgs {
    /// The folder of run folders, instead of the configuration's run_dir.
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// The index, instead of the configuration's [history] path.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum HistoryCommand {
    Prune(prune::HistoryPruneArgs),
}

/// Runs the command.
pub fn run(args: &HistoryArgs, globals: &Globals) -> anyhow::Result<u8> {
    if let Some(HistoryCommand::Prune(args)) = &args.command {
        return prune::run(args, globals);
    }
    let now = sweep::now().as_second();
    let since = args.since.as_deref().map(|text| parse_since(text, now)).transpose()?;
    let selection = parse_selection(args)?;
    report_output::check_distinct(
        [&args.csv, &args.plot].into_iter().flatten().map(PathBuf::as_path),
    )?;
    let table = OutputFile::open_optional(args.csv.as_ref())?;
    let picture = OutputFile::open_optional(args.plot.as_ref())?;
    let place = args.place.resolve(globals)?;
    let mut notes = Vec::new();
    let mut history = place.open(args.rebuild, &mut notes)?;
    if args.compact {
        let retention = RetentionPolicy {
            now_unix: now,
            keep_days: place.history.keep_days.get(),
            thin_after_days: place.history.thin_after_days(),
        };
        let thinned = history.compact(&retention).map_err(history_error)?;
        notes.push(format!(
            "{} points of {} runs were thinned to {}",
            thinned.before, thinned.runs, thinned.after
        ));
    }
    let mut document = build_document(&history, &selection, since, notes)?;
    if !args.nodes.is_empty() && document.nodes.is_empty() {
        let text = format!("no run measured {}", args.nodes.join(", "));
        return Err(CommandError::Usage(text).into());
    }
    let unmeasured = find_unmeasured(&selection, &document);
    if !unmeasured.is_empty() {
        document.notes.push(format!("no run measured {}", unmeasured.join(", ")));
    }
    if let Some(output) = table {
        output.write(&trend::render_csv(&document))?;
    }
    if let Some((output, path)) = picture.zip(args.plot.as_ref()) {
        write_plot(output, path, &document.trends)?;
    }
    if globals.json {
        stdout::write_json(&document)?;
    } else {
        let overview = selection.kinds == default_part_kinds();
        stdout::write_text(&trend::render(&document, overview, &report_output::terminal_style()))?;
    }
    Ok(exit::PASS)
}

/// The kinds of parts that are selected by default.
fn default_part_kinds() -> BTreeSet<FabricPartKind> {
    [FabricPartKind::Node, FabricPartKind::Domain].into()
}

fn parse_selection(args: &HistoryArgs) -> Result<SeriesSelection, CommandError> {
    let mut kinds = BTreeSet::new();
    let requested = [
        (args.gpu.is_some(), FabricPartKind::Gpu),
        (args.link.is_some(), FabricPartKind::Link),
        (args.rail.is_some(), FabricPartKind::Rail),
    ];
    kinds.extend(requested.into_iter().filter(|(is_given, _)| *is_given).map(|(_, kind)| kind));
    if kinds.is_empty() {
        kinds = default_part_kinds();
    }
    if args.link.is_some() && args.nodes.is_empty() {
        let text = "--link: expected NODE as well, because a rack has thousands of paths";
        return Err(CommandError::Usage(text.to_owned()));
    }
    let mut nodes = BTreeSet::new();
    for list in &args.nodes {
        let names = hostlist::expand(list);
        let names = names.map_err(|error| CommandError::Usage(format!("{list:?}: {error}")))?;
        nodes.extend(names.into_iter().map(NodeName::from));
    }
    Ok(SeriesSelection {
        kinds,
        nodes,
        domains: args.domain.iter().map(|name| DomainName::from(name.as_str())).collect(),
        gpu: args.gpu.flatten(),
        peer: args.link.clone().flatten(),
        rail: args.rail.clone().flatten(),
        testcase: args.test.clone(),
        since_unix: None,
    })
}

/// The selected series, with their usual levels and alarms.
fn build_document(
    history: &RunHistory,
    selection: &SeriesSelection,
    since: Option<i64>,
    notes: Vec<String>,
) -> Result<HistoryDocument, CommandError> {
    let runs = history.runs().map_err(history_error)?;
    let whole = history.full_resolution_since().map_err(history_error)?;
    let mut trends = history.trends(selection).map_err(history_error)?;
    for trend in &mut trends {
        drift::assess_since(trend, whole);
        if let Some(since) = since {
            cut_before(trend, since);
        }
    }
    trends.retain(|trend| !trend.points.is_empty());
    let nodes = history.nodes().map_err(history_error)?;
    let wanted = |node: &history::NodeRunSummary| {
        let domain = |d: &DomainName| selection.domains.contains(d);
        (selection.nodes.is_empty() || selection.nodes.contains(&node.node))
            && (selection.domains.is_empty() || node.domain.as_ref().is_some_and(domain))
    };
    let count = u32::try_from(trends.len()).map_or(f64::INFINITY, f64::from);
    Ok(HistoryDocument {
        format: HISTORY_FORMAT.to_owned(),
        file: history.path().display().to_string(),
        runs: runs.len(),
        simulated: history.is_simulated().map_err(history_error)?,
        first: runs.first().map(|run| run.at.clone()),
        last: runs.last().map(|run| run.at.clone()),
        nodes: nodes.into_iter().filter(wanted).map(to_node_history).collect(),
        runs_per_false_alarm: (!trends.is_empty()).then(|| drift::FALSE_ALARM_INTERVAL / count),
        trends,
        notes,
    })
}

/// The requested nodes and domains that no run measured: without a note, a mistyped name would seem
/// healthy.
fn find_unmeasured(selection: &SeriesSelection, document: &HistoryDocument) -> Vec<String> {
    let nodes: BTreeSet<&NodeName> = document.nodes.iter().map(|it| &it.node).collect();
    let of_nodes = document.nodes.iter().filter_map(|it| it.domain.as_ref());
    let of_parts = document.trends.iter().filter_map(|it| it.part.domain.as_ref());
    let domains: BTreeSet<&DomainName> = of_nodes.chain(of_parts).collect();
    let unmeasured = selection.nodes.iter().filter(|it| !nodes.contains(it));
    let unmeasured: Vec<&str> = unmeasured.map(NodeName::as_str).collect();
    let mut names: Vec<String> =
        if unmeasured.is_empty() { Vec::new() } else { vec![hostlist::fold(unmeasured)] };
    let unknown = selection.domains.iter().filter(|it| !domains.contains(it));
    names.extend(unknown.map(|it| format!("domain {it}")));
    names
}

fn to_node_history(node: history::NodeRunSummary) -> NodeHistory {
    let last = node.last;
    NodeHistory {
        node: node.node,
        domain: node.domain,
        runs: node.runs,
        last_run: last.run,
        last_at: last.at,
        profile: last.profile,
        outcome: last.outcome,
        worst: node.worst,
    }
}

/// Drops everything before `since`.
fn cut_before(trend: &mut Trend, since: i64) {
    let from = time_format::format_rfc3339(since);
    trend.points.retain(|point| since <= point.at_unix);
    trend.alarms.retain(|alarm| from <= alarm.at);
    trend.changes.retain(|changed| from <= changed.at);
}

/// Parses a date, a time, or an age before `now`.
fn parse_since(text: &str, now: i64) -> Result<i64, CommandError> {
    let ago = |text: &str, unit: char, seconds: i64| {
        let count: i64 = text.strip_suffix(unit)?.parse().ok().filter(|count| 0 <= *count)?;
        now.checked_sub(count.checked_mul(seconds)?)
    };
    let date = || text.parse::<jiff::civil::Date>().ok();
    let midnight = || Some(date()?.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second());
    let found = ago(text, 'd', 86_400)
        .or_else(|| ago(text, 'h', 3_600))
        .or_else(|| text.parse::<jiff::Timestamp>().ok().map(|at| at.as_second()))
        .or_else(midnight);
    found.ok_or_else(|| {
        CommandError::Usage(format!(
            "--since {text:?}: expected a date (2026-11-01), a time (2026-11-01T06:00:00Z), or an \
             age (30d, 12h)"
        ))
    })
}

/// The resolved paths and settings.
pub(crate) struct HistoryLocation {
    pub(crate) runs: PathBuf,
    pub(crate) file: PathBuf,
    pub(crate) history: HistoryConfig,
    pub(crate) gate: Option<PathBuf>,
}

impl HistoryLocationArgs {
    /// Combines the command line with the configuration as the default.
    pub(crate) fn resolve(&self, globals: &Globals) -> Result<HistoryLocation, CommandError> {
        let config = match globals.config.as_deref() {
            Some(path) => Some(config::open(Some(path))?),
            None => None,
        };
        let default_runs =
            config.as_ref().map_or_else(|| PathBuf::from("runs"), |c| c.run_dir.clone());
        let runs = self.run_dir.clone().unwrap_or(default_runs);
        let settings = config.as_ref().map(|config| config.history.clone()).unwrap_or_default();
        let file = self.file.clone().unwrap_or_else(|| settings.path_for(&runs));
        let gate = config.and_then(|config| config.gate).map(|gate| gate.folder);
        Ok(HistoryLocation { runs, file, history: settings, gate })
    }
}

impl HistoryLocation {
    /// Opens the index and updates it, as far as runs can be read and the index can be written. A
    /// damaged index is set aside and rebuilt.
    pub(crate) fn open(
        &self,
        rebuild: bool,
        notes: &mut Vec<String>,
    ) -> Result<RunHistory, CommandError> {
        if !self.runs.is_dir() && !self.file.exists() {
            let (runs, file) = (self.runs.display(), self.file.display());
            return Err(CommandError::Environment(format!(
                "no run folders at {runs} and no history at {file}: expected --run-dir DIR, --file \
                 FILE, or a configuration"
            )));
        }
        let opened = RunHistory::open(&self.file).and_then(|mut history| {
            if let Some((was, is)) = history.upgraded_versions() {
                notes.push(format!(
                    "it was upgraded from version {was} to {is}: runs are read again if \
                     their folders still exist, the others are kept unchanged"
                ));
            }
            let rebuilt = match rebuild {
                true => history.rebuild(&self.runs)?,
                false => history.add_new_runs(&self.runs)?,
            };
            Ok((history, rebuilt))
        });
        match opened {
            Ok((history, rebuilt)) => {
                describe_rebuild(&rebuilt, rebuild, notes);
                Ok(history)
            }
            Err(error) if error.is_damage() => {
                let damaged = history::set_aside(&self.file).map_err(history_error)?;
                notes.push(format!(
                    "the history was damaged: it was moved to {} and rebuilt from the run folders; \
                     thinned-out points and runs whose folders are gone are only in the old file",
                    damaged.display()
                ));
                note(notes.last().map_or("", String::as_str));
                let mut history = RunHistory::open(&self.file).map_err(history_error)?;
                let rebuilt = history.rebuild(&self.runs).map_err(history_error)?;
                describe_rebuild(&rebuilt, true, notes);
                Ok(history)
            }
            // Without write access, the index is used as it is.
            Err(error) if self.file.exists() && !rebuild && !is_final(&error) => {
                let history = RunHistory::open_read_only(&self.file).map_err(history_error)?;
                notes
                    .push(format!("the history is not up to date: it cannot be updated ({error})"));
                Ok(history)
            }
            Err(error) => Err(history_error(error)),
        }
    }
}

/// Whether the error is about the file itself, so that opening it read-only does not help.
fn is_final(error: &HistoryError) -> bool {
    matches!(
        error,
        HistoryError::Newer { .. } | HistoryError::Foreign { .. } | HistoryError::Missing { .. }
    )
}

fn describe_rebuild(rebuilt: &IngestSummary, rebuild: bool, notes: &mut Vec<String>) {
    if rebuild {
        let unread = match rebuilt.kept {
            0 => String::new(),
            unread => format!(", {unread} runs with missing or unreadable folders kept unchanged"),
        };
        notes.push(format!("rebuilt from {} run folders{unread}", rebuilt.added));
    }
    if 0 < rebuilt.unjudged {
        notes.push(format!("{} runs ended before anything was judged", rebuilt.unjudged));
    }
    for (folder, why) in &rebuilt.unreadable {
        notes.push(format!("{} is left out: {why}", folder.display()));
    }
}

/// The exit code of an error: the user must resolve a file of another format, the rest is the
/// environment's.
pub(crate) fn history_error(error: HistoryError) -> CommandError {
    match error {
        HistoryError::Newer { .. } | HistoryError::Foreign { .. } => CommandError::usage(error),
        _ => CommandError::environment(error),
    }
}

fn write_plot(output: OutputFile, path: &Path, trends: &[Trend]) -> anyhow::Result<()> {
    let Some(svg) = trend_plot::render_svg(trends)? else {
        note(&format!("{}: not drawn, because there is no series", path.display()));
        return Ok(());
    };
    if trend_plot::MOST < trends.len() {
        let (most, all) = (trend_plot::MOST, trends.len());
        note(&format!("the plot has {most} of {all} series: select with NODE, --test and --gpu"));
    }
    Ok(output.write(svg.as_bytes())?)
}
