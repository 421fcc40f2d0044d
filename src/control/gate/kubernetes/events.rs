//! Events on nodes that show the gate's actions and reasons to operators who look there
//! first.
//!
//! Informational only: the journal is the record. Nothing depends on events, and a
//! missing permission for them is reported once.

use serde_json::{Value, json};

use kube::Client;
use kube::api::PostParams;
use kube::core::Request;

use crate::sources::kubernetes::connection::refusal_problem;
use model::action::{ActionKind, ActionRecord, ActionResult};
use model::scheduler_snapshot::SchedulerSnapshot;
use model::text::clean;

/// Events of cluster-scoped objects are in the default namespace.
const EVENTS_PATH: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

/// Maximum length of a note in bytes (`pkg/apis/core/validation`, `NoteLengthLimit`).
const MAX_NOTE_BYTES: usize = 1_024;

/// Writes an event on every changed node. After an error, no further events are tried.
pub async fn write_events(
    client: &Client,
    records: &[ActionRecord],
    seen: &SchedulerSnapshot,
) -> Result<(), String> {
    for event in records.iter().filter_map(|record| build_event(record, seen)) {
        let body = serde_json::to_vec(&event).map_err(|error| error.to_string())?;
        let request = Request::new(EVENTS_PATH).create(&PostParams::default(), body);
        let request = request.map_err(|error| clean(&error.to_string()))?;
        let result: Result<Value, kube::Error> = client.request(request).await;
        result.map_err(|error| refusal_problem(&error).1)?;
    }
    Ok(())
}

/// The event of one action that was carried out; `None` for others.
fn build_event(record: &ActionRecord, seen: &SchedulerSnapshot) -> Option<Value> {
    if record.result != ActionResult::Done {
        return None;
    }
    let (kind, action, reason) = match record.kind {
        ActionKind::Drain => ("Warning", "Drain", "FabricDrained"),
        ActionKind::Relabel => ("Warning", "Mark", "FabricDegraded"),
        ActionKind::Release => ("Normal", "Release", "FabricReleased"),
        // The condition and the certificate report it, with their own times.
        ActionKind::Certify => return None,
    };
    let node = seen.nodes.get(&record.node)?;
    let uid = &node.kubernetes.as_ref()?.uid;
    let mut note = clean(&record.detail);
    let end = (0..=MAX_NOTE_BYTES.min(note.len())).rev().find(|at| note.is_char_boundary(*at));
    note.truncate(end.unwrap_or(0));
    Some(json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"generateName": "fabricgate-", "namespace": "default"},
        "eventTime": format_micro_time(&record.at), "type": kind, "action": action, "reason": reason,
        "note": note, "reportingController": "fabricgate.io/gate", "reportingInstance": "gate",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": record.node.as_str(), "uid": uid},
    }))
}

/// A time in the API's format, with six decimal places.
fn format_micro_time(at: &str) -> String {
    let bare = at.trim_end_matches('Z');
    let (whole, part) = bare.split_once('.').unwrap_or((bare, ""));
    let part: String = part.chars().chain("000000".chars()).take(6).collect();
    format!("{whole}.{part}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::kubernetes_node::KubernetesNode;
    use model::scheduler_snapshot::SchedulerNode;

    fn record(kind: ActionKind, result: ActionResult, detail: &str) -> ActionRecord {
        let at = "2026-11-21T19:52:38Z".to_owned();
        ActionRecord { kind, node: "n1".into(), result, detail: detail.to_owned(), at }
    }

    fn snapshot() -> SchedulerSnapshot {
        let node = KubernetesNode { uid: "u1".to_owned(), ..KubernetesNode::default() };
        let mut live = SchedulerNode::new("n1", &["IDLE"]);
        live.kubernetes = Some(Box::new(node));
        SchedulerSnapshot { nodes: [(live.name.clone(), live)].into(), troubles: Vec::new() }
    }

    #[test]
    fn an_event_is_written_only_for_actions_that_were_done() {
        let done =
            |kind| build_event(&record(kind, ActionResult::Done, "it is visible"), &snapshot());
        let drained = done(ActionKind::Drain).expect("an event");
        assert_eq!(drained["regarding"]["uid"], "u1");
        assert_eq!(drained["reason"], "FabricDrained");
        assert_eq!(drained["eventTime"], "2026-11-21T19:52:38.000000Z");
        assert_eq!(done(ActionKind::Release).expect("an event")["type"], "Normal");
        assert_eq!(done(ActionKind::Certify), None);
        for result in [ActionResult::Unknown, ActionResult::Failed, ActionResult::Already] {
            assert_eq!(build_event(&record(ActionKind::Drain, result, ""), &snapshot()), None);
        }
        let long = record(ActionKind::Drain, ActionResult::Done, &"ä".repeat(MAX_NOTE_BYTES));
        let note =
            build_event(&long, &snapshot()).expect("an event")["note"].as_str().map(str::len);
        assert!(note.is_some_and(|length| length <= MAX_NOTE_BYTES));
    }
}
