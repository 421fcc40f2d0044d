//! Timestamps in front of lines, and fields that collectors add after them.

use super::marks::{PrefixMark, is_name, skip_blank};

/// A timestamp in the formats of kubectl, container engines, `ts`, journals and loggers, and the
/// process or stream after it.
pub(super) fn time_mark(text: &str) -> Option<PrefixMark<'_>> {
    let text = text.trim_start();
    let (open, inner) = match text.strip_prefix('[') {
        Some(inner) => (true, inner),
        None => (false, text),
    };
    if let Some(rest) = skip_kernel_time(text).or_else(|| skip_klog(text)) {
        return Some(PrefixMark::new(rest));
    }
    let weekday = skip_weekday(inner);
    let dated = weekday.unwrap_or(inner);
    let rest = skip_iso_date(dated).or_else(|| skip_month_and_day(dated)).unwrap_or(inner);
    let rest = skip_clock(rest)?;
    // `date` prints the year last.
    let year = || skip_digits(rest.strip_prefix(' ')?, 4);
    let rest = weekday.and_then(|_| year()).unwrap_or(rest);
    let rest = if open { rest.strip_prefix(']')? } else { rest };
    if !(rest.is_empty() || rest.starts_with([' ', '\t', ':'])) {
        return None;
    }
    let rest = skip_blank(rest.strip_prefix(':').unwrap_or(rest));
    for (stream, stderr) in [("stdout ", false), ("stderr ", true)] {
        // containerd: `TIME stdout F text`, `P` for a part of a line.
        if let Some(rest) = rest.strip_prefix(stream)
            && let Some(rest) = rest.strip_prefix(['F', 'P'])
            && (rest.is_empty() || rest.starts_with(' '))
        {
            return Some(PrefixMark { stderr, rest: skip_blank(rest), ..PrefixMark::default() });
        }
    }
    Some(PrefixMark { rest: skip_process(rest).unwrap_or(rest), ..PrefixMark::default() })
}

/// `[   12.345678]` of the kernel.
fn skip_kernel_time(text: &str) -> Option<&str> {
    let (inside, rest) = text.strip_prefix('[')?.split_once(']')?;
    let (seconds, micros) = inside.trim_start().split_once('.')?;
    let plain = !seconds.is_empty() && seconds.bytes().all(|b| b.is_ascii_digit());
    let ends = rest.is_empty() || rest.starts_with(' ');
    (plain && ends && skip_digits(micros, 6) == Some("")).then_some(rest)
}

/// `I0102 03:04:05.000006    77 main.go:12] ` of Kubernetes' own programs.
fn skip_klog(text: &str) -> Option<&str> {
    let rest = skip_digits(text.strip_prefix(['I', 'W', 'E', 'F'])?, 4)?.strip_prefix(' ')?;
    let (place, rest) = skip_clock(rest)?.split_once(']')?;
    let ends = rest.is_empty() || rest.starts_with(' ');
    (ends && place.contains(':') && place.starts_with(' ')).then_some(rest)
}

/// `Fri `.
fn skip_weekday(text: &str) -> Option<&str> {
    const DAYS: [&str; 7] = ["Mon ", "Tue ", "Wed ", "Thu ", "Fri ", "Sat ", "Sun "];
    DAYS.iter().find_map(|day| text.strip_prefix(day))
}

/// `2026-01-02` and one `T` or blank.
fn skip_iso_date(text: &str) -> Option<&str> {
    let rest = skip_digits(text, 4)?.strip_prefix(['-', '/'])?;
    let rest = skip_digits(rest, 2)?.strip_prefix(['-', '/'])?;
    skip_digits(rest, 2)?.strip_prefix(['T', ' '])
}

/// `Jan  2 `.
fn skip_month_and_day(text: &str) -> Option<&str> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let rest = MONTHS.iter().find_map(|month| text.strip_prefix(month))?;
    let rest = rest.strip_prefix(' ')?.trim_start();
    let day = rest.bytes().take_while(u8::is_ascii_digit).count();
    (1..=2).contains(&day).then(|| rest[day..].strip_prefix(' ')).flatten()
}

/// `03:04:05`, with a fraction and a zone or without.
fn skip_clock(text: &str) -> Option<&str> {
    let rest = skip_digits(text, 2)?.strip_prefix(':')?;
    let rest = skip_digits(rest, 2)?.strip_prefix(':')?;
    let mut rest = skip_digits(rest, 2)?;
    if let Some(fraction) = rest.strip_prefix(['.', ',']) {
        let length = fraction.bytes().take_while(u8::is_ascii_digit).count();
        rest = if 0 < length { &fraction[length..] } else { rest };
    }
    if let Some(rest) = rest.strip_prefix('Z') {
        return Some(rest);
    }
    let zone = rest.strip_prefix(['+', '-']).and_then(|zone| {
        skip_digits(zone, 4).or_else(|| skip_digits(skip_digits(zone, 2)?.strip_prefix(':')?, 2))
    });
    Some(zone.unwrap_or(rest))
}

/// The rest after exactly `count` digits.
fn skip_digits(text: &str, count: usize) -> Option<&str> {
    (text.bytes().take_while(u8::is_ascii_digit).count() == count).then(|| &text[count..])
}

/// `HOST PROGRAM[PID]: ` of syslog and the journal.
fn skip_process(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once(' ').filter(|(host, _)| is_name(host))?;
    let (program, rest) = rest.split_once(':')?;
    let (name, pid) = program.strip_suffix(']')?.split_once('[')?;
    let plain = is_name(name) && !pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| skip_blank(rest))
}
