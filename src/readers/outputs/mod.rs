//! Reads the output of tools: takes bytes, returns [`ParseOutput`], nothing else.
//!
//! Each tool has one parser. The content of a file selects the parser, never its name. A parser
//! never fails as a whole, never invents a number and never panics; input that it could not read
//! becomes a problem in its result. This module knows no expectations.

#[cfg(test)]
mod bounds_tests;
pub mod collective;
pub mod copy;
pub mod dcgm;
mod facts_builder;
#[cfg(test)]
mod fixture;
pub mod imex;
pub mod iperf3;
pub mod lenient_json;
mod multi_tool;
pub mod nccl;
pub mod nvbandwidth;
pub mod nvloom;
pub mod p2p;
pub mod perftest;
mod probe_documents;
pub mod smi;
mod stderr_problems;
pub mod tcp;
pub mod text;
pub mod unreached;
mod unsupported_tools;

use std::collections::BTreeMap;

use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::text::clean;

/// One output, decoded once and offered to every parser.
#[derive(Debug)]
pub struct ParserInput<'a> {
    /// The decoded text.
    pub text: &'a str,
    /// Its lines without launcher prefixes.
    pub lines: Vec<text::OutputLine<'a>>,
    /// The host of a line is the connection it arrived by, not its prefix: each connection counts
    /// for its own node only.
    pub by_connection: bool,
}

impl<'a> ParserInput<'a> {
    /// The input in this decoded text.
    pub fn new(text: &'a str) -> Self {
        Self { text, lines: text::split_lines(text), by_connection: false }
    }

    /// The text as the tool printed it: without prefixes and standard error.
    pub fn plain_text(&self) -> String {
        let mut plain = String::with_capacity(self.text.len());
        for line in &self.lines {
            plain.push_str(if line.stderr { "" } else { line.text });
            plain.push('\n');
        }
        plain
    }
}

/// A parser's confidence that an output belongs to its tool: 0 means "no", and the highest wins.
/// The tool's own header gives [`CERTAIN`], a table of a similar shape [`LIKELY`], a mere mention
/// [`POSSIBLE`].
pub type ParserConfidence = u8;

/// The tool's own banner, header or document key.
pub const CERTAIN: ParserConfidence = 100;
/// The shape of its results without a header.
pub const LIKELY: ParserConfidence = 60;
/// A token that this tool's failures print.
pub const POSSIBLE: ParserConfidence = 20;

/// One parser: its recognition and its reader.
struct ToolParser {
    tool: Tool,
    recognises: fn(&ParserInput<'_>) -> ParserConfidence,
    parse: fn(&ParserInput<'_>) -> ParseOutput,
    /// The tool measures, instead of only describing the machine.
    measures: bool,
}

impl ToolParser {
    const fn for_measurements(
        tool: Tool,
        recognises: fn(&ParserInput<'_>) -> ParserConfidence,
        parse: fn(&ParserInput<'_>) -> ParseOutput,
    ) -> Self {
        Self { tool, recognises, parse, measures: true }
    }

    const fn for_facts(
        tool: Tool,
        recognises: fn(&ParserInput<'_>) -> ParserConfidence,
        parse: fn(&ParserInput<'_>) -> ParseOutput,
    ) -> Self {
        Self { tool, recognises, parse, measures: false }
    }
}

const PARSERS: &[ToolParser] = &[
    ToolParser::for_measurements(Tool::Nvbandwidth, nvbandwidth::recognises, nvbandwidth::parse),
    ToolParser::for_measurements(Tool::NcclTests, nccl::recognises, nccl::parse),
    ToolParser::for_measurements(Tool::P2pBandwidthLatencyTest, p2p::recognises, p2p::parse),
    ToolParser::for_measurements(Tool::Perftest, perftest::recognises, perftest::parse),
    ToolParser::for_facts(Tool::NvidiaSmiNvlink, smi::nvlink::recognises, smi::nvlink::parse),
    ToolParser::for_facts(Tool::NvidiaSmiTopo, smi::topo::recognises, smi::topo::parse),
    ToolParser::for_facts(Tool::NvidiaSmiQ, smi::query::recognises, smi::query::parse),
    ToolParser::for_facts(Tool::NvidiaImexCtl, imex::recognises, imex::parse),
    ToolParser::for_facts(Tool::DcgmDiag, dcgm::recognises, dcgm::parse),
    ToolParser::for_measurements(Tool::Nvloom, nvloom::recognises, nvloom::parse),
    ToolParser::for_measurements(Tool::Iperf3, iperf3::recognises, iperf3::parse),
    ToolParser::for_measurements(Tool::FabricgateTcp, tcp::recognises, tcp::parse),
    ToolParser::for_measurements(Tool::FabricgateCopy, copy::recognises, copy::parse),
    ToolParser::for_measurements(
        Tool::FabricgateCollective,
        collective::recognises,
        collective::parse,
    ),
];

/// Reads one output of any tool.
pub fn parse_output(bytes: &[u8]) -> ParseOutput {
    parse_with(bytes, |_| true)
}

/// The same, limited to the parsers of some tools.
fn parse_with(bytes: &[u8], is_wanted: impl Fn(Tool) -> bool) -> ParseOutput {
    let text = text::decode(bytes);
    let input = ParserInput::new(&text);
    let parsed = parse_input(&input, is_wanted);
    with_unrecognised_problem(parsed, bytes)
}

/// The result for these bytes, or why nothing was read.
fn with_unrecognised_problem(mut parsed: ParseOutput, bytes: &[u8]) -> ParseOutput {
    if parsed.tool.is_none() && parsed.problems.is_empty() {
        let refusal = stderr_problems::find_root_refusal(bytes);
        parsed.problems.push(refusal.unwrap_or_else(|| unrecognised_problem(bytes)));
    }
    incomplete_if_truncated(parsed)
}

/// The outputs of several hosts in one file, each separately. Empty for a single host, or for one
/// run across all of them.
pub fn parse_hosts(bytes: &[u8]) -> Vec<(String, ParseOutput)> {
    let text = text::decode(bytes);
    let mut hosts: BTreeMap<&str, Vec<text::OutputLine<'_>>> = BTreeMap::new();
    for line in text::split_lines(&text) {
        if let Some(host) = line.host {
            hosts.entry(host).or_default().push(line);
        }
    }
    if hosts.len() < 2 {
        return Vec::new();
    }
    let read = hosts.into_iter().map(|(host, lines)| {
        let text: String = lines.iter().flat_map(|line| [line.text, "\n"]).collect();
        (
            clean(host),
            incomplete_if_truncated(parse_input(
                &ParserInput { text: &text, lines, by_connection: false },
                |_| true,
            )),
        )
    });
    let read: Vec<(String, ParseOutput)> = read.collect();
    // Ranks of one run print on their own hosts, and one of them prints the results.
    let is_one = |parsed: &ParseOutput| {
        let telling = |tool| PARSERS.iter().any(|p| p.tool == tool && !p.measures);
        let inside = matches!(parsed.tool, Some(Tool::Nvbandwidth | Tool::P2pBandwidthLatencyTest));
        parsed.tool.is_some_and(telling) || (inside && !parsed.measurements.is_empty())
    };
    if read.iter().all(|(_, parsed)| is_one(parsed)) { read } else { Vec::new() }
}

/// Reads one output; `None` if no selected tool recognises it.
fn parse_input(input: &ParserInput<'_>, is_wanted: impl Fn(Tool) -> bool) -> ParseOutput {
    let found: Vec<(ParserConfidence, &ToolParser)> = PARSERS
        .iter()
        .filter(|parser| is_wanted(parser.tool))
        .map(|parser| ((parser.recognises)(input), parser))
        .filter(|(confidence, _)| 0 < *confidence)
        .collect();
    let sure: Vec<(ParserConfidence, Tool)> =
        found.iter().map(|(sure, p)| (*sure, p.tool)).collect();
    if let Some(foreign) = unsupported_tools::parse_unsupported(input, &sure) {
        return foreign;
    }
    let certain: Vec<&ToolParser> =
        found.iter().filter(|(c, _)| *c == CERTAIN).map(|(_, parser)| *parser).collect();
    let best = found.into_iter().reduce(|best, next| if best.0 < next.0 { next } else { best });
    let mut parsed = match best {
        Some(_) if 1 < certain.len() => multi_tool::parse_sections(input, &certain),
        Some((_, parser)) => (parser.parse)(input),
        None => ParseOutput::default(),
    };
    // The host that a launcher put in front of the lines is the origin.
    let hosts: BTreeMap<u32, &str> =
        input.lines.iter().filter_map(|line| Some((line.number, line.host?))).collect();
    for problem in parsed.problems.iter_mut().filter(|problem| problem.host.is_none()) {
        let host = problem.line.and_then(|line| hosts.get(&line));
        problem.host = host.map(|host| clean(host)).filter(|host| !host.is_empty());
    }
    let mut roster = facts_builder::FactsBuilder::from_hosts(&parsed.facts);
    let mut last = None;
    for host in input.lines.iter().filter_map(|line| line.host) {
        if last != Some(host) {
            roster.add_host(&mut parsed.facts, &clean(host));
        }
        last = Some(host);
    }
    parsed
}

/// Reads the two streams of one tool: results from the first, and problems from the second.
pub fn parse_streams(stdout: &[u8], stderr: &[u8]) -> ParseOutput {
    let mut parsed = parse_output(stdout);
    stderr_problems::add_stderr_problems(&mut parsed, stderr, |_| true);
    incomplete_if_truncated(parsed)
}

/// Reads the two streams of a command with the parsers of the expected tools: an output of another
/// tool only yields a problem. `senders` holds the nodes that sent the parts of standard output,
/// with their sizes in bytes, if several did.
pub fn parse_expected(
    tools: &[Tool],
    stdout: &[u8],
    senders: &[(&str, usize)],
    stderr: &[u8],
) -> ParseOutput {
    let is_wanted = |tool| tools.contains(&tool);
    let mut parsed = match senders {
        [] => parse_with(stdout, is_wanted),
        senders => parse_parts(stdout, senders, is_wanted),
    };
    stderr_problems::add_stderr_problems(&mut parsed, stderr, is_wanted);
    if parsed.tool.is_none()
        && let Some(other) = parse_output(stdout).tool
    {
        let expected = tools.first().map_or("", |tool| tool.as_str());
        let what = format!("an output of {other}, expected {expected}");
        let problems = vec![OutputProblem::new(OutputProblemKind::Unrecognised, what)];
        parsed = ParseOutput { tool: Some(other), problems, ..ParseOutput::default() };
    }
    incomplete_if_truncated(parsed)
}

/// Reads an output with parts from several nodes: each line has its sender as host, whatever its
/// prefix.
fn parse_parts(
    bytes: &[u8],
    senders: &[(&str, usize)],
    is_wanted: impl Fn(Tool) -> bool,
) -> ParseOutput {
    let mut rest = bytes;
    let (mut text, mut ends) = (String::new(), Vec::new());
    let mut lines = 0;
    for (sender, length) in senders {
        let (part, after) = rest.split_at((*length).min(rest.len()));
        rest = after;
        let mut part = text::decode(part);
        if !part.is_empty() && !part.ends_with('\n') {
            part.push('\n');
        }
        lines += part.matches('\n').count();
        text.push_str(&part);
        ends.push((lines, *sender));
    }
    // Parts without a known sender are not read.
    let mut input = ParserInput::new(&text);
    input.by_connection = true;
    for line in &mut input.lines {
        let own = ends.iter().find(|(end, _)| line.number as usize <= *end);
        line.host = own.map(|(_, sender)| *sender);
    }
    with_unrecognised_problem(parse_input(&input, is_wanted), bytes)
}

/// Applies to every output, whatever its parser returns: a truncated output is incomplete.
fn incomplete_if_truncated(mut parsed: ParseOutput) -> ParseOutput {
    parsed.complete &= !parsed.has_problem(OutputProblemKind::Truncated);
    parsed
}

/// Why the bytes could not be read.
fn unrecognised_problem(bytes: &[u8]) -> OutputProblem {
    let detail = if bytes.iter().all(u8::is_ascii_whitespace) {
        "the file is empty; some tools print nothing where there is nothing to report"
    } else if bytes.contains(&0) {
        "binary data, not the text or JSON output of a supported tool"
    } else {
        "not the output of a supported tool"
    };
    OutputProblem::new(OutputProblemKind::Unrecognised, detail)
}

#[cfg(test)]
mod tests {
    use model::parse_output::{OutputProblem, ParseOutput};
    use model::tool_facts::ToolRank;

    #[test]
    fn the_host_in_front_of_every_line_is_a_fact() {
        let text = "rack2-n5: GPU 0: NVIDIA Z1 (UUID: GPU-1)\n\
                    rack2-n5: \t Link 0: 25 GB/s\nrack2-n5: \t Link 1: 25 GB/s\n";
        let parsed = super::parse_output(text.as_bytes());
        assert_eq!(parsed.facts.hosts, ["rack2-n5"]);
        assert_eq!(parsed.facts.nvlinks[0].links.len(), 2);
        assert!(parsed.complete, "{:?}", parsed.problems);
    }

    #[test]
    fn each_hosts_output_stays_its_own() {
        let of = |host: &str, uuid: &str, links: u32| -> Vec<String> {
            let links = (0..links).map(|link| format!("{host}: \t Link {link}: 25 GB/s\n"));
            let heading = format!("{host}: GPU 0: NVIDIA Z1 (UUID: GPU-{uuid})\n");
            std::iter::once(heading).chain(links).collect()
        };
        let (one, two) = (of("n1", "a", 6), of("n2", "b", 6));
        let mixed: String = one.iter().zip(&two).flat_map(|(a, b)| [a.as_str(), b]).collect();
        for text in [one.concat() + &two.concat(), mixed] {
            let hosts = super::parse_hosts(text.as_bytes());
            let names: Vec<&str> = hosts.iter().map(|(host, _)| host.as_str()).collect();
            assert_eq!(names, ["n1", "n2"]);
            for ((host, parsed), uuid) in hosts.iter().zip(["GPU-a", "GPU-b"]) {
                assert_eq!(parsed.facts.hosts, [host.as_str()]);
                assert_eq!(parsed.facts.nvlinks[0].uuid.as_deref(), Some(uuid));
                assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
            }
        }
        assert_eq!(super::parse_hosts(one.concat().as_bytes()), []);
        // One run across both hosts is not two runs.
        let run: String = COLLECTIVE.lines().map(|l| format!("n1: {l}\n")).collect();
        let other = "n2: n2:7:7 [0] NCCL INFO Connected all rings\n".repeat(5);
        assert_eq!(super::parse_hosts(format!("{run}{other}").as_bytes()), []);
    }

    const COLLECTIVE: &str = "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 4194304 step: \
                              2(factor) \
        warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n\
        #  Rank  0 Group  0 Pid     71 on         n1 device  0 [0000:1b:00] NVIDIA Z1\n\
        #  Rank  1 Group  0 Pid     72 on         n1 device  1 [0000:2b:00] NVIDIA Z1\n\
        #  Rank  2 Group  0 Pid     73 on         n2 device  0 [0000:1b:00] NVIDIA Z1\n\
        #  Rank  3 Group  0 Pid     74 on         n2 device  1 [0000:2b:00] NVIDIA Z1\n\
        #\n#       size         count      type   redop    root     time   algbw   busbw #wrong     \
        time   algbw   busbw #wrong\n\
        \x20    1048576         65536     float    none      -1    25.00   41.94   31.46      0    \
        25.00   41.94   31.46    N/A\n\
        \x20    2097152        131072     float    none      -1    50.00   41.94   31.46      0    \
        50.00   41.94   31.46    N/A\n\
        \x20    4194304        262144     float    none      -1   100.00   41.94   31.46      0   \
        100.00   41.94   31.46    N/A\n\
        # Out of bounds values : 0 OK\n# Avg bus bandwidth    : 31.46 \n#\n";

    /// Parses all except these lines.
    fn parse_text(text: &str) -> ParseOutput {
        let mut parsed = super::parse_output(text.as_bytes());
        let plain = |p: &OutputProblem| OutputProblem { line: None, ..p.clone() };
        parsed.problems = parsed.problems.iter().map(plain).collect();
        parsed
    }

    #[test]
    fn lines_of_nccl_tests_without_their_mark_read_the_same() {
        let whole = parse_text(COLLECTIVE);
        assert!(whole.complete, "{:?}", whole.problems);
        assert_eq!(whole.facts.ranks.iter().map(|r: &ToolRank| r.rank).max(), Some(3));
        let bare =
            |line: &str| line.strip_prefix('#').map_or(line, str::trim_start).to_owned() + "\n";
        let all: String = COLLECTIVE.lines().map(bare).collect();
        assert_eq!(parse_text(&all), whole);
        for mark in ["Rank", "Out of", "Avg", "Using", "nThread"] {
            let some = COLLECTIVE
                .lines()
                .map(|line| if line.contains(mark) { bare(line) } else { format!("{line}\n") });
            assert_eq!(parse_text(&some.collect::<String>()), whole, "{mark}");
        }
    }

    #[test]
    fn rows_without_a_header_name_their_collective() {
        let rows: String = COLLECTIVE.lines().skip(9).map(|line| format!("{line}\n")).collect();
        let exchange = parse_text(&rows);
        assert_eq!(exchange.measurements[0].testcase(), Some("alltoall_perf"));
        let gather = parse_text(&rows.replace("   N/A", "     0"));
        assert_eq!(gather.measurements[0].testcase(), Some("all_gather_perf"));
        for parsed in [exchange, gather] {
            assert!(!parsed.complete, "the header is missing");
        }
    }
}
