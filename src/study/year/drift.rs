//! Alarms of the drift charts (`judge::drift`) over a year: every GPU's series over NVLink, tracked
//! like the history.
//!
//! An alarm causes no drain, so it is counted separately and not as a rule.

use std::collections::BTreeMap;

use super::fleet::FleetPosition;
use super::gate::YEAR_START_UNIX;
use engine::judge::{drift, run_summary};
use model::id::NodeName;
use model::part_history::PartTestKey;
use model::time_format::format_rfc3339;
use model::trend::{FabricPart, FabricPartKind, RunChange, RunChangeKind, Trend, TrendPoint};
use model::unit::Unit;

#[derive(Debug, Default)]
pub(super) struct DriftTracker {
    /// Points by part; a driver update is a change within a series, not a new one.
    series: BTreeMap<PartTestKey, Vec<TrendPoint>>,
    drivers: BTreeMap<NodeName, String>,
    changes: BTreeMap<NodeName, Vec<RunChange>>,
}

/// An alarm for a decrease.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct YearDriftAlarm {
    pub(super) spot: FleetPosition,
    pub(super) gpu: usize,
    /// Time in seconds since the start of the year.
    pub(super) at_s: f64,
}

impl DriftTracker {
    /// Adds the levels of a run.
    pub(super) fn add_run(&mut self, run: &str, at_unix: i64, shown: &run_summary::RunSummary) {
        let at = format_rfc3339(at_unix);
        for (part, shown) in shown {
            if let Some(driver) = &part.driver {
                let before = self.drivers.insert(part.node.clone(), driver.clone());
                if let Some(before) = before.filter(|before| before != driver) {
                    self.changes.entry(part.node.clone()).or_default().push(RunChange {
                        run: run.to_owned(),
                        at: at.clone(),
                        node: Some(part.node.clone()),
                        kind: RunChangeKind::Driver,
                        what: "driver".to_owned(),
                        before,
                        after: driver.clone(),
                    });
                }
            }
            let part = PartTestKey { driver: None, ..part.clone() };
            self.series.entry(part).or_default().push(TrendPoint {
                run: run.to_owned(),
                at: at.clone(),
                at_unix,
                value: shown.value,
                error: Some(shown.error),
                expected: None,
                outcome: None,
            });
        }
    }

    /// All alarms for a decrease.
    pub(super) fn into_alarms(self) -> Vec<YearDriftAlarm> {
        let mut rung = Vec::new();
        for (part, points) in self.series {
            let Some(gpu) = part.gpu else { continue };
            let times: BTreeMap<String, i64> =
                points.iter().map(|point| (point.run.clone(), point.at_unix)).collect();
            let mut trend = Trend {
                part: FabricPart {
                    kind: FabricPartKind::Gpu,
                    domain: None,
                    node: Some(part.node.clone()),
                    gpu: Some(gpu),
                    peer: None,
                    rail: None,
                    direction: Some(part.direction),
                },
                testcase: part.testcase.clone(),
                unit: Unit::GigabytesPerSecond,
                points,
                baseline: None,
                alarms: Vec::new(),
                changes: self.changes.get(&part.node).cloned().unwrap_or_default(),
            };
            drift::assess(&mut trend);
            let spot = FleetPosition::from_name(&part.node);
            rung.extend(trend.alarms.iter().filter(|alarm| alarm.shift < 0.0).filter_map(
                |alarm| {
                    let at_s = (times.get(&alarm.run)? - YEAR_START_UNIX) as f64;
                    Some(YearDriftAlarm { spot, gpu: gpu as usize, at_s })
                },
            ));
        }
        rung
    }
}
