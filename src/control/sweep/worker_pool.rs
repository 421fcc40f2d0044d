//! All workers of a sweep: started concurrently, replaced once if they end early, and shut down at
//! the end.
//!
//! An unreachable node delays no other node; its planned readings are recorded as not started, with
//! the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;

use super::worker::WorkerHandle;
use crate::launch::{Launcher, WorkerProgram};
use engine::report::reason_groups;
use model::id::NodeName;
use model::worker_protocol::{MACHINE_FORMAT, MachineRecord};

/// Workers that start at the same time: each is a local process and a login on a node.
const MAX_CONCURRENT_STARTS: usize = 64;

/// How often a worker is started in one sweep. If it ends twice, a third start does not help.
const MAX_STARTS: u32 = 2;

/// The workers of a sweep.
#[derive(Debug)]
pub(super) struct WorkerPool {
    launcher: Launcher,
    program: WorkerProgram,
    limit: Duration,
    slots: BTreeMap<NodeName, Mutex<WorkerSlot>>,
}

/// No node of a sweep can be reached.
#[derive(Debug)]
pub(super) struct NoReachableNode {
    nodes: usize,
    launcher: &'static str,
    why: String,
    more: usize,
}

impl fmt::Display for NoReachableNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, launcher, why, more } = self;
        write!(f, "0 of {nodes} nodes can be reached ({why}")?;
        if 0 < *more {
            write!(f, ", and {more} more {}", if *more == 1 { "reason" } else { "reasons" })?;
        }
        write!(f, "): nothing was measured; check [launcher] (kind = \"{launcher}\")")
    }
}

#[derive(Debug, Default)]
struct WorkerSlot {
    worker: Option<Arc<WorkerHandle>>,
    starts: u32,
    /// The reason why there is no worker.
    why: Option<String>,
}

impl WorkerPool {
    /// Starts a worker on every node.
    pub(super) async fn start(
        launcher: &Launcher,
        program: &WorkerProgram,
        limit: Duration,
        nodes: impl IntoIterator<Item = NodeName>,
    ) -> Arc<Self> {
        let places = nodes.into_iter().map(|node| (node, Mutex::default())).collect();
        let (launcher, program) = (launcher.clone(), program.clone());
        let fleet = Arc::new(Self { launcher, program, limit, slots: places });
        let starting = Arc::new(Semaphore::new(MAX_CONCURRENT_STARTS));
        let mut tasks = JoinSet::new();
        let nodes: Vec<NodeName> = fleet.slots.keys().cloned().collect();
        for node in nodes {
            let (fleet, starting) = (Arc::clone(&fleet), Arc::clone(&starting));
            tasks.spawn(async move {
                // Never closed; an error would mean that nothing starts.
                let Ok(_permit) = starting.acquire().await else { return };
                let _ = fleet.worker(&node).await;
            });
        }
        while tasks.join_next().await.is_some() {}
        fleet
    }

    /// The worker of a node, restarted if it ended early.
    pub(super) async fn worker(&self, node: &NodeName) -> Result<Arc<WorkerHandle>, String> {
        let Some(place) = self.slots.get(node) else {
            return Err(format!("{node} is not a node of this sweep"));
        };
        let mut place = place.lock().await;
        if let Some(worker) = place.worker.as_ref().filter(|worker| worker.is_alive()) {
            return Ok(Arc::clone(worker));
        }
        if place.starts == MAX_STARTS || place.why.is_some() {
            let why = place.why.as_deref().unwrap_or("its worker ended twice");
            return Err(format!("not reached: {why}"));
        }
        place.starts += 1;
        let started = match self.launcher.worker_command(node, &self.program) {
            Ok(launch) => WorkerHandle::connect(node, &launch, self.limit).await,
            Err(error) => Err(error.to_string()),
        };
        match started {
            Ok(worker) => {
                let worker = Arc::new(worker);
                place.worker = Some(Arc::clone(&worker));
                Ok(worker)
            }
            Err(why) => {
                place.why = Some(why.clone());
                Err(format!("not reached: {why}"))
            }
        }
    }

    /// A step's command for this launcher.
    pub(super) fn launcher_command(
        &self,
        argv: &[String],
        nodes: &[NodeName],
    ) -> Result<Vec<String>, String> {
        let command = self.launcher.step_command(argv, nodes, &self.program.held);
        command.map_err(|error| error.to_string())
    }

    /// Whether node names serve as network addresses.
    pub(super) fn names_are_addresses(&self) -> bool {
        self.launcher.names_are_addresses()
    }

    /// The result of the start: nodes without a worker and the reasons, and versions other than
    /// this one. Equal remarks are merged.
    pub(super) async fn start_remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        for (node, place) in &self.slots {
            let place = place.lock().await;
            if let Some(why) = &place.why {
                remarks.push((node.to_string(), why.clone()));
            } else if let Some(worker) = &place.worker
                && worker.version != env!("CARGO_PKG_VERSION")
            {
                let runs = format!("runs fabricgate {}", worker.version);
                remarks.push((node.to_string(), runs));
            }
        }
        self.fold_remarks(&remarks)
    }

    fn fold_remarks(&self, remarks: &[(String, String)]) -> Vec<String> {
        let names = self.slots.keys().map(NodeName::as_str).collect();
        let pairs = remarks.iter().map(|(node, why)| (node.as_str(), why.as_str()));
        let folded = reason_groups::group_by_reason(pairs, &names).into_iter();
        folded.map(|alike| format!("{}: {}", alike.whats.join(", "), alike.why)).collect()
    }

    /// The merged reasons why no node has a worker; `None` if one has.
    pub(super) async fn explain_unreachable(&self) -> Option<NoReachableNode> {
        let mut whys = Vec::new();
        for (node, place) in &self.slots {
            let place = place.lock().await;
            let why = place.why.as_ref().filter(|_| place.worker.is_none())?;
            whys.push((node.to_string(), why.clone()));
        }
        let mut folded = self.fold_remarks(&whys);
        let why = (!folded.is_empty()).then(|| folded.remove(0))?;
        let nodes = self.slots.len();
        let launcher = self.launcher.as_str();
        Some(NoReachableNode { nodes, launcher, why, more: folded.len() })
    }

    /// The nodes without a worker.
    pub(super) async fn nodes_without_worker(&self) -> BTreeSet<NodeName> {
        let mut without = BTreeSet::new();
        for (node, place) in &self.slots {
            if place.lock().await.why.is_some() {
                without.insert(node.clone());
            }
        }
        without
    }

    /// The workers' reports about their machines.
    pub(super) async fn machines(&self) -> Vec<MachineRecord> {
        let mut machines = Vec::new();
        for (node, place) in &self.slots {
            if let Some(worker) = &place.lock().await.worker {
                machines.push(MachineRecord {
                    format: MACHINE_FORMAT.to_owned(),
                    node: node.clone(),
                    environment: worker.environment.clone(),
                });
            }
        }
        machines
    }

    pub(super) async fn shut_down(&self) {
        let mut tasks = JoinSet::new();
        for place in self.slots.values() {
            if let Some(worker) = place.lock().await.worker.take() {
                tasks.spawn(async move { worker.shut_down().await });
            }
        }
        while tasks.join_next().await.is_some() {}
    }
}
