//! Nodes that jobs and reservations of Slurm hold.

use std::sync::mpsc;
use std::time::Duration;

use crate::cli::allocation::{AllocationPurpose, AllocationRecord};
use crate::cli::gate_apply;
use crate::cli::stdout::note;
use crate::config::Config;
use crate::config::gate::{CALL_TIMEOUT, GateBackend, GateConfig, SETTLE_TIME};
use control::gate::executor::DEFAULT_PERSIST_TIME;
use control::gate::recovery::DEFAULT_IN_FLIGHT_TIME;
use control::gate::scheduler::Scheduler;
use control::gate::scontrol::ScontrolScheduler;
use control::gate::slurm_allocation;
use control::gate::slurm_allocation::{
    AllocationError, SlurmAllocation, SlurmAllocationContext, SlurmAllocationRequest,
    StartupCleanup,
};
use control::gate::timeouts::SchedulerTimeouts;
use control::launch::held::HeldNodes;
use control::launch::slurm::SlurmLauncher;
use model::id::NodeName;

/// How Slurm holds nodes, and which.
#[derive(Debug)]
pub(crate) struct SlurmAllocator {
    slurm: SlurmLauncher,
    scheduler: Box<dyn Scheduler>,
    record: AllocationRecord,
    pace: SchedulerTimeouts,
    holding: SlurmAllocation,
    renewal: Option<ReservationRenewal>,
}

/// Renews a reservation in which drains are lifted, for as long as it is there.
#[derive(Debug)]
struct ReservationRenewal {
    /// Dropped, it ends the thread.
    _end: mpsc::Sender<()>,
}

impl ReservationRenewal {
    /// Without a thread the reservation ends when it was first said to.
    fn start(slurm: &SlurmLauncher, limit: Duration, name: &str) -> Option<Self> {
        let (end, ended) = mpsc::channel();
        let (programs, name) = (slurm.programs.clone(), name.to_owned());
        let work = move || {
            while ended.recv_timeout(slurm_allocation::RENEWAL_INTERVAL)
                == Err(mpsc::RecvTimeoutError::Timeout)
            {
                let Ok(runtime) = crate::cli::runtime::build_runtime() else { continue };
                if let Err(why) =
                    runtime.block_on(slurm_allocation::renew_reservation(&programs, limit, &name))
                {
                    note(&format!("reservation {name} is not renewed: {why}"));
                }
            }
        };
        let made = std::thread::Builder::new().name("renewal".to_owned()).spawn(work);
        made.map(|_| Self { _end: end }).ok()
    }
}

impl SlurmAllocator {
    /// Through the gate of the configuration where that tells Slurm, or through
    /// scontrol as patiently as a gate that says nothing of times: who tells
    /// Kubernetes cannot lift a drain of Slurm's.
    pub(crate) fn new(config: &Config, slurm: &SlurmLauncher, run: &str) -> Self {
        let tells_slurm = |gate: &&GateConfig| !matches!(gate.backend, GateBackend::Kubernetes(_));
        let gate = config.gate.as_ref().filter(tells_slurm);
        let usual = SchedulerTimeouts {
            limit: CALL_TIMEOUT,
            settle: SETTLE_TIME,
            persist: DEFAULT_PERSIST_TIME,
            in_flight: DEFAULT_IN_FLIGHT_TIME,
        };
        let pace = gate.map_or(usual, |it| it.timeouts);
        let scheduler: Box<dyn Scheduler> = match gate {
            Some(gate) => gate_apply::scheduler_for(gate),
            None => Box::new(ScontrolScheduler {
                argv: slurm.programs.scontrol.clone(),
                limit: pace.limit,
                remote_shell: slurm.programs.remote_shell,
            }),
        };
        Self {
            slurm: slurm.clone(),
            scheduler,
            record: AllocationRecord::new(config, run),
            pace,
            holding: SlurmAllocation::default(),
            renewal: None,
        }
    }

    pub(crate) fn launch_allocation(&self) -> &HeldNodes {
        &self.holding.nodes
    }

    pub(crate) async fn acquire(
        &mut self,
        purpose: &AllocationPurpose<'_>,
    ) -> Result<(), AllocationError> {
        let of = |domain: &model::claims::ClaimedDomain| -> Vec<NodeName> {
            domain.nodes.iter().filter(|node| purpose.nodes.contains(*node)).cloned().collect()
        };
        let domains = purpose.claims.domains.iter().map(|domain| (domain.name.clone(), of(domain)));
        let wish = SlurmAllocationRequest {
            run: purpose.run,
            domains: domains.filter(|(_, nodes)| !nodes.is_empty()).collect(),
            drained: purpose.drained,
            minutes: purpose.minutes,
        };
        self.release_orphans().await?;
        let mut say = |text: &str| note(text);
        let (mut holder, holding) = self.holder(&mut say);
        let held = slurm_allocation::allocate_nodes(&mut holder, &wish, holding).await;
        if let Some(name) =
            self.holding.reservation.as_ref().filter(|_| !self.holding.drained.is_empty())
        {
            self.renewal = ReservationRenewal::start(&self.slurm, self.pace.limit, name);
        }
        held
    }

    pub(crate) async fn release(&mut self) -> Vec<String> {
        self.renewal = None;
        let mut say = |text: &str| note(text);
        let (mut holder, holding) = self.holder(&mut say);
        slurm_allocation::free_allocation(&mut holder, holding).await
    }

    pub(super) fn record(&self) -> &AllocationRecord {
        &self.record
    }

    /// Ends what runs without a gate left behind.
    async fn release_orphans(&self) -> Result<(), AllocationError> {
        for folder in self.record.list_orphans() {
            let mut say = |text: &str| note(text);
            slurm_allocation::clean_up_at_start(StartupCleanup {
                folder: &folder,
                scheduler: &*self.scheduler,
                programs: Some(&self.slurm.programs),
                pods: None,
                timeouts: self.pace,
                log: &mut say,
            })
            .await?;
            self.record.remove(&folder);
        }
        Ok(())
    }

    fn holder<'a>(
        &'a mut self,
        say: &'a mut dyn FnMut(&str),
    ) -> (SlurmAllocationContext<'a>, &'a mut SlurmAllocation) {
        let Self { slurm, scheduler, record, pace, holding, .. } = self;
        let folder = &record.folder;
        (
            SlurmAllocationContext {
                slurm,
                scheduler: &**scheduler,
                folder,
                timeouts: *pace,
                log: say,
            },
            holding,
        )
    }
}
