//! Kubernetes' part of an allocation: one pod on each node to be measured.
//!
//! Every object names the process that needs it. No node and no foreign pod is changed: the
//! scheduler places fabricgate's pods, and a node where it cannot is left out.

mod object_client;
mod pod_creation;
mod pod_state;
mod release;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::allocation::{
    Allocation, AllocationContext, AllocationError, AllocationRequest, group_by_reason, is_in_use,
    journal_allocation,
};
use super::clock;
use crate::gate::gate_event::GateEvent;
use crate::launch::HeldNodes;
use crate::launch::kubernetes::manifest::ManifestOwner;
use crate::launch::kubernetes::{KubernetesLauncher, UNSCHEDULABLE};
use crate::launch::slurm::BusyNodePolicy;
use engine::policy::journal_state::JournalState;
use engine::policy::node_state;
use engine::policy::node_state::DrainOwner;
use model::id::NodeName;
use model::journal::HoldKind;
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::text::clean as cleaned;
use pod_creation::PodCreator;

pub use object_client::PodObjectClient;
pub(super) use release::{delete_run_objects, list_run_objects};

/// Interval between polls while waiting for nodes.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Interval between lines while waiting.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);

/// Taints that only repeat the state of a node.
const STATE_TAINTS: &[&str] =
    &[UNSCHEDULABLE, "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// How much longer than their start timeout pods stay without a worker: all pods of a run wait for
/// the slowest.
const WORKER_IDLE_S: u64 = 300;

/// The pods that hold nodes, and the cluster that runs them.
#[derive(Debug)]
pub struct PodBackend {
    /// The configuration of the pods.
    pub kubernetes: KubernetesLauncher,
    /// The path of fabricgate in the image.
    pub worker: String,
    /// The client that creates them.
    pub objects: PodObjectClient,
}

/// Creates a pod on each node that can be measured, and waits until they run.
pub(super) async fn allocate_pods(
    pods: &PodBackend,
    context: &mut AllocationContext<'_>,
    nodes: &[NodeName],
    state: &JournalState,
    request: &AllocationRequest<'_>,
    allocation: &mut Allocation,
) -> Result<(), AllocationError> {
    let kubernetes = &pods.kubernetes;
    let idle = PodNodeSelector { kubernetes, state, drained: request.drained }
        .wait_for_idle_nodes(context, nodes, &mut allocation.nodes)
        .await?;
    let mut domains = request.domains.clone();
    for domain in &mut domains {
        domain.nodes.retain(|node| idle.contains(node));
    }
    domains.retain(|domain| !domain.nodes.is_empty());
    if domains.is_empty() {
        return Ok(());
    }
    let deadline_s = kubernetes.deadline_s.unwrap_or(request.minutes.saturating_mul(60));
    let (start_s, now) = (kubernetes.start_s, clock::now());
    let until = i64::try_from(start_s.saturating_add(deadline_s)).unwrap_or(i64::MAX);
    let host = clock::host_name();
    let owner = ManifestOwner {
        run: request.run,
        host: &host,
        pid: std::process::id(),
        stamp: &now,
        until: now.unix.saturating_add(until),
    };
    let held = domains.iter().flat_map(|it| it.nodes.iter().cloned()).collect();
    let mut creator = PodCreator {
        kubernetes,
        worker: &pods.worker,
        objects: &pods.objects,
        owner,
        deadline_s,
        idle_s: start_s.saturating_add(WORKER_IDLE_S),
        log: &mut *context.log,
    };
    creator.check_access().await?;
    journal_allocation(context.folder, request.run, HoldKind::Pods, held, Vec::new())?;
    allocation.pods = Some(request.run.to_owned());
    creator.create_and_wait(&domains, &mut allocation.nodes).await
}

/// The availability of the requested nodes.
#[derive(Debug, Default)]
struct PodNodeAvailability {
    idle: BTreeSet<NodeName>,
    /// In use by other pods, which will end.
    busy: BTreeMap<NodeName, String>,
    unfit: BTreeMap<NodeName, String>,
}

/// Sorts nodes by availability for a pod.
struct PodNodeSelector<'a> {
    kubernetes: &'a KubernetesLauncher,
    state: &'a JournalState,
    /// Hold also nodes that fabricgate drained.
    drained: bool,
}

impl PodNodeSelector<'_> {
    /// The nodes that are idle now or become idle within `wait_s`; for every other node
    /// the reason goes to `held`.
    async fn wait_for_idle_nodes(
        &self,
        context: &mut AllocationContext<'_>,
        nodes: &[NodeName],
        held: &mut HeldNodes,
    ) -> Result<BTreeSet<NodeName>, AllocationError> {
        let start = Instant::now();
        let mut reported: Option<Instant> = None;
        let waits = match self.kubernetes.busy {
            BusyNodePolicy::Skip => Duration::ZERO,
            _ => Duration::from_secs(self.kubernetes.wait_s),
        };
        loop {
            let live = context.read_nodes(nodes).await?;
            let mut sorted = self.sort_nodes(nodes, &live);
            if sorted.busy.is_empty() || waits <= start.elapsed() {
                held.skipped.append(&mut sorted.unfit);
                held.skipped.append(&mut sorted.busy);
                return Ok(sorted.idle);
            }
            if reported.is_none_or(|reported| REPORT_INTERVAL <= reported.elapsed()) {
                reported = Some(Instant::now());
                let (waited_s, limit_s) = (start.elapsed().as_secs(), waits.as_secs());
                for (why, nodes) in group_by_reason(&sorted.busy) {
                    let why = why.to_owned();
                    (context.log)(&GateEvent::BusyNodesAwaited { nodes, waited_s, limit_s, why });
                }
            }
            sleep(POLL_INTERVAL.min(waits / 10)).await;
        }
    }

    fn sort_nodes(&self, all: &[NodeName], live: &SchedulerSnapshot) -> PodNodeAvailability {
        let mut sorted = PodNodeAvailability::default();
        for name in all {
            let Some(node) = live.nodes.get(name) else {
                sorted.unfit.insert(name.clone(), "the cluster has no such node".to_owned());
                continue;
            };
            if let Some(why) = self.repelling_taint(node) {
                sorted.unfit.insert(name.clone(), why);
                continue;
            }
            let node = &self.ignore_own_taints(node);
            match node_state::explain_no_measurement(node) {
                None => {
                    sorted.idle.insert(name.clone());
                }
                Some(why) if is_in_use(node) => {
                    sorted.busy.insert(name.clone(), why);
                }
                Some(why) => {
                    sorted.unfit.insert(name.clone(), why);
                }
            }
        }
        sorted
    }

    /// The taint that would keep fabricgate's pod away, unless the node's state reports the same.
    fn repelling_taint(&self, node: &SchedulerNode) -> Option<String> {
        // Messages of their own report those: cordoned, not ready.
        let is_reported_otherwise = |key: &str| STATE_TAINTS.contains(&key);
        let taints = &node.kubernetes.as_ref()?.taints;
        let others: Vec<_> =
            taints.iter().filter(|taint| !is_reported_otherwise(&taint.key)).cloned().collect();
        let taint = self.kubernetes.repelled_by(&others)?;
        Some(format!(
            "taint {}={}:{} keeps pods away; a toleration in [launcher.kubernetes] can allow it",
            cleaned(&taint.key),
            cleaned(&taint.value),
            cleaned(&taint.effect)
        ))
    }

    /// The node as fabricgate's pods see it: they tolerate fabricgate's taints, which are no
    /// obstacle and are not lifted for the measurement.
    fn ignore_own_taints(&self, node: &SchedulerNode) -> SchedulerNode {
        let is_lifted = self.drained
            && matches!(node_state::drain_owner(node, self.state), DrainOwner::ThisGate(_));
        let mut node = node.clone();
        if is_lifted && node_state::appended_text(&node).is_none() {
            node.state.retain(|word| word != "DRAIN");
            node.reason = None;
        }
        // A node without a repelling taint counts as untainted.
        if node.kubernetes.is_some() {
            node.state.retain(|word| word != "TAINTED");
        }
        node.state.retain(|word| word != "UNVERIFIED");
        let cordon = self.kubernetes.all_tolerations();
        if cordon.iter().any(|it| it.key.as_deref() == Some(UNSCHEDULABLE)) {
            node.state.retain(|word| word != "CORDONED");
        }
        node
    }
}
