//! Creates the pods of a run, and waits until they run or have failed.
//!
//! A problem on one node affects only that node.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::object_client::{ObjectCallFailure, PodObjectClient, PodObjectKind};
use super::pod_state::{PodState, last_warning, parse_pod_state};
use crate::gate::allocation::{AllocationDomain, AllocationError, group_by_reason};
use crate::gate::gate_event::GateEvent;
use crate::launch::kubernetes::manifest::{
    ManifestOwner, NODE_ANNOTATION, OWNER_ANNOTATION, WorkerPodSpec,
};
use crate::launch::kubernetes::{ComputeDomainMode, GpuRequestMode, KubernetesLauncher, manifest};
use crate::launch::{HeldNodes, WorkerTarget};
use model::id::NodeName;

/// How long the scheduler or a kubelet may report problems of a pod until it is given up: a claim
/// in preparation, or a repeated pull of an image, also causes warnings (the kubelet's first
/// back-offs are 10 s and 20 s).
const STUCK_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum time until the controller of ComputeDomains creates a template.
const TEMPLATE_TIMEOUT: Duration = Duration::from_secs(30);

/// The interval between polls of pods, and its increase per pod.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const POLL_INTERVAL_PER_POD: Duration = Duration::from_millis(5);

/// The interval between lines while waiting.
const REPORT_INTERVAL: Duration = Duration::from_secs(15);

/// The maximum number of concurrent calls.
const MAX_CONCURRENT_CALLS: usize = 16;

/// The label of a node that is in an NVLink clique.
const CLIQUE_LABEL: &str = "nvidia.com/gpu.clique";

/// The parameters for the pods of a run.
pub(super) struct PodCreator<'a> {
    pub(super) kubernetes: &'a KubernetesLauncher,
    pub(super) worker: &'a str,
    pub(super) objects: &'a PodObjectClient,
    pub(super) owner: ManifestOwner<'a>,
    pub(super) deadline_s: u64,
    pub(super) idle_s: u64,
    pub(super) log: &'a mut dyn FnMut(&GateEvent),
}

/// The resources of a node that a pod depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NodePodResources {
    gpus: Option<u32>,
    in_clique: bool,
}

/// A pod that does not run yet.
#[derive(Debug)]
struct PendingPod {
    why: String,
    /// When it became stuck.
    stuck_since: Option<Instant>,
}

impl PodCreator<'_> {
    /// Checks, before anything is created, that created objects can also be listed.
    pub(super) async fn check_access(&self) -> Result<(), AllocationError> {
        let mut kinds = vec![PodObjectKind::Pod];
        if self.kubernetes.gpus == GpuRequestMode::Claim {
            kinds.extend([PodObjectKind::Claim, PodObjectKind::ClaimTemplate]);
        }
        if self.has_compute_domains() {
            kinds.extend([PodObjectKind::ClaimTemplate, PodObjectKind::ComputeDomain]);
        }
        let labels = manifest::run_selector(self.owner.run);
        for kind in kinds {
            let listed = self.objects.list(kind, &labels).await;
            listed.map_err(|refused| creation_error(kind.plural(), &refused))?;
        }
        Ok(())
    }

    fn has_compute_domains(&self) -> bool {
        match self.kubernetes.compute_domain {
            ComputeDomainMode::Never => false,
            ComputeDomainMode::Auto => {
                self.objects.served_version(PodObjectKind::ComputeDomain).is_some()
            }
            ComputeDomainMode::Always => true,
        }
    }

    /// Creates pods on these nodes and waits for them.
    pub(super) async fn create_and_wait(
        &mut self,
        domains: &[AllocationDomain],
        held: &mut HeldNodes,
    ) -> Result<(), AllocationError> {
        let gpu_claim = self.create_gpu_claim_template().await?;
        let mut pods: BTreeMap<NodeName, Value> = BTreeMap::new();
        for domain in domains {
            let offers = self.read_node_resources(domain, held).await;
            let channel = match self.create_channel_template(domain, &offers).await {
                Ok(channel) => channel,
                Err(why) => {
                    let left_out = offers.into_keys().map(|node| (node, why.clone()));
                    held.skipped.extend(left_out);
                    continue;
                }
            };
            for (node, offer) in &offers {
                let Some(gpus) = self.gpu_count(domain, node, offer, held) else { continue };
                let worker_pod = WorkerPodSpec {
                    node,
                    worker: self.worker,
                    gpus,
                    gpu_claim: gpu_claim.as_deref(),
                    channel: channel.as_deref(),
                    deadline_s: self.deadline_s,
                    idle_s: self.idle_s,
                };
                pods.insert(node.clone(), self.owner.build_pod(self.kubernetes, &worker_pod));
            }
        }
        let made = self.create_pods(pods, held).await;
        self.wait_for_pods(made, held).await
    }

    /// The template of the pods' claim of GPUs, if they use claims.
    async fn create_gpu_claim_template(&self) -> Result<Option<String>, AllocationError> {
        if self.kubernetes.gpus != GpuRequestMode::Claim {
            return Ok(None);
        }
        let version = self.objects.served_version(PodObjectKind::ClaimTemplate).unwrap_or("v1");
        let object = self.owner.build_gpu_claim(self.kubernetes, version);
        self.create_or_adopt(PodObjectKind::ClaimTemplate, &object)
            .await
            .map_err(|refused| creation_error("a claim of GPUs", &refused))?;
        Ok(Some(manifest::gpu_claim_name(self.owner.run)))
    }

    /// The resources of a domain's nodes, without the unreadable ones.
    async fn read_node_resources(
        &self,
        domain: &AllocationDomain,
        held: &mut HeldNodes,
    ) -> BTreeMap<NodeName, NodePodResources> {
        let resource = self.kubernetes.resource.clone();
        let objects = self.objects.clone();
        let read = for_each_concurrently(domain.nodes.clone(), move |node: NodeName| {
            let (objects, resource) = (objects.clone(), resource.clone());
            async move {
                let read =
                    objects.read_node(&node).await.map(|it| parse_node_resources(&it, &resource));
                (node, read)
            }
        });
        let mut offers = BTreeMap::new();
        for (node, offer) in read.await {
            match offer {
                Ok(offer) => {
                    offers.insert(node, offer);
                }
                Err(refused) => {
                    held.skipped.insert(node, format!("it cannot be read: {}", refused.message));
                }
            }
        }
        offers
    }

    /// The number of GPUs that a node's pod requests: all claimed ones, or all that the node offers
    /// if those are fewer, since the measurement must find a missing GPU. `None` if the node offers
    /// none.
    fn gpu_count(
        &mut self,
        domain: &AllocationDomain,
        node: &NodeName,
        offer: &NodePodResources,
        held: &mut HeldNodes,
    ) -> Option<u32> {
        if self.kubernetes.gpus == GpuRequestMode::Claim {
            return Some(0);
        }
        let claimed = domain.gpus_per_node.or(self.kubernetes.gpus_per_node);
        // A site without GPUs sets gpus_per_node = 0.
        if claimed == Some(0) {
            return Some(0);
        }
        let offered = offer.gpus.unwrap_or(0);
        if offered == 0 {
            let why = format!(
                "it offers no {} (is its device plugin running?)",
                self.kubernetes.resource
            );
            held.skipped.insert(node.clone(), why);
            return None;
        }
        match claimed {
            Some(claimed) if offered < claimed => {
                let (node, resource) = (node.clone(), self.kubernetes.resource.clone());
                (self.log)(&GateEvent::FewerGpusOffered { node, resource, offered, claimed });
                Some(offered)
            }
            claimed => Some(claimed.unwrap_or(offered)),
        }
    }

    /// The template of a domain's claim of a channel, once the controller has created it.
    async fn create_channel_template(
        &mut self,
        domain: &AllocationDomain,
        offers: &BTreeMap<NodeName, NodePodResources>,
    ) -> Result<Option<String>, String> {
        let several = 1 < offers.len();
        let is_wanted = match self.kubernetes.compute_domain {
            ComputeDomainMode::Auto => several && offers.values().any(|it| it.in_clique),
            ComputeDomainMode::Always => !offers.is_empty(),
            ComputeDomainMode::Never => false,
        };
        if !is_wanted || !self.has_compute_domains() {
            return Ok(None);
        }
        let version =
            self.objects.served_version(PodObjectKind::ComputeDomain).unwrap_or("v1beta1");
        let object =
            self.owner.build_compute_domain(self.kubernetes, version, &domain.name, offers.len());
        let made = self.create_or_adopt(PodObjectKind::ComputeDomain, &object).await;
        made.map_err(|refused| {
            format!("its ComputeDomain cannot be created: {}", refused.message)
        })?;
        let name = manifest::compute_domain_name(self.owner.run, &domain.name);
        let template = manifest::channel_name(&name);
        let start = Instant::now();
        loop {
            match self.objects.get(PodObjectKind::ClaimTemplate, &template).await {
                Ok(_) => return Ok(Some(template)),
                Err(refused) if !refused.is_missing() => {
                    let why = refused.message;
                    return Err(format!("the template of its ComputeDomain cannot be read: {why}"));
                }
                Err(_) if TEMPLATE_TIMEOUT <= start.elapsed() => {
                    return Err(format!(
                        "its ComputeDomain has no template of claims after {} s (is the controller \
                         of the driver running?)",
                        TEMPLATE_TIMEOUT.as_secs()
                    ));
                }
                Err(_) => sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Creates one object, or finds the one that an earlier attempt of this process created.
    async fn create_or_adopt(
        &self,
        kind: PodObjectKind,
        object: &Value,
    ) -> Result<(), ObjectCallFailure> {
        create_object(self.objects, kind, object).await
    }

    /// Creates pods; returns those that exist now.
    async fn create_pods(
        &mut self,
        pods: BTreeMap<NodeName, Value>,
        held: &mut HeldNodes,
    ) -> Vec<NodeName> {
        let objects = self.objects.clone();
        let made = for_each_concurrently(
            pods.into_iter().collect(),
            move |(node, pod): (NodeName, Value)| {
                let objects = objects.clone();
                async move {
                    let made = create_object(&objects, PodObjectKind::Pod, &pod).await;
                    (node, made)
                }
            },
        );
        let mut there = Vec::new();
        for (node, made) in made.await {
            match made {
                Ok(()) => there.push(node),
                Err(refused) => {
                    let why = format!("its pod cannot be created: {}", refused.message);
                    held.skipped.insert(node, why);
                }
            }
        }
        there
    }

    /// Waits until every pod runs or is given up.
    async fn wait_for_pods(
        &mut self,
        nodes: Vec<NodeName>,
        held: &mut HeldNodes,
    ) -> Result<(), AllocationError> {
        let start = Instant::now();
        let limit = Duration::from_secs(self.kubernetes.start_s);
        let mut reported = start;
        let mut waiting: BTreeMap<NodeName, PendingPod> = nodes
            .into_iter()
            .map(|node| (node, PendingPod { why: "it is new".to_owned(), stuck_since: None }))
            .collect();
        let labels = manifest::run_selector(self.owner.run);
        while !waiting.is_empty() {
            let listed = self.objects.list(PodObjectKind::Pod, &labels).await;
            let pods = listed.map_err(|refused| creation_error("pods", &refused))?;
            let by_node: BTreeMap<&str, &Value> = pods
                .iter()
                .filter_map(|pod| {
                    Some((pod["metadata"]["annotations"][NODE_ANNOTATION].as_str()?, pod))
                })
                .collect();
            let is_late = limit <= start.elapsed();
            for node in waiting.keys().cloned().collect::<Vec<_>>() {
                let Some(entry) = waiting.get_mut(&node) else { continue };
                let Some(pod) = by_node.get(node.as_str()) else {
                    held.skipped.insert(node.clone(), "another client deleted its pod".to_owned());
                    waiting.remove(&node);
                    continue;
                };
                let why = match parse_pod_state(pod) {
                    PodState::Running { address } => {
                        let name = manifest::pod_name(self.owner.run, &node);
                        held.targets.insert(node.clone(), WorkerTarget::Pod { name, address });
                        waiting.remove(&node);
                        continue;
                    }
                    PodState::Ended { why } => why,
                    PodState::Waiting { why, is_stuck } => {
                        entry.why.clone_from(&why);
                        let since = entry.stuck_since.get_or_insert_with(Instant::now).elapsed();
                        if !is_stuck {
                            entry.stuck_since = None;
                        }
                        if !(is_late || is_stuck && STUCK_TIMEOUT <= since) {
                            continue;
                        }
                        self.explain_given_up(pod, &why, start.elapsed()).await
                    }
                };
                // The pod must not start later, after the wait has ended.
                if let Err(refused) = self.objects.delete(PodObjectKind::Pod, pod).await {
                    let (node, why) = (node.clone(), refused.message);
                    (self.log)(&GateEvent::PodDeletionFailed { node, why });
                }
                held.skipped.insert(node.clone(), why);
                waiting.remove(&node);
            }
            if REPORT_INTERVAL <= reported.elapsed() && !waiting.is_empty() {
                reported = Instant::now();
                self.report_waiting(&waiting, start.elapsed());
            }
            if !waiting.is_empty() {
                let many = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
                sleep((POLL_INTERVAL + POLL_INTERVAL_PER_POD * many.min(1_000)) + jitter()).await;
            }
        }
        Ok(())
    }

    /// The reason why a pod is given up, with its last warning if its status has no reason.
    async fn explain_given_up(&self, pod: &Value, why: &str, waited: Duration) -> String {
        let warning = match parse_pod_state(pod) {
            PodState::Waiting { is_stuck: false, .. } => {
                let events = self.objects.list_warnings(pod).await.unwrap_or_default();
                last_warning(&events).map(|warning| format!("; {warning}")).unwrap_or_default()
            }
            _ => String::new(),
        };
        format!("its pod does not run after {} s: {why}{warning}", waited.as_secs())
    }

    fn report_waiting(&mut self, waiting: &BTreeMap<NodeName, PendingPod>, waited: Duration) {
        let reasons = waiting.iter().map(|(node, it)| (node.clone(), it.why.clone())).collect();
        for (why, nodes) in group_by_reason(&reasons) {
            let (waited_s, why) = (waited.as_secs(), why.to_owned());
            (self.log)(&GateEvent::PodsAwaited { nodes, waited_s, why });
        }
    }
}

/// Creates an object. An existing one of the same name counts as created only if its annotation
/// names this process.
async fn create_object(
    objects: &PodObjectClient,
    kind: PodObjectKind,
    object: &Value,
) -> Result<(), ObjectCallFailure> {
    let refused = match objects.create(kind, object).await {
        Ok(_) => return Ok(()),
        Err(refused) => refused,
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    // An error does not prove that the object was not created.
    match objects.get(kind, name).await {
        Ok(there) if owner_annotation(&there) == owner_annotation(object) => Ok(()),
        Ok(_) if refused.status == Some(409) => Err(ObjectCallFailure {
            message: format!("{name} exists already, and another process needs it"),
            ..refused
        }),
        _ => Err(refused),
    }
}

fn owner_annotation(object: &Value) -> &Value {
    &object["metadata"]["annotations"][OWNER_ANNOTATION]
}

/// The resources that a node offers.
fn parse_node_resources(node: &Value, resource: &str) -> NodePodResources {
    let count = node["status"]["allocatable"][resource].as_str();
    NodePodResources {
        gpus: count.and_then(|count| count.parse().ok()),
        in_clique: node["metadata"]["labels"][CLIQUE_LABEL].is_string(),
    }
}

/// Runs a function for each item, with limited concurrency.
async fn for_each_concurrently<T, R, F>(items: Vec<T>, work: impl Fn(T) -> F) -> Vec<R>
where
    R: Send + 'static,
    F: Future<Output = R> + Send + 'static,
{
    let mut items = items.into_iter();
    let mut running = JoinSet::new();
    let mut done = Vec::new();
    loop {
        while running.len() < MAX_CONCURRENT_CALLS
            && let Some(item) = items.next()
        {
            running.spawn(work(item));
        }
        match running.join_next().await {
            Some(Ok(result)) => done.push(result),
            // A lost task leaves its node unknown.
            Some(Err(_)) => {}
            None => return done,
        }
    }
}

/// Concurrent sweeps must not poll at the same moments.
fn jitter() -> Duration {
    Duration::from_millis(u64::from(std::process::id() % 250))
}

fn creation_error(object: &str, refused: &ObjectCallFailure) -> AllocationError {
    AllocationError::Refused { object: object.to_owned(), message: refused.message.clone() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_offers_its_allocatable_and_not_its_capacity() {
        let node = json!({
            "metadata": {"labels": {CLIQUE_LABEL: "c.1"}},
            "status": {"capacity": {"nvidia.com/gpu": "4"}, "allocatable": {"nvidia.com/gpu": "3"}},
        });
        assert_eq!(
            parse_node_resources(&node, "nvidia.com/gpu"),
            NodePodResources { gpus: Some(3), in_clique: true }
        );
        assert_eq!(parse_node_resources(&json!({}), "nvidia.com/gpu"), NodePodResources::default());
    }
}
