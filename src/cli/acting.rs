//! Takes a turn of the configured gate for a run: what `apply` and the sweeps
//! share.
//!
//! What is decided and done, `act` and `gate` do; here a person's configuration
//! becomes their arguments, and their errors become failures.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use super::certifying::Keys;
use super::config::Config;
use super::exit;
use super::failure::Failure;
use super::gating::Gate;
use super::gating::Told;
use super::stdout::note;
use super::stored;
use crate::act::certificate;
use crate::act::certificate::Acted;
use crate::act::certificate::Evidence;
use crate::act::identity;
use crate::act::situation::RunSeen;
use crate::coordinator;
use crate::coordinator::signals::Signals;
use crate::gate::certificates;
use crate::gate::certificates::Issued;
use crate::gate::journal::JournalError;
use crate::gate::kubernetes::Kubernetes as Cluster;
use crate::gate::kubernetes::events;
use crate::gate::lease::Term;
use crate::gate::lease::TermFence;
use crate::gate::scheduler::Scheduler;
use crate::gate::slurmrestd::Slurmrestd;
use crate::gate::stamp;
use crate::gate::turn;
use crate::gate::turn::Turn;
use crate::gate::turn::TurnError;
use crate::gate::turn::Turned;
use crate::gate::watch::state;
use crate::launch::Launcher;
use crate::launch::kubernetes::Kubernetes as Pods;
use crate::launch::slurm::Programs;
use crate::model::action::ActionPlan;
use crate::model::action::ActionResult;
use crate::model::action::Withheld;
use crate::model::claims::Claims;
use crate::model::hostlist;
use crate::model::id::NodeName;
use crate::model::raw::RawResult;
use crate::model::recording::Recording;
use crate::model::recording::Scope;
use crate::model::run::Run;
use crate::model::worker::Machine;
use crate::record::State;
use crate::record::stored::Stored;
use crate::sources::kubernetes::Kubernetes as Server;
use crate::sources::kubernetes::access;
use crate::sources::kubernetes::access::Reading;

/// A run whose verdicts the scheduler may hear of.
#[derive(Debug)]
pub struct Judged<'a> {
    /// The run as it is on disk.
    pub stored: &'a Stored,
    /// What was judged.
    pub run: &'a Run,
    /// What is claimed of the whole fleet.
    pub fleet: &'a Claims,
}

/// The gate of a configuration; whoever asks for it needs one.
pub fn gate(config: &Config) -> Result<&Gate, Failure> {
    config.gate.as_ref().ok_or_else(|| {
        Failure::Usage(format!(
            "{}: there is no [gate], so nobody would be told; an empty section tells Slurm \
             through scontrol",
            config.path.display()
        ))
    })
}

/// Who is asked and told under this configuration.
pub fn scheduler(gate: &Gate) -> Box<dyn Scheduler> {
    match &gate.told {
        Told::Scontrol(scontrol) => Box::new(scontrol.clone()),
        Told::Slurmrestd(rest) => Box::new(Slurmrestd {
            address: rest.address.clone(),
            token_file: rest.token_file.clone(),
            user: rest.user.clone(),
            limit: gate.pace.limit,
        }),
        Told::Kubernetes(server) => Box::new(cluster(server, fence(server))),
    }
}

/// What a job of the watch may write under: the term that it was started in.
pub fn fence(server: &Server) -> Option<TermFence> {
    Term::of_env().transpose().map(|it| TermFence::new(server.clone(), it))
}

/// The same for an instance of the watch, which writes under this term.
pub fn scheduler_in(gate: &Gate, term: Option<&Term>) -> Box<dyn Scheduler> {
    match (&gate.told, term) {
        (Told::Kubernetes(server), Some(term)) => {
            let fence = TermFence::new(server.clone(), Ok(term.clone()));
            Box::new(cluster(server, Some(fence)))
        }
        _ => scheduler(gate),
    }
}

/// A cluster, where nothing is written unless the fence holds.
fn cluster(server: &Server, fence: Option<TermFence>) -> Cluster {
    let cluster = Cluster::new(server.clone());
    match fence {
        Some(fence) => cluster.fenced(Arc::new(fence)),
        None => cluster,
    }
}

/// Slurm's programs, where they are what nodes are reached by.
pub fn programs(launcher: &Launcher) -> Option<&Programs> {
    match launcher {
        Launcher::Slurm(slurm) => Some(&slurm.programs),
        _ => None,
    }
}

/// How pods are wanted, where they are what nodes are reached by.
pub fn pods(launcher: &Launcher) -> Option<&Pods> {
    match launcher {
        Launcher::Kubernetes(kubernetes) => Some(kubernetes),
        _ => None,
    }
}

/// Takes a turn for a run: asks how the nodes stand, decides, and where it is to
/// be applied carries out and issues certificates. What was left open before is
/// told.
pub fn turn(config: &Config, judged: &Judged<'_>, apply: bool) -> Result<Turned, Failure> {
    let gate = gate(config)?;
    if apply && let Some(why) = state::disowned(&gate.folder) {
        return Err(Failure::Environment(why));
    }
    let scheduler = scheduler(gate);
    let record = &judged.stored.record;
    let complete = record.state == State::Complete;
    let keys = config.certificates.keys();
    keys.troubles.iter().for_each(|trouble| note(trouble));
    let run = coordinator::run_seen(&record.info, &record.launcher, complete);
    // What is said on nodes and what is kept on disk must not disagree.
    let taken = Taken::of(judged.stored)?;
    let unsure = identity::unsure(&taken.machines, &taken.results, &taken.recordings);
    let run = RunSeen { unsealed: keys.unsealed(), unsure, ..run };
    let (drivers, boots) = (taken.drivers(), identity::boots(&taken.machines));
    let mut say = |text: &str| note(text);
    let (stopper, stop) = watch::channel(false);
    let taking = turn::turn(Turn {
        folder: &gate.folder,
        scheduler: scheduler.as_ref(),
        programs: programs(&config.launcher),
        pods: pods(&config.launcher),
        pace: gate.pace,
        policy: &config.policy,
        verdicts: &judged.run.verdicts,
        fleet: judged.fleet,
        coverage: Some(coordinator::coverage(
            &judged.stored.plan,
            &record.launcher,
            &taken.results,
        )),
        run: &run,
        drivers: &drivers,
        boots: &boots,
        trust: &keys.trust,
        apply,
        stop,
        say: &mut say,
    });
    let turned = super::runtime()?.block_on(async {
        let mut signals = Signals::listen();
        let mut taking = std::pin::pin!(taking);
        loop {
            tokio::select! {
                turned = &mut taking => break turned,
                name = signals.next() => {
                    note(&format!("{name}: concluding what was begun, beginning nothing more"));
                    stopper.send_replace(true);
                }
            }
        }
    });
    let mut turned = turned.map_err(failure)?;
    for record in &turned.recovered {
        note(&format!("left open by an earlier turn: {}: {}", record.node, record.detail));
    }
    if let Some(tripped) = &turned.ledger.breaker {
        note(&format!(
            "the breaker tripped at {} ({}): nothing but releases until `fabricgate gate reset`",
            tripped.stamp.at, tripped.why
        ));
    }
    if apply {
        let evidence = Evidence {
            run: &run,
            verdicts: &judged.run.verdicts,
            cells: &judged.run.cells,
            claims: &judged.run.claims,
            machines: &taken.machines,
            results: &taken.results,
            recordings: &taken.recordings,
        };
        let withheld = certify(config, gate, &keys, &evidence, &turned);
        tell_withheld(&mut turned.plan, withheld);
    }
    if let (true, Told::Kubernetes(server)) = (apply, &gate.told) {
        tell_on_nodes(server, &turned);
    }
    Ok(turned)
}

/// Says on nodes what was done to them, as events. That none can be written is a
/// word here and no more.
fn tell_on_nodes(server: &Server, turned: &Turned) {
    let told = super::runtime().map(|runtime| {
        runtime.block_on(async {
            let access = access::connect(server, Reading::Bounded).await;
            let client = access.map_err(|problem| problem.message)?.client;
            events::tell(&client, &turned.plan.records, &turned.live).await
        })
    });
    if let Ok(Err(why)) = told {
        note(&format!("no event is written on nodes: {why}"));
    }
}

/// Issues the certificates of a run and tells to whom; what is not certified,
/// and why. What was carried out before stays so where none can be written.
fn certify(
    config: &Config,
    gate: &Gate,
    keys: &Keys,
    evidence: &Evidence<'_>,
    turned: &Turned,
) -> Vec<Withheld> {
    let acted = Acted { live: &turned.live, records: &turned.plan.records, ledger: &turned.ledger };
    let now = stamp::stamp();
    let issued =
        certificates::issue(&gate.folder, evidence, &acted, &config.policy, &keys.seal(), &now);
    let issued = issued.unwrap_or_else(|error| Issued {
        nodes: Vec::new(),
        withheld: vec![Withheld::new("certificates", format!("none is issued: {error}"))],
    });
    if !issued.nodes.is_empty() {
        let nodes = hostlist::fold(issued.nodes.iter().map(NodeName::as_str));
        note(&format!("certified: {nodes}"));
    }
    issued.withheld
}

/// Keeps the certificates that a run shows by itself in its own folder, for a run
/// that no gate acted on: a burn-in before there is a cluster. No gate counts them.
pub fn keep(config: &Config, stored: &Stored, run: &Run) -> Result<Issued, Failure> {
    let record = &stored.record;
    let complete = record.state == State::Complete;
    let seen = coordinator::run_seen(&record.info, &record.launcher, complete);
    if certificate::validity(&seen, &config.policy).is_err() {
        // An audit, an interrupted or a simulated run: nobody expects any.
        return Ok(Issued::default());
    }
    let taken = Taken::of(stored)?;
    let evidence = Evidence {
        run: &seen,
        verdicts: &run.verdicts,
        cells: &run.cells,
        claims: &run.claims,
        machines: &taken.machines,
        results: &taken.results,
        recordings: &taken.recordings,
    };
    let keys = config.certificates.keys();
    keys.troubles.iter().for_each(|trouble| note(trouble));
    let now = stamp::stamp().unix;
    let (made, withheld) = certificate::unacted_on(&evidence, &config.policy, now);
    certificates::keep(stored.path(), made, withheld, &keys.seal()).map_err(Failure::environment)
}

/// Puts what is not certified beside what else is withheld, each once.
fn tell_withheld(plan: &mut ActionPlan, withheld: Vec<Withheld>) {
    for it in withheld {
        if !plan.withheld.contains(&it) {
            plan.withheld.push(it);
        }
    }
}

/// What a run took, read once: runs of large fleets are long files.
struct Taken {
    machines: Vec<Machine>,
    results: Vec<RawResult>,
    recordings: Vec<Recording>,
}

impl Taken {
    fn of(stored: &Stored) -> Result<Self, Failure> {
        let results = stored.results().map_err(stored::failure)?;
        Ok(Self {
            machines: stored.machines().map_err(stored::failure)?,
            recordings: stored.recordings_of(&results).map_err(stored::failure)?,
            results,
        })
    }

    /// Version of the driver by node, as workers and tools told it.
    fn drivers(&self) -> BTreeMap<NodeName, String> {
        let told = self.recordings.iter().filter_map(|recording| match &recording.scope {
            Scope::Node(node) => Some((node, recording.parsed.facts.driver.as_ref()?)),
            _ => None,
        });
        let machines = self.machines.iter();
        let by_worker = machines.filter_map(|it| Some((&it.node, it.environment.driver.as_ref()?)));
        told.chain(by_worker).map(|(node, driver)| (node.clone(), driver.clone())).collect()
    }
}

/// The exit code that a turn's failure has.
pub fn failure(error: TurnError) -> Failure {
    match error {
        // Somebody wrote into our record, or a newer program did.
        TurnError::Journal(JournalError::Malformed { .. } | JournalError::Newer { .. }) => {
            Failure::usage(error)
        }
        TurnError::Journal(_) | TurnError::Scheduler { .. } => Failure::environment(error),
    }
}

/// The exit code of a plan that was carried out: whether all of it was.
pub fn code(plan: &ActionPlan) -> u8 {
    let done = |result: &ActionResult| matches!(result, ActionResult::Done | ActionResult::Already);
    let refused = plan.frozen.is_some() || plan.withheld.iter().any(|it| it.budget);
    if refused || plan.records.iter().any(|record| !done(&record.result)) {
        exit::ACTION_REFUSED
    } else {
        exit::PASS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_certified_is_told_once_and_is_no_refusal() {
        let audit = Withheld::new("certificates", "an audit measures too little to certify");
        let mut plan = ActionPlan {
            dry_run: false,
            withheld: vec![audit.clone()],
            ..ActionPlan::of(Vec::new())
        };
        let disk = Withheld::new("certificates", "none is issued: no space left on device");
        tell_withheld(&mut plan, vec![audit.clone(), disk.clone()]);
        assert_eq!(plan.withheld, [audit, disk]);
        assert_eq!(code(&plan), exit::PASS);
    }
}
