//! Writing the answer of a command.

use std::io;
use std::io::BufWriter;
use std::io::Write;

use serde::Serialize;

use super::failure::Failure;

/// Writes bytes to standard output. That nobody reads on (`| head`) is fine:
/// the exit code still tells the outcome. That they do not fit (a full disk) is
/// the environment's fault.
pub fn bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    ended(out.write_all(bytes).and_then(|()| out.flush()))
}

/// What became of writing to standard output.
fn ended(written: io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| {
            Failure::Environment(format!("standard output cannot be written: {error}")).into()
        }),
    }
}

/// Writes text.
pub fn text(text: &str) -> anyhow::Result<()> {
    bytes(text.as_bytes())
}

/// Writes a value as one JSON document.
pub fn json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    // Piece by piece: the plan of a large fleet has a hundred megabytes.
    let mut out = BufWriter::with_capacity(1 << 16, anstream::stdout().lock());
    let written = serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from);
    ended(written.and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()))
}

/// Tells people something on standard error, where that still exists.
pub fn note(text: &str) {
    let _ = writeln!(anstream::stderr().lock(), "fabricgate: {text}");
}
