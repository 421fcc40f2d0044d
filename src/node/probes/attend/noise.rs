//! What a child says on its standard error: what it is about to do, what a
//! library has to say, and what it died with.
//!
//! Pure. Bounded, whatever comes.

use std::collections::BTreeSet;
use std::collections::VecDeque;

use super::heard::clean;
use crate::probes::said::NEXT;

/// What lines of NCCL have in them, of which there is one per operation.
const CHATTER: &str = " NCCL ";
/// Those of them that are no complaint.
const INFORMATION: &str = " NCCL INFO ";

/// Different lines of a library that are kept.
const MOST_CHATTER: usize = 16_384;

/// Other lines that are kept: the last.
const MOST_WORDS: usize = 24;

/// Bytes of a line that are looked at.
const LONGEST: usize = 4_096;

/// What was heard.
#[derive(Clone, Debug, Default)]
pub(super) struct Noise {
    /// Pieces that came, so that silence can be told.
    pub(super) pieces: u64,
    /// What it is about to do.
    pub(super) doing: Option<String>,
    /// Lines of NCCL, each once, in the order they first came.
    pub(super) chatter: Vec<String>,
    /// The last lines of everybody else.
    pub(super) words: VecDeque<String>,
    known: BTreeSet<String>,
    line: Vec<u8>,
    /// The rest of this line is not looked at.
    is_cut: bool,
}

impl Noise {
    /// Takes a piece.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        self.pieces += 1;
        for byte in bytes {
            if *byte == b'\n' {
                self.end_line();
            } else if self.line.len() < LONGEST {
                self.line.push(*byte);
            } else {
                self.is_cut = true;
            }
        }
    }

    /// Nothing more will come.
    pub(super) fn close(&mut self) {
        // A plan that was not told to its end was not begun.
        if !self.line.starts_with(NEXT.as_bytes()) {
            self.end_line();
        }
    }

    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&self.line).into_owned();
        self.line.clear();
        let is_cut = std::mem::take(&mut self.is_cut);
        if let Some(doing) = line.strip_prefix(NEXT) {
            self.doing = Some(clean(doing));
            return;
        }
        if line.contains(CHATTER) && !is_cut {
            if self.known.len() < MOST_CHATTER && self.known.insert(line.clone()) {
                self.chatter.push(line.clone());
            }
            if line.contains(INFORMATION) {
                return;
            }
        }
        let line = clean(&line);
        if !line.is_empty() {
            self.words.push_back(line);
            if MOST_WORDS < self.words.len() {
                self.words.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(text: &str) -> Noise {
        let mut noise = Noise::default();
        for piece in text.as_bytes().chunks(7) {
            noise.take(piece);
        }
        noise.close();
        noise
    }

    #[test]
    fn plans_and_chatter_and_last_words_are_told_apart() {
        let said = "next: cuInit\nn1:1:2 [0] NCCL INFO Channel 00 via P2P\nnext: x\n\
            n1:1:2 [0] NCCL INFO Channel 00 via P2P\nx.cc:1 NCCL WARN odd\nterminate:\u{7}\n";
        let noise = heard(said);
        assert_eq!(noise.doing.as_deref(), Some("x"));
        assert_eq!(noise.chatter.len(), 2);
        assert_eq!(noise.words, ["x.cc:1 NCCL WARN odd", "terminate:"]);
    }

    #[test]
    fn a_plan_that_is_cut_off_is_none() {
        let noise = heard("next: first\nnext: sec");
        assert_eq!(noise.doing.as_deref(), Some("first"));
        assert_eq!(heard("last words").words, ["last words"]);
    }

    #[test]
    fn a_flood_is_bounded() {
        let mut noise = Noise::default();
        noise.take(&vec![b'x'; 1 << 20]);
        for number in 0..100_000 {
            noise.take(format!("a: NCCL INFO {number}\nword {number}\n").as_bytes());
        }
        assert_eq!((noise.chatter.len(), noise.words.len()), (MOST_CHATTER, MOST_WORDS));
        assert_eq!(noise.words.back().map(String::as_str), Some("word 99999"));
    }
}
