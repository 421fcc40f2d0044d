//! `fabricgate gate`: how the gate stands, and what only a person may do to it:
//! put a tripped breaker back, conclude what a crash left open.

use serde_json::json;
use tokio::sync::watch;

use super::Globals;
use super::acting;
use super::config;
use super::config::Config;
use super::exit;
use super::failure::Failure;
use super::gating::Gate;
use super::stdout;
use super::stdout::note;
use crate::gate::carry::Carrier;
use crate::gate::hold;
use crate::gate::hold::Cleaning;
use crate::gate::journal;
use crate::gate::journal::Journal;
use crate::gate::journal::JournalError;
use crate::gate::recover;
use crate::model::action::ActionRecord;
use crate::model::journal::Event;
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
    /// Conclude what a crash left open: actions, reservations, jobs.
    Recover,
}

/// Runs the command.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    let config = config::open(globals.config.as_deref())?;
    let gate = acting::gate(&config)?;
    match &args.command {
        Command::Status => {
            let ledger = journal::look(&gate.folder).map_err(failure)?;
            if ledger.lines == 0 {
                let path = gate.folder.join(journal::JOURNAL);
                note(&format!(
                    "there is no journal yet: {}; where there should be one, see whether its \
                     folder is mounted",
                    path.display()
                ));
            }
            if globals.json {
                stdout::json(&report::gate::document(&ledger))?;
            } else {
                stdout::text(&report::gate::text(&ledger))?;
            }
            Ok(exit::PASS)
        }
        Command::Reset { why } => {
            if why.trim().is_empty() {
                let text = "--why: expected why it is safe now, it is kept in the journal";
                return Err(Failure::usage(text).into());
            }
            let mut journal = Journal::open(&gate.folder).map_err(failure)?;
            if journal.ledger().breaker.is_none() {
                note("the breaker has not tripped; nothing was changed");
                return Ok(exit::PASS);
            }
            let by = std::env::var("USER").unwrap_or_else(|_| "unknown".to_owned());
            journal.write(Event::Reset { by, why: why.clone() }).map_err(failure)?;
            note("the breaker is put back");
            Ok(exit::PASS)
        }
        Command::Recover => {
            let records = recovered(&config, gate)?;
            if globals.json {
                stdout::json(&json!({ "format": "fabricgate.recovered/1", "records": records }))?;
            } else if records.is_empty() {
                stdout::text("nothing was left open\n")?;
            }
            for record in records.iter().filter(|_| !globals.json) {
                stdout::text(&format!("{}: {}\n", record.node, record.detail))?;
            }
            Ok(exit::PASS)
        }
    }
}

/// Concludes what is open, after what was held is free.
fn recovered(config: &Config, gate: &Gate) -> Result<Vec<ActionRecord>, Failure> {
    let scheduler = acting::scheduler(gate);
    let mut journal = Journal::open(&gate.folder).map_err(failure)?;
    let (_stopper, stop) = watch::channel(false);
    let mut say = |text: &str| note(text);
    acting::runtime()?.block_on(async {
        if let Some(programs) = acting::programs(&config.launcher) {
            let freed = hold::clean(Cleaning {
                journal: &mut journal,
                scheduler: scheduler.as_ref(),
                programs,
                limit: gate.limit,
                settle: gate.settle,
                say: &mut say,
            });
            for freed in freed.await.map_err(failure)? {
                note(&freed);
            }
        }
        let carrier = Carrier {
            scheduler: scheduler.as_ref(),
            journal: &mut journal,
            names: &config.policy.marks,
            settle: gate.settle,
            say: &mut say,
            stop,
        };
        recover::recover(carrier).await.map_err(failure)
    })
}

fn failure(error: JournalError) -> Failure {
    acting::failure(error.into())
}
