//! The global options, and writing to standard output and standard error.

use std::io;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};

use serde::Serialize;

use crate::exit::CommandError;
use control::gate::gate_event::GateEvent;
use control::store::plan_json;
use engine::report::plain_text;

/// Options of every command.
#[derive(Debug, clap::Args)]
pub struct Globals {
    /// Print only one JSON document (or JSON lines) on stdout.
    #[arg(long, global = true)]
    pub json: bool,
    /// The configuration file.
    #[arg(long, global = true, value_name = "FILE", env = "FABRICGATE_CONFIG")]
    pub config: Option<PathBuf>,
    /// When to use colours.
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value = "auto")]
    pub color: Color,
    /// Hide progress output.
    #[arg(long, global = true)]
    pub no_progress: bool,
    /// Also print the causes of an error.
    #[arg(short, long, global = true)]
    pub verbose: bool,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Color {
    /// In a terminal that supports them (`NO_COLOR` is respected).
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Writes bytes to standard output. A closed pipe (`| head`) is not an error: the exit code still
/// reports the outcome. A full disk is a failure of the environment.
pub fn write_bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    ignore_broken_pipe(out.write_all(bytes).and_then(|()| out.flush()))
}

/// Ignores a closed pipe; other errors are failures of the environment.
fn ignore_broken_pipe(written: io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| {
            CommandError::Environment(format!("standard output cannot be written: {error}")).into()
        }),
    }
}

/// The reserved use of standard output.
static STDOUT: AtomicU8 = AtomicU8::new(FREE);
const FREE: u8 = 0;
/// Reserved for one JSON document.
const DOCUMENT: u8 = 1;
/// Reserved for one output file given as `-`; text then goes to standard error.
const FILE: u8 = 2;

/// Reserves standard output for one JSON document.
pub fn reserve_for_document() {
    STDOUT.store(DOCUMENT, Ordering::Relaxed);
}

/// Reserves standard output for an output file given as `-`.
pub fn reserve_for_file() -> Result<(), CommandError> {
    let swapped = STDOUT.compare_exchange(FREE, FILE, Ordering::Relaxed, Ordering::Relaxed);
    let message = match swapped {
        Ok(_) => return Ok(()),
        Err(DOCUMENT) => "--json: standard output is for its document; name a file instead of -",
        Err(_) => "- is standard output, which takes one file; name a file for the others",
    };
    Err(CommandError::usage(message))
}

/// Writes the output file given as `-`.
pub fn write_reserved_file(written: &[u8]) -> Result<(), CommandError> {
    write_bytes(written).map_err(CommandError::environment)
}

/// Writes text. Names are escaped when the text is rendered; this also escapes any control
/// characters that remain.
pub fn write_text(text: &str) -> anyhow::Result<()> {
    if STDOUT.load(Ordering::Relaxed) == FILE {
        let _ = anstream::stderr().lock().write_all(plain_text::to_plain_lines(text).as_bytes());
        return Ok(());
    }
    write_bytes(plain_text::to_plain_lines(text).as_bytes())
}

/// Writes a value as one JSON document.
pub fn write_json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    write_json_stream(|out| serde_json::to_writer_pretty(out, value))
}

/// Writes a plan as JSON, with each step on one line.
pub fn write_plan<T: Serialize>(plan: &T) -> anyhow::Result<()> {
    write_json_stream(|out| plan_json::write_plan(out, plan))
}

/// Documents of a large fleet have hundreds of megabytes: they are serialized straight to the
/// output, and escaped block by block.
fn write_json_stream(
    write: impl FnOnce(&mut dyn Write) -> serde_json::Result<()>,
) -> anyhow::Result<()> {
    // The writer escapes control characters, so no colour codes remain to be stripped.
    let mut out = BufWriter::with_capacity(1 << 16, EscapingWriter(io::stdout().lock()));
    let written = write(&mut out).map_err(io::Error::from);
    ignore_broken_pipe(written.and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()))
}

/// Writes serialized JSON: a document, or lines of documents.
pub fn write_document(document: &[u8]) -> anyhow::Result<()> {
    write_bytes(plain_text::to_plain_json(&String::from_utf8_lossy(document)).as_bytes())
}

/// Escapes terminal control characters in streamed JSON. Each block is valid UTF-8: serde_json
/// never splits a character, and the buffer never splits a piece.
struct EscapingWriter<W>(W);

impl<W: Write> Write for EscapingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(plain_text::to_plain_json(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Prints an event of the gate on standard error.
pub fn note_gate_event(event: &GateEvent) {
    note(&event.to_string());
}

/// Prints a message on standard error, if that is still open.
pub fn note(text: &str) {
    let _ = writeln!(anstream::stderr().lock(), "fabricgate: {}", plain_text::to_plain_lines(text));
}
