//! Checks whether the GPUs of this node are in use: by a process on a GPU, or by a Slurm job step
//! that may start one at any moment.
//!
//! Unknown usage is not a reason to refuse: the probe itself then fails if the GPUs are in use.

use std::path::Path;

use super::WorkerSetup;
use super::{environment, procfs};

/// Slurm's process for every job step.
const STEP_DAEMON: &str = "slurmstepd";

/// Why the GPUs must not be used; `None` if nothing is known to use them.
pub(super) async fn busy_reason(setup: &WorkerSetup) -> Option<String> {
    let own_job = std::env::var("SLURM_JOB_ID").ok();
    if setup.is_machine
        && let Some(why) = find_job_step(&setup.proc, std::process::id(), own_job.as_deref())
    {
        return Some(why);
    }
    let query = ["--query-compute-apps=pid,process_name", "--format=csv,noheader"];
    let listed = environment::run_nvidia_smi(setup, &query).await?;
    find_foreign_process(&setup.proc, std::process::id(), &listed)
}

/// A process in this list of `PID, NAME` that is neither `own` nor its descendant.
fn find_foreign_process(proc: &Path, own: u32, listed: &str) -> Option<String> {
    listed.lines().find_map(|line| {
        let (pid, name) = line.split_once(',')?;
        let pid: u32 = pid.trim().parse().ok()?;
        let ours = pid == own || procfs::ancestors(proc, pid).contains(&own);
        let name = name.trim();
        let name = name.rsplit('/').next().unwrap_or(name);
        (!ours).then(|| format!("busy: pid {pid} ({name}) uses a GPU"))
    })
}

/// A job step of another job than the one that this worker runs in.
fn find_job_step(proc: &Path, own: u32, own_job: Option<&str>) -> Option<String> {
    let ancestors = procfs::ancestors(proc, own);
    let own_jobs: Vec<String> = ancestors
        .iter()
        .filter_map(|pid| parse_job_id(&procfs::read_command_line(proc, *pid)).map(str::to_owned))
        .chain(own_job.map(str::to_owned))
        .collect();
    procfs::list_pids(proc).into_iter().find_map(|pid| {
        if procfs::read_process(proc, pid)?.name != STEP_DAEMON || ancestors.contains(&pid) {
            return None;
        }
        let line = procfs::read_command_line(proc, pid);
        // `slurmstepd infinity` only keeps the control group of slurmd alive
        // (cgroup/v2 plugin, Slurm 22.05 and later) and runs on idle nodes too.
        if line.split(' ').nth(1) == Some("infinity") {
            return None;
        }
        if parse_job_id(&line).is_some_and(|job| own_jobs.iter().any(|own| own == job)) {
            return None;
        }
        Some(format!("busy: a Slurm job step runs here ({STEP_DAEMON} pid {pid})"))
    })
}

/// The job of a step daemon, whose process title is `slurmstepd: [JOB.STEP]`.
fn parse_job_id(command_line: &str) -> Option<&str> {
    let title = command_line.strip_prefix("slurmstepd: [")?;
    title.split(['.', ']']).next().filter(|job| !job.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A synthetic `/proc`: PID, name, parent, command line.
    fn made_up(processes: &[(u32, &str, u32, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        for (pid, name, parent, line) in processes {
            let folder = root.path().join(pid.to_string());
            std::fs::create_dir(&folder).expect("a folder");
            let stat = format!("{pid} ({name}) S {parent} 1 1 0");
            std::fs::write(folder.join("stat"), stat).expect("written");
            std::fs::write(folder.join("cmdline"), line.replace(' ', "\0")).expect("written");
        }
        root
    }

    #[test]
    fn a_process_on_a_gpu_is_foreign_unless_this_worker_started_it() {
        let root = made_up(&[
            (10, "fabricgate", 1, "fabricgate node worker"),
            (11, "mpirun", 10, "mpirun"),
            (12, "nvbandwidth", 11, "nvbandwidth"),
            (20, "python", 1, "python train.py"),
        ]);
        let proc = root.path();
        assert_eq!(find_foreign_process(proc, 10, ""), None);
        assert_eq!(find_foreign_process(proc, 10, "12, /opt/nvbandwidth\n"), None);
        assert_eq!(
            find_foreign_process(proc, 10, "12, nvbandwidth\n20, /usr/bin/python\n").as_deref(),
            Some("busy: pid 20 (python) uses a GPU")
        );
        assert_eq!(find_foreign_process(proc, 10, "No devices were found\n"), None);
    }

    #[test]
    fn a_job_step_of_another_job_makes_a_node_busy() {
        let root = made_up(&[
            (5, "slurmstepd", 1, "/usr/sbin/slurmstepd infinity"),
            (10, "fabricgate", 1, "fabricgate node worker"),
        ]);
        assert_eq!(
            find_job_step(root.path(), 10, None),
            None,
            "this step only keeps the control group"
        );
        let root = made_up(&[
            (10, "fabricgate", 1, "fabricgate node worker"),
            (30, "slurmstepd", 1, "slurmstepd: [77.0]"),
        ]);
        assert_eq!(
            find_job_step(root.path(), 10, None).as_deref(),
            Some("busy: a Slurm job step runs here (slurmstepd pid 30)")
        );
        assert_eq!(find_job_step(root.path(), 10, Some("77")), None, "the worker's job");
    }

    #[test]
    fn steps_of_the_job_of_this_worker_are_not_foreign() {
        let mut processes = vec![
            (29, "slurmstepd", 1, "slurmstepd: [77.extern]"),
            (30, "slurmstepd", 1, "slurmstepd: [77.0]"),
            (31, "fabricgate", 30, "fabricgate node worker"),
        ];
        assert_eq!(find_job_step(made_up(&processes).path(), 31, None), None);
        processes.push((40, "slurmstepd", 1, "slurmstepd: [78.batch]"));
        assert!(find_job_step(made_up(&processes).path(), 31, None).is_some());
    }
}
