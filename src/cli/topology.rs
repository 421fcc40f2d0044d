//! A better topology file for a run or for moves that a person names: shown as
//! a diff, and written only where that was asked for.
//!
//! Which block is right and what a file must be, `act::topology` says; putting
//! it in place is `gate::topology`'s.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::exit;
use super::failure::CommandError;
use super::stdout::note;
use control::gate::scheduler::Scheduler;
use control::gate::topology::{Controller, Ending, Writing, Written};
use control::sweep;
use engine::policy::topology_proposal;
use engine::policy::topology_proposal::{
    AtOnce, TopologyContext, TopologyProposal, TopologyRequest,
};
use engine::report::plain_text::to_plain;
use model::action::WithheldAction;
use model::claims::Claims;
use model::id::NodeName;
use model::shell_quote;
use model::verdict::Verdicts;

/// How long a controller may take to show a file that it read. It takes 0.6 s
/// for 5,000 nodes, and a round of its scheduler to see which jobs it holds.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(10);

/// What is asked about a topology file.
#[derive(Clone, Copy, Debug)]
pub struct TopologyUpdateRequest<'a> {
    /// The file.
    pub file: &'a Path,
    /// The topology in it; otherwise the cluster's default.
    pub topology: Option<&'a str>,
    /// Moves by hand, each `NODE=BLOCK`.
    pub moves: &'a [String],
    /// A run, for moves that its verdicts and its claims together name.
    pub run: Option<(&'a Verdicts, &'a Claims)>,
    /// Whom to ask for nodes.
    pub scheduler: &'a dyn Scheduler,
    /// `scontrol`, with words in front where it is reached through something.
    pub scontrol: &'a [String],
    /// Whether a shell elsewhere reads the words behind it.
    pub remote_shell: Option<bool>,
    /// How long one call may take.
    pub limit: Duration,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct TopologyUpdateResult {
    /// The better file.
    pub proposal: TopologyProposal,
    /// The same at run time, where this version of Slurm can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_once: Option<AtOnce>,
    /// Findings that could have moved a node and do not.
    pub withheld: Vec<WithheldAction>,
    /// What could not be asked.
    pub troubles: Vec<String>,
    /// What was written, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<Written>,
}

/// Proposes a file; nothing is written. That the scheduler does not answer is
/// told and ends nothing.
pub fn propose_topology(
    asked: &TopologyUpdateRequest<'_>,
) -> Result<TopologyUpdateResult, CommandError> {
    super::build_runtime()?.block_on(build_result(asked)).map(|(answer, _)| answer)
}

/// Proposes a file and puts it in place. What is said meanwhile goes to standard
/// error.
pub fn write_topology(
    asked: &TopologyUpdateRequest<'_>,
) -> Result<TopologyUpdateResult, CommandError> {
    super::build_runtime()?.block_on(async {
        let (mut answer, ground) = build_result(asked).await?;
        if let Some(trouble) = answer.troubles.first() {
            return Err(CommandError::Environment(format!("no topology is written: {trouble}")));
        }
        let controller = Controller::beside(asked.scontrol, asked.limit, asked.remote_shell);
        let time = sweep::now().strftime("%Y%m%dT%H%M%SZ").to_string();
        let writing = Writing {
            controller: &controller,
            path: asked.file,
            proposal: &answer.proposal,
            version: ground.version,
            time: &time,
            settle: RELOAD_TIMEOUT,
        };
        answer.written = Some(
            control::gate::topology::write(writing, &mut |what| note(&format!("topology: {what}")))
                .await,
        );
        Ok(answer)
    })
}

impl TopologyUpdateResult {
    /// Its exit code.
    pub fn exit_code(&self) -> u8 {
        let is_well = match &self.written {
            Some(written) => matches!(written.ending, Ending::Nothing | Ending::Placed),
            None => self.proposal.blocking_faults().is_empty(),
        };
        if is_well { exit::PASS } else { exit::ACTION_REFUSED }
    }

    /// For people.
    pub fn render(&self) -> String {
        let Self { proposal, at_once, withheld, troubles, written } = self;
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
        if let Some(at_once) = at_once.as_ref().filter(|at_once| !at_once.commands.is_empty()) {
            let _ = writeln!(text, "at run time, without the file ({}):", at_once.warning);
            for command in &at_once.commands {
                let _ = writeln!(text, "  {}", shell_quote::join_quoted(command));
            }
        }
        let Some(written) = written else {
            if proposal.is_change() && proposal.blocking_faults().is_empty() {
                text.push_str("proposed, not written\n");
            }
            return text;
        };
        for told in &written.told {
            let _ = writeln!(text, "{}", to_plain(told));
        }
        if !written.release.is_empty() {
            let _ = writeln!(text, "to give the held jobs back:");
            let _ = writeln!(text, "  {}", shell_quote::join_quoted(&written.release));
        }
        text
    }
}

/// The proposal, and what is known of the cluster.
async fn build_result(
    asked: &TopologyUpdateRequest<'_>,
) -> Result<(TopologyUpdateResult, TopologyContext), CommandError> {
    let (wanted, withheld) = collect_moves(asked)?;
    let text = std::fs::read_to_string(asked.file)
        .map_err(|error| CommandError::Environment(format!("{}: {error}", asked.file.display())))?;
    let mut troubles = Vec::new();
    let mut ground = TopologyContext::default();
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
    ground.version =
        Controller::beside(asked.scontrol, asked.limit, asked.remote_shell).version().await;
    if ground.version.is_none() {
        troubles.push("the version of Slurm is not known".to_owned());
    }
    let proposal = topology_proposal::propose_topology(&text, &wanted, &ground)
        .map_err(|refused| CommandError::Usage(format!("{}: {refused}", asked.file.display())))?;
    let at_once = topology_proposal::at_once(&proposal, ground.version).ok();
    Ok((TopologyUpdateResult { proposal, at_once, withheld, troubles, written: None }, ground))
}

/// Who is to be moved where: as verdicts say, and as a person says.
fn collect_moves(
    asked: &TopologyUpdateRequest<'_>,
) -> Result<(TopologyRequest, Vec<WithheldAction>), CommandError> {
    let mut wanted = TopologyRequest {
        topology: asked.topology.map(str::to_owned),
        ..TopologyRequest::default()
    };
    let mut withheld = Vec::new();
    if let Some((verdicts, claims)) = asked.run {
        (wanted.moves, withheld) = topology_proposal::asked(verdicts, claims);
    }
    for word in asked.moves {
        let pair =
            word.split_once('=').filter(|(node, block)| !node.is_empty() && !block.is_empty());
        let Some((node, block)) = pair else {
            return Err(CommandError::Usage(format!("{}: expected NODE=BLOCK", to_plain(word))));
        };
        let node = NodeName::from(node);
        withheld.retain(|it: &topology_proposal::NotMoved| it.node.as_ref() != Some(&node));
        wanted.moves.insert(node, block.to_owned());
    }
    Ok((wanted, withheld.into_iter().map(|it| it.withheld).collect()))
}
