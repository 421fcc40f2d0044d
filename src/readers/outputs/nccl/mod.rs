//! nccl-tests: the text of every release since 2.0, and the file that `-J` writes.
//!
//! `text` and `json` find the runs, `run` builds the result of each, and `consistency` checks
//! whether its numbers are possible. The judge compares them with expectations.

pub(super) mod collective;
mod consistency;
mod debug_log;
mod errors;
mod header;
mod json;
mod output_builder;
mod preamble;
mod rounded_number;
mod run;
mod text;

#[cfg(test)]
mod tests;

use super::{CERTAIN, LIKELY, POSSIBLE, ParserConfidence, ParserInput};
use model::parse_output::ParseOutput;

/// Rows of all layouts are shorter: 25 columns of at most 14 characters.
const LONGEST_ROW: usize = 400;

/// The confidence that this is an output of nccl-tests.
pub fn recognises(input: &ParserInput<'_>) -> ParserConfidence {
    let mut best = if json::is_likely(input.text) { CERTAIN } else { 0 };
    let mut program = false;
    for line in &input.lines {
        if best == CERTAIN {
            break;
        }
        let text = line.text;
        let own = ["Collective test starting: ", "nccl-tests version "];
        if own.iter().any(|mark| text.contains(mark))
            || preamble::parse_parameters(text).is_some()
            || text::is_header(line)
        {
            best = CERTAIN;
        } else if best < LIKELY
            && (errors::parse_test_failure(text).is_some()
                || text.contains("Out of bounds values")
                || (text.len() < LONGEST_ROW
                    && header::NcclTableLayout::from_row(&line.split_words().collect::<Vec<_>>())
                        .is_some()))
        {
            best = LIKELY;
        }
        // The names of all its programs end like this; checking every token of other tools'
        // matrices would cost more than reading them.
        program = program
            || (text.contains("_perf")
                && line.split_words().any(|word| collective::find_program(word).is_some()));
    }
    // Most outputs come from another tool and name none of these programs, so their lines need not
    // be matched against every failure.
    let failed =
        || input.lines.iter().any(|line| errors::parse_launcher_failure(line.text).is_some());
    if program && best < POSSIBLE && failed() { POSSIBLE } else { best }
}

/// Reads an output of nccl-tests.
pub fn parse(input: &ParserInput<'_>) -> ParseOutput {
    // A log that holds a table repeats the numbers of the file next to it.
    let table = input.lines.iter().any(text::is_header);
    let outcome = if !table && json::is_likely(input.text) {
        let read = json::read_runs(input.text);
        // Launcher prefixes may appear between the object's lines.
        if read.runs.is_empty() { json::read_runs(&input.plain_text()) } else { read }
    } else {
        text::read_runs(input)
    };
    outcome.into_parsed()
}
