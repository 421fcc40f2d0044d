//! An unknown prefix: the same text in front of every line.

use super::hosts::is_program;
use super::marks::skip_blank;
use super::nonblank_lines;
use crate::outputs::text::OutputLine;

/// Fewer lines can start alike by chance.
const FEWEST: usize = 4;

/// Prefixes are shorter.
const LONGEST: usize = 120;

/// The last characters of such a prefix, before a blank.
const ENDS: [char; 7] = [':', ']', ')', '>', '|', '-', '}'];

/// Removes a prefix that at least nine of ten lines share.
pub(super) fn strip_common_prefix(lines: &mut [OutputLine<'_>]) -> bool {
    let filled = nonblank_lines(lines);
    if filled.len() < FEWEST {
        return false;
    }
    let (first, last) = (filled[0], filled[filled.len() - 1]);
    let examples = [first, filled[filled.len() / 2], last].map(|at| lines[at].text);
    let prefix = examples.iter().flat_map(|text| candidate_prefixes(text)).find(|prefix| {
        let with = filled
            .iter()
            .filter(|at| text_after_prefix(lines[**at].text, prefix).is_some())
            .count();
        let has_text_after = |at: &&usize| {
            text_after_prefix(lines[**at].text, prefix).is_some_and(|r| !r.is_empty())
        };
        let nccl = |at: &&usize| {
            text_after_prefix(lines[**at].text, prefix)
                .is_some_and(|rest| rest.trim().starts_with("NCCL "))
        };
        filled.len() * 9 <= with * 10
            && with <= 2 * filled.iter().filter(has_text_after).count()
            && filled.iter().filter(nccl).count() * 2 < with
    });
    let Some(prefix) = prefix else { return false };
    for at in filled {
        if let Some(rest) = text_after_prefix(lines[at].text, prefix) {
            lines[at].text = rest;
        }
    }
    true
}

fn text_after_prefix<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    text.strip_prefix(prefix)
        .filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))
        .map(skip_blank)
}

/// The beginnings of a line that could be such a prefix, the shortest first: prefixes are removed
/// from outside in.
fn candidate_prefixes(text: &str) -> Vec<&str> {
    // Numbers in brackets are iperf3 streams, and JSON has its own syntax.
    if text.trim_start().starts_with(['{', '"', '#', '|', '[', ' ']) && !is_named_bracket(text) {
        return Vec::new();
    }
    text.char_indices()
        .take(LONGEST)
        .filter(|(_, c)| ENDS.contains(c))
        .map(|(at, c)| (&text[..at + c.len_utf8()], &text[at + c.len_utf8()..]))
        .filter(|(_, rest)| rest.is_empty() || rest.starts_with([' ', '\t']))
        .map(|(prefix, _)| prefix)
        .filter(|prefix| {
            let word = prefix.trim_start().split([' ', ':']).next().unwrap_or("");
            let has_letters = prefix.bytes().any(|b| b.is_ascii_alphabetic());
            // MPI tags name the rank.
            has_letters && !is_program(word) && !prefix.contains("<std")
        })
        .collect()
}

/// `[name] `, without a number.
fn is_named_bracket(text: &str) -> bool {
    let inside = text.trim_start().strip_prefix('[').and_then(|rest| rest.split_once(']'));
    inside.is_some_and(|(inside, _)| {
        !inside.starts_with(' ')
            && !matches!(inside, "SUM" | "ID")
            && inside.bytes().any(|b| b.is_ascii_alphabetic())
    })
}
