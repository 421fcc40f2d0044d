//! Builds the metrics of nodes and runs, and submits notifications, in a separate thread:
//! reading thousands of files must not delay the loop.
//!
//! Read-only; it makes no decisions, and no other thread waits for it.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::self_metrics::WatchMetrics;
use crate::gate::metrics_source::MetricsSources;
use crate::gate::{clock, metrics_source};
use crate::notify::background::BackgroundNotifier;
use crate::store::document_signature::SignatureTrust;
use crate::store::history::DriftAlarms;
use crate::store::latest_verdicts::LatestRuns;
use engine::policy::action_policy::Policy;
use engine::report::metrics;
use engine::report::notice::occasion_from_state;

/// Interval while the claims are not known yet.
const CLAIMS_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Sources of the metrics.
#[derive(Debug)]
pub struct MetricsMonitor {
    /// The folder of run folders.
    pub runs: PathBuf,
    /// Maximum number of runs to read.
    pub max_runs: usize,
    /// Maximum number of nodes with separate series.
    pub max_nodes: usize,
    /// Use runs of a simulated fabric only; otherwise ignore them.
    pub is_simulated: bool,
    /// The gate's state folder.
    pub gate: PathBuf,
    /// The gate's policy.
    pub policy: Policy,
    /// Signers whose certificates are accepted.
    pub trust: SignatureTrust,
    /// Keys that could not be read at start-up.
    pub unread_keys: Vec<String>,
    /// The history database, if one is used.
    pub history: Option<PathBuf>,
    /// Time between updates.
    pub interval: Duration,
    /// Sends notifications, if configured.
    pub notifier: Option<BackgroundNotifier>,
}

/// Starts the thread, which runs until the program ends. `say` receives each read problem
/// once.
pub fn start_monitor(
    monitor: MetricsMonitor,
    vitals: Arc<WatchMetrics>,
    log: impl Fn(&str) + Send + 'static,
) -> io::Result<()> {
    std::thread::Builder::new().name("monitor".to_owned()).spawn(move || {
        let (mut latest, mut alarms) = (LatestRuns::default(), DriftAlarms::default());
        let mut reported = BTreeSet::new();
        loop {
            let claims = vitals.claims();
            monitor.update(&mut latest, &mut alarms, &vitals, &mut reported, &log);
            std::thread::sleep(if claims.is_some() {
                monitor.interval
            } else {
                CLAIMS_RETRY_INTERVAL
            });
        }
    })?;
    Ok(())
}

impl MetricsMonitor {
    fn update(
        &self,
        latest: &mut LatestRuns,
        alarms: &mut DriftAlarms,
        vitals: &WatchMetrics,
        reported: &mut BTreeSet<String>,
        log: &impl Fn(&str),
    ) {
        let claims = vitals.claims();
        if let Some(history) = &self.history {
            alarms.refresh(history);
        }
        let shown = metrics_source::read_metrics_state(
            latest,
            &MetricsSources {
                runs: &self.runs,
                max_runs: self.max_runs,
                is_simulated: self.is_simulated,
                gate: Some(&self.gate),
                fleet: claims.as_deref(),
                policy: &self.policy,
                trust: &self.trust,
                unread_keys: &self.unread_keys,
                alarms,
                now: &clock::now(),
            },
        );
        let troubles: BTreeSet<String> = shown.troubles.iter().cloned().collect();
        for trouble in troubles.difference(reported) {
            log(trouble);
        }
        *reported = troubles;
        vitals.set_cached_families(metrics::build_families(&shown.state, self.max_nodes));
        // Only the active instance notifies; otherwise every instance would.
        if let (Some(aside), true) = (&self.notifier, vitals.is_leading()) {
            // If the queue is full, the next update submits the state again.
            let _ = aside.submit(occasion_from_state(&shown.state));
        }
    }
}
