//! Which variables of our own environment a process is not given.
//!
//! Tokens and addresses that let somebody in are for this program alone. What is
//! started inherits the rest: tools are steered by variables nobody can list. Slurm
//! carries the environment of `srun` to the node, so that a secret in it would be
//! in the hands of every node's superuser.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::Mutex;

use tokio::process::Command;

use crate::model::worker::Confidence;

/// How names of variables end that hold what lets somebody in.
const ENDINGS: [&str; 11] = [
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "API_KEY",
    "ACCESS_KEY",
    "PRIVATE_KEY",
    "SECRET_KEY",
    "CREDENTIALS",
    "WEBHOOK_URL",
];

/// The token of Slurm's own programs (`scontrol token`).
const SLURM: &str = "SLURM_JWT";

/// Variables that the configuration says hold a secret.
static NAMED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Keeps a variable from everything that is started from now on, but from commands of
/// this program that do the same work.
pub fn withhold(name: &str) {
    NAMED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(name.to_owned());
}

/// Whether the name of a variable says that it lets somebody in.
fn tells(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    name == SLURM || ENDINGS.iter().any(|end| name.ends_with(end))
}

/// Takes from a command what it is not trusted with.
pub(super) fn take(command: &mut Command, confidence: Confidence) {
    if confidence == Confidence::Whole {
        return;
    }
    let named = NAMED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    let secrets: Vec<OsString> = std::env::vars_os()
        .map(|(name, _)| name)
        .filter(|name| {
            let name = name.to_string_lossy();
            named.contains(name.as_ref())
                || match confidence {
                    Confidence::Whole | Confidence::Own => false,
                    Confidence::Scheduler => name != SLURM && tells(&name),
                    Confidence::None => tells(&name),
                }
        })
        .collect();
    for name in secrets {
        command.env_remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_known_and_those_of_tools_are_not() {
        for name in
            ["SLURM_JWT", "GITHUB_TOKEN", "db_password", "AWS_SECRET_ACCESS_KEY", "OPS_WEBHOOK_URL"]
        {
            assert!(tells(name), "{name}");
        }
        for name in
            ["PATH", "NCCL_DEBUG", "SLURM_JOB_ID", "SSH_AUTH_SOCK", "KRB5CCNAME", "KUBECONFIG"]
        {
            assert!(!tells(name), "{name}");
        }
    }
}
