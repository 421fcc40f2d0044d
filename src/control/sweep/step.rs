//! One reading of one step: orders to the nodes that take part, one result. If the tool is missing,
//! the alternative command of the probe runs.
//!
//! The result has the exit status; other modules parse the output.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::fallback::MissingTools;
use super::placeholders::{PlaceholderEnd, PlaceholderValues};
use super::worker::{OrderOutcome, RunningOrder, WorkerHandle, wait_for_stop};
use super::worker_pool::WorkerPool;
use super::{fallback, format_timestamp, multi_node, now, placeholders};
use engine::plan::PlanStep;
use model::claims::ClaimedRail;
use model::id::NodeName;
use model::probe::ReadySignal;
use model::raw_result::{ProcessEnding, RESULT_FORMAT, RawResult};
use model::worker_protocol::{ProcessOrder, ReadinessCheck, STEP_VARIABLE};
use node::exec::child_environment;

/// The maximum time until a server listens. Loading CUDA on a node of eight GPUs takes up to about
/// ten seconds.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a server may run after its client has ended.
const SERVER_GRACE_S: f64 = 30.0;

#[derive(Clone, Copy, Debug)]
pub(super) struct ReadingRequest<'a> {
    pub(super) step: &'a PlanStep,
    pub(super) reading: u32,
    /// The rail, as claimed.
    pub(super) rail: Option<&'a ClaimedRail>,
    /// A port that no other step of the round uses.
    pub(super) port: u16,
    /// Bytes of each output stream that are kept.
    pub(super) capture: usize,
}

/// Takes the reading. The result does not name its files yet. The last part is the reason why the
/// alternative command ran.
pub(super) async fn take_reading(
    reading: &ReadingRequest<'_>,
    fleet: &WorkerPool,
    lacking: &MissingTools,
    stop: &mut watch::Receiver<bool>,
) -> (RawResult, OrderOutcome, Option<String>) {
    let started = format_timestamp(now());
    let step = reading.step;
    let mut argv = step.argv.to_vec();
    let mut instead = None;
    let Some(other) = &step.fallback else {
        let ran =
            run_command(reading, (&step.argv, step.on_all_nodes), fleet, stop, &mut argv).await;
        return finish_result(reading, started, argv, ran, None);
    };
    if lacking.is_missing(step) {
        instead = Some("its tool is missing".to_owned());
    } else if !step.on_all_nodes
        && let Err(why) = fleet.launcher_command(&step.argv, &step.nodes)
    {
        // No worker could start the command of the probe.
        instead = Some(why);
    }
    if instead.is_none() {
        let ran =
            run_command(reading, (&step.argv, step.on_all_nodes), fleet, stop, &mut argv).await;
        match fallback::find_missing_tool(step, &ran) {
            Some((nodes, why)) => {
                lacking.add(step, &nodes);
                instead = Some(why);
            }
            None => return finish_result(reading, started, argv, ran, None),
        }
    }
    argv = other.argv.to_vec();
    let ran = run_command(reading, (&other.argv, other.on_all_nodes), fleet, stop, &mut argv).await;
    finish_result(reading, started, argv, ran, instead)
}

/// Runs one of a step's two commands, on its first node or on all of them.
async fn run_command(
    reading: &ReadingRequest<'_>,
    (words, on_all_nodes): (&[String], bool),
    fleet: &WorkerPool,
    stop: &mut watch::Receiver<bool>,
    argv: &mut Vec<String>,
) -> OrderOutcome {
    let ran = match on_all_nodes {
        true => multi_node::run_on_all_nodes(reading, words, fleet, stop, argv).await,
        false => run_on_one_node(reading, words, fleet, stop, argv).await,
    };
    match ran {
        Ok(outcome) | Err(outcome) => outcome,
    }
}

fn finish_result(
    reading: &ReadingRequest<'_>,
    started: String,
    argv: Vec<String>,
    outcome: OrderOutcome,
    instead: Option<String>,
) -> (RawResult, OrderOutcome, Option<String>) {
    let result = RawResult {
        ending: outcome.ending.clone(),
        started,
        duration_s: outcome.duration,
        sent: outcome.sent.clone(),
        stdout_dropped: outcome.stdout.dropped,
        stderr_dropped: outcome.stderr.dropped,
        complaint: outcome.complaint.clone(),
        load: outcome.load,
        gpus: outcome.gpus.clone(),
        ..blank_result(reading.step, reading.reading, argv)
    };
    (result, outcome, instead)
}

/// A result with only its place.
pub(super) fn blank_result(step: &PlanStep, reading: u32, argv: Vec<String>) -> RawResult {
    RawResult {
        format: RESULT_FORMAT.to_owned(),
        step: step.step,
        stage: step.stage,
        domain: step.domain.clone(),
        nodes: step.nodes.clone(),
        rail: step.rail.clone(),
        probe: step.probe.clone(),
        reading,
        argv,
        ending: ProcessEnding::Interrupted,
        started: format_timestamp(now()),
        duration_s: 0.0,
        stdout: None,
        stderr: None,
        sent: Vec::new(),
        stdout_dropped: 0,
        stderr_dropped: 0,
        not_kept: None,
        complaint: None,
        load: None,
        gpus: Vec::new(),
    }
}

async fn run_on_one_node(
    reading: &ReadingRequest<'_>,
    words: &[String],
    fleet: &WorkerPool,
    stop: &mut watch::Receiver<bool>,
    argv: &mut Vec<String>,
) -> Result<OrderOutcome, OrderOutcome> {
    let step = reading.step;
    let Some(first) = step.nodes.first() else {
        return Err(OrderOutcome::not_started("the step names no node".to_owned()));
    };
    let own = connect_worker(fleet, first, stop).await?;
    // A participant that cannot be reached makes the step pointless.
    let mut peer = None;
    for other in &step.nodes[1..] {
        let worker = connect_worker(fleet, other, stop).await.map_err(|mut outcome| {
            if let ProcessEnding::NotStarted { why, node } = &mut outcome.ending {
                *why = format!("{other} {why}");
                *node = Some(other.clone());
            }
            outcome
        })?;
        peer.get_or_insert((other, worker));
    }
    let named = fleet.names_are_addresses();
    let own_end = PlaceholderEnd { node: first, environment: (!named).then_some(&own.environment) };
    let peer_end = peer.as_ref().map(|(node, worker)| PlaceholderEnd {
        node,
        environment: (!named).then_some(&worker.environment),
    });
    let mut port = reading.port;
    let mut serving: Option<RunningOrder<'_>> = None;
    if let (Some(serve), Some((_, worker)), Some(end)) = (&step.serve, &peer, peer_end) {
        let with = PlaceholderValues { own: end, peer: Some(own_end), rail: reading.rail, port };
        let command =
            placeholders::fill_command(&serve.argv, &with).map_err(OrderOutcome::not_started)?;
        let waiting = ReadinessCheck { how: serve.ready, port };
        let limit_s = step.timeout_s + SERVER_GRACE_S;
        let order = ProcessOrder { ready: Some(waiting), limit_s, ..build_order(reading, command) };
        let mut running = worker.start_order(order).await.map_err(OrderOutcome::not_started)?;
        match running.wait_until_ready(LISTEN_TIMEOUT, stop).await {
            Ok(listening) if serve.ready == ReadySignal::Line => port = listening,
            Ok(_) => {}
            Err(mut outcome) => {
                // The client's measurement is unknown.
                let node = end.node;
                let why = format!("the serving side on {node}: {}", outcome.ending);
                outcome.ending = match outcome.ending {
                    ProcessEnding::Interrupted => ProcessEnding::Interrupted,
                    // The client ran, and its output has the reason.
                    ProcessEnding::Exited { .. } | ProcessEnding::Signalled { .. }
                        if !outcome.ending.is_unreachable() =>
                    {
                        ProcessEnding::Partly { why }
                    }
                    _ => ProcessEnding::not_started(why),
                };
                return Err(outcome);
            }
        }
        serving = Some(running);
    }
    let with = PlaceholderValues { own: own_end, peer: peer_end, rail: reading.rail, port };
    let outcome = run_order(reading, words, (fleet, &own), &with, stop, argv).await;
    // In every case: only this client needs the server.
    if let Some(mut serving) = serving {
        serving.stop().await;
    }
    outcome
}

/// The worker of a node, unless the run is stopped while it starts.
async fn connect_worker(
    fleet: &WorkerPool,
    node: &NodeName,
    stop: &mut watch::Receiver<bool>,
) -> Result<Arc<WorkerHandle>, OrderOutcome> {
    tokio::select! {
        worker = fleet.worker(node) => worker.map_err(OrderOutcome::not_started),
        () = wait_for_stop(stop) => {
            let ending = ProcessEnding::Interrupted;
            Err(OrderOutcome { ending, ..OrderOutcome::not_started(String::new()) })
        }
    }
}

/// Runs the step's own command to its end.
async fn run_order(
    reading: &ReadingRequest<'_>,
    words: &[String],
    (fleet, worker): (&WorkerPool, &WorkerHandle),
    with: &PlaceholderValues<'_>,
    stop: &mut watch::Receiver<bool>,
    argv: &mut Vec<String>,
) -> Result<OrderOutcome, OrderOutcome> {
    let filled = placeholders::fill_command(words, with).map_err(OrderOutcome::not_started)?;
    *argv =
        fleet.launcher_command(&filled, &reading.step.nodes).map_err(OrderOutcome::not_started)?;
    let order = build_order(reading, argv.clone());
    let running = worker.start_order(order).await.map_err(OrderOutcome::not_started)?;
    Ok(running.finish(stop).await)
}

/// An order of this reading with only the command filled in.
pub(super) fn build_order(reading: &ReadingRequest<'_>, argv: Vec<String>) -> ProcessOrder {
    let step = reading.step;
    let name = format!("{}.{}", step.step, reading.reading);
    let mut env = BTreeMap::from([(STEP_VARIABLE.to_owned(), name)]);
    // Environment variables of the node that tools there get.
    env.extend(
        child_environment::passed_variables()
            .map(|names| (child_environment::PASS_ENV_VARIABLE.to_owned(), names)),
    );
    ProcessOrder {
        id: 0,
        argv,
        env,
        limit_s: step.timeout_s,
        capture: reading.capture,
        ready: None,
        idle_gpus: step.idle_gpus,
        on_all_nodes: false,
    }
}
