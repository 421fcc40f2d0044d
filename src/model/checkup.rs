//! The prerequisites of a machine for running probes (`fabricgate doctor`).
//!
//! Types only; `doctor` fills them in. They do not affect any verdict.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Format name of [`CheckupDocument`].
pub const CHECKUP_FORMAT: &str = "fabricgate.doctor/1";

/// The output of `doctor --json`: one checkup per machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckupDocument {
    /// `fabricgate.doctor/1`.
    pub format: String,
    /// The machines, in order of name.
    pub machines: Vec<Checkup>,
}

/// The checkup of one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Checkup {
    /// Name of the machine: its node name, or its own hostname.
    pub machine: String,
    /// The individual checks.
    pub checks: Vec<CheckupItem>,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckupItem {
    /// Group of the check.
    pub area: CheckupArea,
    /// The checked program, device or limit.
    pub what: String,
    /// Result of the check.
    pub state: CheckupState,
    /// Details of the result.
    pub detail: String,
    /// True if a sweep is incomplete without it: the probes of the default profiles need it.
    pub needed: bool,
    /// The probes that need it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<String>,
    /// How to fix it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// Group of a check.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum CheckupArea {
    /// The GPU driver and its device files.
    Driver,
    /// Programs that the probes run.
    Programs,
    /// IMEX, which shares GPU memory between nodes.
    Imex,
    /// RDMA devices and their prerequisites.
    Network,
    /// Scheduler clients and their configuration.
    Scheduler,
    /// The machine itself: limits and folders.
    Machine,
}

impl CheckupArea {
    /// The name in text output.
    pub fn label(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Programs => "programs",
            Self::Imex => "IMEX",
            Self::Network => "network",
            Self::Scheduler => "scheduler",
            Self::Machine => "machine",
        }
    }
}

/// Result of a check.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum CheckupState {
    /// Present and usable.
    Has,
    /// Missing; fabricgate uses its native implementation instead.
    Fallback,
    /// Not determined.
    Unknown,
    /// Missing or unusable.
    Lacks,
}

impl CheckupState {
    /// The name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Has => "has",
            Self::Fallback => "fallback",
            Self::Unknown => "unknown",
            Self::Lacks => "lacks",
        }
    }
}

impl CheckupItem {
    /// A check that passed.
    pub fn available(
        area: CheckupArea,
        what: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        Self::new(area, what, CheckupState::Has, detail)
    }

    /// A check for something that is missing and that a native implementation replaces.
    pub fn fallback(area: CheckupArea, what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(area, what, CheckupState::Fallback, detail)
    }

    /// A failed check, with its remedy.
    pub fn missing(
        area: CheckupArea,
        what: impl Into<String>,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { remedy: Some(remedy.into()), ..Self::new(area, what, CheckupState::Lacks, detail) }
    }

    /// A check without a result.
    pub fn unknown(area: CheckupArea, what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(area, what, CheckupState::Unknown, detail)
    }

    fn new(
        area: CheckupArea,
        what: impl Into<String>,
        state: CheckupState,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            area,
            what: what.into(),
            state,
            detail: detail.into(),
            needed: false,
            probes: Vec::new(),
            remedy: None,
        }
    }

    /// Marks the check as a prerequisite of the default sweeps.
    #[must_use]
    pub fn mark_needed(self) -> Self {
        Self { needed: true, ..self }
    }
}
