//! Errors that a tool printed on standard error.
//!
//! Tools print results on one stream and the reason for a stop on the other. Only problems are
//! taken from standard error, by the parser of the same tool; a number there is not a result.

use memchr::memmem;

use super::{PARSERS, ParserInput, ToolParser, text};
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::probe_problem_class::ProbeProblemClass;

/// Adds the problems on standard error to the result of standard output.
pub(super) fn add_stderr_problems(
    parsed: &mut ParseOutput,
    stderr: &[u8],
    is_wanted: impl Fn(Tool) -> bool,
) {
    if parsed.tool.is_none()
        && let Some(problem) = find_root_refusal(stderr)
    {
        parsed.problems = vec![problem];
        parsed.complete = false;
        return;
    }
    let text = text::decode(stderr);
    let input = ParserInput::new(&text);
    let Some(parser) = choose_parser(parsed, &input, is_wanted) else { return };
    let running = unfinished_test(parsed);
    let messages = (parser.parse)(&input);
    let is_error =
        |p: &OutputProblem| matches!(p.kind, OutputProblemKind::Error | OutputProblemKind::Corrupt);
    // A complete output outweighs messages of other programs.
    let counts = |p: &OutputProblem| {
        !parsed.complete || p.kind == OutputProblemKind::Corrupt || p.code.is_some()
    };
    let is_known = |p: &OutputProblem| {
        parsed.problems.iter().any(|known| (known.kind, &known.detail) == (p.kind, &p.detail))
    };
    let found: Vec<OutputProblem> = messages
        .problems
        .into_iter()
        .filter(|problem| is_error(problem) && counts(problem) && !is_known(problem))
        .map(|problem| {
            let testcase = problem.testcase.or_else(|| running.clone());
            // Line numbers refer to the stored output, which is the other stream.
            OutputProblem { testcase, line: None, ..problem }
        })
        .collect();
    if found.is_empty() {
        return;
    }
    parsed.tool = parsed.tool.or(Some(parser.tool));
    parsed.complete = false;
    parsed.problems.extend(found);
}

/// Open MPI's and PRRTE's refusal to start as the superuser.
const ROOT_REFUSAL: &str = "has detected an attempt to run as root";

/// The problem, if a launcher of ranks refused the superuser: no tool ran.
pub(super) fn find_root_refusal(bytes: &[u8]) -> Option<OutputProblem> {
    // A launcher prints it first.
    let bytes = &bytes[..bytes.len().min(1 << 16)];
    memmem::find(bytes, ROOT_REFUSAL.as_bytes())?;
    let detail = "Open MPI refuses to run as root: set OMPI_ALLOW_RUN_AS_ROOT=1 and \
                  OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 (4.0.2 and later; a worker sets both for \
                  mpirun, a script must pass them on), or start workers as another user";
    let class = Some(ProbeProblemClass::RootRefused);
    Some(OutputProblem { class, ..OutputProblem::new(OutputProblemKind::Error, detail.to_owned()) })
}

/// The parser of the tool that printed the output; if unknown, the one that matches the errors
/// best.
fn choose_parser(
    parsed: &ParseOutput,
    input: &ParserInput<'_>,
    is_wanted: impl Fn(Tool) -> bool,
) -> Option<&'static ToolParser> {
    match parsed.tool {
        // fabricgate's documents contain their own errors.
        Some(Tool::FabricgateTcp | Tool::FabricgateCopy | Tool::FabricgateCollective) => None,
        Some(tool) => PARSERS.iter().find(|parser| parser.tool == tool),
        None => {
            let wanted = PARSERS.iter().rev().filter(|parser| is_wanted(parser.tool));
            let sure = wanted.map(|parser| ((parser.recognises)(input), parser));
            let (sure, best) = sure.max_by_key(|(sure, _)| *sure)?;
            (0 < sure).then_some(best)
        }
    }
}

/// The test that started and has no end.
fn unfinished_test(parsed: &ParseOutput) -> Option<String> {
    let cut = parsed.problems.iter().rev().find(|p| p.kind == OutputProblemKind::Truncated);
    cut.and_then(|problem| problem.testcase.clone())
}

#[cfg(test)]
mod tests {
    use crate::outputs::{parse_expected, parse_output, parse_streams};
    use model::parse_output::{OutputProblem, OutputProblemKind, Tool};
    use model::probe_problem_class::ProbeProblemClass;

    /// What mpirun of Open MPI 4.1 prints, without the lines of dashes.
    const REFUSAL: &str = "mpirun has detected an attempt to run as root.\n\n\
        Running as root is *strongly* discouraged as any mistake (e.g., in\n\
        defining TMPDIR) or bug can result in catastrophic damage to the OS\n";

    #[test]
    fn a_refused_superuser_has_a_class_and_a_remedy_on_either_stream() {
        let both = [
            parse_streams(b"", REFUSAL.as_bytes()),
            parse_streams(REFUSAL.as_bytes(), b""),
            parse_expected(&[Tool::Nvbandwidth], b"", &[], REFUSAL.as_bytes()),
        ];
        for parsed in both {
            assert!(!parsed.complete && parsed.measurements.is_empty());
            let [problem] = parsed.problems.as_slice() else { panic!("{:?}", parsed.problems) };
            assert_eq!(problem.class, Some(ProbeProblemClass::RootRefused));
            assert_eq!(problem.kind, OutputProblemKind::Error);
            assert!(problem.detail.contains("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "{problem:?}");
        }
    }

    const HEAD: &str = "nvbandwidth Version: v0.8\nBuilt from Git version: v0.8\n\n\
        Running host_to_device_memcpy_ce.\nmemcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n\
        \x20          0         1\n 0     51.25     52.50\n\nSUM host_to_device_memcpy_ce 103.75\n\n";

    fn begun() -> String {
        format!("{HEAD}Running device_to_device_memcpy_read_ce.\n")
    }

    fn ecc(place: &str) -> String {
        format!(
            "[CUDA_ERROR_ECC_UNCORRECTABLE] uncorrectable ECC error encountered in expression \
             cuMemcpyAsync(a){place} in run() : /src/memcpy.cpp:77\n"
        )
    }

    /// Tools' standard error on failure, and the expected result.
    fn failures() -> Vec<(String, String, Tool, OutputProblemKind, Option<&'static str>)> {
        let error = OutputProblemKind::Error;
        let code = Some("CUDA_ERROR_ECC_UNCORRECTABLE");
        let nvbandwidth =
            |stderr: String, kind, code| (begun(), stderr, Tool::Nvbandwidth, kind, code);
        let other = |stdout: &str, stderr: &str, tool, code| {
            (stdout.to_owned(), stderr.to_owned(), tool, error, code)
        };
        vec![
            nvbandwidth(ecc(""), error, code),
            nvbandwidth(
                "ASSERT in expression h_errorFlag == 0 in check() : a.cpp:5\n".to_owned(),
                OutputProblemKind::Corrupt,
                None,
            ),
            other(
                "# nThread 1 nGpus 2 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 1 \
                 iters: 1 agg iters: 1 validate: 1 graph: 0\n",
                "n7: Test CUDA failure common.cu:9 'uncorrectable ECC error encountered'\n",
                Tool::NcclTests,
                Some("cudaErrorECCUncorrectable"),
            ),
            other("", "Couldn't connect to n2:18515\n", Tool::Perftest, None),
            other(
                " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n",
                "Completion with error at client\nFailed status 12: wr_id 0 syndrom 0x81\n",
                Tool::Perftest,
                Some("IBV_WC_RETRY_EXC_ERR"),
            ),
            other("", "iperf3: error - unable to connect to server\n", Tool::Iperf3, None),
            other(
                "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\n",
                "Cuda failure p2p.cu:5: 'unspecified launch failure'\n",
                Tool::P2pBandwidthLatencyTest,
                None,
            ),
        ]
    }

    #[test]
    fn errors_on_standard_error_are_problems_of_the_tool_that_ran() {
        for (stdout, stderr, tool, kind, code) in failures() {
            let parsed = parse_streams(stdout.as_bytes(), stderr.as_bytes());
            assert_eq!(parsed.tool, Some(tool), "{stderr}");
            let is_it =
                |p: &OutputProblem| p.kind == kind && (code.is_none() || p.code.as_deref() == code);
            assert!(parsed.problems.iter().any(is_it), "{stderr}: {:?}", parsed.problems);
            assert!(!parsed.complete && !parsed.is_sound(), "{stderr}");
        }
    }

    #[test]
    fn errors_in_a_result_of_ansible_are_those_of_the_tool_and_add_no_number() {
        let list = |text: &str| {
            let lines: Vec<String> =
                text.lines().map(|l| format!("        {}", serde_json::json!(l))).collect();
            format!("[\n{}\n    ]", lines.join(",\n"))
        };
        for (stdout, stderr, tool, kind, code) in failures() {
            // The module itself reports problems that a tool's empty output does not.
            if stdout.is_empty() {
                continue;
            }
            let text = format!(
                "n7 | FAILED! => {{\n    \"changed\": true,\n    \"rc\": 1,\n    \"stderr\": {},\n    \
                 \"stderr_lines\": {},\n    \"stdout\": {},\n    \"stdout_lines\": {}\n}}\n",
                serde_json::json!(stderr),
                list(&stderr),
                serde_json::json!(stdout),
                list(&stdout)
            );
            let parsed = parse_output(text.as_bytes());
            assert_eq!(parsed.tool, Some(tool), "{text}");
            let is_it =
                |p: &OutputProblem| p.kind == kind && (code.is_none() || p.code.as_deref() == code);
            assert!(parsed.problems.iter().any(is_it), "{text}: {:?}", parsed.problems);
            let apart = parse_streams(stdout.as_bytes(), stderr.as_bytes());
            assert_eq!(parsed.measurements, apart.measurements, "{text}");
            assert!(!parsed.complete, "{text}");
        }
    }

    #[test]
    fn an_error_belongs_to_the_test_that_was_running_and_names_its_node() {
        let parsed = parse_streams(begun().as_bytes(), ecc(" on n2, rank = 5").as_bytes());
        let error =
            parsed.problems.iter().find(|p| p.kind == OutputProblemKind::Error).expect("one");
        assert_eq!(error.testcase.as_deref(), Some("device_to_device_memcpy_read_ce"));
        assert_eq!((error.host.as_deref(), error.rank), (Some("n2"), Some(5)));
        // The result equals that of both streams in one file.
        let one = parse_output(format!("{}{}", begun(), ecc(" on n2, rank = 5")).as_bytes());
        let without_lines = |problems: &[OutputProblem]| -> Vec<OutputProblem> {
            let mut all: Vec<OutputProblem> =
                problems.iter().map(|p| OutputProblem { line: None, ..p.clone() }).collect();
            all.sort_by(|a, b| (a.kind, &a.detail).cmp(&(b.kind, &b.detail)));
            all
        };
        assert_eq!(without_lines(&parsed.problems), without_lines(&one.problems));
        assert_eq!(parsed.measurements, one.measurements);
    }

    #[test]
    fn no_number_comes_from_standard_error() {
        for (stdout, _, _, _, _) in failures() {
            let noise = format!("{HEAD}GPU 0: x (UUID: GPU-1)\n\t Link 0: 25 GB/s\n");
            let alone = parse_output(stdout.as_bytes());
            let with = parse_streams(stdout.as_bytes(), noise.as_bytes());
            assert_eq!((&with.measurements, &with.facts), (&alone.measurements, &alone.facts));
        }
    }

    #[test]
    fn a_complete_output_stays_complete_next_to_messages_of_other_programs() {
        let noise = "srun: error: Unable to restore the terminal\nFailed to get D-Bus connection\n";
        let whole = parse_output(HEAD.replace("v0.8", "v0.4").as_bytes());
        assert!(whole.complete, "{:?}", whole.problems);
        let with = parse_streams(HEAD.replace("v0.8", "v0.4").as_bytes(), noise.as_bytes());
        assert_eq!(with, whole);
        let broken = parse_streams(HEAD.replace("v0.8", "v0.4").as_bytes(), ecc("").as_bytes());
        assert!(broken.has_problem(OutputProblemKind::Error) && !broken.complete);
    }
}
