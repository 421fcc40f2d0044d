//! fabricgate's marks on a Kubernetes node: labels, an annotation, a condition and two taints,
//! all under fabricgate's names.
//!
//! Pure. A change does not name entries of others, so they stay. The taint of a drain is not
//! handled here: it follows from the change of state.

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

/// The condition's status on a node that passed.
const TRUE: &str = "True";
/// Its status on a node that did not pass.
const FALSE: &str = "False";
/// Its status on a node of unknown state.
const UNKNOWN: &str = "Unknown";
/// Reason for an unknown state: the certificate has expired.
const EXPIRED: &str = "CertificateExpired";
/// Reason for an unknown state: the certificate is of an earlier boot.
const BOOTED_SINCE: &str = "BootedSince";

/// The change that puts this mark on the node; `is_drain` if its drain's taint replaces the
/// soft one.
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

/// The last mark on the node, safe to display.
pub(super) fn read_mark(node: &KubernetesNode) -> Option<VerdictMark> {
    slurm_extra_field::read_entry(node.annotations.get(CERTIFICATE)?)
}

/// Whether the node has fabricgate's marks. The start-up taint does not count: a node joins
/// with it.
pub(super) fn has_gate_marks(node: &KubernetesNode) -> bool {
    let is_ours = |key: &String| key.starts_with(FABRICGATE_PREFIX);
    node.condition.is_some()
        || node.labels.keys().any(is_ours)
        || node.annotations.keys().any(is_ours)
        || node.taints.iter().any(|taint| taint.key == DEGRADED)
}

/// fabricgate's labels and their required values.
fn mark_labels(mark: &VerdictMark) -> [(&'static str, Option<String>); 2] {
    let domain = mark.domain.as_ref().filter(|_| mark.outcome == Outcome::Pass);
    [
        (VERDICT, Some(mark.outcome.to_string())),
        (VERIFIED_DOMAIN, domain.map(|domain| kubernetes_label::label_value(domain.as_str()))),
    ]
}

/// Taints that follow a mark. A pass removes the start-up taint, with any effect that the node
/// joined with; nothing else removes it. The soft taint stays on a node in service and is
/// replaced by a drain.
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

/// The change for a node whose marks differ from the journal or no longer count.
///
/// The server keeps accepted changes, so a missing mark was removed by another party: fabricgate
/// respects that until the next run. A mark with other contents was edited, and the journal wins:
/// it is written again, unless the edit claims less than a pass. A condition with fabricgate's
/// earlier contents does not count as an edit: its replacement did not arrive; the same applies to
/// a first condition that the server never acknowledged. Taints are neither restored nor removed
/// here: only a run does that.
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
    // An unexpired pass is withdrawn only if a clock was ahead.
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

/// Facts in the journal about a node's condition, in addition to its mark.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EarlierMark<'m> {
    /// The mark before the last one.
    pub(super) before: Option<&'m VerdictMark>,
    /// The server did not accept the last condition.
    pub(super) is_unacknowledged: bool,
}

/// Whether fabricgate's condition agrees with this mark.
pub(super) fn has_condition_of(node: &KubernetesNode, mark: &VerdictMark) -> bool {
    node.condition.as_ref().is_some_and(|now| is_condition_of(now, mark))
}

/// Whether a condition is the one written for this mark, or for the end of its pass.
fn is_condition_of(now: &FabricNodeCondition, mark: &VerdictMark) -> bool {
    *now == mark_condition(mark)
        || (now.status == UNKNOWN
            && now.reason == BOOTED_SINCE
            && now.message == explain_reboot(mark))
}

/// Why a pass of an earlier boot no longer counts.
fn explain_reboot(mark: &VerdictMark) -> String {
    format!("it has booted since run {} passed it; not measured since", clean(&mark.run))
}

/// Why a pass no longer counts: a token for programs and a sentence. A boot since then is not a
/// reason if the policy excludes it, also for marks written under another policy.
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
    // Both are RFC 3339 in UTC, whose text order is the time order.
    let expires = mark.expires.as_ref().filter(|expires| **expires <= now.at)?;
    let run = clean(&mark.run);
    let message = format!("run {run} passed it, which counted until {}", clean(expires));
    Some((EXPIRED, message))
}

/// Withdraws the mark of a pass from the node: its state is unknown now. The annotation stays,
/// with its own expiry and boot.
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
        let claimed = own.filter(|key| node.labels.get(*key).is_some_and(|it| says_pass(key, it)));
        marks.labels = claimed.map(|key| (key.to_owned(), None)).collect();
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
