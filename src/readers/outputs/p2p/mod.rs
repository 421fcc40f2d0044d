//! p2pBandwidthLatencyTest of cuda-samples: titled square tables, one row and one column per GPU.
//! This module knows no expectations.
//!
//! Based on NVIDIA/cuda-samples (`p2pBandwidthLatencyTest.cu`, 2018 to 2025) and on the 2015 copy
//! in CUDA 8.
//!
//! | testcase | title | direction of the data |
//! |---|---|---|
//! | `p2p_connectivity` | P2P Connectivity | 1: row can access column |
//! | `p2p_unidirectional_disabled` | P2P=Disabled | row to column, through host memory |
//! | `p2p_unidirectional_write_enabled` | P2P=Enabled (P2P Writes) | row to column |
//! | `p2p_unidirectional_read_enabled` | P2P=Enabled (P2P Reads) | column to row |
//! | `p2p_unidirectional_enabled` | P2P=Enabled, no method | releases without a method; CUDA 8: column to row |
//! | `p2p_bidirectional_disabled`, `..._enabled` | Bidirectional | both, summed |
//! | `p2p_latency_{gpu,cpu}_disabled` | P2P=Disabled Latency | row to column |
//! | `p2p_latency_{gpu,cpu}_{write,read}_enabled` | P2P=Enabled Latency | as the bandwidth |
//! | `p2p_latency_disabled`, `..._enabled` | CUDA 8: one table, corner `D\D` | column to row |
//!
//! In CUDA 8 `p2p_unidirectional_disabled` is also column to row. A table without a title has no
//! testcase and no unit. The diagonal is a copy inside one GPU, counted twice. If peers cannot
//! access each other the tool silently measures the fallback path: `p2p_connectivity` and the
//! parameters `peer_access` and `cannot_access_peer` show that.
//!
//! An output is complete if every started table is complete and, if it contains the beginning of a
//! run, its closing note and all its tables are present. An excerpt without the tool's own
//! beginning has no required end; it is complete if its tables are.

mod table;
mod title;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use self::table::{P2pCorner, P2pTable, P2pTableHeader};
use self::title::P2pTitle;
use super::text::OutputLine;
use super::{CERTAIN, LIKELY, POSSIBLE, ParserConfidence, ParserInput, text};
use model::cuda_error::CudaError;
use model::measurement::Measurement;
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::text::clean;
use model::tool_facts::ToolDevice;

const BANNER: &str = "P2P (Peer-to-Peer) GPU Bandwidth Latency Test";
const CLOSING_NOTE: &str = "NOTE: The CUDA Samples are not meant for performance";
const PROGRAM: &str = "p2pBandwidthLatencyTest";

/// The tables that every release prints between its banner and its closing note, as beginning and
/// end of the testcase name.
const ALWAYS_PRINTED: [(&str, &str); 6] = [
    ("p2p_unidirectional_", "disabled"),
    ("p2p_unidirectional_", "enabled"),
    ("p2p_bidirectional_", "disabled"),
    ("p2p_bidirectional_", "enabled"),
    ("p2p_latency_", "disabled"),
    ("p2p_latency_", "enabled"),
];

/// Whether this tool wrote the output.
pub fn recognises(input: &ParserInput<'_>) -> ParserConfidence {
    input.lines.iter().map(|line| line_confidence(line.trimmed())).max().unwrap_or(0)
}

fn line_confidence(text: &str) -> ParserConfidence {
    if text.contains(BANNER) || P2pTitle::parse(text).is_some() {
        CERTAIN
    } else if P2pTableHeader::parse(text).is_some_and(|header| header.corner == P2pCorner::Devices)
    {
        LIKELY
    } else if text.contains(PROGRAM) {
        POSSIBLE
    } else {
        0
    }
}

/// Parses the output.
pub fn parse(input: &ParserInput<'_>) -> ParseOutput {
    let mut parsed = ParseOutput::for_tool(Tool::P2pBandwidthLatencyTest);
    // Only a last line without a line end can have lost digits.
    let cut =
        if input.text.ends_with('\n') { None } else { input.lines.last().map(|line| line.number) };
    // Copies that a launcher ran concurrently are read separately.
    let mut copies: BTreeMap<Option<u32>, Vec<&OutputLine<'_>>> = BTreeMap::new();
    for line in &input.lines {
        copies.entry(line.label).or_default().push(line);
    }
    let mut run = 0;
    for lines in copies.values() {
        let mut reader = P2pReader::new(&mut parsed, run, cut);
        for line in lines {
            reader.read_line(line);
        }
        run = reader.finish();
    }
    if parsed.measurements.is_empty() && parsed.problems.is_empty() {
        parsed
            .problems
            .push(OutputProblem::new(OutputProblemKind::Truncated, "no table was printed"));
    }
    parsed.complete = !parsed.measurements.is_empty()
        && ![
            OutputProblemKind::Truncated,
            OutputProblemKind::Unrecognised,
            OutputProblemKind::Error,
        ]
        .iter()
        .any(|kind| parsed.has_problem(*kind));
    parsed
}

/// Reads one copy of the tool, run after run.
struct P2pReader<'p> {
    parsed: &'p mut ParseOutput,
    cut: Option<u32>,
    run: u32,
    /// The output contains the beginning of this run.
    begun: bool,
    /// The output contains its closing note.
    ended: bool,
    tests: BTreeSet<String>,
    measured: bool,
    title: Option<P2pTitle>,
    table: Option<P2pTable>,
    peers: u32,
    not_peers: Vec<String>,
}

impl<'p> P2pReader<'p> {
    fn new(parsed: &'p mut ParseOutput, run: u32, cut: Option<u32>) -> Self {
        Self {
            parsed,
            cut,
            run,
            begun: false,
            ended: false,
            tests: BTreeSet::new(),
            measured: false,
            title: None,
            table: None,
            peers: 0,
            not_peers: Vec::new(),
        }
    }

    fn read_line(&mut self, line: &OutputLine<'_>) {
        let text = line.trimmed();
        if text.contains(BANNER) {
            self.close_run();
            self.begun = true;
        } else if text.contains(CLOSING_NOTE) {
            self.close_title();
            self.ended = true;
        } else if text.starts_with("Cuda failure") {
            self.note_failure(text, line.number);
        } else if let Some(device) = parse_device(text) {
            self.begun = true;
            let devices = &mut self.parsed.facts.devices;
            if !devices.iter().rev().take(table::MOST_COLUMNS).any(|known| *known == device) {
                devices.push(device);
            }
        } else if let Some((from, can, to)) = parse_peer_access(text) {
            self.begun = true;
            if can {
                self.peers += 1;
            } else {
                self.not_peers.push(format!("{from}-{to}"));
            }
        } else if let Some(title) = P2pTitle::parse(text) {
            self.close_title();
            self.title = Some(title.at_line(line.number));
        } else if let Some(header) = P2pTableHeader::parse(line.text) {
            self.open_table(&header, line);
        } else if line.is_elision() {
            self.note_elision(line);
        } else if let Some(table) = &mut self.table {
            table.add_line(line, self.cut == Some(line.number), &mut self.parsed.problems);
        }
    }

    fn open_table(&mut self, header: &P2pTableHeader<'_>, line: &OutputLine<'_>) {
        self.close_table();
        let Some(title) = &mut self.title else {
            // Without a title, `GPU 0 1` is ambiguous.
            if header.corner == P2pCorner::Devices {
                self.table = Some(P2pTable::new(None, None, header, line.number));
            }
            return;
        };
        if !title.accept_corner(header.corner) {
            // The title of this table is lost; the previous title does not apply.
            self.close_title();
            if header.corner == P2pCorner::Devices {
                self.table = Some(P2pTable::new(None, None, header, line.number));
            }
            return;
        }
        let testcase = title.testcase(header.corner);
        let unit = title.unit;
        if !self.tests.insert(testcase.clone()) {
            // The same test again without a banner: another run was appended.
            self.run += 1;
            self.tests = BTreeSet::from([testcase.clone()]);
        }
        if testcase == "p2p_connectivity" {
            self.begun = true;
        }
        self.table = Some(P2pTable::new(Some(testcase), unit, header, line.number));
    }

    fn note_elision(&mut self, line: &OutputLine<'_>) {
        if let Some(table) = &mut self.table {
            table.elided = true;
        } else {
            let problem = OutputProblem::new(
                OutputProblemKind::Truncated,
                "part of the text was cut out by hand",
            );
            self.parsed.problems.push(problem.at_line(line.number));
        }
    }

    fn note_failure(&mut self, text: &str, number: u32) {
        let testcase = self.table.as_ref().and_then(|table| table.testcase.clone());
        let waiting = self.title.as_ref().and_then(P2pTitle::missing_testcase);
        self.close_table();
        // A test with a printed title and no table is the one that failed.
        let testcase = waiting.or(testcase);
        let mut problem = OutputProblem::new(OutputProblemKind::Error, clean(text)).at_line(number);
        let error = text.split_once('\'').and_then(|(_, message)| CudaError::from_message(message));
        problem.code = error.map(|error| error.runtime_name().to_owned());
        self.parsed.problems.push(problem.in_test(testcase.as_deref()));
        self.title = None;
    }

    fn close_table(&mut self) {
        if let Some(table) = self.table.take()
            && let Some(matrix) = table.finish(self.run, &mut self.parsed.problems)
        {
            self.parsed.measurements.push(Measurement::Matrix(matrix));
            self.measured = true;
        }
    }

    fn close_title(&mut self) {
        self.close_table();
        if let Some(title) = self.title.take()
            && let Some(missing) = title.missing_testcase()
        {
            let problem =
                OutputProblem::new(OutputProblemKind::Truncated, "its table was not printed");
            self.parsed.problems.push(problem.in_test(Some(&missing)).at_line(title.line));
        }
    }

    fn close_run(&mut self) {
        let failed = self.parsed.has_problem(OutputProblemKind::Error);
        self.close_title();
        if self.begun && !self.ended && !failed {
            let detail = "the run began and its closing note is missing";
            self.parsed.problems.push(OutputProblem::new(OutputProblemKind::Truncated, detail));
        }
        if self.begun && self.ended {
            for (start, end) in ALWAYS_PRINTED {
                if !self.tests.iter().any(|test| test.starts_with(start) && test.ends_with(end)) {
                    let detail = format!("the run is complete except for {start}{end}");
                    self.parsed
                        .problems
                        .push(OutputProblem::new(OutputProblemKind::Truncated, detail));
                }
            }
        }
        if self.measured {
            self.run += 1;
        }
        self.tests.clear();
        (self.begun, self.ended, self.measured) = (false, false, false);
    }

    /// Ends the copy and returns the number of the next run.
    fn finish(mut self) -> u32 {
        self.close_run();
        if 0 < self.peers || !self.not_peers.is_empty() {
            let parameters = &mut self.parsed.facts.parameters;
            let counts = format!("{} can, {} cannot", self.peers, self.not_peers.len());
            parameters.insert("peer_access".to_owned(), counts);
            if !self.not_peers.is_empty() {
                parameters.insert("cannot_access_peer".to_owned(), self.not_peers.join(" "));
            }
        }
        self.run
    }
}

/// `Device: 0, NAME, pciBusID: 1b, pciDeviceID: 0, pciDomainID:0`. The numbers are hexadecimal; the
/// bus ID is formatted as in other tools.
fn parse_device(text: &str) -> Option<ToolDevice> {
    let (index, rest) = text.strip_prefix("Device:")?.split_once(',')?;
    let index = text::parse_integer(index.trim())?.try_into().ok()?;
    let (name, rest) = rest.split_once(", pciBusID:")?;
    let mut parts = rest.split(',');
    let bus = parts.next()?.trim();
    let device = parts.next()?.trim().strip_prefix("pciDeviceID:")?.trim();
    let domain = parts.next()?.trim().strip_prefix("pciDomainID:")?.trim();
    let hex = |word: &str| u32::from_str_radix(word, 16).ok();
    let bus_id = match (hex(domain), hex(bus), hex(device)) {
        (Some(domain), Some(bus), Some(device)) => {
            Some(format!("{domain:08x}:{bus:02x}:{device:02x}"))
        }
        _ => None,
    };
    Some(ToolDevice { index, name: Some(clean(name)), bus_id, ..ToolDevice::default() })
}

/// Parses `Device=0 CAN Access Peer Device=1`.
fn parse_peer_access(text: &str) -> Option<(u64, bool, u64)> {
    let mut words = text.strip_prefix("Device=")?.split_whitespace();
    let from = text::parse_integer(words.next()?)?;
    let can = match words.next()? {
        "CAN" => true,
        "CANNOT" => false,
        _ => return None,
    };
    let to = words.last()?.strip_prefix("Device=")?;
    Some((from, can, text::parse_integer(to)?))
}
