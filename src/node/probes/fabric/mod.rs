//! Tests how GPU memory can be shared on this node: between processes, and over the fabric. It
//! answers yes or no, and measures nothing.
//!
//! Runs in two child processes on one node (`probes::protocol`), which do the same steps and test
//! each other's memory. Both report one note per step and GPU, `gpu0 fabric-create` and so on:
//! `ok`, the driver's error, or why the step was skipped; and one problem per class of failure.
//! Steps on a process's own memory have the same result in both, unless only one process has the
//! permission.

pub(crate) mod imex_channel;
pub(crate) mod memory;
pub(crate) mod sharing_error;
mod trial;

use std::io;

use imex_channel::ImexChannels;
use serde_json::Value;
use trial::{SharedMemoryOffer, SharingTrial, TrialReport};

use super::copy;
use super::protocol::{ProbeAbort, ProbeEmitter, ProbeMessage};
use crate::ffi::cuda::CudaLibrary;
use crate::probes::copy::devices::ProcessesPerGpu;
use crate::probes::driver_error;
use crate::probes::task::FabricTask;
use model::exchange::ExchangeReply;
use model::parse_output::OutputProblemKind;
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::ProbeProblem;

/// How long to wait for the other process, in seconds. Both do the same on the same GPUs at the
/// same time.
const PEER_TIMEOUT_S: f64 = 60.0;

/// Runs all trials and reports the results. Returns an error if the output is closed.
pub fn run_trials(task: &FabricTask, emitter: &mut ProbeEmitter<'_>) -> io::Result<()> {
    emitter.announce_step("loading the driver's library");
    let cuda = match CudaLibrary::load(task.cuda.as_deref()) {
        Ok(cuda) => cuda,
        Err(error) => {
            let problem = driver_error::classify_load_error(&error);
            return emitter.emit(&ProbeMessage::Problem(problem));
        }
    };
    let Some((gpus, failed)) =
        copy::open_gpus(&cuda, &task.root, &[], ProcessesPerGpu::Two, emitter)?
    else {
        return Ok(());
    };
    let channels = imex_channel::read_channels(&task.root);
    emit_channels(&channels, emitter)?;
    let mut whole = !failed;
    let mut trials = Vec::new();
    let mut reports = Vec::new();
    for gpu in gpus {
        let mut report = TrialReport::new(gpu.index(), emitter);
        trials.push(SharingTrial::run_local(&cuda, gpu, task.bytes, &mut report)?);
        reports.extend(report.into_failures());
    }
    whole &= emit_problems(&reports, &channels, emitter)?;
    match run_peer_trials(&mut trials, &channels, emitter) {
        Ok(all) if all && whole => emitter.emit(&ProbeMessage::End),
        Ok(_) => Ok(()),
        Err(ProbeAbort::OutputClosed(error)) => Err(error),
        Err(ProbeAbort::ExchangeFailed(error)) => {
            let what = format!("the exchange with the other process ended: {error}");
            emitter.emit(&ProbeMessage::Problem(ProbeProblem::new(
                OutputProblemKind::Error,
                ProbeProblemClass::LeftAlone,
                what,
            )))
        }
    }
}

/// Reports the IMEX channels that the system has.
fn emit_channels(channels: &ImexChannels, emitter: &mut ProbeEmitter<'_>) -> io::Result<()> {
    let registered = match channels.registered {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown: /proc/devices cannot be read",
    };
    let mut seen = channels.open.clone();
    seen.extend(channels.closed.iter().map(|(name, why)| format!("{name} ({why})")));
    let seen = if seen.is_empty() { "none".to_owned() } else { seen.join(", ") };
    for (name, value) in [("imex-registered", registered), ("imex-channels", &seen)] {
        emitter.emit(&ProbeMessage::Note { name: name.to_owned(), value: value.to_owned() })?;
    }
    Ok(())
}

/// Reports one problem per class; returns true if none occurred.
fn emit_problems(
    failures: &[trial::FailedTrialStep],
    channels: &ImexChannels,
    emitter: &mut ProbeEmitter<'_>,
) -> io::Result<bool> {
    let problems = trial::merge_problems(failures, channels);
    for problem in &problems {
        emitter.emit(&ProbeMessage::Problem(problem.clone()))?;
    }
    Ok(problems.is_empty())
}

/// Runs the trials that need two processes. Returns whether all of them succeeded.
fn run_peer_trials(
    trials: &mut [SharingTrial<'_>],
    channels: &ImexChannels,
    emitter: &mut ProbeEmitter<'_>,
) -> Result<bool, ProbeAbort> {
    emitter.announce_step("waiting for the other process");
    let offers: Vec<SharedMemoryOffer> = trials.iter().map(SharingTrial::to_offer).collect();
    let value = serde_json::to_value(offers).expect("plain data");
    let offers: Result<Vec<SharedMemoryOffer>, String> =
        read_peer(&emitter.exchange(value, PEER_TIMEOUT_S)?);
    let mut failures = Vec::new();
    for trial in trials.iter_mut() {
        let mut report = TrialReport::new(trial.index(), emitter);
        let offer = match &offers {
            Ok(offers) => offers
                .iter()
                .find(|offer| offer.gpu == trial.index())
                .ok_or_else(|| "the other process has no such GPU".to_owned()),
            Err(why) => Err(why.clone()),
        };
        trial.try_peer(offer, &mut report)?;
        failures.extend(report.into_failures());
    }
    // All importers have released their memory, so owners may free it.
    emitter.announce_step("waiting for the other process to end its part");
    let wrote: Vec<trial::PeerWriteReport> =
        trials.iter().map(SharingTrial::to_write_report).collect();
    let value = serde_json::to_value(wrote).expect("plain data");
    let wrote: Result<Vec<trial::PeerWriteReport>, String> =
        read_peer(&emitter.exchange(value, PEER_TIMEOUT_S)?);
    for trial in trials.iter_mut() {
        let mut report = TrialReport::new(trial.index(), emitter);
        let of_it =
            wrote.as_ref().ok().and_then(|all| all.iter().find(|it| it.gpu == trial.index()));
        trial.check_peer_writes(of_it, &mut report)?;
        failures.extend(report.into_failures());
    }
    let mut whole = emit_problems(&failures, channels, emitter)?;
    if let Err(why) = &offers {
        let what = format!("the trials between two processes were skipped: {why}");
        let problem =
            ProbeProblem::new(OutputProblemKind::Error, ProbeProblemClass::OtherProcessGone, what);
        emitter.emit(&ProbeMessage::Problem(problem))?;
        whole = false;
    }
    Ok(whole)
}

/// The other process's value, or why it is missing.
fn read_peer<T: serde::de::DeserializeOwned>(answer: &ExchangeReply) -> Result<T, String> {
    let others = answer.shares.iter().enumerate().filter(|(at, _)| *at != answer.me);
    let (_, other) = others.into_iter().next().ok_or("the second process is missing")?;
    if let Some(why) = &other.gone {
        return Err(format!("the other process is gone: {why}"));
    }
    let value = other.value.clone().unwrap_or(Value::Null);
    serde_json::from_value(value).map_err(|_| "unreadable value from the other process".to_owned())
}
