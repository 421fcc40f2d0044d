//! The start of a worker: its greeting, or the reason why there was none.

use serde::Deserialize;

use super::{MAX_BANNER_LINES, last_error_line, sanitizer};
use model::text::clean;
use model::worker_protocol::{PROTOCOL, WorkerHello, WorkerMessage};
use node::exec::session::SessionOutput;

/// The reason for a missing greeting.
#[derive(Debug)]
pub(super) enum GreetingFailure {
    /// Its output ended; the exit status has the reason.
    Ended,
    /// Its output is invalid.
    Invalid(String),
}

/// The fields that the greetings of all protocols share.
#[derive(Debug, Deserialize)]
struct WorkerHelloHeader {
    #[serde(rename = "type")]
    kind: String,
    protocol: u32,
    #[serde(default)]
    version: String,
}

/// The first line that is a greeting. Shells and banners may print lines before it.
pub(super) async fn read_greeting(
    output: &mut SessionOutput,
) -> Result<WorkerHello, GreetingFailure> {
    let invalid = |why| Err(GreetingFailure::Invalid(why));
    for _ in 0..MAX_BANNER_LINES {
        let line = match output.next_line().await {
            Ok(Some(line)) => line,
            Ok(None) => return Err(GreetingFailure::Ended),
            Err(error) => return invalid(format!("its greeting cannot be read: {error}")),
        };
        // The rest of a message of another protocol may be anything.
        if let Ok(other) = serde_json::from_slice::<WorkerHelloHeader>(&line)
            && other.kind == "hello"
            && other.protocol != PROTOCOL
        {
            return invalid(format!(
                "its fabricgate {} uses protocol {} and this one, {}, uses {PROTOCOL}: \
                 install the same version on the nodes",
                clean(&other.version),
                other.protocol,
                env!("CARGO_PKG_VERSION")
            ));
        }
        match serde_json::from_slice(&line).map(sanitizer::sanitize_message) {
            Ok(WorkerMessage::Hello(hello)) => return Ok(*hello),
            Ok(WorkerMessage::Fault { why }) => return invalid(why),
            _ => {}
        }
    }
    invalid(format!("no greeting of a worker in the first {MAX_BANNER_LINES} lines"))
}

/// A reason, followed by the last nonempty line of standard error.
pub(super) fn with_last_error_line(why: String, stderr: &str) -> String {
    match last_error_line(stderr.as_bytes()) {
        Some(words) => format!("{why}; last line on stderr: {words}"),
        None => why,
    }
}
