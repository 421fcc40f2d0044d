//! `fabricgate node attach`: runs a command in a pod and forwards its standard streams; and
//! `fabricgate node wait`, which keeps that pod running.
//!
//! Takes the place of ssh or srun in other launchers: one process for each worker, which
//! coordinators start and stop the same way. Forwards bytes without interpreting them.

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::Api;
use kube::api::{AttachParams, AttachedProcess};
use kube::client::UpgradeConnectionError;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::cli::stdout::note;
use crate::exit;
use control::launch::UNREACHED_EXIT_CODE;
use control::launch::kubernetes::CONTAINER;
use control::sources::kubernetes::connection::ResponseReadLimit;
use control::sources::kubernetes::{KubernetesClientConfig as Server, connection};
use model::text::clean;

/// Most buffered bytes in either direction.
const BUFFER: usize = 256 * 1024;

/// How long output may still arrive after the command has ended, and the other way round.
const LINGER: Duration = Duration::from_secs(5);

/// Run a command in a pod and forward its standard streams.
///
/// Exits with the command's code, or with 255 and a message on stderr if the command could not be
/// started or the connection was lost. The launcher "kubernetes" starts it; there is no need to
/// start it by hand.
#[derive(Debug, clap::Args)]
pub struct AttachArgs {
    /// The namespace of the pod.
    #[arg(long, value_name = "N")]
    namespace: String,
    /// The name of the pod.
    #[arg(long, value_name = "P")]
    pod: String,
    /// The container in the pod.
    #[arg(long, value_name = "C", default_value = CONTAINER)]
    container: String,
    /// The kubeconfig; by default the environment's or the pod's own account.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Seconds within which the command must be running.
    #[arg(long, value_name = "S", default_value_t = 25,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "WORDS")]
    argv: Vec<String>,
}

/// Runs the command.
pub fn attach(args: &AttachArgs) -> anyhow::Result<u8> {
    let runtime = crate::cli::runtime::build_runtime()?;
    let ended = runtime.block_on(attach_to_pod(args));
    // A thread may still block on standard input.
    runtime.shutdown_background();
    match ended {
        Ok(code) => Ok(code),
        Err(why) => {
            note(&why);
            Ok(u8::try_from(UNREACHED_EXIT_CODE).unwrap_or(u8::MAX))
        }
    }
}

async fn attach_to_pod(args: &AttachArgs) -> Result<u8, String> {
    let limit = Duration::from_secs(args.limit);
    let at = format!("pod {}/{}", clean(&args.namespace), clean(&args.pod));
    let server =
        Server { kubeconfig: args.kubeconfig.clone(), context: args.context.clone(), limit };
    let access = connection::connect(&server, ResponseReadLimit::Endless).await;
    let access = access.map_err(|problem| format!("{at}: {}", problem.message))?;
    let pods: Api<Pod> = Api::namespaced(access.client, &args.namespace);
    let how = AttachParams {
        container: Some(args.container.clone()),
        stdin: true,
        max_stdin_buf_size: Some(BUFFER),
        max_stdout_buf_size: Some(BUFFER),
        max_stderr_buf_size: Some(BUFFER),
        ..AttachParams::default()
    };
    let process = match timeout(limit, pods.exec(&args.pod, &args.argv, &how)).await {
        Ok(Ok(process)) => process,
        Ok(Err(error)) => {
            return Err(format!("{at}: {}", explain_refusal(&error, &pods, args, limit).await));
        }
        Err(_) => return Err(format!("{at}: the server did not answer within {limit:?}")),
    };
    forward_streams(process).await.map_err(|why| format!("{at}: {why}"))
}

/// Forwards the streams until the command has ended; returns its exit code.
async fn forward_streams(mut process: AttachedProcess) -> Result<u8, String> {
    let ended = process.take_status().expect("it is taken once");
    let (stdin, stdout, stderr) = (process.stdin(), process.stdout(), process.stderr());
    if let Some(stdin) = stdin {
        tokio::spawn(forward_bytes(tokio::io::stdin(), stdin));
    }
    let output = async {
        let out = async {
            match stdout {
                Some(from) => forward_bytes(from, tokio::io::stdout()).await,
                None => Ok(()),
            }
        };
        let err = async {
            match stderr {
                Some(from) => forward_bytes(from, tokio::io::stderr()).await,
                None => Ok(()),
            }
        };
        tokio::try_join!(out, err)
    };
    let mut output = std::pin::pin!(output);
    let mut ended = std::pin::pin!(ended);
    // Wait for both: output may arrive after the command has ended, and a closed connection does
    // not carry the exit code.
    let status = tokio::select! {
        status = &mut ended => {
            match timeout(LINGER, output).await {
                Ok(Ok(_)) | Err(_) => {}
                Ok(Err(error)) => return Err(format!("an output stream is closed: {error}")),
            }
            status
        }
        result = &mut output => {
            result.map_err(|error| format!("an output stream is closed: {error}"))?;
            timeout(LINGER, ended).await.unwrap_or_default()
        }
    };
    // A connection without traffic would otherwise be awaited forever.
    let lost = match timeout(LINGER, process.join()).await.unwrap_or(Ok(())) {
        Ok(()) => "the connection ended before the command did".to_owned(),
        Err(error) => format!("the connection was lost: {}", clean(&error.to_string())),
    };
    match status {
        Some(status) => exit_code(&status),
        None => Err(lost),
    }
}

/// Forwards bytes as they arrive; closes `to` at the end of `from`.
async fn forward_bytes(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
) -> std::io::Result<()> {
    let mut buffer = vec![0u8; 64 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..count]).await?;
        to.flush().await?;
    }
}

/// The exit code in this status (`remotecommand`: a failure has its code among its causes); an
/// error if it has none.
fn exit_code(status: &Status) -> Result<u8, String> {
    if status.status.as_deref() == Some("Success") {
        return Ok(exit::PASS);
    }
    let causes = status.details.iter().flat_map(|details| details.causes.iter().flatten());
    let code = causes
        .filter(|cause| cause.reason.as_deref() == Some("ExitCode"))
        .find_map(|cause| cause.message.as_deref()?.parse::<u8>().ok());
    code.ok_or_else(|| clean(status.message.as_deref().unwrap_or("it ended without an exit code")))
}

/// Why the command was not started, in one sentence.
async fn explain_refusal(
    error: &kube::Error,
    pods: &Api<Pod>,
    args: &AttachArgs,
    limit: Duration,
) -> String {
    let refusal = match error {
        kube::Error::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(status)) => {
            let (_, words) = connection::describe_status(status.as_u16());
            format!("{words} ({})", status.as_u16())
        }
        other => connection::refusal_problem(other).1,
    };
    // The server's answer to an exec contains little about the pod.
    match timeout(limit, pods.get_opt(&args.pod)).await {
        Ok(Ok(None)) => "it is gone".to_owned(),
        Ok(Ok(Some(pod))) => {
            let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
            if phase == "Running" { refusal } else { format!("it is {}: {refusal}", clean(&phase)) }
        }
        _ => refusal,
    }
}

/// Wait, so that a pod stays running for workers.
///
/// Exits at the end of the time, on SIGTERM, and after a while without other processes in the
/// container. Reaps orphaned processes.
#[derive(Debug, clap::Args)]
pub struct WaitArgs {
    /// Seconds until it exits.
    #[arg(long, value_name = "N")]
    seconds: u64,
    /// Seconds without other processes in the container until it exits.
    #[arg(long, value_name = "N")]
    idle: Option<u64>,
}

/// Runs the command.
pub fn wait(args: &WaitArgs) -> anyhow::Result<u8> {
    const GLANCE: Duration = Duration::from_secs(1);
    // A year: no pod of a run lives as long, and `Instant` can represent its end.
    const LONGEST: u64 = 366 * 86_400;
    let runtime = crate::cli::runtime::build_runtime()?;
    runtime.block_on(async {
        let mut signals = control::sweep::signals::StopSignals::listen();
        let end = tokio::time::Instant::now() + Duration::from_secs(args.seconds.min(LONGEST));
        let mut alone = tokio::time::Instant::now();
        loop {
            tokio::select! {
                _ = signals.next() => return,
                () = tokio::time::sleep(GLANCE) => {}
            }
            reap_children();
            let now = tokio::time::Instant::now();
            if has_other_processes() {
                alone = now;
            }
            let idle = args.idle.map(Duration::from_secs);
            if end <= now || idle.is_some_and(|idle| idle <= now - alone) {
                return;
            }
        }
    });
    Ok(exit::PASS)
}

/// Reaps ended processes: the first process of a container inherits orphans.
fn reap_children() {
    use rustix::process::WaitOptions;
    while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
}

/// Whether this process sees any other process.
fn has_other_processes() -> bool {
    let own = std::process::id();
    let Ok(entries) = std::fs::read_dir("/proc") else { return true };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.into_iter().any(|pid| pid != own)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(status: serde_json::Value) -> Result<u8, String> {
        exit_code(&serde_json::from_value(status).expect("a status"))
    }

    #[test]
    fn the_exit_code_is_passed_on_and_everything_else_is_an_error() {
        assert_eq!(read(json!({"status": "Success"})), Ok(0));
        let exited = json!({"status": "Failure", "reason": "NonZeroExitCode",
            "message": "command terminated with non-zero exit code",
            "details": {"causes": [{"reason": "ExitCode", "message": "7"}]}});
        assert_eq!(read(exited), Ok(7));
        let gone = json!({"status": "Failure", "message": "container not found (\"worker\")"});
        assert_eq!(read(gone), Err("container not found (\"worker\")".to_owned()));
        assert!(read(json!({})).is_err());
    }
}
