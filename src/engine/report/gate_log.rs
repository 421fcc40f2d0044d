//! The gate's events and actions, from its journal, one line per event.
//!
//! Values in, text out.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::plain_text::{count_noun, to_plain};
use crate::policy::{device, drain_reason};
use model::action::{Action, ActionKind, ActionResult};
use model::finding_class::join_class_names;
use model::hostlist;
use model::id::NodeName;
use model::journal::{JournalEntry, JournalEvent};

/// The format of the document.
pub const GATE_LOG_FORMAT: &str = "fabricgate.gate-log/1";

/// The gate's events (`fabricgate.gate-log/1`).
#[derive(Debug, Serialize, JsonSchema)]
pub struct GateLogDocument<'a> {
    /// `fabricgate.gate-log/1`.
    format: &'static str,
    /// Start of the period, RFC 3339.
    since: &'a str,
    /// The requested node, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a NodeName>,
    /// The events, oldest first.
    events: &'a [GateLogEvent],
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct GateLogEvent {
    /// When, RFC 3339.
    pub at: String,
    /// The event of the journal; for an outcome, the action.
    pub event: &'static str,
    /// The nodes concerned.
    pub nodes: Vec<NodeName>,
    /// The run that requested it, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The event as a sentence.
    pub text: String,
}

/// The events that these lines record from this time on, for one node or for all. Earlier lines are
/// needed as well: an outcome only names its intent.
pub fn collect_events(
    entries: &[JournalEntry],
    since_unix: i64,
    node: Option<&NodeName>,
) -> Vec<GateLogEvent> {
    let mut intents: BTreeMap<&str, (&str, &Action)> = BTreeMap::new();
    let mut all = Vec::new();
    for entry in entries {
        if let JournalEvent::Intent { id, run, action, .. } = &entry.event {
            intents.insert(id, (run, action));
        }
        if entry.stamp.unix < since_unix {
            continue;
        }
        let Some((event, nodes, run, text)) = describe_event(&entry.event, &intents) else {
            continue;
        };
        if node.is_none_or(|node| nodes.contains(node)) {
            all.push(GateLogEvent { at: entry.stamp.at.clone(), event, nodes, run, text });
        }
    }
    all
}

/// The events as a document.
pub fn build_document<'a>(
    events: &'a [GateLogEvent],
    since: &'a str,
    node: Option<&'a NodeName>,
) -> GateLogDocument<'a> {
    GateLogDocument { format: GATE_LOG_FORMAT, since, node, events }
}

/// The events as text. Their content comes from a journal that may have been edited.
pub fn render(events: &[GateLogEvent]) -> String {
    let line = |it: &GateLogEvent| {
        let nodes = hostlist::fold(it.nodes.iter().map(NodeName::as_str));
        let nodes = if nodes.is_empty() { "-".to_owned() } else { nodes };
        let [at, nodes, text] = [&it.at, &nodes, &it.text].map(|it| to_plain(it));
        format!("{at}  {nodes}  {text}\n")
    };
    events.iter().map(line).collect()
}

type GateEventText = (&'static str, Vec<NodeName>, Option<String>, String);

/// The text of an event; `None` if the event is only the beginning of another.
fn describe_event(
    event: &JournalEvent,
    intents: &BTreeMap<&str, (&str, &Action)>,
) -> Option<GateEventText> {
    let one = |node: &NodeName| vec![node.clone()];
    Some(match event {
        JournalEvent::Opened { .. } | JournalEvent::Intent { .. } => return None,
        JournalEvent::Outcome { id, result, detail } => {
            let (run, action) = intents.get(id.as_str())?;
            let (word, text) = action_outcome(action, *result, run);
            (word, one(&action.node), Some((*run).to_owned()), format!("{text}: {detail}"))
        }
        JournalEvent::Condition { id, node, shown } => {
            let run = intents.get(id.as_str()).map(|(run, _)| (*run).to_owned());
            let text = if *shown { "its condition shows" } else { "its condition is not visible" };
            ("condition", one(node), run, text.to_owned())
        }
        JournalEvent::Clean { node, run, .. } => {
            ("clean", one(node), Some(run.clone()), format!("passed run {run}"))
        }
        JournalEvent::Relapsed { node, run, .. } => {
            let text = format!("did not pass run {run}; earlier passes no longer count");
            ("relapsed", one(node), Some(run.clone()), text)
        }
        JournalEvent::Suspected { node, run, classes, .. } => {
            let text = format!("run {run} found it slow ({})", join_class_names(classes));
            ("suspected", one(node), Some(run.clone()), text)
        }
        JournalEvent::Cleared { node, run, .. } => {
            let text = format!("run {run} found it healthy; no longer suspected");
            ("cleared", one(node), Some(run.clone()), text)
        }
        JournalEvent::Undone { node, id, detail } => {
            let run = intents.get(id.as_str()).map(|(run, _)| (*run).to_owned());
            let of = run.as_deref().map(|run| format!(" for run {run}")).unwrap_or_default();
            ("undone", one(node), run, format!("fabricgate's drain{of} was removed: {detail}"))
        }
        JournalEvent::Lost { node, id, detail } => {
            let run = intents.get(id.as_str()).map(|(run, _)| (*run).to_owned());
            ("lost", one(node), run, format!("fabricgate's drain was lost: {detail}"))
        }
        JournalEvent::Absent { node } => {
            ("absent", one(node), None, "the scheduler no longer knows it".to_owned())
        }
        JournalEvent::Present { node } => {
            ("present", one(node), None, "the scheduler knows it again".to_owned())
        }
        JournalEvent::Forgotten { node, by, why } => {
            ("forgotten", one(node), None, format!("forgotten by {by}: {why}"))
        }
        JournalEvent::Adopted { run, action, by, why, .. } => {
            let text = format!("its drain was adopted by {by}: {why}");
            ("adopted", one(&action.node), Some(run.clone()), text)
        }
        JournalEvent::Controller { started } => {
            ("controller", Vec::new(), None, format!("the controller started at {started}"))
        }
        JournalEvent::Gone { host, by, why } => {
            ("gone", Vec::new(), None, format!("{host} was declared gone by {by}: {why}"))
        }
        JournalEvent::Tripped { why, run } => {
            ("tripped", Vec::new(), Some(run.clone()), format!("the breaker tripped: {why}"))
        }
        JournalEvent::Reset { by, why } => {
            ("reset", Vec::new(), None, format!("the breaker was reset by {by}: {why}"))
        }
        JournalEvent::Paused { by, why, until, .. } => {
            ("paused", Vec::new(), None, format!("paused until {until} by {by}: {why}"))
        }
        JournalEvent::Resumed { by, why } => {
            let why = why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            ("resumed", Vec::new(), None, format!("the pause was ended by {by}{why}"))
        }
        JournalEvent::Holding { name, nodes, host, pid, .. } => {
            let count = count_noun(nodes.len(), "node", "nodes");
            let text = format!("{name} holds {count} for a measurement by process {pid} on {host}");
            ("holding", nodes.clone(), None, text)
        }
        JournalEvent::Freed { name, detail } => {
            ("freed", Vec::new(), None, format!("{name}: {detail}"))
        }
        JournalEvent::Evicting { node, pods } => {
            let text = format!("eviction requested: {}", pods.join(", "));
            ("evicting", one(node), None, text)
        }
        JournalEvent::Evicted { eviction } => {
            let text = "its pods were evicted".to_owned();
            ("evicted", one(&eviction.node), None, text)
        }
    })
}

/// The kind and the sentence of an action with a result.
fn action_outcome(action: &Action, result: ActionResult, run: &str) -> (&'static str, String) {
    let class = drain_reason::parse_reason(&action.reason).map(|own| format!(" ({})", own.class));
    let class = class.unwrap_or_default();
    let (word, what) = match action.kind {
        ActionKind::Drain => match &action.device {
            // An earlier version wrote it.
            Some(mark) => {
                ("drain", format!("taking out {} alone{class}", device::describe_cordon(mark)))
            }
            None => ("drain", format!("drain{class}")),
        },
        ActionKind::Release => ("release", "release".to_owned()),
        ActionKind::Relabel => ("relabel", "mark".to_owned()),
        ActionKind::Certify => ("certify", "certificate".to_owned()),
    };
    let how = match result {
        ActionResult::Done => "done",
        ActionResult::Already => "so already",
        ActionResult::Superseded => "left to others",
        ActionResult::Refused => "refused",
        ActionResult::Failed => "failed",
        ActionResult::Unknown => "not known yet",
    };
    (word, format!("{what} for run {run}, {how}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::eviction::NodeEviction;
    use model::journal::{ClockStamp, JOURNAL_FORMAT};
    use model::kubernetes_node::{GpuCordon, GpuCordonMethod};
    use model::node_update::NodeUpdate;
    use model::scheduler_snapshot::SchedulerNode;

    fn entry(seq: u64, event: JournalEvent) -> JournalEntry {
        let unix = i64::try_from(seq).expect("few") * 100;
        let stamp = ClockStamp { at: format!("T{seq}"), unix, ..ClockStamp::default() };
        JournalEntry { format: JOURNAL_FORMAT.to_owned(), seq, stamp, epoch: 1, event }
    }

    fn journal() -> Vec<JournalEntry> {
        let node = NodeName::from("n1");
        let reason = "fabricgate:nvlink-low:r1 e1".to_owned();
        let action = Action { reason, ..Action::new(ActionKind::Drain, "n1") };
        let events = vec![
            JournalEvent::Opened { host: "h".to_owned(), pid: 1, version: "1".to_owned() },
            JournalEvent::Intent {
                id: "i".to_owned(),
                run: "r1".to_owned(),
                action: Box::new(action),
                change: Box::new(NodeUpdate::default()),
                before: Box::new(SchedulerNode::new("n1", &["IDLE"])),
            },
            JournalEvent::Outcome {
                id: "i".to_owned(),
                result: ActionResult::Done,
                detail: "it is IDLE+DRAIN".to_owned(),
            },
            JournalEvent::Clean {
                node: NodeName::from("n2"),
                run: "r2".to_owned(),
                measured: 1,
                boot_id: None,
            },
            JournalEvent::Undone {
                node,
                id: "i".to_owned(),
                detail: "it is IDLE+DRAIN, its reason \"rma\" by bob".to_owned(),
            },
            JournalEvent::Reset { by: "ann".to_owned(), why: "looked".to_owned() },
        ];
        (1..).zip(events).map(|(seq, event)| entry(seq, event)).collect()
    }

    #[test]
    fn each_event_is_a_line_with_its_author() {
        let all = collect_events(&journal(), 0, None);
        assert_eq!(
            render(&all),
            "T3  n1  drain (nvlink-low) for run r1, done: it is IDLE+DRAIN\n\
             T4  n2  passed run r2\n\
             T5  n1  fabricgate's drain for run r1 was removed: it is IDLE+DRAIN, its reason \
             \"rma\" by bob\n\
             T6  -  the breaker was reset by ann: looked\n"
        );
    }

    #[test]
    fn only_requested_events_are_listed_and_outcomes_keep_their_action() {
        let lines = journal();
        let node = NodeName::from("n1");
        let words = |since, node| -> Vec<&str> {
            collect_events(&lines, since, node).iter().map(|it| it.event).collect()
        };
        assert_eq!(words(0, Some(&node)), ["drain", "undone"]);
        // The intent was written earlier.
        assert_eq!(words(300, Some(&node)), ["drain", "undone"]);
        assert_eq!(words(500, None), ["undone", "reset"]);
        assert_eq!(words(9_999, None), [""; 0]);
    }

    #[test]
    fn one_gpu_taken_out_by_an_earlier_version_is_listed() {
        let mut lines = journal();
        let JournalEvent::Intent { action, .. } = &mut lines[1].event else { panic!("{lines:?}") };
        let way = GpuCordonMethod::TaintRule;
        action.device = Some(GpuCordon { way, index: 2, uuid: "GPU-2a".to_owned() });
        let text = render(&collect_events(&lines, 0, None));
        let wanted = "taking out GPU 2 (GPU-2a, taint-rule) alone (nvlink-low) for run r1, done";
        assert!(text.contains(wanted), "{text}");
    }

    #[test]
    fn evictions_by_an_earlier_version_are_listed() {
        let eviction = NodeEviction { node: NodeName::from("n1"), refused: None, pods: Vec::new() };
        let node = eviction.node.clone();
        let lines = [
            entry(1, JournalEvent::Evicting { node, pods: vec!["team/a".to_owned()] }),
            entry(2, JournalEvent::Evicted { eviction }),
        ];
        assert_eq!(
            render(&collect_events(&lines, 0, None)),
            "T1  n1  eviction requested: team/a\nT2  n1  its pods were evicted\n"
        );
    }

    #[test]
    fn text_of_a_journal_steers_no_terminal() {
        let lines =
            [entry(1, JournalEvent::Reset { by: "a\u{1b}[31m\nb".to_owned(), why: String::new() })];
        let text = render(&collect_events(&lines, 0, None));
        assert_eq!(text.lines().count(), 1, "{text:?}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
