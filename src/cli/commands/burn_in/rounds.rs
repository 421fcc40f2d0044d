//! The rounds of a burn-in and the load between them, in order; each is stored before the next
//! begins.
//!
//! `act::stops` decides when the burn-in ends, and `act::acceptance` computes its result.

pub mod acceptance_update;
pub mod soak;

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::cli::allocation::{AllocationPurpose, NodeAllocation};
use crate::cli::commands::burn_in::{BurnInArgs, write_acceptance, write_failure};
use crate::cli::plan_scope::PlanBasis;
use crate::cli::post_run::{FinishedRun, run_hooks};
use crate::cli::stdout::{Globals, note};
use crate::cli::sweep;
use crate::cli::sweep_setup::SweepSetup;
use crate::cli::{allocation, stored_run};
use crate::exit::CommandError;
use control::launch::WorkerProgram;
use control::store::run_folder::RunFolder;
use control::store::run_reader::StoredRun;
use control::store::{RunState, file};
use control::sweep::{ConfirmSettings, LoadRepeat, RunLocation, SweepRequest, SweepResult};
use engine::plan;
use engine::plan::Plan;
use engine::policy::{acceptance as accept, burn_in_termination};
use model::acceptance::{
    Acceptance, AcceptanceOutcome, BurnInRound, BurnInState, BurnInStop, StopRule,
};
use model::claims::Claims;
use model::profile::Profile;
use model::run::Run;
use model::verdict::Outcome;

/// A running burn-in.
pub(crate) struct BurnInSession<'a> {
    site: SweepSetup,
    globals: &'a Globals,
    fleet: Claims,
    /// The claims at the start of the burn-in.
    claims: Claims,
    pub(crate) acceptance: Acceptance,
    pub(crate) folder: RunFolder,
    /// The folder that contains the run folders of the rounds.
    runs: PathBuf,
    program: WorkerProgram,
    _links: Option<tempfile::TempDir>,
    allocation: Option<NodeAllocation>,
    _lock: File,
    /// The last run, for a report of its cells.
    pub(crate) last: Option<Run>,
    pub(crate) out_of_reach: bool,
}

impl<'a> BurnInSession<'a> {
    /// Locks the folder, and allocates the nodes for all rounds.
    #[expect(clippy::too_many_arguments, reason = "what a burn-in is made of")]
    pub(crate) fn new(
        site: SweepSetup,
        args: &'a BurnInArgs,
        globals: &'a Globals,
        fleet: Claims,
        claims: Claims,
        acceptance: Acceptance,
        folder: RunFolder,
        runs: PathBuf,
    ) -> anyhow::Result<Self> {
        let lock = folder.lock().map_err(|error| write_failure(&error))?;
        let Some(lock) = lock else {
            let path_text = folder.path().display();
            let text = format!("{path_text}: another fabricgate process runs this burn-in");
            return Err(CommandError::Environment(text).into());
        };
        let (program, links) = sweep::worker_program(&site.config, args.sweep.even_if_busy)?;
        let mut burn = Self {
            site,
            globals,
            fleet,
            claims,
            acceptance,
            folder,
            runs,
            program,
            _links: links,
            allocation: None,
            _lock: lock,
            last: None,
            out_of_reach: false,
        };
        burn.allocate_nodes()?;
        Ok(burn)
    }

    /// Allocates the nodes once, for all rounds and the load between them: if other jobs use nodes
    /// in between, they cool down or break.
    fn allocate_nodes(&mut self) -> anyhow::Result<()> {
        let config = &self.site.config;
        let claims = accept::participating_claims(&self.claims, &self.acceptance.nodes);
        let request = &self.acceptance.asked;
        let plan = self.plan_basis(&claims, request.seed)?.make_plan()?;
        let each = allocation::job_minutes(plan.estimate_s, config.confirm.wait) as f64;
        let left =
            request.rounds.map_or(1.0, |n| f64::from(n) - self.completed_rounds() as f64).max(1.0);
        let by_rounds = left * (each + request.soak_minutes);
        // A last round may begin right before the hours are over.
        let by_hours = request.hours.map(|hours| hours * 60.0 + each + request.soak_minutes);
        let minutes = match (request.rounds, by_hours) {
            (Some(_), Some(hours)) => by_rounds.min(hours),
            (None, Some(hours)) => hours,
            (_, None) => by_rounds,
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "minutes of some weeks, and positive"
        )]
        let minutes = minutes.ceil() as u64;
        let nodes = plan.nodes().into_iter().cloned().collect();
        self.allocation = NodeAllocation::allocate(
            config,
            &AllocationPurpose {
                run: &self.acceptance.id,
                claims: &claims,
                nodes: &nodes,
                drained: false,
                minutes,
                worker: &config.worker,
            },
        )?;
        if let Some(hold) = &self.allocation {
            self.program.held = hold.launch_allocation().clone();
        }
        Ok(())
    }

    pub(crate) fn release_nodes(&mut self) {
        self.allocation = None;
    }

    pub(crate) fn completed_rounds(&self) -> usize {
        self.acceptance.rounds.iter().filter(|round| round.ended.is_some()).count()
    }

    fn plan_basis<'b>(
        &'b self,
        claims: &'b Claims,
        seed: u64,
    ) -> Result<PlanBasis<'b>, CommandError> {
        let SweepSetup { config, in_force } = &self.site;
        PlanBasis::new(config, claims, &in_force.catalogue, Profile::BurnIn, seed)
    }

    /// Runs rounds until a stop rule applies.
    pub(crate) fn run(&mut self) -> anyhow::Result<()> {
        loop {
            if let Some(stop) = burn_in_termination::check_stop(
                &self.acceptance,
                self.elapsed_hours(),
                self.next_round_hours(),
            ) {
                return self.finish(BurnInState::Complete, stop);
            }
            let before = self.acceptance.rounds.iter().filter(|round| round.ended.is_some());
            let before = before.map(|round| round.round).max().unwrap_or(0);
            let request = &self.acceptance.asked;
            let soaks = 0 < before && 0.0 < request.soak_minutes;
            let was_soaked = self.acceptance.soaks.iter().any(|soak| soak.after_round == before);
            let is_begun = self.acceptance.rounds.last().is_some_and(|it| it.ended.is_none());
            if soaks && !was_soaked && !is_begun {
                if !self.soak(before)? {
                    return self.record_interruption(before);
                }
                if self.acceptance.nodes.iter().all(|node| node.out.is_some()) {
                    continue;
                }
            }
            if !self.run_round(before + 1)? {
                return self.record_interruption(before);
            }
        }
    }

    fn record_interruption(&mut self, after_round: u32) -> anyhow::Result<()> {
        let why = "a signal interrupted it".to_owned();
        self.finish(
            BurnInState::Partial,
            BurnInStop { rule: StopRule::Interrupted, after_round, why },
        )
    }

    fn finish(&mut self, state: BurnInState, stop: BurnInStop) -> anyhow::Result<()> {
        self.acceptance.state = state;
        self.acceptance.stop = Some(stop);
        self.acceptance.ended = Some(control::sweep::format_timestamp(control::sweep::now()));
        self.save()
    }

    /// Computes the result so far, and writes the document.
    fn save(&mut self) -> anyhow::Result<()> {
        accept::conclude(&mut self.acceptance);
        self.acceptance.notes = accept::list_notes(&self.acceptance);
        self.sign()?;
        write_acceptance(&self.folder, &self.acceptance)
    }

    /// Signs the document if a key is configured and the burn-in is complete.
    fn sign(&mut self) -> anyhow::Result<()> {
        self.acceptance.signature = None;
        if self.acceptance.state != BurnInState::Complete {
            return Ok(());
        }
        let keys = self.site.config.certificates.read_keys();
        match keys.seal().key {
            Ok(Some(key)) => self.acceptance.signature = Some(key.sign(&self.acceptance)?),
            Ok(None) if keys.trust.required => {
                note("the acceptance is not signed: signatures are required, but there is no key");
            }
            Ok(None) => {}
            Err(why) => note(&format!("the acceptance is not signed: {why}")),
        }
        Ok(())
    }

    /// Hours spent in rounds and load.
    fn elapsed_hours(&self) -> f64 {
        let rounds = self.acceptance.rounds.iter().map(|round| round.minutes);
        let soaks = self.acceptance.soaks.iter().map(|soak| soak.minutes);
        rounds.chain(soaks).sum::<f64>() / 60.0
    }

    /// Expected hours of another round with its load: those of the last one.
    fn next_round_hours(&self) -> f64 {
        let round = self.acceptance.rounds.iter().rev().find(|round| round.ended.is_some());
        let soak = self.acceptance.soaks.last().map(|soak| soak.minutes);
        let soak = soak.unwrap_or(self.acceptance.asked.soak_minutes);
        (round.map_or(0.0, |round| round.minutes) + soak) / 60.0
    }

    /// Runs one round; false if a signal interrupted it.
    fn run_round(&mut self, number: u32) -> anyhow::Result<bool> {
        let began = Instant::now();
        let unfinished = match self.acceptance.rounds.last() {
            Some(last) if last.ended.is_none() => self.open_unfinished_round(&last.run.clone())?,
            _ => None,
        };
        if unfinished.is_none() {
            // A round without a stored folder left no results.
            self.acceptance.rounds.retain(|round| round.ended.is_some());
        }
        let soaked = self.acceptance.soaks.iter().find(|soak| soak.after_round + 1 == number);
        let soaked = soaked.map_or(0.0, |soak| match soak.simulated {
            true => self.acceptance.asked.soak_minutes,
            false => soak.minutes,
        });
        let seed = self.acceptance.asked.seed.wrapping_add(u64::from(number) - 1);
        self.program.age = (!self.acceptance.real).then(|| format!("{number}:{soaked}"));
        let done = match unfinished {
            Some(stored) if stored.record.state == RunState::Complete => {
                BurnInRoundEnd::Stored(Box::new(stored))
            }
            Some(stored) => BurnInRoundEnd::Fresh(Box::new(self.resume_round(&stored)?)),
            None => BurnInRoundEnd::Fresh(Box::new(self.start_round(number, seed, soaked)?)),
        };
        let minutes = began.elapsed().as_secs_f64() / 60.0;
        let (run, partial, folder) = match done {
            BurnInRoundEnd::Fresh(done) => {
                sweep::write_artifacts(&done, None)?;
                self.out_of_reach |= done.out_of_reach;
                run_hooks(&FinishedRun::new(&self.site.config, &done, None));
                (done.run, done.partial, done.folder.path().to_owned())
            }
            BurnInRoundEnd::Stored(stored) => {
                (stored_run::read_run(&stored)?, false, stored.path().to_owned())
            }
        };
        if let Some(round) = self.acceptance.rounds.last_mut() {
            round.minutes += minutes;
        }
        if partial {
            self.last = Some(run);
            return Ok(false);
        }
        self.record_round(number, run, &stored_run::open_run_quietly(&folder)?)?;
        Ok(true)
    }

    fn start_round(&mut self, number: u32, seed: u64, soaked: f64) -> anyhow::Result<SweepResult> {
        let mut claims = accept::participating_claims(&self.claims, &self.acceptance.nodes);
        let mut plan = self.plan_basis(&claims, seed)?.make_plan()?;
        if let Some(hold) = &self.allocation {
            claims = hold.restrict_claims(&claims);
            plan = hold.make_plan(&self.plan_basis(&claims, seed)?)?;
        }
        let info = sweep::new_run_info(&self.site.config, &claims, Profile::BurnIn);
        self.acceptance.rounds.push(BurnInRound {
            round: number,
            run: info.id.clone(),
            seed,
            began: info.created.clone(),
            ended: None,
            minutes: 0.0,
            outcome: None,
            soaked_minutes: soaked,
            set_aside: false,
            claims_digest: None,
            thresholds_digest: None,
            nodes: Vec::new(),
        });
        // The name is stored before the round begins, so that --resume finds its folder.
        write_acceptance(&self.folder, &self.acceptance)?;
        let of = match (self.acceptance.asked.rounds, self.acceptance.asked.hours) {
            (Some(rounds), _) => format!(" of {rounds}"),
            (None, Some(hours)) => {
                format!(", {:.2} of {hours} h have passed", self.elapsed_hours())
            }
            (None, None) => String::new(),
        };
        note(&format!("round {number}{of}: run {}", info.id));
        let basis = self.plan_basis(&claims, seed)?;
        let named = (info.id.as_str(), info.created.as_str());
        let place = RunLocation::New(&self.runs);
        self.sweep_round(&plan, &basis.request(), &claims, named, &self.program, place, None)
    }

    /// Continues a round that was interrupted.
    fn resume_round(&self, stored: &StoredRun) -> anyhow::Result<SweepResult> {
        sweep::check_plan(stored, &stored.plan, &stored.claims)?;
        note(&format!("continuing with run {}", stored.record.info.id));
        let basis = self.plan_basis(&stored.claims, stored.record.seed)?;
        let info = &stored.record.info;
        let named = (info.id.as_str(), info.created.as_str());
        let place = RunLocation::Resume(stored);
        let request = basis.request();
        self.sweep_round(&stored.plan, &request, &stored.claims, named, &self.program, place, None)
    }

    /// The folder of an interrupted round; `None` if it was not written yet.
    fn open_unfinished_round(&self, run: &str) -> Result<Option<StoredRun>, CommandError> {
        let folder = self.runs.join(run);
        match folder.join(file::PLAN).is_file() && folder.join(file::RUN).is_file() {
            true => stored_run::open_run_quietly(&folder).map(Some),
            false => Ok(None),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what a sweep is made of")]
    fn sweep_round(
        &self,
        plan: &Plan,
        request: &plan::PlanRequest<'_>,
        claims: &Claims,
        (id, created): (&str, &str),
        program: &WorkerProgram,
        place: RunLocation<'_>,
        lasting: Option<Duration>,
    ) -> anyhow::Result<SweepResult> {
        let SweepSetup { config, in_force } = &self.site;
        let mut info = sweep::new_run_info(config, claims, Profile::BurnIn);
        info.id = id.to_owned();
        info.created = created.to_owned();
        if lasting.is_some() {
            info.profile = plan::SOAK_PROFILE.to_owned();
        }
        let none = ConfirmSettings { enabled: false, wait: Duration::ZERO };
        let swept = control::sweep::run_sweep(&SweepRequest {
            info,
            claims,
            fleet: &self.fleet,
            plan,
            request,
            launcher: &config.launcher,
            program,
            tools: stored_run::simulated_tools(&config.launcher, program)?,
            connect_timeout: config.connect,
            confirm: if lasting.is_some() { &none } else { &config.confirm },
            catalogue: &in_force.catalogue,
            thresholds_digest: &in_force.digest,
            platform: config.platform.as_deref(),
            policy: &config.policy,
            run_location: place,
            progress: sweep::new_progress(self.globals),
            repeat: lasting.map(|lasting| LoadRepeat { duration: lasting }),
        });
        swept.map_err(sweep::sweep_error)
    }

    /// Carries out the actions of the verdicts at the end: first of the rounds in which nodes were
    /// excluded, then of the last one, in which only accepted nodes pass.
    pub(crate) fn apply(&mut self) -> anyhow::Result<Option<u8>> {
        let mut rounds: Vec<u32> = self
            .acceptance
            .nodes
            .iter()
            .filter_map(|node| node.out.as_ref())
            .map(|out| out.after_round)
            .collect();
        let last = self.acceptance.rounds.last().map_or(0, |round| round.round);
        rounds.push(last);
        rounds.sort_unstable();
        rounds.dedup();
        let mut code = None;
        for number in rounds {
            let Some(round) = self.acceptance.rounds.iter().find(|it| it.round == number) else {
                continue;
            };
            let folder = self.runs.join(&round.run);
            let stored = stored_run::open_run_quietly(&folder)?;
            let mut run = stored_run::read_run(&stored)?;
            for verdict in &mut run.verdicts.nodes {
                let known = self.acceptance.nodes.iter().find(|it| it.node == verdict.node);
                let open = known.filter(|it| it.accepted != AcceptanceOutcome::Pass);
                if verdict.outcome == Outcome::Pass
                    && let Some(known) = open
                {
                    verdict.outcome = Outcome::Unknown;
                    verdict.reason = format!("burn-in {}: {}", self.acceptance.id, known.reason);
                }
            }
            let mut done = SweepResult::from_earlier_run(run, RunFolder::open(&folder));
            let exit_code = sweep::apply_gate(&self.site.config, &self.fleet, &mut done, true)?;
            code = code.max(exit_code);
        }
        Ok(code)
    }
}

enum BurnInRoundEnd {
    Fresh(Box<SweepResult>),
    /// The process ended between the end of the sweep and the record of the round.
    Stored(Box<StoredRun>),
}
