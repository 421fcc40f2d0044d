//! What a node's state with its scheduler means for us: whether it is in use,
//! whose a drain is, and what may be done to it.
//!
//! Pure. A word that is not known here is a reason to leave the node alone. A
//! node of Kubernetes is told in Slurm's words where they mean the same, and in
//! some of its own.

use super::drain_reason;
use super::drain_reason::OwnReason;
use super::journal_state::{JournalState, OwnDrain};
use super::plane::SchedulerKind;
use model::id::NodeName;
use model::kubernetes_node::{DEGRADED, GATE, REASON};
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::text::clean;
pub use readers::claims::kubernetes::live_node::PODS_UNREAD;

/// Whose a drain is.
#[derive(Clone, Debug, PartialEq)]
pub enum DrainOwner<'a> {
    /// Nobody drained it.
    NotDrained,
    /// We did, and our journal knows it.
    ThisGate(&'a OwnDrain),
    /// It carries our prefix, and our journal does not know it: another gate's,
    /// or one whose record was lost.
    Unrecorded,
    /// Somebody else.
    Other(String),
}

/// What one word of a state says (`sinfo(1)`, NODE STATE CODES, and the words of
/// `scontrol show node --json` of Slurm 24.11 and 26.05).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeStateFlag {
    /// Nothing that matters here: how the node came to be, an idle one.
    Neutral,
    /// Jobs run, or their last processes end.
    Busy,
    /// Somebody keeps new jobs away.
    Drained,
    /// Slurm itself keeps jobs away.
    Down,
    /// The node does not answer.
    NotResponding,
    /// The controller has not heard of it yet.
    NotRegistered,
    /// A reboot is asked for or under way.
    Rebooting,
    /// There is no machine now, or it comes and goes.
    Absent,
    /// The scheduler keeps it for something: a drain leaves that alone.
    Reserved,
    /// It is between two states.
    Transitional,
    /// Others keep new pods away, by a cordon or a taint of theirs.
    BarredByOthers,
    /// It takes nothing until something is known of it: it carries our start-up
    /// taint, or one that goes when a condition is true, which may be ours.
    Unverified,
    /// Who uses it could not be read.
    UseUnknown,
    /// Nobody here knows.
    Unknown,
}

/// Every word, with what it says and how that is told.
const STATE_FLAGS: &[(&str, NodeStateFlag, &str)] = &[
    ("IDLE", NodeStateFlag::Neutral, "is idle"),
    ("CLOUD", NodeStateFlag::Neutral, "is a cloud node"),
    ("DYNAMIC_NORM", NodeStateFlag::Neutral, "was added at run time"),
    ("DYNAMIC_FUTURE", NodeStateFlag::Neutral, "was added at run time"),
    ("PERFCTRS", NodeStateFlag::Neutral, "has its counters in use"),
    ("EXTERNAL", NodeStateFlag::Neutral, "is run by somebody else's agent"),
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
    ("UNKNOWN", NodeStateFlag::NotRegistered, "has not answered the controller since that started"),
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
    ("BLOCKED", NodeStateFlag::Reserved, "is blocked by a job that holds its block alone"),
    ("RESUME", NodeStateFlag::Transitional, "is being resumed"),
    ("UNDRAIN", NodeStateFlag::Transitional, "is being resumed"),
    // The words that a node of Kubernetes has besides.
    ("NOT_READY", NodeStateFlag::NotResponding, "is not ready"),
    ("DELETING", NodeStateFlag::Absent, "is being deleted"),
    (CORDONED, NodeStateFlag::BarredByOthers, "is cordoned"),
    ("TAINTED", NodeStateFlag::BarredByOthers, "has a taint of somebody else that keeps pods away"),
    (UNVERIFIED, NodeStateFlag::Unverified, "has not been certified since it joined"),
    ("AWAITED", NodeStateFlag::Unverified, "is kept out until a condition of it is true"),
    ("TESTING", NodeStateFlag::Reserved, "is in use by another prober or a compute domain"),
    (PODS_UNREAD, NodeStateFlag::UseUnknown, "has pods that could not be read"),
];

/// Somebody cordoned it.
pub const CORDONED: &str = "CORDONED";
/// It carries our start-up taint.
pub const UNVERIFIED: &str = "UNVERIFIED";

fn parse_flag(word: &str) -> (NodeStateFlag, &'static str) {
    let known = STATE_FLAGS.iter().find(|(name, _, _)| *name == word);
    known.map_or((NodeStateFlag::Unknown, "has a state that is not known here"), |(_, w, told)| {
        (*w, told)
    })
}

fn has_flag(node: &SchedulerNode, kind: NodeStateFlag) -> bool {
    node.state.iter().any(|word| parse_flag(word).0 == kind)
}

/// How the words of these kinds are told, with the words themselves.
fn describe_flags(node: &SchedulerNode, kinds: &[NodeStateFlag]) -> Option<String> {
    let those = node.state.iter().filter(|word| kinds.contains(&parse_flag(word).0));
    let told: Vec<String> =
        those.map(|word| format!("it {} ({})", describe_state(node, word), clean(word))).collect();
    (!told.is_empty()).then(|| told.join(", "))
}

/// What a word says, as people of this plane say it.
fn describe_state(node: &SchedulerNode, word: &str) -> String {
    match (SchedulerKind::from_node(node), parse_flag(word).0) {
        (SchedulerKind::Kubernetes, NodeStateFlag::Busy) => "has pods that hold GPUs".to_owned(),
        (SchedulerKind::Kubernetes, NodeStateFlag::Drained) => format!("has the taint {DEGRADED}"),
        _ => parse_flag(word).1.to_owned(),
    }
}

/// What somebody says who asks that a node be left alone, or is at work on it.
fn explain_left_alone(node: &SchedulerNode) -> Option<String> {
    let marks = node.kubernetes.as_ref().map(|it| &it.left_alone).filter(|it| !it.is_empty())?;
    let marks: Vec<String> = marks.iter().map(|mark| clean(mark)).collect();
    Some(format!("somebody asks that it be left alone: {}", marks.join(", ")))
}

/// Whether it takes no pods until something is known of it.
pub fn is_unverified(node: &SchedulerNode) -> bool {
    has_flag(node, NodeStateFlag::Unverified)
}

/// Whether it is known who uses it. On Slurm always; a node of Kubernetes
/// whose pods were not read is neither idle nor busy for all we know.
pub fn is_use_known(node: &SchedulerNode) -> bool {
    let is_said = node.has_state("IDLE") || has_flag(node, NodeStateFlag::Busy);
    SchedulerKind::from_node(node) == SchedulerKind::Slurm
        || (is_said && !has_flag(node, NodeStateFlag::UseUnknown))
}

/// Its reason, where it has one.
fn node_reason(node: &SchedulerNode) -> Option<&str> {
    node.reason.as_deref().map(str::trim).filter(|text| !text.is_empty())
}

/// Its reason as it is shown: cleaned, and with who wrote it.
pub fn display_reason(node: &SchedulerNode) -> String {
    /// Longer ones are stored by Slurm and read by nobody.
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

/// That a node is drained, and what a person can do about a taint of ours that
/// lost its reason: we never take it away.
fn describe_drain(node: &SchedulerNode) -> String {
    if SchedulerKind::from_node(node) == SchedulerKind::Slurm || node_reason(node).is_some() {
        return format!("it is drained ({})", display_reason(node));
    }
    format!(
        "it has the taint {DEGRADED} without the annotation {REASON}, which is not ours to take \
         away: `kubectl taint node {} {DEGRADED}:NoSchedule-` does",
        clean(node.name.as_str())
    )
}

/// Why nothing is done to what a name means that is not one node's: `scontrol`
/// would read it as a list, a function, or the whole cluster.
pub(super) fn explain_not_one_node(name: &NodeName) -> String {
    format!("{:?} would not be read as the name of one node", name.as_str())
}

/// Whether somebody, we included, keeps new jobs away from it.
pub fn has_drain(node: &SchedulerNode) -> bool {
    has_flag(node, NodeStateFlag::Drained)
}

/// Whether it takes no new jobs, for whatever reason: what counts as out when
/// the next drain is priced. Nodes that are kept for a job are not out.
pub fn is_out(node: &SchedulerNode) -> bool {
    is_out_anyway(node) || is_unverified(node)
}

/// Whether it would take no new jobs without our start-up taint either.
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

/// Why nothing is said now on a node that passed; `None` where it may be. A
/// start-up taint is no reason: a pass is what takes it away.
pub fn explain_no_certificate(node: &SchedulerNode) -> Option<String> {
    if node.state.is_empty() {
        return Some("the scheduler does not say in which state it is".to_owned());
    }
    let words: Vec<String> = node.state.iter().map(|word| clean(word)).collect();
    explain_left_alone(node).or_else(|| {
        (is_out_anyway(node) || is_transient(node))
            .then(|| format!("it is out of service ({})", words.join("+")))
    })
}

/// Whether its state is one of a moment, of which nothing can be said: the
/// controller has not heard of it, it reboots, or there is no machine.
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

/// Our reason on this node, where it carries one.
pub fn own_reason(node: &SchedulerNode) -> Option<OwnReason> {
    node_reason(node).and_then(drain_reason::parse_reason)
}

/// Whether a node carries the reason of this drain, whatever was appended.
pub(super) fn has_drain_reason(node: &SchedulerNode, drain: &OwnDrain) -> bool {
    let written = drain_reason::parse_reason(&drain.action.reason);
    own_reason(node).zip(written).is_some_and(|(now, then)| now.is_same(&then))
}

/// Whether the node says that another gate than this one drained it. One that says
/// nothing was drained by an earlier version, or by hand as a plan says.
pub fn is_of_another_gate(node: &SchedulerNode, ledger: &JournalState) -> bool {
    let gate = node.kubernetes.as_ref().and_then(|it| it.annotations.get(GATE));
    gate.is_some_and(|gate| !ledger.gate.is_empty() && *gate != ledger.gate)
}

/// Whether a node carries our drain, as this journal has it.
pub fn has_own_drain(node: &SchedulerNode, drain: &OwnDrain, ledger: &JournalState) -> bool {
    has_drain_reason(node, drain) && !is_of_another_gate(node, ledger)
}

/// Whose the drain of this node is.
pub fn drain_owner<'a>(node: &SchedulerNode, ledger: &'a JournalState) -> DrainOwner<'a> {
    let is_kept = has_drain(node)
        || has_flag(node, NodeStateFlag::Down)
        || has_flag(node, NodeStateFlag::NotResponding);
    let not_ours = || {
        describe_flags(node, &[NodeStateFlag::BarredByOthers])
            .map_or(DrainOwner::NotDrained, DrainOwner::Other)
    };
    match (own_reason(node), node_reason(node)) {
        // Ours outlives our drain where a person only took the flag away.
        (Some(_), _) if !is_kept => not_ours(),
        (Some(_), _) => {
            let own = ledger.drains.get(&node.name);
            own.filter(|own| has_own_drain(node, own, ledger))
                .map_or(DrainOwner::Unrecorded, DrainOwner::ThisGate)
        }
        // Also on a node in service: 24.11 keeps a note that somebody left there.
        (None, Some(_)) => DrainOwner::Other(display_reason(node)),
        // We write both at once, so a taint alone is not ours to take away.
        (None, None)
            if has_drain(node) && SchedulerKind::from_node(node) == SchedulerKind::Kubernetes =>
        {
            DrainOwner::Other(format!("no annotation {REASON}"))
        }
        // Nobody drains without a reason but through slurmrestd.
        (None, None) if has_drain(node) => DrainOwner::Other(display_reason(node)),
        (None, None) => not_ours(),
    }
}

/// Nodes that are drained in our form, and by nothing that this journal knows.
pub fn unrecorded_drains<'l>(
    live: &'l SchedulerSnapshot,
    ledger: &JournalState,
) -> Vec<&'l SchedulerNode> {
    live.nodes.values().filter(|node| is_unrecorded_drain(node, ledger)).collect()
}

/// Whether that is true of this node.
pub(super) fn is_unrecorded_drain(node: &SchedulerNode, ledger: &JournalState) -> bool {
    has_drain(node) && drain_owner(node, ledger) == DrainOwner::Unrecorded
}

/// The same of one node, and what a person can do about it.
pub fn describe_unrecorded(node: &SchedulerNode) -> String {
    format!(
        "its reason is of our form and not in our journal: {}; it is another gate's, or its record \
         was lost: `fabricgate gate adopt {} --why TEXT` takes it over",
        display_reason(node),
        clean(node.name.as_str())
    )
}

/// Why this node must not be drained or relabelled now; `None` where it may be.
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
        "there is no node to drain now",
        "its state is not known; look again",
        "look again after that",
        "look again after that",
    ]) {
        if let Some(told) = describe_flags(node, &[kind]) {
            return Some(format!("{told}: {then}"));
        }
    }
    match drain_owner(node, ledger) {
        DrainOwner::ThisGate(own) => {
            return Some(format!("it is drained already, by us ({})", clean(&own.action.reason)));
        }
        DrainOwner::Unrecorded => {
            return Some(describe_unrecorded(node));
        }
        DrainOwner::Other(barred)
            if !has_drain(node) && has_flag(node, NodeStateFlag::BarredByOthers) =>
        {
            return Some(format!("{barred}, not by us: pods are kept away already"));
        }
        DrainOwner::Other(reason) => {
            let state = describe_flags(
                node,
                &[NodeStateFlag::Drained, NodeStateFlag::Down, NodeStateFlag::NotResponding],
            );
            let state = state.unwrap_or_else(|| "it has a reason".to_owned());
            return Some(format!("{state}, not by us: {reason}; left to whoever did"));
        }
        DrainOwner::NotDrained => {}
    }
    let plane = SchedulerKind::from_node(node);
    let keeps = format!("{} keeps {} away already", plane.name(), plane.workload_name());
    describe_flags(node, &[NodeStateFlag::Down, NodeStateFlag::NotResponding])
        .map(|told| format!("{told}: {keeps}"))
}

/// What whoever reads a plan should know of a node that may be drained.
pub fn drain_remark(node: &SchedulerNode) -> Option<String> {
    let work = SchedulerKind::from_node(node).workload_name();
    let busy = describe_flags(node, &[NodeStateFlag::Busy])
        .map(|told| format!("{told}; its {work} end first"));
    let unseen = describe_flags(node, &[NodeStateFlag::UseUnknown]);
    let out = describe_flags(node, &[NodeStateFlag::Unverified])
        .map(|told| format!("{told}: it takes no pods yet"));
    let kept = describe_flags(node, &[NodeStateFlag::Reserved]).map(|told| {
        let by = node.reservation.as_deref().filter(|name| !name.is_empty());
        let by = by.map(|name| format!(", {}", clean(name))).unwrap_or_default();
        format!("{told}{by}; a drain changes nothing there")
    });
    let remarks: Vec<String> = [busy, unseen, out, kept].into_iter().flatten().collect();
    (!remarks.is_empty()).then(|| remarks.join("; "))
}

/// Why this node must not be given back now, although we drained it; `None`
/// where it may be.
///
/// A node that stopped answering while we had it drained comes back as `DOWN` or
/// with `: Not responding` behind our reason, and needs RESUME like any other.
/// It is given back only where a run that was made after that shows it clean.
/// A cordon or a taint of others beside ours is theirs: it stays, and forbids
/// nothing. So do marks that ask to leave the node alone: what is taken away is
/// ours.
pub fn explain_no_release(node: &SchedulerNode, ledger: &JournalState) -> Option<String> {
    if let Some(why) = explain_unreadable(node) {
        return Some(why);
    }
    let own = match drain_owner(node, ledger) {
        DrainOwner::ThisGate(own) => own,
        DrainOwner::NotDrained => return Some("it is not drained".to_owned()),
        DrainOwner::Unrecorded => return Some(describe_unrecorded(node)),
        DrainOwner::Other(reason) => return Some(format!("it is not ours to give back: {reason}")),
    };
    let now = [
        NodeStateFlag::Absent,
        NodeStateFlag::NotRegistered,
        NodeStateFlag::Rebooting,
        NodeStateFlag::Transitional,
        NodeStateFlag::NotResponding,
    ];
    if let Some(told) = describe_flags(node, &now) {
        let work = SchedulerKind::from_node(node).workload_name();
        return Some(format!("{told}: {work} would land on a node that is not there"));
    }
    if !has_drain(node) {
        return Some("its drain was taken away, and not by us".to_owned());
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
            "it stopped responding since we drained it, and no clean run was made after that"
                .to_owned(),
        );
    }
    None
}

/// What a person, or a reboot, wrote behind our reason; `None` where nothing is
/// there, or only that the node stopped answering. To lift such a drain, if only
/// to measure, could hurt whoever wrote it, and would lose their words.
pub fn appended_text(node: &SchedulerNode) -> Option<String> {
    let reason = own_reason(node)?;
    (reason.appended.is_some() && !reason.is_not_responding_only()).then(|| {
        format!(
            "something happened since we drained it: {}; a person should look",
            display_reason(node)
        )
    })
}

/// Whether a drain of this node has come to its end: `DRAIN` alone does not say
/// so, jobs may still run.
pub fn is_drained(node: &SchedulerNode) -> bool {
    let is_empty = node.has_state("IDLE") || node.has_state("DOWN") || node.has_state("DRAINED");
    let is_busy = has_flag(node, NodeStateFlag::Busy) || node.has_state("DRAINING");
    has_drain(node) && is_empty && !is_busy && node.allocated_cpus.is_none_or(|cpus| cpus == 0)
}

/// Why this node cannot be measured now as it is; `None` where it is idle and
/// in service.
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
            // Its scheduler refuses jobs there: no agent of ours could start.
            node.has_state("EXTERNAL")
                .then(|| "it takes no jobs of this scheduler (EXTERNAL)".to_owned())
        })
        .or_else(|| {
            let cpus = node.allocated_cpus.filter(|cpus| 0 < *cpus)?;
            Some(format!("jobs hold {cpus} of its CPUs"))
        })
        .or_else(|| (!node.has_state("IDLE")).then(|| "it is not idle".to_owned()))
}

/// Why its state says nothing that could be acted on.
fn explain_unreadable(node: &SchedulerNode) -> Option<String> {
    if node.state.is_empty() {
        return Some("its scheduler does not say in which state it is".to_owned());
    }
    let word = node.state.iter().find(|word| parse_flag(word).0 == NodeStateFlag::Unknown)?;
    Some(format!("its state has a word that is not known here: {}", clean(word)))
}

#[cfg(test)]
#[path = "node_state_tests.rs"]
mod tests;
