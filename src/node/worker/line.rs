//! The worker's two ends: lines in, lines out, each on a thread of its own, so
//! that nobody who talks slowly keeps a deadline waiting.

use std::io::BufRead;
use std::io::Write;

use tokio::sync::mpsc;

use super::Heard;
use model::worker::FromWorker;
use model::worker::LONGEST_LINE;

/// Reads lines to the end and passes them on.
pub(super) fn read_all(mut input: impl BufRead, heard: &mpsc::Sender<Heard>) {
    loop {
        let mut line = Vec::new();
        let longest = u64::try_from(LONGEST_LINE).unwrap_or(u64::MAX);
        let got = std::io::Read::take(&mut input, longest + 1).read_until(b'\n', &mut line);
        let word = match got {
            Ok(0) | Err(_) => Heard::Gone,
            // What was cut off by the end of the input is no line.
            Ok(_) if line.last() != Some(&b'\n') && line.len() <= LONGEST_LINE => Heard::Gone,
            Ok(_) if LONGEST_LINE < line.len() => Heard::TooLong,
            Ok(_) => Heard::Line(line),
        };
        let last = !matches!(word, Heard::Line(_));
        if heard.blocking_send(word).is_err() || last {
            return;
        }
    }
}

/// Writes lines as they come; tells when nobody takes them any more.
pub(super) fn write_all(
    mut output: impl Write,
    mut words: mpsc::UnboundedReceiver<FromWorker>,
    gone: &mpsc::Sender<Heard>,
) {
    while let Some(word) = words.blocking_recv() {
        let Ok(mut line) = serde_json::to_vec(&word) else { continue };
        line.push(b'\n');
        if output.write_all(&line).and_then(|()| output.flush()).is_err() {
            let _ = gone.blocking_send(Heard::Gone);
            return;
        }
    }
}
