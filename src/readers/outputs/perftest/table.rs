//! The header of a table and its rows. The header's names decide what a
//! number is; nothing is read by position alone.

use super::banner::Quantity;
use super::text;
use model::measurement::Point;
use model::unit::Unit;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Bytes,
    Iterations,
    Peak,
    Average,
    MessageRate,
    Shortest,
    Longest,
    Mean,
    Percentile99,
    /// Known, and not kept: service level, ports, deviation, CPU load.
    Other,
}

/// The columns of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    columns: Vec<Column>,
    pub(super) quantity: Quantity,
    pub(super) unit: Option<Unit>,
}

/// What a line under a header is.
#[derive(Debug, PartialEq)]
pub(super) enum Row {
    /// A whole row.
    Whole(Point),
    /// A row with a number that cannot be read.
    Damaged,
    /// A row with too few or too many numbers.
    Short,
    /// No row.
    Other,
}

impl Columns {
    /// The columns that this line names, when it is a header.
    pub(super) fn read(text: &str) -> Option<Self> {
        // `BW peak[MB/sec]` and `BW peak [MB/sec]` are the same two words.
        let text = text.trim().replace(" [", "[");
        let mut words = text.split_whitespace();
        if words.next()? != "#bytes" {
            return None;
        }
        let mut columns = vec![Column::Bytes];
        let mut unit = None;
        while let Some(word) = words.next() {
            let (name, of) = bracketed(word);
            let column = match name {
                "#iterations" => Column::Iterations,
                "BW" => {
                    let (name, of) = bracketed(words.next()?);
                    match name {
                        "peak" => Column::Peak,
                        "average" => {
                            unit = of.and_then(bandwidth);
                            Column::Average
                        }
                        _ => Column::Other,
                    }
                }
                "MsgRate" if of.is_some() => Column::MessageRate,
                "t_min" => Column::Shortest,
                "t_max" => Column::Longest,
                "t_avg" => {
                    unit = of.and_then(latency);
                    Column::Mean
                }
                "99%" => {
                    words.next()?;
                    Column::Percentile99
                }
                "99.9%" | "MsgRate" | "tps" => {
                    words.next()?;
                    Column::Other
                }
                "t_typical" => {
                    // Until 2016 there was no average, and this was the last column.
                    unit = unit.or(of.and_then(latency));
                    Column::Other
                }
                "#sl" | "t_stdev" | "CPU_Util" => Column::Other,
                _ => return None,
            };
            columns.push(column);
        }
        let has = |wanted| columns.contains(&wanted);
        let quantity = if has(Column::Average) || has(Column::Peak) {
            Quantity::Bandwidth
        } else if has(Column::Mean) || has(Column::Shortest) {
            Quantity::Latency
        } else {
            return None;
        };
        Some(Self { columns, quantity, unit })
    }

    /// The row in this line. `cut`: the text ends in it.
    pub(super) fn row(&self, text: &str, cut: bool) -> Row {
        let words: Vec<&str> = text.split_whitespace().collect();
        let numbers = words.iter().filter(|word| reads(word)).count();
        let first =
            words.first().is_some_and(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        if !first || words.len() < 2 || numbers * 2 < words.len() {
            return Row::Other;
        }
        if words.len() != self.columns.len() || (cut && self.lost_digits(&words)) {
            return Row::Short;
        }
        if numbers < words.len() {
            return Row::Damaged;
        }
        let mut point = Point::default();
        for (column, word) in self.columns.iter().zip(words) {
            let value = text::number(word);
            match column {
                Column::Bytes => match text::integer(word) {
                    Some(bytes) => point.bytes = bytes,
                    None => return Row::Damaged,
                },
                Column::Iterations => point.iterations = text::integer(word),
                Column::Peak => point.peak = value,
                Column::Average => point.algbw = value,
                Column::MessageRate => point.msgrate = value,
                Column::Shortest => point.min_us = value,
                Column::Longest => point.max_us = value,
                Column::Mean => point.time_us = value,
                Column::Percentile99 => point.p99_us = value,
                Column::Other => {}
            }
        }
        Row::Whole(point)
    }

    /// Whether the last number has fewer decimals than its column, and with
    /// them may have lost digits at the end of the text.
    fn lost_digits(&self, words: &[&str]) -> bool {
        let decimals = words.last().and_then(|word| word.split_once('.')).map(|(_, d)| d.len());
        match (self.columns.last(), decimals) {
            (Some(Column::MessageRate), decimals) => decimals != Some(6),
            (_, decimals) => !matches!(decimals, Some(2 | 6)),
        }
    }
}

/// `peak[MB/sec]` as name and unit.
fn bracketed(word: &str) -> (&str, Option<&str>) {
    match word.split_once('[') {
        Some((name, rest)) => (name, Some(rest.trim_end_matches(']'))),
        None => (word, None),
    }
}

fn bandwidth(unit: &str) -> Option<Unit> {
    match unit {
        "MB/sec" | "MiB/sec" => Some(Unit::MebibytesPerSecond),
        "Gb/sec" => Some(Unit::GigabitsPerSecond),
        _ => None,
    }
}

fn latency(unit: &str) -> Option<Unit> {
    (unit == "usec").then_some(Unit::Microseconds)
}

/// A number, or what C prints where there is none.
fn reads(word: &str) -> bool {
    text::number(word).is_some() || matches!(word, "inf" | "-inf" | "nan" | "-nan")
}
