//! What we say on a node, beside whatever others say there: on Slurm two features
//! and one entry in its field for programs, on Kubernetes labels, an annotation, a
//! condition and taints.
//!
//! Pure. Others' features and others' words are kept; what cannot be kept is
//! not written over.

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

/// The site's names for what we say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MarkNames {
    /// The feature of a node that passed.
    pub verified: String,
    /// The feature of a node that works below what it must deliver.
    pub degraded: String,
    /// Whether features are written at all.
    pub features: bool,
    /// Whether the field for programs is written at all; on Kubernetes, the
    /// annotation with the certificate.
    pub extra: bool,
    /// Whether labels of Kubernetes are written at all.
    pub labels: bool,
    /// Whether the condition of Kubernetes is written at all.
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
    /// Whether jobs can ask for these features: Slurm stores any name, but a
    /// constraint with `&|[]()*` or a blank in it means something else.
    pub fn check(&self) -> Result<(), String> {
        for name in [&self.verified, &self.degraded] {
            let fits = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
            if name.is_empty() || !name.chars().all(fits) {
                return Err(format!(
                    "{:?} is no name for a feature that jobs could ask for: expected letters, \
                     digits and _ - . : /",
                    clean(name)
                ));
            }
        }
        if self.verified == self.degraded {
            return Err(format!(
                "{} cannot be the feature of nodes that passed and of nodes that did not",
                self.verified
            ));
        }
        Ok(())
    }

    /// The feature that this outcome brings and the one that it takes away.
    ///
    /// A node that failed is drained, and where it cannot be (a budget, a domain
    /// that is only named wrongly) it must not look better than a degraded one.
    fn features_of(&self, outcome: Outcome) -> Option<(&str, &str)> {
        match outcome {
            Outcome::Pass => Some((&self.verified, &self.degraded)),
            Outcome::Degraded | Outcome::Failed => Some((&self.degraded, &self.verified)),
            Outcome::Unknown => None,
        }
    }
}

/// What is to be written so that the node says this, on top of what it says.
/// Nothing where it does already, and nothing where nothing is known.
pub fn mark_change(node: &SchedulerNode, mark: &VerdictMark, names: &MarkNames) -> NodeUpdate {
    change_beside_action(ActionKind::Relabel, node, mark, names)
}

/// The same beside an action of this kind: a drain says to the scheduler of
/// Kubernetes what a soft taint would say.
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
            // Both, in one call: Slurm refuses to take an active feature from
            // the available ones alone.
            change.available_features = Some(available);
            change.active_features = Some(active);
        }
    }
    if names.extra {
        change.extra = slurm_extra_field::with_entry(&node.extra, mark).ok().flatten();
    }
    change
}

/// A mark of the run at hand with the domain and the boot in which it measured
/// this node, where those can be written. On Slurm, nodes that get the same words
/// share one call.
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

/// Whether the node still says this: Slurm forgets features at a reconfigure.
pub fn has_mark(node: &SchedulerNode, mark: &VerdictMark, names: &MarkNames) -> bool {
    mark_change(node, mark, names).is_empty()
}

/// What of this cannot be said on the node, and why, for people.
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
            "its features were not told whole, or have names that cannot be written back: they \
             stay as they are"
                .to_owned(),
        );
    }
    if names.extra {
        why.extend(slurm_extra_field::with_entry(&node.extra, mark).err());
    }
    why
}

/// What we last said on the node, as its field for programs or its annotation has
/// it. Anybody may write there: the texts are safe to show, and no more than that.
pub fn read_mark(node: &SchedulerNode, names: &MarkNames) -> Option<VerdictMark> {
    match &node.kubernetes {
        _ if !names.extra => None,
        Some(it) => kubernetes::read_mark(it),
        None => slurm_extra_field::read_mark(&node.extra),
    }
}

/// The same whatever the site calls its marks; on Kubernetes only where our condition says
/// it too.
pub(super) fn read_any_mark(node: &SchedulerNode) -> Option<VerdictMark> {
    match &node.kubernetes {
        Some(it) => kubernetes::read_mark(it).filter(|mark| kubernetes::has_condition_of(it, mark)),
        None => slurm_extra_field::read_mark(&node.extra),
    }
}

/// Whether something is written on the node that only a gate writes.
pub(super) fn has_gate_marks(node: &SchedulerNode) -> bool {
    slurm_extra_field::has_entry(&node.extra)
        || node.kubernetes.as_deref().is_some_and(kubernetes::has_gate_marks)
}

/// Marks that the journal has and the nodes lost, with what brings them back:
/// Slurm forgets features at every reconfigure and restart.
///
/// The entry in the field for programs survives both. Where it is gone somebody
/// took it away, or the node is another machine of the same name; both times
/// nothing is said again before the next run.
///
/// What says that a node passed is taken back where that counts no more: it has
/// expired, or the node has booted since and the policy says that this voids it.
///
/// Kubernetes forgets nothing. There it is what somebody edited, a condition that the
/// server never took, and what counts no more because it expired or the node has booted.
///
/// Words of a later journal than this one are not written over.
pub fn find_lost_marks(
    live: &SchedulerSnapshot,
    ledger: &JournalState,
    policy: &Policy,
    now: &ClockStamp,
) -> Vec<(NodeName, NodeUpdate)> {
    let names = &policy.marks;
    // Both are RFC 3339 in UTC, which orders as text does.
    let counts = |mark: &VerdictMark| mark.expires.as_ref().is_none_or(|expires| now.at < *expires);
    // A second of the moments, as text: one may have a fraction.
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

/// Why the pass that a mark says counts no more on a node of Kubernetes, by its
/// end or by a boot since; `None` where it does.
pub(super) fn explain_expired(
    node: &SchedulerNode,
    mark: &VerdictMark,
    policy: &Policy,
    now: &ClockStamp,
) -> Option<String> {
    kubernetes::expiry_reason(node, mark, policy, now).map(|(_, why)| why)
}

/// The feature of a pass that counts no more is taken away: jobs that ask for it
/// would be placed on what nobody knows. The entry stays, with its own expiry.
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

/// A list of features with one brought and one taken away, others in order.
fn edit_features(features: &[String], brings: &str, takes: &str) -> Vec<String> {
    let mut features: Vec<String> =
        features.iter().filter(|feature| *feature != takes).cloned().collect();
    if !features.iter().any(|feature| feature == brings) {
        features.push(brings.to_owned());
    }
    features
}

/// Whether others' features come back as they are when both lists are written.
/// What is active must be available: a list that lacks some was cut. And a name
/// with a blank in it cannot be sent.
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
