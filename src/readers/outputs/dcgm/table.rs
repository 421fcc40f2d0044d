//! The table that `dcgmi diag` prints without `-j`, in DCGM 3 and 4.
//!
//! Two columns between bars. A rule with text in it begins a category. A row with a status is a
//! test; rows below it list the GPUs and the reason. In DCGM 3 the status itself names the GPUs
//! (`Fail - GPUs: 0, 2`), in DCGM 4 each GPU has a row without a name (`GPU0: Fail`). Long messages
//! continue in rows without a name.

use super::{MOST_GPUS, MOST_MESSAGES, push_problems, text};
use crate::outputs::ParserInput;
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::text::clean;
use model::tool_facts::DcgmDiagnostic;

/// The tool's messages, in lower case, if it reaches no host engine.
const UNREACHED: [&str; 3] = [
    "error: unable to establish a connection to the specified host",
    "error: unable to connect to host engine",
    "error: unable to complete diagnostic for group",
];

/// Whether this line is the table's heading.
pub(super) fn is_heading(line: &str) -> bool {
    split_columns(line) == Some(("Diagnostic", "Result"))
}

/// Whether this line reports that the tool could not run.
pub(super) fn is_unreached(line: &str) -> bool {
    let line = line.trim().to_ascii_lowercase();
    UNREACHED.iter().any(|start| line.starts_with(start))
}

fn split_columns(line: &str) -> Option<(&str, &str)> {
    let inside = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    let (name, value) = inside.split_once('|')?;
    Some((name.trim(), value.trim()))
}

/// Parses a rule: the name of the category that begins below it, or an empty name.
fn parse_rule(line: &str) -> Option<&str> {
    let line = line.trim();
    let is_rule = line.starts_with(['+', '|']) && line.ends_with(['+', '|']);
    let inside = line.trim_matches(['+', '|', '-', '=', ' ']);
    let plain = inside.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b' ' | b'/'));
    (is_rule && plain && (line.contains("----") || line.contains("===="))).then_some(inside)
}

/// Parses a status in the second column: the status, and the GPUs that it names.
fn parse_status(value: &str) -> Option<(String, Vec<u32>)> {
    let (word, rest) = value.split_once(" - ").unwrap_or((value, ""));
    let word = word.trim().to_ascii_lowercase();
    if !["pass", "fail", "warn", "skip", "not run"].contains(&word.as_str()) {
        return None;
    }
    let list = rest.trim().strip_prefix("GPU").map(|l| l.trim_start_matches(['s', ':', ' ']));
    let ids = list.into_iter().flat_map(|list| list.split(','));
    let ids = ids.filter_map(|id| text::parse_integer(id.trim()));
    Some((word, ids.filter_map(|id| u32::try_from(id).ok()).filter(|id| *id < MOST_GPUS).collect()))
}

/// Parses `GPU3: Fail`; other entities have no GPU index.
fn parse_part(value: &str) -> Option<(Option<u32>, String)> {
    let (entity, value) = value.split_once(':')?;
    let (status, _) = parse_status(value.trim())?;
    Some((parse_gpu(entity).filter(|gpu| *gpu < MOST_GPUS), status))
}

/// Parses a leading `GPU3` or `GPU 3`.
fn parse_gpu(text: &str) -> Option<u32> {
    let rest = text.trim().strip_prefix("GPU")?.trim_start();
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    rest[..digits].parse().ok()
}

/// One test while its rows are read.
#[derive(Default)]
struct DcgmTest {
    name: String,
    category: Option<String>,
    status: String,
    gpus: Vec<u32>,
    /// Status by GPU, if rows report it.
    parts: Vec<(Option<u32>, String)>,
    messages: Vec<(Option<u32>, String)>,
}

impl DcgmTest {
    /// The diagnostics of this test, one per part.
    fn diagnostics(&self) -> Vec<DcgmDiagnostic> {
        let of = |gpu: Option<u32>, status: &str| DcgmDiagnostic {
            category: self.category.clone(),
            test: self.name.clone(),
            gpu,
            status: status.to_owned(),
            messages: self
                .messages
                .iter()
                .filter(|(about, _)| about.is_none() || gpu.is_none() || *about == gpu)
                .map(|(_, message)| message.clone())
                .collect(),
        };
        let mut all: Vec<DcgmDiagnostic> = self.parts.iter().map(|(gpu, s)| of(*gpu, s)).collect();
        all.extend(self.gpus.iter().map(|gpu| of(Some(*gpu), &self.status)));
        // The test's own status repeats that of its parts, unless no part has one.
        if all.is_empty() || (self.status == "fail" && all.iter().all(|d| d.status != "fail")) {
            all.push(of(None, &self.status));
        }
        all
    }
}

/// Reads the table; `None` without a table.
pub(super) fn parse(input: &ParserInput<'_>) -> Option<ParseOutput> {
    let mut parsed = ParseOutput::for_tool(Tool::DcgmDiag);
    let (mut begun, mut closed) = (false, false);
    let mut category: Option<String> = None;
    let mut test: Option<DcgmTest> = None;
    let mut last = 1;
    for line in input.lines.iter().filter(|line| !line.trimmed().is_empty()) {
        last = line.number;
        if is_unreached(line.text) {
            let cell = clean(line.text);
            parsed
                .problems
                .push(OutputProblem::new(OutputProblemKind::Error, cell).at_line(line.number));
        } else if is_heading(line.text) {
            if begun && !closed {
                parsed.problems.push(truncation_problem(line.number));
            }
            begun = true;
            closed = false;
        } else if !begun {
            continue;
        } else if let Some(name) = parse_rule(line.text) {
            push_test(test.take(), &mut parsed);
            // The rule below the heading consists of equals signs.
            closed = name.is_empty() && !line.text.contains('=');
            if !name.is_empty() {
                category = Some(clean(name));
            }
        } else if let Some((name, value)) = split_columns(line.text) {
            read_row(name, value, category.as_deref(), &mut test, &mut parsed);
        } else if line.is_elision() {
            parsed.problems.push(truncation_problem(line.number));
        }
    }
    push_test(test.take(), &mut parsed);
    if !begun && parsed.problems.is_empty() {
        return None;
    }
    if begun && !closed {
        parsed.problems.push(truncation_problem(last));
    }
    if begun && closed && parsed.facts.diagnostics.is_empty() {
        let detail = "the diagnostic holds no tests";
        parsed.problems.push(OutputProblem::new(OutputProblemKind::Truncated, detail));
    }
    parsed.complete = !parsed.has_problem(OutputProblemKind::Truncated)
        && !parsed.has_problem(OutputProblemKind::Unrecognised)
        && !parsed.facts.diagnostics.is_empty();
    Some(parsed)
}

fn truncation_problem(line: u32) -> OutputProblem {
    OutputProblem::new(OutputProblemKind::Truncated, "the table of results is not closed")
        .at_line(line)
}

/// Reads one row: a test, a part of it, a message, or a fact.
fn read_row(
    name: &str,
    value: &str,
    category: Option<&str>,
    test: &mut Option<DcgmTest>,
    parsed: &mut ParseOutput,
) {
    if category.is_some_and(|category| category.eq_ignore_ascii_case("metadata")) {
        match name {
            "DCGM Version" => parsed.tool_version = Some(clean(value)),
            "Driver Version Detected" => parsed.facts.driver = Some(clean(value)),
            _ => {}
        }
        return;
    }
    let (label, about) = name.split_once(':').map_or((name, ""), |(label, about)| (label, about));
    let is_message = ["Info", "Warning", "Error"].contains(&label.trim());
    if name.is_empty() || is_message {
        let Some(test) = test else { return };
        if name.is_empty()
            && let Some(part) = parse_part(value)
        {
            test.parts.push(part);
        } else if name.is_empty()
            && let Some((_, message)) = test.messages.last_mut()
        {
            *message = clean(&format!("{message} {value}"));
        } else if test.messages.len() < MOST_MESSAGES {
            test.messages.push((parse_gpu(about).or_else(|| parse_gpu(value)), clean(value)));
        }
        return;
    }
    push_test(test.take(), parsed);
    let name = clean(name);
    let Some((status, gpus)) = parse_status(value) else {
        let detail = format!("{name} has the unknown status {:?}", clean(value));
        let problem = OutputProblem::new(OutputProblemKind::Unrecognised, detail);
        parsed.problems.push(problem.in_test(Some(&name)));
        return;
    };
    let category = category.map(str::to_owned);
    *test = Some(DcgmTest { name, category, status, gpus, ..DcgmTest::default() });
}

/// Enters a test whose rows are complete.
fn push_test(test: Option<DcgmTest>, parsed: &mut ParseOutput) {
    let Some(test) = test else { return };
    let diagnostics = test.diagnostics();
    push_problems(&test.name, &diagnostics, &mut parsed.problems);
    parsed.facts.diagnostics.extend(diagnostics);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outputs;

    const VERSION_3: &str = "Successfully ran diagnostic for group.\n\
        +---------------------------+------------------------------------------------+\n\
        | Diagnostic                | Result                                         |\n\
        +===========================+================================================+\n\
        |-----  Metadata  ----------+------------------------------------------------|\n\
        | DCGM Version              | 3.3.9                                          |\n\
        | Driver Version Detected   | 550.90.07                                      |\n\
        |-----  Deployment  --------+------------------------------------------------|\n\
        | Denylist                  | Pass                                           |\n\
        | Page Retirement/Row Remap | Pass                                           |\n\
        +-----  Integration  -------+------------------------------------------------+\n\
        | PCIe                      | Pass - All                                     |\n\
        | Info                      | GPU 0 GPU to Host bandwidth: 24.5 GB/s         |\n\
        +-----  Hardware  ----------+------------------------------------------------+\n\
        | GPU Memory                | Fail - GPUs: 1, 3                              |\n\
        | Warning                   | GPU 1 could not allocate, it is said in many   |\n\
        |                           | words that go on                               |\n\
        | Warning                   | GPU 3 has bad cells                            |\n\
        | Diagnostic                | Skip - All                                     |\n\
        +---------------------------+------------------------------------------------+\n";

    const VERSION_4: &str = "Successfully ran diagnostic for group.\n\
        +---------------------------+------------------------------------------------+\n\
        | Diagnostic                | Result                                         |\n\
        +===========================+================================================+\n\
        |-----  Metadata  ----------+------------------------------------------------|\n\
        | DCGM Version              | 4.2.3                                          |\n\
        | Driver Version Detected   | 570.124.06                                     |\n\
        |-----  Deployment  --------+------------------------------------------------|\n\
        | software                  | Pass                                           |\n\
        |                           | GPU0: Pass                                     |\n\
        |                           | GPU1: Pass                                     |\n\
        +-----  Hardware  ----------+------------------------------------------------+\n\
        | memory                    | Fail                                           |\n\
        |                           | GPU0: Pass                                     |\n\
        |                           | GPU1: Fail                                     |\n\
        | Warning: GPU1             | bad cells                                      |\n\
        | Info: GPU0                | Allocated much                                 |\n\
        +---------------------------+------------------------------------------------+\n";

    fn read(text: &str) -> ParseOutput {
        let parsed = outputs::parse_output(text.as_bytes());
        assert_eq!(parsed.tool, Some(Tool::DcgmDiag));
        parsed
    }

    fn test_results(parsed: &ParseOutput, test: &str) -> Vec<(Option<u32>, String)> {
        let of = parsed.facts.diagnostics.iter().filter(|d| d.test == test);
        of.map(|d| (d.gpu, d.status.clone())).collect()
    }

    #[test]
    fn statuses_of_both_layouts_name_their_gpus_and_why() {
        let old = read(VERSION_3);
        assert!(old.complete, "{:?}", old.problems);
        assert_eq!(old.tool_version.as_deref(), Some("3.3.9"));
        assert_eq!(old.facts.driver.as_deref(), Some("550.90.07"));
        let failed = |gpu| (Some(gpu), "fail".to_owned());
        assert_eq!(test_results(&old, "GPU Memory"), [failed(1), failed(3)]);
        assert_eq!(test_results(&old, "Diagnostic"), [(None, "skip".to_owned())]);
        let first = old.facts.diagnostics.iter().find(|d| d.gpu == Some(1)).expect("one");
        assert_eq!(
            first.messages,
            ["GPU 1 could not allocate, it is said in many words that go on"]
        );
        assert_eq!(first.category.as_deref(), Some("Hardware"));
        let errors: Vec<Option<u32>> = old
            .problems
            .iter()
            .filter(|p| p.kind == OutputProblemKind::Error)
            .map(|p| p.gpu)
            .collect();
        assert_eq!(errors, [Some(1), Some(3)]);
        let new = read(VERSION_4);
        assert!(new.complete, "{:?}", new.problems);
        assert_eq!(new.tool_version.as_deref(), Some("4.2.3"));
        assert_eq!(test_results(&new, "memory"), [(Some(0), "pass".to_owned()), failed(1)]);
        let second = new.facts.diagnostics.iter().find(|d| d.status == "fail").expect("one");
        assert_eq!(second.messages, ["bad cells"]);
        assert_eq!(new.facts.diagnostics[0].category.as_deref(), Some("Deployment"));
    }

    #[test]
    fn a_table_that_is_cut_anywhere_is_not_complete() {
        for whole in [VERSION_3, VERSION_4] {
            let lines: Vec<&str> = whole.lines().collect();
            for kept in 3..lines.len() {
                let cut: String = lines[..kept].iter().map(|line| format!("{line}\n")).collect();
                let parsed = read(&cut);
                assert!(
                    !parsed.complete && parsed.has_problem(OutputProblemKind::Truncated),
                    "{cut}"
                );
            }
        }
    }

    #[test]
    fn an_unreachable_host_engine_is_an_error_without_a_result() {
        let parsed =
            read("Error: unable to establish a connection to the specified host: localhost\n");
        assert!(parsed.has_problem(OutputProblemKind::Error) && !parsed.complete);
        assert!(parsed.facts.diagnostics.is_empty());
    }
}
