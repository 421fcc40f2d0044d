//! Nodes that a scheduler holds for measuring: jobs and reservations of Slurm, or pods
//! of Kubernetes. They exist before a sweep starts and are freed after it, also after a
//! crash.
//!
//! The journal lists every object before it is created. A process that dies leaves its
//! objects to the next turn ([`clean_up_orphans`]).

mod orphans;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::clock;
use super::journal::{Journal, JournalError};
use super::pod_allocation::{PodBackend, allocate_pods, delete_run_objects};
use super::scheduler::SchedulerTimeouts;
use super::scheduler::{Scheduler, SchedulerError};
use super::slurm_allocation::{RENEWAL_INTERVAL, SlurmAllocator, renew_reservation};
use crate::gate::gate_event::GateEvent;
use crate::launch::kubernetes::KubernetesLauncher;
use crate::launch::slurm::{SlurmLauncher, SlurmPrograms};
use crate::launch::{HeldNodes, LaunchError, check_name};
use model::hostlist;
use model::id::{DomainName, NodeName};
use model::journal::{HoldKind, JournalEvent};
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};

pub use orphans::{OrphanCleanup, clean_up_at_start, clean_up_orphans};

/// How long to wait for the process that has the journal open.
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval between polls of the journal.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The scheduler that holds the nodes.
#[derive(Debug)]
pub enum AllocationBackend {
    /// Jobs and reservations.
    Slurm(Box<SlurmLauncher>),
    /// Pods.
    Kubernetes(Box<PodBackend>),
}

impl AllocationBackend {
    /// The launcher of Slurm, if jobs hold nodes.
    pub fn slurm(&self) -> Option<&SlurmLauncher> {
        match self {
            Self::Slurm(slurm) => Some(slurm),
            Self::Kubernetes(_) => None,
        }
    }

    /// The launcher of Kubernetes, if pods hold nodes.
    pub fn kubernetes(&self) -> Option<&KubernetesLauncher> {
        match self {
            Self::Slurm(_) => None,
            Self::Kubernetes(pods) => Some(&pods.kubernetes),
        }
    }
}

/// What an allocation needs from its process.
#[expect(missing_debug_implementations, reason = "a callback has no Debug")]
pub struct AllocationContext<'a> {
    /// The scheduler that holds the nodes.
    pub backend: &'a AllocationBackend,
    /// Reads, resumes and drains nodes.
    pub scheduler: &'a dyn Scheduler,
    /// The folder of the journal.
    pub folder: &'a Path,
    /// Time limits of the scheduler.
    pub timeouts: SchedulerTimeouts,
    /// Receives one line per step.
    pub log: &'a mut dyn FnMut(&GateEvent),
}

/// The nodes to hold.
#[derive(Clone, Debug)]
pub struct AllocationRequest<'a> {
    /// The run that measures them.
    pub run: &'a str,
    /// The nodes by domain: in Slurm each domain gets a job of its own.
    pub domains: Vec<AllocationDomain>,
    /// Hold also nodes that fabricgate drained.
    pub drained: bool,
    /// How long the sweep may take, in minutes.
    pub minutes: u64,
}

/// The nodes of one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationDomain {
    /// The domain.
    pub name: DomainName,
    /// The nodes to hold.
    pub nodes: Vec<NodeName>,
    /// The claimed GPUs of each node.
    pub gpus_per_node: Option<u32>,
}

/// The objects that hold nodes. It is filled in step by step, so that a process that
/// ends early knows which objects to free.
#[derive(Debug, Default)]
pub struct Allocation {
    /// The name of its Slurm jobs, once one may exist.
    pub jobs: Option<String>,
    /// The Slurm reservation, once it may exist.
    pub reservation: Option<String>,
    /// Nodes to be drained again, with their reasons.
    pub drained: Vec<(NodeName, String)>,
    /// The run of its pods, once one may exist.
    pub pods: Option<String>,
    /// The held nodes, and why others are left out.
    pub nodes: HeldNodes,
}

/// Why no node can be held.
#[derive(Debug, thiserror::Error)]
pub enum AllocationError {
    /// A name that a program could misread.
    #[error(transparent)]
    Name(#[from] LaunchError),
    /// The journal cannot be kept, so no object may be created.
    #[error("the gate's journal: {0}")]
    Journal(#[from] JournalError),
    /// The scheduler does not report the state of its nodes.
    #[error("{name}: {error}")]
    Scheduler {
        /// The scheduler.
        name: String,
        /// The error of the scheduler.
        error: SchedulerError,
    },
    /// The scheduler refused to create an object.
    #[error("{object}: {message}")]
    Refused {
        /// The job, reservation or pod.
        object: String,
        /// The scheduler's message.
        message: String,
    },
}

impl Allocation {
    /// Finds the nodes that can be measured and creates the objects that hold them.
    /// After an error, [`release`](Self::release) frees what was created before it.
    pub async fn acquire(
        &mut self,
        context: &mut AllocationContext<'_>,
        request: &AllocationRequest<'_>,
    ) -> Result<(), AllocationError> {
        let nodes: Vec<NodeName> =
            request.domains.iter().flat_map(|it| it.nodes.iter().cloned()).collect();
        nodes.iter().try_for_each(check_name)?;
        let state = clean_up_at_start(context).await?;
        match context.backend {
            AllocationBackend::Slurm(slurm) => {
                let mut allocator = SlurmAllocator { slurm, context };
                allocator.allocate_nodes(&nodes, &state, request, self).await
            }
            AllocationBackend::Kubernetes(pods) => {
                allocate_pods(pods, context, &nodes, &state, request, self).await
            }
        }
    }

    /// Frees the objects. Returns a line for each that could not be freed; the journal
    /// keeps those for the next turn.
    pub async fn release(&mut self, context: &mut AllocationContext<'_>) -> Vec<String> {
        let mut freed = Vec::new();
        let mut failures = Vec::new();
        match context.backend {
            AllocationBackend::Slurm(slurm) => {
                let mut allocator = SlurmAllocator { slurm, context };
                allocator.free_allocation(self, &mut freed, &mut failures).await;
            }
            AllocationBackend::Kubernetes(pods) => {
                if let Some(name) = self.pods.take() {
                    match delete_run_objects(&pods.objects, &name, clock::now().unix).await {
                        Ok(detail) => freed.push(JournalEvent::Freed { name, detail }),
                        Err(why) => {
                            failures.push(format!("pods of run {name} may still exist: {why}"));
                        }
                    }
                }
            }
        }
        if let Err(error) = append_events(context.folder, freed).await {
            failures.push(format!("the gate's journal: {error}"));
        }
        failures
    }
}

/// Renews a reservation in which drains are lifted until it is dropped.
#[derive(Debug)]
pub struct ReservationRenewal {
    /// Dropped, it ends the thread.
    _end: mpsc::Sender<()>,
}

impl ReservationRenewal {
    /// Starts the thread that renews the reservation of this allocation; `None` if there is none to
    /// renew. Without a thread the reservation ends at its first end time.
    pub fn start(
        context: &AllocationContext<'_>,
        allocation: &Allocation,
        log: fn(&GateEvent),
    ) -> Option<Self> {
        let programs: SlurmPrograms = context.backend.slurm()?.programs.clone();
        let name = allocation.reservation.clone().filter(|_| !allocation.drained.is_empty())?;
        let limit = context.timeouts.limit;
        let (end, ended) = mpsc::channel();
        let work = move || {
            while ended.recv_timeout(RENEWAL_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
                let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let Ok(runtime) = built else { continue };
                if let Err(why) = runtime.block_on(renew_reservation(&programs, limit, &name)) {
                    let why = why.to_string();
                    log(&GateEvent::ReservationNotRenewed { name: name.clone(), why });
                }
            }
        };
        let spawned = std::thread::Builder::new().name("renewal".to_owned()).spawn(work);
        spawned.map(|_| Self { _end: end }).ok()
    }
}

impl AllocationContext<'_> {
    pub(super) async fn read_nodes(
        &self,
        nodes: &[NodeName],
    ) -> Result<SchedulerSnapshot, AllocationError> {
        let read = self.scheduler.read_nodes(nodes).await;
        read.map_err(|error| AllocationError::Scheduler { name: self.scheduler.name(), error })
    }
}

/// Writes to the journal what this process creates next.
pub(super) fn journal_allocation(
    folder: &Path,
    name: &str,
    kind: HoldKind,
    nodes: Vec<NodeName>,
    drained: Vec<(NodeName, String)>,
) -> Result<(), JournalError> {
    let (name, host, pid) = (name.to_owned(), clock::host_name(), std::process::id());
    let mut journal = Journal::open(folder)?;
    journal.append(JournalEvent::Holding { name, kind, nodes, drained, host, pid })
}

/// Appends to the journal as soon as the process that has it open closes it.
async fn append_events(folder: &Path, events: Vec<JournalEvent>) -> Result<(), JournalError> {
    if events.is_empty() {
        return Ok(());
    }
    let start = Instant::now();
    let mut journal = loop {
        match Journal::open(folder) {
            Err(JournalError::Locked { .. }) if start.elapsed() < JOURNAL_TIMEOUT => {
                sleep(POLL_INTERVAL).await;
            }
            opened => break opened?,
        }
    };
    events.into_iter().try_for_each(|event| journal.append(event))
}

/// Whether jobs or pods use this node, and its state shows nothing else.
pub(super) fn is_in_use(node: &SchedulerNode) -> bool {
    const PASSING: &[&str] = &["ALLOCATED", "MIXED", "COMPLETING", "PLANNED", "IDLE"];
    node.state.iter().all(|flag| PASSING.contains(&flag.as_str()))
}

/// Host lists of the nodes with the same reason.
pub(super) fn group_by_reason(reasons: &BTreeMap<NodeName, String>) -> BTreeMap<&str, String> {
    let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (node, why) in reasons {
        nodes.entry(why).or_default().push(node.as_str());
    }
    nodes.into_iter().map(|(why, nodes)| (why, hostlist::fold(nodes))).collect()
}
