//! Nodes as `scontrol show node --json` and slurmrestd list them, for acting:
//! states, reasons with who and when, features, free fields, boot times.
//!
//! Pure: text in, nodes and troubles out. A key that is absent (older Slurms
//! leave some out) is nothing; one of another shape is told, and the rest stays.
//! Where it matters, what cannot be read is taken for what keeps hands off: a
//! state for `UNKNOWN`, never for idle, and a reason for somebody's.

use std::collections::btree_map::Entry;

use serde_json::Value;

use super::answer;
use super::nodes::json;
use model::hostlist;
use model::id::NodeName;
use model::live::Live;
use model::live::LiveNode;
use model::said::ProblemKind;
use model::said::Said;
use model::said::SourceKind;

/// Slurm's own word for a state that it does not know.
const UNKNOWN: &str = "UNKNOWN";

/// Words of states that no reason belongs to. Slurm 24.11 leaves the reason of
/// an old drain on a node that was resumed; 26.05 takes it away.
const WITHOUT_REASON: [&str; 12] = [
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
pub fn read(place: &str, text: &str) -> Live {
    let mut said = Said::nothing(SourceKind::SlurmNodes, place);
    let mut live = Live::default();
    if let Some(answer) = answer::read(&mut said, place, text) {
        for (index, value) in json::items(&mut said, &answer).iter().enumerate() {
            let mut row = Row { value, index, said: &mut said };
            if let Some(node) = row.node() {
                add(&mut live, &mut row, node);
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

fn add(live: &mut Live, row: &mut Row<'_>, node: LiveNode) {
    match live.nodes.entry(node.name.clone()) {
        Entry::Vacant(free) => {
            free.insert(node);
        }
        Entry::Occupied(mut known) if *known.get() != node => {
            known.get_mut().state = vec![UNKNOWN.to_owned()];
            let message = "it is listed twice, and not alike; its state is taken for unknown";
            row.trouble(ProblemKind::Contradictory, message);
        }
        Entry::Occupied(_) => {}
    }
}

/// One item of the list.
struct Row<'a> {
    value: &'a Value,
    index: usize,
    said: &'a mut Said,
}

impl Row<'_> {
    fn trouble(&mut self, kind: ProblemKind, message: impl Into<String>) {
        let name = self.value["name"].as_str().filter(|name| hostlist::is_name(name));
        let name = name.map_or_else(String::new, |name| format!(" ({name})"));
        let at = format!("nodes[{}]{name}", self.index);
        self.said.trouble(kind, at, message);
    }

    fn odd(&mut self, key: &str, expected: &str) {
        let found: String = self.value[key].to_string().chars().take(80).collect();
        self.trouble(ProblemKind::Malformed, format!("`{key}` is {found}, expected {expected}"));
    }

    fn node(&mut self) -> Option<LiveNode> {
        let Some(name) = self.value["name"].as_str().filter(|name| hostlist::is_name(name)) else {
            self.trouble(ProblemKind::Malformed, "a node without the name of one is skipped");
            return None;
        };
        let mut node = LiveNode::new(NodeName::from(name), &[]);
        node.state = self.state();
        if node.state.iter().any(|word| !WITHOUT_REASON.contains(&word.as_str())) {
            node.reason = self.reason();
            node.reason_by = self.text("reason_set_by_user");
            node.reason_at = self.moment("reason_changed_at");
        }
        node.booted = self.moment("boot_time");
        node.instance = self.text("instance_id");
        node.available_features = self.words("features");
        node.active_features = self.words("active_features");
        node.comment = self.text("comment").unwrap_or_default();
        node.extra = self.text("extra").unwrap_or_default();
        node.reservation = self.text("reservation");
        node.topology = self.text("topology").or_else(|| self.text("topology_str"));
        node.after_reboot = self.words("next_state_after_reboot");
        // What Slurm writes where no reboot is pending.
        node.after_reboot.retain(|word| word != "INVALID");
        node.allocated_cpus = self.number("alloc_cpus").and_then(|it| u32::try_from(it).ok());
        node.partitions = self.words("partitions");
        Some(node)
    }

    /// All its words, or `UNKNOWN` alone: a word that is left out may be the one
    /// that matters.
    fn state(&mut self) -> Vec<String> {
        let whole = ["state", "state_flags"].iter().all(|key| match &self.value[*key] {
            Value::Null => *key != "state",
            Value::String(_) => true,
            Value::Array(items) => items.iter().all(Value::is_string),
            _ => false,
        });
        let words = if whole { json::state(self.value) } else { Vec::new() };
        if words.is_empty() {
            self.odd("state", "words such as [\"IDLE\"]; it is taken for unknown");
            return vec![UNKNOWN.to_owned()];
        }
        words
    }

    /// As it was written, also where somebody wrote `N/A`.
    fn text(&mut self, key: &str) -> Option<String> {
        match &self.value[key] {
            Value::Null => None,
            Value::String(text) => Some(text.clone()).filter(|text| !text.is_empty()),
            _ => {
                self.odd(key, "a text");
                None
            }
        }
    }

    fn reason(&mut self) -> Option<String> {
        let known = self.value.get("reason").is_some_and(|it| !it.is_null() && !it.is_string());
        // It is somebody's, whoever that is.
        self.text("reason").or_else(|| known.then(|| self.value["reason"].to_string()))
    }

    fn words(&mut self, key: &str) -> Vec<String> {
        let fits = match &self.value[key] {
            Value::Null | Value::String(_) => true,
            Value::Array(items) => items.iter().all(Value::is_string),
            _ => false,
        };
        if !fits {
            self.odd(key, "words");
        }
        answer::words(&self.value[key])
    }

    fn number(&mut self, key: &str) -> Option<u64> {
        let value = &self.value[key];
        let is_unset = value["set"] == false || value["infinite"] == true;
        let number = answer::number(value);
        if number.is_none() && !value.is_null() && !is_unset {
            self.odd(key, "a number");
        }
        number
    }

    /// Seconds since 1970; 0 is what Slurm writes for never.
    fn moment(&mut self, key: &str) -> Option<i64> {
        self.number(key).and_then(|it| i64::try_from(it).ok()).filter(|it| 0 < *it)
    }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
