//! `fabricgate gate`: how the gate stands and what happened, and what only a person
//! may do to it: pause it, put a tripped breaker back, conclude what a crash left open,
//! forget a node, adopt a drain.

mod by_person;

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
use crate::act::device;
use crate::act::ledger::Ledger;
use crate::act::older;
use crate::act::overview;
use crate::act::pause;
use crate::gate::carry::Carrier;
use crate::gate::hold;
use crate::gate::hold::Cleaning;
use crate::gate::journal;
use crate::gate::journal::Journal;
use crate::gate::journal::JournalError;
use crate::gate::recover;
use crate::gate::remake;
use crate::gate::scheduler::Scheduler;
use crate::gate::stamp;
use crate::model::action::ActionRecord;
use crate::model::action::ActionResult;
use crate::model::claims::Claims;
use crate::model::id::NodeName;
use crate::model::journal::Event;
use crate::model::journal::Stamp;
use crate::model::live::Live;
use crate::model::moment::rfc3339;
use crate::report;
use crate::report::gate::Shown;
use crate::report::gate_log;

/// How the gate stands, and what only a person can tell it.
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
    Forget(by_person::Told),
    /// Take a drain over that is of our form and not in this journal.
    ///
    /// After a lost or restored state folder, or from another gate that is no more. From
    /// then on it is ours: measured by `recertify`, and given back when it passes.
    Adopt(by_person::Told),
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
            let event = pausing::begins(by_person::user(), by_person::reason(why)?, *lasts);
            opened(gate)?.write(event).map_err(failure)?;
            note("the gate is paused: nothing is drained or measured; what runs now goes on");
            told(&config, gate, globals)
        }
        Command::Resume { why } => {
            let mut journal = opened(gate)?;
            if pause::now(journal.ledger(), &stamp::stamp()).is_none() {
                note("the gate is not paused; nothing was changed");
            } else {
                let event = Event::Resumed { by: by_person::user(), why: why.clone() };
                journal.write(event).map_err(failure)?;
                note("the pause is over");
            }
            drop(journal);
            told(&config, gate, globals)
        }
        Command::Reset { why } => {
            let why = by_person::reason(why)?;
            let mut journal = opened(gate)?;
            if journal.ledger().breaker.is_none() {
                note("the breaker has not tripped; nothing was changed");
            } else {
                let by = by_person::user();
                journal.write(Event::Reset { by, why }).map_err(failure)?;
                note("the breaker is put back");
            }
            drop(journal);
            told(&config, gate, globals)
        }
        Command::Forget(told) => Ok(by_person::forget(gate, told)?),
        Command::Adopt(told) => {
            let fleet = fleet(&config).ok();
            Ok(by_person::adopt(&config, gate, fleet.as_ref(), told)?)
        }
        Command::Recover { gone, why } => {
            let gone = gone.as_deref().zip(why.as_deref());
            let (records, are_gone) = recovered(&config, gate, gone)?;
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
    let shown = Shown { nodes: &rows, unasked: unasked.as_deref(), live: live.as_ref() };
    if globals.json {
        let left = left(config, &ledger, live.as_ref(), &now);
        stdout::json(&report::gate::document(&ledger, &now, shown, left.as_deref()))?;
        return Ok(exit::PASS);
    }
    stdout::text(&report::gate::text(&ledger, &now, shown))?;
    if let Some(live) = &live {
        stdout::text(&by_person::unrecorded(live, &ledger))?;
        for told in live.nodes.values().filter_map(device::left_out) {
            stdout::text(&format!("{told}\n"))?;
        }
    }
    for budget in left(config, &ledger, live.as_ref(), &now).into_iter().flatten() {
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

fn fleet(config: &Config) -> Result<Claims, Failure> {
    expectations::load(&config.thresholds)
        .and_then(|in_force| config.measurable(&in_force.catalogue))
}

/// What is left of the budgets, where somebody says how large the fleet is: they
/// are shares of it.
fn left(config: &Config, ledger: &Ledger, live: Option<&Live>, now: &Stamp) -> Option<Vec<String>> {
    match fleet(config) {
        Ok(fleet) => Some(budget::left(ledger, live, &fleet, &config.policy, now)),
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

/// Concludes what is open, after what was held is free, and makes drains again that the
/// controller lost. What was concluded, and whether nothing is left of what earlier runs
/// had made.
fn recovered(
    config: &Config,
    gate: &Gate,
    gone: Option<(&str, &str)>,
) -> Result<(Vec<ActionRecord>, bool), Failure> {
    let scheduler = acting::scheduler(gate);
    let mut journal = opened(gate)?;
    if let Some((host, why)) = gone {
        by_person::gone(&mut journal, host, why, acting::pods(&config.launcher).is_some())?;
    }
    let (_stopper, stop) = watch::channel(false);
    let mut say = |text: &str| note(text);
    super::runtime()?.block_on(async {
        let mut are_gone = hold::clean(Cleaning {
            journal: &mut journal,
            scheduler: scheduler.as_ref(),
            programs: acting::programs(&config.launcher),
            pods: acting::pods(&config.launcher),
            pace: gate.pace,
            gone: gone.map(|(host, _)| host),
            say: &mut say,
        })
        .await
        .map_err(failure)?;
        let with = With { config, gate, scheduler: scheduler.as_ref(), stop };
        let in_flight = gate.pace.in_flight;
        let carrier = with.carrier(&mut journal, &mut say);
        let mut records = recover::recover(carrier, in_flight).await.map_err(failure)?;
        if journal.ledger().drains.is_empty() {
            return Ok((records, are_gone));
        }
        match scheduler.read(&[]).await {
            Ok(live) => {
                if let Some(why) = older::why(&live, journal.ledger(), "")
                    && journal.ledger().breaker.is_none()
                {
                    note(&format!("the breaker trips: {why}"));
                    let last = older::last_turn(&live, journal.ledger());
                    let tripped = Event::Tripped { why, run: "gate recover".to_owned() };
                    journal.write_beyond(last, tripped).map_err(failure)?;
                }
                let mut carrier = with.carrier(&mut journal, &mut say);
                let vanished = remake::looked(&mut carrier, &live).await.map_err(failure)?;
                let kept = gate.pace.kept;
                let made = remake::remake(carrier, &vanished, None, kept).await.map_err(failure)?;
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
struct With<'a> {
    config: &'a Config,
    gate: &'a Gate,
    scheduler: &'a dyn Scheduler,
    stop: watch::Receiver<bool>,
}

impl With<'_> {
    fn carrier<'c>(
        &'c self,
        journal: &'c mut Journal,
        say: &'c mut dyn FnMut(&str),
    ) -> Carrier<'c> {
        Carrier {
            scheduler: self.scheduler,
            journal,
            names: &self.config.policy.marks,
            settle: self.gate.pace.settle,
            say,
            stop: self.stop.clone(),
        }
    }
}

fn failure(error: JournalError) -> Failure {
    acting::failure(error.into())
}
