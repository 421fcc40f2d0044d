//! Asks a Kubernetes API server: nodes, ComputeDomains, topology objects.
//!
//! Only ever reads. What a cluster does not have, or does not show this user, is
//! a problem of that source; nothing that a server, a kubeconfig or a plugin in
//! it does makes the caller wait longer than its limits.

pub mod access;
mod client;

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::oneshot;

use client::Server;
use model::said::ProblemKind;
use model::said::Said;
use model::said::SourceKind;
use model::said::SourceProblem;
use readers::claims::kubernetes::compute_domains::ComputeDomains;
use readers::claims::kubernetes::nodes::Labels;
use readers::claims::kubernetes::nodes::Nodes;
use readers::claims::kubernetes::topologies::Topologies;

/// What a whole cluster may take, in questions: 100,000 nodes are 200 pages,
/// which a healthy server gives in a fraction of a second each.
const MOST_QUESTIONS_OF_WAITING: u32 = 20;

/// Which cluster, and how long it may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubernetes {
    /// The kubeconfig; without it, the environment's or the pod's own account.
    pub kubeconfig: Option<PathBuf>,
    /// The context of it.
    pub context: Option<String>,
    /// How long one question may take.
    pub limit: Duration,
}

impl Kubernetes {
    /// Its name in messages before a server is known.
    fn place(&self) -> String {
        let file = self.kubeconfig.as_ref().map(|path| path.display().to_string());
        let file = file.unwrap_or_else(|| "kubeconfig".to_owned());
        match &self.context {
            Some(context) => format!("{file}, context {context}"),
            None => file,
        }
    }
}

/// Asks for nodes, ComputeDomains and topology objects.
pub async fn ask(kubernetes: &Kubernetes) -> Vec<Said> {
    let asked = kubernetes.clone();
    let (connected, is_connected) = oneshot::channel();
    let (answer, answered) = oneshot::channel();
    // A kubeconfig may name a program for its tokens, which the client runs and
    // waits for, and may itself be a pipe. A thread that is stuck there is left
    // behind; a task would hold up everybody else, and the end of the program.
    let thread = std::thread::Builder::new().name("kubernetes".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        if let Ok(runtime) = runtime {
            let said = runtime.block_on(ask_here(&asked, connected));
            // An error says that nobody waits any more.
            let _ = answer.send(said);
        }
    });
    if let Err(error) = thread {
        return silent(kubernetes, format!("no thread for the client: {error}"));
    }
    // An error is a client that could not be made, and why is in the answer.
    let made = tokio::time::timeout(kubernetes.limit, is_connected).await;
    if made.is_err() {
        let message = format!(
            "the kubeconfig, or the program it names for tokens, gave nothing within {:?}",
            kubernetes.limit
        );
        return silent(kubernetes, message);
    }
    let most = kubernetes.limit.saturating_mul(MOST_QUESTIONS_OF_WAITING);
    match tokio::time::timeout(most, answered).await {
        Ok(Ok(said)) => said,
        Ok(Err(_)) => silent(kubernetes, "the client ended without an answer".to_owned()),
        Err(_) => silent(kubernetes, format!("the cluster was not read within {most:?}")),
    }
}

/// The answer when nobody answers.
fn silent(kubernetes: &Kubernetes, message: String) -> Vec<Said> {
    let mut said = Said::nothing(SourceKind::KubernetesNodes, kubernetes.place());
    said.trouble(ProblemKind::Unreachable, kubernetes.place(), message);
    vec![said]
}

async fn ask_here(kubernetes: &Kubernetes, connected: oneshot::Sender<()>) -> Vec<Said> {
    let server = match Server::of(kubernetes).await {
        Ok(server) => server,
        Err(problem) => {
            let mut said = Said::nothing(SourceKind::KubernetesNodes, kubernetes.place());
            said.problems.push(problem);
            return vec![said];
        }
    };
    let _ = connected.send(());
    let (nodes, labels) = ask_nodes(&server).await;
    if !server.has_answered() {
        // The rest would only wait once more and say the same.
        return vec![nodes];
    }
    let (domains, kueue, kai) = tokio::join!(
        ask_compute_domains(&server),
        ask_topologies(&server, "kueue.x-k8s.io", "Kueue", &labels),
        ask_topologies(&server, "kai.scheduler", "KAI", &labels),
    );
    vec![nodes, domains, kueue, kai]
}

async fn ask_nodes(server: &Server) -> (Said, Labels) {
    let path = "/api/v1/nodes";
    let mut nodes = Nodes::at(&server.place(path));
    if let Err(problem) = server.pages(path, |page| nodes.add(page)).await {
        nodes.trouble(problem);
    }
    let labels = nodes.labels();
    let mut said = nodes.said();
    said.notes.extend(server.notes.iter().cloned());
    (said, labels)
}

async fn ask_compute_domains(server: &Server) -> Said {
    const GROUP: &str = "resource.nvidia.com";
    let mut domains = ComputeDomains::at(&server.place(&format!("/apis/{GROUP}")));
    let versions = ["v1", "v1beta1"];
    match server.version(GROUP, &versions, "the DRA driver with ComputeDomains").await {
        Err(problem) => domains.trouble(problem),
        Ok(version) => {
            let path = |kind: &str| format!("/apis/{GROUP}/{version}/{kind}");
            if let Err(problem) =
                server.pages(&path("computedomains"), |page| domains.add(page)).await
            {
                domains.trouble(problem);
            }
            // Older drivers keep the members in the ComputeDomain alone.
            match server.pages(&path("computedomaincliques"), |page| domains.add(page)).await {
                Err(problem) if problem.kind != ProblemKind::Missing => domains.trouble(problem),
                _ => {}
            }
        }
    }
    domains.said()
}

async fn ask_topologies(server: &Server, group: &str, name: &str, labels: &Labels) -> Said {
    let mut topologies = Topologies::at(&server.place(&format!("/apis/{group}")));
    let asked = async {
        let versions = ["v1", "v1beta2", "v1beta1", "v1alpha1"];
        let version = server.version(group, &versions, name).await?;
        let path = format!("/apis/{group}/{version}/topologies");
        server.pages(&path, |page| topologies.add(page)).await
    };
    let asked: Result<(), SourceProblem> = asked.await;
    if let Err(problem) = asked {
        topologies.trouble(problem);
    }
    topologies.said(labels)
}

#[cfg(test)]
mod tests;
