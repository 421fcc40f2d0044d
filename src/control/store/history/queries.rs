//! Queries: each node's last measurement, series over runs, and changes between runs.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::params;

use super::{HistoryError, RunHistory, rollup};
use model::finding_class::FindingClass;
use model::id::{DomainName, NodeName};
use model::trend::{FabricPart, FabricPartKind, Trend, TrendAlarm, TrendPoint};
use model::unit::Unit;
use model::verdict::{Finding, Locus, LocusKind, Outcome};

/// A node's last measurement and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastMeasurement {
    /// The id of the run.
    pub run: String,
    /// The start of the run, RFC 3339.
    pub at: String,
    /// The same in seconds since 1970.
    pub at_unix: i64,
    /// The profile of the run.
    pub profile: String,
    /// The outcome of the node.
    pub outcome: Outcome,
    /// The run completed and the node's outcome is known.
    pub is_complete: bool,
}

/// A measured node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeRunSummary {
    /// The node.
    pub node: NodeName,
    /// The domain of its latest claim.
    pub domain: Option<DomainName>,
    /// The number of runs that measured it.
    pub runs: usize,
    /// Its last measurement.
    pub last: LastMeasurement,
    /// The lowest reading of its parts in that run, as a share of the expectation.
    pub worst: Option<f64>,
}

/// A stored run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryRun {
    /// The id of the run.
    pub run: String,
    /// The start of the run, RFC 3339.
    pub at: String,
    /// The same in seconds since 1970.
    pub at_unix: i64,
    /// The profile of the run.
    pub profile: String,
    /// The path of its folder when it was added.
    pub folder: String,
    /// Digest of the expectations that it was judged with.
    pub thresholds: String,
    /// The tools that measured, with their versions.
    pub tools: BTreeMap<String, String>,
}

/// A selection of series. An empty or absent field selects everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeriesSelection {
    /// Kinds of parts; if empty, all except paths, which are many.
    pub kinds: BTreeSet<FabricPartKind>,
    /// Nodes.
    pub nodes: BTreeSet<NodeName>,
    /// Domains.
    pub domains: BTreeSet<DomainName>,
    /// A GPU's index on its node.
    pub gpu: Option<u32>,
    /// The other end of a path, `node:gpu` or `node`.
    pub peer: Option<String>,
    /// A rail.
    pub rail: Option<String>,
    /// A test.
    pub testcase: Option<String>,
    /// Runs from this moment on, in seconds since 1970.
    pub since_unix: Option<i64>,
}

impl SeriesSelection {
    /// All series of these kinds.
    pub fn with_kinds(kinds: impl IntoIterator<Item = FabricPartKind>) -> Self {
        Self { kinds: kinds.into_iter().collect(), ..Self::default() }
    }

    fn contains_kind(&self, kind: FabricPartKind) -> bool {
        match self.kinds.is_empty() {
            true => kind != FabricPartKind::Link,
            false => self.kinds.contains(&kind),
        }
    }

    fn contains(&self, part: &FabricPart) -> bool {
        let node = |node: &Option<NodeName>| node.as_ref().is_none_or(|n| self.nodes.contains(n));
        let domain = |d: &Option<DomainName>| d.as_ref().is_some_and(|d| self.domains.contains(d));
        (self.nodes.is_empty() || (part.kind != FabricPartKind::Domain && node(&part.node)))
            && (self.domains.is_empty() || domain(&part.domain))
            && (self.gpu.is_none() || part.gpu.is_none() || self.gpu == part.gpu)
            && (self.peer.is_none() || self.peer == part.peer)
            && (self.rail.is_none() || self.rail == part.rail)
    }
}

impl RunHistory {
    /// The runs that count, in order of time: simulated and replayed runs count only if there are
    /// no others, because they do not describe real machines.
    pub fn runs(&self) -> Result<Vec<HistoryRun>, HistoryError> {
        self.query(
            "SELECT run, at, at_unix, profile, folder, thresholds, tools FROM counted
             ORDER BY at_unix, run",
            [],
            |row| {
                let tools: String = row.get(6)?;
                Ok(HistoryRun {
                    run: row.get(0)?,
                    at: row.get(1)?,
                    at_unix: row.get(2)?,
                    profile: row.get(3)?,
                    folder: row.get(4)?,
                    thresholds: row.get(5)?,
                    tools: serde_json::from_str(&tools).unwrap_or_default(),
                })
            },
        )
    }

    /// Whether the runs that count measured a simulated fabric, or were replayed.
    pub fn is_simulated(&self) -> Result<bool, HistoryError> {
        let least =
            self.query("SELECT min(simulated) FROM runs", [], |row| row.get::<_, Option<i64>>(0))?;
        Ok(least.into_iter().flatten().any(|simulated| simulated != 0))
    }

    /// Every measured node, in order of name: the number of its runs, and its last readings
    /// relative to the expectation.
    pub fn nodes(&self) -> Result<Vec<NodeRunSummary>, HistoryError> {
        let rows = self.query(
            "SELECT nodes.node, domain, worst FROM nodes JOIN counted USING (n)
             WHERE measured ORDER BY at_unix, run",
            [],
            |row| Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?, row.get(2)?)),
        )?;
        let last = self.last_measured()?;
        let mut nodes: BTreeMap<NodeName, NodeRunSummary> = BTreeMap::new();
        for (node, domain, worst) in rows {
            let node = NodeName::from(node);
            let Some(measured) = last.get(&node) else { continue };
            let runs = nodes.entry(node.clone()).or_insert_with(|| NodeRunSummary {
                node: node.clone(),
                domain: None,
                runs: 0,
                last: measured.clone(),
                worst: None,
            });
            runs.runs += 1;
            runs.domain = domain.map(DomainName::from);
            runs.worst = worst;
        }
        Ok(nodes.into_values().collect())
    }

    /// The ids of all stored runs.
    pub fn run_ids(&self) -> Result<BTreeSet<String>, HistoryError> {
        Ok(self.query("SELECT run FROM runs", [], |row| row.get(0))?.into_iter().collect())
    }

    /// The newest run that measured each node completely; for a node without one, its newest run.
    pub fn newest_run_by_node(&self) -> Result<BTreeMap<NodeName, String>, HistoryError> {
        let rows = self.query(
            "SELECT nodes.node, run FROM nodes JOIN counted USING (n)
             WHERE measured ORDER BY complete, at_unix, run",
            [],
            |row| Ok((NodeName::from(row.get::<_, String>(0)?), row.get(1)?)),
        )?;
        Ok(rows.into_iter().collect())
    }

    /// The last measurement of each node. A node that runs could not measure is absent: nothing is
    /// known about it.
    pub fn last_measured(&self) -> Result<BTreeMap<NodeName, LastMeasurement>, HistoryError> {
        let rows = self.query(
            "SELECT nodes.node, run, at, at_unix, profile, nodes.outcome, complete
             FROM nodes JOIN counted USING (n) WHERE measured ORDER BY at_unix, run",
            [],
            |row| {
                let last = LastMeasurement {
                    run: row.get(1)?,
                    at: row.get(2)?,
                    at_unix: row.get(3)?,
                    profile: row.get(4)?,
                    outcome: parse_document_name(&row.get::<_, String>(5)?)
                        .unwrap_or(Outcome::Unknown),
                    is_complete: row.get(6)?,
                };
                Ok((NodeName::from(row.get::<_, String>(0)?), last))
            },
        )?;
        Ok(rows.into_iter().collect())
    }

    /// The selected series, each with its points in order of time, the changes during it, and the
    /// alarms that thinned points once gave. `judge::drift` finds the usual range and where a
    /// series leaves it, from [`RunHistory::full_resolution_since`] on.
    pub fn trends(&self, selection: &SeriesSelection) -> Result<Vec<Trend>, HistoryError> {
        let mut trends: Vec<Trend> = Vec::new();
        self.for_each_trend(selection, |_, trend| trends.push(trend))?;
        if selection.contains_kind(FabricPartKind::Link) {
            let meanwhile = self.changes_by_node()?;
            let mut paths = self.read_paths(selection)?;
            paths.iter_mut().for_each(|trend| meanwhile.add_to_trend(trend));
            trends.extend(paths);
        }
        trends.sort_by(|a, b| (&a.part, &a.testcase).cmp(&(&b.part, &b.testcase)));
        Ok(trends)
    }

    /// The same for all series except paths, with the numbers of the series, one at a time: all
    /// series of a large fleet together exceed the memory of a login node.
    pub(super) fn for_each_trend(
        &self,
        selection: &SeriesSelection,
        mut with: impl FnMut(i64, Trend),
    ) -> Result<(), HistoryError> {
        let meanwhile = self.changes_by_node()?;
        let since = selection.since_unix.unwrap_or(i64::MIN);
        let mut points = self.prepare(
            "SELECT run, at, at_unix, value, error, expected, points.outcome
             FROM points JOIN counted USING (n) WHERE series = ?1 AND ?2 <= at_unix
             UNION ALL
             SELECT run, at, at_unix, median, NULL, NULL,
                    CASE WHEN count < 2 * guilty THEN 'degraded' ELSE 'pass' END
             FROM thinned WHERE series = ?1 AND ?2 <= at_unix
             ORDER BY at_unix, run",
        )?;
        let mut alarms = self.prepare(
            "SELECT run, at, since, shift, statistic, chart FROM alarms
             WHERE series = ?1 AND ?2 <= at_unix ORDER BY at_unix",
        )?;
        for (id, mut trend) in self.read_series(selection)? {
            let read =
                points.query_map(params![id, since], parse_point).and_then(Iterator::collect);
            trend.points = read.map_err(|error| self.to_history_error(error))?;
            if trend.points.is_empty() {
                continue;
            }
            let read = alarms.query_map(params![id, since], |row| {
                Ok(TrendAlarm {
                    run: row.get(0)?,
                    at: row.get(1)?,
                    since: row.get(2)?,
                    shift: row.get(3)?,
                    statistic: row.get(4)?,
                    chart: row.get(5)?,
                    stands: false,
                })
            });
            trend.alarms =
                read.and_then(Iterator::collect).map_err(|error| self.to_history_error(error))?;
            meanwhile.add_to_trend(&mut trend);
            with(id, trend);
        }
        Ok(())
    }

    /// The selected series, without points.
    fn read_series(&self, selection: &SeriesSelection) -> Result<Vec<(i64, Trend)>, HistoryError> {
        let homes = self.domain_by_node()?;
        let mut rows = self.query(
            "SELECT id, kind, domain, node, gpu, rail, direction, testcase, unit FROM series",
            [],
            |row| {
                let text = |at: usize| -> rusqlite::Result<Option<String>> {
                    Ok(Some(row.get::<_, String>(at)?).filter(|text| !text.is_empty()))
                };
                let node = text(3)?.map(NodeName::from);
                let home = node.as_ref().and_then(|node| homes.get(node).cloned());
                let part = FabricPart {
                    kind: parse_document_name(&row.get::<_, String>(1)?)
                        .unwrap_or(FabricPartKind::Node),
                    domain: text(2)?.map(DomainName::from).or(home),
                    node,
                    gpu: u32::try_from(row.get::<_, i64>(4)?).ok(),
                    peer: None,
                    rail: text(5)?,
                    direction: text(6)?.and_then(|text| parse_document_name(&text)),
                };
                let unit: String = row.get(8)?;
                Ok((row.get::<_, i64>(0)?, empty_trend(part, row.get(7)?, &unit)))
            },
        )?;
        rows.retain(|(_, trend)| {
            let test = selection.testcase.as_ref().is_none_or(|test| *test == trend.testcase);
            test && selection.contains_kind(trend.part.kind) && selection.contains(&trend.part)
        });
        Ok(rows)
    }

    /// Paths: stored as one list for each run and test.
    fn read_paths(&self, selection: &SeriesSelection) -> Result<Vec<Trend>, HistoryError> {
        let homes = self.domain_by_node()?;
        let rows = self.query(
            "SELECT run, at, at_unix, testcase, unit, rail, pairs, readings
             FROM links JOIN counted USING (n) JOIN ends ON ends.id = links.ends
             WHERE ?1 <= at_unix AND (?2 IS NULL OR testcase = ?2) ORDER BY at_unix, run",
            params![selection.since_unix.unwrap_or(i64::MIN), selection.testcase],
            |row| {
                let texts = [
                    row.get(0)?,
                    row.get(1)?,
                    row.get(3)?,
                    row.get(4)?,
                    row.get(5)?,
                    row.get(6)?,
                    row.get(7)?,
                ];
                Ok((row.get::<_, i64>(2)?, texts))
            },
        )?;
        let mut trends: BTreeMap<(FabricPart, String, Unit), Trend> = BTreeMap::new();
        for (at_unix, texts) in rows {
            let [run, at, testcase, unit, rail, pairs, readings]: [String; 7] = texts;
            let pairs: Vec<(String, String)> = serde_json::from_str(&pairs).unwrap_or_default();
            let readings: Vec<f64> = serde_json::from_str(&readings).unwrap_or_default();
            for ((from, to), value) in pairs.into_iter().zip(readings) {
                let (node, gpu) = parse_path_end(&from);
                let part = FabricPart {
                    kind: FabricPartKind::Link,
                    domain: homes.get(&node).cloned(),
                    node: Some(node),
                    gpu,
                    peer: Some(to),
                    rail: Some(rail.clone()).filter(|rail| !rail.is_empty()),
                    direction: None,
                };
                if !selection.contains(&part) {
                    continue;
                }
                let point = TrendPoint {
                    run: run.clone(),
                    at: at.clone(),
                    at_unix,
                    value,
                    error: None,
                    expected: None,
                    outcome: None,
                };
                let trend = empty_trend(part, testcase.clone(), &unit);
                let key = (trend.part.clone(), testcase.clone(), trend.unit);
                trends.entry(key).or_insert(trend).points.push(point);
            }
        }
        let mut trends: Vec<Trend> = trends.into_values().collect();
        let accused = self.findings_by_run()?;
        for trend in &mut trends {
            for point in &mut trend.points {
                let found = accused.get(&point.run).into_iter().flatten();
                let worst = found.filter(|f| rollup::is_against(f, &trend.part)).map(|f| f.outcome);
                point.outcome = Some(worst.max().unwrap_or(Outcome::Pass));
            }
        }
        Ok(trends)
    }

    fn findings_by_run(&self) -> Result<BTreeMap<String, Vec<Finding>>, HistoryError> {
        let rows = self.query(
            "SELECT run, id, findings.outcome, class, kind, domain, node, gpu, peer, rail, direction
             FROM findings JOIN counted USING (n)",
            [],
            |row| {
                let mut locus =
                    Locus::new(parse_document_name(&row.get::<_, String>(4)?).unwrap_or(LocusKind::Instrument));
                locus.domain = row.get::<_, Option<String>>(5)?.map(DomainName::from);
                locus.node = row.get::<_, Option<String>>(6)?.map(NodeName::from);
                locus.gpu = row.get(7)?;
                locus.peer = row.get(8)?;
                locus.rail = row.get(9)?;
                locus.direction = row.get::<_, Option<String>>(10)?.and_then(|text| parse_document_name(&text));
                let [id, outcome, class] = [row.get(1)?, row.get(2)?, row.get::<_, String>(3)?];
                let outcome = parse_document_name(&outcome).unwrap_or(Outcome::Unknown);
                let class = FindingClass::from_name(&class);
                let found = Finding::new(id, outcome, class, locus);
                Ok((row.get::<_, String>(0)?, found))
            },
        )?;
        let mut all: BTreeMap<String, Vec<Finding>> = BTreeMap::new();
        for (run, found) in rows {
            all.entry(run).or_default().push(found);
        }
        Ok(all)
    }

    /// The domain of each node's latest claim.
    pub(super) fn domain_by_node(&self) -> Result<BTreeMap<NodeName, DomainName>, HistoryError> {
        let rows = self.query(
            "SELECT nodes.node, domain FROM nodes JOIN counted USING (n)
             WHERE domain IS NOT NULL ORDER BY at_unix, run",
            [],
            |row| {
                let (node, domain): (String, String) = (row.get(0)?, row.get(1)?);
                Ok((NodeName::from(node), DomainName::from(domain)))
            },
        )?;
        Ok(rows.into_iter().collect())
    }

    fn prepare(&self, sql: &str) -> Result<rusqlite::Statement<'_>, HistoryError> {
        self.connection.prepare(sql).map_err(|error| self.to_history_error(error))
    }

    pub(super) fn query<T>(
        &self,
        sql: &str,
        with: impl rusqlite::Params,
        row: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, HistoryError> {
        let read = || -> rusqlite::Result<Vec<T>> {
            self.connection.prepare(sql)?.query_map(with, row)?.collect()
        };
        read().map_err(|error| self.to_history_error(error))
    }
}

fn parse_point(row: &rusqlite::Row<'_>) -> rusqlite::Result<TrendPoint> {
    let outcome: Option<String> = row.get(6)?;
    Ok(TrendPoint {
        run: row.get(0)?,
        at: row.get(1)?,
        at_unix: row.get(2)?,
        value: row.get(3)?,
        error: row.get(4)?,
        expected: row.get(5)?,
        outcome: outcome.and_then(|text| parse_document_name(&text)),
    })
}

/// An end of a path: `node:gpu`, or `node`.
pub(super) fn parse_path_end(text: &str) -> (NodeName, Option<u32>) {
    match text.rsplit_once(':').and_then(|(node, gpu)| Some((node, gpu.parse().ok()?))) {
        Some((node, gpu)) => (NodeName::from(node), Some(gpu)),
        None => (NodeName::from(text), None),
    }
}

fn empty_trend(part: FabricPart, testcase: String, unit: &str) -> Trend {
    let unit = parse_document_name(unit).unwrap_or(Unit::GigabytesPerSecond);
    let (points, baseline, alarms, changes) = (Vec::new(), None, Vec::new(), Vec::new());
    Trend { part, testcase, unit, points, baseline, alarms, changes }
}

/// The value with this serialized name.
pub(super) fn parse_document_name<T: serde::de::DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_value(serde_json::Value::String(text.to_owned())).ok()
}
