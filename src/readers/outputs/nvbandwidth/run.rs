//! The state of one run of the tool, and of its current test.
//!
//! State only: `text` fills and interprets it.

use std::collections::{BTreeMap, BTreeSet};

use super::testcases::TestcaseEvent;

#[derive(Debug)]
pub(super) struct NvbandwidthTest {
    /// `None` for a damaged name.
    pub(super) name: Option<String>,
    pub(super) line: u32,
    /// Its last sum was read, or it reported an error: it is complete.
    pub(super) is_settled: bool,
    /// A problem already reports that it is incomplete.
    pub(super) is_reported: bool,
}

#[derive(Debug, Default)]
pub(super) struct NvbandwidthRun {
    pub(super) index: u32,
    /// A version line opened it.
    pub(super) has_head: bool,
    pub(super) minor: Option<u32>,
    pub(super) is_multinode: bool,
    pub(super) is_listing: bool,
    /// It got as far as querying the driver.
    pub(super) has_machine: bool,
    pub(super) host: Option<String>,
    pub(super) events: Vec<TestcaseEvent>,
    /// Indices of the nameless waived tests among the problems.
    pub(super) waived: Vec<usize>,
    pub(super) started: BTreeSet<String>,
    /// Tests, or parts, with a matrix, and its index among the measurements.
    pub(super) printed: BTreeMap<String, usize>,
    /// Line of its header, or its first line without one.
    pub(super) line: u32,
    pub(super) has_closing_note: bool,
    pub(super) has_failed: bool,
    pub(super) is_broken: bool,
}

impl NvbandwidthRun {
    pub(super) fn has_tests(&self) -> bool {
        !self.events.is_empty() || !self.printed.is_empty()
    }

    /// v0.6 moved the note from the header to the end (`printInfo`).
    pub(super) fn needs_closing_note(&self) -> bool {
        self.minor.is_some_and(|minor| 6 <= minor)
    }
}
