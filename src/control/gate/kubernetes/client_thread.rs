//! The thread in which the client of an API server lives, and how work gets
//! there.
//!
//! A kubeconfig may name a program for its tokens, which the client runs and
//! waits for, at first and whenever a token runs out. Whoever asks must not be
//! held up by it: a thread that is stuck there is left behind, and what it had
//! been told is not begun any more.

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

/// How often the thread shows that it is not stuck.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(50);

/// Work that is done in the thread.
type ClientThreadFuture = Pin<Box<dyn Future<Output = ()>>>;

/// Work that waits for its desk.
type ClientThreadJob = Box<dyn FnOnce(Rc<KubernetesApiClient>) -> ClientThreadFuture + Send>;

/// The way to the thread, which is started when it is needed.
pub(super) struct ClientThread {
    server: Server,
    thread: Mutex<Option<ClientThreadHandle>>,
}

/// A thread that takes work.
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

    /// Has something done in the thread. Everything there has its own limits; an
    /// error here means that the thread is stuck, or that there is none.
    pub(super) async fn submit<T, F, W>(&self, work: F) -> Result<T, SchedulerError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<KubernetesApiClient>) -> W + Send + 'static,
        W: Future<Output = Result<T, SchedulerError>> + 'static,
    {
        let thread = self.get_or_start_thread()?;
        let (answer, mut answered) = oneshot::channel();
        let job: ClientThreadJob = Box::new(move |desk| {
            Box::pin(async move {
                let mut answer = answer;
                let work = work(desk);
                tokio::select! {
                    biased;
                    // Nobody waits any more: nothing more is begun. What was being
                    // sent while the thread was stuck may still go, with the version
                    // of the node that it was meant for.
                    () = answer.closed() => {}
                    done = work => drop(answer.send(done)),
                }
            })
        });
        if thread.jobs.send(job).is_err() {
            return Err(self.discard_thread("the client of the API server has ended"));
        }
        let mut known = thread.beats.load(Ordering::Relaxed);
        let mut since = Instant::now();
        loop {
            tokio::select! {
                done = &mut answered => {
                    return done.unwrap_or_else(|_| {
                        Err(self.discard_thread("the client of the API server ended without an answer"))
                    });
                }
                () = tokio::time::sleep(HEARTBEAT_INTERVAL) => {
                    let beats = thread.beats.load(Ordering::Relaxed);
                    if beats != known {
                        known = beats;
                        since = Instant::now();
                    } else if self.server.limit < since.elapsed() {
                        return Err(self.discard_thread(&format!(
                            "the kubeconfig, or the program it names for tokens, gave nothing \
                             within {:?}",
                            self.server.limit
                        )));
                    }
                }
            }
        }
    }

    /// The thread is of no use any more; the next question starts another.
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
            let message = format!("no thread for the client of the API server: {error}");
            SchedulerError::new(SourceProblemKind::Unreachable, message)
        })?;
        *thread = Some(started.clone());
        Ok(started)
    }
}

/// Does what is asked for, side by side, until nobody can ask any more.
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
    let desk = Rc::new(KubernetesApiClient::new(server.clone()));
    let mut doing = tokio::task::JoinSet::new();
    while let Some(job) = work.recv().await {
        doing.spawn_local(job(desk.clone()));
        while doing.try_join_next().is_some() {}
    }
    // Whoever asked is waited for: the last question may be on its way.
    while doing.join_next().await.is_some() {}
}
