//! Talking with a process while it runs: lines of a kind are set aside from what
//! it prints and given to somebody, and it is told lines in turn.
//!
//! What the lines mean, nothing here knows.

use std::fmt;

use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::sync::mpsc;

/// A talk with a process.
pub struct LineExchange<'t> {
    /// What a line begins with that is set aside.
    pub prefix: &'static str,
    /// Bytes of such a line, without its end; a longer one is output as any other.
    pub max_line_bytes: usize,
    /// Whom to give the line, without prefix and end. What he does not take is
    /// output as any other.
    pub on_line: &'t mut (dyn FnMut(&[u8]) -> bool + Send),
    /// What the process is told, each with its line end. Its input is closed at
    /// the end of these.
    pub input: mpsc::UnboundedReceiver<Vec<u8>>,
}

impl fmt::Debug for LineExchange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Talk").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// Tells a process what it is told. It may read when it likes, or never: who
/// waits for this to end must not wait for it alone.
pub(super) async fn write_input(pipe: Option<ChildStdin>, words: mpsc::UnboundedReceiver<Vec<u8>>) {
    let (Some(mut pipe), mut words) = (pipe, words) else { return };
    while let Some(word) = words.recv().await {
        // It may have closed its input, or have ended.
        if pipe.write_all(&word).await.is_err() || pipe.flush().await.is_err() {
            return;
        }
    }
}

/// Sets lines aside, in whatever pieces they arrive.
pub(super) struct LineFilter<'t> {
    prefix: &'static [u8],
    max_line_bytes: usize,
    on_line: &'t mut (dyn FnMut(&[u8]) -> bool + Send),
    /// The beginning of a line that is, or may be, one of those.
    pending: Vec<u8>,
    /// The line at hand is output.
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

    /// Takes in a piece; `keep` gets what is output.
    pub(super) fn filter(&mut self, mut bytes: &[u8], keep: &mut dyn FnMut(&[u8])) {
        while !bytes.is_empty() {
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let (piece, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
            bytes = rest;
            self.filter_piece(piece, end.is_some(), keep);
        }
    }

    /// A piece of one line, its end included where `ends`.
    fn filter_piece(&mut self, piece: &[u8], ends: bool, keep: &mut dyn FnMut(&[u8])) {
        if self.is_output {
            keep(piece);
            self.is_output = !ends;
            return;
        }
        self.pending.extend_from_slice(piece);
        let known = self.pending.len().min(self.prefix.len());
        let may_be = self.pending[..known] == self.prefix[..known];
        // The line end counts as a byte here, which makes the limit one looser.
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

    /// What was held back and turned out to be output, or was cut off.
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

    /// What is kept of these pieces, and what is set aside.
    fn filter_pieces(pieces: &[&[u8]]) -> (Vec<u8>, Vec<Vec<u8>>) {
        let mut aside = Vec::new();
        let mut kept = Vec::new();
        let mut take = |line: &[u8]| {
            let wanted = !line.starts_with(b"no");
            if wanted {
                aside.push(line.to_vec());
            }
            wanted
        };
        let mut sieve = LineFilter::new("say ", 20, &mut take);
        for piece in pieces {
            sieve.filter(piece, &mut |bytes| kept.extend_from_slice(bytes));
        }
        sieve.flush(&mut |bytes| kept.extend_from_slice(bytes));
        (kept, aside)
    }

    #[test]
    fn lines_of_the_kind_are_set_aside_and_all_else_is_kept() {
        let (kept, aside) =
            filter_pieces(&[b"a\nsay one\nsaying\n\nsay no more\nb say x\nsay two\nsa"]);
        assert_eq!(aside, [b"one".to_vec(), b"two".to_vec()]);
        assert_eq!(kept, b"a\nsaying\n\nsay no more\nb say x\nsa");
        let (kept, aside) = filter_pieces(&[b"say cut off"]);
        assert_eq!((kept.as_slice(), aside.len()), (&b"say cut off"[..], 0));
        let (kept, aside) = filter_pieces(&[b"say \nsay\n"]);
        assert_eq!((kept.as_slice(), aside), (&b"say\n"[..], vec![Vec::new()]));
    }

    #[test]
    fn a_line_without_end_is_held_no_longer_than_allowed() {
        let (kept, aside) =
            filter_pieces(&[b"say 0123456789abcdef\nsay 0123456789abcdefg\nsay x\n"]);
        assert_eq!(aside, [b"0123456789abcdef".to_vec(), b"x".to_vec()]);
        assert_eq!(kept, b"say 0123456789abcdefg\n");
        let flood = [b"say ".to_vec(), vec![b'x'; 100_000], b"\nsay y\n".to_vec()].concat();
        let (kept, aside) = filter_pieces(&[&flood]);
        assert_eq!((kept.len(), aside), (100_005, vec![b"y".to_vec()]));
    }

    proptest! {
        #[test]
        fn how_it_arrives_makes_no_difference(text in "(say |no|\n|sa|[a-c]{0,24}){0,24}", cuts in proptest::collection::vec(0..80usize, 0..8)) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            prop_assert_eq!(filter_pieces(&pieces), filter_pieces(&[bytes]));
        }
    }
}
