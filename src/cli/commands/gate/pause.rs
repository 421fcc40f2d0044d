//! `fabricgate gate pause`: suspends drains and measurements for a while; and the notation of time
//! spans.

use control::gate::clock;
use model::journal::JournalEvent;
use model::time_format::format_rfc3339;

/// Longest pause: a forgotten pause must end.
const LONGEST_S: u64 = 30 * 24 * 3_600;

/// Parses a time span such as `90s`, `30m`, `2h` or `7d` into seconds.
pub(crate) fn parse_span(text: &str) -> Result<u64, String> {
    let wrong = || "expected a number and s, m, h or d, such as 2h".to_owned();
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(at);
    let each = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(each).filter(|it| 0 < *it).ok_or_else(wrong)
}

/// Parses the time span of a pause, at most [`LONGEST_S`].
pub(crate) fn parse_pause(text: &str) -> Result<u64, String> {
    let seconds = parse_span(text)?;
    match seconds <= LONGEST_S {
        true => Ok(seconds),
        false => Err(format!("expected at most {}d", LONGEST_S / 86_400)),
    }
}

/// The journal event that begins a pause.
pub(crate) fn pause_event(by: String, why: String, for_s: u64) -> JournalEvent {
    let lasts = i64::try_from(for_s).unwrap_or(i64::MAX);
    let until = format_rfc3339(clock::now().unix.saturating_add(lasts));
    JournalEvent::Paused { by, why, for_s, until }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_spans_are_parsed_and_others_are_refused() {
        for (text, seconds) in [("90s", 90), ("30m", 1_800), ("2h", 7_200), ("7d", 604_800)] {
            assert_eq!(parse_span(text), Ok(seconds), "{text}");
        }
        for text in
            ["", "2", "h", "0h", "-2h", "2 h", "2hours", "1.5h", "99999999999999999999d", "2é"]
        {
            assert!(parse_span(text).is_err(), "{text}");
        }
        assert_eq!(parse_pause("30d"), Ok(LONGEST_S));
        assert_eq!(parse_pause("31d"), Err("expected at most 30d".to_owned()));
    }
}
