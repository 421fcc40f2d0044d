//! Messages between the two sides: one JSON document per line over a control connection. Data uses
//! other connections, each of which begins with one such line.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{MOST_READINGS, MOST_SECONDS, MOST_STREAMS, TcpTask};

/// Identifies fabricgate, so that a foreign client is detected by its first line.
pub(super) const MAGIC: &str = "fabricgate-tcp";

/// Version of these lines.
pub(super) const PROTOCOL: u32 = 1;

/// Maximum bytes of a line.
pub(super) const MAX_LINE_BYTES: usize = 8 * 1024;

/// The sender's identification in the first line of every connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TcpGreeting {
    pub(super) magic: String,
    pub(super) protocol: u32,
    pub(super) session: u64,
}

impl TcpGreeting {
    pub(super) fn new(session: u64) -> Self {
        Self { magic: MAGIC.to_owned(), protocol: PROTOCOL, session }
    }
}

/// The agreed parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TcpSessionTerms {
    pub(super) streams: u32,
    pub(super) seconds: f64,
    pub(super) warmup_s: f64,
    pub(super) readings: u32,
}

impl TcpSessionTerms {
    pub(super) fn from_task(task: &TcpTask) -> Self {
        Self {
            streams: task.streams,
            seconds: task.seconds.as_secs_f64(),
            warmup_s: task.warmup.as_secs_f64(),
            readings: task.readings,
        }
    }

    /// Why these parameters are unacceptable.
    pub(super) fn invalid_reason(&self) -> Option<String> {
        let seconds = |value: f64| (0.0..=MOST_SECONDS).contains(&value);
        if !(1..=MOST_STREAMS).contains(&self.streams) {
            return Some(format!("expected 1 to {MOST_STREAMS} streams, got {}", self.streams));
        }
        if !(1..=MOST_READINGS).contains(&self.readings) {
            return Some(format!("expected 1 to {MOST_READINGS} readings, got {}", self.readings));
        }
        if !seconds(self.seconds) || !seconds(self.warmup_s) || self.seconds == 0.0 {
            return Some(format!("expected more than 0 and at most {MOST_SECONDS} seconds"));
        }
        None
    }

    pub(super) fn warmup(&self) -> Duration {
        Duration::from_secs_f64(self.warmup_s)
    }

    pub(super) fn seconds(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// Totals of the receiving side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct TcpReceiveTotals {
    /// Bytes by stream, including the warm-up.
    pub(super) bytes: Vec<u64>,
    /// Bytes of all streams after the warm-up.
    pub(super) counted: u64,
    /// Duration of these in seconds.
    pub(super) seconds: f64,
    /// Pieces compared with the sent data.
    pub(super) checked: u64,
    /// Pieces that differ.
    pub(super) corrupt: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum TcpControlLine {
    /// The client's first line.
    Open {
        greeting: TcpGreeting,
        terms: TcpSessionTerms,
    },
    /// The server accepts.
    Opened {
        node: String,
        device: Option<String>,
    },
    Refused {
        why: String,
    },
    /// Latency messages follow, to be echoed.
    Echo,
    /// Starts a phase with data in one direction.
    Begin {
        phase: u32,
        forward: bool,
    },
    /// The first line of a data connection.
    Join {
        greeting: TcpGreeting,
        phase: u32,
        stream: u32,
    },
    /// All data connections are open.
    Go,
    /// Bytes sent, by stream.
    Sent {
        bytes: Vec<u64>,
    },
    Received {
        arrived: TcpReceiveTotals,
    },
    /// The client is done.
    Close,
    /// The sender cannot continue.
    Failed {
        why: String,
    },
}
