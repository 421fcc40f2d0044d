//! The line above a table: its test and its unit.

use super::table::P2pCorner;
use model::unit::Unit;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum P2pSubject {
    Connectivity,
    Unidirectional,
    Bidirectional,
    Latency,
}

/// A title, and which of its tables were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct P2pTitle {
    subject: P2pSubject,
    enabled: bool,
    /// `write_`, `read_`, or empty in releases that do not print it.
    method: &'static str,
    pub(super) unit: Option<Unit>,
    pub(super) line: u32,
    seen: Vec<P2pCorner>,
}

impl P2pTitle {
    /// The title in this line, if it is one.
    pub(super) fn parse(text: &str) -> Option<Self> {
        // Releases and reports omit single words; without these it is an ordinary sentence.
        let enabled = text.contains("P2P=Enabled");
        let is_test = enabled || text.contains("P2P=Disabled");
        let subject = if text.contains("P2P Connectivity") {
            P2pSubject::Connectivity
        } else if !is_test || text.starts_with("NOTE") {
            return None;
        } else if text.contains("Latency") {
            P2pSubject::Latency
        } else if !text.contains("Bandwidth") && parse_unit(text).is_none() {
            return None;
        } else if text.contains("Bidirectional") {
            P2pSubject::Bidirectional
        } else if text.contains("Unidirectional") {
            P2pSubject::Unidirectional
        } else {
            return None;
        };
        let method = if text.contains("(P2P Writes)") {
            "write_"
        } else if text.contains("(P2P Reads)") {
            "read_"
        } else {
            ""
        };
        let unit =
            if subject == P2pSubject::Connectivity { Some(Unit::Count) } else { parse_unit(text) };
        Some(Self { subject, enabled, method, unit, line: 0, seen: Vec::new() })
    }

    pub(super) fn at_line(self, line: u32) -> Self {
        Self { line, ..self }
    }

    /// Whether a table with this corner can follow this title now; the table is then marked as
    /// read.
    pub(super) fn accept_corner(&mut self, corner: P2pCorner) -> bool {
        let fits = match (self.subject, corner) {
            (P2pSubject::Latency, P2pCorner::Devices) => self.seen.is_empty(),
            (P2pSubject::Latency, _) => !self.seen.contains(&P2pCorner::Devices),
            (_, P2pCorner::Devices) => true,
            (_, P2pCorner::Gpu | P2pCorner::Cpu) => false,
        };
        let takes = fits && !self.seen.contains(&corner);
        if takes {
            self.seen.push(corner);
        }
        takes
    }

    /// The name of the test whose table has this corner.
    pub(super) fn testcase(&self, corner: P2pCorner) -> String {
        let subject = match self.subject {
            P2pSubject::Connectivity => return "p2p_connectivity".to_owned(),
            P2pSubject::Unidirectional => "unidirectional",
            P2pSubject::Bidirectional => "bidirectional",
            P2pSubject::Latency => "latency",
        };
        let clock = match corner {
            P2pCorner::Devices => "",
            P2pCorner::Gpu => "gpu_",
            P2pCorner::Cpu => "cpu_",
        };
        let state = if self.enabled { "enabled" } else { "disabled" };
        format!("p2p_{subject}_{clock}{}{state}", self.method)
    }

    /// The announced test whose table was not read. Every release with a `GPU` table prints the
    /// `CPU` table after it.
    pub(super) fn missing_testcase(&self) -> Option<String> {
        let corner = match (self.subject, self.seen.as_slice()) {
            (P2pSubject::Latency, [P2pCorner::Gpu]) => P2pCorner::Cpu,
            (P2pSubject::Latency, [P2pCorner::Cpu] | []) => P2pCorner::Gpu,
            (_, []) => P2pCorner::Devices,
            _ => return None,
        };
        Some(self.testcase(corner))
    }
}

fn parse_unit(title: &str) -> Option<Unit> {
    let (_, tail) = title.rsplit_once('(')?;
    match tail.split_once(')')?.0.trim() {
        "GB/s" => Some(Unit::GigabytesPerSecond),
        "us" | "µs" | "μs" | "usec" => Some(Unit::Microseconds),
        _ => None,
    }
}
