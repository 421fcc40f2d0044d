//! Selects the environment variables that a child process inherits: a built-in list per purpose,
//! plus the names in the configuration (`pass_env`).
//!
//! This is an allowlist because a denylist is never complete: sites choose their own names for
//! secrets, and Slurm carries the environment of `srun` to nodes, where every superuser reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::process::Command;

use model::worker_protocol::EnvironmentAccess;

/// Variables that any program needs to run: paths, user, locale. `NAME*` stands for all names with
/// this prefix.
const BASE: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "HOSTNAME",
    "PWD",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "TMPDIR",
    "TERM",
    "COLUMNS",
    "NO_COLOR",
    "LD_LIBRARY_PATH",
    "XDG_RUNTIME_DIR",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "RUST_BACKTRACE",
    "FABRICGATE_*",
];

/// Settings of the measuring tools, their libraries, and MPI.
const TOOLS: &[&str] = &[
    "NCCL_*",
    "NVSHMEM_*",
    "CUDA_*",
    "NVIDIA_*",
    "DCGM_*",
    "UCX_*",
    "UCC_*",
    "FI_*",
    "IBV_*",
    "MLX5_*",
    "HCOLL_*",
    "SHARP_*",
    "OMPI_*",
    "OPAL_*",
    "PRTE_*",
    "PMIX_*",
    "PMI_*",
    "MPICH_*",
    "I_MPI_*",
    "HYDRA_*",
    "HPCX_*",
    "OMP_*",
    "MODULEPATH",
    "LOADEDMODULES",
    "SLURM_*",
    "SLURMD_*",
];

/// Variables of programs on this machine that reach nodes, the scheduler or an API server.
const CLIENTS: &[&str] = &[
    "SSH_AUTH_SOCK",
    "SSH_AGENT_PID",
    "KRB5CCNAME",
    "KRB5_CONFIG",
    "KUBECONFIG",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "MUNGE_SOCKET",
    "SALLOC_*",
    "SQUEUE_*",
    "SINFO_*",
    "SCONTROL_*",
];

/// Suffixes of names that hold credentials. A name that matches a list above and has such a suffix
/// is not a tool's setting (`NVIDIA_API_KEY`).
const SECRET_SUFFIXES: [&str; 6] = ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "KEY", "CREDENTIALS"];

/// The token of Slurm's programs (`scontrol token`).
const SLURM_TOKEN: &str = "SLURM_JWT";

/// Passes the names in `pass_env` to fabricgate's child processes, and to workers with each order,
/// because they start processes in turn.
pub const PASS_ENV_VARIABLE: &str = "FABRICGATE_PASS_ENV";

/// Configured exceptions.
#[derive(Debug, Default)]
struct EnvironmentPolicy {
    /// Variables that hold one of fabricgate's secrets.
    withheld: BTreeSet<String>,
    /// Variables to pass on: names, and `NAME*`.
    passed: Vec<String>,
}

static POLICY: Mutex<Option<EnvironmentPolicy>> = Mutex::new(None);

fn lock_policy() -> MutexGuard<'static, Option<EnvironmentPolicy>> {
    POLICY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Withholds a variable from every process started from now on, except fabricgate commands that do
/// the same work.
pub fn withhold_variable(name: &str) {
    lock_policy().get_or_insert_default().withheld.insert(name.to_owned());
}

/// Passes these variables to every process started from now on.
pub fn pass_variables(names: &[String]) {
    lock_policy().get_or_insert_default().passed.extend_from_slice(names);
}

/// Returns why the text is not a valid variable name or `NAME*` pattern.
pub fn check_variable_name(text: &str) -> Result<(), &'static str> {
    let name = text.strip_suffix('*').unwrap_or(text);
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    match name.chars().next() {
        None => Err("expected a name, or a prefix followed by *"),
        Some(first) if first.is_ascii_digit() || !name.chars().all(fits) => {
            Err("expected letters, digits and _, with * at the end for a prefix")
        }
        Some(_) => Ok(()),
    }
}

/// The filter for one process, from one snapshot of the configuration.
struct EnvironmentFilter {
    withheld: BTreeSet<String>,
    passed: Vec<String>,
}

impl EnvironmentFilter {
    fn from_policy(inherited: Option<&String>) -> Self {
        let policy = lock_policy();
        let (withheld, mut passed) =
            policy.as_ref().map(|it| (it.withheld.clone(), it.passed.clone())).unwrap_or_default();
        let own = std::env::var(PASS_ENV_VARIABLE).unwrap_or_default();
        let names = own.split(',').chain(inherited.into_iter().flat_map(|list| list.split(',')));
        passed.extend(names.filter(|it| check_variable_name(it).is_ok()).map(str::to_owned));
        passed.sort();
        passed.dedup();
        Self { withheld, passed }
    }

    fn allows(&self, name: &str, confidence: EnvironmentAccess) -> bool {
        if confidence == EnvironmentAccess::Whole {
            return true;
        }
        if self.withheld.contains(name) {
            return false;
        }
        if self.passed.iter().any(|it| it == name) {
            return true;
        }
        let has_secret = is_secret_name(name);
        let lists: &[&[&str]] = match confidence {
            EnvironmentAccess::Whole | EnvironmentAccess::Own => return true,
            EnvironmentAccess::Scheduler if name == SLURM_TOKEN => return true,
            EnvironmentAccess::Site if name == SLURM_TOKEN => return true,
            EnvironmentAccess::Scheduler
            | EnvironmentAccess::Site
            | EnvironmentAccess::Launcher => &[BASE, TOOLS, CLIENTS],
            EnvironmentAccess::None => &[BASE, TOOLS],
        };
        let passed = self.passed.iter().map(String::as_str);
        let mut all = lists.iter().flat_map(|list| list.iter().copied()).chain(passed);
        !has_secret && all.any(|it| matches_pattern(it, name))
    }
}

fn matches_pattern(listed: &str, name: &str) -> bool {
    match listed.strip_suffix('*') {
        Some(begin) => name.starts_with(begin),
        None => name == listed,
    }
}

/// True if the variable's name marks it as a credential.
fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    name == SLURM_TOKEN || SECRET_SUFFIXES.iter().any(|end| name.ends_with(end))
}

/// The names that `srun` must export to nodes. It exports names with the prefix `SLURM_` by
/// default.
pub fn srun_export_names() -> Vec<String> {
    let rules = EnvironmentFilter::from_policy(None);
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let given = |name: &String| {
        rules.allows(name, EnvironmentAccess::None)
            && !name.starts_with("SLURM_")
            && check_variable_name(name).is_ok()
    };
    let mut names: Vec<String> = names.filter(given).collect();
    if !rules.passed.is_empty() {
        names.push(PASS_ENV_VARIABLE.to_owned());
    }
    names.sort();
    names.dedup();
    names
}

/// The value of `pass_env` for callers that start processes elsewhere; `None` if it is empty.
pub fn passed_variables() -> Option<String> {
    let rules = EnvironmentFilter::from_policy(None);
    (!rules.passed.is_empty()).then(|| rules.passed.join(","))
}

/// Gives a command the environment that it may see.
pub(super) fn apply_environment(
    command: &mut Command,
    confidence: EnvironmentAccess,
    env: &BTreeMap<String, String>,
) {
    if confidence == EnvironmentAccess::Whole {
        return;
    }
    let rules = EnvironmentFilter::from_policy(env.get(PASS_ENV_VARIABLE));
    let given: Vec<(OsString, OsString)> = std::env::vars_os()
        .filter(|(name, _)| rules.allows(&name.to_string_lossy(), confidence))
        .collect();
    command.env_clear().envs(given);
    if !rules.passed.is_empty() {
        command.env(PASS_ENV_VARIABLE, rules.passed.join(","));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter_passing(passed: &[&str]) -> EnvironmentFilter {
        EnvironmentFilter {
            withheld: BTreeSet::from(["OPS_HOOK".to_owned()]),
            passed: passed.iter().map(|it| (*it).to_owned()).collect(),
        }
    }

    /// Names that sites give to secrets; no list of suffixes covers them all.
    /// `tests/cli/adversary/secrets.rs` tries others with the program.
    const SECRETS: [&str; 7] = [
        "CI_JOB_JWT_V2",
        "ENCRYPTION_KEY",
        "OPENAI_KEY",
        "AWS_SESSION_TOKEN",
        "HF_TOKEN",
        "NGC_CLI_API_KEY",
        "OPS_HOOK",
    ];

    #[test]
    fn no_program_gets_an_unlisted_variable() {
        for confidence in [
            EnvironmentAccess::None,
            EnvironmentAccess::Launcher,
            EnvironmentAccess::Scheduler,
            EnvironmentAccess::Site,
        ] {
            for name in SECRETS {
                assert!(!filter_passing(&[]).allows(name, confidence), "{name} {confidence:?}");
            }
            for name in ["PATH", "LC_ALL", "NCCL_DEBUG", "SLURM_JOB_ID", "FABRICGATE_SIM"] {
                assert!(filter_passing(&[]).allows(name, confidence), "{name} {confidence:?}");
            }
        }
    }

    #[test]
    fn variables_for_clients_are_not_passed_to_tools() {
        for name in ["SSH_AUTH_SOCK", "KUBECONFIG", "KRB5CCNAME"] {
            assert!(!filter_passing(&[]).allows(name, EnvironmentAccess::None), "{name}");
            assert!(filter_passing(&[]).allows(name, EnvironmentAccess::Launcher), "{name}");
        }
        let jwt = |confidence| filter_passing(&[]).allows(SLURM_TOKEN, confidence);
        assert!(jwt(EnvironmentAccess::Site) && jwt(EnvironmentAccess::Scheduler));
        assert!(!jwt(EnvironmentAccess::None) && !jwt(EnvironmentAccess::Launcher));
        // A kubeconfig can run programs that query a cloud for its key.
        assert!(filter_passing(&[]).allows("AWS_ACCESS_KEY_ID", EnvironmentAccess::Own));
        assert!(!filter_passing(&[]).allows("OPS_HOOK", EnvironmentAccess::Own));
    }

    #[test]
    fn configured_variables_are_passed_except_fabricgates_secrets() {
        let passed = filter_passing(&["GH_PAT", "SITE_*", "OPS_HOOK"]);
        for name in ["GH_PAT", "SITE_RAIL"] {
            assert!(passed.allows(name, EnvironmentAccess::None), "{name}");
        }
        // A prefix is not a name: a secret-like variable must be named in full.
        for name in ["SITE_TOKEN", "SIT", "OPS_HOOK"] {
            assert!(!passed.allows(name, EnvironmentAccess::None), "{name}");
        }
    }

    #[test]
    fn variable_names_are_checked() {
        for good in ["A", "_b", "SITE_*", "http_proxy"] {
            assert_eq!(check_variable_name(good), Ok(()), "{good}");
        }
        for bad in ["", "*", "1A", "A=b", "A,B", "A*B", "A B", "é"] {
            assert!(check_variable_name(bad).is_err(), "{bad}");
        }
    }
}
