//! The events of a turn of the gate and of an allocation, and their text in a log.
//!
//! Pure. Node lists are folded host lists, and texts of other programs are clean.

#![expect(missing_docs, reason = "variants and fields have the names of what they hold")]

use std::fmt;

use model::action::ActionKind;
use model::id::{DomainName, NodeName};

/// An event that is logged while the gate runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateEvent {
    /// A note of the journal about its own file.
    JournalNote(String),
    /// Actions of an earlier process have no outcome yet.
    OpenActions {
        count: usize,
    },
    /// The scheduler's store has lost drains.
    DrainsLost {
        store: &'static str,
        nodes: String,
        outcome: LostDrainOutcome,
    },
    /// An earlier version took out a single GPU; the line names the remedy.
    SingleGpuMark(String),
    /// A drain in fabricgate's format that the journal does not know.
    UnrecordedDrain {
        node: String,
        why: String,
    },
    /// Marks were written again.
    MarksRestored {
        nodes: String,
        detail: String,
    },
    CertificateIgnored {
        why: String,
    },
    CertificateNotVoided {
        node: NodeName,
        why: String,
    },
    /// A part of the scheduler's answer is unreadable.
    AnswerUnreadable {
        why: String,
    },
    /// More parts of the answer are unreadable.
    AnswerUnreadableMore {
        count: usize,
    },
    UpdateStarted {
        update: StartedUpdate,
        nodes: String,
    },
    /// The change may lack a part, for example without a permission.
    UpdateIncomplete {
        why: String,
    },
    /// The scheduler acknowledged a change and lost it.
    UpdateLost {
        nodes: String,
    },
    UpdatesPersisting,
    /// A change without a journaled outcome, for example because the disk is full.
    OutcomeUnjournaled {
        kind: ActionKind,
        nodes: String,
    },
    ReservationRequested {
        nodes: String,
        name: String,
    },
    ReservationNotRenewed {
        name: String,
        why: String,
    },
    ResumeFailed {
        nodes: String,
        why: String,
    },
    NodesAwaited {
        nodes: String,
        waited_s: u64,
    },
    BusyNodesAwaited {
        nodes: String,
        waited_s: u64,
        limit_s: u64,
        why: String,
    },
    JobQueued {
        domain: DomainName,
        nodes: String,
        limit_s: u64,
    },
    JobStarted {
        domain: DomainName,
        job: String,
        nodes: String,
    },
    JobFailed {
        domain: DomainName,
        why: String,
    },
    /// A node offers fewer GPUs than claimed.
    FewerGpusOffered {
        node: NodeName,
        resource: String,
        offered: u32,
        claimed: u32,
    },
    PodsAwaited {
        nodes: String,
        waited_s: u64,
        why: String,
    },
    PodDeletionFailed {
        node: NodeName,
        why: String,
    },
    /// An allocation of an ended process was freed.
    OrphanFreed {
        subject: String,
        pid: Option<u32>,
        detail: String,
    },
    /// An allocation cannot be freed now.
    OrphanKept {
        subject: String,
        when: OrphanRetry,
        why: String,
    },
    /// A process that may be alive on another host needs an allocation.
    OrphanOwnerUnknown {
        subject: String,
        owner: String,
        remedy: String,
    },
    /// Allocations of a launcher that this configuration does not have.
    OrphansOfOtherLauncher {
        names: String,
    },
    /// The objects of earlier runs in the cluster could not be listed.
    OrphansUnknown {
        why: String,
    },
}

/// Treatment of drains that the scheduler lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LostDrainOutcome {
    /// A dry run.
    WouldRestore,
    Restoring,
    NotRestored {
        why: String,
    },
}

/// The change that an update makes to its nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StartedUpdate {
    Drain { reason: String },
    Mark,
    Release,
}

/// The next attempt to free an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrphanRetry {
    NextTurn,
    Later,
}

impl fmt::Display for GateEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::JournalNote(line) | Self::SingleGpuMark(line) => f.write_str(line),
            Self::OpenActions { count } => {
                write!(f, "checking {count} actions that began but have no outcome")
            }
            Self::DrainsLost { store, nodes, outcome } => {
                write!(f, "{store} lost the fabricgate drain of {nodes}")?;
                match outcome {
                    LostDrainOutcome::WouldRestore => f.write_str(": it would be restored"),
                    LostDrainOutcome::Restoring => f.write_str("; draining again"),
                    LostDrainOutcome::NotRestored { why } => {
                        write!(f, "; it is not restored: {why}")
                    }
                }
            }
            Self::UnrecordedDrain { node, why } => {
                write!(f, "{node}: {why}; until then it counts in the budgets")
            }
            Self::MarksRestored { nodes, detail } => {
                write!(f, "marks of {nodes} were not as recorded or are outdated by now: {detail}")
            }
            Self::CertificateIgnored { why } => write!(f, "certificate ignored: {why}"),
            Self::CertificateNotVoided { node, why } => {
                write!(f, "the certificate of {node} is not voided: {why}")
            }
            Self::AnswerUnreadable { why } => write!(f, "not read: {why}"),
            Self::AnswerUnreadableMore { count } => write!(f, "and {count} more"),
            Self::UpdateStarted { update, nodes } => match update {
                StartedUpdate::Drain { reason } => write!(f, "draining {nodes}: {reason}"),
                StartedUpdate::Release => write!(f, "releasing {nodes}"),
                StartedUpdate::Mark => write!(f, "marking {nodes}"),
            },
            Self::UpdateIncomplete { why } => write!(f, "the change is incomplete: {why}"),
            Self::UpdateLost { nodes } => {
                write!(f, "{nodes}: acknowledged but lost; trying again")
            }
            Self::UpdatesPersisting => {
                f.write_str("waiting until the scheduler has persisted the changes")
            }
            Self::OutcomeUnjournaled { kind, nodes } => {
                let done = match kind {
                    ActionKind::Drain => "drain requested",
                    ActionKind::Release => "released",
                    ActionKind::Relabel | ActionKind::Certify => "marked",
                };
                write!(f, "{nodes}: {done}, but the outcome could not be journaled; ")?;
                f.write_str("the next turn checks")
            }
            Self::ReservationRequested { nodes, name } => write!(f, "reserving {nodes} as {name}"),
            Self::ReservationNotRenewed { name, why } => {
                write!(f, "reservation {name} is not renewed: {why}")
            }
            Self::ResumeFailed { nodes, why } => write!(f, "resuming {nodes}: {why}"),
            Self::NodesAwaited { nodes, waited_s } => {
                write!(f, "waiting for {nodes} since {waited_s} s")
            }
            Self::BusyNodesAwaited { nodes, waited_s, limit_s, why } => {
                write!(f, "waiting for {nodes} since {waited_s} of {limit_s} s: {why}")
            }
            Self::JobQueued { domain, nodes, limit_s } => {
                write!(f, "{domain}: queueing for {nodes}, up to {limit_s} s")
            }
            Self::JobStarted { domain, job, nodes } => {
                write!(f, "{domain}: job {job} holds {nodes}")
            }
            Self::JobFailed { domain, why } => write!(f, "{domain}: {why}"),
            Self::FewerGpusOffered { node, resource, offered, claimed } => {
                write!(f, "{node} offers {offered} {resource}, and {claimed} are claimed")
            }
            Self::PodsAwaited { nodes, waited_s, why } => {
                write!(f, "pods on {nodes} do not run after {waited_s} s: {why}")
            }
            Self::PodDeletionFailed { node, why } => write!(f, "the pod on {node}: {why}"),
            Self::OrphanFreed { subject, pid: Some(pid), detail } => {
                write!(f, "left behind by process {pid}: {subject}: {detail}")
            }
            Self::OrphanFreed { subject, pid: None, detail } => {
                write!(f, "left behind, in no journal of this host: {subject}: {detail}")
            }
            Self::OrphanKept { subject, when: OrphanRetry::NextTurn, why } => {
                write!(f, "{subject} cannot be freed now; the next turn retries: {why}")
            }
            Self::OrphanKept { subject, when: OrphanRetry::Later, why } => {
                write!(f, "{subject} cannot be removed now: {why}")
            }
            Self::OrphanOwnerUnknown { subject, owner, remedy } => {
                write!(f, "{subject} by {owner}, whose state is unknown here{remedy}")
            }
            Self::OrphansOfOtherLauncher { names } => {
                write!(f, "{names} may still hold nodes; a configuration with their launcher ")?;
                f.write_str("frees them")
            }
            Self::OrphansUnknown { why } => {
                write!(f, "objects that earlier runs left in the cluster are unknown: {why}")
            }
        }
    }
}
