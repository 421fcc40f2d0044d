//! One test as printed by one side, and the combination of two sides.

use std::collections::{BTreeMap, BTreeSet};

use super::banner::PerftestBanner;
use super::table::{PerftestColumns, PerftestRow};
use model::measurement::{Measurement, MeasurementSeries, SeriesPoint};
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput};

/// How many blocks or rows back the search for the other side goes: a sweep has 23 sizes, and a
/// file of every NIC of a node a few dozen blocks.
const LOOK_BACK: usize = 64;

/// One block of output: banner, options, addresses, table.
#[derive(Debug)]
pub(super) struct PerftestSession {
    banner: Option<PerftestBanner>,
    part: &'static str,
    /// A server reported that it waits before this block.
    server: bool,
    /// How many blocks are mixed in here line by line.
    blocks: u32,
    pub(super) locals: BTreeSet<String>,
    pub(super) remotes: BTreeSet<String>,
    columns: Option<PerftestColumns>,
    points: Vec<SeriesPoint>,
    closed: bool,
    pub(super) failed: bool,
    line: u32,
}

impl PerftestSession {
    pub(super) fn new(banner: Option<PerftestBanner>, server: bool, line: u32) -> Self {
        Self {
            banner,
            part: "",
            server,
            blocks: 1,
            locals: BTreeSet::new(),
            remotes: BTreeSet::new(),
            columns: None,
            points: Vec::new(),
            closed: false,
            failed: false,
            line,
        }
    }

    /// A part of this test with its own table.
    pub(super) fn start_part(&self, part: &'static str, line: u32) -> Self {
        let mut new = Self::new(self.banner.clone(), self.server, line);
        new.part = part;
        new
    }

    /// The name of the test, if a banner was read.
    pub(super) fn testcase(&self) -> Option<String> {
        let seen = self.columns.as_ref().map(|columns| columns.quantity);
        self.banner.as_ref().map(|banner| banner.testcase(seen) + self.part)
    }

    /// Whether this banner belongs to the other side, started at the same moment: the previous
    /// block has not printed its addresses.
    pub(super) fn is_started_with(&self, banner: &PerftestBanner) -> bool {
        // Connection details follow below a banner.
        let same = self.banner.clone().is_some_and(|own| own.with_raw_ethernet(false) == *banner);
        same && self.blocks == 1
            && self.locals.is_empty()
            && self.columns.is_none()
            && !self.failed
            && self.points.is_empty()
    }

    pub(super) fn add_second_side(&mut self) {
        self.blocks += 1;
    }

    pub(super) fn set_raw_ethernet(&mut self) {
        self.banner = self.banner.take().map(|banner| banner.with_raw_ethernet(true));
    }

    pub(super) fn set_columns(&mut self, columns: PerftestColumns) {
        self.columns = Some(columns);
        self.closed = false;
    }

    pub(super) fn is_done_without_banner(&self) -> bool {
        self.banner.is_none() && !self.points.is_empty()
    }

    /// A line of dashes: the end, if rows precede it.
    pub(super) fn end_table(&mut self) {
        self.closed |= !self.points.is_empty();
    }

    /// Adds a line if it is a row.
    pub(super) fn add_line(
        &mut self,
        text: &str,
        line: u32,
        cut: bool,
        problems: &mut Vec<OutputProblem>,
    ) {
        let Some(columns) = &self.columns else { return };
        let (kind, detail) = match columns.parse_row(text, cut) {
            PerftestRow::Whole(point) => {
                self.points.push(point);
                return;
            }
            PerftestRow::Other => return,
            PerftestRow::Short if cut => {
                (OutputProblemKind::Truncated, "the text ends inside a row")
            }
            PerftestRow::Short => {
                (OutputProblemKind::Unrecognised, "a row does not fit its header")
            }
            PerftestRow::Damaged => {
                (OutputProblemKind::Unrecognised, "a row holds a value that is not a number")
            }
        };
        problems.push(
            OutputProblem::new(kind, detail).at_line(line).in_test(self.testcase().as_deref()),
        );
    }

    /// Whether the other block is the other side of this test.
    fn is_other_side_of(&self, other: &Self) -> bool {
        if self.banner.is_none() || self.banner != other.banner || self.part != other.part {
            return false;
        }
        let is_peer = |a: &Self, b: &Self| !a.locals.is_empty() && a.locals.is_subset(&b.remotes);
        let no_addresses =
            [self, other].iter().all(|s| s.locals.is_empty() && s.remotes.is_empty());
        is_peer(self, other)
            || is_peer(other, self)
            || (no_addresses && self.server != other.server)
    }

    /// Merges the other side. False if both have numbers that differ.
    fn merge_side(&mut self, other: &Self) -> bool {
        if !self.points.is_empty() && !other.points.is_empty() && self.points != other.points {
            return false;
        }
        if self.points.is_empty() {
            self.points.clone_from(&other.points);
            self.columns = self.columns.take().or(other.columns.clone());
        }
        self.closed |= other.closed;
        self.failed |= other.failed;
        true
    }

    /// Whether this block contains both sides: their addresses match.
    fn has_both_sides(&self) -> bool {
        1 < self.blocks || (!self.locals.is_empty() && self.locals == self.remotes)
    }

    /// Removes the second copy of a row that both sides printed.
    fn drop_second_prints(&mut self) {
        let mut once: Vec<(SeriesPoint, bool)> = Vec::with_capacity(self.points.len());
        for point in self.points.drain(..) {
            match once
                .iter_mut()
                .rev()
                .take(LOOK_BACK)
                .rev()
                .find(|(known, open)| *open && *known == point)
            {
                Some((_, open)) => *open = false,
                None => once.push((point, true)),
            }
        }
        self.points = once.into_iter().map(|(point, _)| point).collect();
    }

    fn find_gap(&self) -> Option<String> {
        if self.failed {
            return None;
        }
        if self.points.is_empty() {
            return Some("the test printed no result".to_owned());
        }
        let sizes: BTreeSet<u64> = self.points.iter().map(|point| point.bytes).collect();
        let powers = sizes.iter().all(|size| size.is_power_of_two());
        if let (true, Some(first), Some(last)) =
            (powers && 2 < sizes.len(), sizes.first(), sizes.last())
        {
            // `-a` begins with 2 and doubles.
            let missing = std::iter::successors(Some(2u64), |size| size.checked_mul(2))
                .take_while(|size| size <= last)
                .find(|size| !sizes.contains(size));
            if let Some(missing) = missing.filter(|_| *first != *last) {
                return Some(format!("sizes up to {last} without {missing}"));
            }
        }
        (!self.closed).then(|| "the line that ends the table is missing".to_owned())
    }
}

/// Converts the blocks to series, in file order.
pub(super) fn push_series(blocks: Vec<PerftestSession>, parsed: &mut ParseOutput) {
    let mut sessions: Vec<PerftestSession> = Vec::new();
    let mut both_sides = false;
    for block in blocks {
        let joined = sessions.iter_mut().rev().take(LOOK_BACK).find(|s| s.is_other_side_of(&block));
        match joined {
            Some(first) => {
                both_sides = true;
                if !first.merge_side(&block) {
                    sessions.push(block);
                }
            }
            None => sessions.push(block),
        }
    }
    let mut runs: BTreeMap<Option<String>, u32> = BTreeMap::new();
    for mut session in sessions {
        if session.has_both_sides() {
            both_sides = true;
            session.drop_second_prints();
        }
        let testcase = session.testcase();
        if let Some(detail) = session.find_gap() {
            let problem =
                OutputProblem::new(OutputProblemKind::Truncated, detail).at_line(session.line);
            parsed.problems.push(problem.in_test(testcase.as_deref()));
        }
        if session.points.is_empty() {
            continue;
        }
        let next = runs.entry(testcase.clone()).or_default();
        let run = *next;
        *next += 1;
        parsed.measurements.push(Measurement::Series(MeasurementSeries {
            run,
            testcase,
            unit: session.columns.and_then(|columns| columns.unit),
            points: session.points,
            average_busbw: None,
        }));
    }
    if both_sides {
        let note = "client and server; rows that both print are counted once";
        parsed.facts.parameters.insert("sides".to_owned(), note.to_owned());
    }
    if parsed.measurements.is_empty() && parsed.problems.is_empty() {
        parsed
            .problems
            .push(OutputProblem::new(OutputProblemKind::Truncated, "no result was printed"));
    }
    parsed.complete = !parsed.measurements.is_empty()
        && ![
            OutputProblemKind::Truncated,
            OutputProblemKind::Unrecognised,
            OutputProblemKind::Error,
        ]
        .iter()
        .any(|kind| parsed.has_problem(*kind));
}
