//! What parts showed in earlier runs: their own history, as a reference.
//!
//! Plain values. Who fills them in, and what is made of them, is the judge's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::id::NodeName;
use super::verdict::Direction;

/// One part in one test, as far as two runs can be compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PartTestKey {
    /// Its node.
    pub node: NodeName,
    /// Its GPU, where it is one.
    pub gpu: Option<u32>,
    /// Its rail, where it is an end of one.
    pub rail: Option<String>,
    /// Which way the data moved, seen from the part.
    pub direction: Direction,
    /// The test.
    pub testcase: String,
    /// Everything else that changes what it shows: where it was started, across
    /// which edge, with which buffer or how many streams.
    pub setting: String,
    /// The platform.
    pub platform: Option<String>,
    /// Version of the driver, where an output named it.
    pub driver: Option<String>,
}

/// What a part showed in one run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartReading {
    /// The median over its partners, in GB/s.
    pub value: f64,
    /// Its relative standard error.
    pub error: f64,
}

/// What a part usually showed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UsualLevel {
    /// The median over runs, in GB/s.
    pub median: f64,
    /// How far runs lie apart: a relative standard deviation, from three runs on.
    pub spread: Option<f64>,
    /// Relative standard error of one run, the middle one.
    pub error: f64,
    /// How many runs.
    pub count: usize,
    /// When the first was, RFC 3339.
    pub first: String,
    /// When the last was.
    pub last: String,
}

/// What all parts usually showed. Empty where nobody asked for history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartHistory {
    /// By part and test.
    pub usual: BTreeMap<PartTestKey, UsualLevel>,
}

impl PartHistory {
    /// Whether there is nothing to compare with.
    pub fn is_empty(&self) -> bool {
        self.usual.is_empty()
    }
}
