//! Checks whether a scheduler is reachable from this machine.

use std::path::Path;

use super::{CheckupContext, query_program};
use crate::exec::executable;
use model::checkup::{CheckupArea, CheckupItem};

/// Kubernetes mounts the service account's token into a pod here
/// (<https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/>).
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// Checks Slurm's controller and the Kubernetes configuration.
pub(super) async fn check_schedulers(context: &CheckupContext<'_>) -> Vec<CheckupItem> {
    let mut checks = vec![check_slurm(context).await];
    checks.extend(check_name_resolution(context).await);
    checks.push(check_kubernetes());
    checks
}

async fn check_slurm(context: &CheckupContext<'_>) -> CheckupItem {
    let what = "Slurm";
    let Some(scontrol) = executable::find_program("scontrol", Some(&context.path)) else {
        return CheckupItem::unknown(CheckupArea::Scheduler, what, "scontrol is not on PATH");
    };
    let remedy = "check slurmctld, and slurm.conf on this machine";
    match query_program(&[&scontrol.display().to_string(), "ping"]).await {
        // The output has one line per controller.
        Ok(output) if output.contains(" UP") => CheckupItem::available(
            CheckupArea::Scheduler,
            what,
            output.lines().next().unwrap_or_default().trim(),
        ),
        Ok(output) => {
            let output = output.split_whitespace().collect::<Vec<_>>().join(" ");
            CheckupItem::missing(
                CheckupArea::Scheduler,
                what,
                format!("no controller is up: {output}"),
                remedy,
            )
        }
        Err(why) => CheckupItem::missing(CheckupArea::Scheduler, what, why, remedy),
    }
}

/// Checks whether the controller can resolve this machine's name. If it cannot, every `srun` from
/// here blocks the controller for 10 s, for all users. From here, Slurm only knows the cluster's
/// nodes and the controller's own machine.
async fn check_name_resolution(context: &CheckupContext<'_>) -> Option<CheckupItem> {
    let what = "name of this machine";
    let scontrol = executable::find_program("scontrol", Some(&context.path))?.display().to_string();
    let output =
        query_program(&[&scontrol, "ping"]).await.ok().filter(|output| output.contains(" UP"))?;
    let is_controller = output.split_whitespace().any(|word| word == context.machine);
    if is_controller || query_program(&[&scontrol, "show", "node", &context.machine]).await.is_ok()
    {
        return Some(CheckupItem::available(
            CheckupArea::Scheduler,
            what,
            format!("Slurm knows {}", context.machine),
        ));
    }
    let why = format!(
        "{} is not a node of the cluster; slurmctld must resolve its name, or each srun from here \
         blocks it for 10 s: on the controller, `getent hosts {}`",
        context.machine, context.machine
    );
    Some(CheckupItem::unknown(CheckupArea::Scheduler, what, why))
}

/// Checks only that credentials exist: `fabricgate claims --from kubernetes` queries the API server
/// and reports denied permissions.
fn check_kubernetes() -> CheckupItem {
    let what = "Kubernetes";
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(file) = set("KUBECONFIG") {
        return CheckupItem::available(
            CheckupArea::Scheduler,
            what,
            format!("KUBECONFIG is {}", file.display()),
        );
    }
    if set("KUBERNETES_SERVICE_HOST").is_some() {
        return match Path::new(TOKEN).is_file() {
            true => CheckupItem::available(
                CheckupArea::Scheduler,
                what,
                "this is a pod with a token of its service account",
            ),
            // The worker pods of fabricgate have no token either.
            false => {
                CheckupItem::unknown(CheckupArea::Scheduler, what, "this is a pod without a token")
            }
        };
    }
    let home = std::path::PathBuf::from(set("HOME").unwrap_or_default());
    let file = home.join(".kube/config");
    if file.is_file() {
        return CheckupItem::available(CheckupArea::Scheduler, what, file.display().to_string());
    }
    CheckupItem::unknown(CheckupArea::Scheduler, what, "no kubeconfig, and not inside a pod")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;
    use model::checkup::CheckupState;

    fn scontrol(root: &Path, script: &str) {
        let file = root.join("scontrol");
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("written");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("set");
    }

    /// Defect 20 of the operator's review.
    #[tokio::test]
    async fn a_machine_unknown_to_slurm_is_reported_with_the_consequence() {
        let root = tempfile::tempdir().expect("a folder");
        assert!(check_name_resolution(&CheckupContext::with_root(root.path())).await.is_none());
        let up = "case $1 in ping) echo 'Slurmctld(primary) at head is UP';;";
        scontrol(root.path(), &format!("{up} show) exit 1;; esac"));
        let check =
            check_name_resolution(&CheckupContext::with_root(root.path())).await.expect("a check");
        assert_eq!(check.state, CheckupState::Unknown);
        assert!(check.detail.contains("getent hosts n1"), "{}", check.detail);
        scontrol(root.path(), &format!("{up} show) [ \"$3\" = n1 ];; esac"));
        let check =
            check_name_resolution(&CheckupContext::with_root(root.path())).await.expect("a check");
        assert_eq!(check.state, CheckupState::Has);
        scontrol(root.path(), &format!("{} show) exit 1;; esac", up.replace("head", "n1")));
        let check =
            check_name_resolution(&CheckupContext::with_root(root.path())).await.expect("a check");
        assert_eq!(check.state, CheckupState::Has);
        scontrol(root.path(), "echo 'Slurmctld(primary) at head is DOWN'");
        assert!(check_name_resolution(&CheckupContext::with_root(root.path())).await.is_none());
    }

    #[tokio::test]
    async fn a_controller_counts_only_if_it_reports_up() {
        let root = tempfile::tempdir().expect("a folder");
        assert_eq!(
            check_slurm(&CheckupContext::with_root(root.path())).await.state,
            CheckupState::Unknown
        );
        scontrol(root.path(), "echo 'Slurmctld(primary) at head is UP'");
        assert_eq!(
            check_slurm(&CheckupContext::with_root(root.path())).await.state,
            CheckupState::Has
        );
        scontrol(root.path(), "echo 'Slurmctld(primary) at head is DOWN'");
        assert_eq!(
            check_slurm(&CheckupContext::with_root(root.path())).await.state,
            CheckupState::Lacks
        );
        scontrol(root.path(), "echo 'cannot read slurm.conf' >&2; exit 1");
        let check = check_slurm(&CheckupContext::with_root(root.path())).await;
        assert_eq!(check.state, CheckupState::Lacks);
        assert!(check.detail.contains("ended with 1: cannot read slurm.conf"), "{}", check.detail);
    }
}
