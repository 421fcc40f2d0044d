//! `fabricgate node token`: a token of another account, in the form in which programs of
//! a kubeconfig (`exec`) print it. A pod is given tokens of one account; who may ask for
//! those of a second one needs no Secret that never expires.
//!
//! The token is printed for the client that started this, and kept in a file that only
//! its owner reads, for as long as it lasts.

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

/// How long the server may take.
const SERVER_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a token is asked for.
const LIFETIME_S: i64 = 3_600;

/// A kept token is used while it lasts so long: clients ask again a minute before its end.
const MIN_REMAINING_S: i64 = 600;

/// Print a token of an account, as the `exec` of a kubeconfig does.
///
/// Asked for through another context of the same kubeconfig. Started by clients;
/// nobody has to start it by hand.
#[derive(Debug, clap::Args)]
pub struct TokenArgs {
    /// The namespace of the account.
    #[arg(long, value_name = "N")]
    namespace: String,
    /// The account.
    #[arg(long, value_name = "NAME")]
    account: String,
    /// The kubeconfig.
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// The context of it by which the token is asked for.
    #[arg(long, value_name = "NAME")]
    context: String,
    /// Where the token is kept.
    #[arg(long, value_name = "FILE")]
    keep: PathBuf,
}

/// Runs the command.
pub fn run(args: &TokenArgs) -> anyhow::Result<u8> {
    let now = sweep::now().as_second();
    let credential = match read_cached_token(&args.keep, now) {
        Some(credential) => credential,
        None => {
            let asked = crate::cli::runtime::build_runtime()?.block_on(request_token(args));
            let credential = asked.map_err(CommandError::Environment)?;
            if let Err(error) = write_cached_token(&args.keep, &credential) {
                // The next one is asked for again.
                note(&format!("{}: the token is not kept: {error}", args.keep.display()));
            }
            credential
        }
    };
    stdout::write_text(&format!("{credential}\n"))?;
    Ok(exit::PASS)
}

/// The token that is kept, where it lasts long enough.
fn read_cached_token(path: &Path, now: i64) -> Option<Value> {
    let credential: Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    let status = &credential["status"];
    status["token"].as_str()?;
    let ends: jiff::Timestamp = status["expirationTimestamp"].as_str()?.parse().ok()?;
    (now + MIN_REMAINING_S < ends.as_second()).then_some(credential)
}

/// Puts it in place at one go; temporary files are their owner's alone.
fn write_cached_token(path: &Path, credential: &Value) -> io::Result<()> {
    let mut beside = tempfile::Builder::new().prefix(".token-").tempfile_in(parent_folder(path))?;
    beside.write_all(credential.to_string().as_bytes())?;
    beside.persist(path).map(drop).map_err(|error| error.error)
}

async fn request_token(args: &TokenArgs) -> Result<Value, String> {
    let server = Server {
        kubeconfig: Some(args.kubeconfig.clone()),
        context: Some(args.context.clone()),
        limit: SERVER_TIMEOUT,
    };
    let access = connection::connect(&server, ResponseReadLimit::Bounded).await;
    let access = access.map_err(|problem| problem.message)?;
    let wish = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"expirationSeconds": LIFETIME_S}});
    let accounts = format!("/api/v1/namespaces/{}/serviceaccounts", args.namespace);
    let how = kube::api::PostParams::default();
    let body = wish.to_string().into_bytes();
    let request = Request::new(accounts)
        .create_subresource("token", &args.account, &how, body)
        .map_err(|error| error.to_string())?;
    let said: Value = match timeout(SERVER_TIMEOUT, access.client.request(request)).await {
        Ok(Ok(said)) => said,
        Ok(Err(error)) => return Err(connection::refusal_problem(&error).1),
        Err(_) => return Err(format!("the server did not answer within {SERVER_TIMEOUT:?}")),
    };
    let status = &said["status"];
    if !status["token"].is_string() || !status["expirationTimestamp"].is_string() {
        return Err("the server answered without a token, or without its end".to_owned());
    }
    Ok(json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": {"token": status["token"], "expirationTimestamp": status["expirationTimestamp"]}}))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use wiremock::matchers::{any, body_partial_json, header, method, path};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;

    const SECRET: &str = "top-secret";

    /// A server that gives the gate a token of the prober, which ends then.
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
    async fn a_token_is_asked_for_and_kept_for_its_owner_until_it_is_about_to_end() {
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
    async fn a_refusal_is_told_and_no_token_is() {
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
