//! The tables of a bundle, for spreadsheets.

use super::partners::{Partners, Tally};
use crate::report::csv;
use crate::report::plain_text::to_plain;
use model::claims::Claims;
use model::run::Run;

/// Rows of one table; the run's own `matrix.csv` has all.
const ROWS: usize = 100_000;

/// These cells of a run, with the columns of `matrix.csv`.
pub(super) fn render_cells(run: &Run, which: &[usize]) -> Vec<u8> {
    let cells = which.iter().take(ROWS).filter_map(|at| run.cells.get(*at)).cloned().collect();
    csv::render_matrix(&Run {
        info: run.info.clone(),
        claims: Claims::default(),
        cells,
        verdicts: run.verdicts.clone(),
        actions: None,
    })
}

/// One row per partner.
pub(super) fn partners(partners: &Partners) -> Vec<u8> {
    let mut rows = vec![to_strings(&[
        "partner_node",
        "partner_gpu",
        "standing",
        "readings_with_this_node",
        "low_with_this_node",
        "median_ratio_with_this_node",
        "lowest_ratio_with_this_node",
        "readings_with_others",
        "low_with_others",
        "median_ratio_with_others",
        "lowest_ratio_with_others",
    ])];
    let tally = |it: &Tally| {
        let ratio = |value: Option<f64>| value.map(|it| format!("{it:.4}")).unwrap_or_default();
        let counts = [it.readings.to_string(), it.low.to_string()];
        counts.into_iter().chain([ratio(it.median_ratio), ratio(it.lowest_ratio)])
    };
    for partner in &partners.each {
        let gpu = partner.gpu.map(|it| it.to_string()).unwrap_or_default();
        let who = [partner.node.clone(), gpu, partner.standing.words().to_owned()];
        let row = who.into_iter().chain(tally(&partner.with)).chain(tally(&partner.others));
        rows.push(row.collect());
    }
    render_table(&rows)
}

fn to_strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|it| (*it).to_owned()).collect()
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
