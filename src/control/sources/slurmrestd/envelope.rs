//! The common parts of slurmrestd's answers: errors, the reply to a ping, and the list of
//! paths. Nodes and partitions are not parsed here.

use serde::Deserialize;

use model::source_report::SourceProblemKind;
use model::text::clean;

/// The common envelope of every answer.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct SlurmrestdEnvelope {
    pub(super) errors: Vec<SlurmrestdFault>,
    /// They include parts of a change that were not understood, and so not made.
    pub(super) warnings: Vec<SlurmrestdFault>,
    pub(super) pings: Option<Vec<SlurmrestdPing>>,
}

/// One error of an answer.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct SlurmrestdFault {
    pub(super) description: Option<String>,
    pub(super) error_number: i64,
    pub(super) error: Option<String>,
}

impl SlurmrestdFault {
    pub(super) fn describe(&self) -> String {
        let texts = [self.description.as_deref(), self.error.as_deref()];
        let texts: Vec<String> =
            texts.into_iter().flatten().map(clean).filter(|text| !text.is_empty()).collect();
        match (texts.is_empty(), self.error_number) {
            (true, number) => format!("error {number}"),
            (false, 0) => texts.join(": "),
            (false, number) => format!("{} (error {number})", texts.join(": ")),
        }
    }

    /// By the numbers of `slurm_errno.h`.
    pub(super) fn problem_kind(&self) -> Option<SourceProblemKind> {
        match self.error_number {
            // Protocol authentication error, access denied, invalid user id.
            1007 | 2002 | 2010 => Some(SourceProblemKind::Denied),
            // Communication with the controller.
            1000..=1006 | 1008..=1999 => Some(SourceProblemKind::Unreachable),
            _ => None,
        }
    }
}

/// One controller's reply to a ping.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct SlurmrestdPing {
    pub(super) hostname: Option<String>,
    pub(super) responding: Option<bool>,
    pub(super) pinged: Option<String>,
    pub(super) status: Option<String>,
}

impl SlurmrestdPing {
    /// v0.0.40 has `pinged` only, v0.0.45 `responding` only, with a `status` text; the versions
    /// between have both.
    pub(super) fn is_up(&self) -> bool {
        self.responding.unwrap_or_else(|| self.pinged.as_deref() != Some("DOWN"))
    }
}

/// The newest version for which the document names a list of nodes.
pub(super) fn newest_version(document: &str) -> Option<String> {
    let document: serde_json::Value = serde_json::from_str(document).ok()?;
    let numbers = document.get("paths")?.as_object()?.keys().filter_map(|path| {
        let version = path.strip_prefix("/slurm/v0.0.")?.strip_suffix("/nodes/")?;
        version.parse::<u32>().ok()
    });
    numbers.max().map(|number| format!("v0.0.{number}"))
}
