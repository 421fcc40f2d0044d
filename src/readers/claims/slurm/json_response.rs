//! JSON answers of Slurm's commands and of slurmrestd: the common envelope, and the notation of
//! numbers and flags.
//!
//! Layouts differ by version (`data_parser` v0.0.39 to v0.0.45): every key may be missing, and
//! unknown flags and numbers are accepted.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::IgnoredAny;
use serde_json::Value;

use super::host_list_budget::{SlurmTextPosition, strip_bom};
use model::source_report::{SourceProblemKind, SourceReport};

/// Keys of the outermost object, if the text is one.
pub(super) fn top_level_keys(text: &str) -> Option<BTreeSet<String>> {
    let text = strip_bom(text).trim_start();
    if !text.starts_with('{') {
        return None;
    }
    let found: BTreeMap<String, IgnoredAny> = serde_json::from_str(text).ok()?;
    Some(found.into_keys().collect())
}

/// Whether a text begins as an answer with this first key, even if it is truncated or invalid
/// later.
pub(super) fn starts_with_key(text: &str, key: &str) -> bool {
    let inside = strip_bom(text).trim_start().strip_prefix('{').unwrap_or_default();
    let rest = inside.trim_start().strip_prefix('"').and_then(|rest| rest.strip_prefix(key));
    rest.is_some_and(|rest| rest.starts_with('"'))
}

/// Parses an answer, and adds its metadata, errors and warnings.
pub(super) fn read(report: &mut SourceReport, place: &str, text: &str) -> Option<Value> {
    let text = strip_bom(text);
    if text.trim().is_empty() {
        report.push_problem(SourceProblemKind::Incomplete, None, "an empty answer");
        return None;
    }
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) => {
            let kind = if error.is_eof() {
                SourceProblemKind::Incomplete
            } else {
                SourceProblemKind::Malformed
            };
            let at = SlurmTextPosition::new(place, error.line().max(1), error.column().max(1));
            let message = error.to_string();
            let message = message.split(" at line ").next().unwrap_or(&message);
            report.push_problem(kind, at.to_string(), format!("invalid JSON: {message}"));
            return None;
        }
    };
    add_meta(report, &value);
    add_errors(report, &value);
    Some(value)
}

/// Adds versions and the cluster's name.
fn add_meta(report: &mut SourceReport, value: &Value) {
    // 23.02 wrote `Slurm`, later versions `slurm`.
    let meta = &value["meta"];
    let slurm = if meta["slurm"].is_object() { &meta["slurm"] } else { &meta["Slurm"] };
    for (name, found) in [
        ("SLURM_VERSION", as_text(&slurm["release"])),
        ("ClusterName", as_text(&slurm["cluster"])),
        ("data_parser", as_text(&meta["plugin"]["data_parser"])),
    ] {
        if let Some(found) = found {
            report.settings.insert(name.to_owned(), found.to_owned());
        }
    }
}

/// Adds errors and warnings: HTTP status 200 and exit code 0 may accompany both.
fn add_errors(report: &mut SourceReport, value: &Value) {
    for error in as_list(&value["errors"]) {
        let number = as_number(&error["error_number"]);
        let words: Vec<&str> =
            ["description", "error"].iter().filter_map(|key| as_text(&error[*key])).collect();
        let message = match (words.is_empty(), error.as_str()) {
            (true, Some(text)) => text.to_owned(),
            _ => words.join(": "),
        };
        // Numbers of slurm_errno.h: 1007 authentication, 2002 access denied, 2010 invalid user;
        // 1800 and up: the controller is unreachable.
        let kind = match number {
            Some(1007 | 2002 | 2010) => SourceProblemKind::Denied,
            Some(1800..=1899) => SourceProblemKind::Unreachable,
            _ => SourceProblemKind::Incomplete,
        };
        let at = as_text(&error["source"]).map(str::to_owned);
        report.push_problem(kind, at, format!("Slurm reports an error: {message}"));
    }
    for warning in as_list(&value["warnings"]) {
        let words = as_text(&warning["description"]).or_else(|| warning.as_str());
        report.notes.extend(words.map(|words| format!("Slurm reports a warning: {words}")));
    }
}

/// Items of a list; empty if it is not a list.
pub(super) fn as_list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn as_text(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !is_null_text(text))
}

/// Slurm's notations for an absent value.
pub(super) fn is_null_text(text: &str) -> bool {
    matches!(text.trim(), "" | "(null)" | "N/A" | "n/a")
}

/// A number, written plainly, as `{set, infinite, number}`, or as text. `None` if it is infinite
/// or unset.
pub(super) fn as_number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(_) => value.as_u64(),
        Value::String(text) => text.trim().parse().ok(),
        Value::Object(_) => {
            let is = |key: &str| value[key].as_bool().unwrap_or(key == "set");
            if is("set") && !is("infinite") { as_number(&value["number"]) } else { None }
        }
        _ => None,
    }
}

/// Flags of a list, or of a comma-separated text.
pub(super) fn as_words(value: &Value) -> Vec<String> {
    match value {
        Value::Array(items) => {
            items.iter().filter_map(as_text).map(|word| word.trim().to_owned()).collect()
        }
        Value::String(text) if !is_null_text(text) => text
            .split(',')
            .map(|word| word.trim().to_owned())
            .filter(|word| !word.is_empty())
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use model::source_report::SourceKind;

    fn empty_report() -> SourceReport {
        SourceReport::new(SourceKind::SlurmNodes, "f")
    }

    #[test]
    fn numbers_are_read_however_they_are_written() {
        assert_eq!(as_number(&json!(4)), Some(4));
        assert_eq!(as_number(&json!({"set": true, "infinite": false, "number": 7})), Some(7));
        assert_eq!(as_number(&json!({"set": false, "infinite": false, "number": 0})), None);
        assert_eq!(as_number(&json!({"set": true, "infinite": true, "number": 0})), None);
        assert_eq!(as_number(&json!({"number": 3})), Some(3));
        assert_eq!(as_number(&json!("12")), Some(12));
        assert_eq!(as_number(&json!(-1)), None);
        assert_eq!(as_number(&json!(null)), None);
    }

    #[test]
    fn errors_are_problems_whatever_the_status_was() {
        let mut report = empty_report();
        let text = r#"{"errors":[
            {"description":"Failure to query node x","error_number":0,"error":"No error","source":"_dump"},
            {"description":"no","error_number":2010,"error":"Invalid user id"},
            {"error":"Unable to contact slurm controller","error_number":1800}],
            "warnings":[{"description":"No nodes to dump"}],
            "meta":{"plugin":{"data_parser":"data_parser/v0.0.45"},
                    "slurm":{"release":"26.05.5","cluster":"lab"}}}"#;
        assert!(read(&mut report, "f", text).is_some());
        let kinds: Vec<SourceProblemKind> = report.problems.iter().map(|p| p.kind).collect();
        assert_eq!(
            kinds,
            [
                SourceProblemKind::Incomplete,
                SourceProblemKind::Denied,
                SourceProblemKind::Unreachable
            ]
        );
        assert_eq!(report.notes, ["Slurm reports a warning: No nodes to dump"]);
        assert_eq!(report.settings["SLURM_VERSION"], "26.05.5");
        assert_eq!(report.settings["ClusterName"], "lab");
        assert_eq!(report.settings["data_parser"], "data_parser/v0.0.45");
    }

    #[test]
    fn broken_json_has_a_place() {
        for (text, kind, at) in [
            ("{\n  \"nodes\": [}\n", SourceProblemKind::Malformed, Some("f:2:13")),
            ("{\n  \"nodes\": [", SourceProblemKind::Incomplete, Some("f:2:12")),
            (" \n", SourceProblemKind::Incomplete, None),
        ] {
            let mut report = empty_report();
            assert!(read(&mut report, "f", text).is_none());
            assert_eq!(report.problems[0].kind, kind, "{text:?}");
            assert_eq!(report.problems[0].at.as_deref(), at, "{text:?}");
        }
        assert!(
            starts_with_key("{\n  \"nodes\": [", "nodes") && !starts_with_key("nodes", "nodes")
        );
    }
}
