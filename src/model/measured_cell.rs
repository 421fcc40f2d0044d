//! One measured cell in the direction the data moved: a row of `matrix.csv`.
//!
//! The judge makes cells from measurements; reports and exports read them.

use serde::{Deserialize, Serialize};

use super::id::{DomainName, NodeName};
use super::unit::Unit;
use super::verdict::Outcome;

/// One measured number with its source, destination and expectation. An end
/// that is host memory has a node and no GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredCell {
    /// The domain, where one is claimed.
    pub domain: Option<DomainName>,
    /// The stage of the sweep, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<u8>,
    /// The test.
    pub testcase: std::sync::Arc<str>,
    /// Where the data came from.
    pub src_node: Option<NodeName>,
    /// GPU there; `None` is host memory.
    pub src_gpu: Option<u32>,
    /// Where the data went.
    pub dst_node: Option<NodeName>,
    /// GPU there; `None` is host memory.
    pub dst_gpu: Option<u32>,
    /// The rail or NIC.
    pub rail: Option<String>,
    /// Which reading of this cell, from 0.
    pub reading: u32,
    /// The number; `None` where the tool printed none.
    pub value: Option<f64>,
    /// Its unit.
    pub unit: Unit,
    /// What it was compared with.
    pub expected: Option<f64>,
    /// value / expected (for latencies expected / value).
    pub ratio: Option<f64>,
    /// How this cell came out.
    pub outcome: Outcome,
}
