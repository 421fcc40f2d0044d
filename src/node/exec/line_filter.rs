//! Line exchange with a running process: lines with a prefix are separated from its output and
//! passed to a callback, and lines are sent to its standard input.
//!
//! This module does not interpret the lines.

use std::fmt;

use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::sync::mpsc;

/// A line exchange with a process.
pub struct LineExchange<'t> {
    /// The prefix of the lines to separate.
    pub prefix: &'static str,
    /// Maximum bytes of such a line without its line end; a longer line counts as output.
    pub max_line_bytes: usize,
    /// Receives each line without prefix and line end. If it returns false, the line counts as
    /// output.
    pub on_line: &'t mut (dyn FnMut(&[u8]) -> bool + Send),
    /// Lines to send to the process, each with its line end. Its standard input is closed when the
    /// channel ends.
    pub input: mpsc::UnboundedReceiver<Vec<u8>>,
}

impl fmt::Debug for LineExchange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LineExchange").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// Writes lines to the process. It may read them at any time, or never: do not wait for this
/// function alone.
pub(super) async fn write_input(pipe: Option<ChildStdin>, lines: mpsc::UnboundedReceiver<Vec<u8>>) {
    let (Some(mut pipe), mut lines) = (pipe, lines) else { return };
    while let Some(line) = lines.recv().await {
        // The process may have closed its input, or ended.
        if pipe.write_all(&line).await.is_err() || pipe.flush().await.is_err() {
            return;
        }
    }
}

/// Separates prefixed lines, however the input is split.
pub(super) struct LineFilter<'t> {
    prefix: &'static [u8],
    max_line_bytes: usize,
    on_line: &'t mut (dyn FnMut(&[u8]) -> bool + Send),
    /// The start of a line that has, or may have, the prefix.
    pending: Vec<u8>,
    /// The current line counts as output.
    is_output: bool,
}

impl<'t> LineFilter<'t> {
    pub(super) fn new(
        prefix: &'static str,
        longest: usize,
        on_line: &'t mut (dyn FnMut(&[u8]) -> bool + Send),
    ) -> Self {
        let prefix = prefix.as_bytes();
        Self {
            prefix,
            max_line_bytes: longest.max(prefix.len()),
            on_line,
            pending: Vec::new(),
            is_output: false,
        }
    }

    /// Adds a piece of input; `keep` receives the output part.
    pub(super) fn filter(&mut self, mut bytes: &[u8], keep: &mut dyn FnMut(&[u8])) {
        while !bytes.is_empty() {
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let (piece, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
            bytes = rest;
            self.filter_piece(piece, end.is_some(), keep);
        }
    }

    /// A piece of one line, including its line end if `ends`.
    fn filter_piece(&mut self, piece: &[u8], ends: bool, keep: &mut dyn FnMut(&[u8])) {
        if self.is_output {
            keep(piece);
            self.is_output = !ends;
            return;
        }
        self.pending.extend_from_slice(piece);
        let known = self.pending.len().min(self.prefix.len());
        let may_be = self.pending[..known] == self.prefix[..known];
        // The line end counts as a byte here, so the limit allows one more.
        if !may_be || self.max_line_bytes + 1 < self.pending.len() {
            self.is_output = !ends;
            return self.flush(keep);
        }
        if ends {
            let body = self.pending.get(self.prefix.len()..self.pending.len() - 1);
            if body.is_some_and(|body| (self.on_line)(body)) {
                self.pending.clear();
            } else {
                self.flush(keep);
            }
        }
    }

    /// Passes on a held line that turned out to be output, or was cut off.
    pub(super) fn flush(&mut self, keep: &mut dyn FnMut(&[u8])) {
        if !self.pending.is_empty() {
            keep(&self.pending);
            self.pending.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The kept output and the separated lines of these pieces.
    fn filter_pieces(pieces: &[&[u8]]) -> (Vec<u8>, Vec<Vec<u8>>) {
        let mut separated = Vec::new();
        let mut kept = Vec::new();
        let mut take = |line: &[u8]| {
            let wanted = !line.starts_with(b"no");
            if wanted {
                separated.push(line.to_vec());
            }
            wanted
        };
        let mut filter = LineFilter::new("say ", 20, &mut take);
        for piece in pieces {
            filter.filter(piece, &mut |bytes| kept.extend_from_slice(bytes));
        }
        filter.flush(&mut |bytes| kept.extend_from_slice(bytes));
        (kept, separated)
    }

    #[test]
    fn prefixed_lines_are_separated_and_all_else_is_kept() {
        let (kept, separated) =
            filter_pieces(&[b"a\nsay one\nsaying\n\nsay no more\nb say x\nsay two\nsa"]);
        assert_eq!(separated, [b"one".to_vec(), b"two".to_vec()]);
        assert_eq!(kept, b"a\nsaying\n\nsay no more\nb say x\nsa");
        let (kept, separated) = filter_pieces(&[b"say cut off"]);
        assert_eq!((kept.as_slice(), separated.len()), (&b"say cut off"[..], 0));
        let (kept, separated) = filter_pieces(&[b"say \nsay\n"]);
        assert_eq!((kept.as_slice(), separated), (&b"say\n"[..], vec![Vec::new()]));
    }

    #[test]
    fn a_line_without_end_is_held_only_up_to_the_limit() {
        let (kept, separated) =
            filter_pieces(&[b"say 0123456789abcdef\nsay 0123456789abcdefg\nsay x\n"]);
        assert_eq!(separated, [b"0123456789abcdef".to_vec(), b"x".to_vec()]);
        assert_eq!(kept, b"say 0123456789abcdefg\n");
        let flood = [b"say ".to_vec(), vec![b'x'; 100_000], b"\nsay y\n".to_vec()].concat();
        let (kept, separated) = filter_pieces(&[&flood]);
        assert_eq!((kept.len(), separated), (100_005, vec![b"y".to_vec()]));
    }

    proptest! {
        #[test]
        fn the_split_of_the_input_makes_no_difference(text in "(say |no|\n|sa|[a-c]{0,24}){0,24}", cuts in proptest::collection::vec(0..80usize, 0..8)) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            prop_assert_eq!(filter_pieces(&pieces), filter_pieces(&[bytes]));
        }
    }
}
