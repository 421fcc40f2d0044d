//! Writing the answer of a command.

use std::io;
use std::io::Write;

use serde::Serialize;

use super::failure::Failure;
use crate::report::plain;

/// Writes bytes to standard output. That nobody reads on (`| head`) is fine:
/// the exit code still tells the outcome. That they do not fit (a full disk) is
/// the environment's fault.
pub fn bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| {
            Failure::Environment(format!("standard output cannot be written: {error}")).into()
        }),
    }
}

/// Writes text. Names are spelled out where it is made; whatever slipped through does
/// not steer the terminal it ends in.
pub fn text(text: &str) -> anyhow::Result<()> {
    bytes(plain::lines(text).as_bytes())
}

/// Writes a value as one JSON document.
pub fn json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    let mut document = serde_json::to_string_pretty(value)?;
    document.push('\n');
    bytes(plain::json(&document).as_bytes())
}

/// Writes JSON that was made before: a document, or lines of them.
pub fn document(document: &[u8]) -> anyhow::Result<()> {
    bytes(plain::json(&String::from_utf8_lossy(document)).as_bytes())
}

/// Tells people something on standard error, where that still exists.
pub fn note(text: &str) {
    let _ = writeln!(anstream::stderr().lock(), "fabricgate: {}", plain::lines(text));
}
