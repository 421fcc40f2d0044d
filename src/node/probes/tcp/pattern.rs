//! The payload, known to both sides, so that the receiver can check content and position of the
//! received data.

/// Length of the pattern: near iperf3's block of 128 KiB, and a prime (2^17 - 1), so that data
/// shifted by a power of two does not match by chance.
const PERIOD: usize = 131_071;

/// Bytes to compare of each received piece. Comparing all of them would cost the receiver a third
/// of its throughput at memory speed.
const COMPARED_BYTES: usize = 2_048;

/// Offset in the pattern from one stream to the next.
const STEP: usize = 7_919;

/// The repeating pattern of one session.
#[derive(Debug)]
pub(super) struct TcpPattern {
    /// Two periods, so that a whole period follows every position.
    bytes: Vec<u8>,
}

impl TcpPattern {
    pub(super) fn new(session: u64) -> Self {
        // xorshift64* (Vigna, "An experimental exploration of Marsaglia's
        // xorshift generators, scrambled", 2016).
        // The constant (the golden ratio) only separates small numbers; zero is the one state that
        // never changes.
        let mut state = (session ^ 0x9E37_79B9_7F4A_7C15).max(1);
        let mut bytes = Vec::with_capacity(2 * PERIOD + 8);
        while bytes.len() < PERIOD {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            bytes.extend_from_slice(&state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
        }
        bytes.truncate(PERIOD);
        bytes.extend_from_within(..);
        Self { bytes }
    }

    /// Position of a stream in the pattern after this many bytes.
    pub(super) fn position(stream: usize, bytes: u64) -> usize {
        let period = PERIOD as u64;
        let at = (bytes % period + (stream * STEP) as u64) % period;
        usize::try_from(at).expect("less than the period, which is a usize")
    }

    /// A whole period from this position on.
    pub(super) fn bytes_from(&self, position: usize) -> &[u8] {
        &self.bytes[position..position + PERIOD]
    }

    /// True if the compared part of a piece received at this position is correct.
    pub(super) fn matches(&self, position: usize, piece: &[u8]) -> bool {
        let compared = piece.len().min(COMPARED_BYTES);
        self.bytes_from(position)[..compared] == piece[..compared]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_matches_only_at_its_position() {
        let pattern = TcpPattern::new(7);
        let at = TcpPattern::position(3, 5_000_000_000);
        let piece = pattern.bytes_from(at)[..4096].to_vec();
        assert!(pattern.matches(at, &piece));
        for moved in [1, 2, 64, 1460, 4096, 65_536] {
            assert!(!pattern.matches((at + moved) % PERIOD, &piece), "moved by {moved}");
        }
        let mut damaged = piece;
        damaged[17] ^= 1;
        assert!(!pattern.matches(at, &damaged));
    }

    #[test]
    fn streams_start_apart_and_wrap_around() {
        assert_ne!(TcpPattern::position(0, 0), TcpPattern::position(1, 0));
        assert_eq!(TcpPattern::position(1, PERIOD as u64), TcpPattern::position(1, 0));
        assert_eq!(TcpPattern::new(0).bytes_from(PERIOD - 1).len(), PERIOD);
    }
}
