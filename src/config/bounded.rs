//! Values of the configuration that check themselves when they are read. The error of a value has
//! its place in the file; `config::describe_toml_error` adds the key.

use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use serde_json::Value;

/// Seconds from 0 to a day.
pub type Seconds = BoundedNumber<0, 86_400_000>;

/// Hours from 0 to a year.
pub type Hours = BoundedNumber<0, 8_784_000>;

/// An integer from MIN to MAX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BoundedCount<const MIN: u32, const MAX: u32>(u32);

/// A number from MIN to MAX, which are thousandths: a timeout may begin at 0.1 s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoundedNumber<const MIN: u32, const MAX: u32>(f64);

/// A number above 0, to MAX.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PositiveNumber<const MAX: u32>(f64);

/// A program and its leading arguments.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(transparent)]
pub struct ProgramArgv(Vec<String>);

/// A value of an option of another program: not empty, and without blanks.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(transparent)]
pub struct OneWord(String);

impl<const MIN: u32, const MAX: u32> BoundedCount<MIN, MAX> {
    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }

    /// The number, as a size.
    pub fn size(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    fn check(value: u32) -> Result<Self, String> {
        match (MIN..=MAX).contains(&value) {
            true => Ok(Self(value)),
            false if MAX == u32::MAX => Err(format!("{value}, expected {MIN} or more")),
            false => Err(format!("{value}, expected {MIN} to {MAX}")),
        }
    }
}

impl<const MIN: u32, const MAX: u32> BoundedNumber<MIN, MAX> {
    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }

    /// The number of seconds, as a duration.
    pub fn duration(self) -> Duration {
        Duration::from_secs_f64(self.0)
    }

    /// The number of hours, in whole seconds.
    pub fn hours_in_seconds(self) -> i64 {
        #[expect(clippy::cast_possible_truncation, reason = "bounded by MAX")]
        let seconds = (self.0 * 3_600.0).round() as i64;
        seconds
    }

    fn check(value: f64) -> Result<Self, String> {
        let (min, max) = (f64::from(MIN) / 1e3, f64::from(MAX) / 1e3);
        match (min..=max).contains(&value) {
            true => Ok(Self(value)),
            false => Err(format!("{value}, expected {min} to {max}")),
        }
    }
}

impl<const MAX: u32> PositiveNumber<MAX> {
    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }

    fn check(value: f64) -> Result<Self, String> {
        match 0.0 < value && value <= f64::from(MAX) {
            true => Ok(Self(value)),
            false => Err(format!("{value}, expected more than 0, to {MAX}")),
        }
    }
}

impl OneWord {
    /// The text.
    pub fn into_text(self) -> String {
        self.0
    }
}

impl ProgramArgv {
    /// The words.
    pub fn into_words(self) -> Vec<String> {
        self.0
    }
}

/// Reads the number types: from TOML, from the command line, and from a constant.
macro_rules! read_number {
    ($($name:ident<$(const $bound:ident),+>: $number:ty),+ $(,)?) => {$(
        impl<$(const $bound: u32),+> From<$number> for $name<$($bound),+> {
            /// A value that the program fixes.
            ///
            /// # Panics
            /// Where it is out of range.
            fn from(value: $number) -> Self {
                Self::check(value).unwrap_or_else(|why| panic!("{why}"))
            }
        }

        impl<'de, $(const $bound: u32),+> Deserialize<'de> for $name<$($bound),+> {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                Self::check(<$number>::deserialize(from)?).map_err(D::Error::custom)
            }
        }

        impl<$(const $bound: u32),+> FromStr for $name<$($bound),+> {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                Self::check(parse_number(text)?)
            }
        }
    )+};
}
read_number!(
    BoundedCount<const MIN, const MAX>: u32,
    BoundedNumber<const MIN, const MAX>: f64,
    PositiveNumber<const MAX>: f64,
);

fn parse_number<N: FromStr<Err: Display>>(text: &str) -> Result<N, String> {
    text.parse().map_err(|error: N::Err| format!("expected a number: {error}"))
}

/// Reads a text that passes a check; the error is the text and what was expected.
pub(crate) fn read_checked<'de, D: Deserializer<'de>>(
    from: D,
    is_good: impl Fn(&str) -> bool,
    expected: &str,
) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    match is_good(&text) {
        true => Ok(text),
        false => Err(D::Error::custom(format!("{text:?}, expected {expected}"))),
    }
}

impl<'de> Deserialize<'de> for OneWord {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let is_word = |text: &str| {
            !text.is_empty() && !text.chars().any(|c| c.is_whitespace() || c.is_control())
        };
        read_checked(from, is_word, "one argument").map(Self)
    }
}

impl<'de> Deserialize<'de> for ProgramArgv {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let words = Vec::<String>::deserialize(from)?;
        match words.first().is_none_or(String::is_empty) {
            true => Err(D::Error::custom("empty, expected a program and its arguments")),
            false => Ok(Self(words)),
        }
    }
}

impl<const MIN: u32, const MAX: u32> JsonSchema for BoundedCount<MIN, MAX> {
    fn schema_name() -> Cow<'static, str> {
        format!("Count{MIN}To{MAX}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": MIN, "maximum": MAX })
    }
}

impl<const MIN: u32, const MAX: u32> JsonSchema for BoundedNumber<MIN, MAX> {
    fn schema_name() -> Cow<'static, str> {
        format!("Thousandths{MIN}To{MAX}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let bound = |thousandths: u32| match thousandths % 1_000 {
            0 => Value::from(thousandths / 1_000),
            _ => Value::from(f64::from(thousandths) / 1e3),
        };
        json_schema!({ "type": "number", "minimum": bound(MIN), "maximum": bound(MAX) })
    }
}

impl<const MAX: u32> JsonSchema for PositiveNumber<MAX> {
    fn schema_name() -> Cow<'static, str> {
        format!("NumberAbove0To{MAX}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number", "exclusiveMinimum": 0, "maximum": MAX })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Section {
        count: Option<BoundedCount<1, 9>>,
        seconds: Option<Seconds>,
        share: Option<PositiveNumber<1>>,
        program: Option<ProgramArgv>,
    }

    #[test]
    fn a_value_out_of_range_is_an_error_at_its_place() {
        for (text, at, expected) in [
            ("count = 0", 8, "0, expected 1 to 9"),
            ("count = 10", 8, "10, expected 1 to 9"),
            ("seconds = -1.0", 10, "-1, expected 0 to 86400"),
            ("seconds = nan", 10, "NaN, expected 0 to 86400"),
            ("share = 0.0", 8, "0, expected more than 0, to 1"),
            ("share = 1.5", 8, "1.5, expected more than 0, to 1"),
            ("program = []", 10, "empty, expected a program"),
            ("program = [\"\"]", 10, "empty, expected a program"),
        ] {
            let error = toml::from_str::<Section>(text).expect_err(text);
            assert!(error.message().starts_with(expected), "{text}: {error}");
            assert_eq!(error.span().map(|span| span.start), Some(at), "{text}");
        }
        let all = "count = 9\nseconds = 5\nshare = 1\nprogram = [\"a\", \"\"]";
        let read: Section = toml::from_str(all).expect("good");
        assert_eq!(read.count.map(BoundedCount::get), Some(9));
        assert_eq!(read.seconds.map(BoundedNumber::duration), Some(Duration::from_secs(5)));
        assert_eq!(read.share.map(PositiveNumber::get), Some(1.0));
        assert_eq!(read.program.map(ProgramArgv::into_words), Some(vec!["a".into(), "".into()]));
    }

    #[test]
    fn an_option_of_the_command_line_has_the_same_range() {
        assert_eq!("9".parse(), Ok(BoundedCount::<1, 9>(9)));
        assert_eq!("0".parse::<BoundedCount<1, 9>>(), Err("0, expected 1 to 9".to_owned()));
        assert!("x".parse::<Seconds>().is_err_and(|why| why.starts_with("expected a number")));
    }
}
