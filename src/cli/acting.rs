//! Takes a turn of the configured gate for a run: what `apply` and the sweeps
//! share.
//!
//! What is decided and done, `act` and `gate` do; here a person's configuration
//! becomes their arguments, and their errors become failures.

use std::collections::BTreeMap;

use super::config::Config;
use super::exit;
use super::failure::Failure;
use super::gating::Gate;
use super::gating::Told;
use super::stdout::note;
use crate::act::policy::Policy;
use crate::act::situation::Coverage;
use crate::act::situation::RunSeen;
use crate::gate::journal::JournalError;
use crate::gate::scheduler::Scheduler;
use crate::gate::turn;
use crate::gate::turn::Turn;
use crate::gate::turn::TurnError;
use crate::gate::turn::Turned;
use crate::model::action::ActionPlan;
use crate::model::action::ActionResult;
use crate::model::claims::Claims;
use crate::model::verdict::Verdicts;

/// A run whose verdicts the scheduler may hear of.
#[derive(Debug)]
pub struct Judged<'a> {
    /// What the judge says.
    pub verdicts: &'a Verdicts,
    /// What is claimed of the whole fleet.
    pub fleet: &'a Claims,
    /// How much of the plan came back.
    pub coverage: Option<Coverage>,
    /// The run.
    pub run: RunSeen,
    /// What may be done.
    pub policy: &'a Policy,
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
pub fn scheduler(gate: &Gate) -> Result<Box<dyn Scheduler>, Failure> {
    match &gate.told {
        Told::Scontrol(scontrol) => Ok(Box::new(scontrol.clone())),
        Told::Slurmrestd(_) => Err(Failure::Usage("slurmrestd: not built".to_owned())),
    }
}

/// A runtime for one command.
pub fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Environment(format!("no runtime: {error}")))
}

/// Takes a turn, and tells people what was left open before.
pub fn turn(gate: &Gate, judged: &Judged<'_>, apply: bool) -> Result<Turned, Failure> {
    let scheduler = scheduler(gate)?;
    let taken = runtime()?.block_on(turn::turn(Turn {
        folder: &gate.folder,
        scheduler: scheduler.as_ref(),
        names: &gate.marks,
        settle: gate.settle,
        policy: judged.policy,
        verdicts: judged.verdicts,
        fleet: judged.fleet,
        coverage: judged.coverage,
        run: &judged.run,
        drivers: &BTreeMap::new(),
        apply,
        say: &mut |text| note(text),
    }));
    let turned = taken.map_err(failure)?;
    for record in &turned.recovered {
        note(&format!("left open by an earlier turn: {}: {}", record.node, record.detail));
    }
    if let Some(tripped) = &turned.ledger.breaker {
        note(&format!(
            "the breaker tripped at {} ({}): nothing but releases until `fabricgate gate reset`",
            tripped.stamp.at, tripped.why
        ));
    }
    Ok(turned)
}

/// The exit code that a turn's failure has.
pub fn failure(error: TurnError) -> Failure {
    match error {
        // Somebody wrote into our record, or a newer program did.
        TurnError::Journal(JournalError::Malformed { .. }) => Failure::usage(error),
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
