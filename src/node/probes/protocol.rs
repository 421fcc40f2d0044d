//! Protocol between the child process of a GPU probe and its supervisor: one JSON document per
//! line, and exchanges.
//!
//! Every line is written immediately, so that a call that hangs does not lose earlier results; the
//! next step is printed to standard error first, so that the supervisor can name the call that
//! hung. This module is independent of GPUs.

use std::io;
use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use model::collective::CollectivePoint;
use model::exchange::{EXCHANGE_PREFIX, ExchangeReply, ExchangeRequest};
use model::probe_report::{ProbeProblem, ProbedGpu, ProbedRank};

/// Prefix of a line on standard error that names the next step. Libraries print to standard error
/// too.
pub const STEP_PREFIX: &str = "next: ";

/// A line of a child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ProbeMessage {
    /// Version of the driver's library.
    Driver {
        /// CUDA version of the driver, `13.0`.
        cuda: String,
    },
    /// Version and path of the NCCL library.
    Nccl {
        /// Its version, `2.28.3`.
        version: String,
        /// Path of the loaded library.
        library: String,
    },
    /// A GPU to be measured.
    Gpu(ProbedGpu),
    /// A GPU in the rank list of all processes.
    Rank(ProbedRank),
    /// A test of this shape begins; every participating process reports the same one.
    Test(ProbeMatrixShape),
    /// One value of a matrix.
    Cell(ProbeMatrixCell),
    /// One measured point of a collective.
    Point {
        /// Name of the nccl-tests program.
        testcase: String,
        /// Index of the reading, from 0.
        reading: u32,
        /// The reporting rank.
        rank: u32,
        /// The measured point.
        point: CollectivePoint,
    },
    /// A named fact for the document: an algorithm, a size.
    Note {
        /// Name of the fact.
        name: String,
        /// Value of the fact.
        value: String,
    },
    /// A problem occurred.
    Problem(ProbeProblem),
    /// The end; everything requested was measured.
    End,
}

/// Unit, rows and columns of a test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeMatrixShape {
    /// Name of the test in nvbandwidth.
    pub testcase: String,
    /// Unit: `GB/s` or `us`.
    pub unit: String,
    /// Row labels of this process.
    pub rows: Vec<String>,
    /// Column labels.
    pub cols: Vec<String>,
}

/// One value of a test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeMatrixCell {
    /// Name of the test.
    pub testcase: String,
    /// Row label.
    pub row: String,
    /// Column label.
    pub col: String,
    /// Index of the reading, from 0.
    pub reading: u32,
    /// The number in the unit of the test.
    pub value: f64,
}

/// Why an exchange failed. The process then ends: it cannot continue without the others.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The supervisor has closed the connection.
    #[error("the parent process is gone")]
    PeerClosed,
    /// The answer is not parseable.
    #[error("unreadable answer to an exchange: {0}")]
    Unreadable(String),
    /// Writing the request or reading the answer failed.
    #[error("an exchange failed")]
    Failed(#[source] io::Error),
}

/// Why a child that depends on others ends early.
#[derive(Debug)]
pub(crate) enum ProbeAbort {
    OutputClosed(io::Error),
    ExchangeFailed(ExchangeError),
}

impl From<io::Error> for ProbeAbort {
    fn from(error: io::Error) -> Self {
        Self::OutputClosed(error)
    }
}

impl From<ExchangeError> for ProbeAbort {
    fn from(error: ExchangeError) -> Self {
        Self::ExchangeFailed(error)
    }
}

/// The connection of a child process to its supervisor.
pub struct ProbeEmitter<'m> {
    out: &'m mut dyn Write,
    stderr: &'m mut dyn Write,
    input: &'m mut dyn BufRead,
    exchanges: u64,
}

impl std::fmt::Debug for ProbeEmitter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProbeEmitter").field("exchanges", &self.exchanges).finish_non_exhaustive()
    }
}

impl<'m> ProbeEmitter<'m> {
    /// Creates the connection from these streams.
    pub fn new(
        out: &'m mut dyn Write,
        stderr: &'m mut dyn Write,
        input: &'m mut dyn BufRead,
    ) -> Self {
        Self { out, stderr, input, exchanges: 0 }
    }

    /// Writes one message as a JSON line, and flushes it.
    pub fn emit(&mut self, line: &ProbeMessage) -> io::Result<()> {
        serde_json::to_writer(&mut *self.out, line)?;
        self.out.write_all(b"\n")?;
        self.out.flush()
    }

    /// Announces the next step, in case it never ends.
    pub fn announce_step(&mut self, step: &str) {
        // A closed standard error is not a reason to stop.
        let _ = writeln!(self.stderr, "{STEP_PREFIX}{step}").and_then(|()| self.stderr.flush());
    }

    /// Sends a value and waits for the values of all others.
    pub fn exchange(
        &mut self,
        value: Value,
        within_s: f64,
    ) -> Result<ExchangeReply, ExchangeError> {
        let number = self.exchanges;
        self.exchanges += 1;
        let request = ExchangeRequest { number, value, within_s };
        let text = serde_json::to_string(&request).expect("values are plain data");
        writeln!(self.out, "{EXCHANGE_PREFIX}{text}")
            .and_then(|()| self.out.flush())
            .map_err(ExchangeError::Failed)?;
        let mut line = String::new();
        if self.input.read_line(&mut line).map_err(ExchangeError::Failed)? == 0 {
            return Err(ExchangeError::PeerClosed);
        }
        let answer: ExchangeReply = serde_json::from_str(&line)
            .map_err(|error| ExchangeError::Unreadable(error.to_string()))?;
        if answer.number != number {
            let mismatch = format!("it has number {}, but {number} is expected", answer.number);
            return Err(ExchangeError::Unreadable(mismatch));
        }
        Ok(answer)
    }

    /// Waits until all processes have called this.
    pub fn barrier(&mut self, within_s: f64) -> Result<ExchangeReply, ExchangeError> {
        self.exchange(Value::Null, within_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::exchange::ExchangeShare;

    fn answer(number: u64) -> String {
        let share =
            ExchangeShare { member: "n1".to_owned(), value: Some(Value::from(number)), gone: None };
        let answer = ExchangeReply { number, me: 0, shares: vec![share], waited_s: 0.0 };
        format!("{}\n", serde_json::to_string(&answer).expect("plain data"))
    }

    #[test]
    fn exchanges_are_numbered_in_order_and_return_the_values() {
        let (mut out, mut progress) = (Vec::new(), Vec::new());
        let text = format!("{}{}", answer(0), answer(1));
        let mut input = text.as_bytes();
        let mut emitter = ProbeEmitter::new(&mut out, &mut progress, &mut input);
        emitter.emit(&ProbeMessage::End).expect("written");
        let got = emitter.exchange(Value::from(7), 5.0).expect("answered");
        assert_eq!(got.shares[0].value, Some(Value::from(0)));
        emitter.barrier(5.0).expect("answered");
        assert!(matches!(emitter.barrier(5.0), Err(ExchangeError::PeerClosed)));
        let written = String::from_utf8(out).expect("text");
        let lines: Vec<&str> = written.lines().collect();
        assert_eq!(lines[0], r#"{"type":"end"}"#);
        assert_eq!(lines[1], r#"exchange {"number":0,"value":7,"within_s":5.0}"#);
        assert_eq!(lines[2], r#"exchange {"number":1,"value":null,"within_s":5.0}"#);
    }

    #[test]
    fn an_answer_with_another_number_is_an_error() {
        let (mut out, mut progress) = (Vec::new(), Vec::new());
        let text = answer(4);
        let mut input = text.as_bytes();
        let mut emitter = ProbeEmitter::new(&mut out, &mut progress, &mut input);
        let error = emitter.barrier(1.0).expect_err("another number");
        assert!(error.to_string().contains("number 4, but 0 is expected"), "{error}");
    }
}
