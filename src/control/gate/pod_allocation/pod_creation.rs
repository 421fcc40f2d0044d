//! Making the pods of a run, and waiting until they run or never will.
//!
//! What goes wrong on one node costs that node and no other.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::object_client::{ObjectCallFailure, PodObjectClient, PodObjectKind};
use super::pod_state::{PodState, last_warning, parse_pod_state};
use crate::gate::allocation::{AllocationDomain, AllocationError, group_by_reason};
use crate::launch::kubernetes::manifest::{
    ManifestOwner, NODE_ANNOTATION, OWNER_ANNOTATION, WorkerPodSpec,
};
use crate::launch::kubernetes::{ComputeDomainMode, GpuRequestMode, KubernetesLauncher, manifest};
use crate::launch::{HeldNodes, WorkerTarget};
use model::id::NodeName;

/// How long the scheduler, or a kubelet, may complain about a pod until it is
/// given up: a claim that is being made, or an image that is pulled again, is
/// told as a complaint too (the kubelet's first back-offs are 10 s and 20 s).
const STUCK_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the controller of ComputeDomains may take for a template.
const TEMPLATE_TIMEOUT: Duration = Duration::from_secs(30);

/// How often pods are looked at, and how much longer for each.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const POLL_INTERVAL_PER_POD: Duration = Duration::from_millis(5);

/// How often waiting is told.
const REPORT_INTERVAL: Duration = Duration::from_secs(15);

/// Calls at the same time.
const MAX_CONCURRENT_CALLS: usize = 16;

/// The label of a node that is in an NVLink clique.
const CLIQUE_LABEL: &str = "nvidia.com/gpu.clique";

/// Everything that pods of a run are made with.
pub(super) struct PodCreator<'a> {
    pub(super) kubernetes: &'a KubernetesLauncher,
    pub(super) worker: &'a str,
    pub(super) objects: &'a PodObjectClient,
    pub(super) owner: ManifestOwner<'a>,
    pub(super) deadline_s: u64,
    pub(super) idle_s: u64,
    pub(super) log: &'a mut dyn FnMut(&str),
}

/// What the cluster says of a node that a pod depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NodePodResources {
    gpus: Option<u32>,
    in_clique: bool,
}

/// A pod that is waited for.
#[derive(Debug)]
struct PendingPod {
    why: String,
    /// Since when it is stuck.
    stuck_since: Option<Instant>,
}

impl PodCreator<'_> {
    /// Whether what will be made can also be found again: before anything is.
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

    /// Makes pods on these nodes and waits for them.
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
                let wish = WorkerPodSpec {
                    node,
                    worker: self.worker,
                    gpus,
                    gpu_claim: gpu_claim.as_deref(),
                    channel: channel.as_deref(),
                    deadline_s: self.deadline_s,
                    idle_s: self.idle_s,
                };
                pods.insert(node.clone(), self.owner.build_pod(self.kubernetes, &wish));
            }
        }
        let made = self.create_pods(pods, held).await;
        self.wait_for_pods(made, held).await
    }

    /// The template with which pods claim GPUs, where they do.
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

    /// What the nodes of a domain offer; those that cannot be read are left out.
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

    /// How many GPUs a node's pod asks for: all that are claimed of it, or all
    /// that it offers where those are fewer: a GPU that is missing is to be found
    /// by measuring. `None` where none can be asked for.
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
        let said = domain.gpus_per_node.or(self.kubernetes.gpus_per_node);
        // A site without GPUs says so: gpus_per_node = 0.
        if said == Some(0) {
            return Some(0);
        }
        let offered = offer.gpus.unwrap_or(0);
        if offered == 0 {
            let why =
                format!("it offers no {} (is its device plugin up?)", self.kubernetes.resource);
            held.skipped.insert(node.clone(), why);
            return None;
        }
        match said {
            Some(said) if offered < said => {
                let resource = &self.kubernetes.resource;
                (self.log)(&format!("{node} offers {offered} {resource}, and {said} are claimed"));
                Some(offered)
            }
            said => Some(said.unwrap_or(offered)),
        }
    }

    /// The template with which pods of a domain claim a channel, once it is there.
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
        made.map_err(|refused| format!("its ComputeDomain cannot be made: {}", refused.message))?;
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
                         of the driver up?)",
                        TEMPLATE_TIMEOUT.as_secs()
                    ));
                }
                Err(_) => sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Makes one object, or finds that an earlier attempt of ours made it.
    async fn create_or_adopt(
        &self,
        kind: PodObjectKind,
        object: &Value,
    ) -> Result<(), ObjectCallFailure> {
        create_object(self.objects, kind, object).await
    }

    /// Makes pods: those that are there now.
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
                    let why = format!("its pod cannot be made: {}", refused.message);
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
                    held.skipped.insert(node.clone(), "somebody deleted its pod".to_owned());
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
                // It must not start later, when nobody waits for it any more.
                if let Err(refused) = self.objects.delete(PodObjectKind::Pod, pod).await {
                    (self.log)(&format!("the pod on {node}: {}", refused.message));
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

    /// Why a pod is given up, with what was told of it where it says nothing itself.
    async fn explain_given_up(&self, pod: &Value, why: &str, waited: Duration) -> String {
        let said = match parse_pod_state(pod) {
            PodState::Waiting { is_stuck: false, .. } => {
                let events = self.objects.list_warnings(pod).await.unwrap_or_default();
                last_warning(&events).map(|said| format!("; {said}")).unwrap_or_default()
            }
            _ => String::new(),
        };
        format!("its pod does not run after {} s: {why}{said}", waited.as_secs())
    }

    fn report_waiting(&mut self, waiting: &BTreeMap<NodeName, PendingPod>, waited: Duration) {
        let reasons = waiting.iter().map(|(node, it)| (node.clone(), it.why.clone())).collect();
        for (why, nodes) in group_by_reason(&reasons) {
            (self.log)(&format!("pods on {nodes} do not run after {} s: {why}", waited.as_secs()));
        }
    }
}

/// Makes an object. Where one of its name is there, it is ours only if it says
/// that this very process asked for it.
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
    // An error is never taken for "not made".
    match objects.get(kind, name).await {
        Ok(there) if owner_annotation(&there) == owner_annotation(object) => Ok(()),
        Ok(_) if refused.status == Some(409) => Err(ObjectCallFailure {
            message: format!("{name} is there already, and another process needs it"),
            ..refused
        }),
        _ => Err(refused),
    }
}

fn owner_annotation(object: &Value) -> &Value {
    &object["metadata"]["annotations"][OWNER_ANNOTATION]
}

/// What a node offers.
fn parse_node_resources(node: &Value, resource: &str) -> NodePodResources {
    let count = node["status"]["allocatable"][resource].as_str();
    NodePodResources {
        gpus: count.and_then(|count| count.parse().ok()),
        in_clique: node["metadata"]["labels"][CLIQUE_LABEL].is_string(),
    }
}

/// Does something for each of many, some at a time.
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
            // A task that was lost is a node of which nothing is known.
            Some(Err(_)) => {}
            None => return done,
        }
    }
}

/// Several sweeps beside each other do not ask at the same moments.
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
    fn what_a_node_offers_is_what_can_be_allocated_and_not_what_is_built_in() {
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
