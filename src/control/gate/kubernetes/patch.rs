//! Builds the requests for one node: a merge patch of metadata and taints, and a patch of
//! fabricgate's condition.
//!
//! Pure. The list of taints is atomic, so it is sent whole: other owners' entries stay
//! unchanged and in order, including unknown fields. Every patch is checked once more
//! against the fields that fabricgate may write.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use engine::policy::command_line;
use model::kubernetes_node::{
    CONDITION, DEGRADED, FABRICGATE_PREFIX, FabricNodeCondition, GATE, NO_SCHEDULE,
    PREFER_NO_SCHEDULE, REASON, TaintEdit,
};
use model::node_update::{NodeStateChange, NodeUpdate};
use model::text::clean;

/// Maximum length of a label or taint value (Kubernetes limit).
const MAX_VALUE_BYTES: usize = 63;

/// Maximum length of one annotation in bytes, far below the Kubernetes limit of 256 KiB
/// for all annotations of an object.
const MAX_ANNOTATION_BYTES: usize = 16 * 1024;

/// The edits of one change, independent of the node's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodePatchEdits {
    pub(super) taints: Vec<TaintEdit>,
    pub(super) labels: BTreeMap<String, Option<String>>,
    pub(super) annotations: BTreeMap<String, Option<String>>,
    pub(super) condition: Option<FabricNodeCondition>,
}

impl NodePatchEdits {
    /// Converts a change; an error if it is not allowed or cannot be expressed.
    pub(super) fn from_update(change: &NodeUpdate) -> Result<Self, String> {
        let of_slurm = [
            change.available_features.is_some() || change.active_features.is_some(),
            change.extra.is_some() || change.comment.is_some(),
        ];
        if of_slurm.contains(&true) {
            return Err("a Kubernetes node has no features, Extra or Comment".into());
        }
        let marks = change.kubernetes.clone().unwrap_or_default();
        let mut edits = Self {
            taints: marks.taints,
            labels: marks.labels,
            annotations: marks.annotations,
            condition: marks.condition,
        };
        let is_drain = |it: &TaintEdit| it.key == DEGRADED && it.effect == NO_SCHEDULE;
        if edits.taints.iter().any(is_drain) || edits.annotations.contains_key(REASON) {
            return Err("a drain and its reason are written only by a state change".into());
        }
        match &change.state {
            Some(NodeStateChange::Drain { reason }) => {
                edits
                    .set_drain(Some(command_line::drain_taint(reason).value), Some(reason.clone()));
            }
            Some(NodeStateChange::Resume) => edits.set_drain(None, None),
            None => {}
        }
        edits.check_values()?;
        Ok(edits)
    }

    fn set_drain(&mut self, value: Option<String>, reason: Option<String>) {
        let (key, effect) = (DEGRADED.to_owned(), NO_SCHEDULE.to_owned());
        self.taints.push(TaintEdit { key, effect, value });
        self.annotations.insert(REASON.to_owned(), reason);
    }

    fn check_values(&self) -> Result<(), String> {
        let keys = self.taints.iter().map(|it| &it.key);
        for key in keys.chain(self.labels.keys()).chain(self.annotations.keys()) {
            if !is_fabricgate_key(key) {
                return Err(format!(
                    "{:?} is not a fabricgate key ({FABRICGATE_PREFIX}...)",
                    clean(key)
                ));
            }
        }
        for edit in self.taints.iter().filter(|it| it.value.is_some()) {
            if ![NO_SCHEDULE, PREFER_NO_SCHEDULE].contains(&edit.effect.as_str()) {
                return Err(format!(
                    "fabricgate does not write taints with the effect {:?}",
                    clean(&edit.effect)
                ));
            }
        }
        let of_taints = self.taints.iter().filter_map(|it| it.value.as_ref());
        for value in of_taints.chain(self.labels.values().flatten()) {
            if !is_label_value(value) {
                return Err(format!("{:?} is not a valid label value", clean(value)));
            }
        }
        for value in self.annotations.values().flatten() {
            if value.contains(char::is_control) || MAX_ANNOTATION_BYTES < value.len() {
                return Err(
                    "an annotation must be one plain line, and no longer than 16 KiB".into()
                );
            }
        }
        let known = ["True", "False", "Unknown"];
        match &self.condition {
            Some(it) if !known.contains(&it.status.as_str()) => {
                Err(format!("{:?} is not a condition status", clean(&it.status)))
            }
            // The API requires CamelCase reasons.
            Some(it) if it.reason.is_empty() || !it.reason.chars().all(char::is_alphanumeric) => {
                Err(format!("{:?} is not a condition reason", clean(&it.reason)))
            }
            _ => Ok(()),
        }
    }

    /// The merge patch of metadata and taints that applies the edits; `None` if the node
    /// already shows them.
    pub(super) fn build_patch(&self, node: &Value) -> Result<Option<Value>, String> {
        let meta = &node["metadata"];
        let labels = differing_entries(&meta["labels"], &self.labels);
        let annotations = differing_entries(&meta["annotations"], &self.annotations);
        let before = taint_list(&node["spec"]["taints"])?;
        let after = edit_taints(before, &self.taints);
        if labels.is_empty() && annotations.is_empty() && after == before {
            return Ok(None);
        }
        let mut patch = json!({
            "metadata": { "uid": meta["uid"], "resourceVersion": meta["resourceVersion"] },
        });
        if !labels.is_empty() {
            patch["metadata"]["labels"] = Value::Object(labels);
        }
        if !annotations.is_empty() {
            patch["metadata"]["annotations"] = Value::Object(annotations);
        }
        if after != before {
            patch["spec"] = json!({ "taints": after });
        }
        check_patch(&patch, before)?;
        Ok(Some(patch))
    }

    /// The first part of a drain that the server stored differently from the request: an
    /// admission policy or webhook may alter it.
    pub(super) fn find_altered_field(&self, stored: &Value) -> Option<&'static str> {
        let is_drain = |it: &&TaintEdit| it.key == DEGRADED && it.effect == NO_SCHEDULE;
        let value = self.taints.iter().find(is_drain)?.value.as_ref()?;
        let taints = taint_list(&stored["spec"]["taints"]).unwrap_or_default();
        let is_it = |it: &Value| {
            it["key"] == DEGRADED && it["effect"] == NO_SCHEDULE && it["value"] == value.as_str()
        };
        if !taints.iter().any(is_it) {
            return Some("taint");
        }
        let words = &stored["metadata"]["annotations"];
        let is_other = |key: &str| match self.annotations.get(key) {
            Some(Some(wanted)) => words[key] != wanted.as_str(),
            _ => false,
        };
        [REASON, GATE].into_iter().find(|key| is_other(key))
    }

    /// The patch of `stored` that reverts the changes of `patch` on `before`, however
    /// they were stored.
    pub(super) fn build_revert_patch(
        before: &Value,
        patch: &Value,
        stored: &Value,
    ) -> Result<Value, String> {
        let meta = &stored["metadata"];
        let mut back = json!({
            "metadata": { "uid": meta["uid"], "resourceVersion": meta["resourceVersion"] },
        });
        for part in ["labels", "annotations"] {
            let keys = patch["metadata"][part].as_object().into_iter().flatten();
            let was = |key: &String| (key.clone(), before["metadata"][part][key].clone());
            let words: Map<String, Value> =
                keys.filter(|(key, _)| is_fabricgate_key(key)).map(|(key, _)| was(key)).collect();
            if !words.is_empty() {
                back["metadata"][part] = Value::Object(words);
            }
        }
        let is_own = |it: &&Value| it["key"].as_str().is_some_and(is_fabricgate_key);
        let stored = taint_list(&stored["spec"]["taints"])?;
        let mut taints: Vec<Value> = stored.iter().filter(|it| !is_own(it)).cloned().collect();
        taints.extend(taint_list(&before["spec"]["taints"])?.iter().filter(is_own).cloned());
        if taints != stored {
            back["spec"] = json!({ "taints": taints });
        }
        check_patch(&back, stored)?;
        Ok(back)
    }

    /// The status patch that sets the condition; `None` if there is none or the node
    /// already shows it.
    pub(super) fn build_status_patch(&self, node: &Value, now: &str) -> Option<Value> {
        let wanted = self.condition.as_ref()?;
        let conditions = node["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        let is = conditions.iter().find(|it| it["type"] == CONDITION);
        let text = |key: &str| is.and_then(|it| it[key].as_str()).unwrap_or_default();
        let same =
            [("status", &wanted.status), ("reason", &wanted.reason), ("message", &wanted.message)];
        if is.is_some() && same.iter().all(|(key, value)| text(key) == value.as_str()) {
            return None;
        }
        let since = text("lastTransitionTime");
        let since = if text("status") == wanted.status && !since.is_empty() { since } else { now };
        Some(json!({
            // Must not write another node of the same name, or a node changed since: a
            // late request would undo a newer condition.
            "metadata": {
                "uid": node["metadata"]["uid"],
                "resourceVersion": node["metadata"]["resourceVersion"],
            },
            "status": { "conditions": [{
                "type": CONDITION,
                "status": wanted.status,
                "reason": wanted.reason,
                "message": wanted.message,
                "lastHeartbeatTime": now,
                "lastTransitionTime": since,
            }] },
        }))
    }
}

/// Whether this is a valid key with fabricgate's prefix.
fn is_fabricgate_key(key: &str) -> bool {
    let name = key.strip_prefix(FABRICGATE_PREFIX).unwrap_or_default();
    !name.is_empty() && is_label_value(name)
}

/// Whether Kubernetes accepts this as a label or taint value.
fn is_label_value(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ends = |c: char| c.is_ascii_alphanumeric();
    text.is_empty()
        || (text.len() <= MAX_VALUE_BYTES
            && text.chars().all(fits)
            && text.starts_with(ends)
            && text.ends_with(ends))
}

/// The entries that differ on the node; `null` removes a key.
fn differing_entries(is: &Value, wanted: &BTreeMap<String, Option<String>>) -> Map<String, Value> {
    let differs = |(key, value): &(&String, &Option<String>)| {
        is.get(key.as_str()).and_then(Value::as_str) != value.as_deref()
    };
    wanted.iter().filter(differs).map(|(key, value)| (key.clone(), json!(value))).collect()
}

fn taint_list(taints: &Value) -> Result<&[Value], String> {
    match taints {
        Value::Null => Ok(&[]),
        Value::Array(taints) => Ok(taints),
        _ => Err("its taints are not a list".to_owned()),
    }
}

/// Applies edits to a list of taints; other entries keep their order.
fn edit_taints(before: &[Value], edits: &[TaintEdit]) -> Vec<Value> {
    let mut after = before.to_vec();
    for edit in edits {
        let is_it =
            |it: &Value| it["key"] == edit.key.as_str() && it["effect"] == edit.effect.as_str();
        let place = after.iter().position(is_it);
        match (place, &edit.value) {
            (Some(place), None) => drop(after.remove(place)),
            (None, None) => {}
            (place, Some(value)) => {
                let mut taint = json!({ "key": edit.key, "effect": edit.effect });
                if !value.is_empty() {
                    taint["value"] = json!(value);
                }
                match place {
                    Some(place) if after[place]["value"].as_str().unwrap_or_default() == value => {}
                    Some(place) => after[place] = taint,
                    None => after.push(taint),
                }
            }
        }
    }
    after
}

/// Refuses fields that fabricgate never writes, whatever the request: the last check
/// before sending.
pub(super) fn check_patch(patch: &Value, before: &[Value]) -> Result<(), String> {
    let nothing = Map::new();
    let object = |value: &'_ Value| value.as_object().cloned();
    let refuse = |what: &str| Err(format!("fabricgate must not write {}", clean(what)));
    let whole = object(patch).unwrap_or_default();
    if let Some(key) = whole.keys().find(|key| !["metadata", "spec"].contains(&key.as_str())) {
        return refuse(key);
    }
    let meta = patch["metadata"].as_object().unwrap_or(&nothing);
    for (key, value) in meta {
        match key.as_str() {
            "uid" | "resourceVersion" => {}
            "labels" | "annotations" => {
                let Some(words) = value.as_object() else { return refuse(key) };
                if let Some(key) = words.keys().find(|name| !is_fabricgate_key(name)) {
                    return refuse(key);
                }
            }
            _ => return refuse(key),
        }
    }
    let is_text =
        |key: &str| meta.get(key).and_then(Value::as_str).is_some_and(|it| !it.is_empty());
    if !is_text("uid") || !is_text("resourceVersion") {
        return Err("a patch without uid and version could hit another node".to_owned());
    }
    let spec = patch["spec"].as_object().unwrap_or(&nothing);
    if let Some(key) = spec.keys().find(|key| *key != "taints") {
        return refuse(key);
    }
    if let Some(taints) = spec.get("taints") {
        let after = taint_list(taints)?;
        let is_foreign = |it: &&Value| !it["key"].as_str().is_some_and(is_fabricgate_key);
        let foreign = |taints: &[Value]| -> Vec<Value> {
            taints.iter().filter(is_foreign).cloned().collect()
        };
        if foreign(after) != foreign(before) {
            return refuse("another owner's taint");
        }
        let is_new = |it: &&Value| !before.contains(it);
        if after.iter().filter(is_new).any(|it| it["effect"] == "NoExecute") {
            return refuse("a taint with NoExecute");
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "patch_tests.rs"]
mod tests;
