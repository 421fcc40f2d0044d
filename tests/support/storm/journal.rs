//! An independent reader of the gate's journal: lines of JSON, parsed without the types of the
//! program that wrote them.

use std::fs;
use std::time::SystemTime;

use serde_json::Value;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Line {
    /// Its end in the file.
    pub(crate) end: u64,
    pub(crate) seq: u64,
    pub(crate) epoch: u64,
    pub(crate) unix: i64,
    /// True time of the write, independent of the writer's clock, in seconds since 1970; unknown
    /// for another boot.
    pub(crate) truly: Option<f64>,
    /// `intent`, `outcome`, `undone`, ...
    pub(crate) event: String,
    /// The intent that it is, or that it concludes.
    pub(crate) id: String,
    pub(crate) run: String,
    pub(crate) node: String,
    /// Of an intent: `drain`, `release`, ...
    pub(crate) kind: String,
    /// Of a drain.
    pub(crate) reason: String,
    pub(crate) findings: Vec<String>,
    /// Of an outcome.
    pub(crate) result: String,
}

impl Line {
    /// True if it is an intent for this node.
    pub(crate) fn is_intent_of(&self, node: &str) -> bool {
        self.event == "intent" && self.node == node
    }

    /// True if it concludes this intent.
    pub(crate) fn ends(&self, id: &str) -> bool {
        self.ended().is_some_and(|ended| ended == id)
    }

    pub(crate) fn ended(&self) -> Option<&String> {
        (self.event == "outcome" && self.result != "unknown").then_some(&self.id)
    }
}

/// The whole lines of a journal, and its defects. The last line may be followed by a torn one.
pub(crate) fn read(bytes: &[u8]) -> (Vec<Line>, Vec<String>) {
    let mut lines = Vec::new();
    let mut broken = Vec::new();
    let mut end = 0;
    let boot = Boot::now();
    for text in bytes.split_inclusive(|byte| *byte == b'\n') {
        end += text.len() as u64;
        if text.last() != Some(&b'\n') {
            break;
        }
        match serde_json::from_slice::<Value>(text) {
            Ok(value) => lines.push(line(&value, end, boot.as_ref())),
            Err(error) => broken.push(format!("line {} of the journal: {error}", lines.len() + 1)),
        }
    }
    (lines, broken)
}

/// The boot of this machine: its id, and its time.
struct Boot {
    id: String,
    began: f64,
}

impl Boot {
    #[expect(clippy::disallowed_methods, reason = "a test is not part of the program")]
    fn now() -> Option<Self> {
        let read = |file: &str| fs::read_to_string(file).ok();
        let id = read("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let uptime = read("/proc/uptime")?.split_whitespace().next()?.parse::<f64>().ok()?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs_f64();
        Some(Self { id, began: now - uptime })
    }

    /// Time of a line's write, from the machine's uptime then: independent of wrong clocks.
    fn moment(&self, value: &Value) -> Option<f64> {
        let up = value["uptime_s"].as_f64().filter(|_| value["boot"] == self.id.as_str())?;
        Some(self.began + up)
    }
}

fn line(value: &Value, end: u64, boot: Option<&Boot>) -> Line {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let action = &value["action"];
    let node = if action.is_null() { &value["node"] } else { &action["node"] };
    let findings = action["findings"].as_array().into_iter().flatten();
    Line {
        end,
        seq: value["seq"].as_u64().unwrap_or_default(),
        epoch: value["epoch"].as_u64().unwrap_or_default(),
        unix: value["unix"].as_i64().unwrap_or_default(),
        truly: boot.and_then(|boot| boot.moment(value)),
        event: text(&value["event"]),
        id: text(&value["id"]),
        run: text(&value["run"]),
        node: text(node),
        kind: text(&action["kind"]),
        reason: text(&action["reason"]),
        findings: findings.map(text).collect(),
        result: text(&value["result"]),
    }
}
