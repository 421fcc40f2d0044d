//! The output of a command: its options, standard output and standard error.

use std::io;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};

use serde::Serialize;

use crate::exit::CommandError;
use control::store::plan_json;
use engine::report::plain_text;

/// Options of every command.
#[derive(Debug, clap::Args)]
pub struct Globals {
    /// Print one JSON document (or JSON lines) on stdout and nothing else there.
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
    /// Print the causes of an error too.
    #[arg(short, long, global = true)]
    pub verbose: bool,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Color {
    /// In a terminal that wants them (`NO_COLOR` is respected).
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Writes bytes to standard output. That nobody reads on (`| head`) is fine:
/// the exit code still tells the outcome. That they do not fit (a full disk) is
/// the environment's fault.
pub fn write_bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    ignore_broken_pipe(out.write_all(bytes).and_then(|()| out.flush()))
}

/// What became of writing to standard output.
fn ignore_broken_pipe(written: io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| {
            CommandError::Environment(format!("standard output cannot be written: {error}")).into()
        }),
    }
}

/// What standard output is for, beside what a command says.
static STDOUT: AtomicU8 = AtomicU8::new(FREE);
const FREE: u8 = 0;
/// One JSON document and nothing else.
const DOCUMENT: u8 = 1;
/// A file that was asked for as `-` and nothing else: what people read goes to standard
/// error then.
const FILE: u8 = 2;

/// Standard output is for one JSON document.
pub fn reserve_for_document() {
    STDOUT.store(DOCUMENT, Ordering::Relaxed);
}

/// Takes standard output for a file that is named `-`.
pub fn reserve_for_file() -> Result<(), CommandError> {
    let swapped = STDOUT.compare_exchange(FREE, FILE, Ordering::Relaxed, Ordering::Relaxed);
    let said = match swapped {
        Ok(_) => return Ok(()),
        Err(DOCUMENT) => "--json: standard output is for its document; name a file instead of -",
        Err(_) => "- is standard output, which takes one file; name a file for the others",
    };
    Err(CommandError::usage(said))
}

/// Writes the file that standard output was taken for.
pub fn write_reserved_file(written: &[u8]) -> Result<(), CommandError> {
    write_bytes(written).map_err(CommandError::environment)
}

/// Writes text. Names are spelled out where it is made; whatever slipped through does
/// not steer the terminal it ends in.
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

/// Writes a plan as JSON, each of its steps on a line.
pub fn write_plan<T: Serialize>(plan: &T) -> anyhow::Result<()> {
    write_json_stream(|out| plan_json::write_plan(out, plan))
}

/// Documents of a large fleet have hundreds of megabytes: they are written as they are
/// made, and looked at in blocks.
fn write_json_stream(
    write: impl FnOnce(&mut dyn Write) -> serde_json::Result<()>,
) -> anyhow::Result<()> {
    // Nothing that colours is left in it, so nothing has to be taken out.
    let mut out = BufWriter::with_capacity(1 << 16, EscapingWriter(io::stdout().lock()));
    let written = write(&mut out).map_err(io::Error::from);
    ignore_broken_pipe(written.and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()))
}

/// Writes JSON that was made before: a document, or lines of them.
pub fn write_document(document: &[u8]) -> anyhow::Result<()> {
    write_bytes(plain_text::to_plain_json(&String::from_utf8_lossy(document)).as_bytes())
}

/// Escapes what steers a terminal in JSON that is made piece by piece. Each block of
/// pieces is text in itself: serde_json never cuts a character, and a buffer no piece.
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

/// Tells people something on standard error, where that still exists.
pub fn note(text: &str) {
    let _ = writeln!(anstream::stderr().lock(), "fabricgate: {}", plain_text::to_plain_lines(text));
}
