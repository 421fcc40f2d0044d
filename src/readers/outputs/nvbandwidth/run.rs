//! What is known of one run of the tool, and of the test it is in.
//!
//! State only: `text` fills it in and decides what it means.

use std::collections::{BTreeMap, BTreeSet};

use super::testcases::TestcaseEvent;

/// The test that is running.
#[derive(Debug)]
pub(super) struct NvbandwidthTest {
    /// `None` where the name is damaged.
    pub(super) name: Option<String>,
    pub(super) line: u32,
    /// Its last sum was seen, or it reported an error: nothing more is due.
    pub(super) is_settled: bool,
    /// A problem says already that it is not whole.
    pub(super) is_reported: bool,
}

/// One run of the tool.
#[derive(Debug, Default)]
pub(super) struct NvbandwidthRun {
    pub(super) index: u32,
    /// A version line opened it.
    pub(super) has_head: bool,
    pub(super) minor: Option<u32>,
    pub(super) is_multinode: bool,
    pub(super) is_listing: bool,
    /// It got as far as asking the driver.
    pub(super) has_machine: bool,
    pub(super) host: Option<String>,
    pub(super) events: Vec<TestcaseEvent>,
    /// Where in the problems the nameless waived tests are.
    pub(super) waived: Vec<usize>,
    /// Tests that were announced.
    pub(super) started: BTreeSet<String>,
    /// Tests, or parts, with a matrix, and where it is among the measurements.
    pub(super) printed: BTreeMap<String, usize>,
    /// Line of its head, or where it starts without one.
    pub(super) line: u32,
    pub(super) has_closing_note: bool,
    pub(super) has_failed: bool,
    /// Something is missing.
    pub(super) is_broken: bool,
}

impl NvbandwidthRun {
    pub(super) fn has_tests(&self) -> bool {
        !self.events.is_empty() || !self.printed.is_empty()
    }

    /// v0.6 moved the note from the head to the end (`printInfo`).
    pub(super) fn needs_closing_note(&self) -> bool {
        self.minor.is_some_and(|minor| 6 <= minor)
    }
}
