//! Cabling as CSV: a header, then one cable (or one node) per line.
//!
//! Parses the table only; `builder` checks the lines against each other.

use csv::{ReaderBuilder, StringRecord, Trim};

use super::builder::{CablingBuilder, CablingEntry};
use crate::claims::reader_util::{first_line, quote_text, sanitize_text};
use model::source_report::{SourceProblemKind, SourceReport};

/// The columns, in the order of the documentation.
const COLUMNS: [&str; 7] = ["node", "rack", "slot", "rail", "device", "leaf", "port"];

/// The first line that is neither empty nor a comment.
fn header_line(text: &str) -> &str {
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| !line.is_empty() && !line.starts_with('#')).unwrap_or_default()
}

/// The separator of a header: spreadsheets of many locales write semicolons, and copied cells are
/// separated by tabs.
fn detect_separator(header: &str) -> u8 {
    let count = |c: char| header.matches(c).count();
    [';', '\t'].into_iter().find(|c| count(',') < count(*c)).map_or(b',', |c| c as u8)
}

/// Whether the first line is a cabling header.
pub(super) fn recognises(text: &str) -> bool {
    let header = header_line(text);
    let separator = char::from(detect_separator(header));
    let names: Vec<String> = header
        .split(separator)
        .map(|name| name.trim().trim_matches('"').trim().to_ascii_lowercase())
        .collect();
    let known = COLUMNS.iter().filter(|column| names.iter().any(|name| name == *column)).count();
    names.iter().any(|name| name == COLUMNS[0]) && 2 <= known
}

/// The file's column index of each of [`COLUMNS`].
struct CablingColumns([Option<usize>; COLUMNS.len()]);

impl CablingColumns {
    fn from_header(header: &StringRecord, line: usize, entries: &mut CablingBuilder<'_>) -> Self {
        let mut columns = [None; COLUMNS.len()];
        let mut unread = Vec::new();
        for (at, name) in header.iter().enumerate() {
            match COLUMNS.iter().position(|column| column.eq_ignore_ascii_case(name)) {
                Some(known) if columns[known].is_none() => columns[known] = Some(at),
                Some(known) => {
                    let message = format!("column {} occurs twice", COLUMNS[known]);
                    entries.push_problem(SourceProblemKind::Contradictory, line, message);
                }
                None if name.is_empty() => unread.push("(no name)".to_owned()),
                None => unread.push(sanitize_text(name)),
            }
        }
        if !unread.is_empty() {
            entries.push_note(format!("ignored columns: {}", unread.join(", ")));
        }
        if columns[0].is_none() || columns.iter().flatten().count() < 2 {
            let message = format!(
                "no header, expected column node and at least one other of {}",
                COLUMNS[1..].join(", ")
            );
            entries.push_problem(SourceProblemKind::Malformed, line, message);
        }
        Self(columns)
    }

    /// The entry of a line, from the known columns.
    fn parse_entry(&self, record: &StringRecord, line: usize) -> CablingEntry {
        let cell = |column: usize| {
            let cell = self.0[column].and_then(|at| record.get(at)).unwrap_or_default();
            Some(sanitize_text(cell)).filter(|cell| !cell.is_empty())
        };
        // A host list may be longer than the display limit of a text.
        let nodes = self.0[0].and_then(|at| record.get(at)).unwrap_or_default();
        CablingEntry {
            line,
            nodes: nodes.to_owned(),
            rack: cell(1),
            slot: cell(2),
            rail: cell(3),
            device: cell(4),
            leaf: cell(5),
            port: cell(6),
        }
    }
}

pub(super) fn read(report: &mut SourceReport, text: &str) {
    let separator = detect_separator(header_line(text));
    // Uniform line ends, also after the last line, so that the line of a record is the reader's
    // current line minus the lines of the record.
    let mut text = text.replace("\r\n", "\n").replace('\r', "\n");
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let mut entries = CablingBuilder::new(report);
    let mut reader = ReaderBuilder::new()
        .delimiter(separator)
        .comment(Some(b'#'))
        .flexible(true)
        .has_headers(false)
        .trim(Trim::All)
        .from_reader(text.as_bytes());
    let mut columns: Option<(CablingColumns, usize)> = None;
    let mut record = StringRecord::new();
    loop {
        match reader.read_record(&mut record) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                let line = error.position().map_or(0, csv::Position::line);
                let line = usize::try_from(line).unwrap_or_default();
                entries.push_problem(SourceProblemKind::Malformed, line, first_line(&error));
                continue;
            }
        }
        let after = usize::try_from(reader.position().line()).unwrap_or_default();
        let spans: usize = record.iter().map(|cell| cell.matches('\n').count()).sum();
        let line = after.saturating_sub(1 + spans).max(1);
        let Some((columns, width)) = &columns else {
            let read = CablingColumns::from_header(&record, line, &mut entries);
            if read.0[0].is_none() {
                break;
            }
            columns = Some((read, record.len()));
            continue;
        };
        if record.iter().all(str::is_empty) {
            continue;
        }
        if *width < record.len() && record.iter().skip(*width).any(|cell| !cell.is_empty()) {
            let message = format!(
                "{} cells, expected {width} as in the header; a host list with a comma needs quotes",
                record.len()
            );
            entries.push_problem(SourceProblemKind::Malformed, line, message);
            continue;
        }
        let entry = columns.parse_entry(&record, line);
        if entry.nodes.is_empty() {
            let rest = record.iter().collect::<Vec<_>>().join(" ");
            let message =
                format!("column node: empty next to {}, expected a node", quote_text(&rest));
            entries.push_problem(SourceProblemKind::Malformed, line, message);
            continue;
        }
        entries.add_entry(&entry);
    }
    if columns.is_none() && text.trim().is_empty() {
        entries.push_problem(
            SourceProblemKind::Malformed,
            1,
            "empty, expected a header with column node",
        );
    }
    entries.finish();
}
