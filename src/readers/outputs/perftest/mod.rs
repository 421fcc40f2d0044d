//! perftest: `ib_{write,read,send,atomic}_{bw,lat}` and `raw_ethernet_*`. Text as printed, and the
//! file of `--out_json`. This module knows no expectations.
//!
//! Based on linux-rdma/perftest, the history of `perftest_parameters.{h,c}` from 2013 to 2026 and
//! the tests' main files:
//!
//! - Header and row formats. `MB/sec` up to 2022 and `MiB/sec` since divide by the same 0x100000;
//!   `Gb/sec` divides by 125,000,000 bytes.
//! - Both sides print the table. A bandwidth server prints the client's numbers, so equal rows of
//!   the two sides are one reading; a latency server prints its own, which is another reading. Two
//!   blocks are the two sides of one test if the local address of one is the remote address of the
//!   other.
//! - `-a` runs the powers of two from 2 up; a gap between them is a lost line.
//! - A table ends with a line of dashes, which completes an output.
//! - The JSON file names no unit for bandwidth, and until 2022 its strings were not quoted.
//!
//! Testcases are the binaries' names from the banner: `RDMA_Write BW Test` is `ib_write_bw`;
//! `_imm`, `_cmp_and_swap`, `_fetch_and_add`, `_bidirectional`, `_multicast`, `_forwarding` if the
//! banner has them; `_local` and `_remote` for the parts of `--report-both`. The option block is
//! stored in `facts.parameters` (`device`, `link_type`, `mtu`, `number_of_qps`, ...); different
//! values of several blocks are listed with commas. `gid` is the address of the end that printed
//! it. `sides` means that the file contains both client and server.
//!
//! Not supported: the bare number of `--output`, the table of raw_ethernet_fs_rate, `rdma_bw` and
//! `rdma_lat` of perftest 1.x, the report of perftest_cluster.

mod banner;
mod document;
mod failure;
mod session;
mod table;

#[cfg(test)]
mod tests;

use core::net::Ipv6Addr;
use std::collections::BTreeMap;

use self::banner::PerftestBanner;
use self::session::PerftestSession;
use self::table::PerftestColumns;
use super::text::OutputLine;
use super::{CERTAIN, POSSIBLE, ParserConfidence, ParserInput, text};
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::text::clean;
use model::tool_facts::ToolFacts;

/// Maximum bytes of one option's different values.
const MOST_KEPT: usize = 2_000;

/// Whether this tool wrote the output.
pub fn recognises(input: &ParserInput<'_>) -> ParserConfidence {
    if document::is_document(input.text) {
        return CERTAIN;
    }
    input.lines.iter().map(|line| line_confidence(line.trimmed())).max().unwrap_or(0)
}

fn line_confidence(text: &str) -> ParserConfidence {
    if PerftestColumns::parse(text).is_some() {
        return CERTAIN;
    }
    match PerftestBanner::parse(text) {
        Some(banner) if banner.quantity().is_some() => CERTAIN,
        // Two words that can appear in any text.
        Some(_) => POSSIBLE,
        None if failure::is_perftest_message(text) => POSSIBLE,
        None => 0,
    }
}

/// Parses the output.
pub fn parse(input: &ParserInput<'_>) -> ParseOutput {
    if document::is_document(input.text) {
        return document::parse(input.text);
    }
    let mut parsed = ParseOutput::for_tool(Tool::Perftest);
    let cut =
        if input.text.ends_with('\n') { None } else { input.lines.last().map(|line| line.number) };
    // Client and server that a launcher labels are read separately.
    let mut copies: BTreeMap<Option<u32>, Vec<&OutputLine<'_>>> = BTreeMap::new();
    for line in &input.lines {
        copies.entry(line.label).or_default().push(line);
    }
    let mut sessions = Vec::new();
    for lines in copies.values() {
        let mut reader = PerftestReader {
            parsed: &mut parsed,
            cut,
            sessions: Vec::new(),
            waits: false,
            local: false,
        };
        for line in lines {
            reader.read_line(line);
        }
        sessions.append(&mut reader.sessions);
    }
    session::push_series(sessions, &mut parsed);
    parsed
}

/// Reads one copy of the tool, test after test.
struct PerftestReader<'p> {
    parsed: &'p mut ParseOutput,
    cut: Option<u32>,
    sessions: Vec<PerftestSession>,
    /// A server reported that it waits; its banner comes next.
    waits: bool,
    /// The previous line is the address of the printing end.
    local: bool,
}

impl PerftestReader<'_> {
    fn read_line(&mut self, line: &OutputLine<'_>) {
        let text = line.trimmed();
        if text.contains("Waiting for client to connect") {
            self.waits = true;
        } else if let Some(banner) = PerftestBanner::parse(text) {
            self.add_banner(banner, line.number);
        } else if let Some(columns) = PerftestColumns::parse(text) {
            self.add_header(columns, line.number);
        } else if let Some(side) = parse_part(text) {
            if let Some(whole) = self.sessions.last() {
                let part = whole.start_part(side, line.number);
                self.sessions.push(part);
            }
        } else if let Some(gid) = parse_gid(text) {
            if std::mem::take(&mut self.local) {
                keep_option(&mut self.parsed.facts, "gid", &gid);
            }
        } else if let Some((local, address)) = parse_address(text) {
            self.local = local;
            let session = self.current_session(line.number);
            let side = if local { &mut session.locals } else { &mut session.remotes };
            side.insert(address);
        } else if let Some(failure) = failure::parse_failure(text) {
            let testcase = self.sessions.last_mut().and_then(|session| {
                session.failed |= failure.kind == OutputProblemKind::Error;
                session.testcase()
            });
            let mut problem = OutputProblem::new(failure.kind, clean(text)).at_line(line.number);
            problem.code = failure.code.map(str::to_owned);
            self.parsed.problems.push(problem.in_test(testcase.as_deref()));
        } else if 20 <= text.len() && text.bytes().all(|b| b == b'-') {
            if let Some(session) = self.sessions.last_mut() {
                session.end_table();
            }
        } else if line.is_elision() {
            let problem = OutputProblem::new(
                OutputProblemKind::Truncated,
                "part of the text was cut out by hand",
            );
            self.parsed.problems.push(problem.at_line(line.number));
        } else if !self.read_options(text) {
            let cut = self.cut == Some(line.number);
            if let Some(session) = self.sessions.last_mut() {
                session.add_line(text, line.number, cut, &mut self.parsed.problems);
            }
        }
    }

    fn current_session(&mut self, line: u32) -> &mut PerftestSession {
        if self.sessions.is_empty() {
            self.sessions.push(PerftestSession::new(None, self.waits, line));
        }
        self.sessions.last_mut().expect("one was just pushed if there was none")
    }

    fn add_banner(&mut self, banner: PerftestBanner, line: u32) {
        let waits = std::mem::take(&mut self.waits);
        match self.sessions.last_mut() {
            // Both sides start together, and their blocks are mixed line by line.
            Some(open) if open.is_started_with(&banner) => open.add_second_side(),
            _ => self.sessions.push(PerftestSession::new(Some(banner), waits, line)),
        }
    }

    fn add_header(&mut self, columns: PerftestColumns, line: u32) {
        let without_banner =
            self.sessions.last().is_some_and(PerftestSession::is_done_without_banner);
        if without_banner {
            // A collection of tables without their banners.
            self.sessions.push(PerftestSession::new(None, false, line));
        }
        self.current_session(line).set_columns(columns);
    }

    /// `Number of qps : 1   Transport type : IB`: stores known options.
    fn read_options(&mut self, text: &str) -> bool {
        if !text.contains(':') {
            return false;
        }
        let mut any = false;
        let mut rest = text;
        while let Some((key, tail)) = rest.split_once(':') {
            let tail = tail.trim_start();
            let (value, next) = tail.split_once(char::is_whitespace).unwrap_or((tail, ""));
            let Some(key) = banner::option_key(key) else { return any };
            any = true;
            if key == "connection_type"
                && value == "RawEth"
                && let Some(session) = self.sessions.last_mut()
            {
                session.set_raw_ethernet();
            }
            keep_option(&mut self.parsed.facts, key, value);
            rest = next;
        }
        any
    }
}

/// Stores one option, with all different values of several blocks.
fn keep_option(facts: &mut ToolFacts, key: &str, value: &str) {
    let value = clean(value);
    if value.is_empty() {
        return;
    }
    let kept = facts.parameters.entry(key.to_owned()).or_default();
    // A list with more values than a node has devices is not useful.
    if MOST_KEPT < kept.len() {
        return;
    }
    if kept.is_empty() {
        *kept = value;
    } else if !kept.split(", ").any(|known| known == value) {
        kept.push_str(", ");
        kept.push_str(&value);
    }
}

/// ` Local results: ` of `--report-both`.
fn parse_part(text: &str) -> Option<&'static str> {
    match text {
        "Local results:" => Some("_local"),
        "Remote results:" => Some("_remote"),
        _ => None,
    }
}

/// ` GID: 00:00:...:255:255:10:77:00:03`, sixteen decimal bytes: an address, of IPv4 where
/// it is one.
fn parse_gid(text: &str) -> Option<String> {
    let bytes: Vec<u8> = text
        .strip_prefix("GID:")?
        .trim()
        .split(':')
        .map(|byte| byte.parse().ok())
        .collect::<Option<_>>()?;
    let address = Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?);
    Some(match address.to_ipv4_mapped() {
        Some(address) => address.to_string(),
        None => address.to_string(),
    })
}

/// ` local address: LID 0x06 QPN 0x5f PSN 0x82 RKey ...`: whether it is the local one, and the
/// identification of the queue pair.
fn parse_address(text: &str) -> Option<(bool, String)> {
    let (local, tail) = match text.strip_prefix("local address:") {
        Some(tail) => (true, tail),
        None => (false, text.strip_prefix("remote address:")?),
    };
    let name: Vec<&str> = tail.split_whitespace().take(6).collect();
    Some((local, name.join(" ")))
}
