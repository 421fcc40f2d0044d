//! The gate's state, from its own record, for users and programs.
//!
//! Values in, text out; only the scheduler knows the present state of a node.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;

use super::plain_text::{count_noun, to_plain};
use crate::policy::drain_overview::{DrainOverviewRow, DrainStanding};
use crate::policy::journal_state::{
    JournalState, OpenAllocation, OpenIntent, OwnDrain, Suspicion, UndoneDrain,
};
use crate::policy::pause::GatePause;
use crate::policy::{budget, node_state, pause};
use model::action::{ActionKind, VerdictMark};
use model::finding_class::{FindingClass, join_class_names};
use model::id::{DomainName, NodeName};
use model::journal::{ClockStamp, HoldKind};
use model::scheduler_snapshot::SchedulerSnapshot;
use model::time_format::format_rfc3339;
use model::verdict::Outcome;

/// The format of the document.
pub const GATE_FORMAT: &str = "fabricgate.gate/1";

/// The record of a gate (`fabricgate.gate/1`).
#[derive(Debug, Serialize, JsonSchema)]
pub struct GateDocument<'a> {
    /// `fabricgate.gate/1`.
    format: &'static str,
    /// The number of its last turn.
    epoch: u64,
    /// The breaker, if it has tripped.
    breaker: Option<GateBreakerEntry<'a>>,
    /// A pause that a user requested, while it lasts.
    pause: Option<GatePauseEntry<'a>>,
    /// When the scheduler was queried, RFC 3339.
    as_of: &'a str,
    /// Why the scheduler could not be queried; the rest of the document is then the journal's last
    /// known state.
    unasked: Option<&'a str>,
    /// Nodes that fabricgate drained or that carry a mark in fabricgate's form, as the scheduler
    /// reports them now; those that differ from the journal first.
    nodes: &'a [DrainOverviewRow],
    /// Drains in fabricgate's form that the journal does not contain; they count in the budgets.
    /// Absent if the scheduler could not be queried.
    #[serde(skip_serializing_if = "Option::is_none")]
    unrecorded: Option<Vec<UnrecordedDrainEntry<'a>>>,
    /// Nodes that fabricgate drained and has not released, according to the journal.
    drained: Vec<DrainedNodeEntry<'a>>,
    /// fabricgate's drains that a user removed.
    undone: Vec<UndoneDrainEntry<'a>>,
    /// Nodes in service that one run found slow: a second such run drains them.
    suspected: Vec<SuspectedNodeEntry<'a>>,
    /// Actions with an unknown result.
    open: Vec<OpenActionEntry<'a>>,
    /// Jobs, reservations and pods that hold nodes to measure them.
    holds: Vec<GateHoldEntry<'a>>,
    /// Marks on nodes.
    marks: Vec<NodeMarkEntry<'a>>,
    /// Actions started within the hour.
    spent_within_hour: HourlyActionCount,
    /// The remaining budgets, in sentences; null if the size of the fleet is unknown.
    budgets: Option<&'a [String]>,
}

/// A breaker that has tripped.
#[derive(Debug, Serialize, JsonSchema)]
struct GateBreakerEntry<'a> {
    /// When, RFC 3339.
    since: &'a str,
    /// Why.
    why: &'a str,
    /// The run in which it tripped.
    run: &'a str,
}

/// A pause.
#[derive(Debug, Serialize, JsonSchema)]
struct GatePauseEntry<'a> {
    /// When it ends, RFC 3339.
    until: &'a str,
    /// The user who requested it.
    by: &'a str,
    /// Why.
    why: &'a str,
}

/// The nodes' present state, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub struct GateLiveView<'a> {
    /// The nodes.
    pub nodes: &'a [DrainOverviewRow],
    /// Why the scheduler could not be queried.
    pub unasked: Option<&'a str>,
    /// The scheduler's state, if it could be queried.
    pub live: Option<&'a SchedulerSnapshot>,
}

/// A drain in fabricgate's form that the journal does not contain.
#[derive(Debug, Serialize, JsonSchema)]
struct UnrecordedDrainEntry<'a> {
    /// The node.
    node: &'a NodeName,
    /// Its reason as the scheduler reports it.
    reason: String,
}

/// A node that fabricgate drained.
#[derive(Debug, Serialize, JsonSchema)]
struct DrainedNodeEntry<'a> {
    /// The node.
    node: &'a NodeName,
    /// When, RFC 3339.
    since: &'a str,
    /// The run that requested it.
    run: &'a str,
    /// The turn that made it.
    epoch: u64,
    /// Its domain.
    domain: Option<&'a DomainName>,
    /// Why.
    why: &'a str,
    /// The runs that it passed since.
    clean: Vec<&'a str>,
}

/// A drain by fabricgate that a user removed.
#[derive(Debug, Serialize, JsonSchema)]
struct UndoneDrainEntry<'a> {
    /// The node.
    node: &'a NodeName,
    /// When that was observed, RFC 3339.
    since: &'a str,
    /// The run that had requested the drain.
    run: &'a str,
    /// The reason that was written with it.
    reason: &'a str,
}

/// A node that one run found slow.
#[derive(Debug, Serialize, JsonSchema)]
struct SuspectedNodeEntry<'a> {
    /// The node.
    node: &'a NodeName,
    /// The run.
    run: &'a str,
    /// When the run was made, RFC 3339.
    since: String,
    /// Classes of its findings.
    classes: &'a [FindingClass],
}

/// An action without a recorded result.
#[derive(Debug, Serialize, JsonSchema)]
struct OpenActionEntry<'a> {
    /// Its name.
    id: &'a str,
    /// The node.
    node: &'a NodeName,
    /// The kind of action.
    kind: ActionKind,
    /// When it was started, RFC 3339.
    since: &'a str,
}

/// A job, reservation or pods that hold nodes.
#[derive(Debug, Serialize, JsonSchema)]
struct GateHoldEntry<'a> {
    /// Its name.
    name: &'a str,
    /// The kind of allocation.
    kind: HoldKind,
    /// When it was requested, RFC 3339.
    since: &'a str,
    /// The nodes.
    nodes: &'a [NodeName],
    /// The machine that needs it.
    host: &'a str,
    /// The process there.
    pid: u32,
}

/// The mark of a node.
#[derive(Debug, Serialize, JsonSchema)]
struct NodeMarkEntry<'a> {
    /// The node.
    node: &'a NodeName,
    /// The verdict.
    outcome: Outcome,
    /// The class of the worst finding.
    class: Option<&'a str>,
    /// The run of the verdict.
    run: &'a str,
    /// When that run was made, RFC 3339.
    since: &'a str,
    /// When it expires, RFC 3339.
    expires: Option<&'a str>,
}

/// The number of actions started within the hour.
#[derive(Debug, Serialize, JsonSchema)]
struct HourlyActionCount {
    /// Drains.
    drains: usize,
    /// Marks.
    marks: usize,
}

/// The record as a document. The remaining budgets are null if the size of the fleet is unknown.
pub fn build_document<'a>(
    ledger: &'a JournalState,
    now: &'a ClockStamp,
    shown: GateLiveView<'a>,
    budgets: Option<&'a [String]>,
) -> GateDocument<'a> {
    let (drains, marks) = budget::count_within_hour(ledger, now);
    let breaker = ledger.breaker.as_ref();
    GateDocument {
        format: GATE_FORMAT,
        epoch: ledger.epoch,
        breaker: breaker.map(|it| GateBreakerEntry {
            since: &it.stamp.at,
            why: &it.why,
            run: &it.run,
        }),
        pause: pause::active_pause(ledger, now).map(pause_entry),
        as_of: &now.at,
        unasked: shown.unasked,
        nodes: shown.nodes,
        unrecorded: shown.live.map(|live| {
            let all = node_state::unrecorded_drains(live, ledger).into_iter();
            let reason = node_state::display_reason;
            all.map(|it| UnrecordedDrainEntry { node: &it.name, reason: reason(it) }).collect()
        }),
        drained: ledger.drains.iter().map(drained_entry).collect(),
        undone: ledger.undone_drains.iter().map(undone_entry).collect(),
        suspected: ledger.suspicions.iter().map(suspected_entry).collect(),
        open: ledger.open_intents.iter().map(open_action_entry).collect(),
        holds: ledger.allocations.iter().map(hold_entry).collect(),
        marks: ledger.marks.iter().map(mark_entry).collect(),
        spent_within_hour: HourlyActionCount { drains, marks },
        budgets,
    }
}

fn drained_entry<'a>((node, drain): (&'a NodeName, &'a OwnDrain)) -> DrainedNodeEntry<'a> {
    DrainedNodeEntry {
        node,
        since: &drain.stamp.at,
        run: &drain.run,
        epoch: drain.epoch,
        domain: drain.action.domain.as_ref(),
        why: &drain.action.why,
        clean: drain.clean.iter().map(|it| it.run.as_str()).collect(),
    }
}

fn pause_entry(pause: &GatePause) -> GatePauseEntry<'_> {
    GatePauseEntry { until: &pause.until, by: &pause.by, why: &pause.why }
}

fn undone_entry<'a>((node, it): (&'a NodeName, &'a UndoneDrain)) -> UndoneDrainEntry<'a> {
    let drain = &it.drain;
    UndoneDrainEntry { node, since: &it.stamp.at, run: &drain.run, reason: &drain.action.reason }
}

fn suspected_entry<'a>((node, it): (&'a NodeName, &'a Suspicion)) -> SuspectedNodeEntry<'a> {
    SuspectedNodeEntry {
        node,
        run: &it.run,
        since: format_rfc3339(it.measured),
        classes: &it.classes,
    }
}

fn open_action_entry(it: &OpenIntent) -> OpenActionEntry<'_> {
    let action = &it.action;
    OpenActionEntry { id: &it.id, node: &action.node, kind: action.kind, since: &it.stamp.at }
}

fn hold_entry<'a>((name, it): (&'a String, &'a OpenAllocation)) -> GateHoldEntry<'a> {
    let (since, nodes) = (&it.stamp.at, &it.nodes);
    GateHoldEntry { name, kind: it.kind, since, nodes, host: &it.host, pid: it.pid }
}

fn mark_entry<'a>((node, it): (&'a NodeName, &'a VerdictMark)) -> NodeMarkEntry<'a> {
    NodeMarkEntry {
        node,
        outcome: it.outcome,
        class: it.class.as_ref().map(FindingClass::as_str),
        run: &it.run,
        since: &it.at,
        expires: it.expires.as_deref(),
    }
}

/// The record as text. Its names and texts come from a journal that may be edited from outside.
pub fn render(ledger: &JournalState, now: &ClockStamp, shown: GateLiveView<'_>) -> String {
    let mut text = match shown.unasked {
        None => format!("as of {}\n", to_plain(&now.at)),
        Some(why) => {
            let [at, why] = [&now.at, why].map(|it| to_plain(it));
            format!(
                "as of {at}, the scheduler could not be queried: {why}\n  the state below is the \
                 journal's last known state\n"
            )
        }
    };
    match &ledger.breaker {
        Some(it) => {
            let [at, why, run] = [&it.stamp.at, &it.why, &it.run].map(|it| to_plain(it));
            let _ = writeln!(text, "breaker: TRIPPED at {at} in run {run}: {why}");
            text.push_str("  only releases until `fabricgate gate reset --why TEXT`\n");
        }
        None => text.push_str("breaker: closed\n"),
    }
    if let Some(pause) = pause::active_pause(ledger, now) {
        let _ = writeln!(text, "{}", to_plain(&pause::describe_pause(pause)));
        text.push_str(
            "  no drains and no measurements until then, or until `fabricgate gate \
             resume`\n",
        );
    }
    write_nodes(&mut text, ledger, shown);
    for (node, it) in &ledger.suspicions {
        let (at, classes) = (format_rfc3339(it.measured), join_class_names(&it.classes));
        let [node, run, classes] = [node.as_str(), &it.run, &classes].map(to_plain);
        let _ = writeln!(
            text,
            "suspected: {node} ({classes}) since {at}, run {run}; drained if another run confirms \
             it"
        );
    }
    for it in &ledger.open_intents {
        let [node, at] = [it.action.node.as_str(), &it.stamp.at].map(to_plain);
        let _ = writeln!(text, "open: {:?} of {node}, started {at}", it.action.kind);
    }
    for (name, it) in &ledger.allocations {
        let (kind, count, pid) = (it.kind, it.nodes.len(), it.pid);
        let [name, at, host] = [name, &it.stamp.at, &it.host].map(|it| to_plain(it));
        let _ = writeln!(
            text,
            "held: {kind:?} {name}, {count} nodes, since {at}, by pid {pid} on {host}"
        );
    }
    let mut by_outcome: BTreeMap<Outcome, usize> = BTreeMap::new();
    for mark in ledger.marks.values() {
        *by_outcome.entry(mark.outcome).or_default() += 1;
    }
    for (outcome, count) in by_outcome {
        let _ = writeln!(text, "marked {outcome}: {}", count_noun(count, "node", "nodes"));
    }
    let (drains, marks) = budget::count_within_hour(ledger, now);
    let (drains, marks) =
        (count_noun(drains, "drain", "drains"), count_noun(marks, "mark", "marks"));
    let _ = writeln!(text, "started within the hour: {drains}, {marks}");
    text
}

/// Nodes that fabricgate drained, one line each, those that differ first.
fn write_nodes(text: &mut String, ledger: &JournalState, shown: GateLiveView<'_>) {
    let rows = |is: fn(DrainStanding) -> bool| -> Vec<&DrainOverviewRow> {
        shown.nodes.iter().filter(|row| is(row.standing)).collect()
    };
    let odds = rows(DrainStanding::is_at_odds);
    if !odds.is_empty() {
        let _ = writeln!(text, "differing from the journal: {}", odds.len());
        write_rows(text, &odds);
    }
    match shown.unasked {
        None => {
            let _ = writeln!(text, "drained by fabricgate: {}", rows(DrainStanding::is_ours).len());
        }
        Some(_) => {
            let _ = writeln!(
                text,
                "drained by fabricgate, according to the journal: {}",
                ledger.drains.len()
            );
        }
    }
    let rest = |it| {
        matches!(it, DrainStanding::Drained | DrainStanding::Measured | DrainStanding::Unknown)
    };
    write_rows(text, &rows(rest));
    for row in rows(|it| it == DrainStanding::Undone) {
        let [node, at, run, state] = [
            row.node.as_str(),
            row.since.as_deref().unwrap_or("-"),
            row.run.as_deref().unwrap_or("-"),
            row.state.as_deref().unwrap_or("state unknown"),
        ]
        .map(to_plain);
        let _ = writeln!(
            text,
            "no longer drained: {node}, observed {at}; it was drained by run {run}, and is \
             {state} now"
        );
    }
}

/// One line per node, in columns, with the difference or the next step.
fn write_rows(text: &mut String, rows: &[&DrainOverviewRow]) {
    let cells = |row: &DrainOverviewRow| {
        let clean = format!("clean {}/{}", row.clean, row.clean_wanted);
        let or = |text: &Option<String>| to_plain(text.as_deref().unwrap_or("-")).into_owned();
        let state = row.state.as_deref().unwrap_or("?");
        [
            to_plain(row.node.as_str()).into_owned(),
            or(&row.class),
            or(&row.since),
            clean,
            to_plain(state).into_owned(),
        ]
    };
    let cells: Vec<[String; 5]> = rows.iter().map(|row| cells(row)).collect();
    let width = |at: usize| cells.iter().map(|it| it[at].chars().count()).max().unwrap_or(0);
    let widths: [usize; 5] = std::array::from_fn(width);
    for (row, cells) in rows.iter().zip(&cells) {
        text.push(' ');
        for (cell, width) in cells.iter().zip(widths) {
            let _ = write!(text, " {cell:width$} ");
        }
        let odds = row.at_odds.as_deref().map(|odds| format!("{odds}: ")).unwrap_or_default();
        let _ = writeln!(text, " {}", to_plain(&format!("{odds}{}", row.next)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::journal_state::BudgetSpend;
    use model::action::{Action, ActionKind, VerdictMark};

    #[test]
    fn marks_and_spent_budgets_are_listed() {
        let mark = VerdictMark {
            outcome: Outcome::Degraded,
            class: Some(FindingClass::NvlinkLow),
            run: "r1".to_owned(),
            at: "2026-03-04T05:06:07Z".to_owned(),
            expires: None,
            boot_id: None,
            domain: None,
        };
        let action = Action { mark: Some(mark.clone()), ..Action::new(ActionKind::Relabel, "n1") };
        let now = ClockStamp { unix: 10_000, ..ClockStamp::default() };
        let spent = |unix: i64| BudgetSpend {
            id: unix.to_string(),
            stamp: ClockStamp { unix, ..ClockStamp::default() },
            action: action.clone(),
        };
        let ledger = JournalState {
            marks: [("n1".into(), mark)].into(),
            spent: vec![spent(1_000), spent(9_000)],
            ..JournalState::default()
        };
        let view = GateLiveView { nodes: &[], unasked: None, live: None };
        let shown = render(&ledger, &now, view);
        assert!(shown.contains("marked degraded: 1 node\n"), "{shown}");
        assert!(shown.contains("started within the hour: 0 drains, 1 mark\n"), "{shown}");
        let budgets = ["drains at a time: 1 of 1 left".to_owned()];
        let document = build_document(&ledger, &now, view, Some(&budgets));
        let document = serde_json::to_value(document).expect("JSON");
        assert_eq!(document["marks"][0]["class"], "nvlink-low");
        assert_eq!(document["spent_within_hour"], serde_json::json!({ "drains": 0, "marks": 1 }));
        assert_eq!(document["budgets"], serde_json::json!(budgets));
    }

    fn row(node: &str, standing: DrainStanding, odds: Option<&str>) -> DrainOverviewRow {
        DrainOverviewRow {
            node: node.into(),
            standing,
            at_odds: odds.map(str::to_owned),
            class: Some("nvlink-low".to_owned()),
            run: Some("r1".to_owned()),
            since: Some("2026-03-04T05:06:07Z".to_owned()),
            clean: 1,
            clean_wanted: 2,
            next: "next step".to_owned(),
            state: (standing != DrainStanding::Unknown).then(|| "IDLE+DRAIN".to_owned()),
        }
    }

    /// Defect 8 of the operator's review.
    #[test]
    fn differences_come_first_and_each_node_is_a_line() {
        let rows = [
            row("node0007", DrainStanding::TakenOver, Some("it is another's: \"rma\", by bob")),
            row("node25", DrainStanding::Drained, None),
            row("node26", DrainStanding::Undone, None),
        ];
        let now = ClockStamp { at: "2026-03-04T06:00:00Z".to_owned(), ..ClockStamp::default() };
        let ledger = JournalState::default();
        let text = render(&ledger, &now, GateLiveView { nodes: &rows, unasked: None, live: None });
        let shown = text.lines().take(6).collect::<Vec<_>>().join("\n");
        assert_eq!(
            shown,
            "as of 2026-03-04T06:00:00Z\nbreaker: closed\ndiffering from the journal: 1\n  \
             node0007  nvlink-low  2026-03-04T05:06:07Z  clean 1/2  IDLE+DRAIN  it is another's: \
             \"rma\", by bob: next step\ndrained by fabricgate: 1\n  \
             node25  nvlink-low  2026-03-04T05:06:07Z  clean 1/2  IDLE+DRAIN  next step"
        );
        assert!(text.contains("no longer drained: node26"), "{text}");
        assert!(!text.contains("by hand"), "that was not seen: {text}");
    }

    #[test]
    fn without_the_scheduler_no_present_state_is_given() {
        let rows = [row("n1", DrainStanding::Unknown, None)];
        let now = ClockStamp { at: "T".to_owned(), ..ClockStamp::default() };
        let shown = GateLiveView { nodes: &rows, unasked: Some("no answer"), live: None };
        let text = render(&JournalState::default(), &now, shown);
        assert!(
            text.starts_with("as of T, the scheduler could not be queried: no answer\n"),
            "{text}"
        );
        assert!(text.contains("the journal's last known state"), "{text}");
        assert!(text.contains("drained by fabricgate, according to the journal: 0"), "{text}");
        assert!(text.contains("  n1  nvlink-low  2026-03-04T05:06:07Z  clean 1/2  ?  "), "{text}");
    }
}
