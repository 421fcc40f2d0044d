//! What sharing of GPU memory this node allows: between processes, and over
//! the fabric. A question with an exact answer, not a measurement.
//!
//! Runs in two child processes on one node (`probe::said`), which do the same
//! and try each other's memory. Both say one note for each step and GPU,
//! `gpu0 fabric-create` and so on: `ok`, or the driver's own words, or why the
//! step was not tried; and a problem for each class of what failed. Steps of
//! memory of this process say the same in both, unless only one may have it.

pub(crate) mod channel;
pub(crate) mod memory;
pub mod task;
mod trial;
pub(crate) mod trouble;

use std::io;

use serde_json::Value;

use super::copy;
use super::said::Ended;
use super::said::Line;
use super::said::Mouth;
use crate::ffi::cuda::Cuda;
use channel::Channels;
use model::exchange::Answer;
use model::parsed::ProblemKind;
use model::probed::ProbeProblem;
use task::Task;
use trial::Offer;
use trial::Report;
use trial::Trial;

/// How long the other process is waited for, in seconds. Both do the same on the
/// same GPUs at the same time.
const OTHER_S: f64 = 60.0;

/// Tries, and says what comes of it. An error is that nobody listens.
pub fn explore(task: &Task, mouth: &mut Mouth<'_>) -> io::Result<()> {
    mouth.begin("loading the driver's library");
    let cuda = match Cuda::load(task.cuda.as_deref()) {
        Ok(cuda) => cuda,
        Err(error) => {
            let problem = copy::trouble::unloadable(&error);
            return mouth.say(&Line::Problem(problem));
        }
    };
    let Some((gpus, failed)) = copy::open(&cuda, &task.root, &[], mouth)? else { return Ok(()) };
    let channels = channel::look(&task.root);
    say_channels(&channels, mouth)?;
    let mut whole = !failed;
    let mut trials = Vec::new();
    let mut reports = Vec::new();
    for gpu in gpus {
        let mut report = Report::new(gpu.index(), mouth);
        trials.push(Trial::of(&cuda, gpu, task.bytes, &mut report)?);
        reports.extend(report.failures());
    }
    whole &= tell(&reports, &channels, mouth)?;
    match together(&mut trials, &channels, mouth) {
        Ok(all) if all && whole => mouth.say(&Line::End),
        Ok(_) => Ok(()),
        Err(Ended::Unheard(error)) => Err(error),
        Err(Ended::Alone(error)) => {
            let what = format!("the exchange with the other process ended: {error}");
            mouth.say(&Line::Problem(ProbeProblem::new(ProblemKind::Error, "left-alone", what)))
        }
    }
}

/// Says what the system shows of IMEX.
fn say_channels(channels: &Channels, mouth: &mut Mouth<'_>) -> io::Result<()> {
    let registered = match channels.registered {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown: /proc/devices cannot be read",
    };
    let mut seen = channels.open.clone();
    seen.extend(channels.closed.iter().map(|(name, why)| format!("{name} ({why})")));
    let seen = if seen.is_empty() { "none".to_owned() } else { seen.join(", ") };
    for (name, value) in [("imex-registered", registered), ("imex-channels", &seen)] {
        mouth.say(&Line::Note { name: name.to_owned(), value: value.to_owned() })?;
    }
    Ok(())
}

/// Says one problem for each class; whether there was none.
fn tell(
    failures: &[trial::Failed],
    channels: &Channels,
    mouth: &mut Mouth<'_>,
) -> io::Result<bool> {
    let problems = trial::problems(failures, channels);
    for problem in &problems {
        mouth.say(&Line::Problem(problem.clone()))?;
    }
    Ok(problems.is_empty())
}

/// What takes two processes. Answers whether all of it could be done.
fn together(
    trials: &mut [Trial<'_>],
    channels: &Channels,
    mouth: &mut Mouth<'_>,
) -> Result<bool, Ended> {
    mouth.begin("waiting for the other process");
    let offers: Vec<Offer> = trials.iter().map(Trial::offer).collect();
    let value = serde_json::to_value(offers).expect("plain data");
    let offers: Result<Vec<Offer>, String> = others(&mouth.exchange(value, OTHER_S)?);
    let mut failures = Vec::new();
    for trial in trials.iter_mut() {
        let mut report = Report::new(trial.index(), mouth);
        let offer = match &offers {
            Ok(offers) => offers
                .iter()
                .find(|offer| offer.gpu == trial.index())
                .ok_or_else(|| "the other process has no such GPU".to_owned()),
            Err(why) => Err(why.clone()),
        };
        trial.reach(offer, &mut report)?;
        failures.extend(report.failures());
    }
    // Everybody has given back what is not his, so that it may go.
    mouth.begin("waiting for the other process to end its part");
    let wrote: Vec<trial::Wrote> = trials.iter().map(Trial::wrote).collect();
    let value = serde_json::to_value(wrote).expect("plain data");
    let wrote: Result<Vec<trial::Wrote>, String> = others(&mouth.exchange(value, OTHER_S)?);
    for trial in trials.iter_mut() {
        let mut report = Report::new(trial.index(), mouth);
        let of_it =
            wrote.as_ref().ok().and_then(|all| all.iter().find(|it| it.gpu == trial.index()));
        trial.look(of_it, &mut report)?;
        failures.extend(report.failures());
    }
    let mut whole = tell(&failures, channels, mouth)?;
    if let Err(why) = &offers {
        let what = format!("what takes two processes was not tried: {why}");
        let problem = ProbeProblem::new(ProblemKind::Error, "other-process-gone", what);
        mouth.say(&Line::Problem(problem))?;
        whole = false;
    }
    Ok(whole)
}

/// What the other process gave, or why there is nothing.
fn others<T: serde::de::DeserializeOwned>(answer: &Answer) -> Result<T, String> {
    let others = answer.shares.iter().enumerate().filter(|(at, _)| *at != answer.me);
    let (_, other) = others.into_iter().next().ok_or("there is no second process")?;
    if let Some(why) = &other.gone {
        return Err(format!("the other process is gone: {why}"));
    }
    let value = other.value.clone().unwrap_or(Value::Null);
    serde_json::from_value(value).map_err(|_| "what the other process gave is not known".to_owned())
}
