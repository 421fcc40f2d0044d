//! What the child process of a GPU probe says to whoever attends it, one JSON
//! document a line, and how it takes part in exchanges.
//!
//! Every line is written as soon as it is known, so that what was measured
//! until a call hung is not lost; what comes next is told on standard error, so
//! that the call that hung can be named. Nothing here knows a GPU.

use std::io;
use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use model::collective::CollectivePoint;
use model::exchange::{EXCHANGE_PREFIX, ExchangeReply, ExchangeRequest};
use model::probe_report::{ProbeProblem, ProbedGpu, ProbedRank};

/// What begins a line on standard error that tells what comes next. Libraries
/// print there as well.
pub const STEP_PREFIX: &str = "next: ";

/// A line of a child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ProbeMessage {
    /// The driver's library.
    Driver {
        /// CUDA version of the driver, `13.0`.
        cuda: String,
    },
    /// NCCL.
    Nccl {
        /// Its version, `2.28.3`.
        version: String,
        /// The library that was loaded.
        library: String,
    },
    /// A GPU that will be measured.
    Gpu(ProbedGpu),
    /// A GPU among those of all processes.
    Rank(ProbedRank),
    /// A test begins, of this shape; every process that takes part says the same.
    Test(ProbeMatrixShape),
    /// A number.
    Cell(ProbeMatrixCell),
    /// A number of a collective.
    Point {
        /// nccl-tests' name.
        testcase: String,
        /// Which reading, from 0.
        reading: u32,
        /// The rank that says so.
        rank: u32,
        /// The number.
        point: CollectivePoint,
    },
    /// Something to be kept by name: an algorithm, a size.
    Note {
        /// Its name.
        name: String,
        /// What it is.
        value: String,
    },
    /// Something went wrong.
    Problem(ProbeProblem),
    /// That was all, and everything that was asked for was measured.
    End,
}

/// The shape of a test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeMatrixShape {
    /// nvbandwidth's name.
    pub testcase: String,
    /// `GB/s` or `us`.
    pub unit: String,
    /// Row labels of this process.
    pub rows: Vec<String>,
    /// Column labels.
    pub cols: Vec<String>,
}

/// A number of a test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeMatrixCell {
    /// The test.
    pub testcase: String,
    /// Row label.
    pub row: String,
    /// Column label.
    pub col: String,
    /// Which reading, from 0.
    pub reading: u32,
    /// The number, in the unit of the test.
    pub value: f64,
}

/// Why an exchange came to nothing. The process ends then: without the others
/// there is nothing to do.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// Nobody answers any more.
    #[error("whoever started this process is gone")]
    PeerClosed,
    /// The answer cannot be understood.
    #[error("the answer to an exchange cannot be understood: {0}")]
    Unreadable(String),
    /// It could not be asked for, or not be read.
    #[error("an exchange failed")]
    Failed(#[source] io::Error),
}

/// Why the work of a child that needs others ends early.
#[derive(Debug)]
pub(crate) enum ProbeAbort {
    /// Nobody listens.
    OutputClosed(io::Error),
    /// Nobody answers.
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

/// The ends of a child process.
pub struct ProbeEmitter<'m> {
    out: &'m mut dyn Write,
    stderr: &'m mut dyn Write,
    input: &'m mut dyn BufRead,
    exchanges: u64,
}

impl std::fmt::Debug for ProbeEmitter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mouth").field("exchanges", &self.exchanges).finish_non_exhaustive()
    }
}

impl<'m> ProbeEmitter<'m> {
    /// A process with these ends.
    pub fn new(
        out: &'m mut dyn Write,
        stderr: &'m mut dyn Write,
        input: &'m mut dyn BufRead,
    ) -> Self {
        Self { out, stderr, input, exchanges: 0 }
    }

    /// Says a line.
    pub fn emit(&mut self, line: &ProbeMessage) -> io::Result<()> {
        serde_json::to_writer(&mut *self.out, line)?;
        self.out.write_all(b"\n")?;
        self.out.flush()
    }

    /// Tells what comes next, for the case that it never ends.
    pub fn announce_step(&mut self, what: &str) {
        // Nobody may listen, which is no reason to stop.
        let _ = writeln!(self.stderr, "{STEP_PREFIX}{what}").and_then(|()| self.stderr.flush());
    }

    /// Gives a value and waits for those of all others.
    pub fn exchange(
        &mut self,
        value: Value,
        within_s: f64,
    ) -> Result<ExchangeReply, ExchangeError> {
        let number = self.exchanges;
        self.exchanges += 1;
        let ask = ExchangeRequest { number, value, within_s };
        let text = serde_json::to_string(&ask).expect("values are plain data");
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
            let said = format!("it is to number {}, {number} was asked", answer.number);
            return Err(ExchangeError::Unreadable(said));
        }
        Ok(answer)
    }

    /// Waits until everybody is here.
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
    fn exchanges_are_asked_for_in_order_and_the_values_come_back() {
        let (mut out, mut progress) = (Vec::new(), Vec::new());
        let text = format!("{}{}", answer(0), answer(1));
        let mut input = text.as_bytes();
        let mut mouth = ProbeEmitter::new(&mut out, &mut progress, &mut input);
        mouth.emit(&ProbeMessage::End).expect("said");
        let got = mouth.exchange(Value::from(7), 5.0).expect("answered");
        assert_eq!(got.shares[0].value, Some(Value::from(0)));
        mouth.barrier(5.0).expect("answered");
        assert!(matches!(mouth.barrier(5.0), Err(ExchangeError::PeerClosed)));
        let said = String::from_utf8(out).expect("text");
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[0], r#"{"type":"end"}"#);
        assert_eq!(lines[1], r#"exchange {"number":0,"value":7,"within_s":5.0}"#);
        assert_eq!(lines[2], r#"exchange {"number":1,"value":null,"within_s":5.0}"#);
    }

    #[test]
    fn an_answer_to_another_question_is_none() {
        let (mut out, mut progress) = (Vec::new(), Vec::new());
        let text = answer(4);
        let mut input = text.as_bytes();
        let mut mouth = ProbeEmitter::new(&mut out, &mut progress, &mut input);
        let error = mouth.barrier(1.0).expect_err("another number");
        assert!(error.to_string().contains("number 4, 0 was asked"), "{error}");
    }
}
