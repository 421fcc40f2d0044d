//! A run folder read piece by piece, as far as its pieces can be read: for those who
//! have to say something also of a damaged one.
//!
//! What is missing or damaged is told, never made up. Whoever judges reads a run
//! through `stored`, which takes it whole or not at all.

use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;

use super::{
    CLAIMS_FORMAT, ClaimsRecord, MEASUREMENT_FORMAT, MeasurementRecord, RecordError, RunRecord,
    file, run_reader, safe_open,
};
use model::claims::Claims;
use model::measured_cell::MeasuredCell;
use model::raw_result::{RESULT_FORMAT, RawResult};
use model::tool_recording::ToolRecording;
use model::verdict::{VERDICTS_FORMAT, Verdicts};
use model::worker_protocol::{MACHINE_FORMAT, MachineRecord};

/// What of a run folder could be read.
#[derive(Clone, Debug)]
pub struct PartialRun {
    /// What the run was. Without it nothing can be said.
    pub record: RunRecord,
    /// What was claimed.
    pub claims: Claims,
    /// What the judge said, where that can be read.
    pub verdicts: Option<Verdicts>,
    /// Measured cells.
    pub cells: Vec<MeasuredCell>,
    /// Readings that ended.
    pub results: Vec<RawResult>,
    /// What workers said of their machines.
    pub machines: Vec<MachineRecord>,
    /// Outputs as they were read.
    pub recordings: Vec<ToolRecording>,
    /// What could not be read, one sentence each.
    pub missing: Vec<String>,
}

/// Opens a run folder; an error only where not even `run.json` can be read.
pub fn read_partial_run(path: &Path) -> Result<PartialRun, RecordError> {
    let record = run_reader::read_record(path)?;
    let mut missing = Vec::new();
    let claims = read_document::<ClaimsRecord>(path, file::CLAIMS, CLAIMS_FORMAT, &mut missing);
    let verdicts = read_document::<Verdicts>(path, file::VERDICTS, VERDICTS_FORMAT, &mut missing);
    let cells = read_lines_leniently(path, file::CELLS, None, &mut missing);
    let results = read_lines_leniently(path, file::RESULTS, Some(RESULT_FORMAT), &mut missing);
    let machines = read_lines_leniently(path, file::MACHINES, Some(MACHINE_FORMAT), &mut missing);
    let recordings: Vec<MeasurementRecord> =
        read_lines_leniently(path, file::MEASUREMENTS, Some(MEASUREMENT_FORMAT), &mut missing);
    Ok(PartialRun {
        record,
        claims: claims.map(|it| it.claims).unwrap_or_default(),
        verdicts,
        cells,
        results: run_reader::last_of_each(results, |it: &RawResult| (it.step, it.reading)),
        machines,
        recordings: run_reader::last_of_each(
            recordings.into_iter().map(|it| it.recording).collect(),
            |it: &ToolRecording| it.file.clone(),
        ),
        missing,
    })
}

/// A document, or why there is none.
fn read_document<T: DeserializeOwned>(
    folder: &Path,
    name: &str,
    known: &'static str,
    missing: &mut Vec<String>,
) -> Option<T> {
    match run_reader::read_json(&folder.join(name), known) {
        Ok(Some(document)) => return Some(document),
        Ok(None) => missing.push(format!("{name} is not in the run folder")),
        Err(error) => missing.push(describe_error(name, &error)),
    }
    None
}

/// Lines that can be read; `missing` gets the first damaged one and the number of others.
fn read_lines_leniently<T: DeserializeOwned>(
    folder: &Path,
    name: &str,
    known: Option<&'static str>,
    missing: &mut Vec<String>,
) -> Vec<T> {
    let mut damaged: Option<(String, usize)> = None;
    let read = run_reader::read_lines_with(&folder.join(name), known, |error| {
        damaged.get_or_insert_with(|| (describe_error(name, &error), 0)).1 += 1;
        Ok(())
    });
    match damaged {
        Some((why, 1)) => missing.push(why),
        Some((why, count)) => missing.push(format!("{why} (and {} more lines)", count - 1)),
        None => {}
    }
    match read {
        Ok(Some(values)) => return values,
        Ok(None) => missing.push(format!("{name} is not in the run folder")),
        Err(error) => missing.push(describe_error(name, &error)),
    }
    Vec::new()
}

/// An error without the folder, which whoever gets this does not know.
fn describe_error(name: &str, error: &RecordError) -> String {
    match error {
        RecordError::Malformed { line, why, .. } => format!("{name}:{line}: {why}"),
        RecordError::Newer { found, known, .. } => {
            format!("{name}: written by a newer fabricgate ({found}); this one reads up to {known}")
        }
        RecordError::Io { source, .. } => format!("{name} cannot be read: {source}"),
        RecordError::NotARunFolder { .. } => format!("{name} is not there"),
    }
}

/// The beginning and the end of a file of the run, and how many bytes between them
/// were left out. `name` comes from a file and must not lead out of the folder.
pub fn read_head_and_tail(
    folder: &Path,
    name: &str,
    first: u64,
    last: u64,
) -> io::Result<(Vec<u8>, Vec<u8>, u64)> {
    use std::io::{Read, Seek};

    let mut file = safe_open::open_in_folder(folder, name)?;
    let size = file.metadata()?.len();
    let mut head = Vec::new();
    if size <= first + last {
        file.take(first + last).read_to_end(&mut head)?;
        return Ok((head, Vec::new(), 0));
    }
    (&mut file).take(first).read_to_end(&mut head)?;
    let mut tail = Vec::new();
    file.seek(io::SeekFrom::Start(size - last))?;
    file.take(last).read_to_end(&mut tail)?;
    Ok((head, tail, size - first - last))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn damaged_lines_are_counted_and_the_others_read() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("x.jsonl"), "{\"a\":1}\n{\n[\n{\"a\":2}\n{\"a\":")
            .expect("written");
        let mut missing = Vec::new();
        let read: Vec<serde_json::Map<String, serde_json::Value>> =
            read_lines_leniently(dir.path(), "x.jsonl", None, &mut missing);
        assert_eq!(read.len(), 2);
        assert_eq!(missing.len(), 1);
        assert!(
            missing[0].starts_with("x.jsonl:2: ") && missing[0].ends_with("(and 1 more lines)")
        );
    }

    #[test]
    fn the_middle_of_a_long_output_is_left_out_and_counted() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("x"), "0123456789").expect("written");
        let read = |first, last| read_head_and_tail(dir.path(), "x", first, last).expect("read");
        assert_eq!(read(6, 4), (b"0123456789".to_vec(), Vec::new(), 0));
        assert_eq!(read(3, 2), (b"012".to_vec(), b"89".to_vec(), 5));
        assert!(
            read_head_and_tail(dir.path(), "../x", 1, 1).is_err()
                && read_head_and_tail(dir.path(), "/etc/passwd", 1, 1).is_err()
        );
    }

    #[test]
    fn without_its_record_nothing_is_said_of_a_run() {
        let dir = tempfile::tempdir().expect("a folder");
        assert!(matches!(read_partial_run(dir.path()), Err(RecordError::NotARunFolder { .. })));
        fs::write(dir.path().join("run.json"), "{").expect("written");
        assert!(matches!(read_partial_run(dir.path()), Err(RecordError::Malformed { .. })));
    }
}
