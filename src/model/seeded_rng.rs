//! Reproducible random numbers: the same seed and name give the same order, on every machine and
//! in every version.
//!
//! Not suitable for secrets.

/// `SplitMix64` (Steele, Lea, Flood, 2014).
#[derive(Clone, Debug)]
pub struct SeededRng {
    state: u64,
}

impl SeededRng {
    /// A generator for this seed and one purpose. Generators with other names are independent, so
    /// that an additional probe does not change the order of the others.
    pub fn new(seed: u64, name: &str) -> Self {
        // FNV-1a over the name: stable, unlike the standard hasher.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self { state: seed ^ hash }
    }

    /// The next random number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Shuffles the items (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let pick = self.next_u64() % (last as u64 + 1);
            items.swap(last, usize::try_from(pick).unwrap_or(0));
        }
    }
}
