//! Running the steps of a plan: nodes side by side, the steps of a node in
//! their order, every result recorded before the next thing happens to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::SignalKind;
use tokio::signal::unix::signal;
use tokio::sync::Semaphore;
use tokio::sync::mpsc;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Audit;
use super::now;
use super::recording;
use super::shown;
use super::stderr_file;
use super::stdout_file;
use crate::exec;
use crate::exec::ExecError;
use crate::exec::Stream;
use crate::launch::Launcher;
use crate::model::id::NodeName;
use crate::model::raw::Ending;
use crate::model::raw::RESULT_FORMAT;
use crate::model::raw::RawResult;
use crate::model::recording::Recording;
use crate::plan::Step;
use crate::record::MEASUREMENT_FORMAT;
use crate::record::MeasurementRecord;
use crate::record::RecordError;
use crate::record::file;
use crate::record::folder::Folder;

/// What a sweep brought.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// One for every step that was tried.
    pub(super) results: Vec<RawResult>,
    /// One for every output that could be read.
    pub(super) recordings: Vec<Recording>,
    /// Somebody ended it early.
    pub(super) interrupted: bool,
}

/// A step that ended, with what it printed.
struct Ended {
    result: RawResult,
    stdout: Stream,
    stderr: Stream,
}

/// Runs all steps of the plan.
pub(super) async fn run(audit: &Audit<'_>, folder: &Folder) -> Result<Sweep, RecordError> {
    let mut by_node: BTreeMap<&NodeName, Vec<Step>> = BTreeMap::new();
    for step in audit.plan.steps() {
        by_node.entry(&step.nodes[0]).or_default().push(step.clone());
    }
    let (stop_all, stop) = watch::channel(false);
    // One slot: a node that ends a step waits until the one before is on disk,
    // so memory holds the outputs of the steps that run and of one more.
    let (sender, mut ended) = mpsc::channel::<Ended>(1);
    let places = Arc::new(Semaphore::new(audit.plan.parallel.max(1)));
    let mut nodes = JoinSet::new();
    for node in audit.plan.nodes() {
        let steps = by_node.remove(node).unwrap_or_default();
        let launcher = audit.launcher.clone();
        let (stop, sender, places) = (stop.clone(), sender.clone(), Arc::clone(&places));
        nodes.spawn(async move {
            // The semaphore is never closed; without a place nothing is run.
            if let Ok(_place) = places.acquire().await {
                node_steps(steps, &launcher, &stop, &sender).await;
            }
        });
    }
    drop(sender);

    let mut sweep = Sweep::default();
    let mut signals = Signals::listen();
    let all = audit.plan.steps().map(|s| s.readings as usize).sum();
    loop {
        tokio::select! {
            next = ended.recv() => {
                let Some(step) = next else { break };
                let (result, recording) = keep(folder, step).await?;
                audit.progress.step(sweep.results.len() + 1, all, &result, recording.as_ref());
                sweep.results.push(result);
                sweep.recordings.extend(recording);
            }
            name = signals.next(), if !sweep.interrupted => {
                sweep.interrupted = true;
                audit.progress.say(&format!("{name}: ending what runs, keeping what was measured"));
                stop_all.send_replace(true);
            }
        }
    }
    while nodes.join_next().await.is_some() {}
    Ok(sweep)
}

/// The steps of one node, one after the other.
async fn node_steps(
    steps: Vec<Step>,
    launcher: &Launcher,
    stop: &watch::Receiver<bool>,
    sender: &mpsc::Sender<Ended>,
) {
    let mut unreached: Option<String> = None;
    let readings = steps.iter().flat_map(|step| (0..step.readings).map(move |r| (step, r)));
    for (step, reading) in readings {
        if *stop.borrow() {
            return;
        }
        let mut ended = match &unreached {
            Some(why) => not_started(step, Vec::new(), Ending::NotStarted { why: why.clone() }),
            None => one_step(step, launcher, stop).await,
        };
        ended.result.reading = reading;
        if let Ending::Exited { code } = ended.result.ending
            && launcher.is_connect_failure(code)
        {
            // Every further attempt would wait for the same time-out.
            unreached = Some("not tried: the node could not be reached before".to_owned());
        }
        if sender.send(ended).await.is_err() {
            return;
        }
    }
}

async fn one_step(step: &Step, launcher: &Launcher, stop: &watch::Receiver<bool>) -> Ended {
    let argv = match launcher.argv(&step.nodes[0], &step.argv) {
        Ok(argv) => argv,
        Err(error) => {
            return not_started(step, Vec::new(), Ending::NotStarted { why: error.to_string() });
        }
    };
    let limit = Duration::from_secs_f64(step.timeout_s);
    let request = exec::Request { argv: argv.clone(), limit, capture: exec::CAPTURE };
    let started = shown(now());
    match exec::run(&request, stop.clone()).await {
        Ok(finished) => Ended {
            result: RawResult {
                ending: finished.ending,
                started,
                duration_s: finished.duration.as_secs_f64(),
                stdout_dropped: finished.stdout.dropped,
                stderr_dropped: finished.stderr.dropped,
                complaint: last_words(&finished.stderr.bytes),
                ..blank(step, argv)
            },
            stdout: finished.stdout,
            stderr: finished.stderr,
        },
        Err(ExecError::Missing { program }) => not_started(step, argv, Ending::Missing { program }),
        Err(error) => {
            let why = match std::error::Error::source(&error) {
                Some(source) => format!("{error}: {source}"),
                None => error.to_string(),
            };
            not_started(step, argv, Ending::NotStarted { why })
        }
    }
}

fn blank(step: &Step, argv: Vec<String>) -> RawResult {
    RawResult {
        format: RESULT_FORMAT.to_owned(),
        step: step.step,
        stage: step.stage,
        domain: step.domain.clone(),
        nodes: step.nodes.clone(),
        rail: step.rail.clone(),
        probe: step.probe.clone(),
        reading: 0,
        argv,
        ending: Ending::Interrupted,
        started: shown(now()),
        duration_s: 0.0,
        stdout: None,
        stderr: None,
        stdout_dropped: 0,
        stderr_dropped: 0,
        complaint: None,
        load: None,
        gpus: Vec::new(),
    }
}

fn not_started(step: &Step, argv: Vec<String>, ending: Ending) -> Ended {
    let result = RawResult { ending, ..blank(step, argv) };
    Ended { result, stdout: Stream::default(), stderr: Stream::default() }
}

/// The last line of standard error that says anything.
fn last_words(stderr: &[u8]) -> Option<String> {
    const TAIL: usize = 4096;
    let tail = &stderr[stderr.len().saturating_sub(TAIL)..];
    let text = crate::measure::text::decode(tail);
    text.lines().rev().map(crate::measure::text::clean).find(|line| !line.is_empty())
}

/// Puts a result into the run folder, and reads its output. On a thread of
/// its own: neither may delay the time limits of what still runs.
async fn keep(
    folder: &Folder,
    ended: Ended,
) -> Result<(RawResult, Option<Recording>), RecordError> {
    let folder = folder.clone();
    let task = tokio::task::spawn_blocking(move || {
        let Ended { mut result, stdout, stderr } = ended;
        let (node, probe) = (result.nodes[0].as_str().to_owned(), result.probe.clone());
        let was_started =
            !matches!(result.ending, Ending::Missing { .. } | Ending::NotStarted { .. });
        if was_started {
            let name = stdout_file(&node, &probe, result.reading);
            folder.write(&name, &stdout.bytes)?;
            result.stdout = Some(name);
        }
        if !stderr.bytes.is_empty() {
            let name = stderr_file(&node, &probe, result.reading);
            folder.write(&name, &stderr.bytes)?;
            result.stderr = Some(name);
        }
        folder.append(file::RESULTS, &result)?;
        let recording = recording(&result, &stdout.bytes);
        if let Some(recording) = &recording {
            let format = MEASUREMENT_FORMAT.to_owned();
            let record = MeasurementRecord { format, recording: recording.clone() };
            folder.append(file::MEASUREMENTS, &record)?;
        }
        Ok((result, recording))
    });
    match task.await {
        Ok(kept) => kept,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(RecordError::Io {
                path: "run folder".into(),
                source: std::io::Error::other(error),
            }),
        },
    }
}

/// The signals that end a run early.
struct Signals(Vec<(&'static str, tokio::signal::unix::Signal)>);

impl Signals {
    fn listen() -> Self {
        let kinds = [
            ("interrupted", SignalKind::interrupt()),
            ("terminated", SignalKind::terminate()),
            ("terminal closed", SignalKind::hangup()),
        ];
        Self(
            kinds.into_iter().filter_map(|(name, kind)| Some((name, signal(kind).ok()?))).collect(),
        )
    }

    /// The next one; never, where none can be listened to.
    async fn next(&mut self) -> &'static str {
        std::future::poll_fn(|context| {
            for (name, signal) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(*name);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}
