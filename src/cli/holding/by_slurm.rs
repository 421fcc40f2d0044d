//! Nodes that jobs and reservations of Slurm hold.

use std::sync::mpsc;
use std::time::Duration;

use super::Purpose;
use super::Record;
use crate::cli::acting;
use crate::cli::config::Config;
use crate::cli::gating::Gate;
use crate::cli::gating::LIMIT;
use crate::cli::gating::SETTLE;
use crate::cli::gating::Told;
use crate::cli::stdout::note;
use control::gate::carry::KEPT;
use control::gate::hold;
use control::gate::hold::HoldError;
use control::gate::hold::Holder;
use control::gate::hold::Holding;
use control::gate::hold::Leftovers;
use control::gate::hold::Wish;
use control::gate::pace::Pace;
use control::gate::recover::IN_FLIGHT;
use control::gate::scheduler::Scheduler;
use control::gate::scontrol::Scontrol;
use control::launch::held::Held;
use control::launch::slurm::Slurm;
use model::id::NodeName;

/// How Slurm holds nodes, and which.
#[derive(Debug)]
pub(super) struct BySlurm {
    slurm: Slurm,
    scheduler: Box<dyn Scheduler>,
    record: Record,
    pace: Pace,
    holding: Holding,
    renewal: Option<Renewal>,
}

/// Renews a reservation in which drains are lifted, for as long as it is there.
#[derive(Debug)]
struct Renewal {
    /// Dropped, it ends the thread.
    _end: mpsc::Sender<()>,
}

impl Renewal {
    /// Without a thread the reservation ends when it was first said to.
    fn of(slurm: &Slurm, limit: Duration, name: &str) -> Option<Self> {
        let (end, ended) = mpsc::channel();
        let (programs, name) = (slurm.programs.clone(), name.to_owned());
        let work = move || {
            while ended.recv_timeout(hold::RENEWED) == Err(mpsc::RecvTimeoutError::Timeout) {
                let Ok(runtime) = crate::cli::runtime() else { continue };
                if let Err(why) = runtime.block_on(hold::renew(&programs, limit, &name)) {
                    note(&format!("reservation {name} is not renewed: {why}"));
                }
            }
        };
        let made = std::thread::Builder::new().name("renewal".to_owned()).spawn(work);
        made.map(|_| Self { _end: end }).ok()
    }
}

impl BySlurm {
    /// Through the gate of the configuration where that tells Slurm, or through
    /// scontrol as patiently as a gate that says nothing of times: who tells
    /// Kubernetes cannot lift a drain of Slurm's.
    pub(super) fn new(config: &Config, slurm: &Slurm, run: &str) -> Self {
        let tells_slurm = |gate: &&Gate| !matches!(gate.told, Told::Kubernetes(_));
        let gate = config.gate.as_ref().filter(tells_slurm);
        let usual = Pace { limit: LIMIT, settle: SETTLE, kept: KEPT, in_flight: IN_FLIGHT };
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
            renewal: None,
        }
    }

    pub(super) fn held(&self) -> &Held {
        &self.holding.held
    }

    pub(super) async fn hold(&mut self, purpose: &Purpose<'_>) -> Result<(), HoldError> {
        let of = |domain: &model::claims::ClaimedDomain| -> Vec<NodeName> {
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
        let held = hold::hold(&mut holder, &wish, holding).await;
        if let Some(name) =
            self.holding.reservation.as_ref().filter(|_| !self.holding.drained.is_empty())
        {
            self.renewal = Renewal::of(&self.slurm, self.pace.limit, name);
        }
        held
    }

    pub(super) async fn free(&mut self) -> Vec<String> {
        self.renewal = None;
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
        let Self { slurm, scheduler, record, pace, holding, .. } = self;
        let folder = &record.folder;
        (Holder { slurm, scheduler: &**scheduler, folder, pace: *pace, say }, holding)
    }
}
