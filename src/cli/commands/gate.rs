//! `fabricgate gate`: the state and the log of the gate, and the operator's commands: pause, reset
//! a tripped breaker, conclude actions that a crash left open, forget a node, adopt a drain.

pub mod operator;
pub mod pause;

use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::watch;

use crate::cli::stdout::{Globals, note, note_gate_event};
use crate::cli::{expectations, gate_apply, stdout};
use crate::config::Config;
use crate::config::gate::GateConfig;
use crate::exit::CommandError;
use crate::{config, exit};
use control::gate::allocation::OrphanCleanup;
use control::gate::executor::Executor;
use control::gate::gate_event::GateEvent;
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

/// Show the state of the gate, and run the operator's commands on it.
#[derive(Debug, clap::Args)]
pub struct GateArgs {
    #[command(subcommand)]
    command: GateCommand,
}

#[derive(Debug, clap::Subcommand)]
enum GateCommand {
    /// Show the nodes that fabricgate drained with their state in the scheduler, first those that
    /// differ from the journal; then spent budgets, held nodes and open actions.
    Status,
    /// Show the events in the journal, one per line.
    Log {
        /// How far back: a number with s, m, h or d.
        #[arg(long, value_name = "SPAN", default_value = "24h", value_parser = pause::parse_span)]
        since: u64,
        /// Only events of this node.
        #[arg(value_name = "NODE")]
        node: Option<String>,
    },
    /// Suspend drains, marks and measurements for a while, such as for site maintenance. Drained
    /// nodes stay drained, and a run that passes still returns nodes.
    Pause {
        /// For how long: a number with s, m, h or d; at most 30d.
        #[arg(long = "for", value_name = "SPAN", value_parser = pause::parse_pause)]
        lasts: u64,
        /// Reason; the journal keeps it, and refusals quote it.
        #[arg(long, value_name = "TEXT")]
        why: String,
    },
    /// End a pause early.
    Resume {
        /// Reason; the journal keeps it.
        #[arg(long, value_name = "TEXT")]
        why: Option<String>,
    },
    /// Reset a tripped breaker: fabricgate proposes drains and relabels again.
    Reset {
        /// Why it is safe now; the journal keeps it.
        #[arg(long, value_name = "TEXT")]
        why: String,
    },
    /// Conclude what a crash left open: actions, reservations, jobs, pods.
    ///
    /// Repeats drains that the controller lost. The exit code is 6 while something that fabricgate
    /// created may remain.
    Recover {
        /// A machine whose processes will not return: what they held is released.
        #[arg(long, value_name = "HOST", requires = "why")]
        gone: Option<String>,
        /// How the operator knows; the journal keeps it.
        #[arg(long, value_name = "TEXT", requires = "gone")]
        why: Option<String>,
    },
    /// Stop counting a node that the scheduler no longer lists.
    Forget(operator::OperatorArgs),
    /// Take over a drain that has fabricgate's reason format but is not in this journal.
    ///
    /// Use it after the state folder was lost or restored, or for another gate that was removed.
    /// From then on fabricgate owns the drain: `recertify` measures the node and returns it when it
    /// passes.
    Adopt(operator::OperatorArgs),
}

/// The format of `gate recover --json`.
pub(crate) const RECOVERED_FORMAT: &str = "fabricgate.recovered/1";

/// The results of the actions that an earlier turn left open.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RecoveredDocument<'a> {
    /// `fabricgate.recovered/1`.
    format: &'static str,
    /// Each action, with its result.
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
            note("the gate is paused: nothing is drained or measured; current runs continue");
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
                note("the breaker is reset");
            }
            drop(journal);
            print_status_document(&config, gate, globals)
        }
        GateCommand::Forget(args) => Ok(operator::forget_node(gate, args)?),
        GateCommand::Adopt(args) => {
            let fleet = collect_fleet(&config).ok();
            Ok(operator::adopt_drain(&config, gate, fleet.as_ref(), args)?)
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
                note("something that an earlier run created may still exist: see above");
            }
            Ok(if is_open || !are_gone { exit::ACTION_REFUSED } else { exit::PASS })
        }
    }
}

/// Prints the state of the gate.
fn show_status(config: &Config, gate: &GateConfig, globals: &Globals) -> anyhow::Result<u8> {
    let ledger = journal::read_state(&gate.folder).map_err(journal_error)?;
    if ledger.lines == 0 {
        let path = gate.folder.join(journal::JOURNAL_FILE);
        note(&format!(
            "there is no journal yet: {}; if one is expected, check that its folder is mounted",
            path.display()
        ));
    }
    let (live, unread) = match read_live_nodes(gate)? {
        Ok(live) => (Some(live), None),
        Err(why) => (None, Some(why)),
    };
    let now = clock::now();
    let rows = drain_overview::build_rows(&ledger, live.as_ref(), &config.policy, &now);
    let view = GateLiveView { nodes: &rows, unasked: unread.as_deref(), live: live.as_ref() };
    if globals.json {
        let left = remaining_budgets(config, &ledger, live.as_ref(), &now);
        stdout::write_json(&report::gate::build_document(&ledger, &now, view, left.as_deref()))?;
        return Ok(exit::PASS);
    }
    stdout::write_text(&report::gate::render(&ledger, &now, view))?;
    if let Some(live) = &live {
        stdout::write_text(&operator::list_unrecorded_drains(live, &ledger))?;
        for line in live.nodes.values().filter_map(device::left_out) {
            stdout::write_text(&format!("{line}\n"))?;
        }
    }
    for budget in remaining_budgets(config, &ledger, live.as_ref(), &now).into_iter().flatten() {
        stdout::write_text(&format!("{budget}\n"))?;
    }
    Ok(exit::PASS)
}

/// Prints the events since `since_s` seconds ago.
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

/// The scheduler's current state of all nodes, or why it could not be queried.
fn read_live_nodes(gate: &GateConfig) -> Result<Result<SchedulerSnapshot, String>, CommandError> {
    let scheduler = gate_apply::scheduler_for(gate);
    let live = crate::cli::runtime::build_runtime()?.block_on(scheduler.read_nodes(&[]));
    Ok(live.map_err(|error| format!("{}: {error}", scheduler.name())))
}

/// With --json prints the new state; in text mode the command has already printed its result.
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

/// The remaining budgets; `None` without a known fleet size, because they are shares of it.
fn remaining_budgets(
    config: &Config,
    ledger: &JournalState,
    live: Option<&SchedulerSnapshot>,
    now: &ClockStamp,
) -> Option<Vec<String>> {
    match collect_fleet(config) {
        Ok(fleet) => Some(budget::describe_remaining(ledger, live, &fleet, &config.policy, now)),
        Err(error) => {
            note(&format!("the remaining budgets are not known: {error}"));
            None
        }
    }
}

/// Opens the journal for writing and prints the problems it found in itself.
fn open_journal(gate: &GateConfig) -> Result<Journal, CommandError> {
    let journal = Journal::open(&gate.folder).map_err(journal_error)?;
    for text in journal.notes() {
        note(text);
    }
    Ok(journal)
}

/// Concludes open actions after cleaning up what earlier runs held, and repeats drains that the
/// controller lost. Returns the concluded actions, and whether nothing of earlier runs remains.
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
    let mut log = note_gate_event;
    crate::cli::runtime::build_runtime()?.block_on(async {
        let mut are_gone = allocation::clean_up_orphans(OrphanCleanup {
            journal: &mut journal,
            scheduler: scheduler.as_ref(),
            programs: gate_apply::slurm_programs(&config.launcher),
            pods: gate_apply::pod_settings(&config.launcher),
            timeouts: gate.timeouts,
            gone_host: gone.map(|(host, _)| host),
            log: &mut log,
        })
        .await
        .map_err(journal_error)?;
        let with = RecoveryContext { config, gate, scheduler: scheduler.as_ref(), stop };
        let in_flight = gate.timeouts.in_flight;
        let carrier = with.executor(&mut journal, &mut log);
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
                let mut carrier = with.executor(&mut journal, &mut log);
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
                note(&format!(
                    "the state of the nodes is not known: {}: {error}",
                    scheduler.name()
                ));
            }
        }
        Ok((records, are_gone))
    })
}

/// What the recovery steps have in common.
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
        log: &'c mut dyn FnMut(&GateEvent),
    ) -> Executor<'c> {
        Executor {
            scheduler: self.scheduler,
            journal,
            names: &self.config.policy.marks,
            settle: self.gate.timeouts.settle,
            log,
            stop: self.stop.clone(),
        }
    }
}

fn journal_error(error: JournalError) -> CommandError {
    gate_apply::turn_error(error.into())
}
