//! Files with the outputs of several tools: the log of a batch job that runs one after another.
//!
//! Such a file is split at lines that can only come from another tool, and each piece is read by
//! the parser of its tool. Tools that only describe the machine have no such lines; their parsers
//! read the whole file, and their results are added. The selection for a file of one tool happens
//! elsewhere.

use super::facts_builder::FactsBuilder;
use super::text::OutputLine;
use super::{CERTAIN, ParserInput, ToolParser};
use model::measurement::Measurement;
use model::parse_output::{OutputProblemKind, ParseOutput};
use model::tool_facts::ToolFacts;

struct ToolSection<'p, 'a> {
    parser: &'p ToolParser,
    lines: Vec<OutputLine<'a>>,
}

/// Reads a file in which several `parsers` recognise their tool with certainty.
pub(super) fn parse_sections(input: &ParserInput<'_>, parsers: &[&ToolParser]) -> ParseOutput {
    let (measuring, telling): (Vec<&ToolParser>, Vec<&ToolParser>) =
        parsers.iter().partition(|parser| parser.measures);
    let mut all = MergedOutput::default();
    let pieces = split_sections(input, &measuring);
    // Documents without a marker line are searched in the whole file.
    let whole = measuring.iter().filter(|p| !pieces.iter().any(|q| std::ptr::eq(q.parser, **p)));
    let whole: Vec<&ToolParser> = whole.copied().collect();
    let last = pieces.len().saturating_sub(1);
    for (at, piece) in pieces.into_iter().enumerate() {
        let ends = at < last || input.text.ends_with('\n');
        let mut text = piece.lines.iter().map(|l| l.text).collect::<Vec<_>>().join("\n");
        text.push_str(if ends { "\n" } else { "" });
        let parsed = (piece.parser.parse)(&ParserInput {
            text: &text,
            lines: piece.lines,
            by_connection: input.by_connection,
        });
        all.add(parsed);
    }
    for parser in whole {
        let parsed = (parser.parse)(input);
        all.add(parsed);
    }
    for parser in telling {
        let mut parsed = (parser.parse)(input);
        if !measuring.is_empty() {
            // A truncated listing next to results is not a gap in the results.
            parsed.problems.retain(|problem| problem.kind == OutputProblemKind::Error);
            parsed.complete = true;
        }
        all.add(parsed);
    }
    all.parsed.unwrap_or_default()
}

/// The combined result of all tools.
#[derive(Default)]
struct MergedOutput {
    parsed: Option<ParseOutput>,
    /// The number of runs in it.
    runs: u32,
    roster: FactsBuilder,
}

/// The pieces of the file, in order. Text before the first belongs to it.
fn split_sections<'p, 'a>(
    input: &ParserInput<'a>,
    parsers: &[&'p ToolParser],
) -> Vec<ToolSection<'p, 'a>> {
    let mut pieces: Vec<ToolSection<'p, 'a>> = Vec::new();
    let mut before: Vec<OutputLine<'a>> = Vec::new();
    for line in &input.lines {
        let alone =
            ParserInput { text: line.text, lines: vec![line.clone()], by_connection: false };
        let owner = parsers.iter().find(|parser| (parser.recognises)(&alone) == CERTAIN);
        match (owner, pieces.last_mut()) {
            (None, None) => before.push(line.clone()),
            (None, Some(piece)) => piece.lines.push(line.clone()),
            (Some(owner), Some(piece)) if std::ptr::eq(*owner, piece.parser) => {
                piece.lines.push(line.clone());
            }
            (Some(owner), last) => {
                let mut lines = match last {
                    // The brace that opens an object is on its own line.
                    Some(piece) if piece.lines.last().is_some_and(|l| l.trimmed() == "{") => {
                        piece.lines.pop().into_iter().collect()
                    }
                    Some(_) => Vec::new(),
                    None => std::mem::take(&mut before),
                };
                lines.push(line.clone());
                pieces.push(ToolSection { parser: owner, lines });
            }
        }
    }
    pieces
}

impl MergedOutput {
    /// Adds the result of another tool; its runs come after the previous ones.
    fn add(&mut self, mut next: ParseOutput) {
        let before = self.runs;
        for measurement in &mut next.measurements {
            let run = match measurement {
                Measurement::Matrix(matrix) => &mut matrix.run,
                Measurement::Series(series) => &mut series.run,
                Measurement::Scalar(scalar) => &mut scalar.run,
            };
            *run += before;
            self.runs = self.runs.max(*run + 1);
        }
        let Some(all) = &mut self.parsed else {
            self.roster = FactsBuilder::from_hosts(&next.facts);
            self.parsed = Some(next);
            return;
        };
        all.measurements.extend(next.measurements);
        all.problems.extend(next.problems);
        all.complete &= next.complete;
        if all.tool == next.tool {
            all.tool_version = all.tool_version.take().or(next.tool_version);
        }
        for host in &next.facts.hosts {
            self.roster.add_host(&mut all.facts, host);
        }
        merge_facts(&mut all.facts, next.facts);
    }
}

/// Adds facts except hosts. Existing facts are kept: ranks of one tool are not those of another.
fn merge_facts(facts: &mut ToolFacts, next: ToolFacts) {
    facts.driver = facts.driver.take().or(next.driver);
    facts.cuda_driver = facts.cuda_driver.take().or(next.cuda_driver);
    facts.cuda_runtime = facts.cuda_runtime.take().or(next.cuda_runtime);
    facts.nccl = facts.nccl.take().or(next.nccl);
    facts.topology = facts.topology.take().or(next.topology);
    facts.imex = facts.imex.take().or(next.imex);
    for transport in &next.transports {
        facts.add_transport(transport);
    }
    fill_if_empty(&mut facts.devices, next.devices);
    fill_if_empty(&mut facts.ranks, next.ranks);
    fill_if_empty(&mut facts.nvlinks, next.nvlinks);
    fill_if_empty(&mut facts.fabric, next.fabric);
    fill_if_empty(&mut facts.diagnostics, next.diagnostics);
    for (node, around) in next.around {
        facts.around.entry(node).or_insert(around);
    }
    for (name, value) in next.parameters {
        facts.parameters.entry(name).or_insert(value);
    }
}

fn fill_if_empty<T>(known: &mut Vec<T>, next: Vec<T>) {
    if known.is_empty() {
        *known = next;
    }
}

#[cfg(test)]
mod tests {
    use crate::outputs;
    use model::parse_output::{OutputProblemKind, ParseOutput, Tool};

    const COPY: &str = "nvbandwidth Version: v0.4\nBuilt from Git version: 77\n\n\
        CUDA Runtime Version: 12020\nCUDA Driver Version: 12020\nDriver Version: 535.1\n\n\
        Device 0: NVIDIA Z1\nDevice 1: NVIDIA Z1\n\nRunning host_to_device_memcpy_ce.\n\
        memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n          0         1\n\
        0     51.25     52.50\n\nSUM host_to_device_memcpy_ce 103.75\n\n";

    const REDUCE: &str = "# Collective test starting: all_reduce_perf\n\
        #       size         count      type   redop    root     time   algbw   busbw #wrong     \
        time   algbw   busbw #wrong\n\
        \x20    4194304       1048576     float     sum      -1   100.00   41.94   41.94      0   \
        100.00   41.94   41.94      0\n\
        # Out of bounds values : 0 OK\n# Avg bus bandwidth    : 41.94 \n#\n";

    const PATHS: &str = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n\
        GPU0\t X \tNV6\t0-15\t0\nGPU1\tNV6\t X \t16-31\t1\n\nLegend:\n\n  X    = Self\n\n";

    fn read(text: &str) -> ParseOutput {
        outputs::parse_output(text.as_bytes())
    }

    fn runs(parsed: &ParseOutput) -> Vec<(u32, Option<&str>)> {
        parsed.measurements.iter().map(|m| (m.run(), m.testcase())).collect()
    }

    #[test]
    fn a_log_of_two_tools_gives_the_results_of_both() {
        let both = [(0, Some("host_to_device_memcpy_ce")), (1, Some("all_reduce_perf"))];
        let parsed = read(&format!("== copy ==\n{COPY}== reduce ==\n{REDUCE}done\n"));
        assert_eq!(parsed.tool, Some(Tool::Nvbandwidth));
        assert_eq!(parsed.tool_version.as_deref(), Some("0.4"));
        assert_eq!(runs(&parsed), both);
        assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
        assert_eq!(
            (parsed.facts.devices.len(), parsed.facts.driver.as_deref()),
            (2, Some("535.1"))
        );
        let parsed = read(&format!("{REDUCE}{COPY}"));
        assert_eq!(parsed.tool, Some(Tool::NcclTests));
        assert_eq!(runs(&parsed), [(0, both[1].1), (1, both[0].1)]);
        let parsed = read(&format!("{COPY}{REDUCE}{COPY}"));
        assert_eq!(runs(&parsed).iter().map(|r| r.0).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn a_cut_piece_makes_the_whole_incomplete() {
        let cut = &COPY[..COPY.len() - 40];
        let parsed = read(&format!("{cut}\n{REDUCE}"));
        assert!(!parsed.complete && parsed.has_problem(OutputProblemKind::Truncated));
        assert_eq!(parsed.measurements.len(), 2);
        let cut = &REDUCE[..REDUCE.len() - 45];
        assert!(!read(&format!("{COPY}{cut}\n")).complete);
    }

    #[test]
    fn a_listing_next_to_results_adds_its_facts_and_removes_nothing() {
        let parsed = read(&format!("{PATHS}{REDUCE}"));
        assert_eq!(parsed.tool, Some(Tool::NcclTests));
        assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
        let paths = parsed.facts.topology.expect("a topology");
        assert_eq!(paths.rows[0].connections, ["X", "NV6"]);
        let cut = PATHS.replace("GPU1\tNV6\t X \t16-31\t1\n", "");
        assert!(read(&format!("{cut}{REDUCE}")).complete);
    }
}
