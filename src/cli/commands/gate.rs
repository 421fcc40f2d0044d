//! `fabricgate gate`: how the gate stands and what happened, and what only a person
//! may do to it: pause it, put a tripped breaker back, conclude what a crash left open,
//! forget a node, adopt a drain.

pub mod operator;
pub mod pause;

use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::watch;

use crate::cli::stdout::{Globals, note};
use crate::cli::{expectations, gate_apply, stdout};
use crate::config::Config;
use crate::config::gate::GateConfig;
use crate::exit::CommandError;
use crate::{config, exit};
use control::gate::allocation::OrphanCleanup;
use control::gate::executor::Executor;
use control::gate::journal::{Journal, JournalError};
use control::gate::scheduler::Scheduler;
use control::gate::{allocation, clock, drain_restore, journal, recovery};
use engine::policy::journal_state::JournalState;
use engine::policy::{budget, device, drain_overview, stale_journal};
use engine::report;
use engine::report::gate::GateLiveView;
use engine::report::gate_log;
use model::action::{ActionRecord, ActionResult};
use model::claims::Claims;
use model::id::NodeName;
use model::journal::{ClockStamp, JournalEvent};
use model::scheduler_snapshot::SchedulerSnapshot;
use model::time_format::format_rfc3339;

/// How the gate stands, and what only a person can tell it.
#[derive(Debug, clap::Args)]
pub struct GateArgs {
    #[command(subcommand)]
    command: GateCommand,
}

#[derive(Debug, clap::Subcommand)]
enum GateCommand {
    /// The nodes that we drained as the scheduler shows them now, what differs from our record
    /// first; what is spent, held and open.
    Status,
    /// What happened, from the journal, one line per event.
    Log {
        /// How far back: a number and s, m, h or d.
        #[arg(long, value_name = "SPAN", default_value = "24h", value_parser = pause::parse_span)]
        since: u64,
        /// Only what is about this node.
        #[arg(value_name = "NODE")]
        node: Option<String>,
    },
    /// For a while, drain and mark nothing and measure nothing: maintenance of the site. What is
    /// drained stays so, and a run that passed gives nodes back.
    Pause {
        /// For how long: a number and s, m, h or d; 30d at most.
        #[arg(long = "for", value_name = "SPAN", value_parser = pause::parse_pause)]
        lasts: u64,
        /// Why; it is kept in the journal and told wherever it matters.
        #[arg(long, value_name = "TEXT")]
        why: String,
    },
    /// End a pause before its time.
    Resume {
        /// Why; it is kept in the journal.
        #[arg(long, value_name = "TEXT")]
        why: Option<String>,
    },
    /// Put a tripped breaker back: drains and relabels are proposed again.
    Reset {
        /// Why it is safe now; it is kept in the journal.
        #[arg(long, value_name = "TEXT")]
        why: String,
    },
    /// Conclude what a crash left open: actions, reservations, jobs, pods.
    ///
    /// Drains that the controller lost are made again. The exit code is 6 as long as
    /// something of ours may be left.
    Recover {
        /// A machine whose processes are gone for good: what they held is ended.
        #[arg(long, value_name = "HOST", requires = "why")]
        gone: Option<String>,
        /// How that is known; it is kept in the journal.
        #[arg(long, value_name = "TEXT", requires = "gone")]
        why: Option<String>,
    },
    /// Count a node no more that the scheduler does not know any longer.
    Forget(operator::OperatorArgs),
    /// Take a drain over that is of our form and not in this journal.
    ///
    /// After a lost or restored state folder, or from another gate that is no more. From
    /// then on it is ours: measured by `recertify`, and given back when it passes.
    Adopt(operator::OperatorArgs),
}

/// The format of `gate recover --json`.
pub(crate) const RECOVERED_FORMAT: &str = "fabricgate.recovered/1";

/// What became of what an earlier turn left open.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RecoveredDocument<'a> {
    /// `fabricgate.recovered/1`.
    format: &'static str,
    /// Each, with what it is now.
    records: &'a [ActionRecord],
}

/// Runs the command.
pub fn run(args: &GateArgs, globals: &Globals) -> anyhow::Result<u8> {
    let config = config::open(globals.config.as_deref())?;
    let gate = gate_apply::require_gate(&config)?;
    match &args.command {
        GateCommand::Status => show_status(&config, gate, globals),
        GateCommand::Log { since, node } => show_log(gate, *since, node.as_deref(), globals),
        GateCommand::Pause { lasts, why } => {
            let event =
                pause::pause_event(operator::operator_name(), operator::check_reason(why)?, *lasts);
            open_journal(gate)?.append(event).map_err(journal_error)?;
            note("the gate is paused: nothing is drained or measured; what runs now goes on");
            print_status_document(&config, gate, globals)
        }
        GateCommand::Resume { why } => {
            let mut journal = open_journal(gate)?;
            if engine::policy::pause::active_pause(journal.state(), &clock::now()).is_none() {
                note("the gate is not paused; nothing was changed");
            } else {
                let event =
                    JournalEvent::Resumed { by: operator::operator_name(), why: why.clone() };
                journal.append(event).map_err(journal_error)?;
                note("the pause is over");
            }
            drop(journal);
            print_status_document(&config, gate, globals)
        }
        GateCommand::Reset { why } => {
            let why = operator::check_reason(why)?;
            let mut journal = open_journal(gate)?;
            if journal.state().breaker.is_none() {
                note("the breaker has not tripped; nothing was changed");
            } else {
                let by = operator::operator_name();
                journal.append(JournalEvent::Reset { by, why }).map_err(journal_error)?;
                note("the breaker is put back");
            }
            drop(journal);
            print_status_document(&config, gate, globals)
        }
        GateCommand::Forget(told) => Ok(operator::forget_node(gate, told)?),
        GateCommand::Adopt(told) => {
            let fleet = collect_fleet(&config).ok();
            Ok(operator::adopt_drain(&config, gate, fleet.as_ref(), told)?)
        }
        GateCommand::Recover { gone, why } => {
            let gone = gone.as_deref().zip(why.as_deref());
            let (records, are_gone) = recover_open_actions(&config, gate, gone)?;
            let is_open = records.iter().any(|it| it.result == ActionResult::Unknown);
            if globals.json {
                stdout::write_json(&RecoveredDocument {
                    format: RECOVERED_FORMAT,
                    records: &records,
                })?;
            } else if records.is_empty() {
                stdout::write_text("no action was left open\n")?;
            }
            for record in records.iter().filter(|_| !globals.json) {
                stdout::write_text(&format!("{}: {}\n", record.node, record.detail))?;
            }
            if !are_gone {
                note("something that an earlier run made may still be there: see above");
            }
            Ok(if is_open || !are_gone { exit::ACTION_REFUSED } else { exit::PASS })
        }
    }
}

/// Shows how the gate stands.
fn show_status(config: &Config, gate: &GateConfig, globals: &Globals) -> anyhow::Result<u8> {
    let ledger = journal::read_state(&gate.folder).map_err(journal_error)?;
    if ledger.lines == 0 {
        let path = gate.folder.join(journal::JOURNAL_FILE);
        note(&format!(
            "there is no journal yet: {}; where there should be one, see whether its folder is \
             mounted",
            path.display()
        ));
    }
    let (live, unasked) = match read_live_nodes(gate)? {
        Ok(live) => (Some(live), None),
        Err(why) => (None, Some(why)),
    };
    let now = clock::now();
    let rows = drain_overview::build_rows(&ledger, live.as_ref(), &config.policy, &now);
    let shown = GateLiveView { nodes: &rows, unasked: unasked.as_deref(), live: live.as_ref() };
    if globals.json {
        let left = remaining_budgets(config, &ledger, live.as_ref(), &now);
        stdout::write_json(&report::gate::build_document(&ledger, &now, shown, left.as_deref()))?;
        return Ok(exit::PASS);
    }
    stdout::write_text(&report::gate::render(&ledger, &now, shown))?;
    if let Some(live) = &live {
        stdout::write_text(&operator::list_unrecorded_drains(live, &ledger))?;
        for told in live.nodes.values().filter_map(device::left_out) {
            stdout::write_text(&format!("{told}\n"))?;
        }
    }
    for budget in remaining_budgets(config, &ledger, live.as_ref(), &now).into_iter().flatten() {
        stdout::write_text(&format!("{budget}\n"))?;
    }
    Ok(exit::PASS)
}

/// What happened since then.
fn show_log(
    gate: &GateConfig,
    since_s: u64,
    node: Option<&str>,
    globals: &Globals,
) -> anyhow::Result<u8> {
    let entries = journal::read_entries(&gate.folder).map_err(journal_error)?;
    let ago = i64::try_from(since_s).unwrap_or(i64::MAX);
    let since = clock::now().unix.saturating_sub(ago);
    let node = node.map(NodeName::from);
    let events = gate_log::collect_events(&entries, since, node.as_ref());
    if globals.json {
        stdout::write_json(&gate_log::build_document(
            &events,
            &format_rfc3339(since),
            node.as_ref(),
        ))?;
    } else if events.is_empty() {
        stdout::write_text(&format!("nothing happened since {}\n", format_rfc3339(since)))?;
    } else {
        stdout::write_text(&gate_log::render(&events))?;
    }
    Ok(exit::PASS)
}

/// How the scheduler shows all nodes now, or why it could not be asked.
fn read_live_nodes(gate: &GateConfig) -> Result<Result<SchedulerSnapshot, String>, CommandError> {
    let scheduler = gate_apply::scheduler_for(gate);
    let live = crate::cli::runtime::build_runtime()?.block_on(scheduler.read_nodes(&[]));
    Ok(live.map_err(|error| format!("{}: {error}", scheduler.name())))
}

/// Programs are told how it stands now; a person was told what was done.
fn print_status_document(
    config: &Config,
    gate: &GateConfig,
    globals: &Globals,
) -> anyhow::Result<u8> {
    if globals.json { show_status(config, gate, globals) } else { Ok(exit::PASS) }
}

fn collect_fleet(config: &Config) -> Result<Claims, CommandError> {
    expectations::load_thresholds(&config.thresholds)
        .and_then(|in_force| config.collect_measurable_claims(&in_force.catalogue))
}

/// What is left of the budgets, where somebody says how large the fleet is: they
/// are shares of it.
fn remaining_budgets(
    config: &Config,
    ledger: &JournalState,
    live: Option<&SchedulerSnapshot>,
    now: &ClockStamp,
) -> Option<Vec<String>> {
    match collect_fleet(config) {
        Ok(fleet) => Some(budget::describe_remaining(ledger, live, &fleet, &config.policy, now)),
        Err(error) => {
            note(&format!("what is left of the budgets is not known: {error}"));
            None
        }
    }
}

/// Takes the next turn, and tells what the journal noticed about itself.
fn open_journal(gate: &GateConfig) -> Result<Journal, CommandError> {
    let journal = Journal::open(&gate.folder).map_err(journal_error)?;
    for text in journal.notes() {
        note(text);
    }
    Ok(journal)
}

/// Concludes what is open, after what was held is free, and makes drains again that the
/// controller lost. What was concluded, and whether nothing is left of what earlier runs
/// had made.
fn recover_open_actions(
    config: &Config,
    gate: &GateConfig,
    gone: Option<(&str, &str)>,
) -> Result<(Vec<ActionRecord>, bool), CommandError> {
    let scheduler = gate_apply::scheduler_for(gate);
    let mut journal = open_journal(gate)?;
    if let Some((host, why)) = gone {
        operator::record_host_gone(
            &mut journal,
            host,
            why,
            gate_apply::pod_settings(&config.launcher).is_some(),
        )?;
    }
    let (_stopper, stop) = watch::channel(false);
    let mut say = |text: &str| note(text);
    crate::cli::runtime::build_runtime()?.block_on(async {
        let mut are_gone = allocation::clean_up_orphans(OrphanCleanup {
            journal: &mut journal,
            scheduler: scheduler.as_ref(),
            programs: gate_apply::slurm_programs(&config.launcher),
            pods: gate_apply::pod_settings(&config.launcher),
            timeouts: gate.timeouts,
            gone_host: gone.map(|(host, _)| host),
            log: &mut say,
        })
        .await
        .map_err(journal_error)?;
        let with = RecoveryContext { config, gate, scheduler: scheduler.as_ref(), stop };
        let in_flight = gate.timeouts.in_flight;
        let carrier = with.executor(&mut journal, &mut say);
        let mut records =
            recovery::recover_intents(carrier, in_flight).await.map_err(journal_error)?;
        if journal.state().drains.is_empty() {
            return Ok((records, are_gone));
        }
        match scheduler.read_nodes(&[]).await {
            Ok(live) => {
                if let Some(why) = stale_journal::explain_stale(&live, journal.state(), "")
                    && journal.state().breaker.is_none()
                {
                    note(&format!("the breaker trips: {why}"));
                    let last = stale_journal::last_turn(&live, journal.state());
                    let tripped = JournalEvent::Tripped { why, run: "gate recover".to_owned() };
                    journal.append_after_epoch(last, tripped).map_err(journal_error)?;
                }
                let mut carrier = with.executor(&mut journal, &mut say);
                let vanished = drain_restore::detect_lost_drains(&mut carrier, &live)
                    .await
                    .map_err(journal_error)?;
                let kept = gate.timeouts.persist;
                let made = drain_restore::restore_drains(carrier, &vanished, None, kept)
                    .await
                    .map_err(journal_error)?;
                are_gone &= made.iter().filter(|it| it.result == ActionResult::Done).count()
                    == vanished.lost.len();
                records.extend(made);
            }
            Err(error) => {
                are_gone = false;
                note(&format!("how nodes stand is not known: {}: {error}", scheduler.name()));
            }
        }
        Ok((records, are_gone))
    })
}

/// What all that is carried out here has in common.
struct RecoveryContext<'a> {
    config: &'a Config,
    gate: &'a GateConfig,
    scheduler: &'a dyn Scheduler,
    stop: watch::Receiver<bool>,
}

impl RecoveryContext<'_> {
    fn executor<'c>(
        &'c self,
        journal: &'c mut Journal,
        say: &'c mut dyn FnMut(&str),
    ) -> Executor<'c> {
        Executor {
            scheduler: self.scheduler,
            journal,
            names: &self.config.policy.marks,
            settle: self.gate.timeouts.settle,
            log: say,
            stop: self.stop.clone(),
        }
    }
}

fn journal_error(error: JournalError) -> CommandError {
    gate_apply::turn_error(error.into())
}
