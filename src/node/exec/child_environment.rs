//! Which variables of our own environment a process is given: those of a list, by what it
//! is started for, and those that the configuration names (`pass_env`).
//!
//! A list of what is kept back would never be whole: sites call their secrets as they like,
//! and Slurm carries the environment of `srun` to nodes, where every superuser reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::process::Command;

use model::worker_protocol::EnvironmentAccess;

/// What programs need to run at all: where things lie, who runs them, in which language.
/// `NAME*` stands for all names that begin so.
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

/// What steers the tools that measure, the libraries below them, and MPI.
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

/// What programs of this machine need that reach nodes, the scheduler or an API server.
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

/// How names end that hold what lets somebody in: a name of the lists above that ends so
/// is no setting of a tool (`NVIDIA_API_KEY`).
const SECRET_SUFFIXES: [&str; 6] = ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "KEY", "CREDENTIALS"];

/// The token of Slurm's own programs (`scontrol token`).
const SLURM_TOKEN: &str = "SLURM_JWT";

/// Tells children of this program, and workers with each order, what `pass_env` names:
/// they start others in turn.
pub const PASS_ENV_VARIABLE: &str = "FABRICGATE_PASS_ENV";

/// What the configuration says about variables.
#[derive(Debug, Default)]
struct EnvironmentPolicy {
    /// They hold a secret of ours.
    withheld: BTreeSet<String>,
    /// They are passed on: names, and `NAME*`.
    passed: Vec<String>,
}

static POLICY: Mutex<Option<EnvironmentPolicy>> = Mutex::new(None);

fn lock_policy() -> MutexGuard<'static, Option<EnvironmentPolicy>> {
    POLICY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a variable from everything that is started from now on, but from commands of
/// this program that do the same work.
pub fn withhold_variable(name: &str) {
    lock_policy().get_or_insert_default().withheld.insert(name.to_owned());
}

/// Passes these variables on to everything that is started from now on.
pub fn pass_variables(names: &[String]) {
    lock_policy().get_or_insert_default().passed.extend_from_slice(names);
}

/// Why this cannot be the name of variables, or `NAME*`, where it cannot.
pub fn check_variable_name(text: &str) -> Result<(), &'static str> {
    let name = text.strip_suffix('*').unwrap_or(text);
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    match name.chars().next() {
        None => Err("expected a name, or the beginning of names and *"),
        Some(first) if first.is_ascii_digit() || !name.chars().all(fits) => {
            Err("expected letters, digits and _, and * at the end for all that begin so")
        }
        Some(_) => Ok(()),
    }
}

/// Names for one process, from one look at the configuration.
struct EnvironmentFilter {
    withheld: BTreeSet<String>,
    passed: Vec<String>,
}

impl EnvironmentFilter {
    fn from_policy(told: Option<&String>) -> Self {
        let said = lock_policy();
        let (withheld, mut passed) =
            said.as_ref().map(|it| (it.withheld.clone(), it.passed.clone())).unwrap_or_default();
        let own = std::env::var(PASS_ENV_VARIABLE).unwrap_or_default();
        let told = own.split(',').chain(told.into_iter().flat_map(|told| told.split(',')));
        passed.extend(told.filter(|it| check_variable_name(it).is_ok()).map(str::to_owned));
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

/// Whether a name is one of those that `listed` stands for.
fn matches_pattern(listed: &str, name: &str) -> bool {
    match listed.strip_suffix('*') {
        Some(begin) => name.starts_with(begin),
        None => name == listed,
    }
}

/// Whether the name of a variable says that it lets somebody in.
fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    name == SLURM_TOKEN || SECRET_SUFFIXES.iter().any(|end| name.ends_with(end))
}

/// The names that `srun` is told to carry to nodes. Those that begin with `SLURM_` it
/// carries by itself.
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

/// What `pass_env` names, for those who start processes elsewhere; nothing where it
/// names none.
pub fn passed_variables() -> Option<String> {
    let rules = EnvironmentFilter::from_policy(None);
    (!rules.passed.is_empty()).then(|| rules.passed.join(","))
}

/// Gives a command the environment that it is trusted with.
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

    /// Names of secrets as sites have them; no list of endings knows them all. Others are
    /// tried with the program in `tests/adversary/secrets.rs`.
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
    fn no_program_gets_what_no_list_names() {
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
    fn what_reaches_the_scheduler_or_nodes_is_not_for_tools() {
        for name in ["SSH_AUTH_SOCK", "KUBECONFIG", "KRB5CCNAME"] {
            assert!(!filter_passing(&[]).allows(name, EnvironmentAccess::None), "{name}");
            assert!(filter_passing(&[]).allows(name, EnvironmentAccess::Launcher), "{name}");
        }
        let jwt = |confidence| filter_passing(&[]).allows(SLURM_TOKEN, confidence);
        assert!(jwt(EnvironmentAccess::Site) && jwt(EnvironmentAccess::Scheduler));
        assert!(!jwt(EnvironmentAccess::None) && !jwt(EnvironmentAccess::Launcher));
        // Whose programs of the kubeconfig ask a cloud for its key.
        assert!(filter_passing(&[]).allows("AWS_ACCESS_KEY_ID", EnvironmentAccess::Own));
        assert!(!filter_passing(&[]).allows("OPS_HOOK", EnvironmentAccess::Own));
    }

    #[test]
    fn what_the_configuration_names_is_passed_on_but_for_our_own_secrets() {
        let passed = filter_passing(&["GH_PAT", "SITE_*", "OPS_HOOK"]);
        for name in ["GH_PAT", "SITE_RAIL"] {
            assert!(passed.allows(name, EnvironmentAccess::None), "{name}");
        }
        // A beginning is no name: what looks like a secret must be named whole.
        for name in ["SITE_TOKEN", "SIT", "OPS_HOOK"] {
            assert!(!passed.allows(name, EnvironmentAccess::None), "{name}");
        }
    }

    #[test]
    fn names_are_names() {
        for good in ["A", "_b", "SITE_*", "http_proxy"] {
            assert_eq!(check_variable_name(good), Ok(()), "{good}");
        }
        for bad in ["", "*", "1A", "A=b", "A,B", "A*B", "A B", "é"] {
            assert!(check_variable_name(bad).is_err(), "{bad}");
        }
    }
}
