//! Queries a Kubernetes API server: nodes, ComputeDomains, topology objects.
//!
//! Read-only. An object that a cluster lacks or hides from this user is a problem of that
//! source; no server, kubeconfig or plugin can delay the caller beyond its limits.

mod client;
pub mod connection;

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::oneshot;

use client::KubernetesReader;
use model::source_report::{SourceKind, SourceProblem, SourceProblemKind, SourceReport};
use readers::claims::kubernetes::compute_domains::ComputeDomainReader;
use readers::claims::kubernetes::nodes::{LabelsByNode, NodeObjectReader};
use readers::claims::kubernetes::topologies::TopologyObjectReader;

/// Time limit for a whole cluster, in requests: 100,000 nodes are 200 pages, which a healthy server
/// answers in a fraction of a second each.
const MAX_WAIT_IN_REQUESTS: u32 = 20;

/// The cluster to query, and the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesClientConfig {
    /// The kubeconfig; by default that of the environment, or the pod's own account.
    pub kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context.
    pub context: Option<String>,
    /// Time limit of one request.
    pub limit: Duration,
}

impl KubernetesClientConfig {
    /// The cluster's name in messages before a server is known.
    fn display_name(&self) -> String {
        let file = self.kubeconfig.as_ref().map(|path| path.display().to_string());
        let file = file.unwrap_or_else(|| "kubeconfig".to_owned());
        match &self.context {
            Some(context) => format!("{file}, context {context}"),
            None => file,
        }
    }
}

/// Queries nodes, ComputeDomains and topology objects.
pub async fn fetch_claims(kubernetes: &KubernetesClientConfig) -> Vec<SourceReport> {
    let config = kubernetes.clone();
    let (connected, is_connected) = oneshot::channel();
    let (answer, received) = oneshot::channel();
    // A kubeconfig may name a program for its tokens, which the client runs and waits for, and
    // may itself be a pipe. A thread that blocks there is abandoned; a blocked task would delay
    // all other tasks and the program's exit.
    let thread = std::thread::Builder::new().name("kubernetes".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        if let Ok(runtime) = runtime {
            let reports = runtime.block_on(fetch_all(&config, connected));
            // An error means that the receiver no longer waits.
            let _ = answer.send(reports);
        }
    });
    if let Err(error) = thread {
        return no_answer_reports(kubernetes, format!("no thread for the client: {error}"));
    }
    // An error means that no client could be created; the answer contains the reason.
    let made = tokio::time::timeout(kubernetes.limit, is_connected).await;
    if made.is_err() {
        let message = format!(
            "the kubeconfig, or the program it names for tokens, gave no result within {:?}",
            kubernetes.limit
        );
        return no_answer_reports(kubernetes, message);
    }
    let most = kubernetes.limit.saturating_mul(MAX_WAIT_IN_REQUESTS);
    match tokio::time::timeout(most, received).await {
        Ok(Ok(reports)) => reports,
        Ok(Err(_)) => {
            no_answer_reports(kubernetes, "the client ended without an answer".to_owned())
        }
        Err(_) => {
            no_answer_reports(kubernetes, format!("the cluster was not read within {most:?}"))
        }
    }
}

/// The reports when no server answers.
fn no_answer_reports(kubernetes: &KubernetesClientConfig, message: String) -> Vec<SourceReport> {
    let mut report = SourceReport::new(SourceKind::KubernetesNodes, kubernetes.display_name());
    report.push_problem(SourceProblemKind::Unreachable, kubernetes.display_name(), message);
    vec![report]
}

async fn fetch_all(
    kubernetes: &KubernetesClientConfig,
    connected: oneshot::Sender<()>,
) -> Vec<SourceReport> {
    let server = match KubernetesReader::connect(kubernetes).await {
        Ok(server) => server,
        Err(problem) => {
            let mut report =
                SourceReport::new(SourceKind::KubernetesNodes, kubernetes.display_name());
            report.problems.push(problem);
            return vec![report];
        }
    };
    let _ = connected.send(());
    let (nodes, labels) = fetch_nodes(&server).await;
    if !server.has_answered() {
        // Further requests would wait again and fail in the same way.
        return vec![nodes];
    }
    let (domains, kueue, kai) = tokio::join!(
        fetch_compute_domains(&server),
        fetch_topologies(&server, "kueue.x-k8s.io", "Kueue", &labels),
        fetch_topologies(&server, "kai.scheduler", "KAI", &labels),
    );
    vec![nodes, domains, kueue, kai]
}

async fn fetch_nodes(server: &KubernetesReader) -> (SourceReport, LabelsByNode) {
    let path = "/api/v1/nodes";
    let mut nodes = NodeObjectReader::new(&server.display_name(path));
    if let Err(problem) = server.read_pages(path, |page| nodes.add_page(page)).await {
        nodes.push_problem(problem);
    }
    let labels = nodes.labels();
    let mut report = nodes.into_report();
    report.notes.extend(server.notes.iter().cloned());
    (report, labels)
}

async fn fetch_compute_domains(server: &KubernetesReader) -> SourceReport {
    const GROUP: &str = "resource.nvidia.com";
    let mut domains = ComputeDomainReader::new(&server.display_name(&format!("/apis/{GROUP}")));
    let versions = ["v1", "v1beta1"];
    match server.choose_version(GROUP, &versions, "the DRA driver with ComputeDomains").await {
        Err(problem) => domains.push_problem(problem),
        Ok(version) => {
            let path = |kind: &str| format!("/apis/{GROUP}/{version}/{kind}");
            if let Err(problem) =
                server.read_pages(&path("computedomains"), |page| domains.add_page(page)).await
            {
                domains.push_problem(problem);
            }
            // Older drivers store the members in the ComputeDomain only.
            match server
                .read_pages(&path("computedomaincliques"), |page| domains.add_page(page))
                .await
            {
                Err(problem) if problem.kind != SourceProblemKind::Missing => {
                    domains.push_problem(problem);
                }
                _ => {}
            }
        }
    }
    domains.into_report()
}

async fn fetch_topologies(
    server: &KubernetesReader,
    group: &str,
    name: &str,
    labels: &LabelsByNode,
) -> SourceReport {
    let mut topologies = TopologyObjectReader::new(&server.display_name(&format!("/apis/{group}")));
    let reading = async {
        let versions = ["v1", "v1beta2", "v1beta1", "v1alpha1"];
        let version = server.choose_version(group, &versions, name).await?;
        let path = format!("/apis/{group}/{version}/topologies");
        server.read_pages(&path, |page| topologies.add_page(page)).await
    };
    let result: Result<(), SourceProblem> = reading.await;
    if let Err(problem) = result {
        topologies.push_problem(problem);
    }
    topologies.into_report(labels)
}

#[cfg(test)]
mod tests;
