//! What monitoring is shown, read from records: run folders, certificates, the
//! journal, the history.
//!
//! Reads and writes nothing. What cannot be read is told beside the rest.

use std::path::Path;

use super::{certificates, journal};
use crate::store::history::DriftAlarms;
use crate::store::latest_verdicts::LatestRuns;
use crate::store::signing::SignatureTrust;
use engine::policy::action_policy::Policy;
use engine::report::metrics::inputs::MetricsInputs;
use engine::report::metrics::{MetricsState, inputs};
use model::certificate::Certificate;
use model::claims::Claims;
use model::journal::ClockStamp;

/// Where it is read from.
#[derive(Clone, Copy, Debug)]
pub struct MetricsSources<'a> {
    /// The folder of run folders.
    pub runs: &'a Path,
    /// Most runs that are looked through.
    pub max_runs: usize,
    /// Runs of a simulated fabric count, and others do not.
    pub is_simulated: bool,
    /// The gate's state folder, where there is a gate.
    pub gate: Option<&'a Path>,
    /// What is claimed of the fleet, where it is at hand.
    pub fleet: Option<&'a Claims>,
    /// The rules of the gate.
    pub policy: &'a Policy,
    /// Whose certificates count.
    pub trust: &'a SignatureTrust,
    /// Keys that could not be read.
    pub unread_keys: &'a [String],
    /// The drift alarms that stand, as the history was last read.
    pub alarms: &'a DriftAlarms,
    /// The present moment.
    pub now: &'a ClockStamp,
}

/// What was read.
#[derive(Debug)]
pub struct MetricsReading {
    /// The state.
    pub state: MetricsState,
    /// What could not be read.
    pub troubles: Vec<String>,
}

/// Reads it all; runs that `latest` knows are not read again.
pub fn read_metrics_state(latest: &mut LatestRuns, from: &MetricsSources<'_>) -> MetricsReading {
    latest.refresh(from.runs, from.max_runs);
    let levels = latest.levels(from.runs, from.is_simulated);
    let mut troubles = latest.problems.clone();
    troubles.extend(from.unread_keys.iter().cloned());
    troubles.extend(from.alarms.read_error.clone());
    let (all, unread) =
        from.gate.map(|folder| certificates::read_all(folder, from.trust)).unwrap_or_default();
    troubles.extend(unread);
    let ledger = match from.gate.map(journal::read_state) {
        None => None,
        Some(Ok(ledger)) => Some(ledger),
        Some(Err(error)) => {
            troubles.push(error.to_string());
            None
        }
    };
    let certificates: Vec<&Certificate> = all.iter().collect();
    let state = inputs::build_state(&MetricsInputs {
        runs: &latest.runs(from.is_simulated),
        levels: &levels,
        certificates: &certificates,
        ledger: ledger.as_ref(),
        fleet: from.fleet,
        policy: from.policy,
        alarms: &from.alarms.open,
        is_history_read: from.alarms.is_read(),
        problems: troubles.len(),
        now: from.now,
    });
    MetricsReading { state, troubles }
}
