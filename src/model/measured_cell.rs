//! One measured cell in the direction the data moved: a row of `matrix.csv`.
//!
//! The judge makes cells from measurements; reports and exports read them.

use serde::{Deserialize, Serialize};

use super::id::{DomainName, NodeName};
use super::unit::Unit;
use super::verdict::Outcome;

/// One measured number with its source, destination and expectation. An end in host memory has a
/// node and no GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredCell {
    /// The claimed domain.
    pub domain: Option<DomainName>,
    /// The stage of the sweep, for a measurement of a sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<u8>,
    /// Name of the test.
    pub testcase: std::sync::Arc<str>,
    /// Source node of the data.
    pub src_node: Option<NodeName>,
    /// Source GPU; `None` is host memory.
    pub src_gpu: Option<u32>,
    /// Destination node of the data.
    pub dst_node: Option<NodeName>,
    /// Destination GPU; `None` is host memory.
    pub dst_gpu: Option<u32>,
    /// The rail or NIC used.
    pub rail: Option<String>,
    /// Number of the reading, from 0.
    pub reading: u32,
    /// The measured value; `None` where the tool printed none.
    pub value: Option<f64>,
    /// Unit of the value.
    pub unit: Unit,
    /// The value it is compared with.
    pub expected: Option<f64>,
    /// value / expected (for latencies expected / value).
    pub ratio: Option<f64>,
    /// Outcome of this cell.
    pub outcome: Outcome,
}
