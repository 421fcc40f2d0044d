//! This run held against an earlier one, part by part: what a repair or a
//! burn-in changed. Who compares is the judge.

use serde::Serialize;

use super::history::part_name;
use super::shown;
use crate::model::comparison::Compared;
use crate::model::comparison::Comparison;
use crate::model::comparison::Difference;
use crate::report::plain::amount;
use crate::report::plain::counted;
use crate::report::plain::percent;
use crate::report::plain::unit_name;

/// Parts that are listed; the rest are counted.
const ROWS: usize = 200;

/// A comparison in words.
#[derive(Serialize)]
pub(super) struct ComparisonText {
    before: String,
    counts: Vec<String>,
    rows: Vec<Row>,
    /// Parts that are the same within the noise, and not listed.
    same: usize,
    more: usize,
}

#[derive(Serialize)]
struct Row {
    part: String,
    test: String,
    before: String,
    after: String,
    unit: &'static str,
    change: String,
    noise: String,
    /// The outcome whose colour fits.
    tone: &'static str,
    word: &'static str,
}

fn word(difference: Difference) -> (&'static str, &'static str) {
    match difference {
        Difference::Better => ("pass", "better"),
        Difference::Same => ("pass", "same"),
        Difference::Worse => ("degraded", "worse"),
        // What nobody measured again is not known to be repaired.
        Difference::OnlyBefore => ("unknown", "not measured now"),
        Difference::OnlyAfter => ("unknown", "not measured then"),
    }
}

/// What the page says of a comparison: what differs, the largest first.
pub(super) fn comparison(comparison: &Comparison) -> ComparisonText {
    let of = |d: Difference| comparison.parts.iter().filter(|p| p.difference == d).count();
    let all = [
        Difference::Worse,
        Difference::OnlyBefore,
        Difference::Better,
        Difference::Same,
        Difference::OnlyAfter,
    ];
    let counts = all.map(|d| (of(d), word(d).1)).into_iter().filter(|(n, _)| 0 < *n);
    let different: Vec<&Compared> =
        comparison.parts.iter().filter(|p| p.difference != Difference::Same).collect();
    ComparisonText {
        before: format!("{}, {}", shown(&comparison.before), shown(&comparison.before_created)),
        counts: counts.map(|(n, word)| format!("{} {word}", counted(n, "part", "parts"))).collect(),
        rows: different.iter().take(ROWS).map(|part| row(part)).collect(),
        same: of(Difference::Same),
        more: different.len().saturating_sub(ROWS),
    }
}

fn row(part: &Compared) -> Row {
    let value = |v: Option<f64>| v.map_or_else(|| "–".to_owned(), |v| amount(v, Some(part.unit)));
    let (tone, word) = word(part.difference);
    Row {
        part: part_name(&part.part),
        test: shown(&part.testcase),
        before: value(part.before),
        after: value(part.after),
        unit: unit_name(Some(part.unit)),
        change: part.change.map_or_else(
            || "–".to_owned(),
            |c| if c < 0.0 { format!("−{}", percent(-c)) } else { format!("+{}", percent(c)) },
        ),
        noise: part.noise.map_or_else(|| "–".to_owned(), percent),
        tone,
        word,
    }
}
