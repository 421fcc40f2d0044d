//! Runs the API server's client in a separate thread.
//!
//! A kubeconfig may name a program for tokens. The client runs it synchronously, at the
//! first request and whenever a token expires. It must not block the callers: a stuck
//! thread is abandoned, and its queued jobs never begin.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;
use tokio::time::Instant;

use super::client::KubernetesApiClient;
use crate::gate::scheduler::SchedulerError;
use crate::sources::kubernetes::KubernetesClientConfig as Server;
use model::source_report::SourceProblemKind;

/// How often the thread reports that it is not stuck.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(50);

/// A job while it runs in the thread.
type ClientThreadFuture = Pin<Box<dyn Future<Output = ()>>>;

type ClientThreadJob = Box<dyn FnOnce(Rc<KubernetesApiClient>) -> ClientThreadFuture + Send>;

/// Handle of the thread, which starts on first use.
pub(super) struct ClientThread {
    server: Server,
    thread: Mutex<Option<ClientThreadHandle>>,
}

#[derive(Clone)]
struct ClientThreadHandle {
    jobs: mpsc::UnboundedSender<ClientThreadJob>,
    beats: Arc<AtomicU64>,
}

impl fmt::Debug for ClientThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("server", &self.server).finish_non_exhaustive()
    }
}

impl ClientThread {
    pub(super) fn new(server: Server) -> Self {
        Self { server, thread: Mutex::new(None) }
    }

    /// Runs a job in the thread. Every request there has its own limit; an error of this
    /// function means that the thread is stuck or missing.
    pub(super) async fn submit<T, F, W>(&self, work: F) -> Result<T, SchedulerError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<KubernetesApiClient>) -> W + Send + 'static,
        W: Future<Output = Result<T, SchedulerError>> + 'static,
    {
        let thread = self.get_or_start_thread()?;
        let (answer, mut reply) = oneshot::channel();
        let job: ClientThreadJob = Box::new(move |client| {
            Box::pin(async move {
                let mut answer = answer;
                let work = work(client);
                tokio::select! {
                    biased;
                    // The caller is gone: begin nothing more. A request that was being
                    // sent while the thread was stuck may still go out, but only for the
                    // node version that it was built for.
                    () = answer.closed() => {}
                    done = work => drop(answer.send(done)),
                }
            })
        });
        if thread.jobs.send(job).is_err() {
            return Err(self.discard_thread("the API client has ended"));
        }
        let mut known = thread.beats.load(Ordering::Relaxed);
        let mut since = Instant::now();
        loop {
            tokio::select! {
                done = &mut reply => {
                    return done.unwrap_or_else(|_| {
                        Err(self.discard_thread("the API client ended without an answer"))
                    });
                }
                () = tokio::time::sleep(HEARTBEAT_INTERVAL) => {
                    let beats = thread.beats.load(Ordering::Relaxed);
                    if beats != known {
                        known = beats;
                        since = Instant::now();
                    } else if self.server.limit < since.elapsed() {
                        return Err(self.discard_thread(&format!(
                            "the kubeconfig, or its program for tokens, returned nothing \
                             within {:?}",
                            self.server.limit
                        )));
                    }
                }
            }
        }
    }

    /// Abandons the thread; the next job starts a new one.
    fn discard_thread(&self, message: &str) -> SchedulerError {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = None;
        SchedulerError::new(SourceProblemKind::Unreachable, message)
    }

    fn get_or_start_thread(&self) -> Result<ClientThreadHandle, SchedulerError> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.as_ref().filter(|thread| !thread.jobs.is_closed()) {
            return Ok(thread.clone());
        }
        let (jobs, work) = mpsc::unbounded_channel();
        let started = ClientThreadHandle { jobs, beats: Arc::new(AtomicU64::new(0)) };
        let (server, beats) = (self.server.clone(), started.beats.clone());
        let named = std::thread::Builder::new().name("kubernetes".to_owned());
        let spawned = named.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            if let Ok(runtime) = runtime {
                LocalSet::new().block_on(&runtime, run_jobs(&server, work, beats));
            }
        });
        spawned.map_err(|error| {
            let message = format!("cannot start the API client's thread: {error}");
            SchedulerError::new(SourceProblemKind::Unreachable, message)
        })?;
        *thread = Some(started.clone());
        Ok(started)
    }
}

/// Runs jobs concurrently until all senders are dropped.
async fn run_jobs(
    server: &Server,
    mut work: mpsc::UnboundedReceiver<ClientThreadJob>,
    beats: Arc<AtomicU64>,
) {
    tokio::task::spawn_local(async move {
        loop {
            beats.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(HEARTBEAT_INTERVAL).await;
        }
    });
    let client = Rc::new(KubernetesApiClient::new(server.clone()));
    let mut doing = tokio::task::JoinSet::new();
    while let Some(job) = work.recv().await {
        doing.spawn_local(job(client.clone()));
        while doing.try_join_next().is_some() {}
    }
    // Complete the jobs in progress: their callers still wait for answers.
    while doing.join_next().await.is_some() {}
}
