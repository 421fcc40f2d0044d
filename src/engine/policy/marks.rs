//! fabricgate's marks on a node, next to the marks of others: on Slurm two features and one
//! entry in the field `Extra`; on Kubernetes labels, an annotation, a condition and taints.
//!
//! Pure. Features and text of others are kept; a field that cannot be preserved is not
//! overwritten.

mod kubernetes;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::action_policy::Policy;
use super::journal_state::JournalState;
use super::situation::Situation;
use super::{node_state, restored_store, slurm_extra_field, stale_journal};
use model::action::{ActionKind, VerdictMark};
use model::id::{DomainName, NodeName};
use model::journal::ClockStamp;
use model::kubernetes_node::KubernetesNodeUpdate;
use model::node_update::NodeUpdate;
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::text::clean;
use model::time_format::format_rfc3339;
use model::verdict::Outcome;

/// The site's names for the marks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MarkNames {
    /// The feature of nodes that passed.
    pub verified: String,
    /// The feature of nodes that work below the rate they must deliver.
    pub degraded: String,
    /// Whether to write features at all.
    pub features: bool,
    /// Whether to write Slurm's field `Extra`; on Kubernetes, the annotation with the
    /// certificate.
    pub extra: bool,
    /// Whether to write labels on Kubernetes.
    pub labels: bool,
    /// Whether to write the condition on Kubernetes.
    pub condition: bool,
}

impl Default for MarkNames {
    fn default() -> Self {
        Self {
            verified: "fabric_verified".to_owned(),
            degraded: "fabric_degraded".to_owned(),
            features: true,
            extra: true,
            labels: true,
            condition: true,
        }
    }
}

impl MarkNames {
    /// Checks that jobs can request these features: Slurm stores any name, but a constraint
    /// with `&|[]()*` or a blank has another meaning.
    pub fn check(&self) -> Result<(), String> {
        for name in [&self.verified, &self.degraded] {
            let fits = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
            if name.is_empty() || !name.chars().all(fits) {
                return Err(format!(
                    "{:?} is not a feature name that jobs can request: expected letters, \
                     digits and _ - . : /",
                    clean(name)
                ));
            }
        }
        if self.verified == self.degraded {
            return Err(format!(
                "{} cannot be the feature of both nodes that passed and nodes that did not",
                self.verified
            ));
        }
        Ok(())
    }

    /// The feature that this outcome adds and the one that it removes.
    ///
    /// A node that failed is drained. If it cannot be (a budget, a misnamed domain), its features
    /// must not rank it above a degraded one.
    fn features_of(&self, outcome: Outcome) -> Option<(&str, &str)> {
        match outcome {
            Outcome::Pass => Some((&self.verified, &self.degraded)),
            Outcome::Degraded | Outcome::Failed => Some((&self.degraded, &self.verified)),
            Outcome::Unknown => None,
        }
    }
}

/// The change that puts this mark on the node. Empty if the node has the mark already, or if
/// the outcome is unknown.
pub fn mark_change(node: &SchedulerNode, mark: &VerdictMark, names: &MarkNames) -> NodeUpdate {
    change_beside_action(ActionKind::Relabel, node, mark, names)
}

/// The change for a mark written together with an action of this kind: a drain replaces the
/// soft taint on Kubernetes.
pub fn change_beside_action(
    kind: ActionKind,
    node: &SchedulerNode,
    mark: &VerdictMark,
    names: &MarkNames,
) -> NodeUpdate {
    if let Some(it) = &node.kubernetes {
        return from_kubernetes_marks(kubernetes::mark_change(
            it,
            mark,
            names,
            kind == ActionKind::Drain,
        ));
    }
    slurm_change(node, mark, names)
}

fn from_kubernetes_marks(marks: KubernetesNodeUpdate) -> NodeUpdate {
    let kubernetes = (marks != KubernetesNodeUpdate::default()).then_some(marks);
    NodeUpdate { kubernetes, ..NodeUpdate::default() }
}

fn slurm_change(node: &SchedulerNode, mark: &VerdictMark, names: &MarkNames) -> NodeUpdate {
    let mut change = NodeUpdate::default();
    let Some((brings, takes)) = names.features_of(mark.outcome) else { return change };
    if names.features && can_keep_features(node) {
        let available = edit_features(&node.available_features, brings, takes);
        let active = edit_features(&node.active_features, brings, takes);
        if available != node.available_features || active != node.active_features {
            // Both lists in one call: Slurm refuses to remove an active feature from the available
            // ones alone.
            change.available_features = Some(available);
            change.active_features = Some(active);
        }
    }
    if names.extra {
        change.extra = slurm_extra_field::with_entry(&node.extra, mark).ok().flatten();
    }
    change
}

/// A mark of the current run with the domain and the boot in which it measured this node, if
/// those can be written. On Slurm, nodes with equal marks share one call.
pub(super) fn with_domain_and_boot(
    mark: VerdictMark,
    situation: &Situation<'_>,
    node: &SchedulerNode,
    domain: Option<&DomainName>,
) -> VerdictMark {
    if node.kubernetes.is_none() {
        return mark;
    }
    let boot_id = situation.boots.get(&node.name).cloned();
    VerdictMark { domain: domain.cloned(), boot_id, ..mark }
}

/// Whether the node still has this mark: Slurm forgets features at a reconfigure.
pub fn has_mark(node: &SchedulerNode, mark: &VerdictMark, names: &MarkNames) -> bool {
    mark_change(node, mark, names).is_empty()
}

/// Which part of this mark cannot be written on the node, and why, for users.
pub fn explain_unwritable(
    node: &SchedulerNode,
    mark: &VerdictMark,
    names: &MarkNames,
) -> Vec<String> {
    let mut why = Vec::new();
    if names.features_of(mark.outcome).is_none() || node.kubernetes.is_some() {
        return why;
    }
    if names.features && !can_keep_features(node) {
        why.push(
            "its features are incomplete, or have names that cannot be written back: they \
             are left unchanged"
                .to_owned(),
        );
    }
    if names.extra {
        why.extend(slurm_extra_field::with_entry(&node.extra, mark).err());
    }
    why
}

/// fabricgate's last mark on the node, from the field `Extra` or the annotation. Any user may
/// write there: the texts are safe to display, but not trusted.
pub fn read_mark(node: &SchedulerNode, names: &MarkNames) -> Option<VerdictMark> {
    match &node.kubernetes {
        _ if !names.extra => None,
        Some(it) => kubernetes::read_mark(it),
        None => slurm_extra_field::read_mark(&node.extra),
    }
}

/// The mark under any feature names; on Kubernetes only if fabricgate's condition agrees.
pub(super) fn read_any_mark(node: &SchedulerNode) -> Option<VerdictMark> {
    match &node.kubernetes {
        Some(it) => kubernetes::read_mark(it).filter(|mark| kubernetes::has_condition_of(it, mark)),
        None => slurm_extra_field::read_mark(&node.extra),
    }
}

/// Whether the node has marks that only a gate writes.
pub(super) fn has_gate_marks(node: &SchedulerNode) -> bool {
    slurm_extra_field::has_entry(&node.extra)
        || node.kubernetes.as_deref().is_some_and(kubernetes::has_gate_marks)
}

/// Marks that the journal has and the nodes lost, with the changes that restore them: Slurm
/// forgets features at every reconfigure and restart.
///
/// The entry in the field `Extra` survives both. If it is missing, a user removed it, or the
/// node is another machine of the same name; in both cases no mark is restored before the next
/// run.
///
/// The mark of a pass is removed when it no longer counts: it has expired, or the node has
/// booted since and the policy lets a boot void it.
///
/// Kubernetes forgets nothing. There the changes concern edits by others, a condition that the
/// server never accepted, and passes that expired or were voided by a boot.
///
/// Marks of a later journal than this one are not overwritten.
pub fn find_lost_marks(
    live: &SchedulerSnapshot,
    ledger: &JournalState,
    policy: &Policy,
    now: &ClockStamp,
) -> Vec<(NodeName, NodeUpdate)> {
    let names = &policy.marks;
    // Both are RFC 3339 in UTC, whose text order is the time order.
    let counts = |mark: &VerdictMark| mark.expires.as_ref().is_none_or(|expires| now.at < *expires);
    // The time to the second, as text: one of them may have a fraction.
    let second = |text: &str| text.get(..19).map(str::to_owned);
    let has_booted = |node: &SchedulerNode, mark: &VerdictMark| {
        let booted = node.booted.filter(|_| policy.certificate_void.boot).map(format_rfc3339);
        let boot = booted.as_deref().and_then(second);
        mark.outcome == Outcome::Pass
            && second(&mark.at).zip(boot).is_some_and(|(at, boot)| at < boot)
    };
    let lost = ledger.marks.iter().filter_map(|(name, mark)| {
        let node = live.nodes.get(name)?;
        if stale_journal::newer_mark(node, ledger).is_some() {
            return None;
        }
        if let Some(it) = &node.kubernetes {
            let is_ours = it.left_alone.is_empty() && !node_state::is_transient(node);
            let earlier = kubernetes::EarlierMark {
                before: ledger.marks_before.get(name),
                is_unacknowledged: ledger.unacknowledged.contains_key(name),
            };
            let change =
                from_kubernetes_marks(kubernetes::restore_marks(node, mark, &earlier, policy, now));
            let change = restored_store::without_traces(change, node, ledger);
            return (is_ours && !change.is_empty()).then(|| (name.clone(), change));
        }
        let is_ours = !names.extra || slurm_extra_field::has_entry(&node.extra);
        let change = match counts(mark) && !has_booted(node, mark) {
            true => mark_change(node, mark, names),
            false => expire_mark(node, mark, names),
        };
        (is_ours && !change.is_empty()).then(|| (name.clone(), change))
    });
    lost.collect()
}

/// Why a mark's pass no longer counts on a Kubernetes node (its end, or a boot since); `None`
/// if it counts.
pub(super) fn explain_expired(
    node: &SchedulerNode,
    mark: &VerdictMark,
    policy: &Policy,
    now: &ClockStamp,
) -> Option<String> {
    kubernetes::expiry_reason(node, mark, policy, now).map(|(_, why)| why)
}

/// Removes the feature of a pass that no longer counts: jobs that request it would be placed on
/// a node of unknown state. The entry stays, with its own expiry.
fn expire_mark(node: &SchedulerNode, mark: &VerdictMark, names: &MarkNames) -> NodeUpdate {
    let mut change = NodeUpdate::default();
    let has = |features: &[String]| features.contains(&names.verified);
    let is_said = has(&node.available_features) || has(&node.active_features);
    if mark.outcome == Outcome::Pass && is_said && names.features && can_keep_features(node) {
        let others = |features: &[String]| -> Vec<String> {
            features.iter().filter(|it| **it != names.verified).cloned().collect()
        };
        change.available_features = Some(others(&node.available_features));
        change.active_features = Some(others(&node.active_features));
    }
    change
}

/// A list of features with one added and one removed, in the original order.
fn edit_features(features: &[String], brings: &str, takes: &str) -> Vec<String> {
    let mut features: Vec<String> =
        features.iter().filter(|feature| *feature != takes).cloned().collect();
    if !features.iter().any(|feature| feature == brings) {
        features.push(brings.to_owned());
    }
    features
}

/// Whether the features of others survive when both lists are written. Active features must be
/// available: a list that lacks some was cut. A name with a blank cannot be sent.
fn can_keep_features(node: &SchedulerNode) -> bool {
    let is_word = |feature: &String| {
        let separates = |c: char| c == ',' || c.is_whitespace() || c.is_control();
        !feature.is_empty() && !feature.contains(separates)
    };
    node.available_features.iter().all(is_word)
        && node.active_features.iter().all(|it| node.available_features.contains(it))
}

#[cfg(test)]
#[path = "marks_tests.rs"]
mod tests;
