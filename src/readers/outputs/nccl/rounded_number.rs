//! Rounded numbers of a tool, with the range of the true value.
//!
//! Checks compare ranges, so rounding alone never looks like a contradiction. This module does not
//! know a number's meaning.

use crate::outputs::text;

/// A printed number and half a unit of its last printed digit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RoundedNumber {
    /// The number as printed.
    pub(super) value: f64,
    half: f64,
}

impl RoundedNumber {
    /// The number in this token; `None` if it is not a finite number.
    pub(super) fn parse(word: &str) -> Option<Self> {
        let value = text::parse_number(word)?;
        let (mantissa, exponent) = match word.find(['e', 'E']) {
            Some(at) => (&word[..at], word[at + 1..].parse::<i32>().ok()?),
            None => (word, 0),
        };
        let decimals = mantissa.find('.').map_or(0, |at| mantissa.len() - at - 1);
        let decimals = i32::try_from(decimals).ok()?;
        Some(Self { value, half: 0.5 * 10f64.powi(exponent.saturating_sub(decimals)) })
    }

    /// A number with this many printed decimals.
    pub(super) fn with_decimals(value: f64, decimals: i32) -> Self {
        Self { value, half: 0.5 * 10f64.powi(-decimals) }
    }

    /// A number printed with `%g`, which keeps six significant digits but drops trailing zeros, so
    /// its length does not show its precision.
    pub(super) fn with_six_digits(value: f64) -> Self {
        let magnitude = if value == 0.0 { -6.0 } else { value.abs().log10().floor() };
        Self { value, half: 0.5 * 10f64.powf(magnitude - 5.0) }
    }

    /// The range of true values that print like this.
    pub(super) fn range(self) -> NumberRange {
        // Values exactly on a boundary may be rounded either way.
        let slack = self.half * (1.0 + 1e-6) + self.value.abs() * 1e-12;
        NumberRange { low: self.value - slack, high: self.value + slack }
    }
}

/// A closed range of numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct NumberRange {
    pub(super) low: f64,
    pub(super) high: f64,
}

impl NumberRange {
    /// Every non-negative number.
    pub(super) const ANY: Self = Self { low: 0.0, high: f64::INFINITY };

    /// One number, within the error of binary rounding.
    pub(super) fn from_value(value: f64) -> Self {
        Self { low: value * (1.0 - 1e-9), high: value * (1.0 + 1e-9) }
    }

    pub(super) fn overlaps(self, other: Self) -> bool {
        self.low <= other.high && other.low <= self.high
    }

    /// `self / other` for non-negative numbers.
    pub(super) fn divide(self, other: Self) -> Self {
        let low = if other.high <= 0.0 { 0.0 } else { self.low.max(0.0) / other.high };
        let high = if other.low <= 0.0 { f64::INFINITY } else { self.high / other.low };
        Self { low, high }
    }

    /// The range widened by this share on both sides.
    pub(super) fn widen(self, share: f64) -> Self {
        Self { low: self.low - self.low.abs() * share, high: self.high + self.high.abs() * share }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_digit_gives_the_range() {
        for (word, low, high) in
            [("12.34", 12.335, 12.345), ("13552", 13551.5, 13552.5), ("1.5e+06", 1.45e6, 1.55e6)]
        {
            let range = RoundedNumber::parse(word).expect("a number").range();
            assert!(
                (range.low / low - 1.0).abs() < 1e-6 && (range.high / high - 1.0).abs() < 1e-6,
                "{word}"
            );
        }
        assert_eq!(RoundedNumber::parse("inf"), None);
    }

    #[test]
    fn six_significant_digits_are_that_precise_even_when_zeros_are_dropped() {
        let range = RoundedNumber::with_six_digits(210.0).range();
        assert!(
            range.overlaps(NumberRange::from_value(210.0004))
                && !range.overlaps(NumberRange::from_value(210.002))
        );
    }

    #[test]
    fn a_quotient_of_rounded_numbers_holds_the_true_one() {
        let factor = RoundedNumber::parse("0.11")
            .expect("a number")
            .range()
            .divide(RoundedNumber::parse("0.06").expect("a number").range());
        assert!(factor.low < 1.75 && 1.75 < factor.high);
        assert_eq!(
            NumberRange::from_value(1.0).divide(NumberRange { low: -0.1, high: 0.1 }).high,
            f64::INFINITY
        );
    }
}
