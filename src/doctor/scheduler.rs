//! Whether a scheduler can be asked from here.

use std::path::Path;

use super::Look;
use super::answer;
use crate::exec::lookup;
use crate::model::checkup::Area;
use crate::model::checkup::Check;

/// Where a pod finds the token of its account
/// (<https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/>).
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// Slurm's controller and Kubernetes' configuration.
pub(super) async fn all(look: &Look<'_>) -> Vec<Check> {
    vec![slurm(look).await, kubernetes()]
}

async fn slurm(look: &Look<'_>) -> Check {
    let what = "Slurm";
    let Some(scontrol) = lookup::find("scontrol", Some(&look.path)) else {
        return Check::unknown(Area::Scheduler, what, "scontrol is not on PATH");
    };
    let remedy = "look at slurmctld, and at slurm.conf on this machine";
    match answer(&[&scontrol.display().to_string(), "ping"]).await {
        // It tells of every controller in a line of its own.
        Ok(said) if said.contains(" UP") => {
            Check::has(Area::Scheduler, what, said.lines().next().unwrap_or_default().trim())
        }
        Ok(said) => {
            let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
            Check::lacks(Area::Scheduler, what, format!("no controller is up: {said}"), remedy)
        }
        Err(why) => Check::lacks(Area::Scheduler, what, why, remedy),
    }
}

/// Only whether somebody is logged in: `fabricgate claims --from kubernetes`
/// asks the server and tells what is denied.
fn kubernetes() -> Check {
    let what = "Kubernetes";
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(file) = set("KUBECONFIG") {
        return Check::has(Area::Scheduler, what, format!("KUBECONFIG is {}", file.display()));
    }
    if set("KUBERNETES_SERVICE_HOST").is_some() {
        return match Path::new(TOKEN).is_file() {
            true => Check::has(Area::Scheduler, what, "this is a pod with a token of its account"),
            // As those of ours that measure.
            false => Check::unknown(Area::Scheduler, what, "this is a pod without a token"),
        };
    }
    let home = std::path::PathBuf::from(set("HOME").unwrap_or_default());
    let file = home.join(".kube/config");
    if file.is_file() {
        return Check::has(Area::Scheduler, what, file.display().to_string());
    }
    Check::unknown(Area::Scheduler, what, "there is no kubeconfig and this is no pod")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;
    use crate::model::checkup::State;

    fn scontrol(root: &Path, script: &str) {
        let file = root.join("scontrol");
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("written");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("set");
    }

    #[tokio::test]
    async fn a_controller_is_there_only_when_it_says_that_it_is_up() {
        let root = tempfile::tempdir().expect("a folder");
        assert_eq!(slurm(&Look::only(root.path())).await.state, State::Unknown);
        scontrol(root.path(), "echo 'Slurmctld(primary) at head is UP'");
        assert_eq!(slurm(&Look::only(root.path())).await.state, State::Has);
        scontrol(root.path(), "echo 'Slurmctld(primary) at head is DOWN'");
        assert_eq!(slurm(&Look::only(root.path())).await.state, State::Lacks);
        scontrol(root.path(), "echo 'cannot read slurm.conf' >&2; exit 1");
        let check = slurm(&Look::only(root.path())).await;
        assert_eq!(check.state, State::Lacks);
        assert!(check.detail.contains("ended with 1: cannot read slurm.conf"), "{}", check.detail);
    }
}
