//! Drift alarms that nothing has ended: of all nodes and domains, one series
//! after the other, and again only where runs were added.
//!
//! Where a series left what is usual, `judge::drift` says; here it is asked. What
//! cannot be read is told, and what was known before counts until it can.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::{History, HistoryError, Selection};
use crate::store::digest;
use engine::judge::drift;
use model::id::{DomainName, NodeName};
use model::time_format::DAY_S;
use model::trend::{FabricPart, FabricPartKind, OpenAlarm, Trend};

/// A series that nobody measured for so long, while its node or domain was
/// measured otherwise, belongs to a test that is not run any more: nobody would
/// ever see its alarm end. An audit comes round in days, a slow one in weeks.
const FORGOTTEN_DAYS: i64 = 60;

/// How long monitoring waits for a writer whose file system lets nobody read
/// meanwhile. The next look comes soon.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the series of nodes and domains say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drifts {
    /// Series in which the run that was asked for rang an alarm.
    pub rung: Vec<Trend>,
    /// Alarms for the worse that nothing has ended, in order of parts.
    pub standing: Vec<OpenAlarm>,
}

impl History {
    /// Which alarms stand, and which of these and others a run rang.
    pub fn drifts(&self, run: Option<&str>) -> Result<Drifts, HistoryError> {
        let whole = self.whole_since()?;
        let selection = Selection::of([FabricPartKind::Node, FabricPartKind::Domain]);
        let mut drifts = Drifts::default();
        // When each node and domain was last measured, and each series that stands.
        let mut newest: BTreeMap<(Option<NodeName>, Option<DomainName>), i64> = BTreeMap::new();
        let mut standing: Vec<(i64, OpenAlarm)> = Vec::new();
        self.each(&selection, |_, mut trend| {
            drift::assess_since(&mut trend, whole);
            let Some(last) = trend.points.last().map(|point| point.at_unix) else { return };
            let newest = newest.entry(owner(&trend.part)).or_insert(last);
            *newest = last.max(*newest);
            standing.extend(trend.open_alarm().map(|it| (last, it)));
            if run.is_some_and(|run| trend.alarms.iter().any(|alarm| alarm.run == run)) {
                drifts.rung.push(trend);
            }
        })?;
        let is_measured = |(last, it): &(i64, OpenAlarm)| {
            let newest = newest.get(&owner(&it.part));
            newest.is_none_or(|newest| newest - last <= FORGOTTEN_DAYS * DAY_S)
        };
        standing.retain(is_measured);
        drifts.standing = standing.into_iter().map(|(_, it)| it).collect();
        drifts.standing.sort_by(|a, b| (&a.part, &a.testcase).cmp(&(&b.part, &b.testcase)));
        drifts.rung.sort_by(|a, b| (&a.part, &a.testcase).cmp(&(&b.part, &b.testcase)));
        Ok(drifts)
    }

    /// What is another as soon as any run is added, changed, thinned or gone.
    fn runs_digest(&self) -> Result<String, HistoryError> {
        let rows = self.query("SELECT n, signature, thinned FROM runs ORDER BY n", [], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, row.get::<_, bool>(2)?))
        })?;
        Ok(digest(&rows))
    }
}

/// Whose a series is, as far as it can be measured by itself.
fn owner(part: &FabricPart) -> (Option<NodeName>, Option<DomainName>) {
    match &part.node {
        // A node's place in a domain may change.
        Some(node) => (Some(node.clone()), None),
        None => (None, part.domain.clone()),
    }
}

/// The alarms that stand, as they were last read.
#[derive(Clone, Debug, Default)]
pub struct Alarms {
    /// The runs they were told from.
    seen: Option<String>,
    /// The alarms.
    pub standing: Vec<OpenAlarm>,
    /// Why they could not be read the last time.
    pub trouble: Option<String>,
}

impl Alarms {
    /// Alarms that somebody has read, or why not.
    pub fn known(read: Result<Vec<OpenAlarm>, String>) -> Self {
        match read {
            Ok(standing) => Self { standing, ..Self::default() },
            Err(trouble) => Self { trouble: Some(trouble), ..Self::default() },
        }
    }

    /// Reads them, where runs were added since. One that does not exist yet has none.
    pub fn refresh(&mut self, file: &Path) {
        // One that cannot be reached is none that is gone: its alarms are not over.
        if let Ok(false) = file.try_exists() {
            *self = Self::default();
            return;
        }
        match self.read(file) {
            Ok(()) => self.trouble = None,
            Err(error) => self.trouble = Some(error.to_string()),
        }
    }

    fn read(&mut self, file: &Path) -> Result<(), HistoryError> {
        let history = History::open_read_only_within(file, PATIENCE)?;
        let now = history.runs_digest()?;
        if self.seen.as_ref() != Some(&now) {
            self.standing = history.drifts(None)?.standing;
            self.seen = Some(now);
        }
        Ok(())
    }

    /// Whether they were read the last time that somebody looked.
    pub fn is_read(&self) -> bool {
        self.trouble.is_none()
    }
}
