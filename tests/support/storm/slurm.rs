//! Slurm's fields of nodes, from and to the model's: listings, and updates. As in 24.11 and
//! 26.05.

use serde_json::{Value, json};

use super::model::{DRAIN, Fields, Order};

/// The features that the gate writes by default.
const OURS: [&str; 2] = ["fabric_verified", "fabric_degraded"];

/// The entry of `Extra` that the gate writes.
const ENTRY: &str = "fabricgate";

fn feature(list: &str, name: &str) -> String {
    let own = if OURS.contains(&name) { "own/" } else { "" };
    format!("{own}{list}/{name}")
}

/// The fields of a list of features.
fn features(list: &str, names: impl IntoIterator<Item = String>) -> Fields {
    let names = names.into_iter().filter(|name| !name.is_empty());
    names.map(|name| (feature(list, &name), String::new())).collect()
}

/// The fields of an `Extra`: the entries of an object, or one text.
pub(crate) fn extra(text: &str) -> Fields {
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(entries)) => entries
            .into_iter()
            .map(|(key, value)| {
                let own = if key == ENTRY { "own/" } else { "" };
                (format!("{own}extra/{key}"), value.to_string())
            })
            .collect(),
        _ if text.is_empty() => Fields::new(),
        _ => Fields::from([("extra-text".to_owned(), text.to_owned())]),
    }
}

/// The names behind these fields.
fn names(node: &Fields, list: &str) -> Vec<String> {
    let own = format!("own/{list}/");
    let others = format!("{list}/");
    let name = |key: &String| {
        key.strip_prefix(&own).or_else(|| key.strip_prefix(&others)).map(str::to_owned)
    };
    node.keys().filter_map(name).collect()
}

/// `Extra` as Slurm stores it.
fn extra_text(node: &Fields) -> String {
    if let Some(text) = node.get("extra-text") {
        return text.clone();
    }
    let mut entries = serde_json::Map::new();
    for (key, value) in node {
        let name = key.strip_prefix("own/").unwrap_or(key).strip_prefix("extra/");
        if let Some(name) = name {
            entries.insert(name.to_owned(), serde_json::from_str(value).expect("JSON"));
        }
    }
    if entries.is_empty() { String::new() } else { Value::Object(entries).to_string() }
}

/// One node of a listing in JSON.
pub(crate) fn listed(name: &str, node: &Fields) -> Value {
    let mut state = vec![if node.contains_key("down") { "DOWN" } else { "IDLE" }];
    if node.contains_key(DRAIN) {
        state.push("DRAIN");
    }
    let reason = node.get(DRAIN).or_else(|| node.get("down")).cloned().unwrap_or_default();
    json!({
        "name": name, "hostname": name, "address": name, "state": state, "reason": reason,
        "reason_set_by_user": if reason.is_empty() { "" } else { "root" },
        "reason_changed_at": { "set": true, "infinite": false, "number": 0 },
        "boot_time": { "set": true, "infinite": false, "number": 1_700_000_000 },
        "features": names(node, "available"), "active_features": names(node, "active"),
        "comment": node.get("comment").cloned().unwrap_or_default(), "extra": extra_text(node),
        "alloc_cpus": 0, "partitions": ["main"], "next_state_after_reboot": ["INVALID"],
        "instance_id": "", "reservation": "", "version": "26.05.5",
    })
}

/// A node of a listing as fields.
pub(crate) fn fields(node: &Value) -> (String, Fields) {
    let text = |key: &str| node[key].as_str().unwrap_or_default().to_owned();
    let list = |key: &str| -> Vec<String> {
        let words = node[key].as_array().into_iter().flatten();
        words.filter_map(|word| Some(word.as_str()?.to_owned())).collect()
    };
    let mut fields = features("available", list("features"));
    fields.extend(features("active", list("active_features")));
    fields.extend(extra(&text("extra")));
    if !text("comment").is_empty() {
        fields.insert("comment".to_owned(), text("comment"));
    }
    let state = list("state");
    let is = |word: &str| state.iter().any(|it| it == word);
    for (word, key) in [("DRAIN", DRAIN), ("DOWN", "down")] {
        if is(word) {
            fields.insert(key.to_owned(), text("reason"));
        }
    }
    (text("name"), fields)
}

/// An update, by slurmrestd's names of fields.
pub(crate) fn order(update: &Value) -> Order {
    let mut order = Order::default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
    for (key, value) in update.as_object().into_iter().flatten() {
        let mut clear = |what: &str| {
            order.unset.extend([format!("{what}/"), format!("own/{what}/")]);
        };
        match (key.as_str(), value) {
            ("name" | "reason", _) => {}
            ("state", state) if list(state) == ["DRAIN"] => {
                order.set.insert(DRAIN.to_owned(), text(&update["reason"]));
            }
            ("state", state) if list(state) == ["RESUME"] => {
                order.unset.extend([DRAIN.to_owned(), "down".to_owned()]);
            }
            ("features", names) => {
                clear("available");
                order.set.extend(features("available", list(names)));
            }
            ("features_act", names) => {
                clear("active");
                order.set.extend(features("active", list(names)));
            }
            ("extra", words) => {
                clear("extra");
                order.unset.push("extra-text".to_owned());
                order.set.extend(extra(&text(words)));
            }
            // Any other written field belongs to an operator.
            (key, value) => {
                order.set.insert(key.to_owned(), value.to_string());
            }
        }
    }
    order
}
