//! Standard error of a child: announced steps, library messages, and the last lines before its end.
//!
//! Pure. Memory is bounded for any input.

use std::collections::{BTreeSet, VecDeque};

use super::child_output::clean;
use crate::probes::protocol::STEP_PREFIX;

/// Marker of NCCL's log lines, one or more per operation.
const NCCL_MARKER: &str = " NCCL ";
/// Marker of those that are not warnings.
const NCCL_INFO_MARKER: &str = " NCCL INFO ";

/// Maximum different library lines to keep.
const MAX_NCCL_LINES: usize = 16_384;

/// Maximum other lines to keep: the last ones.
const MAX_TAIL_LINES: usize = 24;

/// Maximum bytes of a line to inspect.
const MAX_LINE_BYTES: usize = 4_096;

#[derive(Clone, Debug, Default)]
pub(super) struct StderrTail {
    /// Number of chunks received, to detect silence.
    pub(super) chunks: u64,
    /// The last announced step.
    pub(super) current_step: Option<String>,
    /// Lines of NCCL, each once, in order of first appearance.
    pub(super) nccl_lines: Vec<String>,
    /// The last of all other lines.
    pub(super) tail: VecDeque<String>,
    seen: BTreeSet<String>,
    line: Vec<u8>,
    /// The rest of this line is ignored.
    is_truncated: bool,
}

impl StderrTail {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.chunks += 1;
        for byte in bytes {
            if *byte == b'\n' {
                self.end_line();
            } else if self.line.len() < MAX_LINE_BYTES {
                self.line.push(*byte);
            } else {
                self.is_truncated = true;
            }
        }
    }

    /// Handles the end of the stream.
    pub(super) fn close(&mut self) {
        // An incompletely announced step did not begin.
        if !self.line.starts_with(STEP_PREFIX.as_bytes()) {
            self.end_line();
        }
    }

    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&self.line).into_owned();
        self.line.clear();
        let is_cut = std::mem::take(&mut self.is_truncated);
        if let Some(doing) = line.strip_prefix(STEP_PREFIX) {
            self.current_step = Some(clean(doing));
            return;
        }
        if line.contains(NCCL_MARKER) && !is_cut {
            if self.seen.len() < MAX_NCCL_LINES && self.seen.insert(line.clone()) {
                self.nccl_lines.push(line.clone());
            }
            if line.contains(NCCL_INFO_MARKER) {
                return;
            }
        }
        let line = clean(&line);
        if !line.is_empty() {
            self.tail.push_back(line);
            if MAX_TAIL_LINES < self.tail.len() {
                self.tail.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail_of(text: &str) -> StderrTail {
        let mut tail = StderrTail::default();
        for piece in text.as_bytes().chunks(7) {
            tail.push(piece);
        }
        tail.close();
        tail
    }

    #[test]
    fn steps_library_lines_and_the_tail_are_separated() {
        let text = "next: cuInit\nn1:1:2 [0] NCCL INFO Channel 00 via P2P\nnext: x\n\
            n1:1:2 [0] NCCL INFO Channel 00 via P2P\nx.cc:1 NCCL WARN odd\nterminate:\u{7}\n";
        let tail = tail_of(text);
        assert_eq!(tail.current_step.as_deref(), Some("x"));
        assert_eq!(tail.nccl_lines.len(), 2);
        assert_eq!(tail.tail, ["x.cc:1 NCCL WARN odd", "terminate:"]);
    }

    #[test]
    fn a_truncated_step_is_ignored() {
        let tail = tail_of("next: first\nnext: sec");
        assert_eq!(tail.current_step.as_deref(), Some("first"));
        assert_eq!(tail_of("last words").tail, ["last words"]);
    }

    #[test]
    fn a_flood_is_bounded() {
        let mut tail = StderrTail::default();
        tail.push(&vec![b'x'; 1 << 20]);
        for number in 0..100_000 {
            tail.push(format!("a: NCCL INFO {number}\nword {number}\n").as_bytes());
        }
        assert_eq!((tail.nccl_lines.len(), tail.tail.len()), (MAX_NCCL_LINES, MAX_TAIL_LINES));
        assert_eq!(tail.tail.back().map(String::as_str), Some("word 99999"));
    }
}
