//! Nodes as `scontrol show node --json` and slurmrestd list them, for acting:
//! states, reasons with who and when, features, free fields, boot times.
//!
//! Pure: text in, nodes and troubles out. A key that is absent (older Slurms
//! leave some out) is nothing; one of another shape is told, and the rest stays.
//! Where it matters, what cannot be read is taken for what keeps hands off: a
//! state for `UNKNOWN`, never for idle, and a reason for somebody's.

use std::collections::btree_map::Entry;

use serde_json::Value;

use super::json_response;
use super::nodes::json;
use model::hostlist;
use model::id::NodeName;
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::source_report::{SourceKind, SourceProblemKind, SourceReport};

/// Slurm's own word for a state that it does not know.
const UNKNOWN: &str = "UNKNOWN";

/// Words of states that no reason belongs to. Slurm 24.11 leaves the reason of
/// an old drain on a node that was resumed; 26.05 takes it away.
const STATES_WITHOUT_REASON: [&str; 12] = [
    "IDLE",
    "MIXED",
    "ALLOCATED",
    "COMPLETING",
    "NOT_RESPONDING",
    "PLANNED",
    "RESERVED",
    "MAINTENANCE",
    "BLOCKED",
    "CLOUD",
    "DYNAMIC_NORM",
    "EXTERNAL",
];

/// Reads a listing of nodes; what is wrong with it is among its troubles.
pub fn read(place: &str, text: &str) -> SchedulerSnapshot {
    let mut said = SourceReport::new(SourceKind::SlurmNodes, place);
    let mut live = SchedulerSnapshot::default();
    if let Some(answer) = json_response::read(&mut said, place, text) {
        for (index, value) in json::node_items(&mut said, &answer).iter().enumerate() {
            let mut row = LiveNodeItem { value, index, report: &mut said };
            if let Some(node) = row.read_node() {
                add_node(&mut live, &mut row, node);
            }
        }
    }
    live.troubles = said
        .problems
        .into_iter()
        .map(|it| match it.at {
            Some(at) if at.starts_with(place) => format!("{at}: {}", it.message),
            Some(at) => format!("{place}: {at}: {}", it.message),
            None => format!("{place}: {}", it.message),
        })
        .collect();
    live
}

fn add_node(live: &mut SchedulerSnapshot, row: &mut LiveNodeItem<'_>, node: SchedulerNode) {
    match live.nodes.entry(node.name.clone()) {
        Entry::Vacant(free) => {
            free.insert(node);
        }
        Entry::Occupied(mut known) if *known.get() != node => {
            known.get_mut().state = vec![UNKNOWN.to_owned()];
            let message = "it is listed twice, and not alike; its state is taken for unknown";
            row.push_problem(SourceProblemKind::Contradictory, message);
        }
        Entry::Occupied(_) => {}
    }
}

/// One item of the list.
struct LiveNodeItem<'a> {
    value: &'a Value,
    index: usize,
    report: &'a mut SourceReport,
}

impl LiveNodeItem<'_> {
    fn push_problem(&mut self, kind: SourceProblemKind, message: impl Into<String>) {
        let name = self.value["name"].as_str().filter(|name| hostlist::is_name(name));
        let name = name.map_or_else(String::new, |name| format!(" ({name})"));
        let at = format!("nodes[{}]{name}", self.index);
        self.report.push_problem(kind, at, message);
    }

    fn push_unexpected(&mut self, key: &str, expected: &str) {
        let found: String = self.value[key].to_string().chars().take(80).collect();
        self.push_problem(
            SourceProblemKind::Malformed,
            format!("`{key}` is {found}, expected {expected}"),
        );
    }

    fn read_node(&mut self) -> Option<SchedulerNode> {
        let Some(name) = self.value["name"].as_str().filter(|name| hostlist::is_name(name)) else {
            self.push_problem(
                SourceProblemKind::Malformed,
                "a node without the name of one is skipped",
            );
            return None;
        };
        let mut node = SchedulerNode::new(NodeName::from(name), &[]);
        node.state = self.read_state();
        if node.state.iter().any(|word| !STATES_WITHOUT_REASON.contains(&word.as_str())) {
            node.reason = self.read_reason();
            node.reason_by = self.read_text("reason_set_by_user");
            node.reason_at = self.read_time("reason_changed_at");
        }
        node.booted = self.read_time("boot_time");
        node.instance = self.read_text("instance_id");
        node.available_features = self.read_words("features");
        node.active_features = self.read_words("active_features");
        node.comment = self.read_text("comment").unwrap_or_default();
        node.extra = self.read_text("extra").unwrap_or_default();
        node.reservation = self.read_text("reservation");
        node.topology = self.read_text("topology").or_else(|| self.read_text("topology_str"));
        node.after_reboot = self.read_words("next_state_after_reboot");
        // What Slurm writes where no reboot is pending.
        node.after_reboot.retain(|word| word != "INVALID");
        node.allocated_cpus = self.read_number("alloc_cpus").and_then(|it| u32::try_from(it).ok());
        node.partitions = self.read_words("partitions");
        Some(node)
    }

    /// All its words, or `UNKNOWN` alone: a word that is left out may be the one
    /// that matters.
    fn read_state(&mut self) -> Vec<String> {
        let whole = ["state", "state_flags"].iter().all(|key| match &self.value[*key] {
            Value::Null => *key != "state",
            Value::String(_) => true,
            Value::Array(items) => items.iter().all(Value::is_string),
            _ => false,
        });
        let words = if whole { json::parse_state(self.value) } else { Vec::new() };
        if words.is_empty() {
            self.push_unexpected("state", "words such as [\"IDLE\"]; it is taken for unknown");
            return vec![UNKNOWN.to_owned()];
        }
        words
    }

    /// As it was written, also where somebody wrote `N/A`.
    fn read_text(&mut self, key: &str) -> Option<String> {
        match &self.value[key] {
            Value::Null => None,
            Value::String(text) => Some(text.clone()).filter(|text| !text.is_empty()),
            _ => {
                self.push_unexpected(key, "a text");
                None
            }
        }
    }

    fn read_reason(&mut self) -> Option<String> {
        let known = self.value.get("reason").is_some_and(|it| !it.is_null() && !it.is_string());
        // It is somebody's, whoever that is.
        self.read_text("reason").or_else(|| known.then(|| self.value["reason"].to_string()))
    }

    fn read_words(&mut self, key: &str) -> Vec<String> {
        let fits = match &self.value[key] {
            Value::Null | Value::String(_) => true,
            Value::Array(items) => items.iter().all(Value::is_string),
            _ => false,
        };
        if !fits {
            self.push_unexpected(key, "words");
        }
        json_response::as_words(&self.value[key])
    }

    fn read_number(&mut self, key: &str) -> Option<u64> {
        let value = &self.value[key];
        let is_unset = value["set"] == false || value["infinite"] == true;
        let number = json_response::as_number(value);
        if number.is_none() && !value.is_null() && !is_unset {
            self.push_unexpected(key, "a number");
        }
        number
    }

    /// Seconds since 1970; 0 is what Slurm writes for never.
    fn read_time(&mut self, key: &str) -> Option<i64> {
        self.read_number(key).and_then(|it| i64::try_from(it).ok()).filter(|it| 0 < *it)
    }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
