//! Nodes from `scontrol show node --json` and slurmrestd, for actions: states, reasons with user
//! and time, features, free fields, boot times.
//!
//! Pure: text in, nodes and problems out. An absent key (older Slurm versions omit some) is
//! ignored; one of another type is reported, and the rest is kept. Unreadable values count as a
//! reason not to act: a state as `UNKNOWN`, never as idle, and a reason as another user's.

use std::collections::btree_map::Entry;

use serde_json::Value;

use super::json_response;
use super::nodes::json;
use model::hostlist;
use model::id::NodeName;
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::source_report::{SourceKind, SourceProblemKind, SourceReport};

/// Slurm's flag for an unknown state.
const UNKNOWN: &str = "UNKNOWN";

/// State flags without a reason. Slurm 24.11 keeps the reason of an earlier drain on a resumed
/// node; 26.05 removes it.
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

/// Parses a list of nodes; errors are added to its problems.
pub fn read(place: &str, text: &str) -> SchedulerSnapshot {
    let mut source_report = SourceReport::new(SourceKind::SlurmNodes, place);
    let mut live = SchedulerSnapshot::default();
    if let Some(answer) = json_response::read(&mut source_report, place, text) {
        for (index, value) in json::node_items(&mut source_report, &answer).iter().enumerate() {
            let mut row = LiveNodeItem { value, index, report: &mut source_report };
            if let Some(node) = row.read_node() {
                add_node(&mut live, &mut row, node);
            }
        }
    }
    live.troubles = source_report
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
            let message = "it is listed twice with different data; its state counts as unknown";
            row.push_problem(SourceProblemKind::Contradictory, message);
        }
        Entry::Occupied(_) => {}
    }
}

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
                "a node without a valid name is skipped",
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
        // Slurm's value without a pending reboot.
        node.after_reboot.retain(|word| word != "INVALID");
        node.allocated_cpus = self.read_number("alloc_cpus").and_then(|it| u32::try_from(it).ok());
        node.partitions = self.read_words("partitions");
        Some(node)
    }

    /// All state flags, or only `UNKNOWN`: an omitted flag may be the important one.
    fn read_state(&mut self) -> Vec<String> {
        let whole = ["state", "state_flags"].iter().all(|key| match &self.value[*key] {
            Value::Null => *key != "state",
            Value::String(_) => true,
            Value::Array(items) => items.iter().all(Value::is_string),
            _ => false,
        });
        let words = if whole { json::parse_state(self.value) } else { Vec::new() };
        if words.is_empty() {
            self.push_unexpected("state", "flags such as [\"IDLE\"]; the state counts as unknown");
            return vec![UNKNOWN.to_owned()];
        }
        words
    }

    /// The text as written, including a literal `N/A`.
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
        // It counts as another user's reason.
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

    /// Seconds since 1970; Slurm writes 0 for never.
    fn read_time(&mut self, key: &str) -> Option<i64> {
        self.read_number(key).and_then(|it| i64::try_from(it).ok()).filter(|it| 0 < *it)
    }
}

#[cfg(test)]
#[path = "live_nodes_tests.rs"]
mod tests;
