//! Failure messages of nvbandwidth and of its launchers.
//!
//! Source: `error_handling.h`, `memcpy.cpp` and `nvbandwidth.cpp`, v0.1 to v0.8. The judge decides
//! the meaning of a failure for a node.

use crate::outputs::text::OutputLine;
use model::parse_output::{OutputProblem, OutputProblemKind};
use model::text::clean;

#[derive(Debug, PartialEq)]
pub(super) struct NvbandwidthFailure {
    /// The problem to report. It names a test only if the message does.
    pub problem: OutputProblem,
    /// The part of the run that it ends.
    pub scope: FailureScope,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureScope {
    /// The process stops here.
    Run,
    /// The running test has no result; the next one starts.
    Test,
    /// No started test is affected.
    Nothing,
}

/// The failure in this line, if any.
pub(super) fn parse_failure(line: &OutputLine<'_>) -> Option<NvbandwidthFailure> {
    let text = line.trimmed();
    let mut failure = parse_tool_failure(text).or_else(|| parse_launcher_failure(text))?;
    failure.problem.line = Some(line.number);
    if failure.problem.rank.is_none() && failure.scope == FailureScope::Run {
        failure.problem.rank = line.label;
    }
    Some(failure)
}

/// The failure in a JSON `error`, whatever its text.
pub(super) fn failure_from_message(message: &str) -> NvbandwidthFailure {
    parse_tool_failure(message.trim())
        .unwrap_or_else(|| new_failure(OutputProblemKind::Error, message, FailureScope::Run))
}

fn new_failure(kind: OutputProblemKind, text: &str, ends: FailureScope) -> NvbandwidthFailure {
    NvbandwidthFailure { problem: OutputProblem::new(kind, clean(text)), scope: ends }
}

fn parse_tool_failure(text: &str) -> Option<NvbandwidthFailure> {
    // v0.7 and v0.8 assert on a flag, v0.4 to v0.6 name the address.
    if text.contains("Invalid value when checking the pattern")
        || (text.contains("ASSERT in expression") && text.contains("errorFlag"))
    {
        let mut corrupt = new_failure(OutputProblemKind::Corrupt, text, FailureScope::Run);
        add_location(&mut corrupt.problem, text);
        return Some(corrupt);
    }
    if let Some(code) = library_code(text) {
        let mut error = new_failure(OutputProblemKind::Error, text, FailureScope::Run);
        error.problem.code = Some(code.to_owned());
        add_location(&mut error.problem, text);
        return Some(error);
    }
    if text.contains("ASSERT in expression ") {
        let mut error = new_failure(OutputProblemKind::Error, text, FailureScope::Run);
        add_location(&mut error.problem, text);
        return Some(error);
    }
    if text.starts_with("You cannot specify both testcase")
        || text.starts_with("Specified list of testcase prefixes did not match")
        || text.starts_with("ERROR: Invalid Arguments")
    {
        return Some(new_failure(OutputProblemKind::Error, text, FailureScope::Run));
    }
    // The status `ERROR` marks nonexistent tests, `Error` those that threw an exception.
    if let Some(message) = text.strip_prefix("ERROR: ") {
        let mut error = new_failure(OutputProblemKind::Error, text, FailureScope::Nothing);
        if let Some(rest) = message.strip_prefix("Testcase ") {
            let name = rest.strip_prefix("index ").unwrap_or(rest).split_whitespace().next();
            error.problem.testcase = name.map(clean);
        }
        return Some(error);
    }
    text.starts_with("Error: ")
        .then(|| new_failure(OutputProblemKind::Error, text, FailureScope::Test))
}

/// `CUDA_ERROR_...` or `cudaError...` in brackets, or `NVML_ERROR`.
fn library_code(text: &str) -> Option<&str> {
    if text.contains("NVML_ERROR: [") {
        return Some("NVML_ERROR");
    }
    ["[CUDA_ERROR_", "[cudaError"].iter().find_map(|start| {
        let at = text.find(start)? + 1;
        let end = text[at..].find(']')? + at;
        let code = &text[at..end];
        code.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_').then_some(code)
    })
}

/// ` on HOST, rank = R in` of the MPI build.
fn add_location(problem: &mut OutputProblem, text: &str) {
    let Some((before, after)) = text.rsplit_once(", rank = ") else { return };
    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
    problem.rank = after[..digits].parse().ok();
    let host = before.rsplit_once(" on ").map(|(_, host)| host);
    problem.host = host.filter(|host| is_host(host)).map(str::to_owned);
}

/// Whether this can be a host name.
pub(super) fn is_host(word: &str) -> bool {
    !word.is_empty()
        && word.len() <= 253
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
        && word.bytes().any(|b| b.is_ascii_alphanumeric())
}

/// Messages of mpirun, srun and the shell if nvbandwidth dies or never starts.
fn parse_launcher_failure(text: &str) -> Option<NvbandwidthFailure> {
    const DEATHS: [&str; 7] = [
        "MPI_ABORT was invoked on rank ",
        "noticed that process rank ",
        "srun: error: ",
        "slurmstepd: error: ",
        "nvbandwidth: error while loading shared libraries",
        "nvbandwidth: No such file or directory",
        "nvbandwidth: command not found",
    ];
    let crashed = text.starts_with("Segmentation fault") || text.starts_with("terminate called");
    if !crashed && !DEATHS.iter().any(|death| text.contains(death)) {
        return None;
    }
    let mut died = new_failure(OutputProblemKind::Error, text, FailureScope::Run);
    let number_after = |key: &str| {
        let (_, rest) = text.split_once(key)?;
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest[..digits].parse::<u32>().ok()
    };
    died.problem.rank = number_after(" rank ").or_else(|| number_after(": task "));
    // mpirun: `... on node HOST exited`; srun: `srun: error: HOST: task 3: ...`.
    let host = text.split_once(" on node ").or_else(|| text.split_once("srun: error: "));
    died.problem.host = host
        .and_then(|(_, rest)| rest.split([' ', ':']).next())
        .filter(|host| is_host(host) && died.problem.rank.is_some())
        .map(str::to_owned);
    Some(died)
}

/// Two ranks on one GPU: the measurement between them is not a link.
pub(super) fn parse_oversubscription(text: &str) -> Option<OutputProblem> {
    let (_, rest) = text.split_once("there are more processes than GPUs on ")?;
    let host = rest.split(". ").next().unwrap_or(rest).trim_end_matches('.');
    let detail = format!(
        "more processes than GPUs on {}: ranks share a GPU, so their cells are not links",
        clean(host)
    );
    let mut problem = OutputProblem::new(OutputProblemKind::Inconsistent, detail);
    problem.host = is_host(host).then(|| host.to_owned());
    Some(problem)
}
