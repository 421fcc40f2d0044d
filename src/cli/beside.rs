//! What is shown beside a run on its page: an earlier run, and how its parts went
//! over runs. What of it cannot be had is a note; the page is made all the same.

use std::collections::BTreeSet;
use std::path::Component;
use std::path::Path;
use std::path::PathBuf;

use super::Globals;
use super::config;
use super::failure::Failure;
use super::keeping;
use super::show;
use super::show::Repaired;
use super::stdout::note;
use super::stored;
use control::store::file;
use control::store::history::History;
use control::store::history::HistoryError;
use control::store::history::Selection;
use control::store::stored as documents;
use control::store::stored::Stored;
use engine::judge::compared;
use engine::judge::compared::Side;
use engine::judge::drift;
use engine::report::html::Beside;
use model::comparison::COMPARISON_FORMAT;
use model::comparison::Comparison;
use model::comparison::Repairs;
use model::id::NodeName;
use model::recording::Recording;
use model::run::Run;
use model::trend::PartKind;
use model::trend::Trend;
use model::verdict::Outcome;

/// Nodes whose GPUs and ports are followed one by one.
const MOST_NODES: usize = 100;

/// The page of a run in `folder`, beside an earlier run where one is given.
pub fn page(
    run: &Run,
    stored: &Stored,
    folder: &Path,
    before: Option<&Path>,
    globals: &Globals,
) -> anyhow::Result<Vec<u8>> {
    let earlier = before.map(|before| earlier(run, stored, before)).transpose()?;
    let trends = trends(run, folder, globals)?;
    let repaired = repaired(folder);
    let then = repaired.as_ref().and_then(|it| it.before.as_ref());
    let beside = Beside {
        before: earlier.as_ref().map(|(run, _)| run).or(then),
        trends: &trends,
        comparison: earlier.as_ref().map(|(_, comparison)| comparison),
        repairs: repaired.as_ref().map(|it| &it.repairs),
    };
    show::page(run, &beside)
}

/// What a repair changed, where a re-certification left that in the run's folder, and
/// the run before it, where that still lies beside.
pub fn repaired(folder: &Path) -> Option<Repaired> {
    let path = folder.join(file::COMPARISON);
    let repairs: Repairs = match documents::json(&path, COMPARISON_FORMAT) {
        Ok(read) => read?,
        Err(error) => {
            note(&format!("what a repair changed is not shown: {error}"));
            return None;
        }
    };
    let runs = std::fs::canonicalize(folder).ok().and_then(|it| it.parent().map(Path::to_owned));
    let before = Repaired::commonest(&repairs).and_then(|id| {
        // The id comes from a file; it must not lead elsewhere.
        let mut parts = Path::new(id).components();
        let is_name = matches!(parts.next(), Some(Component::Normal(_))) && parts.next().is_none();
        let folder = runs.filter(|_| is_name)?.join(id);
        folder.join(file::RUN).is_file().then_some(folder)
    });
    let before = before.and_then(|folder| {
        let read = stored::open_quietly(&folder).and_then(|stored| stored::run(&stored));
        read.map_err(|error| note(&format!("figures show no before: {error}"))).ok()
    });
    Some(Repaired { repairs, before })
}

/// The earlier run, and this one held against it.
fn earlier(run: &Run, stored: &Stored, before: &Path) -> Result<(Run, Comparison), Failure> {
    let earlier = stored::open(before)?;
    let then = stored::run(&earlier)?;
    let of_then = earlier.recordings().map_err(stored::failure)?;
    let of_now = stored.recordings().map_err(stored::failure)?;
    let comparison = compared::compare(&side(&then, &of_then), &side(run, &of_now), &|_| true);
    Ok((then, comparison))
}

fn side<'r>(run: &'r Run, recordings: &'r [Recording]) -> Side<'r> {
    Side { run: &run.info.id, created: &run.info.created, cells: &run.cells, recordings }
}

/// How parts went, from the index that belongs to the run's folder.
fn trends(run: &Run, folder: &Path, globals: &Globals) -> Result<Vec<Trend>, Failure> {
    let Some(file) = index(folder, globals)? else { return Ok(Vec::new()) };
    Ok(read(run, &file).unwrap_or_else(|error| {
        note(&format!("the page shows no history: {error}"));
        Vec::new()
    }))
}

/// The index that a run's folder belongs to, where there is one.
pub(super) fn index(folder: &Path, globals: &Globals) -> Result<Option<PathBuf>, Failure> {
    let config = match globals.config.as_deref() {
        Some(path) => Some(config::open(Some(path))?),
        None => None,
    };
    let runs = std::fs::canonicalize(folder).ok().and_then(|f| f.parent().map(Path::to_owned));
    let keeping = config.map(|config| config.history).unwrap_or_default();
    let file = keeping.path.clone().or_else(|| runs.as_deref().map(keeping::beside));
    Ok(file.filter(|file| file.is_file()))
}

fn read(run: &Run, file: &Path) -> Result<Vec<Trend>, HistoryError> {
    let history = History::open_read_only(file)?;
    let nodes = |troubled: bool| -> BTreeSet<NodeName> {
        let some = run.verdicts.nodes.iter();
        some.filter(|n| !troubled || n.outcome != Outcome::Pass).map(|n| n.node.clone()).collect()
    };
    let all = Selection { nodes: nodes(false), ..Selection::of([PartKind::Node]) };
    let domains = Selection {
        domains: run.claims.domains.iter().map(|d| d.name.clone()).collect(),
        ..Selection::of([PartKind::Domain])
    };
    let troubled: BTreeSet<NodeName> = nodes(true).into_iter().take(MOST_NODES).collect();
    let close = Selection { nodes: troubled, ..Selection::of([PartKind::Gpu, PartKind::Rail]) };
    let mut trends = Vec::new();
    // What is empty selects nothing away, and would be everything.
    if !all.nodes.is_empty() {
        trends.extend(history.trends(&all)?);
    }
    if !domains.domains.is_empty() {
        trends.extend(history.trends(&domains)?);
    }
    if !close.nodes.is_empty() {
        trends.extend(history.trends(&close)?);
    }
    let whole = history.whole_since()?;
    for trend in &mut trends {
        drift::assess_since(trend, whole);
    }
    Ok(trends)
}
