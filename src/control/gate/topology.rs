//! Puts a topology file in place that a person asked for: a copy of the old one
//! first, the new one by renaming, `scontrol reconfigure`, and back again where
//! the controller does not take it.
//!
//! A bad file that stays is a bomb: the controller goes on with what it has and
//! does not start the next time. What the file should be, `act::topology` says.

mod controller;
mod disk;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;

pub use controller::Controller;

use engine::policy::topology_proposal;
use engine::policy::topology_proposal::{
    SlurmVersion, TopologyBlocks, TopologyForm, TopologyProposal,
};
use model::hostlist;
use model::id::NodeName;
use model::text::clean;
use readers::claims::slurm::pending_jobs::PendingJob;

/// How long it is waited between two looks at what the controller shows.
const BETWEEN: Duration = Duration::from_millis(200);

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Everybody is in the right block already; nothing was written.
    Nothing,
    /// Nothing was written, for the reason that is told.
    Refused,
    /// The file is in place and the controller shows it.
    Placed,
    /// The controller did not take it; the old file is back and shown.
    RolledBack,
    /// The old file is back, or could not be put back, and the controller does
    /// not show it: a person must look.
    Unsettled,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Written {
    /// How it ended.
    pub ending: Ending,
    /// What happened, in order.
    pub told: Vec<String>,
    /// The copy of the old file.
    pub backup: Option<PathBuf>,
    /// Jobs that waited before and need the blocks as they were.
    pub needing: Vec<PendingJob>,
    /// Jobs that are held afterwards because no topology has room for them.
    pub held: Vec<PendingJob>,
    /// What gives them back, for a person to type.
    pub release: Vec<String>,
}

/// A file to be put in place.
#[derive(Clone, Copy, Debug)]
pub struct Writing<'a> {
    /// Where the controller is told.
    pub controller: &'a Controller,
    /// The file.
    pub path: &'a Path,
    /// What it should be.
    pub proposal: &'a TopologyProposal,
    /// The version of the controller.
    pub version: Option<SlurmVersion>,
    /// The present, as it stands in the name of the copy: `20261121T163000Z`.
    pub time: &'a str,
    /// How long the controller may take to show it.
    pub settle: Duration,
}

/// Puts it in place, or leaves everything as it was.
pub async fn write(writing: Writing<'_>, say: &mut dyn FnMut(&str)) -> Written {
    let mut turn = Turn {
        writing,
        say,
        written: Written {
            ending: Ending::Refused,
            told: Vec::new(),
            backup: None,
            needing: Vec::new(),
            held: Vec::new(),
            release: Vec::new(),
        },
    };
    turn.written.ending = turn.take().await;
    turn.written
}

struct Turn<'a, 's> {
    writing: Writing<'a>,
    say: &'s mut dyn FnMut(&str),
    written: Written,
}

impl Turn<'_, '_> {
    fn tell(&mut self, what: impl Into<String>) {
        let what = what.into();
        (self.say)(&what);
        self.written.told.push(what);
    }

    async fn take(&mut self) -> Ending {
        let Writing { controller, proposal, .. } = self.writing;
        if !proposal.is_change() {
            self.tell("every node is in the right block already; nothing is written");
            return Ending::Nothing;
        }
        if let Err(why) = self.may().await {
            self.tell(format!("{why}; nothing is written"));
            return Ending::Refused;
        }
        match controller.pending().await {
            Ok(jobs) => self.written.needing = topology_proposal::needing(&jobs, proposal),
            Err(why) => self.tell(format!("which jobs wait for the blocks is not known: {why}")),
        }
        for job in self.written.needing.clone() {
            self.tell(format!("{} waits and fits only into the blocks as they are", shown(&job)));
        }
        if let Err(why) = self.place() {
            self.tell(why);
            return Ending::Refused;
        }
        // A call that failed may have been carried out, and one that did not may
        // be later: only with the old file both end the same.
        let taken = match controller.reconfigure().await {
            Ok(()) => self.see(&proposal.blocks).await,
            Err(why) => Err(why),
        };
        match taken {
            Ok(()) => {
                self.tell("the controller shows the new blocks");
                self.look_after(true).await;
                Ending::Placed
            }
            Err(why) => {
                self.tell(format!("the controller did not take it: {why}"));
                self.back().await
            }
        }
    }

    /// Everything that must hold before anything is written.
    async fn may(&mut self) -> Result<(), String> {
        let Writing { controller, path, proposal, version, .. } = self.writing;
        let faults = proposal.blocking_faults();
        if let Some(first) = faults.first() {
            let more = faults.len() - 1;
            let more = if more == 0 { String::new() } else { format!(" (and {more} more)") };
            return Err(format!(
                "what would be written is not right: {}{more}",
                clean(&first.what)
            ));
        }
        let now = disk::read(path)?;
        if now != proposal.before.as_bytes() {
            return Err(format!("{} was changed since it was read", path.display()));
        }
        let yaml = path.with_file_name(TopologyForm::Yaml.file_name());
        let reads_yaml = version.is_none_or(SlurmVersion::has_yaml);
        if proposal.form == TopologyForm::Conf && reads_yaml && yaml.exists() {
            return Err(format!("Slurm ignores {} beside {}", path.display(), yaml.display()));
        }
        controller.ping().await?;
        let shown = controller.blocks(proposal).await?;
        let strange = strangers(&shown, &[&proposal.blocks_before, &proposal.blocks]);
        if !strange.is_empty() {
            return Err(format!(
                "the controller shows {} elsewhere than {} has them: it is not the file in force, \
                 or they were moved by hand",
                clean(&hostlist::fold(strange.iter().map(NodeName::as_str))),
                path.display()
            ));
        }
        Ok(())
    }

    /// The copy, then the new file.
    fn place(&mut self) -> Result<(), String> {
        let Writing { path, proposal, time, .. } = self.writing;
        let nothing = |why: String| format!("{why}; nothing was changed");
        let backup = disk::keep(path, time, proposal.before.as_bytes()).map_err(nothing)?;
        self.tell(format!("the file as it was is kept in {}", backup.display()));
        self.written.backup = Some(backup);
        disk::replace(path, proposal.after.as_bytes()).map_err(nothing)?;
        self.tell(format!("{} is written", path.display()));
        Ok(())
    }

    /// The old file, and whether the controller shows it.
    async fn back(&mut self) -> Ending {
        let Writing { controller, path, proposal, .. } = self.writing;
        if let Err(why) = disk::replace(path, proposal.before.as_bytes()) {
            self.tell(format!(
                "the file as it was could not be put back: {why}; until it is, slurmctld may not \
                 start again"
            ));
            return Ending::Unsettled;
        }
        self.tell(format!("{} is again as it was", path.display()));
        let answer = controller.reconfigure().await;
        match (answer, self.see(&proposal.blocks_before).await) {
            (_, Ok(())) => {
                self.tell("the controller shows the blocks as they were");
                self.look_after(false).await;
                Ending::RolledBack
            }
            (answer, Err(seen)) => {
                let answer = answer.err().unwrap_or_default();
                self.tell(format!(
                    "the controller does not show the blocks as they were: {seen} {answer}"
                ));
                Ending::Unsettled
            }
        }
    }

    /// Waits until the controller shows these blocks.
    async fn see(&self, meant: &TopologyBlocks) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let shown = self.writing.controller.blocks(self.writing.proposal).await;
            let why = match shown {
                Ok(shown) if filled(&shown) == filled(meant) => return Ok(()),
                Ok(shown) => {
                    let strange = strangers(&shown, &[meant]);
                    let list = hostlist::fold(strange.iter().map(NodeName::as_str));
                    format!("it does not show {} where they were meant to be", clean(&list))
                }
                Err(why) => why,
            };
            if self.writing.settle <= start.elapsed() {
                return Err(why);
            }
            tokio::time::sleep(BETWEEN).await;
        }
    }

    /// Jobs that are held now. The scheduler takes a round to notice, for which
    /// it is waited where some are expected.
    async fn look_after(&mut self, patient: bool) {
        let start = Instant::now();
        loop {
            let jobs = match self.writing.controller.pending().await {
                Ok(jobs) => jobs,
                Err(why) => {
                    self.tell(format!("which jobs are held now is not known: {why}"));
                    return;
                }
            };
            self.written.held = topology_proposal::held(&jobs);
            let is_settled = !patient
                || self.written.needing.is_empty()
                || !self.written.held.is_empty()
                || self.writing.settle <= start.elapsed();
            if is_settled {
                break;
            }
            tokio::time::sleep(BETWEEN).await;
        }
        for job in self.written.held.clone() {
            self.tell(format!("{} is held for good: {}", shown(&job), job.reason));
        }
        self.written.release = topology_proposal::release(&self.written.held);
    }
}

fn shown(job: &PendingJob) -> String {
    format!("job {} of {}", job.id, job.user)
}

/// Blocks that hold anybody: spare ones are not shown alike by all versions.
fn filled(blocks: &TopologyBlocks) -> TopologyBlocks {
    let filled = blocks.iter().filter(|(_, nodes)| !nodes.is_empty());
    filled.map(|(name, nodes)| (name.clone(), nodes.clone())).collect()
}

/// Nodes that are shown in a block where none of these has them, or in none
/// where these have them in some.
fn strangers(shown: &TopologyBlocks, meant: &[&TopologyBlocks]) -> Vec<NodeName> {
    let places = |blocks: &TopologyBlocks, node: &NodeName| -> Vec<String> {
        let own = blocks.iter().filter(|(_, nodes)| nodes.contains(node));
        own.map(|(block, _)| block.clone()).collect()
    };
    let mut all: Vec<&NodeName> = shown.values().flatten().collect();
    all.extend(meant.iter().flat_map(|blocks| blocks.values().flatten()));
    all.sort();
    all.dedup();
    let is_strange = |node: &&NodeName| {
        let now = places(shown, node);
        !meant.iter().any(|blocks| places(blocks, node) == now)
    };
    all.into_iter().filter(is_strange).cloned().collect()
}
