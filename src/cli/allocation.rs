//! Allocates nodes through Slurm or Kubernetes before a sweep, and releases them afterwards.
//!
//! `control::gate::allocation` creates and frees the allocations; this module turns the
//! configuration into its arguments, and its errors into command failures.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::gate_apply;
use crate::cli::plan_scope::PlanBasis;
use crate::cli::stdout::{note, note_gate_event};
use crate::config::Config;
use crate::config::gate::{CALL_TIMEOUT, GateBackend, SETTLE_TIME};
use crate::exit::CommandError;
use control::gate::allocation::{
    Allocation, AllocationBackend, AllocationContext, AllocationDomain, AllocationError,
    AllocationRequest, ReservationRenewal, clean_up_at_start,
};
use control::gate::executor::DEFAULT_PERSIST_TIME;
use control::gate::journal;
use control::gate::kubernetes::KubernetesScheduler;
use control::gate::pod_allocation::{PodBackend, PodObjectClient};
use control::gate::recovery::DEFAULT_IN_FLIGHT_TIME;
use control::gate::scheduler::Scheduler;
use control::gate::scheduler::SchedulerTimeouts;
use control::gate::scontrol::ScontrolScheduler;
use control::launch::kubernetes::pod_ranks::NO_RANKS;
use control::launch::kubernetes::{KubernetesLauncher, RankLaunchMode};
use control::launch::slurm::{BusyNodePolicy, SlurmLauncher};
use control::launch::{HeldNodes, Launcher, WorkerTarget};
use control::sources::kubernetes::KubernetesClientConfig;
use control::sweep::signals::StopSignals;
use engine::plan::{Plan, SkippedProbe};
use model::claims::Claims;
use model::hostlist;
use model::id::NodeName;
use model::probe::ProbeScope;
use model::profile::Profile;

/// Why ranks do not start on a node without a Slurm job.
const NO_JOB_REASON: &str = "its ranks need a job, and none holds the node: it is drained and \
                            measured without the scheduler";

/// Requested time of a job relative to the estimated time of its sweep: estimates are rough, and
/// suspects are measured again.
const TIME_FACTOR: f64 = 2.0;
/// Additional minutes, and the least minutes of a job.
const MIN_MINUTES: f64 = 10.0;

/// [`BusyNodePolicy`] as a value of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WhenBusyArg(pub BusyNodePolicy);

impl clap::ValueEnum for WhenBusyArg {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self(BusyNodePolicy::Skip), Self(BusyNodePolicy::Wait), Self(BusyNodePolicy::Reserve)]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        let (name, help) = match self.0 {
            BusyNodePolicy::Skip => ("skip", "leave them out and report them"),
            BusyNodePolicy::Wait => ("wait", "queue for them, at most wait_s"),
            BusyNodePolicy::Reserve => {
                ("reserve", "keep new jobs off them, wait for those that run")
            }
        };
        Some(clap::builder::PossibleValue::new(name).help(help))
    }
}

/// Applies --when-busy over the configuration.
pub fn override_when_busy(
    config: &mut Config,
    policy: Option<BusyNodePolicy>,
) -> Result<(), CommandError> {
    match (&mut config.launcher, policy) {
        (_, None) => Ok(()),
        (Launcher::Slurm(slurm), Some(policy)) => {
            slurm.busy = policy;
            Ok(())
        }
        (Launcher::Kubernetes(_), Some(BusyNodePolicy::Reserve)) => Err(CommandError::usage(
            "--when-busy reserve: Kubernetes has no reservations; expected skip or wait",
        )),
        (Launcher::Kubernetes(kubernetes), Some(policy)) => {
            kubernetes.busy = policy;
            Ok(())
        }
        (launcher, Some(_)) => Err(CommandError::Usage(format!(
            "--when-busy: expected a launcher of kind \"slurm\" or \"kubernetes\", not \"{}\"",
            launcher.as_str()
        ))),
    }
}

/// Allocated nodes; dropping it releases them.
#[derive(Debug)]
pub struct NodeAllocation {
    backend: AllocationBackend,
    scheduler: Box<dyn Scheduler>,
    timeouts: SchedulerTimeouts,
    record: AllocationRecord,
    allocation: Allocation,
    renewal: Option<ReservationRenewal>,
    runtime: tokio::runtime::Runtime,
}

/// The nodes to allocate, and their use.
#[derive(Clone, Copy, Debug)]
pub struct AllocationPurpose<'a> {
    /// The run that uses the nodes.
    pub run: &'a str,
    /// The claims of the run.
    pub claims: &'a Claims,
    /// The nodes to allocate.
    pub nodes: &'a BTreeSet<NodeName>,
    /// Whether nodes that fabricgate drained are allocated too.
    pub drained: bool,
    /// Time limit, in minutes.
    pub minutes: u64,
    /// The fabricgate command on the nodes.
    pub worker: &'a str,
}

impl NodeAllocation {
    /// Allocates the nodes of a plan; `None` for launchers without allocations.
    pub fn allocate_for_plan(
        config: &Config,
        claims: &Claims,
        plan: &Plan,
        run: &str,
        profile: Profile,
    ) -> Result<Option<Self>, CommandError> {
        let nodes = plan.nodes().into_iter().cloned().collect();
        Self::allocate(
            config,
            &AllocationPurpose {
                run,
                claims,
                nodes: &nodes,
                drained: profile == Profile::Recertify,
                minutes: job_minutes(plan.estimate_s, config.confirm.wait),
                worker: &config.worker,
            },
        )
    }

    /// Allocates these nodes; `None` for launchers without allocations.
    pub fn allocate(
        config: &Config,
        purpose: &AllocationPurpose<'_>,
    ) -> Result<Option<Self>, CommandError> {
        let runtime = crate::cli::runtime::build_runtime()?;
        let (backend, scheduler, timeouts) = match &config.launcher {
            Launcher::Slurm(slurm) => slurm_backend(config, slurm),
            Launcher::Kubernetes(kubernetes) => {
                runtime.block_on(kubernetes_backend(config, kubernetes, purpose.worker))?
            }
            _ => return Ok(None),
        };
        let record = AllocationRecord::new(config, purpose.run);
        let (allocation, renewal) = (Allocation::default(), None);
        let mut hold = Self { backend, scheduler, timeouts, record, allocation, renewal, runtime };
        hold.acquire(purpose)?;
        hold.print_skipped();
        if hold.launch_allocation().targets.is_empty() {
            let text = "no node can be measured now: see above why each node is left out";
            return Err(CommandError::Environment(text.to_owned()));
        }
        Ok(Some(hold))
    }

    fn acquire(&mut self, purpose: &AllocationPurpose<'_>) -> Result<(), CommandError> {
        let domains = purpose.claims.domains.iter().map(|domain| AllocationDomain {
            name: domain.name.clone(),
            nodes: domain.nodes.iter().filter(|it| purpose.nodes.contains(*it)).cloned().collect(),
            gpus_per_node: domain.gpus_per_node,
        });
        let request = AllocationRequest {
            run: purpose.run,
            domains: domains.filter(|domain| !domain.nodes.is_empty()).collect(),
            drained: purpose.drained,
            minutes: purpose.minutes,
        };
        let Self { backend, scheduler, timeouts, record, allocation, renewal, runtime } = self;
        let mut log = note_gate_event;
        let mut context = AllocationContext {
            backend,
            scheduler: &**scheduler,
            folder: &record.folder,
            timeouts: *timeouts,
            log: &mut log,
        };
        runtime.block_on(async {
            let mut signals = StopSignals::listen();
            let holding = async {
                if context.backend.slurm().is_some() {
                    release_orphans(record, &mut context).await?;
                }
                let held = allocation.acquire(&mut context, &request).await;
                *renewal = ReservationRenewal::start(&context, allocation, note_gate_event);
                held
            };
            tokio::select! {
                held = holding => held.map_err(allocation_error),
                name = signals.next() => {
                    Err(CommandError::Environment(format!("{name} while nodes were allocated")))
                }
            }
        })
    }

    /// The allocated nodes, for the workers.
    pub fn launch_allocation(&self) -> &HeldNodes {
        &self.allocation.nodes
    }

    /// Prints the nodes that are left out, grouped by reason.
    fn print_skipped(&self) {
        for (why, nodes) in self.skipped_by_reason() {
            let nodes = hostlist::fold(nodes.iter().map(NodeName::as_str));
            note(&format!("left out: {nodes}: {why}"));
        }
    }

    fn skipped_by_reason(&self) -> BTreeMap<&str, Vec<NodeName>> {
        let mut by_reason: BTreeMap<&str, Vec<NodeName>> = BTreeMap::new();
        for (node, why) in &self.launch_allocation().skipped {
            by_reason.entry(why).or_default().push(node.clone());
        }
        by_reason
    }

    /// The claims without the nodes that are left out: an unmeasured node is no evidence about the
    /// others.
    pub fn restrict_claims(&self, claims: &Claims) -> Claims {
        let HeldNodes { targets, skipped } = self.launch_allocation();
        claims.with_nodes(|node| targets.contains_key(node) || !skipped.contains_key(node))
    }

    /// The plan for the allocated nodes. It lists the nodes that are left out as skipped, so that
    /// they do not count as measured.
    pub fn make_plan(&self, basis: &PlanBasis<'_>) -> anyhow::Result<Plan> {
        let mut plan = basis.make_plan()?;
        self.drop_unstartable_ranks(&mut plan);
        for (why, nodes) in self.skipped_by_reason() {
            let (probe, why) = ("every probe".to_owned(), why.to_owned());
            // One entry per node, so that a search for a node finds it.
            plan.skipped.extend(nodes.into_iter().map(|node| SkippedProbe {
                probe: probe.clone(),
                nodes: vec![node],
                why: why.clone(),
                not_applicable: false,
            }));
        }
        Ok(plan)
    }
}

impl NodeAllocation {
    /// Removes multi-node ranks that cannot start on a node outside a job. Of a pair only that node
    /// loses the step, of a whole domain every node does. Steps that every node runs by itself
    /// stay, including those that replace such a tool.
    fn drop_unstartable_ranks(&self, plan: &mut Plan) {
        let targets = &self.launch_allocation().targets;
        let (pods, why) = match &self.backend {
            AllocationBackend::Slurm(_) => (false, NO_JOB_REASON),
            AllocationBackend::Kubernetes(pods) => {
                (pods.kubernetes.ranks == RankLaunchMode::None, NO_RANKS)
            }
        };
        let is_alone = |node: &NodeName| match targets.get(node) {
            Some(WorkerTarget::Unallocated) => true,
            Some(WorkerTarget::Pod { .. }) => pods,
            Some(WorkerTarget::Job(_)) | None => false,
        };
        let mut missing: BTreeSet<(String, NodeName)> = BTreeSet::new();
        for round in &mut plan.rounds {
            round.steps.retain(|step| {
                let stays = step.scope == ProbeScope::Rail
                    || step.nodes.len() < 2
                    || step.on_all_nodes
                    || step.fallback.as_ref().is_some_and(|it| it.on_all_nodes)
                    || !step.nodes.iter().any(is_alone);
                if !stays {
                    let whole = step.scope == ProbeScope::Domain;
                    let without = step.nodes.iter().filter(|node| whole || is_alone(node));
                    missing.extend(without.map(|node| (step.probe.clone(), node.clone())));
                }
                stays
            });
        }
        plan.rounds.retain(|round| !round.steps.is_empty());
        plan.skipped.extend(missing.into_iter().map(|(probe, node)| SkippedProbe {
            probe,
            nodes: vec![node],
            why: why.to_owned(),
            not_applicable: false,
        }));
    }
}

/// Releases the nodes, however the sweep ends.
impl Drop for NodeAllocation {
    fn drop(&mut self) {
        let Self { backend, scheduler, timeouts, record, allocation, renewal, runtime } = self;
        *renewal = None;
        let mut log = note_gate_event;
        let mut context = AllocationContext {
            backend,
            scheduler: &**scheduler,
            folder: &record.folder,
            timeouts: *timeouts,
            log: &mut log,
        };
        let troubles = runtime.block_on(allocation.release(&mut context));
        record.remove(&record.folder);
        for trouble in troubles {
            let next = match record.passing {
                Some(_) => "the next run frees it",
                None => "the next turn, or `fabricgate gate recover`, frees it",
            };
            note(&format!("{trouble}; {next}"));
        }
    }
}

/// Slurm's backend: the scheduler of `[gate]` if that is Slurm, else scontrol with the default time
/// limits. A Kubernetes gate cannot undo a Slurm drain.
fn slurm_backend(
    config: &Config,
    slurm: &SlurmLauncher,
) -> (AllocationBackend, Box<dyn Scheduler>, SchedulerTimeouts) {
    let gate = config.gate.as_ref();
    let gate = gate.filter(|gate| !matches!(gate.backend, GateBackend::Kubernetes(_)));
    let timeouts = gate.map_or(
        SchedulerTimeouts {
            limit: CALL_TIMEOUT,
            settle: SETTLE_TIME,
            persist: DEFAULT_PERSIST_TIME,
            in_flight: DEFAULT_IN_FLIGHT_TIME,
        },
        |gate| gate.timeouts,
    );
    let scheduler: Box<dyn Scheduler> = match gate {
        Some(gate) => gate_apply::scheduler_for(gate),
        None => Box::new(ScontrolScheduler {
            argv: slurm.programs.scontrol.clone(),
            limit: timeouts.limit,
            remote_shell: slurm.programs.remote_shell,
        }),
    };
    (AllocationBackend::Slurm(Box::new(slurm.clone())), scheduler, timeouts)
}

/// The backend of Kubernetes. The account that creates pods can also read nodes, but not change
/// them. Changes to a pod take effect immediately.
async fn kubernetes_backend(
    config: &Config,
    kubernetes: &KubernetesLauncher,
    worker: &str,
) -> Result<(AllocationBackend, Box<dyn Scheduler>, SchedulerTimeouts), CommandError> {
    let limit = config.gate.as_ref().map_or(CALL_TIMEOUT, |gate| gate.timeouts.limit);
    let (kubeconfig, context) = (kubernetes.kubeconfig.clone(), kubernetes.context.clone());
    let server = KubernetesClientConfig { kubeconfig, context, limit };
    let objects =
        PodObjectClient::connect(kubernetes, limit).await.map_err(CommandError::Environment)?;
    let pods = PodBackend { kubernetes: kubernetes.clone(), worker: worker.to_owned(), objects };
    let none = Duration::ZERO;
    let timeouts = SchedulerTimeouts { limit, settle: none, persist: none, in_flight: none };
    let scheduler = Box::new(KubernetesScheduler::new(server));
    Ok((AllocationBackend::Kubernetes(Box::new(pods)), scheduler, timeouts))
}

/// Releases the allocations that earlier runs without a gate left behind.
async fn release_orphans(
    record: &AllocationRecord,
    context: &mut AllocationContext<'_>,
) -> Result<(), AllocationError> {
    for folder in record.list_orphans() {
        clean_up_at_start(&mut AllocationContext {
            folder: &folder,
            log: &mut *context.log,
            ..*context
        })
        .await?;
        record.remove(&folder);
    }
    Ok(())
}

/// The location of the allocation journal.
#[derive(Clone, Debug)]
struct AllocationRecord {
    folder: PathBuf,
    /// Without a gate: the folder of all such records.
    passing: Option<PathBuf>,
}

impl AllocationRecord {
    /// Uses the gate's folder if there is one; its next turn ends what a dead process left. Without
    /// a gate, a folder next to the run folders, removed after everything is released.
    fn new(config: &Config, run: &str) -> Self {
        match &config.gate {
            Some(gate) => Self { folder: gate.folder.clone(), passing: None },
            None => {
                let passing = config.run_dir.join(RECORDS_DIR);
                Self { folder: passing.join(run), passing: Some(passing) }
            }
        }
    }

    /// The records of runs without a gate that did not release everything.
    fn list_orphans(&self) -> Vec<PathBuf> {
        let entries = self.passing.as_ref().and_then(|folder| std::fs::read_dir(folder).ok());
        let mut left: Vec<PathBuf> =
            entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        left.retain(|path| *path != self.folder && path.is_dir());
        left.sort();
        left
    }

    /// Removes a record without allocations, and the folders that were created for it.
    fn remove(&self, folder: &Path) {
        let Some(passing) = &self.passing else { return };
        if journal::read_state(folder).is_ok_and(|ledger| ledger.allocations.is_empty()) {
            for name in [journal::JOURNAL_FILE, journal::LOCK_FILE] {
                let _ = std::fs::remove_file(folder.join(name));
            }
            // `remove_dir` removes only empty folders.
            let above = passing.parent();
            for folder in [Some(folder), Some(passing), above].into_iter().flatten() {
                let _ = std::fs::remove_dir(folder);
            }
        }
    }
}

/// Name of the folder of these records, inside the folder of the runs.
const RECORDS_DIR: &str = ".holds";

/// Minutes to request for a job, given the estimated time of its plan.
pub(crate) fn job_minutes(estimate_s: f64, confirm: Duration) -> u64 {
    let minutes = (TIME_FACTOR * estimate_s + confirm.as_secs_f64()) / 60.0 + MIN_MINUTES;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "minutes of a sweep are few and positive"
    )]
    let whole = minutes.ceil().clamp(MIN_MINUTES, 525_600.0) as u64;
    whole
}

fn allocation_error(error: AllocationError) -> CommandError {
    match error {
        AllocationError::Name(_) => CommandError::usage(error),
        _ => CommandError::environment(error),
    }
}
