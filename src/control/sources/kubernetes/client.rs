//! Read-only requests to one API server, each with a time limit.
//!
//! It handles paths and pages and no particular kind of object.

use std::cell::Cell;
use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::Client;
use kube::api::{GetParams, ListParams};
use kube::client::Body;
use kube::core::Request;
use serde_json::Value;

use super::connection::{
    KubernetesConnection, PAGE_SIZE, ResponseReadLimit, describe_status, refusal_problem,
};
use super::{KubernetesClientConfig, connection};
use model::source_report::{SourceProblem, SourceProblemKind};
use model::text::clean;

/// More pages than any cluster has: 500,000 nodes.
const MAX_PAGES: usize = 1_000;

/// Most bytes of an answer: 256 KiB for each object of a page. etcd accepts no object over 1.5
/// MiB (`--max-request-bytes`), and few objects are that large.
pub(super) const MAX_ANSWER_BYTES: usize = 128 << 20;

/// Most attempts of a request while the server reports that it is too busy.
const MAX_ATTEMPTS: u32 = 3;

/// Pause between attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

pub(super) struct KubernetesReader {
    client: Client,
    /// Its address without credentials.
    address: String,
    limit: Duration,
    has_answered: Cell<bool>,
    /// Remarks about the connection for users.
    pub(super) notes: Vec<String>,
}

impl KubernetesReader {
    /// Connects to the server that a kubeconfig names, or to the one of the pod this runs in.
    pub(super) async fn connect(
        kubernetes: &KubernetesClientConfig,
    ) -> Result<Self, SourceProblem> {
        let KubernetesConnection { client, address, notes } =
            connection::connect(kubernetes, ResponseReadLimit::Bounded).await?;
        let has_answered = Cell::new(false);
        Ok(Self { client, address, limit: kubernetes.limit, has_answered, notes })
    }

    /// Whether a server answered at all, even with a refusal.
    pub(super) fn has_answered(&self) -> bool {
        self.has_answered.get()
    }

    /// The name of a path on this server, for messages.
    pub(super) fn display_name(&self, path: &str) -> String {
        format!("{}{path}", self.address)
    }

    /// Reads a list page by page. `take` parses one page and returns the token of the next.
    pub(super) async fn read_pages(
        &self,
        path: &str,
        mut take: impl FnMut(&str) -> Option<String>,
    ) -> Result<(), SourceProblem> {
        let mut token: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let mut wanted = ListParams::default().limit(PAGE_SIZE);
            wanted.continue_token.clone_from(&token);
            let page = self.send_query(&KubernetesQuery::List(path, wanted)).await?;
            if !page.contains("\"items\"") {
                return Err(self.new_problem(
                    path,
                    SourceProblemKind::Malformed,
                    format!("answered with something other than a list: {}", clean(&page)),
                ));
            }
            let next = take(&page);
            if next.is_none() {
                return Ok(());
            }
            if next == token {
                break;
            }
            token = next;
        }
        let message = "the server announces further pages without end".to_owned();
        Err(self.new_problem(path, SourceProblemKind::Incomplete, message))
    }

    /// The version of an API group to read: the first known one that is served, else the
    /// server's preferred one.
    pub(super) async fn choose_version(
        &self,
        group: &str,
        known: &[&str],
        what: &str,
    ) -> Result<String, SourceProblem> {
        let answer = self.send_query(&KubernetesQuery::Group(group)).await;
        let text = answer.map_err(|mut problem| {
            if problem.kind == SourceProblemKind::Missing {
                problem.message = format!("the cluster has no {group}: {what} is not installed");
            }
            problem
        })?;
        let read: Value = serde_json::from_str(&text).unwrap_or_default();
        let versions = read["versions"].as_array().map_or(&[][..], Vec::as_slice);
        let served: Vec<&str> = versions.iter().filter_map(|v| v["version"].as_str()).collect();
        let preferred = read["preferredVersion"]["version"].as_str();
        let version = known.iter().find(|version| served.contains(version)).copied();
        version.or(preferred).or(served.first().copied()).map(clean).ok_or_else(|| {
            let message = format!("answered without any version: {}", clean(&text));
            self.new_problem(
                &KubernetesQuery::Group(group).path(),
                SourceProblemKind::Malformed,
                message,
            )
        })
    }

    fn new_problem(&self, path: &str, kind: SourceProblemKind, message: String) -> SourceProblem {
        SourceProblem { kind, at: Some(self.display_name(path)), message }
    }

    /// Sends one request, again if the server is too busy, within the limit.
    async fn send_query(&self, question: &KubernetesQuery<'_>) -> Result<String, SourceProblem> {
        let attempts = async {
            let mut attempt = 1;
            loop {
                match self.send_query_once(question).await {
                    Err(refused) if refused.is_busy && attempt < MAX_ATTEMPTS => {
                        tokio::time::sleep(RETRY_PAUSE * attempt).await;
                        attempt += 1;
                    }
                    other => return other,
                }
            }
        };
        match tokio::time::timeout(self.limit, attempts).await {
            Ok(Ok(text)) => Ok(text),
            Ok(Err(refused)) => {
                Err(self.new_problem(&question.path(), refused.kind, refused.message))
            }
            Err(_) => {
                let message = format!("did not answer within {:?}", self.limit);
                Err(self.new_problem(&question.path(), SourceProblemKind::Unreachable, message))
            }
        }
    }

    async fn send_query_once(
        &self,
        question: &KubernetesQuery<'_>,
    ) -> Result<String, KubernetesQueryFailure> {
        let request = match question {
            KubernetesQuery::List(path, params) => Request::new(*path).list(params),
            KubernetesQuery::Group(group) => {
                Request::new(GROUPS_PATH).get(group, &GetParams::default())
            }
        };
        let request = request.map_err(|error| KubernetesQueryFailure {
            kind: SourceProblemKind::Malformed,
            message: clean(&error.to_string()),
            is_busy: false,
        })?;
        let lost = |error: kube::Error| {
            let (kind, message) = refusal_problem(&error);
            KubernetesQueryFailure { kind, message, is_busy: false }
        };
        let answer = self.client.send(request.map(Body::from)).await.map_err(lost)?;
        self.has_answered.set(true);
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| match error.downcast::<kube::Error>() {
            Ok(error) => lost(*error),
            Err(error) if error.is::<LengthLimitError>() => KubernetesQueryFailure {
                kind: SourceProblemKind::Unsupported,
                message: format!("more than {MAX_ANSWER_BYTES} bytes, expected fewer"),
                is_busy: false,
            },
            Err(error) => KubernetesQueryFailure {
                kind: SourceProblemKind::Unreachable,
                message: clean(&error.to_string()),
                is_busy: false,
            },
        })?;
        let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        if status == 200 {
            return Ok(text);
        }
        let read: Value = serde_json::from_str(&text).unwrap_or_default();
        let detail = clean(read["message"].as_str().unwrap_or(&text));
        let (kind, words) = describe_status(status);
        let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        Err(KubernetesQueryFailure {
            kind,
            message: format!("{words} ({status}){detail}"),
            is_busy: matches!(status, 429 | 503),
        })
    }
}

/// Where API groups are described.
const GROUPS_PATH: &str = "/apis";

enum KubernetesQuery<'q> {
    /// A page of the list at a path.
    List(&'q str, ListParams),
    /// The versions of an API group.
    Group(&'q str),
}

impl KubernetesQuery<'_> {
    fn path(&self) -> String {
        match self {
            Self::List(path, _) => (*path).to_owned(),
            Self::Group(group) => format!("{GROUPS_PATH}/{group}"),
        }
    }
}

/// Why a request has no answer.
struct KubernetesQueryFailure {
    kind: SourceProblemKind,
    message: String,
    /// The server asks for a retry.
    is_busy: bool,
}
