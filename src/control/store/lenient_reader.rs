//! Reads as much of a damaged run folder as possible, for evidence bundles.
//!
//! Missing or damaged parts are reported, never invented. The judge reads runs through
//! `run_reader`, which returns a whole run or an error.

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

/// The readable parts of a run folder.
#[derive(Clone, Debug)]
pub struct PartialRun {
    /// The record of the run; the only part that is required.
    pub record: RunRecord,
    /// The claims.
    pub claims: Claims,
    /// The verdicts, if readable.
    pub verdicts: Option<Verdicts>,
    /// Measured cells.
    pub cells: Vec<MeasuredCell>,
    /// The completed readings.
    pub results: Vec<RawResult>,
    /// The machine records of the workers.
    pub machines: Vec<MachineRecord>,
    /// The parsed outputs.
    pub recordings: Vec<ToolRecording>,
    /// The unreadable parts, one sentence each.
    pub missing: Vec<String>,
}

/// Opens a run folder; an error only if `run.json` is unreadable.
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

/// A document; `missing` gets the reason if there is none.
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

/// An error without the path of the folder, which does not belong in a bundle.
fn describe_error(name: &str, error: &RecordError) -> String {
    match error {
        RecordError::Malformed { line, why, .. } => format!("{name}:{line}: {why}"),
        RecordError::Newer { found, known, .. } => {
            format!("{name}: written by a newer fabricgate ({found}); this one reads up to {known}")
        }
        RecordError::Io { source, .. } => format!("{name} cannot be read: {source}"),
        RecordError::NotARunFolder { .. } => format!("{name} is missing"),
    }
}

/// The first and the last bytes of a file of the run, and the number of bytes omitted between them.
/// `name` comes from a file and must not lead out of the folder.
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
    fn a_run_without_its_record_is_an_error() {
        let dir = tempfile::tempdir().expect("a folder");
        assert!(matches!(read_partial_run(dir.path()), Err(RecordError::NotARunFolder { .. })));
        fs::write(dir.path().join("run.json"), "{").expect("written");
        assert!(matches!(read_partial_run(dir.path()), Err(RecordError::Malformed { .. })));
    }
}
