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

/// What was simulated, and what each rule made of it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct YearDocument {
    /// `fabricgate.year/1`.
    format: &'static str,
    /// The seed of everything that is by chance.
    seed: u64,
    /// Racks of a world.
    racks: u64,
    /// Nodes of a world.
    nodes: u64,
    /// GPUs of a world.
    gpus: u64,
    /// Days of a world.
    days: u64,
    /// Worlds.
    worlds: u64,
    /// Share of a rack that one audit may measure; absent where it may all.
    share_of_domain: Option<f64>,
    /// Share of nodes that jobs use at night.
    busy: f64,
    /// How often faults come, relative to the rates that the study names.
    troubles: f64,
    /// What each rule made of it.
    rules: Vec<YearRuleResult>,
}

/// What one rule made of all worlds.
#[derive(Debug, Serialize, JsonSchema)]
struct YearRuleResult {
    /// The rule.
    rule: String,
    /// GPUs times days.
    gpu_days: u64,
    /// Nodes that were measured, night by night.
    nodes_measured: u64,
    /// Drains.
    drains: u64,
    /// Drains of nodes without a fault.
    wrong_drains: u64,
    /// The 95 % limits of that count.
    wrong_drains_limits: [f64; 2],
    /// Wrong drains by what was taken for a fault.
    wrong_drains_by_cause: BTreeMap<&'static str, u64>,
    /// Wrong drains by the class of what they were for.
    wrong_drains_by_class: BTreeMap<String, u64>,
    /// Hours that nodes without a fault were out.
    wrong_node_hours: f64,
    /// Hours that nodes were out.
    node_hours: f64,
    /// Nodes that were out at once, at most.
    most_out: u64,
    /// Audits and tests that were frozen.
    frozen: u64,
    /// The same by what the gate said, numbers left out.
    frozen_by: BTreeMap<String, u64>,
    /// Times that people stated new levels, since everything was low alike.
    stated: u64,
    /// Times that the breaker tripped.
    tripped: u64,
    /// Drains that a budget stopped.
    stopped: u64,
    /// Suspicions that no second look confirmed.
    unconfirmed: u64,
    /// Times that a node was left in service until another run says the same.
    waited: u64,
    /// Drift alarms.
    drift_alarms: u64,
    /// Those of parts without a fault.
    drift_alarms_without_fault: u64,
    /// What became of each class of faults.
    classes: Vec<YearClassResult>,
}

/// What became of the faults of one class. Days are the median and the 95th percentile.
#[derive(Debug, Serialize, JsonSchema)]
struct YearClassResult {
    /// The class.
    class: &'static str,
    /// Faults that came.
    faults: u64,
    /// Those that were acted on.
    acted_on: u64,
    /// Those that were told of.
    told_of: u64,
    /// Those that were there for two weeks or longer and never acted on.
    missed: u64,
    /// Those that the year ended before.
    open: u64,
    /// Days until something was done.
    days_to_action: Option<[f64; 2]>,
    /// Days until something was said.
    days_to_telling: Option<[f64; 2]>,
    /// Faults with a drift alarm.
    drift_alarms: u64,
    /// Days until that.
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
