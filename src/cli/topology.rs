//! A better topology file for a run, shown as a diff; nothing is written.
//!
//! Which block is right and what a file must be, `act::topology` says.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use super::exit;
use super::failure::Failure;
use crate::act::topology;
use crate::act::topology::Ground;
use crate::act::topology::Proposal;
use crate::act::topology::Wanted;
use crate::gate::scheduler::Scheduler;
use crate::gate::scontrol::Scontrol;
use crate::model::action::Withheld;
use crate::model::claims::Claims;
use crate::model::verdict::Verdicts;
use crate::report::plain::plain;

/// What is asked about a topology file.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The file.
    pub file: &'a Path,
    /// The topology in it; otherwise the cluster's default.
    pub topology: Option<&'a str>,
    /// The verdicts of a run, which name moves together with its claims.
    pub verdicts: &'a Verdicts,
    /// What was claimed in it.
    pub claims: &'a Claims,
    /// Whom to ask for nodes.
    pub scheduler: &'a dyn Scheduler,
    /// Whom to ask for the version of Slurm.
    pub scontrol: &'a Scontrol,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// The better file.
    pub proposal: Proposal,
    /// Findings that could have moved a node and do not.
    pub withheld: Vec<Withheld>,
    /// What could not be asked.
    pub troubles: Vec<String>,
}

/// Proposes a file; nothing is written. That the scheduler does not answer is
/// told and ends nothing.
pub fn show(asked: &Asked<'_>) -> Result<Answer, Failure> {
    super::runtime()?.block_on(answer(asked))
}

impl Answer {
    /// Its exit code.
    pub fn code(&self) -> u8 {
        if self.proposal.in_the_way().is_empty() { exit::PASS } else { exit::ACTION_REFUSED }
    }

    /// For people.
    pub fn text(&self) -> String {
        let Self { proposal, withheld, troubles } = self;
        let mut text = String::new();
        for withheld in withheld {
            let _ =
                writeln!(text, "not moved: {}: {}", plain(&withheld.what), plain(&withheld.why));
        }
        if !proposal.is_change() {
            text.push_str("no node changes its block\n");
        }
        for moved in &proposal.moved {
            let from =
                if moved.from.is_empty() { "no block".to_owned() } else { moved.from.join(", ") };
            let _ = writeln!(text, "{}: from {} to {}", moved.node, plain(&from), plain(&moved.to));
        }
        for line in proposal.diff.lines() {
            let _ = writeln!(text, "{}", plain(line));
        }
        for fault in &proposal.faults {
            let how = match (fault.forbids, fault.is_old) {
                (true, _) => "wrong",
                (false, true) => "as it is today",
                (false, false) => "note",
            };
            let _ = writeln!(text, "{how}: {}", plain(&fault.what));
        }
        for remark in proposal.remarks.iter().chain(troubles) {
            let _ = writeln!(text, "note: {}", plain(remark));
        }
        if proposal.is_change() && proposal.in_the_way().is_empty() {
            text.push_str(
                "proposed, not written: put the file in place, then `scontrol reconfigure`\n",
            );
        }
        text
    }
}

async fn answer(asked: &Asked<'_>) -> Result<Answer, Failure> {
    let (moves, withheld) = topology::asked(asked.verdicts, asked.claims);
    let withheld = withheld.into_iter().map(|it| it.withheld).collect();
    let wanted = Wanted { topology: asked.topology.map(str::to_owned), moves };
    let text = std::fs::read_to_string(asked.file)
        .map_err(|error| Failure::Environment(format!("{}: {error}", asked.file.display())))?;
    let mut troubles = Vec::new();
    let mut ground = Ground::default();
    match asked.scheduler.read(&[]).await {
        Ok(live) if live.troubles.is_empty() && !live.nodes.is_empty() => {
            ground.nodes = live.nodes.into_keys().collect();
        }
        Ok(live) => troubles.push(format!(
            "the scheduler did not tell of all nodes: {}",
            live.troubles.first().map_or("it knows none", String::as_str)
        )),
        Err(error) => troubles.push(format!("the scheduler was not asked for its nodes: {error}")),
    }
    ground.version = asked.scontrol.version().await;
    if ground.version.is_none() {
        troubles.push("the version of Slurm is not known".to_owned());
    }
    let proposal = topology::propose(&text, &wanted, &ground)
        .map_err(|refused| Failure::Usage(format!("{}: {refused}", asked.file.display())))?;
    Ok(Answer { proposal, withheld, troubles })
}
