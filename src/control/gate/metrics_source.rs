//! Reads the inputs of the metrics from run folders, certificates, the journal and the
//! history.
//!
//! Read-only. Unreadable inputs are reported with the rest.

use std::path::Path;

use super::{certificates, journal};
use crate::store::document_signature::SignatureTrust;
use crate::store::history::DriftAlarms;
use crate::store::latest_verdicts::LatestRuns;
use engine::policy::action_policy::Policy;
use engine::report::metrics::inputs::MetricsInputs;
use engine::report::metrics::{MetricsState, inputs};
use model::certificate::Certificate;
use model::claims::Claims;
use model::journal::ClockStamp;

/// Sources of the metrics.
#[derive(Clone, Copy, Debug)]
pub struct MetricsSources<'a> {
    /// The folder of run folders.
    pub runs: &'a Path,
    /// Maximum number of runs to read.
    pub max_runs: usize,
    /// Use runs of a simulated fabric only; otherwise ignore them.
    pub is_simulated: bool,
    /// The gate's state folder, if a gate is configured.
    pub gate: Option<&'a Path>,
    /// The claims about the fleet, if available.
    pub fleet: Option<&'a Claims>,
    /// The gate's policy.
    pub policy: &'a Policy,
    /// Signers whose certificates are accepted.
    pub trust: &'a SignatureTrust,
    /// Keys that could not be read.
    pub unread_keys: &'a [String],
    /// The open drift alarms, as last read from the history.
    pub alarms: &'a DriftAlarms,
    /// The current time.
    pub now: &'a ClockStamp,
}

/// The state and the read problems.
#[derive(Debug)]
pub struct MetricsReading {
    /// Input of the metrics.
    pub state: MetricsState,
    /// Problems while reading.
    pub troubles: Vec<String>,
}

/// Reads all sources; runs already in `latest` are not read again.
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
