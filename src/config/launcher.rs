//! `[launcher]` of the configuration: how nodes are reached, and how many steps run concurrently.
//!
//! Checks the text of the section and opens nothing.

pub mod kubernetes;

use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::Deserializer;
use toml::Spanned;

use crate::config::ConfigMistake;
use crate::config::bounded::{BoundedCount, OneWord, ProgramArgv, Seconds, read_checked};
use control::launch::Launcher;
use control::launch::slurm::{BusyNodePolicy, DrainedNodePolicy, SlurmLauncher, SlurmPrograms};

/// Default number of concurrent steps. The tools run on the nodes; here each step costs a process
/// and its output.
const DEFAULT_PARALLEL: usize = 1_024;

/// Default for simulated nodes, which all run on this machine.
const DEFAULT_SIMULATED_PARALLEL: usize = 16;

/// Default timeout of a worker's first answer: a login through a busy head node takes seconds.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// `[launcher]` of the configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LauncherSection {
    /// The method that reaches nodes. Required.
    #[schemars(with = "LauncherKind")]
    kind: Spanned<LauncherKind>,
    /// With `command`: the arguments that start a program on a node, including `{node}`, such as
    /// `["ssh", "{node}"]`. Required there, and absent elsewhere.
    #[schemars(with = "Option<Vec<String>>")]
    template: Option<Spanned<Vec<String>>>,
    /// With `sim`: the scenario file of the simulated fabric. Required there, and absent elsewhere.
    #[schemars(with = "Option<PathBuf>")]
    scenario: Option<Spanned<PathBuf>>,
    /// With `sim`: whether every node has its own worker. `false` answers for all nodes in this
    /// process, for fleets of thousands; fabricgate's native probes are then unknown. Default:
    /// true.
    #[schemars(with = "Option<bool>")]
    workers: Option<Spanned<bool>>,
    /// With `replay`: the folder of the stored run. Required there, and absent elsewhere.
    #[schemars(with = "Option<PathBuf>")]
    run: Option<Spanned<PathBuf>>,
    /// Most concurrent steps, from 1. Default: 1024; 16 with `sim`.
    parallel: Option<BoundedCount<1, { u32::MAX }>>,
    /// The command or path of fabricgate on the nodes. Default: `fabricgate`.
    #[serde(default, deserialize_with = "read_worker")]
    worker: Option<String>,
    /// Timeout of a worker's first answer in seconds; after it the node is unknown. Default: 30.
    connect_s: Option<Seconds>,
    /// With `slurm`: the partition of jobs. Default: Slurm's.
    #[schemars(with = "Option<String>")]
    partition: Option<Spanned<OneWord>>,
    /// With `slurm`: the account of jobs. Default: Slurm's.
    #[schemars(with = "Option<String>")]
    account: Option<Spanned<OneWord>>,
    /// With `slurm`: the quality of service. Default: Slurm's.
    #[schemars(with = "Option<String>")]
    qos: Option<Spanned<OneWord>>,
    /// With `slurm`: an existing reservation for jobs. Default: none.
    #[schemars(with = "Option<String>")]
    reservation: Option<Spanned<OneWord>>,
    /// With `slurm`: the GPUs that a job requests on each node, such as `gpu:gb200:4`; empty
    /// requests none. Default: as many as Slurm reports for every node.
    #[schemars(with = "Option<String>")]
    gres: Option<Spanned<String>>,
    /// With `slurm`: further arguments of `salloc`. Default: none.
    #[schemars(with = "Option<Vec<String>>")]
    options: Option<Spanned<Vec<String>>>,
    /// With `slurm`: `--mpi` of tools that run on several nodes. Default: `pmix`.
    #[schemars(with = "Option<String>")]
    mpi: Option<Spanned<OneWord>>,
    /// With `slurm`: `--time` of jobs, such as `4:00:00`. Default: twice the planned time, at least
    /// 10 minutes.
    #[schemars(with = "Option<String>")]
    time_limit: Option<Spanned<TimeLimit>>,
    /// With `slurm`: the users of a reservation that fabricgate creates. Default: `root`.
    #[schemars(with = "Option<String>")]
    user: Option<Spanned<OneWord>>,
    /// With `slurm`: how to treat nodes that run jobs. Default: `skip`.
    #[schemars(with = "Option<BusyNodePolicy>")]
    busy: Option<Spanned<BusyNodePolicy>>,
    /// With `slurm`: seconds to wait for busy nodes. Default: 3600.
    #[schemars(with = "Option<Seconds>")]
    wait_s: Option<Spanned<Seconds>>,
    /// With `slurm`: how to measure nodes that the gate has drained. Default: `reservation`.
    #[schemars(with = "Option<DrainedNodePolicy>")]
    drained: Option<Spanned<DrainedNodePolicy>>,
    /// With `slurm`: `srun`, with leading arguments if it is reached through another program.
    /// Default: the one in the folder of `scontrol`.
    #[schemars(with = "Option<Vec<String>>")]
    srun: Option<Spanned<ProgramArgv>>,
    /// With `slurm`: `salloc`, in the same form as `srun`. Default: the one in the folder of
    /// `scontrol`.
    #[schemars(with = "Option<Vec<String>>")]
    salloc: Option<Spanned<ProgramArgv>>,
    /// With `slurm`: `scancel`, in the same form as `srun`. Default: the one in the folder of
    /// `scontrol`.
    #[schemars(with = "Option<Vec<String>>")]
    scancel: Option<Spanned<ProgramArgv>>,
    /// With `slurm`: `squeue`, in the same form as `srun`. Default: the one in the folder of
    /// `scontrol`.
    #[schemars(with = "Option<Vec<String>>")]
    squeue: Option<Spanned<ProgramArgv>>,
    /// With `slurm`: `scontrol`, in the same form as `srun`. Default: that of `[sources.slurm]`.
    #[schemars(with = "Option<Vec<String>>")]
    scontrol: Option<Spanned<ProgramArgv>>,
    /// With `slurm`: `srun` for use on the nodes. Default: `["srun"]`.
    #[schemars(with = "Option<Vec<String>>")]
    node_srun: Option<Spanned<ProgramArgv>>,
    /// With `kubernetes`: the pods through which nodes are measured. Absent elsewhere.
    #[schemars(with = "Option<kubernetes::LauncherKubernetesSection>")]
    kubernetes: Option<Spanned<kubernetes::LauncherKubernetesSection>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum LauncherKind {
    /// This machine.
    Local,
    /// Any program that starts another on a node, such as ssh.
    Command,
    /// A simulated fabric.
    Sim,
    /// Jobs of Slurm.
    Slurm,
    /// Pods of Kubernetes.
    Kubernetes,
    /// A stored run.
    Replay,
}

impl LauncherKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Command => "command",
            Self::Sim => "sim",
            Self::Slurm => "slurm",
            Self::Kubernetes => "kubernetes",
            Self::Replay => "replay",
        }
    }
}

/// How nodes are reached, as configured.
#[derive(Debug)]
pub struct LauncherConfig {
    /// The method.
    pub launcher: Launcher,
    /// Most concurrent steps.
    pub parallel: usize,
    /// The command or path of fabricgate on the nodes.
    pub worker: String,
    /// Timeout of a worker's first answer.
    pub connect: Duration,
}

impl Default for LauncherConfig {
    fn default() -> Self {
        Self {
            launcher: Launcher::Local,
            parallel: DEFAULT_PARALLEL,
            worker: "fabricgate".to_owned(),
            connect: DEFAULT_CONNECT_TIMEOUT,
        }
    }
}

impl LauncherConfig {
    /// Replaces the configured launcher with a simulated fabric; a configured `sim` launcher keeps
    /// its worker setting.
    pub fn simulate(&mut self, scenario: &Path) {
        let workers = !matches!(self.launcher, Launcher::Sim { workers: false, .. });
        self.launcher = Launcher::Sim { scenario: scenario.to_owned(), workers };
        self.parallel = self.parallel.min(DEFAULT_SIMULATED_PARALLEL);
    }
}

/// Reads `[launcher]`; the section itself is at `at`. By default Slurm's programs are in the
/// folder of `scontrol`.
pub fn parse_launcher(
    section: LauncherSection,
    at: usize,
    base: &Path,
    scontrol: Option<&[String]>,
) -> Result<LauncherConfig, ConfigMistake> {
    let mut reach = LauncherConfig::default();
    if let Some(steps) = section.parallel {
        reach.parallel = steps.size();
    }
    if let Some(seconds) = section.connect_s {
        reach.connect = seconds.duration();
    }
    if let Some(worker) = &section.worker {
        reach.worker.clone_from(worker);
    }
    let kind = *section.kind.get_ref();
    let only = |at: Option<usize>, key: &str, own: LauncherKind| match at {
        Some(at) if kind != own => {
            Err((at, format!("{key}: belongs to kind = \"{}\"", own.as_str())))
        }
        _ => Ok(()),
    };
    only(section.template.as_ref().map(|s| s.span().start), "template", LauncherKind::Command)?;
    only(section.scenario.as_ref().map(|s| s.span().start), "scenario", LauncherKind::Sim)?;
    only(section.workers.as_ref().map(|s| s.span().start), "workers", LauncherKind::Sim)?;
    only(section.run.as_ref().map(|s| s.span().start), "run", LauncherKind::Replay)?;
    let pods = section.kubernetes.as_ref().map(|s| s.span().start);
    only(pods, "[launcher.kubernetes]", LauncherKind::Kubernetes)?;
    if kind != LauncherKind::Slurm
        && let Some((key, at)) = section.slurm_keys().into_iter().min_by_key(|(_, at)| *at)
    {
        let there = match (kind, key) {
            (LauncherKind::Kubernetes, "busy" | "wait_s") => {
                "; for pods, set it in [launcher.kubernetes]"
            }
            _ => "",
        };
        return Err((at, format!("{key}: belongs to kind = \"slurm\"{there}")));
    }
    let missing =
        |example: &str| (at, format!("launcher of kind \"{}\": expected {example}", kind.as_str()));
    reach.launcher = match kind {
        LauncherKind::Local => Launcher::Local,
        LauncherKind::Command => {
            let example = "template = [\"ssh\", \"{node}\"] or the like";
            let template = section.template.ok_or_else(|| missing(example))?;
            let at = template.span().start;
            let launcher = Launcher::Command { template: template.into_inner() };
            launcher.check(1).map_err(|error| (at, error.to_string()))?;
            launcher
        }
        LauncherKind::Sim => {
            let scenario = section.scenario.ok_or_else(|| missing("scenario = \"FILE\""))?;
            if section.parallel.is_none() {
                reach.parallel = DEFAULT_SIMULATED_PARALLEL;
            }
            let workers = section.workers.as_ref().is_none_or(|workers| *workers.get_ref());
            Launcher::Sim { scenario: base.join(scenario.into_inner()), workers }
        }
        LauncherKind::Slurm => Launcher::Slurm(Box::new(section.into_slurm(scontrol))),
        LauncherKind::Kubernetes => {
            let (at, pods) = match section.kubernetes {
                Some(pods) => (pods.span().start, pods.into_inner()),
                None => (at, kubernetes::LauncherKubernetesSection::default()),
            };
            Launcher::Kubernetes(Box::new(pods.into_kubernetes(at, base)?))
        }
        LauncherKind::Replay => {
            let run = section.run.ok_or_else(|| missing("run = \"RUN FOLDER\""))?;
            Launcher::Replay { run: base.join(run.into_inner()) }
        }
    };
    Ok(reach)
}

impl LauncherSection {
    /// The keys for Slurm that are set, with their offsets.
    fn slurm_keys(&self) -> Vec<(&'static str, usize)> {
        fn at<T>(key: &'static str, value: &Option<Spanned<T>>) -> Option<(&'static str, usize)> {
            value.as_ref().map(|it| (key, it.span().start))
        }
        [
            at("partition", &self.partition),
            at("account", &self.account),
            at("qos", &self.qos),
            at("reservation", &self.reservation),
            at("gres", &self.gres),
            at("options", &self.options),
            at("mpi", &self.mpi),
            at("time_limit", &self.time_limit),
            at("user", &self.user),
            at("busy", &self.busy),
            at("wait_s", &self.wait_s),
            at("drained", &self.drained),
            at("srun", &self.srun),
            at("salloc", &self.salloc),
            at("scancel", &self.scancel),
            at("squeue", &self.squeue),
            at("scontrol", &self.scontrol),
            at("node_srun", &self.node_srun),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn into_slurm(self, scontrol: Option<&[String]>) -> SlurmLauncher {
        let usual = SlurmLauncher::default();
        let words = |program: Option<Spanned<ProgramArgv>>| {
            program.map(|program| program.into_inner().into_words())
        };
        let text = |word: Option<Spanned<OneWord>>| word.map(|it| it.into_inner().into_text());
        let scontrol = words(self.scontrol)
            .or_else(|| scontrol.map(<[String]>::to_vec))
            .unwrap_or_else(|| usual.programs.scontrol.clone());
        let beside = SlurmPrograms::from_scontrol(&scontrol);
        SlurmLauncher {
            partition: text(self.partition),
            account: text(self.account),
            qos: text(self.qos),
            reservation: text(self.reservation),
            gres: self.gres.map(Spanned::into_inner),
            options: self.options.map(Spanned::into_inner).unwrap_or_default(),
            mpi: text(self.mpi).unwrap_or(usual.mpi),
            time_limit: self.time_limit.map(|limit| limit.into_inner().0),
            user: text(self.user).unwrap_or(usual.user),
            busy: self.busy.map(Spanned::into_inner).unwrap_or_default(),
            wait_s: self.wait_s.map_or(usual.wait_s, |it| it.get_ref().duration().as_secs()),
            drained: self.drained.map(Spanned::into_inner).unwrap_or_default(),
            programs: SlurmPrograms {
                srun: words(self.srun).unwrap_or(beside.srun),
                salloc: words(self.salloc).unwrap_or(beside.salloc),
                scancel: words(self.scancel).unwrap_or(beside.scancel),
                squeue: words(self.squeue).unwrap_or(beside.squeue),
                scontrol,
                remote_shell: None,
            },
            node_srun: words(self.node_srun).unwrap_or(usual.node_srun),
            carried: usual.carried,
        }
    }
}

/// A value of `--time`.
#[derive(Debug)]
struct TimeLimit(String);

impl<'de> Deserialize<'de> for TimeLimit {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let is_time = |text: &str| {
            !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || matches!(c, ':' | '-'))
        };
        let expected = "minutes or a value of --time: \"90\", \"4:00:00\", \"1-12\"";
        read_checked(from, is_time, expected).map(Self)
    }
}

fn read_worker<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let expected = "the command or path of fabricgate on the nodes";
    read_checked(from, |text| !text.is_empty(), expected).map(Some)
}
