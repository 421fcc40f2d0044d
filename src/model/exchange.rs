//! How processes of one probe on several nodes tell each other things: each
//! gives a value, and all get the values of all.
//!
//! Types only. A process asks on its standard output, in a line of its own that
//! begins with [`PREFIX`], and is answered by one line on its standard input.
//! Exchanges are numbered from 0 and everybody takes part in all of them in this
//! order; an exchange of nothing is a barrier. Who collects is `probe::board`.
//!
//! Values may be secrets of the run (NCCL's unique id): they are passed on and
//! never kept.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What begins a line by which a process asks for an exchange.
pub const EXCHANGE_PREFIX: &str = "exchange ";

/// What a process gives to an exchange, behind [`PREFIX`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExchangeRequest {
    /// The exchange, from 0.
    pub number: u64,
    /// What it gives; null where it only waits for the others.
    pub value: Value,
    /// How long it waits, in seconds. Who has not asked by then is gone.
    pub within_s: f64,
}

/// What a process is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExchangeReply {
    /// The exchange.
    pub number: u64,
    /// Which of the members is asked, from 0.
    pub me: usize,
    /// What everybody gave, in the same order for all.
    pub shares: Vec<ExchangeShare>,
    /// How long the first waited for the last, in seconds.
    pub waited_s: f64,
}

/// What a member gave to an exchange.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExchangeShare {
    /// What the member is called: its node.
    pub member: String,
    /// What it gave; absent where it is gone.
    pub value: Option<Value>,
    /// Why it takes part no longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<String>,
}
