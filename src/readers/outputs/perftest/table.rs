//! The header of a table and its rows. The header's names determine the meaning of a number;
//! position alone never does.

use super::banner::PerftestQuantity;
use super::text;
use model::measurement::SeriesPoint;
use model::unit::Unit;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PerftestColumn {
    Bytes,
    Iterations,
    Peak,
    Average,
    MessageRate,
    Shortest,
    Longest,
    Mean,
    Percentile99,
    /// Known, but not stored: service level, ports, deviation, CPU load.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PerftestColumns {
    columns: Vec<PerftestColumn>,
    pub(super) quantity: PerftestQuantity,
    pub(super) unit: Option<Unit>,
}

/// The result of reading a line under a header.
#[derive(Debug, PartialEq)]
pub(super) enum PerftestRow {
    Whole(SeriesPoint),
    /// A row with an unreadable number.
    Damaged,
    /// A row with too few or too many numbers.
    Short,
    Other,
}

impl PerftestColumns {
    /// The columns in this line, if it is a header.
    pub(super) fn parse(text: &str) -> Option<Self> {
        // `BW peak[MB/sec]` and `BW peak [MB/sec]` are the same two tokens.
        let text = text.trim().replace(" [", "[");
        let mut words = text.split_whitespace();
        if words.next()? != "#bytes" {
            return None;
        }
        let mut columns = vec![PerftestColumn::Bytes];
        let mut unit = None;
        while let Some(word) = words.next() {
            let (name, of) = split_unit(word);
            let column = match name {
                "#iterations" => PerftestColumn::Iterations,
                "BW" => {
                    let (name, of) = split_unit(words.next()?);
                    match name {
                        "peak" => PerftestColumn::Peak,
                        "average" => {
                            unit = of.and_then(bandwidth_unit);
                            PerftestColumn::Average
                        }
                        _ => PerftestColumn::Other,
                    }
                }
                "MsgRate" if of.is_some() => PerftestColumn::MessageRate,
                "t_min" => PerftestColumn::Shortest,
                "t_max" => PerftestColumn::Longest,
                "t_avg" => {
                    unit = of.and_then(latency_unit);
                    PerftestColumn::Mean
                }
                "99%" => {
                    words.next()?;
                    PerftestColumn::Percentile99
                }
                "99.9%" | "MsgRate" | "tps" => {
                    words.next()?;
                    PerftestColumn::Other
                }
                "t_typical" => {
                    // Until 2016 there was no average, and this was the last column.
                    unit = unit.or(of.and_then(latency_unit));
                    PerftestColumn::Other
                }
                "#sl" | "t_stdev" | "CPU_Util" => PerftestColumn::Other,
                _ => return None,
            };
            columns.push(column);
        }
        let has = |wanted| columns.contains(&wanted);
        let quantity = if has(PerftestColumn::Average) || has(PerftestColumn::Peak) {
            PerftestQuantity::Bandwidth
        } else if has(PerftestColumn::Mean) || has(PerftestColumn::Shortest) {
            PerftestQuantity::Latency
        } else {
            return None;
        };
        Some(Self { columns, quantity, unit })
    }

    /// The row in this line. `cut`: the text ends in it.
    pub(super) fn parse_row(&self, text: &str, cut: bool) -> PerftestRow {
        let words: Vec<&str> = text.split_whitespace().collect();
        let numbers = words.iter().filter(|word| is_numeric(word)).count();
        let first =
            words.first().is_some_and(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        if !first || words.len() < 2 || numbers * 2 < words.len() {
            return PerftestRow::Other;
        }
        if words.len() != self.columns.len() || (cut && self.has_lost_digits(&words)) {
            return PerftestRow::Short;
        }
        if numbers < words.len() {
            return PerftestRow::Damaged;
        }
        let mut point = SeriesPoint::default();
        for (column, word) in self.columns.iter().zip(words) {
            let value = text::parse_number(word);
            match column {
                PerftestColumn::Bytes => match text::parse_integer(word) {
                    Some(bytes) => point.bytes = bytes,
                    None => return PerftestRow::Damaged,
                },
                PerftestColumn::Iterations => point.iterations = text::parse_integer(word),
                PerftestColumn::Peak => point.peak = value,
                PerftestColumn::Average => point.algbw = value,
                PerftestColumn::MessageRate => point.msgrate = value,
                PerftestColumn::Shortest => point.min_us = value,
                PerftestColumn::Longest => point.max_us = value,
                PerftestColumn::Mean => point.time_us = value,
                PerftestColumn::Percentile99 => point.p99_us = value,
                PerftestColumn::Other => {}
            }
        }
        PerftestRow::Whole(point)
    }

    /// Whether the last number has fewer decimals than its column, and with
    /// them may have lost digits at the end of the text.
    fn has_lost_digits(&self, words: &[&str]) -> bool {
        let decimals = words.last().and_then(|word| word.split_once('.')).map(|(_, d)| d.len());
        match (self.columns.last(), decimals) {
            (Some(PerftestColumn::MessageRate), decimals) => decimals != Some(6),
            (_, decimals) => !matches!(decimals, Some(2 | 6)),
        }
    }
}

/// `peak[MB/sec]` as name and unit.
fn split_unit(word: &str) -> (&str, Option<&str>) {
    match word.split_once('[') {
        Some((name, rest)) => (name, Some(rest.trim_end_matches(']'))),
        None => (word, None),
    }
}

fn bandwidth_unit(unit: &str) -> Option<Unit> {
    match unit {
        "MB/sec" | "MiB/sec" => Some(Unit::MebibytesPerSecond),
        "Gb/sec" => Some(Unit::GigabitsPerSecond),
        _ => None,
    }
}

fn latency_unit(unit: &str) -> Option<Unit> {
    (unit == "usec").then_some(Unit::Microseconds)
}

/// A number, or C's output for a non-finite one.
fn is_numeric(word: &str) -> bool {
    text::parse_number(word).is_some() || matches!(word, "inf" | "-inf" | "nan" | "-nan")
}
