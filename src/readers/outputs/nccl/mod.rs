//! nccl-tests: the text of every release since 2.0, and the file `-J` writes.
//!
//! `text` and `json` find the runs, `run` says what each one gives, and
//! `consistency` whether its numbers can be true. How fast is fast enough is
//! decided elsewhere.

pub(super) mod collective;
mod consistency;
mod debug;
mod errors;
mod header;
mod json;
mod outcome;
mod preamble;
mod printed;
mod run;
mod text;

#[cfg(test)]
mod tests;

use super::CERTAIN;
use super::Confidence;
use super::Input;
use super::LIKELY;
use super::POSSIBLE;
use model::parsed::Parsed;

/// Rows of all layouts are shorter: 25 columns of at most 14 characters.
const LONGEST_ROW: usize = 400;

/// How sure this is an output of nccl-tests.
pub fn recognises(input: &Input<'_>) -> Confidence {
    let mut best = if json::is_likely(input.text) { CERTAIN } else { 0 };
    let mut program = false;
    for line in &input.lines {
        if best == CERTAIN {
            break;
        }
        let text = line.text;
        let own = ["Collective test starting: ", "nccl-tests version "];
        if own.iter().any(|mark| text.contains(mark))
            || preamble::parameters(text).is_some()
            || text::is_header(line)
        {
            best = CERTAIN;
        } else if best < LIKELY
            && (errors::of_test(text).is_some()
                || text.contains("Out of bounds values")
                || (text.len() < LONGEST_ROW
                    && header::Layout::of_row(&line.words().collect::<Vec<_>>()).is_some()))
        {
            best = LIKELY;
        }
        // The names of all its programs end so; looking at every word of every
        // matrix of other tools would cost more than reading them.
        program = program
            || (text.contains("_perf")
                && line.words().any(|word| collective::by_name(word).is_some()));
    }
    // Most outputs are another tool's and name no program of these, so that no line of
    // theirs has to be held against every failure there is.
    let failed = || input.lines.iter().any(|line| errors::around_test(line.text).is_some());
    if program && best < POSSIBLE && failed() { POSSIBLE } else { best }
}

/// Reads an output of nccl-tests.
pub fn parse(input: &Input<'_>) -> Parsed {
    // A log that holds a table holds the same numbers as the file beside it.
    let table = input.lines.iter().any(text::is_header);
    let outcome = if !table && json::is_likely(input.text) {
        let read = json::read(input.text);
        // A launcher's margins can stand between the object's lines.
        if read.runs.is_empty() { json::read(&input.plain()) } else { read }
    } else {
        text::read(input)
    };
    outcome.close()
}
