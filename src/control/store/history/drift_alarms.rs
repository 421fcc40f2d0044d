//! Drift alarms that nothing has ended: of all nodes and domains, one series
//! after the other, and again only where runs were added.
//!
//! Where a series left what is usual, `judge::drift` says; here it is asked. What
//! cannot be read is told, and what was known before counts until it can.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::{HistoryError, RunHistory, SeriesSelection};
use crate::store::json_digest;
use engine::judge::drift;
use model::id::{DomainName, NodeName};
use model::time_format::DAY_S;
use model::trend::{FabricPart, FabricPartKind, OpenAlarm, Trend};

/// A series that nobody measured for so long, while its node or domain was
/// measured otherwise, belongs to a test that is not run any more: nobody would
/// ever see its alarm end. An audit comes round in days, a slow one in weeks.
const STALE_SERIES_DAYS: i64 = 60;

/// How long monitoring waits for a writer whose file system lets nobody read
/// meanwhile. The next look comes soon.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// What the series of nodes and domains say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DriftSummary {
    /// Series in which the run that was asked for rang an alarm.
    pub triggered: Vec<Trend>,
    /// Alarms for the worse that nothing has ended, in order of parts.
    pub open: Vec<OpenAlarm>,
}

impl RunHistory {
    /// Which alarms stand, and which of these and others a run rang.
    pub fn drift_summary(&self, run: Option<&str>) -> Result<DriftSummary, HistoryError> {
        let whole = self.full_resolution_since()?;
        let selection = SeriesSelection::with_kinds([FabricPartKind::Node, FabricPartKind::Domain]);
        let mut drifts = DriftSummary::default();
        // When each node and domain was last measured, and each series that stands.
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

    /// What is another as soon as any run is added, changed, thinned or gone.
    fn runs_digest(&self) -> Result<String, HistoryError> {
        let rows = self.query("SELECT n, signature, thinned FROM runs ORDER BY n", [], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, row.get::<_, bool>(2)?))
        })?;
        Ok(json_digest(&rows))
    }
}

/// Whose a series is, as far as it can be measured by itself.
fn series_owner(part: &FabricPart) -> (Option<NodeName>, Option<DomainName>) {
    match &part.node {
        // A node's place in a domain may change.
        Some(node) => (Some(node.clone()), None),
        None => (None, part.domain.clone()),
    }
}

/// The alarms that stand, as they were last read.
#[derive(Clone, Debug, Default)]
pub struct DriftAlarms {
    /// The runs they were told from.
    runs_digest: Option<String>,
    /// The alarms.
    pub open: Vec<OpenAlarm>,
    /// Why they could not be read the last time.
    pub read_error: Option<String>,
}

impl DriftAlarms {
    /// Alarms that somebody has read, or why not.
    pub fn from_result(read: Result<Vec<OpenAlarm>, String>) -> Self {
        match read {
            Ok(standing) => Self { open: standing, ..Self::default() },
            Err(trouble) => Self { read_error: Some(trouble), ..Self::default() },
        }
    }

    /// Reads them, where runs were added since. One that does not exist yet has none.
    pub fn refresh(&mut self, file: &Path) {
        // One that cannot be reached is none that is gone: its alarms are not over.
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

    /// Whether they were read the last time that somebody looked.
    pub fn is_read(&self) -> bool {
        self.read_error.is_none()
    }
}
