//! Adding runs: one, all of a folder, or a full rebuild.
//!
//! A run is added whole, in one transaction, or not at all.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, Statement, TransactionBehavior, params};

use super::rollup::{RollupValue, RunRollup};
use super::{HistoryError, RunHistory, node_identity, rollup};
use crate::store::run_reader::StoredRun;
use crate::store::{RecordError, RunState, file, json_digest, run_reader};
use model::tool_recording::ToolRecording;
use model::trend::FabricPartKind;
use model::verdict::{Outcome, Verdicts};

/// The result of adding a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IngestResult {
    /// It was added.
    New,
    /// It was present and unchanged.
    Same,
    /// It was present and its folder has changed since; the history now matches the folder.
    Changed,
    /// It is in progress, or ended before any verdict: nothing to store yet.
    Unjudged,
}

/// The results for the runs of a folder.
#[derive(Debug, Default)]
pub struct IngestSummary {
    /// Runs that were added or updated.
    pub added: usize,
    /// Runs that were present and unchanged.
    pub same: usize,
    /// Runs without a verdict.
    pub unjudged: usize,
    /// Stored runs whose folders are missing or unreadable: kept unchanged.
    pub kept: usize,
    /// Unreadable folders, with the error.
    pub unreadable: Vec<(PathBuf, String)>,
}

/// The stored part of a run, read from its folder.
struct IngestedRun {
    stored: StoredRun,
    signature: String,
    recordings: Vec<ToolRecording>,
    verdicts: Verdicts,
    rollup: RunRollup,
}

impl RunHistory {
    /// Adds a run, or its changes since it was added. Adding the same run twice changes nothing.
    pub fn add_run(&mut self, stored: &StoredRun) -> Result<IngestResult, HistoryError> {
        let path = self.path.clone();
        let wrong = |source| super::connection::explain_sqlite_error(&path, source);
        let signature = folder_signature(stored.path());
        let was = find_run(&self.connection, &stored.record.info.id).map_err(wrong)?;
        if was.as_ref().is_some_and(|(_, was, thinned)| *thinned || *was == signature) {
            return Ok(IngestResult::Same);
        }
        let Some(kept) = read_run(stored.clone(), signature)? else {
            return Ok(IngestResult::Unjudged);
        };
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(wrong)?;
        if let Some((n, ..)) = &was {
            transaction.execute("DELETE FROM runs WHERE n = ?1", [n]).map_err(wrong)?;
        }
        insert_run(&transaction, &kept)?.map_err(wrong)?;
        transaction.commit().map_err(wrong)?;
        Ok(if was.is_some() { IngestResult::Changed } else { IngestResult::New })
    }

    /// Adds the runs of a folder that are missing from the history or have changed since.
    pub fn add_new_runs(&mut self, runs: &Path) -> Result<IngestSummary, HistoryError> {
        let mut rebuilt = IngestSummary::default();
        let mut taken: BTreeSet<String> = BTreeSet::new();
        for folder in run_reader::find_run_folders(runs)? {
            let added =
                run_reader::open_run(&folder).map_err(HistoryError::from).and_then(|stored| {
                    let run = &stored.record.info.id;
                    // A second folder of the same run is a copy: otherwise each would replace the
                    // other at every refresh.
                    if taken.contains(run) {
                        return Ok(IngestResult::Same);
                    }
                    let added = self.add_run(&stored)?;
                    if added != IngestResult::Unjudged {
                        taken.insert(run.clone());
                    }
                    Ok(added)
                });
            match added {
                Ok(IngestResult::New | IngestResult::Changed) => rebuilt.added += 1,
                Ok(IngestResult::Same) => rebuilt.same += 1,
                Ok(IngestResult::Unjudged) => rebuilt.unjudged += 1,
                // An unreadable folder does not keep the others out.
                Err(HistoryError::Run(error)) => {
                    rebuilt.unreadable.push((folder, error.to_string()));
                }
                Err(other) => return Err(other),
            }
        }
        Ok(rebuilt)
    }

    /// Rebuilds the history from the run folders in a folder, in one transaction: concurrent
    /// readers see the old state. Runs without a folder and thinned runs stay as they are.
    pub fn rebuild(&mut self, runs: &Path) -> Result<IngestSummary, HistoryError> {
        let mut rebuilt = IngestSummary::default();
        let folders = run_reader::find_run_folders(runs)?;
        let path = self.path.clone();
        let wrong = |source| super::connection::explain_sqlite_error(&path, source);
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(wrong)?;
        let mut seen: BTreeSet<String> = BTreeSet::new();
        let mut taken: BTreeSet<String> = BTreeSet::new();
        for folder in folders {
            let read =
                run_reader::open_run(&folder).map_err(HistoryError::from).and_then(|stored| {
                    let signature = folder_signature(&folder);
                    Ok((stored.record.info.id.clone(), read_run(stored, signature)?))
                });
            let (run, kept) = match read {
                Ok(read) => read,
                Err(HistoryError::Run(error)) => {
                    rebuilt.unreadable.push((folder, error.to_string()));
                    continue;
                }
                Err(other) => return Err(other),
            };
            let was = find_run(&transaction, &run).map_err(wrong)?;
            // Of two folders of a run, one may be a copy that was made before the run ended.
            let is_new = kept.is_none() || taken.insert(run.clone());
            seen.insert(run);
            match (kept, was) {
                (None, _) => rebuilt.unjudged += 1,
                (_, Some((_, _, true))) => rebuilt.same += 1,
                // A second folder of the same run: a copy.
                _ if !is_new => rebuilt.same += 1,
                (Some(kept), was) => {
                    if let Some((n, ..)) = was {
                        transaction.execute("DELETE FROM runs WHERE n = ?1", [n]).map_err(wrong)?;
                    }
                    insert_run(&transaction, &kept)?.map_err(wrong)?;
                    rebuilt.added += 1;
                }
            }
        }
        let all: Vec<String> = transaction
            .prepare("SELECT run FROM runs")
            .and_then(|mut s| s.query_map([], |row| row.get(0))?.collect())
            .map_err(wrong)?;
        rebuilt.kept = all.iter().filter(|run| !seen.contains(*run)).count();
        transaction.commit().map_err(wrong)?;
        Ok(rebuilt)
    }
}

/// Identifies a changed folder: size and modification time of the relevant files.
fn folder_signature(folder: &Path) -> String {
    use std::os::unix::fs::MetadataExt as _;
    let of = |name: &str| {
        let found = fs::metadata(folder.join(name)).ok();
        found.map(|found| (found.len(), found.mtime(), found.mtime_nsec()))
    };
    let files =
        [file::RUN, file::CLAIMS, file::VERDICTS, file::CELLS, file::MACHINES, file::MEASUREMENTS];
    json_digest(&files.map(of))
}

/// A stored run: its number, the signature of its folder, whether it was thinned.
fn find_run(connection: &Connection, run: &str) -> rusqlite::Result<Option<(i64, String, bool)>> {
    connection
        .prepare("SELECT n, signature, thinned FROM runs WHERE run = ?1")?
        .query_row([run], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()
}

/// The stored part of a run; `None` if it has no verdict yet.
fn read_run(stored: StoredRun, signature: String) -> Result<Option<IngestedRun>, RecordError> {
    let Some(verdicts) = stored.verdicts()?.filter(|_| stored.record.state != RunState::Running)
    else {
        return Ok(None);
    };
    let recordings = stored.recordings()?;
    let rolled = rollup::roll_up_run(&stored.cells()?, &recordings, &verdicts);
    Ok(Some(IngestedRun { stored, signature, recordings, verdicts, rollup: rolled }))
}

/// Writes a run. The outer error is that of its folder, the inner one that of the database.
fn insert_run(
    connection: &Connection,
    kept: &IngestedRun,
) -> Result<rusqlite::Result<()>, RecordError> {
    let (machines, recordings) = (kept.stored.machines()?, &kept.recordings);
    let tools = node_identity::tool_versions(recordings, &kept.stored.record.info.version);
    let identities = node_identity::node_identities(&kept.stored.claims, &machines, recordings);
    let all = || -> rusqlite::Result<()> {
        let n = insert_run_row(connection, kept, &to_json(&tools))?;
        insert_nodes(connection, n, kept, &identities)?;
        insert_points(connection, n, &kept.rollup)?;
        insert_links(connection, n, &kept.rollup)?;
        insert_findings(connection, n, &kept.verdicts)
    };
    Ok(all())
}

fn to_json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("values of the model are plain data")
}

/// The serialized name of a value.
pub(super) fn document_name<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        other => unreachable!("an enumeration of names is written as one: {other:?}"),
    }
}

fn insert_run_row(
    connection: &Connection,
    kept: &IngestedRun,
    tools: &str,
) -> rusqlite::Result<i64> {
    let (record, info) = (&kept.stored.record, &kept.stored.record.info);
    let at: i64 = info.created.parse().map_or(0, |at: jiff::Timestamp| at.as_second());
    let folder = fs::canonicalize(kept.stored.path());
    let folder = folder.unwrap_or_else(|_| kept.stored.path().to_owned()).display().to_string();
    connection
        .prepare(
            "INSERT INTO runs (run, at, at_unix, profile, source, version, state, outcome, platform,
                               thresholds, tools, folder, signature, simulated)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        )?
        .execute(params![
            info.id,
            info.created,
            at,
            info.profile,
            info.source,
            info.version,
            document_name(&record.state),
            kept.verdicts.outcome.as_str(),
            kept.verdicts.platform,
            record.thresholds_digest,
            tools,
            folder,
            kept.signature,
            record.launcher.is_stand_in(),
        ])?;
    Ok(connection.last_insert_rowid())
}

fn insert_nodes(
    connection: &Connection,
    n: i64,
    kept: &IngestedRun,
    identities: &std::collections::BTreeMap<model::id::NodeName, node_identity::NodeIdentity>,
) -> rusqlite::Result<()> {
    let measured: BTreeSet<_> =
        kept.rollup.values.iter().filter_map(|v| v.part.node.as_ref()).collect();
    let is_whole = kept.stored.record.state == RunState::Complete;
    for verdict in &kept.verdicts.nodes {
        let identity = match identities.get(&verdict.node) {
            Some(facts) => Some(intern_text(connection, "identities", "facts", &to_json(facts))?),
            None => None,
        };
        let measured = measured.contains(&verdict.node);
        let complete = measured && is_whole && verdict.outcome != Outcome::Unknown;
        connection
            .prepare(
                "INSERT INTO nodes (n, node, domain, outcome, reason, measured, complete, worst,
                                    identity)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            )?
            .execute(params![
                n,
                verdict.node.as_str(),
                verdict.domain.as_ref().map(|d| d.as_str()),
                verdict.outcome.as_str(),
                verdict.reason,
                measured,
                complete,
                kept.rollup.worst.get(&verdict.node),
                identity,
            ])?;
    }
    Ok(())
}

/// The number of a text that many rows share; it is stored once.
fn intern_text(
    connection: &Connection,
    table: &str,
    column: &str,
    text: &str,
) -> rusqlite::Result<i64> {
    let digest = json_digest(&text);
    let found = connection
        .prepare(&format!("SELECT id FROM {table} WHERE digest = ?1"))?
        .query_row([&digest], |row| row.get(0))
        .optional()?;
    if let Some(id) = found {
        return Ok(id);
    }
    connection
        .prepare(&format!("INSERT INTO {table} (digest, {column}) VALUES (?1, ?2)"))?
        .execute([digest.as_str(), text])?;
    Ok(connection.last_insert_rowid())
}

fn insert_points(connection: &Connection, n: i64, rolled: &RunRollup) -> rusqlite::Result<()> {
    let mut series = SeriesInserter::new(connection)?;
    let mut put = connection.prepare(
        "INSERT INTO points (series, n, value, error, expected, outcome)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT DO NOTHING",
    )?;
    for value in &rolled.values {
        put.execute(params![
            series.series_number(value)?,
            n,
            round_significant(value.value),
            value.error.map(round_significant),
            value.expected,
            value.outcome.map(Outcome::as_str),
        ])?;
    }
    Ok(())
}

/// Six significant digits: a tenth of the scatter of the quietest fabric is 6e-5 of a value, and
/// more digits only lengthen the text.
fn round_significant(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// Finds the number of a part's series in a test. A node may move to another domain; its series
/// goes on.
struct SeriesInserter<'c> {
    connection: &'c Connection,
    find: Statement<'c>,
    make: Statement<'c>,
}

impl<'c> SeriesInserter<'c> {
    fn new(connection: &'c Connection) -> rusqlite::Result<Self> {
        let find = connection.prepare(
            "SELECT id FROM series WHERE kind = ?1 AND domain = ?2 AND node = ?3 AND gpu = ?4
             AND rail = ?5 AND direction = ?6 AND testcase = ?7 AND unit = ?8",
        )?;
        let make = connection.prepare(
            "INSERT INTO series (kind, domain, node, gpu, rail, direction, testcase, unit)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?;
        Ok(Self { connection, find, make })
    }

    fn series_number(&mut self, value: &RollupValue) -> rusqlite::Result<i64> {
        let part = &value.part;
        let domain = part.domain.as_ref().filter(|_| part.kind == FabricPartKind::Domain);
        let kind = document_name(&part.kind);
        let key = params![
            kind,
            domain.map_or("", |domain| domain.as_str()),
            part.node.as_ref().map_or("", |node| node.as_str()),
            part.gpu.map_or(-1, i64::from),
            part.rail.as_deref().unwrap_or(""),
            part.direction.map_or("", |direction| direction.as_str()),
            &*value.testcase,
            value.unit.as_str(),
        ];
        let found = self.find.query_row(key, |row| row.get(0)).optional()?;
        if let Some(id) = found {
            return Ok(id);
        }
        self.make.execute(key)?;
        Ok(self.connection.last_insert_rowid())
    }
}

fn insert_links(connection: &Connection, n: i64, rolled: &RunRollup) -> rusqlite::Result<()> {
    for paths in &rolled.paths {
        let ends = intern_text(connection, "ends", "pairs", &to_json(&paths.ends))?;
        let readings: Vec<f64> = paths.readings.iter().copied().map(round_significant).collect();
        connection
            .prepare(
                "INSERT INTO links (n, testcase, unit, rail, ends, readings)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![
                n,
                &*paths.testcase,
                paths.unit.as_str(),
                paths.rail.as_deref().unwrap_or(""),
                ends,
                to_json(&readings),
            ])?;
    }
    Ok(())
}

fn insert_findings(connection: &Connection, n: i64, verdicts: &Verdicts) -> rusqlite::Result<()> {
    for found in &verdicts.findings {
        let locus = &found.locus;
        connection
            .prepare(
                "INSERT INTO findings (n, id, outcome, class, kind, domain, node, gpu, peer, rail,
                                       direction, measured, expected, unit, ratio, confirmed, summary)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
                 ON CONFLICT DO NOTHING",
            )?
            .execute(params![
                n,
                found.id,
                found.outcome.as_str(),
                found.class.as_str(),
                locus.kind.as_str(),
                locus.domain.as_ref().map(|d| d.as_str()),
                locus.node.as_ref().map(|node| node.as_str()),
                locus.gpu,
                locus.peer,
                locus.rail,
                locus.direction.map(|direction| direction.as_str()),
                found.measured,
                found.expected,
                found.unit.map(|unit| unit.as_str()),
                found.ratio,
                found.confirmed,
                found.summary,
            ])?;
    }
    Ok(())
}
