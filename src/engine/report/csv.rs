//! `matrix.csv`: one row per measured cell, for spreadsheets and scripts.
//!
//! The columns are a contract, explained in `reports/matrix-columns.md`. An unknown value is an
//! empty field, never a zero.

use std::fmt::Write as _;

use super::plain_text::to_plain;
use model::run::Run;

/// The columns, in order.
pub const HEADER: [&str; 15] = [
    "run", "domain", "stage", "testcase", "src_node", "src_gpu", "dst_node", "dst_gpu", "rail",
    "reading", "value", "unit", "expected", "ratio", "outcome",
];

/// The bytes of `matrix.csv`.
pub fn render_matrix(run: &Run) -> Vec<u8> {
    let mut table = CsvTable::new(128 * (run.cells.len() + 1));
    for column in HEADER {
        table.push_text(Some(column));
    }
    table.end_row();
    for cell in &run.cells {
        table.push_text(Some(&run.info.id));
        table.push_text(cell.domain.as_ref().map(|d| d.as_str()));
        // Outputs recorded elsewhere have no stage.
        table.push_integer(cell.stage.map(u32::from));
        table.push_text(Some(&cell.testcase));
        table.push_text(cell.src_node.as_ref().map(|n| n.as_str()));
        table.push_integer(cell.src_gpu);
        table.push_text(cell.dst_node.as_ref().map(|n| n.as_str()));
        table.push_integer(cell.dst_gpu);
        table.push_text(cell.rail.as_deref());
        table.push_integer(Some(cell.reading));
        table.push_float(cell.value);
        table.push_text(Some(cell.unit.as_str()));
        table.push_float(cell.expected);
        table.push_float(cell.ratio);
        table.push_text(Some(cell.outcome.as_str()));
        table.end_row();
    }
    table.into_bytes()
}

/// A table that is written field by field into memory.
pub(super) struct CsvTable {
    writer: csv::Writer<Vec<u8>>,
    scratch: String,
}

/// Why writing cannot fail.
const IN_MEMORY: &str = "a vector takes every byte, and every row has the header's fields";

impl CsvTable {
    pub(super) fn new(capacity: usize) -> Self {
        let writer = csv::WriterBuilder::new().from_writer(Vec::with_capacity(capacity));
        Self { writer, scratch: String::new() }
    }

    pub(super) fn push_text(&mut self, text: Option<&str>) {
        // Users also read tables in terminals, and a row must stay on its line.
        let text = &to_plain(text.unwrap_or_default());
        // A spreadsheet runs a field that begins like this as a formula. The leading quote is
        // OWASP's advice on CSV injection.
        if text.starts_with(['=', '+', '-', '@']) {
            self.scratch.clear();
            self.scratch.push('\'');
            self.scratch.push_str(text);
            self.writer.write_field(&self.scratch).expect(IN_MEMORY);
        } else {
            self.writer.write_field(text.as_bytes()).expect(IN_MEMORY);
        }
    }

    pub(super) fn push_integer(&mut self, value: Option<u32>) {
        self.scratch.clear();
        if let Some(value) = value {
            let _ = write!(self.scratch, "{value}");
        }
        self.writer.write_field(&self.scratch).expect(IN_MEMORY);
    }

    pub(super) fn push_float(&mut self, value: Option<f64>) {
        self.scratch.clear();
        if let Some(value) = value.filter(|v| v.is_finite()) {
            let _ = write!(self.scratch, "{value}");
        }
        self.writer.write_field(&self.scratch).expect(IN_MEMORY);
    }

    pub(super) fn end_row(&mut self) {
        self.writer.write_record(None::<&[u8]>).expect(IN_MEMORY);
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.writer.into_inner().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;
    use model::measured_cell::MeasuredCell;

    fn lines(run: &Run) -> Vec<String> {
        let text = String::from_utf8(render_matrix(run)).expect("utf-8");
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_header_is_the_contract_and_the_contract_explains_every_column() {
        let header = "run,domain,stage,testcase,src_node,src_gpu,dst_node,dst_gpu,rail,reading,value,unit,expected,ratio,outcome";
        assert_eq!(lines(&fixture::empty()), [header]);
        let contract = include_str!("../../../reports/matrix-columns.md");
        let explained: Vec<&str> = contract
            .lines()
            .filter_map(|l| l.strip_prefix("| `")?.split_once('`').map(|(name, _)| name))
            .collect();
        assert_eq!(explained, HEADER);
    }

    #[test]
    fn a_run_is_rendered_cell_by_cell() {
        let run = fixture::hgx();
        let lines = lines(&run);
        assert_eq!(lines.len(), run.cells.len() + 1);
        let some: Vec<&String> = lines.iter().take(4).chain(lines.iter().rev().take(3)).collect();
        insta::assert_snapshot!(some.iter().map(|l| l.as_str()).collect::<Vec<_>>().join("\n"));
    }

    #[test]
    fn names_cannot_become_formulas_or_break_a_row() {
        let run = fixture::hostile();
        let bytes = render_matrix(&run);
        let mut reader = csv::Reader::from_reader(bytes.as_slice());
        let rows: Vec<csv::StringRecord> = reader.records().map(|r| r.expect("a row")).collect();
        assert_eq!(rows.len(), run.cells.len());
        for (row, cell) in rows.iter().zip(&run.cells) {
            assert_eq!(row.len(), HEADER.len());
            let name = cell.src_node.as_ref().expect("a source").as_str();
            assert_eq!(row[4].trim_start_matches('\''), to_plain(name));
            for field in [1, 3, 4, 6, 8] {
                assert!(!row[field].starts_with(['=', '+', '-', '@', '\t', '\r']), "{row:?}");
            }
        }
    }

    #[test]
    fn numbers_read_back_exactly_and_unknown_is_empty() {
        let mut run = fixture::hgx();
        let cell = run.cells[0].clone();
        let values = [Some(0.1 + 0.2), Some(-1.5), None, Some(f64::NAN), Some(1e-9)];
        run.cells = values.map(|value| MeasuredCell { value, ratio: None, ..cell.clone() }).into();
        let bytes = render_matrix(&run);
        let mut reader = csv::Reader::from_reader(bytes.as_slice());
        let read: Vec<Option<f64>> =
            reader.records().map(|r| r.expect("a row")[10].parse().ok()).collect();
        assert_eq!(read, [Some(0.1 + 0.2), Some(-1.5), None, None, Some(1e-9)]);
    }
}
