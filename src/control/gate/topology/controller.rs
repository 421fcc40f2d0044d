//! What is asked of the controller, and told it, about a topology.
//!
//! `show topology` ends with exit code 0 whatever went wrong, so only what it
//! prints counts.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::watch;

use crate::launch::remote_shell;
use crate::launch::slurm::SlurmPrograms;
use engine::policy::topology_proposal::{SlurmVersion, TopologyBlocks, TopologyProposal};
use model::raw_result::ProcessEnding;
use model::shell_quote;
use model::source_report::NodeGroupKind;
use model::text::clean;
use node::exec;
use node::exec::ProcessRequest;
use readers::claims::slurm::pending_jobs::PendingJob;
use readers::claims::slurm::{pending_jobs, show_topology};

/// Slurm's programs, each with words in front where it is reached through
/// something.
#[derive(Clone, Debug)]
pub struct Controller {
    /// `scontrol`.
    pub scontrol: Vec<String>,
    /// `squeue`.
    pub squeue: Vec<String>,
    /// How long one call may take. Slurm's own MessageTimeout is 10 s.
    pub limit: Duration,
    /// Whether a shell elsewhere reads the words behind them; found out where absent.
    pub remote_shell: Option<bool>,
}

/// What a command printed.
struct Printed {
    place: String,
    text: String,
    complaint: String,
    ending: ProcessEnding,
}

impl Controller {
    /// The same words in front of `squeue` as of this `scontrol`.
    pub fn beside(scontrol: &[String], limit: Duration, remote_shell: Option<bool>) -> Self {
        let SlurmPrograms { scontrol, squeue, .. } = SlurmPrograms::from_scontrol(scontrol);
        Self { scontrol, squeue, limit, remote_shell }
    }

    /// The version of its programs.
    pub async fn version(&self) -> Option<SlurmVersion> {
        let printed = self.run(&self.scontrol, &["--version"]).await.ok()?;
        SlurmVersion::parse(&printed.text)
    }

    /// Whether it answers: a controller that is down says so here within
    /// milliseconds, and to everything else after ten seconds.
    pub async fn ping(&self) -> Result<(), String> {
        let printed = self.run(&self.scontrol, &["ping"]).await?;
        if printed.text.contains(" is UP") {
            return Ok(());
        }
        let said = if printed.text.trim().is_empty() { &printed.complaint } else { &printed.text };
        Err(format!("`{}`: {}", clean(&printed.place), clean(said)))
    }

    /// The blocks in force of the topology that a proposal changes.
    pub async fn blocks(&self, proposal: &TopologyProposal) -> Result<TopologyBlocks, String> {
        let mut question = vec!["--all", "show", "topology"];
        // Up to 24.11 a name is taken for a node or block, and there is one
        // topology only.
        question.extend(proposal.topology.as_deref());
        let printed = self.run(&self.scontrol, &question).await?;
        let said = show_topology::read(&printed.place, &printed.text);
        if let Some(problem) = said.problems.first() {
            let complaint = if printed.complaint.is_empty() {
                clean(&problem.message)
            } else {
                printed.complaint
            };
            return Err(format!("`{}`: {complaint}", clean(&printed.place)));
        }
        let groups = said.groups.into_iter().filter(|group| group.kind == NodeGroupKind::Domain);
        Ok(groups.map(|group| (group.name, BTreeSet::from_iter(group.nodes))).collect())
    }

    /// Jobs that wait.
    pub async fn pending(&self) -> Result<Vec<PendingJob>, String> {
        let question = ["--all", "--states=PENDING", "--json"];
        let printed = self.run(&self.squeue, &question).await?;
        printed.well()?;
        pending_jobs::read(&printed.place, &printed.text)
    }

    /// Has it read its files again.
    pub async fn reconfigure(&self) -> Result<(), String> {
        self.run(&self.scontrol, &["reconfigure"]).await?.well()
    }

    async fn run(&self, program: &[String], words: &[&str]) -> Result<Printed, String> {
        let argv = remote_shell::quote_argv(program, self.remote_shell, words)?;
        let place = shell_quote::join_quoted(&argv);
        let (_nobody, stop) = watch::channel(false);
        let request = ProcessRequest { argv, limit: self.limit, capture: exec::CAPTURE };
        let finished = exec::run(&request, stop).await;
        let finished = finished.map_err(|error| format!("{}: {error}", clean(&place)))?;
        Ok(Printed {
            place,
            text: String::from_utf8_lossy(&finished.stdout.bytes).into_owned(),
            complaint: clean(&String::from_utf8_lossy(&finished.stderr.bytes)),
            ending: finished.ending,
        })
    }
}

impl Printed {
    /// Whether it ended well.
    fn well(&self) -> Result<(), String> {
        if self.ending.is_success() {
            return Ok(());
        }
        let said =
            if self.complaint.is_empty() { clean(&self.text) } else { self.complaint.clone() };
        Err(format!("`{}`: {}: {said}", clean(&self.place), self.ending))
    }
}
