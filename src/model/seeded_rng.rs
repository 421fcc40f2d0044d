//! Chance that can be repeated: the same seed and the same name give the same
//! order, on every machine and in every version.
//!
//! Nothing here is fit for secrets.

/// `SplitMix64` (Steele, Lea, Flood, 2014).
#[derive(Clone, Debug)]
pub struct SeededRng {
    state: u64,
}

impl SeededRng {
    /// Chance of this seed for one use. Uses of other names are independent,
    /// so that one more probe does not change the order of the others.
    pub fn new(seed: u64, name: &str) -> Self {
        // FNV-1a over the name: stable, which the standard hasher does not promise.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self { state: seed ^ hash }
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Puts items into an order of chance (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let pick = self.next_u64() % (last as u64 + 1);
            items.swap(last, usize::try_from(pick).unwrap_or(0));
        }
    }
}
