//! How a part's readings went over runs: points, what is usual, where it stepped,
//! and what else changed at that time (`fabricgate.history/1`).
//!
//! Plain values. `record::history` keeps and finds them, `judge::drift` says what
//! is usual and where a step is; a report shows them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::id::{DomainName, NodeName};
use super::unit::Unit;
use super::verdict::{Direction, Outcome};

/// The format of `fabricgate history --json`.
pub const HISTORY_FORMAT: &str = "fabricgate.history/1";

/// What kind of part a series of readings belongs to.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum FabricPartKind {
    /// A path between two ends.
    Link,
    /// A GPU: the median over its partners.
    Gpu,
    /// A node: its least GPU.
    Node,
    /// A node's port on a rail.
    Rail,
    /// A domain: its level.
    Domain,
}

/// One part, as far as runs can be compared. What does not apply is absent.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct FabricPart {
    /// What it is.
    pub kind: FabricPartKind,
    /// Its domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// Its node; of a path, where the data came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// Its GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The other end of a path: `node:gpu` or `node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Its rail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<String>,
    /// Which way the data moved, seen from the part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
}

/// What a part showed in one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrendPoint {
    /// The run.
    pub run: String,
    /// When it was made, RFC 3339.
    pub at: String,
    /// The same in seconds since 1970.
    pub at_unix: i64,
    /// The median of its readings.
    pub value: f64,
    /// Its relative standard error, where it can be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// What was expected then, where a platform said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<f64>,
    /// How it came out; absent where nothing judged it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

/// What is usual for a part, from points that nothing was found against.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrendBaseline {
    /// The trimmed mean, in the unit of the series.
    pub mean: f64,
    /// Robust standard deviation, as a share of the mean.
    pub spread: f64,
    /// How many points it rests on.
    pub count: usize,
    /// The run it begins with: what came before was other hardware or driver.
    pub since: String,
}

/// Where a series left what was usual.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrendAlarm {
    /// The run at which the sum crossed the line.
    pub run: String,
    /// When, RFC 3339.
    pub at: String,
    /// The run from which on it was going that way.
    pub since: String,
    /// How much it left, as a share of what was usual; negative is less.
    pub shift: f64,
    /// The statistic, in standard deviations.
    pub statistic: f64,
    /// Which chart rang: `fast` for steps, `slow` for drifts.
    pub chart: String,
    /// The part is still where it went: it did not come back, nothing of it was
    /// changed, and where it is was not learnt as usual.
    #[serde(default)]
    pub stands: bool,
}

/// What is not the same as in the run before.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum RunChangeKind {
    /// Driver version.
    Driver,
    /// A firmware version.
    Firmware,
    /// A GPU's UUID or serial: other hardware.
    Hardware,
    /// Chassis, slot or tray.
    Slot,
    /// What a port is connected to.
    Neighbour,
    /// The kernel was booted.
    Boot,
    /// What was claimed of the node.
    Claim,
    /// Which numbers were expected.
    Thresholds,
    /// fabricgate or the tool that measured.
    Tool,
}

/// One thing that changed between two runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunChange {
    /// The first run that shows the new state.
    pub run: String,
    /// When that was, RFC 3339.
    pub at: String,
    /// Whose it is; absent where it is everybody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// What kind of thing.
    pub kind: RunChangeKind,
    /// Which thing, in words: `driver`, `GPU 2 vbios`.
    pub what: String,
    /// How it was.
    pub before: String,
    /// How it is.
    pub after: String,
}

/// A part's readings in one test, over runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trend {
    /// Whose.
    pub part: FabricPart,
    /// The test.
    pub testcase: String,
    /// The unit of values.
    pub unit: Unit,
    /// In order of time.
    pub points: Vec<TrendPoint>,
    /// What is usual; absent where there is too little.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<TrendBaseline>,
    /// Where it left that, in order of time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alarms: Vec<TrendAlarm>,
    /// What changed meanwhile, in order of time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<RunChange>,
}

impl Trend {
    /// What changed from the run that an alarm dates back to until the run that
    /// rang it: what may be behind it.
    pub fn changes_during(&self, alarm: &TrendAlarm) -> Vec<&RunChange> {
        let since = self.points.iter().find(|point| point.run == alarm.since);
        let from = since.map_or(&alarm.at, |point| &point.at);
        self.changes.iter().filter(|c| *from <= c.at && c.at <= alarm.at).collect()
    }

    /// Whether an alarm is for the worse: less, or of a latency more.
    pub fn is_worse(&self, alarm: &TrendAlarm) -> bool {
        if self.unit.is_bandwidth() { alarm.shift < 0.0 } else { 0.0 < alarm.shift }
    }

    /// The alarm for the worse that nothing has ended.
    pub fn open_alarm(&self) -> Option<OpenAlarm> {
        let alarm = self.alarms.last().filter(|alarm| alarm.stands && self.is_worse(alarm))?;
        Some(OpenAlarm {
            part: self.part.clone(),
            testcase: self.testcase.clone(),
            alarm: alarm.clone(),
            beside: self.changes_during(alarm).into_iter().cloned().collect(),
        })
    }

    /// The last point.
    pub fn last_point(&self) -> Option<&TrendPoint> {
        self.points.last()
    }

    /// The last value as a share of what is usual; of a latency the other way
    /// round, so that less is always worse.
    pub fn ratio_to_usual(&self) -> Option<f64> {
        let (last, usual) = (self.last_point()?.value, self.baseline.as_ref()?.mean);
        let share = if self.unit.is_bandwidth() { last / usual } else { usual / last };
        Some(share).filter(|share| share.is_finite())
    }
}

/// An alarm for the worse that nothing has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OpenAlarm {
    /// Whose.
    pub part: FabricPart,
    /// The test.
    pub testcase: String,
    /// The alarm.
    pub alarm: TrendAlarm,
    /// What changed from the run that it dates back to until the run that rang it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<RunChange>,
}

/// A node in the history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeHistory {
    /// The node.
    pub node: NodeName,
    /// The domain it was claimed to be in the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// In how many runs it was measured.
    pub runs: usize,
    /// The last of them.
    pub last_run: String,
    /// When that was, RFC 3339.
    pub last_at: String,
    /// Under which profile.
    pub profile: String,
    /// How the node came out.
    pub outcome: Outcome,
    /// What its least part showed then, as a share of what was expected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst: Option<f64>,
}

/// `fabricgate history --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryDocument {
    /// `fabricgate.history/1`.
    pub format: String,
    /// The file it comes from.
    pub file: String,
    /// How many runs there are.
    pub runs: usize,
    /// They are of a simulated fabric: no hardware was measured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// When the first of them was, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
    /// When the last was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
    /// Nodes, in order of name.
    pub nodes: Vec<NodeHistory>,
    /// The series that were asked for.
    pub trends: Vec<Trend>,
    /// In how many runs these series together give one false alarm for less, in
    /// the mean; absent where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs_per_false_alarm: Option<f64>,
    /// What could not be read, what was made anew.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}
