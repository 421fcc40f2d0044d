//! Reads run folders, including those of interrupted runs.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::run_folder::io_error;
use super::{
    CLAIMS_FORMAT, ClaimsRecord, MEASUREMENT_FORMAT, MeasurementRecord, RUN_FORMAT, RecordError,
    RunRecord, file, safe_open,
};
use crate::launch::Launcher;
use engine::plan::{PLAN_FORMAT, Plan};
use model::action::{ACTIONS_FORMAT, ActionPlan};
use model::claims::Claims;
use model::measured_cell::MeasuredCell;
use model::raw_result::{RESULT_FORMAT, RawResult};
use model::tool_recording::ToolRecording;
use model::verdict::{VERDICTS_FORMAT, Verdicts};
use model::worker_protocol::{MACHINE_FORMAT, MachineRecord};

/// The maximum size of an output; a run keeps at most a quarter of it.
const MAX_RAW_BYTES: u64 = 256 << 20;

/// An open run folder. Parts that the run did not reach are absent.
#[derive(Clone, Debug)]
pub struct StoredRun {
    path: PathBuf,
    /// The record of the run.
    pub record: RunRecord,
    /// The claims about its nodes.
    pub claims: Claims,
    /// The plan.
    pub plan: Plan,
    /// The plan of the confirm stage, if there were suspicions.
    pub confirm: Option<Plan>,
}

/// The run folders in a folder by name, and thus by time; none if the folder is missing. Other
/// entries are ignored.
pub fn find_run_folders(folder: &Path) -> Result<Vec<PathBuf>, RecordError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(io_error(folder, source)),
    };
    let mut runs = Vec::new();
    for entry in entries {
        let path = entry.map_err(|source| io_error(folder, source))?.path();
        if path.join(file::RUN).is_file() {
            runs.push(path);
        }
    }
    runs.sort();
    Ok(runs)
}

/// The record of a run folder.
pub(super) fn read_record(path: &Path) -> Result<RunRecord, RecordError> {
    match (read_json(&path.join(file::RUN), RUN_FORMAT)?, fs::metadata(path)) {
        (Some(record), _) => Ok(record),
        (None, Ok(_)) => Err(RecordError::NotARunFolder { path: path.to_owned() }),
        (None, Err(source)) => Err(io_error(path, source)),
    }
}

/// Opens a run folder.
pub fn open_run(path: &Path) -> Result<StoredRun, RecordError> {
    let mut record = read_record(path)?;
    let must = |name: &str| {
        let path = path.join(name);
        io_error(&path, io::Error::from(io::ErrorKind::NotFound))
    };
    let claims: ClaimsRecord =
        read_json(&path.join(file::CLAIMS), CLAIMS_FORMAT)?.ok_or_else(|| must(file::CLAIMS))?;
    let plan: Plan =
        read_json(&path.join(file::PLAN), PLAN_FORMAT)?.ok_or_else(|| must(file::PLAN))?;
    let confirm = read_json(&path.join(file::CONFIRM), PLAN_FORMAT)?;
    // Older programs did not record it.
    record.info.simulated |= is_simulated(&record.launcher) || path.join(file::SCENARIO).exists();
    Ok(StoredRun { path: path.to_owned(), record, claims: claims.claims, plan, confirm })
}

/// Whether this launcher reaches a simulated fabric, directly or in a replayed run.
pub fn is_simulated(launcher: &Launcher) -> bool {
    let of_run = |run: &Path| match read_json::<RunRecord>(&run.join(file::RUN), RUN_FORMAT) {
        Ok(Some(record)) => {
            record.info.simulated || matches!(record.launcher, Launcher::Sim { .. })
        }
        _ => false,
    };
    match launcher {
        Launcher::Sim { .. } => true,
        Launcher::Replay { run } => of_run(run) || run.join(file::SCENARIO).exists(),
        _ => false,
    }
}

impl StoredRun {
    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The completed readings. If one was repeated after an interruption, the last counts.
    pub fn results(&self) -> Result<Vec<RawResult>, RecordError> {
        let all: Vec<RawResult> = read_lines(&self.path.join(file::RESULTS), Some(RESULT_FORMAT))?;
        Ok(last_of_each(all, |result| (result.step, result.reading)))
    }

    /// The machine records of the workers, in order; none if no worker started, or an older program
    /// wrote the run.
    pub fn machines(&self) -> Result<Vec<MachineRecord>, RecordError> {
        read_lines(&self.path.join(file::MACHINES), Some(MACHINE_FORMAT))
    }

    /// The parsed outputs of the recorded readings, as parsed during the run.
    pub fn recordings(&self) -> Result<Vec<ToolRecording>, RecordError> {
        self.recordings_for(&self.results()?)
    }

    /// The same, for results that are loaded already.
    pub fn recordings_for(&self, results: &[RawResult]) -> Result<Vec<ToolRecording>, RecordError> {
        let path = self.path.join(file::MEASUREMENTS);
        let records: Vec<MeasurementRecord> = read_lines(&path, Some(MEASUREMENT_FORMAT))?;
        let read = records.into_iter().map(|record| record.recording).collect();
        let known: BTreeSet<&String> =
            results.iter().filter_map(|result| result.stdout.as_ref()).collect();
        let mut read = last_of_each(read, |recording: &ToolRecording| recording.file.clone());
        read.retain(|recording| known.contains(&recording.file));
        Ok(read)
    }

    /// The verdicts.
    pub fn verdicts(&self) -> Result<Option<Verdicts>, RecordError> {
        let verdicts: Option<Verdicts> =
            read_json(&self.path.join(file::VERDICTS), VERDICTS_FORMAT)?;
        let simulated = self.record.info.simulated;
        Ok(verdicts.map(|verdicts| Verdicts { simulated, ..verdicts }))
    }

    /// The measured cells.
    pub fn cells(&self) -> Result<Vec<MeasuredCell>, RecordError> {
        read_lines(&self.path.join(file::CELLS), None)
    }

    /// The proposed actions.
    pub fn actions(&self) -> Result<Option<ActionPlan>, RecordError> {
        read_json(&self.path.join(file::ACTIONS), ACTIONS_FORMAT)
    }

    /// The bytes of a file that a result names.
    pub fn read_raw(&self, name: &str) -> Result<Vec<u8>, RecordError> {
        let read = || {
            let mut bytes = Vec::new();
            safe_open::open_in_folder(&self.path, name)?
                .take(MAX_RAW_BYTES)
                .read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map_err(|source| io_error(&self.path.join(name), source))
    }
}

/// The last value of each key, in the order of the last positions.
pub(super) fn last_of_each<T, K: Ord>(all: Vec<T>, key: impl Fn(&T) -> K) -> Vec<T> {
    let mut seen = BTreeSet::new();
    let mut last: Vec<T> = all.into_iter().rev().filter(|one| seen.insert(key(one))).collect();
    last.reverse();
    last
}

#[derive(Deserialize)]
struct DocumentFormatHeader {
    format: String,
}

/// Whether a document's format can be read here.
pub(super) fn check_format(
    path: &Path,
    line: usize,
    text: &str,
    known: &'static str,
) -> Result<(), RecordError> {
    let malformed = |line, why| RecordError::Malformed { path: path.to_owned(), line, why };
    let found: DocumentFormatHeader = serde_json::from_str(text).map_err(|error| {
        // A document of several lines begins at `line`.
        let at = line + error.line().saturating_sub(1);
        malformed(at, format!("not a {known} document: {error}"))
    })?;
    let (kind, version) = split_format(known);
    let (found_kind, found_version) = split_format(&found.format);
    if found_kind == kind && version < found_version {
        return Err(RecordError::Newer { path: path.to_owned(), found: found.format, known });
    }
    if found_kind != kind || found_version.is_none() {
        return Err(malformed(line, format!("format {:?}, expected {known:?}", found.format)));
    }
    Ok(())
}

fn split_format(format: &str) -> (&str, Option<u32>) {
    match format.rsplit_once('/') {
        Some((kind, version)) => (kind, version.parse().ok()),
        None => (format, None),
    }
}

/// Whether a file is a document of this kind, in any version. An unreadable file is not.
pub fn has_format(path: &Path, format: &str) -> bool {
    let Ok(Some(text)) = read_text(path) else { return false };
    let found: Option<DocumentFormatHeader> = serde_json::from_str(&text).ok();
    found.is_some_and(|it| split_format(&it.format).0 == split_format(format).0)
}

/// A JSON document; `None` if the file is missing.
pub fn read_json<T: DeserializeOwned>(
    path: &Path,
    known: &'static str,
) -> Result<Option<T>, RecordError> {
    let Some(text) = read_text(path)? else { return Ok(None) };
    check_format(path, 1, &text, known)?;
    match serde_json::from_str(&text) {
        Ok(value) => Ok(Some(value)),
        Err(error) => Err(RecordError::Malformed {
            path: path.to_owned(),
            line: error.line(),
            why: error.to_string(),
        }),
    }
}

/// A JSON document as a typed value and as JSON, whose signature also covers fields that this
/// program does not know; `None` if the file is missing.
pub fn read_json_with_document<T: DeserializeOwned>(
    path: &Path,
    known: &'static str,
) -> Result<Option<(T, Value)>, RecordError> {
    let Some(document) = read_json::<Value>(path, known)? else { return Ok(None) };
    // Parses the verified document: two parsers of one text might differ.
    match T::deserialize(&document) {
        Ok(typed) => Ok(Some((typed, document))),
        Err(error) => {
            let why = error.to_string();
            Err(RecordError::Malformed { path: path.to_owned(), line: 1, why })
        }
    }
}

/// The values of a file of JSON lines; empty if the file is missing. The first damaged line is an
/// error.
pub(crate) fn read_lines<T: DeserializeOwned>(
    path: &Path,
    known: Option<&'static str>,
) -> Result<Vec<T>, RecordError> {
    Ok(read_lines_with(path, known, Err)?.unwrap_or_default())
}

/// The same; `None` if the file is missing. `damaged` gets the error of every damaged line, and
/// stops the reading if it returns the error. A last line without its end belongs to an interrupted
/// run and is ignored.
pub(super) fn read_lines_with<T: DeserializeOwned>(
    path: &Path,
    known: Option<&'static str>,
    mut damaged: impl FnMut(RecordError) -> Result<(), RecordError>,
) -> Result<Option<Vec<T>>, RecordError> {
    let file = match safe_open::open_regular(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io_error(path, source)),
    };
    // Line by line: in a large fleet such a file has hundreds of megabytes. It may grow during the
    // reading.
    let mut reader =
        BufReader::with_capacity(BUFFER_BYTES, file.take(safe_open::MAX_FILE_BYTES + 1));
    let begins = known.map(|known| format!("{{\"format\":\"{known}\","));
    let mut values = Vec::new();
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        reader.read_until(b'\n', &mut bytes).map_err(|source| io_error(path, source))?;
        let Some(line) = bytes.strip_suffix(b"\n") else { break };
        let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
        let checked = match (known, &begins) {
            (Some(known), Some(begins)) if !line.starts_with(begins.as_str()) => {
                check_format(path, number, &line, known)
            }
            _ => Ok(()),
        };
        let value = checked.and_then(|()| {
            serde_json::from_str(&line).map_err(|error| RecordError::Malformed {
                path: path.to_owned(),
                line: number,
                why: error.to_string(),
            })
        });
        match value {
            Ok(value) => values.push(value),
            Err(error) => damaged(error)?,
        }
    }
    Ok(Some(values))
}

/// The read buffer of a file of lines.
const BUFFER_BYTES: usize = 1 << 16;

/// The text of a file; `None` if it is missing.
fn read_text(path: &Path) -> Result<Option<String>, RecordError> {
    match safe_open::read_regular(path) {
        // A torn last line may end inside a character.
        Ok(bytes) => Ok(Some(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(io_error(path, source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            fs::write(dir.path().join(name), text).expect("written");
        }
        dir
    }

    #[test]
    fn a_newer_format_is_refused_and_named() {
        let dir = folder(&[("run.json", "{\"format\": \"fabricgate.run/2\", \"new\": 1}")]);
        let message = open_run(dir.path()).expect_err("newer").to_string();
        assert!(message.contains("newer fabricgate (fabricgate.run/2)"), "{message}");
    }

    #[test]
    fn other_folders_are_refused_as_run_folders() {
        let empty = folder(&[]);
        assert!(matches!(open_run(empty.path()), Err(RecordError::NotARunFolder { .. })));
        let other = folder(&[("run.json", "{\"format\": \"else/1\"}")]);
        let message = open_run(other.path()).expect_err("other").to_string();
        assert!(message.contains("expected \"fabricgate.run/1\""), "{message}");
        let cut = folder(&[("run.json", "{\n\"format\": \"fabricgate.run/1\",\n}")]);
        let message = open_run(cut.path()).expect_err("invalid JSON").to_string();
        assert!(message.contains("run.json:3: not a fabricgate.run/1 document"), "{message}");
        let missing = open_run(Path::new("/no/such/folder")).expect_err("missing");
        assert!(matches!(missing, RecordError::Io { .. }));
    }

    #[test]
    fn a_torn_last_line_is_left_out_and_a_damaged_one_is_named() {
        let cell = "{\"a\": 1}";
        let dir = folder(&[
            ("ok.jsonl", &format!("{cell}\n{cell}\n{{\"a\": ")),
            ("bad.jsonl", "{\"a\": 1}\n{\n"),
        ]);
        let read = |name| read_lines::<Value>(&dir.path().join(name), None);
        assert_eq!(read("ok.jsonl").expect("readable").len(), 2);
        let message = read("bad.jsonl").expect_err("damaged").to_string();
        assert!(message.contains("bad.jsonl:2:"), "{message}");
        assert_eq!(read("none.jsonl").expect("absent").len(), 0);
    }
}
