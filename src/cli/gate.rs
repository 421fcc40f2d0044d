//! `fabricgate gate`: how the gate stands and what happened, and what only a person
//! may do to it: pause it, put a tripped breaker back, conclude what a crash left open.

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
use super::pausing;
use super::stdout;
use super::stdout::note;
use crate::act::budget;
use crate::act::ledger::Ledger;
use crate::act::overview;
use crate::act::pause;
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
use crate::model::id::NodeName;
use crate::model::journal::Event;
use crate::model::journal::Stamp;
use crate::model::live::Live;
use crate::model::moment::rfc3339;
use crate::report;
use crate::report::gate::Shown;
use crate::report::gate_log;

/// How the gate stands; put a tripped breaker back; conclude what a crash left open.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// The nodes that we drained as the scheduler shows them now, what differs from our record
    /// first; what is spent, held and open.
    Status,
    /// What happened, from the journal, one line per event.
    Log {
        /// How far back: a number and s, m, h or d.
        #[arg(long, value_name = "SPAN", default_value = "24h", value_parser = pausing::span)]
        since: u64,
        /// Only what is about this node.
        #[arg(value_name = "NODE")]
        node: Option<String>,
    },
    /// For a while, drain and mark nothing and measure nothing: maintenance of the site. What is
    /// drained stays so, and a run that passed gives nodes back.
    Pause {
        /// For how long: a number and s, m, h or d; 30d at most.
        #[arg(long = "for", value_name = "SPAN", value_parser = pausing::pause_of)]
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
        Command::Log { since, node } => log(gate, *since, node.as_deref(), globals),
        Command::Pause { lasts, why } => {
            said("why it is paused", why)?;
            let event = pausing::begins(user(), why.clone(), *lasts);
            opened(gate)?.write(event).map_err(failure)?;
            note("the gate is paused: nothing is drained or measured; what runs now goes on");
            told(&config, gate, globals)
        }
        Command::Resume { why } => {
            let mut journal = opened(gate)?;
            if pause::now(journal.ledger(), &stamp::stamp()).is_none() {
                note("the gate is not paused; nothing was changed");
            } else {
                let event = Event::Resumed { by: user(), why: why.clone() };
                journal.write(event).map_err(failure)?;
                note("the pause is over");
            }
            drop(journal);
            told(&config, gate, globals)
        }
        Command::Reset { why } => {
            said("why it is safe now", why)?;
            let mut journal = opened(gate)?;
            if journal.ledger().breaker.is_none() {
                note("the breaker has not tripped; nothing was changed");
            } else {
                journal.write(Event::Reset { by: user(), why: why.clone() }).map_err(failure)?;
                note("the breaker is put back");
            }
            drop(journal);
            told(&config, gate, globals)
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
    let (live, unasked) = match asked(gate)? {
        Ok(live) => (Some(live), None),
        Err(why) => (None, Some(why)),
    };
    let now = stamp::stamp();
    let rows = overview::rows(&ledger, live.as_ref(), &config.policy, &now);
    let shown = Shown { nodes: &rows, unasked: unasked.as_deref() };
    if globals.json {
        let left = left(config, &ledger, &now);
        stdout::json(&report::gate::document(&ledger, &now, shown, left.as_deref()))?;
        return Ok(exit::PASS);
    }
    stdout::text(&report::gate::text(&ledger, &now, shown))?;
    for budget in left(config, &ledger, &now).into_iter().flatten() {
        stdout::text(&format!("{budget}\n"))?;
    }
    Ok(exit::PASS)
}

/// What happened since then.
fn log(gate: &Gate, since_s: u64, node: Option<&str>, globals: &Globals) -> anyhow::Result<u8> {
    let entries = journal::entries(&gate.folder).map_err(failure)?;
    let ago = i64::try_from(since_s).unwrap_or(i64::MAX);
    let since = stamp::stamp().unix.saturating_sub(ago);
    let node = node.map(NodeName::from);
    let events = gate_log::happened(&entries, since, node.as_ref());
    if globals.json {
        stdout::json(&gate_log::document(&events, &rfc3339(since), node.as_ref()))?;
    } else if events.is_empty() {
        stdout::text(&format!("nothing happened since {}\n", rfc3339(since)))?;
    } else {
        stdout::text(&gate_log::text(&events))?;
    }
    Ok(exit::PASS)
}

/// How the scheduler shows all nodes now, or why it could not be asked.
fn asked(gate: &Gate) -> Result<Result<Live, String>, Failure> {
    let scheduler = acting::scheduler(gate);
    let live = super::runtime()?.block_on(scheduler.read(&[]));
    Ok(live.map_err(|error| format!("{}: {error}", scheduler.name())))
}

/// Programs are told how it stands now; a person was told what was done.
fn told(config: &Config, gate: &Gate, globals: &Globals) -> anyhow::Result<u8> {
    if globals.json { status(config, gate, globals) } else { Ok(exit::PASS) }
}

/// Who types this.
fn user() -> String {
    std::env::var("USER").unwrap_or_else(|_| "unknown".to_owned())
}

/// That a reason was given.
fn said(what: &str, why: &str) -> Result<(), Failure> {
    match why.trim().is_empty() {
        true => Err(Failure::Usage(format!("--why: expected {what}, it is kept in the journal"))),
        false => Ok(()),
    }
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
