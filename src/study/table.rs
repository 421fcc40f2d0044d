//! The study as a table for people and as JSON.

use std::fmt::Write;

use comfy_table::CellAlignment;
use comfy_table::Table;
use schemars::JsonSchema;
use serde::Serialize;

use super::Odds;
use super::Point;
use super::RIVALS;
use super::Tally;
use super::World;

/// The format of the JSON document.
pub const STUDY_FORMAT: &str = "fabricgate.study/1";

/// One table for every world and noise level, healthy sweeps last.
pub fn text(points: &[Point]) -> String {
    let mut out = String::new();
    let mut rest = points;
    while let Some(first) = rest.first() {
        let of = |p: &Point| (p.setting.world, p.setting.sigma.to_bits(), p.setting.faults == 0);
        let end = rest.iter().position(|p| of(p) != of(first)).unwrap_or(rest.len());
        let (points, others) = rest.split_at(end);
        rest = others;
        let setting = first.setting;
        let what = match setting.world {
            World::Domain => "18 nodes of 4 GPUs",
            World::Fleet => "1,024 nodes",
        };
        let healthy = if setting.faults == 0 { ", healthy" } else { "" };
        let written = write!(
            out,
            "\n{what}, noise {}{healthy}\n{}\n",
            percent(setting.sigma),
            if setting.faults == 0 { healthy_table(points) } else { faulty_table(points) }
        );
        debug_assert!(written.is_ok(), "writing to a string does not fail");
    }
    let racks: Vec<Point> =
        points.iter().copied().filter(|p| p.setting.world == World::Domain).collect();
    if !racks.is_empty() {
        let title = "wrong convictions of 7,200 GPUs that are swept daily, computed";
        out.push_str(&format!("\n{title}\n{}\n", odds_table(&racks)));
    }
    out
}

/// Rows are what was lost and by how many; columns are found and false blames
/// per sweep, of every rule.
fn faulty_table(points: &[Point]) -> Table {
    let mut table = plain();
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
    header.extend(RIVALS.iter().map(|name| format!("{name}: found / false")));
    table.set_header(header);
    for point in points {
        let (setting, ours) = (point.setting, &point.ours);
        let faults = |count: u64| percent(ratio(count, ours.faults));
        let mut row = vec![
            percent(setting.loss),
            setting.faults.to_string(),
            ours.sweeps.to_string(),
            faults(ours.found),
            faults(ours.in_pair),
            faults(ours.beyond),
            faults(ours.missed),
            each(ours.false_blames, ours),
            ours.false_sweeps.to_string(),
            each(ours.rounds, ours),
            each(ours.readings, ours),
        ];
        row.extend(point.rivals.iter().map(|rival| {
            format!(
                "{} / {}",
                percent(ratio(rival.found, rival.faults)),
                each(rival.false_blames, rival)
            )
        }));
        table.add_row(row);
    }
    aligned(table)
}

/// One row for every rule.
fn healthy_table(points: &[Point]) -> Table {
    let mut table = plain();
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
        let row = |name: &str, tally: &Tally, ours: bool| {
            let only = |count: u64| if ours { count.to_string() } else { "-".to_owned() };
            vec![
                name.to_owned(),
                tally.sweeps.to_string(),
                tally.false_blames.to_string(),
                tally.false_sweeps.to_string(),
                only(tally.false_suspicions),
                only(tally.false_confirmed),
                each(tally.rounds, tally),
                each(tally.readings, tally),
            ]
        };
        table.add_row(row("fabricgate", &point.ours, true));
        for (name, rival) in RIVALS.iter().zip(&point.rivals) {
            table.add_row(row(name, rival, false));
        }
    }
    aligned(table)
}

/// What cannot be counted in any number of sweeps that fits.
fn odds_table(points: &[Point]) -> Table {
    let mut table = plain();
    table.set_header(vec![
        "noise",
        "parts a year, at most",
        "pairs a year, at most",
        "pairs suspected in a sweep, at most",
    ]);
    let mut sigmas: Vec<f64> = points.iter().map(|point| point.setting.sigma).collect();
    sigmas.sort_by(f64::total_cmp);
    sigmas.dedup();
    for sigma in sigmas {
        let odds = Odds::of(sigma);
        table.add_row(vec![
            percent(sigma),
            format!("{:.1e}", odds.parts),
            format!("{:.1e}", odds.pairs),
            format!("{:.1e}", odds.suspected),
        ]);
    }
    aligned(table)
}

/// Columns as Markdown has them, so that a table can be put into a document.
pub(super) fn plain() -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::ASCII_MARKDOWN);
    table
}

pub(super) fn aligned(mut table: Table) -> Table {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The study as a document (`fabricgate.study/1`).
#[derive(Debug, Serialize, JsonSchema)]
pub struct StudyDocument {
    /// `fabricgate.study/1`.
    format: &'static str,
    /// The seed of everything that is by chance.
    seed: u64,
    /// Each kind of sweep that was studied.
    points: Vec<Studied>,
}

/// One kind of sweep, many times.
#[derive(Debug, Serialize, JsonSchema)]
struct Studied {
    /// What was swept.
    world: &'static str,
    /// Noise of a reading, as a share.
    sigma: f64,
    /// What a fault takes, as a share.
    loss: f64,
    /// Faults in a sweep.
    faults: usize,
    /// What each rule made of it, ours first.
    rules: Vec<Counted>,
}

/// What one rule made of all sweeps.
#[derive(Debug, Serialize, JsonSchema)]
struct Counted {
    /// The rule.
    rule: &'static str,
    #[serde(flatten)]
    tally: Tally,
}

/// All points as one document.
pub fn json(points: &[Point], seed: u64) -> StudyDocument {
    let points = points.iter().map(|point| {
        let ours = Counted { rule: "fabricgate", tally: point.ours };
        let rivals = RIVALS.iter().zip(point.rivals);
        let rivals = rivals.map(|(rule, tally)| Counted { rule, tally });
        Studied {
            world: point.setting.world.as_str(),
            sigma: point.setting.sigma,
            loss: point.setting.loss,
            faults: point.setting.faults,
            rules: std::iter::once(ours).chain(rivals).collect(),
        }
    });
    StudyDocument { format: STUDY_FORMAT, seed, points: points.collect() }
}

fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// A share in percent, with decimals where they say something.
fn percent(share: f64) -> String {
    let text = format!("{:.1}", share * 100.0);
    format!("{} %", text.strip_suffix(".0").unwrap_or(&text))
}

/// Per sweep.
fn each(count: u64, tally: &Tally) -> String {
    let value = ratio(count, tally.sweeps);
    if value == 0.0 || 100.0 <= value { format!("{value:.0}") } else { format!("{value:.3}") }
}
