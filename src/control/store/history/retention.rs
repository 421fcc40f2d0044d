//! Bounding the size: old points are thinned, and a summary of them stays.
//!
//! Findings, alarms and node identities stay for ever; they are small. Readings of paths, which
//! take the most space, are removed with the points of their run.

use std::collections::BTreeMap;

use rusqlite::{Transaction, TransactionBehavior, params};

use super::connection::explain_sqlite_error;
use super::{HistoryError, RunHistory, SeriesSelection};
use engine::judge::drift;
use model::stats;
use model::time_format::DAY_S;
use model::trend::{FabricPartKind, TrendAlarm};

const DAYS_PER_WEEK: i64 = 7;

/// How long points are kept, and at which resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// Now, in seconds since 1970.
    pub now_unix: i64,
    /// Days for which every point is kept.
    pub keep_days: u32,
    /// Days for which one point a day is kept; after that one a week.
    pub thin_after_days: u32,
}

/// The result of thinning old points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionSummary {
    /// Runs whose points were merged.
    pub runs: usize,
    /// The number of points before.
    pub before: usize,
    /// The number of points after.
    pub after: usize,
}

/// Points of one series that are merged into one.
#[derive(Default)]
struct PointBucket {
    values: Vec<f64>,
    least: f64,
    count: i64,
    blamed: i64,
    run: String,
    at: String,
    at_unix: i64,
}

impl PointBucket {
    fn add(&mut self, point: &ExpiringPoint) {
        self.least = if self.values.is_empty() { point.least } else { self.least.min(point.least) };
        self.values.push(point.value);
        self.count += point.count;
        self.blamed += point.blamed;
        // The last run of the bucket represents it.
        (self.run, self.at) = (point.run.clone(), point.at.clone());
        self.at_unix = point.at_unix;
    }
}

/// An alarm of a point that is about to be removed.
struct ExpiringAlarm {
    series: i64,
    at_unix: i64,
    alarm: TrendAlarm,
}

struct ExpiringPoint {
    series: i64,
    run: String,
    at: String,
    at_unix: i64,
    value: f64,
    least: f64,
    count: i64,
    blamed: i64,
}

impl RunHistory {
    /// Thins old points, in one transaction. Repeating it changes nothing.
    pub fn compact(
        &mut self,
        retention: &RetentionPolicy,
    ) -> Result<CompactionSummary, HistoryError> {
        let horizon = |days: u32| {
            // Whole days and weeks: a bucket is never split.
            let at = retention.now_unix - i64::from(days) * DAY_S;
            at - at.rem_euclid(DAYS_PER_WEEK * DAY_S)
        };
        let (daily, weekly) = (horizon(retention.keep_days), horizon(retention.thin_after_days));
        let alarms = self.alarms_before(daily)?;
        let path = self.path.clone();
        let wrong = |source| explain_sqlite_error(&path, source);
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(wrong)?;
        let thinned = || -> rusqlite::Result<CompactionSummary> {
            keep_alarms(&transaction, &alarms)?;
            let mut thinned = compact_to_days(&transaction, daily)?;
            let (before, after) = compact_to_weeks(&transaction, weekly)?;
            thinned.before += before;
            thinned.after += after;
            Ok(thinned)
        };
        let thinned = thinned().map_err(wrong)?;
        transaction.commit().map_err(wrong)?;
        if 0 < thinned.before {
            // Returns free space to the disk. VACUUM makes a copy, which may not fit; then later
            // runs reuse the space.
            let _ = self.connection.execute_batch("VACUUM");
        }
        Ok(thinned)
    }

    /// The time from which every point is stored, in seconds since 1970.
    pub fn full_resolution_since(&self) -> Result<i64, HistoryError> {
        let at = self.query("SELECT max(at_unix) FROM runs WHERE thinned", [], |row| {
            row.get::<_, Option<i64>>(0)
        })?;
        Ok(at.into_iter().flatten().next().map_or(i64::MIN, |at| at + 1))
    }

    /// The alarms of points that are about to be removed.
    fn alarms_before(&self, horizon: i64) -> Result<Vec<ExpiringAlarm>, HistoryError> {
        let since = self.full_resolution_since()?;
        let kinds = [
            FabricPartKind::Gpu,
            FabricPartKind::Node,
            FabricPartKind::Rail,
            FabricPartKind::Domain,
        ];
        let mut kept = Vec::new();
        self.for_each_trend(&SeriesSelection::with_kinds(kinds), |series, mut trend| {
            drift::assess_since(&mut trend, since);
            let times: BTreeMap<&str, i64> =
                trend.points.iter().map(|point| (point.run.as_str(), point.at_unix)).collect();
            for alarm in trend.alarms {
                let at_unix = times.get(alarm.run.as_str()).copied();
                if let Some(at_unix) = at_unix.filter(|at| *at < horizon) {
                    kept.push(ExpiringAlarm { series, at_unix, alarm });
                }
            }
        })?;
        Ok(kept)
    }
}

fn keep_alarms(transaction: &Transaction<'_>, alarms: &[ExpiringAlarm]) -> rusqlite::Result<()> {
    let mut put = transaction.prepare(
        "INSERT INTO alarms (series, chart, run, at, at_unix, since, shift, statistic)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT DO NOTHING",
    )?;
    for ExpiringAlarm { series, at_unix, alarm } in alarms {
        put.execute(params![
            series,
            alarm.chart,
            alarm.run,
            alarm.at,
            at_unix,
            alarm.since,
            alarm.shift,
            alarm.statistic,
        ])?;
    }
    Ok(())
}

/// Merges the points of whole runs before `horizon`, one a day.
fn compact_to_days(
    transaction: &Transaction<'_>,
    horizon: i64,
) -> rusqlite::Result<CompactionSummary> {
    let points = read_points(
        transaction,
        "SELECT series, run, at, at_unix, value, value, 1,
                coalesce(points.outcome IN ('degraded', 'failed'), 0)
         FROM points JOIN runs USING (n)
         WHERE at_unix < ?1 AND NOT thinned AND simulated = (SELECT min(simulated) FROM runs)
         ORDER BY series, at_unix, run",
        horizon,
    )?;
    let after = write_buckets(transaction, &points, 1)?;
    let old = "SELECT n FROM runs WHERE at_unix < ?1 AND NOT thinned";
    transaction.execute(&format!("DELETE FROM points WHERE n IN ({old})"), [horizon])?;
    transaction.execute(&format!("DELETE FROM links WHERE n IN ({old})"), [horizon])?;
    transaction.execute("DELETE FROM ends WHERE id NOT IN (SELECT ends FROM links)", [])?;
    let runs = transaction
        .execute("UPDATE runs SET thinned = 1 WHERE at_unix < ?1 AND NOT thinned", [horizon])?;
    Ok(CompactionSummary { runs, before: points.len(), after })
}

/// Merges the daily points before `horizon`, one a week.
fn compact_to_weeks(
    transaction: &Transaction<'_>,
    horizon: i64,
) -> rusqlite::Result<(usize, usize)> {
    let points = read_points(
        transaction,
        "SELECT series, run, at, at_unix, median, least, count, guilty FROM thinned
         WHERE from_unix < ?1 AND days = 1 ORDER BY series, at_unix",
        horizon,
    )?;
    transaction.execute("DELETE FROM thinned WHERE from_unix < ?1 AND days = 1", [horizon])?;
    let after = write_buckets(transaction, &points, DAYS_PER_WEEK)?;
    Ok((points.len(), after))
}

fn read_points(
    transaction: &Transaction<'_>,
    sql: &str,
    horizon: i64,
) -> rusqlite::Result<Vec<ExpiringPoint>> {
    transaction
        .prepare(sql)?
        .query_map([horizon], |row| {
            Ok(ExpiringPoint {
                series: row.get(0)?,
                run: row.get(1)?,
                at: row.get(2)?,
                at_unix: row.get(3)?,
                value: row.get(4)?,
                least: row.get(5)?,
                count: row.get(6)?,
                blamed: row.get(7)?,
            })
        })?
        .collect()
}

/// Writes points merged over so many days, and returns their number.
fn write_buckets(
    transaction: &Transaction<'_>,
    points: &[ExpiringPoint],
    days: i64,
) -> rusqlite::Result<usize> {
    let length = days * DAY_S;
    let mut buckets: BTreeMap<(i64, i64), PointBucket> = BTreeMap::new();
    for point in points {
        let from = point.at_unix - point.at_unix.rem_euclid(length);
        buckets.entry((point.series, from)).or_default().add(point);
    }
    let mut put = transaction.prepare(
        "INSERT INTO thinned (series, from_unix, days, median, least, count, guilty, run, at, at_unix)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
         ON CONFLICT DO UPDATE SET least = min(least, excluded.least),
             count = count + excluded.count, guilty = guilty + excluded.guilty",
    )?;
    let count = buckets.len();
    for ((series, from), mut bucket) in buckets {
        let median = stats::median(&mut bucket.values);
        put.execute(params![
            series,
            from,
            days,
            median,
            bucket.least,
            bucket.count,
            bucket.blamed,
            bucket.run,
            bucket.at,
            bucket.at_unix,
        ])?;
    }
    Ok(count)
}
