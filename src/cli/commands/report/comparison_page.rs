//! Additional sections of a run's page: an earlier run, and the trends of its parts. What is
//! missing becomes a note; the page is rendered anyway.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::cli::report_output::RepairComparison;
use crate::cli::stdout::{Globals, note};
use crate::cli::{report_output, stored_run};
use crate::config;
use crate::config::history;
use crate::exit::CommandError;
use control::store::history::{HistoryError, RunHistory, SeriesSelection};
use control::store::run_reader::StoredRun;
use control::store::{file, run_reader as documents};
use engine::judge::run_comparison::ComparisonSide;
use engine::judge::{drift, run_comparison};
use engine::report::html::HtmlPageContext;
use model::comparison::{COMPARISON_FORMAT, RepairReport, RunComparison};
use model::id::NodeName;
use model::run::Run;
use model::tool_recording::ToolRecording;
use model::trend::{FabricPartKind, Trend};
use model::verdict::Outcome;

/// Most nodes whose GPUs and ports get trends.
const MOST_NODES: usize = 100;

/// The page of a run in `folder`, compared with an earlier run if one is given.
pub fn render_comparison_page(
    run: &Run,
    stored: &StoredRun,
    folder: &Path,
    before: Option<&Path>,
    globals: &Globals,
) -> anyhow::Result<Vec<u8>> {
    let earlier = before.map(|before| read_earlier_run(run, stored, before)).transpose()?;
    let trends = read_trends(run, folder, globals)?;
    let repaired = read_repair(folder);
    let before_repair = repaired.as_ref().and_then(|it| it.before.as_ref());
    let context = HtmlPageContext {
        before: earlier.as_ref().map(|(run, _)| run).or(before_repair),
        trends: &trends,
        comparison: earlier.as_ref().map(|(_, comparison)| comparison),
        repairs: repaired.as_ref().map(|it| &it.repairs),
    };
    report_output::render_page(run, &context)
}

/// The effect of a repair, if a re-certification stored it in the run's folder, and the run before
/// the repair, if its folder is still in the same place.
pub fn read_repair(folder: &Path) -> Option<RepairComparison> {
    let path = folder.join(file::COMPARISON);
    let repairs: RepairReport = match documents::read_json(&path, COMPARISON_FORMAT) {
        Ok(read) => read?,
        Err(error) => {
            note(&format!("the effect of a repair is left out: {error}"));
            return None;
        }
    };
    let runs = std::fs::canonicalize(folder).ok().and_then(|it| it.parent().map(Path::to_owned));
    let before = RepairComparison::most_compared_run(&repairs).and_then(|id| {
        // The id comes from a file; it must not lead out of the folder.
        let mut parts = Path::new(id).components();
        let is_name = matches!(parts.next(), Some(Component::Normal(_))) && parts.next().is_none();
        let folder = runs.filter(|_| is_name)?.join(id);
        folder.join(file::RUN).is_file().then_some(folder)
    });
    let before = before.and_then(|folder| {
        let read =
            stored_run::open_run_quietly(&folder).and_then(|stored| stored_run::read_run(&stored));
        read.map_err(|error| note(&format!("figures lack the run before the repair: {error}"))).ok()
    });
    Some(RepairComparison { repairs, before })
}

/// The earlier run, and its comparison with this one.
fn read_earlier_run(
    run: &Run,
    stored: &StoredRun,
    before: &Path,
) -> Result<(Run, RunComparison), CommandError> {
    let earlier = stored_run::open_run(before)?;
    let then = stored_run::read_run(&earlier)?;
    let of_then = earlier.recordings().map_err(stored_run::record_error)?;
    let of_now = stored.recordings().map_err(stored_run::record_error)?;
    let comparison = run_comparison::compare_runs(
        &comparison_side(&then, &of_then),
        &comparison_side(run, &of_now),
        &|_| true,
    );
    Ok((then, comparison))
}

fn comparison_side<'r>(run: &'r Run, recordings: &'r [ToolRecording]) -> ComparisonSide<'r> {
    ComparisonSide { run: &run.info.id, created: &run.info.created, cells: &run.cells, recordings }
}

/// The trends of the parts, from the index that belongs to the run's folder.
fn read_trends(run: &Run, folder: &Path, globals: &Globals) -> Result<Vec<Trend>, CommandError> {
    let Some(file) = find_history_index(folder, globals)? else { return Ok(Vec::new()) };
    Ok(read_trends_from(run, &file).unwrap_or_else(|error| {
        note(&format!("the page shows no history: {error}"));
        Vec::new()
    }))
}

/// The index that a run's folder belongs to, if it exists.
pub(crate) fn find_history_index(
    folder: &Path,
    globals: &Globals,
) -> Result<Option<PathBuf>, CommandError> {
    let config = match globals.config.as_deref() {
        Some(path) => Some(config::open(Some(path))?),
        None => None,
    };
    let runs = std::fs::canonicalize(folder).ok().and_then(|f| f.parent().map(Path::to_owned));
    let settings = config.map(|config| config.history).unwrap_or_default();
    let file = settings.path.clone().or_else(|| runs.as_deref().map(history::default_history_path));
    Ok(file.filter(|file| file.is_file()))
}

fn read_trends_from(run: &Run, file: &Path) -> Result<Vec<Trend>, HistoryError> {
    let history = RunHistory::open_read_only(file)?;
    let nodes = |troubled: bool| -> BTreeSet<NodeName> {
        let some = run.verdicts.nodes.iter();
        some.filter(|n| !troubled || n.outcome != Outcome::Pass).map(|n| n.node.clone()).collect()
    };
    let all = SeriesSelection {
        nodes: nodes(false),
        ..SeriesSelection::with_kinds([FabricPartKind::Node])
    };
    let domains = SeriesSelection {
        domains: run.claims.domains.iter().map(|d| d.name.clone()).collect(),
        ..SeriesSelection::with_kinds([FabricPartKind::Domain])
    };
    let troubled: BTreeSet<NodeName> = nodes(true).into_iter().take(MOST_NODES).collect();
    let close = SeriesSelection {
        nodes: troubled,
        ..SeriesSelection::with_kinds([FabricPartKind::Gpu, FabricPartKind::Rail])
    };
    let mut trends = Vec::new();
    // An empty selection would select everything.
    if !all.nodes.is_empty() {
        trends.extend(history.trends(&all)?);
    }
    if !domains.domains.is_empty() {
        trends.extend(history.trends(&domains)?);
    }
    if !close.nodes.is_empty() {
        trends.extend(history.trends(&close)?);
    }
    let whole = history.full_resolution_since()?;
    for trend in &mut trends {
        drift::assess_since(trend, whole);
    }
    Ok(trends)
}
