//! `[launcher]` of the configuration: how nodes are reached, and how many steps run concurrently.
//!
//! Checks the text of the section and opens nothing.

pub mod kubernetes;

use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use crate::config::{ConfigMistake, parse_duration};
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
    /// `["ssh", "{node}"]`. Required there, and ignored elsewhere.
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
    #[schemars(with = "Option<u32>")]
    parallel: Option<Spanned<u32>>,
    /// The command or path of fabricgate on the nodes. Default: `fabricgate`.
    #[schemars(with = "Option<String>")]
    worker: Option<Spanned<String>>,
    /// Timeout of a worker's first answer in seconds; after it the node is unknown. Default: 30.
    #[schemars(with = "Option<f64>")]
    connect_s: Option<Spanned<f64>>,
    /// With `slurm`: the partition of jobs. Default: Slurm's.
    #[schemars(with = "Option<String>")]
    partition: Option<Spanned<String>>,
    /// With `slurm`: the account of jobs. Default: Slurm's.
    #[schemars(with = "Option<String>")]
    account: Option<Spanned<String>>,
    /// With `slurm`: the quality of service. Default: Slurm's.
    #[schemars(with = "Option<String>")]
    qos: Option<Spanned<String>>,
    /// With `slurm`: an existing reservation for jobs. Default: none.
    #[schemars(with = "Option<String>")]
    reservation: Option<Spanned<String>>,
    /// With `slurm`: the GPUs that a job requests on each node, such as `gpu:gb200:4`; empty
    /// requests none. Default: as many as Slurm reports for every node.
    #[schemars(with = "Option<String>")]
    gres: Option<Spanned<String>>,
    /// With `slurm`: further arguments of `salloc`. Default: none.
    #[schemars(with = "Option<Vec<String>>")]
    options: Option<Spanned<Vec<String>>>,
    /// With `slurm`: `--mpi` of tools that run on several nodes. Default: `pmix`.
    #[schemars(with = "Option<String>")]
    mpi: Option<Spanned<String>>,
    /// With `slurm`: `--time` of jobs, such as `4:00:00`. Default: twice the planned time, at least
    /// 10 minutes.
    #[schemars(with = "Option<String>")]
    time_limit: Option<Spanned<String>>,
    /// With `slurm`: the users of a reservation that fabricgate creates. Default: `root`.
    #[schemars(with = "Option<String>")]
    user: Option<Spanned<String>>,
    /// With `slurm`: how to treat nodes that run jobs. Default: `skip`.
    #[schemars(with = "Option<BusyNodePolicy>")]
    busy: Option<Spanned<BusyNodePolicy>>,
    /// With `slurm`: seconds to wait for busy nodes. Default: 3600.
    #[schemars(with = "Option<f64>")]
    wait_s: Option<Spanned<f64>>,
    /// With `slurm`: how to measure nodes that the gate has drained. Default: `reservation`.
    #[schemars(with = "Option<DrainedNodePolicy>")]
    drained: Option<Spanned<DrainedNodePolicy>>,
    /// With `slurm`: `srun`, with leading arguments if it is reached through another program.
    /// Default: the one in the folder of `scontrol`.
    #[schemars(with = "Option<Vec<String>>")]
    srun: Option<Spanned<Vec<String>>>,
    /// With `slurm`: `salloc`, in the same form as `srun`. Default: the one in the folder of
    /// `scontrol`.
    #[schemars(with = "Option<Vec<String>>")]
    salloc: Option<Spanned<Vec<String>>>,
    /// With `slurm`: `scancel`, in the same form as `srun`. Default: the one in the folder of
    /// `scontrol`.
    #[schemars(with = "Option<Vec<String>>")]
    scancel: Option<Spanned<Vec<String>>>,
    /// With `slurm`: `squeue`, in the same form as `srun`. Default: the one in the folder of
    /// `scontrol`.
    #[schemars(with = "Option<Vec<String>>")]
    squeue: Option<Spanned<Vec<String>>>,
    /// With `slurm`: `scontrol`, in the same form as `srun`. Default: that of `[sources.slurm]`.
    #[schemars(with = "Option<Vec<String>>")]
    scontrol: Option<Spanned<Vec<String>>>,
    /// With `slurm`: `srun` for use on the nodes. Default: `["srun"]`.
    #[schemars(with = "Option<Vec<String>>")]
    node_srun: Option<Spanned<Vec<String>>>,
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
    if let Some(n) = &section.parallel {
        if *n.get_ref() == 0 {
            return Err((n.span().start, "parallel 0, expected 1 or more".to_owned()));
        }
        reach.parallel = usize::try_from(*n.get_ref()).unwrap_or(usize::MAX);
    }
    if let Some(seconds) = &section.connect_s {
        reach.connect = parse_duration("connect_s", seconds)?;
    }
    if let Some(worker) = &section.worker {
        if worker.get_ref().is_empty() {
            let message =
                "worker is empty, expected the command or path of fabricgate on the nodes"
                    .to_owned();
            return Err((worker.span().start, message));
        }
        reach.worker.clone_from(worker.get_ref());
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
        LauncherKind::Slurm => Launcher::Slurm(Box::new(section.into_slurm(scontrol)?)),
        LauncherKind::Kubernetes => {
            let pod_section = section
                .kubernetes
                .map(|section| (section.span().start, section.into_inner()));
            let (at, pod_section) = pod_section
                .unwrap_or_else(|| (at, kubernetes::LauncherKubernetesSection::default()));
            Launcher::Kubernetes(Box::new(pod_section.into_kubernetes(at, base)?))
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

    fn into_slurm(self, scontrol: Option<&[String]>) -> Result<SlurmLauncher, ConfigMistake> {
        let usual = SlurmLauncher::default();
        let scontrol = parse_argv("scontrol", self.scontrol)?
            .or_else(|| scontrol.map(<[String]>::to_vec))
            .unwrap_or_else(|| usual.programs.scontrol.clone());
        let beside = SlurmPrograms::from_scontrol(&scontrol);
        let time_limit = parse_name("time_limit", self.time_limit.as_ref())?;
        if let (Some(limit), Some(written)) = (&time_limit, &self.time_limit)
            && !limit.chars().all(|c| c.is_ascii_digit() || matches!(c, ':' | '-'))
        {
            let message = format!(
                "time_limit {limit:?}, expected minutes or what --time takes: \"90\", \"4:00:00\", \
                 \"1-12\""
            );
            return Err((written.span().start, message));
        }
        let user = parse_name("user", self.user.as_ref())?;
        let gres = self.gres.map(Spanned::into_inner);
        Ok(SlurmLauncher {
            partition: parse_name("partition", self.partition.as_ref())?,
            account: parse_name("account", self.account.as_ref())?,
            qos: parse_name("qos", self.qos.as_ref())?,
            reservation: parse_name("reservation", self.reservation.as_ref())?,
            gres,
            options: self.options.map(Spanned::into_inner).unwrap_or_default(),
            mpi: parse_name("mpi", self.mpi.as_ref())?.unwrap_or(usual.mpi),
            time_limit,
            user: user.unwrap_or(usual.user),
            busy: self.busy.map(Spanned::into_inner).unwrap_or_default(),
            wait_s: match &self.wait_s {
                Some(seconds) => parse_duration("wait_s", seconds)?.as_secs(),
                None => usual.wait_s,
            },
            drained: self.drained.map(Spanned::into_inner).unwrap_or_default(),
            programs: SlurmPrograms {
                srun: parse_argv("srun", self.srun)?.unwrap_or(beside.srun),
                salloc: parse_argv("salloc", self.salloc)?.unwrap_or(beside.salloc),
                scancel: parse_argv("scancel", self.scancel)?.unwrap_or(beside.scancel),
                squeue: parse_argv("squeue", self.squeue)?.unwrap_or(beside.squeue),
                scontrol,
                remote_shell: None,
            },
            node_srun: parse_argv("node_srun", self.node_srun)?.unwrap_or(usual.node_srun),
            carried: usual.carried,
        })
    }
}

/// A value of a command option: one argument, and not empty.
fn parse_name(key: &str, value: Option<&Spanned<String>>) -> Result<Option<String>, ConfigMistake> {
    let Some(value) = value else { return Ok(None) };
    let text = value.get_ref();
    if text.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        let message = format!("{key} {text:?}, expected one argument");
        return Err((value.span().start, message));
    }
    Ok(Some(text.clone()))
}

fn parse_argv(
    key: &str,
    value: Option<Spanned<Vec<String>>>,
) -> Result<Option<Vec<String>>, ConfigMistake> {
    let Some(value) = value else { return Ok(None) };
    if value.get_ref().first().is_none_or(String::is_empty) {
        let message = format!("{key} is empty, expected arguments such as [\"{key}\"]");
        return Err((value.span().start, message));
    }
    Ok(Some(value.into_inner()))
}
