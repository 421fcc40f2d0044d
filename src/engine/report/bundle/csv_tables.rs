//! The tables of a bundle, for spreadsheets.

use super::BundleCase;
use crate::report::plain_text::to_plain;
use crate::report::trend;
use model::trend::{HISTORY_FORMAT, HistoryDocument};

/// Every point of every series of the node as a table; nothing where there is no series.
pub(super) fn history(case: &BundleCase) -> Option<Vec<u8>> {
    let document = HistoryDocument {
        format: HISTORY_FORMAT.to_owned(),
        file: String::new(),
        runs: 0,
        simulated: case.run.info.simulated,
        first: None,
        last: None,
        nodes: Vec::new(),
        trends: case.trends.clone(),
        runs_per_false_alarm: None,
        notes: Vec::new(),
    };
    (!document.trends.is_empty()).then(|| trend::render_csv(&document))
}

/// Rows as CSV; a field that a spreadsheet would run as a formula gets a quote in
/// front, as in `matrix.csv`.
pub(super) fn render_table(rows: &[Vec<String>]) -> Vec<u8> {
    const IN_MEMORY: &str = "a vector takes every byte, and all rows have as many fields";
    let mut writer = ::csv::WriterBuilder::new().from_writer(Vec::new());
    for row in rows {
        let safe = row.iter().map(|field| {
            let field = to_plain(field);
            let is_formula = field.starts_with(['=', '+', '-', '@']);
            if is_formula { format!("'{field}") } else { field.into_owned() }
        });
        writer.write_record(safe).expect(IN_MEMORY);
    }
    writer.into_inner().unwrap_or_default()
}
