//! The history of a part's readings over runs: points, baseline, steps, and other changes at the
//! same time (`fabricgate.history/1`).
//!
//! Plain values. `record::history` stores and finds them, `judge::drift` computes baseline and
//! steps, and a report renders them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::id::{DomainName, NodeName};
use super::unit::Unit;
use super::verdict::{Direction, Outcome};

/// Format name of `fabricgate history --json`.
pub const HISTORY_FORMAT: &str = "fabricgate.history/1";

/// The kind of part behind a series of readings.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum FabricPartKind {
    /// A path between two ends.
    Link,
    /// A GPU: the median over its partners.
    Gpu,
    /// A node: its slowest GPU.
    Node,
    /// A node's port on a rail.
    Rail,
    /// A domain: its overall level.
    Domain,
}

/// One part, described so that runs are comparable. Fields that do not apply are absent.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct FabricPart {
    /// Kind of the part.
    pub kind: FabricPartKind,
    /// Its claimed domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// Its node; for a path, the source of the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// GPU index on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The other end of a path: `node:gpu` or `node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Name of its rail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<String>,
    /// Direction of the data, seen from the part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
}

/// The value of a part in one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrendPoint {
    /// Id of the run.
    pub run: String,
    /// Time of the run, RFC 3339.
    pub at: String,
    /// Time of the run, in seconds since 1970.
    pub at_unix: i64,
    /// The median of its readings.
    pub value: f64,
    /// Its relative standard error, where it can be estimated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// The expectation at that time, where the platform had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<f64>,
    /// The outcome; absent where it was not judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

/// The usual value of a part, from points without findings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrendBaseline {
    /// The trimmed mean, in the unit of the series.
    pub mean: f64,
    /// Robust standard deviation, as a share of the mean.
    pub spread: f64,
    /// The number of points behind it.
    pub count: usize,
    /// The first run of the baseline: earlier runs had other hardware or another driver.
    pub since: String,
}

/// A departure of a series from its baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrendAlarm {
    /// The run in which the sum crossed the limit.
    pub run: String,
    /// Time of that run, RFC 3339.
    pub at: String,
    /// The run in which the departure began.
    pub since: String,
    /// Size of the departure as a share of the baseline; negative is a loss.
    pub shift: f64,
    /// The test statistic, in standard deviations.
    pub statistic: f64,
    /// The chart that raised the alarm: `fast` for steps, `slow` for drifts.
    pub chart: String,
    /// The departure persists: the part did not recover, was not changed, and its new level was
    /// not adopted as baseline.
    #[serde(default)]
    pub stands: bool,
}

/// The kinds of changes between consecutive runs.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum RunChangeKind {
    /// The driver version.
    Driver,
    /// A firmware version.
    Firmware,
    /// A GPU's UUID or serial: other hardware.
    Hardware,
    /// Chassis, slot or tray.
    Slot,
    /// The device at the other end of a port.
    Neighbour,
    /// A reboot of the node.
    Boot,
    /// The claims about the node.
    Claim,
    /// The expected values.
    Thresholds,
    /// The version of fabricgate or of the measuring tool.
    Tool,
}

/// One change between two runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunChange {
    /// The first run with the new state.
    pub run: String,
    /// Time of that run, RFC 3339.
    pub at: String,
    /// The changed node; absent for a change of all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// Kind of the change.
    pub kind: RunChangeKind,
    /// The changed property: `driver`, `GPU 2 vbios`.
    pub what: String,
    /// The old state.
    pub before: String,
    /// The new state.
    pub after: String,
}

/// The readings of a part in one test, over runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trend {
    /// The measured part.
    pub part: FabricPart,
    /// Name of the test.
    pub testcase: String,
    /// Unit of the values.
    pub unit: Unit,
    /// The values, in order of time.
    pub points: Vec<TrendPoint>,
    /// The baseline; absent where there are too few points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<TrendBaseline>,
    /// Departures from the baseline, in order of time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alarms: Vec<TrendAlarm>,
    /// Changes over the same period, in order of time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<RunChange>,
}

impl Trend {
    /// Changes between the run in which a departure began and the run that raised the alarm: its
    /// possible causes.
    pub fn changes_during(&self, alarm: &TrendAlarm) -> Vec<&RunChange> {
        let since = self.points.iter().find(|point| point.run == alarm.since);
        let from = since.map_or(&alarm.at, |point| &point.at);
        self.changes.iter().filter(|c| *from <= c.at && c.at <= alarm.at).collect()
    }

    /// Whether an alarm is for the worse: a lower bandwidth or a higher latency.
    pub fn is_worse(&self, alarm: &TrendAlarm) -> bool {
        if self.unit.is_bandwidth() { alarm.shift < 0.0 } else { 0.0 < alarm.shift }
    }

    /// The last alarm, if it is for the worse and persists.
    pub fn open_alarm(&self) -> Option<OpenAlarm> {
        let alarm = self.alarms.last().filter(|alarm| alarm.stands && self.is_worse(alarm))?;
        Some(OpenAlarm {
            part: self.part.clone(),
            testcase: self.testcase.clone(),
            alarm: alarm.clone(),
            beside: self.changes_during(alarm).into_iter().cloned().collect(),
        })
    }

    /// The most recent point.
    pub fn last_point(&self) -> Option<&TrendPoint> {
        self.points.last()
    }

    /// The last value as a share of the baseline, inverted for a latency, so that less is always
    /// worse.
    pub fn ratio_to_usual(&self) -> Option<f64> {
        let (last, usual) = (self.last_point()?.value, self.baseline.as_ref()?.mean);
        let share = if self.unit.is_bandwidth() { last / usual } else { usual / last };
        Some(share).filter(|share| share.is_finite())
    }
}

/// An alarm for the worse that persists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OpenAlarm {
    /// The affected part.
    pub part: FabricPart,
    /// Name of the test.
    pub testcase: String,
    /// The alarm itself.
    pub alarm: TrendAlarm,
    /// Changes between the run in which the departure began and the run that raised the alarm.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<RunChange>,
}

/// The history of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeHistory {
    /// Name of the node.
    pub node: NodeName,
    /// Its claimed domain in the last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// Number of runs that measured it.
    pub runs: usize,
    /// Id of the last run.
    pub last_run: String,
    /// Time of the last run, RFC 3339.
    pub last_at: String,
    /// Profile of the last run.
    pub profile: String,
    /// The verdict of the last run.
    pub outcome: Outcome,
    /// The value of its worst part in the last run, as a share of the expectation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst: Option<f64>,
}

/// The output of `fabricgate history --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryDocument {
    /// `fabricgate.history/1`.
    pub format: String,
    /// Path of the history file.
    pub file: String,
    /// Number of runs in the history.
    pub runs: usize,
    /// The runs come from a simulated fabric, not from hardware.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// Time of the first run, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
    /// Time of the last run, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
    /// Nodes, in order of name.
    pub nodes: Vec<NodeHistory>,
    /// The requested series.
    pub trends: Vec<Trend>,
    /// Mean number of runs until these series together raise one false alarm for a loss; absent
    /// where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs_per_false_alarm: Option<f64>,
    /// Remarks about unreadable entries and rebuilt indices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}
