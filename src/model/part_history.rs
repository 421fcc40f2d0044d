//! The history of parts: their values in earlier runs, as a reference.
//!
//! Plain values. The judge fills them in and uses them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::id::NodeName;
use super::verdict::Direction;

/// One part in one test, described so that two runs are comparable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PartTestKey {
    /// Node of the part.
    pub node: NodeName,
    /// GPU index, for a GPU.
    pub gpu: Option<u32>,
    /// Rail, for an end of a rail.
    pub rail: Option<String>,
    /// Direction of the data, seen from the part.
    pub direction: Direction,
    /// Name of the test.
    pub testcase: String,
    /// Everything else that affects the value: where the test was started, across which edge,
    /// with which buffer or how many streams.
    pub setting: String,
    /// Platform of the node.
    pub platform: Option<String>,
    /// Driver version, where an output contains it.
    pub driver: Option<String>,
}

/// The value of a part in one run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartReading {
    /// The median over its partners, in GB/s.
    pub value: f64,
    /// Relative standard error of the value.
    pub error: f64,
}

/// The usual value of a part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UsualLevel {
    /// The median over runs, in GB/s.
    pub median: f64,
    /// Spread over runs: a relative standard deviation, from three runs on.
    pub spread: Option<f64>,
    /// Relative standard error of a single run, the median over runs.
    pub error: f64,
    /// Number of runs.
    pub count: usize,
    /// Time of the first run, RFC 3339.
    pub first: String,
    /// Time of the last run, RFC 3339.
    pub last: String,
}

/// The usual values of all parts. Empty where no history is used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartHistory {
    /// The usual value, by part and test.
    pub usual: BTreeMap<PartTestKey, UsualLevel>,
}

impl PartHistory {
    /// Whether there is no history to compare with.
    pub fn is_empty(&self) -> bool {
        self.usual.is_empty()
    }
}
