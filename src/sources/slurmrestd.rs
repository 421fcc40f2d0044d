//! Asks Slurm's controller through slurmrestd.

use std::time::Duration;

use crate::model::said::Said;

/// Where slurmrestd is, and who asks.
#[derive(Clone, PartialEq, Eq)]
#[expect(missing_debug_implementations, reason = "holds a token")]
pub struct Slurmrestd {
    /// `http://host:6820`, `https://host:6820`, or `unix:/run/slurmrestd.sock`.
    pub address: String,
    /// The JSON web token, where one is needed.
    pub token: Option<String>,
    /// The user it is for, where the token does not say.
    pub user: Option<String>,
    /// How long one question may take.
    pub limit: Duration,
}

/// Asks for nodes and partitions.
pub async fn ask(rest: &Slurmrestd) -> Vec<Said> {
    let _ = rest;
    Vec::new()
}
