//! Typed access to the tables of a TOML file; collects every fault with its position instead of
//! stopping at the first.
//!
//! The `toml` crate parses and provides the spans; serde is not used here because it stops at the
//! first fault. `file` defines the keys.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fault::{ThresholdFault, suggest_name};

pub(super) type SpannedValue<'t> = Spanned<DeValue<'t>>;

/// Reads one file and collects its faults.
#[derive(Debug)]
pub(super) struct ThresholdReader<'t> {
    file: &'t str,
    text: &'t str,
    pub(super) faults: Vec<ThresholdFault>,
}

/// A table and the position of its header.
#[derive(Clone, Debug)]
pub(super) struct ThresholdTable<'s, 't> {
    pub(super) table: &'s DeTable<'t>,
    pub(super) span: Range<usize>,
}

impl<'s, 't> ThresholdTable<'s, 't> {
    pub(super) fn get(&self, key: &str) -> Option<&'s SpannedValue<'t>> {
        self.table.iter().find(|(k, _)| k.get_ref().as_ref() == key).map(|(_, value)| value)
    }
}

impl<'t> ThresholdReader<'t> {
    pub(super) fn new(file: &'t str, text: &'t str) -> Self {
        Self { file, text, faults: Vec::new() }
    }

    /// The parsed document. For invalid TOML, only the first fault is reported: the parser
    /// continues, but one lost bracket makes every later line wrong.
    pub(super) fn parse_document(&mut self) -> Option<Spanned<DeTable<'t>>> {
        match DeTable::parse(self.text) {
            Ok(document) => Some(document),
            Err(error) => {
                let message = error.message().lines().collect::<Vec<_>>().join(", ");
                let end = self.text.len();
                self.push_fault(error.span().unwrap_or(end..end), message);
                None
            }
        }
    }

    /// Records a fault and returns it, so that the caller can add help.
    pub(super) fn push_fault(
        &mut self,
        span: Range<usize>,
        message: impl Into<String>,
    ) -> &mut ThresholdFault {
        self.faults.push(self.make_fault(span, message));
        self.faults.last_mut().expect("one was just pushed")
    }

    /// Builds a fault without recording it: a warning.
    pub(super) fn make_fault(
        &self,
        span: Range<usize>,
        message: impl Into<String>,
    ) -> ThresholdFault {
        ThresholdFault::new(self.file, self.text, span, message.into())
    }

    pub(super) fn check_keys(&mut self, section: &ThresholdTable<'_, 't>, known: &[&str]) {
        for (key, _) in section.table {
            let name = key.get_ref().as_ref();
            if known.contains(&name) {
                continue;
            }
            let help = match suggest_name(name, known.iter().copied()) {
                Some(key) => format!("did you mean `{key}`?"),
                None => format!("known here: {}", known.join(", ")),
            };
            self.push_fault(key.span(), format!("unknown key `{name}`")).help = Some(help);
        }
    }

    /// The table under a key; a value of another type is a fault.
    pub(super) fn table<'s>(
        &mut self,
        section: &ThresholdTable<'s, 't>,
        key: &str,
    ) -> Option<ThresholdTable<'s, 't>> {
        let value = section.get(key)?;
        self.as_table(value, key)
    }

    pub(super) fn as_table<'s>(
        &mut self,
        value: &'s SpannedValue<'t>,
        name: &str,
    ) -> Option<ThresholdTable<'s, 't>> {
        match value.get_ref() {
            DeValue::Table(table) => Some(ThresholdTable { table, span: value.span() }),
            other => self.push_mistyped(value.span(), name, "a table", other),
        }
    }

    /// A non-blank string.
    pub(super) fn string(&mut self, section: &ThresholdTable<'_, 't>, key: &str) -> Option<String> {
        let value = section.get(key)?;
        self.as_string(value, key)
    }

    /// This value as a non-blank string.
    pub(super) fn as_string(&mut self, value: &SpannedValue<'t>, name: &str) -> Option<String> {
        match value.get_ref() {
            DeValue::String(text) if text.trim().is_empty() => {
                self.push_fault(value.span(), format!("`{name}` is empty"));
                None
            }
            DeValue::String(text) => Some(text.trim().to_owned()),
            other => self.push_mistyped(value.span(), name, "a string", other),
        }
    }

    pub(super) fn strings(
        &mut self,
        section: &ThresholdTable<'_, 't>,
        key: &str,
    ) -> Option<Vec<(String, Range<usize>)>> {
        let value = section.get(key)?;
        match value.get_ref() {
            DeValue::Array(items) => Some(
                items
                    .iter()
                    .filter_map(|item| Some((self.as_string(item, key)?, item.span())))
                    .collect(),
            ),
            other => self.push_mistyped(value.span(), key, "a list of strings", other),
        }
    }

    /// A finite number within the inclusive range.
    pub(super) fn number(
        &mut self,
        section: &ThresholdTable<'_, 't>,
        key: &str,
        low: f64,
        high: f64,
    ) -> Option<f64> {
        let value = section.get(key)?;
        let number = match value.get_ref() {
            DeValue::Float(float) => float.as_str().parse().ok(),
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str().parse().ok(),
            other => return self.push_mistyped(value.span(), key, "a number", other),
        };
        let number: Option<f64> = number.filter(|n: &f64| n.is_finite());
        match number {
            Some(number) if low <= number && number <= high => Some(number),
            _ => {
                self.push_fault(value.span(), format!("`{key}` is out of range")).help =
                    Some(format!("from {low} to {high}"));
                None
            }
        }
    }

    pub(super) fn flag(&mut self, section: &ThresholdTable<'_, 't>, key: &str) -> Option<bool> {
        let value = section.get(key)?;
        match value.get_ref() {
            DeValue::Boolean(flag) => Some(*flag),
            other => self.push_mistyped(value.span(), key, "true or false", other),
        }
    }

    /// A whole number within the inclusive range.
    pub(super) fn integer(
        &mut self,
        section: &ThresholdTable<'_, 't>,
        key: &str,
        low: u32,
        high: u32,
    ) -> Option<u32> {
        let value = section.get(key)?;
        self.as_integer(value, key, low, high)
    }

    /// This value as a whole number within the range.
    pub(super) fn as_integer(
        &mut self,
        value: &SpannedValue<'t>,
        name: &str,
        low: u32,
        high: u32,
    ) -> Option<u32> {
        let DeValue::Integer(integer) = value.get_ref() else {
            return self.push_mistyped(value.span(), name, "a whole number", value.get_ref());
        };
        let number = u32::from_str_radix(integer.as_str(), integer.radix()).ok();
        let number = number.filter(|n| low <= *n && *n <= high);
        if number.is_none() {
            self.push_fault(value.span(), format!("`{name}` is out of range")).help =
                Some(format!("from {low} to {high}"));
        }
        number
    }

    /// A size in bytes: a number, or text such as `8 GiB`.
    pub(super) fn bytes(&mut self, section: &ThresholdTable<'_, 't>, key: &str) -> Option<u64> {
        let value = section.get(key)?;
        let size = match value.get_ref() {
            DeValue::Integer(integer) => {
                u64::from_str_radix(integer.as_str(), integer.radix()).ok()
            }
            DeValue::String(text) => parse_size(text),
            other => return self.push_mistyped(value.span(), key, "a size", other),
        };
        let size = size.filter(|size| 0 < *size);
        if size.is_none() {
            self.push_fault(value.span(), format!("`{key}` is not a size")).help =
                Some("bytes, or a text such as \"8 GiB\"".to_owned());
        }
        size
    }

    /// One of these values.
    pub(super) fn choice<T: Copy>(
        &mut self,
        section: &ThresholdTable<'_, 't>,
        key: &str,
        choices: &[(&str, T)],
    ) -> Option<T> {
        let value = section.get(key)?;
        let text = self.as_string(value, key)?;
        if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == text) {
            return Some(*choice);
        }
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let help = match suggest_name(&text, names.iter().copied()) {
            Some(name) => format!("did you mean `{name}`?"),
            None => format!("one of {}", names.join(", ")),
        };
        self.push_fault(value.span(), format!("`{text}` is not a valid {key}")).help = Some(help);
        None
    }

    /// Reports that a key is missing in this table, unless `check_keys` already reported a
    /// misspelling of it.
    pub(super) fn push_missing(&mut self, section: &ThresholdTable<'_, 't>, key: &str, help: &str) {
        let misspelt =
            section.table.iter().any(|(other, _)| suggest_name(other.get_ref(), [key]).is_some());
        if misspelt {
            return;
        }
        // The span of a table covers its header; for the whole file, use only its start.
        let span = section.span.start
            ..self.text[section.span.clone()]
                .find('\n')
                .map_or(section.span.end, |end| section.span.start + end);
        self.push_fault(span, format!("`{key}` is missing")).help = Some(help.to_owned());
    }

    fn push_mistyped<T>(
        &mut self,
        span: Range<usize>,
        name: &str,
        wanted: &str,
        found: &DeValue<'_>,
    ) -> Option<T> {
        let message = format!("`{name}` is {wanted}, found {}", type_name(found));
        self.push_fault(span, message);
        None
    }
}

fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// Parses `8 GiB`, `512 MiB`, `64 KiB`, `8 B`.
fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = text.trim().split_once(' ')?;
    let factor: u64 = match unit.trim() {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}
