//! `fabricgate node attach`: words that run in a pod, with what is said to them
//! and by them; and `fabricgate node wait`, which keeps that pod there.
//!
//! Stands where other launchers have ssh or srun: one process for each worker,
//! which coordinators start and end as they do those. Understands nothing of what
//! passes.

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

/// Bytes that are on their way at most, in either direction.
const BUFFER: usize = 256 * 1024;

/// How long what was said before the end may take to arrive after it.
const LINGER: Duration = Duration::from_secs(5);

/// Run words in a pod, and pass on what is said.
///
/// Ends as they end; with 255 where they could not be started or were lost, which
/// is told on stderr. Started through launcher "kubernetes"; nobody has to start
/// it by hand.
#[derive(Debug, clap::Args)]
pub struct AttachArgs {
    /// The namespace of the pod.
    #[arg(long, value_name = "N")]
    namespace: String,
    /// Its name.
    #[arg(long, value_name = "P")]
    pod: String,
    /// Its container.
    #[arg(long, value_name = "C", default_value = CONTAINER)]
    container: String,
    /// The kubeconfig; without it, the environment's or the pod's own account.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of it.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Seconds within which the words must be running.
    #[arg(long, value_name = "S", default_value_t = 25,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
    /// The words.
    #[arg(last = true, required = true, value_name = "WORDS")]
    argv: Vec<String>,
}

/// Runs the command.
pub fn attach(args: &AttachArgs) -> anyhow::Result<u8> {
    let runtime = crate::cli::runtime::build_runtime()?;
    let ended = runtime.block_on(attach_to_pod(args));
    // The input is read by a thread that may wait for more of it.
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

/// Passes on what is said until the words have ended: their exit code.
async fn forward_streams(mut process: AttachedProcess) -> Result<u8, String> {
    let ended = process.take_status().expect("it is taken once");
    let (stdin, stdout, stderr) = (process.stdin(), process.stdout(), process.stderr());
    if let Some(stdin) = stdin {
        tokio::spawn(forward_bytes(tokio::io::stdin(), stdin));
    }
    let said = async {
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
    let mut said = std::pin::pin!(said);
    let mut ended = std::pin::pin!(ended);
    // Both must come to their end: words that ended may have said more than has
    // arrived, and a connection that closed says nothing of how they ended.
    let status = tokio::select! {
        status = &mut ended => {
            match timeout(LINGER, said).await {
                Ok(Ok(_)) | Err(_) => {}
                Ok(Err(error)) => return Err(format!("nobody listens any more: {error}")),
            }
            status
        }
        result = &mut said => {
            result.map_err(|error| format!("nobody listens any more: {error}"))?;
            timeout(LINGER, ended).await.unwrap_or_default()
        }
    };
    // A connection that is merely silent would be waited for without end.
    let lost = match timeout(LINGER, process.join()).await.unwrap_or(Ok(())) {
        Ok(()) => "the connection ended before what runs there did".to_owned(),
        Err(error) => format!("the connection was lost: {}", clean(&error.to_string())),
    };
    match status {
        Some(status) => exit_code(&status),
        None => Err(lost),
    }
}

/// Passes bytes on as they come; ends the other side with this one.
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

/// The exit code that this status tells (`remotecommand`: a failure has its code
/// among its causes); an error where it tells none.
fn exit_code(status: &Status) -> Result<u8, String> {
    if status.status.as_deref() == Some("Success") {
        return Ok(exit::PASS);
    }
    let causes = status.details.iter().flat_map(|details| details.causes.iter().flatten());
    let code = causes
        .filter(|cause| cause.reason.as_deref() == Some("ExitCode"))
        .find_map(|cause| cause.message.as_deref()?.parse::<u8>().ok());
    code.ok_or_else(|| clean(status.message.as_deref().unwrap_or("it ended, and nobody says how")))
}

/// Why nothing was started there, in one sentence.
async fn explain_refusal(
    error: &kube::Error,
    pods: &Api<Pod>,
    args: &AttachArgs,
    limit: Duration,
) -> String {
    let said = match error {
        kube::Error::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(status)) => {
            let (_, words) = connection::describe_status(status.as_u16());
            format!("{words} ({})", status.as_u16())
        }
        other => connection::refusal_problem(other).1,
    };
    // What a server answers to an exec says little of the pod.
    match timeout(limit, pods.get_opt(&args.pod)).await {
        Ok(Ok(None)) => "it is gone".to_owned(),
        Ok(Ok(Some(pod))) => {
            let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
            if phase == "Running" { said } else { format!("it is {}: {said}", clean(&phase)) }
        }
        _ => said,
    }
}

/// Wait, so that a pod stays there for workers to run in.
///
/// Ends with the time, with SIGTERM, and after a while without any other process
/// beside it. Takes care of processes that nobody else waits for.
#[derive(Debug, clap::Args)]
pub struct WaitArgs {
    /// Seconds after which it ends.
    #[arg(long, value_name = "N")]
    seconds: u64,
    /// Seconds without any other process here after which it ends.
    #[arg(long, value_name = "N")]
    idle: Option<u64>,
}

/// Runs the command.
pub fn wait(args: &WaitArgs) -> anyhow::Result<u8> {
    const GLANCE: Duration = Duration::from_secs(1);
    // A year: no pod of a run lives as long, and no moment lies beyond it.
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

/// Takes note of what has ended: the first process of a container inherits what
/// others left behind.
fn reap_children() {
    use rustix::process::WaitOptions;
    while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
}

/// Whether any other process can be seen from here.
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
