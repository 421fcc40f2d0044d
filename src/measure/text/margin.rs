//! What launchers, log collectors and people put in front of every line.
//!
//! Tags that only one launcher writes are taken from any line. Marks that a
//! tool could print itself (`0: `, `> `, a time of day) are taken only where
//! most lines, or many lines in a row, carry one. Margins can lie over each
//! other, so they are taken off one by one. What stands behind them is not
//! looked at here.

use std::collections::BTreeMap;

use super::Line;

/// More margins than this lie over no output.
const DEEPEST: usize = 6;

/// So many lines in a row with the same kind of mark did not get it by chance.
const IN_A_ROW: usize = 8;

/// A host in front of fewer lines than this could be a word of the text, unless
/// it is in front of all of them.
const LEAST_OF_A_HOST: usize = 4;

/// Words that stand in front of a colon and are no hosts.
const NO_HOSTS: [&str; 16] = [
    "srun",
    "sbatch",
    "salloc",
    "slurmstepd",
    "mpirun",
    "mpiexec",
    "prterun",
    "bash",
    "sh",
    "ssh",
    "error",
    "warning",
    "note",
    "info",
    "debug",
    "nvml",
];

/// What a mark says besides being there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark<'a> {
    label: Option<u32>,
    stderr: bool,
    rest: &'a str,
}

/// A kind of mark: what it says of a line that carries one.
type Style = for<'a> fn(&'a str) -> Option<Mark<'a>>;

const STYLES: [Style; 5] = [quote, time, compose, task, bracketed_task];

/// Takes all margins off. Where hosts stood in front, the lines of one host are
/// brought together, in the order in which hosts first appear.
pub(super) fn strip(lines: &mut [Line<'_>]) {
    for _ in 0..DEEPEST {
        // From outside in: a launcher's tag can stand behind any of the others.
        let mut any = STYLES.iter().any(|style| take(lines, *style)) || hosts(lines);
        for tag in [pod, mpi_tag] as [fn(&mut Line<'_>) -> bool; 2] {
            if any {
                break;
            }
            for line in lines.iter_mut() {
                any |= tag(line);
            }
        }
        if !any {
            break;
        }
    }
}

/// Takes a kind of mark off the lines it is a margin of.
fn take(lines: &mut [Line<'_>], style: Style) -> bool {
    let filled: Vec<usize> =
        (0..lines.len()).filter(|at| !lines[*at].text.trim().is_empty()).collect();
    let marked: Vec<bool> = filled.iter().map(|at| style(lines[*at].text).is_some()).collect();
    let with = marked.iter().filter(|marked| **marked).count();
    if with < 2 {
        return false;
    }
    let all = filled.len() < with * 2;
    let mut any = false;
    let mut at = 0;
    while at < filled.len() {
        let length = marked[at..].iter().take_while(|marked| **marked).count();
        if all || IN_A_ROW <= length {
            for line in &filled[at..at + length] {
                any |= apply(&mut lines[*line], style);
            }
        }
        at += length.max(1);
    }
    any
}

fn apply(line: &mut Line<'_>, style: Style) -> bool {
    let Some(mark) = style(line.text) else { return false };
    line.label = mark.label.or(line.label);
    line.stderr |= mark.stderr;
    line.text = mark.rest;
    true
}

/// Open MPI: `[1,0]<stdout>:`, with or without blanks or a date in front,
/// `[prterun-host-12@1,0]<stderr>: ` of later releases, and `DATE<stdout>:`
/// where only times were asked for.
fn mpi_tag(line: &mut Line<'_>) -> bool {
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
        // PRRTE puts one blank after the colon; a matrix row keeps its own.
        let late = inside.is_some_and(|inside| inside.contains('@'));
        line.text = if late { rest.strip_prefix(' ').unwrap_or(rest) } else { rest };
        return true;
    }
    false
}

/// kubectl `--prefix`: `[pod/NAME/CONTAINER] `.
fn pod(line: &mut Line<'_>) -> bool {
    let Some(rest) = line.text.trim_start().strip_prefix("[pod/") else { return false };
    let Some(end) = rest.find(']') else { return false };
    line.text = one_blank(&rest[end + 1..]);
    true
}

/// `> ` of a mail or of Markdown.
fn quote(text: &str) -> Option<Mark<'_>> {
    let rest = text.trim_start().strip_prefix('>')?;
    Some(Mark { rest: one_blank(rest), ..Mark::default() })
}

/// A time, as kubectl, container engines, `ts`, journals and loggers write it,
/// and the process or stream that some of them put behind it.
fn time(text: &str) -> Option<Mark<'_>> {
    let text = text.trim_start();
    let (open, inner) = match text.strip_prefix('[') {
        Some(inner) => (true, inner),
        None => (false, text),
    };
    let rest = iso_date(inner)
        .or_else(|| month_and_day(inner))
        .or_else(|| open.then_some(inner))
        .and_then(clock)?;
    let rest = if open { rest.strip_prefix(']')? } else { rest };
    if !(rest.is_empty() || rest.starts_with([' ', '\t', ':'])) {
        return None;
    }
    let rest = one_blank(rest.strip_prefix(':').unwrap_or(rest));
    for (stream, stderr) in [("stdout ", false), ("stderr ", true)] {
        // containerd: `TIME stdout F text`, `P` for a part of a line.
        if let Some(rest) = rest.strip_prefix(stream)
            && let Some(rest) = rest.strip_prefix(['F', 'P'])
            && (rest.is_empty() || rest.starts_with(' '))
        {
            return Some(Mark { stderr, rest: one_blank(rest), ..Mark::default() });
        }
    }
    Some(Mark { rest: after_process(rest).unwrap_or(rest), ..Mark::default() })
}

/// `2026-01-02` and one `T` or blank.
fn iso_date(text: &str) -> Option<&str> {
    let rest = digits(text, 4)?.strip_prefix(['-', '/'])?;
    let rest = digits(rest, 2)?.strip_prefix(['-', '/'])?;
    digits(rest, 2)?.strip_prefix(['T', ' '])
}

/// `Jan  2 `.
fn month_and_day(text: &str) -> Option<&str> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let rest = MONTHS.iter().find_map(|month| text.strip_prefix(month))?;
    let rest = rest.strip_prefix(' ')?.trim_start();
    let day = rest.bytes().take_while(u8::is_ascii_digit).count();
    (1..=2).contains(&day).then(|| rest[day..].strip_prefix(' ')).flatten()
}

/// `03:04:05`, with a fraction and a zone or without.
fn clock(text: &str) -> Option<&str> {
    let rest = digits(text, 2)?.strip_prefix(':')?;
    let rest = digits(rest, 2)?.strip_prefix(':')?;
    let mut rest = digits(rest, 2)?;
    if let Some(fraction) = rest.strip_prefix(['.', ',']) {
        let length = fraction.bytes().take_while(u8::is_ascii_digit).count();
        rest = if 0 < length { &fraction[length..] } else { rest };
    }
    if let Some(rest) = rest.strip_prefix('Z') {
        return Some(rest);
    }
    let zone = rest.strip_prefix(['+', '-']).and_then(|zone| digits(zone, 2));
    let zone = zone.and_then(|zone| digits(zone.strip_prefix(':').unwrap_or(zone), 2));
    Some(zone.unwrap_or(rest))
}

/// What follows exactly so many digits.
fn digits(text: &str, count: usize) -> Option<&str> {
    (text.bytes().take_while(u8::is_ascii_digit).count() == count).then(|| &text[count..])
}

/// `HOST PROGRAM[PID]: ` of syslog and the journal.
fn after_process(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once(' ').filter(|(host, _)| is_host(host))?;
    let (program, rest) = rest.split_once(':')?;
    let (name, pid) = program.strip_suffix(']')?.split_once('[')?;
    let plain = is_host(name) && !pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| one_blank(rest))
}

/// docker compose: `service-1  | `.
fn compose(text: &str) -> Option<Mark<'_>> {
    let (name, rest) = text.split_once('|')?;
    let plain = name.ends_with(' ') && is_host(name.trim_end());
    plain.then(|| Mark { rest: one_blank(rest), ..Mark::default() })
}

/// `srun -l`: `0: `, padded.
fn task(text: &str) -> Option<Mark<'_>> {
    let (label, rest) = text.trim_start().split_once(':')?;
    let label = Some(number(label)?);
    Some(Mark { label, rest: one_blank(rest), ..Mark::default() })
}

/// Intel MPI and MPICH `-l`: `[0] `.
fn bracketed_task(text: &str) -> Option<Mark<'_>> {
    let (label, rest) = text.trim_start().strip_prefix('[')?.split_once(']')?;
    let label = Some(number(label)?);
    Some(Mark { label, rest: one_blank(rest), ..Mark::default() })
}

fn number(text: &str) -> Option<u32> {
    let text = text.trim();
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

fn one_blank(text: &str) -> &str {
    text.strip_prefix(' ').unwrap_or(text)
}

/// pdsh and clush `HOST: `, PALS `HOST RANK: `.
fn host(text: &str) -> Option<(&str, Mark<'_>)> {
    let (head, rest) = text.split_once(':')?;
    if !(rest.is_empty() || rest.starts_with([' ', '\t'])) {
        return None;
    }
    let (host, label) = match head.split_once(' ') {
        Some((host, label)) => (host, Some(number(label)?)),
        None => (head, None),
    };
    let lower = host.to_ascii_lowercase();
    if !is_host(host) || NO_HOSTS.contains(&lower.as_str()) {
        return None;
    }
    // `Link 3: ` is no host; the nodes of a machine with PALS are numbered.
    if label.is_some() && !host.bytes().any(|b| b.is_ascii_digit()) {
        return None;
    }
    Some((host, Mark { label, stderr: false, rest: one_blank(rest) }))
}

fn is_host(word: &str) -> bool {
    word.bytes().any(|b| b.is_ascii_alphabetic())
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
}

/// Takes hosts off where all but a few lines have one.
fn hosts(lines: &mut [Line<'_>]) -> bool {
    let mut order: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let (mut with, mut filled) = (0usize, 0usize);
    for line in lines.iter().filter(|line| !line.text.trim().is_empty()) {
        filled += 1;
        if let Some((host, _)) = host(line.text) {
            with += 1;
            let next = order.len();
            order.entry(host).or_insert((next, 0)).1 += 1;
        }
    }
    let enough = order.values().all(|(_, count)| LEAST_OF_A_HOST <= *count);
    let numbered = |host: &&str| host.bytes().any(|b| b.is_ascii_digit());
    let alone = order.len() == 1 && 1 < with && with == filled && order.keys().all(numbered);
    if !alone && (with < LEAST_OF_A_HOST || !enough || with * 10 < filled * 9) {
        return false;
    }
    let order: BTreeMap<String, usize> =
        order.iter().map(|(host, (at, _))| ((*host).to_owned(), *at)).collect();
    let mut places: Vec<usize> = Vec::with_capacity(lines.len());
    for line in lines.iter_mut() {
        // A line without a host goes with the line before it.
        let mut place = places.last().copied().unwrap_or(0);
        if let Some((name, mark)) = host(line.text) {
            place = order.get(name).copied().unwrap_or(place);
            line.host = Some(name);
            line.label = mark.label.or(line.label);
            line.text = mark.rest;
        }
        places.push(place);
    }
    if 1 < order.len() {
        let mut sorted: Vec<(usize, Line<'_>)> =
            places.into_iter().zip(lines.iter().cloned()).collect();
        sorted.sort_by_key(|(place, _)| *place);
        for (line, (_, new)) in lines.iter_mut().zip(sorted) {
            *line = new;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::decode;
    use super::super::lines;

    const TEXT: [&str; 6] =
        ["Running a_test.", "           0         1", "0       N/A     12.00", "", "1: x", "end"];

    fn behind(margin: impl Fn(usize) -> String) -> Vec<(String, Option<u32>)> {
        let text: String =
            TEXT.iter().enumerate().map(|(at, line)| format!("{}{line}\n", margin(at))).collect();
        lines(&decode(text.as_bytes())).iter().map(|l| (l.text.to_owned(), l.label)).collect()
    }

    fn assert_gone(margin: impl Fn(usize) -> String, label: Option<u32>) {
        let example = margin(1);
        let expected: Vec<_> = TEXT.iter().map(|line| ((*line).to_owned(), label)).collect();
        assert_eq!(behind(margin), expected, "{example:?}");
    }

    #[test]
    fn times_of_collectors_and_loggers_are_no_text() {
        let second = |at: usize| format!("{:02}", at + 7);
        assert_gone(|at| format!("2026-02-03T04:05:{}.123456789Z ", second(at)), None);
        assert_gone(|at| format!("2026-02-03T04:05:{}+01:00 stdout F ", second(at)), None);
        assert_gone(|at| format!("[2026-02-03 04:05:{},250] ", second(at)), None);
        assert_gone(|at| format!("Feb  3 04:05:{} ", second(at)), None);
        assert_gone(|at| format!("Feb  3 04:05:{} rack4-n2 burnin[77]: ", second(at)), None);
        assert_gone(|at| format!("[04:05:{}] ", second(at)), None);
    }

    #[test]
    fn quotes_and_services_are_no_text() {
        assert_gone(|_| "> ".to_owned(), None);
        assert_gone(|_| "> > ".to_owned(), None);
        assert_gone(|_| "fabric-check-1  | ".to_owned(), None);
    }

    #[test]
    fn margins_over_margins_are_all_taken_off() {
        assert_gone(|_| "[pod/job-launcher-4x/run] [1,3]<stdout>:".to_owned(), Some(3));
        assert_gone(|at| format!("[pod/job-0/run] 2026-02-03T04:05:0{at}Z "), None);
        assert_gone(|_| "> 0: [1,2]<stdout>:".to_owned(), Some(2));
        assert_gone(|at| format!("Tue Feb  3 04:05:0{at} 2026<stdout>:"), None);
    }

    #[test]
    fn what_has_only_the_outer_margin_loses_it_too() {
        let tagged = "4: [1,0]<stdout>:x\n4: [1,0]<stdout>:y\n4: [1,0]<stdout>:z\n4: ...\n";
        let texts: Vec<&str> = lines(tagged).iter().map(|l| l.text).collect();
        assert_eq!(texts, ["x", "y", "z", "..."]);
        let lines: String = ["[1,0]<stdout>:x", "[1,0]<stdout>:y", "..."]
            .iter()
            .map(|line| format!("[pod/a/b] 2026-02-03T04:05:06Z {line}\n"))
            .collect();
        let texts: Vec<&str> = super::super::lines(&lines).iter().map(|l| l.text).collect();
        assert_eq!(texts, ["x", "y", "..."]);
    }

    #[test]
    fn a_block_of_labels_inside_a_longer_log_is_taken_off() {
        let plain = "some words\n".repeat(40);
        let block: String = (0..9).map(|at| format!("2: row {at}\n")).collect();
        let text = format!("{plain}{block}{plain}");
        let lines = lines(&text);
        assert_eq!(lines.iter().filter(|l| l.label == Some(2)).count(), 9);
        assert!(lines.iter().any(|l| l.text == "row 8"));
    }

    #[test]
    fn lines_of_several_hosts_are_brought_together() {
        let text: String = (0..5).map(|at| format!("n1: a {at}\nn2: b {at}\n")).collect();
        let lines = lines(&text);
        let texts: Vec<&str> = lines.iter().map(|l| l.text).collect();
        assert_eq!(texts[..6], ["a 0", "a 1", "a 2", "a 3", "a 4", "b 0"]);
        assert_eq!((lines[0].host, lines[9].host), (Some("n1"), Some("n2")));
    }

    #[test]
    fn words_of_the_text_are_no_margins() {
        for text in [
            "srun: error: n1: task 3: Killed\nsrun: error: n2: task 4: Killed\n".repeat(3),
            "Link 0: 50 GB/s\nLink 1: 50 GB/s\nLink 2: 50 GB/s\nLink 3: 50 GB/s\n".to_owned(),
            "State: Active\nRate: 400\nState: Down\nRate: 200\n".to_owned(),
            "2026-01-02 03:04:05 once\nand\nno\nmore\n".to_owned(),
            "> prompt\nand\nits\nanswer\n".to_owned(),
        ] {
            let expected: Vec<&str> = text.lines().collect();
            let texts: Vec<&str> = lines(&text).iter().map(|l| l.text).collect();
            assert_eq!(texts, expected);
        }
    }
}
