//! Prefixes that launchers, log collectors and users put in front of every line.
//!
//! Tags that only one launcher writes are removed from any line. Marks that a tool could print
//! itself (`0: `, `> `, a time of day) are removed only if most lines, or many consecutive lines,
//! have one; marks that tools do print (`# `, `| `) only if all lines have one. Prefixes can be
//! nested, so they are removed one by one. The text after them is not examined here.

mod common_prefix;
mod hosts;
mod marks;
mod timestamps;

use self::marks::{COMMENTS, PrefixFormat, PrefixMark};
use super::OutputLine;

/// No output has more nested prefixes.
const DEEPEST: usize = 6;

/// This many consecutive lines with the same kind of mark are not a coincidence.
const IN_A_ROW: usize = 8;

/// Removes all prefixes. If the prefixes include hosts, the lines of one host are grouped, in the
/// order in which hosts first appear.
pub(super) fn strip_prefixes(lines: &mut [OutputLine<'_>]) {
    hosts::assign_section_hosts(lines);
    for _ in 0..DEEPEST {
        // From outside in: a launcher's tag can follow any of the others.
        let any = marks::strip_line_numbers(lines)
            || marks::FORMATS.iter().any(|style| strip_format(lines, *style))
            || COMMENTS.iter().any(|mark| marks::strip_comment(lines, mark))
            || hosts::strip_hosts(lines)
            || common_prefix::strip_common_prefix(lines)
            || strip_tag(lines, marks::strip_pod_prefix)
            || strip_tag(lines, marks::strip_mpi_tag);
        if !any {
            break;
        }
    }
}

/// Removes a tag from every line that has one.
fn strip_tag(lines: &mut [OutputLine<'_>], style: fn(&mut OutputLine<'_>) -> bool) -> bool {
    lines.iter_mut().fold(false, |any, line| style(line) | any)
}

/// Removes a kind of mark from the lines it prefixes.
fn strip_format(lines: &mut [OutputLine<'_>], style: PrefixFormat) -> bool {
    let filled = nonblank_lines(lines);
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
                any |= apply_format(&mut lines[*line], style);
            }
        }
        at += length.max(1);
    }
    any
}

/// The indices of non-blank lines.
fn nonblank_lines(lines: &[OutputLine<'_>]) -> Vec<usize> {
    (0..lines.len()).filter(|at| !lines[*at].text.trim().is_empty()).collect()
}

fn apply_format(line: &mut OutputLine<'_>, style: PrefixFormat) -> bool {
    let Some(mark) = style(line.text) else { return false };
    apply_mark(line, mark);
    true
}

fn apply_mark<'a>(line: &mut OutputLine<'a>, mark: PrefixMark<'a>) {
    line.label = mark.label.or(line.label);
    line.stderr |= mark.stderr;
    line.text = mark.rest;
}

#[cfg(test)]
mod tests {
    use super::super::{decode, split_lines};

    const TEXT: [&str; 6] =
        ["Running a_test.", "           0         1", "0       N/A     12.00", "", "1: x", "end"];

    fn behind(margin: impl Fn(usize) -> String) -> Vec<(String, Option<u32>)> {
        let text: String =
            TEXT.iter().enumerate().map(|(at, line)| format!("{}{line}\n", margin(at))).collect();
        split_lines(&decode(text.as_bytes())).iter().map(|l| (l.text.to_owned(), l.label)).collect()
    }

    fn assert_gone(margin: impl Fn(usize) -> String, label: Option<u32>) {
        let example = margin(1);
        let expected: Vec<_> = TEXT.iter().map(|line| ((*line).to_owned(), label)).collect();
        assert_eq!(behind(margin), expected, "{example:?}");
    }

    #[test]
    fn timestamps_of_collectors_and_loggers_are_removed() {
        let second = |at: usize| format!("{:02}", at + 7);
        assert_gone(|at| format!("2026-02-03T04:05:{}.123456789Z ", second(at)), None);
        assert_gone(|at| format!("2026-02-03T04:05:{}+01:00 stdout F ", second(at)), None);
        assert_gone(|at| format!("[2026-02-03 04:05:{},250] ", second(at)), None);
        assert_gone(|at| format!("Feb  3 04:05:{} ", second(at)), None);
        assert_gone(|at| format!("Feb  3 04:05:{} rack4-n2 burnin[77]: ", second(at)), None);
        assert_gone(|at| format!("[04:05:{}] ", second(at)), None);
    }

    #[test]
    fn quotes_and_service_names_are_removed() {
        assert_gone(|_| "> ".to_owned(), None);
        assert_gone(|_| "> > ".to_owned(), None);
        assert_gone(|_| "fabric-check-1  | ".to_owned(), None);
    }

    #[test]
    fn nested_prefixes_are_all_removed() {
        assert_gone(|_| "[pod/job-launcher-4x/run] [1,3]<stdout>:".to_owned(), Some(3));
        assert_gone(|at| format!("[pod/job-0/run] 2026-02-03T04:05:0{at}Z "), None);
        assert_gone(|_| "> 0: [1,2]<stdout>:".to_owned(), Some(2));
        assert_gone(|at| format!("Tue Feb  3 04:05:0{at} 2026<stdout>:"), None);
    }

    #[test]
    fn lines_with_only_the_outer_prefix_lose_it_too() {
        let tagged = "4: [1,0]<stdout>:x\n4: [1,0]<stdout>:y\n4: [1,0]<stdout>:z\n4: ...\n";
        let texts: Vec<&str> = split_lines(tagged).iter().map(|l| l.text).collect();
        assert_eq!(texts, ["x", "y", "z", "..."]);
        let lines: String = ["[1,0]<stdout>:x", "[1,0]<stdout>:y", "..."]
            .iter()
            .map(|line| format!("[pod/a/b] 2026-02-03T04:05:06Z {line}\n"))
            .collect();
        let texts: Vec<&str> = split_lines(&lines).iter().map(|l| l.text).collect();
        assert_eq!(texts, ["x", "y", "..."]);
    }

    #[test]
    fn a_block_of_labels_inside_a_longer_log_is_removed() {
        let plain = "some words\n".repeat(40);
        let block: String = (0..9).map(|at| format!("2: row {at}\n")).collect();
        let text = format!("{plain}{block}{plain}");
        let lines = split_lines(&text);
        assert_eq!(lines.iter().filter(|l| l.label == Some(2)).count(), 9);
        assert!(lines.iter().any(|l| l.text == "row 8"));
    }

    #[test]
    fn lines_of_several_hosts_are_grouped() {
        let text: String = (0..5).map(|at| format!("n1: a {at}\nn2: b {at}\n")).collect();
        let lines = split_lines(&text);
        let texts: Vec<&str> = lines.iter().map(|l| l.text).collect();
        assert_eq!(texts[..6], ["a 0", "a 1", "a 2", "a 3", "a 4", "b 0"]);
        assert_eq!((lines[0].host, lines[9].host), (Some("n1"), Some("n2")));
    }

    #[test]
    fn words_of_the_text_are_not_prefixes() {
        for text in [
            "srun: error: n1: task 3: Killed\nsrun: error: n2: task 4: Killed\n".repeat(3),
            "Link 0: 50 GB/s\nLink 1: 50 GB/s\nLink 2: 50 GB/s\nLink 3: 50 GB/s\n".to_owned(),
            "State: Active\nRate: 400\nState: Down\nRate: 200\n".to_owned(),
            "2026-01-02 03:04:05 once\nand\nno\nmore\n".to_owned(),
            "> prompt\nand\nits\nanswer\n".to_owned(),
        ] {
            let expected: Vec<&str> = text.lines().collect();
            let texts: Vec<&str> = split_lines(&text).iter().map(|l| l.text).collect();
            assert_eq!(texts, expected);
        }
    }
}
