//! One worker from the coordinator's side: started through the launcher, greeted, given orders, and
//! shut down.
//!
//! `model::worker` defines the messages. This module does not know what is measured.

mod sanitizer;
mod worker_start;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};

use worker_start::{GreetingFailure, read_greeting, with_last_error_line};

use crate::launch::LaunchCommand;
use model::exchange::ExchangeReply;
use model::id::NodeName;
use model::raw_result::ProcessEnding;
use model::text::clean;
use model::worker_protocol::{
    CoordinatorMessage, LONGEST_LINE, MachineEnvironment, OutputStream as Which, PROTOCOL,
    ProcessOrder, ProcessReport, WorkerMessage,
};
use node::exec::session::{ProcessSession, SessionInput, SessionOutput, SessionProcess};
use node::exec::{CAPTURE, CapturedStream};
use readers::outputs::text;

/// Lines that a login may print before the greeting of the worker.
const MAX_BANNER_LINES: usize = 200;

/// How much longer than its own limit an order may take until the worker counts as lost: it needs
/// time to end its processes, and a large output needs time to travel.
const ORDER_GRACE: Duration = Duration::from_secs(30);

/// How long a worker may take to end a process after a stop message.
const STOP_TIMEOUT: Duration = Duration::from_secs(8);

/// The maximum time to write a message to a worker. One that does not read for so long is lost:
/// half a line may have been sent.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a worker may take to exit after a shutdown message.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of a worker's messages that may wait to be read: some of its longest lines. A worker that
/// sends more has to wait; memory must not grow with the output of a node.
const MAX_PENDING_BYTES: usize = 4 * LONGEST_LINE;

/// How long it waits. Messages are read as they arrive, except those of the server of a pair, which
/// sends a line or two: a worker that waits this long sends too much.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 30 });

/// A worker that sent its greeting.
#[derive(Debug)]
pub(super) struct WorkerHandle {
    node: NodeName,
    /// The report about its machine.
    pub(super) environment: MachineEnvironment,
    /// Its version of fabricgate.
    pub(super) version: String,
    input: tokio::sync::Mutex<SessionInput>,
    shared: Arc<WorkerShared>,
    next: AtomicU64,
}

/// The state that the reader task of a worker shares with the waiting orders.
#[derive(Debug)]
struct WorkerShared {
    orders: Mutex<PendingOrders>,
    /// Dropping it kills the worker and its group.
    process: Mutex<Option<SessionProcess>>,
}

/// The orders that wait for an answer.
#[derive(Debug, Default)]
struct PendingOrders {
    waiting: BTreeMap<u64, mpsc::UnboundedSender<(usize, WorkerMessage)>>,
    /// Bytes that arrived and are still unread.
    pending_bytes: Arc<AtomicUsize>,
    /// The reason why the worker will not answer any more.
    ended: Option<String>,
}

#[derive(Debug)]
pub(super) struct RunningOrder<'w> {
    worker: &'w WorkerHandle,
    id: u64,
    answers: OrderMessages,
    deadline: Instant,
    /// Bytes of each stream that are kept.
    capture: usize,
    stdout: CapturedStream,
    stderr: CapturedStream,
}

/// Unread messages of one order.
#[derive(Debug)]
struct OrderMessages {
    receiver: mpsc::UnboundedReceiver<(usize, WorkerMessage)>,
    pending_bytes: Arc<AtomicUsize>,
}

impl OrderMessages {
    async fn recv(&mut self) -> Option<WorkerMessage> {
        std::future::poll_fn(|context| self.poll_recv(context)).await
    }

    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<WorkerMessage>> {
        self.receiver.poll_recv(context).map(|next| {
            let (size, answer) = next?;
            self.pending_bytes.fetch_sub(size, Ordering::Relaxed);
            Some(answer)
        })
    }
}

impl Drop for OrderMessages {
    fn drop(&mut self) {
        self.receiver.close();
        while let Ok((size, _)) = self.receiver.try_recv() {
            self.pending_bytes.fetch_sub(size, Ordering::Relaxed);
        }
    }
}

/// The outcome of an order that ended in any way.
#[derive(Debug)]
pub(super) struct OrderOutcome {
    pub(super) ending: ProcessEnding,
    pub(super) duration: f64,
    pub(super) stdout: CapturedStream,
    pub(super) stderr: CapturedStream,
    pub(super) load: Option<f64>,
    pub(super) gpus: Vec<String>,
    /// Bytes of standard output of each node, if every node of a step ran it.
    pub(super) sent: Vec<u64>,
    /// The last error message.
    pub(super) complaint: Option<String>,
}

impl OrderOutcome {
    /// The outcome of an order that did not start.
    pub(super) fn not_started(why: String) -> Self {
        Self {
            ending: ProcessEnding::not_started(why),
            duration: 0.0,
            stdout: CapturedStream::default(),
            stderr: CapturedStream::default(),
            load: None,
            gpus: Vec::new(),
            sent: Vec::new(),
            complaint: None,
        }
    }
}

impl WorkerHandle {
    /// Starts a worker and waits for its greeting.
    pub(super) async fn connect(
        node: &NodeName,
        launch: &LaunchCommand,
        limit: Duration,
    ) -> Result<Self, String> {
        let session = ProcessSession::start_trusted(
            &launch.argv,
            &launch.env,
            launch.environment_access,
            None,
        )
        .map_err(|error| match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        })?;
        let ProcessSession { mut input, mut output, mut process } = session;
        let hello = CoordinatorMessage::Hello {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: node.to_string(),
        };
        // The reader detects a worker that has already ended.
        let _ = input.send(&to_json_line(&hello)).await;
        let hello = match timeout(limit, read_greeting(&mut output)).await {
            Ok(Ok(hello)) => hello,
            Ok(Err(GreetingFailure::Ended)) => {
                input.close();
                let ending = process.end(EXIT_TIMEOUT).await;
                let why = match ending {
                    ProcessEnding::Exited { code: 0 } => "it ended before it answered".to_owned(),
                    ending => ending.to_string(),
                };
                return Err(with_last_error_line(
                    format!("no worker: {why}"),
                    &process.stderr_tail(),
                ));
            }
            // Its exit status has no meaning from here on: it is killed.
            Ok(Err(GreetingFailure::Invalid(why))) => return Err(format!("no worker: {why}")),
            Err(_) => {
                let why = format!("no worker answered within {} s", limit.as_secs_f64());
                return Err(with_last_error_line(why, &process.stderr_tail()));
            }
        };
        let shared = Arc::new(WorkerShared {
            orders: Mutex::new(PendingOrders::default()),
            process: Mutex::new(Some(process)),
        });
        tokio::spawn(dispatch_messages(output, Arc::clone(&shared)));
        Ok(Self {
            node: node.clone(),
            environment: hello.environment,
            version: hello.version,
            input: tokio::sync::Mutex::new(input),
            shared,
            next: AtomicU64::new(0),
        })
    }

    /// Whether the worker still answers.
    pub(super) fn is_alive(&self) -> bool {
        lock(&self.shared.orders).ended.is_none()
    }

    /// Starts an order and fills in its id.
    pub(super) async fn start_order(
        &self,
        order: ProcessOrder,
    ) -> Result<RunningOrder<'_>, String> {
        // From a plan, which may have been read from a file.
        let limit = Duration::try_from_secs_f64(order.limit_s).ok();
        let until = limit.and_then(|limit| Instant::now().checked_add(limit + ORDER_GRACE));
        let until =
            until.ok_or_else(|| format!("{} s is not a valid time limit", order.limit_s))?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, line) = mpsc::unbounded_channel();
        let answers = {
            let mut orders = lock(&self.shared.orders);
            if let Some(why) = &orders.ended {
                return Err(why.clone());
            }
            orders.waiting.insert(id, sender);
            OrderMessages { receiver: line, pending_bytes: Arc::clone(&orders.pending_bytes) }
        };
        let (stdout, stderr) = (CapturedStream::default(), CapturedStream::default());
        let capture = order.capture.min(CAPTURE);
        let running =
            RunningOrder { worker: self, id, answers, deadline: until, capture, stdout, stderr };
        self.send_message(&CoordinatorMessage::Run(ProcessOrder { id, ..order })).await?;
        Ok(running)
    }

    /// Shuts the worker down; it ends all of its running processes.
    pub(super) async fn shut_down(&self) {
        let _ = self.send_message(&CoordinatorMessage::Bye).await;
        self.input.lock().await.close();
        let process = lock(&self.shared.process).take();
        if let Some(mut process) = process {
            process.end(EXIT_TIMEOUT).await;
        }
    }

    pub(super) fn kill(&self) {
        lock(&self.shared.process).take();
    }

    async fn send_message(&self, what: &CoordinatorMessage) -> Result<(), String> {
        let sending = async { self.input.lock().await.send(&to_json_line(what)).await };
        match timeout(WRITE_TIMEOUT, sending).await {
            Ok(sent) => {
                sent.map_err(|error| format!("the worker on {} is gone: {error}", self.node))
            }
            Err(_) => {
                self.kill();
                Err(format!("the worker on {} does not read its input", self.node))
            }
        }
    }
}

impl RunningOrder<'_> {
    /// Waits until a server listens, and returns its port. `stop` turning true ends the wait.
    pub(super) async fn wait_until_ready(
        &mut self,
        limit: Duration,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<u16, OrderOutcome> {
        let until = Instant::now() + limit;
        loop {
            let answer = tokio::select! {
                answer = timeout_at(until, self.answers.recv()) => answer,
                () = wait_for_stop(stop) => {
                    let mut outcome = self.stop().await;
                    outcome.ending = ProcessEnding::Interrupted;
                    return Err(outcome);
                }
            };
            match answer {
                Ok(Some(WorkerMessage::Ready { port, .. })) => return Ok(port),
                Ok(Some(answer)) => {
                    if let Some(outcome) = self.handle_message(answer) {
                        return Err(outcome);
                    }
                }
                Ok(None) => return Err(self.lost_outcome()),
                Err(_) => {
                    let mut outcome = self.stop().await;
                    let why = format!("did not listen within {} s", limit.as_secs_f64());
                    outcome.ending = ProcessEnding::not_started(why);
                    return Err(outcome);
                }
            }
        }
    }

    /// Waits for the end; `stop` turning true stops the process.
    pub(super) async fn finish(mut self, stop: &mut watch::Receiver<bool>) -> OrderOutcome {
        loop {
            tokio::select! {
                answer = timeout_at(self.deadline, self.answers.recv()) => match answer {
                    Ok(Some(answer)) => if let Some(outcome) = self.handle_message(answer) { return outcome },
                    Ok(None) => return self.lost_outcome(),
                    Err(_) => {
                        // It should have ended the process long before.
                        self.worker.kill();
                        let mut outcome = self.lost_outcome();
                        outcome.ending = ProcessEnding::TimedOut;
                        return outcome;
                    }
                },
                () = wait_for_stop(stop) => {
                    let mut outcome = self.stop().await;
                    outcome.ending = ProcessEnding::Interrupted;
                    return outcome;
                }
            }
        }
    }

    /// Stops the process and waits for its end.
    pub(super) async fn stop(&mut self) -> OrderOutcome {
        let _ = self.send_stop().await;
        let until = Instant::now() + STOP_TIMEOUT;
        loop {
            match timeout_at(until, self.answers.recv()).await {
                Ok(Some(answer)) => {
                    if let Some(outcome) = self.handle_message(answer) {
                        return outcome;
                    }
                }
                Ok(None) | Err(_) => return self.lost_outcome(),
            }
        }
    }

    pub(super) async fn send_stop(&self) -> Result<(), String> {
        self.worker.send_message(&CoordinatorMessage::Stop { id: self.id }).await
    }

    /// Sends the reply to an exchange.
    pub(super) async fn send_reply(&self, answer: ExchangeReply) -> Result<(), String> {
        self.worker.send_message(&CoordinatorMessage::Answer { id: self.id, answer }).await
    }

    /// The time when it counts as lost.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// After a stop message it counts as lost at the end of a grace period.
    pub(super) fn shorten_deadline(&mut self) {
        self.deadline = self.deadline.min(Instant::now() + STOP_TIMEOUT);
    }

    pub(super) fn kill(&self) {
        self.worker.kill();
    }

    /// The next message of this order; `None` once the worker is gone.
    pub(super) fn poll_message(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<WorkerMessage>> {
        self.answers.poll_recv(context)
    }

    /// Handles a message; returns the outcome if it was the last one.
    pub(super) fn handle_message(&mut self, answer: WorkerMessage) -> Option<OrderOutcome> {
        match answer {
            WorkerMessage::Output { stream, data, .. } => {
                let into = match stream {
                    Which::Stdout => &mut self.stdout,
                    Which::Stderr => &mut self.stderr,
                };
                append_output(into, &data, self.capture);
                None
            }
            WorkerMessage::Done(done) => Some(self.build_outcome(*done)),
            WorkerMessage::Refused { why, .. } => {
                let ending = ProcessEnding::Busy { why };
                Some(OrderOutcome { ending, ..OrderOutcome::not_started(String::new()) })
            }
            WorkerMessage::Hello(_)
            | WorkerMessage::Ready { .. }
            | WorkerMessage::Asks { .. }
            | WorkerMessage::Fault { .. } => None,
        }
    }

    fn build_outcome(&mut self, done: ProcessReport) -> OrderOutcome {
        let mut stdout = std::mem::take(&mut self.stdout);
        let mut stderr = std::mem::take(&mut self.stderr);
        // The id belongs to another order.
        stdout.dropped = stdout.dropped.saturating_add(done.stdout_dropped);
        stderr.dropped = stderr.dropped.saturating_add(done.stderr_dropped);
        OrderOutcome {
            ending: done.ending,
            duration: done.duration_s,
            complaint: last_error_line(&stderr.bytes),
            stdout,
            stderr,
            load: done.load,
            gpus: done.gpus,
            sent: Vec::new(),
        }
    }

    /// The worker is gone. The output so far is incomplete.
    pub(super) fn lost_outcome(&mut self) -> OrderOutcome {
        let ended = lock(&self.worker.shared.orders).ended.clone();
        OrderOutcome::not_started(ended.unwrap_or_else(|| "the worker does not answer".to_owned()))
    }
}

impl Drop for RunningOrder<'_> {
    fn drop(&mut self) {
        lock(&self.worker.shared.orders).waiting.remove(&self.id);
    }
}

/// Waits until the run is stopped.
pub(super) async fn wait_for_stop(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        // The sender is gone: no stop can come.
        std::future::pending::<()>().await;
    }
}

/// Forwards every message to its order until the worker ends.
async fn dispatch_messages(mut output: SessionOutput, shared: Arc<WorkerShared>) {
    let why = loop {
        match output.next_line().await {
            Ok(Some(line)) => {
                match serde_json::from_slice(&line).map(sanitizer::sanitize_message) {
                    Ok(WorkerMessage::Fault { why }) => break format!("the worker gave up: {why}"),
                    Ok(answer) => {
                        if !wait_for_room(&shared, line.len()).await {
                            break "the worker sends more than the coordinator reads".to_owned();
                        }
                        let orders = lock(&shared.orders);
                        let waiting = order_id(&answer).and_then(|id| orders.waiting.get(&id));
                        let Some(waiting) = waiting else { continue };
                        orders.pending_bytes.fetch_add(line.len(), Ordering::Relaxed);
                        if waiting.send((line.len(), answer)).is_err() {
                            orders.pending_bytes.fetch_sub(line.len(), Ordering::Relaxed);
                        }
                    }
                    Err(error) => {
                        // The error may quote the message.
                        let why = clean(&error.to_string());
                        break format!("the worker sent an invalid message: {why}");
                    }
                }
            }
            Ok(None) => {
                let process = lock(&shared.process);
                let tail = process.as_ref().map_or(String::new(), SessionProcess::stderr_tail);
                break with_last_error_line("the worker ended".to_owned(), &tail);
            }
            Err(error) => break format!("cannot read from the worker: {error}"),
        }
    };
    let mut orders = lock(&shared.orders);
    orders.ended = Some(why);
    // The end of its channel informs every waiting order.
    orders.waiting.clear();
}

/// Waits until there is room for so many more bytes of messages; false if that takes too long.
async fn wait_for_room(shared: &WorkerShared, more: usize) -> bool {
    const STEP: Duration = Duration::from_millis(5);
    let pending = Arc::clone(&lock(&shared.orders).pending_bytes);
    let until = Instant::now() + DRAIN_TIMEOUT;
    while MAX_PENDING_BYTES < pending.load(Ordering::Relaxed).saturating_add(more) {
        if until < Instant::now() {
            return false;
        }
        tokio::time::sleep(STEP).await;
    }
    true
}

/// Appends a piece of output. A part beyond the limit, or an undecodable one, counts as dropped, so
/// that the output is not taken for whole.
fn append_output(into: &mut CapturedStream, data: &str, most: usize) {
    let Ok(bytes) = BASE64_STANDARD.decode(data) else {
        into.dropped += data.len() as u64;
        return;
    };
    let kept = bytes.len().min(most.saturating_sub(into.bytes.len()));
    into.bytes.extend_from_slice(&bytes[..kept]);
    into.dropped += (bytes.len() - kept) as u64;
}

fn order_id(answer: &WorkerMessage) -> Option<u64> {
    match answer {
        WorkerMessage::Ready { id, .. }
        | WorkerMessage::Output { id, .. }
        | WorkerMessage::Asks { id, .. }
        | WorkerMessage::Refused { id, .. } => Some(*id),
        WorkerMessage::Done(done) => Some(done.id),
        WorkerMessage::Hello(_) | WorkerMessage::Fault { .. } => None,
    }
}

/// The last nonempty line of standard error.
pub(super) fn last_error_line(stderr: &[u8]) -> Option<String> {
    const TAIL: usize = 4096;
    let tail = &stderr[stderr.len().saturating_sub(TAIL)..];
    let decoded = text::decode(tail);
    decoded.lines().rev().map(clean).find(|line| !line.is_empty())
}

fn to_json_line(what: &CoordinatorMessage) -> Vec<u8> {
    serde_json::to_vec(what).expect("orders are plain data")
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // No holder of the lock panics.
    shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
