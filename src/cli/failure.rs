//! Failures that are not bugs, each with its exit code.

use super::exit;

/// Somebody's mistake, or the world's.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The command line, a configuration or a claim is wrong.
    #[error("{0}")]
    Usage(String),
    /// A file, tool, node or scheduler cannot be reached.
    #[error("{0}")]
    Environment(String),
    /// A person has asked that it not be done now.
    #[error("{0}")]
    Refused(String),
}

impl CommandError {
    /// Its exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => exit::USAGE,
            Self::Environment(_) => exit::ENVIRONMENT,
            Self::Refused(_) => exit::ACTION_REFUSED,
        }
    }

    /// A usage failure with this text.
    #[expect(clippy::needless_pass_by_value, reason = "made for map_err, which gives values")]
    pub fn usage(text: impl ToString) -> Self {
        Self::Usage(text.to_string())
    }

    /// An environment failure with this text.
    #[expect(clippy::needless_pass_by_value, reason = "made for map_err, which gives values")]
    pub fn environment(text: impl ToString) -> Self {
        Self::Environment(text.to_string())
    }
}

/// The exit code of an error that ends the program.
pub fn exit_code_of(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<CommandError>() {
        Some(failure) => failure.exit_code(),
        None => exit::INTERNAL,
    }
}

/// Whether the error is that nobody reads our output any more.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        let json =
            cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        io.or(json) == Some(std::io::ErrorKind::BrokenPipe)
    })
}
