//! The meaning of a node's scheduler state for the gate: whether the node is in use, who owns a
//! drain, and which actions are allowed.
//!
//! Pure. An unknown state flag is a reason to leave the node alone. The state of a Kubernetes
//! node is described with Slurm's flags where the meaning is the same, and with some additional
//! ones.

use super::drain_reason;
use super::drain_reason::OwnReason;
use super::journal_state::{JournalState, OwnDrain};
use super::situation::SchedulerKind;
use model::id::NodeName;
use model::kubernetes_node::{DEGRADED, GATE, REASON};
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::text::clean;
pub use readers::claims::kubernetes::live_node::PODS_UNREAD;

/// The owner of a drain.
#[derive(Clone, Debug, PartialEq)]
pub enum DrainOwner<'a> {
    /// The node is not drained.
    NotDrained,
    /// This gate: its journal contains the drain.
    ThisGate(&'a OwnDrain),
    /// Its reason has fabricgate's prefix and is not in this journal: another gate drained it, or
    /// the record was lost.
    Unrecorded,
    /// Another program or user.
    Other(String),
}

/// The meaning of one state flag (`sinfo(1)`, NODE STATE CODES, and the flags in `scontrol show
/// node --json` of Slurm 24.11 and 26.05).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeStateFlag {
    /// Irrelevant here: how the node was added, an idle node.
    Neutral,
    /// Jobs run, or their last processes end.
    Busy,
    /// A drain keeps new jobs away.
    Drained,
    /// Slurm itself keeps jobs away.
    Down,
    /// The node does not answer.
    NotResponding,
    /// It has not registered with the controller yet.
    NotRegistered,
    /// A reboot is requested or under way.
    Rebooting,
    /// The machine does not exist now, or is powering up or down.
    Absent,
    /// The scheduler reserves it; a drain leaves it alone.
    Reserved,
    /// It is between two states.
    Transitional,
    /// A cordon or taint of others keeps new pods away.
    BarredByOthers,
    /// It takes no work until it is verified: it carries fabricgate's start-up taint, or one
    /// that is removed when a condition is true, which may be fabricgate's.
    Unverified,
    /// Its workload could not be read.
    UseUnknown,
    /// The flag is not known to this version.
    Unknown,
}

/// Every known flag with its meaning and its description.
const STATE_FLAGS: &[(&str, NodeStateFlag, &str)] = &[
    ("IDLE", NodeStateFlag::Neutral, "is idle"),
    ("CLOUD", NodeStateFlag::Neutral, "is a cloud node"),
    ("DYNAMIC_NORM", NodeStateFlag::Neutral, "was added at run time"),
    ("DYNAMIC_FUTURE", NodeStateFlag::Neutral, "was added at run time"),
    ("PERFCTRS", NodeStateFlag::Neutral, "has its counters in use"),
    ("EXTERNAL", NodeStateFlag::Neutral, "is run by another agent"),
    ("ALLOCATED", NodeStateFlag::Busy, "is allocated to jobs"),
    ("MIXED", NodeStateFlag::Busy, "is allocated in part"),
    ("COMPLETING", NodeStateFlag::Busy, "has jobs that are ending"),
    ("DRAIN", NodeStateFlag::Drained, "is drained"),
    ("DRAINED", NodeStateFlag::Drained, "is drained"),
    ("DRAINING", NodeStateFlag::Drained, "is draining"),
    ("DOWN", NodeStateFlag::Down, "is down"),
    ("ERROR", NodeStateFlag::Down, "is in an error state"),
    ("FAIL", NodeStateFlag::Down, "is marked to fail"),
    ("FAILING", NodeStateFlag::Down, "is marked to fail"),
    ("INVALID_REG", NodeStateFlag::Down, "registered with less than is configured"),
    ("NOT_RESPONDING", NodeStateFlag::NotResponding, "does not respond"),
    ("UNKNOWN", NodeStateFlag::NotRegistered, "has not registered since the controller started"),
    ("REBOOT_REQUESTED", NodeStateFlag::Rebooting, "is to be rebooted"),
    ("REBOOT_ISSUED", NodeStateFlag::Rebooting, "is being rebooted"),
    ("FUTURE", NodeStateFlag::Absent, "is configured for the future"),
    ("POWERED_DOWN", NodeStateFlag::Absent, "is powered down"),
    ("POWERING_DOWN", NodeStateFlag::Absent, "is powering down"),
    ("POWER_DOWN", NodeStateFlag::Absent, "is about to be powered down"),
    ("POWERING_UP", NodeStateFlag::Absent, "is powering up"),
    ("POWER_UP", NodeStateFlag::Absent, "is about to be powered up"),
    ("PLANNED", NodeStateFlag::Reserved, "is planned for a job"),
    ("RESERVED", NodeStateFlag::Reserved, "is reserved"),
    ("MAINTENANCE", NodeStateFlag::Reserved, "is in a maintenance reservation"),
    ("BLOCKED", NodeStateFlag::Reserved, "is blocked by a job that holds its block exclusively"),
    ("RESUME", NodeStateFlag::Transitional, "is being resumed"),
    ("UNDRAIN", NodeStateFlag::Transitional, "is being resumed"),
    // Additional flags of Kubernetes nodes.
    ("NOT_READY", NodeStateFlag::NotResponding, "is not ready"),
    ("DELETING", NodeStateFlag::Absent, "is being deleted"),
    (CORDONED, NodeStateFlag::BarredByOthers, "is cordoned"),
    ("TAINTED", NodeStateFlag::BarredByOthers, "has a taint of others that keeps pods away"),
    (UNVERIFIED, NodeStateFlag::Unverified, "has not been certified since it joined"),
    ("AWAITED", NodeStateFlag::Unverified, "is kept out until a condition of it is true"),
    ("TESTING", NodeStateFlag::Reserved, "is in use by another prober or a compute domain"),
    (PODS_UNREAD, NodeStateFlag::UseUnknown, "has pods that could not be read"),
];

/// The node is cordoned.
pub const CORDONED: &str = "CORDONED";
/// The node carries fabricgate's start-up taint.
pub const UNVERIFIED: &str = "UNVERIFIED";

fn parse_flag(word: &str) -> (NodeStateFlag, &'static str) {
    let known = STATE_FLAGS.iter().find(|(name, _, _)| *name == word);
    known.map_or((NodeStateFlag::Unknown, "has a state unknown to this version"), |(_, w, text)| {
        (*w, text)
    })
}

fn has_flag(node: &SchedulerNode, kind: NodeStateFlag) -> bool {
    node.state.iter().any(|word| parse_flag(word).0 == kind)
}

/// Describes the flags of these kinds, with the flags themselves.
fn describe_flags(node: &SchedulerNode, kinds: &[NodeStateFlag]) -> Option<String> {
    let those = node.state.iter().filter(|word| kinds.contains(&parse_flag(word).0));
    let described: Vec<String> =
        those.map(|word| format!("it {} ({})", describe_state(node, word), clean(word))).collect();
    (!described.is_empty()).then(|| described.join(", "))
}

/// Describes a flag in the terms of the node's scheduler.
fn describe_state(node: &SchedulerNode, word: &str) -> String {
    match (SchedulerKind::from_node(node), parse_flag(word).0) {
        (SchedulerKind::Kubernetes, NodeStateFlag::Busy) => "has pods that hold GPUs".to_owned(),
        (SchedulerKind::Kubernetes, NodeStateFlag::Drained) => format!("has the taint {DEGRADED}"),
        _ => parse_flag(word).1.to_owned(),
    }
}

/// Marks that ask to leave a node alone, or show that another program is at work on it.
fn explain_left_alone(node: &SchedulerNode) -> Option<String> {
    let marks = node.kubernetes.as_ref().map(|it| &it.left_alone).filter(|it| !it.is_empty())?;
    let marks: Vec<String> = marks.iter().map(|mark| clean(mark)).collect();
    Some(format!("its marks ask to leave it alone: {}", marks.join(", ")))
}

/// Whether it takes no pods until it is verified.
pub fn is_unverified(node: &SchedulerNode) -> bool {
    has_flag(node, NodeStateFlag::Unverified)
}

/// Whether its workload is known: on Slurm always; a Kubernetes node whose pods could not be read
/// is neither idle nor busy.
pub fn is_use_known(node: &SchedulerNode) -> bool {
    let is_said = node.has_state("IDLE") || has_flag(node, NodeStateFlag::Busy);
    SchedulerKind::from_node(node) == SchedulerKind::Slurm
        || (is_said && !has_flag(node, NodeStateFlag::UseUnknown))
}

fn node_reason(node: &SchedulerNode) -> Option<&str> {
    node.reason.as_deref().map(str::trim).filter(|text| !text.is_empty())
}

/// Its reason for display: cleaned, and with its author.
pub fn display_reason(node: &SchedulerNode) -> String {
    /// Slurm stores longer reasons; a display cuts them.
    const LONGEST: usize = 120;
    let Some(text) = node_reason(node) else { return "no reason".to_owned() };
    let text = clean(text);
    let mut shown: String = text.chars().take(LONGEST).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    let by = node.reason_by.as_deref().map(|by| format!(", by {}", clean(by)));
    format!("\"{shown}\"{}", by.unwrap_or_default())
}

/// Describes a drain, and the commands for a fabricgate taint that lost its reason: the
/// gate never removes such a taint.
fn describe_drain(node: &SchedulerNode) -> String {
    if SchedulerKind::from_node(node) == SchedulerKind::Slurm || node_reason(node).is_some() {
        return format!("it is drained ({})", display_reason(node));
    }
    format!(
        "it has the taint {DEGRADED} without the annotation {REASON}; the gate does not remove \
         such a taint: `kubectl taint node {} {DEGRADED}:NoSchedule-` does",
        clean(node.name.as_str())
    )
}

/// Why a name that is not one node's is refused: `scontrol` would read it as a list, a
/// function, or the whole cluster.
pub(super) fn explain_not_one_node(name: &NodeName) -> String {
    format!("{:?} would not be read as the name of one node", name.as_str())
}

/// Whether a drain, fabricgate's or another, keeps new jobs away from it.
pub fn has_drain(node: &SchedulerNode) -> bool {
    has_flag(node, NodeStateFlag::Drained)
}

/// Whether it takes no new jobs, for any reason: such nodes count as out in the price of the
/// next drain. Nodes reserved for a job are not out.
pub fn is_out(node: &SchedulerNode) -> bool {
    is_out_anyway(node) || is_unverified(node)
}

/// Whether it would take no new jobs even without the start-up taint.
fn is_out_anyway(node: &SchedulerNode) -> bool {
    let out = [
        NodeStateFlag::Drained,
        NodeStateFlag::Down,
        NodeStateFlag::NotResponding,
        NodeStateFlag::NotRegistered,
        NodeStateFlag::Rebooting,
        NodeStateFlag::Absent,
        NodeStateFlag::BarredByOthers,
        NodeStateFlag::Unknown,
    ];
    node.state.is_empty() || out.iter().any(|kind| has_flag(node, *kind))
}

/// Why a node that passed gets no mark now; `None` if it may get one. A start-up taint is not a
/// reason: a pass removes it.
pub fn explain_no_certificate(node: &SchedulerNode) -> Option<String> {
    if node.state.is_empty() {
        return Some("the scheduler reports no state for it".to_owned());
    }
    let words: Vec<String> = node.state.iter().map(|word| clean(word)).collect();
    explain_left_alone(node).or_else(|| {
        (is_out_anyway(node) || is_transient(node))
            .then(|| format!("it is out of service ({})", words.join("+")))
    })
}

/// Whether its state is transient: not registered yet, rebooting, or without a machine.
pub fn is_transient(node: &SchedulerNode) -> bool {
    let kinds = [
        NodeStateFlag::NotRegistered,
        NodeStateFlag::Rebooting,
        NodeStateFlag::Absent,
        NodeStateFlag::Transitional,
        NodeStateFlag::Unknown,
    ];
    node.state.is_empty() || kinds.iter().any(|kind| has_flag(node, *kind))
}

/// fabricgate's reason on this node, if it carries one.
pub fn own_reason(node: &SchedulerNode) -> Option<OwnReason> {
    node_reason(node).and_then(drain_reason::parse_reason)
}

/// Whether a node carries the reason of this drain, regardless of appended text.
pub(super) fn has_drain_reason(node: &SchedulerNode, drain: &OwnDrain) -> bool {
    let written = drain_reason::parse_reason(&drain.action.reason);
    own_reason(node).zip(written).is_some_and(|(now, then)| now.is_same(&then))
}

/// Whether the node's drain names another gate. A drain without a gate's name was made by an
/// earlier version, or by hand from a plan.
pub fn is_of_another_gate(node: &SchedulerNode, ledger: &JournalState) -> bool {
    let gate = node.kubernetes.as_ref().and_then(|it| it.annotations.get(GATE));
    gate.is_some_and(|gate| !ledger.gate.is_empty() && *gate != ledger.gate)
}

/// Whether a node carries the drain that this journal records.
pub fn has_own_drain(node: &SchedulerNode, drain: &OwnDrain, ledger: &JournalState) -> bool {
    has_drain_reason(node, drain) && !is_of_another_gate(node, ledger)
}

/// The owner of the drain that the scheduler reports on a node.
pub fn drain_owner<'a>(node: &SchedulerNode, ledger: &'a JournalState) -> DrainOwner<'a> {
    let is_kept = has_drain(node)
        || has_flag(node, NodeStateFlag::Down)
        || has_flag(node, NodeStateFlag::NotResponding);
    let not_ours = || {
        describe_flags(node, &[NodeStateFlag::BarredByOthers])
            .map_or(DrainOwner::NotDrained, DrainOwner::Other)
    };
    match (own_reason(node), node_reason(node)) {
        // The reason stays if a user removes only the drain flag.
        (Some(_), _) if !is_kept => not_ours(),
        (Some(_), _) => {
            let own = ledger.drains.get(&node.name);
            own.filter(|own| has_own_drain(node, own, ledger))
                .map_or(DrainOwner::Unrecorded, DrainOwner::ThisGate)
        }
        // Also on a node in service: 24.11 keeps a note that a user left there.
        (None, Some(_)) => DrainOwner::Other(display_reason(node)),
        // Taint and annotation are written together, so fabricgate does not remove a taint without
        // its annotation.
        (None, None)
            if has_drain(node) && SchedulerKind::from_node(node) == SchedulerKind::Kubernetes =>
        {
            DrainOwner::Other(format!("no annotation {REASON}"))
        }
        // Only slurmrestd drains without a reason.
        (None, None) if has_drain(node) => DrainOwner::Other(display_reason(node)),
        (None, None) => not_ours(),
    }
}

/// Nodes drained in fabricgate's form that this journal does not contain.
pub fn unrecorded_drains<'l>(
    live: &'l SchedulerSnapshot,
    ledger: &JournalState,
) -> Vec<&'l SchedulerNode> {
    live.nodes.values().filter(|node| is_unrecorded_drain(node, ledger)).collect()
}

pub(super) fn is_unrecorded_drain(node: &SchedulerNode, ledger: &JournalState) -> bool {
    has_drain(node) && drain_owner(node, ledger) == DrainOwner::Unrecorded
}

/// Describes such a node and the commands for it.
pub fn describe_unrecorded(node: &SchedulerNode) -> String {
    format!(
        "its reason is in fabricgate's form and not in this journal: {}; another gate wrote it, \
         or its record was lost: `fabricgate gate adopt {} --why TEXT` adopts it",
        display_reason(node),
        clean(node.name.as_str())
    )
}

/// Why this node must not be drained or relabelled now; `None` if it may be.
pub fn explain_no_drain(node: &SchedulerNode, ledger: &JournalState) -> Option<String> {
    if let Some(why) = explain_unreadable(node).or_else(|| explain_left_alone(node)) {
        return Some(why);
    }
    let wait = [
        NodeStateFlag::Absent,
        NodeStateFlag::NotRegistered,
        NodeStateFlag::Rebooting,
        NodeStateFlag::Transitional,
    ];
    for (kind, then) in wait.into_iter().zip([
        "no node exists to drain now",
        "its state is unknown; try again",
        "check again after that",
        "check again after that",
    ]) {
        if let Some(flags) = describe_flags(node, &[kind]) {
            return Some(format!("{flags}: {then}"));
        }
    }
    match drain_owner(node, ledger) {
        DrainOwner::ThisGate(own) => {
            return Some(format!(
                "it is drained already, by fabricgate ({})",
                clean(&own.action.reason)
            ));
        }
        DrainOwner::Unrecorded => {
            return Some(describe_unrecorded(node));
        }
        DrainOwner::Other(barred)
            if !has_drain(node) && has_flag(node, NodeStateFlag::BarredByOthers) =>
        {
            return Some(format!("{barred}, not by fabricgate: pods are kept away already"));
        }
        DrainOwner::Other(reason) => {
            let state = describe_flags(
                node,
                &[NodeStateFlag::Drained, NodeStateFlag::Down, NodeStateFlag::NotResponding],
            );
            let state = state.unwrap_or_else(|| "it has a reason".to_owned());
            return Some(format!("{state}, not by fabricgate: {reason}; left as it is"));
        }
        DrainOwner::NotDrained => {}
    }
    let plane = SchedulerKind::from_node(node);
    let keeps = format!("{} keeps {} away already", plane.name(), plane.workload_name());
    describe_flags(node, &[NodeStateFlag::Down, NodeStateFlag::NotResponding])
        .map(|flags| format!("{flags}: {keeps}"))
}

/// Remarks for the reader of a plan about a node that may be drained.
pub fn drain_remark(node: &SchedulerNode) -> Option<String> {
    let work = SchedulerKind::from_node(node).workload_name();
    let busy = describe_flags(node, &[NodeStateFlag::Busy])
        .map(|flags| format!("{flags}; its {work} end first"));
    let unseen = describe_flags(node, &[NodeStateFlag::UseUnknown]);
    let out = describe_flags(node, &[NodeStateFlag::Unverified])
        .map(|flags| format!("{flags}: it takes no pods yet"));
    let kept = describe_flags(node, &[NodeStateFlag::Reserved]).map(|flags| {
        let by = node.reservation.as_deref().filter(|name| !name.is_empty());
        let by = by.map(|name| format!(", {}", clean(name))).unwrap_or_default();
        format!("{flags}{by}; a drain changes nothing there")
    });
    let remarks: Vec<String> = [busy, unseen, out, kept].into_iter().flatten().collect();
    (!remarks.is_empty()).then(|| remarks.join("; "))
}

/// Why this node must not be released now, although fabricgate drained it; `None` if it may be.
///
/// A node that stopped responding while it was drained returns as `DOWN` or with `: Not
/// responding` after the reason, and needs RESUME like any other. It is released only if a
/// later run shows it clean. A cordon or taint of others stays in place and forbids nothing.
/// The same holds for marks that ask to leave the node alone: a release only removes
/// fabricgate's own entries.
pub fn explain_no_release(node: &SchedulerNode, ledger: &JournalState) -> Option<String> {
    if let Some(why) = explain_unreadable(node) {
        return Some(why);
    }
    let own = match drain_owner(node, ledger) {
        DrainOwner::ThisGate(own) => own,
        DrainOwner::NotDrained => return Some("it is not drained".to_owned()),
        DrainOwner::Unrecorded => return Some(describe_unrecorded(node)),
        DrainOwner::Other(reason) => {
            return Some(format!(
                "fabricgate did not make this drain and does not release it: \
                 {reason}"
            ));
        }
    };
    let now = [
        NodeStateFlag::Absent,
        NodeStateFlag::NotRegistered,
        NodeStateFlag::Rebooting,
        NodeStateFlag::Transitional,
        NodeStateFlag::NotResponding,
    ];
    if let Some(flags) = describe_flags(node, &now) {
        let work = SchedulerKind::from_node(node).workload_name();
        return Some(format!("{flags}: {work} would be placed on a node that does not exist"));
    }
    if !has_drain(node) {
        return Some("its drain was removed by another party".to_owned());
    }
    let not_down = node.state.iter().filter(|word| *word != "DOWN");
    if let Some(word) = not_down.clone().find(|word| parse_flag(word).0 == NodeStateFlag::Down) {
        return Some(format!("it {} ({word}): RESUME would hide that", parse_flag(word).1));
    }
    if let Some(why) = appended_text(node) {
        return Some(why);
    }
    let was_lost = own_reason(node)?.is_not_responding_only() || node.has_state("DOWN");
    let since = node.reason_at.unwrap_or(i64::MAX);
    if was_lost && !own.clean.iter().any(|clean| since < clean.measured) {
        return Some(
            "it stopped responding after the drain, and no clean run was made since".to_owned(),
        );
    }
    None
}

/// The text that a user or a reboot appended to the reason; `None` if there is none, or only
/// that the node stopped responding. Lifting such a drain, even for a measurement, could harm
/// its author's work and would lose the text.
pub fn appended_text(node: &SchedulerNode) -> Option<String> {
    let reason = own_reason(node)?;
    (reason.appended.is_some() && !reason.is_not_responding_only()).then(|| {
        format!(
            "text was appended after the drain: {}; a user must inspect it",
            display_reason(node)
        )
    })
}

/// Whether the drain of this node is complete: with `DRAIN` alone, jobs may still run.
pub fn is_drained(node: &SchedulerNode) -> bool {
    let is_empty = node.has_state("IDLE") || node.has_state("DOWN") || node.has_state("DRAINED");
    let is_busy = has_flag(node, NodeStateFlag::Busy) || node.has_state("DRAINING");
    has_drain(node) && is_empty && !is_busy && node.allocated_cpus.is_none_or(|cpus| cpus == 0)
}

/// Why this node cannot be measured in its present state; `None` if it is idle and in service.
pub fn explain_no_measurement(node: &SchedulerNode) -> Option<String> {
    let in_the_way = [
        NodeStateFlag::Absent,
        NodeStateFlag::NotRegistered,
        NodeStateFlag::Rebooting,
        NodeStateFlag::Transitional,
        NodeStateFlag::NotResponding,
        NodeStateFlag::Down,
        NodeStateFlag::Busy,
        NodeStateFlag::Reserved,
        NodeStateFlag::BarredByOthers,
        NodeStateFlag::UseUnknown,
    ];
    explain_unreadable(node)
        .or_else(|| explain_left_alone(node))
        .or_else(|| has_drain(node).then(|| describe_drain(node)))
        .or_else(|| describe_flags(node, &in_the_way))
        .or_else(|| {
            // Its scheduler refuses jobs there, so no worker could start.
            node.has_state("EXTERNAL")
                .then(|| "it takes no jobs of this scheduler (EXTERNAL)".to_owned())
        })
        .or_else(|| {
            let cpus = node.allocated_cpus.filter(|cpus| 0 < *cpus)?;
            Some(format!("jobs hold {cpus} of its CPUs"))
        })
        .or_else(|| (!node.has_state("IDLE")).then(|| "it is not idle".to_owned()))
}

/// Why its state cannot be interpreted.
fn explain_unreadable(node: &SchedulerNode) -> Option<String> {
    if node.state.is_empty() {
        return Some("its scheduler reports no state for it".to_owned());
    }
    let word = node.state.iter().find(|word| parse_flag(word).0 == NodeStateFlag::Unknown)?;
    Some(format!("its state has a flag unknown to this version: {}", clean(word)))
}

#[cfg(test)]
#[path = "node_state_tests.rs"]
mod tests;
