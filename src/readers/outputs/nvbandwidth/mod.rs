//! nvbandwidth, text v0.1 to v0.10 and JSON from v0.5, one node or many.
//!
//! `text` and `json` read the two formats, `table` reads one printed matrix, `testcases` knows the
//! tool's test names, `errors` its failure messages. The judge decides which end of a cell is the
//! source.
//!
//! Facts come from the tool's source, tags v0.1 to v0.8; for v0.9 and v0.10, whose source was not
//! available, from published logs and its README.

mod errors;
mod header;
mod json;
mod run;
mod surroundings;
mod table;
mod testcases;
mod text;

#[cfg(test)]
mod tests;

use super::text::OutputLine;
use super::{CERTAIN, LIKELY, POSSIBLE, ParserConfidence, ParserInput};
use model::parse_output::ParseOutput;

/// Whether nvbandwidth wrote this output.
pub fn recognises(input: &ParserInput<'_>) -> ParserConfidence {
    if json::is_named_in(input.text) {
        return CERTAIN;
    }
    let mut best = 0;
    for line in &input.lines {
        best = best.max(text_confidence(testcases::strip_mark(line.text.trim_start())));
        if best == CERTAIN {
            break;
        }
    }
    best
}

fn text_confidence(text: &str) -> ParserConfidence {
    let first = text.split_whitespace().next().unwrap_or("");
    match first {
        "nvbandwidth" if text.starts_with("nvbandwidth Version:") => CERTAIN,
        "nvbandwidth" if text.starts_with("nvbandwidth CLI") => CERTAIN,
        "Usage:" if text.starts_with("Usage: nvbandwidth") => CERTAIN,
        // nvloom announces tests with the same names, without the dot.
        "Running" | "Waiving"
            if testcases::parse_announcement(text).is_some_and(testcases::is_known) =>
        {
            if text.ends_with('.') { CERTAIN } else { POSSIBLE }
        }
        "SUM" if text.split_whitespace().nth(1).is_some_and(testcases::is_known) => LIKELY,
        "&&&&" if text.split_whitespace().nth(2).is_some_and(testcases::is_known) => LIKELY,
        "memcpy" | "memory" | "multicast" | "Device" if table::is_description(text) => LIKELY,
        _ if testcases::parse_listed_testcase(text).is_some() => LIKELY,
        _ if text.contains("nvbandwidth: ") || text.contains("/nvbandwidth ") => POSSIBLE,
        _ if text.contains("] ") && text.contains(" in expression ") => POSSIBLE,
        _ => 0,
    }
}

/// Reads one output.
pub fn parse(input: &ParserInput<'_>) -> ParseOutput {
    json::parse(input).unwrap_or_else(|| text::parse(input))
}

/// The lines of each process, if a launcher labelled them and `is_start` matches lines of more than
/// one label: `srun -l` on many nodes mixes complete outputs line by line. `None` for a single
/// output.
fn split_streams<'a, 'b>(
    lines: &'b [OutputLine<'a>],
    is_start: impl Fn(&OutputLine<'a>) -> bool,
) -> Option<Vec<Vec<&'b OutputLine<'a>>>> {
    let mut labels: Vec<u32> =
        lines.iter().filter(|l| is_start(l)).filter_map(|l| l.label).collect();
    labels.sort_unstable();
    labels.dedup();
    if labels.len() < 2 {
        return None;
    }
    // Lines without a label, or with the label of a process without its own output, can still be
    // errors: they go with the first stream.
    let mut streams = vec![Vec::new(); labels.len()];
    for line in lines {
        let stream = line.label.and_then(|label| labels.binary_search(&label).ok()).unwrap_or(0);
        streams[stream].push(line);
    }
    Some(streams)
}
