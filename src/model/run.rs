//! One run: the complete content of a report, as one value.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::action::ActionPlan;
use super::claims::Claims;
use super::measured_cell::MeasuredCell;
use super::verdict::Verdicts;

/// Metadata of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunInfo {
    /// Its id, unique and ordered by time.
    pub id: String,
    /// Time of the run, RFC 3339.
    pub created: String,
    /// The requested profile or command: `audit`, `judge`, ...
    pub profile: String,
    /// Where the measurements came from, for readers.
    pub source: String,
    /// Version of fabricgate that made it.
    pub version: String,
    /// The measurements come from a simulated fabric, not from hardware; also true for a replay
    /// of such a run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
}

/// The notice on every rendering of a simulated run.
pub const SIMULATION_NOTICE: &str = "SIMULATED: no hardware was measured";

/// The notice, if the run was simulated.
pub fn simulation_notice(is_simulated: bool) -> Option<&'static str> {
    is_simulated.then_some(SIMULATION_NOTICE)
}

impl RunInfo {
    /// The notice at the top of a rendering, if the run was simulated.
    pub fn simulation_notice(&self) -> Option<&'static str> {
        simulation_notice(self.simulated)
    }
}

/// One run with everything that a report can show.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Metadata of the run.
    pub info: RunInfo,
    /// The claims under test.
    pub claims: Claims,
    /// Every cell, in the direction of the data.
    pub cells: Vec<MeasuredCell>,
    /// The verdicts of the judge.
    pub verdicts: Verdicts,
    /// The action plan, where one was made.
    pub actions: Option<ActionPlan>,
}
