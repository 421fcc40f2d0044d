//! NVML errors that `nvidia-smi` prints instead of an answer.
//!
//! Every subcommand prints the same sentences, so they are handled in one place. The judge decides
//! their meaning for a node.

use crate::outputs::text::OutputLine;
use model::parse_output::{OutputProblem, OutputProblemKind};
use model::text::clean;

/// The beginnings of such a line, in lower case. The sentences are `nvidia-smi`'s own; the part
/// after a colon is NVML's name for the error.
const OPENINGS: &[&str] = &[
    "unable to determine the device handle for",
    "nvidia-smi has failed because",
    "no devices were found",
    "failed to initialize nvml",
    "failed to run topology",
    "gpu access blocked by the operating system",
    "gpu is lost",
    "nvml:",
];

/// NVML's text in place of a value if the GPU does not answer.
const LOST_VALUES: &[&str] = &["unknown error", "gpu is lost", "gpu requires reset", "err!"];

/// The error in this line, with its GPU if the line names one by index.
pub(super) fn parse_failure(line: &OutputLine<'_>) -> Option<OutputProblem> {
    let text = line.trimmed();
    is_failure_opening(text).then(|| {
        let mut problem =
            OutputProblem::new(OutputProblemKind::Error, clean(text)).at_line(line.number);
        problem.gpu = parse_gpu_index(text);
        problem
    })
}

/// Whether a value means that the GPU did not answer.
pub(super) fn is_lost_value(value: &str) -> bool {
    let value = value.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase();
    LOST_VALUES.contains(&value.as_str())
}

fn is_failure_opening(text: &str) -> bool {
    OPENINGS.iter().any(|o| text.get(..o.len()).is_some_and(|head| head.eq_ignore_ascii_case(o)))
}

/// The index in `... for GPU3: 0000:5F:00.0: Unknown Error`. Other releases name only the bus
/// address, and its domain is not an index.
fn parse_gpu_index(text: &str) -> Option<u32> {
    let after = text.split_once("for GPU").or_else(|| text.split_once("for gpu"))?.1.trim_start();
    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
    let (index, rest) = after.split_at(digits);
    let ends = rest.is_empty() || rest == ":" || rest.starts_with(": ");
    ends.then(|| index.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> Option<OutputProblem> {
        parse_failure(&OutputLine { number: 7, text, label: None, stderr: false, host: None })
    }

    #[test]
    fn an_index_is_taken_and_a_bus_address_is_not_mistaken_for_one() {
        let by_index =
            problem("Unable to determine the device handle for GPU5: 0000:9A:00.0: Unknown Error");
        assert_eq!(by_index.and_then(|p| p.gpu), Some(5));
        for text in [
            "Unable to determine the device handle for GPU 0000:9A:00.0: Not Found",
            "Unable to determine the device handle for GPU0000:9A:00.0: Unknown Error",
        ] {
            let by_bus = problem(text).expect("an error");
            assert_eq!((by_bus.gpu, by_bus.line), (None, Some(7)), "{text}");
        }
    }

    #[test]
    fn a_sentence_that_only_mentions_an_error_is_not_one() {
        assert_eq!(problem("we saw: No devices were found"), None);
        assert!(problem("No devices were found").is_some());
        assert!(problem("Failed to initialize NVML: Driver/library version mismatch").is_some());
    }

    #[test]
    fn a_value_is_lost_only_when_it_is_nothing_but_the_error() {
        assert!(is_lost_value("[GPU requires reset]") && is_lost_value("Unknown Error"));
        assert!(!is_lost_value("0") && !is_lost_value("N/A") && !is_lost_value("No errors"));
    }
}
