//! The marks in front of a single line.

use super::timestamps::time_mark;
use super::{apply_mark, nonblank_lines};
use crate::outputs::text::OutputLine;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PrefixMark<'a> {
    pub(super) label: Option<u32>,
    pub(super) stderr: bool,
    pub(super) rest: &'a str,
}

impl<'a> PrefixMark<'a> {
    pub(super) fn new(rest: &'a str) -> Self {
        Self { rest: skip_blank(rest), ..Self::default() }
    }
}

/// A kind of mark: parses the mark of a line.
pub(super) type PrefixFormat = for<'a> fn(&'a str) -> Option<PrefixMark<'a>>;

const LEVELS: [&str; 6] = ["INFO", "DEBUG", "WARNING", "WARN", "NOTICE", "TRACE"];

/// Marks that are prefixes if most lines have them.
pub(super) const FORMATS: [PrefixFormat; 8] = [
    quote_mark,
    time_mark,
    compose_mark,
    task_mark,
    bracketed_task_mark,
    level_mark,
    worker_mark,
    stream_mark,
];

/// Marks that are prefixes only if (nearly) all lines have them.
pub(super) const COMMENTS: [&str; 9] = ["#", "//", "|", "\u{2502}", ";", "%", "--", "*", "$"];

/// Beginnings of nccl-tests' lines after `#`.
const NCCL_TESTS: [&str; 12] = [
    "nThread",
    "nccl-tests",
    "Using devices",
    "Rank",
    "size",
    "bytes",
    "(B)",
    "out-of-place",
    "Out of bounds",
    "Avg bus",
    "Collective test",
    "error:",
];

/// Open MPI: `[1,0]<stdout>:`, with or without blanks or a date in front,
/// `[prterun-host-12@1,0]<stderr>: ` of later releases, and `DATE<stdout>:` if only times were
/// requested.
pub(super) fn strip_mpi_tag(line: &mut OutputLine<'_>) -> bool {
    const FURTHEST: usize = 160;
    let mut cut = line.text.len().min(FURTHEST);
    while !line.text.is_char_boundary(cut) {
        cut -= 1;
    }
    let head = &line.text[..cut];
    for (tag, stderr) in [("<stdout>:", false), ("<stderr>:", true)] {
        let Some(at) = head.find(tag) else { continue };
        let before = &head[..at];
        let inside = before.strip_suffix(']').and_then(|b| b.rsplit_once('[')).map(|(_, i)| i);
        let rank = inside.and_then(|i| i.rsplit(',').next()?.trim().parse().ok());
        let dated = || {
            let year = before.len().checked_sub(4).and_then(|start| before.get(start..));
            year.is_some_and(|y| y.bytes().all(|b| b.is_ascii_digit())) && before.contains(':')
        };
        if rank.is_none() && !dated() {
            continue;
        }
        line.label = rank.or(line.label);
        line.stderr = stderr;
        let rest = &line.text[at + tag.len()..];
        // PRRTE prints one blank after the colon; a matrix row keeps its own.
        let late = inside.is_some_and(|inside| inside.contains('@'));
        line.text = if late { rest.strip_prefix(' ').unwrap_or(rest) } else { rest };
        return true;
    }
    false
}

/// kubectl `--prefix`: `[pod/NAME/CONTAINER] `.
pub(super) fn strip_pod_prefix(line: &mut OutputLine<'_>) -> bool {
    let Some(rest) = line.text.trim_start().strip_prefix("[pod/") else { return false };
    let Some(end) = rest.find(']') else { return false };
    line.text = skip_blank(&rest[end + 1..]);
    true
}

/// `> ` of mail or Markdown.
fn quote_mark(text: &str) -> Option<PrefixMark<'_>> {
    let rest = text.trim_start().strip_prefix('>')?;
    Some(PrefixMark::new(rest))
}

/// docker compose: `service-1  | `; services of a swarm: `service.1.x@host    | `.
fn compose_mark(text: &str) -> Option<PrefixMark<'_>> {
    let (name, rest) = text.split_once('|')?;
    let plain = name.ends_with(' ') && name.trim_end().split('@').all(is_name);
    plain.then(|| PrefixMark::new(rest))
}

/// `srun -l`: `0: `, padded.
fn task_mark(text: &str) -> Option<PrefixMark<'_>> {
    let (label, rest) = text.trim_start().split_once(':')?;
    let label = Some(parse_label(label)?);
    Some(PrefixMark { label, ..PrefixMark::new(rest) })
}

/// Intel MPI and MPICH `-l`: `[0] `; torchrun: `[default0]:`, `[rank0]: `. iperf3 pads its own
/// brackets.
fn bracketed_task_mark(text: &str) -> Option<PrefixMark<'_>> {
    let (label, rest) = text.trim_start().strip_prefix('[')?.split_once(']')?;
    if label.starts_with(' ') || label.ends_with(' ') {
        return None;
    }
    let digits = ["default", "rank", "trainer"].iter().find_map(|word| label.strip_prefix(word));
    let label = Some(parse_label(digits.unwrap_or(label))?);
    let rest = if digits.is_some() { rest.strip_prefix(':')? } else { rest };
    Some(PrefixMark { label, ..PrefixMark::new(rest) })
}

/// A log level, bare, in brackets, or between dashes after a time.
fn level_mark(text: &str) -> Option<PrefixMark<'_>> {
    if let Some((word, rest)) = text.strip_prefix("- ").and_then(|rest| rest.split_once(" -")) {
        let ends = rest.is_empty() || rest.starts_with(' ');
        return (LEVELS.contains(&word) && ends).then(|| PrefixMark::new(rest));
    }
    let (bare, open) = text.strip_prefix('[').map_or((text, false), |rest| (rest, true));
    let word = bare.bytes().take_while(u8::is_ascii_alphabetic).count();
    let (word, rest) = bare.split_at(word);
    if !LEVELS.contains(&word) {
        return None;
    }
    // `INFO:root:text` of Python.
    if let Some((name, rest)) = rest.strip_prefix(':').and_then(|rest| rest.split_once(':')) {
        return (!open && is_name(name)).then_some(PrefixMark { rest, ..PrefixMark::default() });
    }
    let rest = if open { rest.strip_prefix(']')? } else { rest };
    (rest.is_empty() || rest.starts_with(' ')).then(|| PrefixMark::new(rest))
}

/// `stdout: `.
fn stream_mark(text: &str) -> Option<PrefixMark<'_>> {
    let (name, rest) = text.split_once(':')?;
    let plain = matches!(name, "stdout" | "stderr") && (rest.is_empty() || rest.starts_with(' '));
    plain.then(|| PrefixMark { stderr: name == "stderr", ..PrefixMark::new(rest) })
}

/// Ray: `(worker pid=123, ip=10.0.0.1) `.
fn worker_mark(text: &str) -> Option<PrefixMark<'_>> {
    let (inside, rest) = text.strip_prefix('(')?.split_once(')')?;
    let plain = inside.contains("pid=") || inside.contains("ip=") || inside == "raylet";
    plain.then(|| PrefixMark::new(rest))
}

/// `cat -n`, `nl` and `grep -n`: consecutive line numbers.
pub(super) fn strip_line_numbers(lines: &mut [OutputLine<'_>]) -> bool {
    fn read(text: &str) -> Option<(u32, &str)> {
        let text = text.trim_start();
        let (count, rest) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
        let rest = if rest.is_empty() { rest } else { rest.strip_prefix(['\t', ':', '|'])? };
        Some((parse_label(count)?, rest))
    }
    let filled = nonblank_lines(lines);
    let is_tabbed = filled.iter().all(|at| lines[*at].text.contains('\t'));
    let mut next = None;
    for at in &filled {
        match read(lines[*at].text) {
            Some((count, _)) if 0 < count && next.is_none_or(|next| next == count) => {
                next = Some(count + 1);
            }
            _ => return false,
        }
    }
    if filled.len() < if is_tabbed { 2 } else { 3 } {
        return false;
    }
    for at in filled {
        if let Some((_, rest)) = read(lines[at].text) {
            lines[at].text = rest;
        }
    }
    true
}

/// Removes the mark of a comment, a quotation or a prompt if (nearly) all lines have it.
pub(super) fn strip_comment(lines: &mut [OutputLine<'_>], mark: &str) -> bool {
    fn read<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
        let rest = text.trim_start().strip_prefix(mark)?;
        let joins = matches!(mark, "#" | "//");
        (joins || rest.is_empty() || rest.starts_with([' ', '\t'])).then_some(rest)
    }
    let filled = nonblank_lines(lines);
    // Tools print these themselves.
    let strict = matches!(mark, "#" | "|" | "\u{2502}");
    let may_lack = if strict { 0 } else { filled.len() / 10 };
    let (mut with, mut lack, mut again, mut own, mut closed) = (0, 0, 0, 0, 0);
    for at in &filled {
        let Some(rest) = read(lines[*at].text, mark) else {
            lack += 1;
            if may_lack < lack {
                return false;
            }
            continue;
        };
        let rest = rest.trim();
        with += 1;
        again += usize::from(rest.starts_with(mark));
        own += usize::from(NCCL_TESTS.iter().any(|word| rest.starts_with(word)));
        closed += usize::from(rest.ends_with(mark));
    }
    let is_nccl_tests = mark == "#" && again == 0 && 0 < own;
    let is_table = strict && mark != "#" && with <= 2 * closed;
    if with < 2 || is_nccl_tests || is_table {
        return false;
    }
    for at in filled {
        if let Some(rest) = read(lines[at].text, mark) {
            apply_mark(&mut lines[at], PrefixMark::new(rest));
        }
    }
    true
}

pub(super) fn parse_label(text: &str) -> Option<u32> {
    let text = text.trim();
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

pub(super) fn skip_blank(text: &str) -> &str {
    text.strip_prefix(' ').unwrap_or(text)
}

/// A token that can be the name of a host, a service or a program.
pub(super) fn is_name(word: &str) -> bool {
    word.bytes().any(|b| b.is_ascii_alphabetic())
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
}
