//! What the two sides of the probe say to each other: one JSON document a
//! line over a connection of its own. Data flows over other connections, each
//! of which begins with one such line.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{MOST_READINGS, MOST_SECONDS, MOST_STREAMS, TcpTask};

/// Says that this is us, so that a stranger is known by its first line.
pub(super) const MAGIC: &str = "fabricgate-tcp";

/// Version of these lines.
pub(super) const PROTOCOL: u32 = 1;

/// Longest line that is accepted, in bytes.
pub(super) const MAX_LINE_BYTES: usize = 8 * 1024;

/// Who speaks, in the first line of every connection.
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

/// What both sides agree on.
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

    /// Why nobody should agree to these.
    pub(super) fn invalid_reason(&self) -> Option<String> {
        let seconds = |value: f64| (0.0..=MOST_SECONDS).contains(&value);
        if !(1..=MOST_STREAMS).contains(&self.streams) {
            return Some(format!("expected 1 to {MOST_STREAMS} streams, got {}", self.streams));
        }
        if !(1..=MOST_READINGS).contains(&self.readings) {
            return Some(format!("expected 1 to {MOST_READINGS} readings, got {}", self.readings));
        }
        if !seconds(self.seconds) || !seconds(self.warmup_s) || self.seconds == 0.0 {
            return Some(format!("expected at most {MOST_SECONDS} seconds, and more than none"));
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

/// What arrived at the receiving side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct TcpReceiveTotals {
    /// Bytes by stream, warm-up included.
    pub(super) bytes: Vec<u64>,
    /// Bytes of all streams after the warm-up.
    pub(super) counted: u64,
    /// Over how long, in seconds.
    pub(super) seconds: f64,
    /// Pieces that were compared with what was sent.
    pub(super) checked: u64,
    /// Those that differed.
    pub(super) corrupt: u64,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum TcpControlLine {
    /// The client's first line.
    Open { greeting: TcpGreeting, terms: TcpSessionTerms },
    /// The server's answer.
    Opened { node: String, device: Option<String> },
    /// The server's other answer.
    Refused { why: String },
    /// Small messages follow, to be sent back.
    Echo,
    /// Data is to flow in the client's direction or the other.
    Begin { phase: u32, forward: bool },
    /// The first line of a connection for data.
    Join { greeting: TcpGreeting, phase: u32, stream: u32 },
    /// All connections for data are there.
    Go,
    /// What was sent, by stream.
    Sent { bytes: Vec<u64> },
    /// What arrived.
    Received { arrived: TcpReceiveTotals },
    /// There is nothing more to do.
    Close,
    /// It cannot go on.
    Failed { why: String },
}
