//! Creates, lists and deletes objects of fabricgate. Each call has a time limit.
//!
//! A failed call may have had its effect; the caller checks for the object if that matters. Only
//! the listed object itself is deleted (its uid is a precondition).

use std::fmt;
use std::time::Duration;

use axum::http;
use kube::Client;
use kube::api::{DeleteParams, GetParams, ListParams, PostParams, Preconditions};
use kube::core::Request;
use kube::core::request::Error as RequestError;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::launch::kubernetes::KubernetesLauncher;
use crate::sources::kubernetes::connection::{KubernetesProblem, ResponseReadLimit};
use crate::sources::kubernetes::{KubernetesClientConfig as Server, connection};
use model::id::NodeName;
use model::text::clean;

/// Attempts of a request while the server is too busy.
const MAX_ATTEMPTS: u32 = 4;

/// The pause before another attempt, multiplied by the attempts so far.
const RETRY_PAUSE: Duration = Duration::from_millis(300);

/// Supported versions of dynamic resource allocation, newest first.
const CLAIM_VERSIONS: &[&str] = &["v1", "v1beta2", "v1beta1"];

const DOMAIN_VERSIONS: &[&str] = &["v1beta1"];

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PodObjectKind {
    Pod,
    Claim,
    ClaimTemplate,
    ComputeDomain,
}

impl PodObjectKind {
    /// The order of deletion: users of an object before the object.
    pub(super) const ALL: [Self; 4] =
        [Self::Pod, Self::Claim, Self::ClaimTemplate, Self::ComputeDomain];

    pub(super) const fn plural(self) -> &'static str {
        match self {
            Self::Pod => "pods",
            Self::Claim => "resourceclaims",
            Self::ClaimTemplate => "resourceclaimtemplates",
            Self::ComputeDomain => "computedomains",
        }
    }
}

/// The failure of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectCallFailure {
    /// The HTTP status, if the server answered.
    pub(super) status: Option<u16>,
    /// The message, cleaned for display.
    pub(super) message: String,
}

impl From<KubernetesProblem> for ObjectCallFailure {
    fn from((_, message): KubernetesProblem) -> Self {
        Self { status: None, message }
    }
}

impl ObjectCallFailure {
    fn from_kube_error(error: &kube::Error) -> Self {
        let status = match error {
            kube::Error::Api(status) => Some(status.code),
            _ => None,
        };
        Self { status, message: connection::refusal_problem(error).1 }
    }

    /// Whether another attempt may succeed.
    fn is_transient(&self) -> bool {
        self.status.is_none_or(|status| status == 429 || 500 <= status)
    }

    /// Whether the object, or its kind, does not exist.
    pub(super) fn is_missing(&self) -> bool {
        self.status == Some(404)
    }

    /// Whether the account lacks the permission.
    pub(super) fn is_denied(&self) -> bool {
        self.status == Some(403)
    }
}

/// A client for one namespace of an API server.
#[derive(Clone)]
pub struct PodObjectClient {
    client: Client,
    namespace: String,
    limit: Duration,
    /// The server's version of claims, if it supports them.
    claims: Option<String>,
    /// The server's version of ComputeDomains, if it supports them.
    domains: Option<String>,
}

impl fmt::Debug for PodObjectClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodObjectClient")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl PodObjectClient {
    /// Connects, and finds the kinds of objects that the server supports.
    pub async fn connect(kubernetes: &KubernetesLauncher, limit: Duration) -> Result<Self, String> {
        let server = Server {
            kubeconfig: kubernetes.kubeconfig.clone(),
            context: kubernetes.context.clone(),
            limit,
        };
        let access = connection::connect(&server, ResponseReadLimit::Bounded).await;
        let access = access.map_err(|problem| match problem.at {
            Some(at) => format!("{at}: {}", problem.message),
            None => problem.message,
        })?;
        let mut objects = Self {
            client: access.client,
            namespace: kubernetes.namespace.clone(),
            limit,
            claims: None,
            domains: None,
        };
        let describe =
            |refused: ObjectCallFailure| format!("{}: {}", access.address, refused.message);
        objects.claims =
            objects.find_version("resource.k8s.io", CLAIM_VERSIONS).await.map_err(describe)?;
        objects.domains =
            objects.find_version("resource.nvidia.com", DOMAIN_VERSIONS).await.map_err(describe)?;
        Ok(objects)
    }

    /// The server's version of this kind, if it supports it.
    pub(super) fn served_version(&self, kind: PodObjectKind) -> Option<&str> {
        match kind {
            PodObjectKind::Pod => Some("v1"),
            PodObjectKind::Claim | PodObjectKind::ClaimTemplate => self.claims.as_deref(),
            PodObjectKind::ComputeDomain => self.domains.as_deref(),
        }
    }

    /// The newest supported version of a group that the server has.
    async fn find_version(
        &self,
        group: &str,
        known: &[&str],
    ) -> Result<Option<String>, ObjectCallFailure> {
        let answer = self
            .send_with_retries(|| Request::new("/apis").get(group, &GetParams::default()))
            .await;
        let group: Value = match answer {
            Ok(group) => group,
            Err(refused) if refused.is_missing() => return Ok(None),
            Err(refused) => return Err(refused),
        };
        let versions = group["versions"].as_array().map_or(&[][..], Vec::as_slice);
        let is_served = |version: &&&str| versions.iter().any(|it| it["version"] == **version);
        Ok(known.iter().find(is_served).map(|version| (*version).to_owned()))
    }

    fn kind_path(&self, kind: PodObjectKind) -> Result<String, ObjectCallFailure> {
        let (group, version) = match (kind, self.served_version(kind)) {
            (_, None) => {
                return Err(ObjectCallFailure {
                    status: Some(404),
                    message: format!("the cluster has no {}", kind.plural()),
                });
            }
            (PodObjectKind::Pod, Some(version)) => ("/api", version.to_owned()),
            (PodObjectKind::Claim | PodObjectKind::ClaimTemplate, Some(version)) => {
                ("/apis/resource.k8s.io", version.to_owned())
            }
            (PodObjectKind::ComputeDomain, Some(version)) => {
                ("/apis/resource.nvidia.com", version.to_owned())
            }
        };
        Ok(format!("{group}/{version}/namespaces/{}/{}", self.namespace, kind.plural()))
    }

    /// Creates an object. An existing object of the same name is an error (409), also if an earlier
    /// attempt of this process created it.
    pub(super) async fn create(
        &self,
        kind: PodObjectKind,
        object: &Value,
    ) -> Result<Value, ObjectCallFailure> {
        let path = self.kind_path(kind)?;
        let body = serde_json::to_vec(object).expect("objects are plain data");
        self.send_with_retries(|| Request::new(&path).create(&PostParams::default(), body.clone()))
            .await
    }

    pub(super) async fn get(
        &self,
        kind: PodObjectKind,
        name: &str,
    ) -> Result<Value, ObjectCallFailure> {
        let path = self.kind_path(kind)?;
        self.get_at(&path, name).await
    }

    /// A node of the cluster.
    pub(super) async fn read_node(&self, node: &NodeName) -> Result<Value, ObjectCallFailure> {
        self.get_at("/api/v1/nodes", node.as_str()).await
    }

    async fn get_at(&self, path: &str, name: &str) -> Result<Value, ObjectCallFailure> {
        self.send_with_retries(|| Request::new(path).get(name, &GetParams::default())).await
    }

    /// All objects with these labels.
    pub(super) async fn list(
        &self,
        kind: PodObjectKind,
        labels: &str,
    ) -> Result<Vec<Value>, ObjectCallFailure> {
        let wanted = ListParams::default().labels(labels);
        self.list_at(&self.kind_path(kind)?, wanted).await
    }

    /// The warning events of a pod, such as the reason why its containers do not start.
    pub(super) async fn list_warnings(&self, pod: &Value) -> Result<Vec<Value>, ObjectCallFailure> {
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let of = format!("involvedObject.uid={uid},type=Warning");
        let path = format!("/api/v1/namespaces/{}/events", self.namespace);
        self.list_at(&path, ListParams::default().fields(&of)).await
    }

    async fn list_at(
        &self,
        path: &str,
        wanted: ListParams,
    ) -> Result<Vec<Value>, ObjectCallFailure> {
        let mut items = Vec::new();
        let ask = async |wanted: &ListParams| {
            self.send_with_retries(|| Request::new(path).list(wanted)).await
        };
        connection::read_pages(path, &wanted, ask, |mut page| items.append(&mut page)).await?;
        Ok(items)
    }

    /// Deletes exactly this object; a missing one, or another one of the same name, stays as it is.
    pub(super) async fn delete(
        &self,
        kind: PodObjectKind,
        object: &Value,
    ) -> Result<(), ObjectCallFailure> {
        let path = self.kind_path(kind)?;
        let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
        let (name, uid) = (text("name"), text("uid"));
        if name.is_empty() || uid.is_empty() {
            return Ok(());
        }
        let preconditions = Some(Preconditions { uid: Some(uid), resource_version: None });
        let how = DeleteParams { preconditions, ..DeleteParams::background() };
        let deleted = self.send_with_retries(|| Request::new(&path).delete(&name, &how)).await;
        match deleted {
            Ok(_) => Ok(()),
            Err(refused) if matches!(refused.status, Some(404 | 409)) => Ok(()),
            Err(refused) => Err(refused),
        }
    }

    async fn send(&self, request: http::Request<Vec<u8>>) -> Result<Value, ObjectCallFailure> {
        match timeout(self.limit, self.client.request(request)).await {
            Ok(answer) => answer.map_err(|error| ObjectCallFailure::from_kube_error(&error)),
            Err(_) => Err(ObjectCallFailure {
                status: None,
                message: format!("the server did not answer within {:?}", self.limit),
            }),
        }
    }

    /// Sends a request, with some retries while the server is unreachable or too busy.
    async fn send_with_retries(
        &self,
        request: impl Fn() -> Result<http::Request<Vec<u8>>, RequestError>,
    ) -> Result<Value, ObjectCallFailure> {
        let mut attempt = 1;
        loop {
            let request = request().map_err(|error| ObjectCallFailure {
                status: None,
                message: clean(&error.to_string()),
            })?;
            match self.send(request).await {
                Err(refused) if refused.is_transient() && attempt < MAX_ATTEMPTS => {
                    sleep(RETRY_PAUSE * attempt).await;
                    attempt += 1;
                }
                answer => return answer,
            }
        }
    }
}
