//! The documented exit codes, and the command failures that map to them.

use model::verdict::Outcome;

/// Everything required was measured, and is as expected.
pub const PASS: u8 = 0;
/// A bug in fabricgate.
pub const INTERNAL: u8 = 1;
/// The command line, a configuration or a claim is wrong.
pub const USAGE: u8 = 2;
/// The gate is closed: something is degraded or failed.
pub const GATE_CLOSED: u8 = 3;
/// Inconclusive: an outcome is unknown, and none is worse.
pub const INCONCLUSIVE: u8 = 4;
/// A scheduler, tool, node or file cannot be reached.
pub const ENVIRONMENT: u8 = 5;
/// A budget refused an action, or it was only partly carried out.
pub const ACTION_REFUSED: u8 = 6;

/// Why a command failed; each variant has its exit code.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The command line, a configuration or a claim is wrong.
    #[error("{0}")]
    Usage(String),
    /// A file, tool, node or scheduler cannot be reached.
    #[error("{0}")]
    Environment(String),
    /// An operator has paused this action.
    #[error("{0}")]
    Refused(String),
}

impl CommandError {
    /// The exit code of this failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => USAGE,
            Self::Environment(_) => ENVIRONMENT,
            Self::Refused(_) => ACTION_REFUSED,
        }
    }

    /// A usage failure with this text.
    #[expect(clippy::needless_pass_by_value, reason = "used with map_err, which passes values")]
    pub fn usage(text: impl ToString) -> Self {
        Self::Usage(text.to_string())
    }

    /// An environment failure with this text.
    #[expect(clippy::needless_pass_by_value, reason = "used with map_err, which passes values")]
    pub fn environment(text: impl ToString) -> Self {
        Self::Environment(text.to_string())
    }
}

/// The exit code of an error that ends the program.
pub fn exit_code_of(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<CommandError>() {
        Some(failure) => failure.exit_code(),
        None => INTERNAL,
    }
}

/// The exit code of an outcome; `out_of_reach` means that an input could not be read or a report
/// not written.
pub fn outcome_exit_code(outcome: Outcome, out_of_reach: bool) -> u8 {
    match outcome {
        Outcome::Degraded | Outcome::Failed => GATE_CLOSED,
        Outcome::Pass | Outcome::Unknown if out_of_reach => ENVIRONMENT,
        Outcome::Unknown => INCONCLUSIVE,
        Outcome::Pass => PASS,
    }
}

/// Whether the error is a closed pipe on the output.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        let json =
            cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        io.or(json) == Some(std::io::ErrorKind::BrokenPipe)
    })
}
