//! Which pods of a node that we drained may be asked to leave it.
//!
//! Pure. Asking goes through the eviction of Kubernetes, which keeps disruption
//! budgets; what it is not meant for, and what it would not help, stays.

use k8s_openapi::api::core::v1::Pod;

use super::journal_state::{JournalState, OwnDrain};
use super::node_state;
use model::kubernetes_node::{DEGRADED, NO_SCHEDULE, Taint};
use model::scheduler_snapshot::SchedulerNode;
use model::text::clean;
use readers::claims::kubernetes::pods;

/// Where what keeps a cluster running lives.
const SYSTEM: &str = "kube-system";

/// A pod that may be asked to leave.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// This very pod, and not another of its name.
    pub uid: String,
}

impl Target {
    /// `namespace/name`, cleaned.
    pub fn shown(&self) -> String {
        clean(&format!("{}/{}", self.namespace, self.name))
    }
}

/// What is done about the pods of a node that hold GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// May be asked to leave.
    pub go: Vec<Target>,
    /// End already.
    pub ending: Vec<Target>,
    /// Stay: `namespace/name`, and why.
    pub stay: Vec<(String, String)>,
}

/// Our drain of a node whose pods may be asked to leave; or why none may. It must
/// be ours, done, on this very machine, and shown: without the taint whoever
/// leaves would come back.
pub fn drained<'a>(node: &SchedulerNode, ledger: &'a JournalState) -> Result<&'a OwnDrain, String> {
    let own = ledger.drains.get(&node.name).ok_or("it is not drained by us")?;
    let live = node.kubernetes.as_deref().ok_or("it is no node of Kubernetes")?;
    let then = own.before.kubernetes.as_deref().map(|then| then.uid.as_str()).unwrap_or_default();
    if !then.is_empty() && then != live.uid {
        return Err("it is another node of the same name since we drained it".to_owned());
    }
    let is_ours = |taint: &Taint| taint.key == DEGRADED && taint.effect == NO_SCHEDULE;
    if !live.taints.iter().any(is_ours) || !node_state::has_own_drain(node, own, ledger) {
        return Err(format!(
            "it does not show our drain (taint {DEGRADED}:{NO_SCHEDULE} with our reason)"
        ));
    }
    if let Some(why) = live.left_alone.first() {
        return Err(format!("it is to be left alone: {}", clean(why)));
    }
    Ok(own)
}

/// What is done about these pods of a node, which carries our taint with this
/// value. Pods that hold no GPU are nobody's business here.
pub fn choose<'a>(pods: impl IntoIterator<Item = &'a Pod>, class: &str) -> Choice {
    let mut choice = Choice::default();
    for pod in pods {
        let is_there = !pods::has_ended(pod) && pods::holds_gpus(pod) && !pods::is_ours(pod);
        if !is_there {
            continue;
        }
        let target = Target {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
        };
        if pod.metadata.deletion_timestamp.is_some() {
            choice.ending.push(target);
        } else if let Some(why) = why_it_stays(pod, class) {
            choice.stay.push((pods::qualified_name(pod), why.to_owned()));
        } else {
            choice.go.push(target);
        }
    }
    choice.go.sort();
    choice.ending.sort();
    choice.stay.sort();
    choice
}

/// Why this pod is not asked to leave. That a pod without a controller stays, and
/// one of a `DaemonSet`, is as `kubectl drain` has it.
fn why_it_stays(pod: &Pod, class: &str) -> Option<&'static str> {
    if pod.metadata.namespace.as_deref() == Some(SYSTEM) {
        return Some("it belongs to the cluster itself (kube-system)");
    }
    if pods::is_mirror(pod) {
        return Some("it is the node's own (a static pod), which no server can send away");
    }
    if pods::is_daemon(pod) {
        return Some("a DaemonSet would put it back there");
    }
    if pods::is_slurmd(pod) {
        return Some("it is Slurm's daemon (Slinky), and its jobs would die: drain it in Slurm");
    }
    if !pods::has_controller(pod) {
        return Some("nothing would bring it back elsewhere: it has no controller");
    }
    if pods::tolerates(pod, DEGRADED, class, NO_SCHEDULE) {
        return Some("it tolerates our taint, and would come back here");
    }
    if pod.metadata.uid.as_deref().is_none_or(str::is_empty) {
        return Some("the server does not say which pod of this name it is");
    }
    None
}

#[cfg(test)]
#[path = "evict_tests.rs"]
mod tests;
