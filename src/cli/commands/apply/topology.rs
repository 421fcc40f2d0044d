//! Proposes a better topology file for a run as a diff; writes nothing.
//!
//! `act::topology` decides on the right block and the rules of the file.

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

/// The inputs of a topology proposal.
#[derive(Clone, Copy, Debug)]
pub struct TopologyUpdateRequest<'a> {
    /// The topology file.
    pub file: &'a Path,
    /// The topology in the file; by default the cluster's default.
    pub topology: Option<&'a str>,
    /// The verdicts of a run; together with the claims they determine the moves.
    pub verdicts: &'a Verdicts,
    /// The claims of the run.
    pub claims: &'a Claims,
    /// The scheduler that lists the nodes.
    pub scheduler: &'a dyn Scheduler,
    /// The client for the version of Slurm.
    pub scontrol: &'a ScontrolScheduler,
}

/// The proposal, with what is withheld and what went wrong.
#[derive(Clone, Debug, Serialize)]
pub struct TopologyUpdateResult {
    /// The proposed file.
    pub proposal: TopologyProposal,
    /// Findings that could have moved a node but did not.
    pub withheld: Vec<WithheldAction>,
    /// Failed queries.
    pub troubles: Vec<String>,
}

/// Proposes a file; writes nothing. A scheduler that does not answer is reported and ends nothing.
pub fn propose_topology(
    request: &TopologyUpdateRequest<'_>,
) -> Result<TopologyUpdateResult, CommandError> {
    crate::cli::runtime::build_runtime()?.block_on(build_result(request))
}

impl TopologyUpdateResult {
    /// The exit code of the proposal.
    pub fn exit_code(&self) -> u8 {
        if self.proposal.blocking_faults().is_empty() { exit::PASS } else { exit::ACTION_REFUSED }
    }

    /// Renders the proposal as text.
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
                (false, true) => "unchanged",
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
    request: &TopologyUpdateRequest<'_>,
) -> Result<TopologyUpdateResult, CommandError> {
    let (moves, withheld) = topology_proposal::asked(request.verdicts, request.claims);
    let withheld = withheld.into_iter().map(|it| it.withheld).collect();
    let change = TopologyRequest { topology: request.topology.map(str::to_owned), moves };
    let text = std::fs::read_to_string(request.file).map_err(|error| {
        CommandError::Environment(format!("{}: {error}", request.file.display()))
    })?;
    let mut troubles = Vec::new();
    let mut context = TopologyContext::default();
    match request.scheduler.read_nodes(&[]).await {
        Ok(live) if live.troubles.is_empty() && !live.nodes.is_empty() => {
            context.nodes = live.nodes.into_keys().collect();
        }
        Ok(live) => troubles.push(format!(
            "the scheduler did not list all nodes: {}",
            live.troubles.first().map_or("it lists none", String::as_str)
        )),
        Err(error) => troubles.push(format!("the scheduler's nodes could not be read: {error}")),
    }
    context.version = request.scontrol.version().await;
    if context.version.is_none() {
        troubles.push("the version of Slurm is unknown".to_owned());
    }
    let proposal = topology_proposal::propose_topology(&text, &change, &context)
        .map_err(|refused| CommandError::Usage(format!("{}: {refused}", request.file.display())))?;
    Ok(TopologyUpdateResult { proposal, withheld, troubles })
}
