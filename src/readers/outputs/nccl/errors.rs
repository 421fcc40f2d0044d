//! Failures that a test, its launcher or the batch system print.
//!
//! Every function reads one line. `text` decides which lines matter: a chain of `Test failure`
//! lines only repeats its first cause.

use super::collective;
use model::cuda_error::CudaError;
use model::text;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NcclTestFailure {
    /// The host that reports it, exactly as printed before the colon.
    pub(super) host: Option<String>,
    pub(super) rank: Option<u32>,
    pub(super) code: Option<String>,
    pub(super) detail: String,
    /// It only reports that a call failed, which another line explains.
    pub(super) is_echo: bool,
    /// Offset of the failure's text in its line; the text before it may be a piece of a row.
    pub(super) start: usize,
}

/// Whether a line has two consecutive letters. Failures have, matrix rows have not, and matching
/// every failure against each row would cost more than parsing it.
fn has_word(line: &str) -> bool {
    line.as_bytes().windows(2).any(|two| two.iter().all(u8::is_ascii_alphabetic))
}

/// Parses a failure printed by the test itself.
pub(super) fn parse_test_failure(line: &str) -> Option<NcclTestFailure> {
    // Every failure contains one of these, and almost no other line does.
    if !line.contains("Test ") && !line.contains("NCCL failure ") {
        return None;
    }
    for what in ["Test CUDA failure", "Test NCCL failure", "Test timeout"] {
        let Some(at) = line.find(what) else { continue };
        let rest = line[at + what.len()..].trim();
        let (host, start) = host_before(line, at);
        let quoted = rest.split_once('\'').map(|(_, q)| q.trim_end().trim_end_matches('\''));
        let code = quoted.and_then(|message| match what {
            "Test CUDA failure" => cuda_code(message),
            _ => nccl_code(message),
        });
        let detail = text::clean(&format!("{what} {rest}"));
        return Some(NcclTestFailure { host, rank: None, code, detail, is_echo: false, start });
    }
    // The first release prints neither its own name nor its host.
    if let Some(rest) = line.trim_start().strip_prefix("NCCL failure ")
        && let Some((place, message)) = rest.split_once(" '")
        && place.contains(".cu:")
    {
        let code = nccl_code(message.trim_end_matches('\''));
        let start = line.len() - line.trim_start().len();
        let detail = text::clean(line);
        return Some(NcclTestFailure {
            host: None,
            rank: None,
            code,
            detail,
            is_echo: false,
            start,
        });
    }
    let at = line.find(": Test failure ")?;
    // " .. HOST pid N: Test failure FILE:LINE"
    let head = &line[..at];
    let start = head.rfind(" .. ").or_else(|| head.starts_with(".. ").then_some(0))?;
    let mut words = head[start..].split_whitespace().skip(1);
    let host = words.next().map(text::clean);
    let detail = text::clean(line[at + 2..].trim());
    Some(NcclTestFailure { host, rank: None, code: None, detail, is_echo: true, start })
}

/// `HOST` of `HOST: Test ...`, and its offset.
fn host_before(line: &str, at: usize) -> (Option<String>, usize) {
    let head = line[..at].trim_end();
    let Some(head) = head.strip_suffix(':') else { return (None, at) };
    let start = head.rfind(char::is_whitespace).map_or(0, |blank| blank + 1);
    let host = text::clean(&head[start..]);
    ((!host.is_empty()).then_some(host), start)
}

/// Texts of `ncclGetErrorString` and the error names.
const NCCL_ERRORS: &[(&str, &str)] = &[
    ("unhandled cuda error", "ncclUnhandledCudaError"),
    ("unhandled system error", "ncclSystemError"),
    ("internal error", "ncclInternalError"),
    ("invalid argument", "ncclInvalidArgument"),
    ("invalid usage", "ncclInvalidUsage"),
    ("remote process exited or there was a network error", "ncclRemoteError"),
];

fn nccl_code(message: &str) -> Option<String> {
    NCCL_ERRORS
        .iter()
        .find(|(text, _)| message.starts_with(text))
        .map(|(_, name)| (*name).to_owned())
}

fn cuda_code(message: &str) -> Option<String> {
    CudaError::from_message(message).map(|error| error.runtime_name().to_owned())
}

/// The CUDA error in an NCCL warning: `Cuda failure 'TEXT'`, in later releases with its number
/// before the text.
pub(super) fn parse_warning_code(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("Cuda failure ")?;
    cuda_code(rest.split_once('\'')?.1)
}

/// Parses a failure of the launcher, the batch system, the shell, or of the test before it starts.
pub(super) fn parse_launcher_failure(line: &str) -> Option<NcclTestFailure> {
    if !has_word(line) {
        return None;
    }
    let line = line.trim();
    let plain = |detail: &str| NcclTestFailure {
        host: None,
        rank: None,
        code: None,
        detail: text::clean(detail),
        is_echo: false,
        start: 0,
    };
    if let Some(at) = line.find("srun: error: ") {
        let rest = &line[at + "srun: error: ".len()..];
        let (host, rank) = parse_srun_task(rest);
        return Some(NcclTestFailure { host, rank, ..plain(&line[at..]) });
    }
    if let Some(at) = line.find("slurmstepd: error: ") {
        let host = word_after(line, " ON ");
        return Some(NcclTestFailure { host, ..plain(&line[at..]) });
    }
    if line.contains("noticed that process rank ") {
        let rank = word_after(line, "process rank ").and_then(|r| r.parse().ok());
        let host = word_after(line, " on node ");
        return Some(NcclTestFailure { host, rank, ..plain(line) });
    }
    if line.contains("MPI_ABORT was invoked on rank ") {
        let rank = word_after(line, "invoked on rank ").and_then(|r| r.parse().ok());
        return Some(NcclTestFailure { rank, ..plain(line) });
    }
    if let Some(at) = line.find("USAGE: ") {
        let program = line[at..].split_whitespace().nth(1)?;
        collective::find_program(program)?;
        return Some(plain("the test printed its usage instead of running"));
    }
    STARTS
        .iter()
        .find_map(|start| line.find(start))
        .map(|at| plain(&line[at..]))
        .or_else(|| PARTS.iter().any(|part| line.contains(part)).then(|| plain(line)))
}

/// The beginnings of these failures, after any launcher prefix.
const STARTS: &[&str] = &[
    "There are not enough slots available",
    "Primary job  terminated normally",
    "mpirun was unable to ",
    "mpiexec was unable to ",
    "prterun was unable to ",
    "mpirun detected that one or more processes exited with non-zero status",
    "prterun detected that one or more processes exited with non-zero status",
    "ORTE was unable to reliably start",
    "ORTE has lost communication with a remote daemon",
    "PRTE has lost communication with a remote daemon",
    "An ORTE daemon has unexpectedly failed",
    "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
    "salloc: error: ",
    "sbatch: error: ",
    "Invalid number of GPUs: ",
    "Incompatible NCCL versions. ",
    "invalid sizes for 'minbytes' and 'maxbytes'",
    "invalid size specified for '",
    "Device implementation ",
];

/// Fragments of these failures, which begin with a name.
const PARTS: &[&str] = &[
    "error while loading shared libraries:",
    "Segmentation fault (core dumped)",
    "Bus error (core dumped)",
    "_perf: command not found",
    "_perf: No such file or directory",
];

/// Parses `node7: task 3: Exited with exit code 3`.
fn parse_srun_task(rest: &str) -> (Option<String>, Option<u32>) {
    let mut parts = rest.split(": ");
    let (Some(host), Some(task)) = (parts.next(), parts.next()) else { return (None, None) };
    if !task.starts_with("task") || host.contains(' ') {
        return (None, None);
    }
    let rank = task.strip_prefix("task ").and_then(|t| t.trim().parse().ok());
    (Some(text::clean(host)), rank)
}

fn word_after(line: &str, mark: &str) -> Option<String> {
    let (_, rest) = line.split_once(mark)?;
    let word = rest.split_whitespace().next()?;
    let word = word.trim_end_matches([',', '.', ':', ';', ')']);
    (!word.is_empty()).then(|| text::clean(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cuda_failure_names_host_and_code() {
        let line = "gpu-9: Test CUDA failure common.cu:291 'unspecified launch failure'";
        let failure = parse_test_failure(line).expect("a failure");
        assert_eq!(failure.host.as_deref(), Some("gpu-9"));
        assert_eq!(failure.code.as_deref(), Some("cudaErrorLaunchFailure"));
        assert!(failure.detail.contains("common.cu:291"));
    }

    #[test]
    fn a_warning_of_nccl_names_the_error_of_cuda_it_met() {
        for (text, code) in [
            (
                "Cuda failure 'uncorrectable ECC error encountered'",
                Some("cudaErrorECCUncorrectable"),
            ),
            (
                "Cuda failure 214 'uncorrectable ECC error encountered'",
                Some("cudaErrorECCUncorrectable"),
            ),
            ("Cuda failure 'something new'", None),
            ("Net failure 'out of memory'", None),
        ] {
            assert_eq!(parse_warning_code(text).as_deref(), code, "{text}");
        }
    }

    #[test]
    fn an_nccl_failure_keeps_the_last_error() {
        let line = "gpu-9: Test NCCL failure common.cu:55 'unhandled system error (run with \
                    NCCL_DEBUG=INFO for details) / socket gone'";
        let failure = parse_test_failure(line).expect("a failure");
        assert_eq!(failure.code.as_deref(), Some("ncclSystemError"));
        assert!(failure.detail.ends_with("socket gone'"));
    }

    #[test]
    fn the_first_release_names_no_host() {
        let failure =
            parse_test_failure("NCCL failure reduce.cu:41 'internal error'").expect("a failure");
        assert_eq!((failure.host, failure.code.as_deref()), (None, Some("ncclInternalError")));
        assert_eq!(parse_test_failure("NCCL failure is no option"), None);
    }

    #[test]
    fn the_chain_of_calls_is_an_echo_with_a_host() {
        let failure =
            parse_test_failure(" .. gpu-9 pid 77: Test failure common.cu:480").expect("a failure");
        assert!(failure.is_echo);
        assert_eq!(failure.host.as_deref(), Some("gpu-9"));
        assert_eq!(parse_test_failure("Test failure is an option"), None);
    }

    #[test]
    fn a_timeout_is_a_failure_of_its_host() {
        let failure =
            parse_test_failure("gpu-9: Test timeout (60s) common.cu:512").expect("a failure");
        assert_eq!(failure.host.as_deref(), Some("gpu-9"));
    }

    #[test]
    fn launchers_name_host_and_rank() {
        let place = |line: &str| {
            let failure = parse_launcher_failure(line).expect("a failure");
            (failure.host, failure.rank)
        };
        let node = Some("n7".to_owned());
        assert_eq!(
            place("srun: error: n7: task 3: Exited with exit code 3"),
            (node.clone(), Some(3))
        );
        assert_eq!(place("srun: error: n7: tasks 0-3: Killed"), (node.clone(), None));
        assert_eq!(place("srun: error: Unable to create step: busy"), (None, None));
        let killed = "slurmstepd: error: *** STEP 4.0 ON n7 CANCELLED AT 2026-01-01T00:00:00 ***";
        assert_eq!(place(killed), (node.clone(), None));
        let signal = "mpirun noticed that process rank 3 with PID 0 on node n7 exited on signal 9";
        assert_eq!(place(signal), (node, Some(3)));
    }

    #[test]
    fn ordinary_lines_are_not_failures() {
        for line in ["# Out of bounds values : 0 OK", "srun: job 4 queued", "USAGE: mytool [-h]"] {
            assert_eq!(parse_launcher_failure(line), None, "{line}");
        }
    }
}
