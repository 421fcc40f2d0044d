//! One run: everything a report shows, as one value.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::action::ActionPlan;
use super::claims::Claims;
use super::measured_cell::MeasuredCell;
use super::verdict::Verdicts;

/// What the run was, apart from what it found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunInfo {
    /// Its id, unique and ordered by time.
    pub id: String,
    /// When it was made, RFC 3339.
    pub created: String,
    /// What was asked for: `audit`, `judge`, ...
    pub profile: String,
    /// Where the measurements came from, for people.
    pub source: String,
    /// Version of fabricgate.
    pub version: String,
    /// A simulated fabric answered, also where its run was replayed: no hardware was
    /// measured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
}

/// What every form of a simulated run says.
pub const SIMULATION_NOTICE: &str = "SIMULATED: no hardware was measured";

/// That sentence, where a run was simulated.
pub fn simulation_notice(is_simulated: bool) -> Option<&'static str> {
    is_simulated.then_some(SIMULATION_NOTICE)
}

impl RunInfo {
    /// What its forms say first where it was simulated.
    pub fn simulation_notice(&self) -> Option<&'static str> {
        simulation_notice(self.simulated)
    }
}

/// One run with all that a report can show.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// What it was.
    pub info: RunInfo,
    /// What was claimed.
    pub claims: Claims,
    /// Every cell, in the direction of the data.
    pub cells: Vec<MeasuredCell>,
    /// What the judge says.
    pub verdicts: Verdicts,
    /// What is proposed, where an action plan was made.
    pub actions: Option<ActionPlan>,
}
