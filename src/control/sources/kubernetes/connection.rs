//! Connections to an API server, and the meaning of its refusals: shared by the code that
//! queries it, runs pods on it, or changes its nodes.
//!
//! It sends no request itself. No message repeats a line of a kubeconfig or a plugin's output:
//! both contain secrets.

use std::error::Error;
use std::io;

use kube::api::ListParams;
use kube::client::AuthError;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use serde_json::Value;

use super::KubernetesClientConfig;
use crate::sources::tls;
use model::source_report::{SourceProblem, SourceProblemKind};
use model::text::clean;

/// How long an answer may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseReadLimit {
    /// Each within the limit.
    Bounded,
    /// Without a limit: watches, and streams of processes in pods.
    Endless,
}

/// A connection to an API server. No request was sent yet.
#[expect(missing_debug_implementations, reason = "the client has none")]
pub struct KubernetesConnection {
    /// The client.
    pub client: Client,
    /// The server's address without credentials.
    pub address: String,
    /// Remarks about the connection for users.
    pub notes: Vec<String>,
}

/// Connects to the server that a kubeconfig names, or to the one of the pod this runs in. A
/// kubeconfig may name a program for its tokens, which is run with the first request.
pub async fn connect(
    kubernetes: &KubernetesClientConfig,
    reading: ResponseReadLimit,
) -> Result<KubernetesConnection, SourceProblem> {
    tls::install_provider();
    let trouble =
        |(kind, message)| SourceProblem { kind, at: Some(kubernetes.display_name()), message };
    let mut config = load_config(kubernetes).await.map_err(trouble)?;
    config.connect_timeout = Some(kubernetes.limit);
    config.read_timeout = (reading == ResponseReadLimit::Bounded).then_some(kubernetes.limit);
    config.write_timeout = Some(kubernetes.limit);
    // fabricgate retries itself, within its limit.
    config.default_retry = false;
    let mut notes = Vec::new();
    if config.proxy_url.take().is_some() {
        notes.push(
            "a proxy is set for the API server (proxy-url or HTTPS_PROXY) and is not used"
                .to_owned(),
        );
    }
    let url = &config.cluster_url;
    let host = url.host().unwrap_or_default();
    let port = url.port_u16().map_or_else(String::new, |port| format!(":{port}"));
    let scheme = url.scheme_str().unwrap_or("https");
    let address = format!("{scheme}://{}{port}", clean(host));
    let client = Client::try_from(config).map_err(|error| trouble(refusal_problem(&error)))?;
    Ok(KubernetesConnection { client, address, notes })
}

/// The meaning of an HTTP status of the server.
pub fn describe_status(status: u16) -> (SourceProblemKind, &'static str) {
    match status {
        401 => (
            SourceProblemKind::Denied,
            "the server does not accept the credentials (expired token?)",
        ),
        403 => (SourceProblemKind::Denied, "this user has no permission for that"),
        404 => (
            SourceProblemKind::Missing,
            "the cluster has no such object, or no such kind of object",
        ),
        409 => (SourceProblemKind::Contradictory, "another client wrote it in the meantime"),
        410 => (SourceProblemKind::Incomplete, "the list changed while it was read; ask again"),
        429 | 500..=599 => (SourceProblemKind::Unreachable, "the server cannot answer now"),
        _ => (SourceProblemKind::Malformed, "an unexpected answer"),
    }
}

/// Objects of one page, as in `kubectl`.
pub const PAGE_SIZE: u32 = 500;

/// More pages than any cluster has: a million objects.
const MAX_PAGES: usize = 2_000;

/// Reads a list page by page. An answer without a list is an error, and a server that never
/// ends its pages is abandoned.
pub async fn read_pages<E: From<KubernetesProblem>>(
    path: &str,
    params: &ListParams,
    mut ask: impl AsyncFnMut(&ListParams) -> Result<Value, E>,
    mut take: impl FnMut(Vec<Value>),
) -> Result<(), E> {
    let mut wanted = params.clone().limit(PAGE_SIZE);
    for _ in 0..MAX_PAGES {
        let mut page = ask(&wanted).await?;
        let Value::Array(items) = page["items"].take() else {
            let message = format!("{path} answered with something other than a list");
            return Err((SourceProblemKind::Malformed, message).into());
        };
        take(items);
        let next = page["metadata"]["continue"].as_str().filter(|next| !next.is_empty());
        let next = next.map(str::to_owned);
        match next {
            None => return Ok(()),
            Some(_) if next == wanted.continue_token => break,
            Some(_) => wanted.continue_token = next,
        }
    }
    let message = format!("{path}: the server announces further pages without end");
    Err((SourceProblemKind::Incomplete, message).into())
}

/// The kind of a problem, and its message.
pub type KubernetesProblem = (SourceProblemKind, String);

/// The client's configuration: the named kubeconfig, that of the environment or the home
/// folder, or by default the pod's account.
async fn load_config(kubernetes: &KubernetesClientConfig) -> Result<Config, KubernetesProblem> {
    let options =
        KubeConfigOptions { context: kubernetes.context.clone(), ..KubeConfigOptions::default() };
    if let Some(path) = &kubernetes.kubeconfig {
        let read = Kubeconfig::read_from(path).map_err(|error| kubeconfig_problem(&error))?;
        let config = Config::from_custom_kubeconfig(read, &options).await;
        return config.map_err(|error| kubeconfig_problem(&error));
    }
    match Config::from_kubeconfig(&options).await {
        Ok(config) => Ok(config),
        Err(error) => {
            let (kind, message) = kubeconfig_problem(&error);
            if kind != SourceProblemKind::Missing || kubernetes.context.is_some() {
                return Err((kind, message));
            }
            Config::incluster().map_err(|_| {
                (
                    SourceProblemKind::Missing,
                    "no kubeconfig (KUBECONFIG, ~/.kube/config), and this is not a pod of a cluster"
                        .to_owned(),
                )
            })
        }
    }
}

/// Classifies an error of a kubeconfig.
fn kubeconfig_problem(error: &KubeconfigError) -> KubernetesProblem {
    match error {
        KubeconfigError::FindPath => (SourceProblemKind::Missing, "no kubeconfig".to_owned()),
        KubeconfigError::ReadConfig(cause, _) => {
            let kind = match cause.kind() {
                io::ErrorKind::NotFound => SourceProblemKind::Missing,
                io::ErrorKind::PermissionDenied => SourceProblemKind::Denied,
                _ => SourceProblemKind::Malformed,
            };
            (kind, format!("the kubeconfig cannot be read: {cause}"))
        }
        // The parser's message would show the lines, and with them tokens and keys.
        KubeconfigError::Parse(cause) => {
            let at = cause.location().filter(|at| 0 < at.line());
            let at = at.map_or_else(String::new, |at| {
                format!(": line {}, column {}", at.line(), at.column())
            });
            (SourceProblemKind::Malformed, format!("not readable as a kubeconfig{at}"))
        }
        other => (
            SourceProblemKind::Malformed,
            format!("unusable kubeconfig: {}", clean(&error_chain(other))),
        ),
    }
}

/// Whether a server rejected the credentials. A renewed token is in the kubeconfig, which only
/// a new client reads.
pub fn is_unauthenticated(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 401)
}

/// Why a server refused a request.
pub fn refusal_problem(error: &kube::Error) -> KubernetesProblem {
    if let kube::Error::Api(status) = error {
        let (kind, words) = describe_status(status.code);
        let detail = clean(&status.message);
        let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        return (kind, format!("{words} ({}){detail}", status.code));
    }
    if let Some(cause) = credential_error(error) {
        let message = match cause {
            // Its command line and its output may both contain secrets.
            AuthError::AuthExecRun { out, .. } => {
                format!("the kubeconfig's program for tokens failed ({})", out.status)
            }
            AuthError::AuthExecStart(cause) => {
                format!("the kubeconfig's program for tokens cannot be started: {cause}")
            }
            AuthError::ReadTokenFile(cause, path) => {
                format!("the token file {} cannot be read: {cause}", path.display())
            }
            AuthError::MissingCommand => "the kubeconfig's exec plugin has no command".to_owned(),
            // Other messages may quote a credential that could not be read.
            _ => "the kubeconfig's credentials cannot be used".to_owned(),
        };
        return (SourceProblemKind::Denied, message);
    }
    if is_cut_short(error) {
        let message = "the server stopped in the middle of its answer".to_owned();
        return (SourceProblemKind::Incomplete, message);
    }
    (SourceProblemKind::Unreachable, clean(&error_chain(error)))
}

/// Finds an error of the credentials: when the client is created, or when an expired token is
/// renewed during a request.
fn credential_error(error: &kube::Error) -> Option<&AuthError> {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(kube::Error::Auth(found)) = error.downcast_ref() {
            return Some(found);
        }
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}

/// Whether a connection ended before an answer was complete.
fn is_cut_short(error: &kube::Error) -> bool {
    let mut cause: Option<&dyn Error> = Some(error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::UnexpectedEof) {
            return true;
        }
        cause = error.source();
    }
    // The client library's messages for a connection that closed too early.
    let words = error_chain(error);
    ["before message completed", "end of file before message length", "error reading a body"]
        .iter()
        .any(|early| words.contains(early))
}

/// An error and its causes, each once.
fn error_chain(error: &dyn Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        cause = error.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The list from these pages, each with the token of the next.
    async fn read(pages_of: &[(Value, &str)]) -> Result<Vec<Value>, KubernetesProblem> {
        let mut left = pages_of.iter().cycle();
        let ask = async |_: &ListParams| {
            let (items, token) = left.next().expect("a page");
            Ok(json!({"items": items, "metadata": {"continue": token}}))
        };
        let mut read = Vec::new();
        read_pages("/p", &ListParams::default(), ask, |mut page| read.append(&mut page)).await?;
        Ok(read)
    }

    #[tokio::test]
    async fn an_answer_without_a_list_is_an_error_and_endless_pages_end() {
        let whole = read(&[(json!([1, 2]), "a"), (json!([3]), "")]).await;
        assert_eq!(whole, Ok(vec![json!(1), json!(2), json!(3)]));
        assert_eq!(read(&[(json!([]), "")]).await, Ok(Vec::new()));
        let cut = read(&[(json!([1]), "a"), (Value::Null, "")]).await;
        assert_eq!(cut.map_err(|trouble| trouble.0), Err(SourceProblemKind::Malformed));
        let endless = read(&[(json!([1]), "a")]).await;
        assert_eq!(endless.map_err(|trouble| trouble.0), Err(SourceProblemKind::Incomplete));
    }
}
