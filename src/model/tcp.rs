//! The document of the native TCP probe, one per pair of nodes and rail.
//!
//! Types only: `probe::tcp` writes it, `measure` reads it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Format name of [`TcpDocument`].
pub const TCP_FORMAT: &str = "fabricgate.tcp/1";

/// The result of one execution of the native TCP probe (`fabricgate.tcp/1`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TcpDocument {
    /// `fabricgate.tcp/1`.
    pub format: String,
    /// The version of fabricgate that measured.
    pub version: String,
    /// The side that connected and printed the document.
    pub source: TcpEndpoint,
    /// The serving side.
    pub destination: TcpEndpoint,
    /// Name of the rail.
    pub rail: Option<String>,
    /// Number of concurrent connections with data.
    pub streams: u32,
    /// Duration of each rate measurement, in seconds.
    pub seconds: f64,
    /// Duration of the warm-up before it, in seconds.
    pub warmup_s: f64,
    /// The unit of every rate: `GB/s`, 1e9 bytes a second.
    pub unit: String,
    /// True if all readings were taken and every sent byte arrived.
    pub complete: bool,
    /// The readings, in order.
    pub readings: Vec<TcpReading>,
    /// Latency of the idle path, where requested.
    pub latency: Option<TcpLatency>,
    /// Errors of either side.
    pub problems: Vec<String>,
}

/// One end of the path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TcpEndpoint {
    /// Name of the node.
    pub node: String,
    /// Its address on this path.
    pub address: String,
    /// The network device it was bound to.
    pub device: Option<String>,
}

/// One reading: both directions, one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TcpReading {
    /// Number of the reading, from 0.
    pub reading: u32,
    /// Data from source to destination.
    pub forward: TcpFlow,
    /// Data from destination to source.
    pub reverse: TcpFlow,
}

/// The data in one direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TcpFlow {
    /// Bytes sent over all streams, warm-up included.
    pub sent_bytes: u64,
    /// Bytes received over all streams, warm-up included.
    pub received_bytes: u64,
    /// Duration of the rate measurement, in seconds.
    pub seconds: f64,
    /// Rate of the bytes received after the warm-up, in GB/s.
    pub rate: f64,
    /// Retransmitted segments, where the kernel reports them.
    pub retransmits: Option<u64>,
}

/// One-way latency: half the round-trip time of a small message, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TcpLatency {
    /// Number of timed round trips.
    pub samples: u32,
    /// Minimum latency.
    pub min_us: f64,
    /// Median latency.
    pub median_us: f64,
    /// 99th percentile of the latency.
    pub p99_us: f64,
}
