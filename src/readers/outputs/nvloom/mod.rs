//! nvloom (`nvloom_cli`): tables of an MNNVL domain, one process per GPU. This module knows no
//! expectations.
//!
//! Based on the public sources only (NVIDIA/nvloom, commits of 1.0.0, 1.1.0, 1.2.0 and 1.3.0): no
//! output of a real run was available, so the grammar below is untested on hardware.
//!
//! - `cli/nvloom_cli.cpp`: header lines (in 1.0.0 only the allocator), `Running NAME`,
//!   `ExecutionTime`, `Done NAME`; with `-c` or `-d` the name ends in `_iter_N`. There is no
//!   footer: a run that was killed between two tests looks like a complete one.
//! - `cli/util.cpp`: `Process R (HOST): device D: GPU (BUS); rackGuid: G`; cells between tabs, two
//!   decimals, `N/A` for 0, `;(i-j)` after a cell of `--richOutput`, `|` between racks.
//! - `cli/util.h`: `Min`, `Avg`, `Max`, `Total NAME VALUE UNIT` under a table; in 1.0.0 `MinBW NAME
//!   VALUE` without a unit, with all tests in GB/s.
//! - `cli/testcases.{h,cpp}`: `testcase WAIVED`, and the meaning of each table:
//!
//! | testcase | rows | columns |
//! |---|---|---|
//! | `SRC_to_DST_{unidir,bidir}_{write,read}_{ce,sm}` | destination rank | source rank |
//! | `bisect_...` | `source->destination` | one |
//! | `all_to_one_...`, `all_from_one_...`, `multicast_...` | one | the one rank |
//! | `gpu_to_rack_...` | source rank | rack of the destinations (median of samples) |
//! | `rack_to_rack_{unidir,bidir}_...` | destination rack | source rack |
//! | `latency_...` (ns) | rank that reads | rank whose memory is read |
//!
//! - `cli/csv_testcase.{h,cpp}`: the CSV of `csv_pattern`, on stdout and as a
//!   file; see `csv.rs`. `cli/plot_heatmaps.py` draws pictures of the same
//!   text and prints no numbers.
//! - `library/error.h`, `library/nvloom.cpp`: failures, `[HOST:DEVICE]: ...`; a
//!   failed check of the copied data; processes in different cliques.
//!
//! A rack's processes are stored as `facts.parameters["rack GUID"]`. The peer behind a cell of
//! `--richOutput` is not stored.

mod csv;
mod failure;
mod table;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use self::csv::NvloomCsvRows;
use self::table::{NvloomStatistic, NvloomTable};
use super::facts_builder::FactsBuilder;
use super::text::OutputLine;
use super::{CERTAIN, LIKELY, POSSIBLE, ParserConfidence, ParserInput, text};
use model::measurement::Measurement;
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::text::clean;
use model::tool_facts::ToolRank;

/// Prefixes of this tool's test names, in addition to memory types.
const FAMILIES: [&str; 10] = [
    "bisect_",
    "all_to_one_",
    "all_from_one_",
    "multicast_one_to_all_",
    "multicast_all_to_",
    "gpu_to_rack_",
    "rack_to_rack_",
    "latency_",
    "device_to_device_",
    "egm_to_",
];

/// Maximum bytes of stored warnings.
const MOST_WARNED: usize = 2_000;

/// Whether this tool wrote the output.
pub fn recognises(input: &ParserInput<'_>) -> ParserConfidence {
    input.lines.iter().map(|line| line_confidence(line.trimmed())).max().unwrap_or(0)
}

fn line_confidence(text: &str) -> ParserConfidence {
    let version = text.strip_prefix("nvloom_cli ").is_some_and(is_version);
    if version || csv::is_header(text) || parse_rank(text).is_some() {
        CERTAIN
    } else if NvloomStatistic::parse(text).is_some_and(|s| s.of_total && is_test(s.name))
        || parse_running(text).is_some_and(is_test)
    {
        LIKELY
    } else if text.contains("nvloom_cli") {
        POSSIBLE
    } else {
        0
    }
}

fn is_version(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit()) && !word.contains(char::is_whitespace)
}

fn is_test(name: &str) -> bool {
    name == "csv_pattern" || FAMILIES.iter().any(|family| name.starts_with(family))
}

/// Parses the output.
pub fn parse(input: &ParserInput<'_>) -> ParseOutput {
    let mut reader = NvloomReader {
        parsed: ParseOutput::for_tool(Tool::Nvloom),
        roster: FactsBuilder::default(),
        test: None,
        lost: 0,
        csv: None,
        runs: BTreeMap::new(),
        known_ranks: BTreeSet::new(),
    };
    let cut =
        if input.text.ends_with('\n') { None } else { input.lines.last().map(|line| line.number) };
    for line in &input.lines {
        reader.read_line(line, cut == Some(line.number));
    }
    reader.finish_test(false);
    let mut parsed = reader.parsed;
    if parsed.measurements.is_empty() && parsed.problems.is_empty() {
        parsed
            .problems
            .push(OutputProblem::new(OutputProblemKind::Truncated, "no result was printed"));
    }
    let broken = [
        OutputProblemKind::Truncated,
        OutputProblemKind::Unrecognised,
        OutputProblemKind::Error,
        OutputProblemKind::Corrupt,
    ];
    let something =
        !parsed.measurements.is_empty() || parsed.has_problem(OutputProblemKind::Waived);
    parsed.complete = something && !broken.iter().any(|kind| parsed.has_problem(*kind));
    parsed
}

/// One test between `Running` and `Done`.
struct NvloomTest {
    /// As printed, with `_iter_N`.
    printed_name: String,
    table: NvloomTable,
    waived: bool,
    failed: bool,
    csv: bool,
    line: u32,
}

impl NvloomTest {
    fn new(printed: &str, line: u32, lost: usize) -> Self {
        let table = NvloomTable::new(base_name(printed), lost);
        Self {
            printed_name: printed.to_owned(),
            table,
            waived: false,
            failed: false,
            csv: false,
            line,
        }
    }

    fn name(&self) -> &str {
        base_name(&self.printed_name)
    }
}

struct NvloomReader {
    parsed: ParseOutput,
    roster: FactsBuilder,
    test: Option<NvloomTest>,
    /// The number of cells lost in the tables so far.
    lost: usize,
    csv: Option<NvloomCsvRows>,
    /// The number of runs of each test.
    runs: BTreeMap<String, u32>,
    known_ranks: BTreeSet<(u32, String, u32)>,
}

impl NvloomReader {
    fn read_line(&mut self, line: &OutputLine<'_>, cut: bool) {
        let text = line.trimmed();
        if let Some(name) = parse_running(text) {
            self.finish_test(false);
            self.test = Some(NvloomTest::new(name, line.number, self.lost));
        } else if let Some(name) = text.strip_prefix("Done ") {
            self.read_done(&clean(name), line.number);
        } else if let Some(failure) = failure::parse_failure(text) {
            if let Some(test) = &mut self.test {
                test.failed = true;
            }
            let testcase = self.test.as_ref().map(NvloomTest::name);
            self.parsed.problems.push(failure.at_line(line.number).in_test(testcase));
        } else if csv::is_header(text) {
            self.csv = Some(NvloomCsvRows::new(line.number));
            if let Some(test) = &mut self.test {
                test.csv = true;
            }
        } else if !self.read_head(text) && !self.read_rank(text) && !self.read_csv_row(text, cut) {
            self.read_table_line(line, cut);
        }
    }

    fn read_csv_row(&mut self, text: &str, cut: bool) -> bool {
        self.csv.as_mut().is_some_and(|rows| rows.add_line(text, cut))
    }

    /// Reads a line that belongs to the open test.
    fn read_table_line(&mut self, line: &OutputLine<'_>, cut: bool) {
        let text = line.trimmed();
        let mut problem = |kind, detail: &str, testcase: &str| {
            let problem = OutputProblem::new(kind, detail).at_line(line.number);
            self.parsed.problems.push(problem.in_test(Some(testcase)));
        };
        match &mut self.test {
            Some(test) if text == "testcase WAIVED" => {
                test.waived = true;
                let detail = "the tool reports that the test does not apply here";
                problem(OutputProblemKind::Waived, detail, test.name());
            }
            Some(test) if line.is_elision() => test.table.elided = true,
            Some(test) => test.table.add_line(line, cut, &mut self.parsed.problems),
            None => {
                if let Some(statistic) = NvloomStatistic::parse(text).filter(|s| is_test(s.name)) {
                    let detail = "a table's statistics without the table";
                    problem(OutputProblemKind::Truncated, detail, statistic.name);
                }
            }
        }
    }

    fn read_done(&mut self, name: &str, number: u32) {
        if self.test.as_ref().is_some_and(|test| test.printed_name == name) {
            self.finish_test(true);
        } else if is_test(base_name(name)) {
            self.finish_test(false);
            let problem = OutputProblem::new(
                OutputProblemKind::Truncated,
                "the end of a test without its beginning",
            );
            self.parsed.problems.push(problem.at_line(number).in_test(Some(base_name(name))));
        }
    }

    /// Ends the open test; `done` if the tool printed its end.
    fn finish_test(&mut self, done: bool) {
        if let Some(rows) = self.csv.take() {
            rows.finish(&mut self.runs, &mut self.parsed);
        }
        let Some(test) = self.test.take() else { return };
        self.lost = test.table.lost;
        let testcase = test.name().to_owned();
        if !done && !test.failed {
            let problem =
                OutputProblem::new(OutputProblemKind::Truncated, "the test began and did not end");
            self.parsed.problems.push(problem.at_line(test.line).in_test(Some(&testcase)));
        }
        if test.waived || test.csv {
            return;
        }
        let run = self.runs.entry(testcase.clone()).or_default();
        match test.table.finish(*run, &mut self.parsed.problems) {
            Some(matrix) => {
                *run += 1;
                self.parsed.measurements.push(Measurement::Matrix(matrix));
            }
            None if done => {
                let problem =
                    OutputProblem::new(OutputProblemKind::Truncated, "the test printed no table");
                self.parsed.problems.push(problem.at_line(test.line).in_test(Some(&testcase)));
            }
            None => {}
        }
    }

    /// Reads the lines above the first test, and warnings.
    fn read_head(&mut self, text: &str) -> bool {
        let facts = &mut self.parsed.facts;
        if let Some(version) = text.strip_prefix("nvloom_cli ")
            && is_version(version)
        {
            self.parsed.tool_version = Some(clean(version));
            return true;
        }
        if text.starts_with("WARNING: MNNVL fabric not available")
            || text.starts_with("WARNING: there are more processes than GPUs")
        {
            let warnings = facts.parameters.entry("warning".to_owned()).or_default();
            let text = clean(text.trim_start_matches("WARNING: "));
            // Further warnings are not facts about a run, and each is compared with all previous
            // ones.
            if warnings.len() < MOST_WARNED && !warnings.contains(&text) {
                let gap = if warnings.is_empty() { "" } else { " " };
                *warnings = format!("{warnings}{gap}{text}");
            }
            return true;
        }
        let Some((key, value)) = text.split_once(": ") else { return false };
        let value = clean(value);
        match key {
            "CUDA version" => facts.cuda_driver = Some(value),
            "Driver version" => facts.driver = Some(value),
            "git commit"
            | "NVCC version"
            | "Allocation strategy"
            | "Buffer size"
            | "Iteration count" => {
                facts.parameters.insert(key.to_owned(), value);
            }
            _ => return false,
        }
        true
    }

    fn read_rank(&mut self, text: &str) -> bool {
        let Some((rank, rack)) = parse_rank(text) else { return false };
        let facts = &mut self.parsed.facts;
        self.roster.add_host(facts, &rank.host);
        let members = facts.parameters.entry(format!("rack {rack}")).or_default();
        if self.known_ranks.insert((rank.rank, rank.host.clone(), rank.device)) {
            if !members.is_empty() {
                members.push(' ');
            }
            members.push_str(&rank.rank.to_string());
            facts.ranks.push(rank);
        }
        true
    }
}

/// `Running NAME`. nvbandwidth's announcement ends in a dot.
fn parse_running(text: &str) -> Option<&str> {
    let name = text.strip_prefix("Running ")?;
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    (plain && !name.is_empty()).then_some(name)
}

/// The name of a test without its repetition suffix `_iter_N`.
fn base_name(name: &str) -> &str {
    match name.rsplit_once("_iter_") {
        Some((base, count)) if text::parse_integer(count).is_some() => base,
        _ => name,
    }
}

/// `Process  3 (n2): device 3: NAME (00000018:06:00); rackGuid: 1800`.
fn parse_rank(text: &str) -> Option<(ToolRank, String)> {
    let (rank, rest) = text.strip_prefix("Process ")?.split_once('(')?;
    let (host, rest) = rest.split_once("): device ")?;
    let (device, rest) = rest.split_once(": ")?;
    let (name, rack) = rest.rsplit_once("; rackGuid:")?;
    let (name, bus_id) = match name.rsplit_once(" (") {
        Some((name, bus)) => (name, Some(clean(bus.trim_end_matches(')')))),
        None => (name, None),
    };
    let small = |word: &str| text::parse_integer(word.trim()).and_then(|n| u32::try_from(n).ok());
    let rank = ToolRank {
        rank: small(rank)?,
        host: clean(host),
        device: small(device)?,
        name: Some(clean(name)),
        bus_id,
        group: None,
    };
    Some((rank, clean(rack)))
}
