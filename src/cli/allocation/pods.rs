//! Nodes that pods hold.

use std::fmt;
use std::time::Duration;

use crate::cli::allocation::{AllocationPurpose, AllocationRecord};
use crate::cli::stdout::note;
use crate::config::Config;
use crate::config::gate::CALL_TIMEOUT;
use crate::exit::CommandError;
use control::gate::kubernetes::KubernetesScheduler as Cluster;
use control::gate::pod_allocation;
use control::gate::pod_allocation::{
    PodAllocation, PodAllocationContext, PodAllocationRequest, PodDomainRequest, PodObjectClient,
};
use control::gate::scheduler::Scheduler;
use control::gate::slurm_allocation::AllocationError;
use control::launch::held::HeldNodes;
use control::launch::kubernetes::{KubernetesLauncher, RankLaunchMode};
use control::sources::kubernetes::KubernetesClientConfig as Server;

/// How pods hold nodes, and which.
pub(crate) struct PodAllocator {
    kubernetes: KubernetesLauncher,
    worker: String,
    objects: PodObjectClient,
    scheduler: Box<dyn Scheduler>,
    record: AllocationRecord,
    limit: Duration,
    holding: PodAllocation,
}

impl fmt::Debug for PodAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByPods").field("holding", &self.holding).finish_non_exhaustive()
    }
}

impl PodAllocator {
    /// The way to the server of who may make pods. Nodes are read as the same
    /// user, who cannot change them.
    pub(crate) async fn new(
        config: &Config,
        kubernetes: &KubernetesLauncher,
        purpose: &AllocationPurpose<'_>,
    ) -> Result<Self, CommandError> {
        let limit = config.gate.as_ref().map_or(CALL_TIMEOUT, |gate| gate.timeouts.limit);
        let (kubeconfig, context) = (kubernetes.kubeconfig.clone(), kubernetes.context.clone());
        let server = Server { kubeconfig, context, limit };
        let objects =
            PodObjectClient::connect(kubernetes, limit).await.map_err(CommandError::Environment)?;
        Ok(Self {
            kubernetes: kubernetes.clone(),
            worker: purpose.worker.to_owned(),
            objects,
            scheduler: Box::new(Cluster::new(server)),
            record: AllocationRecord::new(config, purpose.run),
            limit,
            holding: PodAllocation::default(),
        })
    }

    pub(crate) fn launch_allocation(&self) -> &HeldNodes {
        &self.holding.nodes
    }

    /// Whether tools can run across pods.
    pub(crate) fn can_start_ranks(&self) -> bool {
        self.kubernetes.ranks != RankLaunchMode::None
    }

    pub(crate) async fn acquire(
        &mut self,
        purpose: &AllocationPurpose<'_>,
    ) -> Result<(), AllocationError> {
        let domains = purpose.claims.domains.iter().map(|domain| PodDomainRequest {
            name: domain.name.clone(),
            nodes: domain.nodes.iter().filter(|it| purpose.nodes.contains(*it)).cloned().collect(),
            gpus_per_node: domain.gpus_per_node,
        });
        let wish = PodAllocationRequest {
            run: purpose.run,
            domains: domains.filter(|domain| !domain.nodes.is_empty()).collect(),
            drained: purpose.drained,
            minutes: purpose.minutes,
        };
        let mut say = |text: &str| note(text);
        let (mut holder, holding) = self.holder(&mut say);
        pod_allocation::allocate_pods(&mut holder, &wish, holding).await
    }

    pub(crate) async fn release(&mut self) -> Vec<String> {
        let mut say = |text: &str| note(text);
        let (mut holder, holding) = self.holder(&mut say);
        pod_allocation::free_pods(&mut holder, holding).await
    }

    pub(super) fn record(&self) -> &AllocationRecord {
        &self.record
    }

    fn holder<'a>(
        &'a mut self,
        say: &'a mut dyn FnMut(&str),
    ) -> (PodAllocationContext<'a>, &'a mut PodAllocation) {
        let Self { kubernetes, worker, objects, scheduler, record, limit, holding } = self;
        let folder = &record.folder;
        let (scheduler, limit): (&'a dyn Scheduler, _) = (&**scheduler, *limit);
        (
            PodAllocationContext {
                kubernetes,
                worker,
                objects,
                scheduler,
                folder,
                limit,
                log: say,
            },
            holding,
        )
    }
}
