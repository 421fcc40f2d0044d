//! The study as text tables and as JSON.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table};
use schemars::JsonSchema;
use serde::Serialize;

use super::{BASELINES, ClosedFormOdds, StudyPoint, StudyTally, StudyWorld};

/// The format of the JSON document.
pub const STUDY_FORMAT: &str = "fabricgate.study/1";

/// One table for every world and noise level, healthy sweeps last.
pub fn render_text(points: &[StudyPoint]) -> String {
    let mut out = String::new();
    let mut rest = points;
    while let Some(first) = rest.first() {
        let of =
            |p: &StudyPoint| (p.setting.world, p.setting.sigma.to_bits(), p.setting.faults == 0);
        let end = rest.iter().position(|p| of(p) != of(first)).unwrap_or(rest.len());
        let (points, others) = rest.split_at(end);
        rest = others;
        let setting = first.setting;
        let what = match setting.world {
            StudyWorld::Domain => "18 nodes of 4 GPUs",
            StudyWorld::Fleet => "1,024 nodes",
        };
        let healthy = if setting.faults == 0 { ", healthy" } else { "" };
        let written = write!(
            out,
            "\n{what}, noise {}{healthy}\n{}\n",
            format_percent(setting.sigma),
            if setting.faults == 0 { healthy_table(points) } else { faulty_table(points) }
        );
        debug_assert!(written.is_ok(), "writing to a string does not fail");
    }
    let racks: Vec<StudyPoint> =
        points.iter().copied().filter(|p| p.setting.world == StudyWorld::Domain).collect();
    if !racks.is_empty() {
        let title = "false blames of 7,200 GPUs that are swept daily, computed";
        out.push_str(&format!("\n{title}\n{}\n", odds_table(&racks)));
    }
    out
}

/// Rows are loss and number of faults; columns are found faults and false blames per sweep, for
/// every rule.
fn faulty_table(points: &[StudyPoint]) -> Table {
    let mut table = markdown_table();
    let mut header = [
        "lost",
        "faults",
        "sweeps",
        "found",
        "in a pair",
        "beyond",
        "missed",
        "false",
        "sweeps with false",
        "rounds",
        "readings",
    ]
    .map(str::to_owned)
    .to_vec();
    header.extend(BASELINES.iter().map(|name| format!("{name}: found / false")));
    table.set_header(header);
    for point in points {
        let (setting, scheme) = (point.setting, &point.scheme);
        let faults = |count: u64| format_percent(ratio(count, scheme.faults));
        let mut row = vec![
            format_percent(setting.loss),
            setting.faults.to_string(),
            scheme.sweeps.to_string(),
            faults(scheme.found),
            faults(scheme.in_pair),
            faults(scheme.beyond),
            faults(scheme.missed),
            per_sweep(scheme.false_blames, scheme),
            scheme.false_sweeps.to_string(),
            per_sweep(scheme.rounds, scheme),
            per_sweep(scheme.readings, scheme),
        ];
        row.extend(point.baselines.iter().map(|rival| {
            format!(
                "{} / {}",
                format_percent(ratio(rival.found, rival.faults)),
                per_sweep(rival.false_blames, rival)
            )
        }));
        table.add_row(row);
    }
    align_columns(table)
}

fn healthy_table(points: &[StudyPoint]) -> Table {
    let mut table = markdown_table();
    table.set_header(vec![
        "rule",
        "sweeps",
        "false blames",
        "sweeps with false",
        "suspected at first",
        "confirmed",
        "rounds",
        "readings",
    ]);
    for point in points {
        let row = |name: &str, tally: &StudyTally, is_scheme: bool| {
            let only = |count: u64| if is_scheme { count.to_string() } else { "-".to_owned() };
            vec![
                name.to_owned(),
                tally.sweeps.to_string(),
                tally.false_blames.to_string(),
                tally.false_sweeps.to_string(),
                only(tally.false_suspicions),
                only(tally.false_confirmed),
                per_sweep(tally.rounds, tally),
                per_sweep(tally.readings, tally),
            ]
        };
        table.add_row(row("fabricgate", &point.scheme, true));
        for (name, rival) in BASELINES.iter().zip(&point.baselines) {
            table.add_row(row(name, rival, false));
        }
    }
    align_columns(table)
}

/// Rates too rare to count in a feasible number of sweeps.
fn odds_table(points: &[StudyPoint]) -> Table {
    let mut table = markdown_table();
    table.set_header(vec![
        "noise",
        "parts per year, at most",
        "pairs per year, at most",
        "pairs suspected per sweep, at most",
    ]);
    let mut sigmas: Vec<f64> = points.iter().map(|point| point.setting.sigma).collect();
    sigmas.sort_by(f64::total_cmp);
    sigmas.dedup();
    for sigma in sigmas {
        let odds = ClosedFormOdds::from_sigma(sigma);
        table.add_row(vec![
            format_percent(sigma),
            format!("{:.1e}", odds.blamed_gpus),
            format!("{:.1e}", odds.blamed_pairs),
            format!("{:.1e}", odds.suspected_pairs),
        ]);
    }
    align_columns(table)
}

/// An empty table with Markdown columns, for use in documents.
pub(super) fn markdown_table() -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::ASCII_MARKDOWN);
    table
}

pub(super) fn align_columns(mut table: Table) -> Table {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The study as a document (`fabricgate.study/1`).
#[derive(Debug, Serialize, JsonSchema)]
pub struct StudyDocument {
    /// Always `fabricgate.study/1`.
    format: &'static str,
    /// Seed of all randomness.
    seed: u64,
    /// Results by kind of sweep.
    points: Vec<StudyDocumentPoint>,
}

/// Result of one kind of sweep.
#[derive(Debug, Serialize, JsonSchema)]
struct StudyDocumentPoint {
    /// Kind of fabric.
    world: &'static str,
    /// Relative standard deviation of a reading.
    sigma: f64,
    /// Share of its rate that a faulty part has lost.
    loss: f64,
    /// Faults per sweep.
    faults: usize,
    /// Result of each rule; the first one is fabricgate's scheme.
    rules: Vec<StudyDocumentRule>,
}

/// Result of one rule over all sweeps.
#[derive(Debug, Serialize, JsonSchema)]
struct StudyDocumentRule {
    /// Name of the rule.
    rule: &'static str,
    #[serde(flatten)]
    tally: StudyTally,
}

/// All points as one document.
pub fn build_document(points: &[StudyPoint], seed: u64) -> StudyDocument {
    let points = points.iter().map(|point| {
        let scheme = StudyDocumentRule { rule: "fabricgate", tally: point.scheme };
        let rivals = BASELINES.iter().zip(point.baselines);
        let rivals = rivals.map(|(rule, tally)| StudyDocumentRule { rule, tally });
        StudyDocumentPoint {
            world: point.setting.world.as_str(),
            sigma: point.setting.sigma,
            loss: point.setting.loss,
            faults: point.setting.faults,
            rules: std::iter::once(scheme).chain(rivals).collect(),
        }
    });
    StudyDocument { format: STUDY_FORMAT, seed, points: points.collect() }
}

fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// A share in percent, with as many decimals as are significant.
fn format_percent(share: f64) -> String {
    let text = format!("{:.1}", share * 100.0);
    format!("{} %", text.strip_suffix(".0").unwrap_or(&text))
}

fn per_sweep(count: u64, tally: &StudyTally) -> String {
    let value = ratio(count, tally.sweeps);
    if value == 0.0 || 100.0 <= value { format!("{value:.0}") } else { format!("{value:.3}") }
}
