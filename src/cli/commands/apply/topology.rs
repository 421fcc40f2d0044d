//! A better topology file for a run, shown as a diff; nothing is written.
//!
//! Which block is right and what a file must be, `act::topology` says.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use crate::exit;
use crate::exit::CommandError;
use control::gate::scheduler::Scheduler;
use control::gate::scontrol::ScontrolScheduler;
use engine::policy::topology_proposal;
use engine::policy::topology_proposal::{TopologyContext, TopologyProposal, TopologyRequest};
use engine::report::plain_text::to_plain;
use model::action::WithheldAction;
use model::claims::Claims;
use model::verdict::Verdicts;

/// What is asked about a topology file.
#[derive(Clone, Copy, Debug)]
pub struct TopologyUpdateRequest<'a> {
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
    pub scontrol: &'a ScontrolScheduler,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct TopologyUpdateResult {
    /// The better file.
    pub proposal: TopologyProposal,
    /// Findings that could have moved a node and do not.
    pub withheld: Vec<WithheldAction>,
    /// What could not be asked.
    pub troubles: Vec<String>,
}

/// Proposes a file; nothing is written. That the scheduler does not answer is
/// told and ends nothing.
pub fn propose_topology(
    asked: &TopologyUpdateRequest<'_>,
) -> Result<TopologyUpdateResult, CommandError> {
    crate::cli::runtime::build_runtime()?.block_on(build_result(asked))
}

impl TopologyUpdateResult {
    /// Its exit code.
    pub fn exit_code(&self) -> u8 {
        if self.proposal.blocking_faults().is_empty() { exit::PASS } else { exit::ACTION_REFUSED }
    }

    /// For people.
    pub fn render(&self) -> String {
        let Self { proposal, withheld, troubles } = self;
        let mut text = String::new();
        for withheld in withheld {
            let _ = writeln!(
                text,
                "not moved: {}: {}",
                to_plain(&withheld.what),
                to_plain(&withheld.why)
            );
        }
        if !proposal.is_change() {
            text.push_str("no node changes its block\n");
        }
        for moved in &proposal.moved {
            let from =
                if moved.from.is_empty() { "no block".to_owned() } else { moved.from.join(", ") };
            let _ = writeln!(
                text,
                "{}: from {} to {}",
                moved.node,
                to_plain(&from),
                to_plain(&moved.to)
            );
        }
        for line in proposal.diff.lines() {
            let _ = writeln!(text, "{}", to_plain(line));
        }
        for fault in &proposal.faults {
            let how = match (fault.forbids, fault.is_old) {
                (true, _) => "wrong",
                (false, true) => "as it is today",
                (false, false) => "note",
            };
            let _ = writeln!(text, "{how}: {}", to_plain(&fault.what));
        }
        for remark in proposal.remarks.iter().chain(troubles) {
            let _ = writeln!(text, "note: {}", to_plain(remark));
        }
        if proposal.is_change() && proposal.blocking_faults().is_empty() {
            text.push_str(
                "proposed, not written: put the file in place, then `scontrol reconfigure`\n",
            );
        }
        text
    }
}

async fn build_result(
    asked: &TopologyUpdateRequest<'_>,
) -> Result<TopologyUpdateResult, CommandError> {
    let (moves, withheld) = topology_proposal::asked(asked.verdicts, asked.claims);
    let withheld = withheld.into_iter().map(|it| it.withheld).collect();
    let wanted = TopologyRequest { topology: asked.topology.map(str::to_owned), moves };
    let text = std::fs::read_to_string(asked.file)
        .map_err(|error| CommandError::Environment(format!("{}: {error}", asked.file.display())))?;
    let mut troubles = Vec::new();
    let mut ground = TopologyContext::default();
    match asked.scheduler.read_nodes(&[]).await {
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
    let proposal = topology_proposal::propose_topology(&text, &wanted, &ground)
        .map_err(|refused| CommandError::Usage(format!("{}: {refused}", asked.file.display())))?;
    Ok(TopologyUpdateResult { proposal, withheld, troubles })
}
