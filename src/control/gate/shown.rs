//! What monitoring is shown, read from records: run folders, certificates, the
//! journal, the history.
//!
//! Reads and writes nothing. What cannot be read is told beside the rest.

use std::path::Path;

use super::{certificates, journal};
use crate::store::history::Alarms;
use crate::store::latest::Latest;
use crate::store::signing::Trust;
use engine::policy::action_policy::Policy;
use engine::report::metrics::inputs::MetricsInputs;
use engine::report::metrics::{MetricsState, inputs};
use model::certificate::Certificate;
use model::claims::Claims;
use model::journal::ClockStamp;

/// Where it is read from.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// The folder of run folders.
    pub runs: &'a Path,
    /// Most runs that are looked through.
    pub most: usize,
    /// Runs of a simulated fabric count, and others do not.
    pub is_simulated: bool,
    /// The gate's state folder, where there is a gate.
    pub gate: Option<&'a Path>,
    /// What is claimed of the fleet, where it is at hand.
    pub fleet: Option<&'a Claims>,
    /// The rules of the gate.
    pub policy: &'a Policy,
    /// Whose certificates count.
    pub trust: &'a Trust,
    /// Keys that could not be read.
    pub unread: &'a [String],
    /// The drift alarms that stand, as the history was last read.
    pub alarms: &'a Alarms,
    /// The present moment.
    pub now: &'a ClockStamp,
}

/// What was read.
#[derive(Debug)]
pub struct Shown {
    /// The state.
    pub state: MetricsState,
    /// What could not be read.
    pub troubles: Vec<String>,
}

/// Reads it all; runs that `latest` knows are not read again.
pub fn state(latest: &mut Latest, from: &Sources<'_>) -> Shown {
    latest.refresh(from.runs, from.most);
    let levels = latest.levels(from.runs, from.is_simulated);
    let mut troubles = latest.troubles.clone();
    troubles.extend(from.unread.iter().cloned());
    troubles.extend(from.alarms.trouble.clone());
    let (all, unread) =
        from.gate.map(|folder| certificates::all(folder, from.trust)).unwrap_or_default();
    troubles.extend(unread);
    let ledger = match from.gate.map(journal::look) {
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
        alarms: &from.alarms.standing,
        is_history_read: from.alarms.is_read(),
        problems: troubles.len(),
        now: from.now,
    });
    Shown { state, troubles }
}
