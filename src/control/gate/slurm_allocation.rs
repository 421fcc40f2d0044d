//! Slurm's part of an allocation: one job per domain, and a reservation if a drain is lifted or
//! busy nodes are kept free.

mod release;
mod slurm_commands;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::allocation::{
    Allocation, AllocationContext, AllocationDomain, AllocationError, AllocationRequest, is_in_use,
    journal_allocation,
};
use super::verification;
use crate::gate::gate_event::GateEvent;
use crate::launch::WorkerTarget;
use crate::launch::slurm::{
    BusyNodePolicy, DrainedNodePolicy, IMMEDIATE_S, SlurmJobRequest, SlurmLauncher, SlurmPrograms,
};
use engine::policy::journal_state::JournalState;
use engine::policy::node_state;
use engine::policy::node_state::DrainOwner;
use model::id::{DomainName, NodeName};
use model::journal::{HoldKind, JournalEvent};
use model::node_update::{NodeStateChange, NodeUpdate};
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use slurm_commands::{SlurmCommandFailure, SlurmCommands, fold_nodes, nodes_outside_partition};

pub(super) use release::SlurmRelease;

/// How often a job is requested: each time without the nodes that other jobs took
/// in the meantime.
const MAX_JOB_ATTEMPTS: u32 = 3;

/// Interval between polls while waiting for nodes.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Interval between lines while waiting.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);

/// How much longer than its job a reservation lasts, in minutes: nodes are drained again inside it.
const RESERVATION_MARGIN_MINUTES: u64 = 15;

/// The minimum duration of a reservation in which drains are lifted, in minutes, also after each
/// [renewal](renew_reservation): at its end the nodes are users' again, so there must be time for a
/// turn of any gate, or for an operator.
const MIN_RESERVATION_MINUTES: u64 = 24 * 60;

/// How often such a reservation is renewed while its process runs.
pub(super) const RENEWAL_INTERVAL: Duration = Duration::from_secs(3_600);

/// Creates the jobs and reservations of one allocation.
pub(super) struct SlurmAllocator<'a, 'l> {
    pub(super) slurm: &'a SlurmLauncher,
    pub(super) context: &'a mut AllocationContext<'l>,
}

/// The availability of the requested nodes.
#[derive(Debug, Default)]
struct SlurmNodeAvailability {
    idle: BTreeSet<NodeName>,
    /// In use by jobs, which will end.
    busy: BTreeMap<NodeName, String>,
    /// Drained by fabricgate, with the reason to write again.
    drained: BTreeMap<NodeName, String>,
    unfit: BTreeMap<NodeName, String>,
}

/// The nodes to hold, and how they become free.
#[derive(Debug, Default)]
struct SlurmJobNodes {
    /// Nodes for jobs.
    nodes: BTreeSet<NodeName>,
    /// The nodes that jobs still use.
    busy: BTreeSet<NodeName>,
    /// The nodes that a reservation must keep free.
    reserved: Vec<NodeName>,
}

/// Whether a node still has this fabricgate drain, without a suffix to its reason.
fn is_drain_unchanged(live: &SchedulerSnapshot, node: &NodeName, reason: &str) -> bool {
    live.nodes.get(node).is_some_and(|node| {
        node_state::has_drain(node)
            && verification::has_reason(node, reason)
            && node_state::appended_text(node).is_none()
    })
}

impl SlurmAllocator<'_, '_> {
    fn slurm_commands(&self) -> SlurmCommands<'_> {
        SlurmCommands { programs: &self.slurm.programs, limit: self.context.timeouts.limit }
    }

    pub(super) async fn allocate_nodes(
        &mut self,
        nodes: &[NodeName],
        state: &JournalState,
        request: &AllocationRequest<'_>,
        allocation: &mut Allocation,
    ) -> Result<(), AllocationError> {
        let live = self.context.read_nodes(nodes).await?;
        let sorted = self.sort_nodes(nodes, &live, state, request.drained);
        let wanted = self.choose_nodes(sorted, request, allocation);
        self.reserve(&wanted, request, allocation).await?;
        self.create_jobs(&wanted, request, allocation).await
    }

    /// Cancels the jobs, then restores the drains and removes the reservation.
    pub(super) async fn free_allocation(
        &mut self,
        allocation: &mut Allocation,
        freed: &mut Vec<JournalEvent>,
        failures: &mut Vec<String>,
    ) {
        let release =
            SlurmRelease::new(&self.slurm.programs, self.context.scheduler, self.context.timeouts);
        if let Some(name) = allocation.jobs.take() {
            match release.cancel_jobs(&name).await {
                Ok(detail) => freed.push(JournalEvent::Freed { name, detail }),
                Err(why) => failures.push(format!("job {name} may still exist: {why}")),
            }
        }
        if let Some(name) = allocation.reservation.take() {
            match release.remove_reservation(&name, &allocation.drained, false).await {
                Ok(detail) => freed.push(JournalEvent::Freed { name, detail }),
                Err(why) => failures.push(format!("reservation {name} still exists: {why}")),
            }
        }
    }

    /// Sorts nodes: idle, busy, drained by fabricgate, or unfit.
    fn sort_nodes(
        &self,
        all: &[NodeName],
        live: &SchedulerSnapshot,
        state: &JournalState,
        drained: bool,
    ) -> SlurmNodeAvailability {
        let mut sorted = SlurmNodeAvailability {
            unfit: nodes_outside_partition(self.slurm.partition.as_deref(), all, live),
            ..SlurmNodeAvailability::default()
        };
        for name in all {
            let Some(node) = live.nodes.get(name) else {
                sorted.unfit.insert(name.clone(), "the scheduler has no such node".to_owned());
                continue;
            };
            if sorted.unfit.contains_key(name) {
                continue;
            }
            let node = &self.ignore_reservation(node, None);
            let Some(why) = node_state::explain_no_measurement(node) else {
                sorted.idle.insert(name.clone());
                continue;
            };
            match node_state::drain_owner(node, state) {
                DrainOwner::ThisGate(drain) if drained => match self.explain_unliftable_drain(node)
                {
                    None => {
                        sorted.drained.insert(name.clone(), drain.action.reason.clone());
                    }
                    Some(why) => {
                        sorted.unfit.insert(name.clone(), why);
                    }
                },
                DrainOwner::Unrecorded => {
                    sorted.unfit.insert(name.clone(), node_state::describe_unrecorded(node));
                }
                DrainOwner::NotDrained if is_in_use(node) => {
                    sorted.busy.insert(name.clone(), why);
                }
                _ => {
                    sorted.unfit.insert(name.clone(), why);
                }
            }
        }
        sorted
    }

    /// The reason why a node that fabricgate drained cannot be measured anyway.
    fn explain_unliftable_drain(&self, node: &SchedulerNode) -> Option<String> {
        if self.slurm.drained == DrainedNodePolicy::Refuse {
            let how = "drained = \"reservation\" of [launcher] measures it inside a reservation, \
                       \"no-allocate\" without a job";
            return Some(format!("fabricgate drained it, and drained = \"refuse\" is set; {how}"));
        }
        if !node_state::is_drained(node) {
            return Some("fabricgate drained it, and its jobs have not ended yet".to_owned());
        }
        if let Some(why) = node_state::appended_text(node) {
            return Some(why);
        }
        let mut lifted = node.clone();
        lifted.state.retain(|word| word != "DRAIN");
        lifted.reason = None;
        node_state::explain_no_measurement(&lifted)
    }

    /// The node as the users of its reservation see it: fabricgate's reservation, or one that the
    /// site provides.
    fn ignore_reservation(&self, node: &SchedulerNode, own: Option<&str>) -> SchedulerNode {
        let mut node = node.clone();
        let site = self.slurm.reservation.as_deref();
        let is_usable =
            |name: &str| name.split(',').all(|name| Some(name) == own || Some(name) == site);
        // The flags appear some seconds before or after the name.
        if own.is_some() || node.reservation.as_deref().is_some_and(is_usable) {
            node.state.retain(|word| word != "RESERVED" && word != "MAINTENANCE");
        }
        node
    }

    /// Decides which nodes to hold, and records why others are not held.
    fn choose_nodes(
        &mut self,
        sorted: SlurmNodeAvailability,
        request: &AllocationRequest<'_>,
        allocation: &mut Allocation,
    ) -> SlurmJobNodes {
        let mut wanted = SlurmJobNodes { nodes: sorted.idle, ..SlurmJobNodes::default() };
        allocation.nodes.skipped.extend(sorted.unfit);
        match self.slurm.busy {
            BusyNodePolicy::Skip => allocation.nodes.skipped.extend(sorted.busy),
            BusyNodePolicy::Wait | BusyNodePolicy::Reserve => {
                wanted.nodes.extend(sorted.busy.keys().cloned());
                wanted.busy.extend(sorted.busy.into_keys());
            }
        }
        let lifted = self.slurm.drained == DrainedNodePolicy::Reservation;
        for (node, reason) in sorted.drained {
            if lifted {
                wanted.nodes.insert(node.clone());
                allocation.drained.push((node, reason));
            } else {
                allocation.nodes.targets.insert(node, WorkerTarget::Unallocated);
            }
        }
        let reserve_busy = self.slurm.busy == BusyNodePolicy::Reserve;
        for AllocationDomain { nodes, .. } in &request.domains {
            let needs = |node: &NodeName| {
                allocation.drained.iter().any(|(drained, _)| drained == node)
                    || (reserve_busy && wanted.busy.contains(node))
            };
            // A job has one reservation: all of its nodes must be in it.
            if nodes.iter().any(needs) {
                wanted.reserved.extend(nodes.iter().filter(|n| wanted.nodes.contains(*n)).cloned());
            }
        }
        wanted
    }

    /// Creates the reservation if one is needed, and prepares its nodes.
    async fn reserve(
        &mut self,
        wanted: &SlurmJobNodes,
        request: &AllocationRequest<'_>,
        allocation: &mut Allocation,
    ) -> Result<(), AllocationError> {
        if wanted.reserved.is_empty() {
            return Ok(());
        }
        // No drain is lifted yet, so an early end needs to restore none.
        let mut lifting = std::mem::take(&mut allocation.drained);
        let name = format!("{}-maint", job_name(request.run));
        journal_allocation(
            self.context.folder,
            &name,
            HoldKind::Reservation,
            wanted.reserved.clone(),
            Vec::new(),
        )?;
        allocation.reservation = Some(name.clone());
        let waiting = if wanted.busy.is_empty() { 0 } else { self.slurm.wait_s.div_ceil(60) };
        let lifts = !lifting.is_empty();
        let minutes = request.minutes + waiting + RESERVATION_MARGIN_MINUTES;
        let minutes = if lifts { minutes.max(MIN_RESERVATION_MINUTES) } else { minutes };
        let nodes = fold_nodes(&wanted.reserved);
        (self.context.log)(&GateEvent::ReservationRequested { nodes, name: name.clone() });
        let user = &self.slurm.user;
        let made = self.slurm_commands().reserve(&name, &wanted.reserved, minutes, user).await;
        if let Err(failure) = made {
            // It may have been created despite the error.
            if !self.slurm_commands().is_reserved(&name).await.unwrap_or(false) {
                return Err(refusal_error(format!("reservation {name}"), &failure));
            }
        }
        if lifts {
            // A controller that is killed now may keep the resumption and lose the reservation,
            // unless the reservation is on its disk first.
            sleep(self.context.timeouts.persist).await;
            if !self.slurm_commands().is_reserved(&name).await.unwrap_or(false) {
                let message = "it is no longer listed, so no drain is lifted".to_owned();
                return Err(AllocationError::Refused {
                    object: format!("reservation {name}"),
                    message,
                });
            }
            // A node that an operator released or took over meanwhile stays as it is.
            let named: Vec<NodeName> = lifting.iter().map(|(node, _)| node.clone()).collect();
            let live = self.context.read_nodes(&named).await?;
            lifting.retain(|(node, reason)| is_drain_unchanged(&live, node, reason));
        }
        let drained: Vec<NodeName> = lifting.iter().map(|(node, _)| node.clone()).collect();
        if !drained.is_empty() {
            // From here on they must be drained again, however this ends.
            journal_allocation(
                self.context.folder,
                &name,
                HoldKind::Reservation,
                wanted.reserved.clone(),
                lifting.clone(),
            )?;
            allocation.drained = lifting;
            let resume =
                NodeUpdate { state: Some(NodeStateChange::Resume), ..NodeUpdate::default() };
            if let Err(error) = self.context.scheduler.update_nodes(&drained, &resume).await {
                // Some nodes may be resumed; the others are left out below.
                let (nodes, why) = (fold_nodes(&drained), error.to_string());
                (self.context.log)(&GateEvent::ResumeFailed { nodes, why });
            }
        }
        self.wait_until_idle(
            &drained,
            &name,
            self.context.timeouts.settle.max(Duration::from_secs(15)),
        )
        .await?;
        let busy: Vec<NodeName> =
            wanted.reserved.iter().filter(|node| wanted.busy.contains(*node)).cloned().collect();
        self.wait_until_idle(&busy, &name, Duration::from_secs(self.slurm.wait_s)).await
    }

    /// Waits until all nodes of fabricgate's reservation are idle, or until the limit: then jobs
    /// start without the others.
    async fn wait_until_idle(
        &mut self,
        nodes: &[NodeName],
        own: &str,
        limit: Duration,
    ) -> Result<(), AllocationError> {
        let start = Instant::now();
        let mut reported = start;
        while !nodes.is_empty() {
            let live = self.context.read_nodes(nodes).await?;
            let left: Vec<NodeName> = nodes
                .iter()
                .filter(|n| self.explain_unfit(&live, n, Some(own)).is_some())
                .cloned()
                .collect();
            if left.is_empty() || limit <= start.elapsed() {
                break;
            }
            if REPORT_INTERVAL <= reported.elapsed() {
                reported = Instant::now();
                let (nodes, waited_s) = (fold_nodes(&left), start.elapsed().as_secs());
                (self.context.log)(&GateEvent::NodesAwaited { nodes, waited_s });
            }
            sleep(POLL_INTERVAL.min(limit / 10)).await;
        }
        Ok(())
    }

    /// Why a node cannot be measured now.
    fn explain_unfit(
        &self,
        live: &SchedulerSnapshot,
        node: &NodeName,
        own: Option<&str>,
    ) -> Option<String> {
        match live.nodes.get(node) {
            None => Some("the scheduler has no such node".to_owned()),
            Some(node) => node_state::explain_no_measurement(&self.ignore_reservation(node, own)),
        }
    }

    async fn create_jobs(
        &mut self,
        wanted: &SlurmJobNodes,
        request: &AllocationRequest<'_>,
        allocation: &mut Allocation,
    ) -> Result<(), AllocationError> {
        let nodes: Vec<NodeName> = wanted.nodes.iter().cloned().collect();
        if nodes.is_empty() {
            return Ok(());
        }
        let name = job_name(request.run);
        let gpus = match &self.slurm.gres {
            Some(_) => BTreeMap::new(),
            None => self.slurm_commands().read_gpu_counts(&nodes).await,
        };
        journal_allocation(self.context.folder, &name, HoldKind::Job, nodes.clone(), Vec::new())?;
        allocation.jobs = Some(name.clone());
        for AllocationDomain { name: domain, nodes: members, .. } in &request.domains {
            let members: Vec<NodeName> =
                members.iter().filter(|node| wanted.nodes.contains(*node)).cloned().collect();
            self.create_job(&name, domain, members, wanted, &gpus, request.minutes, allocation)
                .await?;
        }
        Ok(())
    }

    /// Creates the job of one domain, without the nodes that other jobs take in the meantime.
    #[expect(clippy::too_many_arguments, reason = "one call with all parameters of a job")]
    async fn create_job(
        &mut self,
        name: &str,
        domain: &DomainName,
        mut members: Vec<NodeName>,
        wanted: &SlurmJobNodes,
        gpus: &BTreeMap<NodeName, u32>,
        minutes: u64,
        allocation: &mut Allocation,
    ) -> Result<(), AllocationError> {
        let reserved = members.iter().any(|node| wanted.reserved.contains(node));
        let reservation = allocation.reservation.clone().filter(|_| reserved);
        let reserved_in = reservation.as_deref();
        let queues = reserved_in.is_none() && members.iter().any(|node| wanted.busy.contains(node));
        for attempt in 0..MAX_JOB_ATTEMPTS {
            if attempt != 0 || reserved_in.is_some() {
                let live = self.context.read_nodes(&members).await?;
                members.retain(|node| {
                    match self.explain_unfit(&without_planned_state(&live), node, reserved_in) {
                        None => true,
                        Some(_) if queues && attempt == 0 => true,
                        Some(why) => {
                            allocation.nodes.skipped.insert(node.clone(), why);
                            false
                        }
                    }
                });
            }
            if members.is_empty() {
                return Ok(());
            }
            let waits = queues && attempt == 0;
            if waits {
                let (nodes, limit_s) = (fold_nodes(&members), self.slurm.wait_s);
                let domain = domain.clone();
                (self.context.log)(&GateEvent::JobQueued { domain, nodes, limit_s });
            }
            // The minimum over all nodes: a step gets the GPUs that its job requested.
            let least = members.iter().map(|n| gpus.get(n).copied().unwrap_or(0)).min();
            let counted = least.filter(|n| 0 < *n).map(|n| format!("gpu:{n}"));
            let list = fold_nodes(&members);
            let comment = format!("fabricgate measures {domain}");
            let job = SlurmJobRequest {
                name,
                comment: &comment,
                nodes: &list,
                count: members.len(),
                gres: self.slurm.gres.as_deref().or(counted.as_deref()),
                reservation: reserved_in,
                minutes,
                immediate: (!waits).then_some(IMMEDIATE_S),
            };
            match self.slurm_commands().allocate(self.slurm, &job).await {
                Ok(number) => {
                    let (domain, job) = (domain.clone(), number.clone());
                    (self.context.log)(&GateEvent::JobStarted { domain, job, nodes: list });
                    for node in members {
                        allocation.nodes.targets.insert(node, WorkerTarget::Job(number.clone()));
                    }
                    return Ok(());
                }
                Err(failure) if failure.is_busy || waits => {
                    let (domain, why) = (domain.clone(), failure.message.clone());
                    (self.context.log)(&GateEvent::JobFailed { domain, why });
                    if attempt + 1 == MAX_JOB_ATTEMPTS {
                        for node in std::mem::take(&mut members) {
                            let why = format!("its job did not start: {}", failure.message);
                            allocation.nodes.skipped.insert(node, why);
                        }
                    }
                }
                Err(failure) => {
                    return Err(refusal_error(format!("a job on {list} of {domain}"), &failure));
                }
            }
        }
        Ok(())
    }
}

/// Extends a reservation in which drains are lifted to its full duration from now.
pub async fn renew_reservation(
    programs: &SlurmPrograms,
    limit: Duration,
    name: &str,
) -> Result<(), String> {
    let renewed = SlurmCommands { programs, limit }.renew(name, MIN_RESERVATION_MINUTES).await;
    renewed.map_err(|failure| failure.message)
}

/// The name of a run's jobs.
pub fn job_name(run: &str) -> String {
    format!("fabricgate-{run}")
}

/// The same without planned jobs: the nodes may be planned for the fabricgate job that was just
/// given up.
fn without_planned_state(live: &SchedulerSnapshot) -> SchedulerSnapshot {
    let mut live = live.clone();
    for node in live.nodes.values_mut() {
        node.state.retain(|word| word != "PLANNED");
    }
    live
}

fn refusal_error(object: String, failure: &SlurmCommandFailure) -> AllocationError {
    let hint = match failure.message.contains("configuration is not available") {
        true => {
            "; in a partition with block topology no job may name nodes of two blocks: use a \
             partition with a flat topology, or options = [\"--segment=1\"] from Slurm 25.11 on"
        }
        false => "",
    };
    AllocationError::Refused { object, message: format!("{}{hint}", failure.message) }
}

#[cfg(test)]
#[path = "slurm_allocation_tests.rs"]
mod tests;
