//! Units of measured numbers, and the only conversions between them.
//!
//! Bandwidth is decimal (10^9 bytes per second) unless the unit is binary. perftest's `MB/sec`
//! counts 2^20 bytes (its source divides by 0x100000), so it is called `MiB/s` here.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The unit of a measured number.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum Unit {
    /// 10^9 bytes per second.
    #[serde(rename = "GB/s")]
    GigabytesPerSecond,
    /// 10^9 bits per second.
    #[serde(rename = "Gb/s")]
    GigabitsPerSecond,
    /// 2^20 bytes per second.
    #[serde(rename = "MiB/s")]
    MebibytesPerSecond,
    /// Latency in microseconds.
    #[serde(rename = "us")]
    Microseconds,
    /// Latency in nanoseconds.
    #[serde(rename = "ns")]
    Nanoseconds,
    /// A count without a unit.
    #[serde(rename = "count")]
    Count,
}

impl Unit {
    /// The unit in text and documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::GigabytesPerSecond => "GB/s",
            Self::GigabitsPerSecond => "Gb/s",
            Self::MebibytesPerSecond => "MiB/s",
            Self::Microseconds => "us",
            Self::Nanoseconds => "ns",
            Self::Count => "count",
        }
    }

    /// Converts `value` to GB/s; `None` if this unit is not a bandwidth.
    pub fn to_gigabytes_per_second(self, value: f64) -> Option<f64> {
        match self {
            Self::GigabytesPerSecond => Some(value),
            Self::GigabitsPerSecond => Some(value / 8.0),
            Self::MebibytesPerSecond => Some(value * 1_048_576.0 / 1e9),
            Self::Microseconds | Self::Nanoseconds | Self::Count => None,
        }
    }

    /// Whether higher is better: true for bandwidths, false for latencies.
    pub fn is_bandwidth(self) -> bool {
        self.to_gigabytes_per_second(0.0).is_some()
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perftest_megabytes_are_binary_and_bits_are_eighths() {
        let close = |a: Option<f64>, b: f64| (a.expect("a bandwidth") - b).abs() < 1e-9;
        assert!(close(Unit::MebibytesPerSecond.to_gigabytes_per_second(1000.0), 1.048_576));
        assert!(close(Unit::GigabitsPerSecond.to_gigabytes_per_second(400.0), 50.0));
        assert_eq!(Unit::Microseconds.to_gigabytes_per_second(1.0), None);
    }
}
