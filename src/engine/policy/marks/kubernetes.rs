//! What we say on a node of Kubernetes: labels, an annotation, a condition and
//! two taints, all with names of our own.
//!
//! Pure. Whatever others wrote there is not named in a change, so it stays.
//! The taint of a drain is not here: it follows from the change of state.

use super::MarkNames;
use crate::policy::action_policy::Policy;
use crate::policy::{kubernetes_label, slurm_extra_field};
use model::action::VerdictMark;
use model::finding_class::FindingClass;
use model::journal::ClockStamp;
use model::kubernetes_node::{
    CERTIFICATE, DEGRADED, FABRICGATE_PREFIX, FabricNodeCondition, KubernetesNode,
    KubernetesNodeUpdate, PREFER_NO_SCHEDULE, Taint, TaintEdit, UNVERIFIED, VERDICT,
    VERIFIED_DOMAIN,
};
use model::scheduler_snapshot::SchedulerNode;
use model::text::clean;
use model::verdict::Outcome;

/// The condition of a node that passed.
const TRUE: &str = "True";
/// That of one that did not.
const FALSE: &str = "False";
/// That of one of which nothing is known any more.
const UNKNOWN: &str = "Unknown";
/// Why nothing is known: what certified it has ended.
const EXPIRED: &str = "CertificateExpired";
/// Or it is of an earlier boot.
const BOOTED_SINCE: &str = "BootedSince";

/// What is to be written so that the node says this; `is_drain` where its
/// drain says it to the scheduler.
pub(super) fn mark_change(
    node: &KubernetesNode,
    mark: &VerdictMark,
    names: &MarkNames,
    is_drain: bool,
) -> KubernetesNodeUpdate {
    let mut marks =
        KubernetesNodeUpdate { taints: mark_taints(node, mark, is_drain), ..Default::default() };
    if mark.outcome == Outcome::Unknown {
        return KubernetesNodeUpdate::default();
    }
    if names.labels {
        for (key, value) in mark_labels(mark) {
            if node.labels.get(key) != value.as_ref() {
                marks.labels.insert(key.to_owned(), value);
            }
        }
    }
    let is_said = |text: &String| slurm_extra_field::is_entry_of(text, mark);
    if names.extra && !node.annotations.get(CERTIFICATE).is_some_and(is_said) {
        marks
            .annotations
            .insert(CERTIFICATE.to_owned(), Some(slurm_extra_field::format_entry(mark)));
    }
    if names.condition {
        let wanted = mark_condition(mark);
        marks.condition = (node.condition.as_ref() != Some(&wanted)).then_some(wanted);
    }
    marks
}

/// What is said there last, made safe to show.
pub(super) fn read_mark(node: &KubernetesNode) -> Option<VerdictMark> {
    slurm_extra_field::read_entry(node.annotations.get(CERTIFICATE)?)
}

/// Whether something of ours is written there. The start-up taint is not: a
/// node brings it along.
pub(super) fn has_gate_marks(node: &KubernetesNode) -> bool {
    let is_ours = |key: &String| key.starts_with(FABRICGATE_PREFIX);
    node.condition.is_some()
        || node.labels.keys().any(is_ours)
        || node.annotations.keys().any(is_ours)
        || node.taints.iter().any(|taint| taint.key == DEGRADED)
}

/// Our labels, each with what it must be.
fn mark_labels(mark: &VerdictMark) -> [(&'static str, Option<String>); 2] {
    let domain = mark.domain.as_ref().filter(|_| mark.outcome == Outcome::Pass);
    [
        (VERDICT, Some(mark.outcome.to_string())),
        (VERIFIED_DOMAIN, domain.map(|domain| kubernetes_label::label_value(domain.as_str()))),
    ]
}

/// Taints that come and go with a mark. A pass takes the start-up taint away,
/// with whichever effect the node joined, and nothing else ever does; the soft
/// one stays with a node in service, and gives way to a drain.
fn mark_taints(node: &KubernetesNode, mark: &VerdictMark, is_drain: bool) -> Vec<TaintEdit> {
    let is_soft = |taint: &&Taint| taint.key == DEGRADED && taint.effect == PREFER_NO_SCHEDULE;
    let is_start = |taint: &&Taint| taint.key == UNVERIFIED;
    let away = |taint: &Taint| TaintEdit {
        key: taint.key.clone(),
        effect: taint.effect.clone(),
        value: None,
    };
    let soft = node.taints.iter().find(is_soft);
    match mark.outcome {
        Outcome::Unknown => Vec::new(),
        Outcome::Pass => node.taints.iter().filter(is_start).chain(soft).map(away).collect(),
        Outcome::Degraded | Outcome::Failed if is_drain => soft.map(away).into_iter().collect(),
        Outcome::Degraded | Outcome::Failed => {
            let class = mark.class.as_ref().map_or(mark.outcome.as_str(), FindingClass::as_str);
            let wanted = TaintEdit {
                key: DEGRADED.to_owned(),
                effect: PREFER_NO_SCHEDULE.to_owned(),
                value: Some(kubernetes_label::label_value(class)),
            };
            let is_there = soft.map(|taint| &taint.value) == wanted.value.as_ref();
            if is_there { Vec::new() } else { vec![wanted] }
        }
    }
}

fn mark_condition(mark: &VerdictMark) -> FabricNodeCondition {
    let (run, at) = (clean(&mark.run), clean(&mark.at));
    let domain = mark.domain.as_ref();
    let place = domain.map(|name| format!(" in {}", clean(name.as_str()))).unwrap_or_default();
    if mark.outcome == Outcome::Pass {
        let until = mark.expires.as_deref().map(|it| format!(", counts until {}", clean(it)));
        return FabricNodeCondition {
            status: TRUE.to_owned(),
            reason: "Verified".to_owned(),
            message: format!("passed run {run} of {at}{place}{}", until.unwrap_or_default()),
        };
    }
    let class = mark.class.as_ref().map_or(mark.outcome.as_str(), FindingClass::as_str);
    FabricNodeCondition {
        status: FALSE.to_owned(),
        reason: kubernetes_label::condition_reason(class),
        message: format!("{} in run {run} of {at}{place}: {}", mark.outcome, clean(class)),
    }
}

/// What is to be written where the node says otherwise than our record, or says
/// what counts no more.
///
/// The server keeps what it acknowledged, so what is gone was taken away by
/// somebody: that is respected until the next run. What says other than we said
/// was edited, and our record's word counts; it is written again unless the
/// edit claims less than a pass. A condition in our own earlier words is no edit: what
/// replaces it did not arrive, and neither did a first one that is untold. Taints are never put back or taken away here:
/// only a run does.
pub(super) fn restore_marks(
    live: &SchedulerNode,
    mark: &VerdictMark,
    earlier: &EarlierMark<'_>,
    policy: &Policy,
    now: &ClockStamp,
) -> KubernetesNodeUpdate {
    let names = &policy.marks;
    let Some(node) = live.kubernetes.as_deref() else { return KubernetesNodeUpdate::default() };
    if let Some((reason, message)) = expiry_reason(live, mark, policy, now) {
        return expire_mark(node, names, reason, message);
    }
    let mut marks = mark_change(node, mark, names, false);
    marks.taints.clear();
    let passed = mark.outcome == Outcome::Pass;
    let pass = Outcome::Pass.as_str();
    // Only a clock that was ahead takes back what has not expired yet.
    let is_early =
        |it: &FabricNodeCondition| passed && it.status == UNKNOWN && it.reason.as_str() == EXPIRED;
    let is_early = node.condition.as_ref().is_some_and(is_early);
    marks.labels.retain(|key, _| match node.labels.get(key) {
        Some(now) if key == VERDICT => !passed || now == pass,
        now => is_early || now.is_some(),
    });
    let claims_pass = || read_mark(node).is_some_and(|now| now.outcome == Outcome::Pass);
    if !node.annotations.contains_key(CERTIFICATE) || (passed && !claims_pass()) {
        marks.annotations.clear();
    }
    let is_earlier = |now: &FabricNodeCondition| {
        earlier.before.is_some_and(|before| is_condition_of(now, before))
    };
    let is_edited =
        |now: &FabricNodeCondition| !passed || is_early || now.status == TRUE || is_earlier(now);
    let is_wrong = node.condition.as_ref().map_or(earlier.is_unacknowledged, is_edited);
    marks.condition = marks.condition.filter(|_| is_wrong);
    marks
}

/// What the journal knows of a node's condition besides its mark.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EarlierMark<'m> {
    /// What we had said there before.
    pub(super) before: Option<&'m VerdictMark>,
    /// The server did not take what we said last.
    pub(super) is_unacknowledged: bool,
}

/// Whether our condition says what this mark does.
pub(super) fn has_condition_of(node: &KubernetesNode, mark: &VerdictMark) -> bool {
    node.condition.as_ref().is_some_and(|now| is_condition_of(now, mark))
}

/// Whether a condition is what we said by this mark, or when its pass counted no more.
fn is_condition_of(now: &FabricNodeCondition, mark: &VerdictMark) -> bool {
    *now == mark_condition(mark)
        || (now.status == UNKNOWN
            && now.reason == BOOTED_SINCE
            && now.message == explain_reboot(mark))
}

/// Why a pass of an earlier boot counts no more.
fn explain_reboot(mark: &VerdictMark) -> String {
    format!("it has booted since run {} passed it; not measured since", clean(&mark.run))
}

/// Why a pass counts no more: a word for programs and a sentence. A boot since is no
/// reason where the policy says so, also for what was said while it said otherwise.
pub(super) fn expiry_reason(
    live: &SchedulerNode,
    mark: &VerdictMark,
    policy: &Policy,
    now: &ClockStamp,
) -> Option<(&'static str, String)> {
    if mark.outcome != Outcome::Pass {
        return None;
    }
    if let (Some(then), Some(is)) = (&mark.boot_id, &live.boot_id)
        && then != is
        && policy.certificate_void.boot
    {
        return Some((BOOTED_SINCE, explain_reboot(mark)));
    }
    // Both are RFC 3339 in UTC, which orders as text does.
    let expires = mark.expires.as_ref().filter(|expires| **expires <= now.at)?;
    let run = clean(&mark.run);
    let message = format!("run {run} passed it, which counted until {}", clean(expires));
    Some((EXPIRED, message))
}

/// What says on the node that it passed is taken back: nothing is known of it
/// now. The annotation stays, with its own expiry and boot in it.
fn expire_mark(
    node: &KubernetesNode,
    names: &MarkNames,
    reason: &str,
    message: String,
) -> KubernetesNodeUpdate {
    let mut marks = KubernetesNodeUpdate::default();
    if names.labels {
        let says_pass =
            |key: &str, value: &String| key == VERIFIED_DOMAIN || value == Outcome::Pass.as_str();
        let own = [VERDICT, VERIFIED_DOMAIN].into_iter();
        let said = own.filter(|key| node.labels.get(*key).is_some_and(|it| says_pass(key, it)));
        marks.labels = said.map(|key| (key.to_owned(), None)).collect();
    }
    if names.condition && node.condition.as_ref().is_some_and(|now| now.status == TRUE) {
        let (status, reason) = (UNKNOWN.to_owned(), reason.to_owned());
        marks.condition = Some(FabricNodeCondition { status, reason, message });
    }
    marks
}

#[cfg(test)]
#[path = "kubernetes_tests.rs"]
mod tests;
