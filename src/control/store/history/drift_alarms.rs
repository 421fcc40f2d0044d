//! Standing drift alarms of all nodes and domains, computed series by series and only after runs
//! were added.
//!
//! `judge::drift` decides where a series leaves its usual range; this module queries it. A read
//! error is reported, and the earlier alarms stand until a read succeeds.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::{HistoryError, RunHistory, SeriesSelection};
use crate::store::json_digest;
use engine::judge::drift;
use model::id::{DomainName, NodeName};
use model::time_format::DAY_S;
use model::trend::{FabricPart, FabricPartKind, OpenAlarm, Trend};

/// A series without a measurement for so long, although its node or domain was measured otherwise,
/// belongs to a test that no longer runs: its alarm would never end. An audit covers the fleet in
/// days, a slow one in weeks.
const STALE_SERIES_DAYS: i64 = 60;

/// How long monitoring waits for a writer on a file system without concurrent readers. The next
/// refresh follows soon.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Drift alarms over the series of nodes and domains.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DriftSummary {
    /// Series in which the given run raised an alarm.
    pub triggered: Vec<Trend>,
    /// Standing alarms for the worse, in order of parts.
    pub open: Vec<OpenAlarm>,
}

impl RunHistory {
    /// The standing alarms, and the alarms that a run raised.
    pub fn drift_summary(&self, run: Option<&str>) -> Result<DriftSummary, HistoryError> {
        let whole = self.full_resolution_since()?;
        let selection = SeriesSelection::with_kinds([FabricPartKind::Node, FabricPartKind::Domain]);
        let mut drifts = DriftSummary::default();
        // The time of the last measurement of each node and domain, and each alarmed series.
        let mut newest: BTreeMap<(Option<NodeName>, Option<DomainName>), i64> = BTreeMap::new();
        let mut standing: Vec<(i64, OpenAlarm)> = Vec::new();
        self.for_each_trend(&selection, |_, mut trend| {
            drift::assess_since(&mut trend, whole);
            let Some(last) = trend.points.last().map(|point| point.at_unix) else { return };
            let newest = newest.entry(series_owner(&trend.part)).or_insert(last);
            *newest = last.max(*newest);
            standing.extend(trend.open_alarm().map(|it| (last, it)));
            if run.is_some_and(|run| trend.alarms.iter().any(|alarm| alarm.run == run)) {
                drifts.triggered.push(trend);
            }
        })?;
        let is_measured = |(last, it): &(i64, OpenAlarm)| {
            let newest = newest.get(&series_owner(&it.part));
            newest.is_none_or(|newest| newest - last <= STALE_SERIES_DAYS * DAY_S)
        };
        standing.retain(is_measured);
        drifts.open = standing.into_iter().map(|(_, it)| it).collect();
        drifts.open.sort_by(|a, b| (&a.part, &a.testcase).cmp(&(&b.part, &b.testcase)));
        drifts.triggered.sort_by(|a, b| (&a.part, &a.testcase).cmp(&(&b.part, &b.testcase)));
        Ok(drifts)
    }

    /// A digest that differs as soon as any run is added, changed, thinned or removed.
    fn runs_digest(&self) -> Result<String, HistoryError> {
        let rows = self.query("SELECT n, signature, thinned FROM runs ORDER BY n", [], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, row.get::<_, bool>(2)?))
        })?;
        Ok(json_digest(&rows))
    }
}

/// The node or domain of a series, as far as it can be measured by itself.
fn series_owner(part: &FabricPart) -> (Option<NodeName>, Option<DomainName>) {
    match &part.node {
        // A node may move to another domain.
        Some(node) => (Some(node.clone()), None),
        None => (None, part.domain.clone()),
    }
}

/// The standing alarms as of the last read.
#[derive(Clone, Debug, Default)]
pub struct DriftAlarms {
    /// The runs that the alarms were computed from.
    runs_digest: Option<String>,
    /// The standing alarms.
    pub open: Vec<OpenAlarm>,
    /// The error of the last read, if it failed.
    pub read_error: Option<String>,
}

impl DriftAlarms {
    /// Alarms that another function read, or its error.
    pub fn from_result(read: Result<Vec<OpenAlarm>, String>) -> Self {
        match read {
            Ok(standing) => Self { open: standing, ..Self::default() },
            Err(trouble) => Self { read_error: Some(trouble), ..Self::default() },
        }
    }

    /// Reads the alarms if runs were added. A history that does not exist yet has none.
    pub fn refresh(&mut self, file: &Path) {
        // An unreachable file is not a missing one: its alarms stand.
        if let Ok(false) = file.try_exists() {
            *self = Self::default();
            return;
        }
        match self.read_history(file) {
            Ok(()) => self.read_error = None,
            Err(error) => self.read_error = Some(error.to_string()),
        }
    }

    fn read_history(&mut self, file: &Path) -> Result<(), HistoryError> {
        let history = RunHistory::open_read_only_within(file, LOCK_TIMEOUT)?;
        let now = history.runs_digest()?;
        if self.runs_digest.as_ref() != Some(&now) {
            self.open = history.drift_summary(None)?.open;
            self.runs_digest = Some(now);
        }
        Ok(())
    }

    /// Whether the last read succeeded.
    pub fn is_read(&self) -> bool {
        self.read_error.is_none()
    }
}
