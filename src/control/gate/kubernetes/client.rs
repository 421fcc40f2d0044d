//! Sends single requests to an API server, each within the time limit, and classifies the
//! answers.
//!
//! Knows paths, statuses and headers; callers decide what to read or write.

use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::Client;
use kube::api::{GetParams, ListParams, Patch, PatchParams};
use kube::client::Body;
use kube::core::Request;
use serde_json::Value;
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};

use crate::gate::scheduler::SchedulerError;
use crate::sources::kubernetes::connection::{KubernetesProblem, ResponseReadLimit};
use crate::sources::kubernetes::{KubernetesClientConfig as Server, connection};
use model::source_report::SourceProblemKind;
use model::text::clean;

const NODES_PATH: &str = "/api/v1/nodes";

const PODS_PATH: &str = "/api/v1/pods";

/// Maximum size of an answer in bytes, as in `sources`.
const MAX_ANSWER_BYTES: usize = 128 << 20;

/// Nodes read or written concurrently.
const MAX_CONCURRENT_NODES: usize = 16;

/// Field manager of fabricgate's writes.
const FIELD_MANAGER: &str = "fabricgate";

/// Attempts of a read while the server is overloaded.
const MAX_READ_ATTEMPTS: u32 = 4;

/// Pause if an overloaded server sends no Retry-After; multiplied by the attempt.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// A request without a usable answer.
#[derive(Clone, Debug)]
pub(super) struct ApiRequestFailure {
    pub(super) kind: SourceProblemKind,
    pub(super) message: String,
    /// The HTTP status; `None` if the server did not answer.
    pub(super) status: Option<u16>,
    /// The server's Retry-After.
    pub(super) retry_after: Option<Duration>,
}

impl From<ApiRequestFailure> for SchedulerError {
    fn from(refused: ApiRequestFailure) -> Self {
        Self::new(refused.kind, refused.message)
    }
}

impl From<KubernetesProblem> for ApiRequestFailure {
    fn from((kind, message): KubernetesProblem) -> Self {
        Self { kind, ..malformed_failure(message) }
    }
}

enum ApiRequest<'a> {
    /// GET of one node.
    Node(&'a str),
    /// One page of the list at this path.
    Page(&'a str, ListParams),
    /// Merge patch of a node.
    Patch(&'a str, &'a Value),
    /// Strategic merge patch of a node's status.
    PatchStatus(&'a str, &'a Value),
}

/// Client of one API server.
pub(super) struct KubernetesApiClient {
    server: Server,
    client: Mutex<Option<Client>>,
    /// Limits concurrent reads and writes of nodes, over all callers.
    node_permits: Semaphore,
}

impl KubernetesApiClient {
    pub(super) fn new(server: Server) -> Self {
        Self {
            server,
            client: Mutex::new(None),
            node_permits: Semaphore::new(MAX_CONCURRENT_NODES),
        }
    }

    pub(super) fn limit(&self) -> Duration {
        self.server.limit
    }

    /// Permit to read or write one node; released on drop.
    pub(super) async fn node_permit(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed, so there is no error.
        self.node_permits.acquire().await.ok()
    }

    /// Reads one node; `None` if it does not exist.
    pub(super) async fn read_node(&self, name: &str) -> Result<Option<Value>, ApiRequestFailure> {
        match self.send_with_retries(&ApiRequest::Node(name)).await {
            Ok(node) => Ok(Some(node)),
            Err(refused) if refused.status == Some(404) => Ok(None),
            Err(refused) => Err(refused),
        }
    }

    /// Reads all nodes, page by page.
    pub(super) async fn read_nodes(
        &self,
        take: impl FnMut(Vec<Value>),
    ) -> Result<(), ApiRequestFailure> {
        self.read_pages(NODES_PATH, &ListParams::default(), take).await
    }

    /// Reads pods that have not ended, on one node or on all, page by page.
    pub(super) async fn read_pods(
        &self,
        node: Option<&str>,
        take: impl FnMut(Vec<Value>),
    ) -> Result<(), ApiRequestFailure> {
        let running = "status.phase!=Succeeded,status.phase!=Failed";
        let fields = match node {
            Some(node) => format!("spec.nodeName={node},{running}"),
            None => format!("spec.nodeName!=,{running}"),
        };
        self.read_pages(PODS_PATH, &ListParams::default().fields(&fields), take).await
    }

    /// Merges this into a node's metadata and spec. A single attempt.
    pub(super) async fn patch_node(
        &self,
        name: &str,
        patch: &Value,
    ) -> Result<Value, ApiRequestFailure> {
        self.send_within_limit(&ApiRequest::Patch(name, patch)).await
    }

    /// Merges this into a node's status, conditions by type. A single attempt.
    pub(super) async fn patch_node_status(
        &self,
        name: &str,
        patch: &Value,
    ) -> Result<Value, ApiRequestFailure> {
        self.send_within_limit(&ApiRequest::PatchStatus(name, patch)).await
    }

    async fn read_pages(
        &self,
        path: &str,
        params: &ListParams,
        take: impl FnMut(Vec<Value>),
    ) -> Result<(), ApiRequestFailure> {
        let ask = async |wanted: &ListParams| {
            self.send_with_retries(&ApiRequest::Page(path, wanted.clone())).await
        };
        connection::read_pages(path, params, ask, take).await
    }

    /// Reads, with retries if the server is overloaded or has a transient problem.
    async fn send_with_retries(
        &self,
        request: &ApiRequest<'_>,
    ) -> Result<Value, ApiRequestFailure> {
        let mut attempt = 1;
        loop {
            match self.send_within_limit(request).await {
                Err(ApiRequestFailure {
                    status: Some(429 | 500..=599), retry_after: wait, ..
                }) if attempt < MAX_READ_ATTEMPTS => {
                    let wait = wait.unwrap_or(RETRY_PAUSE * attempt).min(self.limit());
                    tokio::time::sleep(wait).await;
                    attempt += 1;
                }
                other => return other,
            }
        }
    }

    /// Sends one request within the time limit.
    async fn send_within_limit(
        &self,
        request: &ApiRequest<'_>,
    ) -> Result<Value, ApiRequestFailure> {
        match tokio::time::timeout(self.limit(), self.send(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(ApiRequestFailure {
                kind: SourceProblemKind::Unreachable,
                ..malformed_failure(format!(
                    "the API server did not answer within {:?}",
                    self.limit()
                ))
            }),
        }
    }

    /// The client, connected by the first request.
    async fn get_or_connect(&self) -> Result<Client, ApiRequestFailure> {
        let mut client = self.client.lock().await;
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let access = connection::connect(&self.server, ResponseReadLimit::Bounded).await.map_err(
            |problem| {
                let at = problem.at.map(|at| format!("{at}: ")).unwrap_or_default();
                ApiRequestFailure {
                    kind: problem.kind,
                    ..malformed_failure(format!("{at}{}", problem.message))
                }
            },
        )?;
        *client = Some(access.client.clone());
        Ok(access.client)
    }

    async fn send(&self, wanted: &ApiRequest<'_>) -> Result<Value, ApiRequestFailure> {
        let by =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
        let nodes = Request::new(NODES_PATH);
        let request = match wanted {
            ApiRequest::Node(name) => nodes.get(name, &GetParams::default()),
            ApiRequest::Page(path, params) => Request::new(*path).list(params),
            ApiRequest::Patch(name, patch) => nodes.patch(name, &by, &Patch::Merge(patch)),
            ApiRequest::PatchStatus(name, patch) => {
                nodes.patch_subresource("status", name, &by, &Patch::Strategic(patch))
            }
        };
        let request = request.map_err(|error| malformed_failure(clean(&error.to_string())))?;
        let client = self.get_or_connect().await?;
        let lost = |error: &kube::Error| {
            let (kind, message) = connection::refusal_problem(error);
            // A cut connection leaves the result of a write open: the caller must not
            // take it for a refusal.
            let kind = if kind == SourceProblemKind::Incomplete {
                SourceProblemKind::Unreachable
            } else {
                kind
            };
            ApiRequestFailure { kind, ..malformed_failure(message) }
        };
        let answer = client.send(request.map(Body::from)).await.map_err(|error| lost(&error))?;
        let status = answer.status().as_u16();
        let header = answer.headers().get("retry-after").and_then(|it| it.to_str().ok());
        // API servers do not use the other form, a date.
        let wait = header.and_then(|it| it.trim().parse().ok()).map(Duration::from_secs);
        let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| match error.downcast::<kube::Error>() {
            Ok(error) => lost(&error),
            Err(error) if error.is::<LengthLimitError>() => {
                malformed_failure(format!("the answer is longer than {MAX_ANSWER_BYTES} bytes"))
            }
            Err(error) => ApiRequestFailure {
                kind: SourceProblemKind::Unreachable,
                ..malformed_failure(clean(&error.to_string()))
            },
        })?;
        let bytes = body.to_bytes();
        if (200..300).contains(&status) {
            return serde_json::from_slice(&bytes).map_err(|error| {
                malformed_failure(format!("the API server's answer is not JSON: {error}"))
            });
        }
        let read: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let detail = clean(read["message"].as_str().unwrap_or(&text));
        if status == 401 {
            // The kubeconfig may contain a renewed token, so connect again.
            *self.client.lock().await = None;
        }
        let (kind, words) = connection::describe_status(status);
        let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        Err(ApiRequestFailure {
            kind,
            message: format!("{words} ({status}){detail}"),
            status: Some(status),
            retry_after: wait,
        })
    }
}

pub(super) fn malformed_failure(message: String) -> ApiRequestFailure {
    ApiRequestFailure {
        kind: SourceProblemKind::Malformed,
        message,
        status: None,
        retry_after: None,
    }
}
