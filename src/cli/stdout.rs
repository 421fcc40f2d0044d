//! Writing the answer of a command.

use std::io;
use std::io::BufWriter;
use std::io::Write;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering;

use serde::Serialize;

use super::failure::Failure;
use control::store::layout;
use engine::report::plain;

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

/// What standard output is for, beside what a command says.
static STDOUT: AtomicU8 = AtomicU8::new(FREE);
const FREE: u8 = 0;
/// One JSON document and nothing else.
const DOCUMENT: u8 = 1;
/// A file that was asked for as `-` and nothing else: what people read goes to standard
/// error then.
const TAKEN: u8 = 2;

/// Standard output is for one JSON document.
pub fn for_document() {
    STDOUT.store(DOCUMENT, Ordering::Relaxed);
}

/// Takes standard output for a file that is named `-`.
pub fn take() -> Result<(), Failure> {
    let swapped = STDOUT.compare_exchange(FREE, TAKEN, Ordering::Relaxed, Ordering::Relaxed);
    let said = match swapped {
        Ok(_) => return Ok(()),
        Err(DOCUMENT) => "--json: standard output is for its document; name a file instead of -",
        Err(_) => "- is standard output, which takes one file; name a file for the others",
    };
    Err(Failure::usage(said))
}

/// Writes the file that standard output was taken for.
pub fn taken(written: &[u8]) -> Result<(), Failure> {
    bytes(written).map_err(Failure::environment)
}

/// Writes text. Names are spelled out where it is made; whatever slipped through does
/// not steer the terminal it ends in.
pub fn text(text: &str) -> anyhow::Result<()> {
    if STDOUT.load(Ordering::Relaxed) == TAKEN {
        let _ = anstream::stderr().lock().write_all(plain::lines(text).as_bytes());
        return Ok(());
    }
    bytes(plain::lines(text).as_bytes())
}

/// Writes a value as one JSON document.
pub fn json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    piece_by_piece(|out| serde_json::to_writer_pretty(out, value))
}

/// Writes a plan as JSON, each of its steps on a line.
pub fn plan<T: Serialize>(plan: &T) -> anyhow::Result<()> {
    piece_by_piece(|out| layout::plan(out, plan))
}

/// Documents of a large fleet have hundreds of megabytes: they are written as they are
/// made, and looked at in blocks.
fn piece_by_piece(
    write: impl FnOnce(&mut dyn Write) -> serde_json::Result<()>,
) -> anyhow::Result<()> {
    // Nothing that colours is left in it, so nothing has to be taken out.
    let mut out = BufWriter::with_capacity(1 << 16, Plain(io::stdout().lock()));
    let written = write(&mut out).map_err(io::Error::from);
    ended(written.and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()))
}

/// Writes JSON that was made before: a document, or lines of them.
pub fn document(document: &[u8]) -> anyhow::Result<()> {
    bytes(plain::json(&String::from_utf8_lossy(document)).as_bytes())
}

/// Escapes what steers a terminal in JSON that is made piece by piece. Each block of
/// pieces is text in itself: serde_json never cuts a character, and a buffer no piece.
struct Plain<W>(W);

impl<W: Write> Write for Plain<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(plain::json(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Tells people something on standard error, where that still exists.
pub fn note(text: &str) {
    let _ = writeln!(anstream::stderr().lock(), "fabricgate: {}", plain::lines(text));
}
