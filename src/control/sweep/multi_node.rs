//! One reading of a probe in which every node of a step takes part: the same command on all of
//! them, their exchanges, and one combined outcome.
//!
//! A node that is unreachable, ends, or keeps the others waiting is expelled from the board with
//! the reason, and the others continue while enough are left to measure anything. The content of
//! exchanges is forwarded and never stored.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::placeholders::{PlaceholderEnd, PlaceholderValues};
use super::step::ReadingRequest;
use super::worker::{OrderOutcome, RunningOrder, WorkerHandle, last_error_line, wait_for_stop};
use super::worker_pool::WorkerPool;
use super::{placeholders, step};
use model::exchange::ExchangeReply;
use model::id::NodeName;
use model::probe::ProbeScope;
use model::raw_result::ProcessEnding;
use model::worker_protocol::{ProcessOrder, WorkerMessage};
use node::exec::CapturedStream;
use node::probes::exchange_group::ExchangeGroup;
use readers::outputs::text;

/// Bytes of each output that every node may keep in any case: fabricgate's document has some 100 KB
/// in a rack of 72.
const MIN_CAPTURE_BYTES: usize = 1 << 20;

enum NodePart<'w> {
    Running(RunningOrder<'w>),
    Ended(OrderOutcome),
}

/// All parts of a reading, while they run.
struct MultiNodeReading<'w> {
    nodes: &'w [NodeName],
    parts: Vec<NodePart<'w>>,
    board: ExchangeGroup,
    start: Instant,
    /// Failures in order of time.
    failures: Vec<(usize, String)>,
    /// Nodes whose worker accepted no order.
    absent: Vec<usize>,
    /// The minimum number of parts for a measurement.
    min_parts: usize,
    /// All parts are stopping: after a signal, or because too few are left.
    is_ending: bool,
}

/// Runs a command on all nodes of a step. `shown` gets the command that the first of them ran.
pub(super) async fn run_on_all_nodes(
    reading: &ReadingRequest<'_>,
    argv: &[String],
    fleet: &WorkerPool,
    stop: &mut watch::Receiver<bool>,
    shown: &mut Vec<String>,
) -> Result<OrderOutcome, OrderOutcome> {
    let nodes = reading.step.nodes.as_slice();
    let least = match reading.step.scope {
        ProbeScope::Domain => 2,
        _ => nodes.len(),
    };
    let reached = tokio::select! {
        reached = join_all(nodes.iter().map(|node| fleet.worker(node)).collect()) => reached,
        () = wait_for_stop(stop) => return Err(interrupted_outcome()),
    };
    let workers: Vec<Result<Arc<WorkerHandle>, String>> = reached;
    if workers.iter().flatten().count() < least {
        let why = nodes
            .iter()
            .zip(&workers)
            .find_map(|(node, worker)| worker.as_ref().err().map(|why| format!("{node} {why}")));
        return Err(OrderOutcome::not_started(why.unwrap_or_else(|| "too few nodes".to_owned())));
    }
    // Checked before any part starts: an argument that cannot be filled fails all.
    let mut orders = Vec::new();
    for (at, worker) in workers.iter().enumerate() {
        orders.push(match worker {
            Ok(_) => Some(
                build_node_order(reading, argv, fleet, &workers, at)
                    .map_err(OrderOutcome::not_started)?,
            ),
            Err(_) => None,
        });
    }
    if let Some(first) = orders.iter().flatten().next() {
        first.argv.clone_into(shown);
    }
    let given = workers.iter().zip(orders).map(|(worker, order)| async move {
        let (worker, Some(order)) = (worker.as_ref().map_err(Clone::clone)?, order) else {
            return Err("has no command".to_owned());
        };
        worker.start_order(order).await
    });
    let given = join_all(given.collect()).await;
    let mut parts = MultiNodeReading {
        nodes,
        parts: Vec::new(),
        board: ExchangeGroup::new(nodes.iter().map(ToString::to_string).collect()),
        start: Instant::now(),
        failures: Vec::new(),
        absent: Vec::new(),
        min_parts: least,
        is_ending: false,
    };
    let mut absent = Vec::new();
    for (at, running) in given.into_iter().enumerate() {
        parts.parts.push(match running {
            Ok(running) => NodePart::Running(running),
            Err(why) => {
                absent.push((at, why.clone()));
                NodePart::Ended(OrderOutcome::not_started(why))
            }
        });
    }
    for (at, why) in absent {
        parts.failures.push((at, format!("{} {why}", nodes[at])));
        parts.absent.push(at);
        let answers = parts.board.remove(at, &why);
        parts.deliver(answers).await;
    }
    let interrupted = parts.finish(stop).await;
    Ok(parts.into_outcome(interrupted))
}

/// The order of one node.
fn build_node_order(
    reading: &ReadingRequest<'_>,
    argv: &[String],
    fleet: &WorkerPool,
    workers: &[Result<Arc<WorkerHandle>, String>],
    at: usize,
) -> Result<ProcessOrder, String> {
    let nodes = reading.step.nodes.as_slice();
    let named = fleet.names_are_addresses();
    let end = |at: usize| {
        let worker = workers[at].as_ref().ok()?;
        let environment = (!named).then_some(&worker.environment);
        Some(PlaceholderEnd { node: &nodes[at], environment })
    };
    // In a pair, each is the other's peer.
    let peer = if nodes.len() == 2 { end(1 - at) } else { None };
    let own = end(at).ok_or_else(|| format!("{} is out of reach", nodes[at]))?;
    let with = PlaceholderValues { own, peer, rail: reading.rail, port: reading.port };
    let filled = placeholders::fill_command(argv, &with)?;
    let argv = fleet.launcher_command(&filled, &nodes[at..=at])?;
    let capture =
        (reading.capture / nodes.len().max(1)).max(MIN_CAPTURE_BYTES).min(reading.capture);
    Ok(ProcessOrder { on_all_nodes: true, capture, ..step::build_order(reading, argv) })
}

impl MultiNodeReading<'_> {
    /// Waits until all have ended; true if the run was stopped.
    async fn finish(&mut self, stop: &mut watch::Receiver<bool>) -> bool {
        let mut stopped = false;
        self.end_if_too_few().await;
        while self.parts.iter().any(|part| matches!(part, NodePart::Running(_))) {
            let next = self.next_deadline();
            tokio::select! {
                // A message that arrived in time counts even if it is read late.
                biased;
                (index, message) = next_message(&mut self.parts) => self.handle_message(index, message).await,
                () = wait_for_stop(stop), if !stopped => {
                    stopped = true;
                    self.end_all().await;
                }
                () = sleep_until(next) => self.check_deadlines().await,
            }
        }
        stopped
    }

    /// When the first wait for another node expires.
    fn next_deadline(&self) -> Instant {
        let due = self.board.next_deadline().map(|due| self.start + due);
        let running = self.parts.iter().filter_map(|part| match part {
            NodePart::Running(running) => Some(running.deadline()),
            NodePart::Ended(_) => None,
        });
        running.chain(due).min().unwrap_or_else(Instant::now)
    }

    /// Handles a message of a node's worker; `None` if the worker is gone.
    async fn handle_message(&mut self, index: usize, message: Option<WorkerMessage>) {
        let Some(NodePart::Running(running)) = self.parts.get_mut(index) else { return };
        let outcome = match message {
            Some(WorkerMessage::Asks { ask, .. }) => {
                let answers = self.board.ask(index, ask, self.start.elapsed());
                self.end_expelled(index).await;
                return self.deliver(answers).await;
            }
            Some(message) => running.handle_message(message),
            None => Some(running.lost_outcome()),
        };
        if let Some(outcome) = outcome {
            self.end_part(index, outcome).await;
        }
    }

    /// A part ended: the others must not wait for it.
    async fn end_part(&mut self, index: usize, outcome: OrderOutcome) {
        let node = &self.nodes[index];
        let why = match (&outcome.ending, last_error_line(&outcome.stderr.bytes)) {
            (ProcessEnding::Exited { code: 0 }, _) => None,
            (ProcessEnding::Exited { .. } | ProcessEnding::Signalled { .. }, Some(words)) => {
                Some(format!("{}; last line on stderr: {words}", outcome.ending))
            }
            _ => Some(outcome.ending.to_string()),
        };
        // A part that the coordinator stopped ended for another reason.
        let known = self.is_ending || self.failures.iter().any(|(at, _)| *at == index);
        if let Some(why) = why.as_ref().filter(|_| !known) {
            self.failures.push((index, format!("{node}: {why}")));
        }
        self.parts[index] = NodePart::Ended(outcome);
        let answers = self.board.remove(index, why.as_deref().unwrap_or("ended"));
        self.deliver(answers).await;
        self.end_if_too_few().await;
    }

    /// Stops the rest if too few ever ran for a result: a node that is busy or lacks the tool
    /// leaves a pair without a second end.
    async fn end_if_too_few(&mut self) {
        let ran = |part: &&NodePart<'_>| match part {
            NodePart::Running(_) => true,
            NodePart::Ended(outcome) => was_started(&outcome.ending),
        };
        if !self.is_ending && self.parts.iter().filter(ran).count() < self.min_parts {
            self.end_all().await;
        }
    }

    /// Stops a part that the board has expelled.
    async fn end_expelled(&mut self, index: usize) {
        if self.failures.iter().any(|(at, _)| *at == index) {
            return;
        }
        let (Some(why), NodePart::Running(running)) =
            (self.board.gone_reason(index), &mut self.parts[index])
        else {
            return;
        };
        self.failures.push((index, format!("{}: {why}", self.nodes[index])));
        send_stop(running).await;
    }

    /// Forwards replies to all nodes concurrently.
    async fn deliver(&mut self, answers: Vec<(usize, ExchangeReply)>) {
        let mut sends = Vec::new();
        for (index, answer) in answers {
            if let NodePart::Running(running) = &self.parts[index] {
                let running: &RunningOrder<'_> = running;
                sends.push(async move {
                    if running.send_reply(answer).await.is_err() {
                        // The end of a worker arrives as its own message.
                        running.kill();
                    }
                });
            }
        }
        join_all(sends).await;
    }

    async fn end_all(&mut self) {
        self.is_ending = true;
        let running = self.parts.iter_mut().filter_map(|part| match part {
            NodePart::Running(running) => Some(running),
            NodePart::Ended(_) => None,
        });
        join_all(running.map(send_stop).collect()).await;
    }

    /// Stops parts whose deadline has passed.
    async fn check_deadlines(&mut self) {
        let late = self.board.expire(self.start.elapsed());
        for index in late.gone {
            self.end_expelled(index).await;
        }
        self.deliver(late.answers).await;
        let now = Instant::now();
        for index in 0..self.parts.len() {
            let NodePart::Running(running) = &mut self.parts[index] else { continue };
            if running.deadline() <= now {
                // Its worker should have stopped it long before.
                running.kill();
                let mut outcome = running.lost_outcome();
                if !self.is_ending && !self.failures.iter().any(|(at, _)| *at == index) {
                    outcome.ending = ProcessEnding::TimedOut;
                }
                self.end_part(index, outcome).await;
            }
        }
    }

    fn into_outcome(self, interrupted: bool) -> OrderOutcome {
        let outcomes: Vec<OrderOutcome> = self
            .parts
            .into_iter()
            .map(|part| match part {
                NodePart::Ended(outcome) => outcome,
                NodePart::Running(_) => OrderOutcome::not_started("did not end".to_owned()),
            })
            .collect();
        let (ending, complaint) = match interrupted {
            true => (ProcessEnding::Interrupted, None),
            false => combine_endings(
                &outcomes,
                (&self.failures, &self.absent),
                self.nodes,
                self.min_parts,
            ),
        };
        let mut stdout = CapturedStream::default();
        let mut stderr = CapturedStream::default();
        let (mut load, mut gpus) = (None, Vec::new());
        let mut sent = Vec::new();
        let mut duration = 0.0_f64;
        for (at, outcome) in outcomes.into_iter().enumerate() {
            stdout.dropped += outcome.stdout.dropped;
            stderr.dropped += outcome.stderr.dropped;
            duration = duration.max(outcome.duration);
            let before = stdout.bytes.len();
            stdout.bytes.extend_from_slice(&outcome.stdout.bytes);
            if stdout.bytes.last().is_some_and(|last| *last != b'\n') {
                stdout.bytes.push(b'\n');
            }
            sent.push((stdout.bytes.len() - before) as u64);
            if at == 0 {
                (load, gpus) = (outcome.load, outcome.gpus);
            }
            prefix_lines(&mut stderr.bytes, &self.nodes[at], &outcome.stderr.bytes);
        }
        OrderOutcome { ending, duration, stdout, stderr, load, gpus, complaint, sent }
    }
}

/// The combined ending: a hang if one hung, never started if too few were, and otherwise the first
/// failure.
fn combine_endings(
    outcomes: &[OrderOutcome],
    (wrong, absent): (&[(usize, String)], &[usize]),
    nodes: &[NodeName],
    least: usize,
) -> (ProcessEnding, Option<String>) {
    let Some((first, why)) = wrong.first() else {
        return (ProcessEnding::Exited { code: 0 }, None);
    };
    if let Some(at) = outcomes.iter().position(|it| it.ending == ProcessEnding::TimedOut) {
        return (ProcessEnding::TimedOut, Some(format!("{} ran past its time limit", nodes[at])));
    }
    let started = outcomes.iter().filter(|it| was_started(&it.ending)).count();
    if started < least {
        return match &outcomes[*first].ending {
            ProcessEnding::Busy { .. } => (ProcessEnding::Busy { why: why.clone() }, None),
            // The alternative tool replaces it, see `otherwise`.
            ProcessEnding::Missing { program } => {
                (ProcessEnding::Missing { program: program.clone() }, Some(why.clone()))
            }
            _ => {
                let node = absent.contains(first).then(|| nodes[*first].clone());
                (ProcessEnding::NotStarted { why: why.clone(), node }, None)
            }
        };
    }
    match &outcomes[*first].ending {
        ProcessEnding::Exited { code: 127 } => {
            (ProcessEnding::Exited { code: 127 }, Some(why.clone()))
        }
        _ => {
            let more = match wrong.len() - 1 {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            };
            (ProcessEnding::Partly { why: format!("{why}{more}") }, None)
        }
    }
}

fn was_started(ending: &ProcessEnding) -> bool {
    !matches!(
        ending,
        ProcessEnding::Missing { .. }
            | ProcessEnding::NotStarted { .. }
            | ProcessEnding::Busy { .. }
    )
}

/// Sends a process the stop message.
async fn send_stop(running: &mut RunningOrder<'_>) {
    running.shorten_deadline();
    if running.send_stop().await.is_err() {
        running.kill();
    }
}

fn interrupted_outcome() -> OrderOutcome {
    OrderOutcome { ending: ProcessEnding::Interrupted, ..OrderOutcome::not_started(String::new()) }
}

/// Appends lines with their node in front, as log collectors do.
fn prefix_lines(into: &mut Vec<u8>, node: &NodeName, bytes: &[u8]) {
    let decoded = text::decode(bytes);
    for line in decoded.lines() {
        into.extend_from_slice(format!("{node}: {line}\n").as_bytes());
    }
}

/// The next message of any worker.
async fn next_message(parts: &mut [NodePart<'_>]) -> (usize, Option<WorkerMessage>) {
    poll_fn(|context| {
        for (at, part) in parts.iter_mut().enumerate() {
            if let NodePart::Running(running) = part
                && let Poll::Ready(message) = running.poll_message(context)
            {
                return Poll::Ready((at, message));
            }
        }
        Poll::Pending
    })
    .await
}

/// Waits for all of these concurrently; the results in their order.
async fn join_all<T>(waiting: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut waiting: Vec<Pin<Box<_>>> = waiting.into_iter().map(Box::pin).collect();
    let mut came: Vec<Option<T>> = waiting.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, came) in waiting.iter_mut().zip(&mut came) {
            if came.is_none()
                && let Poll::Ready(value) = future.as_mut().poll(context)
            {
                *came = Some(value);
            }
        }
        if came.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    came.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: usize = 1;

    /// The combined ending of three nodes, of which the second ended so.
    fn ending_of_three(second: ProcessEnding, least: usize) -> (ProcessEnding, Option<String>) {
        let well = || ProcessEnding::Exited { code: 0 };
        let why = format!("n2: {second}");
        let outcomes = [well(), second, well()]
            .map(|ending| OrderOutcome { ending, ..OrderOutcome::not_started(String::new()) });
        let nodes: Vec<NodeName> = ["n1", "n2", "n3"].map(NodeName::from).into();
        combine_endings(&outcomes, (&[(LOST, why)], &[]), &nodes, least)
    }

    #[test]
    fn a_failed_node_is_named_and_the_outputs_of_the_others_count() {
        let partly = |second| match ending_of_three(second, 2) {
            (ProcessEnding::Partly { why }, None) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(partly(ProcessEnding::Signalled { signal: 9 }), "n2: killed by signal 9");
        let busy = ProcessEnding::Busy { why: "a job".to_owned() };
        assert_eq!(partly(busy), "n2: a job");
        assert_eq!(partly(ProcessEnding::Missing { program: "x".to_owned() }), "n2: x: not found");
    }

    #[test]
    fn a_hang_stays_a_hang_and_too_few_parts_count_as_not_started() {
        let (ending, complaint) = ending_of_three(ProcessEnding::TimedOut, 2);
        assert_eq!(
            (ending, complaint),
            (ProcessEnding::TimedOut, Some("n2 ran past its time limit".into()))
        );
        let why = || "n2: gone".to_owned();
        let busy = ProcessEnding::Busy { why: "gone".to_owned() };
        assert_eq!(ending_of_three(busy, 3).0, ProcessEnding::Busy { why: why() });
        let lost = ProcessEnding::not_started("gone");
        assert_eq!(ending_of_three(lost, 3).0, ProcessEnding::not_started(why()));
        let missing = ProcessEnding::Missing { program: "x".to_owned() };
        assert_eq!(ending_of_three(missing.clone(), 3).0, missing, "so that the alternative runs");
        assert_eq!(
            ending_of_three(ProcessEnding::Exited { code: 127 }, 2).0,
            ProcessEnding::Exited { code: 127 }
        );
    }

    #[test]
    fn lines_start_with_their_node() {
        let mut text = Vec::new();
        prefix_lines(&mut text, &"n1".into(), b"a\n\nb");
        prefix_lines(&mut text, &"n2".into(), b"");
        assert_eq!(String::from_utf8(text).expect("text"), "n1: a\nn1: \nn1: b\n");
    }
}
