//! What a node's state with its scheduler means for us: whether it is in use,
//! whose a drain is, and what may be done to it.
//!
//! Pure. A word that is not known here is a reason to leave the node alone. A
//! node of Kubernetes is told in Slurm's words where they mean the same, and in
//! some of its own.

use super::ledger::Ledger;
use super::ledger::OwnDrain;
use super::plane::Plane;
use super::reason;
use super::reason::OwnReason;
pub use crate::inventory::kubernetes::live::PODS_UNREAD;
use crate::model::id::NodeName;
use crate::model::kubernetes_node::DEGRADED;
use crate::model::kubernetes_node::GATE;
use crate::model::kubernetes_node::REASON;
use crate::model::live::Live;
use crate::model::live::LiveNode;
use crate::model::text::clean;

/// Whose a drain is.
#[derive(Clone, Debug, PartialEq)]
pub enum Owner<'a> {
    /// Nobody drained it.
    Nobody,
    /// We did, and our journal knows it.
    Us(&'a OwnDrain),
    /// It carries our prefix, and our journal does not know it: another gate's,
    /// or one whose record was lost.
    Unrecorded,
    /// Somebody else.
    Other(String),
}

/// What one word of a state says (`sinfo(1)`, NODE STATE CODES, and the words of
/// `scontrol show node --json` of Slurm 24.11 and 26.05).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    /// Nothing that matters here: how the node came to be, an idle one.
    Plain,
    /// Jobs run, or their last processes end.
    Busy,
    /// Somebody keeps new jobs away.
    Drained,
    /// Slurm itself keeps jobs away.
    Down,
    /// The node does not answer.
    Lost,
    /// The controller has not heard of it yet.
    Unheard,
    /// A reboot is asked for or under way.
    Rebooting,
    /// There is no machine now, or it comes and goes.
    Absent,
    /// The scheduler keeps it for something: a drain leaves that alone.
    Kept,
    /// It is between two states.
    Changing,
    /// Others keep new pods away, by a cordon or a taint of theirs.
    Barred,
    /// It takes nothing until something is known of it: it carries our start-up
    /// taint, or one that goes when a condition is true, which may be ours.
    Unproven,
    /// Who uses it could not be read.
    Unseen,
    /// Nobody here knows.
    Unknown,
}

/// Every word, with what it says and how that is told.
const WORDS: &[(&str, Word, &str)] = &[
    ("IDLE", Word::Plain, "is idle"),
    ("CLOUD", Word::Plain, "is a cloud node"),
    ("DYNAMIC_NORM", Word::Plain, "was added at run time"),
    ("DYNAMIC_FUTURE", Word::Plain, "was added at run time"),
    ("PERFCTRS", Word::Plain, "has its counters in use"),
    ("EXTERNAL", Word::Plain, "is run by somebody else's agent"),
    ("ALLOCATED", Word::Busy, "is allocated to jobs"),
    ("MIXED", Word::Busy, "is allocated in part"),
    ("COMPLETING", Word::Busy, "has jobs that are ending"),
    ("DRAIN", Word::Drained, "is drained"),
    ("DRAINED", Word::Drained, "is drained"),
    ("DRAINING", Word::Drained, "is draining"),
    ("DOWN", Word::Down, "is down"),
    ("ERROR", Word::Down, "is in an error state"),
    ("FAIL", Word::Down, "is marked to fail"),
    ("FAILING", Word::Down, "is marked to fail"),
    ("INVALID_REG", Word::Down, "registered with less than is configured"),
    ("NOT_RESPONDING", Word::Lost, "does not respond"),
    ("UNKNOWN", Word::Unheard, "has not answered the controller since that started"),
    ("REBOOT_REQUESTED", Word::Rebooting, "is to be rebooted"),
    ("REBOOT_ISSUED", Word::Rebooting, "is being rebooted"),
    ("FUTURE", Word::Absent, "is configured for the future"),
    ("POWERED_DOWN", Word::Absent, "is powered down"),
    ("POWERING_DOWN", Word::Absent, "is powering down"),
    ("POWER_DOWN", Word::Absent, "is about to be powered down"),
    ("POWERING_UP", Word::Absent, "is powering up"),
    ("POWER_UP", Word::Absent, "is about to be powered up"),
    ("PLANNED", Word::Kept, "is planned for a job"),
    ("RESERVED", Word::Kept, "is reserved"),
    ("MAINTENANCE", Word::Kept, "is in a maintenance reservation"),
    ("BLOCKED", Word::Kept, "is blocked by a job that holds its block alone"),
    ("RESUME", Word::Changing, "is being resumed"),
    ("UNDRAIN", Word::Changing, "is being resumed"),
    // The words that a node of Kubernetes has besides.
    ("NOT_READY", Word::Lost, "is not ready"),
    ("DELETING", Word::Absent, "is being deleted"),
    (CORDONED, Word::Barred, "is cordoned"),
    ("TAINTED", Word::Barred, "has a taint of somebody else that keeps pods away"),
    (UNVERIFIED, Word::Unproven, "has not been certified since it joined"),
    ("AWAITED", Word::Unproven, "is kept out until a condition of it is true"),
    ("TESTING", Word::Kept, "is in use by another prober or a compute domain"),
    (PODS_UNREAD, Word::Unseen, "has pods that could not be read"),
];

/// Somebody cordoned it.
pub const CORDONED: &str = "CORDONED";
/// It carries our start-up taint.
pub const UNVERIFIED: &str = "UNVERIFIED";

fn meaning(word: &str) -> (Word, &'static str) {
    let known = WORDS.iter().find(|(name, _, _)| *name == word);
    known.map_or((Word::Unknown, "has a state that is not known here"), |(_, w, told)| (*w, told))
}

fn has(node: &LiveNode, kind: Word) -> bool {
    node.state.iter().any(|word| meaning(word).0 == kind)
}

/// How the words of these kinds are told, with the words themselves.
fn told(node: &LiveNode, kinds: &[Word]) -> Option<String> {
    let those = node.state.iter().filter(|word| kinds.contains(&meaning(word).0));
    let told: Vec<String> =
        those.map(|word| format!("it {} ({})", in_words(node, word), clean(word))).collect();
    (!told.is_empty()).then(|| told.join(", "))
}

/// What a word says, as people of this plane say it.
fn in_words(node: &LiveNode, word: &str) -> String {
    match (Plane::of(node), meaning(word).0) {
        (Plane::Kubernetes, Word::Busy) => "has pods that hold GPUs".to_owned(),
        (Plane::Kubernetes, Word::Drained) => format!("has the taint {DEGRADED}"),
        _ => meaning(word).1.to_owned(),
    }
}

/// What somebody says who asks that a node be left alone, or is at work on it.
fn left_alone(node: &LiveNode) -> Option<String> {
    let marks = node.kubernetes.as_ref().map(|it| &it.left_alone).filter(|it| !it.is_empty())?;
    let marks: Vec<String> = marks.iter().map(|mark| clean(mark)).collect();
    Some(format!("somebody asks that it be left alone: {}", marks.join(", ")))
}

/// Whether it takes no pods until something is known of it.
pub fn is_unverified(node: &LiveNode) -> bool {
    has(node, Word::Unproven)
}

/// Whether it is known who uses it. On Slurm always; a node of Kubernetes
/// whose pods were not read is neither idle nor busy for all we know.
pub fn is_use_known(node: &LiveNode) -> bool {
    let is_said = node.is("IDLE") || has(node, Word::Busy);
    Plane::of(node) == Plane::Slurm || (is_said && !has(node, Word::Unseen))
}

/// Its reason, where it has one.
fn reason_of(node: &LiveNode) -> Option<&str> {
    node.reason.as_deref().map(str::trim).filter(|text| !text.is_empty())
}

/// Its reason as it is shown: cleaned, and with who wrote it.
pub fn shown_reason(node: &LiveNode) -> String {
    /// Longer ones are stored by Slurm and read by nobody.
    const LONGEST: usize = 120;
    let Some(text) = reason_of(node) else { return "no reason".to_owned() };
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
fn drained(node: &LiveNode) -> String {
    if Plane::of(node) == Plane::Slurm || reason_of(node).is_some() {
        return format!("it is drained ({})", shown_reason(node));
    }
    format!(
        "it has the taint {DEGRADED} without the annotation {REASON}, which is not ours to take \
         away: `kubectl taint node {} {DEGRADED}:NoSchedule-` does",
        clean(node.name.as_str())
    )
}

/// Why nothing is done to what a name means that is not one node's: `scontrol`
/// would read it as a list, a function, or the whole cluster.
pub(super) fn not_one(name: &NodeName) -> String {
    format!("{:?} would not be read as the name of one node", name.as_str())
}

/// Whether somebody, we included, keeps new jobs away from it.
pub fn has_drain(node: &LiveNode) -> bool {
    has(node, Word::Drained)
}

/// Whether it takes no new jobs, for whatever reason: what counts as out when
/// the next drain is priced. Nodes that are kept for a job are not out.
pub fn is_out(node: &LiveNode) -> bool {
    is_out_anyway(node) || is_unverified(node)
}

/// Whether it would take no new jobs without our start-up taint either.
fn is_out_anyway(node: &LiveNode) -> bool {
    let out = [
        Word::Drained,
        Word::Down,
        Word::Lost,
        Word::Unheard,
        Word::Rebooting,
        Word::Absent,
        Word::Barred,
        Word::Unknown,
    ];
    node.state.is_empty() || out.iter().any(|kind| has(node, *kind))
}

/// Why nothing is said now on a node that passed; `None` where it may be. A
/// start-up taint is no reason: a pass is what takes it away.
pub fn may_not_certify(node: &LiveNode) -> Option<String> {
    if node.state.is_empty() {
        return Some("the scheduler does not say in which state it is".to_owned());
    }
    let words: Vec<String> = node.state.iter().map(|word| clean(word)).collect();
    left_alone(node).or_else(|| {
        (is_out_anyway(node) || is_passing(node))
            .then(|| format!("it is out of service ({})", words.join("+")))
    })
}

/// Whether its state is one of a moment, of which nothing can be said: the
/// controller has not heard of it, it reboots, or there is no machine.
pub fn is_passing(node: &LiveNode) -> bool {
    let kinds = [Word::Unheard, Word::Rebooting, Word::Absent, Word::Changing, Word::Unknown];
    node.state.is_empty() || kinds.iter().any(|kind| has(node, *kind))
}

/// Our reason on this node, where it carries one.
pub fn own_reason(node: &LiveNode) -> Option<OwnReason> {
    reason_of(node).and_then(reason::read)
}

/// Whether a node carries the reason of this drain, whatever was appended.
pub(super) fn carries(node: &LiveNode, drain: &OwnDrain) -> bool {
    let written = reason::read(&drain.action.reason);
    own_reason(node).zip(written).is_some_and(|(now, then)| now.is_same(&then))
}

/// Whether the node says that another gate than this one drained it. One that says
/// nothing was drained by an earlier version, or by hand as a plan says.
pub fn is_of_another_gate(node: &LiveNode, ledger: &Ledger) -> bool {
    let gate = node.kubernetes.as_ref().and_then(|it| it.annotations.get(GATE));
    gate.is_some_and(|gate| !ledger.gate.is_empty() && *gate != ledger.gate)
}

/// Whether a node carries our drain, as this journal has it.
pub fn carries_ours(node: &LiveNode, drain: &OwnDrain, ledger: &Ledger) -> bool {
    carries(node, drain) && !is_of_another_gate(node, ledger)
}

/// Whose the drain of this node is.
pub fn owner<'a>(node: &LiveNode, ledger: &'a Ledger) -> Owner<'a> {
    let is_kept = has_drain(node) || has(node, Word::Down) || has(node, Word::Lost);
    let not_ours = || told(node, &[Word::Barred]).map_or(Owner::Nobody, Owner::Other);
    match (own_reason(node), reason_of(node)) {
        // Ours outlives our drain where a person only took the flag away.
        (Some(_), _) if !is_kept => not_ours(),
        (Some(_), _) => {
            let own = ledger.drains.get(&node.name);
            own.filter(|own| carries_ours(node, own, ledger)).map_or(Owner::Unrecorded, Owner::Us)
        }
        // Also on a node in service: 24.11 keeps a note that somebody left there.
        (None, Some(_)) => Owner::Other(shown_reason(node)),
        // We write both at once, so a taint alone is not ours to take away.
        (None, None) if has_drain(node) && Plane::of(node) == Plane::Kubernetes => {
            Owner::Other(format!("no annotation {REASON}"))
        }
        // Nobody drains without a reason but through slurmrestd.
        (None, None) if has_drain(node) => Owner::Other(shown_reason(node)),
        (None, None) => not_ours(),
    }
}

/// Nodes that are drained in our form, and by nothing that this journal knows.
pub fn unrecorded<'l>(live: &'l Live, ledger: &Ledger) -> Vec<&'l LiveNode> {
    live.nodes.values().filter(|node| unrecorded_one(node, ledger)).collect()
}

/// Whether that is true of this node.
pub(super) fn unrecorded_one(node: &LiveNode, ledger: &Ledger) -> bool {
    has_drain(node) && owner(node, ledger) == Owner::Unrecorded
}

/// The same of one node, and what a person can do about it.
pub fn unrecorded_in_words(node: &LiveNode) -> String {
    format!(
        "its reason is of our form and not in our journal: {}; it is another gate's, or its record \
         was lost: `fabricgate gate adopt {} --why TEXT` takes it over",
        shown_reason(node),
        clean(node.name.as_str())
    )
}

/// Why this node must not be drained or relabelled now; `None` where it may be.
pub fn may_not_drain(node: &LiveNode, ledger: &Ledger) -> Option<String> {
    if let Some(why) = unreadable(node).or_else(|| left_alone(node)) {
        return Some(why);
    }
    let wait = [Word::Absent, Word::Unheard, Word::Rebooting, Word::Changing];
    for (kind, then) in wait.into_iter().zip([
        "there is no node to drain now",
        "its state is not known; look again",
        "look again after that",
        "look again after that",
    ]) {
        if let Some(told) = told(node, &[kind]) {
            return Some(format!("{told}: {then}"));
        }
    }
    match owner(node, ledger) {
        Owner::Us(own) => {
            return Some(format!("it is drained already, by us ({})", clean(&own.action.reason)));
        }
        Owner::Unrecorded => {
            return Some(unrecorded_in_words(node));
        }
        Owner::Other(barred) if !has_drain(node) && has(node, Word::Barred) => {
            return Some(format!("{barred}, not by us: pods are kept away already"));
        }
        Owner::Other(reason) => {
            let state = told(node, &[Word::Drained, Word::Down, Word::Lost]);
            let state = state.unwrap_or_else(|| "it has a reason".to_owned());
            return Some(format!("{state}, not by us: {reason}; left to whoever did"));
        }
        Owner::Nobody => {}
    }
    let plane = Plane::of(node);
    let keeps = format!("{} keeps {} away already", plane.name(), plane.work());
    told(node, &[Word::Down, Word::Lost]).map(|told| format!("{told}: {keeps}"))
}

/// What whoever reads a plan should know of a node that may be drained.
pub fn remark(node: &LiveNode) -> Option<String> {
    let work = Plane::of(node).work();
    let busy = told(node, &[Word::Busy]).map(|told| format!("{told}; its {work} end first"));
    let unseen = told(node, &[Word::Unseen]);
    let out = told(node, &[Word::Unproven]).map(|told| format!("{told}: it takes no pods yet"));
    let kept = told(node, &[Word::Kept]).map(|told| {
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
pub fn may_not_release(node: &LiveNode, ledger: &Ledger) -> Option<String> {
    if let Some(why) = unreadable(node) {
        return Some(why);
    }
    let own = match owner(node, ledger) {
        Owner::Us(own) => own,
        Owner::Nobody => return Some("it is not drained".to_owned()),
        Owner::Unrecorded => return Some(unrecorded_in_words(node)),
        Owner::Other(reason) => return Some(format!("it is not ours to give back: {reason}")),
    };
    let now = [Word::Absent, Word::Unheard, Word::Rebooting, Word::Changing, Word::Lost];
    if let Some(told) = told(node, &now) {
        let work = Plane::of(node).work();
        return Some(format!("{told}: {work} would land on a node that is not there"));
    }
    if !has_drain(node) {
        return Some("its drain was taken away, and not by us".to_owned());
    }
    let not_down = node.state.iter().filter(|word| *word != "DOWN");
    if let Some(word) = not_down.clone().find(|word| meaning(word).0 == Word::Down) {
        return Some(format!("it {} ({word}): RESUME would hide that", meaning(word).1));
    }
    if let Some(why) = was_added_to(node) {
        return Some(why);
    }
    let was_lost = own_reason(node)?.was_lost_only() || node.is("DOWN");
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
pub fn was_added_to(node: &LiveNode) -> Option<String> {
    let reason = own_reason(node)?;
    (reason.appended.is_some() && !reason.was_lost_only()).then(|| {
        format!(
            "something happened since we drained it: {}; a person should look",
            shown_reason(node)
        )
    })
}

/// Whether a drain of this node has come to its end: `DRAIN` alone does not say
/// so, jobs may still run.
pub fn is_drained(node: &LiveNode) -> bool {
    let is_empty = node.is("IDLE") || node.is("DOWN") || node.is("DRAINED");
    let is_busy = has(node, Word::Busy) || node.is("DRAINING");
    has_drain(node) && is_empty && !is_busy && node.allocated_cpus.is_none_or(|cpus| cpus == 0)
}

/// Why this node cannot be measured now as it is; `None` where it is idle and
/// in service.
pub fn may_not_measure(node: &LiveNode) -> Option<String> {
    let in_the_way = [
        Word::Absent,
        Word::Unheard,
        Word::Rebooting,
        Word::Changing,
        Word::Lost,
        Word::Down,
        Word::Busy,
        Word::Kept,
        Word::Barred,
        Word::Unseen,
    ];
    unreadable(node)
        .or_else(|| left_alone(node))
        .or_else(|| has_drain(node).then(|| drained(node)))
        .or_else(|| told(node, &in_the_way))
        .or_else(|| {
            // Its scheduler refuses jobs there: no agent of ours could start.
            node.is("EXTERNAL").then(|| "it takes no jobs of this scheduler (EXTERNAL)".to_owned())
        })
        .or_else(|| {
            let cpus = node.allocated_cpus.filter(|cpus| 0 < *cpus)?;
            Some(format!("jobs hold {cpus} of its CPUs"))
        })
        .or_else(|| (!node.is("IDLE")).then(|| "it is not idle".to_owned()))
}

/// Why its state says nothing that could be acted on.
fn unreadable(node: &LiveNode) -> Option<String> {
    if node.state.is_empty() {
        return Some("its scheduler does not say in which state it is".to_owned());
    }
    let word = node.state.iter().find(|word| meaning(word).0 == Word::Unknown)?;
    Some(format!("its state has a word that is not known here: {}", clean(word)))
}

#[cfg(test)]
#[path = "standing_tests.rs"]
mod tests;
