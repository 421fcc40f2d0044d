//! The worker: runs probes on its node for a coordinator that communicates over standard input and
//! output, in the lines of `model::worker_protocol`.
//!
//! It lives as long as its input does and leaves no process running. It does not interpret probes
//! or their output.

mod environment;
mod gpu_usage;
mod line;
mod order;
mod port;
mod procfs;

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::exec::guard;
use crate::exec::session::ProcessSession;
use model::exchange::ExchangeReply;
use model::worker_protocol::{
    CoordinatorMessage, PROTOCOL, ProcessOrder, WorkerHello, WorkerMessage,
};

use order::AnswerSender;

/// Time limit for writing the last lines, because the reader may be gone.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// An event of the reader thread.
#[derive(Debug)]
enum WorkerInput {
    Line(Vec<u8>),
    /// A line that is longer than allowed.
    TooLong,
    /// The input or the output is closed.
    Closed,
}

/// Why the worker ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerEnd {
    /// The coordinator dismissed it or closed the connection.
    Dismissed,
    /// It received an invalid line, and reported the reason.
    Fault(String),
}

/// Works until it is dismissed, the input ends or a line is invalid. Must be called on a thread
/// that lives as long as the process does: the worker's children die with that thread.
pub async fn run_worker(
    input: impl Read + Send + 'static,
    output: impl Write + Send + 'static,
    setup: WorkerSetup,
) -> WorkerEnd {
    let (event_sender, mut events) = mpsc::channel(16);
    let (message_sender, messages) = mpsc::unbounded_channel();
    let gone = event_sender.clone();
    std::thread::spawn(move || line::read_lines(BufReader::new(input), &event_sender));
    let writer = tokio::task::spawn_blocking(move || line::write_lines(output, messages, &gone));
    // This process kills the remaining groups if the worker dies.
    let groups =
        ProcessSession::start(&guard::group_guard_command(&setup.executable), &BTreeMap::new())
            .ok();
    let (started, group_events) = mpsc::unbounded_channel();
    let reporter = tokio::spawn(report_groups(groups, group_events));

    let mut queue = OrderQueue {
        setup: Arc::new(setup),
        output: message_sender,
        groups: started,
        running: JoinSet::new(),
        stops: BTreeMap::new(),
        answers: BTreeMap::new(),
        greeted: false,
    };
    let ended = loop {
        tokio::select! {
            event = events.recv() => match event {
                Some(WorkerInput::Line(line)) => match queue.handle_line(&line).await {
                    Ok(WorkerFlow::Continue) => {}
                    Ok(WorkerFlow::Stop) => break WorkerEnd::Dismissed,
                    Err(why) => break WorkerEnd::Fault(why),
                },
                Some(WorkerInput::TooLong) => {
                    let longest = model::worker_protocol::LONGEST_LINE;
                    break WorkerEnd::Fault(format!("expected lines of at most {longest} bytes"));
                }
                Some(WorkerInput::Closed) | None => break WorkerEnd::Dismissed,
            },
            Some(ended) = queue.running.join_next() => {
                if let Ok(id) = ended {
                    queue.stops.remove(&id);
                    queue.answers.remove(&id);
                }
            }
        }
    };
    queue.shut_down(&ended).await;
    let _ = reporter.await;
    // If the reader is gone, the last lines are lost.
    let _ = timeout(FLUSH_TIMEOUT, writer).await;
    ended
}

enum WorkerFlow {
    Continue,
    Stop,
}

struct OrderQueue {
    setup: Arc<WorkerSetup>,
    output: mpsc::UnboundedSender<WorkerMessage>,
    /// Reports started groups to the guard, and ended groups as negative numbers.
    groups: mpsc::UnboundedSender<i32>,
    running: JoinSet<u64>,
    stops: BTreeMap<u64, watch::Sender<bool>>,
    /// Answer channels of the orders that take part in exchanges.
    answers: BTreeMap<u64, AnswerSender>,
    greeted: bool,
}

impl OrderQueue {
    /// Handles one line; an error is why it is invalid.
    async fn handle_line(&mut self, line: &[u8]) -> Result<WorkerFlow, String> {
        let message: CoordinatorMessage = serde_json::from_slice(line).map_err(|error| {
            let begins = String::from_utf8_lossy(&line[..line.len().min(60)]);
            let expected = "expected a line of JSON: hello, run, stop or bye";
            format!("{expected}; the line begins {begins:?}: {error}")
        })?;
        match message {
            CoordinatorMessage::Hello { protocol, version, .. } if protocol != PROTOCOL => {
                Err(format!(
                    "expected protocol {PROTOCOL}, but the coordinator (fabricgate {version}) uses \
                 {protocol}: the node has fabricgate {}",
                    env!("CARGO_PKG_VERSION")
                ))
            }
            CoordinatorMessage::Hello { .. } if self.greeted => {
                Err("expected run, stop or bye, got a second hello".to_owned())
            }
            CoordinatorMessage::Hello { .. } => {
                self.greeted = true;
                let hello = WorkerHello {
                    protocol: PROTOCOL,
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    environment: environment::read_environment(&self.setup).await,
                };
                self.send(WorkerMessage::Hello(Box::new(hello)));
                Ok(WorkerFlow::Continue)
            }
            _ if !self.greeted => Err("expected hello first".to_owned()),
            CoordinatorMessage::Run(order) => {
                self.start_order(order).map(|()| WorkerFlow::Continue)
            }
            CoordinatorMessage::Stop { id } => {
                // An unknown order has already ended.
                if let Some(stop) = self.stops.get(&id) {
                    let _ = stop.send(true);
                }
                Ok(WorkerFlow::Continue)
            }
            CoordinatorMessage::Answer { id, answer } => {
                self.forward_answer(id, &answer);
                Ok(WorkerFlow::Continue)
            }
            CoordinatorMessage::Bye => Ok(WorkerFlow::Stop),
        }
    }

    fn start_order(&mut self, order: ProcessOrder) -> Result<(), String> {
        let id = order.id;
        if self.stops.contains_key(&id) {
            return Err(format!("expected a new order, but {id} is still running"));
        }
        let (stop, stopped) = watch::channel(false);
        self.stops.insert(id, stop);
        let setup = Arc::clone(&self.setup);
        let (sender, started) = (self.output.clone(), self.groups.clone());
        let answers = order.on_all_nodes.then(|| {
            let (answer_sender, answers) = order::answer_channel();
            self.answers.insert(id, answer_sender);
            answers
        });
        self.running.spawn(async move {
            order::execute_order(order, &setup, stopped, answers, (&sender, &started)).await;
            id
        });
        Ok(())
    }

    /// Forwards an answer to the process that asked.
    fn forward_answer(&self, id: u64, answer: &ExchangeReply) {
        // The process may have ended meanwhile.
        let Some(sender) = self.answers.get(&id) else { return };
        let Ok(mut line) = serde_json::to_vec(answer) else { return };
        line.push(b'\n');
        let fewer = |open: usize| open.checked_sub(1);
        // An answer without a request is dropped: the process reads one line per request, and would
        // take it for the next answer.
        let decremented = sender.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        if decremented.is_ok() {
            let _ = sender.lines.send(line);
        }
    }

    /// Ends all orders, and reports the reason if it is unexpected.
    async fn shut_down(mut self, ended: &WorkerEnd) {
        for stop in self.stops.values() {
            let _ = stop.send(true);
        }
        if let WorkerEnd::Fault(why) = ended {
            self.send(WorkerMessage::Fault { why: why.clone() });
        }
        while self.running.join_next().await.is_some() {}
    }

    fn send(&self, message: WorkerMessage) {
        let _ = self.output.send(message);
    }
}

/// Reports process groups to the guard process.
async fn report_groups(guard: Option<ProcessSession>, mut groups: mpsc::UnboundedReceiver<i32>) {
    let Some(mut guard) = guard else { return };
    while let Some(group) = groups.recv().await {
        if guard.send(format!("{group:+}").as_bytes()).await.is_err() {
            break;
        }
    }
    let _ = guard.end(FLUSH_TIMEOUT).await;
}

/// Parameters of a worker.
#[derive(Clone, Debug)]
pub struct WorkerSetup {
    /// The worker's executable: `{self}`, and the guard of its children.
    pub executable: PathBuf,
    /// Run even if the GPUs are in use.
    pub even_if_busy: bool,
    /// The folder of `/proc`, for processes and sockets.
    pub proc: PathBuf,
    /// The node is this machine, so local jobs use it. A simulated node shares the machine with
    /// unrelated jobs.
    pub is_machine: bool,
}
