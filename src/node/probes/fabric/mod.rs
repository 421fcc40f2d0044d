//! What sharing of GPU memory this node allows: between processes, and over
//! the fabric. A question with an exact answer, not a measurement.
//!
//! Runs in two child processes on one node (`probe::said`), which do the same
//! and try each other's memory. Both say one note for each step and GPU,
//! `gpu0 fabric-create` and so on: `ok`, or the driver's own words, or why the
//! step was not tried; and a problem for each class of what failed. Steps of
//! memory of this process say the same in both, unless only one may have it.

pub(crate) mod error_class;
pub(crate) mod imex_channel;
pub(crate) mod memory;
pub mod task;
mod trial;

use std::io;

use serde_json::Value;

use super::copy;
use super::protocol::{ProbeAbort, ProbeEmitter, ProbeMessage};
use crate::ffi::cuda::CudaLibrary;
use imex_channel::ImexChannels;
use model::exchange::ExchangeReply;
use model::parse_output::OutputProblemKind;
use model::probe_report::ProbeProblem;
use task::FabricTask;
use trial::{SharedMemoryOffer, SharingTrial, TrialReport};

/// How long the other process is waited for, in seconds. Both do the same on the
/// same GPUs at the same time.
const PEER_TIMEOUT_S: f64 = 60.0;

/// Tries, and says what comes of it. An error is that nobody listens.
pub fn run_trials(task: &FabricTask, mouth: &mut ProbeEmitter<'_>) -> io::Result<()> {
    mouth.announce_step("loading the driver's library");
    let cuda = match CudaLibrary::load(task.cuda.as_deref()) {
        Ok(cuda) => cuda,
        Err(error) => {
            let problem = copy::error_class::classify_load_error(&error);
            return mouth.emit(&ProbeMessage::Problem(problem));
        }
    };
    let Some((gpus, failed)) = copy::open_gpus(&cuda, &task.root, &[], mouth)? else {
        return Ok(());
    };
    let channels = imex_channel::read_channels(&task.root);
    emit_channels(&channels, mouth)?;
    let mut whole = !failed;
    let mut trials = Vec::new();
    let mut reports = Vec::new();
    for gpu in gpus {
        let mut report = TrialReport::new(gpu.index(), mouth);
        trials.push(SharingTrial::run_local(&cuda, gpu, task.bytes, &mut report)?);
        reports.extend(report.into_failures());
    }
    whole &= emit_problems(&reports, &channels, mouth)?;
    match run_peer_trials(&mut trials, &channels, mouth) {
        Ok(all) if all && whole => mouth.emit(&ProbeMessage::End),
        Ok(_) => Ok(()),
        Err(ProbeAbort::OutputClosed(error)) => Err(error),
        Err(ProbeAbort::ExchangeFailed(error)) => {
            let what = format!("the exchange with the other process ended: {error}");
            mouth.emit(&ProbeMessage::Problem(ProbeProblem::new(
                OutputProblemKind::Error,
                "left-alone",
                what,
            )))
        }
    }
}

/// Says what the system shows of IMEX.
fn emit_channels(channels: &ImexChannels, mouth: &mut ProbeEmitter<'_>) -> io::Result<()> {
    let registered = match channels.registered {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown: /proc/devices cannot be read",
    };
    let mut seen = channels.open.clone();
    seen.extend(channels.closed.iter().map(|(name, why)| format!("{name} ({why})")));
    let seen = if seen.is_empty() { "none".to_owned() } else { seen.join(", ") };
    for (name, value) in [("imex-registered", registered), ("imex-channels", &seen)] {
        mouth.emit(&ProbeMessage::Note { name: name.to_owned(), value: value.to_owned() })?;
    }
    Ok(())
}

/// Says one problem for each class; whether there was none.
fn emit_problems(
    failures: &[trial::FailedTrialStep],
    channels: &ImexChannels,
    mouth: &mut ProbeEmitter<'_>,
) -> io::Result<bool> {
    let problems = trial::merge_problems(failures, channels);
    for problem in &problems {
        mouth.emit(&ProbeMessage::Problem(problem.clone()))?;
    }
    Ok(problems.is_empty())
}

/// What takes two processes. Answers whether all of it could be done.
fn run_peer_trials(
    trials: &mut [SharingTrial<'_>],
    channels: &ImexChannels,
    mouth: &mut ProbeEmitter<'_>,
) -> Result<bool, ProbeAbort> {
    mouth.announce_step("waiting for the other process");
    let offers: Vec<SharedMemoryOffer> = trials.iter().map(SharingTrial::to_offer).collect();
    let value = serde_json::to_value(offers).expect("plain data");
    let offers: Result<Vec<SharedMemoryOffer>, String> =
        read_peer(&mouth.exchange(value, PEER_TIMEOUT_S)?);
    let mut failures = Vec::new();
    for trial in trials.iter_mut() {
        let mut report = TrialReport::new(trial.index(), mouth);
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
    // Everybody has given back what is not his, so that it may go.
    mouth.announce_step("waiting for the other process to end its part");
    let wrote: Vec<trial::PeerWriteReport> =
        trials.iter().map(SharingTrial::to_write_report).collect();
    let value = serde_json::to_value(wrote).expect("plain data");
    let wrote: Result<Vec<trial::PeerWriteReport>, String> =
        read_peer(&mouth.exchange(value, PEER_TIMEOUT_S)?);
    for trial in trials.iter_mut() {
        let mut report = TrialReport::new(trial.index(), mouth);
        let of_it =
            wrote.as_ref().ok().and_then(|all| all.iter().find(|it| it.gpu == trial.index()));
        trial.check_peer_writes(of_it, &mut report)?;
        failures.extend(report.into_failures());
    }
    let mut whole = emit_problems(&failures, channels, mouth)?;
    if let Err(why) = &offers {
        let what = format!("what takes two processes was not tried: {why}");
        let problem = ProbeProblem::new(OutputProblemKind::Error, "other-process-gone", what);
        mouth.emit(&ProbeMessage::Problem(problem))?;
        whole = false;
    }
    Ok(whole)
}

/// What the other process gave, or why there is nothing.
fn read_peer<T: serde::de::DeserializeOwned>(answer: &ExchangeReply) -> Result<T, String> {
    let others = answer.shares.iter().enumerate().filter(|(at, _)| *at != answer.me);
    let (_, other) = others.into_iter().next().ok_or("there is no second process")?;
    if let Some(why) = &other.gone {
        return Err(format!("the other process is gone: {why}"));
    }
    let value = other.value.clone().unwrap_or(Value::Null);
    serde_json::from_value(value).map_err(|_| "what the other process gave is not known".to_owned())
}
