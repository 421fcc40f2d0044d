//! What the native TCP probe prints: one document per pair of nodes and rail.
//!
//! Types only. `probe::tcp` writes it, `measure` reads it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The format of a [`TcpDocument`].
pub const TCP_FORMAT: &str = "fabricgate.tcp/1";

/// The result of one execution of the native TCP probe (`fabricgate.tcp/1`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TcpDocument {
    /// `fabricgate.tcp/1`.
    pub format: String,
    /// The version of fabricgate that measured.
    pub version: String,
    /// The side that connected and printed this.
    pub source: TcpEndpoint,
    /// The side that served.
    pub destination: TcpEndpoint,
    /// The rail, where one is named.
    pub rail: Option<String>,
    /// Connections that carry data at the same time.
    pub streams: u32,
    /// How long each rate is taken over, in seconds.
    pub seconds: f64,
    /// How long data flows before that, in seconds.
    pub warmup_s: f64,
    /// The unit of every rate: `GB/s`, 1e9 bytes a second.
    pub unit: String,
    /// All readings were taken, and every byte that was sent arrived.
    pub complete: bool,
    /// The readings that were taken.
    pub readings: Vec<TcpReading>,
    /// Latency of an idle path, where it was asked for.
    pub latency: Option<TcpLatency>,
    /// What went wrong.
    pub problems: Vec<String>,
}

/// An end of the path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TcpEndpoint {
    /// The node.
    pub node: String,
    /// Its address on this path.
    pub address: String,
    /// The network device it was bound to.
    pub device: Option<String>,
}

/// One reading, both ways one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TcpReading {
    /// Its number, from 0.
    pub reading: u32,
    /// From source to destination.
    pub forward: TcpFlow,
    /// From destination to source.
    pub reverse: TcpFlow,
}

/// Data that flowed one way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TcpFlow {
    /// Bytes the sender sent over all streams, warm-up included.
    pub sent_bytes: u64,
    /// Bytes the receiver received over all streams, warm-up included.
    pub received_bytes: u64,
    /// How long the rate was taken over, in seconds.
    pub seconds: f64,
    /// Bytes that arrived after the warm-up, over that time, in GB/s.
    pub rate: f64,
    /// Segments sent again, where the kernel tells.
    pub retransmits: Option<u64>,
}

/// Latency one way: half of the round trip of a small message, in
/// microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TcpLatency {
    /// Round trips that were timed.
    pub samples: u32,
    /// The least.
    pub min_us: f64,
    /// The median.
    pub median_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
}
