//! `fabricgate node token`: prints a token of another account as an `ExecCredential`, for the
//! `exec` plugin of a kubeconfig. A pod gets tokens of one account only; with permission to request
//! tokens of a second account it needs no Secret that never expires.
//!
//! The token is printed for the client that started this process, and cached until it expires in a
//! file that only its owner can read.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use kube::core::Request;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::cli::stdout;
use crate::cli::stdout::note;
use crate::exit;
use crate::exit::CommandError;
use control::sources::kubernetes::connection::ResponseReadLimit;
use control::sources::kubernetes::{KubernetesClientConfig as Server, connection};
use control::store::run_folder::parent_folder;
use control::sweep;

/// Time limit for the API server.
const SERVER_TIMEOUT: Duration = Duration::from_secs(20);

/// Requested lifetime of a token.
const LIFETIME_S: i64 = 3_600;

/// Least remaining lifetime of a cached token: clients ask again a minute before its end.
const MIN_REMAINING_S: i64 = 600;

/// Print a token of an account, for the `exec` plugin of a kubeconfig.
///
/// Requests the token through another context of the same kubeconfig. Kubernetes clients start it;
/// there is no need to start it by hand.
#[derive(Debug, clap::Args)]
pub struct TokenArgs {
    /// The namespace of the account.
    #[arg(long, value_name = "N")]
    namespace: String,
    /// The account of the token.
    #[arg(long, value_name = "NAME")]
    account: String,
    /// The kubeconfig.
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// The context used to request the token.
    #[arg(long, value_name = "NAME")]
    context: String,
    /// The file that caches the token.
    #[arg(long, value_name = "FILE")]
    keep: PathBuf,
}

/// Runs the command.
pub fn run(args: &TokenArgs) -> anyhow::Result<u8> {
    let now = sweep::now().as_second();
    let credential = match read_cached_token(&args.keep, now) {
        Some(credential) => credential,
        None => {
            let response = crate::cli::runtime::build_runtime()?.block_on(request_token(args));
            let credential = response.map_err(CommandError::Environment)?;
            if let Err(error) = write_cached_token(&args.keep, &credential) {
                // The next call requests a new one.
                note(&format!("{}: the token is not cached: {error}", args.keep.display()));
            }
            credential
        }
    };
    stdout::write_text(&format!("{credential}\n"))?;
    Ok(exit::PASS)
}

/// The cached token, if it remains valid long enough.
fn read_cached_token(path: &Path, now: i64) -> Option<Value> {
    let credential: Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    let status = &credential["status"];
    status["token"].as_str()?;
    let ends: jiff::Timestamp = status["expirationTimestamp"].as_str()?.parse().ok()?;
    (now + MIN_REMAINING_S < ends.as_second()).then_some(credential)
}

/// Replaces the file atomically; temporary files are readable only by their owner.
fn write_cached_token(path: &Path, credential: &Value) -> io::Result<()> {
    let mut temporary =
        tempfile::Builder::new().prefix(".token-").tempfile_in(parent_folder(path))?;
    temporary.write_all(credential.to_string().as_bytes())?;
    temporary.persist(path).map(drop).map_err(|error| error.error)
}

async fn request_token(args: &TokenArgs) -> Result<Value, String> {
    let server = Server {
        kubeconfig: Some(args.kubeconfig.clone()),
        context: Some(args.context.clone()),
        limit: SERVER_TIMEOUT,
    };
    let access = connection::connect(&server, ResponseReadLimit::Bounded).await;
    let access = access.map_err(|problem| problem.message)?;
    let token_request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"expirationSeconds": LIFETIME_S}});
    let accounts = format!("/api/v1/namespaces/{}/serviceaccounts", args.namespace);
    let params = kube::api::PostParams::default();
    let body = token_request.to_string().into_bytes();
    let request = Request::new(accounts)
        .create_subresource("token", &args.account, &params, body)
        .map_err(|error| error.to_string())?;
    let response: Value = match timeout(SERVER_TIMEOUT, access.client.request(request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return Err(connection::refusal_problem(&error).1),
        Err(_) => return Err(format!("the server did not answer within {SERVER_TIMEOUT:?}")),
    };
    let status = &response["status"];
    if !status["token"].is_string() || !status["expirationTimestamp"].is_string() {
        return Err("the server answered without a token or its expiration".to_owned());
    }
    Ok(json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": {"token": status["token"],
            "expirationTimestamp": status["expirationTimestamp"]}}))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use wiremock::matchers::{any, body_partial_json, header, method, path};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;

    const SECRET: &str = "top-secret";

    /// A mock API server that issues a token of the prober to the gate; the token ends at `ends`.
    async fn server(ends: &str) -> (MockServer, tempfile::TempDir, TokenArgs) {
        let server = MockServer::start().await;
        let given = json!({"kind": "TokenRequest", "status": {"token": SECRET,
            "expirationTimestamp": ends}});
        Mock::given(method("POST"))
            .and(path("/api/v1/namespaces/n/serviceaccounts/prober/token"))
            .and(header("authorization", "Bearer own"))
            .and(body_partial_json(json!({"spec": {"expirationSeconds": 3600}})))
            .respond_with(ResponseTemplate::new(201).set_body_json(given))
            .mount(&server)
            .await;
        let folder = tempfile::tempdir().expect("a folder");
        let kubeconfig = folder.path().join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: \"{}\"}}}}]\n\
             contexts: [{{name: gate, context: {{cluster: c, user: gate}}}}]\n\
             users: [{{name: gate, user: {{token: own}}}}]\n",
            server.uri()
        );
        fs::write(&kubeconfig, text).expect("written");
        let args = TokenArgs {
            namespace: "n".to_owned(),
            account: "prober".to_owned(),
            kubeconfig,
            context: "gate".to_owned(),
            keep: folder.path().join("kept"),
        };
        (server, folder, args)
    }

    #[tokio::test]
    async fn a_token_is_requested_and_cached_for_its_owner_until_it_is_about_to_end() {
        let (_server, _folder, args) = server("2026-01-01T01:00:00Z").await;
        let credential = request_token(&args).await.expect("a token");
        assert_eq!(credential["status"]["token"], SECRET);
        write_cached_token(&args.keep, &credential).expect("kept");
        let mode = fs::metadata(&args.keep).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let ends = "2026-01-01T01:00:00Z".parse::<jiff::Timestamp>().expect("a moment").as_second();
        assert_eq!(read_cached_token(&args.keep, ends - 3_600), Some(credential));
        for now in [ends - MIN_REMAINING_S, ends, ends + 1] {
            assert_eq!(read_cached_token(&args.keep, now), None, "{}", ends - now);
        }
        for text in ["", "{}", "{\"status\": {\"token\": \"x\"}}"] {
            fs::write(&args.keep, text).expect("written");
            assert_eq!(read_cached_token(&args.keep, 0), None, "{text}");
        }
    }

    #[tokio::test]
    async fn a_refusal_is_reported_without_a_token() {
        let (server, _folder, args) = server("2026-01-01T01:00:00Z").await;
        let other = TokenArgs { account: "gate".to_owned(), ..args };
        Mock::given(any())
            .respond_with(ResponseTemplate::new(403).set_body_json(
                json!({"kind": "Status", "status": "Failure", "code": 403, "message": "no"}),
            ))
            .with_priority(9)
            .mount(&server)
            .await;
        let why = request_token(&other).await.expect_err("refused");
        assert!(why.contains("no permission") && !why.contains(SECRET), "{why}");
        server.reset().await;
        let odd = json!({"kind": "TokenRequest", "status": {"token": SECRET}});
        let answer = ResponseTemplate::new(201).set_body_json(odd);
        Mock::given(any()).respond_with(answer).mount(&server).await;
        let why = request_token(&other).await.expect_err("without an end");
        assert!(!why.contains(SECRET), "{why}");
    }
}
