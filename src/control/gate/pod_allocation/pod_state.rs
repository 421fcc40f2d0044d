//! The state of a pod, from its status in the cluster.
//!
//! Pure. Reasons are those of the scheduler and the kubelet, cleaned.

use serde_json::Value;

use crate::launch::kubernetes::CONTAINER;
use model::text::clean;

/// Longer reasons are not useful in a message.
const MAX_REASON_BYTES: usize = 240;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PodState {
    Running {
        /// The IP address of the pod.
        address: Option<String>,
    },
    Waiting {
        /// The reason.
        why: String,
        /// The reason is not a step of a normal start: if it lasts, the pod will not run.
        is_stuck: bool,
    },
    /// It will not run, or has ended.
    Ended {
        /// The reason.
        why: String,
    },
}

/// The state of this pod.
pub(super) fn parse_pod_state(pod: &Value) -> PodState {
    let status = &pod["status"];
    let container = status["containerStatuses"]
        .as_array()
        .and_then(|all| all.iter().find(|it| it["name"] == CONTAINER));
    let state = container.map_or(&Value::Null, |it| &it["state"]);
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return PodState::Ended { why: "another client is deleting its pod".to_owned() };
    }
    let phase = status["phase"].as_str().unwrap_or_default();
    if matches!(phase, "Failed" | "Succeeded") || !state["terminated"].is_null() {
        return PodState::Ended { why: explain_end(status, &state["terminated"]) };
    }
    if !state["running"].is_null() {
        let address = status["podIP"].as_str().filter(|address| !address.is_empty());
        return PodState::Running { address: address.map(str::to_owned) };
    }
    if let Some(reason) = state["waiting"]["reason"].as_str() {
        // Reasons of a normal start; every other reason is a problem.
        let is_stuck = !matches!(reason, "ContainerCreating" | "PodInitializing");
        let why = join_message(reason, &state["waiting"]["message"]);
        return PodState::Waiting { why, is_stuck };
    }
    let conditions = status["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let scheduled = conditions.iter().find(|it| it["type"] == "PodScheduled");
    match scheduled {
        Some(it) if it["status"] == "False" => {
            let reason = it["reason"].as_str().unwrap_or("not scheduled");
            PodState::Waiting { why: join_message(reason, &it["message"]), is_stuck: true }
        }
        _ if pod["spec"]["nodeName"].is_null() => {
            PodState::Waiting { why: "the scheduler has not placed it".to_owned(), is_stuck: false }
        }
        _ => PodState::Waiting { why: "its node has not started it".to_owned(), is_stuck: false },
    }
}

/// The reason of an ended pod, from its status.
fn explain_end(status: &Value, terminated: &Value) -> String {
    if let Some(reason) = status["reason"].as_str().filter(|reason| !reason.is_empty()) {
        return format!("its pod ended: {}", join_message(reason, &status["message"]));
    }
    let Some(reason) = terminated["reason"].as_str() else {
        return "its pod ended".to_owned();
    };
    let code = terminated["exitCode"].as_i64();
    let code = code.map(|code| format!(", exit code {code}")).unwrap_or_default();
    format!("its pod ended: {}{code}", join_message(reason, &terminated["message"]))
}

/// The last warning among the events of a pod.
pub(super) fn last_warning(events: &[Value]) -> Option<String> {
    // The kubelet and the scheduler write the time into different fields (`events.k8s.io`). Of
    // events of the same second the last in the list counts.
    let at = |event: &Value| {
        let times = [
            &event["series"]["lastObservedTime"],
            &event["lastTimestamp"],
            &event["eventTime"],
            &event["metadata"]["creationTimestamp"],
        ];
        let at = times.into_iter().find_map(Value::as_str).unwrap_or_default();
        // Whole seconds: some times have fractions, and digits sort before letters.
        at.split(['.', 'Z']).next().unwrap_or_default().to_owned()
    };
    let last = events.iter().max_by_key(|event| at(event))?;
    Some(join_message(last["reason"].as_str()?, &last["message"]))
}

fn join_message(reason: &str, message: &Value) -> String {
    let message = clean(message.as_str().unwrap_or_default());
    let whole = match message.is_empty() {
        true => clean(reason),
        false => format!("{}: {message}", clean(reason)),
    };
    let mut shown: String = whole.chars().take(MAX_REASON_BYTES).collect();
    if shown.len() < whole.len() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn in_container(phase: &str, state: &Value) -> Value {
        json!({"metadata": {}, "spec": {"nodeName": "n1"}, "status": {"phase": phase,
            "podIP": "10.0.0.7",
            "containerStatuses": [{"name": "other", "state": {"running": {}}},
                {"name": CONTAINER, "state": state}]}})
    }

    #[test]
    fn only_a_running_container_counts_as_running() {
        let runs = in_container("Running", &json!({"running": {}}));
        assert_eq!(
            parse_pod_state(&runs),
            PodState::Running { address: Some("10.0.0.7".to_owned()) }
        );
        let mut deleted = runs.clone();
        deleted["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z".into();
        assert!(matches!(parse_pod_state(&deleted), PodState::Ended { .. }));
        // The pod's phase changes a moment before its container's state.
        let early = in_container("Running", &Value::Null);
        assert!(matches!(parse_pod_state(&early), PodState::Waiting { is_stuck: false, .. }));
    }

    #[test]
    fn an_unplaced_pod_has_the_reason_of_the_scheduler() {
        let message = "0/18 nodes are available: 1 Insufficient nvidia.com/gpu.\n";
        let pending = json!({"status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
             "message": message}]}});
        let why = "Unschedulable: 0/18 nodes are available: 1 Insufficient nvidia.com/gpu.";
        assert_eq!(
            parse_pod_state(&pending),
            PodState::Waiting { why: why.to_owned(), is_stuck: true }
        );
        let new = parse_pod_state(&json!({"status": {"phase": "Pending"}}));
        assert!(matches!(new, PodState::Waiting { is_stuck: false, .. }));
    }

    #[test]
    fn problems_of_the_kubelet_are_distinguished_from_a_normal_start() {
        let waiting = |reason: &str, message: &str| {
            let state = json!({"waiting": {"reason": reason, "message": message}});
            parse_pod_state(&in_container("Pending", &state))
        };
        let creating = waiting("ContainerCreating", "");
        let why = "ContainerCreating".to_owned();
        assert_eq!(creating, PodState::Waiting { why, is_stuck: false });
        let PodState::Waiting { why, is_stuck } =
            waiting("ImagePullBackOff", "Back-off\u{1b}[31m x")
        else {
            panic!("it waits")
        };
        assert!(is_stuck && why.starts_with("ImagePullBackOff: Back-off"), "{why}");
        assert!(!why.contains('\u{1b}'));
    }

    #[test]
    fn an_ended_pod_has_the_reason_of_its_end() {
        let mut evicted = json!({"status": {"phase": "Failed", "reason": "DeadlineExceeded",
            "message": "Pod was active on the node longer than the specified deadline"}});
        let PodState::Ended { why } = parse_pod_state(&evicted) else { panic!("it is over") };
        assert!(why.starts_with("its pod ended: DeadlineExceeded: Pod was active"), "{why}");
        evicted["status"]["reason"] = Value::Null;
        assert_eq!(parse_pod_state(&evicted), PodState::Ended { why: "its pod ended".to_owned() });
        let state = json!({"terminated": {"reason": "StartError", "exitCode": 128,
            "message": "exec: \"fabricgate\": not found"}});
        let PodState::Ended { why } = parse_pod_state(&in_container("Running", &state)) else {
            panic!("it is over")
        };
        let expected = "its pod ended: StartError: exec: \"fabricgate\": not found, exit code 128";
        assert_eq!(why, expected);
    }

    #[test]
    fn the_last_warning_is_reported() {
        let event = |at: &str, reason: &str| json!({"lastTimestamp": at, "reason": reason});
        let events = [event("2026-01-02", "Later"), event("2026-01-01", "Sooner")];
        assert_eq!(last_warning(&events).as_deref(), Some("Later"));
        assert_eq!(last_warning(&[]), None);
    }

    #[test]
    fn the_last_warning_counts_from_any_reporter() {
        // Events of the scheduler have no `lastTimestamp`, and a repeated one is a series.
        let scheduler = |at: &str, reason: &str| json!({"lastTimestamp": null, "eventTime": format!("{at}.250000Z"), "reason": reason});
        let kubelet = |at: &str, reason: &str| json!({"lastTimestamp": format!("{at}Z"), "eventTime": null, "reason": reason});
        let mut again = scheduler("2026-01-01T10:00:00", "Again");
        again["series"] = json!({"count": 9, "lastObservedTime": "2026-01-01T10:00:09.500000Z"});
        let [first, second, third] =
            ["2026-01-01T10:00:01", "2026-01-01T10:00:02", "2026-01-01T10:00:03"];
        for (events, last) in [
            ([scheduler(second, "New"), scheduler(first, "Old")], "New"),
            ([scheduler(third, "New"), kubelet(first, "Old")], "New"),
            ([kubelet(third, "New"), scheduler(second, "Old")], "New"),
            ([again, kubelet(third, "Old")], "Again"),
        ] {
            assert_eq!(last_warning(&events).as_deref(), Some(last), "{events:?}");
        }
    }
}
