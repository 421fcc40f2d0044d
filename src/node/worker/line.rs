//! The worker's input and output lines, each on a separate thread, so that a slow peer delays no
//! deadline.

use std::io::{BufRead, Write};

use tokio::sync::mpsc;

use super::WorkerInput;
use model::worker_protocol::{LONGEST_LINE, WorkerMessage};

/// Reads lines to the end and forwards them.
pub(super) fn read_lines(mut input: impl BufRead, sender: &mpsc::Sender<WorkerInput>) {
    loop {
        let mut line = Vec::new();
        let longest = u64::try_from(LONGEST_LINE).unwrap_or(u64::MAX);
        let got = std::io::Read::take(&mut input, longest + 1).read_until(b'\n', &mut line);
        let event = match got {
            Ok(0) | Err(_) => WorkerInput::Closed,
            // A line cut off by the end of the input is discarded.
            Ok(_) if line.last() != Some(&b'\n') && line.len() <= LONGEST_LINE => {
                WorkerInput::Closed
            }
            Ok(_) if LONGEST_LINE < line.len() => WorkerInput::TooLong,
            Ok(_) => WorkerInput::Line(line),
        };
        let last = !matches!(event, WorkerInput::Line(_));
        if sender.blocking_send(event).is_err() || last {
            return;
        }
    }
}

/// Writes lines as they come; reports a closed output.
pub(super) fn write_lines(
    mut output: impl Write,
    mut messages: mpsc::UnboundedReceiver<WorkerMessage>,
    gone: &mpsc::Sender<WorkerInput>,
) {
    while let Some(message) = messages.blocking_recv() {
        let Ok(mut line) = serde_json::to_vec(&message) else { continue };
        line.push(b'\n');
        if output.write_all(&line).and_then(|()| output.flush()).is_err() {
            let _ = gone.blocking_send(WorkerInput::Closed);
            return;
        }
    }
}
