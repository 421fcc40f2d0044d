//! One request after the other to an API server, each within its limit, and what
//! its answers mean.
//!
//! Knows paths, statuses and headers; what is asked or written is not its to say.

use std::time::Duration;

use http_body_util::BodyExt;
use http_body_util::LengthLimitError;
use http_body_util::Limited;
use kube::Client;
use kube::api::GetParams;
use kube::api::ListParams;
use kube::api::Patch;
use kube::api::PatchParams;
use kube::client::Body;
use kube::core::Request;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::sync::Semaphore;
use tokio::sync::SemaphorePermit;

use crate::gate::scheduler::SchedulerError;
use crate::model::said::ProblemKind;
use crate::model::text::clean;
use crate::sources::kubernetes::Kubernetes as Server;
use crate::sources::kubernetes::access;
use crate::sources::kubernetes::access::Reading;
use crate::sources::kubernetes::access::Trouble;

/// Where nodes are.
const NODES: &str = "/api/v1/nodes";

/// Where pods of all namespaces are.
const PODS: &str = "/api/v1/pods";

/// Bytes of an answer that are taken, as in `sources`.
const LONGEST: usize = 128 << 20;

/// Nodes that are read or written at once.
const AT_ONCE: usize = 16;

/// The name under which our writes stand among a node's managed fields.
const MANAGER: &str = "fabricgate";

/// How often a reading is asked for that the server is too busy for.
const ATTEMPTS: u32 = 4;

/// How long to wait where a busy server does not say.
const PAUSE: Duration = Duration::from_millis(200);

/// Why a request was not answered as wished.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    pub(super) kind: ProblemKind,
    pub(super) message: String,
    /// The server's status; none where it did not answer.
    pub(super) status: Option<u16>,
    /// How long it asks to wait, where it is too busy.
    pub(super) wait: Option<Duration>,
}

impl From<Refused> for SchedulerError {
    fn from(refused: Refused) -> Self {
        Self::new(refused.kind, refused.message)
    }
}

impl From<Trouble> for Refused {
    fn from((kind, message): Trouble) -> Self {
        Self { kind, ..odd(message) }
    }
}

/// One request.
enum Asked<'a> {
    /// The node of this name.
    Node(&'a str),
    /// A page of the list at a path.
    Page(&'a str, ListParams),
    /// This merged into a node.
    Patch(&'a str, &'a Value),
    /// This merged into a node's status.
    PatchStatus(&'a str, &'a Value),
}

/// Whoever asks one API server.
pub(super) struct Desk {
    server: Server,
    client: Mutex<Option<Client>>,
    /// Nodes that are read or written at once, whoever asks.
    turns: Semaphore,
}

impl Desk {
    pub(super) fn new(server: Server) -> Self {
        Self { server, client: Mutex::new(None), turns: Semaphore::new(AT_ONCE) }
    }

    pub(super) fn limit(&self) -> Duration {
        self.server.limit
    }

    /// A turn at one node; it ends when it is dropped.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // Never closed, so never an error.
        self.turns.acquire().await.ok()
    }

    /// One node; `None` where there is no such node.
    pub(super) async fn node(&self, name: &str) -> Result<Option<Value>, Refused> {
        match self.ask(&Asked::Node(name)).await {
            Ok(node) => Ok(Some(node)),
            Err(refused) if refused.status == Some(404) => Ok(None),
            Err(refused) => Err(refused),
        }
    }

    /// All nodes, page by page.
    pub(super) async fn nodes(&self, take: impl FnMut(Vec<Value>)) -> Result<(), Refused> {
        self.pages(NODES, &ListParams::default(), take).await
    }

    /// Pods that have not ended, on one node or on all, page by page.
    pub(super) async fn pods(
        &self,
        node: Option<&str>,
        take: impl FnMut(Vec<Value>),
    ) -> Result<(), Refused> {
        let running = "status.phase!=Succeeded,status.phase!=Failed";
        let fields = match node {
            Some(node) => format!("spec.nodeName={node},{running}"),
            None => format!("spec.nodeName!=,{running}"),
        };
        self.pages(PODS, &ListParams::default().fields(&fields), take).await
    }

    /// Merges this into a node's metadata and spec. One attempt.
    pub(super) async fn patch(&self, name: &str, patch: &Value) -> Result<Value, Refused> {
        self.once(&Asked::Patch(name, patch)).await
    }

    /// Merges this into a node's status, conditions by their type. One attempt.
    pub(super) async fn patch_status(&self, name: &str, patch: &Value) -> Result<Value, Refused> {
        self.once(&Asked::PatchStatus(name, patch)).await
    }

    async fn pages(
        &self,
        path: &str,
        params: &ListParams,
        take: impl FnMut(Vec<Value>),
    ) -> Result<(), Refused> {
        let ask = async |wanted: &ListParams| self.ask(&Asked::Page(path, wanted.clone())).await;
        access::pages(path, params, ask, take).await
    }

    /// Reads, again where the server is too busy or in a trouble that may pass.
    async fn ask(&self, asked: &Asked<'_>) -> Result<Value, Refused> {
        let mut attempt = 1;
        loop {
            match self.once(asked).await {
                Err(Refused { status: Some(429 | 500..=599), wait, .. }) if attempt < ATTEMPTS => {
                    let wait = wait.unwrap_or(PAUSE * attempt).min(self.limit());
                    tokio::time::sleep(wait).await;
                    attempt += 1;
                }
                other => return other,
            }
        }
    }

    /// One request, within the limit.
    async fn once(&self, asked: &Asked<'_>) -> Result<Value, Refused> {
        match tokio::time::timeout(self.limit(), self.sent(asked)).await {
            Ok(answer) => answer,
            Err(_) => Err(Refused {
                kind: ProblemKind::Unreachable,
                ..odd(format!("the API server did not answer within {:?}", self.limit()))
            }),
        }
    }

    /// The client, which the first request makes.
    async fn client(&self) -> Result<Client, Refused> {
        let mut client = self.client.lock().await;
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let access = access::connect(&self.server, Reading::Bounded).await.map_err(|problem| {
            let at = problem.at.map(|at| format!("{at}: ")).unwrap_or_default();
            Refused { kind: problem.kind, ..odd(format!("{at}{}", problem.message)) }
        })?;
        *client = Some(access.client.clone());
        Ok(access.client)
    }

    async fn sent(&self, asked: &Asked<'_>) -> Result<Value, Refused> {
        let by = PatchParams { field_manager: Some(MANAGER.to_owned()), ..Default::default() };
        let nodes = Request::new(NODES);
        let request = match asked {
            Asked::Node(name) => nodes.get(name, &GetParams::default()),
            Asked::Page(path, params) => Request::new(*path).list(params),
            Asked::Patch(name, patch) => nodes.patch(name, &by, &Patch::Merge(patch)),
            Asked::PatchStatus(name, patch) => {
                nodes.patch_subresource("status", name, &by, &Patch::Strategic(patch))
            }
        };
        let request = request.map_err(|error| odd(clean(&error.to_string())))?;
        let client = self.client().await?;
        let lost = |error: &kube::Error| {
            let (kind, message) = access::refusal(error);
            // A connection that was cut says nothing of what was done: whoever
            // wrote must not take it for a refusal.
            let kind =
                if kind == ProblemKind::Incomplete { ProblemKind::Unreachable } else { kind };
            Refused { kind, ..odd(message) }
        };
        let answer = client.send(request.map(Body::from)).await.map_err(|error| lost(&error))?;
        let status = answer.status().as_u16();
        let header = answer.headers().get("retry-after").and_then(|it| it.to_str().ok());
        // The other form, a date, is not what an API server writes.
        let wait = header.and_then(|it| it.trim().parse().ok()).map(Duration::from_secs);
        let body = Limited::new(answer.into_body(), LONGEST).collect().await;
        let body = body.map_err(|error| match error.downcast::<kube::Error>() {
            Ok(error) => lost(&error),
            Err(error) if error.is::<LengthLimitError>() => {
                odd(format!("an answer of more than {LONGEST} bytes"))
            }
            Err(error) => {
                Refused { kind: ProblemKind::Unreachable, ..odd(clean(&error.to_string())) }
            }
        })?;
        let bytes = body.to_bytes();
        if (200..300).contains(&status) {
            return serde_json::from_slice(&bytes).map_err(|error| {
                odd(format!("the API server's answer is no JSON document: {error}"))
            });
        }
        let read: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let said = clean(read["message"].as_str().unwrap_or(&text));
        if status == 401 {
            // A token that was renewed stands in the kubeconfig, which is read anew.
            *self.client.lock().await = None;
        }
        let (kind, words) = access::words(status);
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        Err(Refused {
            kind,
            message: format!("{words} ({status}){said}"),
            status: Some(status),
            wait,
        })
    }
}

pub(super) fn odd(message: String) -> Refused {
    Refused { kind: ProblemKind::Malformed, message, status: None, wait: None }
}
