//! Holding nodes for a sweep where Slurm is the launcher: before anything is
//! measured, and let go afterwards.
//!
//! What is held and how, `gate::hold` does; here a person's configuration
//! becomes its arguments, and its errors become failures.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use super::acting;
use super::config::Config;
use super::failure::Failure;
use super::plan::Basis;
use super::plan::Profile;
use super::stdout::note;
use crate::coordinator::signals::Signals;
use crate::gate::carry::KEPT;
use crate::gate::hold;
use crate::gate::hold::HoldError;
use crate::gate::hold::Holder;
use crate::gate::hold::Holding;
use crate::gate::hold::Wish;
use crate::gate::scheduler::Scheduler;
use crate::gate::scontrol::Scontrol;
use crate::inventory::hostlist;
use crate::launch::Launcher;
use crate::launch::slurm::Held;
use crate::launch::slurm::Seat;
use crate::launch::slurm::Slurm;
use crate::launch::slurm::WhenBusy;
use crate::model::claims::Claims;
use crate::model::id::NodeName;
use crate::model::probe::ProbeScope;
use crate::plan::Plan;
use crate::plan::Skipped;

/// How long one call may take where there is no [gate]; Slurm's own
/// MessageTimeout is 10 s.
const LIMIT: Duration = Duration::from_secs(15);

/// How long a change may take to show where there is no [gate].
const SETTLE: Duration = Duration::from_secs(10);

/// How much longer a job is asked for than its sweep should take: estimates are
/// estimates, and suspicions are confirmed.
const TIMES: f64 = 2.0;
/// And at least this long, in minutes.
const LEAST_MINUTES: f64 = 10.0;

/// The command line knows these by their names.
impl clap::ValueEnum for WhenBusy {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Skip, Self::Wait, Self::Reserve]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        let (name, help) = match self {
            Self::Skip => ("skip", "leave them out and say so"),
            Self::Wait => ("wait", "queue for them, for wait_s at most"),
            Self::Reserve => ("reserve", "keep new jobs off them, wait for those that run"),
        };
        Some(clap::builder::PossibleValue::new(name).help(help))
    }
}

/// Puts what the command line says in the place of what the configuration says.
pub fn say_when_busy(config: &mut Config, said: Option<WhenBusy>) -> Result<(), Failure> {
    match (&mut config.launcher, said) {
        (_, None) => Ok(()),
        (Launcher::Slurm(slurm), Some(said)) => {
            slurm.busy = said;
            Ok(())
        }
        (launcher, Some(_)) => Err(Failure::Usage(format!(
            "--when-busy: expected a launcher of kind \"slurm\", and it is \"{}\"",
            launcher.as_str()
        ))),
    }
}

/// Nodes that are held.
#[derive(Debug)]
pub struct Hold {
    slurm: Slurm,
    scheduler: Box<dyn Scheduler>,
    folder: PathBuf,
    limit: Duration,
    settle: Duration,
    kept: Duration,
    holding: Holding,
    runtime: tokio::runtime::Runtime,
}

impl Hold {
    /// Holds the nodes of a plan; `None` for launchers that hold nothing.
    pub fn take(
        config: &Config,
        claims: &Claims,
        plan: &Plan,
        run: &str,
        profile: Profile,
    ) -> Result<Option<Self>, Failure> {
        let Launcher::Slurm(slurm) = &config.launcher else { return Ok(None) };
        let mut hold = Self::by_scontrol(config, slurm)?;
        if let Some(gate) = &config.gate {
            hold.scheduler = acting::scheduler(gate);
            hold.folder.clone_from(&gate.folder);
            (hold.limit, hold.settle, hold.kept) = (gate.limit, gate.settle, gate.kept);
        }
        let nodes = plan.nodes();
        let of = |domain: &crate::model::claims::ClaimedDomain| -> Vec<NodeName> {
            domain.nodes.iter().filter(|node| nodes.contains(node)).cloned().collect()
        };
        let domains = claims.domains.iter().map(|domain| (domain.name.clone(), of(domain)));
        let wish = Wish {
            run,
            domains: domains.filter(|(_, nodes)| !nodes.is_empty()).collect(),
            drained: profile == Profile::Recertify,
            minutes: minutes(plan.estimate_s, config.confirm.wait),
        };
        let taken = hold.hold(&wish);
        let seats = hold.holding.held.seats.len();
        taken?;
        hold.tell_skipped();
        if seats == 0 {
            let text = "no node can be measured now: see above why each is left out";
            return Err(Failure::Environment(text.to_owned()));
        }
        Ok(Some(hold))
    }

    fn by_scontrol(config: &Config, slurm: &Slurm) -> Result<Self, Failure> {
        let base = config.path.parent().map(PathBuf::from).unwrap_or_default();
        Ok(Self {
            slurm: slurm.clone(),
            scheduler: Box::new(Scontrol { argv: slurm.programs.scontrol.clone(), limit: LIMIT }),
            folder: base.join("gate"),
            limit: LIMIT,
            settle: SETTLE,
            kept: KEPT,
            holding: Holding::default(),
            runtime: super::runtime()?,
        })
    }

    fn hold(&mut self, wish: &Wish<'_>) -> Result<(), Failure> {
        let Self { slurm, scheduler, folder, limit, settle, kept, holding, runtime } = self;
        let mut holder = Holder {
            slurm,
            scheduler: scheduler.as_ref(),
            folder,
            limit: *limit,
            settle: *settle,
            kept: *kept,
            say: &mut |text| note(text),
        };
        runtime.block_on(async {
            let mut signals = Signals::listen();
            tokio::select! {
                held = hold::hold(&mut holder, wish, holding) => held.map_err(failure),
                name = signals.next() => {
                    Err(Failure::Environment(format!("{name} while nodes were being held")))
                }
            }
        })
    }

    /// What workers need to know of it.
    pub fn held(&self) -> &Held {
        &self.holding.held
    }

    /// Tells who is left out, those with the same reason together.
    fn tell_skipped(&self) {
        for (why, nodes) in self.skipped() {
            let nodes = hostlist::fold(nodes.iter().map(NodeName::as_str));
            note(&format!("left out: {nodes}: {why}"));
        }
    }

    fn skipped(&self) -> BTreeMap<&str, Vec<NodeName>> {
        let mut by_reason: BTreeMap<&str, Vec<NodeName>> = BTreeMap::new();
        for (node, why) in &self.holding.held.skipped {
            by_reason.entry(why).or_default().push(node.clone());
        }
        by_reason
    }

    /// The claims without the nodes that are left out: what is not measured
    /// says nothing of those that are.
    pub fn measurable(&self, claims: &Claims) -> Claims {
        let seats = &self.holding.held.seats;
        let skipped = &self.holding.held.skipped;
        let stays = |node: &NodeName| seats.contains_key(node) || !skipped.contains_key(node);
        let mut claims = claims.clone();
        for domain in &mut claims.domains {
            domain.nodes.retain(stays);
        }
        claims.domains.retain(|domain| !domain.nodes.is_empty());
        for leaf in &mut claims.leaves {
            leaf.nodes.retain(stays);
        }
        claims.leaves.retain(|leaf| !leaf.nodes.is_empty());
        claims
    }

    /// The plan for those that are held; who is left out is in it as well, so
    /// that nobody takes them for measured.
    pub fn plan(&self, basis: &Basis<'_>) -> anyhow::Result<Plan> {
        let mut plan = basis.plan()?;
        self.without_ranks(&mut plan);
        for (why, nodes) in self.skipped() {
            let (probe, why) = ("every probe".to_owned(), why.to_owned());
            // One each: a list of nodes is no place to look for one.
            plan.skipped.extend(nodes.into_iter().map(|node| Skipped {
                probe: probe.clone(),
                nodes: vec![node],
                why: why.clone(),
                not_applicable: false,
            }));
        }
        Ok(plan)
    }
}

impl Hold {
    /// Takes out what needs a job where a node has none: ranks on several nodes.
    /// Of a pair only that node goes without, of a whole domain everybody does.
    fn without_ranks(&self, plan: &mut Plan) {
        let seats = &self.holding.held.seats;
        let alone = |node: &NodeName| seats.get(node) == Some(&Seat::Unallocated);
        let mut missing: BTreeSet<(String, NodeName)> = BTreeSet::new();
        for round in &mut plan.rounds {
            round.steps.retain(|step| {
                let stays = step.scope == ProbeScope::Rail
                    || step.nodes.len() < 2
                    || !step.nodes.iter().any(alone);
                if !stays {
                    let whole = step.scope == ProbeScope::Domain;
                    let without = step.nodes.iter().filter(|node| whole || alone(node));
                    missing.extend(without.map(|node| (step.probe.clone(), node.clone())));
                }
                stays
            });
        }
        plan.rounds.retain(|round| !round.steps.is_empty());
        plan.skipped.extend(missing.into_iter().map(|(probe, node)| {
            Skipped {
                probe,
                nodes: vec![node],
                why:
                    "its ranks need a job, and no job holds it: it is drained and measured beside \
                  the scheduler"
                        .to_owned(),
                not_applicable: false,
            }
        }));
    }
}

/// Lets the nodes go, however the sweep ends.
impl Drop for Hold {
    fn drop(&mut self) {
        let Self { slurm, scheduler, folder, limit, settle, kept, holding, runtime } = self;
        let mut holder = Holder {
            slurm,
            scheduler: scheduler.as_ref(),
            folder,
            limit: *limit,
            settle: *settle,
            kept: *kept,
            say: &mut |text| note(text),
        };
        for trouble in runtime.block_on(hold::free(&mut holder, holding)) {
            note(&format!("{trouble}; the next turn, or `fabricgate gate recover`, frees it"));
        }
    }
}

/// How long a job may take whose plan should take this long.
fn minutes(estimate_s: f64, confirm: Duration) -> u64 {
    let minutes = (TIMES * estimate_s + confirm.as_secs_f64()) / 60.0 + LEAST_MINUTES;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "minutes of a sweep are few and positive"
    )]
    let whole = minutes.ceil().clamp(LEAST_MINUTES, 525_600.0) as u64;
    whole
}

fn failure(error: HoldError) -> Failure {
    match error {
        HoldError::Name(_) => Failure::usage(error),
        _ => Failure::environment(error),
    }
}
