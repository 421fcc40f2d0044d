//! A simulated year as one JSON document (`fabricgate.year/1`).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::YearSetting;
use super::fault::YearFaultClass;
use super::fleet::{GPUS, NODES};
use super::rule::YearRule;
use super::score::{WrongDrainCause, YearScore, median_and_p95, poisson_limits};

/// The format of the JSON document.
pub const YEAR_FORMAT: &str = "fabricgate.year/1";

/// The setting, and the result of each rule.
#[derive(Debug, Serialize, JsonSchema)]
pub struct YearDocument {
    /// Always `fabricgate.year/1`.
    format: &'static str,
    /// Seed of all randomness.
    seed: u64,
    /// Racks per world.
    racks: u64,
    /// Nodes per world.
    nodes: u64,
    /// GPUs per world.
    gpus: u64,
    /// Days per world.
    days: u64,
    /// Number of worlds.
    worlds: u64,
    /// Maximum share of a rack that one audit measures; absent if unlimited.
    share_of_domain: Option<f64>,
    /// Share of nodes that run jobs at night.
    busy: f64,
    /// Frequency of faults, relative to the rates that the study states.
    troubles: f64,
    /// Result of each rule.
    rules: Vec<YearRuleResult>,
}

/// Result of one rule over all worlds.
#[derive(Debug, Serialize, JsonSchema)]
struct YearRuleResult {
    /// Name of the rule.
    rule: String,
    /// GPUs times days.
    gpu_days: u64,
    /// Nodes measured, summed over the nights.
    nodes_measured: u64,
    /// Number of drains.
    drains: u64,
    /// Drains of nodes without a fault.
    wrong_drains: u64,
    /// 95 % confidence limits of that count.
    wrong_drains_limits: [f64; 2],
    /// Wrong drains by their true cause.
    wrong_drains_by_cause: BTreeMap<&'static str, u64>,
    /// Wrong drains by the class of their finding.
    wrong_drains_by_class: BTreeMap<String, u64>,
    /// Hours for which healthy nodes were drained.
    wrong_node_hours: f64,
    /// Hours for which nodes were drained.
    node_hours: f64,
    /// Maximum number of nodes drained at the same time.
    most_out: u64,
    /// Audits and tests that the gate froze.
    frozen: u64,
    /// Freezes by the gate's reason, without its numbers.
    frozen_by: BTreeMap<String, u64>,
    /// Number of times that operators set new levels, because everything was low by the same share.
    stated: u64,
    /// Number of times that the breaker tripped.
    tripped: u64,
    /// Drains that a budget prevented.
    stopped: u64,
    /// Suspicions that the second measurement did not confirm.
    unconfirmed: u64,
    /// Number of times that a node stayed in service until another run confirms it.
    waited: u64,
    /// Number of drift alarms.
    drift_alarms: u64,
    /// Drift alarms for parts without a fault.
    drift_alarms_without_fault: u64,
    /// Results by class of faults.
    classes: Vec<YearClassResult>,
}

/// Result for the faults of one class. Days are the median and the 95th percentile.
#[derive(Debug, Serialize, JsonSchema)]
struct YearClassResult {
    /// Name of the class.
    class: &'static str,
    /// Number of faults.
    faults: u64,
    /// Faults with an action.
    acted_on: u64,
    /// Faults with a report.
    told_of: u64,
    /// Faults of two weeks or longer without an action.
    missed: u64,
    /// Faults without an action when the year ended.
    open: u64,
    /// Days until the action.
    days_to_action: Option<[f64; 2]>,
    /// Days until the first report.
    days_to_telling: Option<[f64; 2]>,
    /// Faults with a drift alarm.
    drift_alarms: u64,
    /// Days until the drift alarm.
    days_to_drift_alarm: Option<[f64; 2]>,
}

/// All rules as one document.
pub fn build_document(setting: &YearSetting, years: &[(YearRule, YearScore)]) -> YearDocument {
    let ruled = |(rule, score): &(YearRule, YearScore)| YearRuleResult {
        rule: rule.name(),
        gpu_days: score.gpu_days,
        nodes_measured: score.measured,
        drains: score.drains,
        wrong_drains: score.wrong_drains(),
        wrong_drains_limits: poisson_limits(score.wrong_drains()),
        wrong_drains_by_cause: WrongDrainCause::ALL
            .iter()
            .map(|cause| (cause.as_str(), score.wrong_by_cause.get(cause).copied().unwrap_or(0)))
            .collect(),
        wrong_drains_by_class: score.wrong_by_class.clone(),
        wrong_node_hours: score.wrong_hours,
        node_hours: score.hours,
        most_out: score.most_out,
        frozen: score.frozen,
        frozen_by: score.frozen_by.clone(),
        stated: score.level_updates,
        tripped: score.tripped,
        stopped: score.stopped,
        unconfirmed: score.unconfirmed,
        waited: score.deferred,
        drift_alarms: score.drift_alarms[0],
        drift_alarms_without_fault: score.drift_alarms[1],
        classes: class_results(score),
    };
    YearDocument {
        format: YEAR_FORMAT,
        seed: setting.seed,
        racks: setting.racks as u64,
        nodes: (setting.racks * NODES) as u64,
        gpus: (setting.racks * NODES * GPUS) as u64,
        days: setting.days as u64,
        worlds: setting.worlds as u64,
        share_of_domain: setting.share_of_domain,
        busy: setting.busy,
        troubles: setting.fault_factor,
        rules: years.iter().map(ruled).collect(),
    }
}

fn class_results(score: &YearScore) -> Vec<YearClassResult> {
    let all = YearFaultClass::ALL
        .iter()
        .filter_map(|(class, _)| Some((class, score.by_class.get(class)?)));
    all.map(|(class, found)| YearClassResult {
        class: class.as_str(),
        faults: found.faults,
        acted_on: found.acted_on.len() as u64,
        told_of: found.reported.len() as u64,
        missed: found.missed,
        open: found.open,
        days_to_action: median_and_p95(&found.acted_on),
        days_to_telling: median_and_p95(&found.reported),
        drift_alarms: found.drift_alarms.len() as u64,
        days_to_drift_alarm: median_and_p95(&found.drift_alarms),
    })
    .collect()
}
