//! Supervisor of the native GPU probes: starts the processes that make the GPU calls, limits them,
//! forwards their exchanges, and keeps their output even if they fail.
//!
//! It makes no GPU call itself, so that a hanging driver cannot block it. It does not judge
//! numbers.

mod child;
pub mod child_output;
pub mod collective_document;
mod common_document;
pub mod copy_document;
pub mod fabric_document;
pub mod multi_node;
mod sampler;
mod stderr_tail;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::probes::exchange_group::ExchangeGroup;
use child::{ChildEvent, ProbeChild};
use child_output::{ChildExitReason, ChildLineKind, ChildOutput};
use model::exchange::{EXCHANGE_PREFIX, ExchangeReply, ExchangeRequest};
use multi_node::MultiNodeShares;
use sampler::GpuSampler;
pub use sampler::{SamplerOutput, SamplerSpec};

/// Polling interval of the children.
const POLL: Duration = Duration::from_millis(100);

/// Extra wait for other nodes, beyond the longest wait of a child: their own limit ends the
/// waiting, and the answer needs time to travel.
const ANSWER_MARGIN: Duration = Duration::from_secs(15);

/// Reason of a failed exchange after the parent closed the connection.
const PARENT_GONE: &str = "the parent of the probe is gone";

/// A process to start.
#[derive(Clone, Debug, Default)]
pub struct ProbeChildSpec {
    /// Name in messages; empty if it is the only one.
    pub name: String,
    /// Its GPU, if it has exactly one.
    pub gpu: Option<u32>,
    /// Arguments for this program.
    pub args: Vec<String>,
    /// Variables to set in addition to the inherited ones.
    pub env: BTreeMap<String, String>,
}

/// Parameters of the supervisor.
#[derive(Clone, Debug)]
pub struct SupervisorSpec {
    /// This program's executable.
    pub executable: PathBuf,
    /// Name of the node.
    pub node: String,
    /// The processes to start.
    pub children: Vec<ProbeChildSpec>,
    /// How to sample the GPUs during the probe.
    pub sampler: Option<SamplerSpec>,
    /// Time limit of the whole probe.
    pub time_limit: Duration,
    /// Maximum silence of a process that is not waiting for others.
    pub max_silence: Duration,
    /// True if nodes exchange lists, one value per process (else one value: the node has one
    /// process).
    pub exchanges_lists: bool,
}

/// The peers of an exchange.
pub enum ExchangePeers<'o> {
    /// The processes of this node only.
    LocalOnly,
    /// The processes of other nodes too, through the parent process.
    Upstream {
        /// Lines from the parent.
        lines: mpsc::Receiver<Vec<u8>>,
        /// Sends a line to the parent.
        send_line: &'o mut dyn FnMut(&str) -> io::Result<()>,
    },
}

impl std::fmt::Debug for ExchangePeers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::LocalOnly => "LocalOnly",
            Self::Upstream { .. } => "Upstream",
        })
    }
}

/// Result of a probe.
#[derive(Clone, Debug, Default)]
pub struct SupervisorOutput {
    /// Output of the processes, in the order of the request.
    pub children: Vec<ChildOutput>,
    /// Their process IDs.
    pub pids: Vec<u32>,
    /// Readings of the GPUs during the probe.
    pub sampled: Option<SamplerOutput>,
    /// How it was interrupted from outside.
    pub interrupted: Option<&'static str>,
    /// Why exchanges failed.
    pub exchange_failure: Option<String>,
}

/// Runs the processes until all have ended. A value in `stop` ends them early and describes how.
/// Must be called inside a tokio runtime, on a thread that lives as long as this process: the
/// children are killed when that thread ends. `on_step` receives the announced steps.
pub async fn supervise<'a>(
    work: &'a SupervisorSpec,
    others: ExchangePeers<'a>,
    mut stop: watch::Receiver<Option<&'static str>>,
    on_step: &mut dyn FnMut(usize, &str),
) -> SupervisorOutput {
    let begun = Instant::now();
    let sampler = match &work.sampler {
        None => None,
        Some(watching) => Some(tokio::select! {
            sampler = GpuSampler::start(&work.executable, watching) => sampler,
            _ = wait_for_stop(&mut stop) => Err("the probe was interrupted".to_owned()),
        }),
    };
    let (event_sender, events) = mpsc::channel(64);
    let seats: Vec<ProbeChild> = work
        .children
        .iter()
        .enumerate()
        .map(|(at, part)| ProbeChild::spawn(work, part, at, &event_sender))
        .collect();
    drop(event_sender);
    let numbers = seats.iter().filter_map(ProbeChild::pid).collect();
    let mut supervisor = ProbeSupervisor {
        exchanges: ExchangeGroup::new(vec![work.node.clone(); seats.len()]),
        children: seats,
        peers: others,
        lists: MultiNodeShares::default(),
        upstream_ask: None,
        within_s: 0.0,
        started: begun,
        spec: work,
        interrupted: None,
        upstream_closed: false,
        exchange_failure: None,
    };
    supervisor.remove_ended_children().await;
    supervisor.run_to_end(events, &mut stop, on_step).await;
    let is_interrupted = supervisor.interrupted.is_some();
    let watched = match sampler {
        None => None,
        Some(Ok(sampler)) => Some(sampler.finish(is_interrupted).await),
        Some(Err(why)) => Some(SamplerOutput { failure: Some(why), ..SamplerOutput::default() }),
    };
    let ProbeSupervisor { children: seats, interrupted, exchange_failure: deaf, .. } = supervisor;
    let parts = seats.into_iter().map(ProbeChild::into_output).collect();
    SupervisorOutput {
        children: parts,
        pids: numbers,
        sampled: watched,
        interrupted,
        exchange_failure: deaf,
    }
}

/// A pending request of this node to the others.
struct UpstreamAsk {
    /// The children that wait for it, with their shares.
    waiting: Vec<usize>,
    number: u64,
    deadline: Instant,
}

struct ProbeSupervisor<'t> {
    exchanges: ExchangeGroup,
    children: Vec<ProbeChild>,
    peers: ExchangePeers<'t>,
    lists: MultiNodeShares,
    upstream_ask: Option<UpstreamAsk>,
    /// The longest wait in the current exchange, in seconds.
    within_s: f64,
    started: Instant,
    spec: &'t SupervisorSpec,
    interrupted: Option<&'static str>,
    /// The parent has closed the connection.
    upstream_closed: bool,
    exchange_failure: Option<String>,
}

impl ProbeSupervisor<'_> {
    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Runs until all children have ended.
    async fn run_to_end(
        &mut self,
        mut events: mpsc::Receiver<ChildEvent>,
        stop: &mut watch::Receiver<Option<&'static str>>,
        on_step: &mut dyn FnMut(usize, &str),
    ) {
        let deadline = self.started + self.spec.time_limit;
        let mut poll = interval(POLL);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_over = false;
        while self.children.iter().any(ProbeChild::is_open) {
            tokio::select! {
                event = events.recv() => match event {
                    Some(ChildEvent::Line(at, line)) => {
                        self.handle_child_line(at, &line).await;
                        continue;
                    }
                    Some(ChildEvent::Closed(at, why)) => self.children[at].mark_closed(why),
                    None => { poll.tick().await; }
                },
                how = wait_for_stop(stop), if self.interrupted.is_none() => {
                    self.interrupted = Some(how);
                    self.end_all(&ChildExitReason::Interrupted(how));
                }
                line = next_upstream_line(&mut self.peers), if !self.upstream_closed => {
                    self.handle_upstream_line(line).await;
                }
                () = sleep_until(deadline), if !is_over => {
                    is_over = true;
                    self.end_all(&ChildExitReason::TimedOut(self.spec.time_limit.as_secs_f64()));
                }
                _ = poll.tick() => {}
            }
            self.poll_children(on_step).await;
        }
    }

    fn end_all(&mut self, fate: &ChildExitReason) {
        for child in &mut self.children {
            child.kill(fate.clone());
        }
    }

    /// Handles a line of a child.
    async fn handle_child_line(&mut self, at: usize, line: &[u8]) {
        let child = &mut self.children[at];
        match child.push_line(line) {
            ChildLineKind::Consumed => {}
            ChildLineKind::Overflow => child
                .kill(ChildExitReason::ProtocolViolation("it sent too many messages".to_owned())),
            ChildLineKind::ExchangeAsk(request) => {
                match serde_json::from_slice::<ExchangeRequest>(request) {
                    Err(error) => {
                        child.kill(ChildExitReason::ProtocolViolation(format!(
                            "its exchange is unreadable: {error}"
                        )));
                    }
                    Ok(request) => {
                        child.is_waiting = true;
                        self.within_s = self.within_s.max(request.within_s);
                        let answers = self.exchanges.ask(at, request, self.elapsed());
                        if let Some(why) = self.exchanges.gone_reason(at) {
                            let why = why.to_owned();
                            self.children[at].kill(ChildExitReason::ProtocolViolation(why));
                        }
                        self.deliver_answers(answers).await;
                    }
                }
            }
        }
    }

    /// All children of this node have sent a request: asks the other nodes, or answers.
    async fn deliver_answers(&mut self, answers: Vec<(usize, ExchangeReply)>) {
        let Some((_, first)) = answers.first() else { return };
        let within_s = std::mem::take(&mut self.within_s);
        let number = first.number;
        if let ExchangePeers::LocalOnly = self.peers {
            for (at, answer) in answers {
                self.send_answer(at, &answer).await;
            }
            return;
        }
        if self.upstream_closed {
            return self.fail_exchanges(PARENT_GONE);
        }
        let value = match self.spec.exchanges_lists {
            true => multi_node::merge_shares(&first.shares),
            false => first.shares.first().and_then(|it| it.value.clone()).unwrap_or_default(),
        };
        let request = ExchangeRequest { number, value, within_s };
        let line = serde_json::to_string(&request).expect("values are plain data");
        let waiting = answers.into_iter().map(|(at, _)| at).collect();
        let patience = Duration::try_from_secs_f64(within_s).unwrap_or(self.spec.time_limit);
        let until = Instant::now() + patience.min(self.spec.time_limit) + ANSWER_MARGIN;
        self.upstream_ask = Some(UpstreamAsk { waiting, number, deadline: until });
        if let ExchangePeers::Upstream { send_line, .. } = &mut self.peers
            && send_line(&format!("{EXCHANGE_PREFIX}{line}")).is_err()
        {
            self.fail_exchanges("the parent of the probe does not read any more");
        }
    }

    /// Handles a line of the parent.
    async fn handle_upstream_line(&mut self, line: Option<Vec<u8>>) {
        let Some(line) = line else {
            self.upstream_closed = true;
            // Without a pending request, the end of the input is not a failure.
            if self.upstream_ask.is_some() {
                self.fail_exchanges(PARENT_GONE);
            }
            return;
        };
        if line.trim_ascii().is_empty() {
            return;
        }
        let answer: ExchangeReply = match serde_json::from_slice(&line) {
            Ok(answer) => answer,
            Err(error) => {
                return self.fail_exchanges(&format!("an answer is unreadable: {error}"));
            }
        };
        let Some(pending) = self.upstream_ask.take_if(|pending| pending.number == answer.number)
        else {
            return self
                .fail_exchanges(&format!("unrequested answer to exchange {}", answer.number));
        };
        for at in pending.waiting {
            let own = match self.spec.exchanges_lists {
                true => self.lists.flatten(&answer, at),
                false => answer.clone(),
            };
            self.send_answer(at, &own).await;
        }
    }

    /// Marks exchanges as failed, and closes the input of each waiting child, which ends its wait.
    fn fail_exchanges(&mut self, why: &str) {
        self.exchange_failure.get_or_insert_with(|| why.to_owned());
        self.upstream_closed = true;
        self.upstream_ask = None;
        for child in &mut self.children {
            child.close_input();
        }
    }

    async fn send_answer(&mut self, at: usize, answer: &ExchangeReply) {
        let line = serde_json::to_vec(answer).expect("values are plain data");
        self.children[at].send_answer(&line).await;
    }

    /// Checks all children: silent, late and ended ones.
    async fn poll_children(&mut self, on_step: &mut dyn FnMut(usize, &str)) {
        for (at, child) in self.children.iter_mut().enumerate() {
            if let Some(step) = child.poll_step() {
                on_step(at, step);
            }
            child.check_silence(self.spec.max_silence);
            child.poll_exit().await;
        }
        self.remove_ended_children().await;
        let late = self.exchanges.expire(self.elapsed());
        for at in late.gone {
            let why = self.exchanges.gone_reason(at).unwrap_or("it was late").to_owned();
            self.children[at].kill(ChildExitReason::Excluded(why));
        }
        self.deliver_answers(late.answers).await;
        if self.upstream_ask.as_ref().is_some_and(|pending| pending.deadline <= Instant::now()) {
            self.fail_exchanges("the other nodes did not answer");
        }
    }

    /// Removes ended children from the exchange group.
    async fn remove_ended_children(&mut self) {
        for at in 0..self.children.len() {
            // This runs ten times per second, so skip the ones removed before.
            if self.exchanges.gone_reason(at).is_some() {
                continue;
            }
            let Some(why) = self.children[at].exit_text() else { continue };
            let answers = self.exchanges.remove(at, &why);
            self.deliver_answers(answers).await;
        }
    }
}

/// Waits for the interruption; never returns if the sender is gone.
async fn wait_for_stop(stop: &mut watch::Receiver<Option<&'static str>>) -> &'static str {
    match stop.wait_for(Option::is_some).await {
        Ok(how) => how.unwrap_or("ended"),
        Err(_) => std::future::pending().await,
    }
}

/// The next line of the parent; never returns without a parent.
async fn next_upstream_line(others: &mut ExchangePeers<'_>) -> Option<Vec<u8>> {
    match others {
        ExchangePeers::LocalOnly => std::future::pending().await,
        ExchangePeers::Upstream { lines, .. } => lines.recv().await,
    }
}

#[cfg(test)]
mod tests;
