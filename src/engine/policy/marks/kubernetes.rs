//! What we say on a node of Kubernetes: labels, an annotation, a condition and
//! two taints, all with names of our own.
//!
//! Pure. Whatever others wrote there is not named in a change, so it stays.
//! The taint of a drain is not here: it follows from the change of state.

use super::MarkNames;
use crate::policy::extra;
use crate::policy::label;
use crate::policy::policy::Policy;
use model::action::Mark;
use model::finding_class::FindingClass;
use model::journal::Stamp;
use model::kubernetes_node::CERTIFICATE;
use model::kubernetes_node::Condition;
use model::kubernetes_node::DEGRADED;
use model::kubernetes_node::KubernetesMarks;
use model::kubernetes_node::KubernetesNode;
use model::kubernetes_node::PREFER_NO_SCHEDULE;
use model::kubernetes_node::PREFIX;
use model::kubernetes_node::Taint;
use model::kubernetes_node::TaintEdit;
use model::kubernetes_node::UNVERIFIED;
use model::kubernetes_node::VERDICT;
use model::kubernetes_node::VERIFIED_DOMAIN;
use model::live::LiveNode;
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
const BOOTED: &str = "BootedSince";

/// What is to be written so that the node says this; `is_drain` where its
/// drain says it to the scheduler.
pub(super) fn change(
    node: &KubernetesNode,
    mark: &Mark,
    names: &MarkNames,
    is_drain: bool,
) -> KubernetesMarks {
    let mut marks = KubernetesMarks { taints: taints(node, mark, is_drain), ..Default::default() };
    if mark.outcome == Outcome::Unknown {
        return KubernetesMarks::default();
    }
    if names.labels {
        for (key, value) in labels(mark) {
            if node.labels.get(key) != value.as_ref() {
                marks.labels.insert(key.to_owned(), value);
            }
        }
    }
    let is_said = |text: &String| extra::entry_says(text, mark);
    if names.extra && !node.annotations.get(CERTIFICATE).is_some_and(is_said) {
        marks.annotations.insert(CERTIFICATE.to_owned(), Some(extra::entry(mark)));
    }
    if names.condition {
        let wanted = condition(mark);
        marks.condition = (node.condition.as_ref() != Some(&wanted)).then_some(wanted);
    }
    marks
}

/// What is said there last, made safe to show.
pub(super) fn read(node: &KubernetesNode) -> Option<Mark> {
    extra::read_entry(node.annotations.get(CERTIFICATE)?)
}

/// Whether something of ours is written there. The start-up taint is not: a
/// node brings it along.
pub(super) fn is_there(node: &KubernetesNode) -> bool {
    let is_ours = |key: &String| key.starts_with(PREFIX);
    node.condition.is_some()
        || node.labels.keys().any(is_ours)
        || node.annotations.keys().any(is_ours)
        || node.taints.iter().any(|taint| taint.key == DEGRADED)
}

/// Our labels, each with what it must be.
fn labels(mark: &Mark) -> [(&'static str, Option<String>); 2] {
    let domain = mark.domain.as_ref().filter(|_| mark.outcome == Outcome::Pass);
    [
        (VERDICT, Some(mark.outcome.to_string())),
        (VERIFIED_DOMAIN, domain.map(|domain| label::value(domain.as_str()))),
    ]
}

/// Taints that come and go with a mark. A pass takes the start-up taint away,
/// with whichever effect the node joined, and nothing else ever does; the soft
/// one stays with a node in service, and gives way to a drain.
fn taints(node: &KubernetesNode, mark: &Mark, is_drain: bool) -> Vec<TaintEdit> {
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
                value: Some(label::value(class)),
            };
            let is_there = soft.map(|taint| &taint.value) == wanted.value.as_ref();
            if is_there { Vec::new() } else { vec![wanted] }
        }
    }
}

fn condition(mark: &Mark) -> Condition {
    let (run, at) = (clean(&mark.run), clean(&mark.at));
    let domain = mark.domain.as_ref();
    let place = domain.map(|name| format!(" in {}", clean(name.as_str()))).unwrap_or_default();
    if mark.outcome == Outcome::Pass {
        let until = mark.expires.as_deref().map(|it| format!(", counts until {}", clean(it)));
        return Condition {
            status: TRUE.to_owned(),
            reason: "Verified".to_owned(),
            message: format!("passed run {run} of {at}{place}{}", until.unwrap_or_default()),
        };
    }
    let class = mark.class.as_ref().map_or(mark.outcome.as_str(), FindingClass::as_str);
    Condition {
        status: FALSE.to_owned(),
        reason: label::reason(class),
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
pub(super) fn again(
    live: &LiveNode,
    mark: &Mark,
    earlier: &Earlier<'_>,
    policy: &Policy,
    now: &Stamp,
) -> KubernetesMarks {
    let names = &policy.marks;
    let Some(node) = live.kubernetes.as_deref() else { return KubernetesMarks::default() };
    if let Some((reason, message)) = lapsed(live, mark, policy, now) {
        return lapse(node, names, reason, message);
    }
    let mut marks = change(node, mark, names, false);
    marks.taints.clear();
    let passed = mark.outcome == Outcome::Pass;
    let pass = Outcome::Pass.as_str();
    // Only a clock that was ahead takes back what has not expired yet.
    let is_early = |it: &Condition| passed && it.status == UNKNOWN && it.reason.as_str() == EXPIRED;
    let is_early = node.condition.as_ref().is_some_and(is_early);
    marks.labels.retain(|key, _| match node.labels.get(key) {
        Some(now) if key == VERDICT => !passed || now == pass,
        now => is_early || now.is_some(),
    });
    let claims_pass = || read(node).is_some_and(|now| now.outcome == Outcome::Pass);
    if !node.annotations.contains_key(CERTIFICATE) || (passed && !claims_pass()) {
        marks.annotations.clear();
    }
    let is_earlier = |now: &Condition| earlier.before.is_some_and(|before| is_of(now, before));
    let is_edited = |now: &Condition| !passed || is_early || now.status == TRUE || is_earlier(now);
    let is_wrong = node.condition.as_ref().map_or(earlier.is_untold, is_edited);
    marks.condition = marks.condition.filter(|_| is_wrong);
    marks
}

/// What the journal knows of a node's condition besides its mark.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Earlier<'m> {
    /// What we had said there before.
    pub(super) before: Option<&'m Mark>,
    /// The server did not take what we said last.
    pub(super) is_untold: bool,
}

/// Whether our condition says what this mark does.
pub(super) fn has_condition_of(node: &KubernetesNode, mark: &Mark) -> bool {
    node.condition.as_ref().is_some_and(|now| is_of(now, mark))
}

/// Whether a condition is what we said by this mark, or when its pass counted no more.
fn is_of(now: &Condition, mark: &Mark) -> bool {
    *now == condition(mark)
        || (now.status == UNKNOWN && now.reason == BOOTED && now.message == booted(mark))
}

/// Why a pass of an earlier boot counts no more.
fn booted(mark: &Mark) -> String {
    format!("it has booted since run {} passed it; not measured since", clean(&mark.run))
}

/// Why a pass counts no more: a word for programs and a sentence. A boot since is no
/// reason where the policy says so, also for what was said while it said otherwise.
pub(super) fn lapsed(
    live: &LiveNode,
    mark: &Mark,
    policy: &Policy,
    now: &Stamp,
) -> Option<(&'static str, String)> {
    if mark.outcome != Outcome::Pass {
        return None;
    }
    if let (Some(then), Some(is)) = (&mark.boot_id, &live.boot_id)
        && then != is
        && policy.certificate_void.boot
    {
        return Some((BOOTED, booted(mark)));
    }
    // Both are RFC 3339 in UTC, which orders as text does.
    let expires = mark.expires.as_ref().filter(|expires| **expires <= now.at)?;
    let run = clean(&mark.run);
    let message = format!("run {run} passed it, which counted until {}", clean(expires));
    Some((EXPIRED, message))
}

/// What says on the node that it passed is taken back: nothing is known of it
/// now. The annotation stays, with its own expiry and boot in it.
fn lapse(
    node: &KubernetesNode,
    names: &MarkNames,
    reason: &str,
    message: String,
) -> KubernetesMarks {
    let mut marks = KubernetesMarks::default();
    if names.labels {
        let says_pass =
            |key: &str, value: &String| key == VERIFIED_DOMAIN || value == Outcome::Pass.as_str();
        let own = [VERDICT, VERIFIED_DOMAIN].into_iter();
        let said = own.filter(|key| node.labels.get(*key).is_some_and(|it| says_pass(key, it)));
        marks.labels = said.map(|key| (key.to_owned(), None)).collect();
    }
    if names.condition && node.condition.as_ref().is_some_and(|now| now.status == TRUE) {
        let (status, reason) = (UNKNOWN.to_owned(), reason.to_owned());
        marks.condition = Some(Condition { status, reason, message });
    }
    marks
}

#[cfg(test)]
#[path = "kubernetes_tests.rs"]
mod tests;
