//! Checks whether the tool could have computed a run's numbers.
//!
//! The tool derives algbw from size and time, busbw from algbw, and the average from the rows; all
//! are printed rounded. A contradiction is reported only if no unrounded values could explain the
//! printed ones. This module does not judge the numbers.

use super::collective;
use super::collective::{NcclRowEvidence, NcclTestProgram};
use super::rounded_number::NumberRange;
use super::run::{NcclRow, NcclRowHalf, NcclRun};
use model::measurement::BufferPlacement;
use model::parse_output::{OutputProblem, OutputProblemKind};

/// Detail of the problem with the average.
const AVERAGE: &str =
    "the average bus bandwidth is not the mean of the rows, and no row is missing";

/// Allowed deviation of algbw from size over time: some builds average or trim times before they
/// print them.
const TIME_SLACK: f64 = 0.02;

/// Allowed deviation of the average from the mean of the rows.
const AVERAGE_SLACK: f64 = 0.005;

/// The range of busbw / algbw that all rows together allow.
struct ObservedFactor {
    range: NumberRange,
    low_at: Option<(u32, u64)>,
    high_at: Option<(u32, u64)>,
}

fn half_factor(half: &NcclRowHalf) -> Option<NumberRange> {
    Some(half.busbw?.range().divide(half.algbw?.range()))
}

fn observe_factor(run: &NcclRun) -> ObservedFactor {
    let mut seen = ObservedFactor { range: NumberRange::ANY, low_at: None, high_at: None };
    for (row, _, half) in run.halves() {
        let Some(range) = half_factor(half) else { continue };
        if seen.range.low < range.low {
            seen.range.low = range.low;
            seen.low_at = Some((row.line, row.bytes));
        }
        if range.high < seen.range.high {
            seen.range.high = range.high;
            seen.high_at = Some((row.line, row.bytes));
        }
    }
    seen
}

fn collect_evidence(run: &NcclRun, factor: NumberRange) -> NcclRowEvidence {
    let redop = |row: &NcclRow| row.redop.as_deref().is_some_and(|name| name != "none");
    NcclRowEvidence {
        redop: run.rows.iter().any(redop),
        root: run.rows.iter().any(|row| row.root.is_some_and(|root| 0 <= root)),
        redop_column: run.redop_column,
        modern: run.modern,
        size_multiple: size_multiple(&run.rows),
        factor,
        in_place_unchecked: run.in_place_unchecked(),
        in_place_checked: run.is_checked(BufferPlacement::InPlace),
        size_over_time: is_size_over_time(run),
        ranks: run.known_ranks(),
    }
}

/// Size / (count x element size), if all rows with data agree.
fn size_multiple(rows: &[NcclRow]) -> Option<u64> {
    let mut agreed = None;
    for row in rows.iter().filter(|row| 0 < row.count) {
        let share = row.count.checked_mul(collective::element_size(&row.type_name)?)?;
        if row.bytes % share != 0 {
            return None;
        }
        let here = row.bytes / share;
        if *agreed.get_or_insert(here) != here {
            return None;
        }
    }
    agreed
}

/// The test that printed these rows, if only one could have.
pub(super) fn infer_program(run: &NcclRun) -> Option<&'static str> {
    let seen = observe_factor(run);
    if seen.range.high < seen.range.low || run.rows.is_empty() {
        return None;
    }
    match collective::find_candidates(&collect_evidence(run, seen.range))[..] {
        [only] => Some(only.name),
        _ => None,
    }
}

/// The contradictions in a run, except for its average.
pub(super) fn check_run(run: &NcclRun, name: Option<&str>) -> Vec<OutputProblem> {
    // A program outside the known tests has its own formula.
    let known = name.map(collective::find_program);
    if known == Some(None) || run.rows.is_empty() {
        return Vec::new();
    }
    let known = known.flatten();
    let mut problems = Vec::new();
    problems.extend(check_factor(run, known));
    problems.extend(check_time(run, known));
    problems.extend(check_sizes(run, known));
    problems
}

fn inconsistency(detail: String, line: u32) -> OutputProblem {
    OutputProblem::new(OutputProblemKind::Inconsistent, detail).at_line(line)
}

fn check_factor(run: &NcclRun, known: Option<&NcclTestProgram>) -> Option<OutputProblem> {
    let seen = observe_factor(run);
    let (line, bytes) = seen.high_at.or(seen.low_at)?;
    let NumberRange { low, high } = seen.range;
    if high < low {
        let other = seen.low_at.map_or(0, |(_, bytes)| bytes);
        let detail = format!(
            "busbw is at most {high:.4} x algbw at {bytes} bytes and at least {low:.4} x at \
             {other} bytes"
        );
        return Some(inconsistency(detail, line));
    }
    let evidence = collect_evidence(run, seen.range);
    let possible = match known {
        Some(collective) => collective
            .possible_factors(evidence.ranks, evidence.modern)
            .iter()
            .any(|f| f.overlaps(seen.range)),
        // Rows without a reduction may belong to an unknown test.
        None => !evidence.redop || !collective::find_candidates(&evidence).is_empty(),
    };
    if possible {
        return None;
    }
    let ranks = match (evidence.ranks.exact, evidence.ranks.at_least) {
        (Some(n), _) => format!(" on {n} ranks"),
        (None, 0) => String::new(),
        (None, n) => format!(" on {n} or more ranks"),
    };
    let test = known.map_or("a test with such columns", |c| c.name);
    let detail = format!("busbw is {low:.4} to {high:.4} x algbw, which {test} cannot give{ranks}");
    Some(inconsistency(detail, line))
}

/// Whether algbw equals size over time in all rows, beyond chance.
fn is_size_over_time(run: &NcclRun) -> bool {
    /// The minimum number of rows of different sizes.
    const FEWEST: usize = 3;
    !run.cpu_time
        && FEWEST <= run.rows.iter().filter(|row| 0 < row.bytes).count()
        && run.halves().all(|(row, _, half)| half.time.is_some() && !contradicts_time(row, half))
}

/// Whether algbw contradicts size over time.
#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53 bytes")]
fn contradicts_time(row: &NcclRow, half: &NcclRowHalf) -> bool {
    let (Some(time), Some(algbw)) = (half.time, half.algbw) else { return false };
    // Bytes per microsecond equal MB/s.
    let expected = NumberRange::from_value(row.bytes as f64 / 1e3).divide(time.range());
    !expected.widen(TIME_SLACK).overlaps(algbw.range())
}

fn check_time(run: &NcclRun, known: Option<&NcclTestProgram>) -> Option<OutputProblem> {
    // Unknown tests and releases before 2.13 may count the bytes differently.
    let plain = match known {
        Some(collective) => collective.size_over_time && run.modern,
        None => false,
    };
    if run.cpu_time || !plain {
        return None;
    }
    let mut bad = run.halves().filter(|(row, _, half)| contradicts_time(row, half));
    let (row, ..) = bad.next()?;
    let more = bad.count();
    let detail =
        format!("algbw is not size over time at {} bytes and {more} other points", row.bytes);
    Some(inconsistency(detail, row.line))
}

fn check_sizes(run: &NcclRun, known: Option<&NcclTestProgram>) -> Option<OutputProblem> {
    // alltoallv may take its sizes from a file.
    if known.is_some_and(|c| c.name == "alltoallv_perf") {
        return None;
    }
    if let Some(row) = run.rows.iter().find(|row| row.is_smaller_than_its_elements()) {
        let detail = format!("{} bytes are less than {} {}", row.bytes, row.count, row.type_name);
        return Some(inconsistency(detail, row.line));
    }
    let max = run.sweep?.max;
    let row = run.rows.iter().find(|row| max < row.bytes)?;
    Some(inconsistency(format!("{} bytes exceed the stated maxBytes {max}", row.bytes), row.line))
}

/// Whether the average of a run without missing rows differs from the mean of its rows.
pub(super) fn check_average(run: &NcclRun, name: Option<&str>) -> Option<OutputProblem> {
    if name.is_some_and(|name| collective::find_program(name).is_none()) || run.rows.is_empty() {
        return None;
    }
    let average = run.average?;
    let printed = average.value?.range();
    (!mean_busbw(run)?.overlaps(printed)).then(|| inconsistency(AVERAGE.to_owned(), average.line))
}

/// The mean of busbw over all rows, within rounding.
#[expect(clippy::cast_precision_loss, reason = "a run has far fewer than 2^53 rows")]
fn mean_busbw(run: &NcclRun) -> Option<NumberRange> {
    let mut sum = NumberRange { low: 0.0, high: 0.0 };
    let mut count = 0usize;
    for (_, _, half) in run.halves() {
        let busbw = half.busbw?.range();
        sum.low += busbw.low;
        sum.high += busbw.high;
        count += 1;
    }
    let count = (0 < count).then_some(count as f64)?;
    Some(NumberRange { low: sum.low / count, high: sum.high / count }.widen(AVERAGE_SLACK))
}

/// Whether the average can be a truncated form of the number that the rows give.
pub(super) fn is_average_cut(run: &NcclRun) -> bool {
    /// The maximum number of digits before the decimal point in `%g`.
    const MOST_LOST: i32 = 5;
    let Some((mean, printed)) = mean_busbw(run).zip(run.average.and_then(|average| average.value))
    else {
        return false;
    };
    let value = printed.value;
    // With decimals, the lost part is below a tenth.
    let begins = |value: f64, lost: f64| value <= mean.high && mean.low < value + lost;
    if value.fract() != 0.0 {
        return begins(value, 0.1);
    }
    (0..=MOST_LOST).map(|lost| 10f64.powi(lost)).any(|unit| begins(value * unit, unit))
}
