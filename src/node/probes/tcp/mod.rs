//! The native TCP probe: how fast two nodes exchange data over one rail, with
//! nothing but this program on both.
//!
//! One side serves, the other connects, measures and prints. Addresses and
//! devices can be given, so that rails are told apart; what the kernel does
//! with the connections (pacing, buffers, congestion control) is left as it
//! is. It measures and does not judge.

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

/// How long each side waits for the next word of the other, beyond the time
/// that data flows.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long each side waits for the other to have received everything: that
/// one has given up by then, and says so.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(12);

/// How long a data connection blocks before deadlines are looked at.
const TICK: Duration = Duration::from_millis(100);

/// Streams that a server accepts.
pub const MOST_STREAMS: u32 = 64;
/// Seconds of data and of warm-up that a server accepts.
pub const MOST_SECONDS: f64 = 3_600.0;
/// Readings that a server accepts.
pub const MOST_READINGS: u32 = 1_000;

/// Which of our addresses and devices to use.
#[derive(Clone, Debug, Default)]
pub struct TcpBinding {
    /// What we call this node.
    pub node: String,
    /// The address to bind.
    pub address: Option<IpAddr>,
    /// The network device to bind.
    pub device: Option<String>,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct TcpTask {
    /// What we call the other node; empty where it does not matter.
    pub peer: String,
    /// The rail's name.
    pub rail: Option<String>,
    /// Connections that carry data at the same time.
    pub streams: u32,
    /// How long each rate is taken over.
    pub seconds: Duration,
    /// How long data flows before that.
    pub warmup: Duration,
    /// How often.
    pub readings: u32,
    /// Time round trips as well.
    pub latency: bool,
    /// A number that tells this execution from others.
    pub session: u64,
}

/// Why nothing could be measured, or not everything.
#[derive(Debug, thiserror::Error)]
pub enum TcpError {
    /// The address or device cannot be used here.
    #[error("{what}")]
    Bind {
        /// What was tried, and what there is to know about it.
        what: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The other side cannot be reached.
    #[error("{peer} cannot be reached")]
    Unreachable {
        /// Its address.
        peer: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// Somebody is there and will not, or cannot, measure with us.
    #[error("{peer} does not measure with us: {why}")]
    Refused {
        /// Its address.
        peer: String,
        /// Why.
        why: String,
    },
    /// The other side said nothing more, or something strange, on the way.
    #[error("{0}")]
    Broken(String),
}

impl TcpError {
    /// Whether measuring had begun.
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
