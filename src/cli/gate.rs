//! `fabricgate gate`: how the gate stands, and what only a person may do to it:
//! put a tripped breaker back, conclude what a crash left open.

use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::watch;

use super::Globals;
use super::acting;
use super::config;
use super::config::Config;
use super::exit;
use super::expectations;
use super::failure::Failure;
use super::gating::Gate;
use super::stdout;
use super::stdout::note;
use crate::act::budget;
use crate::act::ledger::Ledger;
use crate::gate::carry::Carrier;
use crate::gate::hold;
use crate::gate::hold::Cleaning;
use crate::gate::journal;
use crate::gate::journal::Journal;
use crate::gate::journal::JournalError;
use crate::gate::recover;
use crate::gate::stamp;
use crate::model::action::ActionRecord;
use crate::model::action::ActionResult;
use crate::model::journal::Event;
use crate::model::journal::Stamp;
use crate::report;

/// How the gate stands; put a tripped breaker back; conclude what a crash left open.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// What is drained, spent, undone, held and open, by our own record.
    Status,
    /// Put a tripped breaker back: drains and relabels are proposed again.
    Reset {
        /// Why it is safe now; it is kept in the journal.
        #[arg(long, value_name = "TEXT")]
        why: String,
    },
    /// Conclude what a crash left open: actions, reservations, jobs, pods.
    Recover,
}

/// The format of `gate recover --json`.
pub(super) const RECOVERED_FORMAT: &str = "fabricgate.recovered/1";

/// What became of what an earlier turn left open.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RecoveredDocument<'a> {
    /// `fabricgate.recovered/1`.
    format: &'static str,
    /// Each, with what it is now.
    records: &'a [ActionRecord],
}

/// Runs the command.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    let config = config::open(globals.config.as_deref())?;
    let gate = acting::gate(&config)?;
    match &args.command {
        Command::Status => status(&config, gate, globals),
        Command::Reset { why } => {
            if why.trim().is_empty() {
                let text = "--why: expected why it is safe now, it is kept in the journal";
                return Err(Failure::usage(text).into());
            }
            let mut journal = opened(gate)?;
            if journal.ledger().breaker.is_none() {
                note("the breaker has not tripped; nothing was changed");
            } else {
                let by = std::env::var("USER").unwrap_or_else(|_| "unknown".to_owned());
                journal.write(Event::Reset { by, why: why.clone() }).map_err(failure)?;
                note("the breaker is put back");
            }
            drop(journal);
            // Programs are told how it stands now; a person is told what was done.
            if globals.json { status(&config, gate, globals) } else { Ok(exit::PASS) }
        }
        Command::Recover => {
            let (records, are_gone) = recovered(&config, gate)?;
            let is_open = records.iter().any(|it| it.result == ActionResult::Unknown);
            if globals.json {
                stdout::json(&RecoveredDocument { format: RECOVERED_FORMAT, records: &records })?;
            } else if records.is_empty() {
                stdout::text("no action was left open\n")?;
            }
            for record in records.iter().filter(|_| !globals.json) {
                stdout::text(&format!("{}: {}\n", record.node, record.detail))?;
            }
            if !are_gone {
                note("something that an earlier run made may still be there: see above");
            }
            Ok(if is_open || !are_gone { exit::ACTION_REFUSED } else { exit::PASS })
        }
    }
}

/// Shows how the gate stands.
fn status(config: &Config, gate: &Gate, globals: &Globals) -> anyhow::Result<u8> {
    let ledger = journal::look(&gate.folder).map_err(failure)?;
    if ledger.lines == 0 {
        let path = gate.folder.join(journal::JOURNAL);
        note(&format!(
            "there is no journal yet: {}; where there should be one, see whether its folder is \
             mounted",
            path.display()
        ));
    }
    let now = stamp::stamp();
    if globals.json {
        let left = left(config, &ledger, &now);
        stdout::json(&report::gate::document(&ledger, &now, left.as_deref()))?;
        return Ok(exit::PASS);
    }
    stdout::text(&report::gate::text(&ledger, &now))?;
    for budget in left(config, &ledger, &now).into_iter().flatten() {
        stdout::text(&format!("{budget}\n"))?;
    }
    Ok(exit::PASS)
}

/// What is left of the budgets, where somebody says how large the fleet is: they
/// are shares of it.
fn left(config: &Config, ledger: &Ledger, now: &Stamp) -> Option<Vec<String>> {
    let fleet = expectations::load(&config.thresholds)
        .and_then(|in_force| config.measurable(&in_force.catalogue));
    match fleet {
        Ok(fleet) => Some(budget::left(ledger, &fleet, &config.policy, now)),
        Err(error) => {
            note(&format!("what is left of the budgets is not known: {error}"));
            None
        }
    }
}

/// Takes the next turn, and tells what the journal noticed about itself.
fn opened(gate: &Gate) -> Result<Journal, Failure> {
    let journal = Journal::open(&gate.folder).map_err(failure)?;
    for text in journal.notes() {
        note(text);
    }
    Ok(journal)
}

/// Concludes what is open, after what was held is free. What was concluded,
/// and whether nothing is left of what earlier runs had made.
fn recovered(config: &Config, gate: &Gate) -> Result<(Vec<ActionRecord>, bool), Failure> {
    let scheduler = acting::scheduler(gate);
    let mut journal = opened(gate)?;
    let (_stopper, stop) = watch::channel(false);
    let mut say = |text: &str| note(text);
    super::runtime()?.block_on(async {
        let are_gone = hold::clean(Cleaning {
            journal: &mut journal,
            scheduler: scheduler.as_ref(),
            programs: acting::programs(&config.launcher),
            pods: acting::pods(&config.launcher),
            pace: gate.pace,
            say: &mut say,
        })
        .await
        .map_err(failure)?;
        let carrier = Carrier {
            scheduler: scheduler.as_ref(),
            journal: &mut journal,
            names: &config.policy.marks,
            settle: gate.pace.settle,
            say: &mut say,
            stop,
        };
        Ok((recover::recover(carrier).await.map_err(failure)?, are_gone))
    })
}

fn failure(error: JournalError) -> Failure {
    acting::failure(error.into())
}
