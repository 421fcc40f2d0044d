//! Launchers: the command that starts a process on a node.
//!
//! Pure: arguments in, arguments out; `exec` starts the result. Slurm and Kubernetes are separate
//! kinds, because an allocation must hold their nodes before a process starts there.

pub mod kubernetes;
pub mod remote_shell;
pub mod slurm;
pub mod srun_ranks;

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use kubernetes::KubernetesLauncher;
use model::id::NodeName;
use model::shell_quote;
use model::worker_protocol::EnvironmentAccess;
use slurm::SlurmLauncher;

/// The placeholder for the node's name.
pub const NODE: &str = "{node}";
/// The placeholder for the whole command as one argument, quoted for a shell.
pub const COMMAND: &str = "{command}";

/// Environment variable with the scenario of a simulated node.
pub const SIM_VARIABLE: &str = "FABRICGATE_SIM";
/// Environment variable with the name of the simulated node.
pub const SIM_NODE_VARIABLE: &str = "FABRICGATE_SIM_NODE";
/// Environment variable with the progress of a burn-in of simulated nodes.
pub const SIM_AGE_VARIABLE: &str = "FABRICGATE_SIM_AGE";

/// The exit code of ssh, and of its replacements, if the node was not reached.
pub const UNREACHED_EXIT_CODE: i32 = 255;

/// The location of a node's worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerTarget {
    /// In this Slurm job.
    Job(String),
    /// On a drained node, outside of any Slurm job.
    Unallocated,
    /// In this pod.
    Pod {
        /// The name of the pod.
        name: String,
        /// The pod's IP address, if the cluster reports one.
        address: Option<String>,
    },
}

/// The nodes that a sweep holds, and the reasons why others are not held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldNodes {
    /// Where the workers run.
    pub targets: BTreeMap<NodeName, WorkerTarget>,
    /// The reasons why nodes are left out.
    pub skipped: BTreeMap<NodeName, String>,
}

/// How the coordinator reaches nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Launcher {
    /// This machine.
    Local,
    /// A command in front of that of the tool, such as `ssh {node}`.
    Command {
        /// Its arguments; those of the tool follow, or replace `{command}`.
        template: Vec<String>,
    },
    /// Nodes of the embedded simulated fabric: processes on this machine that
    /// find simulated tools on their PATH.
    Sim {
        /// The scenario.
        scenario: PathBuf,
        /// Each node has a separate worker process; otherwise this process answers for all nodes.
        #[serde(default = "with_workers", skip_serializing_if = "is_with_workers")]
        workers: bool,
    },
    /// Slurm: jobs hold the nodes, and processes are steps of those jobs.
    Slurm(Box<SlurmLauncher>),
    /// Kubernetes: pods hold the nodes, and processes run in those pods.
    Kubernetes(Box<KubernetesLauncher>),
    /// Nothing starts: a stored run answers.
    Replay {
        /// The stored run's folder.
        run: PathBuf,
    },
}

fn with_workers() -> bool {
    true
}

fn is_with_workers(workers: &bool) -> bool {
    *workers
}

/// The parameters for starting workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerProgram {
    /// The path of fabricgate on this machine.
    pub local_exe: String,
    /// The path of fabricgate on the nodes.
    pub node_exe: String,
    /// Folder of the simulated tools' names, for simulated nodes.
    pub links: Option<PathBuf>,
    /// The current PATH; simulated tools come before it.
    pub path: String,
    /// Measure nodes that are in use, too.
    pub even_if_busy: bool,
    /// The nodes that scheduler jobs or pods hold for this sweep.
    pub held: HeldNodes,
    /// The progress of a burn-in, for simulated nodes.
    pub age: Option<String>,
}

/// A process to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchCommand {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Its additional environment.
    pub env: BTreeMap<String, String>,
    /// The part of this process's environment that the command gets.
    pub environment_access: EnvironmentAccess,
}

/// The reason why there is no command for a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// The launcher's program would read the name as an option.
    #[error("node name {node:?} looks like an option")]
    LooksLikeOption {
        /// The node name.
        node: String,
    },
    /// The name is not a node name.
    #[error("node name {node:?} has characters that no node name has")]
    NotAName {
        /// The node name.
        node: String,
    },
    /// The template has no arguments.
    #[error("the launcher's template is empty, expected words such as [\"ssh\", \"{NODE}\"]")]
    Empty,
    /// The template does not contain the node.
    #[error(
        "the launcher's template lacks {NODE}: every node would be measured on the same machine"
    )]
    NoNode,
    /// This machine cannot represent several nodes.
    #[error(
        "launcher \"local\" measures this machine only, and {nodes} nodes are planned; \
         use kind = \"command\" with a template such as [\"ssh\", \"{NODE}\"]"
    )]
    NotLocal {
        /// The number of nodes to measure.
        nodes: usize,
    },
    /// No job or pod of fabricgate holds the node.
    #[error("{why}")]
    NotHeld {
        /// The reason.
        why: String,
    },
    /// The mpirun command has no srun equivalent.
    #[error(
        "this mpirun command has no srun equivalent: {why}; write a custom probe that \
         calls srun, as nccl-all-reduce-domain-srun does"
    )]
    Mpirun {
        /// The part without an equivalent.
        why: String,
    },
}

impl Launcher {
    /// Whether nodes are simulated or answered by a stored run: such results do not describe real
    /// machines.
    pub fn is_stand_in(&self) -> bool {
        matches!(self, Self::Sim { .. } | Self::Replay { .. })
    }

    /// Checks whether this launcher can serve this number of nodes.
    pub fn check(&self, nodes: usize) -> Result<(), LaunchError> {
        match self {
            Self::Local if 1 < nodes => Err(LaunchError::NotLocal { nodes }),
            Self::Local
            | Self::Sim { .. }
            | Self::Slurm(_)
            | Self::Kubernetes(_)
            | Self::Replay { .. } => Ok(()),
            Self::Command { template } if template.first().is_none_or(String::is_empty) => {
                Err(LaunchError::Empty)
            }
            Self::Command { template } if !template.iter().any(|word| word.contains(NODE)) => {
                Err(LaunchError::NoNode)
            }
            Self::Command { .. } => Ok(()),
        }
    }

    /// The local command that runs `argv` on `node`.
    pub fn argv(&self, node: &NodeName, argv: &[String]) -> Result<Vec<String>, LaunchError> {
        check_name(node)?;
        let name = node.as_str();
        match self {
            Self::Slurm(slurm) => Ok(slurm.standalone_argv(node, argv)),
            Self::Kubernetes(_) => {
                Err(LaunchError::NotHeld { why: "no fabricgate pod runs on it".to_owned() })
            }
            Self::Local | Self::Sim { .. } | Self::Replay { .. } => Ok(argv.to_vec()),
            Self::Command { template } => {
                let whole = template.iter().any(|word| word.contains(COMMAND));
                let line = if whole { shell_quote::join_quoted(argv) } else { String::new() };
                let fill = |word: &String| word.replace(NODE, name).replace(COMMAND, &line);
                let mut words: Vec<String> = template.iter().map(fill).collect();
                if !whole {
                    words.extend_from_slice(argv);
                }
                Ok(words)
            }
        }
    }

    /// The local command that runs `argv` on a held node; other nodes use [`Launcher::argv`].
    /// `here` is fabricgate on this machine.
    pub fn held_node_argv(
        &self,
        node: &NodeName,
        argv: &[String],
        here: &str,
        held: &HeldNodes,
    ) -> Result<Vec<String>, LaunchError> {
        check_name(node)?;
        let (target, why) = (held.targets.get(node), held.skipped.get(node));
        match (self, target) {
            (
                Self::Slurm(slurm),
                Some(target @ (WorkerTarget::Job(_) | WorkerTarget::Unallocated)),
            ) => Ok(slurm.step_argv(node, target, argv)),
            (Self::Kubernetes(kubernetes), Some(WorkerTarget::Pod { name, .. })) => {
                Ok(kubernetes.attach_argv(here, name, argv))
            }
            (Self::Slurm(_) | Self::Kubernetes(_), _) => {
                let none = match self {
                    Self::Slurm(_) => "no fabricgate job holds it",
                    _ => "no fabricgate pod runs on it",
                };
                Err(LaunchError::NotHeld { why: why.map_or(none, String::as_str).to_owned() })
            }
            _ => self.argv(node, argv),
        }
    }

    /// The local command that starts a worker on `node`.
    pub fn worker_command(
        &self,
        node: &NodeName,
        program: &WorkerProgram,
    ) -> Result<LaunchCommand, LaunchError> {
        let call = match self {
            Self::Command { .. } | Self::Slurm(_) | Self::Kubernetes(_) => &program.node_exe,
            _ => &program.local_exe,
        };
        let mut argv = vec![call.clone(), "node".to_owned(), "worker".to_owned()];
        if program.even_if_busy {
            argv.push("--even-if-busy".to_owned());
        }
        let mut env = BTreeMap::new();
        if let Self::Sim { scenario, .. } = self {
            env.insert(SIM_VARIABLE.to_owned(), scenario.display().to_string());
            env.insert(SIM_NODE_VARIABLE.to_owned(), node.to_string());
            if let Some(age) = &program.age {
                env.insert(SIM_AGE_VARIABLE.to_owned(), age.clone());
            }
            if let Some(links) = &program.links {
                env.insert("PATH".to_owned(), format!("{}:{}", links.display(), program.path));
            }
        }
        let argv = self.held_node_argv(node, &argv, &program.local_exe, &program.held)?;
        Ok(LaunchCommand { argv, env, environment_access: self.environment_access() })
    }

    /// The part of this process's environment for the command that reaches a node.
    pub fn environment_access(&self) -> EnvironmentAccess {
        match self {
            // srun may need the token of Slurm; `node attach` runs on this machine, and a
            // kubeconfig may name a program that gets a key from a cloud.
            Self::Slurm(_) => EnvironmentAccess::Scheduler,
            Self::Kubernetes(_) => EnvironmentAccess::Own,
            Self::Command { .. } => EnvironmentAccess::Launcher,
            _ => EnvironmentAccess::None,
        }
    }

    /// Sets the names of the variables that nodes get.
    pub fn set_carried_variables(&mut self, names: Vec<String>) {
        if let Self::Slurm(slurm) = self {
            slurm.carried = names;
        }
    }

    /// The command of a step on these nodes for this launcher: through Slurm, srun also starts the
    /// ranks.
    pub fn step_command(
        &self,
        argv: &[String],
        nodes: &[NodeName],
        held: &HeldNodes,
    ) -> Result<Vec<String>, LaunchError> {
        let slurm = match self {
            Self::Slurm(slurm) => slurm,
            Self::Kubernetes(kubernetes) => {
                return kubernetes::pod_ranks::rewrite_hosts(argv, nodes, held, kubernetes);
            }
            _ => return Ok(argv.to_vec()),
        };
        let targets: Vec<Option<&WorkerTarget>> =
            nodes.iter().map(|node| held.targets.get(node)).collect();
        let job = match targets.first() {
            Some(Some(WorkerTarget::Job(job)))
                if targets.iter().all(|target| *target == targets[0]) =>
            {
                Some(job)
            }
            _ => None,
        };
        let none = String::new();
        match (srun_ranks::convert_to_srun(argv, slurm, job.unwrap_or(&none))?, job) {
            (None, _) => Ok(argv.to_vec()),
            (Some(words), Some(_)) => Ok(words),
            (Some(_), None) => {
                let why = "its ranks need one job that holds all of its nodes".to_owned();
                Err(LaunchError::NotHeld { why })
            }
        }
    }

    /// Whether names serve as addresses: simulated nodes have no network.
    pub fn names_are_addresses(&self) -> bool {
        matches!(self, Self::Sim { .. })
    }

    /// Whether this exit code of the launcher's own program means that the node
    /// was not reached. ssh(1): "exits with the exit status of the remote
    /// command or with 255 if an error occurred". `fabricgate node attach` does the
    /// same.
    pub fn is_connect_failure(&self, code: i32) -> bool {
        let template = match self {
            Self::Command { template } => template,
            Self::Kubernetes(_) => return code == UNREACHED_EXIT_CODE,
            _ => return false,
        };
        let program = template.first().map_or("", |p| p.rsplit('/').next().unwrap_or(p));
        program == "ssh" && code == UNREACHED_EXIT_CODE
    }

    /// The serialized name.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Command { .. } => "command",
            Self::Sim { .. } => "sim",
            Self::Slurm(_) => "slurm",
            Self::Kubernetes(_) => "kubernetes",
            Self::Replay { .. } => "replay",
        }
    }
}

/// Refuses names that a program could misread.
pub fn check_name(node: &NodeName) -> Result<(), LaunchError> {
    let name = node.as_str();
    if name.starts_with('-') {
        return Err(LaunchError::LooksLikeOption { node: name.to_owned() });
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || !name.chars().all(plain) {
        return Err(LaunchError::NotAName { node: name.to_owned() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(template: &[&str]) -> Launcher {
        Launcher::Command { template: template.iter().map(|w| (*w).to_owned()).collect() }
    }

    fn argv(launcher: &Launcher, node: &str) -> Result<Vec<String>, LaunchError> {
        launcher.argv(&NodeName::from(node), &["tool".to_owned(), "a b".to_owned()])
    }

    #[test]
    fn the_template_comes_first_and_arguments_stay_separate() {
        assert_eq!(argv(&Launcher::Local, "n1").expect("good"), ["tool", "a b"]);
        let env = command(&["env", "NODE={node}"]);
        assert_eq!(argv(&env, "n1").expect("good"), ["env", "NODE=n1", "tool", "a b"]);
        let shell = command(&["ssh", "{node}", "{command}"]);
        assert_eq!(argv(&shell, "n1").expect("good"), ["ssh", "n1", "tool \"a b\""]);
    }

    #[test]
    fn names_that_a_program_could_misread_are_refused() {
        let ssh = command(&["ssh", "{node}"]);
        assert!(matches!(argv(&ssh, "-oX"), Err(LaunchError::LooksLikeOption { .. })));
        for name in ["", "a b", "a;b", "a$(b)", "a/b"] {
            assert!(matches!(argv(&ssh, name), Err(LaunchError::NotAName { .. })), "{name}");
        }
    }

    #[test]
    fn this_machine_does_not_represent_several_nodes() {
        assert_eq!(Launcher::Local.check(1), Ok(()));
        assert_eq!(Launcher::Local.check(2), Err(LaunchError::NotLocal { nodes: 2 }));
        assert_eq!(command(&["env"]).check(2), Err(LaunchError::NoNode));
        assert_eq!(command(&[]).check(1), Err(LaunchError::Empty));
        assert_eq!(command(&["ssh", "{node}"]).check(18), Ok(()));
    }

    #[test]
    fn a_worker_starts_with_the_path_on_its_node() {
        let program = WorkerProgram {
            local_exe: "/here/fabricgate".to_owned(),
            node_exe: "/opt/fabricgate".to_owned(),
            links: Some("/tmp/links".into()),
            path: "/bin".to_owned(),
            even_if_busy: false,
            held: HeldNodes::default(),
            age: None,
        };
        let node = NodeName::from("n1");
        let ssh = command(&["ssh", "{node}"]).worker_command(&node, &program).expect("good");
        assert_eq!(ssh.argv, ["ssh", "n1", "/opt/fabricgate", "node", "worker"]);
        assert!(ssh.env.is_empty());
        let sim = Launcher::Sim { scenario: "/s.toml".into(), workers: true };
        let sim = sim.worker_command(&node, &program).expect("good");
        assert_eq!(sim.argv, ["/here/fabricgate", "node", "worker"]);
        assert_eq!(sim.env["PATH"], "/tmp/links:/bin");
        assert_eq!(
            (sim.env[SIM_VARIABLE].as_str(), sim.env[SIM_NODE_VARIABLE].as_str()),
            ("/s.toml", "n1")
        );
    }

    #[test]
    fn through_slurm_nothing_runs_on_a_node_that_no_job_holds() {
        let slurm = Launcher::Slurm(Box::default());
        let (node, other) = (NodeName::from("n1"), NodeName::from("n2"));
        let job = |id: &str| WorkerTarget::Job(id.to_owned());
        let mut held = HeldNodes {
            targets: BTreeMap::from([(node.clone(), job("7"))]),
            skipped: BTreeMap::from([(other.clone(), "drained".to_owned())]),
        };
        let program = WorkerProgram {
            node_exe: "f".to_owned(),
            held: held.clone(),
            ..WorkerProgram::default()
        };
        let words = slurm.worker_command(&node, &program).expect("held").argv.join(" ");
        assert!(words.contains("--jobid=7") && words.ends_with(" f node worker"), "{words}");
        let why = "drained".to_owned();
        assert_eq!(slurm.worker_command(&other, &program), Err(LaunchError::NotHeld { why }));
        let hostile = NodeName::from("--uid=0");
        assert!(matches!(
            slurm.worker_command(&hostile, &program),
            Err(LaunchError::LooksLikeOption { .. })
        ));

        let mpirun = ["mpirun", "-np", "2", "tool"].map(str::to_owned);
        let both = [node.clone(), other.clone()];
        assert!(slurm.step_command(&mpirun, &both, &held).is_err());
        held.targets.insert(other.clone(), job("8"));
        assert!(slurm.step_command(&mpirun, &both, &held).is_err(), "two jobs");
        held.targets.insert(other.clone(), job("7"));
        let words = slurm.step_command(&mpirun, &both, &held).expect("one job").join(" ");
        assert!(words.contains("srun --jobid=7 "), "{words}");
        let plain = ["nvidia-smi".to_owned()];
        assert_eq!(slurm.step_command(&plain, &both[..1], &held), Ok(plain.to_vec()));
    }

    #[test]
    fn a_command_for_every_node_needs_no_rank_launcher() {
        // It needs neither one job for all nodes nor ranks across pods.
        let own = ["{self}", "--json", "node", "probe", "copy", "--together"].map(str::to_owned);
        let nodes: [NodeName; 2] = ["n1".into(), "n2".into()];
        let seats = |make: fn(&str) -> WorkerTarget| {
            let seats = nodes.iter().map(|node| (node.clone(), make(node.as_str()))).collect();
            HeldNodes { targets: seats, ..HeldNodes::default() }
        };
        let jobs = seats(|node| WorkerTarget::Job(format!("of-{node}")));
        let pods = seats(|node| WorkerTarget::Pod { name: node.to_owned(), address: None });
        for (launcher, held) in
            [(Launcher::Slurm(Box::default()), jobs), (Launcher::Kubernetes(Box::default()), pods)]
        {
            for node in &nodes {
                let words = launcher.step_command(&own, std::slice::from_ref(node), &held);
                assert_eq!(words, Ok(own.to_vec()));
            }
            let mpirun = ["mpirun", "--host", "n1:4,n2:4", "tool"].map(str::to_owned);
            assert!(
                launcher.step_command(&mpirun, &nodes, &held).is_err(),
                "so that it runs instead"
            );
        }
    }

    #[test]
    fn through_kubernetes_nothing_runs_without_a_pod_of_the_run() {
        let launcher = Launcher::Kubernetes(Box::default());
        let node = NodeName::from("n1");
        let target = WorkerTarget::Pod { name: "pod-1".to_owned(), address: None };
        let held = HeldNodes {
            targets: [(node.clone(), target)].into(),
            skipped: [("n2".into(), "GPU pods run on it".to_owned())].into(),
        };
        let (here, there) = ("/bin/fg".to_owned(), "fabricgate".to_owned());
        let program =
            WorkerProgram { local_exe: here, node_exe: there, held, ..WorkerProgram::default() };
        let words = launcher.worker_command(&node, &program).expect("held").argv.join(" ");
        assert!(words.starts_with("/bin/fg node attach ") && words.contains(" --pod pod-1 "));
        assert!(words.ends_with(" -- fabricgate node worker"), "{words}");
        let why = "GPU pods run on it".to_owned();
        assert_eq!(
            launcher.worker_command(&"n2".into(), &program),
            Err(LaunchError::NotHeld { why })
        );
        assert!(launcher.argv(&node, &[]).is_err() && launcher.is_connect_failure(255));
    }

    #[test]
    fn only_ssh_reports_an_unreached_node_with_255() {
        assert!(command(&["/usr/bin/ssh", "{node}"]).is_connect_failure(255));
        assert!(!command(&["ssh", "{node}"]).is_connect_failure(1));
        assert!(!command(&["srun", "-w", "{node}"]).is_connect_failure(255));
        assert!(!Launcher::Local.is_connect_failure(255));
    }
}
