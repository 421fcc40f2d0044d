//! Normal random numbers for tests of statistics: seeded, and with exact tails.

/// Box and Muller (1958) over `SplitMix64` (Steele, Lea, Flood 2014).
#[derive(Debug)]
pub struct NormalSampler(u64);

impl NormalSampler {
    /// A sampler with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// The next number, of mean 0 and standard deviation 1.
    pub fn next_normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// The next `count` random numbers.
    pub fn take(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.next_normal()).collect()
    }
}
