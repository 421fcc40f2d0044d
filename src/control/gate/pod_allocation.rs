//! Holding nodes with pods: one on each node to be measured, made before a sweep
//! and gone after it, also after a crash.
//!
//! What will exist is written to the journal before it does, and every object
//! says on itself which process needs it. No node is changed here, and no pod of
//! others: the scheduler places ours, and where it cannot, the node is left out.

mod object_client;
mod pod_creation;
mod pod_state;
mod release;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::clock;
use super::journal::Journal;
use super::scheduler::Scheduler;
use super::slurm_allocation::{AllocationError, StartupCleanup, append_events, clean_up_at_start};
use crate::gate::timeouts::SchedulerTimeouts;
use crate::launch::check_name;
use crate::launch::held::HeldNodes;
use crate::launch::kubernetes::manifest::ManifestOwner;
use crate::launch::kubernetes::{KubernetesLauncher, UNSCHEDULABLE};
use crate::launch::slurm::BusyNodePolicy;
use engine::policy::journal_state::JournalState;
use engine::policy::node_state;
use engine::policy::node_state::DrainOwner;
use model::hostlist;
use model::id::{DomainName, NodeName};
use model::journal::{HoldKind, JournalEvent};
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::text::clean as cleaned;
use pod_creation::PodCreator;

pub use object_client::PodObjectClient;
pub(super) use release::{delete_run_objects, list_run_objects};

/// How often nodes are looked at that are waited for.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// How often waiting is told.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);

/// Taints that only repeat what a node's state says.
const STATE_TAINTS: &[&str] =
    &[UNSCHEDULABLE, "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// How much longer than they may take to start pods stay without a worker: all
/// of a run wait for the slowest.
const WORKER_IDLE_S: u64 = 300;

/// Who holds nodes, and how.
#[expect(missing_debug_implementations, reason = "it lends whom to tell")]
pub struct PodAllocationContext<'a> {
    /// How pods are wanted.
    pub kubernetes: &'a KubernetesLauncher,
    /// fabricgate, as the image calls it.
    pub worker: &'a str,
    /// Where they are made.
    pub objects: &'a PodObjectClient,
    /// Who is asked about nodes.
    pub scheduler: &'a dyn Scheduler,
    /// The gate's state folder.
    pub folder: &'a Path,
    /// How long one call may take.
    pub limit: Duration,
    /// Whom to tell how far it is.
    pub log: &'a mut dyn FnMut(&str),
}

/// What is to be held.
#[derive(Clone, Debug)]
pub struct PodAllocationRequest<'a> {
    /// The run it is for.
    pub run: &'a str,
    /// The nodes, domain by domain.
    pub domains: Vec<PodDomainRequest>,
    /// Nodes that we drained are to be measured too.
    pub drained: bool,
    /// How long the sweep may take, in minutes.
    pub minutes: u64,
}

/// The nodes of one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDomainRequest {
    /// Its name.
    pub name: DomainName,
    /// Its nodes.
    pub nodes: Vec<NodeName>,
    /// The GPUs that each is said to have.
    pub gpus_per_node: Option<u32>,
}

/// What is held. It is filled in step by step, so that whoever ends early knows
/// what there is to free.
#[derive(Debug, Default)]
pub struct PodAllocation {
    /// The run, once something of it may exist.
    pub run: Option<String>,
    /// The nodes, and why others are left out.
    pub nodes: HeldNodes,
}

/// Holds nodes: finds out who can be measured, makes their pods, and waits until
/// they run. What is there already when it fails, [`free`] ends.
pub async fn allocate_pods(
    holder: &mut PodAllocationContext<'_>,
    wish: &PodAllocationRequest<'_>,
    holding: &mut PodAllocation,
) -> Result<(), AllocationError> {
    let all: Vec<NodeName> = wish.domains.iter().flat_map(|it| it.nodes.clone()).collect();
    all.iter().try_for_each(check_name)?;
    let ledger = clean_up_at_start(StartupCleanup {
        folder: holder.folder,
        scheduler: holder.scheduler,
        programs: None,
        pods: Some(holder.kubernetes),
        // Pods show what was done to them at once.
        timeouts: SchedulerTimeouts {
            limit: holder.limit,
            settle: Duration::ZERO,
            persist: Duration::ZERO,
            in_flight: Duration::ZERO,
        },
        log: &mut *holder.log,
    })
    .await?;
    let free = holder.wait_for_idle_nodes(&all, &ledger, wish.drained, holding).await?;
    let mut domains = wish.domains.clone();
    for domain in &mut domains {
        domain.nodes.retain(|node| free.contains(node));
    }
    domains.retain(|domain| !domain.nodes.is_empty());
    if domains.is_empty() {
        return Ok(());
    }
    let deadline_s = holder.kubernetes.deadline_s.unwrap_or(wish.minutes.saturating_mul(60));
    let (start_s, now) = (holder.kubernetes.start_s, clock::now());
    let until = i64::try_from(start_s.saturating_add(deadline_s)).unwrap_or(i64::MAX);
    let host = clock::host_name();
    let origin = ManifestOwner {
        run: wish.run,
        host: &host,
        pid: std::process::id(),
        stamp: &now,
        until: now.unix.saturating_add(until),
    };
    let mut placing = PodCreator {
        kubernetes: holder.kubernetes,
        worker: holder.worker,
        objects: holder.objects,
        owner: origin,
        deadline_s,
        idle_s: start_s.saturating_add(WORKER_IDLE_S),
        log: &mut *holder.log,
    };
    placing.check_access().await?;
    {
        let mut journal = Journal::open(holder.folder)?;
        journal.append(JournalEvent::Holding {
            name: wish.run.to_owned(),
            kind: HoldKind::Pods,
            nodes: domains.iter().flat_map(|it| it.nodes.clone()).collect(),
            drained: Vec::new(),
            host: host.clone(),
            pid: std::process::id(),
        })?;
    }
    holding.run = Some(wish.run.to_owned());
    placing.create_and_wait(&domains, &mut holding.nodes).await
}

/// Frees what is held. What could not be freed is told, and stays in the journal
/// for the next turn.
pub async fn free_pods(
    holder: &mut PodAllocationContext<'_>,
    holding: &mut PodAllocation,
) -> Vec<String> {
    let Some(name) = holding.run.take() else { return Vec::new() };
    match delete_run_objects(holder.objects, &name, clock::now().unix).await {
        Ok(detail) => {
            match append_events(holder.folder, vec![JournalEvent::Freed { name, detail }]).await {
                Ok(()) => Vec::new(),
                Err(error) => vec![format!("the gate's journal: {error}")],
            }
        }
        Err(why) => vec![format!("pods of run {name} may still be there: {why}")],
    }
}

/// How the nodes that are wanted stand.
#[derive(Debug, Default)]
struct PodNodeAvailability {
    idle: BTreeSet<NodeName>,
    /// Pods of others use them, which passes.
    busy: BTreeMap<NodeName, String>,
    /// Everything else.
    unfit: BTreeMap<NodeName, String>,
}

impl PodAllocationContext<'_> {
    /// Who is idle, now or within the time that busy nodes are waited for; why
    /// others are not is filled in.
    async fn wait_for_idle_nodes(
        &mut self,
        all: &[NodeName],
        ledger: &JournalState,
        drained: bool,
        holding: &mut PodAllocation,
    ) -> Result<BTreeSet<NodeName>, AllocationError> {
        let start = Instant::now();
        let mut told: Option<Instant> = None;
        let waits = match self.kubernetes.busy {
            BusyNodePolicy::Skip => Duration::ZERO,
            _ => Duration::from_secs(self.kubernetes.wait_s),
        };
        loop {
            let live = self.scheduler.read_nodes(all).await.map_err(|error| {
                AllocationError::Scheduler { name: self.scheduler.name(), error }
            })?;
            let mut sorted = self.sort_nodes(all, &live, ledger, drained);
            if sorted.busy.is_empty() || waits <= start.elapsed() {
                holding.nodes.skipped.append(&mut sorted.unfit);
                holding.nodes.skipped.append(&mut sorted.busy);
                return Ok(sorted.idle);
            }
            if told.is_none_or(|told| REPORT_INTERVAL <= told.elapsed()) {
                told = Some(Instant::now());
                let waited = start.elapsed().as_secs();
                for (why, nodes) in group_by_reason(&sorted.busy) {
                    let limit = waits.as_secs();
                    (self.log)(&format!("waiting for {nodes} since {waited} of {limit} s: {why}"));
                }
            }
            sleep(POLL_INTERVAL.min(waits / 10)).await;
        }
    }

    /// Who is idle, busy, or unfit.
    fn sort_nodes(
        &self,
        all: &[NodeName],
        live: &SchedulerSnapshot,
        ledger: &JournalState,
        drained: bool,
    ) -> PodNodeAvailability {
        let mut sorted = PodNodeAvailability::default();
        for name in all {
            let Some(node) = live.nodes.get(name) else {
                sorted.unfit.insert(name.clone(), "the cluster does not know it".to_owned());
                continue;
            };
            if let Some(why) = self.repelling_taint(node) {
                sorted.unfit.insert(name.clone(), why);
                continue;
            }
            let node = &self.ignore_own_taints(node, ledger, drained);
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

    /// The taint that would keep our pod away, where there is one that its state
    /// does not tell.
    fn repelling_taint(&self, node: &SchedulerNode) -> Option<String> {
        // Those are told by words of their own: cordoned, not ready.
        let told_otherwise = |key: &str| STATE_TAINTS.contains(&key);
        let taints = &node.kubernetes.as_ref()?.taints;
        let others: Vec<_> =
            taints.iter().filter(|taint| !told_otherwise(&taint.key)).cloned().collect();
        let taint = self.kubernetes.repelled_by(&others)?;
        Some(format!(
            "taint {}={}:{} keeps pods away; tolerations of [launcher.kubernetes] may let ours in",
            cleaned(&taint.key),
            cleaned(&taint.value),
            cleaned(&taint.effect)
        ))
    }

    /// The node as it is for pods that tolerate what ours do: our own taints are
    /// no obstacle, and are not lifted for that.
    fn ignore_own_taints(
        &self,
        node: &SchedulerNode,
        ledger: &JournalState,
        drained: bool,
    ) -> SchedulerNode {
        let ours =
            drained && matches!(node_state::drain_owner(node, ledger), DrainOwner::ThisGate(_));
        let mut node = node.clone();
        if ours && node_state::appended_text(&node).is_none() {
            node.state.retain(|word| word != "DRAIN");
            node.reason = None;
        }
        // A node that is known to have no taint that repels us is not tainted for us.
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

/// Whether pods use it, and nothing else is wrong with it.
fn is_in_use(node: &SchedulerNode) -> bool {
    const PASSING: &[&str] = &["ALLOCATED", "MIXED", "COMPLETING", "IDLE"];
    node.state.iter().all(|word| PASSING.contains(&word.as_str()))
}

/// Nodes with the same reason together.
fn group_by_reason(reasons: &BTreeMap<NodeName, String>) -> BTreeMap<&str, String> {
    let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (node, why) in reasons {
        nodes.entry(why).or_default().push(node.as_str());
    }
    nodes.into_iter().map(|(why, nodes)| (why, hostlist::fold(nodes))).collect()
}
