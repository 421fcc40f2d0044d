//! How a worker begins: its greeting, or why there was none.

use serde::Deserialize;

use super::{NOISE, harmless, last_words};
use model::text::clean;
use model::worker_protocol::{PROTOCOL, WorkerHello, WorkerMessage};
use node::exec::session::SessionOutput;

/// Why there was no greeting.
#[derive(Debug)]
pub(super) enum NoGreeting {
    /// It said no more, and how it ended tells why.
    Ended,
    /// What it said, or how, tells why.
    Said(String),
}

/// What the greetings of all protocols have in common.
#[derive(Debug, Deserialize)]
struct AnyHello {
    #[serde(rename = "type")]
    kind: String,
    protocol: u32,
    #[serde(default)]
    version: String,
}

/// The first line that is a greeting. Shells and banners may speak before.
pub(super) async fn greeting(output: &mut SessionOutput) -> Result<WorkerHello, NoGreeting> {
    let said = |why| Err(NoGreeting::Said(why));
    for _ in 0..NOISE {
        let line = match output.next_line().await {
            Ok(Some(line)) => line,
            Ok(None) => return Err(NoGreeting::Ended),
            Err(error) => return said(format!("what it says is no greeting: {error}")),
        };
        // The rest of a line of another protocol may be anything.
        if let Ok(other) = serde_json::from_slice::<AnyHello>(&line)
            && other.kind == "hello"
            && other.protocol != PROTOCOL
        {
            return said(format!(
                "its fabricgate {} speaks protocol {} and this one, {}, speaks {PROTOCOL}: \
                 install the same version on the nodes",
                clean(&other.version),
                other.protocol,
                env!("CARGO_PKG_VERSION")
            ));
        }
        match serde_json::from_slice(&line).map(harmless::answer) {
            Ok(WorkerMessage::Hello(hello)) => return Ok(*hello),
            Ok(WorkerMessage::Fault { why }) => return said(why),
            _ => {}
        }
    }
    said(format!("{NOISE} lines and none of them a worker's greeting"))
}

/// A reason, and the last line of standard error that says anything.
pub(super) fn with_last_words(why: String, stderr: &str) -> String {
    match last_words(stderr.as_bytes()) {
        Some(words) => format!("{why}; last line on stderr: {words}"),
        None => why,
    }
}
