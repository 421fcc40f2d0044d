//! The exchange protocol between the processes of one probe on several nodes: each contributes a
//! value and all receive all values.
//!
//! Types only. A process sends a request on its standard output, on a line that begins with
//! [`EXCHANGE_PREFIX`], and receives one line on its standard input. Exchanges are numbered from
//! 0 and every process takes part in all of them in this order; an exchange of nulls is a
//! barrier. `probe::board` collects the values.
//!
//! Values may be secrets of the run (NCCL's unique id): they are forwarded and never stored.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Prefix of a line that requests an exchange.
pub const EXCHANGE_PREFIX: &str = "exchange ";

/// A request, the JSON after [`EXCHANGE_PREFIX`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExchangeRequest {
    /// Number of the exchange, from 0.
    pub number: u64,
    /// The contributed value; null for a barrier.
    pub value: Value,
    /// Timeout in seconds. A process that has not sent its request by then counts as gone.
    pub within_s: f64,
}

/// The reply to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExchangeReply {
    /// Number of the exchange.
    pub number: u64,
    /// Index of the receiving process in `shares`, from 0.
    pub me: usize,
    /// The contributions of all members, in the same order for every receiver.
    pub shares: Vec<ExchangeShare>,
    /// Seconds between the first request and the last.
    pub waited_s: f64,
}

/// The contribution of one member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExchangeShare {
    /// Name of the member: its node.
    pub member: String,
    /// The contributed value; absent where the member is gone.
    pub value: Option<Value>,
    /// Why the member is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<String>,
}
