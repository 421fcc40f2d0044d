//! Test data of source buffers, and its comparison.
//!
//! Every word encodes its position and its buffer. The first word of each of 64 blocks is a stamp
//! that identifies the copy, so that data of an earlier copy is detected. Pure; no GPU.

pub(crate) const WORD: usize = 4;

/// Blocks of a buffer, each with a stamp.
const BLOCKS: usize = 64;

/// Threads for writing and comparing: a few saturate the memory bandwidth.
const THREADS: usize = 8;

/// Minimum size that justifies a second thread.
const MIN_PART_BYTES: usize = 1 << 22;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyPattern {
    /// Identifies the buffer.
    pub(crate) seed: u32,
    /// Identifies the copy.
    pub(crate) stamp: u32,
    /// Bytes of the whole buffer; a multiple of a word.
    pub(crate) bytes: usize,
}

/// A difference between data and pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataDifference {
    /// Number of different words.
    pub(crate) words: u64,
    /// Byte offset of the first one.
    pub(crate) first: usize,
    pub(crate) found: u32,
    pub(crate) expected: u32,
}

impl DataDifference {
    /// Combines this difference with one of later data.
    pub(crate) fn merge(self, later: Self) -> Self {
        Self { words: self.words + later.words, ..self }
    }
}

/// A 32-bit hash of these parts (FNV-1a).
pub(crate) fn hash_parts(parts: &[&str]) -> u32 {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0xff]));
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

impl CopyPattern {
    /// Distance of stamps in bytes.
    pub(crate) fn block_bytes(&self) -> usize {
        let words = self.bytes / WORD;
        words.div_ceil(BLOCKS).max(1) * WORD
    }

    /// Byte offsets of the stamps.
    pub(crate) fn stamps(&self) -> impl Iterator<Item = usize> {
        (0..self.bytes).step_by(self.block_bytes())
    }

    /// The word that clears the destination: one that never occurs twice in a row in the expected
    /// data.
    pub(crate) fn poison(&self) -> u32 {
        !self.stamp
    }

    /// Index of the word at this offset, in 32 bits: it wraps around after 16 GiB.
    fn word_index(at: usize) -> u32 {
        u32::try_from((at / WORD) & 0xffff_ffff).expect("32 bits")
    }

    /// The word with this index. Words of one buffer differ up to 16 GiB, since the factor is odd.
    fn word(self, index: u32) -> u32 {
        // 2^32 divided by the golden ratio: adjacent words differ in all bytes.
        let spread = index.wrapping_mul(0x9e37_79b1).wrapping_add(self.seed);
        spread ^ (spread >> 15)
    }

    /// The expected word at this offset.
    fn expected_word(self, at: usize) -> u32 {
        if at.is_multiple_of(self.block_bytes()) {
            self.stamp
        } else {
            self.word(Self::word_index(at))
        }
    }

    /// Splits a part into pieces between stamps, and returns the bounds of each piece.
    fn pieces(self, from: usize, bytes: usize) -> impl Iterator<Item = (usize, usize)> {
        let (block, mut at) = (self.block_bytes(), 0);
        std::iter::from_fn(move || {
            let start = at;
            at = bytes.min(at + block - (from + at) % block);
            (start < at).then_some((start, at))
        })
    }

    /// Writes the part of the pattern that begins at this byte.
    pub(crate) fn write(&self, from: usize, part: &mut [u8]) {
        let this = *self;
        for_each_part(part, move |start, part| {
            let from = from + start;
            for (start, end) in this.pieces(from, part.len()) {
                let words = part[start..end].as_chunks_mut::<WORD>().0;
                let first = Self::word_index(from + start);
                for (word, nth) in words.iter_mut().zip(0u32..) {
                    *word = this.word(first.wrapping_add(nth)).to_ne_bytes();
                }
                if let Some(word) = words.first_mut() {
                    *word = this.expected_word(from + start).to_ne_bytes();
                }
            }
        });
    }

    pub(crate) fn write_stamps(&self, whole: &mut [u8]) {
        for at in self.stamps() {
            if let Some(place) = whole.get_mut(at..at + WORD) {
                place.copy_from_slice(&self.stamp.to_ne_bytes());
            }
        }
    }

    pub(crate) fn clear(&self, part: &mut [u8]) {
        let poison = self.poison().to_ne_bytes();
        for_each_part(part, move |_, part| {
            for word in part.as_chunks_mut::<WORD>().0 {
                *word = poison;
            }
        });
    }

    /// Compares data that begins at this byte with the pattern.
    pub(crate) fn compare(&self, from: usize, part: &[u8]) -> Option<DataDifference> {
        let each = bytes_per_thread(part.len());
        let found: Vec<Option<DataDifference>> = std::thread::scope(|scope| {
            let parts = part.chunks(each).enumerate();
            let threads: Vec<_> = parts
                .map(|(nth, part)| scope.spawn(move || self.compare_here(from + nth * each, part)))
                .collect();
            threads.into_iter().map(|it| it.join().expect("comparing does not panic")).collect()
        });
        found.into_iter().flatten().reduce(DataDifference::merge)
    }

    fn compare_here(&self, from: usize, part: &[u8]) -> Option<DataDifference> {
        let mut difference: Option<DataDifference> = None;
        for (start, end) in self.pieces(from, part.len()) {
            let words = part[start..end].as_chunks::<WORD>().0;
            let Some((first, rest)) = words.split_first() else { continue };
            let at = from + start;
            let index = Self::word_index(at).wrapping_add(1);
            // Correct data is compared without a branch per word.
            let differ = rest.iter().zip(0u32..).fold(0, |differ, (word, nth)| {
                differ | (u32::from_ne_bytes(*word) ^ self.word(index.wrapping_add(nth)))
            });
            if differ | (u32::from_ne_bytes(*first) ^ self.expected_word(at)) != 0 {
                let here = self.differences(at, words);
                difference = difference.into_iter().chain(here).reduce(DataDifference::merge);
            }
        }
        difference
    }

    /// The different words, compared one by one.
    fn differences(&self, at: usize, words: &[[u8; WORD]]) -> Option<DataDifference> {
        let here = words.iter().enumerate().map(|(nth, word)| {
            let first = at + nth * WORD;
            let (found, expected) = (u32::from_ne_bytes(*word), self.expected_word(first));
            DataDifference { words: 1, first, found, expected }
        });
        here.filter(|it| it.found != it.expected).reduce(DataDifference::merge)
    }
}

/// Bytes per thread, in whole words.
fn bytes_per_thread(bytes: usize) -> usize {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(THREADS));
    bytes.div_ceil(threads).max(MIN_PART_BYTES).next_multiple_of(WORD)
}

/// Runs this on parts of a buffer in parallel; it receives the offset of each part.
fn for_each_part(whole: &mut [u8], work: impl Fn(usize, &mut [u8]) + Send + Sync) {
    let each = bytes_per_thread(whole.len());
    if whole.len() <= each {
        return work(0, whole);
    }
    std::thread::scope(|scope| {
        for (nth, part) in whole.chunks_mut(each).enumerate() {
            let work = &work;
            scope.spawn(move || work(nth * each, part));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(bytes: usize) -> CopyPattern {
        CopyPattern { seed: hash_parts(&["n1", "0"]), stamp: hash_parts(&["first"]), bytes }
    }

    fn written(pattern: &CopyPattern) -> Vec<u8> {
        let mut data = vec![0; pattern.bytes];
        pattern.write(0, &mut data);
        data
    }

    #[test]
    fn written_data_matches_at_every_size_and_offset() {
        for bytes in [4, 16, 4096, 1_000_004, (4 << 22) + 12] {
            let pattern = pattern(bytes);
            let data = written(&pattern);
            assert_eq!(pattern.compare(0, &data), None, "{bytes}");
            let half = bytes / 8 * 4;
            assert_eq!(pattern.compare(half, &data[half..]), None, "{bytes}");
        }
    }

    #[test]
    fn one_flipped_bit_is_found_at_its_place() {
        let pattern = pattern(1 << 20);
        let mut data = written(&pattern);
        data[777_778] ^= 1;
        let found = pattern.compare(0, &data).expect("a difference");
        assert_eq!((found.words, found.first), (1, 777_776));
        assert_eq!(found.found ^ found.expected, 1 << 16);
    }

    #[test]
    fn differences_are_counted_over_all_parts_and_the_first_is_reported() {
        let pattern = pattern(3 * MIN_PART_BYTES);
        let mut data = written(&pattern);
        for at in [MIN_PART_BYTES + 8, 2 * MIN_PART_BYTES + 8, 2 * MIN_PART_BYTES + 16] {
            data[at] ^= 0x80;
        }
        let found = pattern.compare(0, &data).expect("a difference");
        assert_eq!((found.words, found.first), (3, MIN_PART_BYTES + 8));
    }

    #[test]
    fn a_cleared_buffer_differs_in_every_word() {
        let pattern = pattern(1 << 16);
        let mut data = written(&pattern);
        pattern.clear(&mut data);
        assert_eq!(pattern.compare(0, &data).expect("a difference").words, 1 << 14);
    }

    #[test]
    fn data_of_an_earlier_copy_or_of_another_buffer_does_not_match() {
        let old = pattern(1 << 16);
        let mut data = written(&old);
        let new = CopyPattern { stamp: hash_parts(&["second"]), ..old };
        assert_eq!(new.compare(0, &data).expect("a difference").words, 64);
        new.write_stamps(&mut data);
        assert_eq!(new.compare(0, &data), None);
        let other = CopyPattern { seed: hash_parts(&["n1", "1"]), ..new };
        assert!((1 << 14) - 100 < other.compare(0, &data).expect("a difference").words);
    }

    #[test]
    fn shifted_data_does_not_match() {
        let pattern = pattern(1 << 16);
        let data = written(&pattern);
        for by in [4, 128, 4096] {
            let mut moved = data.clone();
            moved.copy_within(by.., 0);
            assert!(1000 < pattern.compare(0, &moved).expect("a difference").words, "{by}");
        }
    }
}
