//! Measurement noise from a seed: the same key gives the same reading, in any order and on any
//! machine.
//!
//! Every reading has a short stream of its own, seeded by its identity (seed, test, ends,
//! repetition), so that adding a test does not change the others. Only additions and products of
//! doubles are used: transcendental functions differ between C libraries in the last digit, and
//! recordings are compared byte for byte.

use serde::Deserialize;

/// Distribution of readings.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SimNoise {
    /// Relative standard deviation. A copy engine over NVLink has 0.06 to 0.2 %, collectives and
    /// NICs 1 to 3 %.
    pub sigma: f64,
    /// Share of readings that dip: real distributions have their tail on the low side.
    pub dip_rate: f64,
    /// Smallest and largest dip, as a fraction of the reading.
    pub dip_depth: [f64; 2],
}

impl Default for SimNoise {
    fn default() -> Self {
        Self { sigma: 0.001, dip_rate: 0.0, dip_depth: [0.05, 0.40] }
    }
}

impl SimNoise {
    /// The ratio of this reading to the truth.
    pub fn factor(&self, key: NoiseKey) -> f64 {
        let mut stream = NoiseStream::new(key);
        // Extreme settings could otherwise make the factor negative.
        let mut factor = (1.0 + self.sigma * stream.normal()).max(0.01);
        if stream.uniform() < self.dip_rate {
            let [least, most] = self.dip_depth;
            factor *= 1.0 - (least + (most - least) * stream.uniform());
        }
        factor
    }
}

/// Identity of a reading, folded into one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoiseKey(u64);

impl NoiseKey {
    /// The key of all readings under this seed.
    pub fn from_seed(seed: u64) -> Self {
        Self(mix_bits(seed))
    }

    /// A narrower key.
    #[must_use]
    pub fn with_part(self, part: u64) -> Self {
        Self(mix_bits(self.0 ^ mix_bits(part)))
    }

    /// A narrower key, by name.
    #[must_use]
    pub fn with_name(self, name: &str) -> Self {
        name.bytes()
            .fold(self.with_part(name.len() as u64), |key, byte| key.with_part(u64::from(byte)))
    }

    /// The key as a number, for names and identifiers that must look random.
    pub fn value(self) -> u64 {
        self.0
    }

    /// A fraction in [0, 1) that belongs to this key.
    pub fn fraction(self) -> f64 {
        NoiseStream::new(self).uniform()
    }
}

/// The output function of SplitMix64 (Steele, Lea, Flood 2014).
fn mix_bits(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// xoshiro256++ (Blackman, Vigna 2019), seeded with SplitMix64 as its authors recommend.
struct NoiseStream {
    state: [u64; 4],
}

impl NoiseStream {
    fn new(key: NoiseKey) -> Self {
        let mut seed = key.0;
        let state = std::array::from_fn(|_| {
            seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
            mix_bits(seed)
        });
        Self { state }
    }

    fn next(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A double in [0, 1): the upper 53 bits.
    fn uniform(&mut self) -> f64 {
        let bits = (self.next() >> 11) as f64;
        bits / 9_007_199_254_740_992.0
    }

    /// A nearly normal number: twelve uniforms have variance 1 and need no
    /// logarithm. Its tail ends at six standard deviations, which dips replace.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_reproduces_its_readings_and_another_does_not() {
        let noise = SimNoise { sigma: 0.01, dip_rate: 0.1, ..SimNoise::default() };
        let read = |seed| {
            (0..50)
                .map(|i| noise.factor(NoiseKey::from_seed(seed).with_name("x").with_part(i)))
                .collect::<Vec<_>>()
        };
        assert_eq!(read(1), read(1));
        assert_ne!(read(1), read(2));
    }

    #[test]
    fn readings_scatter_as_configured_and_dip_to_the_low_side() {
        let noise = SimNoise { sigma: 0.01, dip_rate: 0.0, dip_depth: [0.05, 0.4] };
        let n = 20_000;
        let all: Vec<f64> =
            (0..n).map(|i| noise.factor(NoiseKey::from_seed(3).with_part(i))).collect();
        let mean = all.iter().sum::<f64>() / 20_000.0;
        let sigma = (all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 20_000.0).sqrt();
        assert!((mean - 1.0).abs() < 5e-4 && (sigma - 0.01).abs() < 5e-4, "{mean} {sigma}");
        let dipping = SimNoise { dip_rate: 0.05, ..noise };
        let dips =
            (0..n).filter(|i| dipping.factor(NoiseKey::from_seed(3).with_part(*i)) < 0.94).count();
        assert!((700..1300).contains(&dips), "{dips}");
    }
}
