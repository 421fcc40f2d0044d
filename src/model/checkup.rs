//! What a machine has and lacks to run probes (`fabricgate doctor`).
//!
//! Types only; `doctor` looks, and nothing is judged by it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The format of [`CheckupDocument`].
pub const CHECKUP_FORMAT: &str = "fabricgate.doctor/1";

/// What `doctor --json` prints: one checkup per machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckupDocument {
    /// `fabricgate.doctor/1`.
    pub format: String,
    /// The machines, in order of name.
    pub machines: Vec<Checkup>,
}

/// One machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Checkup {
    /// What it is called: the node, or its own hostname.
    pub machine: String,
    /// What was looked at.
    pub checks: Vec<CheckupItem>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckupItem {
    /// What it belongs to.
    pub area: CheckupArea,
    /// What it is: a program, a device, a limit.
    pub what: String,
    /// Whether it is there.
    pub state: CheckupState,
    /// What was seen.
    pub detail: String,
    /// Whether a sweep goes without it only in part: the probes of the default
    /// profiles need it.
    pub needed: bool,
    /// The probes that need it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// What a check belongs to.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum CheckupArea {
    /// The driver and its devices.
    Driver,
    /// Programs that probes run.
    Programs,
    /// IMEX, which joins the memory of nodes.
    Imex,
    /// RDMA devices and what using them needs.
    Network,
    /// Schedulers.
    Scheduler,
    /// The machine itself: limits, folders.
    Machine,
}

impl CheckupArea {
    /// Its name in words.
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

/// Whether something is there.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum CheckupState {
    /// It is, and can be used.
    Has,
    /// It is not, and fabricgate measures in its place.
    Fallback,
    /// Nobody can tell from here.
    Unknown,
    /// It is not, or cannot be used.
    Lacks,
}

impl CheckupState {
    /// Its name in documents.
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
    /// Something that is there.
    pub fn available(
        area: CheckupArea,
        what: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        Self::new(area, what, CheckupState::Has, detail)
    }

    /// Something that is not there and that fabricgate itself stands in for.
    pub fn fallback(area: CheckupArea, what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(area, what, CheckupState::Fallback, detail)
    }

    /// Something that is not there, with what to do about it.
    pub fn missing(
        area: CheckupArea,
        what: impl Into<String>,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { remedy: Some(remedy.into()), ..Self::new(area, what, CheckupState::Lacks, detail) }
    }

    /// Something that cannot be told.
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

    /// The same, as something that default sweeps need.
    #[must_use]
    pub fn mark_needed(self) -> Self {
        Self { needed: true, ..self }
    }
}
