//! `fabricgate history`: what runs showed over time, where parts left what is usual
//! for them, and what changed at the same time.
//!
//! The index is brought up to date from the run folders first. What is usual and
//! what rings, `judge::drift` says; pages, tables and pictures are `report`'s.

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

/// Show what runs measured over time, and where it left what is usual.
///
/// Without options: every node and domain. The index is brought up to date from the run folders first,
/// and made again from them where it is damaged. An alarm is a remark: nothing is done about a node
/// because of one.
/// Ends with 0 whatever it shows, with 2 when a newer fabricgate wrote the index, with 5 when it cannot
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
    /// The GPUs of the nodes, each by itself; of one index where N is given.
    #[arg(long, value_name = "N", num_args = 0..=1)]
    gpu: Option<Option<u32>>,
    /// The paths of the nodes, each by itself; only those to PEER (`node:gpu` or `node`) where given.
    #[arg(long, value_name = "PEER", num_args = 0..=1)]
    link: Option<Option<String>>,
    /// The ends of rails of the nodes; of one rail where given.
    #[arg(long, value_name = "RAIL", num_args = 0..=1)]
    rail: Option<Option<String>>,
    /// Only this test.
    #[arg(long, value_name = "NAME")]
    test: Option<String>,
    /// Only runs from then on: a date (2026-11-01), a time in RFC 3339, or so long ago (30d, 12h). What
    /// is usual is told from all runs.
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    /// Write every point of what is shown into this file.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw what is shown into this SVG file, a panel for each series, 24 at most.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Make the index anew from the run folders first.
    #[arg(long)]
    rebuild: bool,
    /// Thin out old points first, as [history] says.
    #[arg(long)]
    compact: bool,
}

/// Where runs and their index are.
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
    let strange = find_unmeasured(&selection, &document);
    if !strange.is_empty() {
        document.notes.push(format!("no run measured {}", strange.join(", ")));
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

/// What is shown where nobody asks for a kind of part.
fn default_part_kinds() -> BTreeSet<FabricPartKind> {
    [FabricPartKind::Node, FabricPartKind::Domain].into()
}

fn parse_selection(args: &HistoryArgs) -> Result<SeriesSelection, CommandError> {
    let mut kinds = BTreeSet::new();
    let asked = [
        (args.gpu.is_some(), FabricPartKind::Gpu),
        (args.link.is_some(), FabricPartKind::Link),
        (args.rail.is_some(), FabricPartKind::Rail),
    ];
    kinds.extend(asked.into_iter().filter(|(asked, _)| *asked).map(|(_, kind)| kind));
    if kinds.is_empty() {
        kinds = default_part_kinds();
    }
    if args.link.is_some() && args.nodes.is_empty() {
        let text = "--link without a node: a rack has thousands of paths, expected NODE";
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

/// Everything that is shown, with what is usual and what rang.
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

/// The nodes and domains that were asked for and are in no run: passed over in silence,
/// a mistyped name would look like one that is well.
fn find_unmeasured(selection: &SeriesSelection, document: &HistoryDocument) -> Vec<String> {
    let nodes: BTreeSet<&NodeName> = document.nodes.iter().map(|it| &it.node).collect();
    let of_nodes = document.nodes.iter().filter_map(|it| it.domain.as_ref());
    let of_parts = document.trends.iter().filter_map(|it| it.part.domain.as_ref());
    let domains: BTreeSet<&DomainName> = of_nodes.chain(of_parts).collect();
    let strange = selection.nodes.iter().filter(|it| !nodes.contains(it));
    let strange: Vec<&str> = strange.map(NodeName::as_str).collect();
    let mut names: Vec<String> =
        if strange.is_empty() { Vec::new() } else { vec![hostlist::fold(strange)] };
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

/// Leaves out what was before.
fn cut_before(trend: &mut Trend, since: i64) {
    let from = time_format::format_rfc3339(since);
    trend.points.retain(|point| since <= point.at_unix);
    trend.alarms.retain(|alarm| from <= alarm.at);
    trend.changes.retain(|changed| from <= changed.at);
}

/// When: a date, a time, or so long before now.
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
            "--since {text:?}: expected a date (2026-11-01), a time (2026-11-01T06:00:00Z), or how \
             long ago (30d, 12h)"
        ))
    })
}

/// Where everything is.
pub(crate) struct HistoryLocation {
    pub(crate) runs: PathBuf,
    pub(crate) file: PathBuf,
    pub(crate) history: HistoryConfig,
    pub(crate) gate: Option<PathBuf>,
}

impl HistoryLocationArgs {
    /// As the command line says, and the configuration where it does not.
    pub(crate) fn resolve(&self, globals: &Globals) -> Result<HistoryLocation, CommandError> {
        let config = match globals.config.as_deref() {
            Some(path) => Some(config::open(Some(path))?),
            None => None,
        };
        let usual = config.as_ref().map_or_else(|| PathBuf::from("runs"), |c| c.run_dir.clone());
        let runs = self.run_dir.clone().unwrap_or(usual);
        let keeping = config.as_ref().map(|config| config.history.clone()).unwrap_or_default();
        let file = self.file.clone().unwrap_or_else(|| keeping.path_for(&runs));
        let gate = config.and_then(|config| config.gate).map(|gate| gate.folder);
        Ok(HistoryLocation { runs, file, history: keeping, gate })
    }
}

impl HistoryLocation {
    /// The index, up to date: as far as runs can be read and it can be written.
    /// One that is damaged is set aside and made again.
    pub(crate) fn open(
        &self,
        anew: bool,
        notes: &mut Vec<String>,
    ) -> Result<RunHistory, CommandError> {
        if !self.runs.is_dir() && !self.file.exists() {
            let (runs, file) = (self.runs.display(), self.file.display());
            return Err(CommandError::Environment(format!(
                "there are no run folders at {runs} and no history at {file}: expected --run-dir DIR, \
                 --file FILE, or a configuration"
            )));
        }
        let opened = RunHistory::open(&self.file).and_then(|mut history| {
            if let Some((was, is)) = history.upgraded_versions() {
                notes.push(format!(
                    "it was of version {was} and is of version {is} now: runs are read again where \
                     their folders are still there, the others are kept as they were"
                ));
            }
            let rebuilt = match anew {
                true => history.rebuild(&self.runs)?,
                false => history.add_new_runs(&self.runs)?,
            };
            Ok((history, rebuilt))
        });
        match opened {
            Ok((history, rebuilt)) => {
                describe_rebuild(&rebuilt, anew, notes);
                Ok(history)
            }
            Err(error) if error.is_damage() => {
                let aside = history::set_aside(&self.file).map_err(history_error)?;
                notes.push(format!(
                    "the history was damaged: it is at {} now, and was made again from the run \
                     folders; what was thinned out and runs whose folders are gone are only there",
                    aside.display()
                ));
                note(notes.last().map_or("", String::as_str));
                let mut history = RunHistory::open(&self.file).map_err(history_error)?;
                let rebuilt = history.rebuild(&self.runs).map_err(history_error)?;
                describe_rebuild(&rebuilt, true, notes);
                Ok(history)
            }
            // Whoever may only read sees it as it is.
            Err(error) if self.file.exists() && !anew && !is_final(&error) => {
                let history = RunHistory::open_read_only(&self.file).map_err(history_error)?;
                notes.push(format!("shown as it was: it cannot be brought up to date ({error})"));
                Ok(history)
            }
            Err(error) => Err(history_error(error)),
        }
    }
}

/// Whether an error says what the file is, so that reading it is no way out.
fn is_final(error: &HistoryError) -> bool {
    matches!(
        error,
        HistoryError::Newer { .. } | HistoryError::Foreign { .. } | HistoryError::Missing { .. }
    )
}

fn describe_rebuild(rebuilt: &IngestSummary, anew: bool, notes: &mut Vec<String>) {
    if anew {
        let kept = match rebuilt.kept {
            0 => String::new(),
            kept => format!(", {kept} whose folders are gone or cannot be read kept as they were"),
        };
        notes.push(format!("made anew from {} run folders{kept}", rebuilt.added));
    }
    if 0 < rebuilt.unjudged {
        notes.push(format!("{} runs were ended before anything was judged", rebuilt.unjudged));
    }
    for (folder, why) in &rebuilt.unreadable {
        notes.push(format!("{} is left out: {why}", folder.display()));
    }
}

/// The exit code of an error: what a file says is the user's to settle, the rest
/// the environment's.
pub(crate) fn history_error(error: HistoryError) -> CommandError {
    match error {
        HistoryError::Newer { .. } | HistoryError::Foreign { .. } => CommandError::usage(error),
        _ => CommandError::environment(error),
    }
}

fn write_plot(output: OutputFile, path: &Path, trends: &[Trend]) -> anyhow::Result<()> {
    let Some(svg) = trend_plot::render_svg(trends)? else {
        note(&format!("{}: not drawn, there is no series", path.display()));
        return Ok(());
    };
    if trend_plot::MOST < trends.len() {
        let (most, all) = (trend_plot::MOST, trends.len());
        note(&format!("the picture shows {most} of {all} series: NODE, --test and --gpu select"));
    }
    Ok(output.write(svg.as_bytes())?)
}
