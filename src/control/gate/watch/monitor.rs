//! Puts together what monitoring is shown of nodes and runs, and hands over what
//! people are to be told, in a thread of its own: thousands of files must not keep
//! the loop from turning.
//!
//! Reads and shows; it decides nothing, and nobody waits for it.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::self_metrics::WatchMetrics;
use crate::gate::metrics_source::MetricsSources;
use crate::gate::{clock, metrics_source};
use crate::notify::background::BackgroundNotifier;
use crate::store::history::DriftAlarms;
use crate::store::latest_verdicts::LatestRuns;
use crate::store::signing::SignatureTrust;
use engine::policy::action_policy::Policy;
use engine::report::metrics;
use engine::report::notice::occasion_from_state;

/// How soon it looks again while nobody has said yet what is claimed.
const CLAIMS_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// What is shown, and from where.
#[derive(Debug)]
pub struct MetricsMonitor {
    /// The folder of run folders.
    pub runs: PathBuf,
    /// Most runs that are looked through.
    pub max_runs: usize,
    /// Most nodes with series of their own.
    pub max_nodes: usize,
    /// Runs of a simulated fabric count, and others do not.
    pub is_simulated: bool,
    /// The gate's state folder.
    pub gate: PathBuf,
    /// The rules of the gate.
    pub policy: Policy,
    /// Whose certificates count.
    pub trust: SignatureTrust,
    /// Keys that could not be read when the watch began.
    pub unread_keys: Vec<String>,
    /// The history, where runs are kept in one.
    pub history: Option<PathBuf>,
    /// How often.
    pub interval: Duration,
    /// Who tells people.
    pub notifier: Option<BackgroundNotifier>,
}

/// Starts the thread; it ends with the program. `say` is given what could not be
/// read, once.
pub fn start_monitor(
    monitor: MetricsMonitor,
    vitals: Arc<WatchMetrics>,
    say: impl Fn(&str) + Send + 'static,
) -> io::Result<()> {
    std::thread::Builder::new().name("monitor".to_owned()).spawn(move || {
        let (mut latest, mut alarms) = (LatestRuns::default(), DriftAlarms::default());
        let mut told = BTreeSet::new();
        loop {
            let claims = vitals.claims();
            monitor.update(&mut latest, &mut alarms, &vitals, &mut told, &say);
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
        told: &mut BTreeSet<String>,
        say: &impl Fn(&str),
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
        for trouble in troubles.difference(told) {
            say(trouble);
        }
        *told = troubles;
        vitals.set_cached_families(metrics::build_families(&shown.state, self.max_nodes));
        // Only the one that is at work tells: of two, each would.
        if let (Some(aside), true) = (&self.notifier, vitals.is_leading()) {
            // Where there is no room, the next turn says what stands then.
            let _ = aside.submit(occasion_from_state(&shown.state));
        }
    }
}
