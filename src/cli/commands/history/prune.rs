//! `fabricgate history prune`: run folders that are old and that nothing refers to.
//!
//! A dry run unless --apply says otherwise. A folder goes only when the index has
//! what it showed; the newest complete run of every node, and what a certificate, an
//! open drain, an open suspicion or an acceptance document names, stay.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::commands::history::{HistoryLocation, HistoryLocationArgs, history_error};
use crate::cli::stdout;
use crate::cli::stdout::{Globals, note};
use crate::config::history::Days;
use crate::exit;
use crate::exit::CommandError;
use control::gate::{certificates, journal};
use control::store::history::RunHistory;
use control::store::run_folder::RunFolder;
use control::store::{RunState, file, run_reader};
use control::sweep;
use model::time_format::DAY_S;

/// The format of `--json`.
pub(crate) const PRUNE_FORMAT: &str = "fabricgate.history-prune/1";

/// Documents that burn-in and re-certification leave in a run folder for the
/// files of an acceptance: such a folder is part of them.
const RUN_DOCUMENTS: [&str; 2] = ["acceptance.json", "comparison.json"];

/// Remove run folders that are old and that nothing refers to; without --apply only say which.
#[derive(Debug, clap::Args)]
pub struct HistoryPruneArgs {
    #[command(flatten)]
    place: HistoryLocationArgs,
    /// Older than so many days, instead of the configuration's [history] keep_runs_days.
    #[arg(long, value_name = "DAYS")]
    older_than: Option<Days>,
    /// Only say what would be removed; what happens without --apply too.
    #[arg(long, conflicts_with = "apply")]
    dry_run: bool,
    /// Remove them.
    #[arg(long)]
    apply: bool,
}

/// A run folder, and what becomes of it.
#[derive(Debug, Serialize, JsonSchema)]
struct PruneCandidate {
    /// The folder.
    folder: PathBuf,
    /// Its run.
    run: String,
    /// When the run was made, RFC 3339.
    created: String,
    /// Why it stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_because: Option<String>,
    /// It was removed.
    removed: bool,
}

/// `--json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PruneDocument {
    /// `fabricgate.history-prune/1`.
    format: &'static str,
    /// Older than so many days.
    older_than_days: u32,
    /// Folders were removed; otherwise this only says which would be.
    applied: bool,
    /// The folders that are old enough.
    folders: Vec<PruneCandidate>,
    /// What else a reader should know.
    notes: Vec<String>,
}

/// Runs the command.
pub fn run(args: &HistoryPruneArgs, globals: &Globals) -> anyhow::Result<u8> {
    let place = args.place.resolve(globals)?;
    let days = args.older_than.or(place.history.keep_runs_days).ok_or_else(|| {
        CommandError::Usage(
            "how old may run folders be? expected --older-than DAYS, or [history] keep_runs_days"
                .to_owned(),
        )
    })?;
    let mut notes = Vec::new();
    let history = place.open(false, &mut notes)?;
    let limit = sweep::now().as_second() - i64::from(days.get()) * DAY_S;
    let needed = find_referenced_runs(&place, &history)?;
    let mut folders = find_candidates(&place.runs, limit, &history, &needed)?;
    let mut code = exit::PASS;
    for aged in folders.iter_mut().filter(|aged| args.apply && aged.kept_because.is_none()) {
        match remove_run(&aged.folder) {
            Ok(()) => aged.removed = true,
            Err(why) => {
                aged.kept_because = Some(why);
                code = exit::ENVIRONMENT;
            }
        }
    }
    let document = PruneDocument {
        format: PRUNE_FORMAT,
        older_than_days: days.get(),
        applied: args.apply,
        folders,
        notes,
    };
    match globals.json {
        true => stdout::write_json(&document)?,
        false => print_prune(&document)?,
    }
    Ok(code)
}

fn print_prune(document: &PruneDocument) -> anyhow::Result<()> {
    let mut text = String::new();
    for aged in &document.folders {
        let folder = aged.folder.display();
        text += &match (&aged.kept_because, aged.removed) {
            (Some(why), _) => format!("stays    {folder}: {why}\n"),
            (None, true) => format!("removed  {folder}, of {}\n", aged.created),
            (None, false) => format!("goes     {folder}, of {}\n", aged.created),
        };
    }
    stdout::write_text(&text)?;
    for remark in &document.notes {
        note(remark);
    }
    let going = document.folders.iter().filter(|aged| aged.kept_because.is_none()).count();
    if document.applied {
        note(&format!("{going} run folders removed"));
    } else {
        note(&format!("{going} run folders would be removed: nothing was, see --apply"));
    }
    Ok(())
}

/// Runs that somebody refers to, and who. That a reference cannot be read is no
/// permission: it ends the command.
fn find_referenced_runs(
    place: &HistoryLocation,
    history: &RunHistory,
) -> Result<BTreeMap<String, String>, CommandError> {
    let mut needed = BTreeMap::new();
    for (node, run) in history.newest_run_by_node().map_err(history_error)? {
        needed.entry(run).or_insert_with(|| format!("it is the newest complete run of {node}"));
    }
    let Some(gate) = &place.gate else { return Ok(needed) };
    let ledger = journal::read_state(gate).map_err(CommandError::environment)?;
    for (node, drain) in &ledger.drains {
        needed.insert(drain.run.clone(), format!("the drain of {node} rests on it"));
    }
    for (node, suspicion) in &ledger.suspicions {
        needed
            .entry(suspicion.run.clone())
            .or_insert_with(|| format!("{node} is suspected on it, and drained on a second one"));
    }
    for (node, mark) in &ledger.marks {
        needed
            .entry(mark.run.clone())
            .or_insert_with(|| format!("what is said on {node} names it"));
    }
    let (nodes, troubles) = certificates::list_nodes(gate);
    if let Some(trouble) = troubles.first() {
        return Err(CommandError::Environment(trouble.clone()));
    }
    for node in nodes {
        let certificate =
            certificates::read_certificate(gate, &node).map_err(CommandError::environment)?;
        if let Some(certificate) = certificate {
            needed.insert(certificate.run, format!("the certificate of {node} rests on it"));
        }
    }
    Ok(needed)
}

/// The run folders from before a moment, with why they stay.
fn find_candidates(
    runs: &Path,
    limit: i64,
    history: &RunHistory,
    needed: &BTreeMap<String, String>,
) -> Result<Vec<PruneCandidate>, CommandError> {
    let known = history.run_ids().map_err(history_error)?;
    let wrong =
        |path: &Path, error| CommandError::Environment(format!("{}: {error}", path.display()));
    let (mut folders, mut texts) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(runs).map_err(|error| wrong(runs, error))? {
        let folder = entry.map_err(|error| wrong(runs, error))?.path();
        // What links elsewhere is somebody else's.
        if !fs::symlink_metadata(&folder).is_ok_and(|found| found.is_dir()) {
            continue;
        }
        // A burn-in has a folder of its own beside those of its rounds.
        for paper in RUN_DOCUMENTS {
            let path = folder.join(paper);
            match fs::read_to_string(&path) {
                Ok(text) => texts.push((folder.clone(), paper, text)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(wrong(&path, error)),
            }
        }
        if folder.join(file::RUN).is_file() {
            folders.push(folder);
        }
    }
    folders.sort();
    let mut aged = Vec::new();
    for folder in folders {
        // What cannot be read may be what somebody needs.
        let Ok(stored) = run_reader::open_run(&folder) else { continue };
        let info = &stored.record.info;
        let created = info.created.parse::<jiff::Timestamp>().ok();
        if created.is_none_or(|created| limit <= created.as_second()) {
            continue;
        }
        let named = texts.iter().find(|(of, _, text)| *of == folder || text.contains(&info.id));
        let paper = named.map(|(of, paper, _)| format!("{} names it", of.join(paper).display()));
        let kept_because = needed.get(&info.id).cloned().or(paper).or_else(|| {
            match (stored.record.state, known.contains(&info.id)) {
                (RunState::Running, _) => Some("it is under way, or can be resumed".to_owned()),
                (_, false) => Some("the history does not have it".to_owned()),
                _ => None,
            }
        });
        let (run, created) = (info.id.clone(), info.created.clone());
        aged.push(PruneCandidate { folder, run, created, kept_because, removed: false });
    }
    Ok(aged)
}

/// Removes a folder that nobody is writing into. `run.json` goes first: what is left
/// of it, where that ends half-way, is no run.
fn remove_run(folder: &Path) -> Result<(), String> {
    let lock = RunFolder::open(folder).lock().map_err(|error| error.to_string())?;
    let Some(_lock) = lock else { return Err("somebody is writing into it".to_owned()) };
    fs::remove_file(folder.join(file::RUN))
        .and_then(|()| fs::remove_dir_all(folder))
        .map_err(|error| error.to_string())
}
