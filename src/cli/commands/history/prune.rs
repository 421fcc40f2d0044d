//! `fabricgate history prune`: removes old run folders that nothing refers to.
//!
//! A dry run without --apply. A folder is removed only if the index has its results. These stay:
//! the newest complete run of every node, and every run that a certificate, an open drain, an open
//! suspicion or an acceptance document names.

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

/// Documents that burn-in and re-certification write into a run folder as acceptance records: they
/// keep the folder.
const RUN_DOCUMENTS: [&str; 2] = ["acceptance.json", "comparison.json"];

/// Remove old run folders that nothing refers to; without --apply only list them.
#[derive(Debug, clap::Args)]
pub struct HistoryPruneArgs {
    #[command(flatten)]
    place: HistoryLocationArgs,
    /// Minimum age in days, instead of the configuration's [history] keep_runs_days.
    #[arg(long, value_name = "DAYS")]
    older_than: Option<Days>,
    /// Only list the folders, as without --apply.
    #[arg(long, conflicts_with = "apply")]
    dry_run: bool,
    /// Remove the folders.
    #[arg(long)]
    apply: bool,
}

/// A run folder, and whether it is removed.
#[derive(Debug, Serialize, JsonSchema)]
struct PruneCandidate {
    /// Path of the folder.
    folder: PathBuf,
    /// Id of the run.
    run: String,
    /// When the run was made, RFC 3339.
    created: String,
    /// Why the folder is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_because: Option<String>,
    /// Whether the folder was removed.
    removed: bool,
}

/// The result of `history prune --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PruneDocument {
    /// `fabricgate.history-prune/1`.
    format: &'static str,
    /// Minimum age in days.
    older_than_days: u32,
    /// Whether folders were removed; otherwise this only lists them.
    applied: bool,
    /// The folders that are old enough.
    folders: Vec<PruneCandidate>,
    /// Notes for the reader.
    notes: Vec<String>,
}

/// Runs the command.
pub fn run(args: &HistoryPruneArgs, globals: &Globals) -> anyhow::Result<u8> {
    let place = args.place.resolve(globals)?;
    let days = args.older_than.or(place.history.keep_runs_days).ok_or_else(|| {
        CommandError::Usage(
            "no age given; expected --older-than DAYS, or [history] keep_runs_days".to_owned(),
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
    let candidates = document.folders.iter().filter(|aged| aged.kept_because.is_none()).count();
    if document.applied {
        note(&format!("{candidates} run folders removed"));
    } else {
        note(&format!("{candidates} run folders would be removed with --apply"));
    }
    Ok(())
}

/// Runs that something refers to, with the reference. A reference that cannot be read ends the
/// command: it may protect any run.
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
        needed.insert(drain.run.clone(), format!("the drain of {node} is based on it"));
    }
    for (node, suspicion) in &ledger.suspicions {
        needed.entry(suspicion.run.clone()).or_insert_with(|| {
            format!("{node} is a suspect because of it; a second run would drain it")
        });
    }
    for (node, mark) in &ledger.marks {
        needed.entry(mark.run.clone()).or_insert_with(|| format!("the marks of {node} name it"));
    }
    let (nodes, troubles) = certificates::list_nodes(gate);
    if let Some(trouble) = troubles.first() {
        return Err(CommandError::Environment(trouble.clone()));
    }
    for node in nodes {
        let certificate =
            certificates::read_certificate(gate, &node).map_err(CommandError::environment)?;
        if let Some(certificate) = certificate {
            needed.insert(certificate.run, format!("the certificate of {node} is based on it"));
        }
    }
    Ok(needed)
}

/// The run folders from before `limit` (Unix seconds), with the reason to keep them.
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
        // A symbolic link may point outside the folder of the runs.
        if !fs::symlink_metadata(&folder).is_ok_and(|found| found.is_dir()) {
            continue;
        }
        // A burn-in has a separate folder next to those of its rounds.
        for document in RUN_DOCUMENTS {
            let path = folder.join(document);
            match fs::read_to_string(&path) {
                Ok(text) => texts.push((folder.clone(), document, text)),
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
        // An unreadable run may still be needed.
        let Ok(stored) = run_reader::open_run(&folder) else { continue };
        let info = &stored.record.info;
        let created = info.created.parse::<jiff::Timestamp>().ok();
        if created.is_none_or(|created| limit <= created.as_second()) {
            continue;
        }
        let named = texts.iter().find(|(of, _, text)| *of == folder || text.contains(&info.id));
        let document =
            named.map(|(of, document, _)| format!("{} names it", of.join(document).display()));
        let kept_because = needed.get(&info.id).cloned().or(document).or_else(|| {
            match (stored.record.state, known.contains(&info.id)) {
                (RunState::Running, _) => Some("it is running, or can be resumed".to_owned()),
                (_, false) => Some("the history does not have it".to_owned()),
                _ => None,
            }
        });
        let (run, created) = (info.id.clone(), info.created.clone());
        aged.push(PruneCandidate { folder, run, created, kept_because, removed: false });
    }
    Ok(aged)
}

/// Removes a folder that no process writes into. `run.json` goes first: if the removal is
/// interrupted, the rest no longer counts as a run.
fn remove_run(folder: &Path) -> Result<(), String> {
    let lock = RunFolder::open(folder).lock().map_err(|error| error.to_string())?;
    let Some(_lock) = lock else { return Err("another process is writing into it".to_owned()) };
    fs::remove_file(folder.join(file::RUN))
        .and_then(|()| fs::remove_dir_all(folder))
        .map_err(|error| error.to_string())
}
