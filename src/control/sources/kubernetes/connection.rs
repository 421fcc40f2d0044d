//! The way to an API server, and what its refusals mean: shared by whoever asks
//! it, runs pods on it, or changes its nodes.
//!
//! Asks nothing itself. No message repeats a line of a kubeconfig or what a
//! plugin printed: both hold secrets.

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

/// How answers are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseReadLimit {
    /// Each within the limit.
    Bounded,
    /// For as long as they take: watches, and what runs in pods.
    Endless,
}

/// A way to an API server. Nothing was asked yet.
#[expect(missing_debug_implementations, reason = "the client has none")]
pub struct KubernetesConnection {
    /// The client.
    pub client: Client,
    /// The server's address without credentials.
    pub address: String,
    /// What people should know of the way there.
    pub notes: Vec<String>,
}

/// The way to the server that a kubeconfig names, or to the one of the pod this
/// runs in. A kubeconfig may name a program for its tokens, which is run and
/// waited for when something is asked.
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
    // Ours, which knows the limit.
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

/// What a status of the server means.
pub fn describe_status(status: u16) -> (SourceProblemKind, &'static str) {
    match status {
        401 => (SourceProblemKind::Denied, "the server does not accept who asks (expired token?)"),
        403 => (SourceProblemKind::Denied, "this user has no right to that"),
        404 => (
            SourceProblemKind::Missing,
            "the cluster has no such object, or no such kind of object",
        ),
        409 => (SourceProblemKind::Contradictory, "somebody else wrote it in the meantime"),
        410 => (SourceProblemKind::Incomplete, "the list changed while it was read; ask again"),
        429 | 500..=599 => (SourceProblemKind::Unreachable, "the server cannot answer now"),
        _ => (SourceProblemKind::Malformed, "an answer that is not expected"),
    }
}

/// Objects of one page. `kubectl` asks for as many.
pub const PAGE_SIZE: u32 = 500;

/// More pages than any cluster has: a million objects.
const MAX_PAGES: usize = 2_000;

/// Reads a list page by page. What is no list is no empty one, and a server that
/// never comes to an end is left.
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
            let message = format!("{path} answered with something that is no list");
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
    let message = format!("{path}: the server says again and again that there is more");
    Err((SourceProblemKind::Incomplete, message).into())
}

/// What is wrong, and in which words.
pub type KubernetesProblem = (SourceProblemKind, String);

/// The configuration of the client: the named kubeconfig, that of the
/// environment or the home folder, or where there is none the pod's account.
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
                    "no kubeconfig (KUBECONFIG, ~/.kube/config), and this is no pod of a cluster"
                        .to_owned(),
                )
            })
        }
    }
}

/// What is wrong with a kubeconfig.
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
        // The reader would show the lines, and with them tokens and keys.
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

/// Whether a server does not know who asks. A token that was renewed stands in the
/// kubeconfig, which only a new client reads.
pub fn is_unauthenticated(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 401)
}

/// Why a server did not do what it was asked for.
pub fn refusal_problem(error: &kube::Error) -> KubernetesProblem {
    if let kube::Error::Api(status) = error {
        let (kind, words) = describe_status(status.code);
        let said = clean(&status.message);
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        return (kind, format!("{words} ({}){said}", status.code));
    }
    if let Some(cause) = credential_error(error) {
        let message = match cause {
            // Its command line and what it printed may both hold secrets.
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
            // Others may repeat what they could not read, which is a credential.
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

/// What is wrong with the credentials, where it is that: when the client is made,
/// or when a token that ran out is renewed in the middle of a question.
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

/// Whether a connection ended before an answer that had begun did.
fn is_cut_short(error: &kube::Error) -> bool {
    let mut cause: Option<&dyn Error> = Some(error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::UnexpectedEof) {
            return true;
        }
        cause = error.source();
    }
    // The client's own words for a connection that closed too early.
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

    /// What a list of these pages, each with the token of the next, comes to.
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
    async fn what_is_no_list_is_no_empty_one_and_no_list_is_without_end() {
        let whole = read(&[(json!([1, 2]), "a"), (json!([3]), "")]).await;
        assert_eq!(whole, Ok(vec![json!(1), json!(2), json!(3)]));
        assert_eq!(read(&[(json!([]), "")]).await, Ok(Vec::new()));
        let cut = read(&[(json!([1]), "a"), (Value::Null, "")]).await;
        assert_eq!(cut.map_err(|trouble| trouble.0), Err(SourceProblemKind::Malformed));
        let endless = read(&[(json!([1]), "a")]).await;
        assert_eq!(endless.map_err(|trouble| trouble.0), Err(SourceProblemKind::Incomplete));
    }
}
