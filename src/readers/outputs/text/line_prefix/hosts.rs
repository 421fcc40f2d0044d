//! Hosts in front of lines, or above the lines that they printed.

use std::collections::BTreeMap;

use super::marks::{PrefixMark, is_name, parse_label};
use crate::outputs::text::OutputLine;

/// A host in front of fewer lines could be part of the text, unless it is in front of all lines.
const LEAST_OF_A_HOST: usize = 4;

/// Programs and log levels: they precede a colon and are not hosts.
const PROGRAMS: [&str; 16] = [
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

/// Names of streams, and iperf3's bracketed text.
const STREAMS: [&str; 8] = ["stdout", "stderr", "out", "err", "output", "log", "sum", "id"];

/// Whether this is a program or a log level instead of a host.
pub(super) fn is_program(word: &str) -> bool {
    PROGRAMS.iter().any(|known| word.eq_ignore_ascii_case(known))
}

/// Whether a launcher can use this as a host name.
fn is_host(word: &str) -> bool {
    let is_stream = STREAMS.iter().any(|known| word.eq_ignore_ascii_case(known));
    is_name(word) && !is_program(word) && !is_stream
}

/// A launcher's format for a host in front of a line.
type HostFormat = for<'a> fn(&'a str) -> Option<(&'a str, PrefixMark<'a>)>;

const HOST_FORMATS: [HostFormat; 3] = [host_and_colon, host_in_brackets, host_and_tab];

/// pdsh and clush `HOST: `, PALS `HOST RANK: `.
fn host_and_colon(text: &str) -> Option<(&str, PrefixMark<'_>)> {
    let (head, rest) = text.split_once(':')?;
    if !(rest.is_empty() || rest.starts_with([' ', '\t'])) {
        return None;
    }
    let (host, label) = match head.split_once(' ') {
        Some((host, label)) => (host, Some(parse_label(label)?)),
        None => (head, None),
    };
    if !is_host(host) {
        return None;
    }
    // `Link 3: ` is not a host; the nodes of a machine with PALS are numbered.
    if label.is_some() && !host.bytes().any(|b| b.is_ascii_digit()) {
        return None;
    }
    Some((host, PrefixMark { label, ..PrefixMark::new(rest) }))
}

/// `[HOST] `, and Fabric's `[HOST] out: `.
fn host_in_brackets(text: &str) -> Option<(&str, PrefixMark<'_>)> {
    let (host, rest) = text.strip_prefix('[')?.split_once(']')?;
    if !is_host(host) {
        return None;
    }
    let rest = rest.strip_prefix(':').unwrap_or(rest);
    let stderr = rest.starts_with(" err:");
    let rest = [" out:", " err:"].iter().find_map(|word| rest.strip_prefix(word)).unwrap_or(rest);
    (rest.is_empty() || rest.starts_with([' ', '\t']))
        .then(|| (host, PrefixMark { stderr, ..PrefixMark::new(rest) }))
}

/// GNU parallel `--tag`: `HOST` and a tab. Matrix rows start the same way.
fn host_and_tab(text: &str) -> Option<(&str, PrefixMark<'_>)> {
    let (host, rest) = text.split_once('\t').unwrap_or((text, ""));
    let is_device = ["GPU", "NIC", "mlx", "ib"].iter().any(|word| host.starts_with(word));
    let is_host = is_name(host) && host.bytes().any(|b| b.is_ascii_digit()) && !is_device;
    is_host.then_some((host, PrefixMark { rest, ..PrefixMark::default() }))
}

/// Removes hosts if all but a few lines have one.
pub(super) fn strip_hosts(lines: &mut [OutputLine<'_>]) -> bool {
    HOST_FORMATS.iter().any(|form| strip_host_format(lines, *form))
}

fn strip_host_format(lines: &mut [OutputLine<'_>], form: HostFormat) -> bool {
    let mut order: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let (mut with, mut filled) = (0usize, 0usize);
    for line in lines.iter().filter(|line| !line.text.trim().is_empty()) {
        filled += 1;
        if let Some((host, _)) = form(line.text) {
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
        // A line without a host belongs to the line before it.
        let mut place = places.last().copied().unwrap_or(0);
        if let Some((name, mark)) = form(line.text) {
            place = order.get(name).copied().unwrap_or(place);
            line.host = Some(name);
            super::apply_mark(line, mark);
        }
        places.push(place);
    }
    if 1 < order.len() {
        group_by_host(lines, places);
    }
    true
}

/// Sorts lines by their indices; the sort is stable.
fn group_by_host(lines: &mut [OutputLine<'_>], places: Vec<usize>) {
    let mut sorted: Vec<(usize, OutputLine<'_>)> =
        places.into_iter().zip(lines.iter().cloned()).collect();
    sorted.sort_by_key(|(place, _)| *place);
    for (line, (_, new)) in lines.iter_mut().zip(sorted) {
        *line = new;
    }
}

/// Hosts in a heading above their lines: Ansible's `HOST | CHANGED | rc=0 >>`, `dshbak` and `clush
/// -b` between two rules, parallel-ssh.
pub(super) fn assign_section_hosts(lines: &mut [OutputLine<'_>]) {
    let is_rule = |text: &str| 4 <= text.len() && text.bytes().all(|b| b == b'-');
    let mut host = None;
    for at in 0..lines.len() {
        let text = lines[at].text;
        let ruled = || {
            let around = [at.checked_sub(1)?, at + 1];
            let all = around.iter().all(|at| lines.get(*at).is_some_and(|l| is_rule(l.text)));
            (all && is_name(text)).then_some(text)
        };
        if let Some(name) = ansible_host(text).or_else(|| parallel_ssh_host(text)).or_else(ruled) {
            host = Some(name);
            lines[at].text = "";
        }
        lines[at].host = host;
    }
}

/// `n7 | CHANGED | rc=0 >>`.
fn ansible_host(text: &str) -> Option<&str> {
    let (host, rest) = text.split_once(" | ")?;
    let (state, rest) = rest.split_once(" | ")?;
    let is_state = matches!(state, "CHANGED" | "SUCCESS" | "FAILED" | "FAILED!" | "UNREACHABLE!");
    (is_name(host) && is_state && rest.ends_with(">>")).then_some(host)
}

/// `[1] 12:00:00 [SUCCESS] n7`.
fn parallel_ssh_host(text: &str) -> Option<&str> {
    let (number_, rest) = text.strip_prefix('[')?.split_once("] ")?;
    parse_label(number_)?;
    let (_, rest) = rest.split_once(" [")?;
    let (state, host) = rest.split_once("] ")?;
    let host = host.split_whitespace().next()?;
    let host = host.split_once('@').map_or(host, |(_, host)| host);
    (matches!(state, "SUCCESS" | "FAILURE") && is_name(host)).then_some(host)
}
