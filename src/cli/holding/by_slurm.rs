//! Nodes that jobs and reservations of Slurm hold.

use super::Purpose;
use super::Record;
use crate::cli::acting;
use crate::cli::config::Config;
use crate::cli::gating::Gate;
use crate::cli::gating::LIMIT;
use crate::cli::gating::SETTLE;
use crate::cli::gating::Told;
use crate::cli::stdout::note;
use crate::gate::carry::KEPT;
use crate::gate::hold;
use crate::gate::hold::HoldError;
use crate::gate::hold::Holder;
use crate::gate::hold::Holding;
use crate::gate::hold::Leftovers;
use crate::gate::hold::Wish;
use crate::gate::pace::Pace;
use crate::gate::scheduler::Scheduler;
use crate::gate::scontrol::Scontrol;
use crate::launch::held::Held;
use crate::launch::slurm::Slurm;
use crate::model::id::NodeName;

/// How Slurm holds nodes, and which.
#[derive(Debug)]
pub(super) struct BySlurm {
    slurm: Slurm,
    scheduler: Box<dyn Scheduler>,
    record: Record,
    pace: Pace,
    holding: Holding,
}

impl BySlurm {
    /// Through the gate of the configuration where that tells Slurm, or through
    /// scontrol as patiently as a gate that says nothing of times: who tells
    /// Kubernetes cannot lift a drain of Slurm's.
    pub(super) fn new(config: &Config, slurm: &Slurm, run: &str) -> Self {
        let tells_slurm = |gate: &&Gate| !matches!(gate.told, Told::Kubernetes(_));
        let gate = config.gate.as_ref().filter(tells_slurm);
        let usual = Pace { limit: LIMIT, settle: SETTLE, kept: KEPT };
        let pace = gate.map_or(usual, |it| it.pace);
        let scheduler: Box<dyn Scheduler> = match gate {
            Some(gate) => acting::scheduler(gate),
            None => Box::new(Scontrol {
                argv: slurm.programs.scontrol.clone(),
                limit: pace.limit,
                remote_shell: slurm.programs.remote_shell,
            }),
        };
        Self {
            slurm: slurm.clone(),
            scheduler,
            record: Record::of(config, run),
            pace,
            holding: Holding::default(),
        }
    }

    pub(super) fn held(&self) -> &Held {
        &self.holding.held
    }

    pub(super) async fn hold(&mut self, purpose: &Purpose<'_>) -> Result<(), HoldError> {
        let of = |domain: &crate::model::claims::ClaimedDomain| -> Vec<NodeName> {
            domain.nodes.iter().filter(|node| purpose.nodes.contains(*node)).cloned().collect()
        };
        let domains = purpose.claims.domains.iter().map(|domain| (domain.name.clone(), of(domain)));
        let wish = Wish {
            run: purpose.run,
            domains: domains.filter(|(_, nodes)| !nodes.is_empty()).collect(),
            drained: purpose.drained,
            minutes: purpose.minutes,
        };
        self.tidy().await?;
        let mut say = |text: &str| note(text);
        let (mut holder, holding) = self.holder(&mut say);
        hold::hold(&mut holder, &wish, holding).await
    }

    pub(super) async fn free(&mut self) -> Vec<String> {
        let mut say = |text: &str| note(text);
        let (mut holder, holding) = self.holder(&mut say);
        hold::free(&mut holder, holding).await
    }

    pub(super) fn record(&self) -> &Record {
        &self.record
    }

    /// Ends what runs without a gate left behind.
    async fn tidy(&self) -> Result<(), HoldError> {
        for folder in self.record.left() {
            let mut say = |text: &str| note(text);
            hold::tidied(Leftovers {
                folder: &folder,
                scheduler: &*self.scheduler,
                programs: Some(&self.slurm.programs),
                pods: None,
                pace: self.pace,
                say: &mut say,
            })
            .await?;
            self.record.remove(&folder);
        }
        Ok(())
    }

    fn holder<'a>(&'a mut self, say: &'a mut dyn FnMut(&str)) -> (Holder<'a>, &'a mut Holding) {
        let Self { slurm, scheduler, record, pace, holding } = self;
        let folder = &record.folder;
        (Holder { slurm, scheduler: &**scheduler, folder, pace: *pace, say }, holding)
    }
}
