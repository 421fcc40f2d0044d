//! Nodes reached through Slurm: the words that make jobs and run steps in them.
//!
//! Pure. Which nodes are held, and by which job, is `gate::hold`'s to find out;
//! here is what to type for it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::WorkerTarget;
use model::id::NodeName;

/// Seconds within which a job on idle nodes must start. A controller that was
/// just started places nothing for up to five.
pub const IMMEDIATE_S: u64 = 15;

/// The policy for nodes that jobs use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BusyNodePolicy {
    /// They are left out and reported.
    #[default]
    Skip,
    /// The job queues for them, for a while.
    Wait,
    /// A reservation keeps new jobs off them; those that run may end.
    Reserve,
}

/// How nodes are measured that the gate itself has drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DrainedNodePolicy {
    /// Resumed inside a reservation for this user alone, and drained again
    /// before that goes.
    #[default]
    Reservation,
    /// They stay drained; steps run without a job (`srun --no-allocate`).
    NoAllocate,
    /// Not at all.
    Refuse,
}

/// How Slurm is used to reach nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SlurmLauncher {
    /// The partition; Slurm's default where none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// The account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The quality of service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qos: Option<String>,
    /// A reservation of the site's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// The GPUs a job asks for on each node, as `--gres` has them; where absent,
    /// as many as Slurm reports for the nodes. Empty requests none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gres: Option<String>,
    /// Further words of salloc.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// How ranks of tools that run on several nodes find each other (`--mpi`).
    pub mpi: String,
    /// How long a job may run, as `--time` has it; where absent, it follows
    /// from what is planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit: Option<String>,
    /// Who may use a reservation that is made.
    pub user: String,
    /// What is done about busy nodes.
    pub busy: BusyNodePolicy,
    /// For how many seconds at most they are waited for.
    pub wait_s: u64,
    /// What is done about nodes that we drained.
    pub drained: DrainedNodePolicy,
    /// Slurm's programs.
    pub programs: SlurmPrograms,
    /// srun as the nodes call it.
    pub node_srun: Vec<String>,
    /// Variables that steps are given of our environment, besides Slurm's own.
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

/// Slurm's programs as this machine calls them, each with words in front where
/// it is reached through something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SlurmPrograms {
    /// `srun`.
    pub srun: Vec<String>,
    /// `salloc`.
    pub salloc: Vec<String>,
    /// `scancel`.
    pub scancel: Vec<String>,
    /// `squeue`.
    pub squeue: Vec<String>,
    /// `scontrol`.
    pub scontrol: Vec<String>,
    /// Whether a shell elsewhere reads the words behind them; found out where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_shell: Option<bool>,
}

impl Default for SlurmPrograms {
    fn default() -> Self {
        Self::from_scontrol(&["scontrol".to_owned()])
    }
}

impl SlurmPrograms {
    /// The programs that lie where this `scontrol` does.
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

/// A job that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct SlurmJobRequest<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its comment in the queue.
    pub comment: &'a str,
    /// Its nodes, as a host list.
    pub nodes: &'a str,
    /// How many they are.
    pub count: usize,
    /// The GPUs asked for on each, where any are.
    pub gres: Option<&'a str>,
    /// The reservation it runs in.
    pub reservation: Option<&'a str>,
    /// How long it may run, in minutes, where the site does not say.
    pub minutes: u64,
    /// Seconds after which it gives up waiting; none where it queues.
    pub immediate: Option<u64>,
}

impl SlurmLauncher {
    /// What to start so that a job holds its nodes whole, and nothing runs in
    /// it yet. With GPUs: an exclusive job holds them all the same, but its
    /// steps are given none unless the job asked for them.
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

    /// What to start so that `argv` runs on a node that has a seat. Its standard
    /// input and output are those of what is started; no terminal is made, for
    /// one would change what is said. Memory, processors and GPUs are shared
    /// with every other step of ours.
    pub fn step_argv(&self, node: &NodeName, seat: &WorkerTarget, argv: &[String]) -> Vec<String> {
        let mut words = self.programs.srun.clone();
        if let WorkerTarget::Job(id) = seat {
            words.extend([format!("--jobid={id}"), "--overlap".to_owned(), "--mem=0".to_owned()]);
        } else {
            words.push("--no-allocate".to_owned());
        }
        words.push(self.export_option());
        words.extend(single_task_options(node));
        words.extend_from_slice(argv);
        words
    }

    /// The variables of a step. Without the option srun carries all that it has.
    fn export_option(&self) -> String {
        // Never none: an empty list is `--export=` and means all.
        const LEAST: &str = "PATH";
        match self.carried.as_slice() {
            [] => format!("--export={LEAST}"),
            names => format!("--export={}", names.join(",")),
        }
    }

    /// What to start so that `argv` runs on a node for which no job was made: in
    /// a small one of its own, or not at all where the node is busy.
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

/// One task on one node, not bound to some of its processors.
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
    fn programs_lie_side_by_side() {
        let programs = lab().programs;
        assert_eq!(programs.srun, ["run", "/opt/srun"]);
        assert_eq!(programs.scontrol, ["run", "/opt/scontrol"]);
        assert_eq!(SlurmPrograms::default().squeue, ["squeue"]);
    }

    #[test]
    fn a_job_is_named_exclusive_and_never_waits_unless_asked_to() {
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
