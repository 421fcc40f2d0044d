//! Computes the numbers of timed copies. Pure.
//!
//! Bytes are counted once, even if memory is both read and written (a local copy), like in
//! nvbandwidth.

use super::cases::{CopyMeasure, NumberBasis};
use super::timing::LaneTimes;

/// The number of these copies; `None` if their time is zero.
pub(crate) fn compute_number(
    measure: CopyMeasure,
    of: NumberBasis,
    copies: usize,
    bytes: &[usize],
    times: &LaneTimes,
) -> Option<f64> {
    let rate = |bytes: usize, seconds: f64| {
        let moved = bytes as f64 * copies as f64;
        (0.0 < seconds).then(|| moved / seconds / 1e9)
    };
    let one = |nth: usize| rate(*bytes.get(nth)?, *times.each.get(nth)?);
    match (measure, of) {
        (CopyMeasure::Latency, _) => {
            let seconds = *times.each.first()?;
            (0.0 < seconds).then(|| seconds / copies as f64 * 1e6)
        }
        (CopyMeasure::Bandwidth, NumberBasis::One(nth)) => one(nth),
        (CopyMeasure::Bandwidth, NumberBasis::FirstTwo) => Some(one(0)? + one(1)?),
        (CopyMeasure::Bandwidth, NumberBasis::All) => rate(bytes.iter().sum(), times.all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(each: &[f64], all: f64) -> LaneTimes {
        LaneTimes { each: each.to_vec(), all }
    }

    #[test]
    fn bandwidth_is_bytes_copied_once_in_decimal_gigabytes() {
        // 16 copies of 512 MiB in a tenth of a second; a local copy is counted once too.
        let bytes = [512 << 20];
        let got = compute_number(
            CopyMeasure::Bandwidth,
            NumberBasis::One(0),
            16,
            &bytes,
            &times(&[0.1], 0.1),
        );
        assert!((got.expect("a number") - 85.899_345_92).abs() < 1e-9);
    }

    #[test]
    fn a_total_uses_the_overall_time_and_a_sum_the_time_of_each_copy() {
        let bytes = [1_000_000_000, 1_000_000_000];
        let times = times(&[0.5, 1.0], 1.0);
        let of =
            |of| compute_number(CopyMeasure::Bandwidth, of, 1, &bytes, &times).expect("a number");
        assert!((of(NumberBasis::All) - 2.0).abs() < 1e-12);
        assert!((of(NumberBasis::FirstTwo) - 3.0).abs() < 1e-12);
        assert!((of(NumberBasis::One(1)) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_latency_is_the_time_of_one_copy_in_microseconds() {
        let got = compute_number(
            CopyMeasure::Latency,
            NumberBasis::One(0),
            100,
            &[16],
            &times(&[0.000_25], 0.0),
        );
        assert!((got.expect("a number") - 2.5).abs() < 1e-12);
    }

    #[test]
    fn a_time_of_zero_gives_no_number() {
        let nothing = times(&[0.0], 0.0);
        for of in [NumberBasis::One(0), NumberBasis::All, NumberBasis::FirstTwo] {
            assert_eq!(compute_number(CopyMeasure::Bandwidth, of, 1, &[8], &nothing), None);
        }
        assert_eq!(
            compute_number(CopyMeasure::Latency, NumberBasis::One(0), 1, &[8], &nothing),
            None
        );
    }
}
