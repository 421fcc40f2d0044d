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
use super::failure::Failure;
use super::stdout::note;
use control::gate::scheduler::Scheduler;
use control::gate::topology::Controller;
use control::gate::topology::Ending;
use control::gate::topology::Writing;
use control::gate::topology::Written;
use control::sweep;
use engine::policy::topology;
use engine::policy::topology::AtOnce;
use engine::policy::topology::Ground;
use engine::policy::topology::Proposal;
use engine::policy::topology::Wanted;
use engine::report::plain::plain;
use model::action::Withheld;
use model::claims::Claims;
use model::id::NodeName;
use model::verdict::Verdicts;
use model::words;

/// How long a controller may take to show a file that it read. It takes 0.6 s
/// for 5,000 nodes, and a round of its scheduler to see which jobs it holds.
const SETTLE: Duration = Duration::from_secs(10);

/// What is asked about a topology file.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
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
pub struct Answer {
    /// The better file.
    pub proposal: Proposal,
    /// The same at run time, where this version of Slurm can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_once: Option<AtOnce>,
    /// Findings that could have moved a node and do not.
    pub withheld: Vec<Withheld>,
    /// What could not be asked.
    pub troubles: Vec<String>,
    /// What was written, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<Written>,
}

/// Proposes a file; nothing is written. That the scheduler does not answer is
/// told and ends nothing.
pub fn show(asked: &Asked<'_>) -> Result<Answer, Failure> {
    super::runtime()?.block_on(answer(asked)).map(|(answer, _)| answer)
}

/// Proposes a file and puts it in place. What is said meanwhile goes to standard
/// error.
pub fn write(asked: &Asked<'_>) -> Result<Answer, Failure> {
    super::runtime()?.block_on(async {
        let (mut answer, ground) = answer(asked).await?;
        if let Some(trouble) = answer.troubles.first() {
            return Err(Failure::Environment(format!("no topology is written: {trouble}")));
        }
        let controller = Controller::beside(asked.scontrol, asked.limit, asked.remote_shell);
        let time = sweep::now().strftime("%Y%m%dT%H%M%SZ").to_string();
        let writing = Writing {
            controller: &controller,
            path: asked.file,
            proposal: &answer.proposal,
            version: ground.version,
            time: &time,
            settle: SETTLE,
        };
        answer.written = Some(
            control::gate::topology::write(writing, &mut |what| note(&format!("topology: {what}")))
                .await,
        );
        Ok(answer)
    })
}

impl Answer {
    /// Its exit code.
    pub fn code(&self) -> u8 {
        let is_well = match &self.written {
            Some(written) => matches!(written.ending, Ending::Nothing | Ending::Placed),
            None => self.proposal.in_the_way().is_empty(),
        };
        if is_well { exit::PASS } else { exit::ACTION_REFUSED }
    }

    /// For people.
    pub fn text(&self) -> String {
        let Self { proposal, at_once, withheld, troubles, written } = self;
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
        if let Some(at_once) = at_once.as_ref().filter(|at_once| !at_once.commands.is_empty()) {
            let _ = writeln!(text, "at run time, without the file ({}):", at_once.warning);
            for command in &at_once.commands {
                let _ = writeln!(text, "  {}", words::line(command));
            }
        }
        let Some(written) = written else {
            if proposal.is_change() && proposal.in_the_way().is_empty() {
                text.push_str("proposed, not written\n");
            }
            return text;
        };
        for told in &written.told {
            let _ = writeln!(text, "{}", plain(told));
        }
        if !written.release.is_empty() {
            let _ = writeln!(text, "to give the held jobs back:");
            let _ = writeln!(text, "  {}", words::line(&written.release));
        }
        text
    }
}

/// The proposal, and what is known of the cluster.
async fn answer(asked: &Asked<'_>) -> Result<(Answer, Ground), Failure> {
    let (wanted, withheld) = wanted(asked)?;
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
    ground.version =
        Controller::beside(asked.scontrol, asked.limit, asked.remote_shell).version().await;
    if ground.version.is_none() {
        troubles.push("the version of Slurm is not known".to_owned());
    }
    let proposal = topology::propose(&text, &wanted, &ground)
        .map_err(|refused| Failure::Usage(format!("{}: {refused}", asked.file.display())))?;
    let at_once = topology::at_once(&proposal, ground.version).ok();
    Ok((Answer { proposal, at_once, withheld, troubles, written: None }, ground))
}

/// Who is to be moved where: as verdicts say, and as a person says.
fn wanted(asked: &Asked<'_>) -> Result<(Wanted, Vec<Withheld>), Failure> {
    let mut wanted = Wanted { topology: asked.topology.map(str::to_owned), ..Wanted::default() };
    let mut withheld = Vec::new();
    if let Some((verdicts, claims)) = asked.run {
        (wanted.moves, withheld) = topology::asked(verdicts, claims);
    }
    for word in asked.moves {
        let pair =
            word.split_once('=').filter(|(node, block)| !node.is_empty() && !block.is_empty());
        let Some((node, block)) = pair else {
            return Err(Failure::Usage(format!("{}: expected NODE=BLOCK", plain(word))));
        };
        let node = NodeName::from(node);
        withheld.retain(|it: &topology::NotMoved| it.node.as_ref() != Some(&node));
        wanted.moves.insert(node, block.to_owned());
    }
    Ok((wanted, withheld.into_iter().map(|it| it.withheld).collect()))
}
