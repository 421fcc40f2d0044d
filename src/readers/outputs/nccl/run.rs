//! One run of a test in either of the tool's formats, and its result: the series and its problems.
//!
//! `text` and `json` fill a [`NcclRun`]; this module closes it. It parses no text and knows no
//! expectations.

use super::collective::RankCount;
use super::rounded_number::RoundedNumber;
use super::{collective, consistency};
use model::measurement::{BufferPlacement, MeasurementSeries, SeriesPoint};
use model::parse_output::{OutputProblem, OutputProblemKind};
use model::tool_facts::ToolRank;
use model::unit::Unit;

/// The result of checking a half's data.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum DataCheck {
    /// No result is printed.
    #[default]
    Absent,
    /// `N/A`.
    NotDone,
    /// Number of wrong elements.
    Wrong(f64),
    /// The largest relative difference; the tool's verdict at the end of the run decides whether it
    /// is too large.
    Difference(f64),
    Unreadable,
}

impl DataCheck {
    fn is_done(self) -> bool {
        matches!(self, Self::Wrong(_) | Self::Difference(_))
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NcclRowHalf {
    pub(super) time: Option<RoundedNumber>,
    /// A time is printed, in a unit that is not stored.
    pub(super) is_untimed: bool,
    pub(super) algbw: Option<RoundedNumber>,
    pub(super) busbw: Option<RoundedNumber>,
    pub(super) check: DataCheck,
    pub(super) iterations: Option<u64>,
    pub(super) min_us: Option<f64>,
    pub(super) max_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
}

impl NcclRowHalf {
    /// Whether time, bandwidths and check are valid.
    pub(super) fn is_readable(&self) -> bool {
        (self.time.is_some() || self.is_untimed)
            && self.algbw.is_some()
            && self.busbw.is_some()
            && self.check != DataCheck::Unreadable
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NcclRow {
    pub(super) line: u32,
    pub(super) bytes: u64,
    pub(super) count: u64,
    pub(super) type_name: String,
    pub(super) redop: Option<String>,
    pub(super) root: Option<i64>,
    /// Out of place, in place.
    pub(super) halves: [Option<NcclRowHalf>; 2],
}

impl NcclRow {
    /// Whether the size is less than that of the counted elements, which is impossible: it is that
    /// of the larger buffer.
    pub(super) fn is_smaller_than_its_elements(&self) -> bool {
        collective::element_size(&self.type_name)
            .and_then(|size| size.checked_mul(self.count))
            .is_some_and(|bytes| self.bytes < bytes)
    }
}

/// The sizes that a run's parameters list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SizeSweep {
    pub(super) min: u64,
    pub(super) max: u64,
    pub(super) step: SizeStep,
}

/// The step from one size to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SizeStep {
    Factor(u64),
    Bytes(u64),
}

impl SizeSweep {
    /// Number of rows of one sweep; `None` for an endless one.
    fn row_count(self) -> Option<u64> {
        if self.max < self.min {
            return None;
        }
        match self.step {
            SizeStep::Bytes(0) => None,
            SizeStep::Bytes(step) => ((self.max - self.min) / step).checked_add(1),
            SizeStep::Factor(factor) if factor < 2 || self.min == 0 => None,
            SizeStep::Factor(factor) => {
                let mut rows = 1;
                let mut size = self.min;
                while let Some(next) = size.checked_mul(factor).filter(|s| *s <= self.max) {
                    size = next;
                    rows += 1;
                }
                Some(rows)
            }
        }
    }
}

/// A count and the tool's own verdict on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct NcclFooter {
    pub(super) value: Option<RoundedNumber>,
    /// `OK` or `FAILED`, if printed.
    pub(super) okay: Option<bool>,
    pub(super) line: u32,
    /// The text ends on this number, so digits may be lost.
    pub(super) at_end: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct NcclRun {
    /// The test, if the tool or the surrounding log names it.
    pub(super) name: Option<String>,
    pub(super) sweep: Option<SizeSweep>,
    /// `validation:` of the parameter line.
    pub(super) validation: Option<bool>,
    pub(super) ranks: Vec<ToolRank>,
    /// Number of ranks, from sources other than `ranks`.
    pub(super) rank_count: RankCount,
    /// Every rank has its line (text); the JSON file has one per process.
    pub(super) every_rank_listed: bool,
    /// The table has a redop column.
    pub(super) redop_column: bool,
    /// The table has both a redop and a root column.
    pub(super) modern: bool,
    pub(super) cpu_time: bool,
    pub(super) rows: Vec<NcclRow>,
    pub(super) out_of_bounds: Option<NcclFooter>,
    pub(super) average: Option<NcclFooter>,
    pub(super) bitwise: Option<NcclFooter>,
    /// Line at which part of the text was cut out.
    pub(super) elided: Option<u32>,
    /// Why the run did not end, if its format reports that separately.
    pub(super) unfinished: Option<OutputProblem>,
    pub(super) problems: Vec<OutputProblem>,
    pub(super) line: u32,
}

/// The result of a closed run.
#[derive(Debug)]
pub(super) struct NcclRunResult {
    pub(super) series: Option<MeasurementSeries>,
    pub(super) problems: Vec<OutputProblem>,
    pub(super) complete: bool,
    /// The test's name was inferred from the numbers.
    pub(super) inferred: bool,
}

impl NcclRun {
    /// The halves of all rows, with their row and placement.
    pub(super) fn halves(&self) -> impl Iterator<Item = (&NcclRow, BufferPlacement, &NcclRowHalf)> {
        self.rows.iter().flat_map(|row| {
            let [out, within] = &row.halves;
            let out = out.as_ref().map(|half| (row, BufferPlacement::OutOfPlace, half));
            let within = within.as_ref().map(|half| (row, BufferPlacement::InPlace, half));
            out.into_iter().chain(within)
        })
    }

    /// The known bounds of the number of ranks.
    pub(super) fn known_ranks(&self) -> RankCount {
        if self.rank_count != RankCount::default() || self.ranks.is_empty() {
            return self.rank_count;
        }
        // Only the group of rank 0 is measured (NCCL_TESTS_SPLIT).
        let group = self.ranks.iter().min_by_key(|r| r.rank).and_then(|r| r.group);
        let same = |r: &&ToolRank| r.group == group;
        let count = u32::try_from(self.ranks.iter().filter(same).count()).unwrap_or(u32::MAX);
        if self.missing_ranks() == 0 && self.elided.is_none() {
            return RankCount { exact: Some(count), at_least: count };
        }
        // Leftover lines in an edited log may not belong to its table: a published one shows rank
        // 143 above a table of 128 ranks.
        RankCount { exact: None, at_least: count.min(2) }
    }

    /// The number of missing rank lines below the highest rank.
    fn missing_ranks(&self) -> usize {
        let mut ranks: Vec<u32> = self.ranks.iter().map(|r| r.rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let highest = ranks.last().map_or(0, |r| *r as usize + 1);
        highest - ranks.len()
    }

    /// Data was checked out of place and in no row in place.
    pub(super) fn in_place_unchecked(&self) -> bool {
        let refused = self.halves().any(|(_, placement, half)| {
            placement == BufferPlacement::InPlace && half.check == DataCheck::NotDone
        });
        self.is_checked(BufferPlacement::OutOfPlace)
            && !self.is_checked(BufferPlacement::InPlace)
            && refused
    }

    /// Data was checked in some row at this placement.
    pub(super) fn is_checked(&self, wanted: BufferPlacement) -> bool {
        self.halves().any(|(_, placement, half)| placement == wanted && half.check.is_done())
    }

    /// Closes the run, as number `number` among the runs of its file with numbers.
    pub(super) fn into_result(mut self, number: u32) -> NcclRunResult {
        let mut problems = std::mem::take(&mut self.problems);
        let inferred_name =
            if self.name.is_none() { consistency::infer_program(&self) } else { None };
        let inferred = inferred_name.is_some();
        let name = self.name.clone().or_else(|| inferred_name.map(str::to_owned));
        problems.extend(self.find_gaps(&problems));
        let whole = !problems.iter().any(|p| {
            matches!(p.kind, OutputProblemKind::Truncated | OutputProblemKind::Unrecognised)
        });
        problems.extend(self.find_damage());
        problems.extend(self.find_unverified(name.as_deref()));
        problems.extend(consistency::check_run(&self, name.as_deref()));
        let complete = whole && !self.rows.is_empty();
        let no_mean = whole.then(|| consistency::check_average(&self, name.as_deref())).flatten();
        let average_lost = no_mean.is_some() && self.average_is_cut();
        if average_lost {
            problems.push(
                OutputProblem::new(
                    OutputProblemKind::Truncated,
                    "the text stops inside the average",
                )
                .at_line(self.average.map_or(self.line, |a| a.line)),
            );
        } else {
            problems.extend(no_mean);
        }
        let series = (!self.rows.is_empty()).then(|| MeasurementSeries {
            run: number,
            testcase: name.clone(),
            unit: Some(Unit::GigabytesPerSecond),
            points: self
                .halves()
                .map(|(row, placement, half)| make_point(row, placement, half))
                .collect(),
            average_busbw: self
                .average
                .and_then(|a| a.value)
                .filter(|_| !average_lost)
                .map(|average| average.value),
        });
        let problems = problems
            .into_iter()
            .map(|p| if p.testcase.is_none() { p.in_test(name.as_deref()) } else { p })
            .collect();
        NcclRunResult { series, problems, complete: complete && !average_lost, inferred }
    }

    /// The text ends on the average, and the rows show that it lost digits.
    fn average_is_cut(&self) -> bool {
        self.average.is_some_and(|average| average.at_end) && consistency::is_average_cut(self)
    }

    fn find_gaps(&self, found: &[OutputProblem]) -> Vec<OutputProblem> {
        let mut problems = Vec::new();
        let truncated = |detail: String| OutputProblem::new(OutputProblemKind::Truncated, detail);
        if let Some(line) = self.elided {
            problems.push(truncated("part of the text was cut out here".to_owned()).at_line(line));
        }
        let missing = self.missing_ranks();
        if self.every_rank_listed && 0 < missing {
            problems.push(
                truncated(format!("the device lines of {missing} ranks are missing"))
                    .at_line(self.line),
            );
        }
        if let Some(problem) = &self.unfinished {
            problems.push(problem.clone());
        } else if self.out_of_bounds.is_none() || self.average.is_none() {
            let detail = match (self.rows.last(), self.average.is_none()) {
                (None, true) => "the run stops before its first row".to_owned(),
                (None, false) | (Some(_), false) => "the end of the run is not complete".to_owned(),
                (Some(row), true) => {
                    format!("the run stops after {} bytes, before its end", row.bytes)
                }
            };
            problems
                .push(truncated(detail).at_line(self.rows.last().map_or(self.line, |r| r.line)));
        } else if self.rows.is_empty() {
            problems.push(truncated("the run has no rows".to_owned()).at_line(self.line));
        }
        if problems.is_empty() && found.is_empty() && !self.rows.is_empty() {
            problems.extend(self.missing_sizes());
        }
        problems
    }

    /// Sizes of the sweep that have no row.
    fn missing_sizes(&self) -> Option<OutputProblem> {
        let have = self.rows.len() as u64;
        if let Some(rows) = self.sweep.and_then(SizeSweep::row_count) {
            // Run cycles, types, reductions and roots each repeat the sweep.
            return (!have.is_multiple_of(rows)).then(|| {
                let detail = format!("{have} rows, but a sweep of the stated sizes has {rows}");
                OutputProblem::new(OutputProblemKind::Truncated, detail).at_line(self.line)
            });
        }
        // Without the parameter line, a gap is visible only in a geometric sweep, and only if
        // rounding to a multiple of the ranks is negligible.
        const LARGE: u64 = 1 << 20;
        let steps = || {
            let pairs =
                self.rows.windows(2).filter(|w| LARGE <= w[0].bytes && w[0].bytes < w[1].bytes);
            pairs.map(|w| (&w[0], &w[1], ratio(w[1].bytes, w[0].bytes)))
        };
        let smallest = steps().map(|(_, _, r)| r).fold(f64::INFINITY, f64::min);
        if !(1.5..=16.0).contains(&smallest) {
            return None;
        }
        let (before, after, _) = steps().find(|(_, _, r)| smallest * smallest * 0.95 <= *r)?;
        let detail =
            format!("the sizes between {} and {} bytes are missing", before.bytes, after.bytes);
        Some(OutputProblem::new(OutputProblemKind::Truncated, detail).at_line(after.line))
    }

    /// Wrong data, and an average that the tool itself reports as too low.
    fn find_damage(&self) -> Vec<OutputProblem> {
        let mut problems = Vec::new();
        let wrong = |half: &NcclRowHalf| matches!(half.check, DataCheck::Wrong(w) if 0.0 < w);
        let mut bad = self.halves().filter(|(_, _, half)| wrong(half));
        if let Some((row, placement, _)) = bad.next() {
            let place = match placement {
                BufferPlacement::OutOfPlace => "out of place",
                BufferPlacement::InPlace => "in place",
            };
            let more = bad.count();
            let detail =
                format!("wrong elements at {} bytes {place} and {more} other points", row.bytes);
            problems.push(OutputProblem::new(OutputProblemKind::Corrupt, detail).at_line(row.line));
        }
        for (footer, what) in
            [(self.out_of_bounds, "values out of bounds"), (self.bitwise, "bitwise mismatches")]
        {
            let Some(footer) = footer.filter(|f| f.okay == Some(false)) else { continue };
            let count =
                footer.value.map_or("an unknown number of".to_owned(), |v| v.value.to_string());
            let detail = format!("the tool counts {count} {what} and reports FAILED");
            problems
                .push(OutputProblem::new(OutputProblemKind::Corrupt, detail).at_line(footer.line));
        }
        if let Some(average) = self.average.filter(|a| a.okay == Some(false)) {
            let detail = "the average bus bandwidth is below the limit set by NCCL_TESTS_MIN_BW";
            problems
                .push(OutputProblem::new(OutputProblemKind::Error, detail).at_line(average.line));
        }
        problems
    }

    fn find_unverified(&self, name: Option<&str>) -> Option<OutputProblem> {
        if self.rows.is_empty() {
            return None;
        }
        let first = self.rows.first().map_or(self.line, |r| r.line);
        let problem = |detail: String, line| {
            OutputProblem::new(OutputProblemKind::Unverified, detail).at_line(line)
        };
        if self.validation == Some(false) {
            return Some(problem(
                "the run was started without data checks (validation 0)".to_owned(),
                first,
            ));
        }
        let must = |placement| {
            placement == BufferPlacement::OutOfPlace
                || name
                    .and_then(collective::find_program)
                    .is_some_and(|collective| collective.checks_in_place)
        };
        // A partial row may lack its check; in a table without the column all rows do.
        let no_column = self.halves().all(|(.., half)| half.check == DataCheck::Absent);
        let unchecked = |(_, placement, half): &(&NcclRow, BufferPlacement, &NcclRowHalf)| {
            must(*placement) && (half.check == DataCheck::NotDone || no_column)
        };
        let count = self.halves().filter(unchecked).count();
        let (row, ..) = self.halves().find(unchecked)?;
        Some(problem(format!("data was not checked in {count} points"), row.line))
    }
}

#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53 bytes")]
fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b as f64
}

fn make_point(row: &NcclRow, placement: BufferPlacement, half: &NcclRowHalf) -> SeriesPoint {
    SeriesPoint {
        bytes: row.bytes,
        placement: Some(placement),
        time_us: half.time.map(|t| t.value),
        algbw: half.algbw.map(|b| b.value),
        busbw: half.busbw.map(|b| b.value),
        wrong: match half.check {
            DataCheck::Wrong(count) => Some(count),
            _ => None,
        },
        iterations: half.iterations,
        min_us: half.min_us,
        max_us: half.max_us,
        p99_us: half.p99_us,
        ..SeriesPoint::default()
    }
}
