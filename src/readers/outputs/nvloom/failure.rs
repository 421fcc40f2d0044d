//! nvloom's failure messages.

use super::text;
use model::parse_output::{OutputProblem, OutputProblemKind};
use model::text::clean;

/// The failure in this line, if any.
pub(super) fn parse_failure(line: &str) -> Option<OutputProblem> {
    let (place, text) = split_location(from_message(line));
    let kind =
        if is_wrong_data(text) { OutputProblemKind::Corrupt } else { OutputProblemKind::Error };
    let code = text.strip_prefix('[').and_then(|rest| rest.split_once("] "));
    let failed_call = code.is_some() && text.contains(" in expression ");
    let failed_assertion = text.starts_with("ASSERT in expression ");
    let different_domain =
        text.starts_with("Process ") && text.contains(" is different than process ");
    let refused = ["Error running testcase ", "No such testcase as ", "No such suite as "]
        .iter()
        .any(|beginning| text.starts_with(beginning));
    let usage = text.starts_with("Couldn't parse command line arguments properly");
    if !(failed_call || failed_assertion || different_domain || refused || usage) {
        return None;
    }
    let mut problem = OutputProblem::new(kind, clean(text));
    if let Some((host, device)) = place {
        problem.host = Some(clean(host));
        problem.gpu = Some(device);
    }
    if failed_call {
        // NVML's errors are sentences; only a name is a code.
        let name = |code: &&str| !code.contains(' ');
        problem.code = code.map(|(code, _)| code).filter(name).map(clean);
    }
    if different_domain {
        let rank = text.split_whitespace().nth(1).and_then(text::parse_integer);
        problem.rank = rank.and_then(|rank| u32::try_from(rank).ok());
    }
    Some(problem)
}

/// The line from the start of its message: cells are printed one by one, so a failure can follow
/// half a row.
fn from_message(line: &str) -> &str {
    let placed = ["]: [", "]: ASSERT in expression "].iter().find_map(|mark| line.find(mark));
    let start = match placed {
        Some(at) => line[..at].rfind('['),
        None => line.find("Error running testcase "),
    };
    start.map_or(line, |start| &line[start..])
}

/// The comparison of the destination with the data written to the source.
fn is_wrong_data(text: &str) -> bool {
    text.starts_with("ASSERT in expression ") && text.contains("dst->check(")
}

/// `[HOST:DEVICE]: ` in front of a message.
fn split_location(line: &str) -> (Option<(&str, u32)>, &str) {
    let split = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
    let Some((inside, text)) = split else { return (None, line) };
    let place = inside.rsplit_once(':').and_then(|(host, device)| {
        let device = text::parse_integer(device)?.try_into().ok()?;
        Some((host, device))
    });
    if place.is_some() { (place, text) } else { (None, line) }
}
