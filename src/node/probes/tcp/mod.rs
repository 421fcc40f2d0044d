//! Native TCP probe: measures the data rate between two nodes over one rail, with only this program
//! on both.
//!
//! The server listens; the client connects, measures and prints. Addresses and devices can be given
//! to select a rail. Pacing, buffers and congestion control stay at the kernel's settings. The
//! probe measures and does not judge.

mod client;
mod control_connection;
mod flow;
mod latency;
mod pattern;
mod server;
mod socket;
mod wire;

use std::io;
use std::net::IpAddr;
use std::time::Duration;

pub use client::{measure, resolve};
pub use server::serve;

/// How long each side waits for the next message of the other, beyond the time of the data flow.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long each side waits for the other to receive everything: the other side gives up earlier
/// and reports it.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(12);

/// How long a data connection blocks between checks of its deadline.
const TICK: Duration = Duration::from_millis(100);

/// Maximum streams that a server accepts.
pub const MOST_STREAMS: u32 = 64;
/// Maximum seconds of data, and of warm-up, that a server accepts.
pub const MOST_SECONDS: f64 = 3_600.0;
/// Maximum readings that a server accepts.
pub const MOST_READINGS: u32 = 1_000;

/// Local address and device to use.
#[derive(Clone, Debug, Default)]
pub struct TcpBinding {
    /// Name of this node.
    pub node: String,
    /// Local address to bind.
    pub address: Option<IpAddr>,
    /// Network device to bind.
    pub device: Option<String>,
}

/// Parameters of a measurement.
#[derive(Clone, Debug)]
pub struct TcpTask {
    /// Name of the other node; empty to accept any.
    pub peer: String,
    /// Name of the rail.
    pub rail: Option<String>,
    /// Concurrent data connections.
    pub streams: u32,
    /// Measured time of each rate.
    pub seconds: Duration,
    /// Warm-up time before that.
    pub warmup: Duration,
    /// Number of readings.
    pub readings: u32,
    /// Also measure round trips.
    pub latency: bool,
    /// A number that identifies this execution.
    pub session: u64,
}

/// Why a measurement failed, completely or in part.
#[derive(Debug, thiserror::Error)]
pub enum TcpError {
    /// The address or device cannot be used here.
    #[error("{what}")]
    Bind {
        /// The attempt, and a hint if one is known.
        what: String,
        /// Error from the operating system.
        #[source]
        source: io::Error,
    },
    /// The other side cannot be reached.
    #[error("{peer} cannot be reached")]
    Unreachable {
        /// Address of the other side.
        peer: String,
        /// Error from the operating system.
        #[source]
        source: io::Error,
    },
    /// The other side is not willing or able to measure.
    #[error("{peer} refused to measure: {why}")]
    Refused {
        /// Address of the other side.
        peer: String,
        /// Reason.
        why: String,
    },
    /// The other side stopped answering, or violated the protocol.
    #[error("{0}")]
    Broken(String),
}

impl TcpError {
    /// True if the measurement had begun.
    pub fn had_begun(&self) -> bool {
        matches!(self, Self::Broken(_))
    }

    /// The error with its cause in one line.
    pub fn to_line(&self) -> String {
        match std::error::Error::source(self) {
            Some(source) => format!("{self}: {source}"),
            None => self.to_string(),
        }
    }
}
