//! The numbers of a tool's output as printed: matrices, series and scalars.
//!
//! Rows and columns are the tool's; `judge` decides from the name of the test which of them is
//! the source of the data. Values are those in the file, never converted and never estimated.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::unit::Unit;

/// One measurement in a tool's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Measurement {
    /// A number per pair (or per device, in a matrix of one row).
    Matrix(MeasurementMatrix),
    /// Values over message sizes.
    Series(MeasurementSeries),
    /// A single value.
    Scalar(MeasurementScalar),
}

impl Measurement {
    /// The test that was run, where the output names it.
    pub fn testcase(&self) -> Option<&str> {
        match self {
            Self::Matrix(m) => m.testcase.as_deref(),
            Self::Series(s) => s.testcase.as_deref(),
            Self::Scalar(s) => s.testcase.as_deref(),
        }
    }

    /// Index of the complete run within the file, from 0.
    pub fn run(&self) -> u32 {
        match self {
            Self::Matrix(m) => m.run,
            Self::Series(s) => s.run,
            Self::Scalar(s) => s.run,
        }
    }
}

/// A matrix of values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeasurementMatrix {
    /// Index of the complete run within the file, from 0.
    pub run: u32,
    /// The test, with the tool's suffix for parts (`..._read1`).
    pub testcase: Option<String>,
    /// The unit of every cell and of `sum`; `None` where the output has none.
    pub unit: Option<Unit>,
    /// Row labels, as printed.
    pub rows: Vec<String>,
    /// Column labels, as printed.
    pub cols: Vec<String>,
    /// One row of cells per row label; `None` where no number was printed.
    pub cells: Vec<Vec<Option<f64>>>,
    /// The sum as the tool printed it.
    pub sum: Option<f64>,
    /// The coefficient of variation as the tool printed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coefficient_of_variation: Option<f64>,
}

impl MeasurementMatrix {
    /// All non-empty cells, as (row, column, value).
    pub fn numbers(&self) -> impl Iterator<Item = (usize, usize, f64)> + '_ {
        self.cells.iter().enumerate().flat_map(|(i, row)| {
            row.iter().enumerate().filter_map(move |(j, cell)| cell.map(|v| (i, j, v)))
        })
    }
}

/// Values over message sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeasurementSeries {
    /// Index of the complete run within the file, from 0.
    pub run: u32,
    /// Name of the test.
    pub testcase: Option<String>,
    /// The unit of `algbw` and `busbw` (or of the latencies).
    pub unit: Option<Unit>,
    /// One point per size and placement, in the order printed.
    pub points: Vec<SeriesPoint>,
    /// The tool's own average over all rows.
    pub average_busbw: Option<f64>,
}

/// Whether input and output of a collective share a buffer.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum BufferPlacement {
    /// Separate input and output buffers.
    OutOfPlace,
    /// One shared buffer.
    InPlace,
}

/// One row (or half of a row) of a series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SeriesPoint {
    /// Message size, in bytes.
    pub bytes: u64,
    /// Which half of the row this is; absent for a tool without halves.
    pub placement: Option<BufferPlacement>,
    /// Time of one operation, in microseconds.
    pub time_us: Option<f64>,
    /// Algorithm bandwidth: bytes divided by time.
    pub algbw: Option<f64>,
    /// Bus bandwidth, by the tool's factor.
    pub busbw: Option<f64>,
    /// Wrong elements, as counted by the tool; `None` when it did not check.
    pub wrong: Option<f64>,
    /// perftest: the value of the best iteration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<f64>,
    /// perftest: millions of messages per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub msgrate: Option<f64>,
    /// Number of iterations behind this point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iterations: Option<u64>,
    /// Shortest iteration, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_us: Option<f64>,
    /// Longest iteration, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_us: Option<f64>,
    /// 99th percentile, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
}

/// A single value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeasurementScalar {
    /// Index of the complete run within the file, from 0.
    pub run: u32,
    /// Name of the test.
    pub testcase: Option<String>,
    /// Unit of `value`.
    pub unit: Option<Unit>,
    /// The number.
    pub value: f64,
}
