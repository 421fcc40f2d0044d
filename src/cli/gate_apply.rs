//! Runs one turn of the configured gate for a run: code shared by `apply` and the sweeps.
//!
//! `act` decides and `gate` acts; this module turns a configuration into their arguments, and their
//! errors into command failures.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use crate::cli::stdout::{note, note_gate_event};
use crate::cli::stored_run;
use crate::config::Config;
use crate::config::certificates::{CertificateKeys, CertificatesConfig};
use crate::config::gate::{GateBackend, GateConfig};
use crate::exit;
use crate::exit::CommandError;
use control::gate::certificates::IssueResult;
use control::gate::journal::JournalError;
use control::gate::kubernetes::{KubernetesScheduler as Cluster, events};
use control::gate::lease::{LeaseFence, LeaseTerm};
use control::gate::reconciler::{ReconcileError, ReconcileInput, ReconcileOutcome};
use control::gate::scheduler::Scheduler;
use control::gate::slurmrestd::SlurmrestdScheduler;
use control::gate::watch::state;
use control::gate::{certificates, clock, journal, reconciler};
use control::launch::Launcher;
use control::launch::kubernetes::KubernetesLauncher as Pods;
use control::launch::slurm::SlurmPrograms;
use control::sources::kubernetes::connection::ResponseReadLimit;
use control::sources::kubernetes::{KubernetesClientConfig as Server, connection};
use control::store::RunState;
use control::store::document_signature::SignatureTrust;
use control::store::run_reader::StoredRun;
use control::sweep;
use control::sweep::signals::StopSignals;
use engine::policy::certificate::{CertificateEvidence, GateRecord};
use engine::policy::situation::EvidenceRun;
use engine::policy::{certificate, identity, pause};
use model::action::{ActionPlan, ActionResult, WithheldAction};
use model::claims::Claims;
use model::hostlist;
use model::id::NodeName;
use model::raw_result::RawResult;
use model::run::Run;
use model::tool_recording::{RecordingScope, ToolRecording};
use model::worker_protocol::MachineRecord;

/// A run whose verdicts may change node states in the scheduler.
#[derive(Debug)]
pub struct GateRunInput<'a> {
    /// The run as stored on disk.
    pub stored: &'a StoredRun,
    /// The judged run.
    pub run: &'a Run,
    /// The claims about the whole fleet.
    pub fleet: &'a Claims,
}

/// The gate of a configuration; an error if the configuration has none.
pub fn require_gate(config: &Config) -> Result<&GateConfig, CommandError> {
    config.gate.as_ref().ok_or_else(|| {
        CommandError::Usage(format!(
            "{}: there is no [gate], so no scheduler is configured; an empty section selects \
             Slurm through scontrol",
            config.path.display()
        ))
    })
}

/// The scheduler that this configuration gates.
pub fn scheduler_for(gate: &GateConfig) -> Box<dyn Scheduler> {
    match &gate.backend {
        GateBackend::Scontrol(scontrol) => Box::new(scontrol.clone()),
        GateBackend::Slurmrestd(rest) => Box::new(SlurmrestdScheduler {
            address: rest.address.clone(),
            token_file: rest.token_file.clone(),
            user: rest.user.clone(),
            limit: gate.timeouts.limit,
        }),
        GateBackend::Kubernetes(server) => Box::new(fenced_cluster(server, term_fence(server))),
    }
}

/// The write fence for a job of the watch: the lease term in which the watch started it.
pub fn term_fence(server: &Server) -> Option<LeaseFence> {
    LeaseTerm::from_env().transpose().map(|it| LeaseFence::new(server.clone(), it))
}

/// Like [`scheduler_for`], for a watch instance that writes under this lease term.
pub fn scheduler_for_term(gate: &GateConfig, term: Option<&LeaseTerm>) -> Box<dyn Scheduler> {
    match (&gate.backend, term) {
        (GateBackend::Kubernetes(server), Some(term)) => {
            let fence = LeaseFence::new(server.clone(), Ok(term.clone()));
            Box::new(fenced_cluster(server, Some(fence)))
        }
        _ => scheduler_for(gate),
    }
}

/// A cluster client that writes only while the fence holds.
fn fenced_cluster(server: &Server, fence: Option<LeaseFence>) -> Cluster {
    let cluster = Cluster::new(server.clone());
    match fence {
        Some(fence) => cluster.with_fence(Arc::new(fence)),
        None => cluster,
    }
}

/// Slurm's programs, if the launcher starts workers through Slurm.
pub fn slurm_programs(launcher: &Launcher) -> Option<&SlurmPrograms> {
    match launcher {
        Launcher::Slurm(slurm) => Some(&slurm.programs),
        _ => None,
    }
}

/// The pod settings, if the launcher starts workers in pods.
pub fn pod_settings(launcher: &Launcher) -> Option<&Pods> {
    match launcher {
        Launcher::Kubernetes(kubernetes) => Some(kubernetes),
        _ => None,
    }
}

/// Takes one gate turn for a run: reads the node states and decides; with `apply` also acts and
/// issues certificates. Prints what an earlier turn left open.
pub fn run_gate(
    config: &Config,
    judged: &GateRunInput<'_>,
    apply: bool,
) -> Result<ReconcileOutcome, CommandError> {
    let gate = require_gate(config)?;
    if apply && let Some(why) = state::explain_disowned(&gate.folder) {
        return Err(CommandError::Environment(why));
    }
    let scheduler = scheduler_for(gate);
    let record = &judged.stored.record;
    let complete = record.state == RunState::Complete;
    let keys = config.certificates.read_keys();
    keys.problems.iter().for_each(|trouble| note(trouble));
    let run = sweep::evidence_run(&record.info, &record.launcher, complete);
    // Events on nodes and files on disk must agree, so both use this one read.
    let run_data = GateRunData::read(judged.stored)?;
    let unsure = identity::find_unsure(&run_data.machines, &run_data.results, &run_data.recordings);
    let run = EvidenceRun { unsigned: keys.unsealed_reason(), unsure, ..run };
    let (drivers, boots) = (run_data.driver_versions(), identity::boot_ids(&run_data.machines));
    let mut log = note_gate_event;
    let (stopper, stop) = watch::channel(false);
    let reconciling = reconciler::reconcile_nodes(ReconcileInput {
        folder: &gate.folder,
        scheduler: scheduler.as_ref(),
        programs: slurm_programs(&config.launcher),
        pods: pod_settings(&config.launcher),
        timeouts: gate.timeouts,
        policy: &config.policy,
        verdicts: &judged.run.verdicts,
        fleet: judged.fleet,
        coverage: Some(sweep::plan_coverage(
            &judged.stored.plan,
            &record.launcher,
            &run_data.results,
        )),
        run: &run,
        drivers: &drivers,
        boots: &boots,
        trust: &keys.trust,
        apply,
        stop,
        log: &mut log,
    });
    let outcome = crate::cli::runtime::build_runtime()?.block_on(async {
        let mut signals = StopSignals::listen();
        let mut reconciling = std::pin::pin!(reconciling);
        loop {
            tokio::select! {
                outcome = &mut reconciling => break outcome,
                name = signals.next() => {
                    note(&format!("{name}: finishing started actions, starting no more"));
                    stopper.send_replace(true);
                }
            }
        }
    });
    let mut outcome = outcome.map_err(turn_error)?;
    for record in &outcome.recovered {
        note(&format!("left open by an earlier turn: {}: {}", record.node, record.detail));
    }
    if let Some(tripped) = &outcome.journal_state.breaker {
        note(&format!(
            "the breaker tripped at {} ({}): only releases until `fabricgate gate reset`",
            tripped.stamp.at, tripped.why
        ));
    }
    if apply {
        let evidence = CertificateEvidence {
            run: &run,
            verdicts: &judged.run.verdicts,
            cells: &judged.run.cells,
            claims: &judged.run.claims,
            machines: &run_data.machines,
            results: &run_data.results,
            recordings: &run_data.recordings,
        };
        let withheld = issue_certificates(config, gate, &keys, &evidence, &outcome);
        add_withheld(&mut outcome.plan, withheld);
    }
    if let (true, GateBackend::Kubernetes(server)) = (apply, &gate.backend) {
        post_node_events(server, &outcome);
    }
    Ok(outcome)
}

/// Posts the actions as events on the nodes. A failure to write them is only printed.
fn post_node_events(server: &Server, turned: &ReconcileOutcome) {
    let posted = crate::cli::runtime::build_runtime().map(|runtime| {
        runtime.block_on(async {
            let access = connection::connect(server, ResponseReadLimit::Bounded).await;
            let client = access.map_err(|problem| problem.message)?.client;
            events::write_events(&client, &turned.plan.records, &turned.live).await
        })
    });
    if let Ok(Err(why)) = posted {
        note(&format!("node events are not written: {why}"));
    }
}

/// Issues the certificates of a run and prints the certified nodes; returns what is withheld and
/// why. A failure undoes no action.
fn issue_certificates(
    config: &Config,
    gate: &GateConfig,
    keys: &CertificateKeys,
    evidence: &CertificateEvidence<'_>,
    turned: &ReconcileOutcome,
) -> Vec<WithheldAction> {
    let gate_record = GateRecord {
        live: &turned.live,
        records: &turned.plan.records,
        ledger: &turned.journal_state,
    };
    let now = clock::now();
    let issued = certificates::issue_certificates(
        &gate.folder,
        evidence,
        &gate_record,
        &config.policy,
        &keys.seal(),
        &now,
    );
    let issued = issued.unwrap_or_else(|error| IssueResult {
        nodes: Vec::new(),
        withheld: vec![WithheldAction::new("certificates", format!("not issued: {error}"))],
    });
    if !issued.nodes.is_empty() {
        let nodes = hostlist::fold(issued.nodes.iter().map(NodeName::as_str));
        note(&format!("certified: {nodes}"));
    }
    issued.withheld
}

/// Stores a run's certificates in its own folder, for a run on which no gate acted: a burn-in
/// before the cluster exists. No gate counts them.
pub fn store_run_certificates(
    config: &Config,
    stored: &StoredRun,
    run: &Run,
) -> Result<IssueResult, CommandError> {
    let record = &stored.record;
    let complete = record.state == RunState::Complete;
    let evidence_run = sweep::evidence_run(&record.info, &record.launcher, complete);
    if certificate::run_validity_s(&evidence_run, &config.policy).is_err() {
        // Audits, interrupted and simulated runs issue no certificates.
        return Ok(IssueResult::default());
    }
    let run_data = GateRunData::read(stored)?;
    let evidence = CertificateEvidence {
        run: &evidence_run,
        verdicts: &run.verdicts,
        cells: &run.cells,
        claims: &run.claims,
        machines: &run_data.machines,
        results: &run_data.results,
        recordings: &run_data.recordings,
    };
    let keys = config.certificates.read_keys();
    keys.problems.iter().for_each(|trouble| note(trouble));
    let now = clock::now().unix;
    let (made, withheld) = certificate::issue_without_gate(&evidence, &config.policy, now);
    certificates::export_certificates(stored.path(), made, withheld, &keys.seal())
        .map_err(CommandError::environment)
}

/// Adds withheld certificates to the other withheld actions, without duplicates.
fn add_withheld(plan: &mut ActionPlan, withheld: Vec<WithheldAction>) {
    for it in withheld {
        if !plan.withheld.contains(&it) {
            plan.withheld.push(it);
        }
    }
}

/// The data of a run, read once: runs of large fleets are long files.
struct GateRunData {
    machines: Vec<MachineRecord>,
    results: Vec<RawResult>,
    recordings: Vec<ToolRecording>,
}

impl GateRunData {
    fn read(stored: &StoredRun) -> Result<Self, CommandError> {
        let results = stored.results().map_err(stored_run::record_error)?;
        Ok(Self {
            machines: stored.machines().map_err(stored_run::record_error)?,
            recordings: stored.recordings_for(&results).map_err(stored_run::record_error)?,
            results,
        })
    }

    /// Driver version by node, as workers and tools report it.
    fn driver_versions(&self) -> BTreeMap<NodeName, String> {
        let by_tool = self.recordings.iter().filter_map(|recording| match &recording.scope {
            RecordingScope::Node(node) => Some((node, recording.parsed.facts.driver.as_ref()?)),
            _ => None,
        });
        let machines = self.machines.iter();
        let by_worker = machines.filter_map(|it| Some((&it.node, it.environment.driver.as_ref()?)));
        by_tool.chain(by_worker).map(|(node, driver)| (node.clone(), driver.clone())).collect()
    }
}

/// Maps a failed turn to its exit code.
pub fn turn_error(error: ReconcileError) -> CommandError {
    match error {
        // The journal was edited by hand, or a newer fabricgate wrote it.
        ReconcileError::Journal(JournalError::Malformed { .. } | JournalError::Newer { .. }) => {
            CommandError::usage(error)
        }
        ReconcileError::Journal(_) | ReconcileError::Scheduler { .. } => {
            CommandError::environment(error)
        }
    }
}

/// The exit code of an executed plan: whether all of it was carried out.
pub fn exit_code(plan: &ActionPlan) -> u8 {
    let done = |result: &ActionResult| matches!(result, ActionResult::Done | ActionResult::Already);
    let refused = plan.frozen.is_some() || plan.withheld.iter().any(|it| it.budget);
    if refused || plan.records.iter().any(|record| !done(&record.result)) {
        exit::ACTION_REFUSED
    } else {
        exit::PASS
    }
}

/// Refuses to measure while the gate is paused.
pub(crate) fn check_not_paused(config: &Config) -> Result<(), CommandError> {
    let Some(gate) = &config.gate else { return Ok(()) };
    // The gate's turn reports other problems with the journal.
    let Ok(ledger) = journal::read_state(&gate.folder).map_err(|it| turn_error(it.into())) else {
        return Ok(());
    };
    match pause::active_pause(&ledger, &clock::now()) {
        None => Ok(()),
        Some(paused) => Err(CommandError::Refused(format!(
            "the gate is {}; nothing is measured until then, or until `fabricgate gate resume`",
            pause::describe_pause(paused)
        ))),
    }
}

/// The configured keys, if any; prints keys that cannot be read.
pub(crate) fn read_trusted_keys(config: Option<&Config>) -> SignatureTrust {
    let keys = config.map_or_else(
        || CertificatesConfig::default().read_keys(),
        |it| it.certificates.read_keys(),
    );
    keys.problems.iter().for_each(|trouble| note(trouble));
    keys.trust
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn withheld_certificates_are_listed_once_and_are_not_a_refusal() {
        let audit = WithheldAction::new("certificates", "an audit measures too little to certify");
        let mut plan = ActionPlan {
            dry_run: false,
            withheld: vec![audit.clone()],
            ..ActionPlan::from_actions(Vec::new())
        };
        let disk = WithheldAction::new("certificates", "not issued: no space left on device");
        add_withheld(&mut plan, vec![audit.clone(), disk.clone()]);
        assert_eq!(plan.withheld, [audit, disk]);
        assert_eq!(exit_code(&plan), exit::PASS);
    }
}
