//! Executes one order: checks, starts, waits, and reports the result.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use super::WorkerSetup;
use super::port::PortListener;
use super::{environment, gpu_usage, port};
use crate::exec;
use crate::exec::{
    ExecError, FinishedProcess, LineExchange, ProcessContext, ProcessEvent, ProcessRequest,
};
use model::exchange::{EXCHANGE_PREFIX, ExchangeRequest};
use model::probe::{ReadySignal, placeholder};
use model::raw_result::ProcessEnding;
use model::worker_protocol::{
    LONGEST_LINE, OutputStream, ProcessOrder, ProcessReport, ReadinessCheck, WorkerMessage,
};

/// Bytes of output per line: two thirds of the longest line, in base64.
const OUTPUT_CHUNK: usize = 512 * 1024;

/// Polling interval of the kernel's port table.
const POLL: Duration = Duration::from_millis(10);

/// How long a serving process and a listener of another process group must coexist until the
/// listener counts as its own: a container runtime starts the tool outside the group. A server
/// whose port is taken ends sooner.
const FOREIGN_LISTENER_SETTLE: Duration = Duration::from_secs(2);

/// Maximum length of a first line `listening PORT`.
const FIRST_LINE: usize = 256;

/// Maximum time limit, in seconds: a year. Clocks overflow with much larger values.
const MAX_LIMIT_S: f64 = 31_536_000.0;

/// Maximum bytes of a request for an exchange. The forwarded request must fit into a line of the
/// worker.
const LONGEST_ASK: usize = LONGEST_LINE / 2;

/// Maximum unanswered requests of an order's process. It must wait for every answer: a second
/// request is a violation and is forwarded, so that the coordinator detects it; further ones are
/// dropped.
const MAX_UNANSWERED: usize = 2;

/// Sends answers to the process of an order.
#[derive(Debug)]
pub(super) struct AnswerSender {
    /// Lines, each with its line end.
    pub(super) lines: mpsc::UnboundedSender<Vec<u8>>,
    /// Number of unanswered requests.
    pub(super) open: Arc<AtomicUsize>,
}

#[derive(Debug)]
pub(super) struct AnswerReceiver {
    lines: mpsc::UnboundedReceiver<Vec<u8>>,
    open: Arc<AtomicUsize>,
}

/// A channel for an order that takes part in exchanges.
pub(super) fn answer_channel() -> (AnswerSender, AnswerReceiver) {
    let (sender, words) = mpsc::unbounded_channel();
    let open = Arc::new(AtomicUsize::new(0));
    (AnswerSender { lines: sender, open: Arc::clone(&open) }, AnswerReceiver { lines: words, open })
}

/// Executes an order; replies with exactly one of done and refused.
pub(super) async fn execute_order(
    order: ProcessOrder,
    setup: &WorkerSetup,
    stop: watch::Receiver<bool>,
    answers: Option<AnswerReceiver>,
    (sender, started): (&mpsc::UnboundedSender<WorkerMessage>, &mpsc::UnboundedSender<i32>),
) {
    let id = order.id;
    let send_message = |message| {
        let _ = sender.send(message);
    };
    if order.idle_gpus
        && !setup.even_if_busy
        && let Some(why) = gpu_usage::busy_reason(setup).await
    {
        return send_message(WorkerMessage::Refused { id, why });
    }
    let done = |ending| ProcessReport {
        id,
        ending,
        duration_s: 0.0,
        stdout_dropped: 0,
        stderr_dropped: 0,
        load: environment::read_load(setup),
        gpus: Vec::new(),
    };
    let ran = match run_process(&order, setup, stop, answers, (sender, started)).await {
        Ok(ran) => ran,
        Err(ending) => return send_message(WorkerMessage::Done(Box::new(done(ending)))),
    };
    for (stream, printed) in
        [(OutputStream::Stdout, &ran.stdout), (OutputStream::Stderr, &ran.stderr)]
    {
        for piece in printed.bytes.chunks(OUTPUT_CHUNK) {
            send_message(WorkerMessage::Output { id, stream, data: STANDARD.encode(piece) });
        }
    }
    let gpus = match order.idle_gpus {
        true => environment::list_gpus(setup).await,
        false => Vec::new(),
    };
    send_message(WorkerMessage::Done(Box::new(ProcessReport {
        duration_s: ran.duration.as_secs_f64(),
        stdout_dropped: ran.stdout.dropped,
        stderr_dropped: ran.stderr.dropped,
        gpus,
        ..done(ran.ending)
    })));
}

/// Programs of Open MPI and PRRTE that start ranks.
const MPI_LAUNCHERS: &[&str] = &["mpirun", "mpiexec", "orterun", "prterun"];

/// Open MPI refuses the superuser without the first two (4.0.2 and later), PRRTE without the
/// others. An option would not work with older versions.
const RUN_AS_ROOT: [&str; 4] = [
    "OMPI_ALLOW_RUN_AS_ROOT",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    "PRTE_ALLOW_RUN_AS_ROOT",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
];

/// The variables of an order, and those that its tool needs. A variable of the order wins.
fn tool_environment(order: &ProcessOrder, is_root: bool) -> BTreeMap<String, String> {
    let mut env = order.env.clone();
    let mut set = |name: &str, value: &str| {
        env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    };
    if order.idle_gpus {
        // GPUs have the numbers of NVML and nvidia-smi in every tool.
        set("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    }
    let program = order.argv.first().and_then(|program| program.rsplit('/').next());
    if is_root && program.is_some_and(|program| MPI_LAUNCHERS.contains(&program)) {
        RUN_AS_ROOT.iter().for_each(|name| set(name, "1"));
    }
    env
}

/// Runs the order's process and reports when it is ready; an error is an ending without a process.
async fn run_process(
    order: &ProcessOrder,
    setup: &WorkerSetup,
    stop: watch::Receiver<bool>,
    answers: Option<AnswerReceiver>,
    (sender, started): (&mpsc::UnboundedSender<WorkerMessage>, &mpsc::UnboundedSender<i32>),
) -> Result<FinishedProcess, ProcessEnding> {
    let own = setup.executable.display().to_string();
    let fill = |argument: &String| argument.replace(placeholder::SELF, &own);
    let limit =
        if order.limit_s.is_finite() { order.limit_s.clamp(0.0, MAX_LIMIT_S) } else { MAX_LIMIT_S };
    let request = ProcessRequest {
        argv: order.argv.iter().map(fill).collect(),
        limit: Duration::from_secs_f64(limit),
        capture: order.capture.min(exec::CAPTURE),
    };
    let setting = ProcessContext {
        env: tool_environment(order, rustix::process::geteuid().is_root()),
        guard: Some(setup.executable.clone()),
        ..ProcessContext::default()
    };
    let at_port = match order.ready {
        Some(ReadinessCheck { how: ReadySignal::Port, port }) => Some(port),
        _ => None,
    };
    if let Some(port) = at_port.filter(|port| port::is_listening(&setup.proc, *port)) {
        let why = format!("port {port} is already served by another process");
        return Err(ProcessEnding::not_started(why));
    }
    let by_line = matches!(order.ready, Some(ReadinessCheck { how: ReadySignal::Line, .. }));
    let mut first = by_line.then(ReadyLine::default);
    let group = AtomicI32::new(0);
    let mut seen = |seen: ProcessEvent<'_>| match seen {
        ProcessEvent::Started { group: number } => {
            group.store(number, Ordering::Relaxed);
            let _ = started.send(number);
        }
        ProcessEvent::Stdout(bytes) => {
            if let Some(port) = first.as_mut().and_then(|line| line.push(bytes)) {
                let _ = sender.send(WorkerMessage::Ready { id: order.id, port });
            }
        }
    };
    let (input_lines, open) = match answers {
        Some(AnswerReceiver { lines: input_lines, open }) => (Some(input_lines), open),
        None => (None, Arc::default()),
    };
    let mut take = |line: &[u8]| forward_ask(line, order.id, &open, sender);
    let exchange = input_lines.map(|input_lines| LineExchange {
        prefix: EXCHANGE_PREFIX,
        max_line_bytes: LONGEST_ASK,
        on_line: &mut take,
        input: input_lines,
    });
    let running = exec::run_exchange(&request, &setting, stop, &mut seen, exchange);
    let ran = match at_port {
        None => running.await,
        Some(port) => {
            tokio::pin!(running);
            tokio::select! {
                ran = &mut running => ran,
                () = wait_for_port(setup, port, &group) => {
                    let _ = sender.send(WorkerMessage::Ready { id: order.id, port });
                    running.await
                }
            }
        }
    };
    let group = group.into_inner();
    if group != 0 {
        let _ = started.send(-group);
    }
    ran.map_err(|error| match error {
        ExecError::Missing { program } => ProcessEnding::Missing { program },
        ExecError::Empty => ProcessEnding::not_started(error.to_string()),
        ExecError::Refused { program, source } => {
            ProcessEnding::not_started(format!("{program} cannot be started: {source}"))
        }
    })
}

/// Forwards a request for an exchange; false if the line is not one.
fn forward_ask(
    line: &[u8],
    id: u64,
    open: &AtomicUsize,
    sender: &mpsc::UnboundedSender<WorkerMessage>,
) -> bool {
    let Ok(ask) = serde_json::from_slice::<ExchangeRequest>(line) else { return false };
    let message = WorkerMessage::Asks { id, ask };
    // Numbers can become longer when they are serialized again.
    if serde_json::to_vec(&message).is_ok_and(|line| LONGEST_LINE <= line.len()) {
        return false;
    }
    if open.fetch_add(1, Ordering::Relaxed) < MAX_UNANSWERED {
        let _ = sender.send(message);
    }
    true
}

/// Waits until a process of this group listens on the port. Of two servers that are started for one
/// port at the same time, the client of one would use the other.
async fn wait_for_port(setup: &WorkerSetup, port: u16, group: &AtomicI32) {
    let mut foreign_since = None;
    loop {
        match port::find_listener(&setup.proc, port, group.load(Ordering::Relaxed)) {
            Some(PortListener::InGroup) => return,
            Some(PortListener::Elsewhere) => {
                let since = *foreign_since.get_or_insert_with(Instant::now);
                if FOREIGN_LISTENER_SETTLE <= since.elapsed() {
                    return;
                }
            }
            None => foreign_since = None,
        }
        sleep(POLL).await;
    }
}

/// Assembles the first line of a serving process.
#[derive(Debug, Default)]
struct ReadyLine {
    bytes: Vec<u8>,
    done: bool,
}

impl ReadyLine {
    /// The port, once the line is complete and names one.
    fn push(&mut self, bytes: &[u8]) -> Option<u16> {
        if self.done {
            return None;
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        self.bytes.extend_from_slice(&bytes[..end.unwrap_or(bytes.len()).min(FIRST_LINE)]);
        self.done = end.is_some() || FIRST_LINE < self.bytes.len();
        end?;
        let line = std::str::from_utf8(&self.bytes).ok()?;
        line.trim().strip_prefix("listening ")?.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mpirun_of_the_superuser_and_gpu_tools_get_their_variables() {
        let order = |argv: &[&str], idle_gpus: bool| ProcessOrder {
            argv: argv.iter().map(|it| (*it).to_owned()).collect(),
            env: BTreeMap::from([("OMPI_ALLOW_RUN_AS_ROOT".to_owned(), "0".to_owned())]),
            idle_gpus,
            id: 1,
            limit_s: 1.0,
            capture: 0,
            ready: None,
            on_all_nodes: false,
        };
        let mpirun = order(&["/opt/mpi/bin/mpirun", "-np", "2", "nvbandwidth"], true);
        let env = tool_environment(&mpirun, true);
        assert_eq!(env["OMPI_ALLOW_RUN_AS_ROOT"], "0", "the order wins");
        assert_eq!(env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"], "1");
        assert_eq!(env["CUDA_DEVICE_ORDER"], "PCI_BUS_ID");
        assert_eq!(tool_environment(&mpirun, false).len(), 2);
        assert_eq!(tool_environment(&order(&["ib_write_bw", "mpirun"], false), true).len(), 1);
    }

    #[test]
    fn a_first_line_in_pieces_is_read_when_it_is_whole() {
        let mut line = ReadyLine::default();
        assert_eq!(line.push(b"listen"), None);
        assert_eq!(line.push(b"ing 500"), None);
        assert_eq!(line.push(b"1\nlistening 7\n"), Some(5001));
        assert_eq!(line.push(b"listening 8\n"), None, "there is one first line");
    }

    #[test]
    fn requests_are_forwarded_and_a_flood_is_not() {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let open = AtomicUsize::new(0);
        let line = br#"{"number":3,"value":{"a":[1,null]},"within_s":2.5}"#;
        for _ in 0..10 {
            assert!(forward_ask(line, 7, &open, &sender));
        }
        let Ok(WorkerMessage::Asks { id: 7, ask }) = receiver.try_recv() else { panic!("nothing") };
        assert_eq!((ask.number, ask.within_s), (3, 2.5));
        assert!(receiver.try_recv().is_ok() && receiver.try_recv().is_err());
        for other in [&b"{}"[..], b"not json", b"", b"{\"number\":-1}"] {
            assert!(!forward_ask(other, 7, &open, &sender));
        }
        let grows =
            format!("{{\"number\":0,\"value\":[{}1],\"within_s\":1}}", "1e15,".repeat(70_000));
        assert!(grows.len() < LONGEST_ASK && !forward_ask(grows.as_bytes(), 7, &open, &sender));
    }

    #[test]
    fn another_first_line_names_no_port() {
        assert_eq!(ReadyLine::default().push(b"warning: x\nlistening 7\n"), None);
        assert_eq!(ReadyLine::default().push(b"listening 70000\n"), None);
        let mut flood = ReadyLine::default();
        assert_eq!(flood.push(&[b'x'; 100_000]), None);
        assert!(flood.bytes.len() <= FIRST_LINE && flood.push(b"\n").is_none());
    }
}
