//! What a probe is: a tool, how it is called, and what it costs.
//!
//! Plans are made from these and launchers run them. Reading probe files is
//! the catalog's work (`probe::catalog`).

use schemars::JsonSchema;
use serde::Deserialize;
use serde::Serialize;

use super::parsed::Tool;

/// Where one execution of a probe runs.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ProbeScope {
    /// On one node, using nothing outside it.
    Node,
}

/// What a probe takes away from others while it runs.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Disturbs {
    /// Driver queries only.
    Nothing,
    /// GPU memory, copy engines, NVLink: jobs there slow down or fail.
    Gpus,
}

impl Disturbs {
    /// The name used in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Gpus => "gpus",
        }
    }
}

/// What must hold before a probe makes sense.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Preconditions {
    /// Fewest GPUs on the node.
    pub min_gpus: u32,
    /// No job may use the GPUs meanwhile.
    pub idle_gpus: bool,
}

/// One probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Probe {
    /// Its name, unique in a catalog.
    pub name: String,
    /// What it is, for people.
    pub title: String,
    /// Whose output it prints; the output is still recognised by content.
    pub parser: Tool,
    /// The command; `{gpus}` stands for the number of GPUs of the node.
    pub argv: Vec<String>,
    /// Where it runs.
    pub scope: ProbeScope,
    /// The sweep's stage: 0 identity and state, 1 inside the node.
    pub stage: u8,
    /// What must hold before.
    pub requires: Preconditions,
    /// How long it takes on a healthy node, in seconds.
    pub cost_s: f64,
    /// When it is given up, in seconds.
    pub timeout_s: f64,
    /// What it takes away from others.
    pub disturbs: Disturbs,
    /// The file it was read from, as shown to people.
    pub origin: String,
}

/// The placeholder for the number of GPUs.
pub const GPUS: &str = "{gpus}";

impl Probe {
    /// Whether the command depends on the number of GPUs.
    pub fn needs_gpu_count(&self) -> bool {
        self.argv.iter().any(|word| word.contains(GPUS))
    }

    /// The command for a node with this many GPUs; `None` where the command
    /// depends on it and it is not known.
    pub fn command(&self, gpus: Option<u32>) -> Option<Vec<String>> {
        if !self.needs_gpu_count() {
            return Some(self.argv.clone());
        }
        let gpus = gpus?.to_string();
        Some(self.argv.iter().map(|word| word.replace(GPUS, &gpus)).collect())
    }
}
