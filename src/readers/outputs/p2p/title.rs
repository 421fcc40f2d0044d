//! The line above a table: which test it is, and in which unit.

use super::table::Corner;
use model::unit::Unit;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Connectivity,
    Unidirectional,
    Bidirectional,
    Latency,
}

/// A title, and which of its tables have been seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Title {
    subject: Subject,
    enabled: bool,
    /// `write_`, `read_`, or nothing in releases that do not say.
    method: &'static str,
    pub(super) unit: Option<Unit>,
    pub(super) line: u32,
    seen: Vec<Corner>,
}

impl Title {
    /// The title in this line, when it is one.
    pub(super) fn read(text: &str) -> Option<Self> {
        // Releases and reports leave single words out; without these it is a sentence.
        let enabled = text.contains("P2P=Enabled");
        let is_test = enabled || text.contains("P2P=Disabled");
        let subject = if text.contains("P2P Connectivity") {
            Subject::Connectivity
        } else if !is_test || text.starts_with("NOTE") {
            return None;
        } else if text.contains("Latency") {
            Subject::Latency
        } else if !text.contains("Bandwidth") && unit(text).is_none() {
            return None;
        } else if text.contains("Bidirectional") {
            Subject::Bidirectional
        } else if text.contains("Unidirectional") {
            Subject::Unidirectional
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
        let unit = if subject == Subject::Connectivity { Some(Unit::Count) } else { unit(text) };
        Some(Self { subject, enabled, method, unit, line: 0, seen: Vec::new() })
    }

    /// The same title, at this line.
    pub(super) fn at(self, line: u32) -> Self {
        Self { line, ..self }
    }

    /// Whether a table with this corner can stand under this title now; it is
    /// then taken as seen.
    pub(super) fn takes(&mut self, corner: Corner) -> bool {
        let fits = match (self.subject, corner) {
            (Subject::Latency, Corner::Devices) => self.seen.is_empty(),
            (Subject::Latency, _) => !self.seen.contains(&Corner::Devices),
            (_, Corner::Devices) => true,
            (_, Corner::Gpu | Corner::Cpu) => false,
        };
        let takes = fits && !self.seen.contains(&corner);
        if takes {
            self.seen.push(corner);
        }
        takes
    }

    /// The name of the test whose table has this corner.
    pub(super) fn testcase(&self, corner: Corner) -> String {
        let subject = match self.subject {
            Subject::Connectivity => return "p2p_connectivity".to_owned(),
            Subject::Unidirectional => "unidirectional",
            Subject::Bidirectional => "bidirectional",
            Subject::Latency => "latency",
        };
        let clock = match corner {
            Corner::Devices => "",
            Corner::Gpu => "gpu_",
            Corner::Cpu => "cpu_",
        };
        let state = if self.enabled { "enabled" } else { "disabled" };
        format!("p2p_{subject}_{clock}{}{state}", self.method)
    }

    /// The test that this title announces and whose table has not been seen.
    /// Every release with a `GPU` table prints the `CPU` table after it.
    pub(super) fn missing(&self) -> Option<String> {
        let corner = match (self.subject, self.seen.as_slice()) {
            (Subject::Latency, [Corner::Gpu]) => Corner::Cpu,
            (Subject::Latency, [Corner::Cpu] | []) => Corner::Gpu,
            (_, []) => Corner::Devices,
            _ => return None,
        };
        Some(self.testcase(corner))
    }
}

fn unit(title: &str) -> Option<Unit> {
    let (_, tail) = title.rsplit_once('(')?;
    match tail.split_once(')')?.0.trim() {
        "GB/s" => Some(Unit::GigabytesPerSecond),
        "us" | "µs" | "μs" | "usec" => Some(Unit::Microseconds),
        _ => None,
    }
}
