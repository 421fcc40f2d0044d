//! Nodes reached through Slurm: the commands that create jobs and run steps in them.
//!
//! Pure. `gate::slurm_allocation` finds out which job holds which node; this module builds its
//! commands.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::WorkerTarget;
use model::id::NodeName;

/// Seconds within which a job on idle nodes must start. A controller that has just started
/// schedules nothing for up to five.
pub const IMMEDIATE_S: u64 = 15;

/// The policy for nodes that run jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BusyNodePolicy {
    /// They are left out and reported.
    #[default]
    Skip,
    /// The job waits for them in the queue, up to a limit.
    Wait,
    /// A reservation keeps new jobs off them; running jobs may finish.
    Reserve,
}

/// How to measure nodes that the gate itself has drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DrainedNodePolicy {
    /// Resumed inside a reservation for this user only, and drained again before the reservation
    /// ends.
    #[default]
    Reservation,
    /// They stay drained; steps run without a job (`srun --no-allocate`).
    NoAllocate,
    /// They are not measured.
    Refuse,
}

/// How fabricgate uses Slurm to reach nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SlurmLauncher {
    /// The partition; if absent, Slurm's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// The account (`--account`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The quality of service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qos: Option<String>,
    /// A reservation of the site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// The GPUs that a job requests on each node, in the format of `--gres`; if absent, as many as
    /// Slurm reports for the nodes. An empty text requests none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gres: Option<String>,
    /// Further arguments of salloc.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// How the ranks of tools that run on several nodes find each other (`--mpi`).
    pub mpi: String,
    /// The time limit of a job, in the format of `--time`; if absent, derived from the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit: Option<String>,
    /// The user of the reservations that fabricgate creates.
    pub user: String,
    /// The policy for busy nodes.
    pub busy: BusyNodePolicy,
    /// The maximum number of seconds to wait for busy nodes.
    pub wait_s: u64,
    /// The policy for nodes that fabricgate drained.
    pub drained: DrainedNodePolicy,
    /// The commands of Slurm.
    pub programs: SlurmPrograms,
    /// The srun command on the nodes.
    pub node_srun: Vec<String>,
    /// Environment variables that steps get in addition to Slurm's own.
    #[serde(skip)]
    pub carried: Vec<String>,
}

impl Default for SlurmLauncher {
    fn default() -> Self {
        Self {
            partition: None,
            account: None,
            qos: None,
            reservation: None,
            gres: None,
            options: Vec::new(),
            mpi: "pmix".to_owned(),
            time_limit: None,
            user: "root".to_owned(),
            busy: BusyNodePolicy::default(),
            wait_s: 3_600,
            drained: DrainedNodePolicy::default(),
            programs: SlurmPrograms::default(),
            node_srun: vec!["srun".to_owned()],
            carried: Vec::new(),
        }
    }
}

/// The commands of Slurm on this machine, each with the arguments of a wrapper in front if there is
/// one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SlurmPrograms {
    /// The command for `srun`.
    pub srun: Vec<String>,
    /// The command for `salloc`.
    pub salloc: Vec<String>,
    /// The command for `scancel`.
    pub scancel: Vec<String>,
    /// The command for `squeue`.
    pub squeue: Vec<String>,
    /// The command for `scontrol`.
    pub scontrol: Vec<String>,
    /// Whether a remote shell reads their arguments; if absent, detected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_shell: Option<bool>,
}

impl Default for SlurmPrograms {
    fn default() -> Self {
        Self::from_scontrol(&["scontrol".to_owned()])
    }
}

impl SlurmPrograms {
    /// The programs in the same folder as this `scontrol`.
    pub fn from_scontrol(scontrol: &[String]) -> Self {
        let named = |name: &str| {
            let mut words = scontrol.to_vec();
            match words.last_mut() {
                Some(last) => match last.rsplit_once('/') {
                    Some((folder, _)) => *last = format!("{folder}/{name}"),
                    None => name.clone_into(last),
                },
                None => words.push(name.to_owned()),
            }
            words
        };
        Self {
            srun: named("srun"),
            salloc: named("salloc"),
            scancel: named("scancel"),
            squeue: named("squeue"),
            scontrol: if scontrol.is_empty() { named("scontrol") } else { scontrol.to_vec() },
            remote_shell: None,
        }
    }
}

/// A job to request.
#[derive(Clone, Copy, Debug)]
pub struct SlurmJobRequest<'a> {
    /// The job name.
    pub name: &'a str,
    /// Its comment in the queue.
    pub comment: &'a str,
    /// The nodes, as a host list.
    pub nodes: &'a str,
    /// The number of nodes.
    pub count: usize,
    /// The GPUs to request on each node, if any.
    pub gres: Option<&'a str>,
    /// The reservation that it runs in.
    pub reservation: Option<&'a str>,
    /// The time limit in minutes if the site configures none.
    pub minutes: u64,
    /// Seconds to wait for the allocation; `None` to queue.
    pub immediate: Option<u64>,
}

impl SlurmLauncher {
    /// The local command for a job that holds its nodes exclusively and runs nothing yet. It
    /// requests the GPUs: an exclusive job holds them anyway, but its steps get none unless the job
    /// requested them.
    pub fn salloc_argv(&self, job: &SlurmJobRequest<'_>) -> Vec<String> {
        let mut words = self.programs.salloc.clone();
        words
            .extend(["--no-shell", "--exclusive", "--mem=0"].iter().map(|word| (*word).to_owned()));
        words.push(format!("--job-name={}", job.name));
        words.push(format!("--comment={}", job.comment));
        words.push(format!("--nodes={}", job.count));
        words.push(format!("--nodelist={}", job.nodes));
        let minutes = job.minutes.to_string();
        words.push(format!("--time={}", self.time_limit.as_ref().unwrap_or(&minutes)));
        if let Some(seconds) = job.immediate {
            words.push(format!("--immediate={seconds}"));
        }
        if let Some(gres) = job.gres.filter(|gres| !gres.is_empty()) {
            words.push(format!("--gres={gres}"));
        }
        words.extend(self.scope_options(job.reservation));
        words.extend(self.options.iter().cloned());
        words
    }

    /// Partition, account, quality of service and reservation.
    fn scope_options(&self, reservation: Option<&str>) -> Vec<String> {
        let reservation = reservation.or(self.reservation.as_deref());
        [
            ("partition", self.partition.as_deref()),
            ("account", self.account.as_deref()),
            ("qos", self.qos.as_deref()),
            ("reservation", reservation),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some(format!("--{name}={}", value?)))
        .collect()
    }

    /// The local command that runs `argv` on an allocated node. Standard input and output are those
    /// of the local command; there is no terminal, which would change the output. The step shares
    /// memory, processors and GPUs with every other step of fabricgate.
    pub fn step_argv(
        &self,
        node: &NodeName,
        target: &WorkerTarget,
        argv: &[String],
    ) -> Vec<String> {
        let mut words = self.programs.srun.clone();
        if let WorkerTarget::Job(id) = target {
            words.extend([format!("--jobid={id}"), "--overlap".to_owned(), "--mem=0".to_owned()]);
        } else {
            words.push("--no-allocate".to_owned());
        }
        words.push(self.export_option());
        words.extend(single_task_options(node));
        words.extend_from_slice(argv);
        words
    }

    /// The variables of a step. Without the option srun exports its whole environment.
    fn export_option(&self) -> String {
        // Never empty: an empty `--export=` exports everything.
        const LEAST: &str = "PATH";
        match self.carried.as_slice() {
            [] => format!("--export={LEAST}"),
            names => format!("--export={}", names.join(",")),
        }
    }

    /// The local command that runs `argv` on a node without a job: in a small job of its own, or
    /// not at all if the node is busy.
    pub fn standalone_argv(&self, node: &NodeName, argv: &[String]) -> Vec<String> {
        let mut words = self.programs.srun.clone();
        words.extend(["--job-name=fabricgate", "--time=10"].iter().map(|word| (*word).to_owned()));
        words.push(format!("--immediate={IMMEDIATE_S}"));
        words.extend(self.scope_options(None));
        words.push(self.export_option());
        words.extend(single_task_options(node));
        words.extend_from_slice(argv);
        words
    }
}

/// One task on one node, without binding to some of its processors.
fn single_task_options(node: &NodeName) -> [String; 5] {
    [
        "--nodes=1".to_owned(),
        "--ntasks=1".to_owned(),
        format!("--nodelist={node}"),
        "--cpu-bind=none".to_owned(),
        "--mpi=none".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lab() -> SlurmLauncher {
        SlurmLauncher {
            partition: Some("probe".to_owned()),
            programs: SlurmPrograms::from_scontrol(&["run".to_owned(), "/opt/scontrol".to_owned()]),
            ..SlurmLauncher::default()
        }
    }

    #[test]
    fn slurm_programs_are_in_the_same_folder() {
        let programs = lab().programs;
        assert_eq!(programs.srun, ["run", "/opt/srun"]);
        assert_eq!(programs.scontrol, ["run", "/opt/scontrol"]);
        assert_eq!(SlurmPrograms::default().squeue, ["squeue"]);
    }

    #[test]
    fn a_job_is_named_exclusive_and_queues_only_if_configured() {
        let job = SlurmJobRequest {
            name: "fabricgate-1",
            comment: "block01",
            nodes: "n[1-2]",
            count: 2,
            gres: Some("gpu:4"),
            reservation: Some("r"),
            minutes: 20,
            immediate: Some(15),
        };
        assert_eq!(
            lab().salloc_argv(&job).join(" "),
            "run /opt/salloc --no-shell --exclusive --mem=0 --job-name=fabricgate-1 \
             --comment=block01 --nodes=2 --nodelist=n[1-2] --time=20 --immediate=15 --gres=gpu:4 \
             --partition=probe --reservation=r"
        );
        let queued = lab().salloc_argv(&SlurmJobRequest { immediate: None, gres: Some(""), ..job });
        assert!(!queued.iter().any(|word| word.starts_with("--immediate")));
        assert!(!queued.iter().any(|word| word.starts_with("--gres")));
    }

    #[test]
    fn a_worker_is_a_step_of_the_job_that_holds_its_node() {
        let (node, argv) = (NodeName::from("n1"), ["fabricgate".to_owned(), "node".to_owned()]);
        let step = lab().step_argv(&node, &WorkerTarget::Job("7".to_owned()), &argv);
        assert_eq!(
            step.join(" "),
            "run /opt/srun --jobid=7 --overlap --mem=0 --export=PATH --nodes=1 --ntasks=1 --nodelist=n1 \
             --cpu-bind=none --mpi=none fabricgate node"
        );
        let steered =
            SlurmLauncher { carried: vec!["NCCL_DEBUG".to_owned(), "PATH".to_owned()], ..lab() };
        let step = steered.step_argv(&node, &WorkerTarget::Job("7".to_owned()), &argv).join(" ");
        assert!(step.contains(" --export=NCCL_DEBUG,PATH "), "{step}");
        let unallocated = lab().step_argv(&node, &WorkerTarget::Unallocated, &argv).join(" ");
        assert!(
            unallocated.contains("--no-allocate") && !unallocated.contains("--jobid"),
            "{unallocated}"
        );
    }
}
